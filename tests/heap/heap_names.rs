//! The symbols that the preloaded heap imports: a program, or a library that a user preloads, may define any of these.

use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Test, default_huge_page, main_of, pagelift_binary, test_case,
};

const MIB: u64 = 1 << 20;
const POOL_MIB: u64 = 256;

fn main() -> ExitCode {
    let gcc = || Need::Command("gcc".into());
    let pool = || vec![gcc(), Need::Thp, Need::Pool(POOL_MIB * MIB)];
    let mut tests: Vec<Test> = Vec::new();
    for (name, program, arguments) in PROGRAMS {
        let thp = move |t: &Context| calls(t, program, arguments, &["--heap=thp", "--heap-allocator=mimalloc"]);
        tests.push(test_case(
            format!("none_of_the_programs_functions_is_called/{name}/thp"),
            vec![gcc(), Need::Thp],
            thp,
        ));
        let on_pool = move |t: &Context| {
            let page = format!("--heap={}", default_huge_page()?.bytes());
            calls(t, program, arguments, &[&page, &format!("--heap-reserve={}", POOL_MIB / 2 * MIB)])
        };
        tests.push(test_case(format!("none_of_the_programs_functions_is_called/{name}/pool"), pool(), on_pool));
        let unused = move |t: &Context| without_order(t, program, arguments);
        tests.push(test_case(format!("none_of_the_programs_functions_is_called/{name}/unused"), vec![gcc()], unused));
    }
    tests.push(test_case("it_asks_for_these_names_only", vec![Need::Command("nm".into())], names));
    main_of(tests)
}

const PROGRAMS: [(&str, &str, &[&str]); 2] =
    [("corners", "malloc_corners.c", &[]), ("torture", "torture.c", &["3000", "4", "2", "1"])];

/// `program` with replaced functions of the C library, which end it if the heap calls them.
fn beside_replaced_functions(program: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Program::named(&format!("heap/{program}"))?.command()?;
    command.args(arguments);
    command.env("LD_PRELOAD", Program::named("heap/defines_what_the_heap_needs.c")?.build()?);
    Ok(command)
}

fn ended_well(output: &Output) -> Result<()> {
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

fn calls(t: &Context, program: &str, arguments: &[&str], options: &[&str]) -> Result<()> {
    let command = beside_replaced_functions(program, arguments)?;
    ended_well(&t.run_within(t.lifted(options, &command)?, Duration::from_secs(300))?)
}

/// The heap is preloaded for another program, and leaves this one its allocator.
fn without_order(t: &Context, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = beside_replaced_functions(program, arguments)?;
    let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    let functions = Program::named("heap/defines_what_the_heap_needs.c")?.build()?;
    command.env("LD_PRELOAD", format!("{} {}", heap.display(), functions.display()));
    ended_well(&t.run_within(command, Duration::from_secs(300))?)
}

/// Imported symbols, by the reason why a definition in the program does no harm.
const NAMES: [(&str, &[&str]); 7] = [
    (
        "reserved: only the C library may define it",
        &["__errno_location", "__fork", "__libc_stack_end", "__tls_get_addr"],
    ),
    (
        "weak, of the start files of each object",
        &["_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"],
    ),
    (
        "called by compiled code of every object, the program's own included, from its first instruction on",
        &["bcmp", "memcmp", "memcpy", "memmove", "memset", "strlen"],
    ),
    ("only calculates, or looks a word up beside the stack", &["getauxval", "strtol"]),
    ("a variable, of which there is one in the process whoever defines it", &["environ", "stderr", "stdout"]),
    (
        "its keys are those of the program's own threads, of which only the program's definition knows",
        &["pthread_key_create", "pthread_key_delete", "pthread_setspecific"],
    ),
    // The standard library's, for the report of a panic: a fault of the heap, after which the program ends.
    (
        "called after a fault of the heap only",
        &[
            "_Unwind_Backtrace",
            "_Unwind_GetDataRelBase",
            "_Unwind_GetIP",
            "_Unwind_GetIPInfo",
            "_Unwind_GetLanguageSpecificData",
            "_Unwind_GetRegionStart",
            "_Unwind_GetTextRelBase",
            "_Unwind_RaiseException",
            "_Unwind_Resume",
            "_Unwind_SetGR",
            "_Unwind_SetIP",
            "__cxa_thread_atexit_impl",
            "abort",
            "close",
            "dl_iterate_phdr",
            "fstat64",
            "getcwd",
            "gettid",
            "lseek64",
            "mmap64",
            "munmap",
            "open64",
            "pipe2",
            "read",
            "readlink",
            "realpath",
            "stat64",
            "statx",
            "syscall",
            "write",
            "writev",
        ],
    ),
];

/// A new imported symbol needs a reason why a definition in the program does no harm, or must be avoided.
fn names(t: &Context) -> Result<()> {
    let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    let mut nm = Command::new("nm");
    nm.args(["-D", "--undefined-only"]).arg(heap);
    let listed = t.run(nm)?.success()?.stdout;
    let names = listed.lines().filter_map(|line| line.split_whitespace().last()?.split('@').next());
    let found: BTreeSet<&str> = names.collect();
    ensure!(found.contains("memcpy"), "nm lists {listed}");
    let known: BTreeSet<&str> = NAMES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    ensure!(new.is_empty(), "the heap asks for names without a reason: {new:?}");
    Ok(())
}
