//! Programs that are lifted from the page cache of their own files: at the start and while they run. Nothing is copied,
//! and no write of the program is lost.

mod changes;
mod data;
mod files;
mod lmdb;
mod programs;
mod quiet;

use address_space::{AddressRange, PageSize, format_bytes};
use anyhow::{Context as _, Result, ensure};
use files::own_copy;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use test_support::{
    Context, Ending, Need, Program, Session, Test, View, default_huge_page, hold, main_of, make_small, test_case,
};

const PROGRAMS: [&str; 3] = ["pie_by_default", "fixed_address_executable", "static_pie"];
/// Limit of copies of which a start is tried. It prepares a file for half a second, which is too short while other programs keep
/// the disk busy.
const MOST_COPIES: u32 = 5;

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Kernel(6, 18), Need::Thp, Need::LargeFolios, Need::Command("gcc".into())];
    let with = |command: &str| [needs(), vec![Need::Command(command.into())]].concat();
    let with_python = || with("python3");
    // A start from a file that is not prepared in time would take free pages of the pool, which another test may have reserved.
    let with_empty_pool = || [needs(), vec![Need::Pool(0)]].concat();
    let mut tests: Vec<Test> = Vec::new();
    for program in PROGRAMS {
        tests.push(test_case(format!("run_lifts_from_the_file/{program}"), needs(), move |t| run(t, program, "file")));
        tests.push(test_case(format!("auto_takes_the_file/{program}"), with_empty_pool(), move |t| {
            run(t, program, "auto")
        }));
    }
    tests.extend([
        test_case("what_is_not_to_be_prepared_says_why", needs(), not_prepared),
        test_case("a_file_that_others_map_says_so", needs(), mapped_by_another),
        test_case("each_command_foresees_the_same_start", [with_empty_pool(), with("unshare")].concat(), foreseen),
        test_case("many_processes_share_one_file", needs(), shared),
        test_case("attach_maps_anew_what_runs", with_python(), attach),
        test_case("attach_to_a_program_whose_file_was_replaced", with_python(), replaced),
        test_case("what_was_written_to_stays", with_python(), written_to),
        test_case("a_preloaded_program_lifts_itself", needs(), preloaded),
        test_case("a_program_that_disables_huge_pages_says_so", with_python(), disabled),
    ]);
    tests.extend(programs::tests(needs));
    tests.extend(quiet::tests(needs));
    tests.extend(changes::tests(needs));
    tests.extend(data::tests(needs));
    tests.extend(lmdb::tests(needs));
    main_of(tests)
}

/// Bytes of a file's read-only mappings that the kernel maps by huge pages of the page cache, and bytes that it could
/// map so.
fn from_file(view: &View, path: &Path, size: PageSize) -> (u64, u64) {
    let own = view.usages.iter().filter(|usage| {
        let mapping = &usage.mapping;
        let agrees = mapping.range.start().0 % size.bytes() == mapping.offset % size.bytes();
        mapping.path().map(Path::new) == Some(path) && !mapping.protection.write && agrees
    });
    own.fold((0, 0), |(huge, whole), usage| {
        (huge + usage.file_huge, whole + usage.mapping.range.whole_pages(size).len())
    })
}

/// Checks that all whole blocks are on huge pages of the file, at least 8 MiB of code and constants, and that the
/// program has no copies.
fn check_all_from_file(session: &Session, path: &Path) -> Result<()> {
    let view = View::of(session.pid())?;
    let (huge, whole) = from_file(&view, path, default_huge_page()?);
    ensure!(huge == whole && whole >= 8 << 20, "{huge} of {whole} bytes are huge pages of {}", path.display());
    let own = view.usages.iter().filter(|usage| usage.mapping.path().map(Path::new) == Some(path));
    let copied: u64 = own.filter(|usage| !usage.mapping.protection.write).map(|usage| usage.anonymous_huge).sum();
    ensure!(copied == 0, "{copied} bytes are copies");
    view.check_read_only_contents(view.executable()?)
}

