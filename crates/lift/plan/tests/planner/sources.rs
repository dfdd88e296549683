//! If nothing is short, each range gets every source that serves it, best first. A plan is no longer than necessary:
//! its most valuable ranges come first, and ranges that can be lifted together are.

use crate::fates::{is_want_of_means, size_of};
use crate::oracle::{self, chosen_pages, pages_in};
use crate::support::{PAGE, Program, Segment, Shape, machine_with, page_size, random};
use address_space::{AddressRange, ObjectRole, PageSize, Protection};
use lift_plan::{
    HugePool, ImageSpan, Kind, MachineFacts, Method, Pages, Part, Plan, Policy, RangeLift, Reason, Source, ThpMode,
    WritablePages, plan,
};
use proptest::prelude::*;

/// The machine with more of each resource than any plan takes. Missing resources stay missing.
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
fn allowed(kinds: &[Kind], write: bool, may_write: bool, policy: &Policy) -> Vec<Source> {
    use Source::*;
    let heap = kinds.contains(&Kind::Heap);
    let no_pool_for_writing = policy.writable_pages == WritablePages::Thp || may_write;
    match policy.pages {
        _ if heap || write && no_pool_for_writing => vec![Thp],
        Pages::Thp => vec![Thp],
        Pages::Hugetlb => vec![Hugetlb],
        Pages::Image | Pages::File | Pages::FileThenImage | Pages::Auto if write => vec![Hugetlb, Thp],
        Pages::Image => vec![Image],
        Pages::File => vec![File],
        Pages::FileThenImage => vec![File, Image],
        Pages::Auto => vec![File, Image, Hugetlb, Thp],
    }
}

/// The facts that determine which sources are available for a range.
struct Case<'a> {
    program: &'a Program,
    machine: &'a MachineFacts,
    policy: &'a Policy,
    size: PageSize,
    /// The chosen pages.
    pages: oracle::Pages,
}

impl Case<'_> {
    fn is_pending(&self, page: u64) -> bool {
        self.pages.get(&page).is_some_and(|page| page.relro_pending)
    }

    /// Why a source does not serve a range, if so.
    fn fault(&self, source: Source, range: AddressRange) -> Option<Reason> {
        let (size, pools) = (self.size, &self.machine.pools);
        match source {
            Source::File => self.fault_of_files(range),
            Source::Image if image_of(self.program, range, size).is_some() => None,
            Source::Image if self.has_image(range) => Some(Reason::NotInImage),
            Source::Image => {
                let object = self.program.facts.objects.iter().find(|object| object.extent().overlaps(range));
                Some(Reason::NoImage { file: object.map(|object| object.path.clone()) })
            }
            Source::Hugetlb if pools.iter().all(|pool| pool.size != size) => {
                Some(Reason::NoSuchPool { size, sizes: pools.iter().map(|pool| pool.size).collect() })
            }
            Source::Hugetlb if pages_in(range).any(|page| self.is_pending(page)) => Some(Reason::ProtectionPending),
            Source::Hugetlb => {
                let stay = self.program.facts.running && !self.machine.movable_hugetlb;
                stay.then_some(Reason::PoolPagesStay(size))
            }
            Source::Thp => match self.machine.thp {
                None => Some(Reason::NoThp),
                Some(thp) if thp.mode == ThpMode::Never => Some(Reason::ThpOff),
                Some(thp) if thp.mode == ThpMode::OffInProcess => Some(Reason::ThpOffInProcess),
                Some(thp) => (thp.size != size).then_some(Reason::ThpSize { wanted: size, size: thp.size }),
            },
        }
    }

    /// True if an image shows other memory of the object.
    fn has_image(&self, range: AddressRange) -> bool {
        let facts = &self.program.facts;
        let of_object = |span: &ImageSpan| {
            let mut extents = facts.objects.iter().map(|object| object.extent());
            extents.any(|extent| extent.overlaps(range) && extent.overlaps(span.range))
        };
        facts.images.iter().any(|span| span.page_size == self.size && of_object(span))
    }

    /// Why a range is not mapped from the page cache, if so.
    fn fault_of_files(&self, range: AddressRange) -> Option<Reason> {
        let size = self.size;
        match self.machine.thp {
            None => return Some(Reason::NoThp),
            Some(thp) if thp.mode == ThpMode::OffInProcess => return Some(Reason::ThpOffInProcess),
            Some(thp) if thp.size != size => return Some(Reason::ThpSize { wanted: size, size: thp.size }),
            Some(_) => {}
        }
        let fault = range.pages(size).find_map(|page| oracle::fault_of_cached(self.program, page).err());
        let file = oracle::fault_of_cached(self.program, AddressRange::sized(range.start(), size.bytes())).ok();
        let way = self.machine.refaults_huge || file.is_some_and(|file| file.own_path.is_some());
        fault.or((!way).then_some(Reason::NoCachedFile))
    }

    fn allowed(&self, kinds: &[Kind], write: bool) -> Vec<Source> {
        allowed(kinds, write, self.program.facts.running || self.program.facts.other_threads, self.policy)
    }
}

