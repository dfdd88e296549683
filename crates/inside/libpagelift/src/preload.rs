//! The start before `main`, and the lifting of objects that are loaded later. Only the shared library has these.
//!
//! Objects that are loaded later are lifted before `dlopen` returns, and before their constructors run: the start files
//! of gcc (`crti.o`), which nearly every object is linked with, call `__gmon_start__` at the very beginning of an
//! object's initialisation if that function is defined, as it is in profiled programs. The object is mapped, relocated
//! and sealed by then. An object without that call is lifted when a symbol is first looked up by `dlsym`.
//!
//! `dlopen` itself is not replaced: the dynamic linker takes RUNPATH and $ORIGIN from the object that contains the
//! return address of `dlopen`. For the same reason calls of `dlsym` are passed on with their return address unchanged.

use crate::auxiliary::Auxiliary;
use crate::own_state::Call;
use crate::report::LiftReport;
use crate::{bystanders, environment, files, fork_handlers, loaded, machine, objects, own_memory, seccomp, symbols};
use alloc::string::String;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use heap_abi::LIBRARY;
use lift_plan::Policy;
use options::{HeapPages, Variable};

/// Exit status of a program that is ended because of `require`, the same as `pagelift run`'s.
const REQUIRED: i32 = 125;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs before `main` and, by the linker's `-z initfirst`, before every other initialiser.
extern "C" fn start() {
    bystanders::look_up();
    fork_handlers::register_at_start();
    let Ok(call) = Call::begin() else { return };
    let Some(text) = asked_for() else { return };
    let variable = match Variable::parse(&text) {
        Ok(variable) => variable,
        Err(why) => return say(&alloc::format!("pagelift: {why}")),
    };
    if variable.only.is_empty() && variable.pid.is_none() {
        return say("pagelift: PAGELIFT names no program; fix: only=NAME, for example only=mariadbd");
    }
    if !variable.only.is_empty() {
        bystanders::begin();
    }
    if variable.names(&objects::program_names(), linux_raw::process_id() as u64) {
        if variable.heap != HeapPages::Off && !variable.quiet {
            tell_without_heap();
        }
        act(&call, &variable);
        if variable.only.is_empty() {
            // SAFETY:
            // - this is the first initialiser of the program, which has one thread and has not read its environment.
            unsafe { environment::remove() };
        }
    }
}

/// Writes what `heap=` needs, if the preloaded heap is not loaded.
fn tell_without_heap() {
    let mut is_loaded = false;
    let mut own_path = None;
    loaded::each(|listed| {
        let path = listed.path();
        is_loaded |= path.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY.as_bytes());
        if listed.holds(tell_without_heap as *const () as usize) {
            own_path = core::str::from_utf8(path).ok().map(String::from);
        }
        true
    });
    if is_loaded {
        return;
    }
    let own_path = own_path.unwrap_or_default();
    let folder = own_path.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let places = HEAP_FOLDERS.map(|place| alloc::format!("{folder}/{place}/{LIBRARY}"));
    let place = match places.iter().find_map(|place| files::File::open(&files::c_path(place)?).ok()?.path()) {
        Some(place) => alloc::format!("it is {place}"),
        None => String::from("`make install` puts it into libexec/pagelift"),
    };
    say(&alloc::format!("pagelift: PAGELIFT: `heap=` needs {LIBRARY} in LD_PRELOAD; {place}"));
}

/// Folders of the preloaded heap relative to this library: installed below the same prefix, or in the same build.
const HEAP_FOLDERS: [&str; 4] = ["../libexec/pagelift", "../../libexec/pagelift", ".", "../release"];

fn act(call: &Call, variable: &Variable) {
    let lifted = call.with_objects_and_library(|library| {
        library.later = Some(variable.policy.clone());
        library.lift(&variable.policy, fork_handlers::register)
    });
    let Ok(report) = lifted else { return };
    watch(&variable.policy);
    VERBOSE.store(variable.verbose, Ordering::Relaxed);
    let refused = variable.require && !report.lift.is_complete();
    if !variable.quiet || refused {
        tell(&report, variable.verbose, if refused { "; require ends it here" } else { "" });
    }
    if refused {
        linux_raw::exit(REQUIRED);
    }
}

fn tell(report: &LiftReport, verbose: bool, more: &str) {
    say(&(report.line() + more));
    if verbose {
        report.details().iter().for_each(|line| say(line));
    }
}

