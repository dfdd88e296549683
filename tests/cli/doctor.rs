//! `pagelift doctor` on machines with deliberate faults: each fault is named, and after the printed fix the finding is
//! gone. Every setting is restored, also if a test fails.
//!
//! Tests in virtual machines (`tests/kernels/machines/{doctor,nodes}.sh`) cover `kernel.yama.ptrace_scope = 3`, which
//! lasts until a reboot, and a pool on the wrong node.

mod names;
mod states;
mod widths;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use test_support::{
    Context, ControlGroup, Ending, Limit, MariadbServer, Need, Output, Program, Setting, Skipped, default_huge_page,
    main_of, pagelift_binary, poll_until, test_case,
};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
const THP_MODE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// `PR_SET_THP_DISABLE` and `PR_SET_MDWE` with `PR_MDWE_REFUSE_EXEC_GAIN` (linux/prctl.h).
const THP_OFF: &str = "41, 1, 0, 0, 0";
const NO_EXECUTABLE_COPIES: &str = "65, 1, 0, 0, 0";

fn main() -> ExitCode {
    let python = || vec![Need::Command("python3".into())];
    let with = |more: Vec<Need>| [vec![Need::Root], more].concat();
    let mut tests = vec![
        test_case("cgroup_limit_without_promises", with(vec![Need::Pool(16 << 20)]), cgroup_limit),
        test_case("transparent_huge_pages_never", with(vec![Need::File(THP_MODE.into())]), thp_never),
        test_case(
            "transparent_huge_pages_switched_off_by_an_ancestor",
            [python(), vec![Need::Command("perl".into())]].concat(),
            switched_off,
        ),
        test_case("an_empty_pool", with(vec![Need::Pool(0), Need::Command("gcc".into())]), empty_pool),
        test_case(
            "mariadb_with_the_pages_that_are_advised",
            with(vec![Need::Pool(0), Need::Command("mariadbd".into()), Need::Command("mariadb-install-db".into())]),
            mariadb_on_the_pool,
        ),
        test_case("tracing_for_root_only", with(vec![Need::File(SCOPE.into())]), tracing),
        test_case("no_executable_copies", [python(), vec![Need::Kernel(6, 3)]].concat(), no_executable_copies),
        test_case("pages_in_use_are_measured", vec![Need::Command("gcc".into())], pages_in_use),
        test_case("an_ordinary_user_learns_what_root_adds", with(vec![]), ordinary_user),
        test_case("colours_are_for_terminals", vec![Need::Command("script".into())], colours),
        test_case("what_cannot_be_examined_is_said", vec![], mistakes),
        test_case("the_choice_for_a_heap_is_said_before_the_start", vec![], heap_choice),
    ];
    tests.extend(states::tests());
    tests.extend(names::tests());
    tests.push(widths::test());
    main_of(tests)
}

/// The settings belong to the machine: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Skips the test if transparent huge pages are off. To be called under [`alone`], since another test disables them.
fn needs_thp() -> Result<()> {
    let missing = Need::Thp.missing();
    missing.map_or(Ok(()), |why| Err(Skipped(why).into()))
}

/// The JSON output of doctor, and its exit status.
struct Said {
    report: Value,
    status: i32,
}

impl Said {
    fn of(output: Output) -> Result<Self> {
        let Ending::Exit(status) = output.ending else { anyhow::bail!("{:?}: {}", output.ending, output.stderr) };
        ensure!(output.stderr.is_empty(), "{}", output.stderr);
        Ok(Self { report: serde_json::from_str(&output.stdout)?, status })
    }

    fn finding(&self, check: &str) -> Option<&Value> {
        self.report["findings"].as_array()?.iter().find(|finding| finding["check"] == check)
    }

    /// The finding of a check. It must have this severity, and these words in title or found.
    fn finds(&self, check: &str, severity: &str, words: &str) -> Result<&Value> {
        let finding = self.finding(check).with_context(|| format!("nothing of {check} in {:#}", self.report))?;
        let text = format!("{} {}", finding["title"], finding["found"]);
        ensure!(finding["severity"] == severity && text.contains(words), "{finding:#}");
        let worst = match severity {
            "problem" => 2,
            "advice" => 1,
            _ => 0,
        };
        ensure!(self.status >= worst, "exit status {} with {severity}", self.status);
        Ok(finding)
    }

