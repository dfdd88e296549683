//! `--heap`: correct memory on every kind of page, forks that survive an empty pool, no variable left in children's
//! environments, and huge pages by the way that fits each allocator.

mod shrinking;

use anyhow::{Context as _, Result, ensure};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Output, Program, Test, View, available_pages, default_huge_page, is_root, main_of,
    pagelift_binary, poll_until, test_case,
};

const MIB: u64 = 1 << 20;
const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];

fn main() -> ExitCode {
    let mut tests = memory();
    tests.extend(forks());
    tests.extend(ways());
    tests.extend(environment());
    tests.extend(from_inside());
    main_of(tests)
}

fn gcc() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

fn pool_of(mebibytes: u64) -> Vec<Need> {
    [gcc(), vec![Need::Pool(mebibytes * MIB)]].concat()
}

/// Runs a program of `tests/heap/programs` under `pagelift run` to a good end.
fn run(t: &Context, program: &str, arguments: &[&str], options: &[&str]) -> Result<Output> {
    let mut command = Program::named(&format!("heap/{program}"))?.command()?;
    command.args(arguments);
    let output = t.run_within(t.lifted(options, &command)?, Duration::from_secs(400))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(output)
}

/// `--heap=` with the pool's page size, and `--heap-reserve=`.
fn on_pool(mebibytes: u64) -> Result<[String; 2]> {
    let page = default_huge_page()?;
    Ok([format!("--heap={}", page.bytes()), format!("--heap-reserve={}", mebibytes * MIB)])
}

/// Runs a program on the pool. It finds all pages free, although another program has just used them.
fn on_pool_run(t: &Context, program: &str, arguments: &[&str], mebibytes: u64) -> Result<Output> {
    t.pool()?.wait_until_all_free()?;
    let options = on_pool(mebibytes)?;
    run(t, program, arguments, &options.each_ref().map(String::as_str))
}

/// Number of operations of the torture: `PAGELIFT_TORTURE` multiplies it.
fn operations(usual: u64) -> String {
    let times = std::env::var("PAGELIFT_TORTURE").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    (usual * times).to_string()
}

fn memory() -> Vec<Test> {
    vec![
        test_case("calloc_is_zero/thp", gcc(), |t| run(t, "calloc_is_zero.c", &[], &THP).map(drop)),
        test_case("calloc_is_zero/own", gcc(), |t| run(t, "calloc_is_zero.c", &["sizes"], &["--heap=auto"]).map(drop)),
        test_case("calloc_is_zero/pool", pool_of(700), |t| on_pool_run(t, "calloc_is_zero.c", &[], 700).map(drop)),
        test_case("torture/thp", gcc(), |t| run(t, "torture.c", &[&operations(6000), "4", "0", "1"], &THP).map(drop)),
        test_case("torture/pool", pool_of(256), |t| {
            on_pool_run(t, "torture.c", &[&operations(6000), "4", "0", "2"], 256)?;
            t.pool()?.wait_until_all_free()
        }),
        test_case("a_pool_that_is_too_small", pool_of(40), |t| {
            on_pool_run(t, "torture.c", &[&operations(3000), "2", "0", "3"], 4096)?;
            t.pool()?.wait_until_all_free()
        }),
        test_case("a_pool_that_shrinks", pool_of(128), shrinking::a_pool_that_shrinks),
        test_case("a_limit_of_address_space", [gcc(), vec![Need::Command("prlimit".into())]].concat(), |t| {
            let mut limited = Command::new("prlimit");
            let torture = Program::named("heap/torture.c")?.build()?;
            limited.arg("--as=300000000").arg(torture).args([&operations(3000), "2", "0", "5"]);
            let options = [&THP[..], &["--only", "torture"]].concat();
            let output = t.run(t.lifted(&options, &limited)?)?;
            ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
            Ok(())
        }),
        test_case("threads_waste_no_huge_pages", pool_of(128), threads_waste_no_huge_pages),
    ]
}

