//! Reasons why memory is not lifted: the value found, the value needed, and the command that fixes it.

use address_space::{Address, PageSize, counted, format_bytes};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use foreign_text::quoted_path_text;
use machine_facts::{CacheShortfall, Nodes};
use serde::{Serialize, Serializer};

/// Why a range is not lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too small, or cut so that it contains no whole huge page.
    NoWholePage {
        /// Bytes of the range.
        bytes: u64,
        /// Huge page size.
        size: PageSize,
    },
    /// The pool has too few pages left.
    PoolTooSmall {
        /// Page size.
        size: PageSize,
        /// Pages needed.
        needed: u64,
        /// Pages available.
        available: u64,
        /// Pages in the pool now.
        total: u64,
        /// Pages that all ranges of the plan need together.
        whole: u64,
    },
    /// The pool has enough pages, but not on the nodes from which they must come.
    PoolOnOtherNodes {
        /// Page size.
        size: PageSize,
        /// Pages needed.
        needed: u64,
        /// Pages available on the nodes.
        available: u64,
        /// Pages available on other nodes only.
        elsewhere: u64,
        /// The nodes.
        nodes: Nodes,
        /// Pages that all ranges of the plan need together.
        whole: u64,
    },
    /// The pool has enough pages, but a cgroup does not allow as many.
    PoolLimited {
        /// Page size.
        size: PageSize,
        /// Pages needed.
        needed: u64,
        /// Pages that are allowed.
        available: u64,
        /// The limit in bytes.
        limit: u64,
        /// The file that sets it.
        file: String,
    },
    /// The wanted node does not exist, or the process may not take memory from it.
    NodeForbidden {
        /// The node.
        node: u32,
        /// The nodes that may be used.
        allowed: Nodes,
    },
    /// It is unknown on which node the program runs.
    NoLocalNode,
    /// The nodes of memory shared with other processes cannot be chosen for one process.
    SharedPages,
    /// No image is a copy for the wanted nodes.
    NoImageOnNode {
        /// The wanted nodes.
        nodes: Nodes,
        /// Path of the object's file, if it is known.
        file: Option<String>,
    },
    /// The kernel has no pool of this page size.
    NoSuchPool {
        /// Page size.
        size: PageSize,
        /// Sizes that exist.
        sizes: Vec<PageSize>,
    },
    /// The program runs, and this kernel cannot move pool pages to its memory.
    PoolPagesStay(PageSize),
    /// Transparent huge pages are switched off.
    ThpOff,
    /// Transparent huge pages are switched off for the process.
    ThpOffInProcess,
    /// The kernel has no transparent huge pages.
    NoThp,
    /// Transparent huge pages come in one size only.
    ThpSize {
        /// The requested size.
        wanted: PageSize,
        /// The size they have.
        size: PageSize,
    },
    /// No shared image shows the range.
    NoImage {
        /// Path of the object's file, if it is known.
        file: Option<String>,
    },
    /// The object's shared image does not show the range, for example because the process has changed it.
    NotInImage,
    /// The range is no unchanged mapping of a file, or the file's state in the page cache is unknown.
    NoCachedFile,
    /// A huge folio can only be mapped if the address agrees with the offset in the file.
    NotCongruent {
        /// Address less offset, modulo the huge page size. Bytes.
        bytes: u64,
        /// Huge page size.
        size: PageSize,
    },
    /// The file is not in huge folios of the page cache.
    SmallFolios(Option<CacheShortfall>),
    /// A mapping of a data file through which the program may write.
    FileWritable,
    /// A mapping of a data file whose address and offset disagree.
    FileMisplaced {
        /// Address less offset, modulo the huge page size. Bytes.
        bytes: u64,
        /// Huge page size.
        size: PageSize,
    },
    /// A mapping of a data file that the kernel does not map by huge pages, whatever the page cache holds.
    FileStays(CacheShortfall),
    /// The path of the range's file leads to another file by now.
    FileReplaced,
    /// The process has written to pages of the mapping, which are its own now.
    WrittenTo,
    /// No huge pages of any kind on this kernel.
    NoHugePages,
    /// More memory would become resident than allowed or available.
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        left: u64,
        /// The origin of the bound.
        bound: String,
    },
    /// The process has too many mappings for one more split.
    Mappings {
        /// Mappings now.
        now: u64,
        /// `vm.max_map_count`.
        most: u64,
    },
    /// Writable and executable at once; a copy would have to be so too.
    WritableAndExecutable,
    /// Not readable, so that it cannot be copied.
    NotReadable,
    /// Carries a property that a copy would lose.
    Special(String),
    /// A debugger or a tracer has written an instruction into it, which would stay in a copy.
    Probed,
    /// Holds semaphores of USDT probes: the kernel sets them in mappings of their file only.
    Semaphores,
    /// Holds the object's ELF header and no code: tools find an object by the first mapping of its file.
    FileHeader,
    /// In use in a way that does not allow to replace it now, in words.
    InUse(&'static str),
    /// The program will change the protection of parts (RELRO of a static program), which is not possible with pool
    /// pages.
    ProtectionPending,
    /// The program is going to write relocations into its code.
    TextRelocationsPending,
    /// Writable pages of a file in a program that runs: a copy would miss writes of the program, or of the kernel on
    /// its behalf, during the copy, and the kernel cannot collapse such pages in place.
    RunningAndWritable,
    /// Writable pages of a file in a program whose constructors have started threads: if the lifter is killed, the
    /// kernel resumes them at once, and their writes between copy and exchange would be lost.
    OtherThreadsWrite,
    /// Its copy costs more than is allowed at the start. It is lifted when the program has used enough CPU time.
    Unpaid {
        /// Price of all ranges that are lifted then.
        price: Duration,
        /// The CPU time.
        due: Duration,
    },
    /// Its copy costs more than the program has paid for when its lift was made.
    NotPaidFor {
        /// Price of the copy.
        price: Duration,
        /// The time that the program has paid for, in all.
        paid: Duration,
    },
    /// Its copy costs more than is allowed at the start, and is not made later.
    OnlyAtStart {
        /// Price of the copy.
        price: Duration,
        /// Time that copies may take at the start.
        allowance: Duration,
        /// Why it is not made later, as a clause about the copy.
        why: &'static str,
    },
    /// Built for another kind of machine.
    OtherMachine(u16),
    /// The kernel refused a call.
    Kernel {
        /// The call.
        call: &'static str,
        /// The error's number.
        errno: i32,
        /// The error in words.
        error: String,
    },
    /// The kernel removed its mappings and refused the copy, and then its contents could not be restored there.
    Displaced {
        /// Address at which its contents are now.
        kept: Option<Address>,
    },
    /// The kernel gave ordinary pages instead of the requested huge ones.
    NotHuge {
        /// Bytes that stayed on ordinary pages.
        bytes: u64,
    },
}

