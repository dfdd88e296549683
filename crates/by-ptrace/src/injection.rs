//! Lets a stopped thread execute single system calls for us.
//!
//! The thread is set to a system call instruction that its process already has (in the vdso or in some code), with all
//! signals blocked, and stopped again behind it. Registers and signal mask are put back at the end.
//!
//! A step over the instruction takes one stop, a system call's entry and exit take two, and each stop costs two changes
//! of the running process. But a step ends in a SIGTRAP, for which the kernel resets a disposition that ignores it
//! (`force_sig_info_to_task`): then, and where the program blocks it, system call stops are used, which are no signals.

use crate::RemoteMemory;
use crate::arch::{self, Registers, numbers};
use crate::patience::Patience;
use crate::requests::{self, CallStop, Resume};
use crate::status::{ThreadStatus, bit};
use crate::wait::Report;
use address_space::{Address, AddressRange, AddressSpace, MappingName, PageSize};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;

/// What a function may keep below its stack pointer without saying so (System V ABI for AMD64, 3.2.2; none on AArch64).
/// In bytes.
const RED_ZONE: u64 = 128;

/// At most so much of one mapping is searched for a system call instruction. In bytes.
const SEARCHED: u64 = 4 << 20;

/// Why no system call could be made in the process. An error of the call itself is not among these.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The process has no system call instruction that could be used.
    #[error("found no system call instruction in the process's code")]
    NoInstruction,
    /// The system call instruction could not be executed.
    #[error("executing a system call instruction in the process gave signal {0}")]
    Fault(i32),
    /// ptrace refused a request.
    #[error("ptrace: {0}")]
    Ptrace(Errno),
    /// The process's memory could not be read or written.
    #[error("memory of the process: {0}")]
    Memory(#[from] io::Error),
}

impl From<Errno> for InjectError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ESRCH { Self::Gone } else { Self::Ptrace(errno) }
    }
}

/// Memory of the process for what calls take from memory.
enum Scratch {
    /// Below the stack, with what lay there before.
    BelowStack(Address, Vec<u8>),
    /// A mapping of ours.
    Mapped(AddressRange),
}

impl Scratch {
    fn start(&self) -> Address {
        match self {
            Self::BelowStack(at, _) => *at,
            Self::Mapped(range) => range.start(),
        }
    }
}

/// A file that the process was told to open.
struct Opening {
    path: String,
    /// None while the call is being made.
    descriptor: Option<u64>,
}

/// A file that is open in the process.
pub(crate) struct OpenFile {
    pub path: String,
    pub descriptor: u64,
}

/// The arguments of `openat` for a file that is to be read, whose path stands at this address.
pub(crate) fn arguments_to_open(path: Address) -> [u64; 6] {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    [libc::AT_FDCWD as u64, path.0, flags, 0, 0, 0]
}

/// A stopped thread that executes system calls for us. [`Injector::finish`] puts it back as it was.
pub struct Injector {
    pid: Pid,
    own_number: i32,
    instruction: Address,
    saved: Registers,
    saved_mask: u64,
    scratch: Option<Scratch>,
    memory: RemoteMemory,
    /// Calls are made by single steps.
    steps: bool,
    /// Signals that cannot be blocked and came in between; they are sent again when the thread goes on.
    kept_back: u64,
    /// The registers of the call that is being made.
    begun: Option<Registers>,
    opening: Option<Opening>,
    patience: Patience,
    gone: bool,
}

