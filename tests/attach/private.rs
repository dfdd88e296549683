//! Private anonymous memory and generated code of running programs, lifted in place: contents stay, and each refusal
//! has its reason.

use address_space::{format_bytes, parse_smaps};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, ControlGroup, Ending, Limit, Need, Output, Program, Session, Test, main_of_one_at_a_time, poll_until,
    process_field, test_case,
};

/// Blocks that the program holds.
const BLOCKS: u64 = 16;
/// Size of a block.
const PMD_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
/// Time limit of such a small lift, whatever the program does.
const BOUND: Duration = Duration::from_secs(120);
/// Status of the program if the kernel has no guard pages.
const NO_GUARDS: i32 = 4;

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Kernel(6, 1)];
    let mut tests: Vec<Test> = Vec::new();
    for kind in ["anon", "jit"] {
        tests.push(test_case(format!("lifted/{kind}"), needs(), move |t| lifted(t, kind)));
        tests.push(test_case(format!("filled_later/{kind}"), needs(), move |t| filled_later(t, kind)));
        for how in ["writes", "restless"] {
            tests.push(test_case(format!("{how}_meanwhile/{kind}"), needs(), move |t| changed(t, kind, how)));
        }
        for how in ["forked", "locked", "merges", "advised"] {
            tests.push(test_case(format!("refused/{how}/{kind}"), needs(), move |t| refused(t, kind, how)));
        }
    }
    tests.push(test_case("refused/watched", [needs(), vec![Need::Userfaultfd]].concat(), |t| {
        refused(t, "anon", "watched")
    }));
    tests.push(test_case("a_guard_page_stays", [needs(), vec![Need::Kernel(6, 15)]].concat(), guarded));
    tests.push(test_case("holes_are_left_unless_asked_for", needs(), holes));
    tests.push(test_case("memory_that_was_only_read_is_a_hole", [needs(), vec![Need::Kernel(6, 7)]].concat(), zeros));
    tests.push(test_case("huge_pages_switched_off_by_the_program", needs(), switched_off));
    tests.push(test_case("a_limit_of_the_memory_cgroup", needs(), limited));
    tests.push(test_case("code_in_pieces", needs(), pieces));
    tests.push(test_case("a_sparse_terabyte", needs(), sparse));
    tests.push(test_case("a_plan_changes_nothing", needs(), only_planned));
    tests.push(test_case("each_kind_by_its_word", needs(), words));
    tests.push(test_case("a_program_that_ends_meanwhile", needs(), ends));
    main_of_one_at_a_time(tests)
}

fn huge() -> Result<u64> {
    Ok(fs::read_to_string(PMD_SIZE)?.trim().parse()?)
}

/// Starts the program that holds private memory.
fn holder(t: &Context, kind: &str, how: &str) -> Result<Session> {
    let mut command: Command = Program::named("attach/holds_private_memory.c")?.command()?;
    command.args([kind, how]);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// Makes the program check its contents, and end.
fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?;
    t.keep(&output);
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains("the same"), "{output:?}");
    Ok(())
}

fn pagelift(t: &Context, words: &[&str]) -> Result<Output> {
    t.run_within(t.pagelift(words)?, BOUND)
}

/// Lifts, and reads the report. If the kernel has no free huge page, memory is compacted and the lift repeated.
fn lift(t: &Context, kind: &str, pid: u32, words: &[&str]) -> Result<(Output, Value)> {
    let (report, pid) = (t.folder().join("report.json"), pid.to_string());
    let file = report.display().to_string();
    for tries_left in (0..10).rev() {
        let output = pagelift(t, &[&["attach", "--lift", kind, "--report", &file, &pid], words].concat())?;
        let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
        let lacks_memory = ["no free memory", "single blocks took"].iter().any(|why| output.stderr.contains(why));
        if !lacks_memory || tries_left == 0 {
            return Ok((output, json[kind].clone()));
        }
        fs::write("/proc/sys/vm/compact_memory", "1")?;
    }
    unreachable!("the last try returns")
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no {name} in {value}"))
}

