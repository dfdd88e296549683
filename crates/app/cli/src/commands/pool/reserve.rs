//! `pagelift pool reserve`.

use super::lend::{self, Lending};
use super::{lock, say_kubelet, say_note, settings};
use crate::arguments::policy::PolicyArgs;
use crate::arguments::size::size;
use crate::exit::OWN_FAILURE;
use crate::output::Output;
use crate::say;
use crate::signals::survive_closed_pipes;
use crate::text::pool as text;
use clap::Args;
use machine_facts::base_page;
use pools::{
    GivenBack, Goal, HeldPages, KernelSettings, PoolLock, PoolRequest, RecordedOutcome, ReservationRecord,
    ReserveOptions, ReserveOutcome, reserve, usual_floor,
};
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Interval between checks of a held reservation for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// `pagelift pool reserve`.
#[derive(Args, Clone)]
#[command(
    after_help = "Pages of 1G are seldom available after the machine has run for a while: `pagelift pool plan` shows how to reserve them at boot."
)]
pub struct ReserveArgs {
    /// Add this number of pages to the pool, instead of making this number available.
    #[arg(long)]
    add: bool,
    /// Record the added pages under this name in /run, and add only pages that the record lacks: a retry or a restart
    /// adds no page twice. `pagelift pool release --record NAME` releases them.
    #[arg(long, value_name = "NAME", requires = "add", conflicts_with_all = ["hold", "persist", "command"])]
    record: Option<String>,
    /// Undo all changes if a request is not met in full.
    #[arg(long)]
    all_or_nothing: bool,
    /// Drop the page cache and other caches first, to reduce fragmentation. Files are read from disk again afterwards.
    #[arg(long)]
    drop_caches: bool,
    /// Minimum of available memory, even if a request is then not met [default: a sixteenth of all memory].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    keep_free: Option<u64>,
    /// Also reserve the pages at every boot, by a systemd unit; `pagelift pool plan --uninstall` removes it.
    #[arg(long, conflicts_with_all = ["hold", "command"])]
    persist: bool,
    /// Name of the unit of --persist.
    #[arg(long, value_name = "NAME", requires = "persist", default_value = "main")]
    name: String,
    /// Keep the pages only until standard input ends or a signal arrives, then release them; pages that a line of
    /// standard input names are released at once.
    #[arg(long)]
    hold: bool,
    /// Reserve the pages that the program after `--` needs, run it lifted, and release the pages that the lift has not
    /// used. All pages are released when the program ends, even by a signal.
    #[arg(long = "for", requires = "command", conflicts_with = "hold")]
    for_command: bool,
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Pages, 2M:64 or 1G:2@0 for example.
    #[arg(value_name = "SIZE:COUNT[@NODE]", required_unless_present = "for_command")]
    pub requests: Vec<PoolRequest>,
    /// With --for: the program and its arguments.
    #[arg(last = true, value_name = "CMD", requires = "for_command")]
    pub command: Vec<OsString>,
}

impl ReserveArgs {
    /// The words that a reservation of pages that are lent takes over.
    fn lending_words(&self) -> Vec<String> {
        let mut words = Vec::from(["--add", "--hold", "--all-or-nothing"].map(str::to_owned));
        words.extend(self.drop_caches.then(|| "--drop-caches".to_owned()));
        words.extend(self.keep_free.map(|bytes| format!("--keep-free={bytes}")));
        words
    }
}

/// Reserves; returns the exit status.
pub fn run(args: &ReserveArgs) -> anyhow::Result<u8> {
    if args.for_command {
        let (policy, words) = (args.policy.policy(), args.lending_words());
        return lend::run(Lending { command: &args.command, policy, requests: &args.requests, words });
    }
    if args.hold {
        survive_closed_pipes()?;
    }
    let record = args.record.as_deref().map(ReservationRecord::of).transpose()?;
    let lock = lock()?;
    let (settings, interrupted) = settings()?;
    let outcomes = reserved(args, &settings, record)?;
    let held = args.hold.then(|| held(&settings, &outcomes));
    drop(lock);
    // From here on the pages must be released even if nobody reads the output.
    let said = say(&outcomes, args);
    let is_met = outcomes.iter().all(ReserveOutcome::is_met);
    if let Some(mut held) = held {
        if said.is_ok() && !held.is_empty() {
            hold(&settings, &mut held, &interrupted);
        }
        give_all_back(&settings, &mut held)?;
    } else {
        said?;
        say_kubelet();
    }
    if args.persist {
        persist(args)?;
    }
    Ok(if is_met { 0 } else { OWN_FAILURE })
}

