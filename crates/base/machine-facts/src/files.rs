//! The trait through which the parsers read files.

use alloc::string::String;
use alloc::vec::Vec;

/// Reads files of `/proc` and `/sys`. Paths are absolute.
pub trait Files {
    /// The text of a file; `None` where it cannot be read.
    fn text(&self, path: &str) -> Option<String>;

    /// The names in a directory, without `.` and `..`; empty if it cannot be listed.
    fn names_in(&self, path: &str) -> Vec<String>;

    /// The path of the directory `directory` below `top`, as it is found `levels` levels below; `None` if it is not found.
    fn path_below(&self, _top: &str, _levels: usize, _directory: &str) -> Option<String> {
        None
    }

    /// A file that holds one number; `None` where it cannot be read or holds something else.
    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Files that exist in a test only.
    #[derive(Default)]
    pub struct WrittenFiles(BTreeMap<String, String>);

    impl WrittenFiles {
        /// Writes a file.
        pub fn write(&mut self, path: &str, text: impl ToString) {
            self.0.insert(path.to_owned(), format!("{}\n", text.to_string()));
        }
    }

    impl Files for WrittenFiles {
        fn text(&self, path: &str) -> Option<String> {
            self.0.get(path).cloned()
        }

        fn names_in(&self, path: &str) -> Vec<String> {
            let below = self.0.keys().filter_map(|file| file.strip_prefix(path)?.strip_prefix('/'));
            let mut names: Vec<_> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
            names.dedup();
            names
        }
    }

    #[test]
    fn numbers_are_read_without_blanks() {
        let mut files = WrittenFiles::default();
        files.write("/a", 12);
        files.write("/b", "max");
        assert_eq!([files.number("/a"), files.number("/b"), files.number("/c")], [Some(12), None, None]);
    }
}
