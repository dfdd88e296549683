//! Entering a program in which a lift was killed.

use super::FREE_TIMEOUT;
use crate::attach::call_page::CallPage;
use crate::attach::inherited::{is_inherited, may_return_to};
use crate::attach::stop::LiveProcess;
use crate::remote::RemoteMemory;
use crate::remote::arch;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until no thread is in the code of a killed lift, or in a signal handler that returns to it. The thread leaves
/// by itself; before that nothing there may be changed. A child has no thread in the code that it has inherited.
pub(super) fn wait_until_free(process: &mut LiveProcess, page: &CallPage, memory: &RemoteMemory) -> Result<(), String> {
    let deadline = Instant::now() + FREE_TIMEOUT;
    let is_inherited = page.is_occupied(memory) && is_inherited(page, memory, process.pid());
    loop {
        // On AArch64 it may wait there for long, and is taken out.
        if is_inherited || !page.is_occupied(memory) || !arch::SHOWS_CALLS {
            let thread = process.stop_all().map_err(|error| error.to_string())?;
            if !page.is_memory_of(thread, memory).unwrap_or(false) {
                let error = process.note_exec();
                process.release_all();
                return Err(error.to_string());
            }
            // Errors are ignored: a thread that has ended is not in the code.
            process.threads_held().for_each(|thread| drop(page.take_out(memory, thread)));
            let is_recorded = page.is_occupied(memory);
            let occupied = match is_recorded && is_inherited {
                true => may_return_to(page.code(), process, memory),
                false => is_recorded || process.stands_in(page.code()),
            };
            process.release_all();
            if !occupied {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            return Err(
                "a thread of it still makes a call for a pagelift that was killed; fix: try again later".to_owned()
            );
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{LiveExecutor, Target};
    use crate::test_program;
    use address_space::{Address, AddressSpace, PageSize};
    use lift_execution::CallError;
    use nix::libc;
    use std::fs::File;
    use std::hint::black_box;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, ChildStdin, ChildStdout};

    /// Set in the environment of the program that forks.
    const FORKS: &str = "PAGELIFT_TEST_FORKS";

    /// The program: its threads wait for a word, and whoever gets one forks. The child waits with that word on its stack.
    #[test]
    fn program_that_forks() {
        if std::env::var_os(FORKS).is_none() {
            return;
        }
        let own = std::process::id() as i32;
        let fork_for_each_word = || {
            // A descriptor of its own: no thread holds a lock for which another one waits.
            let mut words = File::open("/proc/self/fd/0").unwrap();
            let mut word = [0; 8];
            while words.read_exact(&mut word).is_ok() {
                // SAFETY:
                // - the child makes only calls that are safe in a signal handler, until it is killed.
                match unsafe { libc::fork() } {
                    0 => wait_with(word, own),
                    child => println!("\nforked {child}"),
                }
            }
        };
        thread::scope(|threads| {
            threads.spawn(fork_for_each_word);
            fork_for_each_word();
        });
    }

    fn wait_with(word: [u8; 8], parent: i32) -> ! {
        let kept = black_box([word; 8]);
        loop {
            // SAFETY:
            // - all take integers at the most, and touch no memory.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // It may have been killed before that.
                if libc::getppid() != parent {
                    libc::_exit(0);
                }
                libc::pause();
            }
            black_box(&kept);
        }
    }

    struct Program {
        child: Child,
        to: ChildStdin,
        from: BufReader<ChildStdout>,
    }

    impl Drop for Program {
        fn drop(&mut self) {
            // One that has ended by itself has failed its test.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl Program {
        fn start() -> Self {
            let mut child = test_program::spawn("attach::executor::entering::tests::program_that_forks", FORKS);
            let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            let mut program = Self { child, to, from };
            // Its threads are there after the first fork.
            program.fork(0);
            program
        }

        fn fork(&mut self, word: u64) -> i32 {
            self.to.write_all(&word.to_ne_bytes()).unwrap();
            let mut lines = self.from.by_ref().lines();
            lines.find_map(|line| line.unwrap().strip_prefix("forked ")?.parse().ok()).unwrap()
        }

        fn pid(&self) -> i32 {
            self.child.id() as i32
        }
    }

    fn executor(pid: i32) -> Result<LiveExecutor, String> {
        let target = Target::open(pid)?;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let base_page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap();
        let base_page = PageSize::new(base_page as u64).unwrap();
        // Without objects, its code lies behind the vDSO.
        LiveExecutor::new(target, &AddressSpace::parse(&maps).unwrap(), &[], base_page).map_err(|error| error.why)
    }

    fn own_number(executor: &mut LiveExecutor) -> Result<u64, CallError> {
        executor.with_thread(|calls| calls.call("getpid", libc::SYS_getpid, [0; 6]))
    }

    /// Forks while a thread is in the code of the call page, between two of its calls.
    fn fork_in_between(program: &mut Program, executor: &mut LiveExecutor, word: u64) -> i32 {
        let forked = executor.with_thread(|calls| {
            calls.call("getpid", libc::SYS_getpid, [0; 6])?;
            let child = program.fork(word);
            calls.call("getpid", libc::SYS_getpid, [0; 6])?;
            Ok(child)
        });
        forked.unwrap()
    }

    #[test]
    fn a_child_is_not_taken_for_occupied_by_a_thread_that_only_its_parent_has() {
        let mut program = Program::start();
        let mut parent = executor(program.pid()).unwrap();
        let child = fork_in_between(&mut program, &mut parent, 0);
        assert!(parent.page.is_occupied(&Target::open(child).unwrap().memory), "nothing is recorded in the child");
        drop(parent.finish());
        let mut forked = executor(child).unwrap();
        assert_eq!(own_number(&mut forked), Ok(child as u64));
        drop(forked.finish());
        // The parent is as it was.
        let mut parent = executor(program.pid()).unwrap();
        assert_eq!(own_number(&mut parent), Ok(program.pid() as u64));
        drop(parent.finish());
    }

    #[test]
    fn a_child_of_a_signal_handler_that_returns_to_the_code_is_left_alone() {
        let mut program = Program::start();
        let mut parent = executor(program.pid()).unwrap();
        let code = parent.page.code();
        for (word, returns) in [(code.start() + 9, true), (Address(0), false), (code.start(), false)] {
            let child = fork_in_between(&mut program, &mut parent, word.0);
            let memory = Target::open(child).unwrap().memory;
            assert!(is_inherited(&parent.page, &memory, nix::unistd::Pid::from_raw(child)));
            let mut process = LiveProcess::new(child);
            process.stop_all().unwrap();
            let found = may_return_to(code, &process, &memory);
            process.release_all();
            assert_eq!(found, returns, "{word}");
        }
        drop(parent.finish());
    }
}