/// Bytes of anonymous memory that a process maps by huge pages.
fn huge_bytes(pid: u32) -> Result<u64> {
    let usages = parse_smaps(&fs::read_to_string(format!("/proc/{pid}/smaps"))?)?;
    Ok(usages.iter().map(|usage| usage.anonymous_huge).sum())
}

fn lifted(t: &Context, kind: &str) -> Result<()> {
    let (session, all) = (holder(t, kind, "full")?, BLOCKS * huge()?);
    let pid = session.pid();
    let offered = format!("`--lift {kind}` up to ");
    ensure!(offers(t, pid)?.iter().all(|said| said.contains(&offered)), "{:?}", offers(t, pid)?);
    let (output, report) = lift(t, kind, pid, &["--require"])?;
    let said = output.success()?.stderr;
    let noun = if kind == "anon" { "anonymous memory" } else { "generated code" };
    ensure!(said.contains(&format!("{noun}: {} of ", format_bytes(all))), "{said}");
    ensure!(said.contains("nothing paused") && !said.contains("left alone"), "{said}");
    let segment = &report["segments"][0];
    ensure!(report["segments"].as_array().is_some_and(|all| all.len() == 1), "{report}");
    let found = ["planned", "huge_after"].map(|name| number(segment, name).unwrap_or(0));
    ensure!(found == [all; 2] && number(segment, "data")? >= all && number(segment, "huge_before")? == 0, "{segment}");
    ensure!(number(segment, "adds")? == 0 && number(segment, "filled")? == 0, "{segment}");
    ensure!(huge_bytes(pid)? == all, "smaps shows {}", huge_bytes(pid)?);
    ensure!(!offers(t, pid)?.iter().any(|said| said.contains(&offered)), "{:?}", offers(t, pid)?);
    let again = lift(t, kind, pid, &[])?.1;
    ensure!(number(&again["segments"][0], "huge_before")? == all, "{again}");
    end(t, session)
}

/// The lines in which other commands predict the added memory; they depend only on the process's state.
fn offers(t: &Context, pid: u32) -> Result<[String; 3]> {
    let pid = pid.to_string();
    let [inspect, doctor, attach] =
        [&["inspect", &pid][..], &["doctor", "--json", &pid], &["attach", &pid]].map(|words| pagelift(t, words));
    let doctor: Value = serde_json::from_str(&doctor?.stdout)?;
    let verdict = doctor["verdict"]["summary"].as_str().unwrap_or_default().to_owned();
    Ok([inspect?.stdout.lines().next().unwrap_or_default().to_owned(), verdict, attach?.success()?.stderr])
}

/// `--watch` also lifts memory that is filled later, of each kind.
fn filled_later(t: &Context, kind: &str) -> Result<()> {
    let (mut session, all) = (holder(t, kind, "later")?, BLOCKS * huge()?);
    let pid = session.pid();
    let watcher = t.session(t.pagelift(&["attach", "--watch", "--lift", kind, &pid.to_string()])?)?;
    watcher.wait_for_stderr(" on huge pages, ")?;
    // Blocks that find no free memory in pieces of a huge page are tried again after minutes.
    fs::write("/proc/sys/vm/compact_memory", "1")?;
    session.send("\n")?;
    session.wait_for_line("ready")?;
    poll_until(BOUND, "what was filled later to be lifted", || huge_bytes(pid).is_ok_and(|huge| huge == all))?;
    end(t, session)?;
    watcher.finish()?.success()?;
    Ok(())
}

/// The contents are checked by the program.
fn changed(t: &Context, kind: &str, how: &str) -> Result<()> {
    let session = holder(t, kind, how)?;
    let mut most = 0;
    for _ in 0..5 {
        lift(t, kind, session.pid(), &[])?.0.success()?;
        most = most.max(huge_bytes(session.pid())?);
    }
    ensure!(most >= BLOCKS / 2 * huge()?, "only {most} bytes were huge");
    end(t, session)
}

