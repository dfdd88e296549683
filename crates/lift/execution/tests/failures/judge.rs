//! Judges a process after a lift, however it went.

use crate::scenario::{Run, Scenario};
use crate::support::{PAGE, base_page};
use address_space::{Address, AddressRange, AddressSpace, Mapping, Protection, RangeSet};
use lift_execution::{Executor, RangeOutcome};
use lift_plan::{RangeLift, Source};
use lift_simulation::simulated::{Script, SimulatedKernel};

/// The folder of these tests' images.
const IMAGES: &str = "/run/images/";

/// The deviations from a perfect result that a test accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leniency {
    /// Calls that clean up failed for ever: mappings of ours may be left.
    pub leftovers: bool,
    /// The kernel removed memory and refused to move the original back: ordinary pages with the correct contents are
    /// accepted.
    pub replaced: bool,
    /// The kernel did not report which memory is huge or mapped.
    pub unread: bool,
    /// The process has nearly all the mappings it may have, and the planner did not know.
    pub crowded: bool,
}

type Verdict = Result<(), String>;

fn hold(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

/// Every requirement on a process after a lift.
pub fn judge(scenario: &Scenario, run: &Run, leniency: Leniency) -> Verdict {
    let mut kernel = run.kernel.clone();
    kernel.follow(Script::new());
    hold(kernel.violations().is_empty(), || format!("{:?}", kernel.violations()))?;
    contents_are_right(scenario, &kernel)?;
    let after = kernel.mappings();
    for mapping in scenario.process.space.mappings() {
        let lifts = scenario.plan.lifts.iter().map(|lift| lift.range.intersect(mapping.range));
        let mut outside = RangeSet::from_iter([mapping.range]);
        lifts.for_each(|range| outside.remove(range));
        for range in outside.iter() {
            same_protection(&after, range, mapping.protection)?;
        }
    }
    let told = run.outcome.ranges.len();
    hold(told == scenario.plan.lifts.len(), || format!("{told} of {} ranges told", scenario.plan.lifts.len()))?;
    for (lift, outcome) in scenario.plan.lifts.iter().zip(&run.outcome.ranges) {
        lifted_or_untouched(scenario, &kernel, &after, lift, leniency)?;
        tells_the_truth(&mut kernel, lift, outcome, leniency)?;
    }
    nothing_left(scenario, &kernel, run, leniency)?;
    program_goes_on(scenario, run, kernel, leniency)
}

/// Every byte that was mapped is still mapped, with the same value.
pub fn contents_are_right(scenario: &Scenario, kernel: &SimulatedKernel) -> Verdict {
    let after = kernel.mapped();
    for range in scenario.kernel.mapped().iter() {
        let (before, now) = (scenario.kernel.contents(range), kernel.contents(range));
        hold(after.covers(range) && before == now, || format!("contents of {range}: {before:?} became {now:?}"))?;
    }
    Ok(())
}

pub fn same_protection(after: &AddressSpace, range: AddressRange, protection: Protection) -> Verdict {
    let found = after.overlapping(range);
    let same = after.is_fully_mapped(range) && found.iter().all(|mapping| mapping.protection == protection);
    hold(same, || format!("{range} was {protection:?}, is {found:?}"))
}

/// Each huge page of the range is either on huge pages with the plan's protection, or unchanged.
fn lifted_or_untouched(
    scenario: &Scenario,
    kernel: &SimulatedKernel,
    after: &AddressSpace,
    lift: &RangeLift,
    lenient: Leniency,
) -> Verdict {
    let before = &scenario.process.space;
    let size = lift.attempts[0].page_size;
    let mut next = lift.range.start();
    while next < lift.range.end() {
        let page = AddressRange::sized(next, size.bytes());
        next =
            untouched_up_to(before, after, page).map_or(page.end(), |end| end.align_down(size).min(lift.range.end()));
        let old = before.overlapping(page);
        let new = after.overlapping(page);
        let what = || format!("{page} of {}: {old:?} became {new:?}", lift.object);
        hold(after.is_fully_mapped(page), what)?;
        let replaced = new.iter().any(|new| !old.iter().any(|old| same_memory(old, new)));
        let image = new.iter().any(|new| new.path().is_some_and(|path| path.starts_with(IMAGES)));
        if (image || kernel.is_huge(page, size)) && new.iter().all(|mapping| mapping.protection == lift.protection) {
            continue;
        }
        hold(!replaced || lenient.replaced, what)?;
        for old in old {
            same_protection(after, old.range.intersect(page), old.protection)?;
        }
    }
    Ok(())
}

/// The end of the range with the same memory and the same protection as before, if that is at least all of `page`.
fn untouched_up_to(before: &AddressSpace, after: &AddressSpace, page: AddressRange) -> Option<Address> {
    let (old, new) = (before.find(page.start())?, after.find(page.start())?);
    let end = old.range.end().min(new.range.end());
    (same_memory(old, new) && old.protection == new.protection && end >= page.end()).then_some(end)
}

/// Two mappings that show the same memory: the same place of a file, or anonymous memory that was never replaced.
fn same_memory(old: &Mapping, new: &Mapping) -> bool {
    let place =
        |m: &Mapping| (m.device, m.inode, m.offset.wrapping_sub(if m.inode == 0 { 0 } else { m.range.start().0 }));
    old.range.overlaps(new.range) && place(old) == place(new) && old.shared == new.shared
}

fn tells_the_truth(kernel: &mut SimulatedKernel, lift: &RangeLift, told: &RangeOutcome, lenient: Leniency) -> Verdict {
    let huge = kernel.query_huge(lift.range, told.page_size).map_err(|error| error.to_string())?;
    hold((told.range, told.protection) == (lift.range, lift.protection), || format!("{lift:?} told as {told:?}"))?;
    let truth = told.covered == huge || (lenient.unread && told.covered.is_empty());
    hold(truth, || format!("{}: told {:?}, true {huge:?}", lift.range, told.covered))?;
    let mut accounted = told.covered.clone();
    for uncovered in &told.uncovered {
        let new = !accounted.overlaps(uncovered.range) && lift.range.covers(uncovered.range);
        hold(new, || format!("{} is told twice: {told:?}", uncovered.range))?;
        accounted.insert(uncovered.range);
    }
    let all = accounted.bytes() + told.advised == lift.range.len();
    hold(all, || format!("not every byte is accounted for: {told:?}"))?;
    match told.source {
        Some(Source::Hugetlb) => hold(lenient.unread || told.covered.covers(lift.range), || format!("{told:?}")),
        // The contents of an image are correct even if its pages are not mapped as huge ones yet.
        Some(Source::Thp | Source::Image | Source::File) => Ok(()),
        None => hold(!told.failed.is_empty() && told.made_resident == 0, || format!("no reason given: {told:?}")),
    }
}

fn nothing_left(scenario: &Scenario, kernel: &SimulatedKernel, run: &Run, lenient: Leniency) -> Verdict {
    let (before, after) = (scenario.kernel.mapped(), kernel.mapped());
    let mut left = after.clone();
    before.iter().for_each(|range| left.remove(range));
    hold(left.is_empty() || lenient.leftovers, || format!("left behind: {left:?}"))?;
    let unexpected = &run.outcome.unexpected;
    hold(unexpected.is_empty() || !left.is_empty(), || format!("unexpected: {unexpected:?}"))?;
    hold(left.is_empty() || lenient.unread || !unexpected.is_empty(), || format!("not told of: {left:?}"))?;
    for &size in scenario.machine.pools.keys() {
        let from_pool = |told: &&RangeOutcome| told.source == Some(Source::Hugetlb) && told.page_size == size;
        let used: u64 = run.outcome.ranges.iter().filter(from_pool).map(|told| told.range.len() / size.bytes()).sum();
        let (found, free) = (kernel.pool_left(size), run.before.pool_left(size));
        hold(found + used == free || lenient.leftovers, || {
            format!("{used} pages of {size} used, {found} of {free} free")
        })?;
    }
    Ok(())
}

/// The program's next actions succeed: it writes to its data, seals its RELRO, and moves its break.
fn program_goes_on(scenario: &Scenario, run: &Run, mut kernel: SimulatedKernel, lenient: Leniency) -> Verdict {
    for lift in scenario.plan.lifts.iter().filter(|lift| lift.protection.write) {
        for at in [lift.range.start(), lift.range.end() - 8] {
            kernel.write(at, b"written!").map_err(|errno| format!("writing to {at} fails afterwards: {errno}"))?;
        }
    }
    // Actions that fail now must have failed before, unless there is an excuse.
    let failed = next_of(scenario, &mut kernel);
    let excused = || lenient.crowded || next_of(scenario, &mut run.before.clone()) == failed;
    hold(failed.is_empty() || excused(), || format!("fails afterwards: {failed:?}"))?;
    hold(kernel.violations().is_empty(), || format!("{:?}", kernel.violations()))
}

/// Lets the program do its typical next actions, and names the failures.
fn next_of(scenario: &Scenario, kernel: &mut SimulatedKernel) -> Vec<String> {
    let mut failed = Vec::new();
    if scenario.process.relocates_itself {
        for relro in scenario.process.objects.iter().filter_map(|object| object.relro(base_page())) {
            failed
                .extend(kernel.protect(relro, Protection::READ).err().map(|error| format!("sealing {relro}: {error}")));
        }
    }
    if let Some(heap) = scenario.process.space.heap() {
        for end in [heap.end() + 3 * PAGE, heap.end() + PAGE, heap.end() - PAGE, heap.end() + 2 * PAGE] {
            failed.extend(kernel.brk(end).err().map(|errno| format!("brk to {end}: {errno}")));
        }
    }
    failed
}

/// Fails the test with all information to repeat a run.
pub fn demand(scenario: &Scenario, script: &Script, run: &Run, leniency: Leniency) {
    if let Err(finding) = judge(scenario, run, leniency) {
        let log: Vec<_> = run.kernel.log().iter().map(|(call, range)| format!("{call:?} {range}")).collect();
        panic!("{}\n{script:?}\n{finding}\ncalls: {log:#?}\noutcome: {:#?}", scenario.name, run.outcome);
    }
}
