//! What the program's C library offers, if it has one: found by weak references, so that a program without them runs
//! all the same.

use core::arch::asm;
use core::ffi::{c_int, c_void};

/// The address of a symbol that may be missing.
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY:
        // - reads the entry that the linker makes for the symbol in this object's global offset table.
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY:
        // - as above.
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        (address != 0).then_some(address)
    }};
}

/// A handler around a fork. Only the C library calls it, the third one of [`at_fork`] as the only thread of a child.
pub type ForkHandler = unsafe extern "C" fn();

/// An address in the C library, if that takes handlers around `fork`: by what glibc's `pthread_atfork` calls, else by
/// musl's own. Only the shared library and static programs that use it have the latter name.
pub fn in_c_library() -> Option<usize> {
    let register = weak!("__register_atfork").or_else(|| weak!("pthread_atfork"))?;
    // Not that one itself, unless glibc is linked statically: the preloaded heap has a function of its name.
    weak!("gnu_get_libc_version").or(Some(register))
}

/// An address in the dynamic linker; none in a static program.
#[cfg(feature = "preload")]
pub fn in_dynamic_linker() -> Option<usize> {
    weak!("__tls_get_addr")
}

/// Asks the C library to call these around every `fork` from now on. False where it cannot.
pub fn at_fork(prepare: ForkHandler, parent: ForkHandler, child: ForkHandler) -> bool {
    type Glibc = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler, *const c_void) -> c_int;
    type Posix = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler) -> c_int;
    if let Some(function) = weak!("__register_atfork") {
        // SAFETY:
        // - the symbol is glibc's function of this type (nptl, register-atfork.c).
        let register = unsafe { core::mem::transmute::<usize, Glibc>(function) };
        // SAFETY:
        // - the handlers are functions without arguments that may run on any thread, each at its moment of a fork.
        return unsafe { register(prepare, parent, child, own_object()) } == 0;
    }
    if let Some(function) = weak!("pthread_atfork") {
        // SAFETY:
        // - the symbol is POSIX's function of this type.
        let register = unsafe { core::mem::transmute::<usize, Posix>(function) };
        // SAFETY:
        // - as above.
        return unsafe { register(prepare, parent, child) } == 0;
    }
    false
}

/// What the C library calls the object that this code is linked into, so that its handlers go when it is unloaded. The
/// shared library has no such name, and is never unloaded.
fn own_object() -> *const c_void {
    weak!("__dso_handle").unwrap_or_default() as *const c_void
}

/// Called for each object that the dynamic linker has loaded, until it returns something else than 0.
pub type ObjectCallback = unsafe extern "C" fn(*const c_void, usize, *mut c_void) -> c_int;

/// Calls `each` for every loaded object, under the lock that loading and unloading take. False without a dynamic linker
/// that lists its objects.
///
/// # Safety
/// `each` must be fit to be called with `context`, by this thread, as long as this function runs.
pub unsafe fn for_each_object(each: ObjectCallback, context: *mut c_void) -> bool {
    type Iterate = unsafe extern "C" fn(ObjectCallback, *mut c_void) -> c_int;
    let Some(function) = weak!("dl_iterate_phdr") else { return false };
    // SAFETY:
    // - the symbol is the C library's function of this type (dl_iterate_phdr(3)).
    let iterate = unsafe { core::mem::transmute::<usize, Iterate>(function) };
    // SAFETY:
    // - the callback takes what the function gives, and gets back the context, by the caller's promise.
    unsafe { iterate(each, context) };
    true
}

/// Acts while the dynamic linker can unload nothing: inside of `dl_iterate_phdr`, which glibc and musl run under the
/// lock that unloading takes. Without that function there is nothing that could be unloaded.
pub fn with_nothing_unloaded<R, F: FnOnce() -> R>(act: F) -> R {
    struct Call<F, R> {
        act: Option<F>,
        result: Option<R>,
    }
    /// # Safety
    /// `call` points to a `Call<F, R>` that nobody else uses until this returns.
    unsafe extern "C" fn once<F: FnOnce() -> R, R>(_: *const c_void, _: usize, call: *mut c_void) -> c_int {
        // SAFETY:
        // - the caller's promise.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        if let Some(act) = call.act.take() {
            call.result = Some(act());
        }
        1
    }
    let mut call = Call { act: Some(act), result: None };
    // SAFETY:
    // - the callback takes a `Call` of the same types, which lives longer than this call and is used by nobody else.
    unsafe { for_each_object(once::<F, R>, core::ptr::from_mut(&mut call).cast()) };
    match call {
        Call { result: Some(result), .. } => result,
        Call { act: Some(act), .. } => act(),
        Call { .. } => unreachable!("the action was taken and left no result"),
    }
}
