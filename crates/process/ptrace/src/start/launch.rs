//! Starts the helper that traces this process, and then executes the program in this process.
//!
//! The launcher, which becomes the program, starts an intermediate child, which starts the helper and exits at once, so
//! that the program begins without children. The first process of a PID namespace adopts every orphan; it starts the
//! helper itself, as a child without an exit signal. The helper leaves the process group, so that no signal of the terminal
//! reaches it; a helper that lives as long as the program also leaves the terminal's session.
//!
//! # Who shares what, and until when
//!
//! Copying a process's memory costs more than everything else here, so all three share it (`CLONE_VM`), and with it the
//! heap, `errno`, and all other static or thread-local variables. The helper has its own descriptors, signal
//! dispositions and working directory. Where many processes run, the helper has a copy of the memory
//! ([`SHARING_PAYS_UP_TO`]); the following rules hold there too.
//!
//! - ***While the intermediate child exists**, the launcher is suspended: the kernel resumes it when the child has
//!   ended (`CLONE_VFORK`). The child runs on a part of the launcher's stack. Once the helper exists, the child only
//!   exits.
//! - ***From then on the memory belongs to the helper**, which runs ordinary code on its own stack. The launcher only
//!   makes system calls of [`linux::bare`], which touch neither heap nor `errno`, and reads what was prepared before.
//!   This lasts until its exec, which gives it new memory; the shared memory then belongs to the helper alone,
//!   including what the closure borrows from the launcher's stack, no frame of which is ever left. Where the exec
//!   fails, the launcher exits by a system call.
//! - ***Where the helper refuses**, it reports the reason by the pipe, and the launcher continues in ordinary code only
//!   when the helper has ended. It knows that by the end of the pipe, whose writing end only the helper holds and does
//!   not close before: a process releases its memory before its descriptors. The helper's last byte reports that it
//!   exits by itself.
//! - ***Where the helper was killed** before it answered, it may have left the heap in an inconsistent state. The
//!   launcher therefore executes the program nevertheless, under the same rules.
//!
//! Events that kill all processes which share a memory end the start as well, as for vfork: the OOM killer, and before
//! Linux 5.16 a core dump of the helper.
//!
//! Two effects of the shared memory on threads are handled. The kernel would set a word of the launcher to 0 at the
//! exec if the C library has requested that (set_tid_address(2)). And the C library in the helper takes the launcher's
//! thread ID for its own: see `abort.rs`.
//!
//! All signals are blocked during the launch, so that none ends one of the three halfway or runs a handler; the
//! program's mask is restored before the exec. The helper keeps them blocked: a signal that ends the program or its
//! session must not leave a program half prepared.

use super::stack::Stack;
use linux::bare::{self, ErrorNumber};
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
    /// No process or pipe could be created.
    #[error("starting the helper process: {0}")]
    NoHelper(#[from] io::Error),
    /// The helper could not trace this process.
    #[error("{0}")]
    Refused(String),
}

/// State of the helper when the program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// It traces this process.
    Traces,
    /// It was killed before it answered.
    WasKilled,
    /// There is none, and none is needed.
    NotNeeded,
}

/// Starts the helper, waits for its answer whether it traces this process, and executes the program. A helper that
/// `lives_on` may live as long as the program.
///
/// `helper` runs in the helper process and gets the PID of this one; it calls its second argument once: with `Ok` when
/// it traces this process, which closes all descriptors of the helper, or with the reason why it cannot. The helper
/// exits when it returns.
///
/// `execute` runs in this process, while the helper uses its memory, and executes the program.
///
/// Returns only if there is no helper; nothing has changed then, except that the end of this thread is no longer
/// reported (set_tid_address(2)).
///
/// # Safety
/// - This thread is the only one of its process.
/// - `helper` owns no descriptor when it answers `Ok`, and uses none afterwards that it has not opened since.
/// - `execute` touches neither the heap nor `errno`, does not panic, and executes a program or ends this process by
///   [`bare::exit`].
pub unsafe fn launch(
    lives_on: bool,
    helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>)),
    execute: impl FnOnce(Helper) -> Infallible,
) -> LaunchError {
    // SAFETY:
    // - the caller's promise.
    unsafe { launch_in(few_threads_run(), lives_on, helper, execute) }
}

