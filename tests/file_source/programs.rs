//! What programs do to memory that shows huge folios of their own file: they discard it, fork, are probed and debugged, and
//! real programs work.

use crate::files::own_copy_of;
use crate::{from_file, start};
use address_space::{Address, ElfImage};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, MariadbServer, Need, Program, Session, Test, Uprobe, View, default_huge_page, test_case, tests_folder,
};

const FUNCTION: &str = "spin_amid_code";
const MARIADBD: &str = "/usr/sbin/mariadbd";
const LONG: Duration = Duration::from_secs(300);

/// What every start here asks for.
const FROM_THE_FILE: [&str; 4] = ["--pages", "file", "--lift", "text,rodata"];

pub fn tests(needs: fn() -> Vec<Need>) -> Vec<Test> {
    let with = |command: &str| [needs(), vec![Need::Command(command.to_owned())]].concat();
    vec![
        test_case("what_is_discarded_comes_back", needs(), discarded),
        test_case("its_mappings_are_changed_as_those_of_a_plain_program", needs(), changed),
        test_case("children_share_it", needs(), children),
        test_case("uprobes_fire_in_it", with("nm"), probed),
        test_case("gdb_stops_in_it", with("gdb"), debugged),
        test_case("real/node", with("node"), node),
        test_case("real/mariadbd", [needs(), vec![Need::File(MARIADBD.into())]].concat(), mariadbd),
    ]
}

fn built(t: &Context, source: &str) -> Result<PathBuf> {
    let program = Program::named(source)?;
    own_copy_of(t, &program.build()?, &program.name())
}

/// Checks that a command prints lifted what it prints plain, and that what can be is huge pages of the file.
fn works_as_plain(t: &Context, command: &Command, input: &str) -> Result<()> {
    let run = |command: Command, look: bool| -> Result<String> {
        let mut session = t.session_within(command, LONG)?;
        session.wait_for_line("ready")?;
        if look {
            is_on_its_file(&session)?;
        }
        session.send(input)?;
        let output = session.finish()?;
        t.keep(&output);
        Ok(output.success()?.stdout)
    };
    let lifted = run(t.lifted(&FROM_THE_FILE, command)?, true)?;
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    let plain = run(again, false)?;
    ensure!(lifted == plain, "lifted it printed\n{lifted}\nplain\n{plain}");
    Ok(())
}

/// Every part of the file that agrees with huge pages is on them.
fn is_on_its_file(session: &Session) -> Result<()> {
    let view = View::of(session.pid())?;
    let object = view.executable()?;
    let (huge, whole) = from_file(&view, Path::new(&object.path), default_huge_page()?);
    ensure!(huge == whole && whole > 0, "{huge} of {whole} bytes are huge: {}", session.stderr_so_far());
    view.check_read_only_contents(object)
}

/// The page cache has it again, as for a plain program.
fn discarded(t: &Context) -> Result<()> {
    let path = built(t, "attach/discards_read_only_data.c")?;
    let mut session = start(t, &FROM_THE_FILE, &path)?;
    is_on_its_file(&session)?;
    for _ in 0..3 {
        session.send("discard\n")?;
        session.wait_for_line("discarded, the same")?;
    }
    session.send("end\n")?;
    session.finish()?.success()?;
    Ok(())
}

/// madvise, mlock and mprotect answer as they do to a plain program, and what is discarded is the file's again.
fn changed(t: &Context) -> Result<()> {
    works_as_plain(t, &Command::new(built(t, "file_source/changes_its_own_mappings.c")?), "go on\n")
}

fn children(t: &Context) -> Result<()> {
    works_as_plain(t, &Command::new(built(t, "start/fork_and_write.c")?), "\n")
}

/// The function among large code, as an offset in its file.
fn place_in_code(path: &Path) -> Result<u64> {
    let output = Command::new("nm").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find(|line| line.ends_with(&format!(" {FUNCTION}"))).context("no such function")?;
    let address = u64::from_str_radix(line.split(' ').next().unwrap_or_default(), 16)?;
    let file = fs::read(path)?;
    ElfImage::parse(&file[..])?.offset_of_address(Address(address)).context("the function is not in the file")
}

/// The program that calls the function, on its file.
fn spinning(t: &Context) -> Result<(PathBuf, Session)> {
    let path = built(t, "file_source/spins_in_large_code.c")?;
    let session = start(t, &FROM_THE_FILE, &path)?;
    is_on_its_file(&session)?;
    Ok((path, session))
}

fn done(session: Session) -> Result<()> {
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("done 1\n"), "{}", output.stdout);
    Ok(())
}

/// A page with a probe is the process's own: the kernel splits that one huge page.
fn probed(t: &Context) -> Result<()> {
    let (path, mut session) = spinning(t)?;
    let probe = Uprobe::new(t, &path, place_in_code(&path)?)?;
    session.send("go on\n")?;
    done(session)?;
    let hits = probe.hits()?;
    ensure!(hits > 3, "{hits} hits");
    Ok(())
}

fn debugged(t: &Context) -> Result<()> {
    let (_, mut session) = spinning(t)?;
    session.send("go on\n")?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", &format!("break {FUNCTION}")]);
    gdb.args(["-ex", "continue", "-ex", "backtrace", "-ex", "delete", "-ex", "detach", "-p"]);
    gdb.arg(session.pid().to_string());
    let output = t.run(gdb)?.success()?;
    ensure!(output.stdout.contains(&format!("Breakpoint 1, {FUNCTION} (n=")), "{}", output.stdout);
    done(session)
}

fn node(t: &Context) -> Result<()> {
    let printed = Command::new("node").args(["-p", "process.execPath"]).output()?;
    let original = PathBuf::from(String::from_utf8(printed.stdout)?.trim());
    let mut command = Command::new(own_copy_of(t, &original, "node")?);
    command.arg(tests_folder().join("start/programs/real/node.js"));
    works_as_plain(t, &command, "go on\n")
}

fn mariadbd(t: &Context) -> Result<()> {
    let mut server = MariadbServer::prepare(t, "file")?;
    let mut command = Command::new(own_copy_of(t, Path::new(MARIADBD), "mariadbd")?);
    command.args(server.command().get_args());
    server.start(t.lifted(&FROM_THE_FILE, &command)?, LONG)?;
    let view = View::of(server.pid()?)?;
    let (huge, whole) = from_file(&view, Path::new(command.get_program()), default_huge_page()?);
    ensure!(huge == whole && whole >= 8 << 20, "{huge} of {whole} bytes are on the file");
    server.query("CREATE DATABASE d; USE d; CREATE TABLE t (a INT); INSERT INTO t SELECT seq FROM seq_1_to_1000")?;
    let sum = server.query("SELECT SUM(a) FROM d.t")?;
    ensure!(sum.trim() == "500500", "{sum}");
    server.shut_down()
}
