//! Detects whether the kernel may be writing to the heap by itself, for io_uring or AIO.

use crate::directory::for_each_number;
use crate::sys::{close, read};
use crate::text::Text;
use address_space::{ProcessFiles, kernel_may_write};

/// True if such a read may be in progress, or if this cannot be found out.
pub fn may_be_under_way() -> bool {
    kernel_may_write(&mut OwnFiles)
}

/// Reads files with buffers on the stack. Uses `/proc/thread-self`: once the first thread has ended, files in
/// `/proc/self` are empty.
struct OwnFiles;

impl ProcessFiles for OwnFiles {
    fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        let file = linux_raw::open(c"/proc/thread-self/maps", 0).ok()?;
        let mut buffer = [0u8; 4096];
        let whole = loop {
            match read(file, &mut buffer) {
                Ok(0) => break true,
                Ok(length) => take(&buffer[..length]),
                Err(_) => break false,
            }
        };
        // SAFETY:
        // - opened above, and used no more.
        unsafe { close(file) };
        whole.then_some(())
    }

    fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        for_each_number(c"/proc/thread-self/fd", |descriptor| {
            let mut target = [0u8; 64];
            let path = Text::of(format_args!("/proc/thread-self/fd/{descriptor}"));
            let Some(path) = path.as_path() else { return false };
            match linux_raw::read_link(path, &mut target) {
                Ok(length) => take(&target[..length]),
                // It has been closed since it was listed.
                Err(error) => return error == libc::ENOENT,
            }
            true
        })
    }
}
