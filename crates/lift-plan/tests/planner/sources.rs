//! Where nothing is short, each range gets every source that serves it, best first; and a plan is no longer than it has to
//! be: its most valuable ranges come first, and what can be lifted together is.

use crate::fates::size_of;
use crate::oracle::{chosen_pages, pages_in};
use crate::support::{Program, random};
use address_space::{AddressRange, ObjectRole, PageSize};
use lift_plan::{
    HugePool, ImageSpan, Kind, MachineFacts, Pages, Part, Plan, Policy, RangeLift, Reason, Source, ThpMode, Way,
    WritablePages, plan,
};
use proptest::prelude::*;

/// The machine with more of everything than any plan takes. What it has not at all, it still has not.
fn plentiful(machine: MachineFacts) -> MachineFacts {
    let full = |pool: HugePool| HugePool { total: 1 << 30, available: 1 << 30, ..pool };
    let pools = machine.pools.into_iter().map(full).collect();
    MachineFacts { pools, memory_available: u64::MAX, max_mappings: 1 << 30, ..machine }
}

/// The first image that shows `range` on huge pages of `size`.
fn image_of(program: &Program, range: AddressRange, size: PageSize) -> Option<&ImageSpan> {
    let in_step = |span: &ImageSpan| (span.range.start().0 ^ span.offset) & (size.bytes() - 1) == 0;
    program.facts.images.iter().find(|span| span.page_size == size && span.range.covers(range) && in_step(span))
}

/// The sources that the user allows for a range, best first.
fn allowed(kinds: &[Kind], write: bool, running: bool, policy: &Policy) -> Vec<Source> {
    use Source::*;
    let heap = kinds.contains(&Kind::Heap);
    let no_pool_for_writing = policy.writable_pages == WritablePages::Thp || running;
    match policy.pages {
        _ if heap || write && no_pool_for_writing => vec![Thp],
        Pages::Thp => vec![Thp],
        Pages::Hugetlb => vec![Hugetlb],
        Pages::Image if write => vec![Hugetlb, Thp],
        Pages::Image => vec![Image],
        Pages::Auto if write => vec![Hugetlb, Thp],
        Pages::Auto => vec![Image, Hugetlb, Thp],
    }
}

/// Why a source does not serve a range, if so.
fn fault(
    source: Source,
    range: AddressRange,
    size: PageSize,
    program: &Program,
    machine: &MachineFacts,
    policy: &Policy,
) -> Option<Reason> {
    let pages = chosen_pages(program, policy);
    let pending = || pages_in(range).any(|page| pages.get(&page).is_some_and(|page| page.relro_pending));
    match source {
        Source::Image => image_of(program, range, size).is_none().then_some(Reason::NoImage),
        Source::Hugetlb if machine.pools.iter().all(|pool| pool.size != size) => {
            Some(Reason::NoSuchPool { size, sizes: machine.pools.iter().map(|pool| pool.size).collect() })
        }
        Source::Hugetlb => pending().then_some(Reason::ProtectionPending),
        Source::Thp => match machine.thp {
            None => Some(Reason::NoThp),
            Some(thp) if thp.mode == ThpMode::Never => Some(Reason::ThpOff),
            Some(thp) if thp.mode == ThpMode::OffInProcess => Some(Reason::ThpOffInProcess),
            Some(thp) => (thp.size != size).then_some(Reason::ThpSize { wanted: size, size: thp.size }),
        },
    }
}

fn every_source_is_used(
    program: &Program,
    machine: &MachineFacts,
    policy: &Policy,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    let Some(size) = size_of(machine, policy) else { return Ok(()) };
    let running = program.facts.running;
    for lift in &plan.lifts {
        let serves = |source: &Source| fault(*source, lift.range, size, program, machine, policy).is_none();
        let expected = allowed(&lift.kinds, lift.protection.write, running, policy).into_iter().filter(serves);
        let found: Vec<_> = lift.attempts.iter().map(|attempt| attempt.source).collect();
        prop_assert_eq!(&found, &expected.collect::<Vec<_>>(), "{:?}", lift);
        // Where an image begins or ends, so does a range: what an image shows is not kept from it by what none does.
        let may = allowed(&lift.kinds, lift.protection.write, running, policy).contains(&Source::Image);
        let shown = lift.range.pages(size).any(|page| image_of(program, page, size).is_some());
        prop_assert_eq!(found.contains(&Source::Image), may && shown, "{:?}", lift);
    }
    for refusal in plan.refusals.iter().filter(|refusal| refusal.range.whole_pages(size) == refusal.range) {
        let write = program.facts.space.find(refusal.range.start()).is_some_and(|mapping| mapping.protection.write);
        let of_memory = matches!(
            refusal.reason,
            Reason::Probed
                | Reason::Special(_)
                | Reason::WritableAndExecutable
                | Reason::NotReadable
                | Reason::RunningAndWritable
                | Reason::TextRelocationsPending
                | Reason::NoWholePage { .. }
        );
        let sources = allowed(&refusal.kinds, write, running, policy);
        let first = sources.iter().find_map(|&source| fault(source, refusal.range, size, program, machine, policy));
        prop_assert!(of_memory || Some(&refusal.reason) == first.as_ref(), "{refusal:?}, expected {first:?}");
    }
    Ok(())
}

/// Neighbours of one object and one protection are one range, but for what the program will still seal and where an image
/// begins or ends; neighbouring parts are one part where they are lifted in the same way.
fn nothing_is_cut_without_need(program: &Program, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let pages = chosen_pages(program, policy);
    let pending = |lift: &RangeLift| pages.get(&lift.range.start().0).is_some_and(|page| page.relro_pending);
    let image = |lift: &RangeLift| {
        let wanted = matches!(policy.pages, Pages::Auto | Pages::Image) && !lift.protection.write;
        let size = lift.attempts[0].page_size;
        let first = AddressRange::sized(lift.range.start(), size.bytes());
        wanted.then(|| image_of(program, first, size)).flatten()
    };
    for lift in &plan.lifts {
        let next = plan.lifts.iter().find(|next| next.object == lift.object && next.range.start() == lift.range.end());
        if let Some(next) = next.filter(|next| next.protection == lift.protection) {
            prop_assert!(pending(lift) != pending(next) || image(lift) != image(next), "{lift:?} and {next:?}");
        }
        for parts in lift.attempts.iter().flat_map(|attempt| attempt.parts.windows(2)) {
            let in_place = |part: &Part| matches!(part.way, Way::InPlace { .. });
            prop_assert!(in_place(&parts[0]) != in_place(&parts[1]), "{parts:?}");
        }
    }
    Ok(())
}

/// Code first, then read-only data, data, bss and heap; of each the executable's first, and of those the longest.
fn most_valuable_first(program: &Program, plan: &Plan) -> Result<(), TestCaseError> {
    let value = |lift: &RangeLift| {
        let object = program.facts.objects.iter().find(|object| object.name() == lift.object);
        let of_library = object.is_some_and(|object| object.role != ObjectRole::Executable);
        (lift.kinds[0] as u8, of_library, u64::MAX - lift.range.len())
    };
    prop_assert!(plan.lifts.is_sorted_by_key(value), "{plan:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_source_that_serves_is_used_where_nothing_is_short(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let (machine, policy) = (plentiful(machine), Policy { max_memory: None, ..policy });
        let made = plan(&program.facts, &machine, &policy);
        every_source_is_used(&program, &machine, &policy, &made)?;
        nothing_is_cut_without_need(&program, &policy, &made)?;
        most_valuable_first(&program, &made)?;
    }
}