    fn does_not_find(&self, check: &str) -> Result<()> {
        ensure!(self.finding(check).is_none(), "{:#}", self.report);
        Ok(())
    }
}

fn doctor(t: &Context, words: &[&str]) -> Result<Said> {
    Said::of(t.run(t.pagelift(&[&["doctor", "--json"], words].concat())?)?)
}

/// The command in the finding's fix.
fn fix_of(finding: &Value) -> Result<String> {
    let command = finding["fix"]["commands"][0].as_str().with_context(|| format!("no command in {finding:#}"))?;
    Ok(command.to_owned())
}

/// With `--probe` the estimate is based on the pages that the program uses during the command, not on all resident
/// pages.
fn pages_in_use(t: &Context) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let mut command = Program::named("measuring/uses_known_pages.c")?.command()?;
    command.arg("12000");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    for (words, rests_on) in
        [(&[pid.as_str(), "--probe"][..], "pages walked to within"), (&[pid.as_str()], "resident code")]
    {
        let said = doctor(t, words)?;
        let estimates = said.report["verdict"]["estimates"].as_array().context("no estimates")?;
        let code = estimates.iter().find(|estimate| estimate["what"] == "code").context("none of code")?;
        // If the sizes of the TLBs are unknown on the architecture, the estimate uses resident pages.
        let wanted = if cfg!(target_arch = "x86_64") { rests_on } else { "resident code" };
        ensure!(code["based_on"].as_str().is_some_and(|text| text.contains(wanted)), "{code:#}");
    }
    session.finish()?.success()?;
    Ok(())
}

fn type_in(t: &Context, typed: &str) -> Result<()> {
    let mut shell = Command::new("sh");
    let pagelift = pagelift_binary()?;
    let command = typed.strip_prefix("pagelift ").map(|words| format!("'{}' {words}", pagelift.display()));
    shell.args(["-c", command.as_deref().unwrap_or(typed)]);
    t.run(shell)?.success().map(drop)
}

fn cgroup_limit(t: &Context) -> Result<()> {
    let _alone = alone();
    let group = ControlGroup::with(t, Limit::HugePages(default_huge_page()?), 4 << 20)?;
    let doctor = t.pagelift(&["doctor", "--json"])?;
    let inside = || Said::of(t.run(group.around(&doctor))?);
    let said = inside()?;
    let finding = said.finds("pool-cgroup", "problem", &group.file().to_string_lossy())?;
    ensure!(finding["why"].as_str().is_some_and(|why| why.contains("SIGBUS")), "{finding:#}");
    type_in(t, &fix_of(finding)?)?;
    inside()?.does_not_find("pool-cgroup")
}

fn thp_never(t: &Context) -> Result<()> {
    let _alone = alone();
    let _mode = Setting::change(THP_MODE, "never")?;
    let said = doctor(t, &[])?;
    let finding = said.finds("thp-mode", "problem", THP_MODE)?;
    type_in(t, &fix_of(finding)?)?;
    doctor(t, &[])?.does_not_find("thp-mode")
}

/// A python that calls prctl and then runs the words as its child.
fn below(prctl: &str, words: &[&str]) -> Command {
    let script = format!(
        "import ctypes, subprocess, sys\n\
         if ctypes.CDLL(None).prctl({prctl}): sys.exit('prctl is refused')\n\
         sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).args(words);
    python
}

/// The process that runs `sleep` with this argument, once it does.
fn sleeper(seconds: &str) -> Result<String> {
    let wanted = format!("sleep\0{seconds}\0");
    let mut found = None;
    poll_until(Duration::from_secs(120), "the program to run", || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let runs_it =
            |folder: &fs::DirEntry| fs::read(folder.path().join("cmdline")).is_ok_and(|c| c == wanted.as_bytes());
        found = processes.filter(runs_it).map(|folder| folder.file_name().to_string_lossy().into_owned()).next();
        found.is_some()
    })?;
    found.context("it does not run")
}

