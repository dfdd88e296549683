//! Applies `keep = "if it pays"` to a process, by the measurements of its build.

use super::chance::is_chosen;
use super::facts::Identity;
use super::refusal::{Reason, Refusal};
use super::request::Order;
use crate::rules::{Keep, Settings, Share, Time};
use crate::verdicts::{Standing, Summary};
use core::time::Duration;

/// Percentage of processes that are measured although a lift of their build pays.
const MEASURED_AGAIN: f64 = 5.0;
/// CPU time of a measurement: about 60 blocks with 90 lifts and restores, without the copies.
const COST_OF_A_MEASUREMENT: Duration = Duration::from_secs(5);
/// CPU time of a measurement for each MiB that each lift copies.
const COST_PER_MIB: Duration = Duration::from_millis(100);
/// A measurement that takes more CPU time than this multiple of its estimate is ended.
const MOST_OF_THE_ESTIMATE: u32 = 3;

/// The treatment of a process that may be lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// Lift it, and keep the lift.
    Lift,
    /// Measure first whether a lift pays.
    Measure,
    /// Leave it alone.
    Leave(Refusal),
}

/// A process before its turn.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// Which.
    pub identity: Identity,
    /// The lift that its rule orders.
    pub order: &'a Order,
    /// Its own measurement has shown that a lift pays.
    pub pays: bool,
}

/// Returns the treatment of a process by the measurements of its build, on this machine in its present run.
pub fn course(pending: Pending<'_>, known: &Summary, machine: &str, boot: &str) -> Course {
    if pending.order.keep == Keep::Always {
        return Course::Lift;
    }
    if known.standing == Standing::DoesNotPay {
        return Course::Leave(Refusal::new(Reason::DoesNotPay, known.to_string()));
    }
    let Identity { pid, start } = pending.identity;
    let process = format!("{pid} {start}");
    let is_sample = is_chosen(Share::percent(MEASURED_AGAIN), &["measured again", machine, boot, &process]);
    let is_known = known.standing == Standing::Pays && !is_sample;
    if pending.pays || is_known { Course::Lift } else { Course::Measure }
}

/// CPU time of a measurement with lifts of this number of bytes. An estimate.
pub fn cost_of_measurement(bytes: u64) -> Duration {
    COST_OF_A_MEASUREMENT + COST_PER_MIB.mul_f64(bytes as f64 / f64::from(1 << 20))
}

/// Most CPU time of a measurement with this estimate.
pub fn most_of_measurement(estimate: Duration) -> Duration {
    estimate * MOST_OF_THE_ESTIMATE
}

/// CPU time that all processes of a build must have used before one is measured: half of `overhead` pays for measurements, those
/// that were made in this run of the machine included.
pub fn least_cpu_to_measure(estimate: Duration, known: &Summary, settings: &Settings) -> Duration {
    (estimate * known.here.saturating_add(1)).div_f64(settings.overhead.ratio() / 2.0)
}

/// Why a measurement has to wait: the processes of its build have used too little CPU time.
pub fn unpaid(used: Duration, needed: Duration) -> Option<Refusal> {
    let text = || {
        format!(
            "all processes of its build have used {} of CPU time; needed: {}, so that the measurement is cheap in \
             comparison",
            Time(rounded(used)),
            Time(rounded(needed))
        )
    };
    (used < needed).then(|| Refusal::new(Reason::MeasurementUnpaid, text()))
}

fn rounded(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{ConfigFile, Configuration};

    fn ordered(keep: &str) -> Order {
        let text = format!("[[rule]]\nname = \"a\"\nmatch = {{ exe = \"*\" }}\nkeep = \"{keep}\"");
        let rules = Configuration::read(&[ConfigFile { name: "a".to_owned(), text }]).unwrap().rules;
        super::super::order(&rules[0], None).unwrap()
    }

    fn known(standing: Standing) -> Summary {
        Summary { standing, kept: 3, put_back: 3, ..Summary::default() }
    }

    fn courses(keep: &str, pays: bool, standing: Standing) -> Vec<Course> {
        let order = ordered(keep);
        let of = |start| Pending { identity: Identity { pid: 7, start }, order: &order, pays };
        (0..2000).map(|start| course(of(start), &known(standing), "m", "b")).collect()
    }

    #[test]
    fn verdicts_decide_only_if_it_must_pay() {
        let all = |keep, pays, standing, expected: &Course| {
            courses(keep, pays, standing).iter().all(|course| course == expected)
        };
        for standing in Standing::ALL {
            assert!(all("always", false, standing, &Course::Lift));
        }
        assert!(all("if it pays", false, Standing::Unknown, &Course::Measure));
        assert!(all("if it pays", true, Standing::Unknown, &Course::Lift), "its own measurement");
        for course in courses("if it pays", true, Standing::DoesNotPay) {
            let Course::Leave(refusal) = course else { panic!("{course:?}") };
            assert_eq!(refusal.reason, Reason::DoesNotPay);
        }
    }

    #[test]
    fn one_of_twenty_is_measured_again() {
        let courses = courses("if it pays", false, Standing::Pays);
        let measured = courses.iter().filter(|course| **course == Course::Measure).count();
        assert!((60..=140).contains(&measured), "{measured} of {}", courses.len());
        assert!(courses.iter().all(|course| !matches!(course, Course::Leave(_))));
    }

    #[test]
    fn each_measurement_must_be_earned() {
        let settings = Settings::default();
        let estimate = cost_of_measurement(50 << 20);
        assert_eq!(estimate, Duration::from_secs(10));
        let needed = |here| least_cpu_to_measure(estimate, &Summary { here, ..Summary::default() }, &settings);
        assert_eq!((needed(0), needed(2)), (Duration::from_secs(4000), Duration::from_secs(12_000)));
        assert_eq!(unpaid(needed(0), needed(0)), None);
        let refusal = unpaid(Duration::from_millis(3_999_999), needed(0)).unwrap();
        assert!(
            refusal.text.starts_with("all processes of its build have used 3999 s of CPU time; needed: 4000 s"),
            "{refusal}"
        );
    }
}
