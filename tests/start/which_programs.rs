//! Which programs are lifted and which run unchanged: privileges, architectures, scripts, descendants, users.

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{Gid, Uid, chown};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Ending, Kind, Need, Output, Program, Source, Test, View, check_lifted, check_unlifted, copy_program,
    default_huge_page, due_ranges, exchange_text, main_of, pagelift_binary, poll_until, process_field, test_case,
    until_scheduled, write_script,
};

const NOBODY: u32 = 65534;
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Limit for an event that never comes.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let gcc = || vec![Need::Command("gcc".into()), Need::Thp];
    let root = || [gcc(), vec![Need::Root]].concat();
    let with = |need| [root(), vec![need]].concat();
    let tests: Vec<Test> = vec![
        test_case("privileges/setuid_root_run_by_a_user", root(), |t| setuid(t, 0o4755, 0, NOBODY)),
        test_case("privileges/setuid_nobody_run_by_root", root(), |t| setuid(t, 0o4755, NOBODY, 0)),
        test_case("privileges/setgid_run_by_a_user", root(), |t| setuid(t, 0o2755, 0, NOBODY)),
        test_case("privileges/file_capabilities", with(Need::Command("setcap".into())), file_capabilities),
        test_case("privileges/unreadable_program", root(), |t| setuid(t, 0o711, 0, NOBODY)),
        test_case("users/an_ordinary_user_lifts_by_thp", with(Need::Pool(0)), ordinary_user),
        test_case("users/an_ordinary_user_lifts_from_the_pool", with(Need::Pool(64 << 20)), ordinary_user_and_pool),
        test_case("formats/thirty_two_bit", [gcc(), vec![Need::ThirtyTwoBit]].concat(), thirty_two_bit),
        test_case("formats/script_with_an_interpreter", gcc(), script),
        test_case("formats/script_of_the_shell", gcc(), |t| {
            same_and_says(
                t,
                &script_file(t, "#!/bin/sh", "echo in $0; exit 4")?,
                "`--only NAME` lifts the program NAME",
            )
        }),
        test_case("files/removed_at_the_start", gcc(), |t| loses_its_file(t, false)),
        test_case("files/replaced_at_the_start", gcc(), |t| loses_its_file(t, true)),
        test_case("descendants/only_through_every_kind_of_start", gcc(), only_through_every_start),
        test_case("descendants/only_reports_a_name_that_never_came", vec![], only_reports_a_name_that_never_came),
        test_case("descendants/only_leaves_others_alone", gcc(), only_leaves_others),
        test_case("descendants/only_means_links_too", gcc(), only_means_links_too),
        test_case("descendants/only_passes_a_front_end", gcc(), only_passes_a_front_end),
        test_case("descendants/only_leaves_tracers_alone", gcc(), |t| leaves_tracers_alone(t, "traces_its_child")),
        test_case("descendants/only_leaves_leak_sanitizer_alone", gcc(), |t| {
            leaves_tracers_alone(t, "leaks_at_its_end")
        }),
        test_case("descendants/of_a_lifted_program_are_their_own", gcc(), descendants_are_plain),
        test_case(
            "containers/the_first_process_of_a_pid_namespace",
            with(Need::Command("unshare".into())),
            first_process,
        ),
        test_case(
            "containers/the_first_process_has_no_child",
            with(Need::Command("unshare".into())),
            first_process_has_no_child,
        ),
        test_case(
            "containers/the_first_process_outruns_its_helper",
            with(Need::Command("chrt".into())),
            first_process_outruns_its_helper,
        ),
        test_case("real_time/on_one_cpu", with(Need::Command("chrt".into())), lifted_in_real_time),
        test_case(
            "real_time/the_linker_outruns_its_helper",
            [with(Need::Command("chrt".into())), vec![Need::File(LINKER.into())]].concat(),
            linker_outruns_its_helper,
        ),
        test_case("by_the_dynamic_linker", [gcc(), vec![Need::File(LINKER.into())]].concat(), |t| {
            let mut command = Command::new(pagelift_binary()?);
            command.args(["run", "--pages", "thp", "--", LINKER]);
            command.arg(Program::named("start/pie_by_default.c")?.build()?);
            // AT_ENTRY is the entry of the program that the linker loads by itself.
            let output = look_at(t, command, |_| Ok(()))?.success()?;
            let is_lifted = |line: &&str| line.contains(" on 2 MiB pages (thp)") && !line.contains(": 0 B of");
            ensure!(output.own_lines().iter().any(is_lifted), "{:?}", output.own_lines());
            Ok(())
        }),
        test_case("containers/without_proc", with(Need::Command("unshare".into())), without_proc),
        test_case("containers/own_user_namespace", with(Need::Command("unshare".into())), user_namespace),
        test_case("bases/stay_random", gcc(), bases_stay_random),
    ];
    let code = main_of(tests);
    fs::remove_dir_all(public_folder()).ok();
    code
}

