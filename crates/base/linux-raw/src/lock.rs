//! A lock for the threads of this process.

use core::sync::atomic::{AtomicU32, Ordering};

/// A lock on a futex. All zero, like fresh memory from the kernel, means free. Another thread may release it: in the
/// child of a fork, a copy of the thread does.
#[repr(transparent)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITED_FOR: u32 = 2;

impl Lock {
    /// A lock that is free.
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes it if no thread has it; true if it was taken by this call.
    pub fn try_take(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// True if some thread has it at this moment.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) != FREE
    }

    /// Takes it, once no other thread has it.
    pub fn take(&self) {
        if self.try_take() {
            return;
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            crate::futex_wait(&self.0, WAITED_FOR, false);
        }
    }

    /// Makes it free, whoever has it. Nobody waits for it: its holder was not taken along by a fork.
    pub fn renew(&self) {
        self.0.store(FREE, Ordering::Release);
    }

    /// Gives it back.
    pub fn release(&self) {
        self.hand_over();
    }

    /// Gives it back and wakes one waiting thread. That thread takes it as waited for, and so wakes the next one; if all
    /// were woken, all but one would sleep again. Returns the number of woken threads.
    fn hand_over(&self) -> usize {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR { crate::futex_wake_one(&self.0) } else { 0 }
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let (lock, count) = (Lock::new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        lock.take();
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        lock.release();
                    }
                });
            }
        });
        assert_eq!((count.into_inner(), lock.0.into_inner()), (40_000, FREE));
    }

    /// True if a thread of this process sleeps (proc_pid_stat(5)).
    fn sleeps(thread: u32) -> bool {
        let stat = std::fs::read_to_string(std::format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    }

    #[test]
    fn one_of_the_waiting_threads_is_woken() {
        const WAITING: usize = 4;
        let (lock, count) = (Lock::new(), AtomicU64::new(0));
        let threads = [const { AtomicU32::new(0) }; WAITING];
        lock.take();
        std::thread::scope(|scope| {
            for thread in &threads {
                scope.spawn(|| {
                    thread.store(crate::thread_id(), Ordering::SeqCst);
                    lock.take();
                    count.fetch_add(1, Ordering::Relaxed);
                    assert!(lock.hand_over() <= 1);
                });
            }
            let waits = |thread: &AtomicU32| {
                let thread = thread.load(Ordering::SeqCst);
                thread != 0 && sleeps(thread)
            };
            while !threads.iter().all(waits) {
                std::thread::yield_now();
            }
            assert_eq!(lock.hand_over(), 1);
        });
        assert_eq!((count.into_inner(), lock.0.into_inner()), (WAITING as u64, FREE));
    }
}
