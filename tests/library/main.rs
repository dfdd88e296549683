//! The library, by small programs that check themselves (`tests/library/programs`), under real programs, and as an
//! installed package.
//!
//! The head of each program says how to build and run it:
//!
//! - `link:` one test for each: `shared`, `archive` (the archive in an ordinary program), `static` (in a static one),
//!   `musl` and `musl-static` (the archive with another C library), `preload` (not linked; preloaded with the `env:`
//!   below), `none`. All but the first one have `BRIEF` defined: some programs then repeat less of the work that does not
//!   depend on the link.
//! - `flags:` further flags for the compiler; several sets, separated by `|`, give a test each.
//! - `plugin:` a source that is built as a shared object beside the program, with its flags.
//! - `env:` a variable for the run.
//! - `under:` a command that runs the program.
//! - `needs:` see `Need::parse`.

mod by_run;
mod package;
mod privileged;
mod servers;

use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Program, Test, main_of, scratch_folder, shared_folder, target_folder, test_case,
    tests_folder, workspace,
};

/// Time limit of a program. One program takes half a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(400);

fn main() -> ExitCode {
    match tests() {
        Ok(tests) => main_of(tests),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tests() -> Result<Vec<Test>> {
    let folder = tests_folder().join("library/programs");
    let mut sources: Vec<PathBuf> = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "c") && !is_plugin(path));
    sources.sort();
    let mut tests = Vec::new();
    for source in sources {
        tests.extend(tests_of(&source)?);
    }
    tests.extend(by_run::tests());
    tests.extend(privileged::tests());
    tests.extend(servers::tests());
    tests.extend(package::tests());
    Ok(tests)
}

fn is_plugin(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("plugin"))
}

fn tests_of(source: &Path) -> Result<Vec<Test>> {
    let text = fs::read_to_string(source)?;
    let needs = Program::of(source.to_owned())?.needs()?;
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let flags = directive(&text, "flags").unwrap_or_default();
    let sets: Vec<&str> = flags.split('|').map(str::trim).collect();
    let mut tests = Vec::new();
    let links = directive(&text, "link").with_context(|| format!("no `link:` in {}", source.display()))?;
    for (place, link) in links.split(' ').enumerate() {
        for (index, flags) in sets.iter().enumerate() {
            let number = if sets.len() > 1 { format!("-{}", index + 1) } else { String::new() };
            let flags = format!("{flags}{}", if place > 0 { " -DBRIEF" } else { "" });
            let build = Build { source: source.to_owned(), link: link.to_owned(), flags };
            let text = text.clone();
            let mut needs = needs.clone();
            if build.is_musl() {
                needs.push(Need::Command("musl-gcc".to_owned()));
            }
            let run = move |t: &Context| run(t, &build, &text);
            tests.push(test_case(format!("{name}/{link}{number}"), needs, run));
        }
    }
    Ok(tests)
}

/// The text after `WORD:` in the head of a source.
fn directive(text: &str, word: &str) -> Option<String> {
    let head = text.lines().take_while(|line| line.starts_with("//"));
    let own =
        |line: &str| Some(line.trim_start_matches(['/', ' ']).strip_prefix(word)?.strip_prefix(':')?.trim().into());
    head.filter_map(own).next()
}

/// The build of one program.
struct Build {
    source: PathBuf,
    link: String,
    flags: String,
}

/// The folder with the library that `packaging/library/build` has built.
fn library_folder() -> Result<PathBuf> {
    let folder = target_folder().join("library");
    ensure!(
        folder.join("libpagelift.so").exists() && folder.join("libpagelift.a").exists(),
        "no library in {}; build it with `packaging/library/build`",
        folder.display()
    );
    Ok(folder)
}