impl Reason {
    /// The command or change that fixes it, if there is one.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::PoolTooSmall { size, whole, .. } => Some(format!("pagelift pool reserve {}:{whole}", size.word())),
            Self::PoolOnOtherNodes { size, nodes, whole, .. } => {
                let node = nodes.iter().next()?;
                Some(format!("pagelift pool reserve {}:{whole}@{node}", size.word()))
            }
            Self::PoolLimited { size, needed, available, limit, file } => {
                let missing = needed.saturating_sub(*available).saturating_mul(size.bytes());
                Some(format!("echo {} > {}", limit.saturating_add(missing), quoted_path_text(file)))
            }
            Self::NodeForbidden { allowed, .. } => {
                allowed.iter().next().map(|node| format!("--numa node={node}, or a cpuset with the wanted node"))
            }
            Self::NoLocalNode => Some("--numa node=NUMBER".to_owned()),
            Self::NoImageOnNode { file, .. } => {
                Some(format!("pagelift image add --per-node {}", file_word(file.as_deref())))
            }
            Self::SharedPages => Some("--pages hugetlb or --pages thp, which copy".to_owned()),
            Self::NoSuchPool { sizes, .. } => {
                sizes.first().map(|size| format!("--page-size {}", size.to_string().replace(' ', "")))
            }
            Self::PoolPagesStay(_) => Some("--pages thp, or pagelift run".to_owned()),
            Self::NoImage { file } => {
                Some(format!("pagelift image setup; pagelift image add {}", file_word(file.as_deref())))
            }
            Self::NotInImage => Some("--pages auto, which copies the rest".to_owned()),
            Self::NotCongruent { size, .. } => {
                Some(format!("link it with -z max-page-size={}, or --pages auto", size.bytes()))
            }
            Self::SmallFolios(Some(shortfall)) | Self::FileStays(shortfall) => shortfall.fix.clone(),
            Self::SmallFolios(None) => Some("pagelift cache prepare FILE".to_owned()),
            Self::FileMisplaced { .. } => Some("in the program, mmap at such an address".to_owned()),
            Self::ThpOff => Some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".to_owned()),
            Self::ThpSize { .. } | Self::ThpOffInProcess => Some("--pages hugetlb".to_owned()),
            Self::Memory { needed, .. } => Some(format!("--max-memory {needed}, or free memory")),
            Self::Mappings { most, .. } => Some(format!("sysctl vm.max_map_count={}", most.saturating_mul(2))),
            Self::Probed => Some("remove it, and lift again".to_owned()),
            Self::ProtectionPending => Some("--writable-pages thp".to_owned()),
            Self::Unpaid { .. } | Self::OnlyAtStart { .. } => Some("--start-cost any".to_owned()),
            Self::NotPaidFor { .. } => Some("pagelift attach PID".to_owned()),
            Self::Displaced { .. } => Some("restart the program".to_owned()),
            Self::NotHuge { .. } => Some("echo 1 > /proc/sys/vm/compact_memory".to_owned()),
            _ => None,
        }
    }

    /// The reason for any file, if it names one in its fix.
    #[must_use]
    pub fn without_file(&self) -> Self {
        match self {
            Self::NoImage { .. } => Self::NoImage { file: None },
            Self::NoImageOnNode { nodes, .. } => Self::NoImageOnNode { nodes: nodes.clone(), file: None },
            other => other.clone(),
        }
    }

    /// True if memory is left for this reason after every complete lift of the program.
    pub const fn is_expected(&self) -> bool {
        matches!(self, Self::NoWholePage { .. }) || self.is_for_tools()
    }

    /// True if memory is left for this reason so that debuggers and tracers work.
    pub const fn is_for_tools(&self) -> bool {
        matches!(self, Self::Semaphores | Self::FileHeader)
    }

    /// The reason with the command that fixes it, if there is one.
    pub fn with_fix(&self) -> String {
        match self.fix() {
            Some(fix) => format!("{self}; fix: {fix}"),
            None => self.to_string(),
        }
    }
}

