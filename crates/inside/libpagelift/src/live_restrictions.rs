//! The ranges that may be lifted from inside of a running program: the rest of the plan is refused with its reason
//! before any change.

use crate::{files, linking, loaded, own_memory};
use address_space::{Address, AddressRange, LoadedObject, PageSize, Protection, RangeSet, kernel_may_write};
use alloc::vec;
use alloc::vec::Vec;
use lift_plan::{Attempt, Method, Part, Plan, RangeLift, Reason, Refusal, Source};

const OTHER_THREADS: &str = "other threads may write to it while it is copied; lift before they are started";
const BEING_LOADED: &str = "another thread may be loading this object just now";
const KERNEL_WRITES: &str = "the kernel may be writing to it for an asynchronous read (io_uring or AIO is in use)";
const UNREADABLE: &str = "the program has made it unreadable; needed: PROT_READ, by mprotect before the restore";
const HOLDS_STACK: &str = "holds the stack of the thread that lifts";
const HOLDS_LIFTER: &str = "holds the code that lifts, which this kernel would take away for a moment";
const HOLDS_LIBC: &str = "holds the C library, which a child needs before the fork guard can act; \
                          --writable-pages thp needs no guard";
const HOLDS_OWN: &str = "holds where the library keeps its state, which a child needs before the fork guard can act; \
                         --writable-pages thp needs no guard";
const NO_GUARD: &str = "this C library has no pthread_atfork for the fork guard; --writable-pages thp needs no guard";

/// The facts about a live process that forbid some lifts, at one moment.
#[derive(Clone, Debug)]
pub struct LiveRestrictions {
    /// More than the thread that asks.
    pub threads: usize,
    /// The kernel may be writing to memory on its own, or that is unknown.
    pub pending_io: bool,
    /// Where the asking thread's stack is.
    pub stack: Address,
    /// The object that holds this very code.
    pub own_object: Option<AddressRange>,
    /// The object that holds `fork`; none without a C library that offers handlers around it.
    pub fork_object: Option<AddressRange>,
    /// The library's pointer to its state, which is in the executable if it is linked statically.
    pub own_pointer: Address,
    /// The addresses that the dynamic linker lists as loaded; empty if its list is not known, none without a dynamic linker.
    pub listed: Option<RangeSet>,
}

impl LiveRestrictions {
    /// The facts of this process, as seen by the calling thread.
    pub fn of(objects: &[LoadedObject]) -> Self {
        let holder = |at: usize| {
            let at = Address(at as u64);
            objects.iter().map(LoadedObject::extent).find(|extent| extent.contains(at))
        };
        Self {
            threads: files::number_of_threads(),
            pending_io: kernel_may_write(&mut files::OwnFiles),
            stack: Address(linux_raw::stack_pointer() as u64),
            own_object: holder(Self::of as *const () as usize),
            fork_object: linking::in_c_library().and_then(holder),
            own_pointer: own_memory::place_of_pointer(),
            listed: loaded::all_segments().or_else(|| linking::in_dynamic_linker().map(|_| RangeSet::new())),
        }
    }

