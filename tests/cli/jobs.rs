//! Five jobs, each by its guide: a database administrator, the operator of a service with a storm of TLB shootdowns, the
//! developer of an index in memory, an engineer of compilers and CI, and a packager. Each command that a screen recommends
//! is executed as printed, and all commands give the same answer about one state.

mod answers;
mod postgres;

use answers::{Answers, stays};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, MariadbServer, Need, Output, Program, Session, Skipped, TestStore, main_of_one_at_a_time, mebibytes,
    pagelift_binary, test_case,
};

/// MiB of the index.
const INDEX: &str = "48";
/// Blocks that glibc gives back, as `tests/measuring/shootdowns.rs` has them.
const STORM: &str = "malloc 262144 64";
/// Seconds of the longest watch.
const LONGEST: u32 = 16;
/// Files of a build.
const SOURCES: usize = 3;

fn main() -> ExitCode {
    let needs = |more: &[Need], commands: &[&str]| {
        let commands = commands.iter().map(|&command| Need::Command(command.into()));
        more.iter().cloned().chain(commands).collect()
    };
    let root = [Need::Root, Need::Thp, Need::Pool(0)];
    let storms = [Need::Root, Need::Machine("x86_64".into())];
    // Each test reads the state of the whole machine.
    main_of_one_at_a_time(vec![
        test_case("database_administrator", needs(&root, &["mariadbd", "mariadb-install-db"]), administrator),
        postgres::test(),
        test_case("operator_of_a_service_with_a_storm", needs(&storms, &["gcc"]), operator),
        test_case("developer_of_an_index", needs(&root, &["gcc"]), developer),
        test_case("engineer_of_compilers_and_ci", needs(&root, &["gcc", "g++", "make"]), engineer),
        test_case("operator_of_an_unknown_server", needs(&root, &["python3"]), operator_of_unknown),
        test_case("packager", needs(&root, &["gcc"]), packager),
        test_case("packager_of_prepared_files", needs(&[Need::Root, Need::Thp, Need::LargeFolios], &["gcc"]), preparer),
    ])
}

/// A command as a screen prints it; `pagelift` is the one under test.
fn shell(t: &Context, typed: &str) -> Result<Command> {
    let pagelift = pagelift_binary()?;
    let quoted = format!("'{}'", std::path::absolute(pagelift)?.display());
    let typed = match typed.strip_prefix("pagelift ") {
        Some(words) => format!("exec {quoted} {words}"),
        None => typed.replace("exec pagelift ", &format!("exec {quoted} ")),
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", &typed]).current_dir(t.folder());
    Ok(shell)
}

fn typed(t: &Context, command: &str) -> Result<Output> {
    t.run(shell(t, command)?)?.success().with_context(|| command.to_owned())
}

fn started(t: &Context, command: &str) -> Result<Session> {
    let session = t.session(shell(t, command)?)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// Executes a recommended measurement for a short time. It ends with a decision.
fn measured(t: &Context, command: &str, more: &str) -> Result<String> {
    let rest = command.strip_prefix("pagelift bench ").with_context(|| format!("no measurement: {command}"))?;
    let output = typed(t, &format!("pagelift bench --for 3s {more} {rest}"))?.stdout;
    let is_decision = |line: &str| {
        ["Keep it", "Leave it", "Cannot tell", "Nothing was lifted"].iter().any(|word| line.starts_with(word))
    };
    let decision = output.lines().find(|line| is_decision(line));
    decision.map(str::to_owned).with_context(|| format!("no decision: {output}"))
}

/// The advice of `pagelift doctor` about a command.
fn advice(t: &Context, command: &str) -> Result<Value> {
    let output = t.run(shell(t, &format!("pagelift doctor --json -- {command}"))?)?;
    let report: Value = serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())?;
    Ok(report["verdict"].clone())
}

fn command_of(value: &Value) -> Result<&str> {
    value.as_str().context("no command is recommended")
}

/// Skips a test of programs that begin with small pages, where the kernel gives huge ones to all.
fn starts_small() -> Result<()> {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")?;
    match mode.contains("[always]") {
        true => Err(Skipped("transparent huge pages are set to always".to_owned()).into()),
        false => Ok(()),
    }
}

/// A lift of a server by the command that doctor recommends, its measurement, and the way back.
fn administrator(t: &Context) -> Result<()> {
    starts_small()?;
    for command in ["pagelift inspect $(command -v mariadbd)", "pagelift run --dry-run -- mariadbd --version"] {
        let output = typed(t, command)?;
        // A dry run prints to the standard error of the program.
        let plan = output.stdout + &output.stderr;
        ensure!(plan.lines().next().is_some_and(|line| line.ends_with(" would be on huge pages")), "{plan}");
    }
    let mut server = MariadbServer::prepare(t, "jobs")?;
    server.start(server.command(), Duration::from_secs(900))?;
    let pid = server.started_pid()?;
    let plain = Answers::that_agree(t, pid)?;
    ensure!(plain.huge == "0 B" && plain.added != "0 B", "{plain}");
    // On a CPU with a large TLB little gain is likely: the guide's command.
    let lift = plain.run.clone().unwrap_or_else(|| format!("pagelift attach {pid}"));
    typed(t, &lift)?;
    let lifted = Answers::that_agree(t, pid)?;
    ensure!(lifted.huge != "0 B", "{lifted}");
    ensure!(server.query("SELECT 6 * 7")?.trim() == "42", "no answer after the lift");
    let measure = lifted.measure.as_ref().or(plain.measure.as_ref()).context("nothing measures it")?;
    measured(t, measure, "")?;
    let detached = typed(t, &format!("pagelift detach {pid}"))?.stderr;
    let restored = Answers::that_agree(t, pid)?;
    ensure!(is_near(stays(&detached)?, mebibytes(&restored.huge)?), "{detached}{restored}");
    ensure!(server.query("SELECT 6 * 7")?.trim() == "42", "no answer at the end");
    server.shut_down()
}

/// True if two sums of rounded sizes can be the same.
fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() < 0.2
}

