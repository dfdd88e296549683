//! `pagelift pool` on this machine's own pools. Every test holds the tests' lock on the pool, which restores its size
//! and overcommit.

mod boot;
mod reserved;
mod signals;

use address_space::PageSize;
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Setting, Skipped, default_huge_page, main_of, poll_until, pool_file, test_case,
};

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Pool(0)];
    let with = |more: &[Need]| [needs(), more.to_vec()].concat();
    let node = || with(&[Need::File("/usr/bin/node".into())]);
    let verify = vec![Need::Command("systemd-analyze".into())];
    let mut tests = vec![
        test_case("reserve_makes_pages_available_and_release_gives_them_back", needs(), reserve_and_release),
        test_case("all_or_nothing_leaves_the_pool_as_it_was", needs(), all_or_nothing),
        test_case("the_floor_is_kept", needs(), floor),
        test_case("show_counts_and_names_who_uses_them", with(&[Need::Command("python3".into())]), shown),
        test_case(
            "show_names_files_of_other_mount_namespaces",
            with(&[Need::Command("python3".into()), Need::Command("unshare".into())]),
            shown_of_another_namespace,
        ),
        test_case(
            "show_names_system_v_segments_that_nobody_has_attached",
            with(&[Need::Command("python3".into())]),
            shown_unattached,
        ),
        test_case(
            "show_counts_deleted_files_that_are_mapped",
            with(&[Need::Command("python3".into()), Need::Command("unshare".into())]),
            shown_deleted,
        ),
        test_case(
            "show_names_a_child_that_shares_page_tables",
            with(&[Need::Command("python3".into())]),
            shown_with_shared_tables,
        ),
        test_case("held_pages_that_are_named_go_back_at_once", needs(), held_in_part),
        test_case("overcommit_is_set_and_explained", needs(), overcommitted),
        test_case("a_page_is_demoted", needs(), demoted),
        test_case("held_pages_go_back_when_the_holder_is_ended", needs(), held),
        test_case("for_runs_a_program_on_what_its_plan_needs", node(), lent),
        test_case("for_ends_as_the_program_does", needs(), ended_like_the_program),
        test_case("for_gives_back_after_a_kill", node(), lent_and_killed),
        test_case("an_ordinary_user_is_told_what_is_needed", with(&[Need::Command("setpriv".into())]), as_a_user),
        test_case(
            "a_run_folder_that_cannot_be_written_is_named",
            with(&[Need::Command("unshare".into())]),
            without_run,
        ),
        test_case("plan_shows_what_is_missing", Vec::new(), planned),
        test_case(
            "a_plan_is_the_same_beside_kubernetes",
            vec![Need::Root, Need::Command("unshare".into())],
            planned_beside_kubernetes,
        ),
        test_case("install_and_uninstall_leave_a_tree_as_it_was", Vec::new(), installed),
        test_case("systemd_understands_the_unit", verify, verified),
    ];
    tests.extend(boot::tests());
    tests.extend(reserved::tests());
    tests.extend(signals::tests());
    main_of(tests)
}

/// Runs `pagelift pool` with these words.
fn pool(t: &Context, words: &[&str]) -> Result<Output> {
    t.run(t.pagelift(&[&["pool"], words].concat())?)
}

fn short(page: PageSize) -> String {
    format!("{}K", page.kib())
}

fn count(page: PageSize, file: &str) -> Result<u64> {
    Ok(fs::read_to_string(pool_file(page, file))?.trim().parse()?)
}

