//! The size of a terminal.

use std::os::fd::{AsFd, AsRawFd};

mod calls {
    nix::ioctl_read_bad!(window_size, libc::TIOCGWINSZ, libc::winsize);
}

/// Columns of the terminal that the descriptor is; `None` where it is none or does not know its size (a serial line).
pub fn columns(terminal: impl AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY:
    // - the kernel writes a `winsize` into a variable of that type (ioctl_tty(2)).
    unsafe { calls::window_size(terminal.as_fd().as_raw_fd(), &raw mut size) }.ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_columns() {
        assert_eq!(columns(std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn a_terminal_tells_its_columns() {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: 133, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = nix::pty::openpty(&size, None).unwrap();
        assert_eq!(columns(&terminal.slave), Some(133));
        let unknown = nix::pty::openpty(None, None).unwrap();
        assert_eq!(columns(&unknown.slave), None);
    }
}
