//! `pagelift bench --toggle`: one server, which runs already or is started here, switched in place.

use super::servers::needs_a_sign;
use super::switchers::{CommandSwitcher, Lifts};
use super::{arms, header, measured, started, words_of};
use anyhow::{bail, ensure};
use bench::servers::live::{Live, LiveLoad, LiveServer};
use bench::servers::{LoadSource, ServerPlace};
use bench::toggle::{Subject, Switcher, Timing};
use bench::work::{Counter, WorkSource};
use bench::{Limits, of_one_program};
use cli::arguments::bench::BenchArgs;
use cli::arguments::policy::words;
use cli::commands::lift_switcher::FoundLifted;
use cli::exit::interruptions;
use cli::say;
use measure::record::{Design, Header, Load, Record, Windows};
use measure::toggle::Per;
use options::{Kind, Kinds, Policy};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Switches the process of this number, or the server that the words start.
pub(super) fn run(args: &BenchArgs, pid: Option<i32>) -> anyhow::Result<Record> {
    // Before the process is changed.
    let interrupted = interruptions()?;
    let source = args.work.parse::<WorkSource>()?;
    let per = if source == WorkSource::Instructions { Per::Cycle } else { Per::CpuSecond };
    ensure!(per != Per::Cycle || args.per.is_none(), "--work instructions is divided by cycles; fix: leave out --per");
    let load = args.servers.load.as_deref().map(|text| LoadSource::parse(text, None)).transpose();
    let load = load.map_err(anyhow::Error::msg)?;
    // Before any start: a program that cannot be switched is refused at once.
    let switched = switched(args)?;
    let mut live = match pid {
        Some(pid) => of_running(args, pid, load.as_ref(), &interrupted)?,
        None => of_command(args, load.as_ref(), &interrupted)?,
    };
    let Some(pid) = pid.or(live.pid()) else { bail!("needed: --toggle PID, or --toggle -- SERVER") };
    let filled = |text: &str| {
        let text = live.place().map_or_else(|| text.to_owned(), |place| place.fill_in(text));
        text.replace("{pid}", &pid.to_string())
    };
    let mut work = work(&filled(&args.work).parse()?, &live, pid)?;
    if let Some(note) = work.note() {
        say!("pagelift: note: {note}");
    }
    let timing = Timing { window: args.window, settle: args.settle };
    let counts_switches = work.counts_switches() && matches!(switched, Switched::Lifted(..));
    if counts_switches && !args.steady {
        say!(
            "pagelift: note: a lift makes system calls in the program and stops its threads, which {} count: switches \
             are excluded from the ratio, and their cost is printed separately",
            work.unit()
        );
    }
    let windows = Windows {
        length: timing.window.as_secs_f64(),
        settle: timing.settle.as_secs_f64(),
        with_switches: !args.steady && !counts_switches,
        only_work: !counts_switches,
    };
    let header = header_of(args, pid, &switched, load.as_ref(), (work.unit(), per), windows);
    let mut switcher: Box<dyn Switcher> = match switched {
        Switched::ByCommands(on, off) => Box::new(CommandSwitcher::new(&filled(&on), &filled(&off))),
        Switched::Lifted(_, policies) => {
            Box::new(Lifts::new(pid, of_one_program, policies, &interrupted, FoundLifted::LiftAgain)?)
        }
    };
    let (work, switcher, mut check) = (work.as_mut(), switcher.as_mut(), || live.check());
    let subject = Subject { pid, work, switcher, timing, check: &mut check };
    measured(args, &interrupted, |limits, file, tell| bench::toggle::run(subject, header, limits, file, tell))
}

/// The way in which the program is switched.
enum Switched {
    ByCommands(String, String),
    /// Names of the arms and their policies.
    Lifted(Vec<String>, Vec<Policy>),
}

fn switched(args: &BenchArgs) -> anyhow::Result<Switched> {
    if let [on, off] = &args.toggle_with[..] {
        return Ok(Switched::ByCommands(on.clone(), off.clone()));
    }
    let (names, policies): (Vec<_>, Vec<_>) = arms(args).into_iter().unzip();
    ensure!(!names.is_empty(), "nothing to compare with plain; fix: add another arm, as in --arms plain,thp");
    Ok(Switched::Lifted(names, policies.into_iter().map(reversible).collect::<anyhow::Result<_>>()?))
}

