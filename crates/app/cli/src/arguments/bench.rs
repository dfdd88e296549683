//! `pagelift bench`: its options.

use super::heap::HeapArgs;
use super::policy::PolicyArgs;
use super::process::process_number;
use super::time::{DAY, SECOND, milliseconds, seconds};
use clap::builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use options::{Choice, Pages};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `pagelift bench`.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("bursts").args(["toggle", "server"]))]
pub struct BenchArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The heap of lifted commands and servers.
    #[command(flatten)]
    pub heap: HeapArgs,
    /// Variants to compare with plain, separated by commas: sources of huge pages, or calm, by which the allocator
    /// keeps its memory (`pagelift run --calm`).
    #[arg(long, value_parser = arm(), value_delimiter = ',', value_name = "ARMS", conflicts_with = "pages")]
    pub arms: Vec<ArmArg>,
    /// Lift only programs with these names, separated by commas, that the command or the server starts or executes:
    /// cc1plus for g++, postgres for setpriv.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["toggle", "from"])]
    pub only: Vec<String>,
    /// Drop the program's files from the page cache before plain runs, since a lift leaves them there in huge folios,
    /// which plain runs would use too. One run that does not count follows. Files that other processes map are not
    /// dropped.
    #[arg(long, conflicts_with_all = ["toggle", "server", "from"])]
    pub cold_plain: bool,
    /// Compare this command or server with the plain one, instead of a lifted one. CMD, or NAME: CMD; can be repeated.
    #[arg(long, value_name = "CMD", conflicts_with_all = ["arms", "toggle", "from"])]
    pub against: Vec<String>,
    /// Lift and restore this process in random blocks, under its own load. Without a value, the command's server is
    /// started, loaded by --load and ended. Only code and read-only data can be lifted, since huge pages of writable
    /// memory cannot be restored.
    #[arg(long, value_name = "PID|NAME", num_args = 0..=1, value_parser = process_or_server)]
    pub toggle: Option<Option<i32>>,
    /// Switch by two shell commands instead of a lift: to the compared state, and back to plain. {pid} is replaced by
    /// the number of the process.
    #[arg(long, num_args = 2, value_names = ["ON", "OFF"], requires = "toggle", conflicts_with = "arms")]
    pub toggle_with: Vec<String>,
    /// Measure of work: auto (answers to Pagelift's own clients if these are the load, otherwise system calls of the
    /// process), instructions (per cycle, by a PMU), a shell command that prints a growing number,
    /// http://HOST/metrics#NAME, mysql://USER@HOST#Questions, postgres://USER@HOST#xact_commit,
    /// redis://HOST#total_commands_processed.
    #[arg(long, value_name = "WORK", default_value = "auto", requires = "toggle")]
    pub work: String,
    /// Servers side by side.
    #[command(flatten)]
    pub servers: ServerArgs,
    /// Divisor of the work: CPU time of the process, or time [default: cpu with --toggle and --server, otherwise time].
    #[arg(long, value_enum)]
    pub per: Option<PerArg>,
    /// Time for the whole measurement: 90s, 5m, 2h.
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = seconds(SECOND, 12 * DAY))]
    pub time: Duration,
    /// End as soon as the confidence interval is within this distance of its centre on both sides: 0.5%.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub resolution: Option<f64>,
    /// Length of a window or a burst, of which a block has four.
    #[arg(long, value_name = "TIME", default_value = "400ms", requires = "bursts", value_parser = milliseconds(10, 600_000))]
    pub window: Duration,
    /// Time after each switch, from one state or server to another, that is not measured.
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "bursts", value_parser = milliseconds(0, 600_000))]
    pub settle: Duration,
    /// Exclude the pauses and copies of the lifts, to measure the gain after a lift. By default they count in the
    /// lifted windows, and both answers are printed.
    #[arg(long, requires = "toggle")]
    pub steady: bool,
    /// Count page walks in each state by the CPU's PMU. If there is no PMU, the reason is recorded and shown.
    #[arg(long, conflicts_with = "from")]
    pub counters: bool,
    /// Before the first block, measure the cost of address translation on this machine for four seconds, as `probe`
    /// does, for a chart in the report.
    #[arg(long, conflicts_with = "from")]
    pub probe: bool,
    /// Keep every sample, as JSON lines; - is the standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the answer of a file from --output, without measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["toggle", "server", "command", "output"])]
    pub from: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// Seed of the order of the blocks [default: from the current time].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The command to run plain and lifted in turn. Its output is discarded.
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present_any = ["toggle", "server", "from"])]
    pub command: Vec<OsString>,
}