fn reserve_and_release(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let request = |pages: u64| format!("{}:{pages}", short(page));
    let before = count(page, "nr_hugepages")?;
    let said = pool(t, &["reserve", &request(6)])?.success()?.stdout;
    ensure!(said.contains("added 6 of 6 pages") && t.pool()?.free()? == 6, "{said}");
    let again = pool(t, &["reserve", &request(6)])?.success()?.stdout;
    ensure!(again.contains("available already") && t.pool()?.free()? == 6, "{again}");
    pool(t, &["reserve", "--add", &request(2)])?.success()?;
    ensure!(t.pool()?.free()? == 8);
    let part = pool(t, &["release", &request(3)])?.success()?.stdout;
    ensure!(part.contains("released 3 pages") && t.pool()?.free()? == 5, "{part}");
    let rest = pool(t, &["release", &format!("{}:all", short(page))])?.success()?.stdout;
    ensure!(rest.contains("released 5 pages") && count(page, "nr_hugepages")? == before, "{rest}");
    Ok(())
}

fn all_or_nothing(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let before = count(page, "nr_hugepages")?;
    let (some, far_too_many) = (format!("{}:4", short(page)), format!("{}:1000000@0", short(page)));
    let output = pool(t, &["reserve", "--all-or-nothing", &some, &far_too_many])?;
    ensure!(output.ending == Ending::Exit(125) && output.stdout.contains("the pool is as before"), "{output:?}");
    ensure!(count(page, "nr_hugepages")? == before, "{output:?}");
    let nowhere = pool(t, &["reserve", &some, &format!("{}:1@99", short(page))])?;
    ensure!(nowhere.ending == Ending::Exit(125) && nowhere.stderr.contains("there is no node 99"), "{nowhere:?}");
    ensure!(count(page, "nr_hugepages")? == before);
    Ok(())
}

fn floor(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let output = pool(t, &["reserve", "--keep-free=1000000G", &format!("{}:4", short(page))])?;
    ensure!(output.ending == Ending::Exit(125) && t.pool()?.free()? == 0, "{output:?}");
    ensure!(output.stdout.contains("added 0 of 4 pages") && output.stdout.contains("--keep-free"), "{output:?}");
    Ok(())
}

/// Maps one page of the pool, shared and System V, and waits.
const USER: &str = "import mmap, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
memory[0] = 1
print('ready', flush=True)
sys.stdin.read()
";

fn shown(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    t.pool()?.resize(3)?;
    let mut python = Command::new("python3");
    python.args(["-c", USER, &page.bytes().to_string()]);
    let session = t.session(python)?;
    session.wait_for_line("ready")?;
    let view: Value = serde_json::from_str(&pool(t, &["show", "--json"])?.success()?.stdout)?;
    let pools = view["pools"].as_array().context("no pools")?;
    let ours = pools.iter().find(|pool| pool["size"] == page.bytes()).context("not the default pool")?;
    for (field, file) in [("total", "nr_hugepages"), ("free", "free_hugepages"), ("surplus", "surplus_hugepages")] {
        ensure!(ours[field] == count(page, file)?, "{field}: {ours}");
    }
    ensure!(ours["available"] == 2 && ours["unexplained"] == 0, "{ours}");
    let users = view["users"]["processes"].as_array().context("no users")?;
    let user = users.iter().find(|user| user["pid"].as_u64().is_some_and(|pid| pid == u64::from(session.pid())));
    let user = user.with_context(|| format!("not named: {users:?}"))?;
    ensure!(user["kind"] == "anonymous" && user["bytes"] == page.bytes(), "{user}");
    let text = pool(t, &["show"])?.success()?.stdout;
    ensure!(text.contains(&format!("[{}]", session.pid())) && text.contains("anonymous memory"), "{text}");
    session.finish()?.success()?;
    Ok(())
}

/// Makes a file of one page on a hugetlbfs, unmaps its memory, and waits.
const FILE: &str = "import mmap, os, sys
size = int(sys.argv[1])
file = os.open('/mnt/held', os.O_CREAT | os.O_RDWR)
os.ftruncate(file, size)
memory = mmap.mmap(file, size)
memory[0] = 1
memory.close()
print('ready', flush=True)
sys.stdin.read()
";

