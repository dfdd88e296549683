//! Executed programs that may not preload Pagelift's libraries. Programs with a checking tool such as AddressSanitizer end
//! if another library precedes the tool's, and programs of musl cannot load the preloaded heap. They get LD_PRELOAD without
//! Pagelift's libraries.
//!
//! The functions run in children between a fork, or a vfork, and an exec: no lock is taken and nothing is allocated, the files are
//! read by system calls alone, and the changed environment is on the caller's stack. Calls past the C library pass the
//! environment on as it is.

mod by_descriptor;
mod lists;

use crate::{environment, linking, symbols};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use linux_raw::kernel::general::O_NONBLOCK;

/// Variables of an environment that can be changed; a larger one is passed on as it is.
const MOST_VARIABLES: usize = 1000;
/// Bytes of LD_PRELOAD that can be changed.
const LONGEST: usize = 2048;
/// Bytes that are read at once of a file.
const PIECE: usize = 2048;
/// Bytes of a file's table of names that are searched.
const MOST_NAMES: u64 = 16 << 20;
/// Scripts whose interpreters are scripts; the kernel allows four (execve(2)).
const MOST_SCRIPTS: usize = 5;

static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Looks the C library's functions up. Called before their first use, while the process has one thread: later, in a
/// child of a fork, the dynamic linker's lock may be held by a thread that the child does not have.
pub fn look_up() {
    by_descriptor::look_up();
    for (name, place) in NAMES.iter().zip(&REAL) {
        place.store(symbols::next_after_this_object(name).unwrap_or(missing as *const () as usize), Relaxed);
    }
}

/// Changes the environment of programs that this one executes from now on, if nothing may be preloaded into them.
pub fn begin() {
    IS_ACTIVE.store(true, Relaxed);
}

const NAMES: [&CStr; 8] =
    [c"execve", c"execv", c"execvp", c"execvpe", c"posix_spawn", c"posix_spawnp", c"fexecve", c"execveat"];
const EXECVE: usize = 0;
const EXECV: usize = 1;
const EXECVP: usize = 2;
const EXECVPE: usize = 3;
const SPAWN: usize = 4;
const SPAWN_PATH: usize = 5;
const FEXECVE: usize = 6;
const EXECVEAT: usize = 7;

/// The C library's functions, by [`NAMES`].
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

fn real(index: usize) -> usize {
    if REAL[index].load(Relaxed) == 0 {
        look_up();
    }
    REAL[index].load(Relaxed)
}

/// Stands in for a function that no library has.
extern "C" fn missing() -> c_int {
    -1
}

/// Libraries that a program is not to preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// All of Pagelift's.
    All,
    /// The preloaded heap.
    Heap,
}

type Strings = *const *const c_char;

/// An environment without Pagelift's libraries.
struct Changed {
    list: [*const c_char; MOST_VARIABLES + 1],
    preload: [u8; LONGEST],
}

impl Changed {
    const fn new() -> Self {
        Self { list: [core::ptr::null(); MOST_VARIABLES + 1], preload: [0; LONGEST] }
    }

    /// The environment for the program at `path`: `environment`, or a changed copy in this value.
    ///
    /// # Safety
    /// `environment` is null or a list of strings that ends with null, `path` a string; both stay unchanged.
    unsafe fn of(&mut self, path: &CStr, environment: Strings) -> Strings {
        if environment.is_null() {
            return environment;
        }
        let Some(leave) = leave_for(path) else { return environment };
        let mut count = 0;
        // SAFETY:
        // - the caller's promise.
        unsafe {
            let mut next = environment;
            while !(*next).is_null() {
                let variable = CStr::from_ptr(*next);
                let kept = match variable.to_bytes_with_nul() {
                    bytes if bytes.starts_with(b"LD_PRELOAD=") && bytes.len() <= LONGEST => {
                        let preload = &mut self.preload[..bytes.len()];
                        preload.copy_from_slice(bytes);
                        let is_ours = |file: &[u8]| {
                            environment::is_heap(file) || leave == Leave::All && environment::is_this_library(file)
                        };
                        (!environment::is_empty_without(preload, is_ours)).then(|| preload.as_ptr().cast())
                    }
                    _ => Some(*next),
                };
                if let Some(kept) = kept {
                    if count == MOST_VARIABLES {
                        return environment;
                    }
                    self.list[count] = kept;
                    count += 1;
                }
                next = next.add(1);
            }
        }
        self.list[count] = core::ptr::null();
        self.list.as_ptr()
    }
}

/// Libraries that the program at `path` must not preload; `None` if it may preload everything or cannot be read.
fn leave_for(path: &CStr) -> Option<Leave> {
    let mut name = [0; LONGEST];
    name.get_mut(..path.count_bytes())?.copy_from_slice(path.to_bytes());
    for _ in 0..MOST_SCRIPTS {
        let path = CStr::from_bytes_until_nul(&name).ok()?;
        // A pipe, to which a descriptor may lead, is not waited for.
        let file = Opened(linux_raw::open(path, O_NONBLOCK).ok()?);
        let mut head = [0; PIECE];
        let length = linux_raw::read_at(file.0, &mut head, 0).ok()?;
        let head = &head[..length];
        let Some(line) = head.strip_prefix(b"#!") else { return file.leave(head) };
        let line = line.split(|&byte| byte == b'\n').next()?;
        let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
        name = [0; LONGEST];
        name.get_mut(..word.len())?.copy_from_slice(word);
    }
    None
}