/// One of `--arms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmArg {
    /// The baseline of the comparison, named or not.
    Plain,
    /// Nothing is lifted, and the allocator keeps its memory.
    Calm,
    /// Lifted from this source.
    Lifted(Pages),
}

fn arm() -> impl TypedValueParser<Value = ArmArg> {
    let own = [
        PossibleValue::new("plain").help("The unchanged program; always included"),
        PossibleValue::new("calm").help("Not lifted; its allocator keeps its memory and sends no TLB shootdowns"),
    ];
    let pages = Pages::ALL.iter().map(|named| PossibleValue::new(named.word).help(named.help.trim_end_matches('.')));
    PossibleValuesParser::new(own.into_iter().chain(pages)).try_map(|word| match word.as_str() {
        "plain" => Ok(ArmArg::Plain),
        "calm" => Ok(ArmArg::Calm),
        word => Pages::from_word(word).map(ArmArg::Lifted),
    })
}

/// `--per`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PerArg {
    /// CPU time: the cost of a unit of work, at any load.
    Cpu,
    /// Time: throughput of a program that is always busy.
    Time,
}

/// The arguments about servers and their load.
#[derive(Args, Clone)]
pub struct ServerArgs {
    /// Start this server plain, lifted, and plain again as the control, each with its own {port} and {dir}, and load
    /// one at a time in bursts. It is executed without a shell, and must stay in the foreground.
    #[arg(long, value_name = "CMD", conflicts_with = "command", requires = "load")]
    pub server: Option<String>,
    /// Load: a shell command for each burst, or with --toggle run repeatedly, in which {port}, {dir} and {seconds} are
    /// replaced, or clients of Pagelift: mysql://USER@127.0.0.1:{port}/DB?query=SQL, postgres://…?query=SQL,
    /// redis://127.0.0.1:{port}?query=COMMAND, http://127.0.0.1:{port}/PATH. In a request, {1..1000} is replaced by a
    /// different number each time.
    #[arg(long, value_name = "CMD|URL", requires = "bursts")]
    pub load: Option<String>,
    /// Regular expression for the load's output. The last match counts; its group is the work per second, a group named
    /// (?<count>…) the work in the burst, or (?<time>…) the time for a unit [default: each run of the load is the same
    /// work].
    #[arg(long, value_name = "REGEX", requires_all = ["server", "load"])]
    pub metric: Option<String>,
    /// Connections of Pagelift's own clients, each with one request at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, requires = "load", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Shell command before the first start of each server, to create its files in {dir}.
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub prepare: Option<String>,
    /// Shell command that succeeds once a server is ready [default: it answers the clients, or accepts connections on
    /// {port}].
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub ready: Option<String>,
    /// Shell command after each start, once the server is ready, to put data into it.
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub fill: Option<String>,
    /// Number of starts of all servers. With four or more, the confidence interval is computed over the starts.
    #[arg(long, value_name = "NUMBER", default_value_t = 6, requires = "server", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub starts: u32,
}

/// Reads a process, not a command.
fn process_or_server(word: &str) -> Result<i32, String> {
    process_number(word).map_err(|error| format!("{error}; for a server that bench starts: --toggle -- SERVER"))
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = percent.map(|percent| percent / 100.0).filter(|share| (1e-5..=1.0).contains(share));
    share.ok_or_else(|| "needed: a part of one hundred: 0.5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!(share("0.5%").unwrap(), 0.005);
        assert_eq!(share("2").unwrap(), 0.02);
        assert!(share("0").is_err() && share("half").is_err());
    }
}
