//! Resources that can run short or be refused: the pool, cgroups, mappings, address space, system calls. The affected
//! range stays unchanged, the rest is lifted, a reason is given, and the program behaves as usual.

use address_space::PageSize;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use test_support::{
    Context, ControlGroup, Ending, Limit, Need, Output, Program, Test, View, copy_program, default_huge_page, main_of,
    pool_file, test_case,
};

fn main() -> ExitCode {
    let mut tests = pool();
    tests.extend(refused_calls());
    tests.extend(refused_by_constructors());
    tests.extend(others());
    main_of(tests)
}

fn gcc() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

fn pool_of(bytes: u64) -> Vec<Need> {
    [gcc(), vec![Need::Pool(bytes)]].concat()
}

/// Runs `every_range` plain and with these words; outputs and protections must be equal. Returns Pagelift's lines, and
/// the bytes on huge pages from the pool and by transparent ones.
fn survives(t: &Context, program: &str, words: &[String], options: &[&str]) -> Result<(Output, u64, u64)> {
    survives_as(t, &Program::named(program)?.command()?, words, options)
}

fn survives_as(t: &Context, program: &Command, words: &[String], options: &[&str]) -> Result<(Output, u64, u64)> {
    let behind = |command: &Command| {
        let Some(first) = words.first() else { return copy(command) };
        let mut launcher = Command::new(first);
        launcher.args(&words[1..]).arg(command.get_program()).args(command.get_args());
        launcher
    };
    let mut plain_protections = String::new();
    let plain = watch(t, behind(program), |view| {
        plain_protections = view.protections(view.executable()?);
        Ok(())
    })?;
    ensure!(plain.ending == Ending::Exit(0), "the plain program: {plain:?}");
    let (mut hugetlb, mut thp) = (0, 0);
    let lifted = watch(t, behind(&t.lifted(options, program)?), |view| {
        let protections = view.protections(view.executable()?);
        ensure!(protections == plain_protections, "protections, plain\n{plain_protections}lifted\n{protections}");
        view.check_read_only_contents(view.executable()?)?;
        hugetlb = view.usages.iter().map(|u| u.hugetlb).sum();
        thp = view.usages.iter().map(|u| u.anonymous_huge).sum();
        Ok(())
    })?;
    ensure!(lifted.ending == plain.ending, "{:?}: {}", lifted.ending, lifted.stderr);
    ensure!(lifted.stdout == plain.stdout, "plain printed\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    ensure!(lifted.foreign_stderr() == plain.stderr, "plain said\n{}\nlifted\n{}", plain.stderr, lifted.stderr);
    t.note(format!("hugetlb {} KiB, thp {} KiB: {}", hugetlb >> 10, thp >> 10, lifted.stderr.trim()));
    Ok((lifted, hugetlb, thp))
}

fn copy(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    copy.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    copy
}

fn watch(t: &Context, command: Command, look: impl FnOnce(&View) -> Result<()>) -> Result<Output> {
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    look(&View::of(session.pid())?).with_context(|| format!("it said {}", session.stderr_so_far().trim()))?;
    session.send("go on\n")?;
    let output = session.finish()?;
    t.keep(&output);
    Ok(output)
}

fn says(output: &Output, words: &[&str]) -> Result<()> {
    let lines = output.own_lines().join("\n");
    for word in words {
        ensure!(lines.contains(word), "`{word}` is not said:\n{lines}");
    }
    Ok(())
}

fn pool() -> Vec<Test> {
    vec![
        test_case("pool/empty", pool_of(0), |t| {
            let (output, hugetlb, thp) =
                survives(t, "start/pie_by_default.c", &[], &["--pages", "hugetlb", "--lift", "text,rodata"])?;
            ensure!(hugetlb + thp == 0, "{hugetlb} + {thp} bytes are on huge pages");
            says(&output, &["nothing lifted", "pool reserve"])
        }),
        test_case("pool/empty_and_auto_takes_thp", pool_of(0), |t| {
            let (_, hugetlb, thp) = survives(t, "start/pie_by_default.c", &[], &[])?;
            ensure!(hugetlb == 0 && thp > 10 << 20, "hugetlb {hugetlb}, thp {thp}");
            Ok(())
        }),
        test_case("pool/too_small", pool_of(6 << 20), |t| {
            let (output, hugetlb, _) = survives(t, "start/pie_by_default.c", &[], &["--pages", "hugetlb"])?;
            ensure!(hugetlb > 0 && hugetlb <= 6 << 20, "{hugetlb} bytes from a pool of 6 MiB");
            says(&output, &["pool reserve"])?;
            t.pool()?.wait_until_all_free()
        }),
        test_case("pool/too_small_and_auto_fills_up_with_thp", pool_of(6 << 20), |t| {
            // A file on tmpfs is not in huge folios unless it is collapsed.
            let program = PathBuf::from(format!("/dev/shm/pagelift-limits-{}", std::process::id()));
            copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &program)?;
            let survived = survives_as(t, &Command::new(&program), &[], &["--prepare", "never"]);
            fs::remove_file(&program)?;
            let (_, hugetlb, thp) = survived?;
            ensure!(hugetlb > 0 && thp > 6 << 20, "hugetlb {hugetlb}, thp {thp}");
            Ok(())
        }),
        test_case("pool/too_small_and_writable_pages_wanted", pool_of(10 << 20), |t| {
            let options = ["--pages", "hugetlb", "--writable-pages", "hugetlb"];
            survives(t, "start/pie_by_default.c", &[], &options)?;
            survives(t, "start/data_and_bss_over_1_gib.c", &[], &[&options[..], &["--max-memory", "4G"]].concat())?;
            Ok(())
        }),
        test_case("pool/promised_to_another_process", pool_of(24 << 20), promised_pages),
        test_case("pool/overcommit_is_enough", pool_of(0), overcommit),
        test_case("pool/require_makes_it_an_error", pool_of(0), |t| {
            let program = Program::named("start/pie_by_default.c")?.command()?;
            let output = t.run(t.lifted(&["--pages", "hugetlb", "--require"], &program)?)?;
            ensure!(output.ending == Ending::Exit(125) && output.stdout.is_empty(), "it ran: {output:?}");
            says(&output, &["pool reserve"])
        }),
        test_case("pool/require_with_enough", pool_of(64 << 20), |t| {
            survives(t, "start/pie_by_default.c", &[], &["--pages", "hugetlb", "--require"]).map(drop)
        }),
        test_case("pool/of_1_gib_pages", gigantic_needs(), gigantic_pages),
        test_case("pool/hugetlb_cgroup_limit", pool_of(64 << 20), |t| hugetlb_cgroup(t, Limit::HugePages)),
        test_case("pool/hugetlb_cgroup_reservation_limit", pool_of(64 << 20), |t| {
            hugetlb_cgroup(t, Limit::PromisedHugePages)
        }),
    ]
}