/// A folder that every user can reach, which the folder of this project's build may not be.
fn public_folder() -> PathBuf {
    std::env::temp_dir().join(format!("pagelift-installed-{}", std::process::id()))
}

/// A copy of a program that everybody can reach, with this owner and mode.
fn installed(t: &Context, name: &str, owner: u32, mode: u32) -> Result<PathBuf> {
    let folder = public_folder();
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let place = folder.join(t.folder().file_name().context("a name")?);
    copy_program(t, &Program::named(name)?.build()?, &place)?;
    chown(&place, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
    fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
    Ok(place)
}

/// A `pagelift` that an ordinary user can execute.
fn public_pagelift(t: &Context) -> Result<PathBuf> {
    let folder = public_folder();
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let place = folder.join("pagelift");
    if !place.exists() {
        let part = folder.join(format!("part-{:?}", std::thread::current().id()));
        copy_program(t, &pagelift_binary()?, &part)?;
        fs::rename(part, &place)?;
    }
    Ok(place)
}

fn as_user(user: u32, words: &[&Path]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).uid(user).gid(user).current_dir("/");
    command
}

/// Runs it plain and through `pagelift run`, as a user; returns the second output.
fn same_as_user(t: &Context, user: u32, program: &Path, options: &[&str]) -> Result<Output> {
    let plain = t.run(as_user(user, &[program]))?;
    let pagelift = public_pagelift(t)?;
    let mut words: Vec<&Path> = vec![&pagelift, Path::new("run")];
    words.extend(options.iter().map(Path::new));
    words.extend([Path::new("--"), program]);
    let lifted = t.run(as_user(user, &words))?;
    let text = |output: &Output| exchange_text(&output.stdout, output.pid, "PID");
    ensure!(plain.ending == lifted.ending, "plain {:?}, lifted {:?}: {}", plain.ending, lifted.ending, lifted.stderr);
    ensure!(text(&plain) == text(&lifted), "plain\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    ensure!(plain.stderr == lifted.foreign_stderr(), "plain said\n{}\nlifted\n{}", plain.stderr, lifted.stderr);
    Ok(lifted)
}

/// A tracer without privileges would silently remove the privileges of a setuid program, so such programs are not
/// traced.
fn setuid(t: &Context, mode: u32, owner: u32, user: u32) -> Result<()> {
    let program = installed(t, "start/prints_its_environment.c", owner, mode)?;
    let plain = t.run(as_user(user, &[&program]))?.success()?;
    if mode & 0o4000 != 0 {
        ensure!(plain.stdout.contains(&format!("uid {user} {owner}")), "no setuid here:\n{}", plain.stdout);
    }
    let lifted = same_as_user(t, user, &program, &["--pages", "thp"])?;
    ensure!(lifted.own_lines().len() == 1, "no reason is given: {}", lifted.stderr);
    fs::remove_file(program)?;
    Ok(())
}

fn file_capabilities(t: &Context) -> Result<()> {
    let program = installed(t, "start/prints_its_environment.c", 0, 0o755)?;
    let mut setcap = Command::new("setcap");
    setcap.arg("cap_net_raw=ep").arg(&program);
    t.run(setcap)?.success()?;
    let plain = t.run(as_user(NOBODY, &[&program]))?.success()?;
    ensure!(plain.stdout.contains("CapEff:\t0000000000002000"), "no capability here:\n{}", plain.stdout);
    let lifted = same_as_user(t, NOBODY, &program, &["--pages", "thp"])?;
    ensure!(lifted.own_lines().len() == 1, "no reason is given: {}", lifted.stderr);
    fs::remove_file(program)?;
    Ok(())
}

fn look_at(t: &Context, command: Command, check: impl FnOnce(&View) -> Result<()>) -> Result<Output> {
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    check(&View::of(session.pid())?).with_context(|| format!("it said {}", session.stderr_so_far().trim()))?;
    session.send("go on\n")?;
    let output = session.finish()?;
    t.keep(&output);
    Ok(output)
}

fn everything_is_lifted(view: &View, source: impl Fn(bool) -> Source) -> Result<()> {
    let kinds = [Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss];
    check_lifted(view, view.executable()?, &kinds, default_huge_page()?, source)?;
    Ok(())
}

/// `auto` takes the pages of the page cache if the kernel already has the file in huge pages, as it does after writes of
/// 2 MiB and more (Linux 6.16 and ext4).
fn writable_by_thp_and_the_rest_as_it_is(view: &View) -> Result<()> {
    let executable = view.executable()?;
    check_lifted(view, executable, &[Kind::Data, Kind::Bss], default_huge_page()?, |_| Source::Thp)?;
    for (range, writable) in due_ranges(executable, &[Kind::Text], view.base_page, default_huge_page()?) {
        let huge: u64 =
            view.usages.iter().filter(|usage| usage.mapping.range.overlaps(range)).map(|usage| usage.huge()).sum();
        ensure!(!writable && huge > 0, "{range} has no huge page");
    }
    Ok(())
}

fn ordinary_user(t: &Context) -> Result<()> {
    let program = installed(t, "start/pie_by_default.c", 0, 0o755)?;
    let pagelift = public_pagelift(t)?;
    for pages in ["auto", "thp"] {
        let options = ["run", "--pages", pages, "--start-cost", "any", "--"].map(Path::new);
        let words = [&[pagelift.as_path()][..], &options, &[&program]].concat();
        let output = look_at(t, as_user(NOBODY, &words), |view| match pages {
            "auto" => writable_by_thp_and_the_rest_as_it_is(view),
            _ => everything_is_lifted(view, |_| Source::Thp),
        })?
        .success()?;
        ensure!(output.own_lines().len() == 1, "not one line: {}", output.stderr);
    }
    same_as_user(t, NOBODY, &program, &["--pages", "thp"])?;
    fs::remove_file(program)?;
    Ok(())
}

fn ordinary_user_and_pool(t: &Context) -> Result<()> {
    let program = installed(t, "start/pie_by_default.c", 0, 0o755)?;
    let pagelift = public_pagelift(t)?;
    let words = [&pagelift, Path::new("run"), Path::new("--pages"), Path::new("hugetlb"), Path::new("--"), &program];
    look_at(t, as_user(NOBODY, &words), |view| {
        everything_is_lifted(view, |writable| if writable { Source::Thp } else { Source::Hugetlb })
    })?
    .success()?;
    fs::remove_file(program)?;
    Ok(())
}

fn thirty_two_bit(t: &Context) -> Result<()> {
    let program = Program::named("start/thirty_two_bit.c")?;
    let plain = t.run(program.command()?)?;
    ensure!(plain.ending == Ending::Exit(3), "the plain program: {plain:?}");
    let lifted = t.run(t.lifted(&["--pages", "thp"], &program.command()?)?)?;
    ensure!(lifted.ending == plain.ending && lifted.stdout == plain.stdout, "plain {plain:?}\nlifted {lifted:?}");
    let lines = lifted.own_lines();
    ensure!(lines.len() == 1 && lines[0].contains("32-bit"), "no reason is given: {lines:?}");
    Ok(())
}

fn script_file(t: &Context, first_line: &str, text: &str) -> Result<PathBuf> {
    let path = t.folder().join("script");
    write_script(t, &path, &format!("{first_line}\n{text}\n"))?;
    Ok(path)
}

/// The kernel starts the interpreter, so the interpreter is lifted.
fn script(t: &Context) -> Result<()> {
    let interpreter = Program::named("start/pie_by_default.c")?.build()?;
    let script = script_file(t, &format!("#!{} word", interpreter.display()), "whatever")?;
    let command = t.lifted(&["--pages", "thp"], &Command::new(script))?;
    look_at(t, command, |view| everything_is_lifted(view, |_| Source::Thp))?.success()?;
    Ok(())
}

fn same_and_says(t: &Context, program: &Path, words: &str) -> Result<()> {
    let plain = t.run(Command::new(program))?;
    let lifted = t.run(t.lifted(&[], &Command::new(program))?)?;
    ensure!(plain.ending == lifted.ending && plain.stdout == lifted.stdout, "plain {plain:?}\nlifted {lifted:?}");
    ensure!(lifted.own_lines().len() == 1, "not one line: {lifted:?}");
    ensure!(lifted.own_lines()[0].contains(words), "it does not say `{words}`: {lifted:?}");
    Ok(())
}

/// Any file may be at the program's path by now: the process keeps the contents of its start, and is lifted.
fn loses_its_file(t: &Context, replaced: bool) -> Result<()> {
    let program = Program::named("start/loses_its_file_at_start.c")?.build()?;
    let place = t.folder().join("program");
    let other = t.folder().join("other");
    let mut outputs = Vec::new();
    for lifted in [true, false] {
        copy_program(t, &program, &place)?;
        copy_program(t, &Program::named("start/static_pie.c")?.build()?, &other)?;
        let plain = Command::new(&place);
        let mut command = if lifted { t.lifted(&["--pages", "thp"], &plain)? } else { plain };
        if replaced {
            command.env("REPLACE_BY", &other);
        }
        let output = look_at(t, command, |view| {
            ensure!(!lifted || view.huge_bytes() > 16 << 20, "only {} bytes are on huge pages", view.huge_bytes());
            Ok(())
        })?;
        outputs.push(output.success()?.stdout);
    }
    ensure!(outputs[0] == outputs[1], "lifted\n{}\nplain\n{}", outputs[0], outputs[1]);
    ensure!(!outputs[0].contains("still there"), "it has kept its file");
    Ok(())
}

/// Six instances of the program are started by fork, vfork, posix_spawn, a shell, by an orphan and by a thread; each is
/// lifted.
fn only_through_every_start(t: &Context) -> Result<()> {
    let starter = Program::named("start/spawns_descendants.c")?.build()?;
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let mut plain = Command::new(starter);
    plain.arg(&program);
    let only = ["--pages", "thp", "--only", "pie_by_default,no_such_program"];
    let lifted = |options: &[&str]| {
        let options = [&only[..], options].concat();
        until_scheduled(t, || t.run(t.lifted(&options, &plain)?)?.success())
    };
    let (lifted, summed) = (lifted(&["--each"])?, lifted(&[])?);
    let plain = t.run(plain)?.success()?;
    ensure!(plain.stdout == lifted.stdout, "plain\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    ensure!(plain.stdout.matches("status 0").count() == 6, "not all six ways work here:\n{}", plain.stdout);
    let lines = lifted.own_lines();
    let of_program = lines.iter().filter(|line| line.contains("pie_by_default[") && line.contains(" MiB on ")).count();
    ensure!(of_program == 6 && lines.len() == 6, "six lifts were due:\n{}", lines.join("\n"));
    // The starter waits for all six, so its end is the last event.
    let lines = summed.own_lines();
    let sum = lines.last().context("no line")?;
    ensure!(lines.len() == 2 && lines[0].contains("pie_by_default[") && lines[0].contains(" MiB on "), "{lines:?}");
    ensure!(sum.contains("pie_by_default: 6 processes, ") && sum.contains(" MiB on huge pages in all"), "{lines:?}");
    Ok(())
}

/// An `--only` name that no program has is reported when the command ends.
fn only_reports_a_name_that_never_came(t: &Context) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "true; exit 3"]);
    let output = t.run(t.lifted(&["--only", "no_such_program"], &shell)?)?;
    ensure!(output.ending == Ending::Exit(3), "{output:?}");
    ensure!(output.own_lines() == ["pagelift: no program named no_such_program was started"], "{output:?}");
    let quiet = t.run(t.lifted(&["--quiet", "--only", "no_such_program"], &shell)?)?;
    ensure!(quiet.own_lines().is_empty(), "{quiet:?}");
    Ok(())
}

