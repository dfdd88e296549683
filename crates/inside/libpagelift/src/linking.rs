//! Functions of the program's C library, if it has one.
//!
//! The C library's own functions are called, even if the program defines functions with their names: a program's
//! `dl_iterate_phdr` may depend on data that is not set up yet, wait for a lock, or call this library. In a dynamic
//! program they are found in the C library's own tables. In a static program each name has one definition, and only the
//! C library's own names are used.

use crate::own_memory::{self, KEPT};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use linux_raw::loaded_objects::Process;

/// The address of a symbol that may be missing.
#[cfg(not(feature = "preload"))]
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY:
        // - reads the entry that the linker makes for the symbol in this object's global offset table.
        unsafe {
            core::arch::asm!(
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
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        address
    }};
}

/// Addresses in this process that stay as they are; 0 for what it does not have.
#[derive(Clone, Copy, Default)]
struct Found {
    /// `dl_iterate_phdr`.
    iterate: usize,
    /// The function that glibc's `pthread_atfork` calls.
    register_glibc: usize,
    /// musl's `pthread_atfork`.
    register_posix: usize,
    /// The dynamic section of the dynamic linker.
    linker: usize,
}

impl Found {
    /// `None` without `/proc`.
    fn look_up() -> Option<Self> {
        let process = Process::this()?;
        let linker = process.linker().map_or(0, |object| object.dynamic());
        Some(match process.c_library() {
            Some(library) => {
                let function = |name| library.function(name).unwrap_or(0);
                Self {
                    iterate: function(c"dl_iterate_phdr"),
                    register_glibc: function(c"__register_atfork"),
                    register_posix: function(c"pthread_atfork"),
                    linker,
                }
            }
            None if linker == 0 => Self::linked_statically(),
            // A C library that is neither glibc nor musl.
            None => Self { linker, ..Self::default() },
        })
    }

    #[cfg(not(feature = "preload"))]
    fn linked_statically() -> Self {
        Self {
            // glibc's other name of dl_iterate_phdr. musl has no other, and in a static program nothing to unload.
            iterate: weak!("__dl_iterate_phdr"),
            register_glibc: weak!("__register_atfork"),
            register_posix: weak!("pthread_atfork"),
            linker: 0,
        }
    }

    /// No static program has the shared library.
    #[cfg(feature = "preload")]
    fn linked_statically() -> Self {
        Self::default()
    }

    /// Looked up at the first call, which is made when the library is loaded.
    fn once() -> Self {
        let Some(kept) = own_memory::kept() else { return Self::look_up().unwrap_or_default() };
        let [is_known, words @ ..] = kept;
        if is_known.load(Ordering::Acquire) == 0 {
            let Some(found) = Self::look_up() else { return Self::default() };
            let Self { iterate, register_glibc, register_posix, linker } = found;
            // Other threads find the same.
            let values = [iterate, register_glibc, register_posix, linker];
            words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
            is_known.store(1, Ordering::Release);
            return found;
        }
        let [iterate, register_glibc, register_posix, linker]: [usize; KEPT - 1] =
            core::array::from_fn(|index| words[index].load(Ordering::Relaxed));
        Self { iterate, register_glibc, register_posix, linker }
    }
}

fn known(address: usize) -> Option<usize> {
    (address != 0).then_some(address)
}

/// A handler around a fork. Only the C library calls it, the third one of [`at_fork`] as the only thread of a child.
pub type ForkHandler = unsafe extern "C" fn();

/// An address in the C library, if that takes handlers around `fork`.
pub fn in_c_library() -> Option<usize> {
    let found = Found::once();
    known(found.register_glibc).or(known(found.register_posix))
}

/// The list of variables with which the program was started, on the stack; `None` without glibc's dynamic linker.
#[cfg(any(feature = "preload", test))]
pub fn initial_environment() -> Option<*mut *mut core::ffi::c_char> {
    let stack = Process::this()?.linker()?.symbol(c"__libc_stack_end")?.address as *const *const usize;
    // SAFETY:
    // - glibc's dynamic linker has stored the stack pointer of the program's start there, at which the number of arguments is,
    //   then their addresses and a null pointer (System V ABI, 3.4.1).
    unsafe {
        let start = *stack;
        (!start.is_null()).then(|| start.add(*start + 2).cast_mut().cast())
    }
}

/// The variable `environ`: the executable's copy, if it has one (`R_X86_64_COPY`), otherwise the C library's.
#[cfg(feature = "preload")]
pub fn environ() -> Option<*const *const *const core::ffi::c_char> {
    let process = Process::this()?;
    // SAFETY:
    // - the first object is the executable, which is never unloaded.
    let executable = unsafe { process.objects() }.next().map(|linked| linked.object);
    let found = executable.and_then(|object| object.symbol(c"environ"));
    let symbol = found.or_else(|| process.c_library()?.symbol(c"environ"))?;
    Some(symbol.address as *const *const *const core::ffi::c_char)
}

/// An address in the dynamic linker; none in a static program.
pub fn in_dynamic_linker() -> Option<usize> {
    known(Found::once().linker)
}

/// Makes the C library call these around every `fork` from now on. False if it cannot.
pub fn at_fork(prepare: ForkHandler, parent: ForkHandler, child: ForkHandler) -> bool {
    type Glibc = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler, *const c_void) -> c_int;
    type Posix = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler) -> c_int;
    let found = Found::once();
    if let Some(function) = known(found.register_glibc) {
        // SAFETY:
        // - the symbol is glibc's function of this type (nptl, register-atfork.c).
        let register = unsafe { core::mem::transmute::<usize, Glibc>(function) };
        // SAFETY:
        // - the handlers are functions without arguments that may run on any thread, each at its moment of a fork.
        return unsafe { register(prepare, parent, child, own_object()) } == 0;
    }
    if let Some(function) = known(found.register_posix) {
        // SAFETY:
        // - the symbol is POSIX's function of this type.
        let register = unsafe { core::mem::transmute::<usize, Posix>(function) };
        // SAFETY:
        // - as above.
        return unsafe { register(prepare, parent, child) } == 0;
    }
    false
}

/// The C library's handle of the object that this code is linked into, so that its handlers are removed when it is
/// unloaded. The shared library has no such name, and is never unloaded.
fn own_object() -> *const c_void {
    #[cfg(not(feature = "preload"))]
    return weak!("__dso_handle") as *const c_void;
    #[cfg(feature = "preload")]
    core::ptr::null()
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
    let Some(function) = known(Found::once().iterate) else { return false };
    // SAFETY:
    // - the symbol is the C library's function of this type (dl_iterate_phdr(3)).
    let iterate = unsafe { core::mem::transmute::<usize, Iterate>(function) };
    // SAFETY:
    // - the callback takes what the function gives, and gets back the context, by the caller's promise.
    unsafe { iterate(each, context) };
    true
}

/// Acts while the dynamic linker can unload nothing: inside of glibc's `dl_iterate_phdr`, which holds the lock that unloading
/// takes. musl unloads nothing. Without that function there is nothing that could be unloaded, or the C library is an
/// unknown one, with which nothing is lifted beside other threads (`live_restrictions`).
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
