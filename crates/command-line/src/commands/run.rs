//! `pagelift run`: becomes the program, which a helper lifts on its way.

use super::via_preload;
use crate::OWN_FAILURE;
use crate::cli::{RunArgs, ViaArg};
use crate::lifting::handler::{Lifter, Wishes};
use crate::lifting::heap::{self, HeapArg, HeapStart};
use crate::lifting::message;
use by_ptrace::{Follower, Helper, Program, launch};
use huge_page_pools::{base_page, machine_facts};
use kernel_calls::bare;
use nix::errno::Errno;
use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The shell's statuses for a command that is not found and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Interpreters of interpreters are followed so far; the kernel allows four (execve(2)).
const MOST_INTERPRETERS: usize = 5;

/// Returns only where the program could not be started.
pub fn run(args: &RunArgs) -> u8 {
    let heap = prepare_heap(args);
    if let Some(message) = heap.message.as_ref().filter(|_| !args.quiet || (args.require && heap.is_short)) {
        eprintln!("{message}");
    }
    if args.require && heap.is_short {
        return OWN_FAILURE;
    }
    let mut departure = match Departure::prepare(args, heap.environment.clone()) {
        Ok(departure) => departure,
        Err(why) => {
            eprintln!("pagelift: {why}");
            return OWN_FAILURE;
        }
    };
    let started = start(args, &heap, &departure);
    if let Err(why) = &started {
        if args.require {
            eprintln!("pagelift: {why}; --require ends it here");
            return OWN_FAILURE;
        }
        if !args.quiet {
            eprintln!("pagelift: {}: runs as it is: {why}", Path::new(&args.command[0]).display());
        }
        if args.dry_run {
            return OWN_FAILURE;
        }
    }
    if let Ok(environment) = started {
        departure.program.set_environment(environment);
    }
    departure.depart()
}

/// Departs with a helper, which lifts the program. Returns only where there is none: the environment with which the
/// program lifts itself, or why it is not lifted.
fn start(args: &RunArgs, heap: &HeapStart, departure: &Departure) -> Result<Vec<CString>, String> {
    let files = find(&args.command[0]).map(executed_files).unwrap_or_default();
    if let Some(why) = privileged(&files) {
        return Err(why);
    }
    let program = files.first().map(PathBuf::as_path);
    let by_preload = || via_preload::environment(args, program, heap.environment.as_deref());
    if args.via == Some(ViaArg::Preload) {
        return by_preload();
    }
    let refused = depart_with_helper(args, heap, departure, &files);
    if args.via == Some(ViaArg::Ptrace) {
        return Err(refused);
    }
    let environment = by_preload().map_err(|why| format!("{refused}; by preload: {why}"))?;
    if !args.quiet {
        eprintln!("pagelift: {}: lifted by preload: {refused}", Path::new(&args.command[0]).display());
    }
    Ok(environment)
}

/// Chooses how the heap gets huge pages, where that is asked for.
fn prepare_heap(args: &RunArgs) -> HeapStart {
    if args.heap.heap == HeapArg::Off {
        return HeapStart::default();
    }
    let found = heap::program_that_counts(&args.only, find(&args.command[0]), |name| find(OsStr::new(name)));
    let files = found.map(executed_files).unwrap_or_default();
    match files.last().filter(|_| privileged(&files).is_none()) {
        Some(last) => heap::prepare(&args.heap, &args.only, last, &machine_facts(std::process::id() as i32)),
        None => HeapStart::default(),
    }
}

/// Starts the helper and becomes the program, or tells why there is no helper.
fn depart_with_helper(args: &RunArgs, heap: &HeapStart, departure: &Departure, files: &[PathBuf]) -> String {
    let is_script = files.len() > 1;
    let wishes = Wishes {
        policy: args.policy.policy(),
        only: args.only.clone(),
        follow_lifted: args.follow_lifted,
        require: args.require,
        dry_run: args.dry_run,
        report: args.report.clone(),
        perf_map: args.perf_map,
        quiet: args.quiet,
        verbose: args.verbose,
        script: is_script.then(|| Path::new(&args.command[0]).display().to_string()),
    };
    let helper = |us: nix::unistd::Pid, answer: &mut dyn FnMut(Result<(), String>)| {
        let mut lifter = Lifter::new(wishes);
        match Follower::seize(us, !args.only.is_empty()) {
            Ok(follower) => {
                answer(Ok(()));
                if let Some(program) = files.first() {
                    lifter.prepare(program);
                }
                if let Err(error) = follower.that_stays(heap.collapse.is_some()).run(&mut lifter) {
                    let what = "pagelift: programs that start from now on are not lifted: waiting for traced threads";
                    message::say_to(us.as_raw(), &format!("{what}: {error}\n"));
                }
                collapse(us.as_raw(), heap, args.quiet);
            }
            Err(error) => answer(Err(refusal(us.as_raw(), &error))),
        }
    };
    let lives_on = !args.only.is_empty() || heap.collapse.is_some();
    launch(lives_on, helper, |helper| -> Infallible { departure.depart_from(helper) }).to_string()
}