fn refused(t: &Context, kind: &str, how: &str) -> Result<()> {
    let session = holder(t, kind, how)?;
    let reason = match how {
        "forked" => "blocks that share pages with another process since a fork; the lift would copy 32.0 MiB",
        "locked" => "locked in memory (mlock)",
        "merges" => "the program has the kernel merge equal pages there (MADV_MERGEABLE)",
        "watched" => "userfaultfd watches it",
        _ => "the program has refused huge pages there (MADV_NOHUGEPAGE)",
    };
    let (output, report) = lift(t, kind, session.pid(), &["--fill"])?;
    let said = output.success()?.stderr;
    ensure!(said.contains(&format!("16 blocks left alone: {reason}")), "{said}");
    ensure!(number(&report["segments"][0], "huge_after")? == 0 && huge_bytes(session.pid())? == 0, "{report}");
    let (output, _) = lift(t, kind, session.pid(), &["--require"])?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("--require was given"), "{}", output.stderr);
    end(t, session)
}

fn guarded(t: &Context) -> Result<()> {
    let session = match holder(t, "anon", "guarded") {
        Ok(session) => session,
        Err(error) => {
            ensure!(format!("{error:#}").contains(&NO_GUARDS.to_string()), "{error:#}");
            return Ok(());
        }
    };
    let (output, report) = lift(t, "anon", session.pid(), &["--fill"])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("1 block left alone: guard pages (MADV_GUARD_INSTALL)"), "{said}");
    ensure!(number(&report["segments"][0], "huge_after")? == (BLOCKS - 1) * huge()?, "{report}");
    end(t, session)
}

fn holes(t: &Context) -> Result<()> {
    let (session, huge) = (holder(t, "anon", "holes")?, huge()?);
    let (output, report) = lift(t, "anon", session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("2 blocks left alone: blocks less than 7/8 full; the lift would add "), "{said}");
    let segment = &report["segments"][0];
    ensure!(number(segment, "filled")? == huge / 8 && number(segment, "huge_after")? == 14 * huge, "{segment}");
    let (output, report) = lift(t, "anon", session.pid(), &["--fill", "--max-memory", &(huge / 2).to_string()])?;
    ensure!(output.stderr.contains("--max-memory="), "{}", output.stderr);
    ensure!(number(&report["segments"][0], "filled")? <= huge / 2, "{report}");
    let (output, report) = lift(t, "anon", session.pid(), &["--fill", "--require"])?;
    output.success()?;
    ensure!(number(&report["segments"][0], "huge_after")? == BLOCKS * huge, "{report}");
    end(t, session)
}

fn zeros(t: &Context) -> Result<()> {
    let (session, huge) = (holder(t, "anon", "zeros")?, huge()?);
    let (output, report) = lift(t, "anon", session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("1 block left alone: blocks less than 7/8 full"), "{said}");
    ensure!(number(&report["segments"][0], "huge_after")? == (BLOCKS - 1) * huge, "{report}");
    end(t, session)
}

/// The program's own choice is suspended, and is set again afterwards.
fn switched_off(t: &Context) -> Result<()> {
    let (session, all) = (holder(t, "anon", "off")?, BLOCKS * huge()?);
    let (output, report) = lift(t, "anon", session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("its PR_SET_THP_DISABLE suspended meanwhile"), "{said}");
    ensure!(number(&report, "suspended")? == 1 && number(&report["segments"][0], "huge_after")? == all, "{report}");
    ensure!(process_field(session.pid(), "THP_enabled").as_deref() == Some("0"), "its choice is lost");
    let again = lift(t, "anon", session.pid(), &[])?.1;
    ensure!(again.get("suspended").is_none() || number(&again["segments"][0], "planned")? > 0, "{again}");
    end(t, session)
}

/// The huge pages of all blocks would take more than the limit leaves.
fn limited(t: &Context) -> Result<()> {
    let group = ControlGroup::with(t, Limit::Memory, (BLOCKS + 4) * huge()?)?;
    let mut command: Command = Program::named("attach/holds_private_memory.c")?.command()?;
    command.args(["anon", "full"]);
    let session = t.session(group.around(&command))?;
    session.wait_for_line("ready")?;
    let (output, report) = lift(t, "anon", session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("16 blocks left alone: its memory cgroup "), "{said}");
    ensure!(said.contains("fix: a higher memory limit in "), "{said}");
    ensure!(number(&report["segments"][0], "huge_after")? == 0 && huge_bytes(session.pid())? == 0, "{report}");
    end(t, session)
}

