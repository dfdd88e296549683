//! What a preloaded heap says of itself, for `status`: how much stands on what and why, and how much was asked for.

use address_space::format_bytes;
use heap_contract::{AccountCopy, Shortage};
use serde::Serialize;

/// A preloaded heap. Byte counts.
#[derive(Serialize)]
pub struct RunningHeap {
    /// Size of a pool page; 0 where nothing was to come from the pool.
    pool_page: u64,
    /// What was to be taken from the pool.
    pool_asked: u64,
    /// What was taken and populated.
    pool_taken: u64,
    /// What of it is in use.
    pool_used: u64,
    /// Address space in use beside the pool, on transparent huge pages where the kernel has them.
    mapped: u64,
    /// Arenas of small blocks.
    arenas: u64,
    /// What the program asked for in its large blocks.
    large_asked: u64,
    /// What these take.
    large_held: u64,
    /// Freed large blocks that are kept with their memory.
    large_kept: u64,
    /// Why not all stands on the pool.
    shortage: Option<&'static str>,
}

/// Looks at a process; `None` where no preloaded heap acts in it.
pub fn view_running(pid: i32) -> Option<RunningHeap> {
    heap::read_account(pid).map(RunningHeap::from)
}

impl From<AccountCopy> for RunningHeap {
    fn from(account: AccountCopy) -> Self {
        Self {
            pool_page: account.pool_page,
            pool_asked: account.pool_asked,
            pool_taken: account.pool_taken,
            pool_used: account.pool_used,
            mapped: account.mapped_used,
            arenas: account.arenas,
            large_asked: account.large_asked,
            large_held: account.large_held,
            large_kept: account.large_kept,
            shortage: match account.shortage {
                Shortage::None => None,
                Shortage::PoolTooSmall => Some("the pool had too few free pages at the start"),
                Shortage::PopulationRefused => Some("a limit refused pages that the pool had (cgroup or cpuset)"),
                Shortage::UsedUp => Some("the pages taken at the start are used up"),
                Shortage::Forked => Some("it forked, and left the pool before"),
            },
        }
    }
}

impl RunningHeap {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::from("\nPreloaded heap\n");
        if self.pool_page > 0 {
            text += &format!(
                "  pool, pages of {}: {} used of {} taken, {} asked for\n",
                format_bytes(self.pool_page),
                format_bytes(self.pool_used),
                format_bytes(self.pool_taken),
                format_bytes(self.pool_asked)
            );
        }
        if let Some(why) = self.shortage {
            text += &format!("  the rest is not on the pool: {why}\n");
        }
        text += &format!("  beside the pool: {}, as the kernel backs it (above)\n", format_bytes(self.mapped));
        text += &format!("  arenas of small blocks: {}\n", format_bytes(self.arenas));
        text += &format!(
            "  large blocks: {} asked for, {} held, {} kept for the next\n",
            format_bytes(self.large_asked),
            format_bytes(self.large_held),
            format_bytes(self.large_kept)
        );
        text
    }
}