/// Why ptrace was refused, and what mends it.
fn refusal(us: i32, error: &std::io::Error) -> String {
    let status = fs::read_to_string(format!("/proc/{us}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return format!("process {tracer} ({}) traces it already, and a process has one tracer at most", name.trim());
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" | "3" => format!(
            "ptrace is refused ({error}); found kernel.yama.ptrace_scope = {}, needed 0 or 1: sysctl kernel.yama.ptrace_scope=1",
            scope.trim()
        ),
        _ => format!(
            "ptrace is refused ({error}); needed: permission to trace, in a container --cap-add=SYS_PTRACE or a seccomp profile that allows ptrace"
        ),
    }
}

/// Keeps collapsing the program's memory, where that is the way for its heap.
fn collapse(pid: i32, heap: &HeapStart, quiet: bool) {
    let Some(huge) = heap.collapse else { return };
    // The helper lives as long as the program now, and must not keep a file system busy.
    let _ = std::env::set_current_dir("/");
    if let Err(::heap::CollapseError::Refused(error)) = ::heap::collapse_while_it_runs(pid, huge, base_page())
        && !quiet
    {
        let needed = "needed: Linux 6.1 and CAP_SYS_NICE, which root has";
        message::say_to(pid, &format!("pagelift: heap: collapsing is refused ({error}); {needed}\n"));
    }
}

/// The way from here to the program, with all memory that it takes: `by_ptrace::launch` tells why.
struct Departure<'a> {
    args: &'a RunArgs,
    program: Program,
    /// The program, as messages call it.
    name: String,
}

impl<'a> Departure<'a> {
    fn prepare(args: &'a RunArgs, environment: Option<Vec<CString>>) -> Result<Self, &'static str> {
        let words: Result<Vec<_>, _> = args.command.iter().map(|word| CString::new(word.as_bytes())).collect();
        let mut program = Program::named(words.map_err(|_| "an argument holds a NUL byte")?);
        if let Some(environment) = environment {
            program.set_environment(environment);
        }
        Ok(Self { args, program, name: Path::new(&args.command[0]).display().to_string() })
    }

    /// Becomes the program as `depart` does. One whose helper is gone runs as it is, where that is permitted.
    fn depart_from(&self, helper: Helper) -> ! {
        if helper == Helper::WasKilled {
            let why: &[u8] = b"the helper process was killed";
            if self.args.require {
                bare::write(libc::STDERR_FILENO, [b"pagelift: ", why, b"; --require ends it here\n"]);
                bare::exit(OWN_FAILURE.into());
            }
            if !self.args.quiet {
                let pieces = [b"pagelift: ", self.name.as_bytes(), b": runs as it is: ", why, b"\n"];
                bare::write(libc::STDERR_FILENO, pieces);
            }
            if self.args.dry_run {
                bare::exit(OWN_FAILURE.into());
            }
        }
        self.depart()
    }

    /// Becomes the program, or ends with what a shell would say and return; touches neither the heap nor `errno`.
    fn depart(&self) -> ! {
        let (status, why) = match Errno::from_raw(self.program.execute()) {
            Errno::ENOENT => (NOT_FOUND, "not found"),
            other => (NOT_EXECUTABLE, other.desc()),
        };
        bare::write(libc::STDERR_FILENO, [b"pagelift: ", self.name.as_bytes(), b": ", why.as_bytes(), b"\n"]);
        bare::exit(status.into())
    }
}

/// The file that `execvp` will take.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|directory| directory.join(command)).find(|file| {
        fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// A program's file, behind it the interpreter of a script, and so on.
fn executed_files(program: PathBuf) -> Vec<PathBuf> {
    let mut files = vec![program];
    while files.len() <= MOST_INTERPRETERS
        && let Some(next) = files.last().and_then(|file| interpreter(file))
    {
        files.push(next);
    }
    files
}

/// Why a program must not be traced: one that gains privileges by its exec would silently go without them.
fn privileged(files: &[PathBuf]) -> Option<String> {
    for path in files {
        let metadata = fs::metadata(path).ok()?;
        let mode = metadata.mode();
        let gains_group = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
        if mode & libc::S_ISUID != 0 || gains_group {
            return Some(format!("{} is a set-user-ID or set-group-ID program", path.display()));
        }
        if has_capabilities(path) {
            return Some(format!("{} has file capabilities", path.display()));
        }
        // The kernel shows nobody the memory of a program that its user may execute but not read.
        if nix::unistd::access(path, nix::unistd::AccessFlags::R_OK).is_err() {
            return Some(format!("{} may be executed but not read, needed: permission to read it", path.display()));
        }
    }
    None
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut value = [0u8; 64];
    kernel_calls::attributes::get(&path, c"security.capability", &mut value).is_ok()
}

/// The interpreter that the first line of a script names.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = [0; 256];
    let length = File::open(path).ok()?.read(&mut start).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}
