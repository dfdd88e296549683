//! The fork guard: writable memory on private pool pages, and `fork`.
//!
//! After a fork the kernel shares such pages until one side writes, and the writer needs another page of the pool. With
//! none left, a child that writes is killed by SIGBUS; and where the parent writes first, the kernel takes the page away
//! from the child, which is killed at its next access, even a read.
//!
//! So no child gets to share them. Before a fork the contents are copied to ordinary memory (transparent huge pages
//! where the kernel gives them), and the child finds that copy in place of the pool pages; the parent keeps its pages as
//! they are and never needs another. Children of the child share ordinary memory, as everywhere.
//!
//! - A process with one thread keeps its pool pages out of the child altogether (`MADV_DONTFORK`). Between the fork and
//!   the child's handler there is a hole in the child at these addresses; only the C library runs then, and an object
//!   that holds it is never lifted to writable pool pages (`situation`). Signals are held until the copy is in place.
//! - With other threads, which may write at any moment, the child does get the kernel's own snapshot, reads each page at
//!   once and puts the copy in place. Should a thread of the parent write to a page in that moment and take it away, the
//!   copy from just before the fork stands in for it.
//!
//! `vfork`, `posix_spawn` and `system` share the parent's memory until the exec; nothing is copied, nothing can fail.
//! A raw `clone` and `_Fork` run no handlers; their children share pool pages as without the guard.

use crate::own_state::{release_after_fork, take_for_fork};
use crate::records::Record;
use crate::{calls, files, linking};
use address_space::{Address, AddressRange, PageSize};
use alloc::vec;
use alloc::vec::Vec;
use lift_plan::Source;
use linux_raw_sys::general::{MADV_DOFORK, MADV_DONTFORK, MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE};

/// Looked at and copied at once.
const COPIED: u64 = 64 << 10;

/// `PROT_READ | PROT_WRITE`.
const READ_WRITE: i32 = 3;

/// What stands ready for a fork.
#[derive(Default)]
pub struct Guard {
    installed: bool,
    snapshots: Vec<Snapshot>,
}

/// The contents of one range on ordinary memory.
struct Snapshot {
    range: AddressRange,
    copy: AddressRange,
    /// The child gets a hole at `range` instead of pages that it would share.
    kept_out: bool,
}

impl Guard {
    /// Asks the C library to call the handlers around every fork. False where it cannot.
    pub fn install(&mut self) -> bool {
        self.installed = self.installed || linking::at_fork(before, in_parent, in_child);
        self.installed
    }

    /// Copies every writable range on pool pages.
    fn prepare(&mut self, records: &[Record]) {
        let writable = |record: &&Record| record.is_writable() && record.source == Source::Hugetlb;
        let mut ranges = records.iter().filter(writable).peekable();
        if ranges.peek().is_none() {
            return;
        }
        let alone = files::names_in(c"/proc/self/task").len() == 1;
        let (stack, thread) = (calls::stack_pointer() as u64, calls::thread_pointer() as u64);
        for record in ranges {
            // A child without its stack or its thread's memory could not even get to the handler.
            let in_use = record.range.contains(Address(stack)) || record.range.contains(Address(thread));
            if let Some(snapshot) = Snapshot::take(record, alone && !in_use) {
                self.snapshots.push(snapshot);
            }
        }
    }

    fn finish_in_parent(&mut self) {
        for snapshot in self.snapshots.drain(..) {
            snapshot.drop_in_parent();
        }
    }

    /// Puts the copies in place; what stands on them is no pool memory any more.
    fn finish_in_child(&mut self, records: &mut Vec<Record>) {
        for snapshot in self.snapshots.drain(..) {
            snapshot.put_in_child();
            records.retain(|record| record.range != snapshot.range);
        }
    }
}

