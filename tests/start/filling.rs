//! `run --lift shared,anon,jit`: a helper beside the program lifts memory in place as the program and its descendants fill it.

use address_space::{format_bytes, parse_smaps};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Session, Setting, Test, main_of_one_at_a_time, poll_until, test_case,
};

/// Blocks that the program holds.
const BLOCKS: u64 = 16;
/// Size of a block.
const PMD_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
/// `shmem_enabled`.
const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// For a lift on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Kernel(6, 1)];
    let with_user = || [needs(), vec![Need::Command("setpriv".into())]].concat();
    let tests: Vec<Test> = vec![
        test_case("fills_later/shared", needs(), |t| filled_later(t, "shared", "memfd", &[])),
        test_case("fills_later/anon", needs(), |t| filled_later(t, "anon", "anon", &[])),
        test_case("fills_later/with_other_kinds", needs(), |t| filled_later(t, "rodata,shared", "system-v", &[])),
        test_case("fills_later/named_descendants", needs(), named_descendants),
        test_case("fills_later/more_programs_than_descriptors", needs(), more_programs_than_descriptors),
        test_case("the_family_outlives_its_first_process", needs(), outlives),
        test_case("settings_that_forbid_it_are_named", needs(), settings),
        test_case("rights_that_lack_are_named", with_user(), rights),
        test_case("options_that_do_not_fit", needs(), options),
    ];
    main_of_one_at_a_time(tests)
}

fn huge() -> Result<u64> {
    Ok(fs::read_to_string(PMD_SIZE)?.trim().parse()?)
}

fn holder(kind: &str, how: &str) -> Result<Command> {
    let file = if kind == "anon" { "attach/holds_private_memory.c" } else { "attach/holds_shared_memory.c" };
    let mut command = Program::named(file)?.command()?;
    command.args([kind, how]);
    Ok(command)
}

/// Bytes of anonymous and shared memory that a process maps by huge pages.
fn huge_bytes(pid: u32) -> Result<u64> {
    let usages = parse_smaps(&fs::read_to_string(format!("/proc/{pid}/smaps"))?)?;
    Ok(usages.iter().map(|usage| usage.shmem_huge + usage.anonymous_huge).sum())
}

/// Waits until this number of bytes is huge. If memory is fragmented, compacts it.
fn await_huge(pid: u32, bytes: u64) -> Result<()> {
    poll_until(BOUND, &format!("{bytes} bytes to be huge"), || {
        let is_lifted = huge_bytes(pid).is_ok_and(|huge| huge >= bytes);
        is_lifted || fs::write("/proc/sys/vm/compact_memory", "1").is_err()
    })
}

/// The current last document of a report.
fn report(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_default();
    serde_json::Deserializer::from_str(&text).into_iter().filter_map(Result::ok).last().unwrap_or_default()
}

/// Waits for the report that the helper writes at the end of the family.
fn last_report(path: &Path) -> Result<Value> {
    let mut found = Value::Null;
    poll_until(BOUND, "the last report", || {
        found = report(path);
        found["watched"]["state"] == "ended"
    })?;
    Ok(found)
}

/// Has the program fill the rest, waits for its lift and for the report about that, and has the program end.
fn fill_and_end(mut session: Session, pid: u32, all: u64, (path, word): (&Path, &str)) -> Result<Output> {
    session.send("\n")?;
    session.wait_for_line("ready")?;
    await_huge(pid, all)?;
    // The helper reads back the result after the last block, from processes that must not have ended.
    let is_told = || report(path)[word]["segments"][0]["huge_after"].as_u64() == Some(all);
    poll_until(BOUND, &format!("a report of {all} huge bytes"), is_told).with_context(|| report(path).to_string())?;
    session.send("\n")?;
    session.finish()
}

