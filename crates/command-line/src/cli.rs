//! The command line's definition; man pages and completions are made from it.

use crate::commands::{
    demo::DemoArgs, generate::GenerateArgs, image::ImageArgs, perf_map::PerfMapArgs, status::StatusArgs,
};
use address_space::{PageSize, parse_bytes};
use clap::{Args, Parser, Subcommand, ValueEnum};
use lift_plan::{Edges, Kind, Kinds, ObjectChoice, Pages, Policy, WritablePages};
use std::ffi::OsString;
use std::path::PathBuf;

/// Puts any Linux program's code, data and heap on huge pages, and proves it.
#[derive(Parser)]
#[command(name = "pagelift", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
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
    /// Lift a program that runs.
    Attach(AttachArgs),
    /// Give a lifted program its files' pages back, while it runs.
    Detach(DetachArgs),
    /// Show what would be lifted of a program or process, and what not and why.
    Inspect(InspectArgs),
    /// Show what the kernel backs with huge pages now.
    ///
    /// Of a heap that Pagelift has preloaded it also shows what the program holds of it beside what is resident. A small
    /// block counts with the size of its class, up to an eighth more than was asked for, and one that another thread has
    /// freed counts until the thread that its page belongs to takes it back.
    Status(StatusArgs),
    /// Write symbols of lifted code for perf to /tmp/perf-PID.map.
    PerfMap(PerfMapArgs),
    /// Shared images: one huge-page copy of a program that every process maps.
    Image(ImageArgs),
    /// Run a bundled program plain and lifted, and show the difference.
    Demo(DemoArgs),
    /// Write man pages or shell completions.
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// `--pages`.
#[derive(Clone, Copy, ValueEnum)]
pub enum PagesArg {
    /// A shared image where there is one, else the hugetlb pool where pages are free, else transparent huge pages.
    Auto,
    /// Shared images for what is never written (see `pagelift image`).
    Image,
    /// The hugetlb pool only.
    Hugetlb,
    /// Transparent huge pages only.
    Thp,
}

/// `--writable-pages`.
#[derive(Clone, Copy, ValueEnum)]
pub enum WritablePagesArg {
    /// Transparent huge pages: fork works as ever.
    Thp,
    /// The pool: after a fork, writing needs free pool pages, or the child is killed by SIGBUS.
    Hugetlb,
}

/// `--edges`.
#[derive(Clone, Copy, ValueEnum)]
pub enum EdgesArg {
    /// Every protection stays as it was.
    Exact,
    /// Read-only data that shares a huge page with code becomes executable.
    MergeReadOnly,
}

/// `--lift`.
#[derive(Clone, Copy, ValueEnum)]
pub enum KindArg {
    /// Executable code.
    Text,
    /// Read-only data.
    Rodata,
    /// Initialised writable data.
    Data,
    /// Zero-initialised writable data.
    Bss,
    /// The brk area.
    Heap,
}

/// What to lift and from where; common to all commands that plan.
#[derive(Args, Clone)]
pub struct PolicyArgs {
    /// Where huge pages come from.
    #[arg(long, value_enum, default_value = "auto")]
    pub pages: PagesArg,
    /// Size of huge pages, 2M or 1G for example [default: the machine's usual one].
    #[arg(long, value_name = "SIZE")]
    pub page_size: Option<PageSize>,
    /// What to lift.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS", default_value = "text,rodata,data,bss,heap")]
    pub lift: Vec<KindArg>,
    /// Objects to lift: exe, all, or patterns for their names separated by commas [default: the executable and every
    /// object that holds at least one whole huge page].
    #[arg(long, value_name = "OBJECTS")]
    pub objects: Option<ObjectChoice>,
    /// Where huge pages for writable memory come from.
    #[arg(long, value_enum, default_value = "thp")]
    pub writable_pages: WritablePagesArg,
    /// What to do where read-only data and code share a huge page.
    #[arg(long, value_enum, default_value = "exact")]
    pub edges: EdgesArg,
    /// Most memory that the lift may make resident.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_memory: Option<u64>,
}

