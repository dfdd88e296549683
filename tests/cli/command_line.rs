//! The other options and commands: reports, dry runs, merged edges, inspect, status, damaged files, installation.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use test_support::{
    Context, Ending, Kind, Need, Program, Source, Test, View, check_lifted, check_range, check_unlifted,
    default_huge_page, main_of, source_of, target_folder, test_case, workspace, write_script,
};

fn main() -> ExitCode {
    let gcc = || vec![Need::Command("gcc".into()), Need::Thp];
    let pool = || [gcc(), vec![Need::Pool(64 << 20)]].concat();
    let tests: Vec<Test> = vec![
        test_case("run/report_says_what_the_kernel_says/thp", gcc(), |t| report(t, "thp")),
        test_case("run/report_says_what_the_kernel_says/hugetlb", pool(), |t| report(t, "hugetlb")),
        test_case("run/report_of_several_programs", gcc(), report_of_several),
        test_case("run/report_on_standard_output", [gcc(), vec![Need::Root]].concat(), report_on_standard_output),
        test_case("run/dry_run_runs_nothing", gcc(), dry_run),
        test_case("run/quiet_and_verbose", gcc(), quiet_and_verbose),
        test_case("run/lift_names_kinds", gcc(), lift_names_kinds),
        test_case("run/objects_names_objects", gcc(), objects_names_objects),
        test_case("run/merge_read_only/thp", gcc(), |t| merge_read_only(t, "thp")),
        test_case("run/merge_read_only/hugetlb", pool(), |t| merge_read_only(t, "hugetlb")),
        test_case("a_driver_s_worker_is_named", vec![Need::Command("g++".into())], worker_of_a_driver),
        test_case("inspect/agrees_with_the_lift", gcc(), inspect_agrees),
        test_case("inspect/of_a_process", gcc(), inspect_process),
        test_case("inspect/damaged_files", gcc(), inspect_damaged),
        test_case("run/damaged_files", gcc(), run_damaged),
        test_case("status/of_a_process_says_what_the_kernel_says", gcc(), status_of_process),
        test_case("status/lists_every_lifted_process", gcc(), status_of_all),
        test_case("status/nobody_of_that_number", vec![], |t| {
            let output = t.run(t.pagelift(&["status", "4194300"])?)?;
            ensure!(output.ending != Ending::Exit(0) && !output.stderr.is_empty(), "{output:?}");
            Ok(())
        }),
        test_case("usage/words_act_on_nobody", vec![], |t| {
            let mut command = t.pagelift(&["a\u{1b}[8mb\nFORGED"])?;
            // As on a terminal.
            command.env("CLICOLOR_FORCE", "1");
            let output = t.run(command)?;
            let is_one_line = output.stderr.lines().count() == 1 && !output.stderr.contains('\u{1b}');
            ensure!(is_one_line && output.stderr.contains("FORGED"), "{output:?}");
            Ok(())
        }),
        test_case("usage/a_process_is_no_command", vec![], process_as_command),
        test_case("make/says_how_to_get_rust", vec![Need::Command("make".into())], make_without_rust),
        test_case("install/puts_everything_in_place", vec![Need::Command("make".into())], install),
        test_case("make/lays_side_by_side_what_every_start_runs", linked_in_order(), side_by_side),
    ];
    main_of(tests)
}

/// Needs of tests of the program that `make` links with musl, if there is a musl target.
fn linked_in_order() -> Vec<Need> {
    let built = target_folder().join(format!("{}-unknown-linux-musl/program/pagelift", std::env::consts::ARCH));
    vec![Need::Command("readelf".into()), Need::Command("awk".into()), Need::File(built.to_string_lossy().into_owned())]
}

/// The kernel maps the memory around a fault in pieces of this length.
const FAULT_AROUND: u64 = 64 << 10;

