//! The duration of a lift, beside its least necessary work: copying the same bytes into huge pages that were mapped and
//! populated for them. Both work on fresh processes and fresh pages each time, and the file is in the page cache.

use crate::bench::{Arm, Bench};
use crate::build::Linking;
use crate::table::{table, with_interval};
use address_space::format_bytes;
use anyhow::{Context, Result, ensure};
use measure::MeasureError;
use measure::report::{Series, VariantFacts};
use measure::start_up::TimedVariant;
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The program holds its content four times: twice as code, once as constants, once as initialised data.
const CONTENT_BYTES: usize = 32 << 20;
/// Room for one lift; variants never run at the same time.
const POOL_BYTES: u64 = 5 * CONTENT_BYTES as u64;
/// Executable file-backed memory only; bss and heap would not be copied.
const WHAT: [&str; 4] = ["--lift", "text,rodata,data", "--objects", "exe"];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let program = build_large_program(bench)?;
    let copy = bench.build("plain-copy", &["plain-copy.c"], Linking::Default, &[])?;
    match bench.reserve_pool(POOL_BYTES) {
        Ok(_pool) => {
            measure(bench, "hugetlb", &["--pages", "hugetlb", "--writable-pages", "hugetlb"], &program, &copy)?
        }
        Err(reason) => bench.report.skip("lift-time: hugetlb", reason),
    }
    measure(bench, "thp", &["--pages", "thp"], &program, &copy)
}

fn build_large_program(bench: &Bench) -> Result<std::path::PathBuf> {
    let content = bench.folder.path().join("content");
    let mut state = bench.seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    });
    fs::write(&content, words.take(CONTENT_BYTES / 8).flatten().collect::<Vec<u8>>())?;
    let define = format!("-DCONTENT=\"{}\"", content.display());
    bench.build("large-program", &["large-program.c"], Linking::Default, &[&define])
}

fn measure(bench: &mut Bench, source: &str, options: &[&str], program: &Path, copy: &Path) -> Result<()> {
    let report = bench.folder.path().join("lift.json");
    let report_option = report.to_str().context("the temporary folder's name is not UTF-8")?.to_owned();
    let options = [&["-q", "--report", &report_option], &WHAT[..], options].concat();
    let lift = bench.lifted("lift", &options, &[program]);
    let (_, bytes) = lift_once(&lift, &report)?;
    ensure!(bytes >= 100_000_000, "only {} of the large program were lifted from {source}", format_bytes(bytes));
    let least = Cell::new(bytes);
    let length = bytes.to_string();
    let arm = |name: &str, way: &str| {
        Arm::new(name, [copy.as_os_str(), source.as_ref(), way.as_ref(), length.as_ref(), program.as_os_str()])
    };
    let copies = [arm("plain copy by memcpy", "memcpy"), arm("plain copy by read", "read")];
    let mut variants: Vec<(VariantFacts, TimedVariant<'_>)> = Vec::new();
    for copy in &copies {
        variants.push((copy.facts(), TimedVariant::new(&copy.name, || copy_once(copy, bytes))));
    }
    let timed_lift = TimedVariant::new(&lift.name, || {
        let (time, bytes) = lift_once(&lift, &report).map_err(|error| problem("lift", format!("{error:#}")))?;
        least.set(least.get().min(bytes));
        Ok(time)
    });
    variants.push((lift.facts(), timed_lift));
    let series = bench.run_timed(&format!("lift-time: {source}"), variants)?;
    print(series, source, bytes);
    if least.get() < bytes {
        println!("note: one of the lifts covered only {}", format_bytes(least.get()));
    }
    Ok(())
}

fn print(series: &Series, source: &str, bytes: u64) {
    let mut table = table(&["", "median ms", "ms per 100 MB", "time of the lift over it [95 %]"]);
    let lift = series.variants.len() - 1;
    for (number, variant) in series.variants.iter().enumerate() {
        let other = if number == lift { 0 } else { lift };
        let Some(comparison) = series.compare(0, number, other) else {
            println!("too few rounds for a ratio: give more --seconds");
            return;
        };
        let milliseconds = comparison.baseline_nanoseconds / 1e6;
        table.add_row([
            variant.name.clone(),
            format!("{milliseconds:.1}"),
            format!("{:.1}", milliseconds * 1e8 / bytes as f64),
            if number == lift { String::new() } else { with_interval(&comparison.ratio, 1.0, 3) },
        ]);
    }
    let rounds = series.compare(0, 0, lift).map_or(0, |c| c.rounds);
    println!(
        "{source}: {} lifted or copied, {rounds} interleaved rounds\n{table}\naim: at most 1.2",
        format_bytes(bytes)
    );
}

/// Runs a lift and returns its time and its bytes on huge pages, both from its report.
fn lift_once(lift: &Arm, report: &Path) -> Result<(Duration, u64)> {
    let status = lift.command().stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "the lifted program ended with {status}");
    let text = fs::read_to_string(report).with_context(|| format!("no report at {}", report.display()))?;
    fs::remove_file(report)?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let number = |field: &str| report[field].as_u64().with_context(|| format!("the report has no {field}"));
    Ok((Duration::from_micros(number("lift_microseconds")?), number("covered_bytes")?))
}

/// Runs a plain copy and returns the time that it measured itself; all bytes must be on huge pages.
fn copy_once(copy: &Arm, bytes: u64) -> Result<Duration, MeasureError> {
    let run = |mut command: Command| command.stdin(Stdio::null()).output();
    let output = run(copy.command()).map_err(|e| problem(&copy.name, e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        [nanoseconds, copied, huge] if *copied == bytes && *huge >= bytes => Ok(Duration::from_nanos(*nanoseconds)),
        [_, copied, huge] => {
            Err(problem(&copy.name, format!("copied {copied} of {bytes} bytes, {huge} on huge pages")))
        }
        _ => Err(problem(&copy.name, String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn problem(variant: &str, problem: String) -> MeasureError {
    MeasureError::Protocol { variant: variant.to_owned(), problem }
}
