//! `pagelift bench`: its effects on a program and on its record. Differences of speed are not asserted.

mod live;
mod report;
mod sequence;
mod servers;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Session, View, main_of_one_at_a_time, poll_until, test_case,
};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// Short windows: the tests check events, not speed.
const SHORT: [&str; 6] = ["--pages", "thp", "--window", "20ms", "--settle", "5ms"];
const LONG: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    let mut tests = vec![
        test_case("a_plain_program_is_left_plain_and_its_record_gives_the_same_answer", needs(), left_plain),
        test_case("a_lifted_program_is_left_lifted", needs(), left_lifted),
        test_case("an_interruption_gives_the_answer_so_far", needs(), interrupted),
        test_case("an_interruption_at_a_terminal/commands", needs(), interrupted_at_a_terminal),
        test_case("an_interruption_at_a_terminal/runs", vec![], interrupted_run),
        test_case("a_run_that_ignores_the_interruption_is_ended", vec![], stubborn_run),
        test_case("a_terminal_that_hangs_up_leaves_it_plain", needs(), hung_up),
        test_case("writable_memory_is_left_as_it_was", needs(), writable_memory),
        test_case("a_program_that_ends_is_said", needs(), program_ends),
        test_case("nothing_that_can_be_lifted_is_said", needs(), nothing_to_lift),
        test_case("work_is_counted_by_a_command", needs(), by_a_command),
        test_case("switched_by_the_user_s_commands", needs(), by_commands),
        test_case("an_ordinary_user_s_work_is_counted", needs(), ordinary_user),
        test_case("whole_runs", needs(), whole_runs),
        test_case("whole_runs_in_which_nothing_is_lifted", vec![Need::Thp], runs_of_nothing),
        test_case("a_run_that_fails_is_said", vec![], failing_run),
        test_case("a_record_of_others_does_nothing_to_the_terminal", vec![], hostile_record),
        test_case("mistakes_are_explained", vec![], mistakes),
    ];
    tests.extend(live::tests());
    tests.extend(report::tests(needs));
    tests.extend(sequence::tests());
    tests.extend(servers::tests());
    main_of_one_at_a_time(tests)
}

fn started(t: &Context) -> Result<Session> {
    let mut command = Program::named("measuring/works_in_small_steps.c")?.command()?;
    command.arg(steps(t)).arg("10");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn steps(t: &Context) -> PathBuf {
    t.folder().join("steps")
}

fn finished(session: Session) -> Result<()> {
    session.signal(Signal::SIGTERM)?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.ends_with("all right\n"), "{output:?}");
    Ok(())
}

/// Bytes of the program on huge pages.
fn huge(session: &Session) -> Result<u64> {
    Ok(View::of(session.pid())?.usages.iter().map(|usage| usage.huge()).sum())
}

fn bench(t: &Context, session: &Session, more: &[&str]) -> Result<Output> {
    let pid = session.pid().to_string();
    t.run(t.pagelift(&[&["bench", "--toggle", &pid][..], &SHORT, more].concat())?)
}

fn left_plain(t: &Context) -> Result<()> {
    let session = started(t)?;
    let record = t.folder().join("record").display().to_string();
    let output = bench(t, &session, &["--for", "3", "-o", &record, "--seed", "7"])?.success()?;
    let again = t.run(t.pagelift(&["bench", "--from", &record])?)?.success()?;
    ensure!(output.stdout == again.stdout, "{}\n{}", output.stdout, again.stdout);
    let again = t.run(t.pagelift(&["bench", "--from", &record, "--json"])?)?.success()?;
    let answer: Value = serde_json::from_str(&again.stdout)?;
    ensure!(answer["header"]["unit"] == "system calls", "{}", answer["header"]);
    ensure!(answer["blocks"].as_u64() > Some(0), "{answer}");
    ensure!(answer["ended"] == "time-is-up", "{}", answer["ended"]);
    let lines: Vec<Value> = fs::read_to_string(&record)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let is_lift = |line: &Value| line["switch"]["covered"].as_u64().is_some_and(|bytes| bytes > 2 << 20);
    ensure!(lines.iter().any(is_lift), "no lift is in the record");
    work_was_counted(&lines)?;
    ensure!(huge(&session)? == 0, "it was left lifted");
    finished(session)
}

