//! Starts the helper that traces us, as no child of ours, and then departs: becomes the program.
//!
//! The process that is to become the program starts a process between, which starts the helper and ends at once, so that
//! the program is born without children. The helper leaves the process group, so that no signal of the terminal reaches
//! it; one that lives on leaves the terminal's session, too.
//!
//! # Who shares what, and until when
//!
//! Copying the memory of a process for another costs more than all else here, so all three share it (`CLONE_VM`), and
//! with it the heap, `errno`, and whatever else lies in static or thread-local variables. Descriptors, signal
//! dispositions and the working directory are the helper's own. Where many processes run, the helper has a copy of the
//! memory all the same ([`SHARING_PAYS_UP_TO`]); what follows holds then, too.
//!
//! - **While the process between is there**, we stand still: the kernel lets us go on when it has ended (`CLONE_VFORK`).
//!   It lives on a piece of our stack. From the moment the helper exists, it only ends.
//! - **From then on the memory is the helper's**, which runs ordinary code on a stack of its own. We only make system calls
//!   of [`kernel_calls::bare`], which touch neither heap nor `errno`, and read what was made ready before. This lasts to
//!   our exec, which gives us memory of our own; what was shared is then the helper's alone, with the closure's
//!   borrowings from our stack: no frame of that is ever left. Where nothing could be executed we end, by a system call.
//! - **Where the helper refuses**, it says so by the pipe, and we go on in ordinary code only when it has ended. That is
//!   when the pipe, whose writing end no one else holds and it never closes before, is at its end: a process gives up its
//!   memory before its descriptors. It says last of all that it has ended by itself.
//! - **Where the helper was killed** before it answered, it may have left the heap in the midst of a change. So we depart
//!   all the same, under the same rules.
//!
//! What ends all who share a memory ends the start, too, as it would a vfork's: the kernel where it is out of memory, and
//! before Linux 5.16 a core dump of the helper's.
//!
//! What the kernel writes for threads by itself is seen to: it would set a word of ours to 0 at the exec, where the C
//! library asked for that. And the C library, in the helper, takes our thread's number for its own: see `abort.rs`.
//!
//! All signals are blocked meanwhile, so that none ends any of the three halfway or runs a handler; the program's own mask is
//! put back before the exec. The helper keeps them blocked: whatever ends the program or its session is no reason to
//! leave a program half prepared.

use crate::stack::Stack;
use kernel_calls::bare::{self, ErrorNumber};
use nix::errno::Errno;
use nix::unistd::{Pid, getpid, pipe2, setpgid, setsid};
use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};

/// Why there is no helper.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No process or pipe to be had.
    #[error("starting the helper process: {0}")]
    NoHelper(#[from] io::Error),
    /// The helper could not trace us.
    #[error("{0}")]
    Refused(String),
}

/// What became of the helper at the departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// It traces us.
    Traces,
    /// Something has killed it.
    WasKilled,
}

/// Starts the helper, waits until it has said whether it traces us, and departs. One that `lives_on` may live as long as
/// the program.
///
/// `helper` runs in the helper process with our PID; it calls its second argument once: with `Ok` when it traces us,
/// or with the reason why it cannot. The first closes all descriptors, so it opens none before. The helper ends with it.
///
/// `depart` runs in this process, while the helper has our memory: it must touch neither the heap nor `errno`, nor panic,
/// and it executes a program or ends this process by [`bare::exit`].
///
/// Returns only where there is no helper; the caller is as it was then. It must be its process's only thread, and nobody
/// is told any more that this thread has ended.
pub fn launch(
    lives_on: bool,
    helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>)),
    depart: impl FnOnce(Helper) -> Infallible,
) -> LaunchError {
    launch_in(few_threads_run(), lives_on, helper, depart)
}

/// The same, in our memory or in a copy of it.
fn launch_in(
    shares_memory: bool,
    lives_on: bool,
    helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>)),
    depart: impl FnOnce(Helper) -> Infallible,
) -> LaunchError {
    let shared = match Shared::new(shares_memory, lives_on, helper) {
        Ok(shared) => shared,
        Err(error) => return LaunchError::NoHelper(error),
    };
    let mask = bare::set_signal_mask(bare::ALL_SIGNALS);
    let adopts = adopts_orphans();
    if adopts {
        set_adopts_orphans(false);
    }
    let started = shared.start();
    // From here to the end of the helper, or to ours, the rules hold that stand at the top.
    if adopts {
        set_adopts_orphans(true);
    }
    // Ours must not keep the pipe from its end.
    bare::close(shared.pipes.answer.1);
    let mut reason = [0; LONGEST_REASON];
    let heard = started.map(|()| shared.hear(&mut reason));
    bare::set_signal_mask(mask);
    if let Ok(Heard::Departure(helper)) = heard {
        depart(helper);
    }
    shared.pipes.close_rest();
    match heard {
        Err(number) if number != 0 => LaunchError::NoHelper(io::Error::from_raw_os_error(number)),
        Ok(Heard::Refusal(length)) if length > 0 => {
            LaunchError::Refused(String::from_utf8_lossy(&reason[..length]).into_owned())
        }
        _ => LaunchError::Refused("the helper process ended at once".to_owned()),
    }
}

