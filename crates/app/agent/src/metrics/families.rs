//! The metrics with their labels, made of a snapshot. Each label has a bounded number of values.

use super::pauses::Pauses;
use super::snapshot::Snapshot;
use crate::decision::{Reason, State};
use crate::rules::Mode;
use crate::verdicts::Standing;
use machine_facts::PoolCounts;
use std::collections::BTreeMap;

/// The most series of a node: at 10,000 nodes these are 2 million.
pub const MOST_SERIES: usize = 200;
/// Programs that have a name in labels; all others are `other`.
pub(super) const MOST_PROGRAMS: usize = 10;
/// Programs whose gains are shown.
pub(super) const MOST_GAINS: usize = 5;
/// Series of lifted memory, which has three labels.
const MOST_LIFTED: usize = 32;
/// Nodes with series of their own; the pools of a larger machine are summed.
const MOST_NODES: usize = 4;
/// Page sizes of pools.
const MOST_SIZES: usize = 3;
/// Label of all programs without a name.
pub(super) const OTHER: &str = "other";

/// Kind and value of one sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Gauge(f64),
    Counter(f64),
    Info,
    Histogram(Pauses),
}

pub(super) type Labels = Vec<(&'static str, String)>;

/// A metric with its samples. Names have neither `_total` nor `_info` at the end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Vec<(Labels, Value)>,
}

impl Family {
    fn one(name: &'static str, help: &'static str, value: Value) -> Self {
        Self { name, help, samples: vec![(Vec::new(), value)] }
    }

    fn by<T: ToString>(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        samples: impl IntoIterator<Item = (T, Value)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(word, value)| (vec![(label, word.to_string())], value)).collect();
        Self { name, help, samples }
    }
}

fn gauge(value: impl Into<Number>) -> Value {
    Value::Gauge(value.into().0)
}

fn counter(value: impl Into<Number>) -> Value {
    Value::Counter(value.into().0)
}

/// A number of a metric. Prometheus stores doubles only.
struct Number(f64);

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self(value as f64)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Self {
        Self(f64::from(u8::from(value)))
    }
}

impl From<std::time::Duration> for Number {
    fn from(value: std::time::Duration) -> Self {
        Self(value.as_secs_f64())
    }
}

/// All metrics of a snapshot.
pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let programs = Programs::of(snapshot);
    let mut all = own(snapshot);
    all.extend(lifts(snapshot, &programs));
    all.extend(measurements(snapshot));
    all.extend(costs(snapshot));
    all.extend(kernel(snapshot));
    all.retain(|family| !family.samples.is_empty());
    all
}

fn own(snapshot: &Snapshot) -> Vec<Family> {
    let mode = match snapshot.mode {
        Mode::Observe => "observe",
        Mode::Act => "act",
    };
    let states = State::ALL.iter().map(|state| {
        let number = snapshot.processes.get(state).copied().unwrap_or(0);
        (state.word(), gauge(number))
    });
    vec![
        Family::by("pagelift_build", "Version of Pagelift.", "version", [(snapshot.version, Value::Info)]),
        Family::by("pagelift_agent_mode", "Mode of the agent.", "mode", [(mode, Value::Info)]),
        Family::one(
            "pagelift_config_last_reload_successful",
            "1 if the last configuration was accepted.",
            gauge(snapshot.is_config_accepted),
        ),
        Family::one(
            "pagelift_config_last_reload_success_timestamp_seconds",
            "Time at which a configuration was last accepted.",
            gauge(snapshot.config_accepted_at),
        ),
        Family::one("pagelift_kill_switch", "1 while the kill switch is on.", gauge(snapshot.is_killed)),
        Family::by("pagelift_processes", "Processes by state.", "state", states),
        Family::one(
            "pagelift_agent_last_update_timestamp_seconds",
            "Time at which these values were read.",
            gauge(snapshot.at),
        ),
    ]
}

/// Names of programs that labels may have.
pub(super) struct Programs(Vec<String>);