fn only_leaves_others(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    let command = t.lifted(&["--pages", "thp", "--only", "something_else"], &program)?;
    let output = look_at(t, command, |view| {
        ensure!(view.huge_bytes() == 0, "{} bytes are on huge pages", view.huge_bytes());
        check_unlifted(view, view.executable()?)
    })?
    .success()?;
    ensure!(output.own_lines().iter().all(|line| !line.contains(" MiB on ")), "{}", output.stderr);
    Ok(())
}

/// A descendant that traces works as without Pagelift, and a program that is started beside it is lifted.
fn leaves_tracers_alone(t: &Context, name: &str) -> Result<()> {
    let tracer = Program::named(&format!("start/{name}.c"))?.build()?;
    let wanted = t.folder().join("pie_by_default");
    copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &wanted)?;
    let mut shell = Command::new("sh");
    let script = format!("{}; echo ended with $?; {} </dev/null", tracer.display(), wanted.display());
    shell.args(["-c", &script]);
    let command =
        |options: &[&str]| t.lifted(&[&["--pages", "thp", "--only", "pie_by_default"], options].concat(), &shell);
    let mut plain_shell = Command::new("sh");
    plain_shell.args(["-c", &script]);
    let plain = t.run(plain_shell)?.success()?;
    let lifted = until_scheduled(t, || t.run(command(&[])?)?.success())?;
    ensure!(plain.stdout == lifted.stdout, "plain\n{}\nlifted\n{}\n{}", plain.stdout, lifted.stdout, lifted.stderr);
    let lines = lifted.own_lines();
    ensure!(lines.len() == 1 && lines[0].contains(" on "), "{}", lifted.stderr);
    let verbose = t.run(command(&["-v"])?)?.success()?;
    ensure!(
        verbose.own_lines().iter().any(|line| line.contains("not followed, nor the programs that it starts")),
        "{}",
        verbose.stderr
    );
    Ok(())
}

