//! Real programs under `--heap`: each plain and in every way, with its results compared, its time beside plain, and its
//! memory. The scripts in `programs/heap-programs` describe their work.

use crate::bench::Bench;
use crate::table::table;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, Result, ensure};
use measure::report::{Series, VariantFacts, WorkloadFacts};
use measure::sample::Sample;
use measure::schedule::Schedule;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use test_support::{command_exists, default_huge_page};

/// This benchmark's name.
pub(crate) const NAME: &str = "heap-programs";

/// The programs, their needs, and the pool that their heaps take, in MiB.
const PROGRAMS: [(&str, &[&str], u64); 9] = [
    ("redis", &["redis-server", "redis-benchmark"], 700),
    ("postgres", &["setpriv", "pg_config"], 300),
    ("python", &["/usr/bin/python3"], 2400),
    ("zstd", &["zstd"], 400),
    ("xz", &["xz"], 200),
    ("sort", &["sort"], 700),
    ("node", &["node"], 300),
    ("java", &["java", "javac"], 1400),
    ("duckdb", &["pip3"], 1200),
];
/// Rounds, in which every way runs once. The least and the greatest of six ratios are an interval for their median at
/// 97 % (sign test).
const ROUNDS: u32 = 6;
const LOOKS: Duration = Duration::from_millis(50);

/// A way to run the programs.
struct Way {
    name: String,
    /// The words before the program.
    words: String,
}

/// The result of one run.
struct Outcome {
    wall: Duration,
    cpu: Duration,
    result: u64,
    memory: u64,
}

/// Its parts, one program each.
pub(crate) fn parts() -> impl Iterator<Item = String> {
    PROGRAMS.into_iter().map(|(name, ..)| format!("{NAME}/{name}"))
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let mut rows = table(&["", "", "seconds", "time beside plain [97 %]", "memory", "beside plain"]);
    let largest = PageSize::new(1 << 30)?;
    for page in [None, Some(largest)] {
        for (name, needs, mebibytes) in PROGRAMS {
            if !bench.takes(NAME, name) {
                continue;
            }
            if let Some(missing) = needs.iter().find(|command| !exists(name, command)) {
                bench.report.skip(format!("heap-programs: {name}"), format!("no {missing}"));
                continue;
            }
            if let Err(error) = one_program(bench, name, mebibytes << 20, page, &mut rows) {
                bench.report.skip(format!("heap-programs: {name}"), format!("{error:#}"));
            }
            bench.stop_if_interrupted().inspect_err(|_| println!("{rows}"))?;
        }
    }
    println!("{rows}\ntime: of the CPU, except for postgres, whose queries are timed by the wall clock");
    Ok(())
}

fn exists(program: &str, command: &str) -> bool {
    match program {
        "postgres" if command == "pg_config" => Path::new("/usr/lib/postgresql").exists(),
        _ => Path::new(command).is_absolute() && Path::new(command).exists() || command_exists(command),
    }
}

