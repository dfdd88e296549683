//! Names of programs, by which a start may be limited.
//!
//! A name matches the name or path of a program's file, or the link by which it was executed (on Debian, redis-server
//! is a link to redis-check-rdb). Links also lead to front ends: rustup's `rustc` executes the real one. A link does
//! not tell which of the two it leads to, so both are lifted, and a program that is matched by a link alone is followed
//! further.

use foreign_text::printable;
use options::program_names;
use process_view::{ProcessFiles, ProcessMemoryFile, executed_metadata, metadata_in_root};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A program's names.
pub struct Names {
    of_file: Vec<String>,
    of_link: Vec<String>,
}

impl Names {
    /// Returns the names of the program that a process executes.
    pub fn of(pid: i32) -> Self {
        let process = ProcessFiles::of(pid);
        let path = process.executed_path().map(|path| path.to_string_lossy().into_owned());
        let arguments = process.bytes("cmdline").unwrap_or_default();
        let called = arguments.split(|&byte| byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
        Self::from(&path.unwrap_or_default(), &called, executed_link(&process).as_deref())
    }

    /// Returns the names from the file's path, the name of its call (`argv[0]`) and the link by which it was executed.
    fn from(path: &str, called: &str, link: Option<&str>) -> Self {
        let [file, path, called, short, link] = program_names(path, called, link).map(str::to_owned);
        let mut names = Self { of_file: vec![file.clone(), path, called], of_link: vec![short.clone(), link] };
        // `python3` matches `python3.11`, however it was started.
        if file.starts_with(&short) {
            names.of_file.append(&mut names.of_link);
        }
        names
    }

    /// True where `name` matches the program.
    pub fn has(&self, name: &str) -> bool {
        self.are_of_file(name) || (!name.is_empty() && self.of_link.iter().any(|own| own == name))
    }

    /// True where the name matches the program without its link.
    pub fn are_of_file(&self, name: &str) -> bool {
        !name.is_empty() && self.of_file.iter().any(|own| own == name)
    }
}

/// Returns the executed path, where it leads to the program's file; that of a script does not.
fn executed_link(process: &ProcessFiles) -> Option<String> {
    let address = process.auxiliary().ok()?.executed_path()?;
    let path = ProcessMemoryFile::of(process).ok()?.text(address)?;
    let (found, own) = (metadata_in_root(process, Path::new(&path)).ok()?, executed_metadata(process)?);
    ((found.dev(), found.ino()) == (own.dev(), own.ino())).then_some(path)
}

/// Returns the name of the program that a process executes: that of its file, or where the file is hidden the short
/// name in `comm`; `?` where neither can be read.
pub fn program_name(pid: i32) -> String {
    known_name(pid).unwrap_or_else(|| "?".to_owned())
}

/// Returns the words by which a message names a process: `name[PID]`, or `process PID` where it has no name (any more).
pub fn process_name(pid: i32) -> String {
    known_name(pid).map_or_else(|| format!("process {pid}"), |name| format!("{}[{pid}]", printable(&name)))
}

fn known_name(pid: i32) -> Option<String> {
    let process = ProcessFiles::of(pid);
    let name = process.executed_path().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.or_else(|| process.name().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_means_the_program_but_may_be_a_front_end() {
        let redis = Names::from("/usr/bin/redis-check-rdb", "redis-server *:0", Some("/usr/bin/redis-server"));
        assert!(redis.has("redis-server") && redis.has("/usr/bin/redis-server") && redis.has("redis-check-rdb"));
        assert!(redis.are_of_file("redis-check-rdb") && !redis.are_of_file("redis-server") && !redis.has(""));
        let called_only = Names::from("/root/.cargo/bin/rustup", "rustc", None);
        assert!(!called_only.has("rustc") && called_only.has("rustup"));
    }

    #[test]
    fn a_link_to_a_version_is_the_program() {
        for called in ["python3", "-"] {
            let names = Names::from("/usr/bin/python3.11", called, Some("/usr/bin/python3"));
            assert!(names.are_of_file("python3") && names.are_of_file("/usr/bin/python3") && names.has("python3.11"));
        }
    }

    #[test]
    fn this_program_has_names() {
        let own = std::env::current_exe().unwrap();
        assert!(Names::of(std::process::id() as i32).are_of_file(&own.to_string_lossy()));
    }
}