/// A lift must not take free pages that are reserved for another process's mapping.
fn promised_pages(t: &Context) -> Result<()> {
    let holder = Program::named("start/reserves_huge_pages.c")?.build()?;
    let mut holding = Command::new(holder);
    holding.arg((20 << 20).to_string());
    let mut holder = t.session(holding)?;
    holder.wait_for_line("ready")?;
    let (_, hugetlb, _) = survives(t, "start/pie_by_default.c", &[], &["--pages", "hugetlb"])?;
    ensure!(hugetlb <= 4 << 20, "{hugetlb} bytes were taken, 4 MiB were free");
    holder.send("go on\n")?;
    let output = holder.finish()?.success().context("the holder of the promise was harmed")?;
    ensure!(output.stdout.contains("all pages are there"), "{output:?}");
    Ok(())
}

fn overcommit(t: &Context) -> Result<()> {
    let file = pool_file(default_huge_page()?, "nr_overcommit_hugepages");
    fs::write(&file, "32")?;
    let result = survives(t, "start/pie_by_default.c", &[], &["--pages", "hugetlb"]);
    fs::write(&file, "0")?;
    let (_, hugetlb, _) = result?;
    ensure!(hugetlb > 10 << 20, "{hugetlb} bytes of surplus pages");
    Ok(())
}

/// At any base, the bss holds one or two whole pages of this size.
const GIGANTIC_PAGES: u64 = 2;

fn gigantic_needs() -> Vec<Need> {
    let pool = PageSize::new(1 << 30).map(|page| Need::PoolOf(page, GIGANTIC_PAGES));
    [gcc(), vec![Need::Root, Need::Memory(6 << 30)], pool.into_iter().collect()].concat()
}

fn gigantic_pages(t: &Context) -> Result<()> {
    let options = ["--pages", "hugetlb", "--page-size", "1G", "--writable-pages", "hugetlb", "--lift", "bss"];
    let (output, hugetlb, _) =
        survives(t, "start/bss_of_several_gib.c", &[], &[&options[..], &["--max-memory", "3G"]].concat())?;
    ensure!([1 << 30, 2 << 30].contains(&hugetlb), "{hugetlb} bytes on 1 GiB pages: {}", output.stderr);
    says(&output, &["1 GiB pages"])?;
    t.pool()?.wait_until_free(GIGANTIC_PAGES)
}

