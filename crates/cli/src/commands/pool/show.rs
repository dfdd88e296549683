//! `pagelift pool show`.

use crate::commands::reading::confine_to;
use crate::text::pool as text;
use clap::Args;
use confinement::Reads;
use machine_facts::{System, base_page};
use pools::{PoolsView, Users};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Clears the screen and goes to its first line (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[2J\x1b[H";

/// `pagelift pool show`.
#[derive(Args, Clone)]
pub struct ShowArgs {
    /// Show them again and again, until it is interrupted.
    #[arg(long)]
    watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
    /// Print JSON (with --watch, one document a line).
    #[arg(long)]
    json: bool,
}

/// Shows the pools.
pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    confine_to(Reads::Processes);
    let mut out = std::io::stdout().lock();
    loop {
        let view = PoolsView::new(&System, Users::read(), base_page());
        match (args.json, args.watch) {
            (true, true) => writeln!(out, "{}", serde_json::to_string(&view)?)?,
            (true, false) => writeln!(out, "{}", serde_json::to_string_pretty(&view)?)?,
            (false, watch) => {
                let clear = if watch && out.is_terminal() { CLEAR } else { "" };
                writeln!(out, "{clear}{}", text::view(&view).trim_end())?;
            }
        }
        out.flush()?;
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(args.interval));
    }
}