/// Most windows must have work. In such short windows a program may get no CPU while other processes use all of them.
fn work_was_counted(lines: &[Value]) -> Result<()> {
    let windows: Vec<&Value> = lines.iter().filter_map(|line| line["block"]["windows"].as_array()).flatten().collect();
    let idle =
        windows.iter().filter(|window| window["work"].as_f64() == Some(0.0) || window["cpu"].as_f64() == Some(0.0));
    let idle: Vec<_> = idle.collect();
    ensure!(2 * idle.len() < windows.len(), "of {} windows these have no work: {idle:?}", windows.len());
    Ok(())
}

fn left_lifted(t: &Context) -> Result<()> {
    let session = started(t)?;
    t.run(t.pagelift(&["attach", "--pages", "thp", &session.pid().to_string()])?)?.success()?;
    let before = huge(&session)?;
    bench(t, &session, &["--for", "2"])?.success()?;
    let after = huge(&session)?;
    ensure!(before > 0 && after == before, "{before} bytes on huge pages before, {after} afterwards");
    finished(session)
}

fn blocks_in(record: &Path) -> usize {
    fs::read_to_string(record).map_or(0, |text| text.matches("{\"block\"").count())
}

/// Toggles for an hour, and ends the measurement by a signal after some blocks. Returns its output, and its record.
fn ended_by(t: &Context, session: &Session, signal: Signal) -> Result<(Output, PathBuf)> {
    let record = t.folder().join("record");
    let pid = session.pid().to_string();
    let mut command = t.pagelift(&[&["bench", "--toggle", &pid][..], &SHORT, &["--for", "1h", "-o"]].concat())?;
    command.arg(&record);
    let running = t.session(command)?;
    poll_until(LONG, "some blocks", || blocks_in(&record) >= 3)?;
    running.signal(signal)?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{output:?}");
    ensure!(huge(session)? == 0, "it was left lifted");
    Ok((output, record))
}

fn interrupted(t: &Context) -> Result<()> {
    let session = started(t)?;
    let (output, _) = ended_by(t, &session, Signal::SIGINT)?;
    ensure!(output.stdout.contains("interrupted: the answer so far"), "{}", output.stdout);
    finished(session)
}

/// A terminal sends SIGINT to all processes in the foreground, including those that count work and switch. None may end
/// in the middle of a switch, since the program would remain switched.
fn interrupted_at_a_terminal(t: &Context) -> Result<()> {
    for round in 0..5 {
        let session = started(t)?;
        let record = t.folder().join(format!("record-{round}"));
        let (pid, log) = (session.pid().to_string(), t.folder().join(format!("switches-{round}")));
        let switch = |word: &str| format!("sleep 0.05; echo {word} >> {}", log.display());
        let (on, off) = (switch("on"), switch("off"));
        let work = format!("sleep 0.02; od -An -tu8 -N8 {}", steps(t).display());
        let words = ["bench", "--toggle", &pid, "--toggle-with", &on, &off, "--work", &work, "--window", "20ms", "-o"];
        let mut command = t.pagelift(&words)?;
        command.arg(&record);
        let running = t.session(command)?;
        poll_until(LONG, "a block", || blocks_in(&record) >= 1)?;
        // At a different moment of a block each time.
        std::thread::sleep(Duration::from_millis(round * 37));
        killpg(Pid::from_raw(running.pid() as i32), Signal::SIGINT)?;
        let output = running.finish()?;
        ensure!(output.ending == Ending::Exit(0), "{output:?}");
        ensure!(output.stdout.contains("interrupted: the answer so far"), "{output:?}");
        let log = fs::read_to_string(&log)?;
        ensure!(log.lines().next_back() == Some("off"), "it was left switched: {log}");
        finished(session)?;
    }
    Ok(())
}

fn interrupted_run(t: &Context) -> Result<()> {
    let record = t.folder().join("record");
    let mut command = t.pagelift(&["bench", "--for", "1h", "-o"])?;
    command.arg(&record).args(["--", "sleep", "0.1"]);
    let running = t.session(command)?;
    poll_until(LONG, "a block", || blocks_in(&record) >= 1)?;
    killpg(Pid::from_raw(running.pid() as i32), Signal::SIGINT)?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{output:?}");
    ensure!(output.stdout.contains("interrupted: the answer so far"), "{output:?}");
    Ok(())
}