impl Programs {
    /// The programs with the most lifted bytes.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut bytes = BTreeMap::<String, u64>::new();
        for lifted in &snapshot.lifted {
            if let Some(name) = label_of(&lifted.program) {
                *bytes.entry(name).or_default() += lifted.bytes;
            }
        }
        let mut names: Vec<(u64, String)> = bytes.into_iter().map(|(name, bytes)| (bytes, name)).collect();
        names.sort_by(|one, other| other.cmp(one));
        Self(names.into_iter().take(MOST_PROGRAMS).map(|(_, name)| name).collect())
    }

    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    fn label(&self, program: &str) -> String {
        label_of(program).filter(|name| self.0.contains(name)).unwrap_or_else(|| OTHER.to_owned())
    }
}

/// The name of a program as a label, if it is the name of a program as distributions give them.
pub(super) fn label_of(program: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let is_sound = (1..=32).contains(&program.len()) && program != OTHER && program.bytes().all(is_plain);
    is_sound.then(|| program.to_owned())
}

fn lifts(snapshot: &Snapshot, programs: &Programs) -> Vec<Family> {
    let mut lifted = BTreeMap::<(String, &'static str, u64), u64>::new();
    let mut private = BTreeMap::<String, u64>::new();
    for memory in &snapshot.lifted {
        let program = programs.label(&memory.program);
        *lifted.entry((program.clone(), memory.source, memory.page_size)).or_default() += memory.bytes;
        *private.entry(program).or_default() += memory.private;
    }
    let mut lifted: Vec<_> = lifted.into_iter().collect();
    lifted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    lifted.truncate(MOST_LIFTED);
    let lifted = lifted.into_iter().map(|((program, source, page_size), bytes)| {
        let labels = vec![("program", program), ("source", source.to_owned()), ("page_size", page_size.to_string())];
        (labels, gauge(bytes))
    });
    let results = snapshot.lifts;
    let results = [
        ("lifted", results.lifted),
        ("observed", results.observed),
        ("refused", results.refused),
        ("failed", results.failed),
        ("put-back", results.put_back),
    ];
    let of_reason = |&reason: &Reason| Some((reason.word(), counter(*snapshot.refusals.get(&reason)?)));
    vec![
        Family {
            name: "pagelift_lifted_bytes",
            help: "Bytes on huge pages, of programs that the agent has lifted.",
            samples: lifted.collect(),
        },
        Family::one(
            "pagelift_lost_bytes",
            "Bytes of lifted code and constants that the kernel has taken off huge pages since.",
            gauge(snapshot.lost),
        ),
        Family::by(
            "pagelift_private_copy_bytes",
            "Bytes that lifts have made private to processes.",
            "program",
            private.into_iter().map(|(program, bytes)| (program, gauge(bytes))),
        ),
        Family::by(
            "pagelift_lifts",
            "Attempts to lift a process, by result.",
            "result",
            results.map(|(result, number)| (result, counter(number))),
        ),
        Family::by(
            "pagelift_refusals",
            "Lifts that were refused, by reason.",
            "reason",
            Reason::ALL.iter().filter_map(of_reason),
        ),
        Family::one(
            "pagelift_pause_seconds",
            "Longest time for which a lift stopped all threads of a process.",
            Value::Histogram(snapshot.pauses.clone()),
        ),
        Family::one(
            "pagelift_crashes_after_lift",
            "Processes that were killed by a signal, or ended in an unknown way (before Linux 6.15), within a minute of their lift.",
            counter(snapshot.crashes),
        ),
    ]
}

fn measurements(snapshot: &Snapshot) -> Vec<Family> {
    let verdicts = Standing::ALL.map(|standing| {
        let number = snapshot.verdicts.get(&standing).copied().unwrap_or(0);
        (standing.word(), gauge(number))
    });
    let mut programs = BTreeMap::<String, [f64; 3]>::new();
    for found in &snapshot.gains {
        if let Some(name) = label_of(&found.program)
            && (programs.len() < MOST_GAINS || programs.contains_key(&name))
        {
            // The last measured is first.
            programs.entry(name).or_insert(found.gain);
        }
    }
    let gains = programs.into_iter().flat_map(|(program, gain)| {
        ["low", "mid", "high"]
            .into_iter()
            .zip(gain)
            .map(move |(bound, share)| (vec![("program", program.clone()), ("bound", bound.to_owned())], gauge(share)))
    });
    vec![
        Family::one(
            "pagelift_measurement_blocks",
            "Blocks of all measurements. Dropped blocks and control blocks count.",
            counter(snapshot.measured_blocks),
        ),
        Family::by("pagelift_verdicts", "Builds of programs by verdict.", "verdict", verdicts),
        Family {
            name: "pagelift_gain_ratio",
            help: "Measured gain of a lift as a ratio: 0.02 is 2 % more work for the same CPU time.",
            samples: gains.collect(),
        },
    ]
}

fn costs(snapshot: &Snapshot) -> Vec<Family> {
    let by = [("supervisor", snapshot.supervisor_cpu), ("worker", snapshot.worker_cpu), ("pause", snapshot.pause_time)];
    vec![
        Family::by(
            "pagelift_budget_cpu_seconds",
            "CPU time that counts against the agent's budget.",
            "by",
            by.map(|(word, time)| (word, counter(time))),
        ),
        Family::one(
            "pagelift_budget_left_cpu_seconds",
            "CPU time that the budget permits now.",
            gauge(snapshot.budget_left),
        ),
        Family::one("process_cpu_seconds", "CPU time of the supervisor.", counter(snapshot.supervisor_cpu)),
        Family::one("process_resident_memory_bytes", "Resident memory of the supervisor.", gauge(snapshot.resident)),
        Family::one(
            "pagelift_stuck_workers",
            "Workers in an uninterruptible sleep that SIGKILL has not ended; nothing is lifted meanwhile.",
            gauge(snapshot.stuck_workers),
        ),
        Family::one("pagelift_scan_duration_seconds", "Duration of the last scan of /proc.", gauge(snapshot.scan)),
        Family::by(
            "pagelift_exec_events",
            "Events of executed programs, which only order a scan, and the number of times that some were lost.",
            "result",
            snapshot
                .exec_events
                .into_iter()
                .flat_map(|heard| [("heard", counter(heard.executed)), ("lost", counter(heard.lost))]),
        ),
        Family::by(
            "pagelift_scans",
            "Scans of /proc; the budget of CPU time did not permit the dropped ones.",
            "result",
            [("done", counter(snapshot.scans)), ("dropped", counter(snapshot.dropped_scans))],
        ),
    ]
}

fn kernel(snapshot: &Snapshot) -> Vec<Family> {
    let kernel = &snapshot.kernel;
    let vmstat = kernel.vmstat.iter().map(|&(name, value)| (name, counter(value)));
    let pools = kernel.pools.iter().take(MOST_SIZES).flat_map(pool);
    let mut families = vec![
        Family {
            name: "pagelift_pool_pages",
            help: "Pages of the hugetlb pools. Reserved pages are a part of the free ones, and are counted for all nodes.",
            samples: pools.collect(),
        },
        Family::by("pagelift_vmstat", "Counters of /proc/vmstat about huge pages.", "name", vmstat),
    ];
    if let Some(shootdowns) = kernel.shootdowns {
        families.push(Family::one(
            "pagelift_tlb_shootdowns",
            "TLB shootdowns that all CPUs have received.",
            counter(shootdowns),
        ));
    }
    families
}

fn pool(pool: &PoolCounts) -> Vec<(Labels, Value)> {
    let sample = |node: &str, state: &str, pages: u64| {
        let page_size = pool.size.bytes().to_string();
        let labels = vec![("page_size", page_size), ("node", node.to_owned()), ("state", state.to_owned())];
        (labels, gauge(pages))
    };
    let mut samples = vec![sample("all", "reserved", pool.reserved)];
    if (1..=MOST_NODES).contains(&pool.nodes.len()) {
        for node in &pool.nodes {
            let name = node.node.to_string();
            samples.push(sample(&name, "free", node.free));
            samples.push(sample(&name, "surplus", node.surplus));
            samples.push(sample(&name, "used", node.total.saturating_sub(node.free)));
        }
    } else {
        samples.push(sample("all", "free", pool.free));
        samples.push(sample("all", "surplus", pool.surplus));
        samples.push(sample("all", "used", pool.used()));
    }
    samples
}