fn reserved(
    args: &ReserveArgs,
    settings: &KernelSettings,
    record: Option<ReservationRecord>,
) -> anyhow::Result<Vec<ReserveOutcome>> {
    let options = ReserveOptions {
        goal: match &record {
            Some(_) => Goal::Persistent,
            None if args.add => Goal::Added,
            None => Goal::Available,
        },
        floor: args.keep_free.unwrap_or_else(|| usual_floor(settings)),
        drop_caches: args.drop_caches,
        all_or_nothing: args.all_or_nothing,
        base_page: base_page(),
    };
    let Some(record) = record else { return Ok(reserve(settings, &args.requests, &options)?) };
    let RecordedOutcome { outcomes, note } = record.reserve(settings, &args.requests, &options)?;
    say_note(note);
    Ok(outcomes)
}

fn held(settings: &KernelSettings, outcomes: &[ReserveOutcome]) -> HeldPages {
    let changes = outcomes.iter().flat_map(|outcome| outcome.changes.clone()).collect();
    let (held, failed) = HeldPages::new(settings, changes);
    say_note(failed.map(|error| format!("{error}; `pagelift pool release` with `all` can release these pages")));
    held
}

fn say(outcomes: &[ReserveOutcome], args: &ReserveArgs) -> std::io::Result<()> {
    let out = Output::Standard;
    for outcome in outcomes {
        writeln!(out, "{}", text::outcome(outcome))?;
        // Held pages are released at the end.
        if let Some(kept) = text::kept(outcome, args.record.as_deref()).filter(|_| !args.hold) {
            writeln!(out, "{kept}")?;
        }
    }
    if args.hold && outcomes.iter().all(ReserveOutcome::is_met) {
        writeln!(out, "{}", lend::HELD)?;
    }
    Ok(())
}

/// Waits until standard input ends or a signal comes; gives back the pages named by its lines, SIZE:COUNT[@NODE]..., at
/// once.
fn hold(settings: &KernelSettings, held: &mut HeldPages, interrupted: &AtomicBool) {
    let (orders, ordered) = channel::<Vec<PoolRequest>>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let requests = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            if orders.send(requests).is_err() {
                break;
            }
        }
    });
    while !interrupted.load(Ordering::Relaxed) {
        match ordered.recv_timeout(LOOK_EVERY) {
            Ok(requests) => match held.give_back_part(settings, PoolLock::take(), &requests) {
                Ok(given) => say_given_back(&given),
                Err(error) => say!("pagelift: {error}; these pages are given back at the end"),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn give_all_back(settings: &KernelSettings, held: &mut HeldPages) -> anyhow::Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let lock = PoolLock::take();
    say_note(lock.as_ref().err().map(|error| format!("{error}; the pages are given back without the lock")));
    say_given_back(&held.give_back_all(settings, lock)?);
    Ok(())
}

/// The parent may have been killed.
fn say_given_back(given: &[GivenBack]) {
    given.iter().for_each(|given| drop(writeln!(Output::Standard, "{}", text::given_back(given))));
}

/// Installs the unit by the command that does so.
fn persist(args: &ReserveArgs) -> anyhow::Result<()> {
    let mut plan = Command::new(super::needed::this_program()?);
    plan.args(["pool", "plan", "--install", "systemd", "--name", &args.name]);
    plan.args(args.requests.iter().map(ToString::to_string));
    anyhow::ensure!(plan.status()?.success(), "the pages are reserved now, but not at the next boot");
    Ok(())
}
