//! Error numbers in words. The library that runs inside programs has no C library to ask.

use core::fmt;

/// Errors of memory calls, with the texts of strerror(3). The numbers are the same on every architecture that Pagelift
/// runs on (`asm-generic/errno-base.h`, `asm-generic/errno.h`).
const TEXTS: [(i32, &str); 24] = [
    (1, "Operation not permitted"),
    (2, "No such file or directory"),
    (3, "No such process"),
    (4, "Interrupted system call"),
    (5, "Input/output error"),
    (7, "Argument list too long"),
    (9, "Bad file descriptor"),
    (11, "Resource temporarily unavailable"),
    (12, "Cannot allocate memory"),
    (13, "Permission denied"),
    (14, "Bad address"),
    (16, "Device or resource busy"),
    (17, "File exists"),
    (19, "No such device"),
    (22, "Invalid argument"),
    (23, "Too many open files in system"),
    (24, "Too many open files"),
    (25, "Inappropriate ioctl for device"),
    (28, "No space left on device"),
    (30, "Read-only file system"),
    (38, "Function not implemented"),
    (75, "Value too large for defined data type"),
    (95, "Operation not supported"),
    (133, "Memory page has hardware error"),
];

/// An error number, displayed in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrnoText(pub i32);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TEXTS.iter().find(|(number, _)| *number == self.0) {
            Some((number, text)) => write!(f, "{text} (os error {number})"),
            None => write!(f, "error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_c_library() {
        for (number, _) in TEXTS {
            assert_eq!(ErrnoText(number).to_string(), std::io::Error::from_raw_os_error(number).to_string());
        }
        assert_eq!(ErrnoText(9999).to_string(), "error 9999");
    }
}
