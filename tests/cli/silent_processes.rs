//! A process that holds the lock of its memory and blocks readers: commands that read many processes name it, and read
//! the others.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use test_support::{
    Context, Ending, Need, Output, Program, Session, SilentServer, TestStore, copy_of_a_program, default_huge_page,
    main_of_one_at_a_time, poll_until, process_state, test_case,
};

/// Time limit above the 30 s that a command waits for one process.
const PATIENCE: Duration = Duration::from_secs(240);
/// The program; the kernel cuts its name.
const PROGRAM: &str = "cli/holds_the_lock_of_its_memory.c";
const NAME: &str = "holds_the_lock_";
/// A program whose mappings can be read, but not its memory.
const HIDES: &str = "hides_memory";
/// Exit status of a command that fails by itself.
const OWN_FAILURE: i32 = 125;

fn main() -> ExitCode {
    let fuse = || {
        let files = ["/dev/fuse", "/usr/include/linux/fuse.h"].map(|path| Need::File(path.into()));
        [vec![Need::Root, Need::Command("gcc".into())], files.to_vec()].concat()
    };
    let page = default_huge_page().map_or(2 << 20, |page| page.bytes());
    main_of_one_at_a_time(vec![
        test_case("is_named_and_left_out", [fuse(), vec![Need::Pool(page)]].concat(), is_named_and_left_out),
        test_case("keeps_only_images_in_use", [fuse(), vec![Need::Thp]].concat(), keeps_only_images_in_use),
        test_case(
            "hides_no_process_of_another_user",
            [fuse(), vec![Need::Pool(page)]].concat(),
            hides_no_process_of_another_user,
        ),
        test_case("holds_the_lock_of_a_file", fuse(), holds_the_lock_of_a_file),
        test_case("is_waited_for_once", [fuse(), vec![Need::Pool(page)]].concat(), is_waited_for_once),
    ])
}

/// The process, and the file system that it waits for. The file system ends first: until then no signal ends the
/// process.
struct Silent {
    server: SilentServer,
    process: Session,
}

