//! The allocator functions that a lookup finds: past the usual order of symbols, and in programs into which the user
//! has put allocators, tracers and checking tools.

use anyhow::{Context as _, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use test_support::{
    Context, Ending, Need, Output, Program, Test, default_huge_page, main_of, pagelift_binary, program_source, python,
    test_case,
};

/// Bytes of the pool that a heap takes.
const RESERVE: u64 = 96 << 20;

const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];

fn main() -> ExitCode {
    let mut tests = lookups();
    tests.extend(preloaded_by_the_user());
    tests.extend(checked());
    tests.extend(bystanders());
    main_of(tests)
}

fn gcc() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

fn to_a_good_end(t: &Context, command: Command) -> Result<Output> {
    let output = t.run(command)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}{}", output.ending, output.stdout, output.stderr);
    Ok(output)
}

fn heap_library() -> Result<PathBuf> {
    let library = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    ensure!(library.exists(), "no {}; build it with `cargo build --release`", library.display());
    Ok(library)
}

fn lookups() -> Vec<Test> {
    let interpreter = Need::File(python().to_string_lossy().into_owned());
    vec![
        test_case("lookups/every_way_leads_to_one_allocator", gcc(), every_way),
        test_case("lookups/blocks_of_the_c_library_are_freed_by_ctypes", vec![Need::Thp, interpreter], ctypes),
    ]
}

fn every_way(t: &Context) -> Result<()> {
    let program = Program::named("heap/finds_the_allocator_by_every_way.c")?.build()?;
    let plain = to_a_good_end(t, Command::new(&program))?;
    ensure!(plain.stdout == "8 ways\n", "{}", plain.stdout);
    let pool = format!("--heap={}", default_huge_page()?.bytes());
    let ways: [&[&str]; 4] = [&["--heap=auto"], &THP, &[&pool, "--heap-reserve=0"], &["--heap=thp"]];
    for options in ways {
        let output = to_a_good_end(t, t.lifted(options, &Command::new(&program))?)?;
        ensure!(output.stdout == plain.stdout, "{options:?}: {}{}", output.stdout, output.stderr);
    }
    // With the heap in the program, active and inactive.
    for words in ["heap=thp only=finds*", "heap=thp only=another"] {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", heap_library()?).env("PAGELIFT", words);
        let output = to_a_good_end(t, command)?;
        ensure!(output.stdout == plain.stdout, "{words}: {}{}", output.stdout, output.stderr);
    }
    Ok(())
}

fn ctypes(t: &Context) -> Result<()> {
    let text = "import ctypes; libc = ctypes.CDLL('libc.so.6'); libc.strdup.restype = ctypes.c_void_p\n\
                libc.free.argtypes = [ctypes.c_void_p]\n\
                for size in (1, 100, 100000, 20 << 20): libc.free(libc.strdup(b'x' * size))\n\
                print('well')";
    let mut program = Command::new(python());
    program.args(["-c", text]);
    for options in [&["--heap=auto"][..], &THP] {
        let output = to_a_good_end(t, t.lifted(options, &program)?)?;
        ensure!(output.stdout == "well\n", "{options:?}: {}{}", output.stdout, output.stderr);
        ensure!(output.stderr.contains("a preloaded mimalloc"), "the heap is not preloaded: {}", output.stderr);
    }
    Ok(())
}

fn preloaded_by_the_user() -> Vec<Test> {
    vec![
        test_case("preloaded/a_tracer_sees_every_call", gcc(), tracer),
        test_case("preloaded/an_allocator_stays", gcc(), allocator_of_the_user),
    ]
}

/// A library built from `tests/heap/programs/counts_calls.c` with these compiler options.
fn library(t: &Context, name: &str, words: &[&str]) -> Result<PathBuf> {
    let path = t.folder().join(name);
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-Wall", "-fno-builtin", "-fPIC", "-shared", "-o"]).arg(&path).args(words);
    compile.arg(program_source("heap/counts_calls.c")?);
    t.run(compile)?.success()?;
    Ok(path)
}

/// The count that a library prints in a program, and the library that provided the blocks.
fn counted<'a>(output: &'a Output, what: &str) -> Result<&'a str> {
    output.stderr.lines().find(|line| line.starts_with(what)).with_context(|| format!("no {what}: {}", output.stderr))
}

