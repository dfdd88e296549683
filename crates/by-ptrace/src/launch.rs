//! Starts the helper that traces us, as no child of ours.
//!
//! The process that is to become the program forks twice; the grandchild is the helper, and the child between ends at
//! once, so that the program is born without children. The helper leaves the terminal's session, so that no signal of
//! the terminal reaches it.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, getpid, pipe2, setsid};
use std::fs::File;
use std::io::{self, Read, Write};

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

/// The helper stands ready and traces this process.
#[derive(Debug)]
pub struct Launched(());

/// Starts the helper and waits until it has said whether it traces us.
///
/// `helper` runs in the helper process with our PID; it calls its second argument once: with `Ok` when it traces us,
/// or with the reason why it cannot. That closes all descriptors, so it opens none before. It never returns to the caller's code: the helper ends with it.
///
/// # Errors
/// [`LaunchError`]; there is no helper then and the caller is as it was.
pub fn start_helper(helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>))) -> Result<Launched, LaunchError> {
    let us = getpid();
    let (answer, say) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    let (go, permit) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    // A signal must not end the child between halfway; the program's own mask is put back before it runs.
    let mut mask = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut mask)).map_err(io::Error::from)?;
    let adopts = adopts_orphans();
    if adopts {
        set_adopts_orphans(false);
    }
    match silent_fork() {
        Ok(ForkResult::Child) => {
            drop((answer, permit));
            if let Ok(ForkResult::Child) = silent_fork() {
                be_helper(us, File::from(say), File::from(go), helper);
            }
            // SAFETY:
            // - _exit takes an integer; nothing of the parent's is flushed or run twice.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            drop((say, go));
            let _ = waitpid(child, Some(WaitPidFlag::__WALL));
            if adopts {
                set_adopts_orphans(true);
            }
            let result = ask_to_trace(File::from(answer), File::from(permit));
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None);
            result
        }
        Err(errno) => {
            if adopts {
                set_adopts_orphans(true);
            }
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None);
            Err(LaunchError::NoHelper(errno.into()))
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
    // SAFETY:
    // - the call takes integers and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(adopts), 0, 0, 0) };
}

/// A fork whose child sends no signal when it ends: a SIGCHLD that is blocked would stay pending over the exec, and the
/// program would get it.
fn silent_fork() -> Result<ForkResult, nix::errno::Errno> {
    // SAFETY:
    // - this process has one thread, so that the child may do whatever the parent may; with no flags the call is a
    //   fork without a signal, and all its other arguments are unused.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    nix::errno::Errno::result(pid).map(|pid| match pid {
        0 => ForkResult::Child,
        child => ForkResult::Parent { child: Pid::from_raw(child as i32) },
    })
}

/// Our side: names the helper as the one that may trace us (Yama), lets it begin, and reads its answer.
fn ask_to_trace(mut answer: File, mut permit: File) -> Result<Launched, LaunchError> {
    let mut pid = [0; 4];
    answer.read_exact(&mut pid).map_err(|_| LaunchError::Refused("the helper process ended at once".to_owned()))?;
    let helper = i32::from_ne_bytes(pid);
    // SAFETY:
    // - prctl takes integers here; kernels without Yama refuse the call, which then is not needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(helper as u32), 0, 0, 0) };
    let _ = permit.write_all(&[1]);
    let mut text = String::new();
    answer.read_to_string(&mut text)?;
    match text.strip_prefix('+') {
        Some(_) => Ok(Launched(())),
        None if text.is_empty() => Err(LaunchError::Refused("the helper process ended at once".to_owned())),
        None => Err(LaunchError::Refused(text)),
    }
}

/// The helper's side.
fn be_helper(us: Pid, say: File, mut go: File, helper: impl FnOnce(Pid, &mut dyn FnMut(Result<(), String>))) {
    // Whatever ends the program or its session is no reason to leave a program half prepared.
    let _ = setsid();
    let mut kept = SigSet::all();
    kept.remove(Signal::SIGKILL);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&kept), None);
    let mut say = Some(say);
    if let Some(say) = &mut say
        && say.write_all(&getpid().as_raw().to_ne_bytes()).is_err()
    {
        return;
    }
    let mut byte = [0];
    if go.read_exact(&mut byte).is_err() {
        return;
    }
    drop(go);
    helper(us, &mut |answer| {
        if let Some(mut say) = say.take() {
            let text = answer.map_or_else(|why| why, |()| "+".to_owned());
            // The one who asked may have been killed; then there is nobody to tell.
            let _ = say.write_all(text.as_bytes());
            drop(say);
            // The program is on its way now, but not past its exec stop, which only we end: it cannot see that these
            // stayed open until here.
            close_all();
        }
    });
}

/// Closes every descriptor that we got by the fork, so that nobody waits for the end of a file that we hold.
fn close_all() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<i32>>()
    });
    for descriptor in listed.unwrap_or_default() {
        // SAFETY:
        // - this process was forked to be the helper; no value of it owns a descriptor any more.
        unsafe { libc::close(descriptor) };
    }
}