/// Debian's redis-server is a link to redis-check-rdb. It is named by the link's path, its name, and through a folder
/// that is a link.
fn only_means_links_too(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let (link, folder) = (t.folder().join("served_by_link"), t.folder().join("folder"));
    std::os::unix::fs::symlink(&program, &link)?;
    std::os::unix::fs::symlink(t.folder(), &folder)?;
    let path = link.to_string_lossy().into_owned();
    for (executed, only) in
        [(&link, "served_by_link"), (&link, &path), (&folder.join("served_by_link"), "served_by_link")]
    {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{}; exit $?", executed.display())]);
        let options = ["--pages", "thp", "--only", only];
        let output = until_scheduled(t, || t.run(t.lifted(&options, &shell)?)?.success())?;
        let lines = output.own_lines();
        let lifted = lines.len() == 1 && lines[0].contains("served_by_link[") && lines[0].contains(" MiB on ");
        ensure!(lifted, "--only {only}: {lines:?}");
    }
    Ok(())
}

/// rustup's `rustc` is a link to rustup, which executes the real compiler: that one is lifted, independently of the
/// front end.
fn only_passes_a_front_end(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let env = ["/usr/bin/env", "/bin/env"].into_iter().find(|path| fs::exists(path).unwrap_or(false));
    let link = t.folder().join("pie_by_default");
    std::os::unix::fs::symlink(env.context("no env")?, &link)?;
    let mut front_end = Command::new(&link);
    front_end.arg(&program);
    let options = ["--pages", "thp", "--only", "pie_by_default"];
    let output = until_scheduled(t, || t.run(t.lifted(&options, &front_end)?)?.success())?;
    let lines = output.own_lines();
    let lifted = lines.iter().filter(|line| line.contains("pie_by_default[") && line.contains(" MiB on ")).count();
    ensure!(lifted == 1, "{lines:?}");
    Ok(())
}

