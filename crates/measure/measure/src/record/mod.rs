//! The record of a measurement: JSON lines, the first a [`Header`], then each [`Event`] as it happens. The answer can be
//! made again from it alone. Pure: text comes in, and values go out.
//!
//! A record may come from anybody, so every count in it is bounded. Its texts are unchanged: code that shows them must
//! make them printable.
#![forbid(unsafe_code)]

mod event;
mod latency;
mod lift;
mod memory;
mod probe;

pub use event::{Counters, Ended, Event, Figure, Observation, Switch, TimedBlock, WalkFigures};
pub use latency::{ArmLatency, Latencies};
pub use lift::{Attempt, Lift, LiftedRange, NotLifted};
pub use memory::{AddressMap, HexAddress, HugeBytes, LeftOut, MapRange, MemoryUse};
pub use probe::{Compared, CostRanges, PageCosts, Translation, compared};

use crate::machine::MachineFacts;
use crate::toggle::{Answer, Measured, Per};
use serde::{Deserialize, Serialize};

/// The number of this format; it grows if old readers would misread. Fields that have been added since are absent in
/// old records: see the fields with a default.
pub const VERSION: u32 = 1;
/// The value of `format`.
pub const FORMAT: &str = "pagelift-bench";
/// The most arms of one record; there are five sources of huge pages.
pub const MOST_ARMS: usize = 16;
/// The most blocks of one record: a day of blocks of four windows of 400 ms has 40,000.
pub const MOST_BLOCKS: usize = 50_000;
/// The most lines of one record. Each block of a live program has two switches or four.
pub const MOST_LINES: usize = 6 * MOST_BLOCKS;

/// The subject, the machine and the method of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// `toggle`, `runs` or `servers`.
    pub design: Design,
    /// The machine.
    pub machine: MachineFacts,
    /// The program's name, or the command.
    pub program: String,
    /// Names of the arms.
    pub arms: Vec<String>,
    /// The name of a unit of work, in the plural.
    pub unit: String,
    /// The divisor of work.
    pub per: Per,
    /// The seed of the order and the resampling.
    pub seed: u64,
    /// The options of each arm, in words of the command line; empty in records of before they were kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Vec<String>>,
    /// The lengths of windows, for a live program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Windows>,
    /// The load of the servers, if they run side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Page walks are to be counted by the CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counters: bool,
    /// The cost of address translation on the machine, if that was measured first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Box<Translation>>,
    /// The program that does the work of the command, a known driver, and is not lifted: `cc1plus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The words of the command line that made it, without passwords.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Version of Pagelift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pagelift: Option<String>,
    /// When it began, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
}

impl Header {
    /// A header of an experiment of which only the essential is known.
    pub fn new(design: Design, program: String, arms: Vec<String>, unit: String, per: Per, seed: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            design,
            machine: MachineFacts::default(),
            program,
            arms,
            unit,
            per,
            seed,
            options: Vec::new(),
            windows: None,
            load: None,
            counters: false,
            probe: None,
            worker: None,
            command: Vec::new(),
            pagelift: None,
            started: None,
        }
    }
}

/// The origin of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Design {
    /// One live program, switched in place.
    Toggle,
    /// A run of a command for each window.
    Runs,
    /// Servers side by side, to which the load goes in turn.
    Servers,
}

impl Design {
    /// All states are states of one process, whose mappings keep their addresses.
    pub fn is_of_one_process(self) -> bool {
        self == Self::Toggle
    }
}

/// The load of servers that run side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The command, or the address and the request; without passwords.
    pub command: String,
    /// The number that is read from the command's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Connections, each with one request at a time; absent if a command makes the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Number of starts of all servers.
    pub starts: u32,
}

/// The lengths of windows of a live program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Windows {
    /// Seconds of a window.
    pub length: f64,
    /// Seconds that were dropped after each switch.
    pub settle: f64,
    /// Switches into an arm count in the window behind them.
    pub with_switches: bool,
    /// The counter of work excludes the effects of a switch itself; counters of system calls would include them. Absent
    /// in records of earlier versions, in which switches count only if this is true.
    #[serde(default)]
    pub only_work: bool,
}

