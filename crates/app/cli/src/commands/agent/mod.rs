//! `pagelift agent`: lifts the programs of a machine by rules.

mod run;
mod state;
mod verdicts;

use crate::arguments::process::process_number;
use crate::exit::finished;
use crate::output::{Output, fail};
use crate::text::agent as text;
use agent::explanation::explain;
use agent::rules::{ConfigError, Configuration, Listen, read_folder};
use agent::supervisor::{MetricsPlaces, Paths};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Exit status of a configuration with errors.
const NOT_UNDERSTOOD: u8 = 1;

/// Folder of the verdicts.
const VERDICTS: &str = "/var/lib/pagelift";

/// `pagelift agent`.
#[derive(Args, Clone)]
pub struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
    /// Folder of the rules, files named *.toml.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "/etc/pagelift/agent.d")]
    config: PathBuf,
    /// Folder of the state.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "/run/pagelift/agent")]
    state: PathBuf,
    /// The kill switch [default: the folder of the rules with .off instead of .d: /etc/pagelift/agent.off].
    #[arg(long, global = true, value_name = "FILE")]
    switch: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct RunArgs {
    /// Serve metrics for Prometheus on a port of loopback, as 127.0.0.1:9273, or on a Unix socket. Replaces `metrics` of the rules.
    #[arg(long, value_name = "ADDRESS|SOCKET")]
    metrics: Option<Listen>,
    /// Write the metrics after each scan to a file for node_exporter. Replaces `textfile` of the rules.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// Folder of the verdicts.
    #[arg(long, value_name = "FOLDER", default_value = VERDICTS)]
    verdicts: PathBuf,
}

#[derive(Subcommand, Clone)]
enum AgentCommand {
    /// Run the agent until SIGTERM, which leaves all lifts. Changed rules are read within two
    /// scans, and at SIGHUP.
    ///
    /// Each action is one line on standard error. In mode observe, which is the default, nothing is lifted: the lines
    /// report the lifts that it would make.
    Run(RunArgs),
    /// Check the rules, and print them as the agent reads them.
    Check,
    /// Show why a process is lifted or not: the rule, the conditions, the values, the cost and the verdict.
    ///
    /// In mode observe it shows what mode act would do. Nothing is changed.
    Explain {
        /// Number of the process, or the name of its program.
        #[arg(value_name = "PID|NAME", value_parser = process_number)]
        pid: i32,
        /// Folder of the verdicts.
        #[arg(long, value_name = "FOLDER", default_value = VERDICTS)]
        verdicts: PathBuf,
    },
    /// Show the agent's lifts and its state.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// End the running agent. Lifts stay.
    Stop {
        /// Undo all lifts, also after the agent has ended.
        #[arg(long)]
        restore: bool,
    },
    /// Show which programs a lift pays for, by measurements on this machine.
    Verdicts(verdicts::VerdictsArgs),
    /// Plan, lift or restore one process: a request as JSON on standard input, an answer on standard output.
    #[command(hide = true)]
    Worker,
}

impl AgentArgs {
    fn paths(&self) -> Paths {
        let switch = self.switch.clone().unwrap_or_else(|| self.config.with_extension("off"));
        let (metrics, verdicts) = match &self.command {
            AgentCommand::Run(args) => {
                let places = MetricsPlaces { listen: args.metrics.clone(), textfile: args.textfile.clone() };
                (places, args.verdicts.clone())
            }
            AgentCommand::Explain { verdicts, .. } => (MetricsPlaces::default(), verdicts.clone()),
            _ => (MetricsPlaces::default(), VERDICTS.into()),
        };
        Paths { config: self.config.clone(), state: self.state.clone(), switch, verdicts, metrics }
    }

    /// Reads the rules; errors are printed.
    fn configuration(&self) -> Result<Configuration, u8> {
        read_folder(&self.config).map_err(|errors| {
            errors.iter().for_each(print_error);
            NOT_UNDERSTOOD
        })
    }
}

/// Prints an error of the configuration with its source line.
fn print_error(error: &ConfigError) {
    let _ = Output::Error.print(&format!("{error}\n"));
}

/// Runs one of the commands.
pub fn run(args: &AgentArgs) -> u8 {
    match &args.command {
        AgentCommand::Run(_) => or_status(args.configuration(), |configuration| run::run(args.paths(), configuration)),
        AgentCommand::Check => or_status(args.configuration(), |configuration| {
            Ok(Output::Standard.print(&text::configuration(&configuration, &args.config))?)
        }),
        AgentCommand::Explain { pid, .. } => or_status(args.configuration(), |configuration| {
            let explanation = explain(&configuration, &args.paths(), *pid)?;
            Ok(Output::Standard.print(&text::explanation(&explanation))?)
        }),
        AgentCommand::Status { json } => finished(state::status(&args.paths(), *json).map(|()| 0)),
        AgentCommand::Stop { restore } => finished(state::stop(&args.paths(), *restore)),
        AgentCommand::Verdicts(command) => finished(verdicts::run(command, &args.state).map(|()| 0)),
        AgentCommand::Worker => finished(run::worker().map(|()| 0)),
    }
}

fn or_status<T>(read: Result<T, u8>, then: impl FnOnce(T) -> anyhow::Result<()>) -> u8 {
    match read.map(then) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if crate::exit::is_broken_pipe(&error) => 0,
        Ok(Err(error)) => {
            fail(&error);
            crate::exit::OWN_FAILURE
        }
        Err(status) => status,
    }
}