fn switched_off(t: &Context) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let pagelift = pagelift_binary()?;
    let pagelift = pagelift.to_string_lossy();
    // A number of seconds that no other process has.
    let seconds = format!("{}", 4_000_000 + u64::from(std::process::id()));
    let before = t.run(below(THP_OFF, &[&pagelift, "doctor", "--json", "--", "sleep", &seconds]))?;
    let before = Said::of(before)?;
    let finding = before.finds("thp-switched-off", "problem", "python")?;
    let plain = t.session(below(THP_OFF, &["sleep", &seconds]))?;
    let pid = sleeper(&seconds)?;
    doctor(t, &[&pid])?.finds("thp-switched-off", "problem", "python")?;
    end(t, plain, &pid)?;
    let fixed = t.session(below(THP_OFF, &["sh", "-c", &fix_of(finding)?]))?;
    let pid = sleeper(&seconds)?;
    doctor(t, &[&pid])?.does_not_find("thp-switched-off")?;
    end(t, fixed, &pid)
}

/// Ends a child of the session's process; the session then ends too.
fn end(t: &Context, session: test_support::Session, pid: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.arg(pid);
    t.run(kill)?.success()?;
    session.finish().map(drop)
}

/// The pool is advised only for code that no other source serves.
fn empty_pool(t: &Context) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let mut session = t.session(Program::named("start/pie_by_default.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    doctor(t, &[&pid])?.does_not_find("pool-pages")?;
    {
        let _mode = Setting::change(THP_MODE, "never")?;
        let said = doctor(t, &[&pid])?;
        let finding = said.finds("pool-pages", "advice", "is empty")?;
        type_in(t, &fix_of(finding)?)?;
        ensure!(t.pool()?.free()? > 0, "the pool is still empty");
        doctor(t, &[&pid])?.does_not_find("pool-pages")?;
    }
    session.send("\n")?;
    session.finish()?.success().map(drop)
}

/// The number of pages follows from the server's settings: with the advised number it does not fall back.
fn mariadb_on_the_pool(t: &Context) -> Result<()> {
    let _alone = alone();
    let mut server = MariadbServer::prepare(t, "doctor")?;
    let command = || {
        let mut command = server.command();
        command.args(["--large-pages", "--key-buffer-size=8M", "--aria-pagecache-buffer-size=8M"]);
        command.arg("--innodb-log-buffer-size=2M");
        command
    };
    let command = [command(), command()];
    let [first, second] = command;
    server.start(first, Duration::from_secs(120))?;
    let pid = server.started_pid()?.to_string();
    let said = doctor(t, &[&pid])?;
    let finding = said.finds("own-pages", "advice", "fell back to base pages")?;
    let fix = fix_of(finding)?;
    // 64 MiB, 8, 8 and twice 2, on pages of 2 MiB.
    ensure!(default_huge_page()?.bytes() != 2 << 20 || fix == "pagelift pool reserve 2M:42", "{fix}");
    ensure!(
        finding["wanted"].as_str().is_some_and(|text| text.contains("innodb_buffer_pool_size 64.0 MiB")),
        "{finding:#}"
    );
    said.does_not_find("pool-pages")?;
    type_in(t, &fix)?;
    doctor(t, &[&pid])?.finds("own-pages", "advice", "fell back to base pages")?;
    server.shut_down()?;
    server.start(second, Duration::from_secs(120))?;
    let pid = server.started_pid()?.to_string();
    let now = doctor(t, &[&pid])?;
    now.does_not_find("own-pages")?;
    server.shut_down()
}

fn tracing(t: &Context) -> Result<()> {
    let _alone = alone();
    let _scope = Setting::change(SCOPE, "2")?;
    let as_nobody = || -> Result<Said> {
        let mut command = t.pagelift(&["doctor", "--json"])?;
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        Said::of(t.run(command)?)
    };
    let said = as_nobody()?;
    let finding = said.finds("ptrace", "problem", "kernel.yama.ptrace_scope = 2")?;
    type_in(t, &fix_of(finding)?)?;
    as_nobody()?.does_not_find("ptrace")
}

fn no_executable_copies(t: &Context) -> Result<()> {
    let _alone = alone();
    let pagelift = pagelift_binary()?;
    let said = Said::of(t.run(below(NO_EXECUTABLE_COPIES, &[&pagelift.to_string_lossy(), "doctor", "--json"]))?)?;
    let finding = said.finds("executable-memory", "problem", "PROT_EXEC")?;
    ensure!(finding["fix"]["note"].as_str().is_some_and(|note| note.contains("pagelift image")), "{finding:#}");
    doctor(t, &[])?.does_not_find("executable-memory")
}

fn ordinary_user(t: &Context) -> Result<()> {
    let _alone = alone();
    let sleeps = t.session({
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        sleep
    })?;
    let pid = sleeps.pid().to_string();
    let mut command = t.pagelift(&["doctor", &pid])?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = t.run(command)?;
    for words in ["[root]", &format!("pagelift doctor {pid}"), "only root, or its own user, may look into sleep"] {
        ensure!(output.stdout.contains(words), "no {words} in\n{}", output.stdout);
    }
    ensure!(output.stderr.is_empty() && !output.stdout.contains('\u{1b}'), "{}{}", output.stderr, output.stdout);
    sleeps.signal(nix::sys::signal::Signal::SIGKILL)?;
    sleeps.finish().map(drop)
}

/// Output to a pseudo-terminal is coloured, unless NO_COLOR is set.
fn colours(t: &Context) -> Result<()> {
    let _alone = alone();
    let on_terminal = |no_colour: &str| -> Result<String> {
        let mut script = Command::new("script");
        let command = format!("'{}' doctor", pagelift_binary()?.display());
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", no_colour);
        Ok(t.run(script)?.stdout)
    };
    let (coloured, plain) = (on_terminal("")?, on_terminal("1")?);
    ensure!(coloured.contains("\u{1b}[1mVerdict"), "{coloured:?}");
    ensure!(plain.contains("Verdict") && !plain.contains('\u{1b}'), "{plain:?}");
    Ok(())
}

/// `run --heap=auto` prints the choice that `doctor` has printed before.
fn heap_choice(t: &Context) -> Result<()> {
    let _alone = alone();
    let doctor = t.run(t.pagelift(&["doctor", "--json", "--", "true"])?)?;
    let report: Value = serde_json::from_str(&doctor.stdout)?;
    let heap = report["heap"].as_str().with_context(|| format!("no heap in {report:#}"))?;
    let run = t.run(t.lifted(&["--heap=auto"], &Command::new("true"))?)?.success()?;
    ensure!(run.own_lines().iter().any(|line| line.contains(&format!("heap: {heap}"))), "{heap}\n{}", run.stderr);
    let text = t.run(t.pagelift(&["doctor", "--", "true"])?)?.stdout;
    ensure!(text.contains("\nWith run --heap=auto: "), "{text}");
    let pid = std::process::id().to_string();
    let running: Value = serde_json::from_str(&t.run(t.pagelift(&["doctor", "--json", &pid])?)?.stdout)?;
    ensure!(running["heap"].is_string(), "{running:#}");
    let machine: Value = serde_json::from_str(&t.run(t.pagelift(&["doctor", "--json"])?)?.stdout)?;
    ensure!(machine.get("heap").is_none(), "{machine:#}");
    Ok(())
}

fn mistakes(t: &Context) -> Result<()> {
    let _alone = alone();
    for (words, wanted) in [
        (vec!["--", "no-such-program-anywhere"], "no-such-program-anywhere is not found"),
        (vec!["--", "/etc/passwd"], "cannot be inspected"),
        (vec!["4194304"], "no process has the number 4194304"),
    ] {
        let output = t.run(t.pagelift(&[&["doctor"], words.as_slice()].concat())?)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(wanted), "{output:?}");
        ensure!(output.stdout.is_empty(), "{}", output.stdout);
    }
    Ok(())
}