fn pieces(t: &Context) -> Result<()> {
    let session = holder(t, "jit", "pieces")?;
    let (output, report) = lift(t, "jit", session.pid(), &["--fill"])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("generated code in ") && said.contains("none of which holds a whole huge page"), "{said}");
    ensure!(number(&report["segments"][0], "mappings")? >= 1000 || huge()? > 2 << 20, "{report}");
    end(t, session)
}

fn sparse(t: &Context) -> Result<()> {
    let session = holder(t, "anon", "sparse")?;
    let (output, report) = lift(t, "anon", session.pid(), &[])?;
    let said = output.success()?.stderr;
    let segment = &report["segments"][0];
    ensure!(number(segment, "length")? >= 1 << 40 && number(segment, "planned")? == 0, "{segment}");
    ensure!(!said.contains("only a part"), "{said}");
    end(t, session)
}

fn only_planned(t: &Context) -> Result<()> {
    let (session, all) = (holder(t, "anon", "full")?, BLOCKS * huge()?);
    let (output, report) = lift(t, "anon", session.pid(), &["--dry-run"])?;
    let said = output.success()?.stdout;
    ensure!(
        said.contains(&format!("anonymous memory: {} would be put on huge pages in place", format_bytes(all))),
        "{said}"
    );
    ensure!(number(&report["segments"][0], "planned")? == all, "{report}");
    let pid = session.pid().to_string();
    let said = pagelift(t, &["inspect", &pid])?.success()?.stdout;
    ensure!(said.contains("  --lift anon: anonymous memory, "), "{said}");
    let inspected = pagelift(t, &["inspect", "--json", "--lift", "anon,jit", &pid])?.success()?.stdout;
    let json: Value = serde_json::from_str(&inspected)?;
    ensure!(
        number(&json["anon"]["segments"][0], "planned")? == all && json["jit"]["segments"] == Value::Array(vec![]),
        "{json}"
    );
    ensure!(huge_bytes(session.pid())? == 0, "a plan has lifted");
    end(t, session)
}

fn words(t: &Context) -> Result<()> {
    let session = holder(t, "jit", "full")?;
    let (report, pid) = (t.folder().join("all.json"), session.pid().to_string());
    let file = report.display().to_string();
    let said = pagelift(t, &["attach", "--lift", "all", "--report", &file, &pid])?.success()?.stderr;
    for noun in ["no shared memory that could", "anonymous memory", "generated code: "] {
        ensure!(said.contains(noun), "{noun} is missing: {said}");
    }
    let json: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    ensure!(json["shared"].is_object() && json["anon"].is_object() && json["jit"].is_object(), "{json}");
    let started = pagelift(t, &["run", "--lift", "jit", "--", "true"])?;
    ensure!(started.stderr.contains("generated code is lifted in place as it fills"), "{}", started.stderr);
    let file = pagelift(t, &["inspect", "--lift", "anon", "/bin/true"])?;
    ensure!(file.stderr.contains("is no process, and has no anonymous memory"), "{}", file.stderr);
    end(t, session)
}

fn ends(t: &Context) -> Result<()> {
    for how in ["full", "off"] {
        let mut session = holder(t, "anon", how)?;
        let lifter = t.session_within(t.pagelift(&["attach", "--lift", "anon", &session.pid().to_string()])?, BOUND)?;
        session.signal(Signal::SIGKILL)?;
        let output = lifter.finish()?;
        let is_orderly = matches!(output.ending, Ending::Exit(0 | 125)) && !output.stderr.contains("panicked");
        ensure!(is_orderly, "{:?}: {}", output.ending, output.stderr);
        poll_until(BOUND, "the program to end", || session.has_ended().unwrap_or(true))?;
    }
    Ok(())
}