/// An open file, closed when dropped.
struct Opened(i32);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY:
        // - opened by this value's maker, and used no more.
        unsafe { linux_raw::close(self.0) };
    }
}

impl Opened {
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        linux_raw::read_at(self.0, into, offset).ok().filter(|&length| length > 0)
    }

    /// Libraries that an ELF program that begins with `head` must not preload.
    fn leave(&self, head: &[u8]) -> Option<Leave> {
        const PROGRAM_HEADER: usize = 56;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let headers = usize::try_from(word(head, 32)?).ok()?;
        let count = usize::from(u16::from_le_bytes(head.get(56..58)?.try_into().ok()?));
        let all = (0..count).map_while(|index| head.get(headers.checked_add(index * PROGRAM_HEADER)?..));
        let of_kind = |kind: u32| all.clone().find(|header| header.starts_with(&kind.to_le_bytes()));
        let mut path = [0; 256];
        let interpreter = of_kind(PT_INTERP)?;
        let size = (word(interpreter, 32)? as usize).min(path.len());
        self.read(word(interpreter, 8)?, &mut path[..size])?;
        let is_musl = contains(&path, b"ld-musl-");
        let names = self.names(of_kind(PT_DYNAMIC)?, all.clone());
        match names.is_some_and(|(offset, size)| self.has_checker(offset, size)) {
            true => Some(Leave::All),
            false => is_musl.then_some(Leave::Heap),
        }
    }

    /// Offset and size in the file of the dynamic section's table of names.
    fn names<'h>(&self, dynamic: &[u8], mut headers: impl Iterator<Item = &'h [u8]>) -> Option<(u64, u64)> {
        let mut entries = [0; PIECE];
        let length = (word(dynamic, 32)? as usize).min(PIECE);
        self.read(word(dynamic, 8)?, &mut entries[..length])?;
        let value = |tag: u64| entries.chunks_exact(16).find(|entry| word(entry, 0) == Some(tag))?.get(8..);
        let (address, size) = (word(value(DT_STRTAB)?, 0)?, word(value(DT_STRSZ)?, 0)?);
        let offset = headers.find_map(|header| {
            let is_loaded = header.starts_with(&PT_LOAD.to_le_bytes());
            let inside = address.checked_sub(word(header, 16)?)?;
            (is_loaded && inside < word(header, 32)?).then(|| word(header, 8)?.checked_add(inside)).flatten()
        })?;
        Some((offset, size.min(MOST_NAMES)))
    }

    /// True if one of the names belongs to the start function or library of a checking tool.
    fn has_checker(&self, offset: u64, size: u64) -> bool {
        let mut piece = [0; PIECE];
        let (mut at, mut kept) = (0, 0);
        while at < size {
            let room = (PIECE - kept).min((size - at) as usize);
            let Some(read) = self.read(offset.saturating_add(at), &mut piece[kept..kept + room]) else { return false };
            let filled = kept + read;
            // The names that end in this piece. A search for the end of each is many times faster than a comparison at each byte.
            let mut rest = &piece[..filled];
            while let Ok(name) = CStr::from_bytes_until_nul(rest) {
                let name = name.to_bytes();
                if CHECKERS.iter().any(|checker| name.ends_with(checker)) || is_checking_library(name) {
                    return true;
                }
                rest = &rest[name.len() + 1..];
            }
            at += read as u64;
            // The start of a name that is longer than a piece is left out.
            kept = rest.len().min(LONGEST_CHECKER - 1);
            piece.copy_within(filled - kept..filled, 0);
        }
        false
    }
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// Ends of names: starts of AddressSanitizer, HWAddressSanitizer, ThreadSanitizer, MemorySanitizer and others, and the one tool
/// that programs need by its library alone.
const CHECKERS: [&[u8]; 3] = [b"san_init", b"__memprof_init", b"__lsan_do_leak_check"];
/// The beginning of that library's name.
const CHECKING_LIBRARY: &[u8] = b"liblsan.so";
/// Larger than the length of the longest name.
const LONGEST_CHECKER: usize = 32;