impl Windows {
    /// Counts during a switch of the program are its work alone.
    pub fn counts_only_work(self) -> bool {
        self.only_work || self.with_switches
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The first line.
    pub header: Header,
    /// The others.
    pub events: Vec<Event>,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not one of `pagelift bench -o`: {found}; needed: {needed}")]
pub struct RecordError {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub found: String,
    /// The correct form.
    pub needed: String,
}

impl RecordError {
    fn json(line: usize, error: &serde_json::Error) -> Self {
        // The reader sees each line alone and calls it the first.
        let text = error.to_string();
        let found = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let found: String = found.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect();
        let needed = if line == 1 {
            format!("its first line, {{\"format\":\"{FORMAT}\",\"version\":{VERSION},…}}")
        } else {
            "{\"block\":…}, {\"switch\":…}, {\"observed\":…} or {\"end\":…}".to_owned()
        };
        Self { line, found: format!("{found} (column {})", error.column()), needed }
    }

    fn new(line: usize, found: impl Into<String>, needed: impl Into<String>) -> Self {
        Self { line, found: found.into(), needed: needed.into() }
    }
}

impl Record {
    /// Reads a record. A last line that was cut off is left out.
    ///
    /// # Errors
    /// [`RecordError`], with the line.
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        let mut lines = text.split_inclusive('\n').enumerate();
        let (_, first) =
            lines.next().ok_or_else(|| RecordError::new(1, "the file is empty", "a file of `pagelift bench -o`"))?;
        let header = parse_header(first)?;
        let (mut events, mut blocks) = (Vec::new(), 0);
        for (index, line) in lines {
            let number = index + 1;
            if number > MOST_LINES {
                return Err(RecordError::new(number, "it is one too many", format!("at most {MOST_LINES} lines")));
            }
            let event: Event = match serde_json::from_str(line) {
                Ok(event) => event,
                // The only line without an end is the last.
                Err(_) if !line.ends_with('\n') => break,
                Err(error) => return Err(RecordError::json(number, &error)),
            };
            check(&event, number, header.arms.len())?;
            blocks += usize::from(matches!(event, Event::Block(_)));
            if blocks > MOST_BLOCKS {
                return Err(RecordError::new(number, "it is one block too many", format!("at most {MOST_BLOCKS}")));
            }
            events.push(event);
        }
        Ok(Self { header, events })
    }

    /// The whole blocks, in their order, with their switches if these count.
    pub fn blocks(&self) -> Vec<Measured> {
        self.timed_blocks().map(|block| self.counted(block)).collect()
    }

    /// A block, with its switches if these count.
    pub fn counted(&self, block: &TimedBlock) -> Measured {
        if self.counts_switches() { block.with_switches() } else { block.measured }
    }

    /// Switches count in the windows behind them.
    pub fn counts_switches(&self) -> bool {
        self.header.windows.is_some_and(|windows| windows.with_switches)
    }

    /// The whole blocks with the other measurements of their windows.
    pub fn timed_blocks(&self) -> impl Iterator<Item = &TimedBlock> {
        self.events.iter().filter_map(|event| if let Event::Block(block) = event { Some(&**block) } else { None })
    }

    /// The switches into an arm.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.events.iter().filter_map(|event| match event {
            Event::Switch(switch) if switch.arm.is_some() => Some(switch),
            _ => None,
        })
    }

    /// The observations of the program, in the order of time.
    pub fn observations(&self) -> impl Iterator<Item = &Observation> {
        self.events.iter().filter_map(|event| if let Event::Observed(seen) = event { Some(&**seen) } else { None })
    }

    /// True if an arm puts the heap on huge pages at the start. The report of a lift does not contain the heap.
    pub fn has_heap(&self, arm: usize) -> bool {
        self.header.options.get(arm).is_some_and(|options| options.iter().any(|word| word.starts_with("--heap=")))
    }

    /// The end of an experiment in which no arm lifted any memory: the reason of each arm.
    pub fn nothing_in_any_arm(&self) -> String {
        let of_arm = |(arm, name)| Some(format!("{name}: {}", self.lifted_nothing(arm)?));
        let reasons: Vec<_> = self.header.arms.iter().enumerate().filter_map(of_arm).collect();
        format!("nothing was lifted: {}", reasons.join("; "))
    }

    /// The reason why an arm had lifted no memory at the last observation; absent if it had, if its heap is on huge pages, or if
    /// there was no report.
    pub fn lifted_nothing(&self, arm: usize) -> Option<String> {
        if self.has_heap(arm) {
            return None;
        }
        let looked_at = self.observations().filter(|seen| seen.arm == Some(arm));
        let (seen, lift) = looked_at.filter_map(|seen| Some((seen, seen.lift.as_ref()?))).last()?;
        let is_huge = |map: &AddressMap| map.ranges.iter().any(|range| range.huge.iter().any(|huge| huge.bytes > 0));
        let only_advised = lift.covered == 0 && seen.map.as_ref().is_some_and(|map| !is_huge(map));
        lift.nothing().or_else(|| only_advised.then(|| "memory was advised, and did not become huge".to_owned()))
    }

    /// Returns the ratio of the plain program's huge bytes to an arm's, in the mappings that the lift covered: 0 to 1. If less of
    /// a plain run was resident yet, since short runs are observed early, the ratio is to its resident bytes. `None`
    /// if either was not observed, if they are different programs, or if the arm's heap is on huge pages, too.
    pub fn plain_huge(&self, arm: usize) -> Option<f64> {
        if self.has_heap(arm) {
            return None;
        }
        let seen = |arm: Option<usize>| self.observations().find(|seen| seen.arm == arm && seen.map.is_some());
        let (plain, lifted) = (seen(None)?, seen(Some(arm))?);
        let lift = lifted.lift.as_ref().filter(|_| plain.process == lifted.process)?;
        let bytes = |seen: &Observation| seen.map.as_ref().map_or((0, 0), |map| lift.huge_and_resident_in(map));
        let ((huge, resident), (of_arm, _)) = (bytes(plain), bytes(lifted));
        let most = if self.header.design == Design::Runs { resident } else { u64::MAX };
        let share = huge as f64 / of_arm.min(most) as f64;
        share.is_finite().then(|| share.min(1.0))
    }

    /// The counts of the CPU in each state.
    pub fn walks(&self) -> impl Iterator<Item = &WalkFigures> {
        self.events.iter().filter_map(|event| if let Event::Walks(walks) = event { Some(&**walks) } else { None })
    }

    /// The result of the blocks.
    pub fn answer(&self) -> Answer {
        let answer = Answer::of(&self.blocks(), self.header.arms.len(), self.header.per, self.header.seed);
        if self.header.design == Design::Servers { answer.over_starts() } else { answer }
    }

    /// The result of the blocks without their switches; absent if these do not count, or were not kept apart.
    pub fn steady_answer(&self) -> Option<Answer> {
        let is_apart = self.counts_switches() && self.timed_blocks().any(|block| block.switches.is_some());
        let blocks = || self.timed_blocks().map(|block| block.measured).collect::<Vec<_>>();
        is_apart.then(|| Answer::of(&blocks(), self.header.arms.len(), self.header.per, self.header.seed))
    }

    /// The reason for the end of the experiment; absent if the record was cut off.
    pub fn ended(&self) -> Option<&Ended> {
        self.events.iter().rev().find_map(|event| if let Event::End(ended) = event { Some(ended) } else { None })
    }
}

