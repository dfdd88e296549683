//! The worker's side of the protocol.

use crate::protocol::{Answer, Burst};
use nix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::time::Instant;

/// Work that a worker can do in bursts.
pub trait Work {
    /// Names of the workloads.
    fn workloads(&self) -> Vec<String>;
    /// Runs `steps` steps of a workload and returns a checksum that depends only on the seed and the steps.
    ///
    /// # Errors
    /// A sentence, if the workload is not known or cannot run.
    fn run(&mut self, workload: &str, steps: u64, seed: u64) -> Result<u64, String>;
}

/// Greets, then answers bursts until the input ends.
///
/// # Errors
/// The error of reading or writing.
pub fn serve(work: &mut dyn Work, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut say = |answer: &Answer| {
        writeln!(output, "{}", answer.to_line())?;
        output.flush()
    };
    say(&Answer::Hello(work.workloads()))?;
    for line in input.lines() {
        let line = line?;
        let answer = match Burst::parse(&line) {
            Some(burst) => timed(work, &burst).unwrap_or_else(Answer::Error),
            None => Answer::Error(format!("`{line}` is no burst")),
        };
        say(&answer)?;
    }
    Ok(())
}

fn timed(work: &mut dyn Work, burst: &Burst) -> Result<Answer, String> {
    if burst.lead_in > 0 {
        black_box(work.run(&burst.workload, burst.lead_in, !burst.seed)?);
    }
    let (started, cpu_before) = (Instant::now(), cpu_nanoseconds());
    let checksum = black_box(work.run(&burst.workload, black_box(burst.steps), burst.seed)?);
    let (cpu_after, wall) = (cpu_nanoseconds(), started.elapsed());
    Ok(Answer::Done {
        wall_nanoseconds: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        cpu_nanoseconds: cpu_after.zip(cpu_before).and_then(|(after, before)| after.checked_sub(before)),
        checksum,
    })
}

fn cpu_nanoseconds() -> Option<u64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?;
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec()).ok()?, u64::try_from(time.tv_nsec()).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Adding;

    impl Work for Adding {
        fn workloads(&self) -> Vec<String> {
            vec!["add".into()]
        }
        fn run(&mut self, workload: &str, steps: u64, seed: u64) -> Result<u64, String> {
            if workload != "add" {
                return Err(format!("no workload `{workload}`"));
            }
            Ok((0..steps).fold(seed, |sum, step| black_box(sum.wrapping_add(step))))
        }
    }

    #[test]
    fn a_worker_greets_and_answers_every_line() {
        let input = "burst add 4 2 10\nburst sub 1 0 0\nnonsense\n";
        let mut output = Vec::new();
        serve(&mut Adding, input.as_bytes(), &mut output).unwrap();
        let lines: Vec<_> = std::str::from_utf8(&output).unwrap().lines().map(|l| Answer::parse(l).unwrap()).collect();
        assert_eq!(lines[0], Answer::Hello(vec!["add".into()]));
        assert!(matches!(lines[1], Answer::Done { checksum: 16, .. }), "{lines:?}");
        assert_eq!(lines[2], Answer::Error("no workload `sub`".into()));
        assert_eq!(lines[3], Answer::Error("`nonsense` is no burst".into()));
    }
}