/// The part that can be restored while the program runs: writable memory is collapsed in place, and stays so.
pub(super) fn reversible(policy: Policy) -> anyhow::Result<Policy> {
    const WRITABLE: [Kind; 3] = [Kind::Data, Kind::Bss, Kind::Heap];
    ensure!(!policy.seal, "sealed memory cannot be restored; fix: leave out --seal");
    if policy.kinds == Kinds::USUAL {
        return Ok(Policy { kinds: Kinds::of(&[Kind::Text, Kind::Rodata]), ..policy });
    }
    if let Some(kind) = WRITABLE.into_iter().find(|&kind| policy.kinds.contains(kind)) {
        bail!(
            "{kind} stays on huge pages as long as the program runs, and cannot be compared in one process; fix: --lift \
             text,rodata, or whole runs: pagelift bench -- CMD"
        );
    }
    Ok(policy)
}

fn limits<'a>(args: &BenchArgs, interrupted: &'a AtomicBool) -> Limits<'a> {
    Limits { time: args.time, resolution: None, interrupted }
}

fn of_running(args: &BenchArgs, pid: i32, load: Option<&LoadSource>, interrupted: &AtomicBool) -> anyhow::Result<Live> {
    ensure!(args.command.is_empty(), "--toggle takes a process or a command, not both; fix: --toggle -- SERVER");
    ensure!(
        Path::new(&format!("/proc/{pid}")).exists(),
        "process {pid} does not exist; `pagelift status` lists lifted processes, `ps -e` all"
    );
    let of_start =
        [("--prepare", &args.servers.prepare), ("--ready", &args.servers.ready), ("--fill", &args.servers.fill)];
    if let Some((name, _)) = of_start.into_iter().find(|(_, command)| command.is_some()) {
        bail!("{name} needs a server that bench starts; fix: leave it out, or --toggle -- SERVER");
    }
    let Some(source) = load else { return Ok(Live::default()) };
    let shown = source.shown();
    ensure!(
        !shown.contains("{port}") && !shown.contains("{dir}"),
        "{shown}: {{port}} and {{dir}} need a server that bench starts; fix: write the address on which process {pid} \
         listens"
    );
    Ok(Live::of_running(&LiveLoad { source, clients: args.servers.clients }, limits(args, interrupted))?)
}

fn of_command(args: &BenchArgs, load: Option<&LoadSource>, interrupted: &AtomicBool) -> anyhow::Result<Live> {
    ensure!(!args.command.is_empty(), "--toggle needs a process or a server; fix: --toggle PID, or --toggle -- SERVER");
    let plain = words_of(&args.command)?;
    let has_port = plain.iter().any(|word| word.contains("{port}"));
    ensure!(
        load.is_none() || args.servers.ready.is_some() || matches!(load, Some(LoadSource::Clients(_))) || has_port,
        "{}",
        needs_a_sign()
    );
    let mut command = |place: &ServerPlace| started(Path::new(""), None, &[], None, &place.fill_in_words(&plain));
    let name = Path::new(&plain[0]).file_name().map_or(plain[0].clone(), |name| name.to_string_lossy().into_owned());
    let server = LiveServer {
        name: &name,
        command: &mut command,
        prepare: args.servers.prepare.as_deref(),
        ready: args.servers.ready.as_deref(),
        fill: args.servers.fill.as_deref(),
        has_port,
    };
    let load = load.map(|source| LiveLoad { source, clients: args.servers.clients });
    Ok(Live::start(server, load, limits(args, interrupted))?)
}

/// Answers to our own clients are the work, unless another work is requested.
fn work(source: &WorkSource, live: &Live, pid: i32) -> anyhow::Result<Box<dyn Counter>> {
    let answers = live.load().filter(|_| *source == WorkSource::Auto).and_then(|load| load.counter());
    Ok(match answers {
        Some(answers) => answers,
        None => source.open(pid)?,
    })
}

fn header_of(
    args: &BenchArgs,
    pid: i32,
    switched: &Switched,
    load: Option<&LoadSource>,
    (unit, per): (String, Per),
    windows: Windows,
) -> Header {
    let (names, options) = match switched {
        Switched::ByCommands(..) => (vec!["switched".to_owned()], Vec::new()),
        Switched::Lifted(names, policies) => (names.clone(), policies.iter().map(words).collect()),
    };
    let clients = |source: &LoadSource| matches!(source, LoadSource::Clients(_)).then_some(args.servers.clients);
    let load = load.map(|source| Load {
        command: source.shown().to_owned(),
        metric: None,
        clients: clients(source),
        starts: 1,
    });
    let program = session::program_name(pid);
    Header { options, windows: Some(windows), load, ..header(args, Design::Toggle, program, names, unit, per) }
}
