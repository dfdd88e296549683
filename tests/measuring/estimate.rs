//! `pagelift estimate`: programs whose misses follow from the pages that they touch.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use test_support::{Context, Ending, MariadbServer, Need, Program, main_of, pagelift_binary, poll_until, test_case};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// 64 entries for each side, then 1,024 for code and 2,048 for data, all 8 and 16 ways with a linear index.
const CPU: &str = "zen2";
/// Long after the program's start, which takes about 130,000 instructions.
const SLICE: [&str; 6] = ["--skip", "1M", "--instructions", "1M", "--warm-up", "200k"];

/// Time limit of a traced server, which only a hang reaches.
const LONG: Duration = Duration::from_secs(1200);

fn main() -> ExitCode {
    let plugin = pagelift_binary().map(|binary| binary.with_file_name("libpagelift_trace.so"));
    let plugin = plugin.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let qemu = format!("qemu-{}", std::env::consts::ARCH);
    let needs = || vec![Need::Command("gcc".into()), Need::Command(qemu.clone()), Need::File(plugin.clone())];
    let with_thp = || [needs(), vec![Need::Thp]].concat();
    let with_mariadb = || {
        let servers = ["mariadbd", "mariadb-install-db", "sysbench"].map(|name| Need::Command(name.into()));
        [with_thp(), servers.to_vec()].concat()
    };
    main_of(vec![
        test_case("data/within_the_first_level", needs(), |t| sweep(t, 32, 0.0, 0.0)),
        test_case("data/within_the_second_level", needs(), |t| sweep(t, 1024, 250.0, 0.0)),
        test_case("data/beyond_both", with_thp(), |t| sweep(t, 4096, 250.0, 250.0)),
        test_case("code/is_lifted_as_planned", with_thp(), code),
        test_case("code/what_is_not_to_be_lifted_stays", with_thp(), code_unlifted),
        test_case("the_figure_is_the_same_again", needs(), again),
        test_case("for_an_ordinary_user", [needs(), vec![Need::Root]].concat(), ordinary_user),
        test_case("a_short_program_is_said", needs(), short),
        test_case("a_running_process_is_started_again_on_request_only", needs(), running),
        test_case("a_user_s_process_is_not_started_again_by_root", [needs(), vec![Need::Root]].concat(), users_process),
        test_case(
            "a_process_with_fewer_rights_is_not_started_again",
            [needs(), vec![Need::Root]].concat(),
            fewer_rights,
        ),
        test_case("a_running_process_s_own_huge_pages_are_today_s", with_thp(), today),
        test_case("mariadb_s_code_misses_fall_several_fold", with_mariadb(), mariadb),
        test_case("mistakes_are_explained", vec![], mistakes),
    ])
}

fn command(t: &Context, options: &[&str], arguments: &[&str]) -> Result<Command> {
    let mut command = t.pagelift(&[&["estimate", "--cpu", CPU, "--json"], &SLICE[..], options].concat())?;
    let program = Program::named("measuring/touches_pages.c")?.command()?;
    command.arg("--").arg(program.get_program()).args(arguments);
    Ok(command)
}

fn estimate(t: &Context, options: &[&str], arguments: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&t.run(command(t, options, arguments)?)?.success()?.stdout)?)
}

/// Misses and walks per 1,000 instructions of one side of a variant: 0 plain, 1 lifted, 2 with the heap.
fn figures(estimate: &Value, variant: usize, side: &str) -> Result<(f64, f64)> {
    let counted = estimate["trace"]["instructions"].as_f64().context("no instructions")?;
    let figure = |name: &str| {
        let count = estimate["variants"][variant][side][name].as_f64();
        Ok::<_, anyhow::Error>(count.with_context(|| format!("no {name} in {estimate}"))? * 1000.0 / counted)
    };
    Ok((figure("misses")?, figure("walks")?))
}

/// Compares with a tolerance: the slice ends between two records, each of up to 4,095 instructions.
fn near(found: (f64, f64), wanted: (f64, f64)) -> Result<()> {
    let is_near = |found: f64, wanted: f64| (found - wanted).abs() <= 1.5;
    ensure!(is_near(found.0, wanted.0) && is_near(found.1, wanted.1), "found {found:?}, wanted {wanted:?}");
    Ok(())
}

/// Four instructions for each page, so that a miss of every load is 250 in 1,000. 4,096 base pages are a few huge
/// pages, which fit into every level.
fn sweep(t: &Context, pages: u32, misses: f64, walks: f64) -> Result<()> {
    let estimate = estimate(t, &[], &["data", &pages.to_string()])?;
    // Unless the kernel gives huge pages to all.
    let always =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|mode| mode.contains("[always]"));
    if !always {
        near(figures(&estimate, 0, "data")?, (misses, walks))?;
        near(figures(&estimate, 1, "data")?, (misses, walks))?;
    }
    if walks > 0.0 {
        near(figures(&estimate, 2, "data")?, (0.0, 0.0))?;
    }
    near(figures(&estimate, 0, "code")?, (0.0, 0.0))
}