fn threads_waste_no_huge_pages(t: &Context) -> Result<()> {
    let program = Program::named("heap/threads_hold_a_little.c")?.command()?;
    let options = on_pool(96)?;
    let mut session = t.session(t.lifted(&options.each_ref().map(String::as_str), &program)?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    let status = t.run(t.pagelift(&["status", "--json", &pid])?)?.success()?;
    let json: serde_json::Value = serde_json::from_str(&status.stdout)?;
    let field = |name: &str| json["preloaded_heap"][name].as_u64().with_context(|| format!("no {name}: {json}"));
    // The first arena holds the blocks of all 64 threads; a huge page for each would take four.
    ensure!(field("arenas")? == 32 * MIB, "arenas: {}", field("arenas")?);
    ensure!(field("pool_used")? == 32 * MIB && field("pool_taken")? == 96 * MIB, "{json}");
    let people = t.run(t.pagelift(&["status", &pid])?)?.success()?;
    ensure!(people.stdout.contains("Preloaded heap"), "{}", people.stdout);
    session.send("\n")?;
    ensure!(session.finish()?.ending == Ending::Exit(0));
    Ok(())
}

fn forks() -> Vec<Test> {
    let forks = |pages: &'static str, threads: &'static str, needs: Vec<Need>| {
        test_case(format!("fork_at_any_moment/{pages}/{threads}_threads"), needs, move |t| {
            let words = [&operations(2500), threads, "12", "7"];
            let output = match pages {
                "pool" => on_pool_run(t, "torture.c", &words, 200)?,
                _ => run(t, "torture.c", &words, &THP)?,
            };
            ensure!(output.stdout == "forked 12\n", "it forked less than it wanted: {}", output.stdout);
            Ok(())
        })
    };
    vec![
        forks("thp", "3", gcc()),
        // The whole pool is taken: if the heap stayed on it, a fork would kill parent or child at their next write.
        forks("pool", "0", pool_of(200)),
        forks("pool", "3", pool_of(200)),
        test_case("threads_that_block_signals/pool", pool_of(100), |t| {
            let program = "forks_beside_threads_that_block_signals.c";
            on_pool_run(t, program, &["4"], 200).map(drop)
        }),
        test_case("threads_that_block_signals/thp", gcc(), |t| {
            run(t, "forks_beside_threads_that_block_signals.c", &["4"], &THP).map(drop)
        }),
        test_case("threads_come_and_go/thp", gcc(), |t| {
            run(t, "forks_while_threads_come_and_go.c", &[&operations(500)], &THP).map(drop)
        }),
        test_case("threads_come_and_go/pool", pool_of(100), |t| {
            on_pool_run(t, "forks_while_threads_come_and_go.c", &["200"], 100).map(drop)
        }),
        test_case("locks_are_held_by_others/thp", gcc(), |t| {
            let output = run(t, "forks_while_locks_are_held.c", &["60"], &THP)?;
            ensure!(output.stdout == "forked 60, locked often\n", "{}", output.stdout);
            Ok(())
        }),
        test_case("another_thread_flushes_all_streams/thp", gcc(), |t| {
            run(t, "forks_beside_full_flushes.c", &[], &THP).map(drop)
        }),
        test_case("locks_are_held_for_longer_than_a_fork_waits/thp", gcc(), |t| {
            let output = run(t, "forks_while_a_holder_is_stopped.c", &[], &THP)?;
            ensure!(output.stdout == "forked 6\n", "{}", output.stdout);
            Ok(())
        }),
        test_case("a_library_locks_around_forks/thp", gcc(), |t| {
            run(t, "forks_below_a_librarys_lock.c", &["300"], &THP).map(drop)
        }),
        test_case("a_library_locks_around_forks/pool", pool_of(64), |t| {
            on_pool_run(t, "forks_below_a_librarys_lock.c", &["300"], 64).map(drop)
        }),
        test_case("no_write_is_lost/pool", pool_of(120), |t| {
            // A process leaves the pool once. Without a stop of the other threads, two of three processes lost a write.
            for _ in 0..6 {
                on_pool_run(t, "writes_while_the_pool_is_left.c", &[], 120)?;
            }
            t.pool()?.wait_until_all_free()
        }),
        test_case("no_read_is_lost/room_in_the_pool", pool_of(120), |t| {
            // 30 MiB are used; the rest of the taken pages returns to the pool for the copies.
            let output = on_pool_run(t, "reads_while_it_forks.c", &["10", "20"], 120)?;
            ensure!(output.stdout == "0 of 10 forks refused\n", "{}{}", output.stdout, output.stderr);
            t.pool()?.wait_until_all_free()
        }),
        test_case("no_read_is_lost/no_room_in_the_pool", pool_of(64), |t| {
            let output = on_pool_run(t, "reads_while_it_forks.c", &["3", "50"], 64)?;
            ensure!(output.stdout == "3 of 3 forks refused\n", "{}{}", output.stdout, output.stderr);
            ensure!(output.stderr.contains("fork refused: "), "{}", output.stderr);
            t.pool()?.wait_until_all_free()
        }),
        test_case("beside_aio_the_pool_needs_room", pool_of(120), |t| {
            let run = |words: &[&str]| on_pool_run(t, "forks_with_a_filled_heap.c", words, 120).map(|o| o.stdout);
            for (words, expected) in [
                (&["80"][..], "forked, went on\n"),
                (&["80", "aio"], "refused: 12, went on\n"),
                (&["25", "aio"], "forked, went on\n"),
            ] {
                let said = run(words)?;
                ensure!(said == expected, "{words:?}: {said}");
            }
            t.pool()?.wait_until_all_free()
        }),
        test_case("no_cancelled_thread_ends_in_a_fork/pool", pool_of(100), |t| {
            for _ in 0..5 {
                on_pool_run(t, "forks_in_a_cancelled_thread.c", &[], 100)?;
            }
            t.pool()?.wait_until_all_free()
        }),
        test_case("waits_last_as_long_as_they_should/pool", pool_of(64), |t| {
            on_pool_run(t, "waits_last_as_long_as_they_should.c", &[], 64).map(drop)
        }),
        // The program needs SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV.
        test_case("no_descriptor_is_closed_twice/pool", [pool_of(64), vec![Need::Kernel(5, 19)]].concat(), |t| {
            on_pool_run(t, "closes_once_while_it_forks.c", &[], 64).map(drop)
        }),
        test_case("the_signal_queue_is_full/pool", pool_of(64), |t| {
            on_pool_run(t, "forks_with_a_full_signal_queue.c", &[], 64).map(drop)
        }),
        test_case("the_first_thread_has_ended/pool", pool_of(64), |t| {
            on_pool_run(t, "forks_without_its_first_thread.c", &[], 64).map(drop)
        }),
        test_case("several_threads_fork_at_once/thp", gcc(), |t| {
            run(t, "forks_of_several_threads.c", &["2", "3"], &THP).map(drop)
        }),
        test_case("several_threads_fork_at_once/pool", pool_of(160), |t| {
            on_pool_run(t, "forks_of_several_threads.c", &["2", "3"], 160).map(drop)
        }),
        test_case("redis_saves_from_the_pool", redis_needs(), redis_saves_from_the_pool),
        test_case("a_fork_beyond_a_limit_of_memory_is_refused", limit_needs(), a_fork_beyond_a_limit),
        test_case("a_fork_beyond_an_inner_limit_of_memory_is_refused", limit_needs(), a_fork_beyond_an_inner_limit),
    ]
}

fn redis_needs() -> Vec<Need> {
    let commands = ["redis-server", "redis-cli"].map(|name| Need::Command(name.to_owned()));
    commands.into_iter().chain([Need::Pool(120 * MIB), Need::Thp]).collect()
}

/// Runs a shell script in which `$RUN` starts a lifted program. Returns its output.
fn script(t: &Context, options: &[&str], text: &str) -> Result<String> {
    let lifted = t.lifted(options, &Command::new("PROGRAM"))?;
    let words = lifted.get_args().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> =
        std::iter::once(lifted.get_program().to_string_lossy().into_owned()).chain(words).collect();
    let before = words.split_last().context("no words")?.1.join(" ");
    let mut shell = Command::new("bash");
    shell.args(["-euc", text]).current_dir(t.folder()).env("RUN", before);
    let output = t.run(shell)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}\n{}\n{}", output.ending, output.stdout, output.stderr);
    Ok(output.stdout + &output.stderr)
}

