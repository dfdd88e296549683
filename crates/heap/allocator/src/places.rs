//! A table of the threads to stop. It is mapped once and never unmapped: the handler of a thread that receives its signal
//! late may read it while the next stop fills it. Everything in it is atomic.

use crate::call::Call;
use crate::sys::map_anywhere;
use crate::threads::MOST_THREADS;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

/// Number and arguments of a call, its stack pointer, its return address, and the thread's sleeps.
const CALL_WORDS: usize = 10;

/// One thread's entry. All zero in an entry that was never used.
pub struct ThreadEntry {
    /// Odd while the place is being written.
    version: AtomicU32,
    thread: AtomicU32,
    /// The stop that the thread was sent a signal for.
    stop: AtomicU32,
    /// The stop for which the thread has stopped.
    stands_for: AtomicU32,
    /// 1 if the thread was ever seen in a system call.
    has_call: AtomicU32,
    call: [AtomicU64; CALL_WORDS],
}

static TABLE: AtomicUsize = AtomicUsize::new(0);
/// Number of places in use by the present stop.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of places that any stop has used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Empties the table for another stop; `None` if there is no memory for it.
pub fn clear() -> Option<()> {
    if TABLE.load(Relaxed) == 0 {
        TABLE.store(map_anywhere(MOST_THREADS * size_of::<ThreadEntry>(), false, 0)?, Release);
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
    // - the mapping has `MOST_THREADS` places, begins on a page, and is never unmapped.
    // - it was all zero, which is a valid place, and is only changed through its atomics.
    unsafe { core::slice::from_raw_parts(table, MOST_THREADS) }
}

/// The place of a thread in this stop.
pub fn place_of(thread: u32, stop: u32) -> Option<&'static ThreadEntry> {
    let is_own = |place: &&ThreadEntry| place.thread.load(SeqCst) == thread && place.stop.load(SeqCst) == stop;
    table().get(..COUNT.load(SeqCst))?.iter().find(is_own)
}

/// Adds a thread to which a signal is about to be sent, and the system call it is in. False if the table is full. Only one
/// thread at a time calls this function.
pub fn note(thread: u32, stop: u32, call: Option<Call>) -> bool {
    // The kernel shows no call of a thread that is awake. The thread may be in a call whose time has expired; select(2)
    // and poll(2) return EINTR if a signal arrives before they return. So the record of an earlier stop is used.
    let call = call.or_else(|| calls_of(thread).next());
    let at = COUNT.load(SeqCst);
    let Some(place) = table().get(at) else { return false };
    place.version.fetch_add(1, SeqCst);
    place.thread.store(thread, SeqCst);
    place.stop.store(stop, SeqCst);
    place.stands_for.store(0, SeqCst);
    place.has_call.store(u32::from(call.is_some()), SeqCst);
    for (to, word) in place.call.iter().zip(call.map(words_of).unwrap_or_default()) {
        to.store(word, SeqCst);
    }
    place.version.fetch_add(1, SeqCst);
    COUNT.store(at + 1, SeqCst);
    USED.fetch_max(at + 1, SeqCst);
    true
}

/// Removes the entry that [`note`] added last. Called by the same thread.
pub fn forget_last() {
    let at = COUNT.load(SeqCst).saturating_sub(1);
    if let Some(place) = table().get(at) {
        place.thread.store(0, SeqCst);
    }
    COUNT.store(at, SeqCst);
}

fn words_of(call: Call) -> [u64; CALL_WORDS] {
    let [a, b, c, d, e, f] = call.arguments;
    [call.number as u64, a, b, c, d, e, f, call.stack, call.next_instruction, call.sleeps]
}

/// The system calls in which this stop or earlier ones found the thread.
pub fn calls_of(thread: u32) -> impl Iterator<Item = Call> {
    let used = table().get(..USED.load(SeqCst)).unwrap_or_default();
    used.iter().filter(move |place| place.thread.load(SeqCst) == thread).filter_map(move |place| place.call_of(thread))
}

impl ThreadEntry {
    /// Notes that the thread has stopped.
    pub fn stand(&self, stop: u32) {
        self.stands_for.store(stop, SeqCst);
    }

    pub fn stands(&self, stop: u32) -> bool {
        self.stands_for.load(SeqCst) == stop
    }

    /// The thread's system call; `None` if it was in none, or if the place is another thread's by now.
    fn call_of(&self, thread: u32) -> Option<Call> {
        let version = self.version.load(SeqCst);
        let has_call = self.has_call.load(SeqCst) != 0;
        let [number, a, b, c, d, e, f, stack, next_instruction, sleeps] =
            self.call.each_ref().map(|word| word.load(SeqCst));
        let is_whole =
            version.is_multiple_of(2) && self.thread.load(SeqCst) == thread && self.version.load(SeqCst) == version;
        let arguments = [a, b, c, d, e, f];
        (is_whole && has_call).then_some(Call { number: number as i64, arguments, stack, next_instruction, sleeps })
    }
}
