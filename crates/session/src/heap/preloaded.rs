//! Reads from a running process the contents of its preloaded heap, and their pages.

use heap_abi::{AccountCopy, Shortage};
use heap_choice::{NotKnown, PreloadedHeap, SmallUse};
use serde::Serialize;

/// The data for `status` about a preloaded heap.
#[derive(Serialize)]
#[serde(untagged)]
pub enum PreloadedHeapView {
    /// The whole account.
    Read(RunningHeap),
    /// The heap could not be read.
    NotRead {
        /// The reason.
        not_read: String,
    },
}

/// A preloaded heap. Byte counts.
#[derive(Serialize)]
pub struct RunningHeap {
    /// Size of a pool page; 0 if the heap does not use the pool.
    pub pool_page: u64,
    /// Bytes requested from the pool.
    pub pool_asked: u64,
    /// Bytes taken from the pool and populated.
    pub pool_taken: u64,
    /// Bytes of the pool memory in use.
    pub pool_used: u64,
    /// Address space in use besides the pool, on transparent huge pages if the kernel has them.
    pub mapped: u64,
    /// Arenas of small blocks.
    pub arenas: u64,
    /// Resident bytes of these arenas.
    pub small_resident: Option<u64>,
    /// Bytes of the small blocks that the program holds, each counted with the size of its class.
    pub small_live: Option<u64>,
    /// Why the small blocks are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_not_known: Option<String>,
    /// Bytes that the program requested in its large blocks.
    pub large_asked: u64,
    /// Bytes that these blocks occupy.
    pub large_held: u64,
    /// Bytes of freed large blocks whose memory is kept for reuse.
    pub large_kept: u64,
    /// Why part of the heap is not on pool pages.
    pub shortage: Option<&'static str>,
}

/// Reads the preloaded heap of a process; `None` if none is active.
pub fn preloaded_heap(pid: i32) -> Option<PreloadedHeapView> {
    Some(match heap_choice::read_preloaded(pid)? {
        PreloadedHeap::Read { account, small } => PreloadedHeapView::Read(RunningHeap::of(account, small)),
        PreloadedHeap::NotRead(reason) => PreloadedHeapView::NotRead { not_read: reason.to_string() },
    })
}

impl RunningHeap {
    /// Combines the heap's own record with the sum of its small blocks.
    pub fn of(account: AccountCopy, small: Result<SmallUse, NotKnown>) -> Self {
        Self {
            pool_page: account.pool_page,
            pool_asked: account.pool_asked,
            pool_taken: account.pool_taken,
            pool_used: account.pool_used,
            mapped: account.mapped_used,
            arenas: account.arenas,
            small_resident: small.ok().and_then(|small| small.resident),
            small_live: small.ok().map(|small| small.live),
            small_not_known: small.err().map(|why| why.to_string()),
            large_asked: account.large_asked,
            large_held: account.large_held,
            large_kept: account.large_kept,
            shortage: match account.shortage {
                Shortage::None => None,
                Shortage::PoolTooSmall => Some("the pool had too few free pages at the start"),
                Shortage::PopulationRefused => Some("a limit refused pages that the pool had (cgroup or cpuset)"),
                Shortage::UsedUp => Some("the pages taken at the start are used up"),
                Shortage::Forked => Some("it forked, and left the pool before"),
                Shortage::SpentOnFork => {
                    Some("it forked while it read asynchronously, and released its unused pool pages")
                }
            },
        }
    }
}