/// One instruction for each of 2,048 pages: more base pages than both levels hold.
fn code(t: &Context) -> Result<()> {
    let estimate = estimate(t, &["--pages", "thp"], &["code"])?;
    near(figures(&estimate, 0, "code")?, (1000.0, 1000.0))?;
    let (_, walks) = figures(&estimate, 1, "code")?;
    ensure!(walks < 1.5, "{walks} walks per 1,000 instructions after the lift");
    let kinds = estimate["variants"][0]["walks"].as_array().context("no kinds")?;
    ensure!(kinds[0]["kind"] == "text" && kinds[0]["code"].as_u64() > Some(900_000), "{kinds:?}");
    Ok(())
}

fn code_unlifted(t: &Context) -> Result<()> {
    let estimate = estimate(t, &["--pages", "thp", "--lift", "data"], &["code"])?;
    near(figures(&estimate, 1, "code")?, (1000.0, 1000.0))
}

fn again(t: &Context) -> Result<()> {
    let once = estimate(t, &[], &["data", "3000"])?;
    ensure!(once == estimate(t, &[], &["data", "3000"])?, "another figure at the second time");
    Ok(())
}

fn ordinary_user(t: &Context) -> Result<()> {
    let mut command = command(t, &[], &["data", "1024"])?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env("TMPDIR", "/tmp");
    near(figures(&serde_json::from_str(&t.run(command)?.success()?.stdout)?, 0, "data")?, (250.0, 0.0))
}

fn short(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["estimate", "--cpu", CPU, "--", "/bin/true"])?)?;
    ensure!(output.stderr.contains("fix: a smaller --skip, --after or --warm-up"), "{}", output.stderr);
    ensure!(output.stdout.is_empty(), "{}", output.stdout);
    Ok(())
}

fn running(t: &Context) -> Result<()> {
    let mut program = Program::named("measuring/touches_pages.c")?.command()?;
    program.args(["data", "1024"]).stdin(Stdio::null());
    let session = t.session(program)?;
    let pid = session.pid().to_string();
    let output = t.run(t.pagelift(&["estimate", "-p", &pid])?)?;
    ensure!(output.stderr.contains("--again` while it runs, or `pagelift estimate -- "), "{}", output.stderr);
    let mut command = t.pagelift(&["estimate", "--cpu", CPU, "--json"])?;
    command.args(SLICE).args(["-p", &pid, "--again"]);
    near(figures(&serde_json::from_str(&t.run(command)?.success()?.stdout)?, 0, "data")?, (250.0, 0.0))
}

/// Root executes no file that a user's process names: neither its program nor a library of its environment. The printed
/// command works.
fn users_process(t: &Context) -> Result<()> {
    let library = Program::named("measuring/writes_its_user_when_loaded.c")?.build()?;
    let record = t.folder().join("who-has-loaded");
    fs::write(&record, "")?;
    std::os::unix::fs::chown(&record, Some(NOBODY), Some(NOBODY))?;
    let mut program = Program::named("measuring/touches_pages.c")?.command()?;
    program.args(["data", "1024"]).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY).current_dir("/");
    program.env("LD_PRELOAD", &library).env("WHO_HAS_LOADED", &record);
    let session = t.session(program)?;
    let pid = session.pid().to_string();
    let loaded = || fs::read_to_string(&record).unwrap_or_default();
    poll_until(LONG, "the library to be loaded", || !loaded().is_empty())?;
    let mut command = t.pagelift(&["estimate", "--cpu", CPU, "--json"])?;
    command.args(SLICE).args(["-p", &pid, "--again"]);
    let output = t.run(command)?;
    let users = loaded();
    ensure!(!users.contains("user 0"), "root has loaded the user's library:\n{users}{}", output.stderr);
    let wanted = format!("the program of process {pid} is not started again: found user {NOBODY}, ");
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(&wanted), "{output:?}");
    let (_, fix) = output.stderr.split_once("fix: as root, `").context("no fix")?;
    let (words, _) = fix.split_once(" pagelift estimate ").context("no command in the fix")?;
    let words: Vec<&str> = words.split(' ').collect();
    let mut as_user = Command::new(words[0]);
    let own = t.pagelift(&["estimate", "--cpu", CPU, "--json"])?;
    as_user.args(&words[1..]).arg(own.get_program()).args(own.get_args()).args(SLICE);
    as_user.args(["-p", &pid, "--again"]);
    near(figures(&serde_json::from_str(&t.run(as_user)?.success()?.stdout)?, 0, "data")?, (250.0, 0.0))?;
    ensure!(!loaded().contains("user 0"), "root has loaded the user's library");
    Ok(())
}

