//! Entering a program, also one in which a lift was killed.

use super::FREE_TIMEOUT;
use crate::attach::call_page::CallPage;
use crate::attach::code_slot::{CodeSlot, Contents};
use crate::attach::inherited::{is_inherited, may_return_to, number_of};
use crate::attach::own_mapping;
use crate::attach::stop::{LiveProcess, NotPrepared};
use crate::remote::RemoteMemory;
use crate::remote::arch;
use address_space::{AddressSpace, LoadedObject, PageSize};
use nix::unistd::Pid;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

fn refused_memory(error: &io::Error) -> String {
    format!("its memory cannot be read or written: {error}")
}

/// Returns the call page of a program, new or left behind by a killed lift, ready for calls.
///
/// # Errors
/// [`NotPrepared`]: why no call can be made.
pub(super) fn enter(
    process: &mut LiveProcess,
    memory: &RemoteMemory,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
) -> Result<CallPage, NotPrepared> {
    let mut slots = CodeSlot::find(memory, space, objects, base_page).map_err(|error| refused_memory(&error))?;
    if let Some(named) = slots.first().and_then(page_named_by) {
        let left_behind = CallPage::of(slots.remove(0), named);
        wait_until_free(process, &left_behind, memory)?;
        slots.push(left_behind.into_slot());
    }
    let thread = process.stop_one()?;
    let page = enter_by(process, thread, slots, memory, base_page);
    process.release_all();
    page
}

fn page_named_by(slot: &CodeSlot) -> Option<address_space::Address> {
    match slot.contents() {
        Contents::Nothing => None,
        Contents::Once(page) | Contents::Loop(page) => Some(page),
    }
}

/// Returns a call page, as [`enter`] does, by a stopped thread. No thread is in the code of the given slots.
fn enter_by(
    process: &mut LiveProcess,
    thread: Pid,
    slots: Vec<CodeSlot>,
    memory: &RemoteMemory,
    base_page: PageSize,
) -> Result<CallPage, NotPrepared> {
    let length = CodeSlot::length();
    let slot = slots.into_iter().find(|slot| page_named_by(slot).is_some() || slot.is_in_reach(thread));
    let slot = slot.ok_or_else(|| {
        format!("no room for {length} bytes of code after any of its segments, nor after the vDSO; fix: `pagelift run`")
    })?;
    // Nothing is written before the facts of the plan are known to belong to this program.
    match slot.is_memory_of(thread, memory) {
        Ok(true) => {}
        Ok(false) => return Err(process.note_exec().into()),
        Err(error) => return Err(refused_memory(&error).into()),
    }
    let space = own_mapping::space_of(process.pid()).map_err(|error| refused_memory(&error))?;
    let data = match page_named_by(&slot).filter(|&page| CallPage::is_at(page, memory, &space)) {
        Some(page) => page,
        None => own_mapping::map(process, thread, &slot, memory, base_page)?,
    };
    let page = CallPage::of(slot, data);
    page.install(memory, thread, number_of(process.pid())).map_err(|error| refused_memory(&error))?;
    Ok(page)
}