fn parse_header(line: &str) -> Result<Header, RecordError> {
    let header: Header = serde_json::from_str(line).map_err(|error| RecordError::json(1, &error))?;
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).take(40).collect::<String>();
    if header.format != FORMAT || header.version != VERSION {
        let found = format!("it is {} {}", clean(&header.format), header.version);
        return Err(RecordError::new(1, found, format!("{FORMAT} {VERSION}")));
    }
    if header.arms.len() > MOST_ARMS {
        let found = format!("it has {} arms", header.arms.len());
        return Err(RecordError::new(1, found, format!("at most {MOST_ARMS}")));
    }
    if header.probe.as_ref().is_some_and(|probe| !probe.is_bounded()) {
        return Err(RecordError::new(1, "its probe has more points than are ever written", "curves of bounded length"));
    }
    Ok(header)
}

/// Refuses an arm that the header does not name, and maps and lifts that no `pagelift bench` writes.
fn check(event: &Event, line: usize, arms: usize) -> Result<(), RecordError> {
    let arm = match event {
        Event::Block(block) => block.measured.block.treatment.arm(),
        Event::Switch(switch) => switch.arm,
        Event::Observed(seen) => seen.arm,
        Event::Walks(walks) => walks.arm,
        Event::End(_) => None,
    };
    if let Some(arm) = arm.filter(|&arm| arm >= arms) {
        return Err(RecordError::new(
            line,
            format!("its arm is {arm}"),
            format!("one of the {arms} in the first line"),
        ));
    }
    match event {
        Event::Walks(walks) if !walks.is_bounded() => {
            Err(RecordError::new(line, "it has more figures than are ever written", "at most 100"))
        }
        Event::Observed(seen) if !seen.is_bounded() => Err(RecordError::new(
            line,
            "it has more ranges than are ever written",
            "a map and a lift of bounded length",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