fn every_source_is_used(case: &Case, plan: &Plan) -> Result<(), TestCaseError> {
    for lift in &plan.lifts {
        let allowed = case.allowed(&lift.kinds, lift.protection.write);
        let expected = allowed.iter().filter(|source| case.fault(**source, lift.range).is_none());
        let mut found: Vec<_> = lift.attempts.iter().map(|attempt| attempt.source).collect();
        // A file has two ways.
        found.dedup();
        prop_assert_eq!(&found, &expected.copied().collect::<Vec<_>>(), "{:?}", lift);
        // Ranges begin and end at the borders of images: a page without an image does not keep its neighbours from
        // theirs.
        let shown = lift.range.pages(case.size).any(|page| image_of(case.program, page, case.size).is_some());
        prop_assert_eq!(found.contains(&Source::Image), shown && allowed.contains(&Source::Image), "{:?}", lift);
    }
    for refusal in plan.refusals.iter().filter(|refusal| is_want_of_means(&refusal.reason)) {
        let mapping = case.program.facts.space.find(refusal.range.start());
        let sources = case.allowed(&refusal.kinds, mapping.is_some_and(|mapping| mapping.protection.write));
        let first = sources.iter().find_map(|&source| case.fault(source, refusal.range));
        prop_assert_eq!(Some(&refusal.reason), first.as_ref(), "{:?}", refusal);
    }
    Ok(())
}

/// Neighbours in one object with one protection form one range, except at memory that the program will still seal, and
/// at the ends of the parts that an image or a file in huge folios shows; neighbouring parts are one part if they are
/// lifted in the same way.
fn nothing_is_cut_without_need(case: &Case, plan: &Plan) -> Result<(), TestCaseError> {
    let pending = |lift: &RangeLift| case.is_pending(lift.range.start().0);
    let image = |lift: &RangeLift| {
        let wanted =
            matches!(case.policy.pages, Pages::Auto | Pages::Image | Pages::FileThenImage) && !lift.protection.write;
        let first = AddressRange::sized(lift.range.start(), case.size.bytes());
        wanted.then(|| image_of(case.program, first, case.size)).flatten()
    };
    let file = |lift: &RangeLift| {
        let first = AddressRange::sized(lift.range.start(), case.size.bytes());
        let wanted =
            matches!(case.policy.pages, Pages::Auto | Pages::File | Pages::FileThenImage) && !lift.protection.write;
        let place = wanted.then(|| oracle::fault_of_cached(case.program, first).ok()).flatten();
        place.and_then(|_| case.program.facts.space.find(lift.range.start()))
    };
    for lift in &plan.lifts {
        let next = plan.lifts.iter().find(|next| next.object == lift.object && next.range.start() == lift.range.end());
        if let Some(next) = next.filter(|next| next.protection == lift.protection) {
            let same_file = file(lift) == file(next);
            prop_assert!(
                pending(lift) != pending(next) || image(lift) != image(next) || !same_file,
                "{lift:?} and {next:?}"
            );
        }
        for parts in lift.attempts.iter().flat_map(|attempt| attempt.parts.windows(2)) {
            let in_place = |part: &Part| matches!(part.method, Method::InPlace { .. });
            prop_assert!(in_place(&parts[0]) != in_place(&parts[1]), "{parts:?}");
        }
    }
    Ok(())
}