/// redis forks to save; jemalloc adds a thread that blocks all signals. A plain server reads the same data from the
/// saved file.
fn redis_saves_from_the_pool(t: &Context) -> Result<()> {
    let options = on_pool(120)?;
    let said = script(
        t,
        &options.each_ref().map(String::as_str),
        r#"
        serve() {
            $1 redis-server --port 0 --unixsocket $PWD/socket --save '' --dir $PWD --enable-debug-command yes >log 2>&1 &
            server=$!
            for i in $(seq 600); do [ "$(cli ping)" = PONG ] && break; sleep 0.1; done
        }
        cli() { redis-cli -s $PWD/socket "$@" 2>&1 || true; }
        trap 'kill $server 2>/dev/null || true' EXIT
        serve "$RUN"
        cli debug populate 100000 key 300
        before=$(cli debug digest)
        for i in 1 2; do
            cli bgsave
            for i in $(seq 600); do cli info persistence | grep -q bgsave_in_progress:0 && break; sleep 0.1; done
            cli info persistence | grep bgsave_status
        done
        cli shutdown nosave; wait $server
        serve ''
        [ "$before" = "$(cli debug digest)" ] && echo "the same"
        cli shutdown nosave; wait $server
        "#,
    )?;
    ensure!(said.matches("bgsave_status:ok").count() == 2 && said.contains("the same"), "{said}");
    Ok(())
}

