//! Lets a stopped thread execute single system calls for us, by the code of `guest_code`: with all signals blocked, and
//! stopped again behind each by a SIGURG that it sends itself.

use crate::RemoteMemory;
use crate::arch::{self, GuestCall, Registers, guest, numbers};
use crate::guest_code::{GuestCode, mappings_with_room};
use crate::patience::Patience;
use crate::requests::{self, Resume};
use crate::status::ThreadStatus;
use crate::wait::{self, Report};
use address_space::{Address, AddressRange, AddressSpace, PageSize};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;

/// All signals but SIGURG, which tells us of the end of a call.
const ALL_BUT_URGENT: u64 = !(1 << (libc::SIGURG - 1));

/// The number that stands for the end of a list, and for a word that is stored.
const END_OF_LIST: i64 = -1;
const STORE: i64 = -2;

/// Words of an entry in a list.
const ENTRY_WORDS: usize = 7;

/// Why no system call could be made in the process. An error of the call itself is not among these.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The process has no room for the code that makes the calls.
    #[error("making system calls in the process: {0}")]
    NoRoom(io::Error),
    /// The code that makes the calls could not be executed.
    #[error("making a system call in the process gave signal {0}")]
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

/// The arguments of `openat` for a file that is to be read, whose path stands at this address. A pipe or a terminal that
/// somebody has put there is not waited for.
pub(crate) fn arguments_to_open(path: Address) -> [u64; 6] {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
    [libc::AT_FDCWD as u64, path.0, flags, 0, 0, 0]
}

/// What a list makes the process do, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestStep {
    /// A system call. Where it fails, nothing behind it is done.
    Call(GuestCall),
    /// Stores a word.
    Store(Address, u64),
}

