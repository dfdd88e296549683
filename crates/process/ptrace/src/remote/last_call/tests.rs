use super::*;
use crate::remote::Injector;
use crate::remote::guest_code::mappings_with_room;
use crate::remote::status::ThreadStatus;
use crate::remote::tracee::{Running, Stopped, Waited};
use linux::pages::base_page;
use linux::text::text_of;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

const WANTED: &[u8] = arch::CALL_AND_RETURN;
const STEP: usize = arch::INSTRUCTION_ALIGNMENT;

#[test]
fn the_instructions_are_found_whole_or_not_at_all() {
    assert_eq!(call_and_return(&[]), None);
    assert_eq!(call_and_return(WANTED), Some(0));
    assert_eq!(call_and_return(&WANTED[..WANTED.len() - 1]), None);
    for before in [STEP, 3 * STEP, 100 * STEP] {
        // Beginnings without the rest.
        let begun: Vec<u8> = WANTED[..WANTED.len() - 1].iter().copied().cycle().take(before).collect();
        let code = [&begun, WANTED, WANTED].concat();
        assert_eq!(call_and_return(&code), Some(before));
        assert_eq!(call_and_return(&code[..before + WANTED.len() - 1]), None);
        assert_eq!(call_and_return(&vec![WANTED[0]; before]), None);
    }
    // Elsewhere than at an instruction.
    let code = [&[0; 1], WANTED, &[0; 3]].concat();
    assert_eq!(call_and_return(&code), (STEP == 1).then_some(1));
}

#[test]
fn they_are_found_wherever_reading_begins_anew() {
    let pid = nix::unistd::getpid();
    let memory = RemoteMemory::open(pid.as_raw()).unwrap();
    let length = 2 * READ_AT_A_TIME as usize + STEP;
    let middle = READ_AT_A_TIME as usize;
    let at_edges = [0..16, middle - 16..middle + 16, length - 16..length - WANTED.len() + 1];
    for offset in at_edges.into_iter().flat_map(|edge| edge.step_by(STEP)) {
        let mut code: Vec<u8> = WANTED[..WANTED.len() - 1].iter().copied().cycle().take(length).collect();
        let here = |code: &[u8]| find_in(&memory, AddressRange::sized(Address(code.as_ptr() as u64), length as u64));
        assert_eq!(here(&code), None);
        code[offset..offset + WANTED.len()].copy_from_slice(WANTED);
        assert_eq!(here(&code), Some(Address(code.as_ptr() as u64) + offset as u64));
    }
    assert_eq!(find_in(&memory, AddressRange::sized(Address(0), 4096)), None);
}

/// A process that is about to enter its dynamic linker and has made a call by `guest_code`.
struct Started {
    child: Child,
    stopped: Stopped,
    memory: RemoteMemory,
    vdso: AddressRange,
    call: LastCall,
}

impl Started {
    fn new() -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; exec echo hello"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        // `spawn` may return before the end of the shell's own exec, which is not seen then.
        let mut running = Running::seize(pid, libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD).unwrap();
        child.stdin.take().unwrap().write_all(b"line\n").unwrap();
        let stopped = loop {
            let Waited::Stopped(stopped, stop) = running.wait().unwrap() else { panic!("it has ended") };
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            if matches!(stop, Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. }) && name == "echo\n" {
                break stopped;
            }
            running = stopped.resume(Resume::Continue, 0);
        };
        let space = AddressSpace::parse(&text_of(format!("/proc/{pid}/maps")).unwrap()).unwrap();
        let vdso = mappings_with_room(&space).next().unwrap();
        let mut saved = requests::registers(pid).unwrap();
        guest::after_exec(&mut saved);
        let mut injector = Injector::with_registers(&stopped, &space, &ThreadStatus::read(pid), saved).unwrap();
        injector.call(libc::SYS_getpid, [0; 6]).unwrap().unwrap();
        injector.finish().unwrap();
        let memory = RemoteMemory::open(pid.as_raw()).unwrap();
        let saved = requests::registers(pid).unwrap();
        let code = AddressRange::sized(vdso.end().align_down(base_page()) - 64, 64);
        let linker = space.find(arch::instruction_pointer(&saved)).unwrap().range;
        let call = LastCall::find(pid, &memory, code, &saved, &space, linker, base_page()).unwrap();
        Self { child, stopped, memory, vdso, call }
    }

    /// Bytes of the vDSO that are the process's own.
    fn copied(&self) -> u64 {
        let smaps = text_of(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let of_vdso = smaps.split_once("[vdso]").unwrap().1;
        let anonymous = of_vdso.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        anonymous.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    fn resume_to_call(&self) {
        requests::resume(self.call.pid, Resume::ToSystemCall, 0).unwrap();
        let stop = SpinWait::new().wait_until(self.call.pid, Instant::now() + LONGEST_CALL);
        assert_eq!(stop, Ok(Some(WaitReport::Stopped(Stop::SystemCall))));
    }
}

fn ends_well(mut child: Child) {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() && said == "hello\n", "{status}: {said:?}");
}

#[test]
fn the_page_is_dropped_and_the_thread_has_its_registers() {
    let started = Started::new();
    let contents = || {
        let mut bytes = vec![0; started.vdso.len() as usize];
        started.memory.read(started.vdso.start(), &mut bytes).unwrap();
        bytes
    };
    let (before, copied) = (contents(), started.copied());
    let registers = || format!("{:?}", requests::registers(started.call.pid).unwrap());
    let had = registers();
    let ended = started.call.make(&started.memory, SpinWait::new()).unwrap();
    assert_eq!(ended, Ended::Returned { result: Ok(()), group_stopped: false });
    assert_eq!((copied, started.copied()), (base_page().bytes(), 0));
    assert!(contents() == before && registers() == had);
    started.stopped.detach(0).unwrap();
    ends_well(started.child);
}

#[test]
fn a_signal_in_between_has_its_effect() {
    for (signal, ends) in [(libc::SIGCHLD, false), (libc::SIGTERM, true)] {
        let Started { mut child, stopped, memory, call, .. } = Started::new();
        nix::sys::signal::kill(call.pid, nix::sys::signal::Signal::try_from(signal).unwrap()).unwrap();
        let ended = call.make(&memory, SpinWait::new()).unwrap();
        if ends {
            assert_eq!(ended, Ended::Gone { executed: false });
            drop(child.wait());
        } else {
            assert_eq!(ended, Ended::Returned { result: Ok(()), group_stopped: false });
            stopped.detach(0).unwrap();
            ends_well(child);
        }
    }
}

/// A thread is no longer traced when the thread that traces it has ended.
#[test]
fn it_starts_whenever_its_tracer_ends() {
    for stops in 0..=2 {
        let tracer = std::thread::spawn(move || {
            let started = Started::new();
            started.call.send(&started.memory).unwrap();
            (0..stops).for_each(|_| started.resume_to_call());
            started.child
        });
        ends_well(tracer.join().unwrap());
    }
}