/// The functions listed in `packaging/start-order` are in few of the pieces that a start could map.
fn side_by_side(t: &Context) -> Result<()> {
    let folder = workspace().join("packaging/start-order");
    let list = fs::read_to_string(folder.join("functions"))?;
    let listed: HashSet<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let symbols = "readelf -sW \"$1\" | awk \"$(cat \"$2\")\"'$4 == \"FUNC\" { print $2, plain($8) }'";
    let mut command = Command::new("sh");
    command.args(["-c", symbols, "sh"]).arg(t.pagelift(&[])?.get_program()).arg(folder.join("plain.awk"));
    let output = t.run(command)?.success()?;
    let (mut all, mut of_starts, mut found) = (HashSet::new(), HashSet::new(), HashSet::new());
    for line in output.stdout.lines() {
        let (address, name) = line.split_once(' ').context("no symbol")?;
        let piece = u64::from_str_radix(address, 16)? / FAULT_AROUND;
        all.insert(piece);
        if listed.contains(name) {
            of_starts.insert(piece);
            found.insert(name);
        }
    }
    let missing = listed.difference(&found).take(5).copied().collect::<Vec<_>>().join(" ");
    let needed = (listed.len() as f64 * share_to_be_found(t, &list)?).ceil() as usize;
    ensure!(
        found.len() >= needed,
        "{} of {} listed functions are in the program, needed: {needed}, missing among others: {missing}; \
         fix: packaging/start-order/record",
        found.len(),
        listed.len()
    );
    let (some, pieces) = (of_starts.len(), all.len());
    ensure!(2 * some <= pieces, "what every start runs lies in {some} of {pieces} pieces of {FAULT_AROUND} bytes");
    Ok(())
}

/// The share of listed functions that must be in the program. With the list's compiler, on its machine, nearly all:
/// after a change of the code the compiler may inline some functions or emit others, which does not require a new list.
/// With another compiler, or on another machine, some functions differ.
fn share_to_be_found(t: &Context, list: &str) -> Result<f64> {
    let of_list =
        list.lines().find_map(|line| line.strip_prefix("# compiler: ")).context("the list names no compiler")?;
    let mut version = Command::new("rustc");
    version.arg("--version");
    let own = t.run(version).and_then(test_support::Output::success);
    let is_same = own.is_ok_and(|own| of_list == format!("{}, {}", own.stdout.trim(), std::env::consts::ARCH));
    Ok(if is_same { 0.95 } else { 0.5 })
}

fn watch(t: &Context, command: Command, look: impl FnOnce(&View) -> Result<()>) -> Result<test_support::Output> {
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    look(&View::of(session.pid())?).with_context(|| format!("it said {}", session.stderr_so_far().trim()))?;
    session.send("go on\n")?;
    let output = session.finish()?;
    t.keep(&output);
    output.success()
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no number `{name}` in {value}"))
}

/// Covered bytes are read back from the kernel, so they must equal smaps. Advised bss that the program touches between
/// the two readings is additional.
fn report(t: &Context, pages: &str) -> Result<()> {
    let file = t.folder().join("report.json");
    let path = file.to_string_lossy().into_owned();
    let program = Program::named("start/relro_stays_read_only.c")?.command()?;
    let mut pid = 0;
    let mut huge = 0;
    watch(t, t.lifted(&["--pages", pages, "--report", &path], &program)?, |view| {
        pid = view.pid;
        huge = view.huge_bytes();
        Ok(())
    })?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    ensure!(report["format"] == "pagelift-report" && number(&report, "version")? >= 1, "no version: {report}");
    ensure!(number(&report, "pid")? == u64::from(pid), "another process: {report}");
    let (covered, advised) = (number(&report, "covered_bytes")?, number(&report, "advised_bytes")?);
    ensure!(covered > 8 << 20 && covered <= huge && huge <= covered + advised, "{covered} + {advised}, smaps {huge}");
    let ranges = report["ranges"].as_array().context("no ranges")?;
    let address = |value: &Value| -> Result<u64> {
        let text = value.as_str().context("an address is text")?;
        Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
    };
    let mut sum = 0;
    for covered in ranges.iter().flat_map(|range| range["covered"].as_array().into_iter().flatten()) {
        sum += address(&covered["end"])? - address(&covered["start"])?;
    }
    ensure!(sum == covered, "the ranges add up to {sum}, not to {covered}");
    for list in ["refusals", "edges"] {
        for entry in report[list].as_array().context("a list")? {
            let reason = entry.get("reason").or(entry.get("cure")).and_then(Value::as_str).unwrap_or_default();
            ensure!(!reason.is_empty(), "without a reason: {entry}");
        }
    }
    Ok(())
}