fn shown_of_another_namespace(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    t.pool()?.resize(2)?;
    let mut inside = Command::new("unshare");
    let script = r#"mount -t hugetlbfs -o pagesize="$2" none /mnt && exec python3 -c "$1" "$2""#;
    inside.args(["-m", "sh", "-c", script, "sh", FILE, &page.bytes().to_string()]);
    let session = t.session(inside)?;
    session.wait_for_line("ready")?;
    let view: Value = serde_json::from_str(&pool(t, &["show", "--json"])?.success()?.stdout)?;
    let files = view["users"]["files"].as_array().context("no files")?;
    let file =
        files.iter().find(|file| file["path"] == "/mnt/held").with_context(|| format!("not named: {files:?}"))?;
    ensure!(file["bytes"] == page.bytes() && file["pid"].as_u64() == Some(session.pid().into()), "{file}");
    let pools = view["pools"].as_array().context("no pools")?;
    let ours = pools.iter().find(|pool| pool["size"] == page.bytes()).context("not the default pool")?;
    ensure!(ours["unexplained"] == 0, "{ours}");
    let text = pool(t, &["show"])?.success()?.stdout;
    ensure!(text.contains(&format!("/mnt/held, in the mount namespace of process {}", session.pid())), "{text}");
    session.finish()?.success()?;
    Ok(())
}

/// Maps two pages of a file on a hugetlbfs, the second by a separate mapping, removes the file, and waits.
const DELETED_FILE: &str = "import mmap, os, sys
size = int(sys.argv[1])
file = os.open('/mnt/gone', os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 2 * size)
maps = [mmap.mmap(file, size, offset=part * size) for part in range(2)]
for part in maps:
    part[0] = 1
os.unlink('/mnt/gone')
print('ready', flush=True)
sys.stdin.read()
";

fn shown_deleted(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    t.pool()?.resize(3)?;
    let mut inside = Command::new("unshare");
    let script = r#"mount -t hugetlbfs -o pagesize="$2" none /mnt && exec python3 -c "$1" "$2""#;
    inside.args(["-m", "sh", "-c", script, "sh", DELETED_FILE, &page.bytes().to_string()]);
    let session = t.session(inside)?;
    session.wait_for_line("ready")?;
    let view: Value = serde_json::from_str(&pool(t, &["show", "--json"])?.success()?.stdout)?;
    let pools = view["pools"].as_array().context("no pools")?;
    let ours = pools.iter().find(|pool| pool["size"] == page.bytes()).context("not the default pool")?;
    ensure!(ours["available"] == 1 && ours["unexplained"] == 0, "{ours}");
    let users = view["users"]["processes"].as_array().context("no users")?;
    let of_it: Vec<_> = users.iter().filter(|user| user["pid"].as_u64() == Some(session.pid().into())).collect();
    let [user] = of_it.as_slice() else { anyhow::bail!("not one row: {users:?}") };
    ensure!(user["what"] == "/mnt/gone (deleted)" && user["bytes"] == 2 * page.bytes(), "{user}");
    let files = view["users"]["files"].as_array().context("no files")?;
    ensure!(files.iter().all(|file| file["path"] != "/mnt/gone"), "{files:?}");
    session.finish()?.success()?;
    Ok(())
}

/// Makes a System V segment of one page, writes to it, and detaches it; removes it when standard input ends.
const SEGMENT: &str = "import ctypes, sys
c = ctypes.CDLL(None, use_errno=True)
c.shmat.restype = ctypes.c_void_p
c.shmdt.argtypes = [ctypes.c_void_p]
segment = c.shmget(0, ctypes.c_size_t(int(sys.argv[1])), 0o4000 | 0o1000 | 0o600)
assert segment >= 0, ctypes.get_errno()
address = c.shmat(segment, None, 0)
ctypes.memset(address, 1, 1)
assert c.shmdt(address) == 0
print(segment)
print('ready', flush=True)
sys.stdin.read()
assert c.shmctl(segment, 0, None) == 0
";

