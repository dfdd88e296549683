//! Reads small files of `/proc` and `/sys`.

use address_space::{ProcessFiles, ProcessStat};
use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::ControlFlow;
use linux_raw::directory::for_each_name;
use linux_raw::kernel::errno::ENOENT;
use linux_raw::kernel::general::O_NONBLOCK;
use linux_raw::{Errno, FileIdentity};

/// An open file, closed when dropped.
pub struct File(i32);

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        linux_raw::open(path, O_NONBLOCK).map(Self)
    }

    /// Its absolute path without symbolic links, as the kernel reports it.
    #[cfg(feature = "preload")]
    pub fn path(&self) -> Option<String> {
        link(&c_path(&alloc::format!("/proc/thread-self/fd/{}", self.0))?)
    }

    /// Its identity; `None` if the kernel does not report it.
    pub fn identity(&self) -> Option<FileIdentity> {
        linux_raw::status_of(self.0).ok().map(|status| FileIdentity::of_status(&status))
    }

    /// The descriptor, which this value still owns.
    pub fn descriptor(&self) -> i32 {
        self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY:
        // - this value has opened the descriptor and ends here.
        unsafe { linux_raw::close(self.0) };
    }
}

/// A path that ends with NUL; `None` if it contains a NUL byte.
pub fn c_path(path: &str) -> Option<CString> {
    CString::new(path).ok()
}

/// All bytes of a file.
///
/// # Errors
/// The kernel's.
pub fn bytes(path: &CStr) -> Result<Vec<u8>, Errno> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    let mut room = 16 << 10;
    loop {
        let filled = bytes.len();
        bytes.resize(filled + room, 0);
        let read = linux_raw::read(file.descriptor(), &mut bytes[filled..])?;
        bytes.truncate(filled + read);
        if read == 0 {
            return Ok(bytes);
        }
        // A larger read returns more of a long maps file at one moment.
        room = (2 * bytes.len()).clamp(16 << 10, 512 << 10);
    }
}

/// A file's text; bytes that are not UTF-8 are replaced.
///
/// # Errors
/// The kernel's.
pub fn text(path: &CStr) -> Result<String, Errno> {
    bytes(path).map(|bytes| match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).to_string(),
    })
}

/// The paths that identify this process's program. `/proc/self` comes first: valgrind shows the program only under
/// these names, and itself under all others, seen with 3.19. Once the first thread has ended `/proc/self` has no memory
/// any more, but `/proc/thread-self` has.
pub mod program {
    use super::{File, bytes, link};
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::ffi::CStr;
    use linux_raw::Errno;

    /// The executable, opened for reading, and the path that leads to it even if the file has been replaced.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> Result<(File, &'static str), Errno> {
        let open = |path: &'static CStr| Ok((File::open(path)?, path.to_str().unwrap_or_default()));
        open(c"/proc/self/exe").or_else(|_| open(c"/proc/thread-self/exe"))
    }

    /// The executable's path; it ends in ` (deleted)` where the file has been removed.
    pub fn path() -> Option<String> {
        link(c"/proc/self/exe").or_else(|| link(c"/proc/thread-self/exe"))
    }

    /// The auxiliary vector.
    ///
    /// # Errors
    /// The kernel's.
    pub fn auxiliary_vector() -> Result<Vec<u8>, Errno> {
        first_filled(c"/proc/self/auxv", c"/proc/thread-self/auxv")
    }

    /// The command line, each argument followed by NUL.
    ///
    /// # Errors
    /// The kernel's.
    #[cfg(feature = "preload")]
    pub fn command_line() -> Result<Vec<u8>, Errno> {
        first_filled(c"/proc/self/cmdline", c"/proc/thread-self/cmdline")
    }

    fn first_filled(first: &CStr, second: &CStr) -> Result<Vec<u8>, Errno> {
        match bytes(first) {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => bytes(second),
        }
    }
}

/// The number of threads of this process, or 0 if it cannot be read. Listing `/proc/self/task` is not reliable: a thread
/// that ends while the kernel lists can hide others.
pub fn number_of_threads() -> usize {
    let stat = bytes(c"/proc/self/stat").unwrap_or_default();
    ProcessStat::parse(&stat).and_then(ProcessStat::threads).unwrap_or(0)
}

/// The target of a symbolic link.
pub fn link(path: &CStr) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = linux_raw::read_link(path, &mut buffer).ok()?;
    core::str::from_utf8(buffer.get(..length)?).ok().map(ToString::to_string)
}

/// This process's files in `/proc`, as `address-space` reads them.
pub struct OwnFiles;

impl ProcessFiles for OwnFiles {
    fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        take(&bytes(c"/proc/thread-self/maps").ok()?);
        Some(())
    }

    fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        let mut target = [0; 4096];
        for name in names_in(c"/proc/thread-self/fd").ok()? {
            match linux_raw::read_link(&c_path(&alloc::format!("/proc/thread-self/fd/{name}"))?, &mut target) {
                Ok(length) => take(target.get(..length)?),
                // It has been closed since it was listed, like the descriptor of the listing itself.
                Err(errno) if errno == ENOENT as Errno => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}

/// The names in a directory, without `.` and `..` and those that are not UTF-8.
///
/// # Errors
/// The kernel's.
pub fn names_in(path: &CStr) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    let directory = File::open(path)?;
    let mut add = |name: &CStr| {
        names.extend(name.to_str().ok().map(ToString::to_string));
        ControlFlow::<()>::Continue(())
    };
    let _ = for_each_name(directory.descriptor(), &mut [0; 4096], &mut add)?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_listed() {
        let mut expected: Vec<String> = std::fs::read_dir("/proc/self/attr")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut found = names_in(c"/proc/self/attr").unwrap();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(names_in(c"/nowhere"), Err(ENOENT as Errno));
    }

    #[test]
    fn descriptors_that_cannot_be_listed_are_not_taken_for_none() {
        use nix::libc;
        // Where no descriptor may be opened, the directory cannot be. In a child, since other tests open files.
        // SAFETY:
        // - the child calls functions of the C library that fork leaves usable, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY:
            // - the limits are there during the call, and _exit takes an integer.
            unsafe {
                let is_set = libc::setrlimit(libc::RLIMIT_NOFILE, &none) == 0;
                let is_known = OwnFiles.descriptors(&mut |_| {}).is_some();
                libc::_exit(i32::from(!is_set) + 2 * i32::from(is_known));
            }
        }
        let mut status = -1;
        // SAFETY:
        // - the kernel writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn long_files_are_read_whole() {
        // The kernel loads a module, or a program for a filter, at any moment.
        let is_whole = || bytes(c"/proc/kallsyms").unwrap().len() == std::fs::read("/proc/kallsyms").unwrap().len();
        assert!((0..10).any(|_| is_whole()));
        assert_eq!(bytes(c"/nowhere"), Err(2));
    }
}
