//! The preloaded heap behind the standard names: edge cases of malloc and related functions, C++'s new and delete,
//! loading and unloading of libraries, growth of blocks in place, what programs may expect of a C library's allocator beyond
//! its documents, and mimalloc's own test suite, which `scripts/fetch-test-sources` fetches from Debian.

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Test, default_huge_page, main_of, pagelift_binary, test_case, tests_folder,
};

const MIB: u64 = 1 << 20;
const POOL_MIB: u64 = 128;

/// The pages under the heap.
#[derive(Clone, Copy)]
enum Ground {
    Plain,
    Thp,
    Pool,
}

const GROUNDS: [(&str, Ground); 3] = [("plain", Ground::Plain), ("thp", Ground::Thp), ("pool", Ground::Pool)];

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for (name, ground) in GROUNDS {
        tests.push(corners(format!("malloc_corners/{name}"), "malloc_corners.c", ground));
        tests.push(corners(format!("new_and_delete/{name}"), "new_and_delete.cc", ground));
        tests.push(corners(format!("frees_across_libraries/{name}"), "frees_across_libraries.c", ground));
    }
    for (name, ground) in &GROUNDS[1..] {
        tests.push(corners(format!("grows_in_place/{name}"), "grows_in_place.c", *ground));
        tests.push(suite(format!("mimalloc_suite/api/{name}"), *ground, api));
        tests.push(suite(format!("mimalloc_suite/api_fill/{name}"), *ground, api_fill));
        tests.push(suite(format!("mimalloc_suite/stress/{name}"), *ground, stress));
    }
    for (name, ground) in &GROUNDS[..2] {
        for word in [
            "grow", "protect", "guard", "dontfork", "sandbox", "filter", "threads", "parts", "errno", "align", "little",
        ] {
            tests.push(as_in_the_c_library(format!("as_in_the_c_library/{word}/{name}"), word, *ground));
        }
        let needs = [vec![Need::Command("gcc".into())], ground.needs()].concat();
        let name = format!("as_in_the_c_library/a_fork_of_a_library/{name}");
        tests.push(test_case(name, needs, |t| fork_of_a_library(t, *ground)));
    }
    for sizes in [&[31][..], &[64], &[100], &[127], &[31, 64, 100, 127]] {
        let name = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("_");
        let needs = vec![Need::Command("gcc".into()), Need::Thp];
        tests.push(test_case(format!("first_large_blocks/{name}"), needs, move |t| first_large_blocks(t, sizes)));
    }
    main_of(tests)
}

/// On huge pages of 32 MiB (kernels with base pages of 16 KiB), mimalloc provides blocks of these sizes in MiB.
fn first_large_blocks(t: &Context, sizes: &[u64]) -> Result<()> {
    let mut program = Program::named("heap/first_large_blocks.c")?.command()?;
    program.args(sizes.iter().map(u64::to_string));
    program.env("LD_PRELOAD", pagelift_binary()?.with_file_name("libpagelift_heap.so"));
    program.env("PAGELIFT_HEAP", format!("v4 huge={} page=0", 32 * MIB));
    let mut session = t.session(program)?;
    session.wait_for_line("ready")?;
    let status = t.run(t.pagelift(&["status", "--json", &session.pid().to_string()])?)?.success()?;
    let json: serde_json::Value = serde_json::from_str(&status.stdout)?;
    let arenas = json["preloaded_heap"]["arenas"].as_u64().with_context(|| format!("no arenas: {json}"))?;
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    // The first arena may hold blocks of the C library.
    let most = 2 * sizes.iter().sum::<u64>() * MIB + 32 * MIB;
    ensure!(arenas > 0 && arenas <= most, "arenas of {arenas} bytes for {sizes:?} MiB");
    Ok(())
}

impl Ground {
    fn needs(self) -> Vec<Need> {
        match self {
            Self::Plain => Vec::new(),
            Self::Thp => vec![Need::Thp],
            Self::Pool => vec![Need::Thp, Need::Pool(POOL_MIB * MIB)],
        }
    }

    /// Runs the program on this ground to its end.
    fn run(self, t: &Context, program: Command) -> Result<Output> {
        let command = match self {
            Self::Plain => program,
            Self::Thp => t.lifted(&["--heap=thp", "--heap-allocator=mimalloc"], &program)?,
            Self::Pool => {
                let page = format!("--heap={}", default_huge_page()?.bytes());
                t.lifted(&[&page, &format!("--heap-reserve={}", POOL_MIB * MIB)], &program)?
            }
        };
        let output = t.run_within(command, Duration::from_secs(400))?;
        if matches!(self, Self::Pool) {
            t.pool()?.wait_until_all_free()?;
        }
        Ok(output)
    }
}