fn report_of_several(t: &Context) -> Result<()> {
    let file = t.folder().join("reports");
    let path = file.to_string_lossy().into_owned();
    let mut starter = Command::new(Program::named("start/spawns_descendants.c")?.build()?);
    starter.arg(Program::named("start/pie_by_default.c")?.build()?);
    let options = ["-q", "--pages", "thp", "--only", "pie_by_default", "--report", &path];
    let output = t.run(t.lifted(&options, &starter)?)?.success()?;
    ensure!(output.stderr.is_empty(), "not quiet: {}", output.stderr);
    let text = fs::read_to_string(&file)?;
    let reports = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    ensure!(reports.len() == 6, "{} reports of six lifts", reports.len());
    let mut processes: Vec<u64> = reports.iter().map(|r| number(r, "pid")).collect::<Result<_>>()?;
    processes.sort_unstable();
    processes.dedup();
    ensure!(processes.len() == 6, "they are of {} processes", processes.len());
    Ok(())
}

/// `run` writes to the standard output that the program gets, `attach` to its own.
fn report_on_standard_output(t: &Context) -> Result<()> {
    let document = |output: test_support::Output| -> Result<Value> { Ok(serde_json::from_str(&output.stdout)?) };
    let (program, large) = (Command::new("true"), Program::named("start/pie_by_default.c")?.command()?);
    let lifted = document(t.run(t.lifted(&["--quiet", "--pages", "thp", "--report", "-"], &program)?)?.success()?)?;
    ensure!(lifted["format"] == "pagelift-report", "{lifted}");
    let options = ["--quiet", "--pages", "thp", "--dry-run", "--report", "-"];
    let planned = document(t.run(t.lifted(&options, &large)?)?.success()?)?;
    ensure!(planned["format"] == "pagelift-plan", "{planned}");
    let several = t.run(t.lifted(&["--report", "-", "--only", "true"], &program)?)?;
    ensure!(several.ending == Ending::Exit(125) && several.stderr.contains("fix: --report FILE"), "{several:?}");
    watch(t, Program::named("start/relro_stays_read_only.c")?.command()?, |view| {
        let pid = view.pid.to_string();
        let options = ["attach", "--dry-run", "--pages", "thp", "--report", "-", &pid];
        let planned = document(t.run(t.pagelift(&options)?)?.success()?)?;
        ensure!(planned["format"] == "pagelift-plan", "{planned}");
        let attached = document(t.run(t.pagelift(&["attach", "--pages", "thp", "--report", "-", &pid])?)?.success()?)?;
        ensure!(number(&attached, "pid")? == u64::from(view.pid), "{attached}");
        Ok(())
    })?;
    Ok(())
}

fn dry_run(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    let output = t.run(t.lifted(&["--dry-run", "--pages", "thp"], &program)?)?.success()?;
    ensure!(!output.stdout.contains("code sums to"), "the program has run:\n{}", output.stdout);
    let text = output.stdout + &output.stderr;
    for word in ["pie_by_default", "text", "rodata", "data", "bss", "r-x"] {
        ensure!(text.contains(word), "`{word}` is not in the plan:\n{text}");
    }
    Ok(())
}

