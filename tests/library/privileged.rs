//! The libraries in programs with more rights than the user who starts them: variables of this user do not affect the
//! libraries.

use crate::{compiler, finish, library_folder};
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Need, Output, Test, pagelift_binary, test_case, tests_folder};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    vec![test_case("set_user_id/no_lift", needs(), no_lift), test_case("set_user_id/no_heap", needs(), no_heap)]
}

/// A program of root, linked with a library.
fn linked(t: &Context, source: &str, library: &Path) -> Result<PathBuf> {
    let source = tests_folder().join(source);
    let out = t.folder().join(source.file_stem().unwrap_or_default());
    let folder = library.parent().context("no folder")?;
    let mut compiler = compiler(t, "gcc", &source, &out);
    compiler.args(["-fPIE", "-pie", "-Wl,--no-as-needed"]).arg(library);
    compiler.arg(format!("-Wl,-rpath,{}", folder.display())).args(["-lpthread", "-ldl"]);
    finish(t, compiler)?;
    chown(&out, Some(0), Some(0))?;
    Ok(out)
}

/// Runs a program as nobody. Returns the mappings of its own file while it waits (length, offset, protection), whether
/// it then has the rights of root, and its output.
fn run(t: &Context, program: &Path, mode: u32, variables: &[(&str, &str)]) -> Result<(Vec<String>, bool, Output)> {
    fs::set_permissions(program, Permissions::from_mode(mode))?;
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/").envs(variables.iter().copied());
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", session.pid()));
    let own = program.display().to_string();
    let maps = read("maps")?.lines().filter(|line| line.ends_with(&own)).map(without_address).collect::<Result<_>>()?;
    let effective =
        read("status")?.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)?.parse().ok());
    session.send("go on\n")?;
    Ok((maps, effective == Some(0), session.finish()?.success()?))
}

fn without_address(line: &str) -> Result<String> {
    let (addresses, rest) = line.split_once(' ').context("no blank")?;
    let (start, end) = addresses.split_once('-').context("no range")?;
    let number = |text: &str| u64::from_str_radix(text, 16);
    Ok(format!("{:x} {rest}", number(end)? - number(start)?))
}

fn no_lift(t: &Context) -> Result<()> {
    let program = linked(t, "start/programs/pie_by_default.c", &library_folder()?.join("libpagelift.so"))?;
    let asked = [("PAGELIFT", "only=pie_by_default pages=thp edges=merge-read-only verbose")];
    let (plain, _, _) = run(t, &program, 0o755, &[])?;
    let (lifted, _, said) = run(t, &program, 0o755, &asked)?;
    ensure!(
        lifted != plain && said.stderr.contains("pie_by_default text"),
        "the variable does nothing: {}",
        said.stderr
    );
    let (maps, is_root, said) = run(t, &program, 0o4755, &asked)?;
    ensure!(is_root, "the program has not got the rights of its owner: its file system is mounted with nosuid");
    ensure!(said.stderr.is_empty(), "said to nobody:\n{}", said.stderr);
    ensure!(maps == plain, "{maps:#?}, plain:\n{plain:#?}");
    Ok(())
}

fn no_heap(t: &Context) -> Result<()> {
    let library = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    let program = linked(t, "start/programs/pie_by_default.c", &library)?;
    let words = ("PAGELIFT", "only=pie_by_default heap=thp");
    let settings = [
        (words, "heap: on transparent huge pages"),
        (("PAGELIFT_HEAP", "of no version"), "the heap's order is not of this version"),
        (("MIMALLOC_VERBOSE", "1"), "mimalloc: "),
    ];
    for (variable, answer) in settings {
        let (_, _, said) = run(t, &program, 0o755, &[variable])?;
        ensure!(said.stderr.contains(answer), "{variable:?} does nothing: {}", said.stderr);
        let (_, is_root, said) = run(t, &program, 0o4755, &[variable])?;
        ensure!(is_root, "the program has not got the rights of its owner: its file system is mounted with nosuid");
        ensure!(said.stderr.is_empty(), "{variable:?} makes it say to nobody:\n{}", said.stderr);
    }
    Ok(())
}
