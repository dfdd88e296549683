//! `--heap` under cgroups that allow less than the machine has, and the report of `status`: the program ends correctly,
//! touches no page that the kernel would refuse, and the reason is named. Under limits of address space, freed memory
//! is available again.

use address_space::PageSize;
use anyhow::{Context as _, Result, ensure};
use std::process::{Command, ExitCode};
use test_support::{Context, ControlGroup, Ending, Limit, Need, Program, default_huge_page, main_of, test_case};

const MIB: u64 = 1 << 20;
const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];
const REFUSED: &str = "a limit refused pages that the pool had (cgroup or cpuset)";

fn main() -> ExitCode {
    main_of(vec![
        test_case("pool_pages_in_use", pool_of(80), |t| pages(t, Limit::HugePages)),
        test_case("promised_pool_pages", pool_of(80), |t| pages(t, Limit::PromisedHugePages)),
        test_case("a_reserve_beyond_the_pool_is_reported", pool_of(8), beyond_the_pool),
        test_case("memory/pool_pages_are_not_counted", pool_of(128), |t| memory(t, 80, 128)),
        test_case("memory/the_rest_beside_the_pool", pool_of(40), |t| memory(t, 320, 40)),
        test_case("memory/blocks_up_to_the_limit/large", thp(&[]), |t| fills(t, "large", 194)),
        test_case("memory/blocks_up_to_the_limit/middle", thp(&[]), |t| fills(t, "middle", 196)),
        test_case("memory/blocks_up_to_the_limit/mixed", thp(&[]), |t| fills(t, "mixed", 190)),
        test_case("memory/little_blocks_do_not_count_whole", thp(&[]), little_blocks),
        test_case(
            "status_counts_what_large_blocks_asked_for",
            vec![Need::Command("gcc".into()), Need::Thp],
            large_blocks,
        ),
        test_case("address_space/by_the_program/as", thp(&[]), |t| frees(t, &[], "as")),
        test_case("address_space/by_the_program/data", thp(&[]), |t| frees(t, &[], "data")),
        test_case("address_space/from_the_start/as", thp(&["prlimit"]), |t| {
            frees(t, &["prlimit", "--as=1073741824"], "is-free")
        }),
        test_case("address_space/from_the_start/data", thp(&["prlimit"]), |t| {
            frees(t, &["prlimit", "--data=1073741824"], "is-free")
        }),
        test_case("address_space/a_hopeless_block/no_limit", thp(&[]), |t| frees(t, &[], "hopeless")),
        test_case("address_space/a_hopeless_block/as", thp(&["prlimit"]), |t| {
            frees(t, &["prlimit", "--as=1073741824"], "hopeless")
        }),
        test_case("address_space/as_many_mappings_as_may_be", thp(&[]), |t| frees(t, &[], "mappings")),
        test_case("address_space/in_one_of_as_many_mappings_as_may_be", thp(&[]), |t| frees(t, &[], "one-mapping")),
        test_case("address_space/while_another_thread_trims", thp(&[]), |t| frees(t, &[], "trimmed")),
        test_case("address_space/unmapped_parts_in_use", thp(&[]), |t| frees(t, &[], "taken")),
        test_case("address_space/large_blocks_after_small_ones", thp(&["prlimit"]), after_small_ones),
        test_case(
            "address_space/a_kernel_that_never_overcommits",
            [thp(&["unshare"]), vec![Need::Root]].concat(),
            never_overcommits,
        ),
    ])
}

fn thp(commands: &[&str]) -> Vec<Need> {
    let commands = commands.iter().chain(&["gcc"]).map(|name| Need::Command((*name).to_owned()));
    commands.chain([Need::Thp]).collect()
}