/// A storm is found, and each recommended command ends or measures it.
fn operator(t: &Context) -> Result<()> {
    let program = Program::named("measuring/storms.c")?.build()?.display().to_string();
    let service = format!("'{program}' {STORM}");
    let storm = started(t, &format!("exec {service}"))?;
    let watch = until(t, &storm, |text| text.contains("    cure: "))?;
    let Some(watch) = watch else {
        end(storm)?;
        return Err(Skipped("its threads hardly ran side by side".to_owned()).into());
    };
    Answers::that_agree(t, storm.pid())?;
    end(storm)?;
    let cure = watch.lines().find_map(|line| line.trim().strip_prefix("cure: ")).context("no cure")?;
    let next: Vec<String> = watch
        .lines()
        .skip_while(|line| *line != "Next")
        .filter_map(|line| line.find("pagelift ").map(|at| line[at..].replace("CMD", &service)))
        .collect();
    let [start, measure, _] = next.as_slice() else { anyhow::bail!("not three commands: {watch}") };
    for cured in [start.clone(), format!("exec env '{cure}' {service}")] {
        let session = started(t, &cured)?;
        if cured == *start {
            session.wait_for_stderr(cure)?;
        }
        let is_calm = |text: &str| text.contains(": do nothing\n") || text.contains("sent and received none");
        until(t, &session, is_calm)?.with_context(|| format!("{cured} is no cure"))?;
        end(session)?;
    }
    measured(t, &format!("{measure} 5"), "").map(drop)
}

/// Watches a process until the text is as wanted, longer each time.
fn until(t: &Context, session: &Session, is_wanted: impl Fn(&str) -> bool) -> Result<Option<String>> {
    let mut seconds = 1;
    while seconds <= LONGEST {
        let text = typed(t, &format!("pagelift shootdowns -p {} --for {seconds}s", session.pid()))?.stdout;
        if !text.contains("by the tracepoint") {
            return Err(Skipped("no tracepoint tlb:tlb_flush".to_owned()).into());
        }
        if is_wanted(&text) {
            return Ok(Some(text));
        }
        seconds *= 4;
    }
    Ok(None)
}

fn end(session: Session) -> Result<()> {
    session.signal(Signal::SIGTERM)?;
    session.finish()?.success().map(drop)
}

/// A server with a heap that accepts connections.
const SERVER: &str = "import socket; table = bytearray(64 << 20); s = socket.create_server(('127.0.0.1', 0)); \
     print('ready', flush=True); s.accept()";

/// A server of an unknown kind is measured by a command that ends.
fn operator_of_unknown(t: &Context) -> Result<()> {
    starts_small()?;
    let session = started(t, &format!("exec python3 -c \"{SERVER}\""))?;
    let answers = Answers::that_agree(t, session.pid())?;
    let measure = answers.measure.as_deref().with_context(|| format!("nothing measures it: {answers}"))?;
    ensure!(measure.contains(" --toggle ") || measure.contains(" --server "), "does not end: {measure}");
    session.signal(Signal::SIGKILL)?;
    session.finish().map(drop)
}

