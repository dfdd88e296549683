//! The follower with reports in orders that the kernel seldom gives: each test waits for one thread by its number, and leaves
//! the reports of the others pending.

use super::*;
use crate::remote::tracee::Running;
use crate::test_program;
use nix::sys::signal::{Signal, kill};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

const ALONE: &str = "PAGELIFT_TEST_FOLLOWS_ALONE";

/// Runs a test in a separate process: a follower takes the reports of all children of its process.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let output = test_program::spawn(&format!("start::follow::tests::{name}"), ALONE).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Notes the programs that are executed, and ends them.
#[derive(Default)]
struct Executed(Vec<i32>);

impl Handler for Executed {
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec {
        self.0.push(stop.pid());
        kill(Pid::from_raw(stop.pid()), Signal::SIGKILL).unwrap();
        AfterExec::Nothing
    }

    fn mapped(&mut self, _: &ExecStop) -> Option<Address> {
        None
    }

    fn at_entry(&mut self, _: &EntryStop) -> After {
        After::Follow
    }

    fn missed(&mut self, _: i32, _: &io::Error) -> After {
        After::Follow
    }

    fn refused(&mut self, _: i32, _: &str) -> After {
        After::Follow
    }

    fn killed(&mut self, _: i32, _: &InjectError) {}
}

/// A shell that is followed, and about to start another program and to end at once.
fn shell() -> (Child, Pid, Follower) {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; exec >/dev/null; read line; sleep 60 & exit"]);
    let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // `spawn` returns while the kernel still executes the shell.
    shell.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
    let pid = Pid::from_raw(shell.id() as i32);
    let follower = Follower::seize(pid, true).unwrap();
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    (shell, pid, follower)
}

fn report_of(pid: Pid) -> Waited {
    Running::already_traced(pid).wait().unwrap()
}

/// Waits until a thread has made another one, and returns its report and the number of the new one.
fn fork_of(pid: Pid) -> (Waited, Pid) {
    let report = report_of(pid);
    let Waited::Stopped(_, Stop::Event { event, .. }) = &report else { panic!("{report:?}") };
    assert!([libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK, libc::PTRACE_EVENT_CLONE].contains(event), "{event}");
    (report, Pid::from_raw(requests::event_message(pid).unwrap() as i32))
}

/// Follows one thread to its end, whatever others have to report.
fn follow_to_its_end<H: Handler>(following: &mut Following<'_, H>, pid: Pid) {
    while following.follower.threads.contains_key(&pid.as_raw()) {
        following.go_on(report_of(pid));
    }
}

#[test]
fn a_child_that_is_reported_after_the_end_of_its_parent_is_followed() {
    alone("a_child_that_is_reported_after_the_end_of_its_parent_is_followed", || {
        let (_shell, pid, follower) = shell();
        let mut executed = Executed::default();
        let mut following = Following { follower, handler: &mut executed };
        let (report, child) = fork_of(pid);
        following.go_on(report);
        assert!(following.follower.threads.contains_key(&child.as_raw()));
        follow_to_its_end(&mut following, pid);
        let follower = following.follower;
        follower.run(&mut executed).unwrap();
        assert_eq!(executed.0, [child.as_raw()]);
    });
}

#[test]
fn a_child_of_a_parent_that_was_killed_at_the_fork_is_followed() {
    alone("a_child_of_a_parent_that_was_killed_at_the_fork_is_followed", || {
        let (_shell, pid, follower) = shell();
        let mut executed = Executed::default();
        let mut following = Following { follower, handler: &mut executed };
        // The kernel reports no event of a thread that has been killed since.
        let (_, child) = fork_of(pid);
        kill(pid, Signal::SIGKILL).unwrap();
        follow_to_its_end(&mut following, pid);
        let follower = following.follower;
        follower.run(&mut executed).unwrap();
        assert_eq!(executed.0, [child.as_raw()]);
    });
}

#[test]
fn a_child_that_has_ended_before_its_parent_reports_the_fork_is_not_waited_for() {
    alone("a_child_that_has_ended_before_its_parent_reports_the_fork_is_not_waited_for", || {
        let (_shell, pid, follower) = shell();
        let mut executed = Executed::default();
        let mut following = Following { follower, handler: &mut executed };
        let (report, child) = fork_of(pid);
        following.go_on(report_of(child));
        assert!(following.follower.threads.contains_key(&child.as_raw()));
        kill(child, Signal::SIGKILL).unwrap();
        follow_to_its_end(&mut following, child);
        following.go_on(report);
        assert!(!following.follower.threads.contains_key(&child.as_raw()));
        let follower = following.follower;
        follower.run(&mut executed).unwrap();
        assert_eq!(executed.0, []);
    });
}