/// Code first, then read-only data, data, bss and heap; within each kind the executable's first, and then the longest.
fn most_valuable_first(program: &Program, plan: &Plan) -> Result<(), TestCaseError> {
    let value = |lift: &RangeLift| {
        let object = program.facts.objects.iter().find(|object| object.name() == lift.object);
        let of_library = object.is_some_and(|object| object.role != ObjectRole::Executable);
        (lift.kinds[0] as u8, of_library, u64::MAX - lift.range.len())
    };
    prop_assert!(plan.lifts.is_sorted_by_key(value), "{plan:?}");
    Ok(())
}

/// Before Linux 5.16 no memory of a running program can move to pool pages: this is known before any thread is stopped,
/// the next source is used, and the plan still counts the pool pages for the program's next start.
#[test]
fn pool_pages_that_cannot_be_moved_are_for_starts_alone() {
    const HUGE: u64 = 4 * PAGE;
    let mut program = Program::new("runs");
    let segments = vec![Segment::new(Protection::READ_EXECUTE, 3 * HUGE)];
    program.load(&Shape::new("/bin/exe", ObjectRole::Executable, 16 * HUGE, segments), true);
    let mut program = program.finish();
    let machine = MachineFacts { movable_hugetlb: false, ..machine_with(HUGE, 40) };
    let made = |program: &Program, machine: &MachineFacts, pages| {
        let plan = plan(&program.facts, machine, &Policy { pages, ..Policy::default() });
        let attempts = plan.lifts.iter().flat_map(|lift| &lift.attempts);
        let sources: Vec<_> = attempts.map(|attempt| attempt.source).collect();
        let reasons: Vec<_> = plan.refusals.into_iter().map(|refusal| refusal.reason).collect();
        (sources, reasons)
    };
    assert_eq!(made(&program, &machine, Pages::Hugetlb), (vec![Source::Hugetlb], vec![]));
    program.facts.running = true;
    let refused = (vec![], vec![Reason::PoolPagesStay(page_size(HUGE))]);
    assert_eq!(made(&program, &machine, Pages::Hugetlb), refused);
    assert_eq!(made(&program, &machine_with_none(&machine), Pages::Hugetlb), refused);
    assert_eq!(made(&program, &machine, Pages::Auto), (vec![Source::Thp], vec![]));
    let for_a_start = machine.clone().with_plentiful_pools();
    assert_eq!(made(&program, &for_a_start, Pages::Hugetlb), (vec![Source::Hugetlb], vec![]));
    let newer = MachineFacts { movable_hugetlb: true, ..machine };
    assert_eq!(made(&program, &newer, Pages::Auto).0, [Source::Hugetlb, Source::Thp]);
}

/// More pages would not help.
fn machine_with_none(machine: &MachineFacts) -> MachineFacts {
    let empty = |pool: &HugePool| HugePool { total: 0, available: 0, ..*pool };
    MachineFacts { pools: machine.pools.iter().map(empty).collect(), ..machine.clone() }
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
        if let Some(size) = size_of(&machine, &policy) {
            let pages = chosen_pages(&program, &policy);
            let case = Case { program: &program, machine: &machine, policy: &policy, size, pages };
            every_source_is_used(&case, &made)?;
            nothing_is_cut_without_need(&case, &made)?;
        }
        most_valuable_first(&program, &made)?;
    }
}
