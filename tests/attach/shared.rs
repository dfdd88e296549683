//! Shared memory of running programs, lifted in place: contents stay, all sharers gain, and each refusal has its
//! reason.

mod guest;

use address_space::{format_bytes, parse_smaps};
use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Freezer, Need, Output, Program, Session, Setting, Test, main_of_one_at_a_time, poll_until,
    process_field, test_case,
};

/// Blocks that the program holds.
const BLOCKS: u64 = 16;
/// Size of a block.
const PMD_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
/// Time limit of such a small lift, whatever the program does.
const BOUND: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Kernel(6, 1)];
    let mut tests: Vec<Test> = Vec::new();
    for kind in ["anonymous", "memfd", "file", "system-v"] {
        tests.push(test_case(format!("lifted/{kind}"), needs(), move |t| lifted(t, kind)));
        tests.push(test_case(format!("written_meanwhile/{kind}"), needs(), move |t| changed(t, kind, "writes")));
    }
    for kind in ["memfd", "file"] {
        tests.push(test_case(format!("emptied_meanwhile/{kind}"), needs(), move |t| changed(t, kind, "restless")));
    }
    for how in ["askew", "advised", "off"] {
        tests.push(test_case(format!("refused/{how}"), needs(), move |t| refused(t, how)));
    }
    let with_watcher = || [needs(), vec![Need::Userfaultfd]].concat();
    tests.push(test_case("refused/watched", with_watcher(), |t| refused(t, "watched")));
    let with_setpriv = [needs(), vec![Need::Command("setpriv".into())]].concat();
    tests.push(test_case("what_a_unit_needs_and_no_less", with_setpriv, few_capabilities));
    tests.push(test_case("holes_are_left_unless_asked_for", needs(), holes));
    tests.push(test_case("no_more_is_filled_than_is_allowed", needs(), most_memory));
    tests.push(test_case("room_of_a_tmpfs_stays_free", needs(), full_tmpfs));
    tests.push(test_case("a_plan_changes_nothing", needs(), only_planned));
    tests.push(test_case("what_fills_later_is_lifted_by_a_watch", needs(), filled_later));
    tests.push(test_case("processes_that_share_are_one_family", needs(), family));
    tests.push(test_case("all_processes_of_a_unit", [needs(), vec![Need::Command("unshare".into())]].concat(), unit));
    tests.push(test_case("with_other_kinds", needs(), with_other_kinds));
    tests.push(test_case("a_sparse_terabyte", needs(), sparse));
    tests.push(test_case("a_file_whose_lock_is_held", with_watcher(), stuck));
    tests.push(test_case("a_program_that_ends_meanwhile", needs(), ends));
    tests.push(test_case("denied_by_the_machine", needs(), denied));
    tests.extend(guest::tests(needs));
    main_of_one_at_a_time(tests)
}

fn huge() -> Result<u64> {
    Ok(fs::read_to_string(PMD_SIZE)?.trim().parse()?)
}

/// Starts the program that holds shared memory.
fn holder(t: &Context, kind: &str, how: &str) -> Result<Session> {
    let mut command: Command = Program::named("attach/holds_shared_memory.c")?.command()?;
    command.args([kind, how]);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// Makes the program and its children check their contents, and end.
fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?;
    t.keep(&output);
    let same = output.stdout.lines().filter(|line| *line == "the same").count();
    ensure!(output.ending == Ending::Exit(0) && same == 4, "{:?}: {}", output.ending, output.stdout);
    Ok(())
}

fn pagelift(t: &Context, words: &[&str]) -> Result<Output> {
    t.run_within(t.pagelift(words)?, BOUND)
}

/// Lifts, and reads the report of shared memory. If the kernel has no free huge page, memory is compacted and the lift
/// repeated.
fn lift(t: &Context, pid: u32, words: &[&str]) -> Result<(Output, Value)> {
    let (report, pid) = (t.folder().join("report.json"), pid.to_string());
    let file = report.display().to_string();
    for tries_left in (0..10).rev() {
        let output = pagelift(t, &[&["attach", "--lift", "shared", "--report", &file, &pid], words].concat())?;
        let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
        let lacks_memory = ["no free memory", "single blocks took"].iter().any(|why| output.stderr.contains(why));
        if !lacks_memory || tries_left == 0 {
            return Ok((output, json["shared"].clone()));
        }
        fs::write("/proc/sys/vm/compact_memory", "1")?;
    }
    unreachable!("the last try returns")
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no {name} in {value}"))
}