fn shown_unattached(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    t.pool()?.resize(2)?;
    let mut python = Command::new("python3");
    python.args(["-c", SEGMENT, &page.bytes().to_string()]);
    let session = t.session(python)?;
    session.wait_for_line("ready")?;
    let said = session.stdout_so_far();
    let id = said.lines().next().context("no identifier")?;
    let text = pool(t, &["show"])?.success()?.stdout;
    for part in
        ["1 x ", "more have users that are not visible here", &format!("perhaps System V segment {id} ("), "ipcrm -m"]
    {
        ensure!(text.contains(part), "{part} is missing: {text}");
    }
    session.finish()?.success()?;
    let after = pool(t, &["show"])?.success()?.stdout;
    ensure!(!after.contains("perhaps System V segment"), "{after}");
    Ok(())
}

/// Maps shared memory that covers a page table of huge pages and touches two pages; a child touches the first, and outlives its
/// parent until standard input ends. Its status counts no page.
const SHARES_TABLES: &str = "import ctypes, mmap, os, sys
page = int(sys.argv[1])
table = page * (mmap.PAGESIZE // 8)
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = c.mmap(None, 2 * table, 3, 0x1 | 0x20 | 0x40000 | 0x4000, -1, 0)
assert at != ctypes.c_void_p(-1).value, ctypes.get_errno()
first = (at + table - 1) // table * table
for number in range(2):
    ctypes.memset(first + number * page, 1, 1)
touched = os.pipe()
child = os.fork()
if child != 0:
    os.read(touched[0], 1)
    os._exit(0)
ctypes.memset(first, 2, 1)
os.write(touched[1], b'x')
while os.getppid() == int(sys.argv[2]):
    pass
print(os.getpid(), flush=True)
print('ready', flush=True)
sys.stdin.read()
";

fn shown_with_shared_tables(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    t.pool()?.resize(2)?;
    let mut shell = Command::new("sh");
    // The parent's number is the shell's own.
    let words = format!("exec python3 -c \"$0\" {} $$", page.bytes());
    shell.args(["-c", &words, SHARES_TABLES]);
    let session = t.session(shell)?;
    session.wait_for_line("ready")?;
    let child: i32 = session.whole_lines_so_far().lines().next().context("no number")?.parse()?;
    let status = fs::read_to_string(format!("/proc/{child}/status"))?;
    let counted = status.lines().find(|line| line.starts_with("HugetlbPages:")).unwrap_or_default();
    t.note(counted);
    let text = pool(t, &["show"])?.success()?.stdout;
    session.finish()?;
    ensure!(text.contains(&format!("python3[{child}]")), "{counted}: {text}");
    poll_until(Duration::from_secs(60), "the pages to be free", || {
        t.pool().and_then(|pool| pool.free()).is_ok_and(|free| free == 2)
    })?;
    // The test has shown something only if the status counts no page.
    match counted.split_whitespace().nth(1) {
        Some("0") => Ok(()),
        _ => Err(Skipped(format!("this kernel counts pages of shared tables: {counted}")).into()),
    }
}

fn held_in_part(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let words = ["pool", "reserve", "--hold", "--add", &format!("{}:3", short(page))];
    let mut session = t.session(t.pagelift(&words)?)?;
    session.wait_for_line("all requests are met")?;
    session.send(&format!("{}:1\n", short(page)))?;
    let given_back = || session.stdout_so_far().contains("gave back 1 of 1 page");
    poll_until(Duration::from_secs(60), "a page to be given back", given_back)?;
    ensure!(t.pool()?.free()? == 2);
    let said = session.finish()?.success()?.stdout;
    ensure!(said.contains("gave back 2 of 2 pages") && t.pool()?.free()? == 0, "{said}");
    Ok(())
}

fn overcommitted(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    // A reservation of the tests restores an overcommit that existed; here there was none.
    let _put_back = Setting::keep(pool_file(page, "nr_overcommit_hugepages"))?;
    let said = pool(t, &["overcommit", &format!("{}:5", short(page))])?.success()?.stdout;
    ensure!(said.contains("at most 5 surplus pages") && count(page, "nr_overcommit_hugepages")? == 5, "{said}");
    let none = pool(t, &["overcommit", &format!("{}:0", short(page))])?.success()?.stdout;
    ensure!(none.contains("no more") && count(page, "nr_overcommit_hugepages")? == 0, "{none}");
    Ok(())
}

fn demoted(t: &Context) -> Result<()> {
    let small = default_huge_page()?;
    let huge = PageSize::new(1 << 30)?;
    if !pool_file(huge, "demote").exists() {
        return Err(Skipped("this kernel demotes no pages of 1 GiB".to_owned()).into());
    }
    let before = count(huge, "nr_hugepages")?;
    let too_many = pool(t, &["demote", "1G:1000"])?;
    let found = format!("found {} free pages of 1 GiB, needed 1000", count(huge, "free_hugepages")?);
    ensure!(too_many.ending == Ending::Exit(125) && too_many.stderr.contains(&found), "{too_many:?}");
    let on_node = pool(t, &["demote", "1G:1000@0"])?;
    ensure!(on_node.stderr.contains("reserve --add 1G:") && on_node.stderr.contains("@0`"), "{on_node:?}");
    let _put_back = Setting::keep(pool_file(huge, "nr_hugepages"))?;
    let reserved = pool(t, &["reserve", "--add", "1G:1"])?;
    if reserved.ending != Ending::Exit(0) {
        ensure!(reserved.stdout.contains("in the way"), "{reserved:?}");
        ensure!(count(huge, "nr_hugepages")? == before, "{reserved:?}");
        return Err(Skipped("no page of 1 GiB is to be had now".to_owned()).into());
    }
    let said = pool(t, &["demote", "1G:1"])?.success()?.stdout;
    let gained = huge.bytes() / small.bytes();
    ensure!(said.contains(&format!("split 1 page into {gained}")), "{said}");
    ensure!(t.pool()?.free()? == gained && count(huge, "nr_hugepages")? == before, "{said}");
    Ok(())
}

fn held(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let words = ["pool", "reserve", "--hold", "--add", &format!("{}:3", short(page))];
    for signal in [None, Some(Signal::SIGTERM)] {
        let session = t.session(t.pagelift(&words)?)?;
        session.wait_for_line("all requests are met")?;
        ensure!(t.pool()?.free()? == 3);
        if let Some(signal) = signal {
            session.signal(signal)?;
        }
        let said = session.finish()?.success()?.stdout;
        ensure!(said.contains("gave back 3 of 3 pages") && t.pool()?.free()? == 0, "{signal:?}: {said}");
    }
    Ok(())
}

const PRINTS_COVERAGE: &str = "const s = require('fs').readFileSync('/proc/self/status', 'utf8');\
    console.log('on the pool:', s.match(/HugetlbPages:\\s*(\\d+)/)[1]);";

fn lent(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let plan = pool(t, &["plan", "--json", "--", "/usr/bin/node", "-e", "0"])?.success()?.stdout;
    let plan: Value = serde_json::from_str(&plan)?;
    let needed = plan["needs"][0]["pages"].as_u64().with_context(|| format!("{plan}"))?;
    let script = format!("{PRINTS_COVERAGE} process.exit(3)");
    let output = pool(t, &["reserve", "--for", "--", "/usr/bin/node", "-e", &script])?;
    let kib = needed * page.kib();
    ensure!(output.ending == Ending::Exit(3), "{output:?}");
    ensure!(output.stdout == format!("on the pool: {kib}\n"), "{needed} pages are planned: {output:?}");
    let back = format!("gave back {needed} of {needed} pages");
    ensure!(output.stderr.contains(&back) && count(page, "nr_hugepages")? == 0, "{output:?}");
    Ok(())
}

/// A real-time signal ends the program like any other.
fn ended_like_the_program(t: &Context) -> Result<()> {
    for (end, status) in [("exit 3", 3), ("kill -15 $$", 143), ("kill -34 $$", 162), ("kill -64 $$", 192)] {
        let output = pool(t, &["reserve", "--for", "--", "/bin/sh", "-c", end])?;
        ensure!(output.ending == Ending::Exit(status), "{end}: {output:?}");
    }
    Ok(())
}

/// The pages are returned if the borrower or the program ends.
fn lent_and_killed(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let script = "console.log('ready'); process.stdin.resume()";
        let command = t.pagelift(&["pool", "reserve", "--for", "--", "/usr/bin/node", "-e", script])?;
        let session = t.session(command)?;
        session.wait_for_line("ready")?;
        ensure!(count(page, "nr_hugepages")? > 0);
        session.signal(signal)?;
        let output = session.finish()?;
        let expected = match signal {
            // The signal is passed to the program, whose end is reported as by a shell.
            Signal::SIGTERM => Ending::Exit(128 + Signal::SIGTERM as i32),
            signal => Ending::Signal(signal as i32),
        };
        ensure!(output.ending == expected, "{output:?}");
        poll_until(Duration::from_secs(60), "the pool to be as before", || {
            count(page, "nr_hugepages").is_ok_and(|pages| pages == 0)
        })?;
    }
    Ok(())
}

