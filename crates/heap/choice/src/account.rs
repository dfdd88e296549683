//! Reads a preloaded heap's account, and the records of its small blocks.

use crate::small_blocks::{Memory, NotKnown, SmallBlocks};
use address_space::{Mapping, MappingName};
use heap_abi::{ACCOUNT_SYMBOL, Account, AccountCopy, Found, LIBRARY, VERSION};
use linux::bounded::HEAP_LIBRARY;
use linux::pagemap::Pagemap;
use object::elf;
use object::read::ReadCache;
use process_view::symbols::{Sections, text_at};
use process_view::{BoundedFile, ObservationError, ProcessFiles, ProcessMemoryFile, open_mapped};
use std::sync::mpsc;
use std::time::Duration;

/// A process can have memory whose reading never ends (files of a file system that does not answer). Reading a terabyte
/// of small blocks takes a second.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The preloaded heap of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreloadedHeap {
    /// The account that the heap publishes.
    Read {
        /// Its account.
        account: AccountCopy,
        /// Its small blocks.
        small: Result<SmallUse, NotKnown>,
    },
    /// It may be there, but cannot be read.
    NotRead(NotRead),
}

/// Memory in small blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallUse {
    /// Bytes of blocks that the program holds: of whole blocks, and with those that another thread than its page's own
    /// has freed and that have not been taken back yet.
    pub live: u64,
    /// Bytes of the arenas that are resident; `None` if the kernel does not report them.
    pub resident: Option<u64>,
}

/// Why a preloaded heap is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// The library comes from another build.
    #[error(
        "libpagelift_heap.so in the process is of another release (version {found}, this pagelift reads {VERSION}); \
         needed: the pagelift of that release, or a restart of the program with this one"
    )]
    OtherVersion {
        /// The version found.
        found: u64,
    },
    /// Reading memory takes more than looking at mappings.
    #[error("not permitted to read the memory of process {pid}; needed: root outside of a container, or its own user")]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// The process keeps its readers waiting.
    #[error("its memory could not be read within {} s", TIME_LIMIT.as_secs())]
    TookTooLong,
}

/// Looks at a process's preloaded heap; `None` if it has none, or none acts there.
pub fn read_preloaded(pid: i32) -> Option<PreloadedHeap> {
    within(TIME_LIMIT, move || read(pid)).unwrap_or(Some(PreloadedHeap::NotRead(NotRead::TookTooLong)))
}

/// The result of `work` within that time; a thread that takes longer is abandoned.
fn within<T: Send + 'static>(time_limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(time_limit).ok()
}

fn read(pid: i32) -> Option<PreloadedHeap> {
    let process = ProcessFiles::of(pid);
    let at = find_account(&process)?;
    let memory = match ProcessMemoryFile::of(&process) {
        Err(ObservationError::NotPermitted { .. }) => {
            return Some(PreloadedHeap::NotRead(NotRead::NotPermitted { pid }));
        }
        opened => opened.ok()?,
    };
    let mut head = [0; Account::HEAD];
    memory.read(at, &mut head).ok()?;
    match Found::at(&head) {
        Found::Nothing => return None,
        Found::OtherVersion(found) => return Some(PreloadedHeap::NotRead(NotRead::OtherVersion { found })),
        Found::Account => {}
    }
    let read_account = || {
        let mut bytes = [0; Account::BYTES];
        memory.read(at, &mut bytes).ok()?;
        AccountCopy::from_bytes(&bytes)
    };
    let account = read_account()?;
    let arenas = || read_account().map(|account| account.arenas);
    let small = SmallBlocks::read(&memory, account.small_records, arenas)
        .map(|small| SmallUse { live: small.live, resident: resident(&process, &small) });
    Some(PreloadedHeap::Read { account, small })
}

/// Address of the account of a process's preloaded heap.
fn find_account(process: &ProcessFiles) -> Option<u64> {
    let space = process.maps().ok()?;
    let is_library = |mapping: &&Mapping| {
        mapping.path().is_some_and(|path| path.rsplit('/').next() == Some(LIBRARY))
            && matches!(mapping.name, MappingName::File { .. })
    };
    let mapping = space.mappings().iter().find(is_library)?;
    let start = mapping.range.start().0.checked_sub(mapping.offset)?;
    // The file that is mapped, even if another file now has its path.
    let (file, _) = open_mapped(process, mapping).ok()??;
    let cache = ReadCache::new(BoundedFile::new(&file, file.metadata().ok()?.len(), HEAP_LIBRARY.bytes()));
    let sections = Sections::parse(&cache, HEAP_LIBRARY)?;
    let (symbols, names) = sections.of_type(elf::SHT_DYNSYM).find_map(|table| sections.symbols(table))?;
    let is_account = |name: u32| text_at(names, name) == Some(ACCOUNT_SYMBOL.as_bytes());
    let symbol = symbols.iter().find(|symbol| is_account(symbol.st_name.get(sections.endian)))?;
    start.checked_add(symbol.st_value.get(sections.endian))
}

fn resident(process: &ProcessFiles, small: &SmallBlocks) -> Option<u64> {
    let pagemap = Pagemap::open(process.pid(), process.page_size().ok()?).ok()?;
    small.arenas.iter().map(|&arena| pagemap.resident(arena).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_answer_is_not_waited_for() {
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || held.recv().is_ok()), None);
        drop(hold);
        assert_eq!(within(TIME_LIMIT, || 7), Some(7));
    }

    #[test]
    fn a_program_without_our_heap_has_none() {
        assert_eq!(read_preloaded(std::process::id() as i32), None);
        assert_eq!(read_preloaded(i32::MAX), None);
    }
}
