//! The decision after an experiment: keep the change, leave the program as it was, or measure for longer. Pure.

use crate::statistics::{Estimate, FEWEST_BLOCKS};
use crate::toggle::{Answer, Finding};
use serde::Serialize;

/// The smallest gain that is worth a change, as a share. A program that certainly gains less is left as it was.
pub const WORTH: f64 = 0.01;
/// A suggested time is this much longer than computed, since the width of an interval is itself uncertain.
const MARGIN: f64 = 1.3;
/// Blocks of each kind that a suggested time has at least.
const ENOUGH_BLOCKS: f64 = 2.0 * FEWEST_BLOCKS as f64;
/// The largest share of a lifted arm's huge bytes that plain may have on huge pages, too.
const MOST_HUGE: f64 = 0.5;

/// Facts about an arm that the answer does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArmFacts {
    /// Nothing was lifted, so that the arm is plain.
    pub lifted_nothing: bool,
    /// The share of the arm's huge bytes that are on huge pages in the plain program, too; absent if that was not seen.
    pub plain_huge: Option<f64>,
}

/// The verdict on an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArmVerdict {
    /// The arm gains.
    Keep,
    /// The arm costs something.
    Costs,
    /// The arm gains less than [`WORTH`], if anything.
    GainsTooLittle,
    /// The experiment gives no answer.
    CannotTell(Doubt),
}

/// Why an experiment gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// Nothing was lifted.
    NothingLifted,
    /// The plain program is on huge pages, too.
    PlainIsHuge,
    /// Plain differs from itself.
    Disturbed,
    /// Servers were started too few times: this many.
    TooFewStarts(usize),
    /// It was too short. The seconds that it should take in all, at this noise; absent if nothing was measured.
    TooShort(Option<f64>),
}

/// A verdict and the arm that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Number of the arm.
    pub arm: usize,
    /// The verdict on the arm.
    pub verdict: ArmVerdict,
}

/// Decides from the answer of an experiment that took this many seconds. The decision is about the arm that gains most; if no
/// arm gains, about one that may gain. `None` if there is no arm. Facts that are missing for an arm are taken as unknown.
pub fn decide(answer: &Answer, facts: &[ArmFacts], seconds: f64) -> Option<Decision> {
    let of = |arm: usize| {
        let facts = facts.get(arm).copied().unwrap_or_default();
        Decision { arm, verdict: verdict(answer, arm, facts, seconds) }
    };
    let centre = |arm: usize| answer.arms[arm].ratio.map_or(f64::NEG_INFINITY, |ratio| ratio.centre);
    let order = |one: &Decision, other: &Decision| {
        rank(one.verdict).cmp(&rank(other.verdict)).then(centre(one.arm).total_cmp(&centre(other.arm)))
    };
    (0..answer.arms.len()).map(of).max_by(order)
}

/// Rank of a verdict: the decision is about an arm whose verdict ranks highest.
fn rank(verdict: ArmVerdict) -> u8 {
    match verdict {
        ArmVerdict::Keep => 4,
        ArmVerdict::CannotTell(Doubt::Disturbed | Doubt::TooShort(_) | Doubt::TooFewStarts(_)) => 3,
        ArmVerdict::CannotTell(Doubt::PlainIsHuge) => 2,
        ArmVerdict::GainsTooLittle | ArmVerdict::Costs => 1,
        ArmVerdict::CannotTell(Doubt::NothingLifted) => 0,
    }
}

fn verdict(answer: &Answer, arm: usize, facts: ArmFacts, seconds: f64) -> ArmVerdict {
    let finding = answer.finding(arm);
    if facts.lifted_nothing {
        return ArmVerdict::CannotTell(Doubt::NothingLifted);
    }
    if facts.plain_huge.is_some_and(|share| share > MOST_HUGE) {
        return ArmVerdict::CannotTell(Doubt::PlainIsHuge);
    }
    match finding {
        Finding::Better => ArmVerdict::Keep,
        Finding::Worse => ArmVerdict::Costs,
        Finding::Disturbed => ArmVerdict::CannotTell(Doubt::Disturbed),
        Finding::TooFew => ArmVerdict::CannotTell(match answer.starts_if_too_few(arm) {
            Some(starts) => Doubt::TooFewStarts(starts),
            None => Doubt::TooShort(time_for_blocks(answer, arm, seconds)),
        }),
        Finding::NoDifference => match needed(answer, arm) {
            Some(needed) if needed <= 1.0 && gains_too_little(answer, arm) => ArmVerdict::GainsTooLittle,
            // A control or a rank test that is less sure than the arm's interval: at least as long again.
            Some(needed) => ArmVerdict::CannotTell(Doubt::TooShort(Some(seconds * needed.max(1.0) * MARGIN))),
            None => ArmVerdict::CannotTell(Doubt::TooShort(None)),
        },
    }
}