/// The value of `PAGELIFT`, from the environment that the program was started with. `None` where the program may have more
/// rights than the user who has set it, a set-user-ID program for example: it would print addresses and widen protections
/// for this user.
fn asked_for() -> Option<String> {
    let environment = files::bytes(c"/proc/self/environ").ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"PAGELIFT="))?;
    // A program without the entry may be privileged.
    if Auxiliary::read()?.vector.is_privileged() != Some(false) {
        return None;
    }
    core::str::from_utf8(value).ok().map(String::from)
}

fn say(line: &str) {
    let _ = linux_raw::write(2, (String::from(line) + "\n").as_bytes());
}

/// Starts lifting objects that are loaded from now on.
pub fn watch(policy: &Policy) {
    LEAST.store(policy.page_size.map_or_else(machine::smallest_huge_page, |size| size.bytes()), Ordering::Relaxed);
    let loads = loaded::loads();
    BY_START.store(loads, Ordering::Relaxed);
    BY_LOOKUP.store(loads, Ordering::Relaxed);
    FILTERS.store(seccomp::filters().map_or(UNKNOWN, u64::from), Ordering::Relaxed);
    WATCHING.store(true, Ordering::Relaxed);
}

/// True if objects that are loaded later are lifted.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// True if later lifts are reported, too.
static VERBOSE: AtomicBool = AtomicBool::new(false);
/// Bytes that a segment must have to hold a huge page.
static LEAST: AtomicU64 = AtomicU64::new(0);

/// The seccomp filters under which the watch has begun, or [`UNKNOWN`].
static FILTERS: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX;

/// The number of loads at the last look by an object's start, and by a lookup. They are kept apart because a lookup by
/// another thread may see an object that is listed already but not yet relocated; its own start comes after that.
static BY_START: AtomicU64 = AtomicU64::new(0);
static BY_LOOKUP: AtomicU64 = AtomicU64::new(0);

/// True if the calling thread has more seccomp filters than at the beginning of the watch: a lift makes calls for which
/// they may end the program.
fn is_confined() -> bool {
    seccomp::are_more(seccomp::filters(), u32::try_from(FILTERS.load(Ordering::Relaxed)).ok())
}

/// Lifts the objects that were loaded since the last look.
fn lift_new(loads: u64, last: u64) {
    if !loaded::newest_hold(loads.wrapping_sub(last), LEAST.load(Ordering::Relaxed)) {
        return;
    }
    // Before anything that a filter could refuse. To find out needs some memory, which the C library maps as well.
    if !own_memory::has_room() || is_confined() {
        return;
    }
    let Ok(call) = Call::begin() else { return };
    let lifted = call.with_objects_and_library(|library| library.lift_new(fork_handlers::register));
    if let (true, Ok(Some(report))) = (VERBOSE.load(Ordering::Relaxed), lifted) {
        tell(&report, true, "");
    }
}

/// Called by an object that begins its initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn __gmon_start__() {
    if WATCHING.load(Ordering::Relaxed) {
        let loads = loaded::loads();
        let last = BY_START.swap(loads, Ordering::Relaxed);
        if last != loads {
            lift_new(loads, last);
        }
    }
}

/// The real functions.
static REAL: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
const NAMES: [&CStr; 2] = [c"dlsym", c"dlvsym"];

fn real(index: usize) -> usize {
    let known = REAL[index].load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = symbols::next_after_this_object(NAMES[index]).unwrap_or(missing as *const () as usize);
    REAL[index].store(found, Ordering::Relaxed);
    found
}

/// Stands in for a function that no library of the program has: it fails as a call for something that is not there.
extern "C" fn missing() -> usize {
    0
}

/// Before a symbol is looked up. Returns the next address.
extern "C" fn before_lookup<const FUNCTION: usize>() -> usize {
    if WATCHING.load(Ordering::Relaxed) {
        let loads = loaded::loads();
        let last = BY_LOOKUP.swap(loads, Ordering::Relaxed);
        if last != loads && BY_START.load(Ordering::Relaxed) != loads {
            lift_new(loads, last);
        }
    }
    real(FUNCTION)
}

/// Defines a function of the dynamic linker's interface that calls another first and then jumps to the real one.
macro_rules! pass_on {
    ($(#[$doc:meta])* $name:ident, $first:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the real one.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {first}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                first = sym $first,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {first}",
                "mov x16, x0",
                "ldr x2, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #48",
                "br x16",
                first = sym $first,
            );
        }
    };
}

pass_on!(
    /// Looks up a symbol (dlsym(3)).
    dlsym, before_lookup::<0>
);
pass_on!(
    /// Looks up a symbol of a version (dlvsym(3)).
    dlvsym, before_lookup::<1>
);
