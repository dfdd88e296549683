//! The kill switch: a file that an administrator or a configuration management creates.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of the file that are read.
const READ: u64 = 4096;

/// State of the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// There is no file.
    #[default]
    Off,
    /// No new lifts: a file is there. This is also the state if the file cannot be read.
    NoLifts,
    /// No new lifts, and all lifts are undone: the file holds the word `restore`.
    Restore,
}

impl Switch {
    /// Reads the file.
    pub fn read(file: &Path) -> Self {
        let opened = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY).open(file);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::Off,
            Err(_) => return Self::NoLifts,
        };
        let mut text = Vec::new();
        match file.take(READ).read_to_end(&mut text) {
            Ok(_) if text.trim_ascii() == b"restore" => Self::Restore,
            _ => Self::NoLifts,
        }
    }

    /// The words of a message.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoLifts => "no new lifts",
            Self::Restore => "no new lifts, and all lifts are undone",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_word_restores() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.off");
        assert_eq!(Switch::read(&file), Switch::Off);
        for (text, expected) in [
            ("", Switch::NoLifts),
            ("restore\n", Switch::Restore),
            ("restore all", Switch::NoLifts),
            ("\u{0}", Switch::NoLifts),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(Switch::read(&file), expected, "{text}");
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(Switch::read(&file), Switch::NoLifts, "a folder is no permission to lift");
        fs::remove_dir(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(Switch::read(&file), Switch::NoLifts, "a pipe is not waited for");
    }
}