fn filled_later(t: &Context, lift: &str, kind: &str, options: &[&str]) -> Result<()> {
    let (all, path) = (BLOCKS * huge()?, t.folder().join("report.json"));
    let file = path.display().to_string();
    let options = [&["-v", "--lift", lift, "--report", &file], options].concat();
    let session = t.session_within(t.lifted(&options, &holder(kind, "later")?)?, BOUND)?;
    session.wait_for_line("ready")?;
    let pid = session.pid();
    await_huge(pid, all / 2)?;
    let word = if kind == "anon" { "anon" } else { "shared" };
    let output = fill_and_end(session, pid, all, (&path, word))?;
    t.keep(&output);
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains("the same"), "{}", output.stdout);
    let noun = if kind == "anon" { "anonymous memory" } else { "shared memory" };
    let says = |text: &str| output.own_lines().iter().any(|line| line.contains(text));
    ensure!(says(&format!("{noun} is lifted in place as it fills")), "{}", output.stderr);
    ensure!(says(&format!("{noun}: {0} of {0} on huge pages", format_bytes(all))), "{}", output.stderr);
    let report = last_report(&path)?;
    ensure!(report[word]["segments"][0]["huge_after"].as_u64() == Some(all), "{report}");
    let watched = &report["watched"];
    let (looks, lifts) = (watched["looks"].as_u64(), watched["lifts"].as_u64());
    ensure!(lifts >= Some(2) && looks >= lifts, "{watched}");
    let family = if kind == "anon" { 1 } else { 4 };
    ensure!(watched["most_processes"].as_u64() == Some(family), "{watched}");
    ensure!(report["considered_bytes"].as_u64() > Some(0) || !lift.contains("rodata"), "{report}");
    Ok(())
}

/// The child of a shell is lifted if the shell is followed.
fn named_descendants(t: &Context) -> Result<()> {
    let (all, path) = (BLOCKS * huge()?, t.folder().join("report.json"));
    let file = path.display().to_string();
    let program = holder("memfd", "later")?;
    let name = Path::new(program.get_program()).file_name().context("a name")?.to_string_lossy().into_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0; \"$@\" <&3 & echo $!; wait $!", "sh"]).arg(program.get_program());
    shell.args(program.get_args());
    let options = ["--lift", "shared", "--report", &file, "--only", &name];
    let session = t.session_within(t.lifted(&options, &shell)?, BOUND)?;
    session.wait_for_line("ready")?;
    let pid = first_number(&session)?;
    await_huge(pid, all / 2)?;
    let output = fill_and_end(session, pid, all, (&path, "shared"))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    let report = last_report(&path)?;
    ensure!(report["pid"].as_u64() == Some(pid.into()), "{report}");
    ensure!(report["shared"]["segments"][0]["huge_after"].as_u64() == Some(all), "{report}");
    Ok(())
}

/// The helper holds no descriptor of programs that have ended.
fn more_programs_than_descriptors(t: &Context) -> Result<()> {
    let limited = "ulimit -n 40; exec \"$0\" \"$@\"";
    let programs = "for n in 0 1 2 3 4; do for m in 0 1 2 3 4 5 6 7; do /bin/true; done; done";
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(test_support::pagelift_binary()?);
    command.args(["run", "--each", "--only", "true", "--lift", "text,anon", "--", "sh", "-c", programs]);
    let output = t.run_within(command, BOUND)?;
    let lines = output.stderr.lines().filter(|line| line.contains("true[")).count();
    ensure!(output.ending == Ending::Exit(0) && lines == 40, "{lines} lines: {}", output.stderr);
    Ok(())
}

/// The number in the first line that is one: the shell may print it after the program has begun.
fn first_number(session: &Session) -> Result<u32> {
    let mut number = None;
    poll_until(BOUND, "the number of the program", || {
        number = session.whole_lines_so_far().lines().find_map(|line| line.parse().ok());
        number.is_some()
    })?;
    number.context("no number")
}

