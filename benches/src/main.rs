//! `make bench`: the costs and gains of a lift, and the gains of other tools.
//!
//! Every benchmark runs its variants interleaved (see `measure`), prints a table, and writes every sample into the JSON
//! report. No time is ever asserted: a table shows measurements.
#![forbid(unsafe_code)]

mod bench;
mod build;
mod builds;
mod calloc;
mod fingerprints;
mod from_file;
mod heap_programs;
mod images;
mod known_truth;
mod lift_time;
mod memory;
mod page;
mod peers;
mod scattered_code;
mod start_up;
mod table;

use anyhow::{Context, Result, bail};
use bench::Bench;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

type Benchmark = fn(&mut Bench) -> Result<()>;

/// The benchmarks: name, subject, function.
const BENCHMARKS: [(&str, &str, Benchmark); 11] = [
    ("lift-time", "time of a lift per 100 MB, beside a plain copy into populated huge pages", lift_time::run),
    ("start-up", "`pagelift run` of a program with nothing to lift, beside plain exec", start_up::run),
    ("scattered-code", "scattered code plain, lifted, relinked, relinked and lifted", scattered_code::run),
    (fingerprints::NAME, "an index of fingerprints whose heap is backed in many ways", fingerprints::run),
    (
        fingerprints::LIMIT,
        "that index on the pool beside its layout by hand and other ways, which exchange places",
        fingerprints::run_exchanged,
    ),
    ("calloc", "calloc and free of untouched memory at many sizes, beside the C library's", calloc::run),
    (
        heap_programs::NAME,
        "real programs and mimalloc-bench under other heaps and on huge pages, beside glibc",
        heap_programs::run,
    ),
    ("images", "starts and memory of many processes of a large library, from one image and otherwise", images::run),
    (
        from_file::NAME,
        "code from the page cache of its own file: starts, memory of many processes, scattered code",
        from_file::run,
    ),
    ("builds", "whole builds by cargo and make, plain and with their compilers lifted", builds::run),
    ("peers", "what others offer for code and for the heap, beside pagelift", peers::run),
];

/// Benchmarks of Pagelift, in interleaved pairs.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Benchmarks to run; all of them where none is named. `heap-programs/NAME` is one program of that benchmark,
    /// `fingerprints/SIZE` one size, `file/PART` one part.
    names: Vec<String>,
    /// Writes the report with every sample to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Time for each table, in seconds.
    #[arg(long, default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,
    /// The `pagelift` to measure; built from this workspace where it is not given.
    #[arg(long, value_name = "FILE")]
    pagelift: Option<PathBuf>,
    /// Leaves the variants free to move between CPUs.
    #[arg(long)]
    no_pin: bool,
    /// Seed of the schedules.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A checkout of mimalloc-bench, whose programs `heap-programs` compiles and runs too. Nothing is downloaded.
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// Rounds of `heap-programs`, one run of each way in a round. With six, the least and the greatest ratio are an
    /// interval at 97 %.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Lists the benchmarks and ends.
    #[arg(long)]
    list: bool,
}

/// Commands other than benchmarks.
#[derive(Subcommand)]
enum Other {
    /// Runs `pagelift bench` on servers whose difference is known, and writes the table of docs/RESULTS.md.
    KnownTruth(known_truth::KnownTruth),
    /// Writes the table of docs/guides/large-heaps.md from reports of `heap-programs`.
    HeapTable(heap_programs::HeapTable),
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.1 => Ok(seconds),
        _ => Err("a number of seconds, 0.1 at least".to_owned()),
    }
}

fn main() -> ExitCode {
    match try_main(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pagelift-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_main(options: &Options) -> Result<()> {
    match &options.other {
        Some(Other::KnownTruth(known_truth)) => return known_truth::run(known_truth),
        Some(Other::HeapTable(table)) => return table.run(),
        None => {}
    }
    if options.list {
        for (name, shows, _) in BENCHMARKS {
            println!("{name:16} {shows}");
        }
        return Ok(());
    }
    let chosen = chosen(&options.names)?;
    let mut bench = Bench::new(options.pagelift.as_deref(), options.seconds, options.seed, !options.no_pin)?;
    bench.parts = options.names.clone();
    bench.rounds = options.rounds;
    if let Some(suite) = &options.suite {
        let suite = suite.canonicalize().with_context(|| format!("no checkout at {}", suite.display()))?;
        bench.suite = Some(suite);
    }
    bench.print_machine();
    let mut failure = None;
    for (name, shows, run) in chosen {
        println!("\n{name}: {shows}");
        if let Err(error) = run(&mut bench).with_context(|| format!("{name} ended early")) {
            failure = Some(error);
            break;
        }
    }
    bench.print_skipped();
    if let Some(file) = &options.json {
        let text = serde_json::to_string(&bench.report)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nevery sample is in {}", file.display());
    }
    failure.map_or(Ok(()), Err)
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static str, Benchmark)>> {
    let parts: Vec<String> = heap_programs::parts().chain(fingerprints::parts()).chain(from_file::parts()).collect();
    let known = |name: &String| parts.contains(name) || BENCHMARKS.iter().any(|b| b.0 == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!(
            "there is no benchmark `{unknown}`; they are {}, and {}",
            BENCHMARKS.map(|b| b.0).join(", "),
            parts.join(", ")
        );
    }
    let names_it = |name: &String, of: &str| name.split('/').next() == Some(of);
    Ok(BENCHMARKS.into_iter().filter(|b| names.is_empty() || names.iter().any(|name| names_it(name, b.0))).collect())
}
