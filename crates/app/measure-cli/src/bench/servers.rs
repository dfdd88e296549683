//! `pagelift bench --server`: servers side by side.

use super::{arms, calm, header, measured, started};
use anyhow::{Context, ensure};
use bench::servers::{Bursts, LoadSource, ServerPlace, Servers, words_of};
use cli::arguments::bench::BenchArgs;
use cli::arguments::policy::words;
use cli::exit::interruptions;
use measure::record::{Design, Header, Load, MOST_ARMS, Record, Windows};
use measure::toggle::Per;
use std::path::Path;

/// The commands that are compared with the plain one.
pub(super) struct Arms {
    pub(super) names: Vec<String>,
    /// Options of the lift; empty if the arm has a separate command.
    pub(super) lifts: Vec<Vec<String>>,
    pub(super) commands: Vec<Vec<String>>,
    /// Variables of its environment.
    variables: Vec<Vec<(String, String)>>,
}

impl Arms {
    pub(super) fn of(args: &BenchArgs, plain: &[String]) -> anyhow::Result<Self> {
        if args.against.is_empty() {
            let (mut names, mut lifts): (Vec<_>, Vec<_>) = arms(args)
                .into_iter()
                .map(|(name, policy)| (name, [words(&policy), args.heap.words()].concat()))
                .unzip();
            let mut variables = vec![Vec::new(); names.len()];
            if let Some(calm) = calm::variables(args, plain)? {
                names.push(calm::NAME.to_owned());
                lifts.push(Vec::new());
                variables.push(calm);
            }
            ensure!(!names.is_empty(), "nothing to compare with plain; fix: add another arm, as in --arms plain,calm");
            let commands = lifts.iter().map(|_| plain.to_vec()).collect();
            return Ok(Self { names, lifts, commands, variables });
        }
        ensure!(
            args.against.len() <= MOST_ARMS,
            "found {} commands of --against; needed: at most {MOST_ARMS}, in one record",
            args.against.len()
        );
        let named = args.against.iter().enumerate().map(|(number, text)| name_and_command(number, text));
        let (names, commands): (Vec<_>, Vec<_>) = named.unzip();
        Ok(Self {
            lifts: vec![Vec::new(); names.len()],
            variables: vec![Vec::new(); names.len()],
            names,
            commands: commands.into_iter().map(split).collect::<anyhow::Result<_>>()?,
        })
    }

    /// Variables of the environment of an arm; none of plain.
    pub(super) fn variables(&self, arm: Option<usize>) -> impl Iterator<Item = (&str, &str)> {
        let of_arm = arm.map(|arm| self.variables[arm].as_slice()).unwrap_or_default();
        of_arm.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The options of an arm's lift; `None` if the arm is another command.
    pub(super) fn lift(&self, arm: usize) -> Option<&[String]> {
        Some(self.lifts[arm].as_slice()).filter(|lift| !lift.is_empty())
    }

    /// The record's options of each.
    pub(super) fn options(&self) -> Vec<Vec<String>> {
        let set = |(name, value): &(String, String)| format!("{name}={value}");
        let of = |arm: usize| match (&self.lifts[arm][..], &self.variables[arm][..]) {
            ([], []) => self.commands[arm].clone(),
            ([], variables) => variables.iter().map(set).chain(self.commands[arm].iter().cloned()).collect(),
            (lift, _) => lift.to_vec(),
        };
        (0..self.names.len()).map(of).collect()
    }
}

/// `NAME: CMD`, or a command alone.
fn name_and_command(number: usize, text: &str) -> (String, &str) {
    match text.split_once(": ") {
        Some((name, command)) if !name.contains(char::is_whitespace) => (name.to_owned(), command),
        _ => (format!("other {}", number + 1), text),
    }
}

fn split(command: &str) -> anyhow::Result<Vec<String>> {
    words_of(command).map_err(anyhow::Error::msg)
}

/// Why a server cannot be awaited.
pub(super) fn needs_a_sign() -> &'static str {
    "when the server is ready cannot be seen; fix: {port} in its command, or --ready 'CMD' that succeeds then"
}

pub(super) fn run(args: &BenchArgs, server: &str) -> anyhow::Result<Record> {
    let text = args.servers.load.as_deref().context("--load is missing")?;
    let load = LoadSource::parse(text, args.servers.metric.as_deref()).map_err(anyhow::Error::msg)?;
    let plain = split(server)?;
    let compared = Arms::of(args, &plain)?;
    let has_port = |words: &[String]| words.iter().any(|word| word.contains("{port}"));
    ensure!(
        args.servers.ready.is_some()
            || matches!(load, LoadSource::Clients(_))
            || [&plain].into_iter().chain(&compared.commands).all(|words| has_port(words)),
        "{}",
        needs_a_sign()
    );
    let own = session::parts::program()?;
    let mut command = |arm: Option<usize>, report: &Path, place: &ServerPlace| {
        let lift = arm.and_then(|arm| compared.lift(arm));
        let words = place.fill_in_words(arm.map_or(&plain, |arm| &compared.commands[arm]));
        let mut command = started(&own, lift, &args.only, Some(report), &words);
        command.envs(compared.variables(arm));
        command
    };
    let (window, settle) = (args.window, args.settle);
    let clients = matches!(load, LoadSource::Clients(_)).then_some(args.servers.clients);
    let windows =
        Windows { length: window.as_secs_f64(), settle: settle.as_secs_f64(), with_switches: false, only_work: true };
    let (names, options) = (compared.names.clone(), compared.options());
    let header = Header {
        options,
        windows: Some(windows),
        load: Some(Load {
            command: load.shown().to_owned(),
            metric: args.servers.metric.clone(),
            clients,
            starts: args.servers.starts,
        }),
        ..header(args, Design::Servers, server.to_owned(), names, load.unit().to_owned(), Per::CpuSecond)
    };
    let runs_plain_command: Vec<bool> = compared.commands.iter().map(|command| *command == plain).collect();
    let servers = Servers {
        runs_plain_command: &runs_plain_command,
        command: &mut command,
        load: &load,
        clients: args.servers.clients,
        bursts: Bursts { window, settle },
        starts: args.servers.starts,
        prepare: args.servers.prepare.as_deref(),
        fill: args.servers.fill.as_deref(),
        ready: args.servers.ready.as_deref(),
    };
    let interrupted = interruptions()?;
    measured(args, &interrupted, |limits, file, tell| bench::servers::run(servers, header, limits, file, tell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_have_a_name() {
        assert_eq!(name_and_command(0, "jemalloc: env A=b: c"), ("jemalloc".to_owned(), "env A=b: c"));
        assert_eq!(name_and_command(1, "sh -c ': x'"), ("other 2".to_owned(), "sh -c ': x'"));
    }
}
