//! Reads the kernel's files, for example in `/proc` and `/sys`.

use crate::bounded::KERNEL_TEXT;
use crate::watch::watched;
use nix::errno::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Size in bytes that exceeds nearly all such files.
const USUAL_LENGTH: usize = 4 << 10;

/// Reads a file of the kernel. These files report no length, so a buffer that grows from zero would read most files in
/// ten pieces.
///
/// # Errors
/// Those of opening and reading, and of a file that is longer than [`KERNEL_TEXT`].
pub fn bytes_of(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    watched(|| format!("reading {}", path.display()), || all_of(path))
}

fn all_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let (mut beginning, mut length) = ([0; USUAL_LENGTH], 0);
    while length < USUAL_LENGTH {
        match file.read(&mut beginning[length..]) {
            Ok(0) => return Ok(beginning[..length].to_vec()),
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    KERNEL_TEXT.read_behind(beginning.to_vec(), file)
}

/// Opens a file of a process in `/proc` for reading, within the limit of [`watched`]: the kernel waits while the process executes a
/// program, which waits for the lock of its former memory.
///
/// # Errors
/// The kernel's.
pub fn open_of_process(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    watched(|| format!("opening {}", path.display()), || File::open(path))
}

/// As [`File::open`], by one system call: musl makes a second one for `O_CLOEXEC`, and a start reads dozens of files.
fn open(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    loop {
        match linux_raw::open(&path, 0) {
            // SAFETY:
            // - the descriptor has just been opened, and nobody else has it.
            Ok(descriptor) => return Ok(unsafe { File::from_raw_fd(descriptor) }),
            Err(error) if error == Errno::EINTR as i32 => {}
            Err(error) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Reads a file of the kernel as text. Bytes that are not UTF-8 are replaced: names of processes and files are any bytes, and
/// the kernel cuts a process's short name after 15 bytes, even inside a letter.
///
/// # Errors
/// Those of opening and reading.
pub fn text_of(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = bytes_of(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_every_length_are_read_whole() {
        for length in [0, 1, USUAL_LENGTH - 1, USUAL_LENGTH, USUAL_LENGTH + 1, 5 * USUAL_LENGTH] {
            let path = std::env::temp_dir().join(format!("pagelift-text-{}-{length}", std::process::id()));
            let bytes: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let read = bytes_of(&path);
            std::fs::remove_file(&path).unwrap();
            assert!(read.unwrap() == bytes, "{length}");
        }
        assert!(text_of("/proc/self/maps").unwrap().contains("[stack]"));
        assert_eq!(text_of("/nowhere/to/be/found").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_name_that_is_cut_inside_a_letter_hides_no_other_field() {
        std::thread::spawn(|| {
            // SAFETY:
            // - the name ends with a zero and is only read.
            let named = unsafe { libc::prctl(libc::PR_SET_NAME, c"prozessw\xc3\xa4chte\xc3".as_ptr()) };
            assert_eq!(named, 0);
            let status = text_of("/proc/thread-self/status").unwrap();
            assert!(status.contains("\nSigBlk:"), "{status}");
            assert_eq!(text_of("/proc/thread-self/comm").unwrap(), "prozesswächte\u{fffd}\n");
        })
        .join()
        .unwrap();
    }
}