/// Without `--only`, just the program itself is lifted, and its descendants are not traced.
fn descendants_are_plain(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{}; exit $?", program.display())]);
    let mut session = t.session(t.lifted(&["--pages", "thp"], &shell)?)?;
    session.wait_for_line("ready")?;
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", session.pid()))?;
    let child: u32 = children.trim().parse().with_context(|| format!("children: {children}"))?;
    let view = View::of(child)?;
    check_unlifted(&view, view.executable()?)?;
    ensure!(process_field(child, "TracerPid").as_deref() == Some("0"), "the child is traced");
    session.send("go on\n")?;
    session.finish()?.success()?;
    Ok(())
}

fn unshared(words: &[&str], rest: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(words).args(rest);
    command
}

/// Orphans in a container become children of its first process, which must get no unknown child.
fn first_process(t: &Context) -> Result<()> {
    let program = Program::named("start/prints_its_environment.c")?.build()?;
    let pagelift = pagelift_binary()?;
    let namespace = ["--pid", "--fork", "--mount-proc", "--"];
    let plain = t.run(unshared(&namespace, &[&program]))?.success()?;
    let words = ["run", "-q", "--pages", "thp", "--"].map(Path::new);
    let lifted = t.run(unshared(&namespace, &[&[&*pagelift], &words[..], &[&*program]].concat()))?.success()?;
    ensure!(plain.stdout.contains("pid 1 ppid 0"), "{}", plain.stdout);
    ensure!(plain.stdout == lifted.stdout, "plain\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    Ok(())
}

/// Neither a program's helper nor the helper that follows descendants is a child of the program.
fn first_process_has_no_child(t: &Context) -> Result<()> {
    let program = Program::named("start/is_first_of_its_namespace.c")?.build()?;
    let pagelift = pagelift_binary()?;
    let namespace = ["--pid", "--fork", "--mount-proc", "--"];
    let plain = t.run(unshared(&namespace, &[&program]))?.success()?;
    ensure!(plain.stdout.starts_with("1, no child"), "{}", plain.stdout);
    let only = ["--only", "is_first_of_its_namespace"];
    for options in [&[][..], &only] {
        let words: Vec<&Path> =
            [&["run", "--pages", "thp"], options, &["--"]].concat().into_iter().map(Path::new).collect();
        let lifted = t.run(unshared(&namespace, &[&[&*pagelift], &words[..], &[&*program]].concat()))?.success()?;
        ensure!(plain.stdout == lifted.stdout, "{options:?}: {}", lifted.stdout);
        ensure!(lifted.own_lines().iter().any(|line| line.contains(" on ")), "{options:?}: {}", lifted.stderr);
    }
    Ok(())
}

/// A command that runs on one CPU with this real-time priority. Only a higher priority can interrupt it there.
fn in_real_time(priority: i32) -> Result<Command> {
    let allowed = process_field(std::process::id(), "Cpus_allowed_list").context("the CPUs that are allowed")?;
    let cpu: String = allowed.chars().take_while(char::is_ascii_digit).collect();
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu, "chrt", "-f", &priority.to_string()]);
    Ok(command)
}

