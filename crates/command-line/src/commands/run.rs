//! `pagelift run`: becomes the program, which a helper lifts on its way.

use super::via_preload;
use crate::OWN_FAILURE;
use crate::cli::{RunArgs, ViaArg};
use crate::lifting::handler::{Lifter, Wishes};
use crate::lifting::heap::{self, HeapArg, HeapStart};
use crate::lifting::message;
use by_ptrace::{Follower, LaunchError, start_helper};
use huge_page_pools::{base_page, machine_facts};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
    let started = start(args, &heap);
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
    execute(args, started.ok().flatten().as_deref().or(heap.environment.as_deref()))
}

/// Sees to it that the program is lifted on its way. Returns the environment that it needs for that, if any.
fn start(args: &RunArgs, heap: &HeapStart) -> Result<Option<Vec<CString>>, String> {
    let program = find(&args.command[0]);
    if let Some(why) = program.as_deref().and_then(privileged) {
        return Err(why);
    }
    let by_preload = || via_preload::environment(args, program.as_deref(), heap.environment.as_deref());
    if args.via == Some(ViaArg::Preload) {
        return by_preload().map(Some);
    }
    let refused = match prepare(args, heap) {
        Ok(()) => return Ok(None),
        Err(why) if args.via == Some(ViaArg::Ptrace) => return Err(why),
        Err(why) => why,
    };
    let environment = by_preload().map_err(|why| format!("{refused}; by preload: {why}"))?;
    if !args.quiet {
        eprintln!("pagelift: {}: lifted by preload: {refused}", Path::new(&args.command[0]).display());
    }
    Ok(Some(environment))
}

/// Chooses how the heap gets huge pages, where that is asked for.
fn prepare_heap(args: &RunArgs) -> HeapStart {
    if args.heap.heap == HeapArg::Off {
        return HeapStart::default();
    }
    let found = heap::program_that_counts(&args.only, find(&args.command[0]), |name| find(OsStr::new(name)));
    let Some(mut path) = found.filter(|path| privileged(path).is_none()) else { return HeapStart::default() };
    for _ in 0..MOST_INTERPRETERS {
        path = interpreter(&path).unwrap_or(path);
    }
    heap::prepare(&args.heap, &args.only, &path, &machine_facts(std::process::id() as i32))
}

/// Starts the helper, or tells why the program runs as it is.
fn prepare(args: &RunArgs, heap: &HeapStart) -> Result<(), String> {
    let program = find(&args.command[0]);
    let is_script = program.as_deref().is_some_and(|path| interpreter(path).is_some());
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
    let started = start_helper(|us, answer| {
        let mut lifter = Lifter::new(wishes);
        match Follower::seize(us, !args.only.is_empty()) {
            Ok(follower) => {
                answer(Ok(()));
                if let Some(program) = &program {
                    lifter.prepare(program);
                }
                follower.that_stays(heap.collapse.is_some()).run(&mut lifter);
                collapse(us.as_raw(), heap, args.quiet);
            }
            Err(error) => answer(Err(refusal(us.as_raw(), &error))),
        }
    });
    match started {
        Ok(_) => Ok(()),
        Err(LaunchError::Refused(why)) => Err(why),
        Err(error @ LaunchError::NoHelper(_)) => Err(error.to_string()),
    }
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

fn execute(args: &RunArgs, environment: Option<&[CString]>) -> u8 {
    let mut words = Vec::new();
    for word in &args.command {
        match CString::new(word.clone().into_vec()) {
            Ok(word) => words.push(word),
            Err(_) => {
                eprintln!("pagelift: an argument holds a NUL byte");
                return OWN_FAILURE;
            }
        }
    }
    // execvp runs a file without a known format by the shell, as every shell does.
    let Err(errno) = match environment {
        Some(environment) => nix::unistd::execvpe(&words[0], &words, environment),
        None => nix::unistd::execvp(&words[0], &words),
    };
    let name = Path::new(&args.command[0]).display();
    match errno {
        nix::errno::Errno::ENOENT => {
            eprintln!("pagelift: {name}: not found");
            NOT_FOUND
        }
        other => {
            eprintln!("pagelift: {name}: {}", other.desc());
            NOT_EXECUTABLE
        }
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

/// Why a program must not be traced: one that gains privileges by its exec would silently go without them.
fn privileged(path: &Path) -> Option<String> {
    let mut path = path.to_owned();
    for _ in 0..MOST_INTERPRETERS {
        let metadata = fs::metadata(&path).ok()?;
        let mode = metadata.mode();
        let gains_group = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
        if mode & libc::S_ISUID != 0 || gains_group {
            return Some(format!("{} is a set-user-ID or set-group-ID program", path.display()));
        }
        if has_capabilities(&path) {
            return Some(format!("{} has file capabilities", path.display()));
        }
        // The kernel shows nobody the memory of a program that its user may execute but not read.
        if nix::unistd::access(&path, nix::unistd::AccessFlags::R_OK).is_err() {
            return Some(format!("{} may be executed but not read, needed: permission to read it", path.display()));
        }
        path = interpreter(&path)?;
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