    /// Why the writable memory at `range` cannot be replaced now; `None` if it can.
    pub fn why_not_writable(&self, range: AddressRange) -> Option<&'static str> {
        match self {
            _ if self.threads != 1 => Some(OTHER_THREADS),
            _ if self.pending_io => Some(KERNEL_WRITES),
            _ if range.contains(self.stack) => Some(HOLDS_STACK),
            _ => None,
        }
    }

    /// The reason why a lifted range, now protected by `now`, cannot be restored now; `None` if it can.
    pub fn why_not_restored(&self, range: AddressRange, now: Protection, lifted: Protection) -> Option<&'static str> {
        match () {
            () if !now.read => Some(UNREADABLE),
            () if now.write || lifted.write => self.why_not_writable(range),
            () => None,
        }
    }

    /// Takes out of the plan what is not safe from inside, as refusals.
    pub fn keep_what_is_safe(&self, plan: &mut Plan) {
        let mut kept = Vec::new();
        for mut lift in core::mem::take(&mut plan.lifts) {
            let mut reason = None;
            let attempts = core::mem::take(&mut lift.attempts);
            lift.attempts = attempts.into_iter().filter_map(|a| self.safe(&lift, a, &mut reason)).collect();
            let covered: Vec<_> = lift.attempts.iter().take(1).flat_map(|a| &a.parts).map(|p| p.range).collect();
            if let Some(why) = reason {
                for range in gaps(lift.range, &covered) {
                    let (object, kinds) = (lift.object.clone(), lift.kinds.clone());
                    plan.refusals.push(Refusal { object, kinds, range, reason: Reason::InUse(why) });
                }
            }
            if !lift.attempts.is_empty() {
                kept.push(lift);
            }
        }
        plan.lifts = kept;
    }

    /// The attempt with only the safe parts; none if no part is safe.
    fn safe(&self, lift: &RangeLift, mut attempt: Attempt, reason: &mut Option<&'static str>) -> Option<Attempt> {
        if lift.protection.write && attempt.source == Source::Hugetlb {
            let page = page_of(self.own_pointer, attempt.page_size);
            let left: Vec<Part> = attempt.parts.iter().flat_map(|part| without(part, page)).collect();
            if left != attempt.parts {
                attempt.memory = left.iter().map(Part::filled).sum();
                attempt.parts = left;
                *reason = reason.or(Some(HOLDS_OWN));
            }
        }
        let all = attempt.parts.len();
        attempt.parts.retain(|part| {
            let why = self.danger(lift, &attempt.source, part.range, &part.method);
            *reason = reason.or(why);
            why.is_none()
        });
        if attempt.parts.len() != all {
            attempt.memory = attempt.parts.iter().map(Part::filled).sum();
        }
        (!attempt.parts.is_empty()).then_some(attempt)
    }

    fn is_unlisted(&self, range: AddressRange) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.within(range).next().is_none())
    }

    fn danger(&self, lift: &RangeLift, source: &Source, range: AddressRange, method: &Method) -> Option<&'static str> {
        let overlaps = |object: Option<AddressRange>| object.is_some_and(|object| object.overlaps(range));
        match method {
            Method::InPlace { .. } | Method::Refault => return None,
            // Its segments are still being mapped, over a mapping of the whole object.
            _ if self.threads != 1 && self.is_unlisted(range) => return Some(BEING_LOADED),
            Method::Swap { .. } | Method::MapImage { .. } | Method::MapAgain { .. } => {}
            Method::MoveAside { .. } if overlaps(self.own_object) => return Some(HOLDS_LIFTER),
            Method::MoveAside { .. } if self.threads != 1 => return Some(OTHER_THREADS),
            Method::MoveAside { .. } => {}
        }
        if !lift.protection.write {
            return None;
        }
        let guarded = || match self.fork_object {
            None => Some(NO_GUARD),
            fork_object if overlaps(fork_object) => Some(HOLDS_LIBC),
            Some(_) => None,
        };
        self.why_not_writable(range).or_else(|| if *source == Source::Hugetlb { guarded() } else { None })
    }
}

fn page_of(address: Address, size: PageSize) -> AddressRange {
    AddressRange::sized(address.align_down(size), size.bytes())
}

/// The rest of a part whose memory is replaced, without a page. Other parts are not changed.
fn without(part: &Part, page: AddressRange) -> Vec<Part> {
    let clipped = |ranges: &RangeSet, range| ranges.within(range).collect::<RangeSet>();
    let method_of = |range: AddressRange| match &part.method {
        Method::Swap { copy } => Some(Method::Swap { copy: clipped(copy, range) }),
        Method::MoveAside { copy, mappings } => Some(Method::MoveAside {
            copy: clipped(copy, range),
            mappings: mappings.iter().map(|m| m.intersect(range)).filter(|m| !m.is_empty()).collect(),
        }),
        _ => None,
    };
    if !part.range.overlaps(page) || method_of(part.range).is_none() {
        return vec![part.clone()];
    }
    let left = part.range.without(page).into_iter().filter(|range| !range.is_empty());
    left.filter_map(|range| Some(Part { range, method: method_of(range)? })).collect()
}