/// Bytes of shared memory that a process maps by huge pages.
fn huge_bytes(pid: u32) -> Result<u64> {
    let usages = parse_smaps(&fs::read_to_string(format!("/proc/{pid}/smaps"))?)?;
    Ok(usages.iter().filter(|usage| usage.mapping.shared).map(|usage| usage.shmem_huge).sum())
}

fn children(pid: u32) -> Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    text.split_whitespace().map(|word| Ok(word.parse()?)).collect()
}

fn page_tables(pid: u32) -> Result<u64> {
    let field = process_field(pid, "VmPTE").context("no VmPTE")?;
    Ok(field.trim_end_matches(" kB").trim().parse()?)
}

fn lifted(t: &Context, kind: &str) -> Result<()> {
    let (session, all) = (holder(t, kind, "full")?, BLOCKS * huge()?);
    let pid = session.pid();
    let children = children(pid)?;
    let before: Vec<u64> = children.iter().map(|child| page_tables(*child)).collect::<Result<_>>()?;
    let (output, shared) = lift(t, pid, &["--require"])?;
    let said = output.success()?.stderr;
    ensure!(said.contains(&format!("shared memory: {0} of {0} on huge pages", format_bytes(all))), "{said}");
    ensure!(said.contains("nothing paused") && !said.contains("left alone"), "{said}");
    let segment = &shared["segments"][0];
    ensure!(shared["segments"].as_array().is_some_and(|all| all.len() == 1), "{shared}");
    let found = ["length", "data", "planned", "huge_after"].map(|name| number(segment, name).unwrap_or(0));
    ensure!(found == [all; 4] && number(segment, "sharers")? == 4 && segment["kind"] == kind, "{segment}");
    ensure!(huge_bytes(pid)? == all, "smaps shows {}", huge_bytes(pid)?);
    for (child, before) in children.iter().zip(before) {
        let now = page_tables(*child)?;
        ensure!(now < before, "page tables of a sharer: {before} kB before, {now} kB now");
    }
    let tables = ["page_tables_before", "page_tables_predicted", "page_tables_after"];
    let [before, predicted, after] = tables.map(|name| number(&shared, name).unwrap_or(0));
    ensure!(0 < after && after < before && after.abs_diff(predicted) * 20 <= after, "{shared}");
    let again = lift(t, pid, &[])?.1;
    let segment = &again["segments"][0];
    ensure!(number(segment, "planned")? == 0 || !knows_huge_pages(), "done again: {segment}");
    ensure!(number(segment, "huge_before")? == all, "{segment}");
    end(t, session)
}

/// True if the kernel reports which pages are huge: since Linux 6.7.
fn knows_huge_pages() -> bool {
    Need::Kernel(6, 7).missing().is_none()
}

/// The contents are checked by the program, and by its children at its end.
fn changed(t: &Context, kind: &str, how: &str) -> Result<()> {
    let session = holder(t, kind, how)?;
    let mut most = 0;
    for _ in 0..5 {
        let (output, _) = lift(t, session.pid(), &[])?;
        output.success()?;
        most = most.max(huge_bytes(session.pid())?);
    }
    ensure!(most >= BLOCKS / 2 * huge()?, "only {most} bytes were huge");
    end(t, session)
}

fn refused(t: &Context, how: &str) -> Result<()> {
    let session = holder(t, "memfd", how)?;
    let reason = match how {
        "askew" => "address and offset disagree by ",
        "watched" => "userfaultfd watches it",
        "advised" => "the program has refused huge pages there (MADV_NOHUGEPAGE)",
        _ => "the program has switched huge pages off for itself",
    };
    let (output, shared) = lift(t, session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains(&format!("[31m: 16 blocks left alone: {reason}")), "{said}");
    ensure!(!said.contains('\x1b'), "{said}");
    ensure!(number(&shared["segments"][0], "huge_after")? == 0 && huge_bytes(session.pid())? == 0, "{shared}");
    let (output, _) = lift(t, session.pid(), &["--require"])?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("--require was given"), "{}", output.stderr);
    end(t, session)
}

