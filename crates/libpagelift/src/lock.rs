//! A lock for the threads of this process.

use core::sync::atomic::{AtomicU32, Ordering};

/// A lock on a futex. All zero, as fresh memory from the kernel is, it is free. Whoever releases it need not be who has
/// taken it: in the child of a fork that is a copy of the thread.
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITED_FOR: u32 = 2;

impl Lock {
    /// Takes it, once no other thread has it.
    pub fn take(&self) {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            linux_raw::futex_wait(&self.0, WAITED_FOR, false);
        }
    }

    /// Gives it back.
    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            linux_raw::futex_wake(&self.0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let (lock, count) = (Lock(AtomicU32::new(FREE)), AtomicU64::new(0));
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