impl PolicyArgs {
    /// The policy that the arguments ask for.
    pub fn policy(&self) -> Policy {
        let kinds: Vec<Kind> = self.lift.iter().map(|&kind| kind.into()).collect();
        Policy {
            pages: match self.pages {
                PagesArg::Auto => Pages::Auto,
                PagesArg::Image => Pages::Image,
                PagesArg::Hugetlb => Pages::Hugetlb,
                PagesArg::Thp => Pages::Thp,
            },
            page_size: self.page_size,
            kinds: Kinds::of(&kinds),
            objects: self.objects.clone().unwrap_or_default(),
            writable_pages: match self.writable_pages {
                WritablePagesArg::Thp => WritablePages::Thp,
                WritablePagesArg::Hugetlb => WritablePages::Hugetlb,
            },
            edges: match self.edges {
                EdgesArg::Exact => Edges::Exact,
                EdgesArg::MergeReadOnly => Edges::MergeReadOnly,
            },
            max_memory: self.max_memory,
        }
    }
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Text => Self::Text,
            KindArg::Rodata => Self::Rodata,
            KindArg::Data => Self::Data,
            KindArg::Bss => Self::Bss,
            KindArg::Heap => Self::Heap,
        }
    }
}

/// `--via`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// From outside: any program, and nothing stays in it.
    Ptrace,
    /// From inside, by libpagelift.so in its environment: dynamically linked programs; objects loaded later too.
    Preload,
}

/// `pagelift run`.
#[derive(Args, Clone)]
#[command(
    after_help = "Exit status: that of the program; 127 where it is not found, 126 where it cannot be executed, \
125 where Pagelift itself fails."
)]
pub struct RunArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// What concerns the heap.
    #[command(flatten)]
    pub heap: crate::lifting::heap::HeapArgs,
    /// How the program is lifted [default: by ptrace; where that is refused, by preload].
    #[arg(long, value_enum)]
    pub via: Option<ViaArg>,
    /// Follow all descendants and lift only programs of these names, separated by commas. A link's name means the program
    /// that it leads to.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// With --only, follow the descendants of lifted programs too. They stay traced as long as they run.
    #[arg(long, requires = "only")]
    pub follow_lifted: bool,
    /// Fail instead of running the program where anything planned could not be lifted.
    #[arg(long)]
    pub require: bool,
    /// Start the program up to its entry, show the plan, and end it there.
    #[arg(long)]
    pub dry_run: bool,
    /// Write what was done as JSON (with --only, one document a line).
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write symbols of lifted code for perf to /tmp/perf-PID.map.
    #[arg(long)]
    pub perf_map: bool,
    /// Say nothing.
    #[arg(short, long)]
    pub quiet: bool,
    /// Say what became of each range.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `pagelift attach`.
#[derive(Args, Clone)]
pub struct AttachArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Number of the process.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub pid: Option<i32>,
    /// All processes that run a program of this name.
    #[arg(long, value_name = "NAME")]
    pub all: Option<String>,
    /// Collapse what it has allocated onto huge pages too, in place: off or thp.
    #[arg(long, value_enum, value_name = "HOW", default_value = "off")]
    pub heap: crate::lifting::heap_in_place::AttachHeapArg,
    /// Show the plan only.
    #[arg(long)]
    pub dry_run: bool,
    /// Stay, and lift what is loaded later.
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    /// Fail where anything planned could not be lifted.
    #[arg(long)]
    pub require: bool,
    /// Write what was done as JSON (with --all, one document a line).
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write symbols of lifted code for perf to /tmp/perf-PID.map.
    #[arg(long)]
    pub perf_map: bool,
    /// Say nothing.
    #[arg(short, long)]
    pub quiet: bool,
    /// Say what became of each range.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// `pagelift detach`.
#[derive(Args, Clone)]
pub struct DetachArgs {
    /// Number of the process.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub pid: Option<i32>,
    /// All processes that run a program of this name.
    #[arg(long, value_name = "NAME")]
    pub all: Option<String>,
    /// Say nothing.
    #[arg(short, long)]
    pub quiet: bool,
}

/// `pagelift inspect`.
#[derive(Args, Clone)]
pub struct InspectArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// An ELF file, or the number of a process.
    #[arg(value_name = "FILE|PID")]
    pub target: OsString,
}