/// The priority that leaves no higher one to a helper.
const HIGHEST: i32 = 99;

/// A helper of the same real-time priority on the same CPU runs only when the program sleeps, long after its entry.
fn first_process_outruns_its_helper(t: &Context) -> Result<()> {
    let program = Program::named("start/is_first_of_its_namespace.c")?.build()?;
    let mut command = in_real_time(HIGHEST)?;
    command.args(["unshare", "--pid", "--fork", "--mount-proc", "--"]);
    command.arg(pagelift_binary()?).args(["run", "--pages", "thp", "--"]).arg(&program);
    let ended = t.run(command)?.success()?;
    ensure!(ended.stdout.starts_with("1, no child"), "{}", ended.stdout);
    Ok(())
}

/// The program waits at its entry without a system call: the helper must still get the CPU.
fn lifted_in_real_time(t: &Context) -> Result<()> {
    let mut command = in_real_time(1)?;
    command.arg(pagelift_binary()?).args(["run", "--pages", "thp", "--"]);
    command.arg(Program::named("start/pie_by_default.c")?.build()?);
    look_at(t, command, |view| everything_is_lifted(view, |_| Source::Thp))?.success()?;
    Ok(())
}

/// A program that passed its entry before its helper came is not traced for the rest of its life.
fn linker_outruns_its_helper(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let plain = t.run(Command::new(&program))?.success()?;
    let mut command = in_real_time(HIGHEST)?;
    command.arg(pagelift_binary()?).args(["run", "--pages", "thp", "--", LINKER]).arg(&program);
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    session.wait_for_stderr("was not scheduled in time")?;
    let pid = session.pid();
    poll_until(LIMIT, "the end of the tracing", || {
        process_field(pid, "TracerPid").is_some_and(|tracer| tracer == "0")
    })?;
    session.send("go on\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout == plain.stdout, "plain\n{}\nlifted\n{}", plain.stdout, output.stdout);
    Ok(())
}

fn without_proc(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let plain = t.run(Command::new(&program))?.success()?;
    let start =
        format!("umount -l /proc && exec {} run --pages thp -- {}", pagelift_binary()?.display(), program.display());
    let output = t.run(unshared(&["--mount", "--", "sh", "-c", &start], &[]))?.success()?;
    ensure!(output.stdout == plain.stdout, "{output:?}");
    let lines = output.own_lines();
    ensure!(lines.len() == 1 && lines[0].contains("/proc"), "no reason is given: {}", output.stderr);
    Ok(())
}

fn user_namespace(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.build()?;
    let pagelift = pagelift_binary()?;
    let words = ["run", "--pages", "thp", "--"].map(Path::new);
    let command = unshared(&["--user", "--map-root-user", "--"], &[&[&*pagelift], &words[..], &[&*program]].concat());
    look_at(t, command, |view| everything_is_lifted(view, |_| Source::Thp))?.success()?;
    Ok(())
}

/// The base that suits huge pages best is still different each time, at huge-page granularity.
fn bases_stay_random(t: &Context) -> Result<()> {
    let program = Program::named("start/pie_by_default.c")?.command()?;
    let mut bases = Vec::new();
    for _ in 0..8 {
        look_at(t, t.lifted(&["--pages", "thp"], &program)?, |view| {
            bases.push(view.executable()?.bias);
            Ok(())
        })?;
    }
    bases.sort_unstable();
    bases.dedup();
    ensure!(bases.len() >= 7, "eight starts gave only these bases: {bases:x?}");
    let huge = default_huge_page()?.bytes();
    let bits = bases.iter().fold(0, |bits, base| bits | (base ^ bases[0]));
    ensure!(bits / huge > 0xff, "the bases differ in too few bits: {bits:#x}");
    Ok(())
}