/// The heap of a program: at its start, and while it runs.
fn developer(t: &Context) -> Result<()> {
    starts_small()?;
    let program = Program::named("cli/serves_an_index.c")?.build()?.display().to_string();
    let index = format!("'{program}' {INDEX}");
    // The words that both print: a variable, or how the heap is served.
    let inspected = typed(t, &format!("pagelift inspect '{program}'"))?.stdout;
    let way = inspected.split_once("--heap=auto: ").and_then(|(_, way)| way.split_whitespace().next());
    let way = way.with_context(|| inspected.clone())?;
    let doctor = t.run(shell(t, &format!("pagelift doctor -- {index}"))?)?.stdout;
    let advised = doctor.split_once("With run --heap=auto: ").with_context(|| doctor.clone())?.1;
    ensure!(advised.split_whitespace().any(|word| word == way), "{inspected}\n{doctor}");
    let mut plain = started(t, &format!("exec {index}"))?;
    let before = Answers::that_agree(t, plain.pid())?;
    let lift = before.run.clone().unwrap_or_else(|| format!("pagelift attach --heap=thp {}", plain.pid()));
    ensure!(before.huge == "0 B", "{before}");
    let attached = typed(t, &lift)?.stderr;
    let after = Answers::that_agree(t, plain.pid())?;
    ensure!(after.huge != "0 B" && attached.contains(&format!(": {} of ", after.huge)), "{attached}{after}");
    let detached = typed(t, &format!("pagelift detach {}", plain.pid()))?.stderr;
    ensure!(detached.contains(&format!("{} of written memory stays", after.huge)), "{detached}{after}");
    plain.send("\n")?;
    plain.finish()?.success()?;
    let mut served = started(t, &format!("exec pagelift run --heap=auto -- {index}"))?;
    let answers = Answers::that_agree(t, served.pid())?;
    ensure!(answers.huge != "0 B", "{answers}");
    served.send("\n")?;
    served.finish()?.success()?;
    // The guide's command if little gain is likely, on a CPU with a large TLB, and for the processes of a service, which do not
    // end by themselves.
    let measure = before.measure.filter(|command| !command.contains(" --server "));
    let measure = measure.unwrap_or_else(|| "pagelift bench --heap=auto -- CMD".to_owned());
    measured(t, &measure.replace("CMD", &format!("{index} 1")), "").map(drop)
}

/// A build whose compilers are lifted, by the names that the screens suggest.
fn engineer(t: &Context) -> Result<()> {
    for index in 0..SOURCES {
        fs::write(t.folder().join(format!("{index}.cc")), format!("int f{index}() {{ return {index}; }}\n"))?;
    }
    let objects: Vec<String> = (0..SOURCES).map(|index| format!("{index}.o")).collect();
    let rules = format!("all: {}\n%.o: %.cc\n\tg++ -c -o $@ $<\nfails:\n\texit 3\n", objects.join(" "));
    fs::write(t.folder().join("Makefile"), rules)?;
    let hint = typed(t, "pagelift run -- g++ -c 0.cc")?.stderr;
    ensure!(hint.contains("`pagelift run --only cc1plus` lifts it"), "{hint}");
    let advice = advice(t, "g++ -c 0.cc")?;
    let lifted = typed(t, command_of(&advice["run"])?)?.stderr;
    ensure!(lifted.contains("cc1plus["), "{lifted}");
    typed(t, "pagelift run -q --only cc1plus,rustc --report lift.jsonl -- make -B -j2")?;
    ensure!(reports(&t.folder().join("lift.jsonl"))?.len() >= SOURCES, "not a report for each compiler");
    let build = typed(t, "pagelift run --only cc1plus --report again.jsonl -- make -B")?.stderr;
    let reports = reports(&t.folder().join("again.jsonl"))?;
    let sum: u64 = reports.iter().sum();
    let line = build.lines().find(|line| line.contains(" processes, ")).with_context(|| build.clone())?;
    let (head, rest) = line.split_once(" processes, ").context("no sum")?;
    ensure!(head.ends_with(&format!("cc1plus: {}", reports.len())), "{line}");
    ensure!(is_near(mebibytes(rest)?, sum as f64 / f64::from(1 << 20)), "{sum} bytes in the reports: {line}");
    let failed = t.run(shell(t, "pagelift run -q --only cc1plus -- make fails")?)?;
    let plain = t.run(shell(t, "make fails")?)?;
    ensure!(failed.ending == plain.ending, "{:?}, plain {:?}", failed.ending, plain.ending);
    let decision = measured(t, command_of(&advice["measure"])?, "-o record.jsonl")?;
    let page = typed(t, "pagelift report --markdown record.jsonl")?.stdout;
    let leads = page.strip_prefix("## ").and_then(|page| page.split_once(": `"));
    ensure!(leads.is_some_and(|(words, _)| decision.starts_with(words)), "{decision}\n{page}");
    Ok(())
}