/// The capabilities of the unit of `enable --shared` suffice, and a missing capability is named.
fn few_capabilities(t: &Context) -> Result<()> {
    let lift_with = |capabilities: &str| -> Result<String> {
        let session = holder(t, "memfd", "full")?;
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &format!("-all,{capabilities}"), "--"]).arg(t.pagelift(&[])?.get_program());
        command.args(["attach", "--lift", "shared", &session.pid().to_string()]);
        let said = t.run(command)?.stderr;
        end(t, session)?;
        Ok(said)
    };
    // No block is left alone for lack of free memory in pieces of a huge page.
    fs::write("/proc/sys/vm/compact_memory", "1")?;
    let few = "+sys_ptrace,+sys_nice,+dac_override";
    let said = lift_with(few)?;
    ensure!(said.contains("needed: CAP_CHECKPOINT_RESTORE"), "{said}");
    let said = lift_with(&format!("{few},+checkpoint_restore"))?;
    ensure!(said.contains(": shared memory: ") && !said.contains("left alone"), "{said}");
    Ok(())
}

fn holes(t: &Context) -> Result<()> {
    let (session, huge) = (holder(t, "file", "holes")?, huge()?);
    let (output, shared) = lift(t, session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("2 blocks left alone: blocks less than 7/8 full; the lift would add "), "{said}");
    ensure!(said.contains("fix: --fill, or again once the program has filled it"), "{said}");
    let segment = &shared["segments"][0];
    ensure!(number(segment, "filled")? == huge / 8 && number(segment, "huge_after")? == 14 * huge, "{segment}");
    let (output, shared) = lift(t, session.pid(), &["--fill", "--require"])?;
    output.success()?;
    let segment = &shared["segments"][0];
    ensure!(number(segment, "filled")? > huge && number(segment, "huge_after")? == BLOCKS * huge, "{segment}");
    ensure!(huge_bytes(session.pid())? == BLOCKS * huge, "smaps shows {}", huge_bytes(session.pid())?);
    end(t, session)
}