/// Like [`launch`], but shares memory with the helper only if `shares_memory`.
///
/// # Safety
/// As for [`launch`].
unsafe fn launch_in(
    shares_memory: bool,
    lives_on: bool,
    helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>)),
    execute: impl FnOnce(Helper) -> Infallible,
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
    // SAFETY:
    // - the caller's promise, and from here on only calls that `Shared::start` permits are made.
    let started = unsafe { shared.start() };
    // From here to the end of the helper or of this process, the rules at the top apply.
    if adopts {
        set_adopts_orphans(true);
    }
    // The launcher's copy of the writing end would keep the pipe open.
    // SAFETY:
    // - an end of the pipe that only the helper uses, by its own descriptor.
    unsafe { bare::close(shared.pipes.answer.1) };
    let mut reason = [0; LONGEST_REASON];
    let heard = started.map(|()| shared.hear(&mut reason));
    if let Ok(Heard::Execute(Helper::WasKilled) | Heard::Refusal(_)) = heard {
        shared.reap();
    }
    bare::set_signal_mask(mask);
    if let Ok(Heard::Execute(helper)) = heard {
        execute(helper);
    }
    // SAFETY:
    // - called once, after the last use of the pipes; a helper that lives has its own descriptors.
    unsafe { shared.pipes.close_rest() };
    match heard {
        Err(number) if number != 0 => LaunchError::NoHelper(io::Error::from_raw_os_error(number)),
        Ok(Heard::Refusal(length)) if length > 0 => {
            LaunchError::Refused(String::from_utf8_lossy(&reason[..length]).into_owned())
        }
        _ => LaunchError::Refused("the helper process ended at once".to_owned()),
    }
}

/// Maximum number of threads on the machine with which the helper shares the launcher's memory. At the exec, the kernel
/// searches a new owner of the memory that is still in use, and finds the youngest process last
/// (`mm_update_next_owner`, Linux with CONFIG_MEMCG): 0.2 to 0.3 µs for each process. A copy of the memory takes 150
/// µs. Measured with 70, 600 and 3000 processes: a copy is slower by 0.15, 0.12 and -0.47 ms.
const SHARING_PAYS_UP_TO: u16 = 800;

/// Bytes of the helper's answer: it traces the launcher, or it refuses and the reason follows; the last byte after the
/// reason reports that it exits by itself.
const TRACES: u8 = b'+';
const REFUSES: u8 = b'-';
const HAS_ENDED: u8 = 0;
/// Maximum length of a reason in bytes; longer ones are cut.
const LONGEST_REASON: usize = 4096;

/// Size in bytes of the stack of the intermediate child, which makes two system calls.
const INTERMEDIATE_STACK: usize = 16 << 10;

unsafe extern "C" {
    /// clone(2). libc declares `work` as a function that anybody may call.
    fn clone(
        work: unsafe extern "C" fn(*mut c_void) -> i32,
        stack: *mut c_void,
        flags: i32,
        argument: *mut c_void,
        ...
    ) -> i32;
}

/// The launcher's knowledge of the helper.
enum Heard {
    /// The program is to be executed.
    Execute(Helper),
    /// It refuses; with the length of the reason in the buffer.
    Refusal(usize),
}

/// Data shared by the launcher, the intermediate child and the helper. Only one uses the cells at a time: the start of
/// the helper and the end of the pipe hand them over.
struct Shared<F> {
    launcher: Pid,
    lives_on: bool,
    pipes: Pipes,
    /// The helper's stack.
    stack: Stack,
    work: Cell<Option<F>>,
    /// The helper's PID, written by the kernel.
    helper: AtomicI32,
    /// Why there is no helper.
    error: AtomicI32,
    /// True if the helper shares the launcher's memory.
    shares_memory: bool,
}

impl<F: FnOnce(Pid, &mut dyn FnMut(Result<(), String>))> Shared<F> {
    fn new(shares_memory: bool, lives_on: bool, work: F) -> io::Result<Self> {
        let stack = Stack::new()?;
        Ok(Self {
            launcher: getpid(),
            lives_on,
            pipes: Pipes::new()?,
            stack,
            work: Cell::new(Some(work)),
            helper: AtomicI32::new(0),
            error: AtomicI32::new(0),
            shares_memory,
        })
    }

    /// Launcher: starts the helper by the intermediate child. The error is 0 where that child was killed before.
    ///
    /// # Safety
    /// This thread is the only one of its process. Until the helper has ended or this process has executed a program,
    /// it makes only calls of [`bare`].
    unsafe fn start(&self) -> Result<(), ErrorNumber> {
        // The C library has one word set to 0 when its thread ends; the helper may use that word for something else by
        // then.
        bare::forget_thread_word();
        if self.helper_stays_child() {
            self.start_helper();
            return self.started();
        }
        let mut stack = [MaybeUninit::<u128>::uninit(); INTERMEDIATE_STACK / size_of::<u128>()];
        let shares = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND;
        // SAFETY:
        // - the stack belongs to this function, is aligned and is passed by its upper end; the call returns when it is
        //   no longer used.
        // - `intermediate_child` gets the address of a `Shared` of this type; this function, which has borrowed it,
        //   returns after the child's end.
        // - the child has no exit signal: a blocked SIGCHLD would stay pending across the exec, and the program would
        //   receive it.
        let child = unsafe {
            let end = stack.as_mut_ptr_range().end;
            clone(Self::intermediate_child, end.cast(), shares, self.address())
        };
        if child < 0 {
            return Err(Errno::last_raw());
        }
        bare::wait_for_end(child);
        self.started()
    }