impl Snapshot {
    /// None where there is no memory for it; the fork is then as it would be without the guard.
    fn take(record: &Record, keep_out: bool) -> Option<Self> {
        let (range, copy) = (record.range, map_aligned(record.range.len(), record.page_size)?);
        for chunk in chunks(range) {
            // SAFETY:
            // - the range is lifted, present and readable; other threads may write to it, which makes single bytes old
            //   or new, and only the kernel copies them.
            let zero = unsafe { is_zero(chunk) };
            if !zero {
                let _ = copy_all(chunk, place(copy, range, chunk));
            }
        }
        // SAFETY:
        // - this advice keeps all contents of this process.
        let kept_out = keep_out && unsafe { calls::madvise(range, MADV_DONTFORK) }.is_ok();
        Some(Self { range, copy, kept_out })
    }

    fn drop_in_parent(&self) {
        // SAFETY:
        // - the advice keeps all contents; the copy is the library's own.
        unsafe {
            if self.kept_out {
                let _ = calls::madvise(self.range, MADV_DOFORK);
            }
            let _ = calls::munmap(self.copy);
        }
    }

    fn put_in_child(&self) {
        if !self.kept_out {
            let mut now = vec![0u8; COPIED as usize];
            for chunk in chunks(self.range) {
                self.renew(chunk, &mut now);
            }
        }
        // SAFETY:
        // - at the destination is a hole, or the memory that the copy is a copy of; this is the only thread.
        let _ = unsafe { calls::mremap_to(self.copy, self.range.start().0 as usize) };
    }

    /// Takes what the page held at the very moment of the fork, unless the parent has taken it away since.
    fn renew(&self, chunk: AddressRange, now: &mut [u8]) {
        let now = &mut now[..chunk.len() as usize];
        if copy_all(chunk, now.as_mut_ptr() as usize).is_err() {
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

/// # Safety
/// The chunk is mapped and readable, and whole words long.
unsafe fn is_zero(chunk: AddressRange) -> bool {
    let words = chunk.start().0 as *const u64;
    (0..chunk.len() as usize / 8).all(|index| {
        // SAFETY:
        // - the caller's promise; volatile, for others may write to it.
        unsafe { words.add(index).read_volatile() == 0 }
    })
}

fn copy_all(from: AddressRange, to: usize) -> Result<(), calls::Errno> {
    // SAFETY:
    // - every caller owns what is copied to.
    match unsafe { calls::process_vm_readv(from, to) } {
        Ok(copied) if copied as u64 == from.len() => Ok(()),
        _ => {
            let memory = files::File::open(c"/proc/self/mem")?;
            // SAFETY:
            // - as above.
            let copied = unsafe { calls::read_to(memory.descriptor(), to, from.len() as usize, from.start().0) }?;
            if copied as u64 == from.len() { Ok(()) } else { Err(linux_raw_sys::errno::EFAULT as i32) }
        }
    }
}

/// Ordinary memory that begins on a boundary of huge pages, advised so that it may consist of them.
fn map_aligned(length: u64, size: PageSize) -> Option<AddressRange> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let whole = length + size.bytes();
    // SAFETY:
    // - no MAP_FIXED: only free addresses are taken.
    let start = unsafe { calls::mmap(0, whole as usize, READ_WRITE, flags, -1, 0) }.ok()?;
    let got = AddressRange::sized(Address(start as u64), whole);
    let wanted = AddressRange::sized(got.start().align_up(size)?, length);
    // SAFETY:
    // - all of it is fresh and the library's own.
    unsafe {
        for slack in got.without(wanted).into_iter().filter(|slack| !slack.is_empty()) {
            let _ = calls::munmap(slack);
        }
        let _ = calls::madvise(wanted, MADV_HUGEPAGE);
    }
    Some(wanted)
}

extern "C" fn before() {
    take_for_fork(|library| {
        library.forget_what_is_gone();
        let crate::library::Library { guard, records, .. } = library;
        guard.prepare(records);
    });
}

extern "C" fn in_parent() {
    release_after_fork(|library| library.guard.finish_in_parent());
}

extern "C" fn in_child() {
    release_after_fork(|library| {
        let crate::library::Library { guard, records, .. } = library;
        guard.finish_in_child(records);
    });
}
