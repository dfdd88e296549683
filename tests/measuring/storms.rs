//! Storms of an allocator that the test builds, on Pagelift's own heap, in code on huge pages, and in code loaded
//! later.

use crate::counts::is_counting;
use crate::{
    LARGE, LARGE_ZEROED, SMALL, ended, first_finding, is_cured, names_allocator, seen, seen_by, storm, storm_by,
};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, Need, Program, Session, Skipped, Test, default_huge_page, pagelift_binary, poll_until, test_case,
    workspace,
};

/// Bytes of the heap in [`SMALL`] storms: blocks of three threads, and some room.
const HEAP: u64 = 160 << 20;
/// Longest time in which a storm takes two seconds of CPU time.
const STORM: Duration = Duration::from_secs(100);
/// Bytes of the code in storms_in_large_code.c, and its edges.
const CODE: u64 = 16 << 20;

pub fn tests(needs: &[Need]) -> Vec<Test> {
    let with = |need: Need| [needs, &[need]].concat();
    vec![
        test_case("mimalloc_3_is_named_and_cured", with(Need::Command("cargo".into())), mimalloc_3),
        test_case("our_heap_sends_none/thp", with(Need::Thp), |t| {
            our_heap(t, &[SMALL, LARGE, LARGE_ZEROED], &["--heap=thp", "--heap-allocator=mimalloc"])
        }),
        test_case("our_heap_sends_none/hugetlb", with(Need::Pool(HEAP)), |t| {
            let options = [format!("--heap={}", default_huge_page()?.bytes()), format!("--heap-reserve={HEAP}")];
            our_heap(t, &[SMALL], &options.each_ref().map(String::as_str))
        }),
        test_case("our_heap_zeroes_in_place", our_heap_needs(), our_heap_zeroes_in_place),
        test_case("our_heap_is_named", with(Need::Thp), our_heap_is_named),
        test_case("lifted_code_is_named/thp", with(Need::Thp), |t| lifted_code(t, "thp")),
        test_case("lifted_code_is_named/hugetlb", with(Need::Pool(CODE)), |t| lifted_code(t, "hugetlb")),
        test_case("code_that_is_loaded_later_is_named", needs.to_vec(), loaded_later),
        test_case("a_process_that_ends_is_still_named", needs.to_vec(), ends_before_the_watch),
        test_case("forks_are_named", needs.to_vec(), forks),
        test_case("bench_compares_plain_and_calm", vec![], bench),
        test_case("bench_runs_a_storm_plain_and_calm", vec![Need::Command("gcc".into())], bench_of_a_storm),
        test_case("bench_loads_a_storm_plain_and_calm", vec![Need::Command("gcc".into())], bench_of_a_server),
    ]
}

/// Builds the mimalloc that Pagelift's heap uses, from the source that cargo has.
fn mimalloc_3_library(t: &Context) -> Result<String> {
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform"]);
    metadata.arg("x86_64-unknown-linux-gnu").current_dir(workspace());
    let metadata: Value = serde_json::from_str(&t.run(metadata)?.success()?.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let package = packages.iter().find(|package| package["name"] == "libmimalloc-sys").context("no libmimalloc-sys")?;
    let manifest = Path::new(package["manifest_path"].as_str().context("no manifest")?);
    let source = manifest.with_file_name("c_src").join("mimalloc/v3");
    let library = t.folder().join("libmimalloc.so.3");
    let mut build = Command::new("gcc");
    build.args(["-O2", "-w", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-fno-builtin-malloc"]);
    build.args(["-ftls-model=initial-exec", "-DNDEBUG", "-DMI_MALLOC_OVERRIDE", "-DMI_SHARED_LIB"]);
    build.args(["-DMI_SHARED_LIB_EXPORT", "-I"]).arg(source.join("include")).arg(source.join("src/static.c"));
    build.arg("-o").arg(&library);
    t.run(build)?.success()?;
    Ok(library.to_string_lossy().into_owned())
}

fn mimalloc_3(t: &Context) -> Result<()> {
    let library = mimalloc_3_library(t)?;
    let (words, preload) = (["malloc", "1048576", "64"], [("LD_PRELOAD", library.as_str())]);
    let storms = seen(t, &words, &preload)?;
    names_allocator(&storms.0, "mimalloc", "by madvise")?;
    let cure = &first_finding(&storms.0)?["cures"][0];
    ensure!(cure["variable"] == "MIMALLOC_PURGE_DELAY" && cure["value"] == "-1", "{cure}");
    is_cured(t, storm(t, &words, &preload, true)?, &storms)
}

/// If Pagelift's heap replaces glibc's, the same storms send at most 5 % of the shootdowns.
fn our_heap(t: &Context, storms: &[[&str; 3]], options: &[&str]) -> Result<()> {
    for words in storms {
        let plain = seen(t, words, &[])?;
        let program = Program::named("measuring/storms.c")?.build()?;
        let mut command = t.pagelift(&[&["run", "--quiet"], options, &["--"]].concat())?;
        command.arg(program).args(words);
        let session = storm_by(t, command)?;
        let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
        ensure!(maps.contains("libpagelift_heap.so"), "its heap is not ours:\n{maps}");
        is_cured(t, session, &plain)?;
    }
    Ok(())
}

fn our_heap_needs() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Command("strace".into()), Need::Thp]
}

/// Blocks with few touched pages are cleared page by page: MADV_DONTNEED for the untouched parts would free no page,
/// but would interrupt other CPUs if two threads do it at the same time.
fn our_heap_zeroes_in_place(t: &Context) -> Result<()> {
    const ROUNDS: usize = 100;
    const ZEROED: usize = ROUNDS * 3 * 4;
    if fs::read_to_string("/proc/swaps")?.lines().count() > 1 {
        return Err(Skipped("pages may be swapped out here, and are then given back".to_owned()).into());
    }
    let library = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    let calls = t.folder().join("calls");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "--seccomp-bpf", "-e", "trace=madvise", "-o"]).arg(&calls);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library.display())).args(["-E", "PAGELIFT=heap=thp only=storms*"]);
    command.arg(Program::named("measuring/storms.c")?.build()?).args(LARGE_ZEROED).arg(ROUNDS.to_string());
    let output = t.run(command)?.success()?;
    ensure!(output.stderr.contains("heap: on transparent huge pages"), "{}", output.stderr);
    let calls = fs::read_to_string(calls)?;
    let given_back = calls.matches("MADV_DONTNEED").count();
    // Each block is returned to the kernel only once, when it moves to ordinary pages.
    ensure!(calls.contains("MADV_NOHUGEPAGE") && given_back <= ZEROED / 10, "{given_back} for {ZEROED}:\n{calls}");
    Ok(())
}