fn as_a_user(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let program = test_support::pagelift_binary()?;
    let user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("pool").args(words);
        t.run(command)
    };
    let denied = user(&["reserve", &format!("{}:1", short(page))])?;
    if denied.stderr.contains("failed to execute") {
        return Err(Skipped("another user cannot execute this build".to_owned()).into());
    }
    ensure!(denied.ending == Ending::Exit(125) && denied.stderr.contains("fix: run it by sudo"), "{denied:?}");
    ensure!(user(&["show"])?.success()?.stdout.contains("Pools, in pages"));
    Ok(())
}

/// The lock cannot be created: the message names the fault of /run, not the user, and no pool is changed.
fn without_run(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let program = test_support::pagelift_binary()?;
    let cases = [
        ("ro", "Read-only file system", "a /run that can be written"),
        ("nr_inodes=1", "No space left", "space in /run"),
    ];
    for (options, found, needed) in cases {
        for command in ["reserve", "overcommit"] {
            let script = r#"mount -t tmpfs -o "$1" none /run && shift && exec "$@""#;
            let mut inside = Command::new("unshare");
            inside.args(["-m", "sh", "-c", script, "sh", options]).arg(&program);
            inside.args(["pool", command, &format!("{}:1", short(page))]);
            let output = t.run(inside)?;
            let said = &output.stderr;
            ensure!(output.ending == Ending::Exit(125) && !said.contains("root"), "{output:?}");
            for part in [found, needed, "fix: "] {
                ensure!(said.contains(part), "{part} is missing: {said}");
            }
            ensure!(count(page, "nr_hugepages")? == 0 && count(page, "nr_overcommit_hugepages")? == 0, "{output:?}");
        }
    }
    Ok(())
}