fn limit_needs() -> Vec<Need> {
    pool_of(120)
}

/// The folder of the memory controller, in the first or the second version of cgroups, and its file for the limit.
const MEMORY_CONTROLLER: &str = "folder=/sys/fs/cgroup/memory; limit=memory.limit_in_bytes
        [ -d $folder ] || { folder=/sys/fs/cgroup; limit=memory.max; }";

/// Leaving the pool needs memory that a cgroup counts: if its limit is too low, the fork is refused and no process is
/// killed.
fn a_fork_beyond_a_limit(t: &Context) -> Result<()> {
    let options = on_pool(120)?;
    let program = Program::named("heap/forks_with_a_filled_heap.c")?.build()?;
    let said = script(
        t,
        &options.each_ref().map(String::as_str),
        &format!(
            r#"
        {MEMORY_CONTROLLER}
        echo +memory 2>/dev/null >$folder/cgroup.subtree_control || true
        mine=$folder/pagelift-heap-$$
        mkdir $mine
        trap 'echo $$ >$folder/cgroup.procs; until rmdir $mine 2>/dev/null; do sleep 0.1; done' EXIT
        echo $$ >$mine/cgroup.procs
        echo $((64 << 20)) >$mine/$limit
        $RUN {0} 80 || echo "ended with $?"
        echo $((512 << 20)) >$mine/$limit
        $RUN {0} 80 || echo "ended with $?"
        "#,
            program.display()
        ),
    )?;
    ensure!(said.contains("refused: 12, went on\n") && said.contains("forked, went on\n"), "{said}");
    Ok(())
}

/// As in a container, whose cgroup mount begins at its own cgroup: the limit of an inner cgroup applies.
fn a_fork_beyond_an_inner_limit(t: &Context) -> Result<()> {
    let options = on_pool(120)?;
    let program = Program::named("heap/forks_with_a_filled_heap.c")?.build()?;
    let said = script(
        t,
        &options.each_ref().map(String::as_str),
        &format!(
            r#"
        {MEMORY_CONTROLLER}
        outer=$folder/pagelift-outer-$$
        echo +memory 2>/dev/null >$folder/cgroup.subtree_control || true
        mkdir $outer
        echo +memory 2>/dev/null >$outer/cgroup.subtree_control || true
        mkdir $outer/inner
        trap 'echo $$ >$folder/cgroup.procs; until rmdir $outer/inner 2>/dev/null; do sleep 0.1; done; rmdir $outer' EXIT
        echo $$ >$outer/inner/cgroup.procs
        echo $((64 << 20)) >$outer/inner/$limit
        RUN="$RUN" unshare -m sh -c 'mount --make-rprivate / && mkdir -p $0 && mount --bind $1 $0 &&
            umount -l $2 && mount --bind $0 $2 && umount $0 &&
            grep -q "$(basename $1) $2 " /proc/self/mountinfo && exec $RUN {0} 80' \
            "$PWD/hierarchy" $outer $folder || echo "ended with $?"
        "#,
            program.display()
        ),
    )?;
    ensure!(said.contains("refused: 12, went on\n"), "{said}");
    Ok(())
}

