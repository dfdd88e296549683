//! Formats the time of page walks that samples of IBS give; pure.

use super::number::grouped;
use address_space::agreeing;
use translation::walk_counters::{Estimate, Latency, SampledWalks, WalkTime};

/// True if there is an estimate for at least one side.
pub fn is_estimated(sampled: &SampledWalks) -> bool {
    [&sampled.code, &sampled.data].iter().any(|side| matches!(side, Estimate::FromSamples(_)))
}

/// The share of cycles, for a cell of the table.
pub fn share(side: &Estimate) -> String {
    match side {
        Estimate::FromSamples(time) => format!("≤ {:.2} ±{:.2} %", 100.0 * time.share, 100.0 * time.margin),
        Estimate::NotEstimated(_) => "–".to_owned(),
    }
}

/// The basis of the estimate, or the reason why there is none.
pub fn lines(sampled: &SampledWalks) -> String {
    let mut text = line("code", &sampled.code) + &line("data", &sampled.data);
    if is_estimated(sampled) {
        text +=
            "note: walks overlap with other work and with each other, so that they take at most the estimated share\n";
    }
    text
}

fn line(what: &str, side: &Estimate) -> String {
    match side {
        Estimate::NotEstimated(why) => format!("share of cycles of {what}: not estimated: {why}\n"),
        Estimate::FromSamples(WalkTime { walk, by_page, .. }) => {
            let sizes: Vec<String> = match by_page.len() {
                0 | 1 => Vec::new(),
                _ => {
                    by_page.iter().map(|(page, latency)| format!("{} {}", page.page_words(), cycles(latency))).collect()
                }
            };
            let sizes = if sizes.is_empty() { String::new() } else { format!(": {}", sizes.join(", ")) };
            format!(
                "page walks of {what}: {} cycles each, estimated from IBS samples ({} {}){sizes}\n",
                cycles(walk),
                grouped(walk.samples),
                agreeing(walk.samples, "sample")
            )
        }
    }
}

fn cycles(latency: &Latency) -> String {
    format!("{:.1} ±{:.1}", latency.cycles, latency.margin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use translation::walk_counters::What;

    const fn latency(samples: u64, cycles: f64, margin: f64) -> Latency {
        Latency { samples, cycles, margin }
    }

    #[test]
    fn estimates_are_marked_and_gaps_have_their_reason() {
        let data = WalkTime {
            walk: latency(1_340, 33.04, 1.06),
            by_page: vec![(What::Walks4K, latency(1_200, 35.0, 1.0)), (What::Walks2M, latency(140, 20.0, 2.0))],
            share: 0.031,
            margin: 0.001,
        };
        let why = "12 of 60000 IBS samples are page walks; needed: 30; fix: a longer --for, or it seldom walks";
        let sampled = SampledWalks { code: Estimate::NotEstimated(why.to_owned()), data: Estimate::FromSamples(data) };
        assert!(is_estimated(&sampled));
        assert_eq!((share(&sampled.code), share(&sampled.data)), ("–".to_owned(), "≤ 3.10 ±0.10 %".to_owned()));
        let text = lines(&sampled);
        for wanted in [
            "share of cycles of code: not estimated: 12 of 60000",
            "page walks of data: 33.0 ±1.1 cycles each, estimated from IBS samples (1,340 samples): 4K 35.0 ±1.0, 2M 20.0 ±2.0",
            "at most the estimated share",
        ] {
            assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
        }
        let none = SampledWalks { data: sampled.code.clone(), code: sampled.code };
        assert!(!is_estimated(&none) && !lines(&none).contains("note"));
    }
}