/// Waits until no thread is in the code of a killed lift, or in a signal handler that returns to it. The thread leaves
/// by itself; before that nothing there may be changed. A child has no thread in the code that it has inherited.
fn wait_until_free(process: &mut LiveProcess, page: &CallPage, memory: &RemoteMemory) -> Result<(), NotPrepared> {
    let deadline = Instant::now() + FREE_TIMEOUT;
    let is_inherited = page.is_occupied(memory) && is_inherited(page, memory, process.pid());
    loop {
        // On AArch64 it may wait there for long, and is taken out.
        if is_inherited || !page.is_occupied(memory) || !arch::SHOWS_CALLS {
            let thread = process.stop_all()?;
            // `Err` where the slot has changed since it was found: nothing there is touched then.
            let is_same = page.slot().is_memory_of(thread, memory);
            if !is_same.as_ref().is_ok_and(|&same| same) {
                let why = is_same.map_or_else(|error| refused_memory(&error), |_| process.note_exec().to_string());
                process.release_all();
                return Err(why.into());
            }
            // Errors are ignored: a thread that has ended is not in the code.
            process.threads_held().for_each(|thread| drop(page.take_out(memory, thread)));
            let is_recorded = page.is_occupied(memory) && !is_inherited;
            // The code for one call records nothing, and a thread that has recorded itself as outside may still be at the last
            // instructions: a signal handler that returns there is found on the stacks.
            let occupied = is_recorded || may_return_to(page.code(), process, memory);
            process.release_all();
            if !occupied {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            return Err("a thread still makes a call for a pagelift that was killed; fix: try again later"
                .to_owned()
                .into());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::remote_call::Means;
    use crate::attach::{LiveExecutor, Target};
    use crate::remote::injection::InjectError;
    use crate::remote::requests;
    use crate::remote::wait;
    use crate::test_program;
    use address_space::{Address, AddressRange, AddressSpace, PageSize};
    use lift_execution::CallError;
    use nix::libc;
    use nix::unistd::Pid;
    use std::fs::File;
    use std::hint::black_box;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
            // A separate descriptor: no thread holds a lock for which another one waits.
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
            program.fork(0);
            program.await_threads();
            program
        }

        /// Waits until all three threads wait. One that is just being started maps its stack, and one that starts it blocks all
        /// signals meanwhile.
        fn await_threads(&self) {
            let deadline = Instant::now() + Duration::from_secs(60);
            let waits =
                |status: &String| status.contains("\nState:\tS") && status.contains("\nSigBlk:\t0000000000000000");
            let settled = |statuses: Vec<String>| statuses.len() == 3 && statuses.iter().all(waits);
            while !settled(statuses(self.pid())) {
                assert!(Instant::now() < deadline, "its threads do not wait");
                thread::yield_now();
            }
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
        // Without objects, its code is after the vDSO.
        LiveExecutor::new(target, &AddressSpace::parse(&maps).unwrap(), &[], base_page()).map_err(|error| error.why)
    }

    fn base_page() -> PageSize {
        let base_page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap();
        PageSize::new(base_page as u64).unwrap()
    }

    fn own_number(executor: &mut LiveExecutor) -> Result<u64, CallError> {
        executor.with_thread(|calls| calls.call("getpid", libc::SYS_getpid, [0; 6]))
    }

    #[test]
    fn a_fault_of_the_code_is_not_left_to_the_program() {
        const UNDEFINED: &[u8] = if cfg!(target_arch = "x86_64") { &[0x0f, 0x0b] } else { &[0; 4] };
        // It is in no call: it stays at the stop of the fault until it is released.
        let mut child =
            Command::new("sh").args(["-c", "echo; while :; do :; done"]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id() as i32;
        let mut executor = executor(pid).unwrap();
        let made = executor.with_thread(|calls| {
            let (at, mut code) = (calls.page.code().start(), vec![0; UNDEFINED.len()]);
            calls.memory.read(at, &mut code).unwrap();
            calls.memory.write(at, UNDEFINED).unwrap();
            let made = calls.call("getpid", libc::SYS_getpid, [0; 6]);
            calls.memory.write(at, &code).unwrap();
            assert!(matches!(calls.failed, Some(InjectError::Fault(libc::SIGILL))), "{:?}", calls.failed);
            // If this process were killed now, the kernel would deliver a signal whose report is pending.
            Ok((made.is_err(), wait::poll_keeping_signals(Pid::from_raw(pid))))
        });
        drop((executor.finish(), child.kill(), child.wait()));
        assert_eq!(made, Ok((true, Ok(None))));
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

    /// Sends a thread into code with a call and leaves it alone, as a lift does that is killed just then: before it has
    /// blocked the thread's signals, or after.
    fn leave_alone(
        pid: i32,
        means: Means<'_>,
        memory: &RemoteMemory,
        number: i64,
        arguments: [u64; 6],
        blocks_signals: bool,
    ) {
        let mut process = LiveProcess::new(pid);
        let thread = process.stop_one().unwrap();
        let mut registers = requests::registers(thread).unwrap();
        arch::rewind_call(&mut registers);
        let mask = requests::signal_mask(thread).unwrap();
        means.set_return(memory, thread, &registers, mask).unwrap();
        means.set_call(memory, &mut registers, number, arguments).unwrap();
        requests::set_registers_of_same_program(thread, &registers).unwrap();
        if blocks_signals {
            requests::set_signal_mask(thread, u64::MAX).unwrap();
        }
        process.release_all();
    }

    /// The status of each thread (proc_pid_status(5)).
    fn statuses(pid: i32) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap()).collect()
    }

    fn blocked_signals(pid: i32) -> Vec<String> {
        let blocked = |status: &String| status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned();
        statuses(pid).iter().map(blocked).collect()
    }

    fn slot_of(pid: i32, memory: &RemoteMemory) -> CodeSlot {
        let space = own_mapping::space_of(Pid::from_raw(pid)).unwrap();
        CodeSlot::find(memory, &space, &[], base_page()).unwrap().remove(0)
    }

    fn has_page(pid: i32, at: Address, memory: &RemoteMemory) -> bool {
        CallPage::is_at(at, memory, &own_mapping::space_of(Pid::from_raw(pid)).unwrap())
    }

    #[test]
    fn a_thread_that_a_killed_lift_leaves_with_one_call_makes_it_and_the_next_lift_takes_its_page_over() {
        let mut program = Program::start();
        let (pid, blocked) = (program.pid(), blocked_signals(program.pid()));
        for blocks_signals in [false, true] {
            let memory = RemoteMemory::open(pid).unwrap();
            let slot = slot_of(pid, &memory);
            let space = own_mapping::space_of(Pid::from_raw(pid)).unwrap();
            let length = crate::attach::call_page::mapping_length(base_page());
            let at = own_mapping::free_place(&space, length, base_page(), 0, base_page()).unwrap();
            let map = [at.0, length, 3, crate::attach::call_page::MAPPING_FLAGS as u64, u64::MAX, 0];
            leave_alone(pid, Means::Once(&slot, at), &memory, libc::SYS_mmap, map, blocks_signals);
            // The program works; each of its threads has made a call.
            program.fork(0);
            let mut next = executor(pid).unwrap();
            assert_eq!((next.page.data(), has_page(pid, at, &memory)), (at, true));
            assert_eq!(own_number(&mut next), Ok(pid as u64));
            // The same with the call that unmaps it: then there is nothing to take over.
            let unmap = [at.0, length, 0, 0, 0, 0];
            let means = Means::Once(next.page.slot(), at);
            leave_alone(pid, means, &memory, libc::SYS_munmap, unmap, blocks_signals);
            drop(next);
            program.fork(0);
            let mut last = executor(pid).unwrap();
            assert_eq!(own_number(&mut last), Ok(pid as u64));
            let page = last.page.data();
            drop(last.finish());
            assert!(!has_page(pid, page, &memory) && !has_page(pid, at, &memory));
            assert_eq!(slot_of(pid, &memory).contents(), Contents::Nothing);
            assert_eq!(blocked_signals(pid), blocked);
        }
    }

    #[test]
    fn a_call_that_fails_marks_no_page() {
        let mut program = Program::start();
        let pid = program.pid();
        let memory = RemoteMemory::open(pid).unwrap();
        let slot = slot_of(pid, &memory);
        // The address is in use: the vDSO's.
        let at = slot.range().start().align_down(base_page());
        let map = [at.0, 0x1000, 3, crate::attach::call_page::MAPPING_FLAGS as u64, u64::MAX, 0];
        leave_alone(pid, Means::Once(&slot, at), &memory, libc::SYS_mmap, map, true);
        program.fork(0);
        let mut next = executor(pid).unwrap();
        assert_ne!(next.page.data(), at);
        assert_eq!(own_number(&mut next), Ok(pid as u64));
        drop(next.finish());
    }

    #[test]
    fn a_page_without_its_marks_is_not_written_to() {
        let program = Program::start();
        let executor = executor(program.pid()).unwrap();
        let (page, memory) = (&executor.page, RemoteMemory::open(program.pid()).unwrap());
        let contents = || {
            let mut bytes = vec![0; 0x1000];
            memory.read(page.data(), &mut bytes).unwrap();
            bytes
        };
        let mark = memory.read_word(page.data()).unwrap();
        memory.write(page.data(), &(!mark).to_ne_bytes()).unwrap();
        let before = contents();
        let copies = [AddressRange::sized(Address(0x10_0000), 0x1000)].into_iter().collect();
        let written = [
            page.set_outside(&memory),
            page.set_suspended_setting(&memory, 1),
            page.set_call(&memory, libc::SYS_getpid, [1; 6]),
            page.withdraw_call(&memory),
            page.set_staging(&memory, &copies),
            page.place(&memory, b"word").map(drop),
        ];
        assert!(written.iter().all(Result::is_err), "{written:?}");
        assert!(contents() == before);
        memory.write(page.data(), &mark.to_ne_bytes()).unwrap();
        drop(executor.finish());
    }

    #[test]
    fn code_that_somebody_has_changed_is_not_written_over() {
        let program = Program::start();
        let mut executor = executor(program.pid()).unwrap();
        let at = executor.page.code().start() + 3;
        let memory = RemoteMemory::open(program.pid()).unwrap();
        let before = memory.read_word(at).unwrap();
        memory.write(at, &(!before).to_ne_bytes()).unwrap();
        own_number(&mut executor).unwrap_err();
        assert_eq!(memory.read_word(at).unwrap(), !before);
        let why = executor.refusal().unwrap().to_owned();
        assert!(why.contains("was changed by the program"), "{why}");
        drop(executor.finish());
        assert_eq!(memory.read_word(at).unwrap(), !before, "what the program has written is kept");
        memory.write(at, &before.to_ne_bytes()).unwrap();
    }

    const COPY: u64 = 0x4000;
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    fn map_as(executor: &mut LiveExecutor, at: u64, protection: i32, flags: i32) -> AddressRange {
        let arguments = [at, COPY, protection as u64, (PRIVATE | flags) as u64, u64::MAX, 0];
        let start = executor.with_thread(|calls| calls.call("mmap", libc::SYS_mmap, arguments));
        AddressRange::sized(Address(start.unwrap()), COPY)
    }

    fn is_mapped(pid: i32, range: AddressRange) -> bool {
        !own_mapping::space_of(Pid::from_raw(pid)).unwrap().overlapping(range).is_empty()
    }

    /// A lift records the address of a copy, and is killed right after the mmap call or before it. If before, the program may map
    /// memory there.
    #[test]
    fn a_copy_that_was_just_mapped_is_found_and_memory_of_the_program_is_not() {
        let program = Program::start();
        let (write, both) = (libc::PROT_WRITE, libc::PROT_READ | libc::PROT_WRITE);
        for (protection, is_copy) in [(write, true), (both, false), (libc::PROT_NONE, false)] {
            let mut killed = executor(program.pid()).unwrap();
            let mut mapped = None;
            let failed = killed.map_noted(COPY, base_page(), 0, |executor, place| {
                let range = map_as(executor, place.address(), protection, place.flags() as i32);
                mapped = Some(range);
                // Killed: nothing is recorded any more.
                let noted = executor.page.staging(&executor.memory);
                assert!(noted.covers(range), "recorded before the call");
                Ok(range.start())
            });
            let range = AddressRange::sized(failed.unwrap(), COPY);
            assert_eq!(mapped, Some(range));
            drop(killed);
            drop(executor(program.pid()).unwrap().finish());
            assert_eq!(is_mapped(program.pid(), range), !is_copy, "protection {protection}");
        }
    }

    #[test]
    fn a_copy_is_recorded_and_neither_inherited_nor_only_writable() {
        let program = Program::start();
        let mut executor = executor(program.pid()).unwrap();
        let start = lift_execution::Executor::map(&mut executor, COPY, lift_execution::Backing::Ordinary).unwrap();
        let copy = AddressRange::sized(start, COPY);
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", program.pid())).unwrap();
        let usages = address_space::parse_smaps(&smaps).unwrap();
        let usage = usages.iter().find(|usage| usage.mapping.range == copy).unwrap();
        assert!(usage.has_flag("dc") && usage.mapping.protection == address_space::Protection::READ_WRITE);
        assert!(executor.page.staging(&executor.memory).covers(copy));
        // Killed: the next lift unmaps it.
        drop(executor);
        drop(self::executor(program.pid()).unwrap().finish());
        assert!(!is_mapped(program.pid(), copy));
    }

    /// A lift records the address of a copy and is killed; or the program forks, and its child inherits the record. Programs
    /// keep data out of their children.
    #[test]
    fn memory_of_the_program_that_is_not_inherited_is_no_copy() {
        let program = Program::start();
        let mut killed = executor(program.pid()).unwrap();
        let data = map_as(&mut killed, 0, libc::PROT_READ | libc::PROT_WRITE, 0);
        killed.with_thread(|calls| calls.advise("madvise", data, libc::MADV_DONTFORK)).unwrap();
        killed.memory.write(data.start(), b"data").unwrap();
        killed.note_staging(|staging| staging.insert(data));
        drop(killed);
        drop(executor(program.pid()).unwrap().finish());
        assert!(is_mapped(program.pid(), data));
    }

    /// All threads are stopped for the swap, the copy is ordinary memory, and the lift is killed.
    #[test]
    fn a_copy_whose_swap_was_begun_is_found_by_its_contents() {
        let program = Program::start();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        for (contents, is_copy) in [(b"the same", true), (b"another!", false), (&[0; 8], false)] {
            let mut killed = executor(program.pid()).unwrap();
            let [range, copy] = [(); 2].map(|()| {
                let mapped = map_as(&mut killed, 0, both, 0);
                // Neighbours of one protection join.
                map_as(&mut killed, 0, libc::PROT_NONE, 0);
                mapped
            });
            let in_range: &[u8; 8] = if contents == &[0; 8] { &[0; 8] } else { b"the same" };
            killed.memory.write(range.start(), in_range).unwrap();
            killed.memory.write(copy.start(), contents).unwrap();
            killed.note_staging(|staging| staging.insert(copy));
            killed.page.set_swap(&killed.memory, copy, range.start()).unwrap();
            drop(killed);
            drop(executor(program.pid()).unwrap().finish());
            assert!(is_mapped(program.pid(), range));
            assert_eq!(is_mapped(program.pid(), copy), !is_copy, "{contents:?}");
        }
    }
}