/// Waits until a process that has printed `ready` has at least this many bytes on anonymous huge pages.
fn becomes_huge(t: &Context, program: &Command, options: &[&str], least: u64) -> Result<()> {
    let mut session = t.session(t.lifted(options, program)?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid();
    let huge = || View::of(pid).map(|view| view.usages.iter().map(|usage| usage.anonymous_huge).sum::<u64>());
    let mut found = 0;
    let waited = poll_until(Duration::from_secs(120), "huge pages", || {
        found = huge().unwrap_or(0);
        found >= least
    });
    session.send("\n")?;
    let output = session.finish()?;
    waited.with_context(|| format!("{} MiB on huge pages: {}", found / MIB, output.stderr))?;
    ensure!(output.ending == Ending::Exit(0), "{:?}", output.ending);
    Ok(())
}

fn ways() -> Vec<Test> {
    let root = || if is_root() { Vec::new() } else { vec![Need::Root] };
    vec![
        test_case("a_static_program_is_collapsed_from_outside", [gcc(), root()].concat(), |t| {
            let program = Program::named("heap/holds_static.c")?.command()?;
            becomes_huge(t, &program, &["--heap=auto", "--lift=text"], 40 * MIB)
        }),
        test_case("attach_collapses_a_running_heap", [gcc(), root()].concat(), |t| attach_collapses_a_heap(t, &[])),
        test_case("attach_collapses_the_heap_of_who_has_disabled_huge_pages", [gcc(), root()].concat(), |t| {
            attach_collapses_a_heap(t, &["no-thp"])
        }),
        test_case("inspect_names_the_allocator", gcc(), |t| {
            let folder = t.folder();
            let source = folder.join("x.c");
            std::fs::write(&source, "int main(void) { return 0; }\n")?;
            for (flags, says) in [(&["-O1"][..], "Heap: glibc 2."), (&["-static"][..], "Heap: glibc")] {
                let program = folder.join("x");
                let mut compile = Command::new("gcc");
                compile.arg("-o").arg(&program).arg(&source).args(flags);
                t.run(compile)?.success()?;
                let output = t.run(t.pagelift(&["inspect", &program.to_string_lossy()])?)?.success()?;
                ensure!(output.stdout.contains(says), "with {flags:?}, no `{says}` in\n{}", output.stdout);
            }
            Ok(())
        }),
        test_case("an_empty_pool_is_said", [gcc(), vec![Need::Root]].concat(), |t| {
            let pool = test_support::PoolReservation::of(default_huge_page()?, 0)?;
            let option = format!("--heap={}", pool.page().bytes());
            ensure!(available_pages(pool.page())? == 0);
            let output = t.run(t.lifted(&[&option], &Command::new("true"))?)?;
            let own = output.own_lines().join("\n");
            ensure!(output.ending == Ending::Exit(0) && own.contains("found 0 free pages"), "{own}");
            let required = t.run(t.lifted(&[&option, "--require"], &Command::new("true"))?)?;
            ensure!(required.ending == Ending::Exit(125), "{required:?}");
            Ok(())
        }),
    ]
}

fn attach_collapses_a_heap(t: &Context, words: &[&str]) -> Result<()> {
    let mut command = Program::named("heap/holds_a_running_heap.c")?.command()?;
    command.args(words);
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let report = t.folder().join("report.json");
    let (pid, path) = (session.pid().to_string(), report.to_string_lossy().into_owned());
    let output = t.run(t.pagelift(&["attach", &pid, "--heap=thp", "--lift=text", "--report", &path])?)?.success()?;
    ensure!(output.stderr.contains("anonymous memory on huge pages"), "{}", output.stderr);
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let bytes = |moment: &str| json["heap"][moment]["huge"].as_u64().with_context(|| format!("no heap: {json}"));
    // The two ends of the heap fill no whole huge page.
    ensure!(bytes("before")? == 0 && bytes("after")? >= 56 * MIB, "{json}");
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "its heap is not as it was: {:?}", output.ending);
    Ok(())
}

