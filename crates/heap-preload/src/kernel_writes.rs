//! Whether the kernel may be writing to the heap by itself, for io_uring or AIO.

use crate::directory::for_each_number;
use crate::sys::{close, last_error, open, read};
use crate::text::Text;
use address_space::{ProcessFiles, kernel_may_write};

/// True where such a read may be under way, or where nothing can be known.
pub fn may_be_under_way() -> bool {
    kernel_may_write(&mut OwnFiles)
}

/// Reads with nothing but its stack.
struct OwnFiles;

impl ProcessFiles for OwnFiles {
    fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        let file = open(c"/proc/self/maps", 0)?;
        let mut buffer = [0u8; 4096];
        let whole = loop {
            match read(file, &mut buffer) {
                Some(0) => break true,
                Some(length) => take(&buffer[..length]),
                None => break false,
            }
        };
        // SAFETY:
        // - opened above, and used no more.
        unsafe { close(file) };
        whole.then_some(())
    }

    fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
        for_each_number(c"/proc/self/fd", |descriptor| {
            let mut target = [0u8; 64];
            let path = Text::of(format_args!("/proc/self/fd/{descriptor}"));
            let Some(path) = path.as_path() else { return false };
            // SAFETY:
            // - the path ends with NUL, and the kernel writes at most as many bytes as the buffer has.
            let length = unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
            match usize::try_from(length) {
                Ok(length) => take(&target[..length]),
                // It has been closed meanwhile.
                Err(_) => return last_error() == libc::ENOENT,
            }
            true
        })
    }
}