    fn started(&self) -> Result<(), ErrorNumber> {
        match self.helper.load(Ordering::Acquire) {
            0 => Err(self.error.load(Ordering::Acquire)),
            _ => Ok(()),
        }
    }

    /// True for the first process of a PID namespace, to which the kernel gives every orphan, with SIGCHLD as its exit
    /// signal. As its child from the beginning the helper has none, and wait(2) does not return it. The kernel sends SIGCHLD
    /// nevertheless if the parent has executed a program since (`do_notify_parent`).
    fn helper_stays_child(&self) -> bool {
        self.launcher.as_raw() == 1
    }

    /// Launcher: reaps a helper that has ended and is a child of this process.
    fn reap(&self) {
        if self.helper_stays_child() {
            bare::wait_for_end(self.helper.load(Ordering::Acquire));
        }
    }

    /// Launcher: permits the helper to trace this process (Yama), lets it begin, and waits for its answer; after a
    /// refusal, for its end.
    fn hear(&self, reason: &mut [u8; LONGEST_REASON]) -> Heard {
        if let Some((_, permit)) = self.pipes.permit {
            bare::set_ptracer(self.helper.load(Ordering::Acquire));
            bare::write(permit, [b"+"]);
        }
        let from = self.pipes.answer.0;
        let mut answer = [0];
        match bare::read(from, &mut answer) {
            0 => return Heard::Execute(Helper::WasKilled),
            _ if answer == [TRACES] => return Heard::Execute(Helper::Traces),
            _ => {}
        }
        // Text beyond the capacity is dropped.
        let (mut length, mut last, mut piece) = (0, answer[0], [0; 256]);
        while let count @ 1.. = bare::read(from, &mut piece) {
            last = piece[count - 1];
            for (to, byte) in reason[length..].iter_mut().zip(&piece[..count]) {
                *to = *byte;
                length += 1;
            }
        }
        if last != HAS_ENDED {
            return Heard::Execute(Helper::WasKilled);
        }
        Heard::Refusal(length - usize::from(length > 0 && reason[length - 1] == HAS_ENDED))
    }

