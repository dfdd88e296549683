//! The cost of a switch to an arm for a live program.

use measure::record::{Record, Switch, TimedBlock};
use measure::statistics::{BlockValue, Estimate, estimate, median};
use measure::toggle::{Answer, Finding, Treatment, Window};

/// The cost of the switches into an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchCost {
    /// CPU time of the program.
    pub cpu: CpuCost,
    /// Median of the seconds in which the program was stopped.
    pub pause: f64,
    /// Number of switches.
    pub switches: usize,
    /// Seconds of CPU time after which a gain has paid for the switch; absent if no gain or no cost can be shown.
    pub paid_back: Option<f64>,
}

/// CPU time of a program during a switch, in which most of its threads continue to work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CpuCost {
    /// Seconds without the time that a plain program takes for the work done during the switch, in the same block.
    Beyond(Estimate),
    /// Seconds including that work: there are too few blocks, or the counter of work also counts actions of a switch.
    /// Median.
    WithWork(f64),
}

/// The cost of a switch to an arm; absent if there was none.
pub fn switch_cost(record: &Record, answer: &Answer, arm: usize) -> Option<SwitchCost> {
    let steady = record.steady_answer();
    let answer = steady.as_ref().unwrap_or(answer);
    let of_arm: Vec<&Switch> = record.switches().filter(|switch| switch.arm == Some(arm)).collect();
    let middle = |of: fn(&Switch) -> f64| median(&of_arm.iter().map(|switch| of(switch)).collect::<Vec<_>>());
    let (all, pause) = (middle(|switch| switch.cpu)?, middle(|switch| switch.pause)?);
    let beyond = beyond_work(record, arm);
    let gain = answer.arms.get(arm)?.ratio.map(|ratio| 1.0 - 1.0 / ratio.centre).filter(|gain| *gain > 0.0);
    let gain = gain.filter(|_| answer.finding(arm) == Finding::Better);
    let paid_back = beyond.filter(|cost| cost.low > 0.0).zip(gain).map(|(cost, gain)| cost.centre / gain);
    let cpu = beyond.map_or(CpuCost::WithWork(all), CpuCost::Beyond);
    Some(SwitchCost { cpu, pause, switches: of_arm.len(), paid_back })
}

fn beyond_work(record: &Record, arm: usize) -> Option<Estimate> {
    if !record.header.windows?.counts_only_work() {
        return None;
    }
    let blocks = record.timed_blocks().filter(|block| block.measured.block.treatment == Treatment::Arm(arm));
    let values: Vec<BlockValue> =
        blocks.filter_map(of_block).map(|value| BlockValue { generation: 0, value }).collect();
    estimate(&values, record.header.seed)
}

/// Seconds for each switch of a block.
fn of_block(block: &TimedBlock) -> Option<f64> {
    let of_state = block.measured.windows.iter().zip(block.measured.block.treated());
    let plain: Vec<&Window> = of_state.filter_map(|(window, treated)| (!treated).then_some(window)).collect();
    let switches: Vec<&Window> = block.switches.iter().flatten().filter(|switch| switch.wall > 0.0).collect();
    let sum = |windows: &[&Window], of: fn(&Window) -> f64| windows.iter().map(|window| of(window)).sum::<f64>();
    let (work, cpu) = (sum(&plain, |window| window.work), sum(&plain, |window| window.cpu));
    if work <= 0.0 || switches.is_empty() || switches.iter().chain(&plain).any(|window| window.work < 0.0) {
        return None;
    }
    let expected = sum(&switches, |switch| switch.work) * (cpu / work);
    let cost = (sum(&switches, |switch| switch.cpu) - expected) / switches.len() as f64;
    // A record with impossible values is a stranger's.
    Some(cost).filter(|cost| cost.abs() < 1e9)
}

/// `12.0 ms [4.1, 20.3] of its CPU time beyond its work`.
pub fn cpu_cost(cost: CpuCost) -> String {
    match cost {
        CpuCost::Beyond(Estimate { centre, low, high, .. }) => {
            let [centre, low, high] = [centre, low, high].map(|seconds| format!("{:.1}", seconds * 1e3));
            format!("{centre} ms [{low}, {high}] of its CPU time beyond its work")
        }
        CpuCost::WithWork(seconds) => {
            format!("at most {:.1} ms of its CPU time, its work counted", (seconds * 1e3).clamp(0.0, 1e9))
        }
    }
}
