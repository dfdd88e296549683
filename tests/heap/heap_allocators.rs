//! `--heap` and the variable `PAGELIFT` in programs with another allocator: no allocator gets a block of another one,
//! and an allocator that cannot be replaced is reported and not changed.

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use test_support::{
    Context, Ending, Need, Output, Test, default_huge_page, main_of, pagelift_binary, pool_file, program_source,
    python, test_case,
};

const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];
/// Shared allocators; each defines the C++ operators new and delete.
const LIBRARIES: [&str; 3] = ["libtcmalloc_minimal.so.4", "libjemalloc.so.2", "libmimalloc.so.2"];
const OPERATORS: &str = "its own C++ operators new and delete";

fn main() -> ExitCode {
    let mut tests = shared();
    tests.extend(python_tests());
    tests.extend(linked_in());
    main_of(tests)
}

fn needs(library: &str) -> Vec<Need> {
    let path = format!("/usr/lib/{}-linux-gnu/{library}", std::env::consts::ARCH);
    vec![Need::Command("g++".into()), Need::Thp, Need::File(path)]
}

/// A program of `tests/heap/programs` in C or C++, built with these words in the test's folder.
fn built(t: &Context, source: &str, compiler: &[&str], words: &[&str]) -> Result<PathBuf> {
    let source = program_source(&format!("heap/{source}"))?;
    let program = t.folder().join(source.file_stem().context("a name")?);
    let mut compile = Command::new(compiler[0]);
    compile.args(["-g", "-O1", "-Wall", "-fno-builtin", "-o"]).arg(&program).args(&compiler[1..]).arg(source);
    compile.args(["-x", "none"]).args(words);
    t.run(compile)?.success()?;
    Ok(program)
}

const C: [&str; 1] = ["gcc"];
const CPP: [&str; 3] = ["g++", "-x", "c++"];

fn to_a_good_end(t: &Context, command: Command) -> Result<Output> {
    let output = t.run(command)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}{}", output.ending, output.stdout, output.stderr);
    Ok(output)
}

/// A program with the preloaded heap, and these options for it, in its environment.
fn with_words(program: &Path, words: &str) -> Result<Command> {
    let library = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    ensure!(library.exists(), "no {}; build it with `cargo build --release`", library.display());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("PAGELIFT", words);
    Ok(command)
}

fn shared() -> Vec<Test> {
    let with = |name: &str, library: &'static str, body: fn(&Context, &str) -> Result<()>| {
        test_case(format!("{name}/{library}"), needs(library), move |t| body(t, library))
    };
    let of = |library| {
        [
            with("operators_of_its_own_are_not_replaced", library, operators_stay),
            with("without_operators_it_is_replaced", library, c_is_replaced),
            with("who_is_not_named_keeps_it", library, who_is_not_named),
            with("operators_of_its_own_are_found_at_the_start", library, declined_from_inside),
        ]
    };
    LIBRARIES.into_iter().flat_map(of).collect()
}

fn operators_stay(t: &Context, library: &str) -> Result<()> {
    let program = built(t, "whose_blocks.c", &CPP, &[&format!("-l:{library}")])?;
    let ways: [&[&str]; 4] = [&[], &["--heap=thp"], &["--heap=auto"], &THP];
    for options in ways {
        let command = Command::new(&program);
        let command = if options.is_empty() { command } else { t.lifted(options, &command)? };
        let output = to_a_good_end(t, command)?;
        ensure!(output.stdout == "malloc: its own\nnew: its own\n", "{options:?}: {}", output.stdout);
        ensure!(output.stderr.contains(OPERATORS) == (options == THP), "{options:?}: {}", output.stderr);
    }
    Ok(())
}

/// A program in C has no blocks of the C++ operators.
fn c_is_replaced(t: &Context, library: &str) -> Result<()> {
    let program = built(t, "whose_blocks.c", &C, &[&format!("-l:{library}")])?;
    let output = to_a_good_end(t, t.lifted(&THP, &Command::new(&program))?)?;
    ensure!(output.stdout == "malloc: another's\n", "{}", output.stdout);
    Ok(())
}

