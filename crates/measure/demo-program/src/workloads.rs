//! The work of a burst.

use crate::code::{FUNCTIONS_PER_STEP, ROUTES, pagelift_routes, pagelift_walk};
use measure::worker::Work;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words of the table: 128 MiB of bss.
const TABLE_WORDS: usize = 16 << 20;
static TABLE: [AtomicU64; TABLE_WORDS] = [const { AtomicU64::new(0) }; TABLE_WORDS];

/// Number of look-ups for each walk over a chain of functions, if both are mixed.
const LOOK_UPS_PER_WALK: u64 = 12;

/// The program's state: only its tables, so that a burst's result depends on its seed alone.
pub(crate) struct DemoWork;

impl DemoWork {
    /// Fills the table, and so touches every page.
    pub(crate) fn prepare() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for word in &TABLE {
            state = next(state);
            word.store(state, Relaxed);
        }
        Self
    }
}

impl Work for DemoWork {
    fn workloads(&self) -> Vec<String> {
        ["code", "data", "both"].map(str::to_owned).to_vec()
    }

    fn run(&mut self, workload: &str, steps: u64, seed: u64) -> Result<u64, String> {
        match workload {
            "code" => Ok(pagelift_walk(steps, seed)),
            "data" => Ok(look_up(steps, seed)),
            "both" => Ok(mix(steps, seed)),
            other => Err(format!("there is no workload `{other}`, only code, data and both")),
        }
    }
}

/// Descriptions of a step of each workload.
pub(crate) fn describe() -> String {
    format!(
        "code: a step enters one of 320 chains of {FUNCTIONS_PER_STEP} functions, each function on a page of its own \
         (20 MiB of code)\n\
         data: a step reads a random word of {} MiB initialised data and by it a random word of {} MiB bss\n\
         both: a step of code and {LOOK_UPS_PER_WALK} of data, in turn",
        (ROUTES * 8) >> 20,
        (TABLE_WORDS * 8) >> 20,
    )
}

fn next(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Random look-ups by way of the data into the table. Every eighth word found is written back as it was, so that the
/// table is really used as writable memory and still no burst changes the result of a later one.
fn look_up(steps: u64, seed: u64) -> u64 {
    let mut state = seed;
    let mut sum = 0u64;
    for step in 0..steps {
        state = next(state);
        let route = pagelift_routes[(state >> (64 - ROUTES.ilog2())) as usize].load(Relaxed);
        let mixed = (state ^ route).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let slot = &TABLE[((mixed ^ (mixed >> 32)) >> (64 - TABLE_WORDS.ilog2())) as usize];
        let word = slot.load(Relaxed);
        sum = sum.rotate_left(5) ^ word;
        if step % 8 == 0 {
            slot.store(word, Relaxed);
        }
    }
    sum
}

fn mix(steps: u64, seed: u64) -> u64 {
    let mut state = seed;
    let mut sum = 0u64;
    for _ in 0..steps {
        state = next(state);
        sum = sum.rotate_left(9) ^ pagelift_walk(1, state) ^ look_up(LOOK_UPS_PER_WALK, state);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_and_the_steps_alone_decide_the_result() {
        let mut work = DemoWork::prepare();
        for workload in work.workloads() {
            let first = work.run(&workload, 1000, 7).unwrap();
            assert_eq!(work.run(&workload, 1000, 7).unwrap(), first, "{workload}");
            assert_ne!(work.run(&workload, 1000, 8).unwrap(), first, "{workload}");
            assert_ne!(work.run(&workload, 1001, 7).unwrap(), first, "{workload}");
        }
        assert!(work.run("other", 1, 1).is_err());
    }

    #[test]
    fn the_code_computes_what_its_description_says() {
        let rotate = |value: u64, f: u64| {
            let mixed = (value ^ ((f * 104_729) & 0x7fff_ffff)).rotate_left(7);
            mixed.wrapping_mul(3)
        };
        let (mut state, mut expected) = (42u64, 0u64);
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12_345_677);
            let chain = ((state >> 40) * 320) >> 24;
            expected = (0..16).fold(expected, |value, step| rotate(value, chain * 16 + step));
        }
        assert_eq!(pagelift_walk(500, 42), expected);
        assert_eq!(pagelift_walk(0, 42), 0);
    }
}