fn stubborn_run(t: &Context) -> Result<()> {
    let started = t.folder().join("started");
    let script = format!("trap '' INT TERM; echo >> {}; while :; do sleep 0.1; done", started.display());
    let running = t.session(t.pagelift(&["bench", "--for", "1h", "--", "sh", "-c", &script])?)?;
    poll_until(LONG, "the first run", || started.exists())?;
    running.signal(Signal::SIGINT)?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{output:?}");
    ensure!(output.stdout.contains("interrupted: the answer so far"), "{output:?}");
    Ok(())
}

/// A lost connection sends SIGHUP, and no process reads the answer any more.
fn hung_up(t: &Context) -> Result<()> {
    let session = started(t)?;
    let (_, record) = ended_by(t, &session, Signal::SIGHUP)?;
    ensure!(fs::read_to_string(&record)?.contains("{\"end\""), "the record has no end");
    finished(session)
}

/// Huge pages under writable memory cannot be restored, so `--toggle` does not lift writable memory.
fn writable_memory(t: &Context) -> Result<()> {
    let session = t.session(Program::named("measuring/writes_large_data.c")?.command()?)?;
    session.wait_for_line("ready")?;
    bench(t, &session, &["--for", "2"])?.success()?;
    ensure!(huge(&session)? == 0, "writable memory was left on huge pages");
    let output = bench(t, &session, &["--for", "2", "--lift", "text,bss"])?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("stays on huge pages"), "{output:?}");
    ensure!(huge(&session)? == 0, "it was lifted all the same");
    finished(session)
}

fn program_ends(t: &Context) -> Result<()> {
    let session = started(t)?;
    let record = t.folder().join("record");
    let pid = session.pid();
    let mut command =
        t.pagelift(&[&["bench", "--toggle", &pid.to_string()][..], &SHORT, &["--for", "1h", "-o"]].concat())?;
    command.arg(&record);
    let running = t.session(command)?;
    poll_until(LONG, "some blocks", || blocks_in(&record) >= 3)?;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL)?;
    session.finish()?;
    let output = running.finish()?;
    ensure!(output.ending == Ending::Exit(125), "{output:?}");
    ensure!(output.stdout.contains("ended early: ") && output.stderr.starts_with("pagelift: "), "{output:?}");
    ensure!(blocks_in(&record) >= 3, "samples are lost");
    Ok(())
}

fn nothing_to_lift(t: &Context) -> Result<()> {
    let mut command = std::process::Command::new("sleep");
    command.arg("1000");
    let session = t.session(command)?;
    let output = bench(t, &session, &["--for", "5", "--lift", "text"])?;
    ensure!(output.ending == Ending::Exit(125), "{output:?}");
    let screen = output.stdout.clone() + &output.stderr;
    ensure!(screen.to_lowercase().matches("nothing was lifted").count() == 1, "{screen}");
    ensure!(output.stderr.contains("nothing was lifted: ") && screen.matches("next: ").count() == 1, "{screen}");
    session.signal(Signal::SIGKILL)?;
    session.finish()?;
    Ok(())
}

fn by_a_command(t: &Context) -> Result<()> {
    let session = started(t)?;
    let work = format!("od -An -tu8 -N8 {}", steps(t).display());
    let output = bench(t, &session, &["--for", "2", "--work", &work, "--json"])?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    ensure!(answer["header"]["unit"] == "units" && answer["blocks"].as_u64() > Some(0), "{answer}");
    finished(session)
}

fn by_commands(t: &Context) -> Result<()> {
    let session = started(t)?;
    let pid = session.pid().to_string();
    let (on, off) = (format!("kill -USR1 {pid}"), format!("kill -USR2 {pid}"));
    let words = ["bench", "--toggle", &pid, "--toggle-with", &on, &off, "--window", "20ms", "--for", "2", "--json"];
    let output = t.run(t.pagelift(&words)?)?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    ensure!(answer["header"]["arms"][0] == "switched" && answer["blocks"].as_u64() > Some(0), "{answer}");
    ensure!(huge(&session)? == 0, "it was lifted");
    finished(session)
}

/// Without the right to count system calls, context switches are counted, and the output says so.
fn ordinary_user(t: &Context) -> Result<()> {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "while sleep 0.01; do :; done"]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = t.session(command)?;
    let pid = session.pid().to_string();
    let words =
        ["bench", "--toggle", &pid, "--toggle-with", "true", "true", "--window", "40ms", "--for", "2", "--json"];
    let mut command = t.pagelift(&words)?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = t.run(command)?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    ensure!(answer["header"]["unit"] == "voluntary context switches", "{}", answer["header"]);
    ensure!(output.stderr.contains("work is counted in voluntary context switches: "), "{}", output.stderr);
    session.signal(Signal::SIGKILL)?;
    session.finish()?;
    Ok(())
}

