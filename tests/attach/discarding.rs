//! Programs that discard memory of their files by madvise(MADV_DONTNEED), which costs a plain program nothing.

use anyhow::{Result, ensure};
use std::process::{Command, ExitCode};
use test_support::{Context, Ending, Need, Program, Session, Setting, Test, TestStore, View, main_of, test_case};

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    // mseal(2); that it keeps read-only memory from being discarded is older than its first release.
    let sealing = || [needs(), vec![Need::Kernel(6, 10)]].concat();
    let tests: Vec<Test> = vec![
        test_case("from_an_image_it_loses_nothing", needs(), from_an_image),
        test_case("status_tells_what_a_copy_has_lost", needs(), status_tells),
        test_case("sealed_at_its_start_it_loses_nothing", sealing(), |t| sealed(t, at_start)),
        test_case("sealed_while_it_runs_it_loses_nothing", sealing(), |t| sealed(t, while_it_runs)),
    ];
    main_of(tests)
}

fn program() -> Result<Command> {
    Program::named("attach/discards_read_only_data.c")?.command()
}

fn begin(t: &Context, command: Command) -> Result<Session> {
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn at_start(t: &Context, options: &[&str]) -> Result<Session> {
    begin(t, t.lifted(options, &program()?)?)
}

fn while_it_runs(t: &Context, options: &[&str]) -> Result<Session> {
    let session = begin(t, program()?)?;
    let pid = session.pid().to_string();
    let arguments = [&["attach"], options, &[pid.as_str()]].concat();
    let said = t.run(t.pagelift(&arguments)?)?.success()?.stderr;
    ensure!(!options.contains(&"--seal") || said.contains(" sealed, "), "nothing is said of sealing: {said}");
    Ok(session)
}

/// Lets the program discard a page, and takes down what it says of it.
fn discard(session: &mut Session, expected: &str) -> Result<()> {
    session.send("discard\n")?;
    session.wait_for_line(expected)
}

fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("end\n")?;
    let output = session.finish()?;
    t.keep(&output);
    ensure!(output.ending == Ending::Exit(0), "{output:?}");
    Ok(())
}

fn status(t: &Context, session: &Session) -> Result<String> {
    Ok(t.run(t.pagelift(&["status", &session.pid().to_string()])?)?.success()?.stdout)
}

/// `auto` takes the image, and what is discarded of it comes back from there.
fn from_an_image(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let mut command = t.lifted(&[], &program()?)?;
    command.env("PAGELIFT_STORE", &store.path);
    let mut session = begin(t, command)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    ensure!(maps.contains(&store.text()), "nothing is mapped from the store:\n{maps}");
    discard(&mut session, "discarded, the same")?;
    let said = status(t, &session)?;
    ensure!(!said.contains("lost"), "{said}");
    end(t, session)
}

fn status_tells(t: &Context) -> Result<()> {
    let _at_rest = Setting::khugepaged_at_rest()?;
    let mut session = at_start(t, &["--pages", "thp"])?;
    let said = status(t, &session)?;
    ensure!(!said.contains("lost"), "said before anything is lost:\n{said}");
    discard(&mut session, "discarded, other data")?;
    let said = status(t, &session)?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or_default();
    let lost = format!("warning: {}.0 KiB of the copy of ", page >> 10);
    ensure!(said.contains(&lost), "`{lost}` is not said:\n{said}");
    end(t, session)
}

fn sealed(t: &Context, start: fn(&Context, &[&str]) -> Result<Session>) -> Result<()> {
    let mut session = start(t, &["--pages", "thp", "--seal"])?;
    let view = View::of(session.pid())?;
    let sealed = view.usages.iter().filter(|usage| usage.has_flag("sl")).collect::<Vec<_>>();
    ensure!(sealed.iter().any(|usage| usage.anonymous_huge > 0), "nothing that is huge is sealed");
    ensure!(sealed.iter().all(|usage| !usage.mapping.protection.write), "writable memory is sealed: {sealed:?}");
    discard(&mut session, "EPERM, the same")?;
    let said = status(t, &session)?;
    ensure!(!said.contains("lost"), "{said}");
    let detached = t.run(t.pagelift(&["detach", &session.pid().to_string()])?)?;
    ensure!(detached.ending != Ending::Exit(0) && detached.stderr.contains("is sealed"), "{detached:?}");
    end(t, session)
}
