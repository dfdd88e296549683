//! Programs that discard memory of their files by madvise(MADV_DONTNEED), or by mremap(MREMAP_DONTUNMAP), as V8 does
//! with its built-ins. It costs a plain program nothing.

use anyhow::{Result, ensure};
use std::process::{Command, ExitCode};
use test_support::{Context, Ending, Need, Program, Session, Setting, Test, TestStore, View, main_of, test_case};

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    // mseal(2); since its first release it keeps read-only memory from being discarded.
    let sealing = || [needs(), vec![Need::Kernel(6, 10)]].concat();
    let mut tests: Vec<Test> = Vec::new();
    // mremap(2) keeps mappings of files since Linux 5.13.
    for (by, words, kernel) in [("madvise", &[][..], (5, 4)), ("mremap", &["mremap"][..], (5, 13))] {
        let needs = [needs(), vec![Need::Kernel(kernel.0, kernel.1)]].concat();
        tests.push(test_case(format!("plain_it_loses_nothing/{by}"), needs.clone(), move |t| plain(t, words)));
        tests.push(test_case(format!("from_an_image_it_loses_nothing/{by}"), needs.clone(), move |t| {
            from_an_image(t, words)
        }));
        tests
            .push(test_case(format!("status_tells_what_a_copy_has_lost/{by}"), needs, move |t| status_tells(t, words)));
        tests.push(test_case(format!("sealed_at_its_start_it_loses_nothing/{by}"), sealing(), move |t| {
            sealed(t, words, at_start)
        }));
        tests.push(test_case(format!("sealed_while_it_runs_it_loses_nothing/{by}"), sealing(), move |t| {
            sealed(t, words, while_it_runs)
        }));
    }
    main_of(tests)
}

fn program(words: &[&str]) -> Result<Command> {
    let mut command = Program::named("attach/discards_read_only_data.c")?.command()?;
    command.args(words);
    Ok(command)
}

fn plain(t: &Context, words: &[&str]) -> Result<()> {
    let mut session = begin(t, program(words)?)?;
    discard(&mut session, "discarded, the same")?;
    end(t, session)
}

fn begin(t: &Context, command: Command) -> Result<Session> {
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn at_start(t: &Context, words: &[&str], options: &[&str]) -> Result<Session> {
    begin(t, t.lifted(options, &program(words)?)?)
}

fn while_it_runs(t: &Context, words: &[&str], options: &[&str]) -> Result<Session> {
    let session = begin(t, program(words)?)?;
    let pid = session.pid().to_string();
    let arguments = [&["attach"], options, &[pid.as_str()]].concat();
    let said = t.run(t.pagelift(&arguments)?)?.success()?.stderr;
    ensure!(!options.contains(&"--seal") || said.contains(" sealed, "), "nothing is said of sealing: {said}");
    Ok(session)
}

/// Makes the program discard a page, and waits for the expected report.
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

/// `auto` takes the image, and discarded pages are read from the image again.
fn from_an_image(t: &Context, words: &[&str]) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let program = program(words)?;
    // Of a file as young as this, `auto` makes no image by itself.
    let file = program.get_program().to_string_lossy().into_owned();
    t.run(t.pagelift(&["image", "add", "--store", &store.text(), &file])?)?.success()?;
    // Prepared in the page cache, the file itself would come before the image.
    let mut command = t.lifted(&["--prepare", "never"], &program)?;
    command.env("PAGELIFT_STORE", &store.path);
    let mut session = begin(t, command)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    ensure!(maps.contains(&store.text()), "nothing is mapped from the store:\n{maps}");
    discard(&mut session, "discarded, the same")?;
    let said = status(t, &session)?;
    ensure!(!said.contains("lost"), "{said}");
    end(t, session)
}

fn status_tells(t: &Context, words: &[&str]) -> Result<()> {
    let _at_rest = Setting::khugepaged_at_rest()?;
    let mut session = at_start(t, words, &["--pages", "thp"])?;
    let said = status(t, &session)?;
    ensure!(!said.contains("lost"), "said before anything is lost:\n{said}");
    discard(&mut session, "discarded, other data")?;
    let said = status(t, &session)?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or_default();
    let lost = format!("warning: {}.0 KiB of the copy of ", page >> 10);
    ensure!(said.contains(&lost), "`{lost}` is not said:\n{said}");
    end(t, session)
}

type Start = fn(&Context, &[&str], &[&str]) -> Result<Session>;

fn sealed(t: &Context, words: &[&str], start: Start) -> Result<()> {
    let mut session = start(t, words, &["--pages", "thp", "--seal"])?;
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