/// A program that is not named keeps its allocator, although the library is preloaded for others.
fn who_is_not_named(t: &Context, library: &str) -> Result<()> {
    for (compiler, says) in [(&C[..], "malloc: its own\n"), (&CPP, "malloc: its own\nnew: its own\n")] {
        let program = built(t, "whose_blocks.c", compiler, &[&format!("-l:{library}")])?;
        let by_launcher = t.lifted(&[&THP[..], &["--only", "cat"]].concat(), &Command::new(&program))?;
        for command in [by_launcher, with_words(&program, "heap=thp only=cat")?] {
            let output = to_a_good_end(t, command)?;
            ensure!(output.stdout == says, "{compiler:?}: {}{}", output.stdout, output.stderr);
        }
    }
    Ok(())
}

fn declined_from_inside(t: &Context, library: &str) -> Result<()> {
    let program = built(t, "whose_blocks.c", &CPP, &[&format!("-l:{library}")])?;
    let by_launcher = t.lifted(&[&THP[..], &["--only", "cat,whose_blocks"]].concat(), &Command::new(&program))?;
    for command in [by_launcher, with_words(&program, "heap=thp only=whose_blocks")?] {
        let output = to_a_good_end(t, command)?;
        ensure!(output.stdout == "malloc: its own\nnew: its own\n", "{}{}", output.stdout, output.stderr);
        let line =
            output.stderr.lines().find(|line| line.contains(OPERATORS)).context("nothing is said of operators")?;
        ensure!(line.ends_with("; the program keeps its own heap"), "{line}");
    }
    let program = built(t, "whose_blocks.c", &C, &[&format!("-l:{library}")])?;
    let output = to_a_good_end(t, with_words(&program, "heap=thp only=whose_blocks")?)?;
    ensure!(output.stdout == "malloc: another's\n", "{}{}", output.stdout, output.stderr);
    Ok(())
}

fn python_tests() -> Vec<Test> {
    let interpreter = Need::File(python().to_string_lossy().into_owned());
    let gcc = || vec![Need::Command("gcc".into()), Need::Thp];
    vec![
        test_case("python/no_child_inherits_a_setting", vec![Need::Thp, interpreter], no_child_inherits),
        test_case("python/what_the_user_has_set_counts", gcc(), |t| {
            let mut program = Command::new(built(t, "asks_as_python_does.c", &C, &["-rdynamic"])?);
            for (set, says) in [("debug", "debug 1\n"), ("", "malloc 1\n")] {
                let output = to_a_good_end(t, t.lifted(&THP, program.env("PYTHONMALLOC", set))?)?;
                ensure!(output.stdout == says, "{set}: {}", output.stdout);
            }
            Ok(())
        }),
        test_case("python/free_threaded_is_left_alone", gcc(), free_threaded),
    ]
}

fn no_child_inherits(t: &Context) -> Result<()> {
    let mut program = Command::new(python());
    // Prints the number of blocks that Python's own allocator has in use.
    let text =
        "import os, sys; print(sys.getallocatedblocks(), 'PYTHONMALLOC' in os.environ, flush=True); os.system('env')";
    program.args(["-c", text]).env_remove("PYTHONMALLOC");
    for (options, is_own) in
        [(&THP[..], false), (&["--heap=auto"], false), (&["--heap-allocator=own", "--heap=thp"], true)]
    {
        let output = to_a_good_end(t, t.lifted(options, &program)?)?;
        let (blocks, variables) = output.stdout.split_once(' ').context("no blocks")?;
        ensure!((blocks == "0") != is_own, "{options:?}: {blocks} blocks of Python's own");
        ensure!(variables.starts_with("False\n") && !variables.contains("PYTHONMALLOC"), "{options:?}: {variables}");
    }
    Ok(())
}

