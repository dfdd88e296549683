//! `calloc` and `free` at sizes from 100 KB to 1 GB: untouched memory must have no cost that grows with the size.

use crate::bench::{Arm, Bench, BurstPlan, Course};
use crate::build::Linking;
use crate::table::{table, with_interval};
use address_space::format_bytes;
use anyhow::Result;
use std::time::Duration;

/// Usual decimal sizes, and some between, at which allocators change their method.
const SIZES: [u64; 11] = [
    100_000,
    1_000_000,
    3_000_000,
    7_000_000,
    9_000_000,
    10_000_000,
    31_000_000,
    40_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
];
/// Sizes at which memory is also touched in one place in 64 KiB.
const TOUCHED: [u64; 3] = [1_000_000, 10_000_000, 100_000_000];
/// Room for the largest block and the arenas.
const POOL_BYTES: u64 = 1200 << 20;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    // The builtin would be optimised away.
    let program = bench.build("calloc-worker", &["calloc-worker.c"], Linking::Default, &["-fno-builtin"])?;
    let pool = bench.reserve_pool(POOL_BYTES);
    if let Err(reason) = &pool {
        bench.report.skip("calloc: the pool", reason.clone());
    }
    let mut rows = table(&["", "C library, µs", "thp, times that [95 %]", "2M, times that [95 %]"]);
    let time = bench.time;
    bench.time = time.div_f64(5.0).max(Duration::from_secs(4));
    for (size, kind) in SIZES.map(|size| (size, "untouched")).into_iter().chain(TOUCHED.map(|size| (size, "touched"))) {
        let text = size.to_string();
        let words = [program.as_os_str(), text.as_ref()];
        let mut arms = vec![
            Arm::new("C library", words).silent(),
            bench.lifted("--heap=thp, mimalloc", &["-q", "--heap=thp", "--heap-allocator=mimalloc"], &words),
        ];
        if pool.is_ok() {
            let reserve = POOL_BYTES.to_string();
            arms.push(bench.lifted("--heap=2M", &["-q", "--heap=2M", "--heap-reserve", &reserve], &words));
        }
        let name = format!("calloc of {}, {kind}", format_bytes(size));
        let plan = BurstPlan::new(&name, arms, kind, 2, Course::SideBySide);
        let series = bench.run_bursts(plan)?;
        for (workload, facts) in series.workloads.iter().enumerate() {
            let compare = |variant| series.compare(workload, 0, variant);
            let steps = facts.steps as f64;
            let ratio = |variant| compare(variant).map_or_else(String::new, |c| with_interval(&c.ratio, 1.0, 2));
            let plain = compare(1).map_or_else(String::new, |c| format!("{:.2}", c.baseline_nanoseconds / steps / 1e3));
            rows.add_row([format!("{}, {}", format_bytes(size), facts.name), plain, ratio(1), ratio(2)]);
        }
    }
    bench.time = time;
    println!("{rows}");
    Ok(())
}