/// The output of a command under these options, line by line.
fn environment_of(t: &Context, command: &mut Command, options: &[&str]) -> Result<Vec<String>> {
    let output = t.run(t.lifted(options, command)?)?.success()?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

fn environment() -> Vec<Test> {
    vec![
        test_case("children_get_nothing", gcc(), |t| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "env; true"]).env("LD_PRELOAD", "libm.so.6");
            let lines = environment_of(t, &mut shell, &THP)?;
            ensure!(lines.iter().any(|line| line == "LD_PRELOAD=libm.so.6"), "the user's own is lost: {lines:?}");
            ensure!(!lines.iter().any(|line| line.contains("agelift_heap") || line.starts_with("PAGELIFT_HEAP=")));
            Ok(())
        }),
        test_case("only_the_named_program_gets_it", gcc(), |t| {
            let mut shell = Command::new("sh");
            let maps =
                "grep -c hg /proc/self/smaps; env | grep -c ^PAGELIFT_HEAP=; exec tail -c1 /proc/self/smaps >/dev/null";
            shell.args(["-c", maps]);
            let lines = environment_of(t, &mut shell, &[&THP[..], &["--only", "grep"]].concat())?;
            // grep's own memory is advised; no other program gets the variable.
            ensure!(lines.len() == 2 && lines[0] != "0" && lines[1] == "0", "{lines:?}");
            Ok(())
        }),
        test_case("only_means_links_too", gcc(), |t| {
            // For example, redis-server is a link to redis-check-rdb.
            let link = t.folder().join("looks_for_it");
            let mut which = Command::new("sh");
            which.args(["-c", "readlink -f $(command -v grep)"]);
            std::os::unix::fs::symlink(t.run(which)?.success()?.stdout.trim(), &link)?;
            let mut shell = Command::new("sh");
            let maps = "$0 -c hg /proc/self/smaps; grep -c hg /proc/self/smaps; true";
            shell.args(["-c", maps]).arg(&link);
            let lines = environment_of(t, &mut shell, &[&THP[..], &["--only", "looks_for_it"]].concat())?;
            ensure!(lines.len() == 2 && lines[0] != "0" && lines[1] == "0", "{lines:?}");
            Ok(())
        }),
        test_case("the_users_settings_win", gcc(), |t| {
            let mut env = Command::new("env");
            env.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
            let lines = environment_of(t, &mut env, &["--heap=auto"])?;
            let merged = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1";
            ensure!(lines.iter().any(|line| line == merged), "{lines:?}");
            env.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0");
            let lines = environment_of(t, &mut env, &["--heap=auto"])?;
            ensure!(lines.iter().any(|line| line == "GLIBC_TUNABLES=glibc.malloc.hugetlb=0"), "{lines:?}");
            Ok(())
        }),
    ]
}

/// Adds the preloaded heap, with these options, to a command's environment.
fn with_words(command: &mut Command, words: &str) -> Result<()> {
    let library = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    ensure!(library.exists(), "no {}; build it with `cargo build --release`", library.display());
    command.env("LD_PRELOAD", library).env("PAGELIFT", words);
    Ok(())
}

/// Standard output and standard error of a shell command with the preloaded heap and these options.
fn said_with(t: &Context, words: &str, text: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", text]);
    with_words(&mut shell, words)?;
    let output = t.run(shell)?;
    ensure!(output.ending == Ending::Exit(0), "with {words}: {:?}: {}", output.ending, output.stderr);
    Ok(output.stdout + &output.stderr)
}

