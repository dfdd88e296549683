//! Reads the facts about a process's program, once per program: executable, environment, cgroup, user.

use super::sample::POLICY;
use crate::decision::{ExecutedFile, Program, Standing, VARIABLE, is_real_time};
use crate::rules::UNIT_KINDS;
use address_space::{ElfImage, ProcessStat};
use linux::bounded::ELF_HEADERS;
use linux::owner::user_of;
use linux::text::text_of;
use machine_facts::{System, cgroup_path};
use nix::unistd::{Uid, User, geteuid};
use process_view::{
    BoundedFile, ProcessFiles, Unanswered, ask_one, executed_metadata, file_name, link_name, open_executed,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes of an environment that are read; variables after them count as missing.
const MOST_ENVIRONMENT: u64 = 1 << 20;
/// Longest value of a variable that is kept.
const LONGEST_VALUE: usize = 4096;
/// Bytes of each part of a file without a build ID that are hashed instead.
const PART: usize = 4096;
/// Number of parts, from the first bytes to the last ones. The whole file would be read from the disk.
const PARTS: u64 = 16;

/// The file that a process executes, as the kernel reports it without opening the file: 5 µs.
pub fn executed_file(pid: i32) -> Option<ExecutedFile> {
    let process = ProcessFiles::of(pid);
    let metadata = executed_metadata(&process)?;
    let stack = start_stack(pid).unwrap_or_default();
    Some(ExecutedFile { device: metadata.dev(), inode: metadata.ino(), stack })
}

/// Address at which the stack of a process began.
pub(super) fn start_stack(pid: i32) -> Option<u64> {
    ProcessStat::parse(&ProcessFiles::of(pid).bytes("stat").ok()?)?.start_of_stack()
}

/// Reads the facts about a process's program, with the variables named. Does not wait for a process that does not
/// answer.
///
/// # Errors
/// It did not answer.
pub fn program_of(pid: i32, variables: &BTreeSet<String>) -> Result<Program, Unanswered> {
    let variables = variables.clone();
    ask_one(pid, move |process| read(process, &variables))
}

fn read(process: &ProcessFiles, variables: &BTreeSet<String>) -> Program {
    let pid = process.pid();
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mounts = text_of("/proc/self/mountinfo").unwrap_or_default();
    let cgroup = cgroup_path(&System, &process.text("cgroup").unwrap_or_default(), &mounts);
    let user = user_of(pid).unwrap_or(u32::MAX);
    let mut program = Program {
        exe: process.executed_path().as_deref().map(path).unwrap_or_default(),
        name: process.name().unwrap_or_default(),
        link: file_name(process).and_then(|file| link_name(process, &file)),
        unit: unit_of(&cgroup),
        cgroup,
        user,
        owner: executed_metadata(process).map_or(u32::MAX, |metadata| metadata.uid()),
        user_name: User::from_uid(Uid::from_raw(user)).ok().flatten().map(|user| user.name),
        environment: environment_of(process, variables),
        ..Program::default()
    };
    if let Ok(Some((file, _))) = open_executed(process) {
        add_image(&mut program, &file);
    }
    program
}

/// Adds sizes and the build ID of the executable.
fn add_image(program: &mut Program, file: &File) {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let image = ElfImage::parse(&object::ReadCache::new(BoundedFile::new(file, length, ELF_HEADERS.bytes())));
    if let Ok(image) = &image {
        let never_written = image.segments.iter().filter(|segment| !segment.protection.write);
        let length = |executable: bool| -> u64 {
            let segments = never_written.clone().filter(|segment| segment.protection.execute || !executable);
            segments.map(|segment| segment.memory.len()).fold(0, u64::saturating_add)
        };
        (program.text, program.read_only) = (length(true), length(false));
    }
    let build_id = image.ok().and_then(|image| image.build_id);
    program.build = build_id.unwrap_or_else(|| hash_of(file, length));
}

/// Stands for a file without a build ID: builds of the same length may have the same first bytes.
fn hash_of(file: &File, length: u64) -> String {
    let mut bytes = vec![0; PART];
    let mut hash = Sha256::new();
    hash.update(length.to_le_bytes());
    let last = length.saturating_sub(PART as u64);
    for part in 0..PARTS {
        let at = last / (PARTS - 1) * part + last % (PARTS - 1) * part / (PARTS - 1);
        let read = file.read_at(&mut bytes, at).unwrap_or(0);
        hash.update((read as u64).to_le_bytes());
        hash.update(&bytes[..read]);
    }
    hash.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

fn environment_of(process: &ProcessFiles, variables: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(process.path("environ")) {
        // Bytes read before an error count.
        let _ = file.take(MOST_ENVIRONMENT).read_to_end(&mut bytes);
    }
    parse_environment(&bytes, variables)
}

/// The first value of each variable, as getenv(3) finds it.
fn parse_environment(bytes: &[u8], variables: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in bytes.split(|byte| *byte == 0) {
        let text = String::from_utf8_lossy(&entry[..entry.len().min(LONGEST_VALUE)]);
        if let Some((name, value)) = text.split_once('=')
            && variables.contains(name)
        {
            found.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    // Kubernetes sets a variable to nothing if the annotation that it is made from is missing. That asks for nothing.
    found.retain(|name, value| name != VARIABLE || !value.trim().is_empty());
    found
}

/// The innermost systemd unit of a cgroup's path.
fn unit_of(cgroup: &str) -> Option<String> {
    let is_unit = |part: &&str| UNIT_KINDS.iter().any(|end| part.ends_with(end));
    cgroup.rsplit('/').find(is_unit).map(str::to_owned)
}

/// Reads what may exclude a process with this scheduling policy.
pub fn standing_of(pid: i32, own_line: &BTreeSet<i32>, scheduling: u32, is_kernel_thread: bool) -> Standing {
    let process = ProcessFiles::of(pid);
    let status = process.text("status").unwrap_or_default();
    let number = |name: &str, at: usize| -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(at)?.parse().ok()
    };
    let tracer = number("TracerPid:", 0).filter(|pid| *pid != 0).map(|pid| pid as i32);
    // The kernel gives the files of a process to root if its memory is closed to its own user, but not its folder
    // (fs/proc/base.c, task_dump_owner()).
    let owner = fs::metadata(process.path("stat")).map(|metadata| metadata.uid()).ok();
    let effective = number("Uid:", 1);
    Standing {
        is_kernel_thread,
        is_own_line: own_line.contains(&pid),
        traced_by: tracer,
        scheduling,
        is_closed: effective.is_some_and(|user| user != 0 && owner.is_some_and(|owner| owner != user))
            && geteuid().is_root(),
    }
}

/// The policy of a thread of real time, if a process has one, otherwise `first`, the policy of its first thread: a lift stops all
/// threads. Takes 5 µs for each thread.
pub fn scheduling_of(pid: i32, first: u32) -> u32 {
    if is_real_time(first) {
        return first;
    }
    let process = ProcessFiles::of(pid);
    let threads = fs::read_dir(process.path("task")).into_iter().flatten().flatten();
    let mut policies = threads.filter_map(|thread| {
        let stat = process.bytes(&format!("task/{}/stat", thread.file_name().to_str()?)).ok()?;
        ProcessStat::parse(&stat)?.number(POLICY)
    });
    policies.find(|policy| is_real_time(*policy)).unwrap_or(first)
}

/// This process and all above it.
pub fn own_line() -> BTreeSet<i32> {
    let mut line = BTreeSet::new();
    let mut next = Some(std::process::id() as i32);
    while let Some(pid) = next.filter(|pid| *pid > 0 && line.insert(*pid)) {
        next = ProcessFiles::of(pid).bytes("stat").ok().and_then(|stat| ProcessStat::parse(&stat)?.parent());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;

    /// Copies a program by another process. A child of another test can inherit a descriptor of this process, and then the copy
    /// cannot be executed until the child has executed its program.
    fn copy(from: &str, to: &Path) {
        assert!(std::process::Command::new("cp").arg(from).arg(to).status().unwrap().success());
    }

    #[test]
    fn the_environment_has_its_first_values() {
        let wanted = ["A".to_owned(), "PAGELIFT_AGENT".to_owned()].into();
        let found = parse_environment(b"B=1\0A=x=y\0A=2\0PAGELIFT_AGENT=\0\0=z\0A\0\xff", &wanted);
        assert_eq!(found, [("A".to_owned(), "x=y".to_owned())].into(), "an empty wish is none");
        assert_eq!(parse_environment(b"PAGELIFT_AGENT=on\0", &wanted).len(), 1);
        let long = [b"A=".to_vec(), vec![b'x'; 3 * LONGEST_VALUE]].concat();
        assert_eq!(parse_environment(&long, &wanted)["A"].len(), LONGEST_VALUE - 2);
    }

    #[test]
    fn units_are_found_in_cgroups() {
        let cgroup_of = |membership: &str| cgroup_path(&System, membership, "");
        let membership = "4:memory:/x\n1:name=systemd:/system.slice/a.service/worker\n";
        assert_eq!(cgroup_of(membership), "system.slice/a.service/worker");
        assert_eq!(unit_of("system.slice/a.service/worker").as_deref(), Some("a.service"));
        assert_eq!(cgroup_of("4:memory:/docker/abc\n0::/\n"), "docker/abc");
        assert_eq!((cgroup_of("0::/\nbroken"), unit_of("")), (String::new(), None));
        assert_eq!(unit_of("user.slice/user@1.service/app.slice/x.scope").as_deref(), Some("x.scope"));
    }

    #[test]
    fn a_program_is_shown_by_the_link_that_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("the-file"), folder.path().join("a-server"));
        copy("/bin/sleep", &file);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let names = |path: &Path| {
            let mut child = std::process::Command::new(path).arg("100").spawn().unwrap();
            // Its parent runs on before the kernel has laid out the new stack.
            while fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
            let program = program_of(child.id() as i32, &BTreeSet::new()).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            (program.shown_name().to_owned(), program.file_name().to_owned())
        };
        assert_eq!(names(&link), ("a-server".to_owned(), "the-file".to_owned()));
        assert_eq!(names(&file), ("the-file".to_owned(), "the-file".to_owned()));
    }

    #[test]
    fn builds_of_the_same_length_and_begin_differ() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |name: &str, at: usize| {
            let mut bytes = vec![7; 300_000];
            bytes[at] = 8;
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            hash_of(&File::open(path).unwrap(), bytes.len() as u64)
        };
        let hashes = [0, 20_000, 140_000, 299_990, 299_999].map(|at| hash("a", at));
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), 5, "{hashes:?}");
        assert_eq!(hash("a", 20_000), hash("b", 20_000));
    }

    #[test]
    fn this_program_is_read() {
        let own = std::process::id() as i32;
        let program = program_of(own, &["PATH".to_owned()].into()).unwrap();
        assert_eq!(program.exe, std::env::current_exe().unwrap().to_string_lossy());
        assert!(program.text > 0 && program.read_only >= program.text && program.build.len() >= 16, "{program:?}");
        assert_eq!(program.environment.get("PATH"), std::env::var("PATH").ok().as_ref());
        let file = fs::metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program.owner, file.uid());
        assert!(executed_file(own).is_some() && executed_file(i32::MAX).is_none());
    }

    /// dpkg removes the path of a running program, and may change links and rights of the inode before.
    #[test]
    fn an_upgrade_of_the_package_is_no_other_program() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("cat");
        copy("/bin/cat", &program);
        let mut command = std::process::Command::new(&program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        // The kernel sets the begin of the stack last. A program that answers has one.
        child.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        let mut answer = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        let before = executed_file(pid);
        fs::hard_link(&program, folder.path().join("cat.old")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_file(&program).unwrap();
        let after = executed_file(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(answer == "x\n" && before.is_some() && before == after, "{before:?} {after:?}");
    }

    /// A restart of the same file in the same process is one; a time that its owner sets is none.
    #[test]
    fn an_exec_is_another_address_space() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sh");
        copy("/bin/sh", &program);
        let words = ["-c", "echo first; read x; exec \"$0\" -c 'echo again; read x'", program.to_str().unwrap()];
        let mut command = std::process::Command::new(&program);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        let before = executed_file(child.id() as i32).unwrap();
        File::open(&program).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let touched = executed_file(child.id() as i32);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        output.read_line(&mut said).unwrap();
        let after = executed_file(child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!before.was_left_for(touched) && !before.was_left_for(None), "{before:?} {touched:?}");
        assert!(said == "first\nagain\n" && before.was_left_for(after), "{before:?} {after:?}");
    }

    #[test]
    fn this_process_and_those_above_are_its_line() {
        let (own, line) = (std::process::id() as i32, own_line());
        assert!(line.contains(&own) && line.contains(&nix::unistd::getppid().as_raw()));
        assert!(standing_of(own, &line, 0, false).is_own_line);
        assert_eq!(standing_of(own, &BTreeSet::new(), 3, false), Standing { scheduling: 3, ..Standing::default() });
    }
}