/// All ways on the usual pages, or on the pool's larger pages, beside plain.
fn one_program(
    bench: &mut Bench,
    name: &str,
    pool_bytes: u64,
    larger: Option<PageSize>,
    rows: &mut comfy_table::Table,
) -> Result<()> {
    let page = larger.map_or_else(default_huge_page, Ok)?;
    let pool = bench.reserve_pages(page, page.pages_for(pool_bytes));
    if let Err(reason) = &pool {
        bench.report.skip(format!("heap-programs: {name} on pages of {page}"), reason.clone());
        if larger.is_some() {
            return Ok(());
        }
    }
    let folder = bench.folder.path().join(name);
    fs::create_dir(&folder)?;
    for path in [bench.folder.path(), &folder] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let prepared = script(name, "prepare", "", &folder).stderr(Stdio::piped()).output().context("no bash")?;
    ensure!(prepared.status.success(), "cannot be prepared: {}", String::from_utf8_lossy(&prepared.stderr).trim());
    let way = |name: &str, options: &str| Way {
        name: name.to_owned(),
        words: format!("{} run -q {options} --", bench.pagelift.display()),
    };
    let mut ways = vec![Way { name: "plain".into(), words: String::new() }];
    if larger.is_none() {
        ways.push(way("--heap=auto", "--heap=auto"));
        ways.push(way("--heap=thp, mimalloc", "--heap=thp --heap-allocator=mimalloc"));
    }
    if pool.is_ok() {
        let title = format!("--heap, pages of {page}");
        ways.push(way(&title, &format!("--heap={} --heap-reserve={pool_bytes}", page.bytes())));
    }
    measure(bench, name, &ways, &folder, rows)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn measure(bench: &mut Bench, name: &str, ways: &[Way], folder: &Path, rows: &mut comfy_table::Table) -> Result<()> {
    let mut schedule = Schedule::new(ways.len(), bench.seed);
    let mut outcomes: Vec<Vec<Outcome>> = ways.iter().map(|_| Vec::new()).collect();
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        for (position, way) in (0u32..).zip(schedule.next_round()) {
            bench.stop_if_interrupted()?;
            let outcome = run_once(name, &ways[way], folder).with_context(|| format!("{name}, {}", ways[way].name))?;
            samples.push(Sample {
                generation: 0,
                round,
                position,
                variant: way,
                workload: 0,
                wall_nanoseconds: outcome.wall.as_nanos() as u64,
                cpu_nanoseconds: Some(outcome.cpu.as_nanos() as u64),
                checksum: Some(outcome.result),
                warm_up: false,
            });
            outcomes[way].push(outcome);
        }
    }
    let results: BTreeSet<u64> = outcomes.iter().flatten().map(|outcome| outcome.result).collect();
    ensure!(results.len() == 1, "{name}: the results differ from way to way");
    let mut facts = Vec::new();
    for (way, all) in ways.iter().zip(&outcomes) {
        let [low, ratio, high] = spread(all.iter().zip(&outcomes[0]).map(|(own, plain)| ratio(own, plain)).collect());
        let memory = |all: &[Outcome]| all.iter().map(|outcome| outcome.memory).max().unwrap_or(0);
        let [_, seconds, _] = spread(all.iter().map(|outcome| outcome.cpu.as_secs_f64()).collect());
        rows.add_row([
            name.to_owned(),
            way.name.clone(),
            format!("{seconds:.2}"),
            if way.words.is_empty() { String::new() } else { format!("{ratio:.3} [{low:.3}, {high:.3}]") },
            format_bytes(memory(all)),
            format!("{:.2}", memory(all) as f64 / memory(&outcomes[0]).max(1) as f64),
        ]);
        facts.push(VariantFacts {
            name: way.name.clone(),
            command: way.words.clone(),
            notes: vec![format!("anonymous memory and pool pages at most: {}", memory(all))],
            ..Default::default()
        });
    }
    let workloads = vec![WorkloadFacts { name: name.to_owned(), steps: 1 }];
    let name = format!("heap-programs: {name}");
    bench.report.series.push(Series::new(name, bench.seed, facts, workloads, None, samples));
    Ok(())
}

fn ratio(own: &Outcome, plain: &Outcome) -> f64 {
    own.cpu.as_secs_f64() / plain.cpu.as_secs_f64().max(1e-9)
}

/// The least, the median, the greatest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    [values[0], middle, values[values.len() - 1]]
}

fn script(program: &str, step: &str, run: &str, folder: &Path) -> Command {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/heap-programs");
    let mut command = Command::new("bash");
    command.arg("-eu").arg(scripts.join(format!("{program}.sh"))).arg(step);
    command.env("RUN", run).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn run_once(program: &str, way: &Way, folder: &Path) -> Result<Outcome> {
    let cpu: PathBuf = folder.join("cpu");
    fs::remove_file(&cpu).ok();
    let errors = folder.join("errors");
    let started = Instant::now();
    let mut child = script(program, "run", &way.words, folder).stderr(fs::File::create(&errors)?).spawn()?;
    let memory = watch_memory(&mut child)?;
    let output = child.wait_with_output()?;
    let wall = started.elapsed();
    let said = fs::read_to_string(&errors).unwrap_or_default();
    ensure!(output.status.success() && !output.stdout.is_empty(), "{}: {}", output.status, said.trim());
    let text = fs::read_to_string(&cpu).context("it left no time")?;
    let seconds: f64 = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum();
    let mut result = DefaultHasher::new();
    output.stdout.hash(&mut result);
    Ok(Outcome { wall, cpu: Duration::from_secs_f64(seconds), result: result.finish(), memory })
}

/// Samples the memory of the script and its descendants until the script ends; returns the maximum in bytes.
fn watch_memory(child: &mut Child) -> Result<u64> {
    let mut most = 0;
    while child.try_wait()?.is_none() {
        most = most.max(memory_below(child.id()));
        sleep(LOOKS);
    }
    Ok(most)
}

/// Anonymous memory and pool pages of a process and all its descendants, in bytes.
fn memory_below(root: u32) -> u64 {
    let mut parents: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let kibibytes = field("RssAnon:").unwrap_or(0) + field("HugetlbPages:").unwrap_or(0);
        parents.insert(pid, (field("PPid:").unwrap_or(0) as u32, kibibytes << 10));
    }
    let is_below = |mut pid: u32| {
        while pid > 1 && pid != root {
            pid = parents.get(&pid).map_or(0, |(parent, _)| *parent);
        }
        pid == root
    };
    parents.iter().filter(|(pid, _)| is_below(**pid)).map(|(_, (_, bytes))| bytes).sum()
}