impl Injector {
    /// Takes over a thread that is in a ptrace stop, and whose status is `status`.
    ///
    /// # Errors
    /// [`InjectError`]; the thread is then as it was.
    pub fn new(pid: Pid, space: &AddressSpace, status: &ThreadStatus) -> Result<Self, InjectError> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let instruction = find_instruction(&memory, space).ok_or(InjectError::NoInstruction)?;
        let saved = requests::registers(pid)?;
        let saved_mask = requests::signal_mask(pid)?;
        let trap = bit(libc::SIGTRAP);
        let steps = arch::STEPS_OVER_CALLS && saved_mask & trap == 0 && !status.ignores(libc::SIGTRAP);
        requests::set_signal_mask(pid, if steps { !trap } else { u64::MAX })?;
        let own_number = status.own_number.unwrap_or(pid.as_raw());
        Ok(Self {
            pid,
            own_number,
            instruction,
            saved,
            saved_mask,
            scratch: None,
            memory,
            steps,
            kept_back: 0,
            begun: None,
            opening: None,
            patience: Patience::new(),
            gone: false,
        })
    }

    /// The process's memory.
    pub fn memory(&self) -> &RemoteMemory {
        &self.memory
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The process as it must call itself: its number in its innermost PID namespace.
    pub fn own_number(&self) -> i32 {
        self.own_number
    }

    /// True where `range` holds the instruction that system calls are made with.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        range.contains(self.instruction)
    }

    /// The registers that the thread goes on with.
    pub fn registers(&self) -> &Registers {
        &self.saved
    }

    /// Changes the registers that the thread goes on with.
    pub fn change_registers(&mut self, change: impl FnOnce(&mut Registers)) {
        change(&mut self.saved);
    }

    /// Makes a system call. The inner result is the call's own.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be made at all.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Result<u64, Errno>, InjectError> {
        self.begin(number, arguments)?;
        self.end()
    }

    /// Begins a system call, and comes back while it is made, for what needs no thread of the process. Then
    /// [`Injector::end`] must be asked for its result.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be begun.
    pub(crate) fn begin(&mut self, number: i64, arguments: [u64; 6]) -> Result<(), InjectError> {
        self.await_opened()?;
        if self.gone {
            return Err(InjectError::Gone);
        }
        let mut registers = self.saved;
        arch::set_call(&mut registers, self.instruction, number, arguments);
        requests::set_registers(self.pid, &registers)?;
        requests::resume(self.pid, self.way(), 0)?;
        self.begun = Some(registers);
        Ok(())
    }

    /// Waits for the end of the call that was begun. The inner result is the call's own.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be made at all.
    pub(crate) fn end(&mut self) -> Result<Result<u64, Errno>, InjectError> {
        let registers = self.begun.take().ok_or(InjectError::Ptrace(Errno::EINVAL))?;
        let after = if self.steps { self.step_over(&registers)? } else { self.run_over(&registers)? };
        let result = arch::result(&after);
        // Linux returns errors as -1 to -4095.
        Ok(if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) })
    }

    /// How the thread is made to run over a call.
    fn way(&self) -> Resume {
        if self.steps { Resume::Step } else { Resume::ToSystemCall }
    }

    /// Waits until the call that stands in `registers` has been made by one step; the registers behind it.
    fn step_over(&mut self, registers: &Registers) -> Result<Registers, InjectError> {
        let behind = self.instruction + arch::SYSCALL_INSTRUCTION.len() as u64;
        loop {
            self.wait_for_stop()?;
            let after = requests::registers(self.pid)?;
            if arch::instruction_pointer(&after) == behind {
                return Ok(after);
            }
            // The end of the exec that the thread was still in.
            requests::set_registers(self.pid, registers)?;
            requests::resume(self.pid, Resume::Step, 0)?;
        }
    }

    /// The same by the call's entry and exit.
    fn run_over(&mut self, registers: &Registers) -> Result<Registers, InjectError> {
        let mut entered = false;
        loop {
            match self.wait_for_stop()? {
                CallStop::Entry => entered = true,
                CallStop::Exit if entered => return Ok(requests::registers(self.pid)?),
                // The exit of the exec that the thread was still in.
                CallStop::Exit | CallStop::None => requests::set_registers(self.pid, registers)?,
            }
            requests::resume(self.pid, Resume::ToSystemCall, 0)?;
        }
    }

    /// Waits until the thread has stopped for us: at a system call, or behind a step.
    fn wait_for_stop(&mut self) -> Result<CallStop, InjectError> {
        loop {
            match self.patience.wait(self.pid).map_err(InjectError::from)? {
                Report::SystemCall => return Ok(requests::call_stop(self.pid)?),
                // What the kernel itself sends has a code above 0 (sigaction(2)); others' is for the program.
                Report::Signal(libc::SIGTRAP) if self.steps && requests::signal_code(self.pid)? > 0 => {
                    return Ok(CallStop::None);
                }
                // SIGSTOP cannot be blocked, and SIGTRAP is not where calls are made by steps.
                Report::Signal(signal @ libc::SIGSTOP) => self.kept_back |= bit(signal),
                Report::Signal(signal @ libc::SIGTRAP) if self.steps => self.kept_back |= bit(signal),
                // All else is blocked; a fault is not, and would only come again.
                Report::Signal(signal) => return Err(InjectError::Fault(signal)),
                Report::Event { .. } => {}
                Report::Ended => {
                    self.gone = true;
                    return Err(InjectError::Gone);
                }
            }
            requests::resume(self.pid, self.way(), 0)?;
        }
    }

    /// Memory of the process for arguments that lie in memory, as long as a page; as it was at the end.
    ///
    /// It lies below the stack, where nothing of a thread's is that runs no signal handler meanwhile; a page is mapped
    /// where there is no such memory.
    ///
    /// # Errors
    /// [`InjectError`]; the inner result is `mmap`'s.
    pub fn scratch(&mut self, base_page: PageSize) -> Result<Result<Address, Errno>, InjectError> {
        if self.scratch.is_none() {
            self.scratch = self.below_stack(base_page);
        }
        if let Some(scratch) = &self.scratch {
            return Ok(Ok(scratch.start()));
        }
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let mapped = self.call(numbers::SYS_mmap, [0, base_page.bytes(), protection, flags, u64::MAX, 0])?;
        Ok(mapped.map(|start| {
            self.scratch = Some(Scratch::Mapped(AddressRange::sized(Address(start), base_page.bytes())));
            Address(start)
        }))
    }

    fn below_stack(&self, base_page: PageSize) -> Option<Scratch> {
        let top = arch::stack_pointer(&self.saved).0.checked_sub(RED_ZONE)?;
        let at = Address(top.checked_sub(base_page.bytes())? & !15);
        let mut before = vec![0; base_page.bytes() as usize];
        self.memory.read(at, &mut before).ok()?;
        Some(Scratch::BelowStack(at, before))
    }

    /// Lets the process begin to open a file for reading, which goes on while this returns.
    ///
    /// # Errors
    /// [`InjectError`]; that there is no memory for the path is none.
    pub fn begin_to_open(&mut self, path: &str, base_page: PageSize) -> Result<(), InjectError> {
        let Ok(scratch) = self.scratch(base_page)? else { return Ok(()) };
        let bytes = [path.as_bytes(), &[0]].concat();
        if bytes.len() as u64 > base_page.bytes() {
            return Ok(());
        }
        self.memory.write(scratch, &bytes)?;
        self.begin(numbers::SYS_openat, arguments_to_open(scratch))?;
        self.opening = Some(Opening { path: path.to_owned(), descriptor: None });
        Ok(())
    }

    /// Waits until the file is open that the process was to open; from then on the memory for its path is free.
    pub(crate) fn await_opened(&mut self) -> Result<(), InjectError> {
        if self.opening.as_ref().is_none_or(|opening| opening.descriptor.is_some()) {
            return Ok(());
        }
        let opened = self.end();
        match (&mut self.opening, opened) {
            (Some(opening), Ok(Ok(descriptor))) => opening.descriptor = Some(descriptor),
            (_, Ok(Err(_))) => self.opening = None,
            (_, opened) => {
                self.opening = None;
                return opened.map(drop);
            }
        }
        Ok(())
    }

    /// The file that the process has opened, whose descriptor is the caller's from now on.
    pub(crate) fn take_opened(&mut self) -> Result<Option<OpenFile>, InjectError> {
        self.await_opened()?;
        let opening = self.opening.take();
        Ok(opening.and_then(|Opening { path, descriptor }| Some(OpenFile { path, descriptor: descriptor? })))
    }

    /// The scratch page, if one is mapped: it is ours, not the program's.
    pub fn scratch_range(&self) -> Option<AddressRange> {
        match &self.scratch {
            Some(Scratch::Mapped(range)) => Some(*range),
            _ => None,
        }
    }

    /// Puts registers and signal mask back. The thread stays in its ptrace stop; a signal that came in between is
    /// pending again.
    ///
    /// # Errors
    /// [`InjectError`] where the process has ended.
    pub fn finish(mut self) -> Result<(), InjectError> {
        if let Ok(Some(opened)) = self.take_opened() {
            let _ = self.call(numbers::SYS_close, [opened.descriptor, 0, 0, 0, 0, 0]);
        }
        // If either fails something is left behind, but the registers must be put back all the same.
        match self.scratch.take() {
            Some(Scratch::BelowStack(at, before)) => drop(self.memory.write(at, &before)),
            // An ordinary mapping of our own on its own: unmapping it splits nothing.
            Some(Scratch::Mapped(page)) => {
                let _ = self.call(numbers::SYS_munmap, [page.start().0, page.len(), 0, 0, 0, 0]);
            }
            None => {}
        }
        requests::set_registers(self.pid, &self.saved)?;
        requests::set_signal_mask(self.pid, self.saved_mask)?;
        for signal in [Signal::SIGTRAP, Signal::SIGSTOP] {
            if self.kept_back & bit(signal as i32) != 0 {
                kill(self.pid, signal)?;
            }
        }
        Ok(())
    }

    /// Ends the process with an exit status, before it runs on.
    ///
    /// # Errors
    /// [`InjectError::Gone`] where it has ended already.
    pub fn exit_group(mut self, status: i32) -> Result<(), InjectError> {
        match self.call(numbers::SYS_exit_group, [status as u64, 0, 0, 0, 0, 0]) {
            Ok(_) | Err(InjectError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Searches the vdso first, which is never lifted, then the program's code.
fn find_instruction(memory: &RemoteMemory, space: &AddressSpace) -> Option<Address> {
    let is_vdso = |name: &MappingName| *name == MappingName::Special("[vdso]".to_owned());
    let executable = || space.mappings().iter().filter(|mapping| mapping.protection.execute && mapping.protection.read);
    let vdso = executable().filter(|mapping| is_vdso(&mapping.name));
    let others = executable().filter(|mapping| mapping.path().is_some());
    vdso.chain(others).find_map(|mapping| find_in(memory, mapping.range))
}

fn find_in(memory: &RemoteMemory, range: AddressRange) -> Option<Address> {
    let mut code = vec![0; range.len().min(SEARCHED) as usize];
    memory.read(range.start(), &mut code).ok()?;
    let length = arch::SYSCALL_INSTRUCTION.len();
    let at = (0..code.len().checked_sub(length)? + 1)
        .step_by(arch::INSTRUCTION_ALIGNMENT)
        .find(|&at| &code[at..at + length] == arch::SYSCALL_INSTRUCTION)?;
    Some(range.start() + at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_calls::pages::base_page;
    use kernel_calls::text::text_of;
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use std::process::Command;

    #[test]
    fn calls_leave_nothing_in_the_process() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        requests::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        requests::interrupt(pid).unwrap();
        waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
        let maps = || text_of(format!("/proc/{pid}/maps")).unwrap();
        let (mapped, before) = (maps(), requests::registers(pid).unwrap());
        let mut injector =
            Injector::new(pid, &AddressSpace::parse(&mapped).unwrap(), &ThreadStatus::read(pid)).unwrap();
        let scratch = injector.scratch(base_page()).unwrap().unwrap();
        let top = arch::stack_pointer(&before);
        assert!(injector.scratch_range().is_none() && scratch + base_page().bytes() + RED_ZONE <= top);
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
}
