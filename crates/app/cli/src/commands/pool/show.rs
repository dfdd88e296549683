//! `pagelift pool show`.

use crate::arguments::time::{LONGEST, SECOND, seconds};
use crate::commands::reading::confine_to;
use crate::output::Output;
use crate::text::pool::view;
use clap::Args;
use confinement::Reads;
use machine_facts::{System, base_page};
use pools::{PoolsView, Users};
use std::time::Duration;

/// `pagelift pool show`.
#[derive(Args, Clone)]
pub struct ShowArgs {
    /// Show the pools repeatedly until interrupted.
    #[arg(long)]
    watch: bool,
    /// Interval of --watch.
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch", value_parser = seconds(SECOND / 10, LONGEST))]
    interval: Duration,
    /// Print JSON (with --watch, one document per line).
    #[arg(long)]
    json: bool,
}

/// Shows the pools.
pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    confine_to(Reads::Processes);
    let out = Output::Standard;
    loop {
        let pools = PoolsView::new(&System, Users::read(), base_page());
        match (args.json, args.watch) {
            (true, true) => out.print_whole(&(foreign_text::escaped_json(&serde_json::to_string(&pools)?) + "\n"))?,
            (true, false) => out.print_json(&pools)?,
            (false, true) if out.is_terminal() => out.print_screen(&view(&pools))?,
            (false, _) => out.print(&view(&pools))?,
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(args.interval);
    }
}