/// True if the whole interval of the arm is below the smallest gain that is worth it.
fn gains_too_little(answer: &Answer, arm: usize) -> bool {
    answer.arms.get(arm).and_then(|arm| arm.ratio.as_ref()).is_some_and(|ratio| ratio.high.ln() <= WORTH.ln_1p())
}

/// Seconds for enough blocks to give an interval.
fn time_for_blocks(answer: &Answer, arm: usize, seconds: f64) -> Option<f64> {
    let fewest = answer.arms.get(arm)?.blocks.min(answer.control.blocks);
    (fewest > 0).then(|| seconds * (ENOUGH_BLOCKS / fewest as f64).max(1.0) * MARGIN)
}

/// Returns the factor by which an experiment must be longer to have an answer, if the centre stays: at most 1 if it has one.
/// Widths shrink by the root of the time.
fn needed(answer: &Answer, arm: usize) -> Option<f64> {
    let ratio = answer.arms.get(arm)?.ratio?;
    let width = half_width(&ratio).max(half_width(&answer.control.ratio?));
    let (centre, worth) = (ratio.centre.ln(), WORTH.ln_1p());
    // Either the interval ends below the smallest gain that is worth it, or it begins above no difference.
    let target = (worth - centre).max(centre);
    Some((width / target).powi(2))
}

