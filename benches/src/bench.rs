//! The shared parts of all benchmarks: the program under test, the build folder, the report, and the running of a
//! series.

use address_space::{PageSize, format_bytes};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use measure::burst_run::{BurstRun, Observer, Running, Stop, VariantSpec};
use measure::machine_check::look_at_machine;
use measure::pinning::last_usable_cpu;
use measure::report::{BenchmarkReport, Series, VariantFacts, WorkloadFacts};
use measure::start_up::{TimedRun, TimedVariant};
use measure::statistics::FEWEST_BLOCKS;
use process_view::ProcessMemory;
use process_view::coverage::Usage;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use test_support::{PoolReservation, default_huge_page, is_root};

/// A program to start, in a form that can be started repeatedly and shown.
#[derive(Clone)]
pub(crate) struct Arm {
    pub(crate) name: String,
    words: Vec<std::ffi::OsString>,
    environment: Vec<(String, String)>,
    silent: bool,
    /// Bytes of the pool, in pages of the usual size, that are reserved while it runs, and returned for the next arm.
    pool_bytes: Option<u64>,
}

impl Arm {
    /// A program by its name and its words.
    pub(crate) fn new<W: AsRef<OsStr>>(name: &str, words: impl IntoIterator<Item = W>) -> Self {
        let words = words.into_iter().map(|w| w.as_ref().to_owned()).collect();
        Self { name: name.to_owned(), words, environment: Vec::new(), silent: false, pool_bytes: None }
    }

    /// Returns the arm with an environment variable added.
    pub(crate) fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// Returns the arm with its standard error discarded, for programs that print much.
    pub(crate) fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// Returns the arm with this number of bytes of the pool reserved for each of its starts, if it runs alone.
    pub(crate) fn with_pool(mut self, bytes: u64) -> Self {
        self.pool_bytes = Some(bytes);
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.environment.iter().cloned());
        if self.silent {
            command.stderr(std::process::Stdio::null());
        }
        command
    }

    pub(crate) fn facts(&self) -> VariantFacts {
        let variables = self.environment.iter().map(|(variable, value)| format!("{variable}={value}"));
        let words = self.words.iter().map(|word| word.to_string_lossy().into_owned());
        let command = variables.chain(words).collect::<Vec<_>>().join(" ");
        VariantFacts { name: self.name.clone(), command, ..Default::default() }
    }
}

/// A series of bursts: its variants, its workload, and the number of fresh starts.
pub(crate) struct BurstPlan {
    pub(crate) name: String,
    pub(crate) arms: Vec<Arm>,
    pub(crate) workload: String,
    pub(crate) generations: u32,
    pub(crate) course: Course,
}

impl BurstPlan {
    pub(crate) fn new(name: &str, arms: Vec<Arm>, workload: &str, generations: u32, course: Course) -> Self {
        Self { name: name.to_owned(), arms, workload: workload.to_owned(), generations, course }
    }
}

/// The order in which the variants of a series of bursts run.
pub(crate) enum Course {
    /// In parallel, for the bench's time.
    SideBySide,
    /// Each alone, for this number of bursts per start.
    Alone(u32),
    /// In parallel, exchanging their places, for this number of bursts in each place.
    Exchanged(u32),
}

/// The common state of the benchmarks.
pub(crate) struct Bench {
    pub(crate) report: BenchmarkReport,
    pub(crate) pagelift: PathBuf,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) cpu: Option<usize>,
    /// The parts of benchmarks to run, as named on the command line (`heap-programs/redis`).
    pub(crate) parts: Vec<String>,
    /// A checkout of mimalloc-bench.
    pub(crate) suite: Option<PathBuf>,
    /// Rounds in which whole programs run, one run of each way in a round.
    pub(crate) rounds: u32,
    interrupted: Arc<AtomicBool>,
}