/// Up to so many threads on the machine the helper shares our memory. When we execute the program, the kernel looks for a
/// new owner of the memory that is still in use, and finds the youngest process last (`mm_update_next_owner`, Linux with
/// CONFIG_MEMCG): 0.2 to 0.3 microseconds for each process that runs. A copy of the memory takes 150 microseconds.
/// Measured beside 70, 600 and 3000 processes: by 0.15, 0.12 and -0.47 ms slower with a copy.
const SHARING_PAYS_UP_TO: u16 = 800;

/// The helper's answer: that it traces us, or the reason why not, and behind it, last of all, that it has ended by itself.
const TRACES: u8 = b'+';
const REFUSES: u8 = b'-';
const HAS_ENDED: u8 = 0;
/// Longer reasons are cut.
const LONGEST_REASON: usize = 4096;

/// Bytes of stack for the process between, which makes two system calls.
const STACK_BETWEEN: usize = 16 << 10;

/// What our side has heard of the helper.
enum Heard {
    Departure(Helper),
    /// With the reason's length in the buffer.
    Refusal(usize),
}

/// What we, the process between and the helper have in common. The cells are used by one at a time: they are handed over
/// by the helper's start, and by the end of the pipe.
struct Shared<F> {
    us: Pid,
    lives_on: bool,
    pipes: Pipes,
    /// Where the helper runs.
    stack: Stack,
    work: Cell<Option<F>>,
    /// The helper's PID, written by the kernel.
    helper: AtomicI32,
    /// Why there is no helper.
    error: AtomicI32,
    /// True where the helper shares our memory.
    shares_memory: bool,
}

impl<F: FnOnce(Pid, &mut dyn FnMut(Result<(), String>))> Shared<F> {
    fn new(shares_memory: bool, lives_on: bool, work: F) -> io::Result<Self> {
        let stack = Stack::new()?;
        Ok(Self {
            us: getpid(),
            lives_on,
            pipes: Pipes::new()?,
            stack,
            work: Cell::new(Some(work)),
            helper: AtomicI32::new(0),
            error: AtomicI32::new(0),
            shares_memory,
        })
    }

    /// Our side: starts the helper, by the process between. The error is 0 where that was killed before.
    fn start(&self) -> Result<(), ErrorNumber> {
        // The C library has one word set to 0 when its thread leaves; the helper may have found another use for it.
        bare::forget_thread_word();
        let mut stack = [MaybeUninit::<u128>::uninit(); STACK_BETWEEN / size_of::<u128>()];
        let shares = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND;
        // SAFETY:
        // - the stack is ours and aligned, its end is where it begins, and the call returns when nobody uses it any more.
        // - `between` takes the address of a `Shared` of this type, which outlives it.
        // - without a signal at its end: a SIGCHLD that is blocked would stay pending over the exec, and the program would
        //   get it.
        let child = unsafe {
            let end = stack.as_mut_ptr_range().end;
            libc::clone(Self::between, end.cast(), shares, self.address())
        };
        if child < 0 {
            return Err(Errno::last_raw());
        }
        bare::wait_for_end(child);
        match self.helper.load(Ordering::Acquire) {
            0 => Err(self.error.load(Ordering::Acquire)),
            _ => Ok(()),
        }
    }

    /// Our side: names the helper as the one that may trace us (Yama), lets it begin, and waits for its answer; where that
    /// is a refusal, for its end.
    fn hear(&self, reason: &mut [u8; LONGEST_REASON]) -> Heard {
        if let Some((_, permit)) = self.pipes.permit {
            bare::set_ptracer(self.helper.load(Ordering::Acquire));
            bare::write(permit, [b"+"]);
        }
        let from = self.pipes.answer.0;
        let mut answer = [0];
        match bare::read(from, &mut answer) {
            0 => return Heard::Departure(Helper::WasKilled),
            _ if answer == [TRACES] => return Heard::Departure(Helper::Traces),
            _ => {}
        }
        // What has no room is left out.
        let (mut length, mut last, mut piece) = (0, answer[0], [0; 256]);
        while let count @ 1.. = bare::read(from, &mut piece) {
            last = piece[count - 1];
            for (to, byte) in reason[length..].iter_mut().zip(&piece[..count]) {
                *to = *byte;
                length += 1;
            }
        }
        if last != HAS_ENDED {
            return Heard::Departure(Helper::WasKilled);
        }
        Heard::Refusal(length - usize::from(length > 0 && reason[length - 1] == HAS_ENDED))
    }