/// Half of an interval as the logarithm of a ratio, on its wider side.
fn half_width(ratio: &Estimate) -> f64 {
    let centre = ratio.centre.ln();
    (ratio.high.ln() - centre).max(centre - ratio.low.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Method;
    use crate::toggle::ArmAnswer;

    fn arm(low: f64, centre: f64, high: f64) -> ArmAnswer {
        let ratio = Estimate {
            centre,
            low,
            high,
            confidence: 0.95,
            method: Method::BlockBootstrap,
            median: centre,
            median_low: low,
            median_high: high,
            blocks: 40,
            generations: 1,
        };
        let signed_rank = Some(if low > 1.0 || high < 1.0 { 0.001 } else { 0.5 });
        ArmAnswer { ratio: Some(ratio), signed_rank, blocks: 40, unusable: 0 }
    }

    fn few(blocks: usize) -> ArmAnswer {
        ArmAnswer { ratio: None, signed_rank: None, blocks, unusable: 0 }
    }

    fn answer(arms: Vec<ArmAnswer>, control: ArmAnswer) -> Answer {
        Answer::from_parts(arms, control)
    }

    const QUIET: (f64, f64, f64) = (0.998, 1.0, 1.002);

    fn of(arm_answer: ArmAnswer, control: (f64, f64, f64), facts: ArmFacts) -> ArmVerdict {
        let answer = answer(vec![arm_answer], arm(control.0, control.1, control.2));
        decide(&answer, &[facts], 300.0).unwrap().verdict
    }

    /// The requested time is about 26 minutes: four times five, and the margin.
    fn is_about_26(verdict: ArmVerdict) -> bool {
        let ArmVerdict::CannotTell(Doubt::TooShort(Some(seconds))) = verdict else { panic!("{verdict:?}") };
        (25.0..28.0).contains(&(seconds / 60.0))
    }

    #[test]
    fn each_state_has_its_verdict() {
        let (plain, huge) = (ArmFacts::default(), ArmFacts { plain_huge: Some(0.95), ..ArmFacts::default() });
        let nothing = ArmFacts { lifted_nothing: true, ..ArmFacts::default() };
        let partly = ArmFacts { plain_huge: Some(0.2), ..ArmFacts::default() };
        let doubt = ArmVerdict::CannotTell;
        let table = [
            ("a gain", arm(1.03, 1.04, 1.05), QUIET, plain, ArmVerdict::Keep),
            ("a gain, plain a little huge", arm(1.03, 1.04, 1.05), QUIET, partly, ArmVerdict::Keep),
            ("a loss", arm(0.95, 0.96, 0.97), QUIET, plain, ArmVerdict::Costs),
            ("certainly none", arm(0.997, 1.0, 1.003), QUIET, plain, ArmVerdict::GainsTooLittle),
            ("a small loss that is not certain", arm(0.98, 0.993, 1.006), QUIET, plain, ArmVerdict::GainsTooLittle),
            (
                "a gain beside a disturbed control",
                arm(1.03, 1.04, 1.05),
                (1.01, 1.02, 1.03),
                plain,
                doubt(Doubt::Disturbed),
            ),
            (
                "a loss beside a disturbed control",
                arm(0.95, 0.96, 0.97),
                (0.9, 0.95, 0.99),
                plain,
                doubt(Doubt::Disturbed),
            ),
            ("huge against huge", arm(0.999, 1.0, 1.001), QUIET, huge, doubt(Doubt::PlainIsHuge)),
            ("a gain against huge", arm(1.03, 1.04, 1.05), QUIET, huge, doubt(Doubt::PlainIsHuge)),
            ("nothing lifted", arm(0.999, 1.0, 1.001), QUIET, nothing, doubt(Doubt::NothingLifted)),
            // The cost of a start by `pagelift run` is no answer about a lift.
            ("a loss without a lift", arm(0.95, 0.96, 0.97), QUIET, nothing, doubt(Doubt::NothingLifted)),
            ("no blocks", few(0), QUIET, plain, doubt(Doubt::TooShort(None))),
        ];
        for (name, arm, control, facts, expected) in table {
            assert_eq!(of(arm, control, facts), expected, "{name}");
        }
    }

    #[test]
    fn a_longer_time_is_computed_from_the_widths() {
        let plain = ArmFacts::default();
        // Half widths of 2 % if 1 % is wanted: four times the time, and a margin.
        assert!(is_about_26(of(arm(0.98, 1.0, 1.02), QUIET, plain)));
        // The control decides if it is wider.
        assert!(is_about_26(of(arm(0.997, 1.0, 1.003), (0.98, 1.0, 1.02), plain)));
        // A gain of 3 % with half widths of 6 %.
        assert!(is_about_26(of(arm(0.971, 1.03, 1.093), QUIET, plain)));
        // Half as many blocks as are enough.
        assert!(is_about_26(of(few(3), QUIET, plain)));
    }

    /// The control resolves 3.5 %, so no difference is found, but the arm's interval begins above the worthwhile gain.
    #[test]
    fn a_gain_that_only_the_control_hides_is_measured_for_longer() {
        let verdict = of(arm(1.015, 1.03, 1.045), (0.966, 0.993, 1.02), ArmFacts::default());
        let ArmVerdict::CannotTell(Doubt::TooShort(Some(seconds))) = verdict else { panic!("{verdict:?}") };
        assert!(seconds >= 300.0, "{seconds}");
    }

    #[test]
    fn too_few_starts_are_named() {
        let of_servers = answer(vec![arm(1.03, 1.04, 1.05)], arm(0.998, 1.0, 1.002)).over_starts();
        let decision = decide(&of_servers, &[], 300.0).unwrap();
        assert_eq!(decision.verdict, ArmVerdict::CannotTell(Doubt::TooFewStarts(1)));
    }

    #[test]
    fn of_several_arms_the_best_is_decided_about() {
        let decided = |arms: Vec<ArmAnswer>, facts: &[ArmFacts]| {
            let decision = decide(&answer(arms, arm(0.998, 1.0, 1.002)), facts, 300.0).unwrap();
            (decision.arm, decision.verdict)
        };
        let (loss, equal, gain, more) =
            (arm(0.95, 0.96, 0.97), arm(0.997, 1.0, 1.003), arm(1.02, 1.03, 1.04), arm(1.05, 1.06, 1.07));
        let unsure = arm(0.97, 1.0, 1.03);
        assert_eq!(decided(vec![gain.clone(), more.clone()], &[]), (1, ArmVerdict::Keep));
        assert_eq!(decided(vec![loss.clone(), gain], &[]), (1, ArmVerdict::Keep));
        assert_eq!(decided(vec![loss.clone(), equal.clone()], &[]), (1, ArmVerdict::GainsTooLittle));
        assert!(matches!(decided(vec![unsure, loss.clone()], &[]), (0, ArmVerdict::CannotTell(Doubt::TooShort(_)))));
        let nothing = ArmFacts { lifted_nothing: true, ..ArmFacts::default() };
        assert_eq!(decided(vec![equal, loss], &[nothing]), (1, ArmVerdict::Costs));
        assert_eq!(decide(&answer(Vec::new(), few(0)), &[], 1.0), None);
    }
}