/// The pool has enough pages, the cgroup does not: with the plain limit, a fault beyond it would be SIGBUS.
fn hugetlb_cgroup(t: &Context, limit: fn(PageSize) -> Limit) -> Result<()> {
    let huge = default_huge_page()?;
    let group = ControlGroup::with(t, limit(huge), 3 * huge.bytes())?;
    let options = ["--pages", "hugetlb", "--writable-pages", "hugetlb"];
    let (output, hugetlb, _) = survives(t, "start/pie_by_default.c", &group.words(), &options)?;
    ensure!(hugetlb <= 3 * huge.bytes(), "{hugetlb} bytes, more than the group's limit");
    ensure!(!output.own_lines().is_empty(), "nothing is said");
    t.pool()?.wait_until_all_free()
}

/// A seccomp filter refuses each call that a lift may make, with the errnos of common filters.
fn refused_calls() -> Vec<Test> {
    let refusals = [
        "mremap:1",
        "mremap:38",
        "madvise:1",
        "madvise:22",
        "process_madvise:1",
        "ptrace:1",
        "ptrace:38",
        "process_vm_readv:1",
        "process_vm_writev:38",
        "prctl:1",
        "memfd_create:1",
        "userfaultfd:1",
        "munmap:1",
    ];
    let mut tests = Vec::new();
    for refusal in refusals {
        let body = move |t: &Context, options: &[&str]| {
            // If ptrace is refused, the library would lift it from inside; this test forbids that.
            let options =
                if refusal.starts_with("ptrace") { &[options, &["--via", "ptrace"]].concat() } else { options };
            let launcher = Program::named("start/starts_another_with.c")?.build()?.to_string_lossy().into_owned();
            let (output, ..) =
                survives(t, "start/pie_by_default.c", &[launcher, format!("refuse={refusal}"), "--".into()], options)?;
            ensure!(output.own_lines().len() == 1, "not one line: {}", output.stderr);
            Ok(())
        };
        let name = refusal.replace(':', "_by_errno_");
        tests.push(test_case(format!("refused/{name}/thp"), gcc(), move |t| body(t, &["--pages", "thp"])));
        tests.push(test_case(format!("refused/{name}/hugetlb"), pool_of(64 << 20), move |t| {
            body(t, &["--pages", "hugetlb", "--writable-pages", "hugetlb"])
        }));
    }
    tests
}

/// Filters that the program installs before its entry.
fn refused_by_constructors() -> Vec<Test> {
    let sandboxed = |t: &Context, action: &str, refuses: &str| {
        let mut program = Program::named("start/sandboxed_by_a_constructor.c")?.command()?;
        program.env("ACTION", action).env("REFUSES", refuses);
        survives_as(t, &program, &[], &["--pages", "thp"])
    };
    let mut tests = Vec::new();
    for action in ["kill", "trap", "errno", "notify", "trace"] {
        for call in ["rt_sigprocmask", "getpid", "tgkill", "munmap"] {
            tests.push(test_case(format!("refused_by_a_constructor/{call}/{action}"), gcc(), move |t| {
                let (output, _, thp) = sandboxed(t, action, call)?;
                ensure!(thp == 0, "{thp} bytes are on huge pages");
                says(&output, &["its seccomp filter does not let it call", call])
            }));
        }
        // One call is never needed by a lift, the other only for code.
        tests.push(test_case(format!("refused_by_a_constructor/gettid/{action}"), gcc(), move |t| {
            let (_, _, thp) = sandboxed(t, action, "gettid")?;
            ensure!(thp > 4 << 20, "{thp} bytes are on huge pages");
            Ok(())
        }));
        tests.push(test_case(format!("refused_by_a_constructor/mremap/{action}"), gcc(), move |t| {
            sandboxed(t, action, "mremap").map(drop)
        }));
    }
    tests
}

fn behind(
    words: &'static [&'static str],
    options: &'static [&'static str],
) -> impl Fn(&Context) -> Result<(Output, u64, u64)> {
    move |t| {
        let launcher = Program::named("start/starts_another_with.c")?.build()?.to_string_lossy().into_owned();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        survives(t, "start/pie_by_default.c", &[vec![launcher], words, vec!["--".to_owned()]].concat(), options)
    }
}

