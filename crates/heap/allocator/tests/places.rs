//! The table of the threads to stop: it holds what was noted, and each search examines few entries.
//!
//! The library itself, which would replace this program's allocator, is not linked.

#[path = "../src/call.rs"]
mod call;
#[path = "../src/places.rs"]
mod places;

/// Stands in for the kernel: zeroed memory, which is never returned.
mod sys {
    pub fn map_anywhere(bytes: usize, _reserve_only: bool, _more_flags: i32) -> Option<usize> {
        Some(Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()).as_mut_ptr() as usize)
    }
}

mod threads {
    pub const MOST_THREADS: usize = 32768;
}

use call::Call;
use places::{STEPS, calls_of, clear, forget_last, note, place_of};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use threads::MOST_THREADS;

/// The table is one for all tests of this process.
static TABLE: Mutex<()> = Mutex::new(());

fn call(number: i64) -> Call {
    Call { number, arguments: [1, 2, 3, 4, 5, 6], stack: 7, next_instruction: 8, sleeps: 9 }
}

fn numbers(thread: u32) -> Vec<i64> {
    calls_of(thread).map(|call| call.number).collect()
}

#[test]
fn it_holds_what_was_noted() {
    let _table = TABLE.lock().unwrap();
    let (first, second) = (4_000_001, 4_000_002);
    clear().unwrap();
    assert!(note(first, 100, Some(call(10))) && place_of(first, 100).is_some_and(|entry| !entry.stands(100)));
    assert!(place_of(second, 100).is_none() && place_of(first, 99).is_none() && numbers(second).is_empty());
    place_of(first, 100).unwrap().stand(100);
    assert!(place_of(first, 100).unwrap().stands(100));
    // A signal that was not sent.
    assert!(note(second, 100, Some(call(20))));
    forget_last();
    assert!(place_of(second, 100).is_none() && place_of(first, 100).is_some());
    // It is awake in the next stop, and later in another call. The last call comes last.
    clear().unwrap();
    assert!(place_of(first, 101).is_none());
    assert!(note(first, 101, None) && numbers(first) == [10]);
    clear().unwrap();
    assert!(note(first, 102, Some(call(11))) && numbers(first) == [10, 11]);
    clear().unwrap();
    assert!(note(first, 103, Some(call(11))) && numbers(first) == [10, 11]);
}

/// Stops so many threads, and returns the number of examined entries for each.
fn steps_of_stop(first: u32, stride: u32, count: usize, stop: u32) -> usize {
    let thread = |n: usize| first + n as u32 * stride;
    clear().unwrap();
    STEPS.store(0, Relaxed);
    for n in 0..count {
        assert!(place_of(thread(n), stop).is_none());
        assert!(note(thread(n), stop, Some(call(n as i64))));
    }
    for n in 0..count {
        place_of(thread(n), stop).unwrap().stand(stop);
        assert_eq!(calls_of(thread(n)).last().unwrap().number, n as i64);
        assert!(place_of(thread(n), stop).unwrap().stands(stop));
    }
    STEPS.load(Relaxed) / count
}

#[test]
fn each_thread_takes_few_steps_however_many_there_are() {
    let _table = TABLE.lock().unwrap();
    // Several generations of threads, also as many as can be noted.
    for (round, stride) in [1, 1, 2, 1, 3, 100, 1, 128, 1].into_iter().enumerate() {
        let first = 1 + round as u32 * 40_000;
        for count in [10, 1000, MOST_THREADS] {
            let steps = steps_of_stop(first, stride, count, 1 + round as u32 * 10 + count.ilog2());
            assert!(steps <= 60, "{steps} steps for each of {count} threads, {stride} apart");
        }
    }
    assert!(!note(1, 1000, None), "more threads than can be listed");
}
