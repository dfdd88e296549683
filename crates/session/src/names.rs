//! Names of programs, by which a start may be limited.
//!
//! A name matches the name or path of a program's file, or the link by which it was executed (on Debian, redis-server
//! is a link to redis-check-rdb). Links also lead to front ends: rustup's `rustc` executes the real one. A link does
//! not identify which of the two the user wants, so both are lifted, and the descendants of a program that is matched
//! by a link alone are followed.

use foreign_text::printable;
use options::{is_named, program_names};
use process_view::{ProcessFiles, Unanswered, ask_one, executed_link, file_name, link_name, tree_of, without_mark};

/// A program's names.
pub struct Names {
    of_file: Vec<String>,
    of_link: Vec<String>,
}

impl Names {
    /// Returns the names of the program that a process executes.
    pub fn of(pid: i32) -> Self {
        let process = ProcessFiles::of(pid);
        let path = process.executed_path().map(|path| without_mark(&path.to_string_lossy()).to_owned());
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

    /// True if `name` matches the program.
    pub fn has(&self, name: &str) -> bool {
        self.are_of_file(name) || (!name.is_empty() && self.of_link.iter().any(|own| own == name))
    }

    /// True if the name matches the program without its link.
    pub fn are_of_file(&self, name: &str) -> bool {
        !name.is_empty() && self.of_file.iter().any(|own| own == name)
    }
}

/// Returns the name of the program that a process executes: the name of the link by which it was executed (redis-server is a
/// link to redis-check-rdb), or of its file, which names a version (`python3.11`). If the file is hidden, returns the short
/// name in `comm`, and `?` if that cannot be read either. Waits for a process that holds the lock of its memory.
pub fn program_name(pid: i32) -> String {
    process_view::program_name(&ProcessFiles::of(pid)).unwrap_or_else(|| "?".to_owned())
}

/// Returns the name of a program at its entry: the name of the link by which it was executed, or `file`, the name of its file.
/// A program that was started through its dynamic linker has the name of its file.
pub(crate) fn started_name(pid: i32, file: &str) -> String {
    let process = ProcessFiles::of(pid);
    let is_executed = file_name(&process).is_some_and(|executed| executed == file);
    is_executed.then(|| link_name(&process, file)).flatten().unwrap_or_else(|| file.to_owned())
}

/// Returns the words by which a message names a process: `name[PID]`, or `process PID` if it has no name (any more).
/// Waits as [`program_name`] does.
pub fn process_name(pid: i32) -> String {
    process_view::program_name(&ProcessFiles::of(pid))
        .map_or_else(|| format!("process {pid}"), |name| format!("{}[{pid}]", printable(&name)))
}

/// The words by which messages name a process that does not answer.
pub(crate) fn name_of_silent(process: &Unanswered) -> String {
    match process.name.as_str() {
        "" => format!("process {}", process.pid),
        name => format!("{name}[{}]", process.pid),
    }
}

/// As [`process_name`]; the name in `comm` if the process does not answer within [`linux::watch::LIMIT`].
pub fn process_name_in_time(pid: i32) -> String {
    ask_one(pid, |process| process_name(process.pid())).unwrap_or_else(|silent| name_of_silent(&silent))
}

/// As [`program_name`]; the name in `comm` if the process does not answer within [`linux::watch::LIMIT`].
pub fn program_name_in_time(pid: i32) -> String {
    ask_one(pid, |process| program_name(process.pid())).unwrap_or_else(|silent| silent.name)
}

/// Finds the first process of a tree, parents first, whose program matches one of the names of `--only`. Pagelift itself does
/// not count: a lifted run is Pagelift until it executes the command.
pub fn named_below(root: i32, only: &[String]) -> Option<i32> {
    let own = std::env::current_exe().ok();
    tree_of(root).into_iter().find(|&pid| {
        let process = ProcessFiles::of(pid);
        let Some(path) = process.executed_path().filter(|path| Some(path) != own.as_ref()) else { return false };
        let path = without_mark(&path.to_string_lossy()).to_owned();
        let (called, link) = (process.name().unwrap_or_default(), executed_link(&process));
        is_named(only.iter().map(String::as_str), &program_names(&path, &called, link.as_deref()))
    })
}

/// True if a process runs a program of this name. Its file, or the link by which it was executed, can have the name.
/// Waits as [`program_name`] does, unless the file has the name.
pub(crate) fn runs_program(pid: i32, name: &str) -> bool {
    let process = ProcessFiles::of(pid);
    match file_name(&process) {
        Some(file) if file == name => true,
        Some(file) => link_name(&process, &file).is_some_and(|link| link == name),
        None => process.name().is_ok_and(|short| short == name) && has_memory(&process),
    }
}

/// True unless the process is a zombie or a thread of the kernel (proc_pid_statm(5)).
fn has_memory(process: &ProcessFiles) -> bool {
    process.text("statm").is_ok_and(|text| text.split(' ').next().is_some_and(|size| size != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_link_means_the_program_but_may_be_a_front_end() {
        let redis = Names::from("/usr/bin/redis-check-rdb", "redis-server *:0", Some("/usr/bin/redis-server"));
        assert!(redis.has("redis-server") && redis.has("/usr/bin/redis-server") && redis.has("redis-check-rdb"));
        assert!(redis.are_of_file("redis-check-rdb") && !redis.are_of_file("redis-server") && !redis.has(""));
        let called_only = Names::from("/root/.cargo/bin/rustup", "rustc", None);
        assert!(!called_only.has("rustc") && called_only.has("rustup"));
    }

    /// Copies a program by cp: the kernel executes no file that is open for writing, and a child of another test inherits the
    /// open files of this process until it executes its program.
    fn copy_sleep(to: &Path) {
        assert!(std::process::Command::new("cp").arg("/bin/sleep").arg(to).status().unwrap().success());
    }

    /// Starts `sleep` and waits until it sleeps: the kernel sets the addresses of a program's arguments last.
    fn asleep(program: &Path) -> std::process::Child {
        let child = std::process::Command::new(program).arg("1000").spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('S') {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn an_upgrade_keeps_the_name_of_the_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("the-server"), folder.path().join("a-link"));
        copy_sleep(&file);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut child = asleep(&link);
        let pid = child.id().try_into().unwrap();
        let names = || (program_name(pid), runs_program(pid, "a-link"), Names::of(pid).are_of_file("the-server"));
        let before = names();
        std::fs::remove_file(&file).unwrap();
        std::fs::copy("/bin/sleep", &file).unwrap();
        let replaced = names();
        std::fs::remove_file(&file).unwrap();
        std::fs::copy("/bin/sleep", folder.path().join("another")).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("another"), &link).unwrap();
        let changed = runs_program(pid, "a-link");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(before, ("a-link".to_owned(), true, true));
        assert_eq!(replaced, before);
        assert!(!changed, "the link leads to another program now");
    }

    #[test]
    fn a_program_below_another_is_found_by_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("the-worker");
        copy_sleep(&file);
        let mut child = asleep(&file);
        let own = std::process::id() as i32;
        let found = |name: &str| named_below(own, &[name.to_owned()]);
        let expected = Some(child.id() as i32);
        assert_eq!([found("the-worker"), found("the-w*"), found(&file.to_string_lossy())], [expected; 3]);
        assert_eq!(found("the-other"), None);
        let this = std::env::current_exe().unwrap();
        assert_eq!(found(&this.to_string_lossy()), None, "Pagelift itself");
        child.kill().unwrap();
        child.wait().unwrap();
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

    #[test]
    fn an_upgraded_program_keeps_its_name_and_one_that_has_ended_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server");
        copy_sleep(&file);
        let mut child = asleep(&file);
        let pid = child.id() as i32;
        std::fs::remove_file(&file).unwrap();
        assert!(runs_program(pid, "server") && !runs_program(pid, "sleep"));
        assert_eq!(process_name(pid), format!("server[{pid}]"));
        assert_eq!((process_name_in_time(pid), program_name_in_time(pid)), (process_name(pid), program_name(pid)));
        child.kill().unwrap();
        let ended = || ProcessFiles::of(pid).text("stat").is_ok_and(|stat| stat.contains(") Z "));
        while !ended() {
            std::thread::yield_now();
        }
        assert!(!runs_program(pid, "server"), "a zombie");
        child.wait().unwrap();
    }
}
