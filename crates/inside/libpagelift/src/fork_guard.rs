//! The fork guard: writable memory on private pool pages, and `fork`.
//!
//! After a fork the kernel shares such pages until one side writes, and the writer needs another page of the pool. If
//! none is left, a child that writes is killed by SIGBUS; if the parent writes first, the kernel takes the page away
//! from the child, which is killed at its next access, even a read.
//!
//! So no child shares them. Before a fork the contents are copied to ordinary memory (transparent huge pages if the
//! kernel provides them), and the child gets that copy instead of the pool pages; the parent keeps its pages unchanged
//! and never needs another. Children of the child share ordinary memory, as usual.
//!
//! The program may have unmapped or protected some of these pages, always whole ones. The rest is guarded, and so are
//! the protected pages: a child may make them writable again. The copy gets the protection of each part.
//!
//! The copy has to show the moment of the fork:
//!
//! - A process with one thread keeps its pool pages out of the child altogether (`MADV_DONTFORK`). Between the fork and
//!   the child's handler there is a hole in the child at these addresses; only the C library runs then, and an object
//!   that holds it is never lifted to writable pool pages (`live_restrictions`). Signals are held until the copy is in place.
//! - Other threads may write at any moment, so their writes wait from before the copy until the fork is done
//!   (`held_writes`): the child sees all its memory, on any pages, at one moment, as after any fork.
//! - If the kernel does not hold writes for this process, the child gets the kernel's own snapshot, reads each page at
//!   once and installs the copy: again one moment. Only if the pool is empty, and another thread of the parent writes
//!   to a page before the child has read it, the page is taken from the child; the copy from just before the fork then
//!   replaces that page, which can thus be older than the rest by the time that the copying took.
//!
//! The handlers (`fork_handlers`) are registered when the library is loaded. In the shared library at the program's start, and in the
//! archive in a static program, that is before all others, so that the one before a fork runs last and the other two run
//! first: what is copied is final, the child's copy is in place before anybody looks, and holding writes cannot hold a
//! handler that still has to run. After the last handler glibc takes its own locks (the list of streams, malloc, nss),
//! under which it calls no code of the program's but functions of `fopencookie` streams.
//!
//! If other handlers may have been registered earlier (the archive in a dynamic program, whose libraries are started
//! before it; the library loaded by dlopen) the child shares the pages, and no writes are held, for any number of
//! threads. Writes of those handlers to pool pages just before a fork can then be missing in the child if the pool is
//! empty, and a handler that writes to them in the child first needs a page of the pool. A handler that forks itself
//! gets a child on the copies of the fork around it, like that fork's child.
//!
//! `vfork`, `posix_spawn` and `system` share the parent's memory until the exec; no copy is made, and no step can fail.
//! A raw `clone` and `_Fork` run no handlers; their children share pool pages as without the guard. So do the children
//! of a thread whose own stack is on pool pages, for that stack.

use crate::held_writes::HeldWrites;
use crate::records::{self, LiftRecord};
use crate::{files, own_memory};
use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw::kernel::general::{
    MADV_DOFORK, MADV_DONTFORK, MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE,
};

/// Looked at and copied at once.
const COPIED: u64 = 64 << 10;
/// Bytes at the start of each such piece that nearly always show whether it is all zeros.
const LOOKED_AT: u64 = 4 << 10;

/// `PROT_READ | PROT_WRITE`.
const READ_WRITE: i32 = 3;

/// The preparations for a fork.
#[derive(Default)]
pub struct Guard {
    installed: bool,
    snapshots: Vec<Snapshot>,
    /// True while memory is kept for what a fork may need. Without it, the fork is like one without the guard.
    pub has_memory: bool,
    held: Option<HeldWrites>,
}

/// Memory on pool pages that has one protection.
struct Guarded {
    range: AddressRange,
    protection: Protection,
    page_size: PageSize,
    /// The lift has kept it apart from what a child needs before its handler has run.
    is_apart: bool,
}

/// The contents of one range on ordinary memory.
struct Snapshot {
    range: AddressRange,
    /// The range's present protection: the program may have protected memory that was writable.
    protection: Protection,
    copy: AddressRange,
    child: Child,
}

