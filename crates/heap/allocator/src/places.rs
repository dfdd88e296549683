//! A table of the threads to stop. It is mapped once and never unmapped: the handler of a thread that receives its signal
//! late may read it while the next stop fills it. Everything in it is atomic.
//!
//! It is a hash table by thread with linear probing: each of the threads of a stop examines few entries. Entries of
//! threads that have ended stay until many have gathered.

use crate::call::Call;
use crate::sys::map_anywhere;
use crate::threads::MOST_THREADS;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

/// Number and arguments of a call, its stack pointer, its return address, and the thread's sleeps.
const CALL_WORDS: usize = 10;

/// A system call in which a thread was seen.
struct CallEntry {
    /// 1 if there is one.
    is_seen: AtomicU32,
    words: [AtomicU64; CALL_WORDS],
}

/// One thread's entry. All zero in an entry that was never used.
pub struct ThreadEntry {
    /// Odd while the entry is being written.
    version: AtomicU32,
    thread: AtomicU32,
    /// The stop that the thread was sent a signal for; 0 if there is none.
    stop: AtomicU32,
    /// The stop for which the thread has stopped.
    stands_for: AtomicU32,
    /// The call in which it was seen last.
    call: CallEntry,
    /// Another one in which it was seen before.
    earlier_call: CallEntry,
}

/// Number of entries, a power of two. At most three quarters are in use, so that a search ends soon.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = MOST_THREADS.ilog2() + 1;
/// The table is emptied at the next stop once more entries are in use.
const MOST_USED: usize = ENTRIES / 4;
const _: () = assert!(MOST_THREADS.is_power_of_two() && MOST_USED + MOST_THREADS < ENTRIES);

static TABLE: AtomicUsize = AtomicUsize::new(0);
/// Number of threads that are noted for the present stop.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of entries in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The thread that was noted last.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Number of entries that were examined.
#[cfg(test)]
pub static STEPS: AtomicUsize = AtomicUsize::new(0);

/// Prepares the table for another stop; `None` if there is no memory for it.
pub fn clear() -> Option<()> {
    if TABLE.load(Relaxed) == 0 {
        TABLE.store(map_anywhere(ENTRIES * size_of::<ThreadEntry>(), false, 0)?, Release);
    }
    if USED.load(SeqCst) > MOST_USED {
        table().iter().for_each(ThreadEntry::empty);
        USED.store(0, SeqCst);
    }
    COUNT.store(0, SeqCst);
    Some(())
}

fn table() -> &'static [ThreadEntry] {
    let table = TABLE.load(Acquire) as *const ThreadEntry;
    if table.is_null() {
        return &[];
    }
    // SAFETY:
    // - the mapping has `ENTRIES` entries, begins on a page, and is never unmapped.
    // - it was all zero, which is a valid entry, and is only changed through its atomics.
    unsafe { core::slice::from_raw_parts(table, ENTRIES) }
}

/// A thread's entry, or the free one for it; `None` without a table. Threads have numbers in a row: a multiple of the golden
/// ratio spreads them.
fn entry_of(thread: u32) -> Option<&'static ThreadEntry> {
    let first = (thread.wrapping_mul(0x9e37_79b9) >> (u32::BITS - ENTRY_BITS)) as usize;
    let table = table();
    (0..table.len()).map(|step| &table[(first + step) % ENTRIES]).find(|entry| {
        #[cfg(test)]
        STEPS.fetch_add(1, Relaxed);
        [0, thread].contains(&entry.thread.load(SeqCst))
    })
}

/// The entry of a thread in this stop.
pub fn place_of(thread: u32, stop: u32) -> Option<&'static ThreadEntry> {
    entry_of(thread).filter(|entry| entry.thread.load(SeqCst) == thread && entry.stop.load(SeqCst) == stop)
}

/// Adds a thread to which a signal is about to be sent, and the system call it is in. False if the table is full. Only one
/// thread at a time calls this function.
pub fn note(thread: u32, stop: u32, call: Option<Call>) -> bool {
    if COUNT.load(SeqCst) == MOST_THREADS {
        return false;
    }
    let Some(entry) = entry_of(thread) else { return false };
    entry.version.fetch_add(1, SeqCst);
    if entry.thread.swap(thread, SeqCst) == 0 {
        USED.fetch_add(1, SeqCst);
    }
    entry.stop.store(stop, SeqCst);
    entry.stands_for.store(0, SeqCst);
    // The kernel shows no call of a thread that is awake. The thread may be in a call whose time has expired; select(2)
    // and poll(2) return EINTR if a signal arrives before they return. So the record of an earlier stop is kept.
    let before = entry.call.get();
    if call.is_some() && call != before {
        entry.earlier_call.set(before);
        entry.call.set(call);
    }
    entry.version.fetch_add(1, SeqCst);
    LAST.store(thread, SeqCst);
    COUNT.fetch_add(1, SeqCst);
    true
}

/// Takes the thread out of the stop that [`note`] added last. Called by the same thread.
pub fn forget_last() {
    if let Some(entry) = entry_of(LAST.load(SeqCst)) {
        entry.stop.store(0, SeqCst);
    }
    COUNT.fetch_sub(1, SeqCst);
}

/// The system calls in which this stop or earlier ones found the thread, the last one last.
pub fn calls_of(thread: u32) -> impl Iterator<Item = Call> {
    entry_of(thread).map(|entry| entry.calls_of(thread)).unwrap_or_default().into_iter().flatten()
}

impl CallEntry {
    fn set(&self, call: Option<Call>) {
        self.is_seen.store(u32::from(call.is_some()), SeqCst);
        for (to, word) in self.words.iter().zip(call.map(words_of).unwrap_or_default()) {
            to.store(word, SeqCst);
        }
    }

    fn get(&self) -> Option<Call> {
        let [number, a, b, c, d, e, f, stack, next_instruction, sleeps] =
            self.words.each_ref().map(|word| word.load(SeqCst));
        let arguments = [a, b, c, d, e, f];
        let call = Call { number: number as i64, arguments, stack, next_instruction, sleeps };
        (self.is_seen.load(SeqCst) != 0).then_some(call)
    }
}

fn words_of(call: Call) -> [u64; CALL_WORDS] {
    let [a, b, c, d, e, f] = call.arguments;
    [call.number as u64, a, b, c, d, e, f, call.stack, call.next_instruction, call.sleeps]
}

impl ThreadEntry {
    /// Notes that the thread has stopped.
    pub fn stand(&self, stop: u32) {
        self.stands_for.store(stop, SeqCst);
    }

    pub fn stands(&self, stop: u32) -> bool {
        self.stands_for.load(SeqCst) == stop
    }

    /// The thread's system calls; none if it was in none, or if the entry is another thread's by now.
    fn calls_of(&self, thread: u32) -> [Option<Call>; 2] {
        let version = self.version.load(SeqCst);
        let calls = [self.earlier_call.get(), self.call.get()];
        let is_whole =
            version.is_multiple_of(2) && self.thread.load(SeqCst) == thread && self.version.load(SeqCst) == version;
        if is_whole { calls } else { [None; 2] }
    }

    fn empty(&self) {
        if self.thread.load(SeqCst) == 0 {
            return;
        }
        self.version.fetch_add(1, SeqCst);
        self.thread.store(0, SeqCst);
        self.stop.store(0, SeqCst);
        self.call.set(None);
        self.earlier_call.set(None);
        self.version.fetch_add(1, SeqCst);
    }
}