/// Runs the program that frees large blocks, after a command that sets a limit if `before` has one.
fn frees(t: &Context, before: &[&str], word: &str) -> Result<()> {
    let program = Program::named("heap/frees_under_a_limit.c")?.build()?;
    let words: Vec<_> = before.iter().map(AsRef::as_ref).chain([program.as_os_str()]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(word);
    let options = [&THP[..], &["--only", "frees_under_a_limit"]].concat();
    let output = t.run(t.lifted(&options, &command)?)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

/// The memory of freed small blocks is used for large blocks, then for small ones again.
fn after_small_ones(t: &Context) -> Result<()> {
    let program = Program::named("heap/large_blocks_after_small_ones.c")?.build()?;
    let mut command = Command::new("prlimit");
    command.arg("--as=1073741824").arg(program);
    let options = [&THP[..], &["--only", "large_blocks_after_small_ones"]].concat();
    let output = t.run(t.lifted(&options, &command)?)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

/// Only the program sees the setting, since a file is mounted over the kernel's; the machine's setting is unchanged.
fn never_overcommits(t: &Context) -> Result<()> {
    const HIDE: &str = "mount --make-rprivate / && mount --bind setting /proc/sys/vm/overcommit_memory && exec \"$@\"";
    std::fs::write(t.folder().join("setting"), "2\n")?;
    let mut program = Program::named("heap/frees_under_a_limit.c")?.command()?;
    program.arg("is-free");
    let lifted = t.lifted(&THP, &program)?;
    let mut unshare = Command::new("unshare");
    unshare.current_dir(t.folder()).args(["-m", "sh", "-c", HIDE, "sh"]);
    unshare.arg(lifted.get_program()).args(lifted.get_args());
    let output = t.run(unshare)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

fn pool_of(mebibytes: u64) -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp, Need::Pool(mebibytes * MIB)]
}

/// Runs the torture under these options in the group; it ends correctly, and the pool is complete afterwards.
fn torture(t: &Context, group: &ControlGroup, options: &[&str], words: &[&str]) -> Result<()> {
    let mut torture = Program::named("heap/torture.c")?.command()?;
    torture.args(words);
    let output = t.run(group.around(&t.lifted(options, &torture)?))?;
    ensure!(output.ending == Ending::Exit(0), "{options:?}: {:?}: {}", output.ending, output.stderr);
    t.pool()?.wait_until_all_free()
}

/// Limits that leave none, a few, or one arena of the pool's 80 MiB, by each available version of cgroups.
fn pages(t: &Context, limit: fn(PageSize) -> Limit) -> Result<()> {
    let page = default_huge_page()?;
    for allowed in [0, 6 * MIB, 40 * MIB] {
        let (limit, allowed) = (limit(page), allowed / page.bytes() * page.bytes());
        if let Some(group) = ControlGroup::of_version_2(limit, allowed)? {
            t.note("in version 2");
            pages_within(t, &group, page, allowed)?;
        }
        let group = ControlGroup::with(t, limit, allowed)?;
        pages_within(t, &group, page, allowed)?;
    }
    Ok(())
}

/// The heap reserves the whole pool, or takes the pages that it finds.
fn pages_within(t: &Context, group: &ControlGroup, page: PageSize, allowed: u64) -> Result<()> {
    let option = format!("--heap={}", page.bytes());
    let reserve = format!("--heap-reserve={}", 80 * MIB);
    for options in [&[&*option][..], &[&*option, &*reserve]] {
        torture(t, group, options, &["3000", "2", "0", "3"])?;
    }
    if allowed == 0 {
        // The pool has enough pages: the limit must be raised.
        let mut required = t.lifted(&[&*option, "--require"], &Command::new("true"))?;
        required = group.around(&required);
        let output = t.run(required)?;
        let file = group.file();
        ensure!(output.ending == Ending::Exit(125), "{output:?}");
        let needed = format!("fix: echo BYTES > {}", file.display());
        ensure!(
            output.stderr.contains("a cgroup allows no more pages") && output.stderr.contains(&needed),
            "{output:?}"
        );
        ensure!(!output.stderr.contains("pool reserve"), "{output:?}");
        let library = test_support::pagelift_binary()?.with_file_name("libpagelift_heap.so");
        let words = format!("PAGELIFT=heap={} only=seq", page.bytes());
        let mut seq = Command::new("env");
        seq.arg(format!("LD_PRELOAD={}", library.display())).args([&*words, "seq", "1"]);
        let output = t.run(group.around(&seq))?.success()?;
        let said = output.stderr;
        ensure!(said.contains("hugetlb limit") && !said.contains("pool reserve"), "from inside: {said}");
    }
    let holder = Program::named("heap/threads_hold_a_little.c")?.command()?;
    let mut session = t.session(group.around(&t.lifted(&[&*option, &*reserve], &holder)?))?;
    session.wait_for_line("ready")?;
    let status = t.run(t.pagelift(&["status", &session.pid().to_string()])?)?.success()?;
    let heap = heap_of(t, session.pid())?;
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    ensure!(status.stdout.contains(REFUSED) && heap["shortage"] == REFUSED, "{allowed} bytes: {}", status.stdout);
    let taken = heap["pool_taken"].as_u64().context("no pool_taken")?;
    ensure!(taken <= allowed && (taken > 0) == (allowed > 0), "{taken} bytes taken, {allowed} allowed");
    Ok(())
}

fn heap_of(t: &Context, pid: u32) -> Result<serde_json::Value> {
    let status = t.run(t.pagelift(&["status", "--json", &pid.to_string()])?)?.success()?;
    let json: serde_json::Value = serde_json::from_str(&status.stdout)?;
    ensure!(json["preloaded_heap"].is_object(), "no preloaded heap: {json}");
    Ok(json["preloaded_heap"].clone())
}

/// The program runs, and the launcher names the command that makes the pool large enough. `--require` ends the start.
fn beyond_the_pool(t: &Context) -> Result<()> {
    let (page, program) = (default_huge_page()?, Command::new("true"));
    let needed = 2 * t.pool()?.pages() + 64;
    let (heap, reserve) = (format!("--heap={}", page.bytes()), format!("--heap-reserve={}", needed * page.bytes()));
    let fix = format!("fix: pagelift pool reserve {}:{needed}", page.word());
    let output = t.run(t.lifted(&[&heap, &reserve], &program)?)?.success()?;
    ensure!(output.stderr.contains(&format!("free in the pool of {page} pages")), "{}", output.stderr);
    ensure!(output.stderr.contains(&fix), "{}", output.stderr);
    let output = t.run(t.lifted(&[&heap, &reserve, "--require"], &program)?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(&fix), "{output:?}");
    // From inside, too.
    let library = test_support::pagelift_binary()?.with_file_name("libpagelift_heap.so");
    let words = format!("PAGELIFT=heap={} heap-reserve={} only=seq", page.bytes(), needed * page.bytes());
    let mut seq = Command::new("env");
    seq.arg(format!("LD_PRELOAD={}", library.display())).args([&*words, "seq", "1"]);
    let said = t.run(seq)?.success()?.stderr;
    ensure!(said.contains(&fix), "from inside: {said}");
    // Without pool pages there is no reserve.
    for (options, says) in
        [(&["--heap-reserve=64M"][..], "fix: --heap=2M"), (&["--heap=thp", "--heap-reserve=64M"][..], "on pool pages")]
    {
        let said = t.run(t.lifted(options, &program)?)?.success()?.stderr;
        ensure!(said.contains("--heap-reserve has no effect") && said.contains(says), "{options:?}: {said}");
    }
    Ok(())
}

/// The torture takes about 110 MiB with the C library's allocator.
fn memory(t: &Context, allowed: u64, reserve: u64) -> Result<()> {
    let group = ControlGroup::with(t, Limit::Memory, allowed * MIB)?;
    let option = format!("--heap={}", default_huge_page()?.bytes());
    let reserve = format!("--heap-reserve={}", reserve * MIB);
    torture(t, &group, &[&option, &reserve], &["6000", "1", "0", "3", "4"])
}

/// The C library's allocator fits 204 to 209 MB of blocks into this limit.
fn fills(t: &Context, kind: &str, megabytes: u32) -> Result<()> {
    let group = ControlGroup::with(t, Limit::Memory, 200 * MIB)?;
    let mut program = Program::named("heap/fills_a_limit.c")?.command()?;
    program.args([kind, &megabytes.to_string()]);
    let output = t.run(group.around(&t.lifted(&THP, &program)?))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}{}", output.ending, output.stdout, output.stderr);
    Ok(())
}

/// 600 blocks of 4 KiB, each in a separate huge page, take less than 3 MiB. The limit is far, and the rest of the heap stays on
/// huge pages.
fn little_blocks(t: &Context) -> Result<()> {
    let group = ControlGroup::with(t, Limit::Memory, 400 * MIB)?;
    let program = Program::named("heap/holds_little_blocks.c")?.command()?;
    let output = t.run(group.around(&t.lifted(&THP, &program)?))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}{}", output.ending, output.stdout, output.stderr);
    Ok(())
}

fn large_blocks(t: &Context) -> Result<()> {
    let program: Command = Program::named("heap/reuses_large_blocks.c")?.command()?;
    let mut session = t.session(t.lifted(&THP, &program)?)?;
    session.wait_for_line("ready")?;
    let heap = heap_of(t, session.pid())?;
    session.send("\n")?;
    ensure!(session.finish()?.ending == Ending::Exit(0));
    let bytes = |name: &str| heap[name].as_u64().with_context(|| format!("no {name}: {heap}"));
    ensure!(bytes("large_asked")? == 20 * MIB && bytes("large_held")? >= 20 * MIB, "{heap}");
    Ok(())
}