/// The contents of the range in the child, before its handler installs the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Child {
    /// A hole. The copy is as of the fork.
    Hole,
    /// Shared pages. The copy is as of the fork.
    Shared,
    /// Shared pages, which are to be read for what has changed since the copy was made.
    Newer,
}

const NOT_FIRST: &str = "with other threads and an empty pool, pages that they write to during a fork may be older in the \
child than the rest; needed for more: libpagelift.so loaded at the program's start";
const NOT_HELD: &str = "with other threads and an empty pool, pages that they write to during a fork may be older in the \
child than the rest, for userfaultfd is refused; needed for more: Linux 5.19 and CAP_SYS_PTRACE, or sysctl \
vm.unprivileged_userfaultfd=1";

/// Order of our handlers relative to others. Written once, before any lift.
static PLACE: AtomicU32 = AtomicU32::new(NOT_REGISTERED);
const NOT_REGISTERED: u32 = 0;
#[cfg(feature = "freestanding")]
const SOMEWHERE: u32 = 1;
const BEFORE_ALL: u32 = 2;

/// Records whether the handlers were registered when the library was loaded, before all others.
#[cfg(feature = "freestanding")]
pub fn note_registered(is_first: bool) {
    PLACE.store(if is_first { BEFORE_ALL } else { SOMEWHERE }, Ordering::Relaxed);
}

fn is_first() -> bool {
    PLACE.load(Ordering::Relaxed) == BEFORE_ALL
}

impl Guard {
    /// Makes sure that the C library calls the handlers around every fork. `register` asks it to, if it has not been
    /// asked yet, and returns false if it cannot; so does this function.
    pub fn install(&mut self, register: fn() -> bool) -> bool {
        let installed = self.installed || PLACE.load(Ordering::Relaxed) != NOT_REGISTERED;
        self.installed = installed || register();
        self.installed
    }

    /// The reason why forks in a program with threads may not show one moment if the pool is empty; `None` if they do.
    pub fn shortfall(&self, records: &[LiftRecord]) -> Option<&'static str> {
        match () {
            () if guarded(records).next().is_none() => None,
            () if !is_first() => Some(NOT_FIRST),
            () if !HeldWrites::is_allowed() => Some(NOT_HELD),
            () => None,
        }
    }

    /// Copies all pool pages that the program can write to, or could: a child may make them writable again. `space` is
    /// what is mapped now, `None` where that cannot be read.
    pub fn prepare(&mut self, records: &[LiftRecord], space: Option<&AddressSpace>) {
        let ranges = guarded_now(records, space);
        if ranges.is_empty() {
            return;
        }
        // A child without its stack or its thread's memory could not even get to the handler.
        let (stack, thread) = (Address(linux_raw::stack_pointer() as u64), Address(linux_raw::thread_pointer() as u64));
        let in_use = |part: &Guarded| !part.is_apart || part.range.contains(stack) || part.range.contains(thread);
        let alone = files::number_of_threads() == 1;
        if !alone && is_first() {
            self.held = HeldWrites::hold(ranges.iter().filter(|part| !in_use(part)).map(|part| part.range));
        }
        let mut piece = vec![0u8; COPIED as usize];
        for part in ranges {
            let child = match () {
                () if in_use(&part) => Child::Newer,
                () if alone && is_first() => Child::Hole,
                () if self.held.is_some() => Child::Shared,
                () => Child::Newer,
            };
            self.snapshots.extend(Snapshot::take(&part, child, &mut piece));
        }
    }

    /// Resumes held writes, and drops the copies.
    pub fn finish_in_parent(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
        for snapshot in self.snapshots.drain(..) {
            snapshot.drop_in_parent();
        }
        self.release_memory();
    }

    fn release_memory(&mut self) {
        if core::mem::take(&mut self.has_memory) {
            own_memory::release();
        }
    }

    /// Installs the copies; memory on them is no pool memory any more.
    ///
    /// # Safety
    /// This is the child of a fork before which the thread that forked has called [`Guard::prepare`], and its only
    /// thread.
    pub unsafe fn finish_in_child(&mut self, records: &mut Vec<LiftRecord>) {
        if let Some(held) = self.held.take() {
            held.leave_to_parent();
        }
        let mut put = RangeSet::new();
        for snapshot in self.snapshots.drain(..) {
            // SAFETY:
            // - the caller's promise; the snapshot is removed from the list, so that this is done once.
            unsafe { snapshot.put_in_child() };
            put.insert(snapshot.range);
        }
        records::cut(records, |record| {
            let mut left = RangeSet::from_iter([record.range]);
            put.within(record.range).for_each(|range| left.remove(range));
            left
        });
        self.release_memory();
    }
}