fn others() -> Vec<Test> {
    let mdwe = [gcc(), vec![Need::Kernel(6, 3)]].concat();
    vec![
        test_case("other/memory_deny_write_execute", mdwe, |t| {
            let (output, _, thp) = behind(&["mdwe"], &["--pages", "thp"])(t)?;
            ensure!(thp > 0, "not even data is lifted: {}", output.stderr);
            Ok(())
        }),
        test_case("other/thp_switched_off_for_the_process", gcc(), |t| {
            let (output, hugetlb, thp) = behind(&["no-thp"], &["--pages", "thp"])(t)?;
            ensure!(hugetlb + thp == 0, "hugetlb {hugetlb}, thp {thp}");
            // Compaction would not help here.
            ensure!(!output.stderr.contains("compact_memory"), "a wrong reason: {}", output.stderr);
            says(&output, &["THP"])
        }),
        test_case("other/little_address_space", gcc(), |t| {
            // RLIMIT_AS leaves the program a few MiB more than it needs.
            behind(&["limit=9:36000000:36000000"], &["--pages", "thp"])(t).map(drop)
        }),
        test_case("other/no_data_segment_growth", gcc(), |t| {
            behind(&["limit=2:20000000:20000000"], &["--pages", "thp"])(t).map(drop)
        }),
        test_case("other/no_locked_memory", pool_of(64 << 20), |t| {
            let (_, hugetlb, _) = behind(&["limit=8:0:0"], &["--pages", "hugetlb"])(t)?;
            ensure!(hugetlb > 10 << 20, "{hugetlb} bytes");
            Ok(())
        }),
        test_case("other/max_map_count_is_reached/thp", gcc(), |t| few_mappings_left(t, &["--pages", "thp"])),
        test_case("other/max_map_count_is_reached/hugetlb", pool_of(64 << 20), |t| {
            few_mappings_left(t, &["--pages", "hugetlb", "--writable-pages", "hugetlb"])
        }),
        test_case("other/memory_cgroup_is_nearly_full", [gcc(), vec![Need::Root]].concat(), memory_cgroup),
        test_case("other/untouched_bss_is_not_populated/thp", gcc(), |t| untouched_bss(t, &["--pages", "thp"])),
        test_case("other/untouched_bss_is_not_populated/hugetlb", pool_of(64 << 20), |t| {
            untouched_bss(t, &["--pages", "hugetlb"])
        }),
        test_case("other/max_memory_is_kept", gcc(), max_memory),
    ]
}

fn few_mappings_left(t: &Context, options: &[&str]) -> Result<()> {
    for left in [0, 8] {
        let words = ["env".to_owned(), format!("MAPPINGS_LEFT={left}")];
        survives(t, "start/near_the_limit_of_mappings.c", &words, options).with_context(|| format!("{left} left"))?;
    }
    Ok(())
}

/// An unused gigabyte is advised, not made resident; only the pages of its two used words may be resident.
fn untouched_bss(t: &Context, options: &[&str]) -> Result<()> {
    let report = t.folder().join("report.json");
    let report_path = report.to_string_lossy().into_owned();
    let program = Program::named("start/large_untouched_bss.c")?.command()?;
    let output = watch(t, t.lifted(&[options, &["--report", &report_path]].concat(), &program)?, |view| {
        let resident: u64 = view.usages.iter().map(|usage| usage.resident_with_hugetlb()).sum();
        ensure!(resident < 24 << 20, "{} MiB are resident", resident >> 20);
        Ok(())
    })?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.ends_with("3\n"), "{output:?}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let advised = report["advised_bytes"].as_u64().context("no advised_bytes")?;
    ensure!(advised > 1000 << 20, "{advised} bytes are advised");
    Ok(())
}

/// If the memory just suffices for the plain program, a lift must not cause its kill.
fn memory_cgroup(t: &Context) -> Result<()> {
    for limit in [24 << 20, 28 << 20, 36 << 20, 48 << 20] {
        let group = ControlGroup::with(t, Limit::Memory, limit)?;
        survives(t, "start/pie_by_default.c", &group.words(), &["--pages", "thp"])
            .with_context(|| format!("{} MiB are allowed", limit >> 20))?;
    }
    Ok(())
}

fn max_memory(t: &Context) -> Result<()> {
    for (limit, most) in [("0", 0), ("1M", 1 << 20), ("5M", 5 << 20), ("9M", 9 << 20)] {
        let report = t.folder().join("report.json");
        let report_path = report.to_string_lossy().into_owned();
        let options = ["--pages", "thp", "--max-memory", limit, "--report", &report_path];
        survives(t, "start/pie_by_default.c", &[], &options).with_context(|| format!("--max-memory {limit}"))?;
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
        let resident = report["made_resident_bytes"].as_u64().context("no made_resident_bytes")?;
        ensure!(resident <= most, "--max-memory {limit}: {resident} bytes were made resident");
    }
    Ok(())
}