/// A launcher ends, and the program that it has started continues to fill memory.
fn outlives(t: &Context) -> Result<()> {
    let (all, path) = (BLOCKS * huge()?, t.folder().join("report.json"));
    let file = path.display().to_string();
    let program = holder("anonymous", "later")?;
    let mut shell = Command::new("sh");
    let fifo = t.folder().join("go");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
    shell.args(["-c", "go=$1; shift; exec 3<&0; \"$@\" <&3 & echo $!; read word <$go; exit 5", "sh"]).arg(&fifo);
    shell.arg(program.get_program()).args(program.get_args());
    let mut session = t.session_within(t.lifted(&["--lift", "shared", "--report", &file], &shell)?, BOUND)?;
    session.wait_for_line("ready")?;
    let pid = first_number(&session)?;
    // Lifted, so the helper has found it.
    await_huge(pid, all / 2)?;
    fs::write(&fifo, "go\n")?;
    poll_until(BOUND, "the shell to end", || session.has_ended().unwrap_or(false))?;
    let output = fill_and_end(session, pid, all, (&path, "shared"))?;
    ensure!(output.ending == Ending::Exit(5), "{:?}: {}", output.ending, output.stderr);
    ensure!(last_report(&path)?["shared"]["segments"][0]["huge_after"].as_u64() == Some(all), "{}", report(&path));
    Ok(())
}

fn settings(t: &Context) -> Result<()> {
    let run = |value: &str, options: &[&str]| {
        let setting = Setting::change(SHMEM, value)?;
        let output = t.run(t.lifted(&[&["--lift", "shared"], options].concat(), &Command::new("true"))?)?;
        drop(setting);
        anyhow::Ok(output)
    };
    let never = run("never", &[])?.success()?;
    let says = |output: &Output, text: &str| output.own_lines().iter().any(|line| line.contains(text));
    ensure!(
        says(&never, "shmem_enabled is `never`") && says(&never, "fix: before the start, echo advise > "),
        "{never:?}"
    );
    ensure!(says(&never, "shared memory is lifted in place as it fills"), "{never:?}");
    let advise = run("advise", &[])?.success()?;
    ensure!(!says(&advise, "shmem_enabled"), "{advise:?}");
    let denied = run("deny", &[])?.success()?;
    ensure!(says(&denied, "shared memory is not lifted: shmem_enabled is `deny`; fix: echo advise > "), "{denied:?}");
    ensure!(!says(&denied, "as it fills"), "{denied:?}");
    let required = run("deny", &["--require"])?;
    ensure!(required.ending == Ending::Exit(125) && says(&required, "--require ends it here"), "{required:?}");
    let quiet = run("never", &["-q"])?.success()?;
    ensure!(quiet.stderr.is_empty(), "{quiet:?}");
    Ok(())
}

fn rights(t: &Context) -> Result<()> {
    let run = |options: &[&str]| {
        let lifted = t.lifted(&[&["--lift", "anon"], options].concat(), &Command::new("true"))?;
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "--"]);
        command.arg(lifted.get_program()).args(lifted.get_args());
        t.run(command)
    };
    let output = run(&[])?.success()?;
    ensure!(
        output.stderr.contains("anonymous memory is not lifted: not permitted; needed: CAP_SYS_NICE"),
        "{output:?}"
    );
    let required = run(&["--require"])?;
    ensure!(required.ending == Ending::Exit(125), "{required:?}");
    Ok(())
}

fn options(t: &Context) -> Result<()> {
    let run = |options: &[&str]| t.run(t.lifted(options, &Command::new("true"))?);
    let fill = run(&["--fill"])?;
    ensure!(fill.ending == Ending::Exit(125) && fill.stderr.contains("needed: --lift shared, anon or jit"), "{fill:?}");
    let dry_run = run(&["--dry-run", "--lift", "jit"])?;
    ensure!(dry_run.ending == Ending::Exit(125) && dry_run.stderr.contains("`pagelift inspect --lift"), "{dry_run:?}");
    let preload = run(&["--via", "preload", "--lift", "anon"])?.success()?;
    ensure!(preload.stderr.contains("--lift shared, anon, jit or files needs --via ptrace"), "{preload:?}");
    let planned = run(&["--dry-run", "--lift", "text,jit"])?.success()?;
    ensure!(!planned.stderr.contains("as it fills"), "{planned:?}");
    Ok(())
}