    fn address(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The process between.
    extern "C" fn between(shared: *mut c_void) -> i32 {
        // SAFETY:
        // - `start` gives the address of a `Shared` of this type, and stands still until this process has ended.
        let shared = unsafe { &*shared.cast_const().cast::<Self>() };
        let shares = libc::CLONE_PARENT_SETTID | if shared.shares_memory { libc::CLONE_VM } else { 0 };
        // SAFETY:
        // - the stack is there for the helper alone, and as long as the helper is: whoever has shared the memory only
        //   gives it back after the helper's end. Without sharing it is the helper's own.
        // - `be_helper` takes the address of a `Shared` of this type, which is there as long as the stack is.
        // - the kernel writes the new PID to a word that is there for it.
        let helper = unsafe {
            libc::clone(Self::be_helper, shared.stack.end(), shares, shared.address(), shared.helper.as_ptr())
        };
        if helper < 0 {
            shared.error.store(Errno::last_raw(), Ordering::Release);
        }
        bare::exit(0)
    }

    /// The helper.
    extern "C" fn be_helper(shared: *mut c_void) -> i32 {
        // SAFETY:
        // - `between` gives the address of a `Shared` of this type; it lies on a stack that is kept for this process.
        let shared = unsafe { &*shared.cast_const().cast::<Self>() };
        // One that traces has closed the pipe, whose number may be another file's by now.
        if let Ok(false) = catch_unwind(AssertUnwindSafe(|| shared.help())) {
            bare::write(shared.pipes.answer.1, [&[HAS_ENDED]]);
        }
        bare::exit(0)
    }

    /// True where it traces, or has traced.
    fn help(&self) -> bool {
        // The kernel schedules sessions as groups (sched(7), autogroups): making one takes 30 microseconds.
        let _ = if self.lives_on { setsid().map(drop) } else { setpgid(Pid::from_raw(0), Pid::from_raw(0)) };
        if let Some((go, permit)) = self.pipes.permit {
            // With this end open here, we would wait for ever for one who has been killed.
            bare::close(permit);
            if bare::read(go, &mut [0]) == 0 {
                return false;
            }
        }
        let Some(work) = self.work.take() else { return false };
        let mut traces = false;
        work(self.us, &mut |answer| match answer {
            Ok(()) => {
                bare::write(self.pipes.answer.1, [&[TRACES]]);
                // The program is on its way now, but not past its exec stop, which only we end: it cannot see that
                // these stayed open until here.
                close_all();
                traces = true;
            }
            Err(why) => bare::write(self.pipes.answer.1, [&[REFUSES], why.as_bytes()]),
        });
        traces
    }
}

/// True where no more threads run on the machine than [`SHARING_PAYS_UP_TO`].
fn few_threads_run() -> bool {
    let mut info = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY:
    // - the kernel fills the whole structure where it succeeds.
    unsafe { libc::sysinfo(info.as_mut_ptr()) == 0 && info.assume_init().procs <= SHARING_PAYS_UP_TO }
}

/// The descriptors of our pipes, the reading and the writing end of each. They are the helper's too, and each side closes
/// its own.
struct Pipes {
    answer: (RawFd, RawFd),
    /// Where the helper must wait until we have permitted it to trace us (Yama).
    permit: Option<(RawFd, RawFd)>,
}

impl Pipes {
    fn new() -> io::Result<Self> {
        let pipe = || pipe2(nix::fcntl::OFlag::O_CLOEXEC);
        let answer = pipe()?;
        // Naming nobody is refused where there is no Yama.
        let permit = bare::set_ptracer(0).then(pipe).transpose()?;
        let numbers = |(read, write): (OwnedFd, OwnedFd)| (read.into_raw_fd(), write.into_raw_fd());
        Ok(Self { answer: numbers(answer), permit: permit.map(numbers) })
    }

    /// Closes what our side has not closed before.
    fn close_rest(&self) {
        bare::close(self.answer.0);
        if let Some((go, permit)) = self.permit {
            bare::close(go);
            bare::close(permit);
        }
    }
}

/// True where orphans below us become our children, which is kept by an exec: the helper must not.
fn adopts_orphans() -> bool {
    let mut adopts: i32 = 0;
    // SAFETY:
    // - the call writes one int to the address that it is given.
    let result = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut adopts, 0, 0, 0) };
    result == 0 && adopts != 0
}