/// Writable ranges on pool pages.
fn guarded(records: &[LiftRecord]) -> impl Iterator<Item = &LiftRecord> {
    records.iter().filter(|record| record.is_writable() && record.is_of_pool())
}

/// The memory that has to be guarded at a fork now, including code and constants that the program has made writable.
fn guarded_now(records: &[LiftRecord], space: Option<&AddressSpace>) -> Vec<Guarded> {
    let of_pool = records.iter().filter(|record| record.is_of_pool());
    let parts = of_pool.flat_map(|record| record.parts(space).into_iter().map(move |part| (record, part)));
    let guarded = parts.filter(|(record, (_, protection))| record.is_writable() || protection.write);
    let part = |(record, (range, protection)): (&LiftRecord, _)| Guarded {
        range,
        protection,
        page_size: record.page_size,
        is_apart: record.is_writable(),
    };
    guarded.map(part).collect()
}

impl Snapshot {
    /// None if there is no memory for it; the fork is then like one without the guard. `piece` is room for one piece.
    fn take(part: &Guarded, child: Child, piece: &mut [u8]) -> Option<Self> {
        let &Guarded { range, protection, page_size, .. } = part;
        let snapshot = Self { range, protection, copy: map_aligned(range.len(), page_size)?, child };
        if snapshot.fill(piece).is_err() {
            snapshot.drop_in_parent();
            return None;
        }
        Some(snapshot)
    }

    /// Copies by the kernel's hand alone: the program may have made the range unreadable, and other threads may write to
    /// it, which makes single bytes old or new.
    fn fill(&self, piece: &mut [u8]) -> Result<(), linux_raw::Errno> {
        for chunk in chunks(self.range) {
            let start = AddressRange::sized(chunk.start(), LOOKED_AT.min(chunk.len()));
            // A piece of zeros needs no memory in the copy.
            if !(is_zero(start, piece)? && is_zero(chunk, piece)?) {
                // SAFETY:
                // - the copy is the library's own and as long as the range.
                unsafe { copy_all(chunk, place(self.copy, self.range, chunk)) }?;
            }
        }
        if self.child != Child::Hole {
            return Ok(());
        }
        // SAFETY:
        // - this advice keeps all contents of this process.
        unsafe { linux_raw::madvise(self.range, MADV_DONTFORK) }
    }

    fn drop_in_parent(&self) {
        // SAFETY:
        // - the advice keeps all contents; the copy is the library's own.
        unsafe {
            if self.child == Child::Hole {
                let _ = linux_raw::madvise(self.range, MADV_DOFORK);
            }
            let _ = linux_raw::munmap(self.copy);
        }
    }

    /// # Safety
    /// As for [`Guard::finish_in_child`]; called at most once.
    unsafe fn put_in_child(&self) {
        if self.child == Child::Newer {
            let mut now = vec![0u8; COPIED as usize];
            for chunk in chunks(self.range) {
                self.renew(chunk, &mut now);
            }
        }
        // SAFETY:
        // - the copy is the library's own, and gets the protection of its original.
        // - at the destination is a hole, or the memory that the copy is a copy of; this is the only thread, by the
        //   caller's promise.
        unsafe {
            let protect = |range| {
                if self.protection != Protection::READ_WRITE {
                    let _ = linux_raw::mprotect(range, self.protection.bits());
                }
            };
            protect(self.copy);
            // A filter may refuse the move, and the kernel may remove what is there and have no memory for the rest.
            if linux_raw::mremap_to(self.copy, self.range.start().0 as usize).is_err()
                && linux_raw::fill_hole(self.range).is_ok()
            {
                let mut pieces = chunks(self.copy);
                match pieces.try_for_each(|chunk| copy_all(chunk, place(self.range, self.copy, chunk)).map(drop)) {
                    Ok(()) => protect(self.range),
                    // An access fails then, and reads no zeros in the place of contents.
                    Err(_) => drop(linux_raw::munmap(self.range)),
                }
                let _ = linux_raw::munmap(self.copy);
            }
        }
    }

