//! The program that the heap serves: the names by which it can be named.

use crate::sys::read_file;
use core::ffi::{CStr, c_char};
use heap_abi::Order;
use options::program_names;

/// The running program, with the names that the kernel reports.
pub struct Program<'a> {
    /// The file that it executes.
    path: &'a str,
    called: &'a str,
}

/// The path that was executed, if it leads to this program's file; a script's path does not.
fn started_by() -> Option<&'static str> {
    // SAFETY:
    // - getauxval only looks up a number, which is the address of a string that the kernel has put beside the stack and
    //   that stays there.
    let path = unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        if path.is_null() {
            return None;
        }
        CStr::from_ptr(path)
    };
    let is_own = file_at(path).is_some_and(|found| file_at(c"/proc/self/exe") == Some(found));
    path.to_str().ok().filter(|_| is_own)
}

/// Device and inode of a file.
fn file_at(path: &CStr) -> Option<(u32, u32, u64)> {
    let file = linux_raw::open(path, libc::O_PATH as u32).ok()?;
    let status = linux_raw::status_of(file);
    // SAFETY:
    // - opened above, and used no more.
    unsafe { linux_raw::close(file) };
    status.ok().map(|status| (status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

/// Buffers for a [`Program`]'s texts.
pub struct ProgramBuffer {
    path: [u8; libc::PATH_MAX as usize],
    arguments: [u8; libc::PATH_MAX as usize],
}

impl ProgramBuffer {
    pub const fn new() -> Self {
        Self { path: [0; libc::PATH_MAX as usize], arguments: [0; libc::PATH_MAX as usize] }
    }
}

impl<'a> Program<'a> {
    /// The calling process's program; an unreadable name is empty.
    pub fn this(buffer: &'a mut ProgramBuffer) -> Self {
        let (path, arguments) = (&mut buffer.path, &mut buffer.arguments);
        let length = linux_raw::read_link(c"/proc/self/exe", path).unwrap_or(0);
        let path = core::str::from_utf8(&path[..length]).unwrap_or("");
        let length = read_file(c"/proc/self/cmdline", arguments).unwrap_or(0);
        let called = arguments[..length].split(|&byte| byte == 0).next().unwrap_or_default();
        Self { path, called: core::str::from_utf8(called).unwrap_or("") }
    }

    /// The names by which the program can be named; the first is its file's.
    pub fn names(&self) -> [&'a str; 5] {
        program_names(self.path, self.called, started_by())
    }

    /// True if the order's `only` names it, by the names that `pagelift run --only` compares.
    pub fn is_named_by(&self, order: &Order) -> bool {
        self.names().iter().any(|name| !name.is_empty() && order.names(name))
    }

    /// The process ID.
    pub fn pid(&self) -> u64 {
        linux_raw::process_id() as u64
    }
}
