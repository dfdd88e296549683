//! The records of each thread until they are sent.

use crate::PLUGIN;
use estimate::tlb_model::trace::{LONGEST_BLOCK, MOST_INSTRUCTIONS, TraceStep};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Threads that live at one time and are traced. QEMU gives the lowest free number to each.
const MOST_THREADS: usize = 4096;

static THREADS: [AtomicPtr<Thread>; MOST_THREADS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_THREADS];

/// The accesses of a thread since the last block was sent.
pub struct Thread {
    cpu: u32,
    words: Vec<u64>,
    code_page: u64,
    data_page: u64,
    /// Instructions that no record has counted yet.
    executed: u64,
    /// The first arguments of the system call under way.
    pub call: [u64; 3],
}

/// Calls `act` with the record of the thread that runs this virtual CPU.
pub fn with_thread(cpu: u32, act: impl FnOnce(&mut Thread)) {
    let Some(slot) = THREADS.get(cpu as usize) else { return };
    let mut thread = slot.load(Ordering::Acquire);
    if thread.is_null() {
        thread = Box::into_raw(Box::new(Thread::new(cpu)));
        slot.store(thread, Ordering::Release);
    }
    // SAFETY:
    // - the pointer comes from a box that is never freed;
    // - QEMU calls for a virtual CPU only in its own thread, and at the end while all others are stopped.
    act(unsafe { &mut *thread });
}

/// Sends the remaining records of all threads.
pub fn end_all() {
    let live = (0..MOST_THREADS).filter(|&cpu| !THREADS[cpu].load(Ordering::Acquire).is_null());
    live.for_each(|cpu| with_thread(cpu as u32, Thread::end));
}

impl Thread {
    fn new(cpu: u32) -> Self {
        let words = Vec::with_capacity(LONGEST_BLOCK);
        Self { cpu, words, code_page: u64::MAX, data_page: u64::MAX, executed: 0, call: [0; 3] }
    }

    /// Instructions of this page are executed.
    pub fn executes(&mut self, page: u64, instructions: u64) {
        if page != self.code_page || self.executed + instructions > MOST_INSTRUCTIONS {
            self.push(TraceStep::Code { page, executed: self.executed });
            (self.code_page, self.executed) = (page, 0);
        }
        self.executed += instructions;
    }

    /// A load or store goes to this page.
    pub fn touches(&mut self, page: u64) {
        if page != self.data_page {
            self.data_page = page;
            self.push(TraceStep::Data { page });
        }
    }

    /// A system call that changes mappings has returned.
    pub fn mapped(&mut self, number: i64, result: i64, page_shift: u32) {
        // The last 4095 numbers are errors (syscall(2)).
        if (-4095..0).contains(&result) {
            return;
        }
        let [a1, a2, a3] = self.call;
        let ranges = match number {
            libc::SYS_mmap => [(result as u64, a2), (0, 0)],
            libc::SYS_mremap => [(a1, a2), (result as u64, a3)],
            _ => [(a1, a2), (0, 0)],
        };
        for (start, length) in ranges.into_iter().filter(|(_, length)| *length > 0) {
            let pages = (length >> page_shift) + 1;
            self.push(TraceStep::Changed { page: start >> page_shift, pages });
        }
        // The next access may find something else in the page of the last one.
        (self.code_page, self.data_page) = (u64::MAX, u64::MAX);
    }

    /// Sends the remaining records.
    pub fn end(&mut self) {
        self.push(TraceStep::Code { page: self.code_page & (u64::MAX >> 14), executed: self.executed });
        self.executed = 0;
        self.send();
    }

    fn push(&mut self, record: TraceStep) {
        // A record has two words at most.
        if self.words.len() + 2 > LONGEST_BLOCK {
            self.send();
        }
        let (first, second) = record.words();
        self.words.push(first);
        self.words.extend(second);
    }

    fn send(&mut self) {
        if let Some(plugin) = PLUGIN.get() {
            plugin.receiver.send(self.cpu, &self.words);
        }
        self.words.clear();
    }
}

/// True for the system calls whose ranges [`Thread::mapped`] reports. The area that brk(2) adds was not mapped before.
pub fn changes_mappings(number: i64) -> bool {
    [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap].contains(&number)
}