    /// Takes what the page held at the very moment of the fork, unless the parent has taken it away since.
    ///
    /// A read holds the page, so that it continues after the page was taken away, and then sees the parent's writes. A
    /// page that is still there after the read was not written before its end.
    fn renew(&self, chunk: AddressRange, now: &mut [u8]) {
        let now = &mut now[..chunk.len() as usize];
        // SAFETY:
        // - the buffer is as long as the chunk, and exclusively ours.
        if unsafe { copy_all(chunk, now.as_mut_ptr() as usize) }.is_err() || !is_still_there(chunk) {
            return;
        }
        let at = place(self.copy, self.range, chunk);
        // SAFETY:
        // - the copy is the library's own and as long as the range.
        let copy = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, now.len()) };
        if copy != now {
            copy.copy_from_slice(now);
        }
    }
}

fn chunks(range: AddressRange) -> impl Iterator<Item = AddressRange> {
    let count = range.len().div_ceil(COPIED);
    (0..count).map(move |index| {
        let start = range.start() + index * COPIED;
        AddressRange::sized(start, COPIED.min(range.end() - start))
    })
}

/// Where in `copy` the bytes of `chunk` belong.
fn place(copy: AddressRange, range: AddressRange, chunk: AddressRange) -> usize {
    (copy.start() + (chunk.start() - range.start())).0 as usize
}

/// True if all bytes of a chunk, which consists of whole words, are zero; `piece` has room for it.
fn is_zero(chunk: AddressRange, piece: &mut [u8]) -> Result<bool, linux_raw::Errno> {
    let bytes = &mut piece[..chunk.len() as usize];
    // SAFETY:
    // - the buffer is as long as the chunk, and exclusively ours.
    unsafe { copy_all(chunk, bytes.as_mut_ptr() as usize) }?;
    Ok(bytes.chunks_exact(8).all(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()) == 0))
}

/// # Safety
/// `to` and as many bytes behind it as `from` has must be the caller's to write.
unsafe fn copy_all(from: AddressRange, to: usize) -> Result<(), linux_raw::Errno> {
    // SAFETY:
    // - the caller's promise.
    match unsafe { linux_raw::process_vm_readv(from, to) } {
        Ok(copied) if copied as u64 == from.len() => Ok(()),
        _ => {
            let memory = files::File::open(c"/proc/thread-self/mem")?;
            // SAFETY:
            // - as above.
            let copied = unsafe { linux_raw::read_to(memory.descriptor(), to, from.len() as usize, from.start().0) }?;
            if copied as u64 == from.len() { Ok(()) } else { Err(linux_raw::kernel::errno::EFAULT as i32) }
        }
    }
}

fn is_still_there(chunk: AddressRange) -> bool {
    let mut byte = 0u8;
    // SAFETY:
    // - one byte is written, which is this function's own.
    unsafe { copy_all(AddressRange::sized(chunk.start(), 1), (&raw mut byte) as usize) }.is_ok()
}

/// Ordinary memory that begins on a boundary of huge pages, advised so that it may consist of huge pages.
fn map_aligned(length: u64, size: PageSize) -> Option<AddressRange> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let whole = length + size.bytes();
    // SAFETY:
    // - no MAP_FIXED: only free addresses are taken.
    let start = unsafe { linux_raw::mmap(0, whole as usize, READ_WRITE, flags, -1, 0) }.ok()?;
    let got = AddressRange::sized(Address(start as u64), whole);
    let wanted = AddressRange::sized(got.start().align_up(size)?, length);
    // SAFETY:
    // - the whole mapping is fresh and the library's own.
    unsafe {
        for slack in got.without(wanted).into_iter().filter(|slack| !slack.is_empty()) {
            let _ = linux_raw::munmap(slack);
        }
        let _ = linux_raw::madvise(wanted, MADV_HUGEPAGE);
    }
    Some(wanted)
}