/// True for the name of that library, or its path.
fn is_checking_library(name: &[u8]) -> bool {
    name.rsplit(|&byte| byte == b'/').next().is_some_and(|file| file.starts_with(CHECKING_LIBRARY))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?))
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Calls `act` with each path at which execvp(3) searches for a program, until it returns something.
///
/// # Safety
/// `file` is a string.
unsafe fn each_path<T>(file: *const c_char, mut act: impl FnMut(&CStr) -> Option<T>) -> Option<T> {
    // SAFETY:
    // - the caller's promise; the C library's list of variables ends with null.
    unsafe {
        let name = CStr::from_ptr(file);
        if name.to_bytes().contains(&b'/') {
            return act(name);
        }
        let mut variable = current_environment();
        let mut folders: &[u8] = b"/bin:/usr/bin";
        while !variable.is_null() && !(*variable).is_null() {
            if let Some(value) = CStr::from_ptr(*variable).to_bytes().strip_prefix(b"PATH=") {
                folders = value;
                break;
            }
            variable = variable.add(1);
        }
        let mut path = [0; LONGEST];
        for folder in folders.split(|&byte| byte == b':') {
            // An empty entry is the working directory.
            let folder: &[u8] = if folder.is_empty() { b"." } else { folder };
            let length = folder.len() + 1 + name.count_bytes();
            if length >= LONGEST {
                continue;
            }
            path[..folder.len()].copy_from_slice(folder);
            path[folder.len()] = b'/';
            path[folder.len() + 1..=length].copy_from_slice(name.to_bytes_with_nul());
            let found = CStr::from_bytes_until_nul(&path).ok().and_then(&mut act);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The first path at which a file can be read, which is most likely what is executed. A pipe is not waited for.
///
/// # Safety
/// As for [`each_path`]; `changed` and `environment` as for [`Changed::of`].
unsafe fn found_environment(changed: &mut Changed, file: *const c_char, environment: Strings) -> Strings {
    // SAFETY:
    // - the caller's promise.
    let found = unsafe {
        each_path(file, |path| {
            Opened(linux_raw::open(path, O_NONBLOCK).ok()?).read(0, &mut [0])?;
            Some(changed.of(path, environment))
        })
    };
    found.unwrap_or(environment)
}

fn current_environment() -> Strings {
    // SAFETY:
    // - the C library's variable, which is a pointer at any time.
    linking::environ().map_or(core::ptr::null(), |place| unsafe { *place })
}

type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Execv = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

/// A call of the C library's, with the environment that it is to get.
type Call<'a> = &'a dyn Fn(Strings) -> c_int;

/// Makes a call with the environment for the program at `path`.
///
/// # Safety
/// `path` is null or a string; `environment` as for [`Changed::of`].
unsafe fn at_path(path: *const c_char, environment: Strings, call: Call<'_>) -> c_int {
    /// Not part of the caller's frame: a thread's stack may be small.
    ///
    /// # Safety
    /// As above; `path` is not null.
    #[inline(never)]
    unsafe fn changed(path: *const c_char, environment: Strings, call: Call<'_>) -> c_int {
        let mut changed = Changed::new();
        // SAFETY:
        // - the caller's promise.
        call(unsafe { changed.of(CStr::from_ptr(path), environment) })
    }
    if !IS_ACTIVE.load(Relaxed) || path.is_null() {
        return call(environment);
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { changed(path, environment, call) }
}

/// Makes a call with the environment for the program that execvp(3) finds.
///
/// # Safety
/// `file` is null or a string; `environment` as for [`Changed::of`].
unsafe fn in_folders(file: *const c_char, environment: Strings, call: Call<'_>) -> c_int {
    /// Not part of the caller's frame, as above.
    ///
    /// # Safety
    /// As above; `file` is not null.
    #[inline(never)]
    unsafe fn changed(file: *const c_char, environment: Strings, call: Call<'_>) -> c_int {
        let mut changed = Changed::new();
        // SAFETY:
        // - the caller's promise.
        call(unsafe { found_environment(&mut changed, file, environment) })
    }
    if !IS_ACTIVE.load(Relaxed) || file.is_null() {
        return call(environment);
    }
    // SAFETY:
    // - the caller's promise.
    unsafe { changed(file, environment, call) }
}

/// execve(2).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, words: Strings, environment: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = transmute::<usize, Execve>(real(EXECVE));
        at_path(path, environment, &|environment| real(path, words, environment))
    }
}

/// execv(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, words: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type; execv is execve with the C library's environment.
    unsafe {
        match IS_ACTIVE.load(Relaxed) {
            true => execve(path, words, current_environment()),
            false => transmute::<usize, Execv>(real(EXECV))(path, words),
        }
    }
}

/// execvp(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, words: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type; execvp is execvpe with the C library's environment.
    unsafe {
        match IS_ACTIVE.load(Relaxed) {
            true => execvpe(file, words, current_environment()),
            false => transmute::<usize, Execv>(real(EXECVP))(file, words),
        }
    }
}

/// execvpe(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, words: Strings, environment: Strings) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = transmute::<usize, Execve>(real(EXECVPE));
        in_folders(file, environment, &|environment| real(file, words, environment))
    }
}

/// posix_spawn(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    process: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = transmute::<usize, Spawn>(real(SPAWN));
        at_path(path, environment, &|environment| real(process, path, actions, attributes, words, environment))
    }
}

/// posix_spawnp(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    process: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY:
    // - the caller's promise; the function found has this type.
    unsafe {
        let real = transmute::<usize, Spawn>(real(SPAWN_PATH));
        in_folders(file, environment, &|environment| real(process, file, actions, attributes, words, environment))
    }
}