/// The heap's remaining shootdowns are not attributed to mimalloc, whose setting would not end them: single blocks of
/// this size are returned to the kernel when freed.
fn our_heap_is_named(t: &Context) -> Result<()> {
    let program = Program::named("measuring/storms.c")?.build()?;
    let start = || {
        let mut command = t.pagelift(&["run", "--quiet", "--heap=thp", "--heap-allocator=mimalloc", "--"])?;
        command.arg(&program).args(["malloc", "150994944", "1"]);
        storm_by(t, command)
    };
    let (report, _) = seen_by(t, start)?;
    names_allocator(&report, "Pagelift's heap", "by madvise")?;
    let finding = first_finding(&report)?;
    ensure!(finding["cures"].as_array().is_some_and(Vec::is_empty), "{finding}");
    ensure!(finding["advice"]["says"].as_str().is_some_and(|says| says.contains("no setting")), "{finding}");
    Ok(())
}

fn lifted_code(t: &Context, pages: &str) -> Result<()> {
    let program = Program::named("measuring/storms_in_large_code.c")?.build()?;
    let start = || {
        let mut command = t.pagelift(&["run", "--quiet", "--lift=text", "--pages", pages, "--require", "--"])?;
        command.arg(&program).args(SMALL);
        let session = storm_by(t, command)?;
        ensure!(has_lifted_code(&session)?, "no code on other pages than those of its file");
        Ok(session)
    };
    let (report, _) = seen_by(t, start)?;
    names_allocator(&report, "glibc 2.", "by madvise")
}

/// True if 4 MiB of code or more are in memory that does not map the file.
fn has_lifted_code(session: &Session) -> Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
    let is_lifted = |line: &str| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let bytes = u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(begin, 16).ok()?)?;
        let is_code = words.next()?.contains('x');
        Some(is_code && bytes >= 4 << 20 && !line.contains("storms_in_large_code"))
    };
    Ok(maps.lines().any(|line| is_lifted(line) == Some(true)))
}

/// The watch begins before the process loads the library.
fn loaded_later(t: &Context) -> Result<()> {
    let session = storm_by(t, Command::new(Program::named("measuring/storms_of_a_plugin.c")?.build()?))?;
    let pid = session.pid().to_string();
    let watch = t.session(t.pagelift(&["shootdowns", "-p", &pid, "--for", "3", "--json"])?)?;
    is_counting(&watch)?;
    session.signal(Signal::SIGUSR1)?;
    let report: Value = serde_json::from_str(&watch.finish()?.success()?.stdout)?;
    ended(session)?;
    let paths = report["processes"][0]["paths"].to_string();
    ensure!(paths.contains("storms_by_plugin"), "the library's function is not named: {report:#}");
    Ok(())
}

