//! The process to work on, identified at the time of the request.

use super::inherited::sharers_of;
use crate::remote::RemoteMemory;
use crate::remote::status::is_ending;
use address_space::Address;
use linux::process_handle::ProcessHandle;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// A process and the memory that it had when this was opened. Later look-ups by its PID may find another program, which
/// it has executed since: [`super::LiveExecutor`] acts only if the memory is the same.
pub struct Target {
    pub(super) pid: i32,
    pub(super) memory: RemoteMemory,
    pub(super) handle: ProcessHandle,
}

impl Target {
    /// Opens the process that has this PID now, before any of its files is read.
    ///
    /// # Errors
    /// A sentence that says why it cannot be opened.
    pub fn open(pid: i32) -> Result<Self, String> {
        let handle = ProcessHandle::open(pid).map_err(|error| format!("it cannot be opened: {error}"))?;
        let memory = RemoteMemory::open(pid).map_err(|error| unopened(pid, &error))?;
        match handle.is_alive() {
            true => Ok(Self { pid, memory, handle }),
            false => Err("it has ended".to_owned()),
        }
    }

    /// The PID of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// True until the memory that was opened has ended, with its process or by an exec. The memory lasts longer if another
    /// process shares it.
    pub fn has_memory(&self) -> bool {
        // The kernel reads no bytes from memory that has ended, and refuses to read an address that is not mapped.
        let read = self.memory.read(Address(0), &mut [0]);
        read.err().is_none_or(|error| error.kind() != io::ErrorKind::UnexpectedEof)
    }

    /// Waits for `time`, or until the process ends: then returns true.
    pub fn ends_within(&self, time: Duration) -> bool {
        self.handle.ends_within(time)
    }

    /// True if the process has not ended: then all facts read by its PID so far belong to it.
    pub fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }
}

fn unopened(pid: i32, error: &io::Error) -> String {
    match is_ending(Pid::from_raw(pid), pid) {
        true => "its main thread has ended, so that the kernel shows no memory of it; needed: a main thread that waits for the \
                 others"
            .to_owned(),
        false => format!("its memory cannot be opened: {error}"),
    }
}

/// Maximum number of processes that share one memory and are locked together.
const MOST_SHARERS: usize = 64;

/// Takes the locks under which this memory is worked on, one of each process that has it: two lifts of processes that share
/// memory would use the same places in it. They end with their holder. Waits for other holders up to `timeout`.
pub(super) fn lock(pid: i32, timeout: Duration) -> Result<Vec<Flock<File>>, String> {
    let mut processes = at_most(MOST_SHARERS, std::iter::once(pid).chain(sharers_of(pid)))?;
    // In one order everywhere, so that two lifts do not wait for each other.
    processes.sort_unstable();
    lock_each(pid, &processes, Instant::now() + timeout)
}

/// Returns the processes that share a memory. The search ends at the limit: otherwise lifts of a thousand sharers would compare
/// each sharer with each process of the machine.
fn at_most(most: usize, sharers: impl Iterator<Item = i32>) -> Result<Vec<i32>, String> {
    let processes: Vec<i32> = sharers.take(most + 1).collect();
    if processes.len() > most {
        return Err(format!("more than {most} processes share its memory; needed: at most {most}"));
    }
    Ok(processes)
}

/// Locks processes one after the other. One that has ended is left out, unless it is `pid`.
fn lock_each(pid: i32, processes: &[i32], deadline: Instant) -> Result<Vec<Flock<File>>, String> {
    let mut locks = Vec::with_capacity(processes.len());
    for &process in processes {
        let path = format!("/proc/{process}/maps");
        match File::open(&path) {
            Ok(file) => locks.push(lock_file(file, &path, deadline)?),
            Err(error) if process == pid => return Err(format!("opening {path}: {error}")),
            Err(_) => {}
        }
    }
    Ok(locks)
}

fn lock_file(mut file: File, path: &str, deadline: Instant) -> Result<Flock<File>, String> {
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((again, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = again,
            Err((_, Errno::EWOULDBLOCK)) => return Err("another pagelift works on it; fix: try again later".to_owned()),
            Err((_, error)) => return Err(format!("locking {path}: {error}")),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    #[test]
    fn no_more_sharers_are_looked_for_than_may_be_locked() {
        let mut asked = 0;
        let refused = at_most(3, (7..1000).inspect(|_| asked += 1)).unwrap_err();
        assert_eq!((refused.as_str(), asked), ("more than 3 processes share its memory; needed: at most 3", 4));
        assert_eq!(at_most(3, 7..10), Ok(vec![7, 8, 9]));
    }

    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        // SAFETY:
        // - the call touches no memory.
        while unsafe { libc::pause() } != 0 {}
        0
    }

    #[test]
    fn a_process_and_another_with_its_memory_have_one_lifter() {
        let mut stack = vec![0_u128; 4096];
        // SAFETY:
        // - the stack is the child's alone, and lasts until the child has ended; the child makes one system call.
        let child = unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            libc::clone(wait, top, libc::CLONE_VM | libc::SIGCHLD, std::ptr::null_mut())
        };
        let own = std::process::id() as i32;
        let held = lock(child, Duration::ZERO).map(|locks| (locks.len(), lock(own, Duration::ZERO).err()));
        let free = lock(own, FREE).is_ok();
        let ended = nix::sys::signal::kill(Pid::from_raw(child), nix::sys::signal::SIGKILL)
            .and_then(|()| nix::sys::wait::waitpid(Pid::from_raw(child), None));
        // Children of other tests share this memory until they execute their program.
        let (number, refused) = held.unwrap();
        assert!(number >= 2 && refused.is_some_and(|why| why.contains("another pagelift works on it")), "{number}");
        assert!(free && ended.is_ok());
    }

    /// For locks of other tests on this process.
    const FREE: Duration = Duration::from_secs(60);

    #[test]
    fn a_lock_on_one_sharer_excludes_lifts_of_the_others() {
        let mut sharers = [1, 2].map(|_| Command::new("sleep").arg("60").spawn().unwrap());
        let [one, other] = sharers.each_ref().map(|child| child.id() as i32);
        let held = lock(other, Duration::ZERO).unwrap();
        assert_eq!(held.len(), 1, "a process that shares its memory with nobody");
        let both = |pid| lock_each(pid, &[one, other], Instant::now());
        assert!(both(one).is_err_and(|why| why.contains("another pagelift works on it")));
        drop(held);
        let held = both(one).unwrap();
        assert_eq!(held.len(), 2);
        assert!(lock(one, Duration::ZERO).is_err() && lock(other, Duration::ZERO).is_err());
        drop(held);
        let end = |child: &mut Child| child.kill().and_then(|()| child.wait());
        end(&mut sharers[1]).unwrap();
        assert_eq!(both(one).map(|locks| locks.len()), Ok(1), "one that has ended");
        assert!(both(other).is_err_and(|why| why.starts_with("opening")));
        end(&mut sharers[0]).unwrap();
    }
}