/// A stopped thread that executes system calls for us. [`Injector::finish`] puts it back as it was; so does dropping it,
/// as far as that is possible then.
pub struct Injector {
    pid: Pid,
    own_number: i32,
    /// Until the thread is as it was.
    code: Option<GuestCode>,
    code_at: Address,
    saved: Registers,
    saved_mask: u64,
    scratch: Option<Scratch>,
    memory: RemoteMemory,
    /// The thread is in the code: its registers and its signal mask are ours.
    inside: bool,
    /// A SIGURG that came from somebody else in between.
    urgent: Option<libc::siginfo_t>,
    /// The process was stopped by SIGSTOP in between.
    group_stopped: bool,
    /// A call is being made.
    begun: bool,
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
        let saved = requests::registers(pid)?;
        Self::with_registers(pid, space, status, saved)
    }

    /// For a thread that is to go on with these registers.
    pub(crate) fn with_registers(
        pid: Pid,
        space: &AddressSpace,
        status: &ThreadStatus,
        saved: Registers,
    ) -> Result<Self, InjectError> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let saved_mask = requests::signal_mask(pid)?;
        let code = GuestCode::place(pid, &memory, guest::CALL.code(), mappings_with_room(space))
            .map_err(InjectError::NoRoom)?;
        let own_number = status.own_number.unwrap_or(pid.as_raw());
        let injector = Self {
            pid,
            own_number,
            code_at: code.at(),
            code: Some(code),
            saved,
            saved_mask,
            scratch: None,
            memory,
            inside: false,
            urgent: None,
            group_stopped: false,
            begun: false,
            opening: None,
            patience: Patience::new(),
            gone: false,
        };
        injector.write_state()?;
        Ok(injector)
    }

    /// Where the state lies that the thread goes on with should we be killed.
    fn state(&self) -> Address {
        arch::stack_pointer(&self.saved) - guest::STATE_BYTES as u64
    }

    fn write_state(&self) -> io::Result<()> {
        self.memory.write(self.state(), &guest::state(&self.saved, self.saved_mask))
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

    /// True where `range` holds the code that system calls are made with.
    pub fn stands_in(&self, range: AddressRange) -> bool {
        range.contains(self.code_at)
    }

    /// The registers that the thread goes on with.
    pub fn registers(&self) -> &Registers {
        &self.saved
    }

    /// Where the address lies at which the thread goes on, for a [`GuestStep::Store`] that changes it.
    pub(crate) fn place_of_next_instruction(&self) -> Address {
        self.state() + guest::STATE_PC
    }

    /// Changes the registers that the thread goes on with, but not its stack pointer.
    ///
    /// # Errors
    /// Where its memory cannot be written.
    pub fn change_registers(&mut self, change: impl FnOnce(&mut Registers)) -> io::Result<()> {
        change(&mut self.saved);
        self.write_state()
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
        self.send(GuestCall { number, arguments }, None)
    }

    /// Sends the thread into the code. Were we killed from here on, it would make the call, and go on as it was.
    fn send(&mut self, call: GuestCall, list: Option<Address>) -> Result<(), InjectError> {
        let registers = guest::call_registers(&self.saved, self.code_at, self.state(), self.own_number, &call, list);
        requests::set_registers(self.pid, &registers)?;
        if !self.inside {
            // Behind the registers: it is the code that puts the mask back where we do not.
            self.inside = true;
            requests::set_signal_mask(self.pid, ALL_BUT_URGENT)?;
        }
        requests::resume(self.pid, Resume::Continue, 0)?;
        self.begun = true;
        Ok(())
    }

    /// Waits for the end of the call that was begun. The inner result is the call's own.
    ///
    /// # Errors
    /// [`InjectError`] where the call could not be made at all.
    pub(crate) fn end(&mut self) -> Result<Result<u64, Errno>, InjectError> {
        let registers = self.wait_until_told()?;
        Ok(call_result(&registers))
    }

    /// Lets the process do all of these steps, without a stop in between; `at` is memory for them. Were we killed
    /// meanwhile, it would do all of them and go on. Returns how many were done, and the error of the one that failed.
    ///
    /// # Errors
    /// [`InjectError`] where it could not be made to do them at all.
    pub(crate) fn run(&mut self, steps: &[GuestStep], at: Address) -> Result<(usize, Result<(), Errno>), InjectError> {
        self.await_opened()?;
        let mut words: Vec<u64> = Vec::new();
        for step in steps {
            words.extend(match step {
                GuestStep::Call(GuestCall { number, arguments: [a, b, c, d, e, f] }) => {
                    [*number as u64, *a, *b, *c, *d, *e, *f]
                }
                GuestStep::Store(at, value) => [STORE as u64, at.0, *value, 0, 0, 0, 0],
            });
        }
        words.push(END_OF_LIST as u64);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.write(at, &bytes)?;
        // A call that does nothing comes first, since the code begins with one.
        self.send(GuestCall { number: libc::SYS_getpid, arguments: [0; 6] }, Some(at))?;
        let registers = self.wait_until_told()?;
        let done = (guest::list_position(&registers) - at) as usize / (ENTRY_WORDS * size_of::<u64>());
        Ok(match call_result(&registers) {
            Ok(_) => (done, Ok(())),
            // The one that has failed is counted by the position.
            Err(errno) => (done.saturating_sub(1), Err(errno)),
        })
    }

    /// Waits until the thread has stopped behind its call, and returns its registers.
    fn wait_until_told(&mut self) -> Result<Registers, InjectError> {
        if !std::mem::take(&mut self.begun) {
            return Err(InjectError::Ptrace(Errno::EINVAL));
        }
        let told = self.code_at + guest::call_told();
        loop {
            let mut delivered = 0;
            match self.patience.wait(self.pid)? {
                Report::Signal(libc::SIGURG) => {
                    let information = requests::signal_information(self.pid)?;
                    let registers = requests::registers(self.pid)?;
                    if !self.is_own_signal(&information) {
                        self.urgent = Some(information);
                    }
                    // Signals of one number are one while they wait, so that ours may show as another's.
                    if arch::instruction_pointer(&registers) == told {
                        return Ok(registers);
                    }
                }
                // It cannot be blocked, and a SIGCONT that follows ends it only once it is delivered. A traced thread that
                // is told to go on does so in spite of the group stop.
                Report::Signal(libc::SIGSTOP) => {
                    self.group_stopped = true;
                    delivered = libc::SIGSTOP;
                }
                // All else is blocked; a fault is not, and would only come again.
                Report::Signal(signal) => return Err(InjectError::Fault(signal)),
                Report::Event { .. } | Report::SystemCall => {}
                Report::Ended => {
                    self.gone = true;
                    return Err(InjectError::Gone);
                }
            }
            requests::resume(self.pid, Resume::Continue, delivered)?;
        }
    }

    /// True for the signal by which the code tells us.
    fn is_own_signal(&self, information: &libc::siginfo_t) -> bool {
        information.si_code == libc::SI_TKILL && requests::sender(information) == self.own_number
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
        let top = arch::stack_pointer(&self.saved).0.checked_sub(guest::STACK_BYTES)?;
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

    /// Puts registers and signal mask back. The thread stays in a ptrace stop; a signal that came in between is pending
    /// again.
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
        let signal = self.send_urgent_again();
        self.leave_code()?;
        signal
    }

    /// Lets a SIGURG of somebody else's wait again, with its payload. A thread that is to get a signal that it blocks
    /// keeps it for later (`ptrace_signal` of the kernel's `signal.c`), and stops for us before it does anything else.
    fn send_urgent_again(&mut self) -> Result<(), InjectError> {
        let Some(information) = self.urgent.take().filter(|_| self.inside) else { return Ok(()) };
        requests::set_signal_mask(self.pid, u64::MAX)?;
        requests::set_signal_information(self.pid, &information)?;
        requests::interrupt(self.pid)?;
        requests::resume(self.pid, Resume::Continue, libc::SIGURG)?;
        match wait::wait_for(self.pid)? {
            Report::Ended => {
                self.gone = true;
                Err(InjectError::Gone)
            }
            _ => Ok(()),
        }
    }

    /// Takes the thread out of the code, and the code out of the process. At each moment the thread would go on as it was
    /// were we killed.
    fn leave_code(&mut self) -> Result<(), InjectError> {
        if std::mem::take(&mut self.inside) && !self.gone {
            requests::set_signal_mask(self.pid, self.saved_mask)?;
            requests::set_registers(self.pid, &self.saved)?;
            if self.group_stopped {
                // Where the thread stays traced, it stops once more and shows that its process is stopped.
                requests::interrupt(self.pid)?;
            }
        }
        // What cannot be written belongs to a process that has ended.
        if let Some(code) = self.code.take() {
            let _ = code.erase(self.pid, &self.memory);
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

impl Drop for Injector {
    fn drop(&mut self) {
        if self.begun {
            // Were its registers changed in the midst of a call, its result would be lost.
            let _ = self.wait_until_told();
        }
        let _ = self.leave_code();
    }
}

/// Linux returns errors as -1 to -4095.
fn call_result(registers: &Registers) -> Result<u64, Errno> {
    let result = guest::call_result(registers);
    if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) }
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
        requests::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        requests::interrupt(pid).unwrap();
        waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
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
        let mut injector = Injector::new(pid, &space, &ThreadStatus::read(pid)).unwrap();
        injector.begin(libc::SYS_getpid, [0; 6]).unwrap();
        drop(injector);
        assert!(state() == before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
