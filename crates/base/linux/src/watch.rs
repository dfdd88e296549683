//! A limit for each single read of something foreign: a file of `/proc`, the memory of a process.
//!
//! Such a read waits for whoever holds the locks of the process, and for file systems that it has mapped, which may be a
//! program's. No call has a time limit, so a thread watches the others, and ends this program if one waits too long.
//! Nothing is watched until [`start`] is called. A [`Worker`] has a separate limit: its thread is abandoned, and this
//! program continues.

use nix::sys::signal::SigSet;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that one read may take. The kernel needs about a second to walk the page tables of a terabyte.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How often the watching thread looks.
const LOOK: Duration = Duration::from_millis(500);

static WATCHED: AtomicBool = AtomicBool::new(false);
static READS: Mutex<Reads> = Mutex::new(Reads { next: 0, under_way: BTreeMap::new() });

thread_local! {
    /// True if somebody else limits the reads of this thread.
    static LEFT: Cell<bool> = const { Cell::new(false) };
    /// The work of this thread for a [`Worker`].
    static TASK: RefCell<Option<Task>> = const { RefCell::new(None) };
}

/// The work of a thread, and of the threads that it starts, for a [`Worker`]; true once it is given up.
type Task = Arc<AtomicBool>;

fn task() -> Option<Task> {
    TASK.with_borrow(Clone::clone)
}

struct Reads {
    next: u64,
    under_way: BTreeMap<u64, Read>,
}

struct Read {
    begun: Instant,
    what: String,
    /// Given up alone, if it takes too long.
    task: Option<Task>,
}

/// Runs `read`, which `what` describes.
pub fn watched<T>(what: impl FnOnce() -> String, read: impl FnOnce() -> T) -> T {
    let task = task();
    if LEFT.get() || task.is_none() && !WATCHED.load(Ordering::Relaxed) {
        return read();
    }
    let _under_way = UnderWay::begin(what(), task);
    read()
}

/// Ends the watch over this thread, whose reads the caller limits.
pub fn leave_to_caller() {
    LEFT.set(true);
}

/// Returns `work` for another thread: its reads have the same limit as the calling thread's.
pub fn with_same_limit<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let (task, left) = (task(), LEFT.get());
    move || {
        LEFT.set(left);
        TASK.set(task);
        work()
    }
}

/// Until it is dropped, a read of this thread that takes too long ends this program, also in the work for a [`Worker`]. For a
/// thread that keeps threads of another program stopped: the kernel resumes them at the end of this program.
#[derive(Debug)]
pub struct WithProgram(Option<Task>);

impl WithProgram {
    /// Begins.
    pub fn begin() -> Self {
        Self(TASK.take())
    }
}

impl Drop for WithProgram {
    fn drop(&mut self) {
        TASK.set(self.0.take());
    }
}

/// True in a thread whose work was given up: nobody waits for its result.
pub fn is_given_up() -> bool {
    TASK.with_borrow(|task| task.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed)))
}

/// Another thread, which works for this one. If one read of its work takes longer than [`LIMIT`], the thread is left behind.
#[derive(Default)]
pub struct Worker(Option<Sender<Box<dyn FnOnce() + Send>>>);

/// Work that has not ended: a read took longer than [`LIMIT`].
#[derive(Debug)]
pub struct GivenUp;

impl Worker {
    /// Has the thread do `work`, which may take any time, and waits for the result.
    ///
    /// # Errors
    /// [`GivenUp`]. The next work has another thread. [`is_given_up`] is true in the former one from then on.
    pub fn run<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, GivenUp> {
        let (task, (say, heard)) = (Task::default(), mpsc::sync_channel(1));
        let of_work = task.clone();
        let work = move || {
            TASK.set(Some(of_work));
            // Nobody listens any more if it was given up.
            let _ = say.send(work());
            TASK.set(None);
        };
        match self.sender() {
            Ok(sender) => drop(sender.send(Box::new(work))),
            // Without a thread this one works.
            Err(_) => work(),
        }
        loop {
            match heard.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if overdue(Instant::now(), Some(&task)).is_none() => {}
                Err(RecvTimeoutError::Timeout) => {
                    task.store(true, Ordering::Relaxed);
                    self.0 = None;
                    return Err(GivenUp);
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a thread of this program has ended early"),
            }
        }
    }

