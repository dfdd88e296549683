//! Ends requests for which clients wait too long, if the protocol can: a read of PostgreSQL's client has no time limit.

use std::time::{Duration, Instant};

/// Interval between checks that the clients have ended.
const LOOK: Duration = Duration::from_millis(1);

/// Makes the server give up the request of one connection.
pub(super) type Cancel = Box<dyn Fn() + Send + Sync>;

/// Waits until clients that have received the request to stop have ended, and cancels their requests once `is_over`
/// returns true. Without anything to cancel it does not wait: their reads have limits.
pub(super) fn end(cancels: &[Cancel], have_ended: &dyn Fn() -> bool, is_over: &dyn Fn(Duration) -> bool) {
    let (since, mut is_cancelled) = (Instant::now(), cancels.is_empty());
    while !is_cancelled && !have_ended() {
        if is_over(since.elapsed()) {
            cancels.iter().for_each(|cancel| cancel());
            is_cancelled = true;
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_lasts_too_long_is_cancelled_once() {
        let cancelled = Arc::new(AtomicU32::new(0));
        let of = |cancelled: &Arc<AtomicU32>| -> Cancel {
            let cancelled = cancelled.clone();
            Box::new(move || {
                cancelled.fetch_add(1, Ordering::Relaxed);
            })
        };
        let count = || cancelled.load(Ordering::Relaxed);
        end(&[of(&cancelled), of(&cancelled)], &|| false, &|waited| waited > Duration::from_millis(3));
        assert_eq!(count(), 2);
        end(&[of(&cancelled)], &|| true, &|_| true);
        end(&[], &|| false, &|_| false);
        assert_eq!(count(), 2, "what has ended needs none, and without a way there is no wait");
    }
}