/// A tmpfs in the test's folder, unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(t: &Context, bytes: u64) -> Result<Self> {
        let path = t.folder().join("tmpfs");
        fs::create_dir(&path)?;
        mount(Some("none"), &path, Some("tmpfs"), MsFlags::empty(), Some(format!("size={bytes}").as_str()))?;
        Ok(Self(path))
    }

    fn free(&self) -> Result<u64> {
        let found = statvfs(&self.0)?;
        Ok(found.blocks_free() * found.fragment_size())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Half of the room of a tmpfs stays free for its other files, also with `--fill`, and the printed fix helps.
fn full_tmpfs(t: &Context) -> Result<()> {
    let huge = huge()?;
    let tmpfs = Tmpfs::mount(t, BLOCKS * huge)?;
    let mut command = Program::named("attach/holds_shared_memory.c")?.command()?;
    command.args(["file", "holes"]).env("HELD_IN", &tmpfs.0);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let before = tmpfs.free()?;
    let (output, shared) = lift(t, session.pid(), &["--fill"])?;
    let (said, segment) = (output.success()?.stderr, &shared["segments"][0]);
    ensure!(
        said.contains("left alone: its tmpfs has ") && said.contains("; fix: a larger tmpfs: mount -o remount"),
        "{said}"
    );
    let (after, filled) = (tmpfs.free()?, number(segment, "filled")?);
    ensure!(after >= before / 2 && before - after == filled, "{before} bytes free before, {after} now: {segment}");
    mount(
        None::<&str>,
        &tmpfs.0,
        None::<&str>,
        MsFlags::MS_REMOUNT,
        Some(format!("size={}", 4 * BLOCKS * huge).as_str()),
    )?;
    let (output, shared) = lift(t, session.pid(), &["--fill", "--require"])?;
    output.success()?;
    ensure!(number(&shared["segments"][0], "huge_after")? == BLOCKS * huge, "{shared}");
    end(t, session)
}

fn most_memory(t: &Context) -> Result<()> {
    let (session, huge) = (holder(t, "anonymous", "holes")?, huge()?);
    let (output, shared) = lift(t, session.pid(), &["--fill", "--max-memory", &(huge / 2).to_string()])?;
    ensure!(output.stderr.contains("--max-memory="), "{}", output.stderr);
    ensure!(number(&shared["segments"][0], "filled")? <= huge / 2, "{shared}");
    end(t, session)
}

fn only_planned(t: &Context) -> Result<()> {
    let (session, all) = (holder(t, "system-v", "full")?, BLOCKS * huge()?);
    let (output, shared) = lift(t, session.pid(), &["--dry-run"])?;
    let segment = &shared["segments"][0];
    ensure!(number(segment, "planned")? == all && segment.get("huge_after").is_none(), "{segment}");
    let said = output.success()?.stdout;
    ensure!(
        said.contains(&format!(
            "{} would be put on huge pages in place, none is yet; added memory: none",
            format_bytes(all)
        )),
        "{said}"
    );
    let tables = ["page_tables_before", "page_tables_predicted"].map(|name| number(&shared, name).unwrap_or(0));
    let [before, predicted] = tables.map(format_bytes);
    let told = format!("Page tables of 4 processes: {before} now, {predicted} after the lift");
    ensure!(tables[0] > tables[1] && said.contains(&told), "expected {told}: {said}");
    let pid = session.pid().to_string();
    let inspected = pagelift(t, &["inspect", "--lift", "shared", &pid])?.success()?.stdout;
    let plan = said.lines().nth(5).context("a table")?;
    ensure!(inspected.contains(plan), "inspect shows another plan: {inspected}\n{said}");
    let json: Value =
        serde_json::from_str(&pagelift(t, &["inspect", "--json", "--lift", "shared", &pid])?.success()?.stdout)?;
    ensure!(number(&json["shared"]["segments"][0], "planned")? == all, "{json}");
    let advised = pagelift(t, &["doctor", &pid])?.stdout;
    ensure!(advised.contains(&format!("pagelift attach --lift shared {pid}")), "{advised}");
    ensure!(huge_bytes(session.pid())? == 0, "a plan has lifted");
    end(t, session)
}

/// The watch ends with the program, whose end it may notice some seconds later.
fn filled_later(t: &Context) -> Result<()> {
    let (mut session, all) = (holder(t, "memfd", "later")?, BLOCKS * huge()?);
    let (pid, report) = (session.pid(), t.folder().join("watched.json"));
    let file = report.display().to_string();
    let words = ["attach", "--watch", "--lift", "shared", "--report", &file, &pid.to_string()];
    let watcher = t.session(t.pagelift(&words)?)?;
    watcher.wait_for_stderr("shared memory: ")?;
    ensure!(huge_bytes(pid)? <= all / 2, "lifted before it was filled: {}", huge_bytes(pid)?);
    session.send("\n")?;
    session.wait_for_line("ready")?;
    let is_lifted = || huge_bytes(pid).is_ok_and(|huge| huge == all);
    poll_until(BOUND, "what was filled later to be lifted", || {
        // In case the kernel has no free huge page.
        let is_lifted = is_lifted();
        is_lifted || fs::write("/proc/sys/vm/compact_memory", "1").is_err()
    })?;
    // The result is read back after the last block, from processes that must not have ended.
    watcher.wait_for_stderr(&format!("shared memory: {0} of {0} on huge pages", format_bytes(all)))?;
    end(t, session)?;
    let told = watcher.finish()?.success()?.stderr;
    ensure!(told.matches(" on huge pages, ").count() >= 2 && told.contains(&format_bytes(all)), "{told}");
    let json: Value = serde_json::from_str(fs::read_to_string(&report)?.trim())?;
    ensure!(number(&json["shared"]["segments"][0], "huge_after")? == all, "{json}");
    Ok(())
}

fn family(t: &Context) -> Result<()> {
    // A name that no other test has.
    let program = Program::named("attach/holds_shared_memory.c")?.build()?;
    let name = format!("pl-shared-{}", std::process::id());
    let copy = t.folder().join(&name);
    fs::copy(program, &copy)?;
    let mut command = Command::new(&copy);
    command.args(["anonymous", "full"]);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let report = t.folder().join("family.json");
    let words = ["attach", "--lift", "shared", "--all", &name, "--report", &report.display().to_string()];
    let said = pagelift(t, &words)?.success()?.stderr;
    ensure!(said.contains(" and 3 others: shared memory: "), "{said}");
    let json: Value = serde_json::from_str(fs::read_to_string(&report)?.trim())?;
    let shared = &json["shared"];
    ensure!(number(shared, "sharers")? == 4, "{shared}");
    ensure!(shared["segments"].as_array().is_some_and(|all| all.len() == 1), "{shared}");
    end(t, session)
}

/// If systemd does not run, a script gives its answers.
fn unit(t: &Context) -> Result<()> {
    let session = holder(t, "anonymous", "full")?;
    let group = Freezer::new()?;
    for pid in [vec![session.pid()], children(session.pid())?].concat() {
        group.take(pid)?;
    }
    let membership = fs::read_to_string(format!("/proc/{}/cgroup", session.pid()))?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::")).context("no control group")?.to_owned();
    let run = |control_group: &str| {
        let says = format!("Id=held.service\nLoadState=loaded\nControlGroup={control_group}\n");
        let script = t.folder().join("systemctl");
        fs::write(&script, format!("#!/bin/sh\ncat <<END\n{says}END\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let lift = t.pagelift(&["attach", "--lift", "shared", "--unit", "held"])?;
        let mut command = Command::new("unshare");
        let prepare = "mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec \"$@\"";
        command.args(["-m", "sh", "-c", prepare, "sh"]).arg(lift.get_program()).args(lift.get_args());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", t.folder().display()));
        t.run_within(command, BOUND)
    };
    let said = run(&path)?.success()?.stderr;
    ensure!(said.contains(" and 3 others: shared memory: "), "{said}");
    ensure!(said.contains("page tables of 4 processes "), "{said}");
    let refused = run("")?;
    ensure!(refused.ending == Ending::Exit(125), "{:?}", refused.ending);
    ensure!(
        refused.stderr.contains("held.service does not run; fix: systemctl start held.service"),
        "{}",
        refused.stderr
    );
    let refused = run("/no/such/group")?.stderr;
    ensure!(refused.contains("no process is in the control group /no/such/group"), "{refused}");
    end(t, session)
}

fn with_other_kinds(t: &Context) -> Result<()> {
    let session = holder(t, "memfd", "full")?;
    let (report, pid) = (t.folder().join("both.json"), session.pid().to_string());
    let file = report.display().to_string();
    let said = pagelift(t, &["attach", "--lift", "bss,shared", "--report", &file, &pid])?.success()?.stderr;
    ensure!(said.contains(": shared memory: ") && said.contains(" before; page tables of 4 processes "), "{said}");
    ensure!(said.lines().count() >= 2, "nothing is said of the other kind: {said}");
    let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    ensure!(number(&json["shared"]["segments"][0], "huge_after")? == BLOCKS * huge()?, "{json}");
    let stays = format!("{} of shared memory stays on huge pages", format_bytes(BLOCKS * huge()?));
    let said = pagelift(t, &["detach", &pid])?.success()?.stderr;
    ensure!(said.contains(&stays), "{said}");
    let ignored = pagelift(t, &["attach", "--lift", "bss", "--fill", &pid])?;
    ensure!(ignored.ending == Ending::Exit(125) && ignored.stderr.contains("--lift shared"), "{}", ignored.stderr);
    end(t, session)
}

fn sparse(t: &Context) -> Result<()> {
    let session = holder(t, "memfd", "sparse")?;
    let (output, shared) = lift(t, session.pid(), &[])?;
    output.success()?;
    let segment = &shared["segments"][0];
    ensure!(number(segment, "length")? == 1 << 40 && number(segment, "planned")? == 0, "{segment}");
    end(t, session)
}

fn stuck(t: &Context) -> Result<()> {
    let session = holder(t, "memfd", "stuck")?;
    let waits = || {
        fs::read_dir(format!("/proc/{}/task", session.pid())).is_ok_and(|tasks| {
            tasks
                .flatten()
                .any(|task| fs::read_to_string(task.path().join("wchan")).is_ok_and(|at| at.contains("userfault")))
        })
    };
    poll_until(BOUND, "the write to wait", waits)?;
    let (output, _) = lift(t, session.pid(), &[])?;
    output.success()?;
    end(t, session)
}

fn ends(t: &Context) -> Result<()> {
    for _ in 0..5 {
        let mut session = holder(t, "memfd", "full")?;
        let lifter =
            t.session_within(t.pagelift(&["attach", "--lift", "shared", &session.pid().to_string()])?, BOUND)?;
        session.signal(Signal::SIGKILL)?;
        let output = lifter.finish()?;
        ensure!(
            matches!(output.ending, Ending::Exit(0 | 125)) && !output.stderr.contains("panicked"),
            "{:?}: {}",
            output.ending,
            output.stderr
        );
        poll_until(BOUND, "the program to end", || session.has_ended().unwrap_or(true))?;
    }
    Ok(())
}

fn denied(t: &Context) -> Result<()> {
    let session = holder(t, "memfd", "full")?;
    let setting = Setting::change("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "deny")?;
    let (output, _) = lift(t, session.pid(), &[])?;
    drop(setting);
    let said = output.success()?.stderr;
    ensure!(said.contains("left alone: shmem_enabled is `deny`; fix: echo advise > /sys/"), "{said}");
    let (output, _) = lift(t, session.pid(), &["--require"])?;
    output.success()?;
    end(t, session)
}
