use super::*;
use crate::counted_signals::{Program, SIGNAL, Task, Tracer, send};

/// Set in the environment of a lifter that holds a thread at a signal.
const HOLDS: &str = "PAGELIFT_TEST_HOLDS_A_SIGNAL";
/// Set in the environment of a lifter that stops and releases threads all the time.
const STOPS: &str = "PAGELIFT_TEST_STOPS_THREADS";

/// Number of lifters that are killed, and of signals that are sent for each: a pipe has room for the values of all.
const KILLED: u32 = 60;
const SIGNALS: u32 = 100;

/// A lifter that is killed while it holds a thread at a signal.
#[test]
fn lifter_that_holds_a_signal() {
    let Some(task) = Task::read(HOLDS) else { return };
    let mut process = LiveProcess::new(task.pid.as_raw());
    let threads = process.threads(|_| true).unwrap().threads;
    threads.iter().for_each(|&thread| assert!(process.seize(thread).unwrap()));
    send(task.pid, 7);
    while !threads.iter().any(|&thread| requests::signal_information(Pid::from_raw(thread)).is_ok()) {
        thread::yield_now();
    }
    process.stop_all().unwrap();
    assert!(process.stopped.values().any(|held| held.signal == SIGNAL));
    task.wait();
}

#[test]
fn a_signal_at_which_a_killed_lifter_holds_a_thread_is_delivered() {
    let mut program = Program::start();
    Tracer::start("attach::stop::tests::lifter_that_holds_a_signal", HOLDS, &program).kill();
    assert_eq!(program.received(1), [7]);
}

/// A lifter that is killed at any moment.
#[test]
fn lifter_that_stops_and_releases() {
    let Some(task) = Task::read(STOPS) else { return };
    let mut process = LiveProcess::new(task.pid.as_raw());
    task.is_ready();
    loop {
        let _ = process.stop_all();
        process.release_all();
    }
}

#[test]
fn no_queued_signal_is_lost_or_doubled_while_lifters_are_killed() {
    let mut program = Program::start();
    for killed in 0..KILLED {
        let lifter = Tracer::start("attach::stop::tests::lifter_that_stops_and_releases", STOPS, &program);
        let first = killed * SIGNALS;
        let mut signals = first..first + SIGNALS;
        // It is killed when all threads are stopped, after another number of signals each time.
        let moment = first + killed * 37 % SIGNALS;
        signals.by_ref().find(|&value| {
            send(program.pid(), value);
            value >= moment && program.is_stopped()
        });
        lifter.kill();
        signals.for_each(|value| send(program.pid(), value));
    }
    let sent: Vec<u32> = (0..KILLED * SIGNALS).collect();
    let received = program.received(sent.len());
    assert!(received == sent, "{} of {} signals were received", received.len(), sent.len());
}
