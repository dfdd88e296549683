//! Takes the samples: for each footprint all page sizes in turn, forwards and backwards, so that a change of the
//! machine's speed affects all equally.

use crate::tlb_probe::Backing;
use crate::tlb_probe::chain::{Access, Chain, Layout, Slots, cycle, random_of};
use crate::tlb_probe::curve::{Curve, Point};
use crate::tlb_probe::load::Load;
use crate::tlb_probe::measured::{MeasuredSizes, Unmeasured};
use crate::tlb_probe::region::{NoMemory, Region};
use crate::tlb_probe::series::Series;
use crate::tlb_probe::simulated::Simulated;
use crate::tlb_probe::verdict::ProbeVerdict;
use estimate::tlb_model::{ArrayShape, Geometry, Second, Sizes};
use lift_plan::{Costs, Reason};
use linux::pages::base_page;
use machine_facts::ThpMode;
use machine_facts::machine_facts;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Steps of one sample, at least: some 50 µs to 5 ms, by the cost of a step.
const STEPS: usize = 1 << 15;
/// The fewest lines of a chain.
const FEWEST: usize = 16;
/// Samples of each page size at each footprint, at least.
const ROUNDS: usize = 5;
/// The longest chain of jumps in bytes: the branch of AArch64 reaches 128 MiB in each direction.
const CODE: u64 = 64 << 20;
/// The usual length of a cache line, for kernels that do not report it.
const LINE: usize = 64;

/// Bounds of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time for all passes. Every footprint gets its samples, five at least in each, even if that takes longer.
    pub time: Duration,
    /// No larger footprint is begun after this time: an emulated CPU takes minutes for a second's work of others. The
    /// curves then end before, and may show no level.
    pub most: Duration,
    /// The largest footprint in bytes. Twice as much memory and a little more is used at the same time.
    pub memory: u64,
}

/// The whole measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// Base page size in bytes.
    pub base_page: u64,
    /// True if the CPU reports that it is virtual; absent if that is unknown.
    pub virtual_machine: Option<bool>,
    /// Loads.
    pub data: MeasuredSizes,
    /// Jumps.
    pub code: MeasuredSizes,
    /// Costs of a lift; absent if there are no huge pages to measure them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lift_costs: Option<Costs>,
    /// The middle half of the costs of making huge pages present and copying onto them, in ns for each MiB, over its rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lift_cost_range: Option<(u64, u64)>,
    /// The conclusion, for the huge pages that programs get most often.
    pub verdict: Option<ProbeVerdict>,
    /// Number of passes. The curves are from the middle pass.
    pub passes: usize,
    /// Number of passes that had huge pages.
    pub passes_with_huge: usize,
    /// CPUs that other programs used meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

impl Probe {
    /// TLBs that would show the measured times, for a CPU that describes none. Each array is assumed to be fully
    /// associative and to hold pages of all sizes: neither can be measured. `None` if the curves do not show both
    /// levels.
    pub fn geometry(&self) -> Option<Geometry> {
        let level = |entries| vec![ArrayShape::full(Sizes::ALL, entries)];
        let ((code, second_code), (data, second_data)) = (self.code.entries()?, self.data.entries()?);
        Some(Geometry {
            name: "this CPU".to_owned(),
            source: "measured; each array is assumed to be fully associative and to hold pages of all sizes".to_owned(),
            instruction: level(code),
            data: level(data),
            second: Second::Split { instruction: level(second_code), data: level(second_data) },
            joined: None,
        })
    }
}

/// One pass, without the costs of a lift.
pub(crate) fn measure_once(options: &Options) -> Probe {
    let backings = backings();
    // Loads have more page sizes' footprints to show than code.
    let part = |share: f64| Bounds { time: options.time.mul_f64(share), most: options.most.mul_f64(share) };
    let mut data = measure(options.memory, part(0.6), &backings, Access::Data);
    let mut code = measure(options.memory.min(CODE), part(0.4), &backings, Access::Code);
    let geometry = estimate::tlb_model::own_cpu(linux::processor::midr()).ok();
    if let Some(geometry) = &geometry {
        data.simulated = data.base().and_then(|base| Simulated::of(base, Access::Data, geometry));
        code.simulated = code.base().and_then(|base| Simulated::of(base, Access::Code, geometry));
    }
    let virtual_machine = is_virtual_machine();
    let verdict = ProbeVerdict::of(&data, &code, virtual_machine, geometry.as_ref().and_then(entries));
    let base_page = base_page().bytes();
    Probe {
        base_page,
        virtual_machine,
        data,
        code,
        lift_costs: None,
        lift_cost_range: None,
        passes_with_huge: usize::from(verdict.is_some()),
        verdict,
        passes: 1,
        load: None,
    }
}

/// Entries for base pages of data in the second level; `None` if it has none.
fn entries(geometry: &Geometry) -> Option<u64> {
    let (Second::Shared(arrays) | Second::Split { data: arrays, .. }) = &geometry.second;
    let shift = base_page().bytes().trailing_zeros() as u8;
    let entries = arrays.iter().filter(|array| array.sizes.has(shift)).map(|array| array.entries as u64).sum();
    Some(entries).filter(|entries| *entries > 0)
}

/// A page size, and why it is unavailable.
type Candidate = (Backing, Option<String>);

