//! What a preloaded heap says of itself, for `status`: how much stands on what and why, how much was asked for, and how
//! much the program holds of it.

use address_space::format_bytes;
use heap::{NotKnown, PreloadedHeap, SmallUse};
use heap_contract::{AccountCopy, Shortage};
use serde::Serialize;

/// What `status` shows of a preloaded heap.
#[derive(Serialize)]
#[serde(untagged)]
pub enum HeapView {
    /// All of it.
    Read(RunningHeap),
    /// Why there is nothing to show.
    NotRead {
        /// The reason.
        not_read: String,
    },
}

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
    /// What of them is resident.
    small_resident: Option<u64>,
    /// Small blocks that the program holds, each with the size of its class.
    small_live: Option<u64>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    small_not_known: Option<String>,
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
pub fn view_running(pid: i32) -> Option<HeapView> {
    Some(match heap::read_preloaded(pid)? {
        PreloadedHeap::Read { account, small } => HeapView::Read(RunningHeap::of(account, small)),
        PreloadedHeap::NotRead(reason) => HeapView::NotRead { not_read: reason.to_string() },
    })
}

impl HeapView {
    /// For people.
    pub fn text(&self) -> String {
        match self {
            Self::Read(heap) => heap.text(),
            Self::NotRead { not_read } => format!("\nPreloaded heap\n  not read: {not_read}\n"),
        }
    }
}

impl RunningHeap {
    fn of(account: AccountCopy, small: Result<SmallUse, NotKnown>) -> Self {
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
                    Some("it forked while it read asynchronously, and gave back what of the pool it did not use")
                }
            },
        }
    }

    fn text(&self) -> String {
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
        text += &self.small_text();
        text += &format!(
            "  large blocks: {} asked for, {} held, {} kept for the next\n",
            format_bytes(self.large_asked),
            format_bytes(self.large_held),
            format_bytes(self.large_kept)
        );
        text
    }

    fn small_text(&self) -> String {
        let resident =
            self.small_resident.map(|bytes| format!("{} resident ", format_bytes(bytes))).unwrap_or_default();
        let arenas = format!("{resident}in arenas of {}", format_bytes(self.arenas));
        match (self.small_live, &self.small_not_known) {
            (Some(live), _) => format!("  small blocks: {} live, {arenas}\n", format_bytes(live)),
            (None, why) => {
                format!("  small blocks: {arenas}; live: not known, {}\n", why.as_deref().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: AccountCopy = AccountCopy {
        pool_page: 0,
        pool_asked: 0,
        pool_taken: 0,
        pool_used: 0,
        mapped_used: 96 << 20,
        arenas: 96 << 20,
        large_asked: 0,
        large_held: 0,
        large_kept: 0,
        shortage: Shortage::None,
        small_records: 0,
    };

    #[test]
    fn text_and_json_tell_the_same_of_small_blocks() {
        let known = |resident| RunningHeap::of(ACCOUNT, Ok(SmallUse { live: 61 << 20, resident }));
        let heap = known(Some(70 << 20));
        assert!(heap.text().contains("small blocks: 61.0 MiB live, 70.0 MiB resident in arenas of 96.0 MiB\n"));
        let json = serde_json::to_value(HeapView::Read(heap)).unwrap();
        assert_eq!(
            (json["small_live"].as_u64(), json["small_resident"].as_u64()),
            (Some(61 << 20), Some(70 << 20)),
            "{json}"
        );
        assert!(json.get("small_not_known").is_none());
        assert!(known(None).text().contains("small blocks: 61.0 MiB live, in arenas of 96.0 MiB\n"));
    }

    #[test]
    fn what_is_not_known_is_said_with_its_reason() {
        let heap = RunningHeap::of(ACCOUNT, Err(NotKnown::Inconsistent));
        let text = heap.text();
        assert!(text.contains("in arenas of 96.0 MiB; live: not known, the heap's records do not fit"), "{text}");
        let json = serde_json::to_value(HeapView::Read(heap)).unwrap();
        assert!(json["small_live"].is_null() && json["small_not_known"].is_string(), "{json}");
        let view = HeapView::NotRead { not_read: heap::NotRead::OtherVersion { found: 1 }.to_string() };
        assert!(view.text().contains("not read: libpagelift_heap.so in the process is of another release"));
        assert!(serde_json::to_value(view).unwrap()["not_read"].is_string());
    }
}
