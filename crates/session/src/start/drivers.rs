//! Programs that leave their work to other programs: drivers of compilers, and rustup's front ends.

use linux::search_path::find_program;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Returns the name of the program that does the work of a known driver, for `--only`: `cc1plus` for `g++`. Reads the file
/// system only for names that a driver can have.
pub fn worker_of(command: &OsStr) -> Option<String> {
    let called = name_of(Path::new(command))?;
    if !may_be_driver(called) {
        return None;
    }
    let file = fs::canonicalize(find_program(command)?).ok()?;
    worker(called, name_of(&file)?).map(str::to_owned)
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn may_be_driver(called: &str) -> bool {
    ["cargo", "rustc", "rustdoc"].contains(&called) || compiler(called).is_some()
}

/// The worker of a driver that is called by one name, and is the file of another name.
fn worker<'a>(called: &'a str, file: &str) -> Option<&'a str> {
    match (called, file) {
        ("cargo", _) => Some("rustc"),
        ("rustc" | "rustdoc", "rustup") => Some(called),
        // `cc` can be a link to clang, which compiles by itself.
        _ => compiler(file),
    }
}

/// The worker of a driver of GCC, whose name may have a target before it and a version behind it:
/// `x86_64-linux-gnu-g++-12`.
fn compiler(name: &str) -> Option<&'static str> {
    let is_version = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let unversioned = name.rsplit_once('-').filter(|(_, last)| is_version(last)).map_or(name, |(name, _)| name);
    match unversioned.rsplit('-').next()? {
        "g++" | "c++" => Some("cc1plus"),
        "gcc" | "cc" => Some("cc1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_known_by_their_files() {
        for (called, file, expected) in [
            ("g++", "x86_64-linux-gnu-g++-12", Some("cc1plus")),
            ("c++", "g++-14", Some("cc1plus")),
            ("cc", "aarch64-linux-gnu-gcc-12", Some("cc1")),
            ("gcc-12.2", "gcc-12.2", Some("cc1")),
            ("cc", "clang-15", None),
            ("rustc", "rustup", Some("rustc")),
            ("rustc", "rustc", None),
            ("cargo", "rustup", Some("rustc")),
            ("cargo", "cargo", Some("rustc")),
        ] {
            assert_eq!(worker(called, file), expected, "{called}, {file}");
            assert!(may_be_driver(called), "{called}");
        }
        for other in ["mariadbd", "cc1plus", "gcc-ar", "ccache", "node", "12", "-"] {
            assert!(!may_be_driver(other), "{other}");
        }
        assert_eq!(worker_of(OsStr::new("no-such-g++")), None);
    }
}