/// Bytes on huge pages in each report of a compiler.
fn reports(file: &Path) -> Result<Vec<u64>> {
    let covered = |line: &str| {
        let report: Value = serde_json::from_str(line)?;
        ensure!(report["program"] == "cc1plus", "{line}");
        report["covered_bytes"].as_u64().context("no bytes")
    };
    fs::read_to_string(file)?.lines().map(covered).collect()
}

/// A program in a package: aligned, laid out anew, restored, and as an image.
fn packager(t: &Context) -> Result<()> {
    let root = t.folder().join("package");
    let file = root.join("program");
    fs::create_dir(&root)?;
    fs::copy(Program::named("cli/has_constants_and_heap.c")?.build()?, &file)?;
    let original = fs::read(&file)?;
    for (options, done) in [("", "aligned to 2 MiB already"), (" --relayout", "agree with huge pages of 2 MiB already")]
    {
        let check = format!("pagelift align{options} --check package/program");
        let found = typed(t, &check)?.stdout;
        if found.contains(done) {
            // The linker has aligned it.
            continue;
        }
        let fix = found.lines().find_map(|line| line.split_once("; fix: ")).with_context(|| found.clone())?.1;
        typed(t, fix)?;
        let now = typed(t, &check)?.stdout;
        ensure!(now.contains(done) || !is_usual(), "{now}");
        // It may be less than before: a base at which addresses agree with the file costs no memory.
        let planned = typed(t, "pagelift inspect package/program")?.stdout;
        ensure!(first_size(&planned)? > 0.0, "nothing to lift after {fix}: {planned}");
        let mut plain = started(t, "exec package/program")?;
        Answers::that_agree(t, plain.pid())?;
        plain.send("\n")?;
        plain.finish()?.success()?;
        typed(t, "pagelift align --undo package/program")?;
        ensure!(fs::read(&file)? == original, "not restored after {fix}");
    }
    let listed = typed(t, "pagelift align --relayout --root package")?.stdout;
    ensure!(listed.contains("files laid out anew: 1;"), "{listed}");
    typed(t, "pagelift align --undo package/program")?;
    image(t, &file)
}

/// A program whose file is prepared in the page cache.
fn preparer(t: &Context) -> Result<()> {
    fs::copy(Program::named("cli/has_constants_and_heap.c")?.build()?, t.folder().join("program"))?;
    let before = typed(t, "pagelift cache status program")?.stdout;
    typed(t, "pagelift cache prepare program")?;
    let after = typed(t, "pagelift cache status program")?.stdout;
    ensure!(before != after && after.contains("program"), "{before}\n{after}");
    let mut session = started(t, "exec pagelift run --pages file -- ./program")?;
    let answers = Answers::that_agree(t, session.pid())?;
    ensure!(answers.huge != "0 B", "{answers}");
    session.send("\n")?;
    session.finish()?.success()?;
    typed(t, "pagelift cache drop program").map(drop)
}

/// True if huge pages have the size that the texts name.
fn is_usual() -> bool {
    test_support::default_huge_page().is_ok_and(|page| page.bytes() == 2 << 20)
}

/// MiB at the beginning of a plan.
fn first_size(plan: &str) -> Result<f64> {
    mebibytes(plan.split_once(": ").context("no plan")?.1)
}

/// The image of the program is listed, and a start maps it.
fn image(t: &Context, file: &Path) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    store.add(t, file)?;
    ensure!(store.images(t)?.len() == 1, "not one image");
    let listed = store.image(t, "list", &[])?.success()?.stdout;
    ensure!(listed.contains("package/program"), "{listed}");
    let start = format!("exec env PAGELIFT_STORE='{}' '{}'", store.text(), pagelift_binary()?.display());
    let mut session = started(t, &format!("{start} run --pages image -- package/program"))?;
    let answers = Answers::that_agree(t, session.pid())?;
    ensure!(answers.huge != "0 B", "{answers}");
    session.send("\n")?;
    session.finish()?.success()?;
    store.image(t, "remove", &[&file.to_string_lossy()])?.success()?;
    ensure!(store.images(t)?.is_empty(), "the image stays");
    Ok(())
}
