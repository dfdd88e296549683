//! Functions that this library's own replace, and functions of the C library.
//!
//! `dlsym` is not asked: a program can define that function, too, and the C library's allocates if it finds nothing. Names
//! are looked up while the process has one thread (when the heap starts, and in this library's constructor), and
//! addresses kept.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use linux_raw::loaded_objects::{Linked, Object, Process};
use std::sync::OnceLock;

/// Address of this library's dynamic section, by which its own object is known.
fn own_dynamic_section() -> usize {
    let address: usize;
    // SAFETY:
    // - calculates the address of the dynamic section, which the linker gives this name in every shared object.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            ".hidden _DYNAMIC",
            "lea {}, [rip + _DYNAMIC]",
            out(reg) address,
            options(nostack, nomem, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            ".hidden _DYNAMIC",
            "adrp {0}, _DYNAMIC",
            "add {0}, {0}, :lo12:_DYNAMIC",
            out(reg) address,
            options(nostack, nomem, preserves_flags)
        );
    }
    address
}

/// The kernel's facts about this process, read once; without `/proc`, from the auxiliary vector.
fn process() -> Option<Process> {
    static FOUND: OnceLock<Process> = OnceLock::new();
    if FOUND.get().is_none() {
        // SAFETY:
        // - getauxval only looks a number up, which is the kernel's.
        let beside_stack = || unsafe { Process::by_auxiliary_vector(|kind| libc::getauxval(kind.into()) as usize) };
        // Another thread may be first, and finds the same.
        _ = FOUND.set(Process::this().or_else(beside_stack)?);
    }
    FOUND.get().copied()
}

/// True for this library.
pub fn is_own(object: &Object) -> bool {
    object.dynamic() == own_dynamic_section()
}

/// The objects of this process, in the order in which symbols are looked up: the executable comes first.
///
/// # Safety
/// As for [`Process::objects`].
pub unsafe fn objects() -> impl Iterator<Item = Linked> {
    // SAFETY:
    // - the caller's promise.
    process().into_iter().flat_map(|process| unsafe { process.objects() })
}

/// The objects behind this library, in that order.
///
/// # Safety
/// As for [`Process::objects`].
pub unsafe fn behind() -> impl Iterator<Item = Object> {
    // SAFETY:
    // - the caller's promise.
    unsafe { objects() }.map(|linked| linked.object).skip_while(|object| !is_own(object)).skip(1)
}

/// The function or variable of this name in the first object behind this library that has it.
///
/// # Safety
/// As for [`Process::objects`].
pub unsafe fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY:
    // - the caller's promise.
    let found = unsafe { behind() }.find_map(|object| object.symbol(name))?;
    (!found.is_chosen_by_call()).then_some(found.address as *mut c_void)
}

/// A function or variable that is looked up once.
pub struct Kept {
    name: &'static CStr,
    /// [`UNKNOWN`], [`NONE`], or an address.
    found: AtomicUsize,
}

/// `fork`, of the C library or of a library that replaces it.
pub static FORK_WITH_HANDLERS: Kept = Kept::new(c"fork");
/// `_Fork`.
pub static FORK: Kept = Kept::new(c"_Fork");
/// `prctl`.
pub static PRCTL: Kept = Kept::new(c"prctl");
/// `daemon`.
pub static DAEMON: Kept = Kept::new(c"daemon");
/// `forkpty`.
pub static FORK_PTY: Kept = Kept::new(c"forkpty");
/// `getenv`.
pub static GET_VARIABLE: Kept = Kept::new(c"getenv");
/// `__register_atfork`.
pub static REGISTER_AT_FORK: Kept = Kept::new(c"__register_atfork");
/// `_IO_list_lock`, of the C library's list of streams.
pub static LOCK_STREAMS: Kept = Kept::new(c"_IO_list_lock");
/// `_IO_list_unlock`.
pub static UNLOCK_STREAMS: Kept = Kept::new(c"_IO_list_unlock");
/// `_IO_list_resetlock`.
pub static RESET_STREAMS: Kept = Kept::new(c"_IO_list_resetlock");
/// The variable `__libc_single_threaded`.
pub static SINGLE_THREADED: Kept = Kept::new(c"__libc_single_threaded");

/// Looks up these functions and variables, in this library's constructor.
pub fn look_up() {
    let all =
        [&FORK_WITH_HANDLERS, &FORK, &PRCTL, &DAEMON, &FORK_PTY, &GET_VARIABLE, &REGISTER_AT_FORK, &SINGLE_THREADED];
    let of_streams = [&LOCK_STREAMS, &UNLOCK_STREAMS, &RESET_STREAMS];
    _ = (all.map(Kept::get), of_streams.map(Kept::get));
}

const UNKNOWN: usize = 0;
const NONE: usize = 1;

impl Kept {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicUsize::new(UNKNOWN) }
    }

    /// The function or variable in the first object behind this library that has it.
    pub fn get(&self) -> Option<*mut c_void> {
        // SAFETY:
        // - the constructor has looked them up. An earlier caller is a constructor, too, or called by one: there is
        //   one thread, or others are starting up and unload nothing.
        self.get_by(|name| unsafe { next(name) })
    }

    fn get_by(&self, look_up: impl FnOnce(&CStr) -> Option<*mut c_void>) -> Option<*mut c_void> {
        let mut found = self.found.load(Relaxed);
        if found == UNKNOWN {
            found = look_up(self.name).map_or(NONE, |address| address as usize);
            self.found.store(found, Relaxed);
        }
        (found != NONE).then_some(found as *mut c_void)
    }
}

/// clock_gettime(2).
pub type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// The C library's function, which makes no system call if the kernel has a vDSO: a program's filter would not expect
/// one, and it would take longer.
pub fn clock() -> Option<Clock> {
    static FOUND: OfCLibrary = OfCLibrary::new(c"clock_gettime");
    // SAFETY:
    // - the symbol is the C library's function of this type.
    FOUND.get().map(|found| unsafe { core::mem::transmute::<*mut c_void, Clock>(found) })
}

/// A function of the C library's own, even if another object has one with this name.
pub struct OfCLibrary(Kept);

impl OfCLibrary {
    pub const fn new(name: &'static CStr) -> Self {
        Self(Kept::new(name))
    }

    /// The function.
    pub fn get(&self) -> Option<*mut c_void> {
        self.0.get_by(|name| Some(process()?.c_library()?.function(name)? as *mut c_void))
    }
}