impl Silent {
    fn start(t: &Context, words: &[&str]) -> Result<Self> {
        let server = SilentServer::mount(t, &Program::named("cli/maps_a_file.c")?.build()?)?;
        let mut command = Program::named(PROGRAM)?.command()?;
        command.arg(server.folder().join("file")).args(words);
        let process = t.session(command)?;
        process.wait_for_line("ready")?;
        process_state(process.pid(), "D")?;
        Ok(Self { server, process })
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends the file system; the process then gets an error and ends.
    fn end(mut self) -> Result<()> {
        self.server.end();
        self.process.finish().map(drop)
    }
}

/// Runs these commands side by side.
fn run_all(t: &Context, commands: &[&[&str]]) -> Result<Vec<Output>> {
    let sessions = commands.iter().map(|words| t.session_within(t.pagelift(words)?, PATIENCE));
    let sessions = sessions.collect::<Result<Vec<_>>>()?;
    sessions.into_iter().map(Session::finish).collect()
}

/// True if a document names the process and no other.
fn names(document: &Value, pid: u32) -> bool {
    let unanswered = document["unanswered"].as_array().map(Vec::as_slice).unwrap_or_default();
    let fields = |process: &Value| (process["pid"].as_i64(), process["reason"].as_str().map(str::to_owned));
    unanswered.iter().map(fields).eq([(Some(pid.into()), Some("no-answer".to_owned()))])
}

/// A process that maps `/bin/true` at each line, and hides its memory unless `how` is `shows`.
fn hides(t: &Context, how: &[&str]) -> Result<Session> {
    let mut command = Program::named(&format!("cli/{HIDES}.c"))?.command()?;
    command.arg("/bin/true").args(how);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn is_named_and_left_out(t: &Context) -> Result<()> {
    let (mut shown, mut hidden) = (hides(t, &["shows"])?, hides(t, &[])?);
    let mut watch = t.session_within(t.pagelift(&["attach", "--watch", "--all", HIDES])?, PATIENCE)?;
    let lifted = format!("pagelift: {HIDES}[{}]: ", shown.pid());
    watch.wait_for_stderr(&lifted)?;
    let silent = Silent::start(t, &["pool"])?;
    let mut answers = Program::named("cli/maps_a_file.c")?.command()?;
    answers.args(["/dev/null", "0", "huge"]);
    let answers = t.session(answers)?;
    answers.wait_for_line("ready")?;
    let list = t.folder().join("list");
    let program = PathBuf::from(PROGRAM);
    let stem = program.file_stem().and_then(|stem| stem.to_str()).context("no name")?;
    fs::write(&list, format!("running {stem}\n"))?;
    let list = list.to_string_lossy();
    let (reads, fails): (&[&[&str]], &[&[&str]]) = (
        &[
            &["status"],
            &["pool", "show"],
            &["cache", "status"],
            &["cache", "keep", "--once", "--config", &list],
            &["status", "--json"],
            &["pool", "show", "--json"],
            &["cache", "status", "--json"],
        ],
        &[&["attach", "--all", stem], &["detach", "--all", stem], &["attach", "--lift", "shared", "--all", stem]],
    );
    // Any process may have been started by a link of this name.
    let by_name: &[&[&str]] = &[&["attach", "--dry-run", "--all", "maps_a_file"]];
    // Its mappings are read, and the lift waits for its memory.
    let in_place: &[&[&str]] = &[&["attach", "--lift", "anon", "--all", HIDES]];
    let mut outputs = run_all(t, &[reads, fails, by_name, in_place].concat())?;
    let in_place = outputs.pop().context("no output")?;
    let pid = silent.pid();
    silent.end()?;
    let (read, others) = outputs.split_at(reads.len());
    let (failed, by_name) = others.split_at(fails.len());
    for (words, output) in reads.iter().zip(read) {
        ensure!(output.ending == Ending::Exit(0), "{words:?}: {output:?}");
        if words.contains(&"--json") {
            let document: Value = serde_json::from_str(&output.stdout)?;
            let document = if words.contains(&"pool") { &document["users"] } else { &document };
            ensure!(names(document, pid), "{words:?} does not name {pid}: {output:?}");
            continue;
        }
        let said = format!("{}{}", output.stdout, output.stderr);
        let named = [format!("left out: {pid} {NAME}"), format!("process {pid} ({NAME}) did not answer within 30 s")];
        ensure!(named.iter().any(|named| said.contains(named.as_str())), "{words:?} does not name {pid}: {output:?}");
    }
    ensure!(read[0].stdout.contains(&answers.pid().to_string()), "status leaves out others: {:?}", read[0]);
    for (words, output) in fails.iter().zip(failed) {
        ensure!(output.ending == Ending::Exit(OWN_FAILURE), "{words:?}: {output:?}");
        let named = format!("process {pid} ({NAME}) did not answer within 30 s");
        ensure!(output.stderr.contains(&named), "{words:?} does not name {pid}: {output:?}");
    }
    // A process that stops to answer after the first look ends neither a lift in place nor a watch over others.
    let refused = format!("process {} ({HIDES}) did not answer within 30 s", hidden.pid());
    let names_it = in_place.stderr.contains(&refused) && in_place.stderr.contains("anonymous memory");
    ensure!(in_place.ending == Ending::Exit(0) && names_it, "attach --lift anon: {in_place:?}");
    let lines = |line: &str| watch.stderr_so_far().lines().filter(|said| said.contains(line)).count();
    let is_left_out = || lines(&refused) == 1 && lines(&lifted) == 1;
    poll_until(PATIENCE, "the process to be left out", is_left_out).with_context(|| watch.stderr_so_far())?;
    hidden.send("load\n")?;
    shown.send("load\n")?;
    poll_until(PATIENCE, "a lift of the loaded file", || lines(&lifted) == 2).with_context(|| watch.stderr_so_far())?;
    ensure!(lines(&refused) == 1, "named twice: {}", watch.stderr_so_far());
    ensure!(!watch.has_ended()?, "attach --watch has ended: {}", watch.stderr_so_far());
    hidden.finish()?;
    shown.finish()?;
    ensure!(watch.finish()?.ending == Ending::Exit(OWN_FAILURE), "attach --watch");
    let found = by_name.iter().all(|output| output.ending == Ending::Exit(0) && output.stdout.contains("maps_a_file"));
    ensure!(found, "{by_name:?}");
    Ok(())
}

/// A silent process does not keep images that no process can start to use, nor images on which the kernel grants a
/// lease.
fn keeps_only_images_in_use(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "128M")?;
    let [changed, unmapped, open] = ["changed", "unmapped", "open"].map(|name| copy_of_a_program(t, name));
    let (changed, unmapped, open) = (changed?, unmapped?, open?);
    let images = [&changed, &unmapped, &open].map(|file| store.add(t, file));
    let [changed_image, unmapped_image, open_image] = images;
    let (changed_image, unmapped_image, open_image) = (changed_image?, unmapped_image?, open_image?);
    fs::remove_file(&changed)?;
    let held = fs::File::open(&open_image.path)?;
    let silent = Silent::start(t, &[])?;
    let pid = silent.pid();
    let paths = [&unmapped_image, &open_image].map(|image| image.path.to_string_lossy().into_owned());
    // Run alone: the kernel grants no lease on an image that another command has open.
    let removed = t.session_within(store.command(t, "remove", &[&paths[0]])?, PATIENCE)?.finish()?;
    let commands = [("gc", vec![]), ("remove", vec![paths[1].as_str()]), ("list", vec!["--json"])];
    let sessions = commands.iter().map(|(name, words)| t.session_within(store.command(t, name, words)?, PATIENCE));
    let sessions = sessions.collect::<Result<Vec<_>>>()?;
    let outputs = sessions.into_iter().map(Session::finish).collect::<Result<Vec<_>>>()?;
    let [gc, refused, list] = &outputs[..] else { bail!("{} outputs", outputs.len()) };
    let are_there = [&changed_image, &unmapped_image, &open_image].map(|image| image.path.exists());
    silent.end()?;
    ensure!(are_there == [false, false, true], "{are_there:?}: {outputs:?}");
    ensure!(gc.stdout.contains(&format!("left out: {pid} {NAME}")), "gc: {gc:?}");
    ensure!(removed.ending == Ending::Exit(0), "remove: {removed:?}");
    ensure!(refused.stderr.contains(&format!("process {pid} ({NAME}) did not answer")), "remove: {refused:?}");
    ensure!(refused.ending == Ending::Exit(OWN_FAILURE), "remove: {refused:?}");
    ensure!(names(&serde_json::from_str(&list.stdout)?, pid), "list: {list:?}");
    drop(held);
    store.image(t, "remove", &[&paths[1]])?.success()?;
    ensure!(!open_image.path.exists(), "kept though no process is silent any more");
    Ok(())
}

/// One user's silent processes, more than a command waits for, do not hide another user's process.
fn hides_no_process_of_another_user(t: &Context) -> Result<()> {
    let silent = (0..10).map(|_| Silent::start(t, &["as", "65534"])).collect::<Result<Vec<_>>>()?;
    // PIDs rise: this process comes after them.
    let mut answers = Program::named("cli/maps_a_file.c")?.command()?;
    answers.args(["/dev/null", "0", "huge"]);
    let answers = t.session(answers)?;
    answers.wait_for_line("ready")?;
    let status = t.session_within(t.pagelift(&["status", "--json"])?, PATIENCE)?.finish()?;
    silent.into_iter().try_for_each(Silent::end)?;
    let document: Value = serde_json::from_str(&status.stdout)?;
    let unanswered = document["unanswered"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |reason: &str| unanswered.iter().filter(|process| process["reason"] == reason).count();
    ensure!((of("no-answer"), of("not-asked")) == (8, 2), "{unanswered:?}");
    ensure!(status.stdout.contains(&answers.pid().to_string()), "status leaves out others: {status:?}");
    Ok(())
}

/// A process that writes to a file of tmpfs from memory that does not arrive holds the lock of the file. A wait for the
/// lock could not be interrupted.
fn holds_the_lock_of_a_file(t: &Context) -> Result<()> {
    let content = Program::named("cli/maps_a_file.c")?.build()?;
    let server = SilentServer::mount(t, &content)?;
    let file = tempfile::Builder::new().prefix("pagelift-locked-").tempfile_in("/dev/shm")?;
    fs::write(file.path(), vec![1; 8 << 20])?;
    let mut command = Program::named("cli/holds_the_lock_of_a_file.c")?.command()?;
    command.arg(file.path()).arg(server.folder().join("file"));
    let mut holder = Silent { server, process: t.session(command)? };
    holder.process.wait_for_line("ready")?;
    holder.server.be_silent()?;
    let call = |pid: u32| fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = |text: String| text.split(' ').next().unwrap_or_default().trim().to_owned();
    process_state(holder.pid(), "S")?;
    let reads = number(call(holder.pid()));
    holder.process.send("write\n")?;
    let writes = || ![reads.as_str(), "running", ""].contains(&number(call(holder.pid())).as_str());
    poll_until(PATIENCE, "the process to wait in its write", writes)?;
    let path = file.path().to_string_lossy();
    let commands: [&[&str]; 2] = [&["cache", "status", &path], &["cache", "prepare", &path]];
    let mut sessions = Vec::new();
    for words in commands {
        sessions.push(t.session_within(t.pagelift(words)?, PATIENCE)?);
    }
    let mut ended = Ok(());
    for session in &mut sessions {
        ended = ended.and(poll_until(PATIENCE / 2, "the commands to end", || session.has_ended().unwrap_or(true)));
    }
    // Commands that wait for the lock end only now.
    holder.end()?;
    let outputs = sessions.into_iter().map(Session::finish).collect::<Result<Vec<_>>>()?;
    ensure!(ended.is_ok(), "{ended:?}: {outputs:?}");
    ensure!(outputs.iter().all(|output| !output.stderr.contains("was given up")), "they waited: {outputs:?}");
    ensure!(outputs[0].ending == Ending::Exit(0), "{:?}", outputs[0]);
    Ok(())
}

/// A command that scans repeatedly leaves one blocked thread, and does not wait for the process again.
fn is_waited_for_once(t: &Context) -> Result<()> {
    let silent = Silent::start(t, &["pool"])?;
    let watch = t.session_within(t.pagelift(&["pool", "show", "--watch", "--json", "--interval", "1"])?, PATIENCE)?;
    let named = format!("\"pid\":{}", silent.pid());
    let looks = || watch.stdout_so_far().lines().filter(|line| line.contains(&named)).count();
    poll_until(PATIENCE, "the first look", || looks() > 0)?;
    let begun = Instant::now();
    poll_until(PATIENCE, "more looks", || looks() > 4)?;
    let (took, threads) = (begun.elapsed(), fs::read_dir(format!("/proc/{}/task", watch.pid()))?.count());
    silent.end()?;
    // A wait for the process at each look would take 30 s.
    ensure!(took < Duration::from_secs(85), "{took:?} for four looks");
    // The main thread, the watch and the blocked thread; a scan may be in progress.
    ensure!(threads <= 4, "{threads} threads");
    Ok(())
}
