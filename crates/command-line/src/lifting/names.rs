//! The names that `--only` may mean.
//!
//! A program is meant by its file's name or path, or by the link that it was executed by (redis-server, which Debian has
//! as a link to redis-check-rdb). Links lead to front ends too: rustup's `rustc` executes the real one. Nothing of a link
//! tells which it is, so that both are lifted, and who was meant by a link alone is followed on.

use heap_contract::program_names;
use observation::ProcessFiles;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

/// A program's names.
pub struct Names {
    of_file: Vec<String>,
    of_link: Vec<String>,
}

impl Names {
    /// Those of the program that a process executes.
    pub fn of(pid: i32) -> Self {
        let process = ProcessFiles::of(pid);
        let path = fs::read_link(process.path("exe")).map(|path| path.to_string_lossy().into_owned());
        let arguments = process.bytes("cmdline").unwrap_or_default();
        let called = arguments.split(|&byte| byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
        Self::from(&path.unwrap_or_default(), &called, executed_link(&process).as_deref())
    }

    /// By the file's path, the name it was called by, and the link that it was executed by.
    fn from(path: &str, called: &str, link: Option<&str>) -> Self {
        let [file, path, called, short, link] = program_names(path, called, link).map(str::to_owned);
        let mut names = Self { of_file: vec![file.clone(), path, called], of_link: vec![short.clone(), link] };
        // `python3` is `python3.11`, whichever way it was started.
        if file.starts_with(&short) {
            names.of_file.append(&mut names.of_link);
        }
        names
    }

    /// True where this name means the program.
    pub fn has(&self, name: &str) -> bool {
        self.are_of_file(name) || (!name.is_empty() && self.of_link.iter().any(|own| own == name))
    }

    /// True where the program is meant whatever link it was executed by.
    pub fn are_of_file(&self, name: &str) -> bool {
        !name.is_empty() && self.of_file.iter().any(|own| own == name)
    }
}

/// The path that was executed, where it leads to the program's file; that of a script leads elsewhere.
fn executed_link(process: &ProcessFiles) -> Option<String> {
    let address = process.auxiliary().ok()?.executed_path()?;
    let mut buffer = [0; libc::PATH_MAX as usize];
    // It lies at the stack's end, where less than a path's room may be left.
    let length = File::open(process.path("mem")).ok()?.read_at(&mut buffer, address.0).ok()?;
    let end = buffer[..length].iter().position(|&byte| byte == 0)?;
    let path = std::str::from_utf8(&buffer[..end]).ok()?;
    let seen_from_here = match path.strip_prefix('/') {
        Some(inside) => process.path("root").join(inside),
        None => process.path("cwd").join(path),
    };
    let (found, own) = (fs::metadata(seen_from_here).ok()?, fs::metadata(process.path("exe")).ok()?);
    ((found.dev(), found.ino()) == (own.dev(), own.ino())).then(|| path.to_owned())
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