/// The parts of `range` outside of the sorted parts.
fn gaps(range: AddressRange, parts: &[AddressRange]) -> Vec<AddressRange> {
    let mut rest = address_space::RangeSet::from_iter([range]);
    parts.iter().for_each(|part| rest.remove(*part));
    rest.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{PageSize, RangeSet};
    use lift_plan::{Kind, Part};

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    fn still() -> LiveRestrictions {
        let fork_object = Some(range(0x9000, 0xa000));
        LiveRestrictions {
            threads: 1,
            pending_io: false,
            stack: Address(0xf000),
            own_object: None,
            fork_object,
            own_pointer: Address(0xe000),
            listed: None,
        }
    }

    fn plan_of(protection: Protection, source: Source, method: fn(AddressRange) -> Method) -> Plan {
        let range = range(0x1000, 0x3000);
        let parts = vec![
            Part { range: AddressRange::new(Address(0x1000), Address(0x2000)), method: method(range) },
            Part {
                range: AddressRange::new(Address(0x2000), Address(0x3000)),
                method: Method::InPlace { collapse: RangeSet::new() },
            },
        ];
        let page_size = PageSize::new(0x1000).unwrap();
        let attempts = vec![Attempt { source, page_size, parts, memory: 0x1000, placement: None }];
        let lift = RangeLift { object: "x".into(), kinds: vec![Kind::Data], range, protection, attempts };
        Plan { lifts: vec![lift], ..Plan::default() }
    }

    fn swap(range: AddressRange) -> Method {
        Method::Swap { copy: RangeSet::from_iter([range]) }
    }

    fn aside(range: AddressRange) -> Method {
        Method::MoveAside { copy: RangeSet::new(), mappings: vec![range] }
    }

    fn reasons(facts: &LiveRestrictions, mut plan: Plan) -> (Vec<Reason>, usize) {
        facts.keep_what_is_safe(&mut plan);
        let parts = plan.lifts.iter().flat_map(|lift| &lift.attempts).map(|attempt| attempt.parts.len()).sum();
        (plan.refusals.into_iter().map(|refusal| refusal.reason).collect(), parts)
    }

    #[test]
    fn writable_memory_is_replaced_only_where_nobody_writes_to_it() {
        let plan = || plan_of(Protection::READ_WRITE, Source::Thp, swap);
        assert_eq!(reasons(&still(), plan()), (vec![], 2));
        let threads = LiveRestrictions { threads: 2, ..still() };
        assert_eq!(reasons(&threads, plan()), (vec![Reason::InUse(OTHER_THREADS)], 1));
        let io = LiveRestrictions { pending_io: true, ..still() };
        assert_eq!(reasons(&io, plan()), (vec![Reason::InUse(KERNEL_WRITES)], 1));
        let stack = LiveRestrictions { stack: Address(0x1800), ..still() };
        assert_eq!(reasons(&stack, plan()), (vec![Reason::InUse(HOLDS_STACK)], 1));
        let unseen = LiveRestrictions { threads: 0, ..still() };
        assert_eq!(reasons(&unseen, plan()), (vec![Reason::InUse(OTHER_THREADS)], 1));
    }

    #[test]
    fn what_the_program_has_protected_is_put_back_as_far_as_it_can_be_read() {
        let threads = LiveRestrictions { threads: 2, ..still() };
        let why = |facts: &LiveRestrictions, now, lifted| facts.why_not_restored(range(0x1000, 0x2000), now, lifted);
        let [read, both, none] = [Protection::READ, Protection::READ_WRITE, Protection::NONE];
        assert_eq!([why(&threads, read, read), why(&still(), read, both), why(&still(), both, both)], [None; 3]);
        assert_eq!([why(&threads, read, both), why(&threads, both, read)], [Some(OTHER_THREADS); 2]);
        assert_eq!(why(&still(), none, both), Some(UNREADABLE));
    }

    /// io_uring_setup(2) and mmap(2) of its submissions; the descriptor is closed, which leaves the ring as it is.
    fn with_a_ring_without_descriptor<R>(look: impl FnOnce() -> R) -> R {
        use nix::libc;
        // `struct io_uring_params` has 120 bytes, all zero for the defaults.
        let mut parameters = [0u64; 15];
        let size = crate::auxiliary::Auxiliary::read().unwrap().base_page.bytes() as usize;
        // SAFETY:
        // - the kernel reads and writes one `struct io_uring_params`, and the mapping is new and this function's own.
        unsafe {
            let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) as i32;
            assert!(ring >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
            let mapped = libc::mmap(core::ptr::null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, ring, 0);
            assert!(mapped != libc::MAP_FAILED);
            libc::close(ring);
            let result = look();
            libc::munmap(mapped, size);
            result
        }
    }

    #[test]
    fn a_ring_whose_descriptor_is_closed_is_seen() {
        assert!(with_a_ring_without_descriptor(|| LiveRestrictions::of(&[]).pending_io));
    }

    #[test]
    fn read_only_memory_is_lifted_with_any_number_of_threads() {
        let threads = LiveRestrictions { threads: 9, pending_io: true, ..still() };
        assert_eq!(reasons(&threads, plan_of(Protection::READ_EXECUTE, Source::Hugetlb, swap)), (vec![], 2));
    }

    #[test]
    fn an_object_that_is_being_loaded_is_left_alone() {
        let plan = || plan_of(Protection::READ_EXECUTE, Source::Hugetlb, swap);
        let elsewhere = Some(RangeSet::from_iter([range(0x5000, 0x6000)]));
        let threads = LiveRestrictions { threads: 2, listed: elsewhere.clone(), ..still() };
        assert_eq!(reasons(&threads, plan()), (vec![Reason::InUse(BEING_LOADED)], 1));
        let listed = Some(RangeSet::from_iter([range(0x1100, 0x1200)]));
        assert_eq!(reasons(&LiveRestrictions { threads: 2, listed, ..still() }, plan()), (vec![], 2));
        assert_eq!(reasons(&LiveRestrictions { listed: elsewhere, ..still() }, plan()), (vec![], 2));
    }

    #[test]
    fn code_that_would_be_missing_for_a_moment_is_not_that_of_the_lifter() {
        let own = LiveRestrictions { own_object: Some(range(0, 0x1001)), ..still() };
        let plan = || plan_of(Protection::READ_EXECUTE, Source::Hugetlb, aside);
        assert_eq!(reasons(&own, plan()), (vec![Reason::InUse(HOLDS_LIFTER)], 1));
        assert_eq!(reasons(&still(), plan()), (vec![], 2));
    }

    #[test]
    fn writable_pool_pages_need_a_guard_that_acts_in_time() {
        let plan = || plan_of(Protection::READ_WRITE, Source::Hugetlb, swap);
        let holds = LiveRestrictions { fork_object: Some(range(0, 0x2000)), ..still() };
        assert_eq!(reasons(&holds, plan()), (vec![Reason::InUse(HOLDS_LIBC)], 1));
        let none = LiveRestrictions { fork_object: None, ..still() };
        assert_eq!(reasons(&none, plan()), (vec![Reason::InUse(NO_GUARD)], 1));
        assert_eq!(reasons(&still(), plan()), (vec![], 2));
    }

    #[test]
    fn the_page_of_the_own_pointer_stays_off_writable_pool_pages() {
        let own = LiveRestrictions { own_pointer: Address(0x1808), ..still() };
        let plan = |protection, source| plan_of(protection, source, swap);
        let refused = (vec![Reason::InUse(HOLDS_OWN)], 1);
        assert_eq!(reasons(&own, plan(Protection::READ_WRITE, Source::Hugetlb)), refused);
        assert_eq!(reasons(&own, plan(Protection::READ_WRITE, Source::Thp)), (vec![], 2));
        assert_eq!(reasons(&own, plan(Protection::READ, Source::Hugetlb)), (vec![], 2));
        let mappings = vec![range(0x1000, 0x2800), range(0x2800, 0x5000)];
        let copy = RangeSet::from_iter([range(0x1000, 0x1100), range(0x2100, 0x4100)]);
        let part = Part { range: range(0x1000, 0x5000), method: Method::MoveAside { copy, mappings } };
        let left = without(&part, page_of(Address(0x2008), PageSize::new(0x1000).unwrap()));
        let moved = |start, end, copy, mappings: &[AddressRange]| {
            let method = Method::MoveAside { copy: RangeSet::from_iter([copy]), mappings: mappings.to_vec() };
            Part { range: range(start, end), method }
        };
        let first = moved(0x1000, 0x2000, range(0x1000, 0x1100), &[range(0x1000, 0x2000)]);
        assert_eq!(left, [first, moved(0x3000, 0x5000, range(0x3000, 0x4100), &[range(0x3000, 0x5000)])]);
    }
}