fn set_adopts_orphans(adopts: bool) {
    bare::set_child_subreaper(adopts);
}

/// Closes every descriptor that the helper got by its start, so that nobody waits for the end of a file that it holds.
fn close_all() {
    if bare::close_all().is_ok() {
        return;
    }
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<i32>>()
    });
    // No value of the helper's owns a descriptor any more.
    listed.unwrap_or_default().into_iter().for_each(bare::close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    type Answer<'a> = &'a mut dyn FnMut(Result<(), String>);

    const TRACED: i32 = 1;
    const KILLED: i32 = 2;
    const REFUSED: i32 = 3;
    const HAS_CHILDREN: i32 = 4;
    const OTHER_ANSWER: i32 = 5;

    /// The ends of two processes of their own that launch this helper, in their memory and in a copy; one that is refused
    /// for this reason ends with `REFUSED`.
    fn ends_with(helper: impl Fn(Pid, Answer), reason: &str) -> [WaitStatus; 2] {
        [true, false].map(|shares_memory| {
            // SAFETY:
            // - the C library makes the child's heap usable, and nothing else of other threads is used there.
            match unsafe { fork() }.unwrap() {
                ForkResult::Parent { child } => waitpid(child, None).unwrap(),
                ForkResult::Child => bare::exit(status_of_launch(shares_memory, &helper, reason)),
            }
        })
    }

    fn status_of_launch(shares_memory: bool, helper: impl FnOnce(Pid, Answer), reason: &str) -> i32 {
        let depart = |helper| bare::exit(if helper == Helper::Traces { TRACED } else { KILLED });
        let error = launch_in(shares_memory, false, helper, depart);
        if waitpid(None, Some(WaitPidFlag::__WALL)) != Err(Errno::ECHILD) {
            return HAS_CHILDREN;
        }
        if error.to_string() == reason { REFUSED } else { OTHER_ANSWER }
    }

    fn assert_status(ends: [WaitStatus; 2], status: i32) {
        let is_it = |end: &WaitStatus| matches!(end, WaitStatus::Exited(_, is) if *is == status);
        assert!(ends.iter().all(is_it), "{ends:?} instead of {status}");
    }

    #[test]
    fn a_long_reason_is_cut() {
        let (long, cut) = ("x".repeat(3 * LONGEST_REASON), "x".repeat(LONGEST_REASON));
        assert_status(ends_with(|_, answer| answer(Err(long.clone())), &cut), REFUSED);
    }

    #[test]
    fn departs_when_the_helper_traces() {
        assert_status(ends_with(|_, answer| answer(Ok(())), ""), TRACED);
    }

    #[test]
    fn a_helper_that_refuses_says_why() {
        assert_status(ends_with(|_, answer| answer(Err("so it is".to_owned())), "so it is"), REFUSED);
    }

    #[test]
    fn the_helper_knows_us() {
        let parent = getpid();
        let helper = |us: Pid, answer: Answer| {
            let status = std::fs::read_to_string(format!("/proc/{us}/status")).unwrap();
            let is_child = status.lines().any(|line| line == format!("PPid:\t{parent}"));
            answer(Err(format!("{}, {}", is_child, us != getpid())));
        };
        assert_status(ends_with(helper, "true, true"), REFUSED);
    }

    #[test]
    fn a_helper_that_says_nothing_is_told_of() {
        assert_status(ends_with(|_, _| {}, "the helper process ended at once"), REFUSED);
    }

    #[test]
    fn a_helper_that_was_killed_is_departed_from() {
        // Not by `raise`: what the C library takes for this thread's number is that of the other process.
        let kill_itself = |_, _: Answer| kill(getpid(), Signal::SIGKILL).unwrap();
        assert_status(ends_with(kill_itself, ""), KILLED);
    }

    #[test]
    fn a_helper_that_aborts_is_departed_from() {
        assert_status(ends_with(|_, _: Answer| std::process::abort(), ""), KILLED);
    }

    #[test]
    fn a_helper_that_was_killed_after_its_refusal_is_departed_from() {
        let killed = |_, answer: Answer| {
            answer(Err("in vain".to_owned()));
            kill(getpid(), Signal::SIGKILL).unwrap();
        };
        assert_status(ends_with(killed, "in vain"), KILLED);
    }

    #[test]
    fn a_helper_that_panics_is_departed_from() {
        assert_status(ends_with(|_, _: Answer| panic!("on purpose"), ""), KILLED);
    }
}
