//! Files and output of root about a hostile program: root writes only where the program could write itself, and the
//! program cannot forge a line.

use anyhow::{Context as _, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use test_support::{Context, Ending, Need, Output, Program, Session, Test, main_of, test_case};

/// The user that the hostile program runs as.
const NOBODY: u32 = 65534;

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Command("gcc".into())];
    let setpriv = || [needs(), vec![Need::Command("setpriv".into())]].concat();
    let tests: Vec<Test> = vec![
        test_case("perf_map/roots_folder_stands_where_tmp_is", needs(), roots_folder),
        test_case("perf_map/roots_sticky_folder_stands_where_tmp_is", needs(), roots_sticky_folder),
        test_case("perf_map/roots_file_stands_where_the_map_is", needs(), roots_file),
        test_case("perf_map/of_a_user_is_the_users", needs(), users_folder),
        test_case("messages/standard_error_is_open_for_reading", setpriv(), standard_error_for_reading),
    ];
    main_of(tests)
}

/// A folder of the test, with these permissions and this owner.
fn folder(t: &Context, mode: u32, owner: u32) -> Result<PathBuf> {
    let folder = t.folder().join("shown-as-tmp");
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(mode))?;
    std::os::unix::fs::chown(&folder, Some(owner), Some(owner))?;
    Ok(folder)
}

/// Starts the program in the folder, and writes its map as root.
fn write_map(t: &Context, folder: &Path, arguments: &[&str]) -> Result<(Session, Output)> {
    let mut command = Program::named("cli/leads_its_tmp_elsewhere.c")?.command()?;
    command.args(arguments).current_dir(folder);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let output = t.run(t.pagelift(&["perf-map", &session.pid().to_string()])?)?;
    Ok((session, output))
}

fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("go on\n")?;
    let output = session.finish()?;
    t.keep(&output);
    ensure!(output.ending == Ending::Exit(0), "{output:?}");
    Ok(())
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn roots_folder(t: &Context) -> Result<()> {
    nothing_is_written_to(t, &folder(t, 0o755, 0)?, "not a sticky directory")
}

/// The sticky bit alone does not make a folder writable for the user.
fn roots_sticky_folder(t: &Context) -> Result<()> {
    nothing_is_written_to(t, &folder(t, 0o1755, 0)?, "cannot be written")
}

fn nothing_is_written_to(t: &Context, folder: &Path, why: &str) -> Result<()> {
    let (session, output) = write_map(t, folder, &["folder"])?;
    let names = names_in(folder)?;
    ensure!(names.is_empty(), "root has written {names:?} for the user");
    ensure!(output.ending != Ending::Exit(0) && output.stderr.contains(why), "{output:?}");
    end(t, session)
}

fn roots_file(t: &Context) -> Result<()> {
    let folder = folder(t, 0o755, 0)?;
    let file = folder.join("of-root");
    let before = "10 10 a line of root's\n";
    fs::write(&file, before)?;
    let (session, output) = write_map(t, &folder, &["file", "of-root"])?;
    let map = PathBuf::from(format!("/tmp/perf-{}.map", session.pid()));
    let (after, owner) = (fs::read_to_string(&file)?, fs::metadata(&map).map(|metadata| metadata.uid()));
    fs::remove_file(&map)?;
    ensure!(after == before, "root's file has become\n{after}");
    ensure!(owner.is_ok_and(|owner| owner == NOBODY), "the map is not the user's: {output:?}");
    end(t, session)
}

/// If the user may write to the folder, the map is written as the user's file, and all of its lines are from Pagelift.
fn users_folder(t: &Context) -> Result<()> {
    let folder = folder(t, 0o1777, NOBODY)?;
    let (session, output) = write_map(t, &folder, &["folder"])?;
    let output = output.success()?;
    ensure!(output.stdout.contains("--force"), "it is not said how another user's perf reads it: {}", output.stdout);
    let names = names_in(&folder)?;
    ensure!(names.len() == 1 && names[0].starts_with("perf-") && names[0].ends_with(".map"), "{names:?}");
    let map = folder.join(&names[0]);
    ensure!(fs::metadata(&map)?.uid() == NOBODY, "the map is not the user's");
    let text = fs::read_to_string(map)?;
    ensure!(text.contains("first?10 10 forged by a newline"), "the name is not there:\n{text}");
    ensure!(text.lines().all(|line| !line.starts_with("10 10")), "a line of the user's making:\n{text}");
    end(t, session)
}

/// The standard error of a descendant is a file of root, open for reading: Pagelift's messages must not be written to
/// the file. If the descriptor cannot be duplicated, Pagelift opens its file.
fn standard_error_for_reading(t: &Context) -> Result<()> {
    let file = folder(t, 0o755, 0)?.join("of-root");
    let before = "a line of root's\n";
    fs::write(&file, before)?;
    let lifted = Program::named("start/prints_its_environment.c")?.command()?;
    let name = Path::new(lifted.get_program()).file_name().context("a program has a name")?.to_string_lossy();
    let mut command = Program::named("cli/without_pidfd_getfd.c")?.command()?;
    command.arg(t.pagelift(&[])?.get_program()).args(["run", "--only", &*name, "--", "setpriv", "--clear-groups"]);
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "sh", "-c", "exec 2<&0; exec \"$0\""]);
    command.arg(lifted.get_program());
    let with_input = |input: &str| -> Result<Output> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$@\" {input}"), "sh"]).arg(command.get_program()).args(command.get_args());
        t.run(shell)?.success()
    };
    with_input(&format!("<'{}'", file.display()))?;
    let after = fs::read_to_string(&file)?;
    ensure!(after == before, "root's file has become\n{after}");
    // Nor to a file that the program could open for writing, but has not: the caller of a set-user-ID program chose it.
    fs::write(&file, "")?;
    std::os::unix::fs::chown(&file, Some(NOBODY), None)?;
    with_input(&format!("<'{}'", file.display()))?;
    let after = fs::read_to_string(&file)?;
    ensure!(after.is_empty(), "a file that is open for reading has become\n{after}");
    with_input(&format!("<>'{}'", file.display()))?;
    let after = fs::read_to_string(&file)?;
    ensure!(after.contains("pagelift: "), "nothing was said to the program's own file");
    Ok(())
}