impl Bench {
    pub(crate) fn new(pagelift: Option<&Path>, seconds: f64, seed: u64, pin: bool) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The flag ends the run between two rounds, and the run returns the resources that it took.
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        let pagelift = match pagelift {
            Some(path) => path.canonicalize().with_context(|| format!("no pagelift at {}", path.display()))?,
            None => build_pagelift()?,
        };
        Ok(Self {
            report: BenchmarkReport::new(look_at_machine(Duration::from_millis(500))),
            pagelift,
            folder: tempfile::Builder::new().prefix("pagelift-bench-").tempdir()?,
            time: Duration::from_secs_f64(seconds),
            seed,
            cpu: if pin { last_usable_cpu() } else { None },
            parts: Vec::new(),
            suite: None,
            rounds: 6,
            interrupted,
        })
    }

    /// `pagelift run` with options before the program's words.
    pub(crate) fn lifted<W: AsRef<OsStr>>(&self, name: &str, options: &[&str], program: &[W]) -> Arm {
        let pagelift = [self.pagelift.as_os_str(), OsStr::new("run")].into_iter();
        let options = options.iter().map(OsStr::new).chain([OsStr::new("--")]);
        Arm::new(name, pagelift.chain(options).chain(program.iter().map(AsRef::as_ref)))
    }

    /// Returns this number of bytes of the pool, or the reason why there are none.
    pub(crate) fn reserve_pool(&self, bytes: u64) -> Result<PoolReservation, String> {
        let page = default_huge_page().map_err(|error| format!("{error:#}"))?;
        self.reserve_pages(page, page.pages_for(bytes))
    }

    /// Returns this number of pages of one size, or the reason why there are none.
    pub(crate) fn reserve_pages(&self, page: PageSize, pages: u64) -> Result<PoolReservation, String> {
        reserve_pages(move || PoolReservation::of(page, pages), &self.interrupted)
    }

    /// Returns all available pages of one size, up to a number.
    pub(crate) fn reserve_up_to(&self, page: PageSize, most: u64) -> Result<PoolReservation, String> {
        reserve_pages(move || PoolReservation::up_to(page, most), &self.interrupted)
    }

    /// True if the command line names this part of a benchmark, or the whole benchmark, or no part of it.
    pub(crate) fn takes(&self, benchmark: &str, part: &str) -> bool {
        let mut of_it = self.parts.iter().filter_map(|name| name.strip_prefix(benchmark)?.strip_prefix('/')).peekable();
        of_it.peek().is_none() || self.parts.iter().any(|name| name == benchmark) || of_it.any(|name| name == part)
    }

    /// Runs workers in bursts, records the pages that back them, and adds the series to the report.
    pub(crate) fn run_bursts(&mut self, plan: BurstPlan) -> Result<&Series> {
        let mut watch = Watch::new(&plan.name, self.interrupted.clone());
        watch.pools = plan.arms.iter().map(|arm| arm.pool_bytes).collect();
        let run = BurstRun {
            variants: plan.arms.iter().map(|arm| VariantSpec::new(&arm.name, |_| arm.command())).collect(),
            workloads: vec![plan.workload.clone()],
            seed: self.seed,
            burst: Duration::from_millis(10),
            lead_in_percent: 10,
            warm_up_rounds: 4,
            generations: plan.generations,
            stop: Stop::Time(self.time),
            cpu: self.cpu,
            time_limit: Duration::from_secs(180),
        };
        let series = match plan.course {
            Course::SideBySide => run.run(&mut watch)?,
            Course::Alone(rounds) => run.run_alone(rounds, &mut watch)?,
            Course::Exchanged(rounds) => run.run_exchanged(rounds, &mut watch)?,
        };
        let mut facts: Vec<VariantFacts> = plan.arms.iter().map(Arm::facts).collect();
        for (facts, seen) in facts.iter_mut().zip(&watch.huge) {
            let bytes: Vec<u64> = seen.iter().flatten().map(Usage::huge_bytes).collect();
            let least = seen.iter().flatten().min_by_key(|usage| usage.huge_bytes());
            facts.huge_bytes = least.map(Usage::huge_bytes);
            facts.huge_sources = least.map(sources).unwrap_or_default();
            if let Some(most) = bytes.iter().max().filter(|&&most| Some(most) != facts.huge_bytes) {
                facts.notes.push(format!("on up to {} of huge pages in other starts", format_bytes(*most)));
            }
        }
        let steps = [&plan.workload].into_iter().zip(&series.steps);
        let workloads = steps.map(|(name, &steps)| WorkloadFacts { name: name.clone(), steps }).collect();
        self.take(Series::new(plan.name, self.seed, facts, workloads, self.cpu, series.samples))
    }

    /// Runs timed variants interleaved and adds the series to the report. `facts` name and describe the timed variants.
    pub(crate) fn run_timed(&mut self, name: &str, variants: Vec<(VariantFacts, TimedVariant<'_>)>) -> Result<&Series> {
        let (stop, cpu) = (Stop::Time(self.time), self.cpu);
        self.run_interleaved(name, variants, 4, stop, cpu)
    }

    /// Like [`Bench::run_timed`], on CPUs that the kernel chooses.
    pub(crate) fn run_timed_anywhere(
        &mut self,
        name: &str,
        variants: Vec<(VariantFacts, TimedVariant<'_>)>,
    ) -> Result<&Series> {
        self.run_interleaved(name, variants, 4, Stop::Time(self.time), None)
    }

    /// Like [`Bench::run_timed_anywhere`], for timed variants of many processes that take seconds each: as many rounds
    /// as an interval needs.
    pub(crate) fn run_builds(
        &mut self,
        name: &str,
        variants: Vec<(VariantFacts, TimedVariant<'_>)>,
    ) -> Result<&Series> {
        self.run_interleaved(name, variants, 0, Stop::Rounds(2 * FEWEST_BLOCKS as u32), None)
    }

    fn run_interleaved(
        &mut self,
        name: &str,
        variants: Vec<(VariantFacts, TimedVariant<'_>)>,
        warm_up_rounds: u32,
        stop: Stop,
        cpu: Option<usize>,
    ) -> Result<&Series> {
        let (facts, variants): (Vec<_>, Vec<_>) = variants.into_iter().unzip();
        let run = TimedRun { variants, seed: self.seed, warm_up_rounds, stop, cpu };
        let samples = run.run(&mut Watch::new(name, self.interrupted.clone()))?;
        let workloads = vec![WorkloadFacts { name: name.to_owned(), steps: 1 }];
        self.take(Series::new(name, self.seed, facts, workloads, cpu, samples))
    }

    /// Returns the error that ends a benchmark on request, for benchmarks that run by themselves.
    pub(crate) fn stop_if_interrupted(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
    }

    fn take(&mut self, series: Series) -> Result<&Series> {
        self.report.series.push(series);
        self.report.series.last().context("the series was just taken in")
    }

    pub(crate) fn print_machine(&self) {
        let machine = &self.report.machine;
        println!(
            "{} CPUs ({}), kernel {}, {} memory, transparent huge pages: {}, bursts {}",
            machine.cpus,
            machine.cpu_model.as_deref().unwrap_or(&machine.architecture),
            machine.kernel,
            machine.memory_bytes.map_or_else(|| "unknown".to_owned(), format_bytes),
            machine.thp_enabled.as_deref().unwrap_or("not built in"),
            self.cpu.map_or_else(|| "not pinned".to_owned(), |cpu| format!("pinned to CPU {cpu}")),
        );
        for warning in &self.report.warnings {
            println!("warning: {warning}");
        }
    }

    pub(crate) fn print_skipped(&self) {
        for skipped in &self.report.skipped {
            println!("skipped: {}: {}", skipped.name, skipped.reason);
        }
    }
}

/// An arm as a variant that is timed from its start to its end, with its output discarded.
pub(crate) fn timed_arm(arm: Arm) -> (VariantFacts, TimedVariant<'static>) {
    let arm = arm.silent();
    (arm.facts(), TimedVariant::process(arm.name.clone(), move || arm.command()))
}

/// Builds the `pagelift` of this workspace like a user's, linked statically: cargo alone would link it dynamically, and
/// a dynamic program starts later.
fn build_pagelift() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut build = Command::new("make");
    build.args(["--silent", "build", "-C"]).arg(&workspace).stdout(Stdio::null());
    let status = build.status().context("cannot start make")?;
    if !status.success() {
        bail!("pagelift could not be built; name one with --pagelift FILE");
    }
    let built = test_support::workspace().join("target/release/pagelift");
    built.canonicalize().with_context(|| format!("no pagelift at {}; name one with --pagelift FILE", built.display()))
}

/// As [`Bench::reserve_pages`].
fn reserve_pages(
    reserve: impl FnOnce() -> Result<PoolReservation> + Send + 'static,
    interrupted: &AtomicBool,
) -> Result<PoolReservation, String> {
    if !is_root() {
        return Err("hugetlb pages are reserved by root only; run `sudo make bench`".to_owned());
    }
    // A test may hold the lock for long, and taking it cannot be interrupted, so a thread takes it.
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(reserve()));
    for waited in 0u32.. {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(reservation) => return reservation.map_err(|error| format!("{error:#}")),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if interrupted.load(Ordering::Relaxed) => {
                return Err("interrupted while others held the pool".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if waited == 20 => {
                eprintln!("waiting for the pool: another holds it, or the kernel still makes room for it")
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Err("the thread that reserves the pool ended".to_owned())
}

/// Shows the progress on a terminal, and records the pages that back the workers' memory.
struct Watch {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
    /// For each variant, the reading of each generation.
    huge: Vec<Vec<Option<Usage>>>,
    /// For each variant, the bytes of the pool that are reserved while it runs.
    pools: Vec<Option<u64>>,
    pool: Option<PoolReservation>,
}

impl Watch {
    fn new(name: &str, interrupted: Arc<AtomicBool>) -> Self {
        // If standard error is no terminal, the target is hidden: indicatif's own default.
        let bar = ProgressBar::new(1000).with_message(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}") {
            bar.set_style(style);
        }
        Self { bar, interrupted, huge: Vec::new(), pools: Vec::new(), pool: None }
    }
}

impl Observer for Watch {
    fn warmed_up(&mut self, _generation: u32, variants: &[Running]) {
        self.huge.resize(variants.len(), Vec::new());
        for (seen, variant) in self.huge.iter_mut().zip(variants) {
            seen.push(usage_of(variant.process_id));
        }
    }
    fn starts_alone(&mut self, variant: usize) -> Result<(), String> {
        // The last variant's pages are returned first: memory may have no room for both.
        self.pool = None;
        if let Some(bytes) = self.pools.get(variant).copied().flatten() {
            let page = default_huge_page().map_err(|error| format!("{error:#}"))?;
            let of = move || PoolReservation::of(page, page.pages_for(bytes));
            self.pool = Some(reserve_pages(of, &self.interrupted)?);
        }
        Ok(())
    }
    fn measured_alone(&mut self, variant: usize, process_id: u32) {
        if self.huge.len() <= variant {
            self.huge.resize(variant + 1, Vec::new());
        }
        self.huge[variant].push(usage_of(process_id));
    }
    fn progress(&mut self, done: f64) {
        self.bar.set_position((done * 1000.0) as u64);
    }
    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The kernel's counts of all memory of a process.
fn usage_of(process_id: u32) -> Option<Usage> {
    Some(ProcessMemory::read(i32::try_from(process_id).ok()?).ok()?.coverage().total)
}

/// `20.0 MiB hugetlb, 2.0 MiB thp`.
fn sources(usage: &Usage) -> String {
    let source = |huge: &process_view::coverage::HugeBytes| format!("{} {}", format_bytes(huge.bytes), huge.kind);
    usage.huge.iter().map(source).collect::<Vec<_>>().join(", ")
}

/// Unmounts a file system of a benchmark.
pub(crate) fn unmount(place: &Path) {
    match Command::new("umount").arg(place).status() {
        Ok(status) if status.success() => {}
        _ => eprintln!("{} could not be unmounted; do it by hand: umount {0}", place.display()),
    }
}
