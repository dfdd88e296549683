//! Programs under other heaps: with glibc, with other allocators, and in every way of `--heap`. Results are compared;
//! time and memory are beside glibc. The scripts in `programs/heap-programs` describe the work.

mod markdown;
mod memory;
mod programs;
mod ways;

pub(crate) use markdown::HeapTable;
use markdown::Table;

use crate::bench::Bench;
use crate::table::table;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, Result, ensure};
use measure::report::{Series, VariantFacts, WorkloadFacts};
use measure::sample::Sample;
use measure::schedule::Schedule;
use programs::{PROGRAMS, Program};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};
use test_support::default_huge_page;
use ways::Way;

/// This benchmark's name.
pub(crate) const NAME: &str = "heap-programs";
/// Programs that wait on the pool at the same time while their memory is measured.
const ON_THE_POOL: u64 = 3;

/// The result of one run.
struct Outcome {
    wall: Duration,
    cpu: Duration,
    result: u64,
}

/// All runs of a program.
struct Measured {
    /// The ways in which it ran.
    ways: Vec<Way>,
    /// The outcomes of each way.
    outcomes: Vec<Vec<Outcome>>,
    samples: Vec<Sample>,
}

/// Its parts, one program each.
pub(crate) fn parts() -> impl Iterator<Item = String> {
    PROGRAMS.into_iter().map(|program| format!("{NAME}/{}", program.name))
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if bench.suite.is_none() {
        let reason = "name a checkout of mimalloc-bench: --suite DIR, or make bench SUITE=DIR";
        bench.report.skip("heap-programs: the programs of mimalloc-bench", reason);
    }
    let mut rows =
        table(&["", "", "seconds", "time beside glibc", "most memory", "on huge pages", "10 s after its end"]);
    let first = bench.report.series.len();
    let common = ways::common(bench);
    for program in PROGRAMS {
        run_or_skip(bench, program, &common, None, &mut rows)?;
    }
    let largest = PageSize::new(1 << 30)?;
    match bench.reserve_pages(largest, ON_THE_POOL) {
        Err(reason) => bench.report.skip(format!("heap-programs on pages of {largest}"), reason),
        Ok(pool) => {
            drop(pool);
            for program in PROGRAMS.into_iter().filter(|program| !program.of_suite) {
                run_or_skip(bench, program, &common, Some(largest), &mut rows)?;
            }
        }
    }
    println!("{rows}\ntime: of the CPU, except for postgres, whose queries are timed by the wall clock");
    println!("\n{}", Table::of(&bench.report.machine, &bench.report.series[first..]));
    Ok(())
}

/// Measures a program if it is chosen. A missing requirement is recorded.
fn run_or_skip(
    bench: &mut Bench,
    program: Program,
    common: &[Way],
    larger: Option<PageSize>,
    rows: &mut comfy_table::Table,
) -> Result<()> {
    let name = format!("heap-programs: {}", program.name);
    if !bench.takes(NAME, program.name) || program.of_suite && bench.suite.is_none() {
        return Ok(());
    }
    if let Some(missing) = program.missing() {
        bench.report.skip(name, format!("no {missing}"));
        return Ok(());
    }
    if let Err(error) = one_program(bench, program, common, larger, rows) {
        bench.report.skip(name, format!("{error:#}"));
    }
    bench.stop_if_interrupted().inspect_err(|_| println!("{rows}"))
}

/// All ways on the usual pages, or on the pool's larger pages, beside glibc.
fn one_program(
    bench: &mut Bench,
    program: Program,
    common: &[Way],
    larger: Option<PageSize>,
    rows: &mut comfy_table::Table,
) -> Result<()> {
    let page = larger.map_or_else(default_huge_page, Ok)?;
    let pool = bench.reserve_pages(page, ON_THE_POOL * page.pages_for(program.pool_bytes));
    if let Err(reason) = &pool {
        bench.report.skip(format!("heap-programs: {} on pages of {page}", program.name), reason.clone());
        if larger.is_some() {
            return Ok(());
        }
    }
    let folder = bench.folder.path().join(program.name);
    // A program that failed has left its folder.
    fs::remove_dir_all(&folder).ok();
    fs::create_dir(&folder)?;
    for path in [bench.folder.path(), &folder] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let suite = bench.suite.clone();
    program.prepare(suite.as_deref(), &folder)?;
    let all_ways = match larger {
        None => ways::for_program(bench, program, common, pool.is_ok()),
        Some(page) => ways::on_larger_pages(bench, program, page),
    };
    let Measured { ways, outcomes, samples } = measure(bench, program, all_ways, &folder)?;
    let memory = memory::measure(bench, program, &ways, suite.as_deref(), &folder)?;
    fs::remove_dir_all(&folder)?;
    let mut facts = Vec::new();
    for (way, memory) in ways.iter().zip(memory) {
        let skipped = format!("heap-programs: {}, memory, {}", program.name, way.name);
        let memory = memory.inspect_err(|error| bench.report.skip(skipped, format!("{error:#}"))).ok();
        facts.push(VariantFacts {
            name: way.name.clone(),
            command: way.before(None, &[]),
            huge_bytes: memory.map(|memory| memory.huge_bytes),
            memory,
            ..Default::default()
        });
    }
    for (facts, all) in facts.iter().zip(&outcomes) {
        rows.add_row(row(program, facts, all, &outcomes[0]));
    }
    let workloads = vec![WorkloadFacts { name: program.name.to_owned(), steps: 1 }];
    let name = format!("heap-programs: {}", program.name);
    bench.report.series.push(Series::new(name, bench.seed, facts, workloads, None, samples));
    Ok(())
}