fn planned(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let request = format!("{}:1000000", short(page));
    let text = pool(t, &["plan", &request])?.success()?.stdout;
    for part in ["pagelift pool reserve", "--install systemd", "--install grub", "hugepages=1000000"] {
        ensure!(text.contains(part), "{part} is missing: {text}");
    }
    let plan: Value = serde_json::from_str(&pool(t, &["plan", "--json", &request])?.success()?.stdout)?;
    let missing = plan["needs"][0]["missing"].as_u64().context("no number")?;
    ensure!(plan["needs"][0]["pages"] == 1_000_000 && missing <= 1_000_000, "{plan}");
    let both = pool(t, &["plan", &request, "--", "/bin/true"])?.success()?.stdout;
    ensure!(both.contains("pagelift pool reserve"), "{both}");
    ensure!(!both.contains("--for"), "--for would leave out the pages that were named: {both}");
    let nothing = pool(t, &["plan"])?;
    ensure!(nothing.ending == Ending::Exit(125) && nothing.stderr.contains("needed: `-- CMD`"), "{nothing:?}");
    let script = pool(t, &["plan", "--", "/nowhere/to/be/found"])?;
    ensure!(script.ending == Ending::Exit(125) && script.stderr.contains("not found"), "{script:?}");
    Ok(())
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

/// A plan takes effect before the kubelet starts, which then counts its pages: no machine prints a note about the
/// kubelet.
fn planned_beside_kubernetes(t: &Context) -> Result<()> {
    let words = ["pool", "plan", "/bin/sh"];
    let plain = t.run(t.pagelift(&words)?)?.success()?;
    let mut beside = Command::new("unshare");
    let script = "mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && exec \"$0\" \"$@\"";
    beside.args(["--mount", "sh", "-c", script]).arg(t.pagelift(&[])?.get_program()).args(words);
    let output = t.run(beside)?.success()?;
    ensure!((&output.stdout, &output.stderr) == (&plain.stdout, &plain.stderr), "{output:?}");
    Ok(())
}

fn installed(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let (root, request) = (t.folder().display().to_string(), format!("{}:64", short(page)));
    fs::create_dir_all(t.folder().join("etc/sysctl.d"))?;
    fs::write(t.folder().join("etc/sysctl.d/10-other.conf"), "vm.swappiness = 1\n")?;
    let before = files_below(t.folder())?;
    for (how, file, text) in [
        ("systemd", "etc/systemd/system/pagelift-pool-db.service", "pool reserve --add"),
        ("sysctl", "etc/sysctl.d/60-pagelift-pool-db.conf", "vm.nr_hugepages = 64"),
        ("grub", "etc/default/grub.d/60-pagelift-pool-db.cfg", "hugepages=64"),
        ("grub --cma", "etc/default/grub.d/60-pagelift-pool-db.cfg", "hugepages=64 hugetlb_cma="),
    ] {
        let (how, cma) = how.split_once(' ').map_or((how, None), |(how, cma)| (how, Some(cma)));
        let mut install = vec!["plan", "--root", &root, "--name", "db", "--install", how, &request];
        install.extend(cma.map(|cma| [cma, "1G:1"]).into_iter().flatten());
        pool(t, &install)?.success()?;
        let written = fs::read_to_string(t.folder().join(file))?;
        ensure!(written.contains(text), "{written}");
        let again = pool(t, &install)?;
        ensure!(again.ending == Ending::Exit(125) && again.stderr.contains("already"), "{again:?}");
        let other = pool(t, &["plan", "--root", &root, "--name", "other", "--uninstall"])?;
        ensure!(other.ending == Ending::Exit(125), "{other:?}");
        pool(t, &["plan", "--root", &root, "--name", "db", "--uninstall"])?.success()?;
        // Programs of this test also write their output to the folder.
        let after: Vec<_> =
            files_below(t.folder())?.into_iter().filter(|path| path.starts_with(t.folder().join("etc"))).collect();
        ensure!(after == before, "{before:?} {after:?}");
    }
    Ok(())
}

fn verified(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let request = format!("{}:64@0", short(page));
    let text = pool(t, &["plan", "--print", "systemd", &request])?.success()?.stdout;
    // A path below a folder that systemd searches, as after an installation.
    let program = text.lines().find_map(|line| line.strip_prefix("ExecStart=")?.split(' ').next());
    let unit = t.folder().join("pagelift-pool-db.service");
    fs::write(&unit, text.replace(program.context("no program")?, "/bin/true"))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&unit);
    let output = t.run(verify)?;
    let about: Vec<_> = output.stderr.lines().filter(|line| line.contains("pagelift-pool-db")).collect();
    ensure!(output.ending == Ending::Exit(0) && about.is_empty(), "{output:?}");
    Ok(())
}
