//! `pagelift pool`: the machine's pools of huge pages.

mod lend;
pub mod needed;
mod nodes;
mod plan;
mod reserve;
mod show;

use crate::exit::interruptions;
use crate::output::Output;
use crate::say;
use crate::text::pool as text;
use address_space::PageSize;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use pools::{Amount, KernelSettings, PoolLock, PoolRequest, RecordedRelease, ReleaseRequest, ReservationRecord};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// `pagelift pool`.
#[derive(Args, Clone)]
pub struct PoolArgs {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Subcommand, Clone)]
enum PoolCommand {
    /// Show the pools on each NUMA node, the processes that use them, and the other memory.
    Show(show::ShowArgs),
    /// Show the pages that a program needs, the available ones, and the commands that reserve the others now and at
    /// boot.
    Plan(plan::PlanArgs),
    /// Make a number of pages available: missing pages are added to the pool.
    ///
    /// Fragmented memory is compacted first. Missing pages are then requested again, finally node by node.
    Reserve(reserve::ReserveArgs),
    /// Give free pages back to the system.
    Release(ReleaseArgs),
    /// Split free pages into smaller ones of another pool, 1G into 2M for example (Linux 5.16).
    Demote(DemoteArgs),
    /// Set how many pages the kernel may allocate beyond the pool when a program needs them.
    ///
    /// Such surplus pages cost nothing until then and return to the system when they are freed. Their allocation can
    /// fail if memory is fragmented: suitable for a server that starts once a month, not for programs that must always
    /// start.
    Overcommit(OvercommitArgs),
}

#[derive(Args, Clone)]
struct ReleaseArgs {
    /// Release the pages that `pagelift pool reserve --record NAME` has added, also pages in use: these leave the pool
    /// when they are freed. SIZE:COUNT arguments count only if there is no record.
    #[arg(long, value_name = "NAME")]
    record: Option<String>,
    /// Pages, 2M:64 or 1G:2@0 for example. 2M:all is all free pages, except pages that `pagelift pool reserve` has
    /// recorded (--record) or holds (--hold, --for).
    #[arg(required_unless_present = "record", value_name = "SIZE:COUNT[@NODE]")]
    requests: Vec<ReleaseRequest>,
}

#[derive(Args, Clone)]
struct DemoteArgs {
    /// The size of the smaller pages [default: the kernel's setting].
    #[arg(long, value_name = "SIZE")]
    to: Option<PageSize>,
    /// The pages to be split, 1G:2@0 for example.
    #[arg(required = true, value_name = "SIZE:COUNT[@NODE]")]
    requests: Vec<PoolRequest>,
}

#[derive(Args, Clone)]
struct OvercommitArgs {
    /// Maximum number of pages beyond the pool, 2M:512 for example; 0 for none.
    #[arg(required = true, value_name = "SIZE:COUNT")]
    requests: Vec<PoolRequest>,
}

/// Runs one of the commands; returns the exit status.
pub fn run(args: &PoolArgs) -> anyhow::Result<u8> {
    match &args.command {
        PoolCommand::Show(args) => show::run(args).map(|()| 0),
        PoolCommand::Plan(args) => plan::run(args).map(|()| 0),
        PoolCommand::Reserve(args) => reserve::run(args),
        PoolCommand::Release(args) => release(args).map(|()| 0),
        PoolCommand::Demote(args) => demote(args).map(|()| 0),
        PoolCommand::Overcommit(args) => overcommit(args).map(|()| 0),
    }
}

/// The machine's settings. Signals no longer end this program: the work in progress ends at its next step, and
/// necessary restores are done.
fn settings() -> anyhow::Result<(KernelSettings, Arc<AtomicBool>)> {
    let interrupted = interruptions()?;
    Ok((KernelSettings::new(interrupted.clone()), interrupted))
}

/// Waits for other changes; before [`settings`], so that a signal ends the wait.
fn lock() -> anyhow::Result<PoolLock> {
    PoolLock::take().context("no pool is changed")
}

fn release(args: &ReleaseArgs) -> anyhow::Result<()> {
    if let Some(name) = &args.record {
        return release_recorded(name, &args.requests);
    }
    let _lock = lock()?;
    let (settings, _) = settings()?;
    let records = pools::records(&settings);
    for request in &args.requests {
        writeln!(Output::Standard, "{}", text::released(&pools::release(&settings, &records, request)?))?;
    }
    say_kubelet();
    Ok(())
}

fn release_recorded(name: &str, named: &[ReleaseRequest]) -> anyhow::Result<()> {
    let record = ReservationRecord::of(name)?;
    let of_number = |request: &ReleaseRequest| match request.amount {
        Amount::Pages(pages) => Ok(PoolRequest { size: request.size, pages, node: request.node }),
        Amount::All => bail!("found `all` with --record {name}, needed: a number of pages, or no pages"),
    };
    let named = named.iter().map(of_number).collect::<anyhow::Result<Vec<_>>>()?;
    let _lock = lock()?;
    let (settings, _) = settings()?;
    let RecordedRelease { given, note } = record.release(&settings, &named)?;
    say_note(note);
    let out = Output::Standard;
    given.iter().try_for_each(|given| writeln!(out, "{}", text::given_back(given)))?;
    if given.is_empty() {
        writeln!(out, "{}: no pages are left to release", record.path().display())?;
    }
    say_kubelet();
    Ok(())
}

fn say_note(note: Option<String>) {
    note.into_iter().for_each(|note| say!("pagelift: note: {note}"));
}

fn demote(args: &DemoteArgs) -> anyhow::Result<()> {
    let _lock = lock()?;
    let (settings, _) = settings()?;
    for request in &args.requests {
        writeln!(Output::Standard, "{}", text::demoted(&pools::demote(&settings, request, args.to)?))?;
    }
    say_kubelet();
    Ok(())
}

fn overcommit(args: &OvercommitArgs) -> anyhow::Result<()> {
    let _lock = lock()?;
    let (settings, _) = settings()?;
    for request in &args.requests {
        writeln!(Output::Standard, "{}", text::overcommitted(&pools::overcommit(&settings, request)?))?;
    }
    Ok(())
}

/// Kubernetes counts the pool when its kubelet starts (Kubernetes documentation, "Manage HugePages").
fn say_kubelet() {
    if Path::new("/var/lib/kubelet").exists() {
        say!("pagelift: {}", text::KUBELET);
    }
}
