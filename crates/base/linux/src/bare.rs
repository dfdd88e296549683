//! System calls for a process that shares its memory with another one for a while (`ptrace/src/start/launch.rs`): the
//! functions of `linux-raw`, which do not touch `errno`, the heap or a lock, and do not panic.

pub use linux_raw::{
    ALL_SIGNALS, Errno as ErrorNumber, close, close_all, execute, exit, forget_thread_word, set_child_subreaper,
    set_ptracer, set_signal_mask, wait_for_end, write_pieces as write,
};

/// Reads available bytes, or waits for some. Returns their number; 0 at the end of the file and on failure.
pub fn read(descriptor: i32, buffer: &mut [u8]) -> usize {
    linux_raw::read_uninterrupted(descriptor, buffer).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn pieces_are_written_as_one() {
        let (mut from, to) = std::io::pipe().unwrap();
        write(to.as_raw_fd(), [b"one, ", b"", b"two"]);
        drop(to);
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one, two");
    }

    #[test]
    fn a_read_gives_what_is_there() {
        let file = File::open("/proc/self/status").unwrap();
        let mut buffer = [0; 5];
        assert_eq!(read(file.as_raw_fd(), &mut buffer), 5);
        assert_eq!(&buffer, b"Name:");
        assert_eq!(read(-1, &mut buffer), 0);
    }

    #[test]
    fn the_signal_mask_is_put_back() {
        let before = set_signal_mask(1 << 9);
        assert_eq!(set_signal_mask(before), 1 << 9);
    }

    #[test]
    fn what_cannot_be_executed_is_told() {
        let words = [core::ptr::null()];
        // SAFETY:
        // - both arrays are empty, with their null pointer.
        let number = unsafe { execute(c"/nowhere/to/be/found", words.as_ptr(), words.as_ptr()) };
        assert_eq!(number, libc::ENOENT);
    }
}
