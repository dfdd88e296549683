//! `pagelift perf-map`.

use super::reading::confine_to;
use super::status::explain;
use crate::arguments::process::process_number;
use crate::output::Output;
use address_space::{counted, format_bytes};
use clap::Args;
use confinement::Reads;
use process_view::perf_map::{Destination, PerfMapError, PerfMapSummary};
use process_view::printable;
use session::program_name_in_time;

/// `pagelift perf-map`.
#[derive(Args, Clone)]
pub struct PerfMapArgs {
    /// The number of a lifted process, or the name of its program.
    #[arg(value_name = "PID|NAME", value_parser = process_number)]
    pub pid: i32,
}

/// Writes the perf map of a process and prints the origin of its names.
pub fn run(args: &PerfMapArgs) -> anyhow::Result<()> {
    // Its thread writes with the rights of the process; this one keeps those to read.
    let destination = Destination::of(args.pid);
    confine_to(Reads::Processes);
    let program = printable(&program_name_in_time(args.pid));
    let summary = destination.write().map_err(|error| match error {
        PerfMapError::Process(error) => explain(error, "perf-map"),
        error => error.into(),
    })?;
    Output::Standard.print(&text(&program, args.pid, &summary))?;
    Ok(())
}

fn text(program: &str, pid: i32, summary: &PerfMapSummary) -> String {
    let Some(path) = &summary.path else {
        return format!("{program}[{pid}]: all code is mapped from its files, in which perf finds the symbols\n");
    };
    let mut text =
        format!("{}: {}\n", printable(&path.display().to_string()), counted(summary.symbols as u64, "symbol"));
    if let Some(owner) = summary.owner.filter(|&owner| owner != 0) {
        text +=
            &format!("  it belongs to user {owner}, as the process does; perf of another user reads it with --force\n");
    }
    for object in &summary.objects {
        let (bytes, names) = (format_bytes(object.bytes), counted(object.symbols as u64, "name"));
        let source = printable(&object.source.to_string());
        text += &format!("  {}: {bytes} of code, {names} from {source}\n", printable(&object.path));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::RangeSet;

    #[test]
    fn a_process_has_its_name_and_number() {
        let summary =
            PerfMapSummary { path: None, owner: None, symbols: 0, ranges: RangeSet::default(), objects: Vec::new() };
        let expected = "redis-server[7]: all code is mapped from its files, in which perf finds the symbols\n";
        assert_eq!(text("redis-server", 7, &summary), expected);
    }
}