/// Base pages, transparent huge pages, and the pools that have free pages.
fn backings() -> Vec<Candidate> {
    let facts = machine_facts(std::process::id() as i32);
    let off = |mode| (mode == ThpMode::OffInProcess).then(|| Reason::ThpOffInProcess.to_string());
    let transparent = facts.thp.map(|thp| (Backing::Transparent(thp.size), off(thp.mode)));
    // A pool of the same size as transparent huge pages would show the same times again.
    let shown = transparent.iter().filter(|(_, off)| off.is_none()).map(|(backing, _)| backing.page()).next();
    let pools = facts.pools.iter().filter(|pool| pool.available > 0 && Some(pool.size) != shown);
    let pools: Vec<Candidate> = pools.map(|pool| (Backing::Pool(pool.size), None)).collect();
    [(Backing::Base, None)].into_iter().chain(transparent).chain(pools).collect()
}

/// See [`Options`].
struct Bounds {
    time: Duration,
    most: Duration,
}

fn measure(memory: u64, bounds: Bounds, backings: &[Candidate], access: Access) -> MeasuredSizes {
    let mut measured = MeasuredSizes::default();
    let mut regions = Vec::new();
    for &(backing, ref reason) in backings {
        match reason.clone().map_or_else(|| region(memory, backing, access).map_err(|error| error.to_string()), Err) {
            Ok(region) => regions.push((backing, region)),
            Err(reason) => measured.unmeasured.push(Unmeasured { backing, reason }),
        }
    }
    let Some(huge) = regions.iter().rposition(|(backing, _)| *backing != Backing::Base) else { return measured };
    let samples = Samples { regions: &regions, packed: huge, access, line: cache_line() };
    let counts = counts(memory);
    let started = Instant::now();
    let deadline = started + bounds.time;
    let mut curves = vec![Curve::default(); regions.len()];
    for (index, &count) in counts.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now()) / (counts.len() - index) as u32;
        let Ok(points) = samples.at(count, left) else { break };
        for (curve, point) in curves.iter_mut().zip(points) {
            curve.points.extend(point);
        }
        if started.elapsed() >= bounds.most {
            break;
        }
    }
    for ((backing, _), curve) in regions.iter().zip(curves) {
        measured.series.push(Series::new(*backing, curve));
    }
    measured
}

/// Memory for the largest footprint, writable, or executable for a moment to see whether that is allowed.
fn region(memory: u64, backing: Backing, access: Access) -> Result<Region, NoMemory> {
    let page = backing.page().bytes();
    let region = Region::new(memory.next_multiple_of(page) as usize, backing)?;
    if access == Access::Code {
        region.protect(true)?;
    }
    Ok(region)
}

/// Numbers of lines: powers of two and the middle between each two, one line in each base page up to `memory`.
fn counts(memory: u64) -> Vec<usize> {
    let most = (memory / base_page().bytes()) as usize;
    let powers = std::iter::successors(Some(FEWEST), |count| count.checked_mul(2));
    powers.flat_map(|count| [count, count + count / 2]).take_while(|count| *count <= most).collect()
}

/// The memory of all page sizes.
struct Samples<'a> {
    regions: &'a [(Backing, Region)],
    /// The index of the variant with the packed lines: huge pages, so that the control itself needs hardly any
    /// translation.
    packed: usize,
    access: Access,
    line: usize,
}

impl Samples<'_> {
    /// The points of all page sizes for `count` visited lines.
    fn at(&self, count: usize, time: Duration) -> Result<Vec<Option<Point>>, NoMemory> {
        let next = cycle(count, &mut random_of(count));
        let stretch = base_page().bytes() as usize;
        let mut pairs = vec![Vec::new(); self.regions.len()];
        let deadline = Instant::now() + time;
        let mut round = 0;
        while round < ROUNDS || Instant::now() < deadline {
            let mut order: Vec<usize> = (0..self.regions.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            let packed = self.time(self.packed, count, Layout::Packed, &next)?;
            for index in order {
                let spread = self.time(index, count, Layout::Spread(stretch), &next)?;
                pairs[index].push((spread, packed));
            }
            round += 1;
        }
        Ok(pairs.iter().map(|pairs| Point::of_pairs(count, (count * stretch) as u64, pairs)).collect())
    }

    fn time(&self, index: usize, count: usize, layout: Layout, next: &[u32]) -> Result<f64, NoMemory> {
        let slots = Slots { count, layout, line: self.line };
        let chain = Chain::write(&self.regions[index].1, slots, next, self.access)?;
        chain.time(count);
        Ok(chain.time(STEPS))
    }
}

/// Bytes of a line of the first cache.
fn cache_line() -> usize {
    let text = linux::text::text_of("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size");
    let told = text.ok().and_then(|text| text.trim().parse().ok());
    told.filter(|line: &usize| line.is_power_of_two() && (16..=1024).contains(line)).unwrap_or(LINE)
}

/// The flag `hypervisor` of x86 CPUs in `/proc/cpuinfo`; other architectures do not report it.
pub fn is_virtual_machine() -> Option<bool> {
    let text = linux::text::text_of("/proc/cpuinfo").ok()?;
    let flags = text.lines().find(|line| line.starts_with("flags"))?;
    Some(flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_probe::probe;

    #[test]
    fn after_its_most_time_no_larger_footprint_is_begun() {
        let options = |most| Options { time: Duration::ZERO, most, memory: 1 << 20 };
        let points = |probe: &Probe| {
            let series = probe.data.series.iter().chain(&probe.code.series);
            series.map(|series| series.curve.points.len()).collect::<Vec<_>>()
        };
        let [cut, whole] = [Duration::ZERO, Duration::from_secs(3600)].map(|most| probe(&options(most)));
        assert_eq!((cut.passes, whole.passes), (1, 3));
        assert!(points(&cut).iter().all(|&points| points == 1), "{:?}", points(&cut));
        assert!(points(&whole).iter().all(|&points| points == counts(1 << 20).len()), "{:?}", points(&whole));
        assert!(cut.geometry().is_none());
    }
}