fn free_threaded(t: &Context) -> Result<()> {
    let usual = built(t, "asks_as_python_does.c", &C, &["-rdynamic"])?;
    let with_lock = t.folder().join("with_lock");
    std::fs::rename(&usual, &with_lock)?;
    let free = built(t, "asks_as_python_does.c", &C, &["-rdynamic", "-DFREE_THREADED"])?;
    for options in [&["--heap=auto"][..], &["--heap=thp"], &THP] {
        let output = to_a_good_end(t, t.lifted(options, &Command::new(&free))?)?;
        ensure!(output.stdout == "nothing 0\n", "{options:?}: {}", output.stdout);
    }
    let inspected = t.run(t.pagelift(&["inspect", &free.to_string_lossy()])?)?.success()?;
    ensure!(inspected.stdout.contains("beside free-threaded Python's"), "{}", inspected.stdout);
    // Both programs get the variable that was set for the first.
    let (first, second) = (with_lock.to_string_lossy(), free.to_string_lossy());
    let mut shell = Command::new("sh");
    shell.args(["-c", "$0; $1", &first, &second]);
    let only = format!("{first},{second}");
    let output = to_a_good_end(t, t.lifted(&[&THP[..], &["--only", &only]].concat(), &shell)?)?;
    ensure!(output.stdout == "malloc 0\nnothing 0\n", "{}", output.stdout);
    Ok(())
}

fn linked_in() -> Vec<Test> {
    let pool = vec![Need::Command("gcc".into()), Need::Thp, Need::Pool(16 << 20)];
    vec![
        test_case("a_malloc_of_the_executable_is_left_alone", pool.clone(), executable_s_own),
        test_case("an_option_without_effect_is_named_once", pool, named_once),
    ]
}

/// The first program takes pool pages by the option. The second, which is executed twice, cannot take any.
fn named_once(t: &Context) -> Result<()> {
    let path = built(t, "has_its_own_malloc.c", &C, &[])?;
    let page = default_huge_page()?;
    let heap = format!("--heap={}", page.bytes());
    let options = [&heap, "--heap-reserve=4M", "--heap-allocator=mimalloc", "--only", "cat,has_its_own_malloc"];
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat $1; $0 $1; $0 $1; true"]).arg(&path).arg(pool_file(page, "free_hugepages"));
    let output = to_a_good_end(t, t.lifted(&options, &shell)?)?;
    let lines: Vec<&str> = output.stderr.lines().filter(|line| line.contains("--heap-reserve has no effect")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("has_its_own_malloc["), "{}", output.stderr);
    Ok(())
}

fn executable_s_own(t: &Context) -> Result<()> {
    let path = built(t, "has_its_own_malloc.c", &C, &[])?;
    let inspected = t.run(t.pagelift(&["inspect", &path.to_string_lossy()])?)?.success()?;
    ensure!(inspected.stdout.contains("(the executable defines malloc)"), "{}", inspected.stdout);
    ensure!(!inspected.stdout.contains("Heap: glibc"), "{}", inspected.stdout);

    let page = default_huge_page()?;
    let file = pool_file(page, "free_hugepages");
    let says = format!("own {}", std::fs::read_to_string(&file)?);
    let mut program = Command::new(&path);
    program.arg(&file);
    let output = to_a_good_end(t, t.lifted(&[&format!("--heap={}", page.bytes())], &program)?)?;
    ensure!(output.stdout == says, "needed {says}, found {}", output.stdout);
    ensure!(output.stderr.contains("its allocator is linked in"), "{}", output.stderr);
    let mut from_inside = with_words(&path, &format!("heap={} only=has_its_own*", page.bytes()))?;
    from_inside.arg(&file);
    let output = to_a_good_end(t, from_inside)?;
    ensure!(output.stdout == says, "from inside: needed {says}, found {}", output.stdout);
    let line = "the executable defines malloc itself; the program keeps its own heap";
    ensure!(output.stderr.contains(line), "{}", output.stderr);
    Ok(())
}
