//! Starts a program lifted: this process becomes the program, and a helper process lifts it.

pub(crate) mod base;
mod command;
mod companion;
mod drivers;
mod entry;
mod filling;
mod handler;
mod helper;
mod postponed;
mod preload;
mod preparation;
mod privileges;
mod tracers;

pub use crate::payment::Payment;
pub use command::CommandFiles;
pub use drivers::worker_of;
pub use filling::InPlaceStart;
pub use helper::become_program;
pub use preload::{find_library, preload_environment};
pub use preparation::prepare_file;
pub use ptrace::{Helper, Program};

use crate::LiftReport;
use crate::growing_files::LiftedFiles;
use crate::heap::{Anonymous, HeapOptions};
use crate::inspect::Pools;
use crate::running::Pause;
use crate::shared::{InPlace, InPlaceReports};
use address_space::{LoadedObject, PageSize};
use lift_plan::{Later, Plan, Policy};
use options::Prepare;
use process_view::perf_map::PerfMapError;
use std::io;

/// Exit status of a program that was ended because of [`StartOptions::require`].
pub const ENDED_BY_REQUIRE: i32 = 125;

/// Options of a start.
#[derive(Clone, Default)]
pub struct StartOptions {
    /// The memory to lift.
    pub policy: Policy,
    /// The effort to bring the program's file into huge folios of the page cache before it is executed.
    pub prepare: Prepare,
    /// Follow all descendants and lift only programs with these names; empty: lift the program itself.
    pub only: Vec<String>,
    /// Limits of the cost; `None`: any price, at the start.
    pub payment: Option<Payment>,
    /// With `only`, follow the descendants of lifted programs too.
    pub follow_lifted: bool,
    /// End a program if anything planned could not be lifted.
    pub require: bool,
    /// The heap gets huge pages as well: with `require`, a program continues whose code and data fill no huge page. The
    /// heap of a followed program counts only if nothing about it was refused.
    pub has_heap: bool,
    /// Plan at the entry, report the plan, and end the program.
    pub dry_run: bool,
    /// The pools that a dry run plans for.
    pub pools: Pools,
    /// Write a perf map of each lifted program.
    pub perf_map: bool,
    /// The source of huge pages for the heaps of followed programs: each gets its variables when it is executed, and
    /// other programs do not get them.
    pub heap: Option<HeapOptions>,
    /// Refusals for their heaps that have been reported already.
    pub heap_told: Vec<String>,
    /// Collapse the program's memory into pages of this size as long as it runs.
    pub collapse_heap: Option<PageSize>,
    /// Memory that is lifted in place as it fills, as long as the program or one of its descendants runs.
    pub in_place: Option<InPlaceStart>,
    /// No message about a lift is printed. Programs that need no tracer are then started without one.
    pub silent: bool,
}

impl StartOptions {
    /// True if a program's start may end before its entry: the only request is to lift this one program, and no report
    /// of the coverage is needed.
    fn may_end_early(&self) -> bool {
        let followed = !self.only.is_empty() || self.collapse_heap.is_some() || self.in_place.is_some();
        self.silent && !(followed || self.require || self.dry_run || self.perf_map)
    }
}

/// An event of a start. The helper reports it while the program is stopped, unless the variant's comment differs.
pub enum StartEvent<'a> {
    /// The plan of a dry run. The program ends.
    Planned {
        /// The process.
        pid: i32,
        /// The name of its file.
        program: &'a str,
        /// The lifts at the start.
        plan: &'a Plan,
        /// The later lifts.
        later: &'a Later,
        /// The objects of the program.
        objects: &'a [LoadedObject],
    },
    /// A program was lifted according to the report, or was not, for the given reason.
    Concluded {
        /// The outcome.
        report: &'a LiftReport,
        /// True if the program is ended because of [`StartOptions::require`].
        ended: bool,
    },
    /// A program has ended before it could be lifted. Its number may be another process's.
    EndedUnseen {
        /// The reason.
        report: &'a LiftReport,
    },
    /// A program has been lifted further, executed another program, or ended, after it was to be lifted later. It runs, or has
    /// ended.
    Settled {
        /// The outcome of both lifts.
        report: &'a LiftReport,
        /// Time for which its threads were stopped by the later lift.
        pause: Option<Pause>,
        /// Why a perf map of the later lift could not be written.
        no_perf_map: Option<&'a PerfMapError>,
    },
    /// Filled memory of a program and its descendants was lifted in place. They run.
    Looked {
        /// The outcome of all lifts of the program.
        report: &'a LiftReport,
        /// The processes.
        pids: &'a [i32],
        /// The outcome of this look, by kind of memory.
        looked: &'a InPlaceReports,
        /// Kinds of memory that could not be read, each with the reason.
        errors: &'a [(InPlace, String)],
    },
    /// Mapped data files of a program and its descendants were checked, and lifted if possible. They run. Reported at the
    /// start too, if no data file of the program will be lifted.
    FilesLifted {
        /// The outcome of all lifts of the program.
        report: &'a LiftReport,
        /// The outcome of this check.
        lifted: &'a [LiftedFiles],
    },
    /// A program whose memory was lifted in place as it filled has ended with all its descendants.
    FamilyEnded {
        /// The outcome of all lifts.
        report: &'a LiftReport,
    },
    /// The process that was started ends, if it is traced because its descendants are followed. It has its descriptors.
    Ends {
        /// The process.
        pid: i32,
    },
    /// A request for the heap of a followed program cannot be met, or an option has no effect on it. Each reason is reported
    /// for the first process of a program.
    HeapIsShort {
        /// The process.
        pid: i32,
        /// The name of its file.
        program: &'a str,
        /// Why.
        why: &'a str,
    },
    /// A program is not followed any more, nor are its descendants, since it traces processes itself. It has not begun.
    LeftAlone {
        /// The process.
        pid: i32,
        /// The evidence.
        why: &'a str,
    },
    /// A program that was to end was killed instead, since it could not be made to end by itself.
    Killed {
        /// The process.
        pid: i32,
        /// Why it could not.
        why: String,
    },
    /// A perf map could not be written.
    NoPerfMap {
        /// The process.
        pid: i32,
        /// Why.
        error: &'a PerfMapError,
    },
    /// Programs that start from now on are not lifted: waiting for the traced threads has failed.
    CannotFollow {
        /// The process that was started.
        pid: i32,
        /// The kernel's error.
        error: &'a io::Error,
    },
    /// The heap was collapsed, and a further pass found nothing to collapse. The program runs. Reported once.
    HeapCollapsed {
        /// The process.
        pid: i32,
        /// Its anonymous memory.
        now: Anonymous,
    },
    /// Part of the heap or all is not collapsed. The program runs.
    HeapNotCollapsed {
        /// The process.
        pid: i32,
        /// Why, with needed or the fix.
        why: &'a str,
    },
}