/// The heap by `PAGELIFT`, without `pagelift run`.
fn from_inside() -> Vec<Test> {
    vec![
        test_case("from_inside/pool", pool_of(96), |t| {
            let mut program = Program::named("heap/threads_hold_a_little.c")?.command()?;
            let page = default_huge_page()?.bytes();
            with_words(&mut program, &format!("heap={page} heap-reserve={} only=threads_hold*", 96 * MIB))?;
            let mut session = t.session(program)?;
            session.wait_for_line("ready")?;
            let status = t.run(t.pagelift(&["status", "--json", &session.pid().to_string()])?)?.success()?;
            let json: serde_json::Value = serde_json::from_str(&status.stdout)?;
            let heap = &json["preloaded_heap"];
            ensure!(heap["pool_taken"] == 96 * MIB && heap["pool_used"] == 32 * MIB, "{json}");
            session.send("\n")?;
            let output = session.finish()?;
            ensure!(output.ending == Ending::Exit(0) && output.stderr.contains("96.0 MiB taken"), "{}", output.stderr);
            Ok(())
        }),
        test_case("from_inside/the_named_program_alone", gcc(), |t| {
            let huge =
                "grep -c hg /proc/self/smaps; sed -n '/hg/p' /proc/self/smaps | wc -l; env | grep -c agelift_heap";
            for heap in ["thp", "auto"] {
                let said = said_with(t, &format!("heap={heap} only=grep lift=text quiet"), huge)?;
                let lines: Vec<&str> = said.lines().collect();
                // grep's own memory is advised, sed's is not, and the variables stay for the named programs.
                ensure!(lines.len() == 3 && lines[0] != "0" && lines[1..] == ["0", "1"], "{heap}: {said}");
            }
            let said = said_with(t, "heap=thp pid=1", "grep -c hg /proc/self/smaps; true")?;
            ensure!(said == "0\n", "{said}");
            Ok(())
        }),
        test_case("from_inside/what_is_wrong_is_said_in_one_line", gcc(), |t| {
            for (words, says) in [
                ("heap=3M only=seq", "PAGELIFT: `heap=3M`: needed auto, off, thp, or a size"),
                ("heap=thp heap-reserve=x only=seq", "PAGELIFT: `heap-reserve=x`: needed a size"),
                ("haep=2M only=seq", "PAGELIFT: `haep=2M`: not known; the words are pages"),
                ("heap=8K only=seq", "this machine has no huge pages of 8"),
                ("heap-reserve=2M only=seq", "fix: add heap=2M"),
            ] {
                let said = said_with(t, words, "exec seq 1")?;
                ensure!(said.starts_with("1\npagelift: ") && said.lines().count() == 2, "{words}: {said}");
                ensure!(said.contains(says), "no `{says}` in {said}");
            }
            let said = said_with(t, "heap=thp", "exec seq 1")?;
            ensure!(said.contains("names no program; fix: only=NAME"), "{said}");
            ensure!(said_with(t, "pages=thp lift=text only=seq", "exec seq 1")? == "1\n");
            Ok(())
        }),
        test_case("from_inside/both_libraries_say_what_is_wrong_once", gcc(), |t| {
            let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so").canonicalize()?;
            let folder = heap.with_file_name("../library").canonicalize()?;
            for name in ["libpagelift.so", "libpagelift.so.0"] {
                let mut seq = Command::new("seq");
                let preload = format!("{}:{}", folder.join(name).display(), heap.display());
                seq.arg("1").env("LD_PRELOAD", preload).env("PAGELIFT", "haep=thp only=seq");
                let said = t.run(seq)?.success()?.stderr;
                ensure!(said.matches("`haep=thp`: not known").count() == 1, "with {name}: {said}");
            }
            Ok(())
        }),
        test_case("from_inside/both_libraries_around_forks", pool_of(64), |t| {
            let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so").canonicalize()?;
            let library = heap.with_file_name("../library/libpagelift.so");
            for order in [[&library, &heap], [&heap, &library]] {
                let mut program = Program::named("heap/forks_below_a_librarys_lock.c")?.command()?;
                program.arg("200").env("LD_PRELOAD", order.map(|path| path.display().to_string()).join(":"));
                program.env("PAGELIFT", "only=forks_below* pages=hugetlb writable-pages=hugetlb heap=thp");
                let output = t.run(program)?.success()?;
                ensure!(output.stderr.contains("(hugetlb)") && output.stdout == "forked 200\n", "{}", output.stderr);
            }
            Ok(())
        }),
        test_case("from_inside/the_library_tells_where_the_heap_lies", gcc(), |t| {
            let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so").canonicalize()?;
            let library = heap.with_file_name("../library/libpagelift.so");
            ensure!(library.exists(), "no {}; build it with `make`", library.display());
            // Through a link to a folder: neighbouring files are found in the link's target.
            let link = t.folder().join("library");
            std::os::unix::fs::symlink(library.canonicalize()?.parent().context("a folder")?, &link)?;
            for library in [library, link.join("libpagelift.so")] {
                let mut seq = Command::new("seq");
                seq.arg("1").env("LD_PRELOAD", &library).env("PAGELIFT", "heap=thp only=seq");
                let said = t.run(seq)?.success()?.stderr;
                let place = format!("in LD_PRELOAD; it is {}\n", heap.display());
                ensure!(said.contains(&place), "no `{place}` in {said}");
            }
            Ok(())
        }),
        test_case("from_inside/a_program_with_its_own_allocator_that_is_not_named", redis_needs(), |t| {
            // jemalloc's functions get no block of another allocator.
            let said = said_with(t, "heap=thp only=nobody", "exec redis-server --version")?;
            ensure!(said.starts_with("Redis server"), "{said}");
            let said = said_with(t, "heap=thp only=redis-server", "exec redis-server --version")?;
            ensure!(said.contains("heap: on transparent huge pages") && said.contains("Redis server"), "{said}");
            Ok(())
        }),
    ]
}