/// Runs without Pagelift too: the expected behaviour is that of the C library's allocator.
fn corners(name: String, program: &'static str, ground: Ground) -> Test {
    let compiler = if program.ends_with(".cc") { "g++" } else { "gcc" };
    let needs = [vec![Need::Command(compiler.into())], ground.needs()].concat();
    test_case(name, needs, move |t| {
        let output = ground.run(t, Program::named(&format!("heap/{program}"))?.command()?)?;
        ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
        ensure!(output.stdout == "all is well\n", "{}", output.stdout);
        Ok(())
    })
}

fn as_in_the_c_library(name: String, word: &'static str, ground: Ground) -> Test {
    let needs = [vec![Need::Command("gcc".into())], ground.needs()].concat();
    test_case(name, needs, move |t| {
        let mut program = Program::named("heap/does_as_the_c_library.c")?.command()?;
        program.arg(word);
        let output = ground.run(t, program)?;
        ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
        Ok(())
    })
}

/// A library behind the heap that replaces fork is not left out.
fn fork_of_a_library(t: &Context, ground: Ground) -> Result<()> {
    let source = tests_folder().join("heap/programs/replaces_fork.c");
    let (library, program) = (t.folder().join("libfork.so"), t.folder().join("forks"));
    let build = |words: &[&str], out: &Path| {
        let mut compile = Command::new("gcc");
        compile.args(["-g", "-O1", "-fno-builtin", "-o"]).arg(out).arg(&source).args(words);
        t.run(compile)?.success().map(drop)
    };
    build(&["-DLIBRARY", "-shared", "-fPIC"], &library)?;
    build(&[&library.to_string_lossy()], &program)?;
    let output = ground.run(t, Command::new(program))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

fn suite_folder() -> PathBuf {
    // In the workspace's target folder, even if the tests are built to another one.
    test_support::workspace().join("target/test-sources/mimalloc/test")
}

fn suite(name: String, ground: Ground, body: fn(&Context, Ground) -> Result<()>) -> Test {
    let there = Need::File(suite_folder().join("test-api.c").to_string_lossy().into_owned());
    let needs = [vec![there, Need::Command("gcc".into()), Need::Command("g++".into())], ground.needs()].concat();
    test_case(name, needs, move |t| body(t, ground))
}

/// Builds a program of the suite against the standard names.
fn build(t: &Context, source: &str, words: &[&str]) -> Result<PathBuf> {
    let names = tests_folder().join("heap/programs/mimalloc_suite");
    let program = t.folder().join(source.replace('.', "_"));
    let mut compile = Command::new(words.first().context("no compiler")?);
    compile.args(&words[1..]).args(["-g", "-O1", "-fno-builtin", "-w", "-o"]).arg(&program).arg("-I").arg(names);
    compile.arg("-I").arg(suite_folder()).arg(suite_folder().join(source)).arg("-lpthread");
    t.run(compile)?.success()?;
    Ok(program)
}

/// The names of the failed checks, and the number of all checks.
fn failed(output: &Output) -> Result<(Vec<String>, u64)> {
    let text = &output.stderr;
    let name = |line: &str| Some(line.trim().strip_prefix("FAILED: ")?.split(':').next()?.to_owned());
    let count = |word: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(word)?.trim().strip_prefix(':'));
        line.and_then(|number| number.trim().parse::<u64>().ok()).with_context(|| format!("no sum in {text}"))
    };
    let names: Vec<String> = text.lines().filter_map(name).collect();
    let count = count("succeeded")? + count("failed")?;
    ensure!(output.ending == Ending::Exit(names.len() as i32), "{:?}: {text}", output.ending);
    Ok((names, count))
}

fn api(t: &Context, ground: Ground) -> Result<()> {
    for compiler in [&["gcc"][..], &["g++", "-std=c++17", "-x", "c++"]] {
        let output = ground.run(t, Command::new(build(t, "test-api.c", compiler)?))?;
        let (names, count) = failed(&output)?;
        // No standard function aligns by an offset, and realloc to 0 bytes frees, as in the GNU C library.
        ensure!(names == ["malloc-aligned-at2", "realloc-sizezero"] && count >= 30, "{}", output.stderr);
    }
    Ok(())
}

fn api_fill(t: &Context, ground: Ground) -> Result<()> {
    let output = ground.run(t, Command::new(build(t, "test-api-fill.c", &["gcc"])?))?;
    let (names, count) = failed(&output)?;
    ensure!(names.is_empty() && count >= 15, "{}", output.stderr);
    Ok(())
}

/// The program aborts if a block has lost its contents.
fn stress(t: &Context, ground: Ground) -> Result<()> {
    let mut program = Command::new(build(t, "test-stress.c", &["gcc", "-DUSE_STD_MALLOC"])?);
    program.args(["16", "25", "10"]);
    let output = ground.run(t, program)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}
