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
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            crate::futex_wake(&self.0, false);
        }
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
}
