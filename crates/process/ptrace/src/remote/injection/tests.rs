use super::*;
use crate::remote::tracee::{Running, Waited};
use linux::pages::base_page;
use linux::text::text_of;
use std::process::Command;

fn stopped(pid: Pid) -> Stopped {
    let running = Running::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
    running.interrupt().unwrap();
    match running.wait().unwrap() {
        Waited::Stopped(stopped, _) => stopped,
        Waited::Ended(_) => panic!("the process has ended"),
    }
}

#[test]
fn calls_leave_nothing_in_the_process() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let stopped = stopped(pid);
    let maps = || text_of(format!("/proc/{pid}/maps")).unwrap();
    let (mapped, before) = (maps(), requests::registers(pid).unwrap());
    let mut injector =
        Injector::new(&stopped, &AddressSpace::parse(&mapped).unwrap(), &ThreadStatus::read(pid)).unwrap();
    let scratch = injector.scratch(base_page()).unwrap().unwrap();
    let top = arch::stack_pointer(&before);
    assert!(injector.scratch_range().is_none() && scratch + base_page().bytes() + guest::STACK_BYTES <= top);
    let page = |memory: &RemoteMemory| {
        let mut bytes = vec![0; base_page().bytes() as usize];
        memory.read(scratch, &mut bytes).unwrap();
        bytes
    };
    let bytes = page(injector.memory());
    injector.memory().write(scratch, b"/dev/null\0").unwrap();
    assert_ne!(page(injector.memory()), bytes);
    let open = [libc::AT_FDCWD as u64, scratch.0, libc::O_RDONLY as u64, 0, 0, 0];
    let descriptor = injector.call(numbers::SYS_openat, open).unwrap().unwrap();
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap();
    assert_eq!(link.to_str(), Some("/dev/null"));
    injector.finish().unwrap();
    let memory = RemoteMemory::open(pid.as_raw()).unwrap();
    let after = requests::registers(pid).unwrap();
    let found =
        (page(&memory) == bytes, maps() == mapped, arch::instruction_pointer(&after), arch::stack_pointer(&after));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, (true, true, arch::instruction_pointer(&before), top));
}

#[test]
fn dropping_it_in_the_midst_of_a_call_puts_the_thread_back() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let stopped = stopped(pid);
    let maps = text_of(format!("/proc/{pid}/maps")).unwrap();
    let space = AddressSpace::parse(&maps).unwrap();
    let vdso = mappings_with_room(&space).next().unwrap();
    let state = || {
        let memory = RemoteMemory::open(pid.as_raw()).unwrap();
        let mut code = vec![0; vdso.len() as usize];
        memory.read(vdso.start(), &mut code).unwrap();
        let registers = requests::registers(pid).unwrap();
        let places = (arch::instruction_pointer(&registers), arch::stack_pointer(&registers));
        (guest::state(&registers, requests::signal_mask(pid).unwrap()), places, code)
    };
    let before = state();
    let mut injector = Injector::new(&stopped, &space, &ThreadStatus::read(pid)).unwrap();
    let scratch = injector.scratch(base_page()).unwrap().unwrap();
    let bytes = || {
        let mut bytes = [0; 10];
        RemoteMemory::open(pid.as_raw()).unwrap().read(scratch, &mut bytes).unwrap();
        bytes
    };
    let below_stack = bytes();
    injector.memory().write(scratch, b"/dev/null\0").unwrap();
    assert_ne!(bytes(), below_stack);
    injector.begin(libc::SYS_getpid, [0; 6]).unwrap();
    drop(injector);
    assert!(state() == before && bytes() == below_stack);
    child.kill().unwrap();
    child.wait().unwrap();
}

impl Injector<'_> {
    /// Returns the injector with another limit for each call.
    pub(crate) fn within(self, longest: Duration) -> Self {
        let mut changed = self;
        changed.longest = longest;
        changed
    }
}

/// Begins a sleep of this length in the process, and returns the arguments of the call.
fn sleep_of(injector: &mut Injector<'_>, seconds: u64) -> [u64; 6] {
    let time = injector.scratch(base_page()).unwrap().unwrap();
    let bytes: Vec<u8> = [seconds, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    injector.memory().write(time, &bytes).unwrap();
    [time.0, 0, 0, 0, 0, 0]
}

#[test]
fn a_thread_that_does_not_return_from_a_call_is_left_alone_and_goes_on_by_itself() {
    // It is in no call, like a program at its entry.
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let stopped = stopped(pid);
    let maps = text_of(format!("/proc/{pid}/maps")).unwrap();
    let mask = requests::signal_mask(pid).unwrap();
    let space = AddressSpace::parse(&maps).unwrap();
    let injector = Injector::new(&stopped, &space, &ThreadStatus::read(pid)).unwrap();
    let code = injector.code.as_ref().unwrap().range();
    let mut injector = injector.within(Duration::from_millis(200));
    let arguments = sleep_of(&mut injector, 10);
    let begun = Instant::now();
    let error = injector.call(libc::SYS_nanosleep, arguments).unwrap_err();
    assert!(matches!(error, InjectError::NoReturn { .. }) && begun.elapsed() < Duration::from_secs(9), "{error}");
    assert!(matches!(injector.loss(), Some(InjectError::NoReturn { .. })));
    // No other call is made, and the thread is not changed.
    assert!(matches!(injector.call(libc::SYS_getpid, [0; 6]), Err(InjectError::NoReturn { .. })));
    injector.finish().unwrap();
    // The call returns, which the code reports by a signal.
    assert_eq!(wait::wait_for(pid), Ok(WaitReport::Stopped(Stop::Signal(libc::SIGURG))));
    requests::resume(pid, Resume::Continue, 0).unwrap();
    let goes_on = || {
        requests::interrupt(pid).unwrap();
        assert!(matches!(wait::wait_for(pid), Ok(WaitReport::Stopped(Stop::Event { .. }))));
        let at = arch::instruction_pointer(&requests::registers(pid).unwrap());
        let goes_on = !code.contains(at) && requests::signal_mask(pid) == Ok(mask);
        requests::resume(pid, Resume::Continue, 0).unwrap();
        goes_on
    };
    while !goes_on() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not continue");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_error_names_the_call_and_the_time() {
    let said = InjectError::no_return(numbers::SYS_openat, LONGEST_CALL).to_string();
    assert!(said.starts_with("the process did not return from openat within 30 s: it completes the call"), "{said}");
}