#[test]
fn a_child_that_is_killed_before_its_first_stop_is_forgotten() {
    alone("a_child_that_is_killed_before_its_first_stop_is_forgotten", || {
        let (_shell, pid, follower) = shell();
        let mut executed = Executed::default();
        let mut following = Following { follower, handler: &mut executed };
        let (report, child) = fork_of(pid);
        kill(child, Signal::SIGKILL).unwrap();
        following.go_on(report);
        let follower = following.follower;
        follower.run(&mut executed).unwrap();
        assert_eq!(executed.0, []);
    });
}

/// Makes each program that is executed sleep at its entry for longer than a call may take.
struct Sleeps {
    after: After,
    errors: Vec<String>,
}

impl Handler for Sleeps {
    fn at_exec(&mut self, _: &ExecStop) -> AfterExec {
        AfterExec::AtEntry
    }

    fn mapped(&mut self, _: &ExecStop) -> Option<Address> {
        None
    }

    fn at_entry(&mut self, stop: &EntryStop) -> After {
        let space = space_of(Pid::from_raw(stop.pid())).unwrap();
        let mut injector = stop.injector(&space).unwrap().within(Duration::from_millis(100));
        let time = injector.scratch(linux::pages::base_page()).unwrap().unwrap();
        injector.memory().write(time, &[1u64, 0].map(u64::to_ne_bytes).concat()).unwrap();
        let slept = injector.call(libc::SYS_nanosleep, [time.0, 0, 0, 0, 0, 0]);
        self.errors.extend(slept.err().map(|error| error.to_string()));
        self.after
    }

    fn missed(&mut self, _: i32, why: &io::Error) -> After {
        self.errors.push(why.to_string());
        After::Release
    }

    fn refused(&mut self, _: i32, why: &str) -> After {
        self.errors.push(why.to_owned());
        After::Release
    }

    fn stays(&self) -> bool {
        true
    }

    fn killed(&mut self, _: i32, error: &InjectError) {
        self.errors.push(error.to_string());
    }
}

#[test]
fn a_program_that_does_not_return_from_a_call_starts_once_the_call_returns() {
    alone("a_program_that_does_not_return_from_a_call_starts_once_the_call_returns", || {
        for (descendants, after) in [(false, After::Release), (true, After::Release), (true, After::Follow)] {
            let mut command = Command::new("sh");
            command.args(["-c", "echo ready; read line; exec echo started"]);
            let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut output = shell.stdout.take().unwrap();
            output.read_exact(&mut [0; 6]).unwrap();
            let pid = Pid::from_raw(shell.id() as i32);
            let follower = Follower::seize(pid, descendants).unwrap();
            shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let mut handler = Sleeps { after, errors: Vec::new() };
            follower.run(&mut handler).unwrap();
            let mut said = String::new();
            output.read_to_string(&mut said).unwrap();
            assert_eq!(said, "started\n");
            // The follower has waited for it, where it has followed it to its end.
            drop(shell.wait());
            let [error] = &handler.errors[..] else { panic!("{:?}", handler.errors) };
            assert!(error.starts_with("the process did not return from its calls within 0 s"), "{error}");
        }
    });
}

/// Asks each program that is executed to stop at its entry, and notes those that end unseen.
#[derive(Default)]
struct Unseen(Vec<i32>);

impl Handler for Unseen {
    fn at_exec(&mut self, stop: &ExecStop) -> AfterExec {
        let vector = fs::read(format!("/proc/{}/auxv", stop.pid())).unwrap();
        let words: Vec<_> = vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let entry = words.chunks_exact(2).find(|pair| pair[0] == linux::constants::AT_ENTRY).unwrap()[1];
        AfterExec::StopAt(Address(entry))
    }

    fn mapped(&mut self, _: &ExecStop) -> Option<Address> {
        None
    }

    fn at_entry(&mut self, _: &EntryStop) -> After {
        After::Release
    }

    fn missed(&mut self, _: i32, _: &io::Error) -> After {
        After::Release
    }

    fn ended_unseen(&mut self, pid: i32) {
        self.0.push(pid);
    }

    fn refused(&mut self, _: i32, _: &str) -> After {
        After::Release
    }

    fn killed(&mut self, _: i32, _: &InjectError) {}
}

/// On a busy machine the helper may not run as long as a program waits at its entry.
#[test]
fn a_program_that_ends_before_anyone_looks_after_its_entry_is_reported() {
    alone("a_program_that_ends_before_anyone_looks_after_its_entry_is_reported", || {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read line; exec true"]);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let pid = Pid::from_raw(shell.id() as i32);
        let follower = Follower::seize(pid, false).unwrap();
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut unseen = Unseen::default();
        follow_to_its_end(&mut Following { follower, handler: &mut unseen }, pid);
        // The follower has waited for it.
        drop(shell.wait());
        assert_eq!(unseen.0, [pid.as_raw()]);
    });
}
