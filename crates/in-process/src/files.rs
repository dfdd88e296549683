//! Reads small files of `/proc` and `/sys`.

use crate::calls::{self, Errno};
use address_space::ProcessFiles;
use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::CStr;
use linux_raw_sys::errno::ENOENT;

/// An open file, closed when dropped.
pub struct File(i32);

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        calls::open(path).map(Self)
    }

    /// Where it lies, without links and detours, as the kernel tells it.
    #[cfg(feature = "preload")]
    pub fn path(&self) -> Option<String> {
        link(&c_path(&alloc::format!("/proc/self/fd/{}", self.0))?)
    }

    /// The descriptor, which stays this value's.
    pub fn descriptor(&self) -> i32 {
        self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        calls::close(self.0);
    }
}

/// A path as the kernel wants it; none where it holds a NUL byte.
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
        let read = calls::read(file.descriptor(), &mut bytes[filled..])?;
        bytes.truncate(filled + read);
        if read == 0 {
            return Ok(bytes);
        }
        // Larger reads get more of a long maps file as of one moment.
        room = (2 * bytes.len()).clamp(16 << 10, 512 << 10);
    }
}

/// A file's text; bytes that are no UTF-8 are replaced.
///
/// # Errors
/// The kernel's.
pub fn text(path: &CStr) -> Result<String, Errno> {
    bytes(path).map(|bytes| match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).to_string(),
    })
}

/// A file's text by a path that is put together at run time; empty where it cannot be read.
pub fn text_or_nothing(path: &str) -> String {
    c_path(path).and_then(|path| text(&path).ok()).unwrap_or_default()
}

/// How many threads this process has, or 0 where nobody can tell: field 20 of `/proc/self/stat`. The name, field 2, may
/// hold anything (proc_pid_stat(5)). A list of them would not do: a thread that ends meanwhile can hide others.
pub fn number_of_threads() -> usize {
    let number = |text: &str| text.rsplit_once(')')?.1.split_ascii_whitespace().nth(17)?.parse().ok();
    text(c"/proc/self/stat").ok().and_then(|text| number(&text)).unwrap_or(0)
}

/// Where a symbolic link leads.
pub fn link(path: &CStr) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = calls::read_link(path, &mut buffer).ok()?;
    core::str::from_utf8(buffer.get(..length)?).ok().map(ToString::to_string)
}

/// This process's files, for what `address-space` looks for in them.
pub struct OwnFiles;

impl ProcessFiles for OwnFiles {
    fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        take(&bytes(c"/proc/self/maps").ok()?);
        Some(())
    }

    fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        let mut target = [0; 4096];
        for name in names_in(c"/proc/self/fd").ok()? {
            match calls::read_link(&c_path(&alloc::format!("/proc/self/fd/{name}"))?, &mut target) {
                Ok(length) => take(target.get(..length)?),
                // It has been closed meanwhile, as the one that lists them.
                Err(errno) if errno == ENOENT as Errno => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}

/// The names in a directory, `.` and `..` left out.
///
/// # Errors
/// The kernel's.
pub fn names_in(path: &CStr) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    let directory = File::open(path)?;
    let mut buffer = [0u8; 4096];
    loop {
        match calls::directory_entries(directory.descriptor(), &mut buffer)? {
            0 => return Ok(names),
            length => names.extend(names_of_entries(&buffer[..length])),
        }
    }
}

/// The names in what `getdents64` wrote: inode and offset of eight bytes each, the entry's length in two, a type, and
/// the name up to a NUL (getdents(2)).
fn names_of_entries(mut entries: &[u8]) -> Vec<String> {
    const NAME: usize = 19;
    let mut names = Vec::new();
    while let Some(&[low, high]) = entries.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(entry) = entries.get(NAME..length) else { break };
        if let Some(name) = CStr::from_bytes_until_nul(entry).ok().and_then(|name| name.to_str().ok())
            && name != "."
            && name != ".."
        {
            names.push(name.to_string());
        }
        entries = &entries[length..];
    }
    names
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
    fn long_files_are_read_whole() {
        let expected = std::fs::read("/proc/kallsyms").unwrap();
        assert_eq!(bytes(c"/proc/kallsyms").unwrap().len(), expected.len());
        assert_eq!(bytes(c"/nowhere"), Err(2));
    }
}
