//! `pagelift probe`.

use crate::arguments::size::size;
use crate::arguments::time::{SECOND, seconds};
use crate::output::Output;
use crate::say;
use crate::text::probe::text;
use anyhow::{bail, ensure};
use clap::Args;
use linux::pages::base_page;
use session::kept::Kept;
use std::sync::OnceLock;
use std::time::Duration;
use translation::tlb_probe::{Options, Probe, probe};
use translation::walk_counters::CpuIdentity;
use translation::working_set::{HeldPages, Reach};

/// `pagelift probe`.
#[derive(Args, Clone)]
pub struct ProbeArgs {
    /// Time to aim at, for all passes. On a slow or busy machine it takes longer.
    #[arg(long = "for", value_name = "TIME", default_value = "8s", value_parser = seconds(SECOND, 3600 * SECOND))]
    pub time: Duration,
    /// The largest footprint, and half of the memory that is used for the time: 256M, 1G. Huge pages that a TLB of 1,024
    /// entries cannot hold any more need 4G.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub memory: u64,
    /// Print JSON, with all points.
    #[arg(long)]
    pub json: bool,
}

/// Bounds of a measurement that another command makes beside its own: as long as it takes to reach beyond 3,000 entries that
/// hold four pages each, and no more than a few times that on a CPU that is too slow for it.
const BESIDE: Options = Options { time: Duration::from_secs(4), most: Duration::from_secs(12), memory: 256 << 20 };

/// Measures for another command, in this thread.
///
/// # Errors
/// The missing parts.
pub fn beside() -> Result<Probe, String> {
    let available = machine_facts::machine_facts(std::process::id() as i32).memory_available;
    let needed = 3 * BESIDE.memory;
    if available < needed {
        let (needed, found) = (needed >> 20, available >> 20);
        return Err(format!("measuring a page walk needs {needed} MiB, {found} are available"));
    }
    Ok(probe(&BESIDE))
}

/// Family and model of an unknown CPU, and base pages of code and of data that its TLBs hold.
const KEPT: Kept = Kept { name: "tlb-reach", format: "tlb-reach-1" };

/// Maximum number of pages that count as measured.
const MOST_HELD: u64 = 1 << 24;

/// The model of an x86-64 CPU, or the part of an AArch64 one.
fn model_of(cpu: &CpuIdentity) -> u64 {
    cpu.model + cpu.part
}

fn understood(numbers: &[u64], cpu: &CpuIdentity) -> Option<HeldPages> {
    let &[family, model, code, data] = numbers else { return None };
    let is_sound = [code, data].iter().all(|pages| (1..=MOST_HELD).contains(pages));
    let is_this = (family, model) == (cpu.family, model_of(cpu));
    (is_sound && is_this).then_some(HeldPages { code: Some(code), data: Some(data) })
}

/// Keeps the measured reach of an unknown CPU for other commands, if all was measured. Users without a folder for it measure it
/// again.
fn keep(reach: &Reach) {
    let measured = reach.measured.filter(|_| reach.levels.is_empty());
    if let Some(HeldPages { code: Some(code), data: Some(data) }) = measured {
        let cpu = CpuIdentity::read();
        let _ = KEPT.keep(&[cpu.family, model_of(&cpu), code, data]);
    }
}

/// The reach of this CPU's TLBs: as described or known for its model, and for an unknown one as measured, which takes some seconds,
/// once until the next boot; `pagelift probe` measures it again. `says_so` prints that: not where standard error is a command's, or has a report in JSON.
pub fn known_reach(says_so: bool) -> Reach {
    static MEASURED: OnceLock<Reach> = OnceLock::new();
    let reach = Reach::of_this_cpu();
    if !reach.levels.is_empty() {
        return reach;
    }
    let measure = || {
        if let Some(held) = KEPT.known(|numbers| understood(numbers, &CpuIdentity::read())) {
            return reach.with_measured(held);
        }
        if says_so {
            say!("pagelift: note: {}; they are measured now, which takes some seconds", reach.source);
        }
        match beside() {
            Ok(probe) => {
                let reach = self::reach(&probe);
                keep(&reach);
                reach
            }
            Err(why) => Reach { source: format!("{}, and {why}", reach.source), ..reach },
        }
    };
    MEASURED.get_or_init(measure).clone()
}

/// The reach of this CPU's TLBs: as measured, otherwise as described or known for its model.
pub fn reach(probe: &Probe) -> Reach {
    Reach::of_this_cpu().with_measured(HeldPages { code: probe.code.pages_held(), data: probe.data.pages_held() })
}

/// The smallest footprint that shows anything.
const SMALLEST: u64 = 16 << 20;

/// Bytes that measuring takes beside twice the footprint.
const BESIDE_FOOTPRINT: u64 = 256 << 20;

/// The reason why this footprint, in bytes, cannot be measured with this much memory available.
fn lack(memory: u64, available: u64) -> Option<String> {
    let needed = |memory: u64| memory.saturating_mul(2).saturating_add(BESIDE_FOOTPRINT);
    if needed(memory) <= available {
        return None;
    }
    let found = format!(
        "--memory {} MiB takes {} MiB for the time, and {} MiB are available; fix: ",
        memory >> 20,
        needed(memory) >> 20,
        available >> 20
    );
    let most = available.saturating_sub(BESIDE_FOOTPRINT) / 2;
    Some(match most >= SMALLEST {
        true => format!("{found}--memory {}M", most >> 20),
        false => format!("{found}free memory; needed: {} MiB or more", needed(SMALLEST) >> 20),
    })
}

/// Measures and prints.
pub fn run(args: &ProbeArgs) -> anyhow::Result<()> {
    ensure!(args.memory >= SMALLEST, "--memory is {} MiB; needed: 16M or more", args.memory >> 20);
    let available = machine_facts::machine_facts(std::process::id() as i32).memory_available;
    if let Some(why) = lack(args.memory, available) {
        bail!("{why}");
    }
    let memory = args.memory.next_multiple_of(base_page().bytes());
    let options = Options { time: args.time, most: Duration::MAX, memory };
    let probe = probe(&options);
    if let Some(costs) = &probe.lift_costs
        && let Err(error) = session::costs::keep(costs)
    {
        say!("pagelift: note: the costs of a lift are not kept: {error}");
    }
    keep(&reach(&probe));
    Output::Standard.print_either(args.json, &probe, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_measured_reach_is_kept() {
        let cpu = CpuIdentity { family: 6, model: 167, ..CpuIdentity::default() };
        let held = HeldPages { code: Some(2048), data: Some(1536) };
        assert_eq!(understood(&[6, 167, 2048, 1536], &cpu), Some(held));
        for nothing in
            [&[][..], &[6, 167, 2048], &[6, 167, 0, 1536], &[6, 167, 2048, MOST_HELD + 1], &[6, 143, 2048, 1536]]
        {
            assert_eq!(understood(nothing, &cpu), None, "{nothing:?}");
        }
    }

    #[test]
    fn the_named_footprint_can_be_measured() {
        const MIB: u64 = 1 << 20;
        assert_eq!(lack(64 * MIB, 384 * MIB), None);
        for available in [288, 300, 400, 700].map(|count| count * MIB) {
            let said = lack(512 * MIB, available).unwrap();
            let named = said.split("fix: --memory ").nth(1).unwrap().trim_end_matches('M');
            assert_eq!(lack(named.parse::<u64>().unwrap() * MIB, available), None, "{said}");
        }
        let said = lack(512 * MIB, 287 * MIB).unwrap();
        assert!(said.ends_with("needed: 288 MiB or more"), "{said}");
    }
}
