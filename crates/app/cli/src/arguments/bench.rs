//! `pagelift bench`: what it measures, how long, and what it prints.

use super::heap::HeapArgs;
use super::policy::PolicyArgs;
use super::process::process_number;
use super::time::{DAY, SECOND, milliseconds, seconds};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use options::{Choice, Pages};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `pagelift bench`.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("bursts").args(["toggle", "server"]))]
pub struct BenchArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The heap of lifted commands and servers.
    #[command(flatten)]
    pub heap: HeapArgs,
    /// Compare these, separated by commas, each with plain: sources of huge pages, and the allocator's own settings by which it
    /// keeps its memory (`pagelift run --calm`).
    #[arg(long, value_parser = arm(), value_delimiter = ',', value_name = "ARMS", conflicts_with = "pages")]
    pub arms: Vec<ArmArg>,
    /// Lift only programs of these names, separated by commas, that the command or the server starts or becomes: cc1plus of
    /// g++, postgres of setpriv.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["toggle", "from"])]
    pub only: Vec<String>,
    /// Drop the program's files from the page cache before plain runs, since a lift leaves them in huge folios there, which
    /// plain runs then use, too. One run that does not count follows. Files that other processes map stay as they are.
    #[arg(long, conflicts_with_all = ["toggle", "server", "from"])]
    pub cold_plain: bool,
    /// Instead of lifting, compare this command, or this server, with the plain one. CMD, or NAME: CMD; can be given several
    /// times.
    #[arg(long, value_name = "CMD", conflicts_with_all = ["arms", "toggle", "from"])]
    pub against: Vec<String>,
    /// Lift this process and put it back, in random blocks, under its own load; without a value the server of the command,
    /// which is started, loaded by --load and ended: its code and read-only data, since huge pages below writable memory cannot
    /// be taken back.
    #[arg(long, value_name = "PID|NAME", num_args = 0..=1, value_parser = process_or_server)]
    pub toggle: Option<Option<i32>>,
    /// Instead of lifting, switch by shell commands: to the state that is compared, and back to plain. {pid} becomes the number
    /// of the process.
    #[arg(long, num_args = 2, value_names = ["ON", "OFF"], requires = "toggle", conflicts_with = "arms")]
    pub toggle_with: Vec<String>,
    /// What counts as work: auto (answers to Pagelift's own clients where these load, else system calls of the process), instructions (for each cycle, by a PMU), a shell command that prints a growing number,
    /// http://HOST/metrics#NAME, mysql://USER@HOST#Questions, postgres://USER@HOST#xact_commit,
    /// redis://HOST#total_commands_processed.
    #[arg(long, value_name = "WORK", default_value = "auto", requires = "toggle")]
    pub work: String,
    /// Servers side by side.
    #[command(flatten)]
    pub servers: ServerArgs,
    /// What work is divided by: CPU time of the process, or time [default: cpu with --toggle and --server, else time].
    #[arg(long, value_enum)]
    pub per: Option<PerArg>,
    /// Time for the whole measurement: 90s, 5m, 2h.
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = seconds(SECOND, 12 * DAY))]
    pub time: Duration,
    /// End as soon as the interval reaches no further than this to either side: 0.5%.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub resolution: Option<f64>,
    /// Length of a window or a burst, of which a block has four.
    #[arg(long, value_name = "TIME", default_value = "400ms", requires = "bursts", value_parser = milliseconds(10, 600_000))]
    pub window: Duration,
    /// What is dropped after each switch, from one state or server to another.
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "bursts", value_parser = milliseconds(0, 600_000))]
    pub settle: Duration,
    /// Leave pauses and copies of the lifts out: what a lift brings once it is made. Else they count in the lifted windows, and
    /// both answers are printed.
    #[arg(long, requires = "toggle")]
    pub steady: bool,
    /// Count page walks in each state, by the CPU's PMU; where there is none the reason is kept and shown.
    #[arg(long, conflicts_with = "from")]
    pub counters: bool,
    /// Before the first block, measure for four seconds what address translation costs on this machine, as `probe` does; the
    /// report draws it.
    #[arg(long, conflicts_with = "from")]
    pub probe: bool,
    /// Keep every sample, as JSON lines; - is the standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Answer from such a file, without measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["toggle", "server", "command", "output"])]
    pub from: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// Seed of the order of the blocks [default: one of this moment].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The command to run plain and lifted in turn. What it prints is dropped.
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
        PossibleValue::new("plain").help("The program as it is; always there"),
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
    /// CPU time: what a unit of work costs, at whatever load.
    Cpu,
    /// Time: throughput of a program that is always busy.
    Time,
}

/// The arguments about servers and their load.
#[derive(Args, Clone)]
pub struct ServerArgs {
    /// Start this server plain, lifted, and plain again as the control, each with {port} and {dir} of its own, and load one at
    /// a time in bursts. It is executed without a shell, and stays in the foreground.
    #[arg(long, value_name = "CMD", conflicts_with = "command", requires = "load")]
    pub server: Option<String>,
    /// What loads them: a shell command for each burst, or with --toggle over and over again, in which {port}, {dir} and {seconds} are filled in, or clients of
    /// Pagelift: mysql://USER@127.0.0.1:{port}/DB?query=SQL, postgres://…?query=SQL, redis://127.0.0.1:{port}?query=COMMAND,
    /// http://127.0.0.1:{port}/PATH. In a request {1..1000} is another number each time.
    #[arg(long, value_name = "CMD|URL", requires = "bursts")]
    pub load: Option<String>,
    /// A regular expression whose group is the number in what the load prints, the last one: work in a second, or for a group
    /// named (?<count>…) in the burst, (?<time>…) time for a unit [default: each run of the load is the same work].
    #[arg(long, value_name = "REGEX", requires_all = ["server", "load"])]
    pub metric: Option<String>,
    /// Connections of Pagelift's own clients, each with one request at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, requires = "load", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Shell command before the first start of each server, to make what it needs in {dir}.
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub prepare: Option<String>,
    /// Shell command that succeeds once a server is ready [default: it answers the clients, or takes connections on {port}].
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub ready: Option<String>,
    /// Shell command after each start, once the server is ready, to put data into it.
    #[arg(long, value_name = "CMD", requires = "bursts")]
    pub fill: Option<String>,
    /// How often all servers are started: the interval is taken over the starts, from four on.
    #[arg(long, value_name = "NUMBER", default_value_t = 6, requires = "server", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub starts: u32,
}

/// Reads a process, not a command.
fn process_or_server(word: &str) -> Result<i32, String> {
    process_number(word).map_err(|error| format!("{error}; for a server that is started here: --toggle -- SERVER"))
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
