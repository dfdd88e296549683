//! The command line's definition; man pages and completions are made from it.

use crate::arguments::bench::BenchArgs;
use crate::arguments::cost::CostArgs;
use crate::arguments::heap::{AttachHeapArg, HeapArgs};
use crate::arguments::measure_lift::MeasureLiftArgs;
use crate::arguments::policy::{PolicyArgs, choice, with_running};
use crate::arguments::process::process_number;
use crate::arguments::report::ReportArgs;
use crate::arguments::time::milliseconds;
use crate::arguments::via::ViaArg;
use crate::commands::service::{DisableArgs, EnableArgs, EnabledArgs};
use crate::commands::{
    agent::AgentArgs, align::AlignArgs, cache::CacheArgs, demo::DemoArgs, doctor::DoctorArgs, estimate::EstimateArgs,
    generate::GenerateArgs, image::ImageArgs, perf_map::PerfMapArgs, pool::PoolArgs, probe::ProbeArgs,
    shootdowns::ShootdownsArgs, stat::StatArgs, stat::rounds::USUAL_STALL_WORD, status::StatusArgs,
};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use options::Prepare;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Put the code, data and heap of any Linux program on huge pages, without a rebuild.
#[derive(Parser)]
#[command(
    name = "pagelift",
    version,
    propagate_version = true,
    max_term_width = 100,
    help_template = crate::overview::TEMPLATE
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Start a program with its code and data on huge pages.
//
// The command line of `pagelift run` alone, from its second word on: the same words and texts, made in less time.
#[derive(Parser)]
#[command(name = "run", bin_name = "pagelift run", display_name = "pagelift-run", version, max_term_width = 100)]
pub struct RunCli {
    #[command(flatten)]
    args: RunArgs,
}