    fn sender(&mut self) -> io::Result<&Sender<Box<dyn FnOnce() + Send>>> {
        if self.0.is_none() {
            let (sender, work) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
            let thread = thread::Builder::new().name("work".to_owned());
            thread.spawn(move || work.into_iter().for_each(|work| work()))?;
            self.0 = Some(sender);
        }
        self.0.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }
}

/// A read in the list, until it is dropped.
struct UnderWay(u64);

impl UnderWay {
    fn begin(what: String, task: Option<Task>) -> Self {
        let mut reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
        reads.next += 1;
        let number = reads.next;
        reads.under_way.insert(number, Read { begun: Instant::now(), what, task });
        Self(number)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        READS.lock().unwrap_or_else(PoisonError::into_inner).under_way.remove(&self.0);
    }
}

/// Starts to watch: this program prints a message and exits with `status` if a read takes longer than [`LIMIT`].
pub fn start(status: i32) {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    let watcher = thread::Builder::new().name("watch".to_owned());
    // Without a thread nothing is watched, and all else works.
    let _ = watcher.spawn(move || {
        block_signals();
        loop {
            thread::sleep(LOOK);
            if let Some(what) = overdue(Instant::now(), None) {
                let _ = std::io::stderr().write_all(message(&what).as_bytes());
                // SAFETY:
                // - _exit runs no code of this program; the waiting thread cannot continue.
                unsafe { libc::_exit(status) };
            }
        }
    });
}

/// Leaves all signals to the other threads: one that may not be interrupted at some moment blocks them then.
pub fn block_signals() {
    // Without it a signal may end this program at such a moment.
    let _ = SigSet::all().thread_block();
}

/// The description of a read of this task that takes too long.
fn overdue(now: Instant, task: Option<&Task>) -> Option<String> {
    let reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_of_task = |read: &&Read| read.task.as_ref().map(Arc::as_ptr) == task.map(Arc::as_ptr);
    let late = |read: &&Read| now.saturating_duration_since(read.begun) > LIMIT;
    reads.under_way.values().filter(is_of_task).find(late).map(|read| read.what.clone())
}

fn message(what: &str) -> String {
    format!(
        "pagelift: {what} took more than {} s and was given up: the process, or a file system that it uses, does not \
         answer; fix: end that process, or leave it out\n",
        LIMIT.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_overdue_after_the_limit_and_not_once_it_has_ended() {
        let read = UnderWay::begin("reading /proc/7/maps".to_owned(), None);
        assert_eq!(overdue(Instant::now(), None), None);
        let later = Instant::now() + LIMIT + Duration::from_secs(1);
        let said = message(&overdue(later, None).unwrap());
        assert!(said.starts_with("pagelift: reading /proc/7/maps took more than 30 s"), "{said}");
        drop(read);
        assert_eq!(overdue(later, None), None);
    }

    #[test]
    fn a_read_of_a_worker_ends_neither_this_program_nor_other_work() {
        let work = || {
            let in_thread = with_same_limit(|| {
                let task = task().unwrap();
                let _read = UnderWay::begin("reading".to_owned(), Some(task.clone()));
                let later = Instant::now() + LIMIT + Duration::from_secs(1);
                let [own, all, other] = [Some(&task), None, Some(&Task::default())].map(|task| overdue(later, task));
                let before = is_given_up();
                task.store(true, Ordering::Relaxed);
                (own, all, other, before, is_given_up())
            });
            thread::scope(|scope| scope.spawn(in_thread).join().unwrap())
        };
        let mut worker = Worker::default();
        assert_eq!(worker.run(work).unwrap(), (Some("reading".to_owned()), None, None, false, true));
        assert!(!worker.run(is_given_up).unwrap() && !is_given_up());
    }

    #[test]
    fn nothing_is_described_where_nothing_is_watched() {
        assert_eq!(watched(|| unreachable!(), || 7), 7);
    }
}