fn start(t: &Context, options: &[&str], path: &Path) -> Result<Session> {
    let session = t.session(t.lifted(options, &Command::new(path))?)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn end(mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(!output.stdout.contains("differs"), "{}", output.stdout);
    Ok(())
}

/// Brings a file into huge folios, for as long as a busy disk needs.
fn prepare(t: &Context, path: &Path) -> Result<()> {
    t.run(t.pagelift(&["cache", "prepare", &path.to_string_lossy()])?)?.success().map(drop)
}

/// Starts copies of a program in small folios until a start has prepared the whole file.
fn start_that_prepares(t: &Context, program: &str, options: &[&str]) -> Result<(PathBuf, Session)> {
    let built = Program::named(&format!("start/{program}.c"))?.build()?;
    let mut copy = 1;
    loop {
        let path = files::own_copy_of(t, &built, &format!("{program}-{copy}"))?;
        make_small(&path)?;
        let session = start(t, options, &path)?;
        let (huge, whole) = from_file(&View::of(session.pid())?, &path, default_huge_page()?);
        if copy == MOST_COPIES || huge >= whole.max(8 << 20) {
            return Ok((path, session));
        }
        t.note(session.stderr_so_far());
        end(session)?;
        copy += 1;
    }
}

fn run(t: &Context, program: &str, pages: &str) -> Result<()> {
    let built = Program::named(&format!("start/{program}.c"))?.build()?;
    for copy in 1..=MOST_COPIES {
        let path = files::own_copy_of(t, &built, &format!("{program}-{copy}"))?;
        if run_copy(t, &path, pages, copy < MOST_COPIES)? {
            break;
        }
    }
    Ok(())
}

/// A start prepares the file; the next finds it prepared. Returns false if the first had too little time, and `may_be_late`.
fn run_copy(t: &Context, path: &Path, pages: &str, may_be_late: bool) -> Result<bool> {
    make_small(path)?;
    let mut held = Vec::new();
    for prepare in ["auto", "never"] {
        let report = t.folder().join(format!("report-{prepare}"));
        let report_at = report.to_string_lossy();
        let options = ["--pages", pages, "--lift", "text,rodata", "--prepare", prepare, "--report", &report_at];
        let session = start(t, &options, path)?;
        let (huge, whole) = from_file(&View::of(session.pid())?, path, default_huge_page()?);
        if prepare == "auto" && may_be_late && huge < whole.max(8 << 20) {
            t.note(session.stderr_so_far());
            end(session)?;
            return Ok(false);
        }
        check_all_from_file(&session, path)?;
        session.wait_for_stderr("file")?;
        // Held until the second start has found it.
        held.push(hold(t, path)?);
        end(session)?;
        let report = fs::read_to_string(report)?;
        ensure!(report.contains("\"source\": \"file\"") && report.contains("\"unexpected\": []"), "{report}");
    }
    Ok(true)
}

fn not_prepared(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    make_small(&path)?;
    let session = start(t, &["--pages", "file", "--prepare", "never", "--lift", "text,rodata"], &path)?;
    session.wait_for_stderr("nothing lifted: its file is not in huge folios of the page cache")?;
    session.wait_for_stderr("pagelift cache prepare")?;
    end(session)?;
    // With --require this is an error, before the program has run.
    let options = ["--pages", "file", "--prepare", "never", "--lift", "text,rodata", "--require"];
    let output = t.run(t.lifted(&options, &Command::new(&path))?)?;
    ensure!(output.ending == Ending::Exit(125) && !output.stdout.contains("ready"), "{output:?}");
    Ok(())
}

/// Pages that a running program maps cannot be evicted.
fn mapped_by_another(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    make_small(&path)?;
    let first = t.session(Command::new(&path))?;
    first.wait_for_line("ready")?;
    let second = start(t, &["--pages", "file", "--lift", "text,rodata"], &path)?;
    second.wait_for_stderr(&format!(" {})", first.pid()))?;
    let view = View::of(second.pid())?;
    view.check_read_only_contents(view.executable()?)?;
    end(second)?;
    end(first)
}

/// A state of the program's file, and the options of a start.
const STATES: [(&str, &[&str]); 5] = [
    ("small", &[]),
    ("huge", &[]),
    ("mapped by another", &[]),
    ("mapped by another", &["--pages", "file"]),
    ("small", &["--pages", "thp"]),
];

/// Bytes of code and read-only data by source, and bytes that are lifted later.
type Foreseen = (BTreeMap<String, u64>, u64);

/// The command on a machine with low costs of a lift: nothing is postponed, as in the starts at any price.
fn at_low_costs(command: &Command) -> Command {
    const COSTS: &str = "umask 022 && mount -t tmpfs none /run && mkdir /run/pagelift && \
                         boot=$(printf %u 0x$(tr -d - </proc/sys/kernel/random/boot_id | cut -c1-16)) && \
                         echo lift-costs-2 $boot 1 1 1 1 >/run/pagelift/lift-costs && exec \"$@\"";
    let mut cheap = Command::new("unshare");
    cheap.args(["-m", "sh", "-c", COSTS, "sh"]).arg(command.get_program()).args(command.get_args());
    cheap
}

/// A start does exactly the lift that `inspect`, `doctor` and a dry run predict, in each state of the file.
fn foreseen(t: &Context) -> Result<()> {
    let mut table = String::new();
    for (number, (state, options)) in STATES.into_iter().enumerate() {
        let mut is_foreseen = false;
        for copy in 1..=MOST_COPIES {
            is_foreseen = foresee(t, &format!("program{number}-{copy}"), state, options, &mut table)?;
            if is_foreseen {
                break;
            }
        }
        ensure!(is_foreseen, "{table}");
    }
    t.note(&table);
    Ok(())
}

/// Compares the plan with the lift of a copy in one state. Returns false if the start did another lift.
fn foresee(t: &Context, name: &str, state: &str, options: &[&str], table: &mut String) -> Result<bool> {
    let path = files::own_copy_of(t, &Program::named("start/pie_by_default.c")?.build()?, name)?;
    make_small(&path)?;
    // A start that prepares the file needs free memory in pieces of a huge page.
    fs::write("/proc/sys/vm/compact_memory", "1")?;
    let held = match state {
        "huge" => files::prepared(t, std::slice::from_ref(&path), 100)?,
        "mapped by another" => {
            let other = t.session(Command::new(&path))?;
            other.wait_for_line("ready")?;
            vec![other]
        }
        _ => Vec::new(),
    };
    let file = path.to_string_lossy();
    let json = |words: &[&str]| -> Result<Value> {
        Ok(serde_json::from_str(&t.run(at_low_costs(&t.pagelift(words)?))?.stdout)?)
    };
    let inspect = json(&[&["inspect", "--json"], options, &[&file]].concat())?;
    let doctor = json(&["doctor", "--json", "--", &file])?["verdict"]["summary"].to_string();
    let [dry, real] = ["dry", "real"].map(|kind| t.folder().join(format!("{kind}-{name}")));
    t.run(t.lifted(&[&["--dry-run", "--report", &dry.to_string_lossy()], options].concat(), &Command::new(&path))?)?;
    let dry: Value = serde_json::from_str(&fs::read_to_string(dry)?)?;
    let session = start(t, &[&["--report", &real.to_string_lossy()], options].concat(), &path)?;
    let real: Value = serde_json::from_str(&fs::read_to_string(real)?)?;
    end(session)?;
    let (inspect, dry, ran) = (planned(&inspect), planned(&dry), lifted(&real));
    *table +=
        &format!("{state} {options:?}\n  inspect {inspect:?}\n  dry run {dry:?}\n  run     {ran:?}\n  {doctor}\n");
    let is_foreseen = inspect == dry && dry == ran;
    if is_foreseen {
        for (source, bytes) in inspect.0.iter().filter(|_| options.is_empty()) {
            let bytes = format_bytes(*bytes);
            ensure!(doctor.contains(source) && doctor.contains(&bytes), "{bytes} by {source}\n{table}");
        }
        if options == ["--pages", "file"] {
            let why = real["refusals"].to_string();
            let pid = held.first().map(Session::pid).context("nobody holds it")?;
            ensure!(why.contains(&format!(" {pid})")) && !why.contains("differ from the file's offsets"), "{why}");
        }
    }
    held.into_iter().try_for_each(end)?;
    Ok(is_foreseen)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The length of a range, or the sum of several.
fn length(range: &Value) -> u64 {
    let address = |name: &str| u64::from_str_radix(range[name].as_str()?.trim_start_matches("0x"), 16).ok();
    address("end").zip(address("start")).map_or(0, |(end, start)| end - start)
}

fn lengths(ranges: &Value) -> u64 {
    ranges.as_array().into_iter().flatten().map(length).sum()
}

fn is_written(range: &Value) -> bool {
    range["protection"].as_str().is_none_or(|protection| protection.contains('w'))
}

/// The plan in a document.
fn planned(document: &Value) -> Foreseen {
    let mut by_source = BTreeMap::new();
    for lift in document["plan"]["lifts"].as_array().into_iter().flatten().filter(|lift| !is_written(lift)) {
        let source = lift["attempts"][0]["source"].as_str().unwrap_or("none").to_owned();
        let parts = lift["attempts"][0]["parts"].as_array().into_iter().flatten();
        *by_source.entry(source).or_default() += parts.map(|part| length(&part["range"])).sum::<u64>();
    }
    (by_source, number(&document["postponed"]["bytes"]))
}

/// The outcome in a report.
fn lifted(report: &Value) -> Foreseen {
    let mut by_source = BTreeMap::new();
    for range in report["ranges"].as_array().into_iter().flatten().filter(|range| !is_written(range)) {
        let source = range["source"].as_str().unwrap_or("none").to_owned();
        *by_source.entry(source).or_default() += lengths(&range["covered"]);
    }
    (by_source, number(&report["postponed"]["bytes"]))
}

fn shared(t: &Context) -> Result<()> {
    let path = own_copy(t, "pie_by_default")?;
    prepare(t, &path)?;
    let sessions = (0..8).map(|_| start(t, &["--pages", "file"], &path)).collect::<Result<Vec<_>>>()?;
    sessions.iter().try_for_each(|session| check_all_from_file(session, &path))?;
    sessions.into_iter().try_for_each(end)
}

/// Starts the program so that the kernel maps its file by ordinary pages, although the file is in huge folios.
fn start_on_ordinary_pages(t: &Context, path: &Path) -> Result<Session> {
    prepare(t, path)?;
    let first = start(t, &["--pages", "file"], path)?;
    check_all_from_file(&first, path).with_context(|| first.stderr_so_far())?;
    let _held = hold(t, path)?;
    end(first)?;
    let session = t.session(files::without_huge_pages(path))?;
    session.wait_for_line("ready")?;
    let (huge, _) = from_file(&View::of(session.pid())?, path, default_huge_page()?);
    ensure!(huge == 0, "{huge} bytes are on huge pages without any help: this would check nothing");
    Ok(session)
}

fn attach_to(t: &Context, session: &Session) -> Result<()> {
    let pid = session.pid().to_string();
    t.run(t.pagelift(&["attach", "--pages", "file", "--lift", "text,rodata", &pid])?)?.success().map(drop)
}

fn attach(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    let session = start_on_ordinary_pages(t, &path)?;
    let before = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    for _ in 0..3 {
        attach_to(t, &session)?;
        check_all_from_file(&session, &path)?;
        // The file is mapped as before: there is nothing to restore.
        let output = t.run(t.pagelift(&["detach", &session.pid().to_string()])?)?.success()?;
        ensure!(output.stderr.contains(" of mapped files stays on huge pages of the page cache"), "{}", output.stderr);
    }
    let after = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    ensure!(before == after, "the mappings have changed:\n{before}\n{after}");
    end(session)
}

/// An upgrade puts another file under the path; the running program keeps its own.
fn replaced(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    let session = start_on_ordinary_pages(t, &path)?;
    let original = fs::read(&path)?;
    fs::write(t.folder().join("new"), "another file")?;
    fs::rename(t.folder().join("new"), &path)?;
    attach_to(t, &session)?;
    let view = View::of(session.pid())?;
    let huge: u64 = view.usages.iter().map(|usage| usage.file_huge).sum();
    ensure!(huge >= 8 << 20, "{huge} bytes are huge pages of the file that was replaced");
    for usage in view.usages.iter().filter(|usage| usage.file_huge > 0) {
        let (range, offset) = (usage.mapping.range, usage.mapping.offset as usize);
        ensure!(view.bytes(range)?[..] == original[offset..offset + range.len() as usize], "{range} differs");
    }
    end(session)
}

/// A debugger writes into the program's code, which makes the page private to the process.
fn written_to(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    let session = start_on_ordinary_pages(t, &path)?;
    let (view, size) = (View::of(session.pid())?, default_huge_page()?);
    let whole = |usage: &&address_space::MappingUsage| {
        usage.mapping.path().map(Path::new) == Some(&path) && usage.mapping.range.whole_pages(size).len() > size.bytes()
    };
    let constants = view.usages.iter().filter(whole).find(|usage| !usage.mapping.protection.execute);
    let range = constants.map(|usage| usage.mapping.range.whole_pages(size));
    let range = range.ok_or_else(|| anyhow::anyhow!("no constants of several huge pages"))?;
    let block = AddressRange::sized(range.start(), size.bytes());
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", session.pid()))?;
    let at = block.start().0 + 0x5123;
    let mut before = [0];
    memory.read_exact_at(&mut before, at)?;
    memory.write_all_at(&[!before[0]], at)?;
    for _ in 0..2 {
        attach_to(t, &session)?;
        let mut now = [0];
        memory.read_exact_at(&mut now, at)?;
        ensure!(now[0] == !before[0], "what was written is lost");
        let (huge, whole) = from_file(&View::of(session.pid())?, &path, size);
        ensure!(huge + size.bytes() == whole, "{huge} of {whole} bytes are huge, needed all but one page");
    }
    memory.write_all_at(&before, at)?;
    end(session)
}

/// The launcher prepares the file, and the library in the program maps it.
fn preloaded(t: &Context) -> Result<()> {
    let options = |pages| ["--pages", pages, "--via", "preload", "--lift", "text,rodata"];
    let (path, first) = start_that_prepares(t, "fixed_address_executable", &options("file"))?;
    let check = |session: Session| -> Result<()> {
        session.wait_for_stderr("(file)")?;
        check_all_from_file(&session, &path)?;
        end(session)
    };
    check(first)?;
    check(start(t, &options("auto"), &path)?)
}

/// If huge pages were disabled before the exec, they stay disabled in the program that `run` starts.
fn disabled(t: &Context) -> Result<()> {
    let path = own_copy(t, "fixed_address_executable")?;
    prepare(t, &path)?;
    let first = start(t, &["--pages", "file"], &path)?;
    let _held = hold(t, &path)?;
    end(first)?;
    let lifted = t.lifted(&["--pages", "file", "--lift", "text,rodata"], &Command::new(&path))?;
    let session = t.session(files::of_command_without_huge_pages(&lifted))?;
    session.wait_for_line("ready")?;
    session.wait_for_stderr("PR_SET_THP_DISABLE")?;
    end(session)
}