impl From<RunCli> for Cli {
    fn from(cli: RunCli) -> Self {
        Self { command: Command::Run(cli.args) }
    }
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Start a program with its code and data on huge pages.
    Run(RunArgs),
    /// Lift a running program.
    Attach(AttachArgs),
    /// Undo a lift while the program runs.
    Detach(DetachArgs),
    /// Show the plan of a lift, and the reason for each refusal.
    ///
    /// With --used, also show whether a lift is likely to pay: the number of pages that a process uses, and the size of the TLB.
    Inspect(InspectArgs),
    /// Report what prevents huge pages here, with the fixes.
    ///
    /// Checks this machine, a process or a command, and names the command to run. Kernel features are tried, not inferred from
    /// the release: doctor uses memory and a child process for that. All other facts are read.
    Doctor(DoctorArgs),
    /// Show which memory is on huge pages now.
    ///
    /// For a heap that Pagelift has preloaded, it shows both the allocated and the resident memory. A small block
    /// counts with the size of its class, up to an eighth more than was requested. A block that another thread has
    /// freed counts until the thread that owns its page reclaims it.
    Status(StatusArgs),
    /// Write symbols of lifted code for perf to /tmp/perf-PID.map.
    PerfMap(PerfMapArgs),
    /// Manage images: huge-page copies that all processes share.
    Image(ImageArgs),
    /// Those of `pagelift-measure`.
    #[command(flatten)]
    Measure(MeasuringCommand),
    /// Keep files in huge folios of the page cache.
    Cache(CacheArgs),
    /// Align a program's segments so that huge pages can map it.
    Align(AlignArgs),
    /// Show, plan and change the pools of huge pages.
    Pool(PoolArgs),
    /// Lift a systemd service at each start, by a drop-in file.
    ///
    /// Puts `pagelift run` before the commands of ExecStart=, or lifts from outside after each start if the service's
    /// sandbox refuses that. The file is shown before it is written. Nothing is restarted without --now.
    Enable(Box<EnableArgs>),
    /// Remove the drop-in file of enable.
    Disable(DisableArgs),
    /// List the services that are lifted at each start.
    Enabled(EnabledArgs),
    /// Lift the programs of a machine by rules.
    ///
    /// Finds processes that meet a rule, waits until they have used enough CPU time to pay for a lift, and lifts one at
    /// a time in a short-lived worker. The rules are TOML files. In mode observe, the default, it only reports the
    /// lifts that it would make.
    Agent(Box<AgentArgs>),
    /// Write man pages or shell completions.
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// The commands of `pagelift-measure`, a program of its own that `pagelift` executes for them: clients of databases, TLS,
/// charts and symbols would make each start of `pagelift run` slower.
#[derive(Subcommand)]
pub enum MeasuringCommand {
    /// Measure whether a lift pays, with a confidence interval.
    ///
    /// There are three forms: a running program is switched in place, servers run side by side, or a command runs plain and
    /// lifted in turn.
    ///
    /// With --toggle, the process is lifted and restored in random blocks under its own load. Nothing is sent to it,
    /// and at the end its first state is restored, also at Ctrl-C. With --server and --load, a plain server, a lifted
    /// server and a second plain server as the control are started, and the load alternates between them; at the end
    /// all are ended. Plain is also measured against plain in the same way, and no smaller difference is reported as an
    /// effect.
    Bench(Box<BenchArgs>),
    /// Make an HTML or Markdown page from the records of bench.
    ///
    /// The page shows the answer, every pair, the address map before and after, and the reasons. The HTML file needs no
    /// network and no other file, has a light and a dark form, and can be printed. Several records are compared in a table.
    Report(ReportArgs),
    /// Count page walks, page faults and the pages in use.
    ///
    /// The report says whether the TLB holds the pages in use.
    ///
    /// Page walks are counted by the CPU's PMU if the machine has one. Without one, as in most virtual machines, the
    /// accessed marks of a process's page tables are cleared and counted after 1, 10, 100 and 500 ms: a page walk marks
    /// its page, and a page that stays in a TLB is not marked. Together with the size of the TLB, this shows where huge
    /// pages can gain. Clearing locks the process's memory map for a few milliseconds (--stall), and the kernel's
    /// reclaim treats the pages as idle until they are used again; contents are not changed.
    Stat(StatArgs),
    /// Measure the cost of address translation on this machine.
    ///
    /// The report also shows the saving by huge pages.
    ///
    /// Dependent loads and jumps visit one cache line in each base page, in random order. The control visits the same
    /// number of adjacent lines; the difference is the cost of translation. In virtual machines it shows whether the
    /// host backs the guest's huge pages with huge pages.
    Probe(ProbeArgs),
    /// Show who sends TLB shootdowns, their cost and the cure.
    ///
    /// A program with threads that returns memory to the kernel, mostly through its allocator, interrupts every CPU it
    /// runs on. Shootdowns are counted from the kernel's tracepoints, as root; an ordinary user sees the count of
    /// /proc/interrupts for the whole machine.
    Shootdowns(ShootdownsArgs),
    /// Simulate a program's TLB misses, plain and lifted.
    ///
    /// Nothing is lifted, and the machine needs no huge pages.
    ///
    /// A bounded slice of the program runs under QEMU's user mode (Debian: qemu-user), which reports the pages that it
    /// touches, and the TLBs of a CPU are simulated: for the present pages, for the pages that `pagelift run` plans,
    /// and for these together with huge pages of anonymous memory. The program's own output goes to standard error.
    Estimate(EstimateArgs),
    /// Decide whether a running program gains by a lift, block by block. Prints one JSON document a line; the program is plain
    /// afterwards. The agent executes it.
    #[command(hide = true)]
    MeasureLift(Box<MeasureLiftArgs>),
    /// Run a bundled program plain and lifted, and compare.
    //
    // After all other commands, also after the commands of `pagelift`.
    #[command(display_order = 100)]
    Demo(DemoArgs),
}

/// The commands of `pagelift` that measure, which it executes this program for.
#[derive(Parser)]
#[command(name = "pagelift", version, propagate_version = true, max_term_width = 100)]
pub struct MeasuringCli {
    /// The command.
    #[command(subcommand)]
    pub command: MeasuringCommand,
}

/// `pagelift run`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(mut_arg("lift", with_running))]
pub struct RunArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// When to bring files into huge folios of the page cache before they are lifted from there.
    #[arg(long, value_parser = choice::<Prepare>(), default_value = "auto")]
    pub prepare: Prepare,
    /// Limits of the cost.
    #[command(flatten)]
    pub cost: CostArgs,
    /// Options of the heap.
    #[command(flatten)]
    pub heap: HeapArgs,
    /// Make the program's allocator keep freed memory, by the allocator's own settings, so that it sends no TLB
    /// shootdowns. This costs resident memory. Settings in the environment are not changed.
    #[arg(long)]
    pub calm: bool,
    /// With --lift shared, anon or jit: fill the holes of every block that has any data. Without this option, only
    /// blocks that are at least 7/8 full are lifted.
    #[arg(long)]
    pub fill: bool,
    /// Method of the lift [default: ptrace, or preload if ptrace is refused].
    #[arg(long, value_enum)]
    pub via: Option<ViaArg>,
    /// Follow all descendants and lift only programs with these names, separated by commas. The name of a symbolic link
    /// means the program that it points to.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub only: Vec<String>,
    /// With --only, print a line for each process, as in the journal of a service [default: a line for the first
    /// process of each name, and the totals when CMD ends].
    #[arg(long, requires = "only")]
    pub each: bool,
    /// With --only, follow the descendants of lifted programs too. They stay traced as long as they run.
    #[arg(long, requires = "only")]
    pub follow_lifted: bool,
    /// Fail instead of running the program if any part of the plan cannot be lifted.
    #[arg(long)]
    pub require: bool,
    /// Start the program up to its entry, show the plan, and end it there.
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run, plan as if the pools had all pages that the lift takes.
    #[arg(long, requires = "dry_run")]
    pub suppose_pool: bool,
    /// --report does without one where the program is lifted by preload.
    #[arg(long, hide = true)]
    pub report_if_possible: bool,
    /// Execute the program with this argv[0] instead of CMD, as env --argv0 does.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub argv0: Option<OsString>,
    /// Output options.
    #[command(flatten)]
    pub outcome: OutcomeArgs,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// What `run` and `attach` tell of what they did.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct OutcomeArgs {
    /// Write the result, or the plan of a dry run, as JSON (for several programs, one document per line); - is the
    /// standard output.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write symbols of lifted code for perf to /tmp/perf-PID.map.
    #[arg(long)]
    pub perf_map: bool,
    /// Print no messages.
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result for each range.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// `pagelift attach`.
#[derive(Args, Clone)]
#[command(mut_arg("lift", with_running))]
pub struct AttachArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// When to bring files into huge folios of the page cache before they are lifted from there.
    #[arg(long, value_parser = choice::<Prepare>(), default_value = "auto")]
    pub prepare: Prepare,
    /// Number of the process, or the name of its program.
    #[arg(
        value_name = "PID|NAME",
        value_parser = process_number,
        required_unless_present_any = ["all", "unit"],
        conflicts_with_all = ["all", "unit"]
    )]
    pub pid: Option<i32>,
    /// All processes that run a program of this name.
    #[arg(long, value_name = "NAME", conflicts_with = "unit")]
    pub all: Option<String>,
    /// All processes of a systemd service.
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<String>,
    /// Also collapse the process's allocated memory onto huge pages, in place: off or thp.
    #[arg(long, value_enum, value_name = "HOW", default_value = "off")]
    pub heap: AttachHeapArg,
    /// Fill the holes of every block of shared, anonymous or generated memory that has any data. Without this option,
    /// only blocks that are at least 7/8 full are lifted.
    #[arg(long)]
    pub fill: bool,
    /// Show the plan only.
    #[arg(long)]
    pub dry_run: bool,
    /// Keep running, and lift objects that are loaded later, shared, anonymous and generated memory as it is filled,
    /// and mapped data files as they become resident.
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    /// Fail if any part of the plan cannot be lifted.
    #[arg(long)]
    pub require: bool,
    /// Output options.
    #[command(flatten)]
    pub outcome: OutcomeArgs,
}

