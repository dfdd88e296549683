//! Paths and lines that are put together on the stack.

use crate::sys::{read_file, say};
use core::ffi::CStr;
use core::fmt::{self, Write as _};

const ROOM: usize = 1024;

/// Text without allocation. Text beyond its capacity is dropped.
pub struct Text {
    bytes: [u8; ROOM],
    length: usize,
}

impl Text {
    pub fn of(parts: fmt::Arguments) -> Self {
        let mut text = Self { bytes: [0; ROOM], length: 0 };
        text.add(parts);
        text
    }

    pub fn add(&mut self, parts: fmt::Arguments) {
        // Only formatted values can fail, and the values here do not.
        _ = self.write_fmt(parts);
    }

    /// Says it as one line.
    pub fn say(mut self) {
        // The last place is kept free for this by `write_str`.
        self.bytes[self.length] = b'\n';
        if let Ok(line) = core::str::from_utf8(&self.bytes[..=self.length]) {
            say(line);
        }
    }

    /// For the kernel; `None` if the text contains a NUL.
    pub fn as_path(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = part.len().min(ROOM - 1 - self.length);
        let whole = (0..=room).rev().find(|&end| part.is_char_boundary(end)).unwrap_or(0);
        let part = &part[..whole];
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}

/// A small file's text, by a path that is put together.
pub fn text_of<'a>(path: fmt::Arguments, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = read_file(Text::of(path).as_path()?, buffer)?;
    core::str::from_utf8(&buffer[..length]).ok()
}

/// The number that a file holds.
pub fn number_of(path: fmt::Arguments) -> Option<u64> {
    text_of(path, &mut [0; 64])?.trim().parse().ok()
}