/// Refuses a process of the same user that has other namespaces, or fewer capabilities.
fn fewer_rights(t: &Context) -> Result<()> {
    let sandboxes: [(&[&str], &str); 2] = [
        (&["setpriv", "--bounding-set=-sys_admin"], "fewer capabilities"),
        (&["unshare", "--net"], "other namespaces"),
    ];
    for (sandbox, wanted) in sandboxes {
        let program = Program::named("measuring/touches_pages.c")?.command()?;
        let mut command = Command::new(sandbox[0]);
        command.args(&sandbox[1..]).arg(program.get_program()).args(["data", "1024"]).stdin(Stdio::null());
        let session = t.session(command)?;
        let pid = session.pid().to_string();
        let name = format!("/proc/{pid}/comm");
        poll_until(LONG, "the program", || fs::read_to_string(&name).is_ok_and(|name| name.starts_with("touches_")))?;
        let output = t.run(t.pagelift(&["estimate", "--cpu", CPU, "-p", &pid, "--again"])?)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(wanted), "{sandbox:?}: {output:?}");
    }
    Ok(())
}

/// A program that was started lifted has no walks for code now, and the planned lift can save none.
fn today(t: &Context) -> Result<()> {
    let mut lifted = t.pagelift(&["run", "--pages", "thp", "--"])?;
    let program = Program::named("measuring/touches_pages.c")?.command()?;
    lifted.arg(program.get_program()).arg("code").stdin(Stdio::null());
    let session = t.session(lifted)?;
    let pid = session.pid().to_string();
    session.wait_for_stderr(" pages (thp)")?;
    let mut command = t.pagelift(&["estimate", "--cpu", CPU, "--json", "--lift", "data"])?;
    command.args(SLICE).args(["-p", &pid, "--again"]);
    let estimate: Value = serde_json::from_str(&t.run(command)?.success()?.stdout)?;
    for variant in 0..3 {
        let (_, walks) = figures(&estimate, variant, "code")?;
        ensure!(walks < 1.5, "{walks} walks per 1,000 instructions in variant {variant}");
    }
    Ok(())
}

/// The reference result: a server under point selects on a simulated Skylake-SP, whose lifted code hardly misses. The
/// server executes little before the load begins.
fn mariadb(t: &Context) -> Result<()> {
    const TABLE: [&str; 3] = ["--tables=1", "--table-size=10000", "oltp_point_select"];
    let mut server = MariadbServer::prepare(t, "estimate")?;
    server.start(server.command(), LONG)?;
    server.query("create database sbtest")?;
    server.sysbench(LONG, &[&TABLE[..], &["prepare"]].concat())?;
    server.shut_down()?;
    let options =
        ["estimate", "--cpu", "skylake-sp", "--json", "--after", "20", "--warm-up", "3M", "--instructions", "15M"];
    let mut command = t.pagelift(&[&options[..], &["--"]].concat())?;
    let plain = server.command();
    command.arg(plain.get_program()).args(plain.get_args());
    // Otherwise newer versions reserve 8 TiB of addresses, and QEMU uses memory for each page.
    command.args(["--innodb-use-native-aio=0", "--loose-innodb-buffer-pool-size-max=64M"]);
    let traced = t.session_within(command, LONG)?;
    let mut ping = Command::new("mariadb-admin");
    ping.args(["--no-defaults", "-u", "root", "-S", &server.path("socket"), "ping"]);
    poll_until(LONG, "the traced server's answer", || ping.output().is_ok_and(|o| o.status.success()))?;
    // The load lasts until the slice is full, which ends the server.
    let words = [&["--threads=4", "--time=600"], &TABLE[..], &["run"]].concat();
    let load = t.session_within(server.sysbench_command(&words), LONG)?;
    let estimate: Value = serde_json::from_str(&traced.finish()?.success()?.stdout)?;
    drop(load);
    let (plain, lifted) = (figures(&estimate, 0, "code")?, figures(&estimate, 1, "code")?);
    ensure!(plain.0 > 1.0 && lifted.0 < plain.0 / 3.0, "misses for code: {} plain, {} lifted", plain.0, lifted.0);
    ensure!(lifted.1 <= plain.1, "walks for code: {} plain, {} lifted", plain.1, lifted.1);
    Ok(())
}

fn mistakes(t: &Context) -> Result<()> {
    for (arguments, wanted) in [
        (&["--cpu", "z80", "--", "/bin/true"][..], "[possible values: haswell, "),
        (&["--instructions", "0", "--", "/bin/true"], "--instructions is 0; needed: 1 or more"),
        (&["--skip", "many", "--", "/bin/true"], "is no count; needed: a number, with k, M or G"),
    ] {
        let output = t.run(t.pagelift(&[&["estimate"], arguments].concat())?)?;
        ensure!(output.stderr.contains(wanted) && output.stdout.is_empty(), "{arguments:?}: {}", output.stderr);
    }
    Ok(())
}