/// A path as a word of a command; `FILE` if it is not known.
fn file_word(path: Option<&str>) -> String {
    path.map_or_else(|| "FILE".to_owned(), quoted_path_text)
}

/// Writes the pages of the whole lift if one range needs fewer.
fn write_whole(f: &mut fmt::Formatter<'_>, needed: u64, whole: u64) -> fmt::Result {
    if whole > needed { write!(f, "; the whole lift needs {whole}") } else { Ok(()) }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // As large as a page, but across the boundary between two.
            Self::NoWholePage { bytes, size } if *bytes >= size.bytes() / 32 * 31 => {
                write!(f, "holds no aligned {size} page ({})", format_bytes(*bytes))
            }
            Self::NoWholePage { bytes, size } => {
                write!(f, "holds no whole {size} page ({})", format_bytes(*bytes))
            }
            Self::PoolTooSmall { size, needed, available, whole, .. } => {
                write!(f, "needs {} of {size} from the pool, {available} available", counted(*needed, "page"))?;
                write_whole(f, *needed, *whole)
            }
            Self::PoolOnOtherNodes { size, needed, available, elsewhere, nodes, whole } => {
                let needed_pages = counted(*needed, "page");
                write!(f, "needs {needed_pages} of {size} from the pool on {nodes}, {available} available there; ")?;
                write!(f, "{elsewhere} on other nodes may not be used")?;
                write_whole(f, *needed, *whole)
            }
            Self::PoolLimited { size, needed, available, file, .. } => {
                write!(f, "needs {} of {size} from the pool, {available} allowed by {file}", counted(*needed, "page"))
            }
            Self::NodeForbidden { node, allowed } => {
                write!(f, "node {node} is not one it may take memory from, found {allowed}")
            }
            Self::NoLocalNode => f.write_str("found no node for the CPU that it runs on, needed by --numa local"),
            Self::SharedPages => {
                f.write_str("its pages are shared with other processes, so that --numa cannot choose their node")
            }
            Self::NoImageOnNode { nodes, .. } => write!(f, "no shared image on {nodes} shows it"),
            Self::NoSuchPool { size, sizes } => {
                let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
                let found = if sizes.is_empty() { "no pool at all".to_owned() } else { sizes.join(", ") };
                write!(f, "no pool of {size} pages on this machine, found {found}")
            }
            Self::PoolPagesStay(size) => write!(
                f,
                "pool pages of {size} cannot be moved into a program that runs on this kernel, needed: Linux 5.16"
            ),
            Self::ThpOff => f.write_str("transparent huge pages are off (`never`), needed `madvise` or `always`"),
            Self::ThpOffInProcess => {
                f.write_str("transparent huge pages are off for this process (PR_SET_THP_DISABLE, THP_enabled: 0)")
            }
            Self::NoThp => f.write_str("this kernel has no transparent huge pages"),
            Self::ThpSize { wanted, size } => {
                write!(f, "transparent huge pages are {size} here, {wanted} requested")
            }
            Self::NoImage { .. } => f.write_str("no shared image shows it"),
            Self::NotInImage => f.write_str("its shared image shows other parts only"),
            Self::NoCachedFile => f.write_str("it maps no file whose page cache can be read"),
            Self::NotCongruent { bytes, size } => write!(
                f,
                "its addresses differ from the file's offsets by {} KiB modulo {size}, needed: 0",
                bytes / 1024
            ),
            Self::SmallFolios(None) => f.write_str("its file is not in huge folios of the page cache"),
            Self::SmallFolios(Some(shortfall)) => {
                write!(f, "its file is not in huge folios of the page cache: {}", shortfall.why)
            }
            Self::FileWritable => f.write_str("the program may write to it through this mapping"),
            Self::FileMisplaced { bytes, size } => {
                write!(f, "address and offset disagree by {} KiB, needed: a multiple of {size}", bytes / 1024)
            }
            Self::FileStays(shortfall) => f.write_str(&shortfall.why),
            Self::FileReplaced => {
                f.write_str("its file has been replaced since it was mapped; a restart shows the new one")
            }
            Self::WrittenTo => f.write_str("the program has written to it, so that it no longer shows its file"),
            Self::NoHugePages => f.write_str("this kernel has no huge pages"),
            Self::Memory { needed, left, bound } => {
                write!(f, "would make {} more resident, {} left by {bound}", format_bytes(*needed), format_bytes(*left))
            }
            Self::Mappings { now, most } => {
                write!(f, "the process has {now} mappings, too near to vm.max_map_count = {most}")
            }
            Self::WritableAndExecutable => f.write_str("writable and executable at once"),
            Self::NotReadable => f.write_str("not readable, so it cannot be copied"),
            Self::Special(property) => write!(f, "{property}, which a copy would lose"),
            Self::Probed => f.write_str("a breakpoint or a uprobe is in its code, and would remain in a copy"),
            Self::Semaphores => {
                f.write_str("it holds semaphores of USDT probes, which tracers can set only in pages of its file")
            }
            Self::FileHeader => f.write_str(
                "it holds the ELF header and no code, and tools find an object by the first mapping of its file",
            ),
            Self::InUse(why) => f.write_str(why),
            Self::ProtectionPending => {
                f.write_str("the program will change the protection of a part, which pool pages do not support")
            }
            Self::TextRelocationsPending => f.write_str("the program will write relocations into it"),
            Self::RunningAndWritable => f.write_str(
                "writable pages of a file cannot be moved while the program runs; `pagelift run` lifts them",
            ),
            Self::OtherThreadsWrite => f.write_str(
                "threads that a constructor has started may write to it; needed: a program with one thread at its entry",
            ),
            Self::Unpaid { price, due } => write!(
                f,
                "a copy costs {}, and is made when the program has used {} of CPU time",
                in_words(*price),
                in_words(*due)
            ),
            Self::NotPaidFor { price, paid } => {
                let (price, paid) = (in_words(*price), in_words(*paid));
                write!(f, "a copy costs {price}, and the program had paid for {paid} in all")
            }
            Self::OnlyAtStart { price, allowance, why } => {
                let (price, allowance) = (in_words(*price), in_words(*allowance));
                write!(f, "a copy costs {price}, more than {allowance} at the start, and {why}")
            }
            Self::OtherMachine(machine) => write!(f, "built for another machine (ELF machine {machine})"),
            Self::Kernel { call, error, .. } => write!(f, "the kernel refused {call}: {error}"),
            Self::Displaced { kept } => {
                f.write_str("the kernel removed it and refused the copy, and it could not be restored there")?;
                kept.map_or(Ok(()), |at| write!(f, "; its contents are at {at}"))
            }
            Self::NotHuge { bytes } => {
                write!(f, "the kernel had no huge page for {}: memory is fragmented or short", format_bytes(*bytes))
            }
        }
    }
}

/// A time in milliseconds, or in seconds from one second on.
pub(crate) fn in_words(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