/// Runs of the arm `calm` have the setting, plain runs do not.
fn bench(t: &Context) -> Result<()> {
    let runs = t.folder().join("runs").display().to_string();
    let note = format!("echo \"tunables: $GLIBC_TUNABLES\" >> {runs}");
    let mut command =
        t.pagelift(&["bench", "--arms", "plain,calm", "--for", "4", "--json", "--", "sh", "-c", &note])?;
    command.env_remove("GLIBC_TUNABLES");
    let answer: Value = serde_json::from_str(&t.run(command)?.success()?.stdout)?;
    ensure!(answer["header"]["arms"] == serde_json::json!(["calm"]), "{:#}", answer["header"]);
    let runs = fs::read_to_string(runs)?;
    let (plain, calm): (Vec<&str>, Vec<&str>) = runs.lines().partition(|line| *line == "tunables: ");
    ensure!(!plain.is_empty() && !calm.is_empty(), "{runs}");
    ensure!(calm.iter().all(|line| line.contains("glibc.malloc.trim_threshold=")), "{runs}");
    let output = t.run(t.pagelift(&["bench", "--arms", "calm", "--toggle", "1"])?)?;
    ensure!(output.stderr.contains("needs a start of the program"), "{output:?}");
    let output = t.run(t.pagelift(&["bench", "--arms", "plain", "--", "true"])?)?;
    ensure!(output.stderr.contains("nothing to compare with plain"), "{output:?}");
    Ok(())
}

/// Checks that an answer compares plain with the cure, and plain with itself.
fn compares_with_the_cure(answer: &Value) -> Result<()> {
    ensure!(answer["header"]["arms"] == serde_json::json!(["calm"]), "{:#}", answer["header"]);
    let arms = answer["answer"]["arms"].as_array().context("no arms")?;
    ensure!(arms.len() == 1 && arms[0]["blocks"].as_u64() > Some(0), "{answer:#}");
    ensure!(answer["answer"]["control"]["blocks"].as_u64() > Some(0), "{answer:#}");
    Ok(())
}

/// Measures a storm that ends after some rounds.
fn bench_of_a_storm(t: &Context) -> Result<()> {
    let program = Program::named("measuring/storms.c")?.build()?.display().to_string();
    let words = ["bench", "--arms", "plain,calm", "--for", "6", "--json", "--", &program];
    let output = t.run(t.pagelift(&[&words[..], &SMALL, &["5"]].concat())?)?.success()?;
    compares_with_the_cure(&serde_json::from_str(&output.stdout)?)
}

/// Measures a storm of a server: 64 blocks for each request.
fn bench_of_a_server(t: &Context) -> Result<()> {
    let program = Program::named("measuring/answers_at_a_price.c")?.build()?;
    let server = format!("'{}' {{port}} 0 0 0 64", program.display());
    let load = "redis://127.0.0.1:{port}?query=PING";
    let words = ["bench", "--settle", "5ms", "--server", &server, "--arms", "calm", "--load", load, "--clients", "3"];
    let more = ["--window", "60ms", "--starts", "2", "--for", "4", "--json"];
    let output = t.run(t.pagelift(&[&words[..], &more].concat())?)?.success()?;
    compares_with_the_cure(&serde_json::from_str(&output.stdout)?)
}

/// CPU time in clock ticks, 100 per second (proc_pid_stat(5)).
fn ticks(session: &Session) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", session.pid())).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// The report has the facts gathered while the program ran, and does not blame the program's own calls.
fn ends_before_the_watch(t: &Context) -> Result<()> {
    let session = storm(t, &SMALL, &[], false)?;
    let pid = session.pid().to_string();
    let watch = t.session(t.pagelift(&["shootdowns", "-p", &pid, "--for", "600", "--json"])?)?;
    is_counting(&watch)?;
    let begin = ticks(&session);
    poll_until(STORM, "the storm to go on", || ticks(&session) > begin + 200)?;
    ended(session)?;
    watch.signal(Signal::SIGINT)?;
    let report: Value = serde_json::from_str(&watch.finish()?.success()?.stdout)?;
    let diagnosis = &report["diagnoses"][0];
    let is_glibc = diagnosis["allocator"].as_str().is_some_and(|name| name.starts_with("glibc 2."));
    let text = diagnosis["findings"][0]["text"].as_str().unwrap_or_default();
    ensure!(is_glibc && text.contains("gives free pages back by madvise"), "{report:#}");
    Ok(())
}

/// The kernel sends shootdowns for a fork and for the later copies of written pages: no setting of an allocator helps.
fn forks(t: &Context) -> Result<()> {
    let start = || storm_by(t, Command::new(Program::named("measuring/storms_of_forks.c")?.build()?));
    let (report, _) = seen_by(t, start)?;
    let findings = report["diagnoses"][0]["findings"].as_array().context("no findings")?;
    let forks = findings.iter().find(|finding| finding["text"] == "the kernel: fork");
    let advice = forks.and_then(|finding| finding["advice"]["says"].as_str());
    ensure!(advice.is_some_and(|says| says.contains("fork")), "{report:#}");
    Ok(())
}