/// The object of `big_ranges.h`, built once in this process: its assembly takes longer than the rest of a program's build.
fn big_ranges() -> Result<PathBuf> {
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut is_built = BUILT.lock().map_err(|_| anyhow::anyhow!("the build of big_ranges.h has failed"))?;
    let object = scratch_folder().join("big_ranges.o");
    if !*is_built {
        // Another process may link the object of an earlier build.
        let part = object.with_extension(format!("{}.part", std::process::id()));
        let mut gcc = Command::new("gcc");
        gcc.args(["-x", "c", "-c", "-o"]).arg(&part).arg(tests_folder().join("library/programs/big_ranges.h"));
        let output = gcc.output().context("cannot run gcc")?;
        ensure!(output.status.success(), "it does not build:\n{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(&part, &object)?;
        *is_built = true;
    }
    Ok(object)
}

fn compiler(t: &Context, name: &str, source: &Path, out: &Path) -> Command {
    let mut compiler = Command::new(name);
    compiler.args(["-g", "-O1", "-Wall", "-Wno-unused-result", "-o"]).arg(out).arg(source);
    compiler.arg("-I").arg(workspace().join("include")).arg("-I").arg(shared_folder()).current_dir(t.folder());
    compiler
}

impl Build {
    fn is_musl(&self) -> bool {
        self.link.starts_with("musl")
    }

    fn build(&self, t: &Context, text: &str) -> Result<PathBuf> {
        let library = library_folder()?;
        let out = t.folder().join(self.source.file_stem().unwrap_or_default());
        if let Some(plugin) = directive(text, "plugin") {
            let mut words = plugin.split_whitespace();
            let source = self.source.with_file_name(words.next().context("an empty `plugin:`")?);
            let mut compiler = compiler(t, "gcc", &source, &t.folder().join("plugin.so"));
            compiler.args(["-shared", "-fPIC"]).args(words);
            finish(t, compiler)?;
        }
        let name = if self.is_musl() { "musl-gcc" } else { "gcc" };
        let mut compiler = compiler(t, name, &self.source, &out);
        compiler.args(self.flags.split_whitespace());
        if !text.contains("#include \"ranges.h\"") {
            // The program's own code and data precede them, unlike in a program that includes the file.
            compiler.arg("-DBIG_RANGES_ARE_LINKED").arg(big_ranges()?);
        }
        match self.link.as_str() {
            "shared" => {
                let run_path = format!("-Wl,-rpath,{}", library.display());
                compiler.arg(library.join("libpagelift.so")).arg(run_path);
            }
            "archive" | "musl" => {
                compiler.arg(library.join("libpagelift.a"));
            }
            "static" | "musl-static" => {
                compiler.arg(library.join("libpagelift.a")).arg("-static");
            }
            "preload" | "none" => {}
            other => bail!("`link: {other}` is not known"),
        }
        compiler.args(["-lpthread", "-ldl"]);
        finish(t, compiler)?;
        Ok(out)
    }
}

fn finish(t: &Context, compiler: Command) -> Result<()> {
    let output = t.run(compiler)?;
    ensure!(output.ending == Ending::Exit(0), "it does not build:\n{}", output.stderr);
    Ok(())
}

fn run(t: &Context, build: &Build, text: &str) -> Result<()> {
    let program = build.build(t, text)?;
    let under = directive(text, "under").unwrap_or_default();
    let mut command = match under.split_whitespace().collect::<Vec<_>>().as_slice() {
        [] => Command::new(&program),
        [first, others @ ..] => {
            let mut command = Command::new(first);
            command.args(others).arg(&program);
            command
        }
    };
    command.current_dir(t.folder());
    if build.link == "preload" {
        command.env("LD_PRELOAD", library_folder()?.join("libpagelift.so"));
    }
    let env = directive(text, "env").unwrap_or_default();
    if let Some((name, value)) = env.split_once('=') {
        command.env(name, value);
    }
    let output = t.run_within(command, LIMIT)?;
    ensure!(
        output.ending == Ending::Exit(0) && output.stdout.ends_with("ok\n"),
        "{:?}, it wrote:\n{}\n{}",
        output.ending,
        output.stdout,
        output.stderr
    );
    // Prints the program's measurements.
    for line in output.stdout.lines().filter(|line| *line != "ok") {
        println!("{}: {line}", build.source.file_stem().unwrap_or_default().to_string_lossy());
    }
    Ok(())
}
