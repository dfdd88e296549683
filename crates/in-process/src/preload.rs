//! The start before `main`, and the watch over `dlopen`. Only the shared library has these.
//!
//! Objects that are loaded later are seen without standing between `dlopen` and its caller: the dynamic linker looks
//! for RUNPATH and $ORIGIN in the object that the return address of `dlopen` lies in. So these functions only take
//! note and jump on to the real ones, with every argument and the return address as they were. A new object is lifted
//! when somebody asks for a symbol in it, by `dlsym`, which is what one loads an object for.

use crate::linking::with_nothing_unloaded;
use crate::own_state::with_library;
use crate::report::Report;
use crate::words::{self, Wishes};
use crate::{calls, files, objects, symbols};
use alloc::string::String;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Status of a program that is ended because of `require`, as `pagelift run` has it.
const REQUIRED: i32 = 125;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs before `main` and, by the linker's `-z initfirst`, before every other initialiser.
extern "C" fn start() {
    let Some(text) = asked_for() else { return };
    let wishes = match words::parse(&text) {
        Ok(wishes) => wishes,
        Err(why) => return say(&alloc::format!("pagelift: {why}")),
    };
    if wishes.only.is_empty() && wishes.pid.is_none() {
        return say("pagelift: PAGELIFT names no program; needed: only=NAME, for example only=mariadbd");
    }
    if words::names_this(&wishes, &objects::program_names(), calls::process_id() as u64) {
        act(&wishes);
    }
}

fn act(wishes: &Wishes) {
    let lifted = with_nothing_unloaded(|| {
        with_library(|library| {
            library.later = Some(wishes.policy.clone());
            library.lift(&wishes.policy)
        })
    });
    let Ok(report) = lifted else { return };
    watch();
    VERBOSE.store(wishes.verbose, Ordering::Relaxed);
    let refused = wishes.require && !report.is_complete();
    if !wishes.quiet || refused {
        tell(&report, wishes.verbose, if refused { "; require ends it here" } else { "" });
    }
    if refused {
        calls::exit(REQUIRED);
    }
}

fn tell(report: &Report, verbose: bool, more: &str) {
    say(&(report.line() + more));
    if verbose {
        report.details().iter().for_each(|line| say(line));
    }
}

/// The value of `PAGELIFT`, from the environment that the program was started with.
fn asked_for() -> Option<String> {
    let environment = files::bytes(c"/proc/self/environ").ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"PAGELIFT="))?;
    core::str::from_utf8(value).ok().map(String::from)
}

fn say(line: &str) {
    let _ = calls::write(2, (String::from(line) + "\n").as_bytes());
}

/// Looks at objects that are loaded from now on.
pub fn watch() {
    WATCHING.store(true, Ordering::Relaxed);
}

/// Later objects matter.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Later lifts are told about too.
static VERBOSE: AtomicBool = AtomicBool::new(false);
/// An object may have been loaded since the last look.
static LOADED: AtomicBool = AtomicBool::new(false);

/// Handles whose objects have been looked at, by a few bits of them. Another thread may be in the middle of `dlopen`
/// when `LOADED` is taken down, so a handle that has not been seen counts too.
static SEEN: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn slot(handle: usize) -> &'static AtomicUsize {
    &SEEN[(handle >> 4 ^ handle >> 10) % SEEN.len()]
}

/// The real functions.
static REAL: [AtomicUsize; 5] = [const { AtomicUsize::new(0) }; 5];
const NAMES: [&[u8]; 5] = [b"dlopen", b"dlmopen", b"dlsym", b"dlvsym", b"dlclose"];

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

/// Before an object is loaded. Returns where to go on.
extern "C" fn before_loading<const FUNCTION: usize>() -> usize {
    LOADED.store(true, Ordering::Relaxed);
    real(FUNCTION)
}

/// Before a symbol is looked up: new objects are there now. Returns where to go on.
extern "C" fn before_lookup<const FUNCTION: usize>(handle: usize) -> usize {
    if WATCHING.load(Ordering::Relaxed) {
        let unseen = slot(handle).swap(handle, Ordering::Relaxed) != handle;
        if LOADED.swap(false, Ordering::Relaxed) || unseen {
            let lifted = with_nothing_unloaded(|| with_library(|library| library.lift_new()));
            if let (true, Ok(Some(report))) = (VERBOSE.load(Ordering::Relaxed), lifted) {
                tell(&report, true, "");
            }
        }
    }
    real(FUNCTION)
}

/// Before an object may be unloaded: its handle may be another's soon. Returns where to go on.
extern "C" fn before_unloading(handle: usize) -> usize {
    slot(handle).store(0, Ordering::Relaxed);
    real(4)
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
    /// Loads an object (dlopen(3)).
    dlopen, before_loading::<0>
);
pass_on!(
    /// Loads an object into a namespace (dlmopen(3)).
    dlmopen, before_loading::<1>
);
pass_on!(
    /// Looks up a symbol (dlsym(3)).
    dlsym, before_lookup::<2>
);
pass_on!(
    /// Looks up a symbol of a version (dlvsym(3)).
    dlvsym, before_lookup::<3>
);
pass_on!(
    /// Releases an object (dlclose(3)).
    dlclose, before_unloading
);