fn tracer(t: &Context) -> Result<()> {
    let tracer = library(t, "tracer.so", &[])?;
    let mut program = Program::named("heap/asks_for_a_hundred_blocks.c")?.command()?;
    program.env("LD_PRELOAD", &tracer);
    let plain = to_a_good_end(t, t.lifted(&[], &program)?)?;
    let says = counted(&plain, "tracer:")?.to_owned();
    ensure!(says == "tracer: 100 blocks of libc.so.6", "{says}");
    let pool = format!("--heap={}", default_huge_page()?.bytes());
    // An unknown allocator is not replaced.
    for options in [["--heap=auto", "-v"], ["--heap=thp", "-v"]] {
        let output = to_a_good_end(t, t.lifted(&options, &program)?)?;
        ensure!(counted(&output, "tracer:")? == says, "{options:?}: {}", output.stderr);
    }
    // On request the heap is placed after it.
    for options in [&[&pool[..], "--heap-reserve=0"], &THP] {
        let output = to_a_good_end(t, t.lifted(options, &program)?)?;
        let says = "tracer: 100 blocks of libpagelift_heap.so";
        ensure!(counted(&output, "tracer:")? == says, "{options:?}: {}", output.stderr);
    }
    let output = to_a_good_end(t, t.lifted(&["--via", "preload"], &program)?)?;
    ensure!(counted(&output, "tracer:")? == says, "{}", output.stderr);
    Ok(())
}

fn allocator_of_the_user(t: &Context) -> Result<()> {
    let own = library(t, "own.so", &["-DALONE"])?;
    let mut program = Program::named("heap/asks_for_a_hundred_blocks.c")?.command()?;
    program.env("LD_PRELOAD", &own);
    let pool = format!("--heap={}", default_huge_page()?.bytes());
    let ways: [&[&str]; 4] = [&["--heap=auto"], &["--heap=thp"], &THP, &[&pool]];
    for options in ways {
        let output = to_a_good_end(t, t.lifted(options, &program)?)?;
        ensure!(counted(&output, "own:")? == "own: 100 blocks", "{options:?}: {}", output.stderr);
        let is_said = output.stderr.contains("the allocator that LD_PRELOAD names comes first and stays; fix: ");
        ensure!(is_said == (options == THP || options == [&pool[..]]), "{options:?}: {}", output.stderr);
    }
    Ok(())
}

fn checked() -> Vec<Test> {
    let with = |tool: &'static str, flag: &'static str| {
        let library = format!("lib{}san.so", &flag[..1]);
        test_case(format!("checked/{tool}"), [gcc(), vec![of_gcc(&library)]].concat(), move |t| checks(t, tool, flag))
    };
    vec![with("AddressSanitizer", "address"), with("ThreadSanitizer", "thread"), with("LeakSanitizer", "leak")]
}

/// A library beside the compiler.
fn of_gcc(library: &str) -> Need {
    let output = Command::new("gcc").arg(format!("-print-file-name={library}")).output();
    let path = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    Need::File(path.unwrap_or_else(|_| library.to_owned()))
}

/// A program with a fault that the tool finds: the tool finds it under all options.
fn checks(t: &Context, tool: &str, flag: &str) -> Result<()> {
    let source = program_source("heap/has_a_fault_for_each_checker.c")?;
    let program = t.folder().join("faulty");
    let mut compile = Command::new("gcc");
    compile.arg(format!("-fsanitize={flag}")).args(["-g", "-O0", "-o"]).arg(&program).arg(source);
    t.run(compile)?.success()?;
    let run = |options: &[&str], word: &str| {
        let mut command = Command::new(&program);
        command.arg(word);
        let command = if options.is_empty() { command } else { t.lifted(options, &command)? };
        t.run(command)
    };
    let pool = format!("--heap={}", default_huge_page()?.bytes());
    let ways: [&[&str]; 6] =
        [&[], &["--heap=auto"], &["--heap=thp"], &THP, &[&pool], &["--via", "preload", "--heap=auto"]];
    for options in ways {
        let well = run(options, "nothing")?;
        ensure!(well.ending == Ending::Exit(0), "{options:?}: {:?}: {}", well.ending, well.stderr);
        let is_said = well.stderr.contains(&format!("{tool} checks its memory"));
        ensure!(is_said != options.is_empty(), "{options:?}: {}", well.stderr);
        let found = run(options, flag)?;
        ensure!(found.ending != Ending::Exit(0) && found.stderr.contains(tool), "{options:?}: {}", found.stderr);
    }
    Ok(())
}

/// Programs into which nothing may be preloaded, started beside a named program.
fn bystanders() -> Vec<Test> {
    let with = |name: &str, compiler: &'static [&'static str], needs: Vec<Need>| {
        test_case(format!("bystanders/{name}"), [gcc(), needs].concat(), move |t| starts_as_plain(t, compiler))
    };
    vec![
        with("musl", &["musl-gcc"], vec![Need::Command("musl-gcc".into())]),
        with("AddressSanitizer", &["gcc", "-fsanitize=address"], vec![of_gcc("libasan.so")]),
        with("ThreadSanitizer", &["gcc", "-fsanitize=thread"], vec![of_gcc("libtsan.so")]),
        test_case("bystanders/by_every_exec_function", [gcc(), vec![of_gcc("libasan.so")]].concat(), by_every_function),
        test_case("bystanders/the_named_program_alone_gets_the_heap", gcc(), named_alone),
        test_case(
            "bystanders/the_named_program_gets_the_pool",
            vec![Need::Command("gcc".into()), Need::Pool(128 << 20)],
            on_pool,
        ),
    ]
}