fn whole_runs(t: &Context) -> Result<()> {
    let words = ["bench", "--for", "2", "--pages", "thp", "--json", "--", "gcc", "--version"];
    let output = t.run(t.pagelift(&words)?)?.success()?;
    let answer: Value = serde_json::from_str(&output.stdout)?;
    ensure!(answer["header"]["design"] == "runs" && answer["header"]["unit"] == "runs", "{answer}");
    ensure!(answer["blocks"].as_u64() > Some(0) && answer["ended"] == "time-is-up", "{answer}");
    // A heap on huge pages is a lift, whatever the report of code and data says.
    let words = ["bench", "--for", "2", "--pages", "file", "--heap=thp", "--json", "--", "gcc", "--version"];
    let answer: Value = serde_json::from_str(&t.run(t.pagelift(&words)?)?.success()?.stdout)?;
    let options = answer["header"]["options"][0].as_array().context("no options")?;
    ensure!(options.iter().any(|word| word == "--heap=thp") && answer["nothing_lifted"][0].is_null(), "{answer}");
    Ok(())
}

/// "No difference" would imply that a lift was measured.
fn runs_of_nothing(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["bench", "--for", "3", "--pages", "thp", "--", "sleep", "0.02"])?)?.success()?;
    ensure!(
        output.stdout.contains("nothing was lifted") && output.stdout.contains(": holds no whole"),
        "{}",
        output.stdout
    );
    ensure!(!output.stdout.contains("no difference"), "{}", output.stdout);
    Ok(())
}

fn hostile_record(t: &Context) -> Result<()> {
    let path = t.folder().join("record");
    let header = "{\"format\":\"pagelift-bench\",\"version\":1,\"design\":\"runs\",\"machine\":{\"architecture\":\"\",\
        \"kernel\":\"\",\"cpus\":1,\"base_page_bytes\":4096,\"pools\":[],\"governors\":[]},\"program\":\"a\\u001b[2J\\nb\",\
        \"arms\":[\"c\\u202ed\\u001b\"],\"unit\":\"e\\u009b1m\",\"per\":\"second\",\"seed\":1}\n";
    fs::write(&path, format!("{header}{{\"end\":{{\"failed\":\"f\\u001b[31mg\"}}}}\n"))?;
    let output = t.run(t.pagelift(&["bench", "--from", &path.display().to_string()])?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("f\u{fffd}[31mg"), "{output:?}");
    let said = [output.stdout.as_str(), &output.stderr].concat();
    ensure!(
        !said.contains(['\u{1b}', '\u{9b}', '\u{202e}']) && said.contains("a\u{fffd}[2J\u{fffd}b, 0 blocks"),
        "{said:?}"
    );
    Ok(())
}

fn failing_run(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["bench", "--for", "5", "--", "false"])?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("exit status: 1"), "{output:?}");
    let decision = "Cannot tell: no block was measured: \"false\" failed (exit status: 1); needed: ";
    ensure!(output.stdout.contains(decision), "{output:?}");
    Ok(())
}

fn mistakes(t: &Context) -> Result<()> {
    let file = t.folder().join("no record");
    fs::write(&file, "no record\n")?;
    let file = file.display().to_string();
    let own = std::process::id().to_string();
    let many = [&["bench"][..], &["--against=true"; 17], &["--", "true"]].concat();
    let cases: [(&[&str], &str); 7] = [
        (&["bench"], "required"),
        (&many, "found 17 commands of --against; needed: at most 16"),
        (&["bench", "--from", &file], "line 1 is not one of `pagelift bench -o`"),
        (&["bench", "--toggle", "2147483646"], "process 2147483646 does not exist"),
        (&["bench", "--toggle", &own, "--work", "http://localhost/metrics"], "fix: http://HOST:PORT/metrics#NAME"),
        (&["bench", "--toggle", &own, "--heap=thp"], "fix: pagelift bench --heap=auto -- CMD"),
        (&["bench", "--toggle", &own, "--work", "echo many"], "needed: a number that grows with the work"),
    ];
    for (words, expected) in cases {
        let output = t.run(t.pagelift(words)?)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(expected), "{words:?}: {output:?}");
    }
    Ok(())
}