/// Runs the program in all ways, in rounds. A way in which the program fails or gives another result than with glibc is
/// left out, with the reason.
fn measure(bench: &mut Bench, program: Program, ways: Vec<Way>, folder: &Path) -> Result<Measured> {
    let mut schedule = Schedule::new(ways.len(), bench.seed);
    let mut outcomes: Vec<Vec<Outcome>> = ways.iter().map(|_| Vec::new()).collect();
    let mut failures: Vec<Option<String>> = vec![None; ways.len()];
    let mut samples = Vec::new();
    let right = run_once(bench, program, &ways[0], folder)?.result;
    for round in 0..bench.rounds {
        for (position, way) in (0u32..).zip(schedule.next_round()) {
            bench.stop_if_interrupted()?;
            if failures[way].is_some() {
                continue;
            }
            match run_once(bench, program, &ways[way], folder) {
                Ok(outcome) if outcome.result == right => {
                    samples.push(outcome.sample(round, position, way));
                    outcomes[way].push(outcome);
                }
                Ok(_) => failures[way] = Some("another result than with glibc".to_owned()),
                Err(error) => failures[way] = Some(format!("{error:#}")),
            }
        }
    }
    for (way, failure) in ways.iter().zip(&failures) {
        if let Some(reason) = failure {
            ensure!(way.name != ways::BASELINE, "{reason}");
            bench.report.skip(format!("heap-programs: {}, {}", program.name, way.name), reason.clone());
        }
    }
    let kept: Vec<usize> = (0..ways.len()).filter(|&way| failures[way].is_none()).collect();
    samples.retain_mut(|sample| match kept.iter().position(|&way| way == sample.variant) {
        Some(number) => {
            sample.variant = number;
            true
        }
        None => false,
    });
    let mut kept = failures.iter().map(Option::is_none);
    outcomes.retain(|_| kept.next() == Some(true));
    let ways = ways.into_iter().zip(&failures).filter(|(_, failure)| failure.is_none()).map(|(way, _)| way);
    Ok(Measured { ways: ways.collect(), outcomes, samples })
}

impl Outcome {
    fn sample(&self, round: u32, position: u32, variant: usize) -> Sample {
        Sample {
            generation: 0,
            round,
            position,
            variant,
            workload: 0,
            wall_nanoseconds: self.wall.as_nanos() as u64,
            cpu_nanoseconds: Some(self.cpu.as_nanos() as u64),
            checksum: Some(self.result),
            warm_up: false,
        }
    }
}

fn row(program: Program, facts: &VariantFacts, all: &[Outcome], baseline: &[Outcome]) -> Vec<String> {
    let cpu = |outcome: &Outcome| outcome.cpu.as_secs_f64();
    let ratios = all.iter().zip(baseline).map(|(own, plain)| cpu(own) / cpu(plain).max(1e-9)).collect();
    let [low, ratio, high] = spread(ratios);
    let [_, seconds, _] = spread(all.iter().map(cpu).collect());
    let memory = facts.memory.unwrap_or_default();
    vec![
        program.name.to_owned(),
        facts.name.clone(),
        format!("{seconds:.2}"),
        if facts.name == ways::BASELINE { String::new() } else { format!("{ratio:.3} [{low:.3}, {high:.3}]") },
        format_bytes(memory.peak_bytes),
        format_bytes(memory.huge_bytes),
        memory.idle_bytes.map_or_else(|| "-".to_owned(), format_bytes),
    ]
}

/// The least, the median, the greatest. The least and the greatest of six ratios are an interval for their median at 97 %
/// (sign test), of four at 88 %.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let (Some(&low), Some(&high)) = (values.first(), values.last()) else { return [f64::NAN; 3] };
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    [low, middle, high]
}

fn run_once(bench: &Bench, program: Program, way: &Way, folder: &Path) -> Result<Outcome> {
    let cpu = folder.join("cpu");
    fs::remove_file(&cpu).ok();
    let errors = folder.join("errors");
    let started = Instant::now();
    let mut command = program.script("run", &way.before(None, &[]), bench.suite.as_deref(), folder);
    let output = command.stderr(fs::File::create(&errors)?).spawn()?.wait_with_output()?;
    let wall = started.elapsed();
    let said = fs::read_to_string(&errors).unwrap_or_default();
    ensure!(output.status.success() && !output.stdout.is_empty(), "{}: {}", output.status, said.trim());
    let text = fs::read_to_string(&cpu).context("it left no time")?;
    let seconds: f64 = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum();
    let mut result = DefaultHasher::new();
    output.stdout.hash(&mut result);
    Ok(Outcome { wall, cpu: Duration::from_secs_f64(seconds), result: result.finish() })
}