fn bystander(t: &Context, compiler: &[&str]) -> Result<PathBuf> {
    let program = t.folder().join("bystander");
    let mut compile = Command::new(compiler[0]);
    compile.args(&compiler[1..]).arg("-o").arg(&program).arg(program_source("heap/asks_for_a_hundred_blocks.c")?);
    t.run(compile)?.success()?;
    Ok(program)
}

/// A program that preloads the library executes others by each function, with words in registers and on the stack.
fn by_every_function(t: &Context) -> Result<()> {
    let mut command = Command::new(Program::named("heap/executes_by_every_function.c")?.build()?);
    let folder = t.folder().join("pipes");
    std::fs::create_dir(&folder)?;
    command.arg(bystander(t, &["gcc", "-fsanitize=address"])?).arg(folder).env("ASAN_OPTIONS", "detect_leaks=0");
    for options in [&["--only", "nobody", "--via", "preload"][..], &["--via", "preload"]] {
        let output = t.run(t.lifted(options, &command)?)?;
        ensure!(output.ending == Ending::Exit(0), "{options:?}: {:?}: {}", output.ending, output.stderr);
    }
    Ok(())
}

fn starts_as_plain(t: &Context, compiler: &[&str]) -> Result<()> {
    let program = bystander(t, compiler)?;
    let pool = format!("--heap={}", default_huge_page()?.bytes());
    let ways: [&[&str]; 5] = [
        &["--only", "nobody", THP[0], THP[1]],
        &["--only", "nobody", "--via", "preload", THP[0], THP[1]],
        &["--only", "nobody", &pool],
        &["--only", "nobody", "--via", "preload"],
        &["--via", "preload"],
    ];
    for options in ways {
        let mut shell = Command::new("sh");
        // By the shell, by a program that searches for its file, and by a program that executes another one in its
        // place.
        shell.args(["-c", "$0 && env $0 && find . -maxdepth 0 -exec $0 \\; && exec $0"]).arg(&program);
        // A program that is followed cannot be traced by LeakSanitizer.
        shell.env("ASAN_OPTIONS", "detect_leaks=0").env("TSAN_OPTIONS", "");
        let output = t.run(t.lifted(options, &shell)?)?;
        ensure!(output.ending == Ending::Exit(0), "{options:?}: {:?}: {}", output.ending, output.stderr);
        ensure!(!output.stderr.contains("ERROR"), "{options:?}: {}", output.stderr);
    }
    Ok(())
}

fn named_alone(t: &Context) -> Result<()> {
    let tracer = library(t, "tracer.so", &[])?;
    let program = Program::named("heap/asks_for_a_hundred_blocks.c")?.build()?;
    let name = program.file_name().context("a name")?.to_string_lossy().into_owned();
    // The heap is placed after a wrapper's preloaded libraries; the wrapper and other children do not have the heap.
    let text = "env | grep -c -e ^PAGELIFT_HEAP= -e ^PAGELIFT= -e ^LD_PRELOAD=; LD_PRELOAD=$1 $0; sh -c 'grep -c pagelift_heap /proc/self/maps'; true";
    let mut shell = Command::new("sh");
    shell.args(["-c", text]).arg(&program).arg(&tracer);
    let options = [&THP[..], &["--only", &name]].concat();
    let output = to_a_good_end(t, t.lifted(&options, &shell)?)?;
    ensure!(output.stdout == "0\n0\n", "{}{}", output.stdout, output.stderr);
    let says = "tracer: 100 blocks of libpagelift_heap.so";
    ensure!(counted(&output, "tracer:")? == says, "{}", output.stderr);
    Ok(())
}

/// The program's code is on transparent huge pages, so that the pools are read for its heap alone.
fn on_pool(t: &Context) -> Result<()> {
    let program = Program::named("heap/threads_hold_a_little.c")?.build()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\"; true"]).arg(&program);
    let name = program.file_name().context("a name")?.to_string_lossy().into_owned();
    let heap = [format!("--heap={}", default_huge_page()?.bytes()), format!("--heap-reserve={RESERVE}")];
    let options = [&["--pages", "thp", "--only", name.as_str()], &heap.each_ref().map(String::as_str)[..]].concat();
    let mut session = t.session(t.lifted(&options, &shell)?)?;
    session.wait_for_line("ready")?;
    let taken = (t.pool()?.pages() - t.pool()?.free()?) * default_huge_page()?.bytes();
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0) && taken == RESERVE, "{taken} bytes taken: {}", output.stderr);
    Ok(())
}