fn quiet_and_verbose(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    let lines = |options: &[&str]| -> Result<usize> {
        let options = [&["--pages", "thp"], options].concat();
        Ok(t.run(t.lifted(&options, &program)?)?.success()?.stderr.lines().count())
    };
    let (quiet, usual, verbose) = (lines(&["-q"])?, lines(&[])?, lines(&["-v"])?);
    ensure!(quiet == 0 && usual == 1 && verbose > 3, "lines: -q {quiet}, usual {usual}, -v {verbose}");
    Ok(())
}

fn lift_names_kinds(t: &Context) -> Result<()> {
    let huge = default_huge_page()?;
    let program = Program::named("start/pie_by_default.c")?.command()?;
    for (name, kind) in [("text", Kind::Text), ("rodata", Kind::Rodata)] {
        watch(t, t.lifted(&["--pages", "thp", "--lift", name], &program)?, |view| {
            let bytes = check_lifted(view, view.executable()?, &[kind], huge, |_| Source::Thp)?;
            // Sealed pages after the constants may help to fill one more huge page.
            let more = view.huge_bytes() - bytes;
            ensure!(
                more == 0 || (kind == Kind::Rodata && more == huge.bytes()),
                "{name}: {bytes} are due, {more} more"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn objects_names_objects(t: &Context) -> Result<()> {
    let huge = default_huge_page()?;
    let program = Program::named("start/data_of_a_shared_object.c")?.command()?;
    for (objects, executable, library) in
        [("exe", true, false), ("liblarge*", false, true), ("all", true, true), ("*_object,libl*.so", true, true)]
    {
        watch(t, t.lifted(&["--pages", "thp", "--objects", objects], &program)?, |view| {
            for (object, wanted) in [(view.executable()?, executable), (view.object("liblarge.so")?, library)] {
                match wanted {
                    true => check_lifted(view, object, &[Kind::Data], huge, |_| Source::Thp).map(drop)?,
                    false => check_unlifted(view, object)?,
                }
            }
            Ok(())
        })
        .with_context(|| format!("--objects {objects}"))?;
    }
    Ok(())
}

/// Read-only data that shares a huge page with code becomes executable, and nothing else changes; no page is ever both
/// writable and executable.
fn merge_read_only(t: &Context, pages: &str) -> Result<()> {
    let program = Program::named("start/fixed_address_executable.c")?.command()?;
    let mut plain = String::new();
    watch(t, program, |view| {
        plain = view.protections(view.executable()?);
        Ok(())
    })?;
    let program = Program::named("start/fixed_address_executable.c")?.command()?;
    watch(t, t.lifted(&["--pages", pages, "--edges", "merge-read-only"], &program)?, |view| {
        let object = view.executable()?;
        let read_only = object.image.segments.iter().filter(|s| !s.protection.write);
        let ranges = read_only.map(|s| s.memory.widened(view.base_page).shifted(object.bias));
        let all =
            ranges.reduce(|a, b| address_space::AddressRange::new(a.start().min(b.start()), a.end().max(b.end())));
        let due = all.context("no segments")?.whole_pages(default_huge_page()?);
        check_range(view, due, source_of(pages, false))?;
        let lifted = view.protections(object);
        ensure!(!lifted.contains("rwx"), "writable and executable:\n{lifted}");
        let writable =
            |text: &str| text.lines().filter(|line| line.contains("rw")).map(str::to_owned).collect::<Vec<_>>();
        ensure!(writable(&plain) == writable(&lifted), "plain\n{plain}lifted\n{lifted}");
        view.check_read_only_contents(object)
    })?;
    Ok(())
}

/// g++ starts cc1plus, which is the program to be lifted.
fn worker_of_a_driver(t: &Context) -> Result<()> {
    let mut driver = Command::new("g++");
    driver.arg("--version");
    let output = t.run(t.lifted(&[], &driver)?)?.success()?;
    ensure!(
        output.stderr.contains("cc1plus does the work: `pagelift run --only cc1plus` lifts it"),
        "{}",
        output.stderr
    );
    let output = t.run(t.pagelift(&["doctor", "--json", "--", "g++", "--version"])?)?;
    let doctor: Value = serde_json::from_str(&output.stdout)?;
    ensure!(doctor["verdict"]["run"] == "pagelift run --only cc1plus -- g++ --version", "{:#}", doctor["verdict"]);
    let plan = t.run(t.pagelift(&["pool", "plan", "--", "g++", "--version"])?)?.success()?.stdout;
    ensure!(plan.contains("g++ leaves the work to cc1plus") && plan.contains("-print-prog-name=cc1plus"), "{plan}");
    let bench = t.pagelift(&["bench", "--for", "1", "--", "g++", "--version"])?;
    let output = t.run(bench)?;
    ensure!(output.stderr.contains("fix: --only cc1plus"), "{output:?}");
    Ok(())
}

fn json(t: &Context, arguments: &[&str]) -> Result<Value> {
    let output = t.run(t.pagelift(arguments)?)?.success()?;
    serde_json::from_str(&output.stdout).with_context(|| format!("no JSON: {}", output.stdout))
}

/// A start lifts as many bytes as inspect predicts for the best base.
fn inspect_agrees(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?;
    let path = program.build()?.to_string_lossy().into_owned();
    let text = t.run(t.pagelift(&["inspect", "--pages", "thp", &path])?)?.success()?.stdout;
    for word in ["text", "rodata", "data", "bss", "Base of the executable", "merge-read-only", "max-page-size"] {
        ensure!(text.contains(word), "`{word}` is not said:\n{text}");
    }
    let plan = json(t, &["inspect", "--json", "--pages", "thp", &path])?;
    let best = number(&plan["bases"]["best"]["covered"], "text")?;
    let huge = default_huge_page()?;
    watch(t, t.lifted(&["--pages", "thp"], &program.command()?)?, |view| {
        let text = check_lifted(view, view.executable()?, &[Kind::Text], huge, |_| Source::Thp)?;
        ensure!(text == best, "inspect promised {best} bytes of code, {text} are lifted");
        Ok(())
    })?;
    Ok(())
}

fn inspect_process(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    watch(t, program, |view| {
        let pid = view.pid.to_string();
        let text = t.run(t.pagelift(&["inspect", &pid])?)?.success()?.stdout;
        ensure!(text.contains("pie_by_default") && text.contains("text"), "{text}");
        let plan = json(t, &["inspect", "--json", &pid])?;
        ensure!(plan["plan"]["lifts"].as_array().is_some_and(|lifts| !lifts.is_empty()), "nothing to lift: {plan}");
        Ok(())
    })?;
    Ok(())
}

/// A small generator of numbers: the same ones each time, so that failures can be reproduced.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// A copy that is truncated or has changed bytes in its headers.
fn damaged(original: &[u8], numbers: &mut Numbers, round: usize) -> Vec<u8> {
    let mut bytes = original.to_vec();
    if round.is_multiple_of(3) {
        let short = if round.is_multiple_of(2) { 2000 } else { bytes.len() };
        bytes.truncate(numbers.below(short));
        return bytes;
    }
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(1000.min(bytes.len()));
        bytes[at] = [0, 1, 0x7f, 0x80, 0xff, numbers.below(256) as u8][numbers.below(6)];
    }
    bytes
}

fn inspect_damaged(t: &Context) -> Result<()> {
    let original = fs::read("/bin/true")?;
    let path = t.folder().join("damaged");
    let mut numbers = Numbers(1);
    for round in 0..66 {
        fs::write(&path, damaged(&original, &mut numbers, round))?;
        let output = t.run(t.pagelift(&["inspect", &path.to_string_lossy()])?)?;
        let sound = matches!(output.ending, Ending::Exit(0..=2 | 125)) && !output.stderr.contains("panicked");
        ensure!(sound, "round {round}: {output:?}");
    }
    Ok(())
}

/// A damaged program has the same result under Pagelift as without.
fn run_damaged(t: &Context) -> Result<()> {
    let original = fs::read(Program::named("start/no_libc.S")?.build()?)?;
    let mut numbers = Numbers(2);
    for round in 0..40 {
        let path = t.folder().join(format!("damaged-{round}"));
        let bytes = t.folder().join("bytes");
        fs::write(&bytes, damaged(&original, &mut numbers, round))?;
        fs::set_permissions(&bytes, fs::Permissions::from_mode(0o755))?;
        // If this process wrote the file, a child that another test just forks might keep it open for writing
        // (ETXTBSY).
        let mut copy = Command::new("cp");
        copy.arg("-p").arg(&bytes).arg(&path);
        t.run(copy)?.success()?;
        // env(1) executes it as a launcher does, shell fallback included.
        let mut plain = Command::new("env");
        plain.arg("-C").arg(t.folder()).arg(&path);
        let lifted = t.lifted(&["-q", "--pages", "thp"], &Command::new(&path))?;
        let mut lifted_there = Command::new("env");
        lifted_there.arg("-C").arg(t.folder()).arg(lifted.get_program()).args(lifted.get_args());
        let (plain, lifted) = (t.run(plain)?, t.run(lifted_there)?);
        let same = plain.ending == lifted.ending && plain.stdout == lifted.stdout;
        ensure!(same, "round {round}: plain {plain:?}\nlifted {lifted:?}");
        fs::remove_file(path)?;
    }
    Ok(())
}

fn status_of_process(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    watch(t, t.lifted(&["--pages", "thp"], &program)?, |view| {
        let pid = view.pid.to_string();
        let status = json(t, &["status", "--json", &pid])?;
        let huge = status["total"]["huge"].as_array().context("a list")?;
        let bytes: u64 = huge.iter().map(|entry| entry["bytes"].as_u64().unwrap_or(0)).sum();
        ensure!(bytes == view.huge_bytes(), "status says {bytes}, smaps {}", view.huge_bytes());
        let text = t.run(t.pagelift(&["status", &pid])?)?.success()?.stdout;
        for word in ["pie_by_default", "text", "rodata", "bss", "[heap]", "thp"] {
            ensure!(text.contains(word), "`{word}` is not said:\n{text}");
        }
        Ok(())
    })?;
    Ok(())
}

fn status_of_all(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    watch(t, t.lifted(&["--pages", "thp"], &program)?, |view| {
        let pid = view.pid.to_string();
        let text = t.run(t.pagelift(&["status"])?)?.success()?.stdout;
        ensure!(text.contains(&pid), "process {pid} is not in the list:\n{text}");
        let status = json(t, &["status", "--json"])?;
        let processes = status["processes"].as_array().context("a list")?;
        ensure!(processes.iter().any(|p| p["pid"] == view.pid), "process {pid} is not in the list: {status}");
        Ok(())
    })?;
    Ok(())
}

/// If Rust is missing or too old, `make` prints the command that installs it.
/// Commands that take a process by an option name the option.
fn process_as_command(t: &Context) -> Result<()> {
    let pid = std::process::id().to_string();
    for (words, fix) in [
        ("stat", "fix: pagelift stat -p "),
        ("stat --", "fix: pagelift stat -p "),
        ("estimate", "fix: pagelift estimate -p "),
        ("bench", "fix: pagelift bench --toggle "),
        ("run --", "fix: pagelift attach "),
        ("shootdowns", "a process is given as -p "),
    ] {
        let words: Vec<&str> = words.split(' ').chain([pid.as_str()]).collect();
        let output = t.run(t.pagelift(&words)?)?;
        ensure!(output.ending != Ending::Exit(0) && output.stdout.is_empty(), "{output:?}");
        ensure!(output.stderr.contains(&format!("{fix}{pid}")), "{words:?}: {}", output.stderr);
    }
    Ok(())
}

fn make_without_rust(t: &Context) -> Result<()> {
    let old = t.folder().join("old-cargo");
    write_script(t, &old, "#!/bin/sh\necho 'cargo 1.63.0 (fd9c4297c 2022-07-01)'\n")?;
    for (cargo, wanted) in [("/no/cargo", "sh.rustup.rs"), (&*old.to_string_lossy(), "1.63.0")] {
        let mut make = Command::new("make");
        make.arg("-C").arg(workspace()).arg(format!("CARGO={cargo}"));
        let output = t.run(make)?;
        ensure!(output.ending != Ending::Exit(0), "make went on without Rust");
        let needs_rust = output.stderr.contains("Pagelift needs Rust") && output.stderr.contains("rustup");
        ensure!(needs_rust && output.stderr.contains(wanted), "it says\n{}", output.stderr);
    }
    Ok(())
}

fn install(t: &Context) -> Result<()> {
    ensure!(target_folder().join("release/pagelift").exists(), "nothing is built; run `make` first");
    let root = t.folder().join("root");
    let mut make = Command::new("make");
    make.arg("-C").arg(workspace()).args(["install", "PREFIX=/opt/lift"]).arg(format!("DESTDIR={}", root.display()));
    t.run(make)?.success()?;
    let prefix = root.join("opt/lift");
    for file in [
        "bin/pagelift",
        "libexec/pagelift/pagelift-measure",
        "libexec/pagelift/pagelift-demo-program",
        "share/man/man1/pagelift.1",
        "share/man/man1/pagelift-run.1",
        "share/bash-completion/completions/pagelift",
        "share/zsh/site-functions/_pagelift",
        "share/fish/vendor_completions.d/pagelift.fish",
        "share/doc/pagelift/pagelift.spdx.json",
        "share/doc/pagelift/README.md",
        "share/doc/pagelift/docs/guides/services.md",
        "share/man/man3/libpagelift.3",
        "lib/systemd/system/pagelift-cache.service",
        "lib/systemd/system/pagelift-cache.timer",
    ] {
        let length = fs::metadata(prefix.join(file)).with_context(|| format!("no {file}"))?.len();
        ensure!(length > 100, "{file} has {length} bytes");
    }
    let outside = fs::read_dir(&root)?.flatten().filter(|entry| entry.file_name() != "opt").count();
    ensure!(outside == 0, "something was put outside of PREFIX");
    check_links(&prefix.join("share/doc/pagelift"))?;
    installed_program_works(t, &prefix)
}

/// Links between the installed pages lead to files.
fn check_links(folder: &Path) -> Result<()> {
    let pages = ["", "docs", "docs/guides", "docs/internals"].map(|name| fs::read_dir(folder.join(name)));
    let pages = pages.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().flatten();
    let mut links = 0;
    for page in pages.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|name| name == "md")) {
        let text = fs::read_to_string(&page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if link.is_empty() || link.starts_with("http") {
                continue;
            }
            let target = page.parent().context("no folder")?.join(link);
            ensure!(target.exists(), "{}: no {link}", page.display());
            links += 1;
        }
    }
    ensure!(links > 50, "{links} links");
    Ok(())
}

fn installed_program_works(t: &Context, prefix: &Path) -> Result<()> {
    let mut version = Command::new(prefix.join("bin/pagelift"));
    version.arg("--version");
    let version = t.run(version)?.success()?.stdout;
    ensure!(version.starts_with("pagelift "), "{version}");
    let mut completion = Command::new("bash");
    let script = prefix.join("share/bash-completion/completions/pagelift");
    completion.args(["-ec", &format!(". {}; complete -p pagelift", script.display())]);
    t.run(completion)?.success()?;
    let mut demo = Command::new(prefix.join("bin/pagelift"));
    demo.args(["run", "--pages", "thp", "--dry-run", "--"]).arg(prefix.join("libexec/pagelift/pagelift-demo-program"));
    let plan = t.run(demo)?.success()?;
    ensure!((plan.stdout + &plan.stderr).contains("text"), "no plan of the demo program");
    Ok(())
}