    fn address(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Intermediate child: starts the helper and exits.
    ///
    /// # Safety
    /// Called by [`clone`] in a child that has its own stack. `shared` is the address of a `Shared<F>` that outlives
    /// the child and the helper, and that nobody else uses while the child exists.
    unsafe extern "C" fn intermediate_child(shared: *mut c_void) -> i32 {
        // SAFETY:
        // - the caller's promise.
        let shared = unsafe { &*shared.cast_const().cast::<Self>() };
        shared.start_helper();
        bare::exit(0)
    }

    /// Starts the helper. It has no exit signal: if it stays a child of the launcher, the program must not find it by wait(2).
    fn start_helper(&self) {
        let shares = libc::CLONE_PARENT_SETTID | if self.shares_memory { libc::CLONE_VM } else { 0 };
        // SAFETY:
        // - only the helper uses the stack, which outlives it: a process that shares the memory unmaps it only after
        //   the helper's end. Without sharing, the stack is the helper's own copy.
        // - `be_helper` gets the address of a `Shared` of this type. It is on the launcher's stack, in a frame that is
        //   not left before the helper's end, or in the helper's own copy; and has its own descriptors.
        // - the kernel writes the new PID to a word of `Shared`.
        let helper = unsafe { clone(Self::be_helper, self.stack.end(), shares, self.address(), self.helper.as_ptr()) };
        if helper < 0 {
            self.error.store(Errno::last_raw(), Ordering::Release);
        }
    }

    /// Helper: runs the work and exits.
    ///
    /// # Safety
    /// Called by [`clone`] in a child that has its own stack and table of descriptors. `shared` is the address of a
    /// `Shared<F>` that outlives the helper; the launcher only reads it.
    unsafe extern "C" fn be_helper(shared: *mut c_void) -> i32 {
        // SAFETY:
        // - the caller's promise.
        let shared = unsafe { &*shared.cast_const().cast::<Self>() };
        // A helper that traces has closed the pipe, and its descriptor may belong to another file by now.
        if let Ok(false) = catch_unwind(AssertUnwindSafe(|| shared.help())) {
            bare::write(shared.pipes.answer.1, [&[HAS_ENDED]]);
        }
        bare::exit(0)
    }

    /// Runs the work. Returns true if it traces, or has traced.
    fn help(&self) -> bool {
        // The kernel schedules sessions as groups (sched(7), autogroups): creating one takes 30 µs.
        let _ = if self.lives_on { setsid().map(drop) } else { setpgid(Pid::from_raw(0), Pid::from_raw(0)) };
        if let Some((go, permit)) = self.pipes.permit {
            // With this end open, the helper would wait forever for a launcher that has been killed.
            // SAFETY:
            // - the helper's copy of an end that only the launcher uses, by its own descriptor.
            unsafe { bare::close(permit) };
            if bare::read(go, &mut [0]) == 0 {
                return false;
            }
        }
        let Some(work) = self.work.take() else { return false };
        let mut traces = false;
        work(self.launcher, &mut |answer| match answer {
            Ok(()) => {
                bare::write(self.pipes.answer.1, [&[TRACES]]);
                // The program may be started by now, but is not past its exec stop, which only the helper ends: it
                // cannot notice that these descriptors stayed open until here.
                // SAFETY:
                // - this is the helper; by the rules of `launch` it owns no descriptor.
                unsafe { close_all() };
                take_standard_descriptors();
                traces = true;
            }
            Err(why) => bare::write(self.pipes.answer.1, [&[REFUSES], why.as_bytes()]),
        });
        traces
    }
}

/// Lets a helper that was not started to live on leave the session of the program, so that it does not keep the terminal.
pub fn leave_session_of(program: Pid) {
    // The leader of a process group cannot create a session; for a moment it joins the program's group.
    if let Ok(group) = nix::unistd::getpgid(Some(program))
        && setpgid(Pid::from_raw(0), group).is_ok()
    {
        let _ = setsid();
    }
}

/// True if the machine has at most [`SHARING_PAYS_UP_TO`] threads.
fn few_threads_run() -> bool {
    let mut info = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY:
    // - the kernel fills the whole structure on success.
    unsafe { libc::sysinfo(info.as_mut_ptr()) == 0 && info.assume_init().procs <= SHARING_PAYS_UP_TO }
}

/// Descriptors of the pipes, the reading and the writing end of each. The helper has copies, and each side closes its
/// own.
struct Pipes {
    answer: (RawFd, RawFd),
    /// The pipe by which the helper waits until the launcher has permitted it to trace (Yama).
    permit: Option<(RawFd, RawFd)>,
}

impl Pipes {
    fn new() -> io::Result<Self> {
        let pipe = || pipe2(nix::fcntl::OFlag::O_CLOEXEC);
        let answer = pipe()?;
        // Kernels without Yama refuse this request.
        let permit = bare::set_ptracer(0).then(pipe).transpose()?;
        let numbers = |(read, write): (OwnedFd, OwnedFd)| (read.into_raw_fd(), write.into_raw_fd());
        Ok(Self { answer: numbers(answer), permit: permit.map(numbers) })
    }

    /// Closes the ends that the launcher has not closed before.
    ///
    /// # Safety
    /// Called once, by the launcher, which does not use the pipes afterwards.
    unsafe fn close_rest(&self) {
        // SAFETY:
        // - the launcher's descriptors, which belong to these pipes alone; the caller promises that nothing uses them
        //   afterwards.
        unsafe {
            bare::close(self.answer.0);
            if let Some((go, permit)) = self.permit {
                bare::close(go);
                bare::close(permit);
            }
        }
    }
}

/// True if this process adopts orphaned descendants, a property that an exec keeps: it must not adopt the helper.
fn adopts_orphans() -> bool {
    let mut adopts: i32 = 0;
    // SAFETY:
    // - the call writes one int to an address of this function.
    let result = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut adopts, 0, 0, 0) };
    result == 0 && adopts != 0
}

fn set_adopts_orphans(adopts: bool) {
    bare::set_child_subreaper(adopts);
}

/// Closes every descriptor that the helper has inherited, so that no process waits for the end of a file that it keeps
/// open.
///
/// # Safety
/// Called by the helper, which has its own table of descriptors. No value that it uses later owns one.
unsafe fn close_all() {
    // SAFETY:
    // - the caller's promise.
    if unsafe { bare::close_all() }.is_ok() {
        return;
    }
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<i32>>()
    });
    // SAFETY:
    // - the caller's promise; the descriptor of the list is closed already, and closing it again has no effect.
    listed.unwrap_or_default().into_iter().for_each(|descriptor| unsafe { bare::close(descriptor) });
}

/// Takes the three lowest descriptors, so that no file which the helper opens gets one. Otherwise text that the standard
/// library or the C library prints, such as a panic message, would go to that file. Writes to these descriptors fail with
/// EBADF.
fn take_standard_descriptors() {
    for _ in 0..3 {
        // SAFETY:
        // - the path ends with NUL. Nothing owns the descriptor, which stays open until the helper ends.
        unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    }
}

#[cfg(test)]
mod tests;