/// `pagelift detach`.
#[derive(Args, Clone)]
pub struct DetachArgs {
    /// Number of the process, or the name of its program.
    #[arg(value_name = "PID|NAME", value_parser = process_number, required_unless_present = "all", conflicts_with = "all")]
    pub pid: Option<i32>,
    /// All processes that run a program of this name.
    #[arg(long, value_name = "NAME")]
    pub all: Option<String>,
    /// Print no messages.
    #[arg(short, long)]
    pub quiet: bool,
}

/// `pagelift inspect`.
#[derive(Args, Clone)]
#[command(mut_arg("lift", with_running))]
#[command(group = ArgGroup::new("looks").args(["used", "probe"]).multiple(true))]
pub struct InspectArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Plan as if the pools had all pages that the lift takes.
    #[arg(long)]
    pub suppose_pool: bool,
    /// Count the pages that a process uses within half a second, and report whether the TLB holds them, as `stat` does.
    /// This clears the accessed marks of the process once.
    #[arg(long)]
    pub used: bool,
    /// Measure for four seconds the reach of this machine's TLB and the time that huge pages save per page walk, as
    /// `probe` does. The pages that a process uses are counted too, and compared with the reach.
    #[arg(long)]
    pub probe: bool,
    /// With --used or --probe, the maximum time for which the process may wait for the lock of its memory map. Memory
    /// that would take longer is skipped.
    #[arg(long, value_name = "TIME", requires = "looks", default_value = USUAL_STALL_WORD, value_parser = milliseconds(1, 60_000))]
    pub stall: Duration,
    /// An ELF file, the number of a process, or the name of its program.
    #[arg(value_name = "FILE|PID|NAME")]
    pub target: OsString,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command, CommandFactory};

    /// Every argument of a command and its subcommands, with the command's name.
    fn arguments(command: &Command) -> Vec<(String, Arg)> {
        let own = command.get_arguments().map(|arg| (command.get_name().to_owned(), arg.clone()));
        own.chain(command.get_subcommands().flat_map(arguments)).collect()
    }

    #[test]
    fn processes_have_names_and_times_have_units() {
        let mut processes = 0;
        for (command, arg) in arguments(&Cli::command()) {
            let names: Vec<_> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
            let is_bare = |name: &str| ["PID", "SECONDS", "MS", "MILLISECONDS", "DAYS", "N"].contains(&name);
            assert!(!names.iter().any(|name| is_bare(name)), "{command} {arg}");
            let takes_process = names.iter().any(|name| name.split('|').any(|part| part == "PID"));
            assert!(!takes_process || names.iter().any(|name| name.contains("|NAME")), "{command} {arg}");
            processes += usize::from(takes_process);
        }
        assert!(processes >= 10, "{processes}");
    }
}
