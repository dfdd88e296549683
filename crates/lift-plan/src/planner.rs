//! From facts and wishes to a plan.

use crate::groups::{Group, Run, group, kinds_of};
use crate::pieces::{refusal_by_protection, special_in};
use crate::{
    Attempt, Edge, EdgeCure, Edges, ImageSpan, Kind, MachineFacts, ObjectChoice, Pages, Part, Piece, Plan, Policy,
    ProcessFacts, RangeLift, Reason, Refusal, Source, ThpMode, Way, WritablePages, pieces_of,
};
use address_space::{
    AddressRange, ElfKind, LoadedObject, Mapping, MappingName, ObjectRole, PageSize, Protection, RangeSet,
};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The staging copy, a split on both sides of the swap, and one of the copy itself.
const MAPPINGS_PER_PART: u64 = 4;
/// `mremap` refuses to work this near to `vm.max_map_count` (Linux, `mm/mremap.c`: two for splits, three more to spare),
/// and moving back what was moved aside must never be refused.
const MOVE_HEADROOM: u64 = 8;

/// Makes the plan for one process.
pub fn plan(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> Plan {
    let Some(size) = policy.page_size.or_else(|| machine.usual_huge_page()) else {
        return nothing(process, policy, machine, &Reason::NoHugePages);
    };
    let mut planner = Planner::new(process, machine, policy, size);
    let mut wishes: Vec<Wish> = Vec::new();
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        if object.image.machine != machine.elf_machine {
            planner.refuse_object(object, &Reason::OtherMachine(object.image.machine));
        } else {
            wishes.extend(planner.wishes_of(object));
        }
    }
    wishes.extend(planner.heap_wishes());
    wishes.sort_by_key(|wish| (wish.run.pieces[0].kind, !wish.of_executable, core::cmp::Reverse(wish.run.range.len())));
    wishes.into_iter().for_each(|wish| planner.decide(wish));
    planner.drop_fallbacks_beyond_means();
    planner.plan
}

/// A run of whole huge pages that should be lifted if means allow.
struct Wish {
    object: String,
    of_executable: bool,
    run: Run,
}

struct Planner<'a> {
    process: &'a ProcessFacts,
    machine: &'a MachineFacts,
    policy: &'a Policy,
    size: PageSize,
    pool_left: BTreeMap<PageSize, u64>,
    allowed_left: u64,
    available_left: u64,
    mappings: u64,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(process: &'a ProcessFacts, machine: &'a MachineFacts, policy: &'a Policy, size: PageSize) -> Self {
        Self {
            process,
            machine,
            policy,
            size,
            pool_left: machine.pools.iter().map(|pool| (pool.size, pool.available)).collect(),
            allowed_left: policy.max_memory.unwrap_or(u64::MAX),
            available_left: machine.memory_available,
            mappings: process.space.mappings().len() as u64,
            plan: Plan::default(),
        }
    }

    fn wishes_of(&mut self, object: &LoadedObject) -> Vec<Wish> {
        let mut pieces = pieces_of(object, self.process, self.machine.base_page);
        pieces.retain(|piece| self.policy.kinds.contains(piece.kind));
        let (refused, pieces): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|piece| piece.refused.is_some());
        let relro_apart = self.policy.writable_pages == WritablePages::Hugetlb;
        let merged = group(pieces.clone(), Edges::MergeReadOnly, relro_apart);
        let groups = group(pieces, self.policy.edges, relro_apart);
        let worth_it = groups.iter().any(|group| !group.range().whole_pages(self.size).is_empty());
        if !worth_it && self.policy.objects == ObjectChoice::WorthIt && object.role != ObjectRole::Executable {
            return Vec::new();
        }
        self.refuse_pieces(object.name(), refused, None);
        groups.into_iter().flat_map(|group| self.wishes_of_group(object, &group, &merged)).collect()
    }

    /// `merged`: the object's groups where read-only data and code are merged.
    fn wishes_of_group(&mut self, object: &LoadedObject, group: &Group, merged: &[Group]) -> Vec<Wish> {
        let range = group.range();
        self.plan.considered += range.len();
        let runs = group.runs(self.size);
        if runs.is_empty() {
            let reason = Reason::NoWholePage { bytes: range.len(), size: self.size };
            self.refuse(object.name(), group.kinds_in(range), range, reason);
            return Vec::new();
        }
        let whole = range.whole_pages(self.size);
        for edge in range.without(whole).into_iter().filter(|edge| !edge.is_empty()) {
            self.note_edge(object, group, merged, edge);
        }
        let of_executable = object.role == ObjectRole::Executable;
        let runs: Vec<Run> = runs.into_iter().flat_map(|run| self.cut_out_probes(object, run)).collect();
        let runs = runs.into_iter().flat_map(|run| self.cut_at_images(run));
        runs.map(|run| Wish { object: object.name().to_owned(), of_executable, run }).collect()
    }

    /// What is left of a run without the huge pages in which a probe stands; those are refused.
    fn cut_out_probes(&mut self, object: &LoadedObject, run: Run) -> Vec<Run> {
        let (mut free, mut probed) = (RangeSet::new(), RangeSet::new());
        free.insert(run.range);
        self.process.probed.within(run.range).for_each(|pages| probed.insert(pages.widened(self.size)));
        for pages in probed.iter() {
            self.refuse(object.name(), kinds_of(run.cut_to(pages).pieces.iter()), pages, Reason::Probed);
            free.remove(pages);
        }
        free.iter().map(|range| run.cut_to(range)).collect()
    }

    fn note_edge(&mut self, object: &LoadedObject, group: &Group, merged: &[Group], edge: AddressRange) {
        let protection =
            group.pieces.iter().find(|p| p.range.overlaps(edge)).map_or(Default::default(), |p| p.protection);
        // Merging helps where a huge page over the border holds nothing but read-only data and code of one object. A
        // start with merging moves an executable to a base that suits the two together.
        let movable = object.role == ObjectRole::Executable
            && object.image.kind == ElfKind::PositionIndependent
            && !self.process.running;
        let helps = |merged: &Group| {
            let (all, own) = (merged.range(), group.range());
            let reaches_beyond =
                if edge.start() == own.start() { all.start() < own.start() } else { all.end() > own.end() };
            all.whole_pages(self.size).overlaps(edge) || movable && reaches_beyond && all.covers(edge)
        };
        let cure = if merged.iter().any(helps) { EdgeCure::MergeReadOnly } else { EdgeCure::Relink };
        let (object, kinds) = (object.name().to_owned(), group.kinds_in(edge));
        self.plan.edges.push(Edge { object, kinds, range: edge, protection, cure });
    }

    fn heap_wishes(&mut self) -> Vec<Wish> {
        let (refused, pieces): (Vec<_>, Vec<_>) = self.heap_pieces().into_iter().partition(|p| p.refused.is_some());
        self.refuse_pieces("[heap]", refused, None);
        let groups = group(pieces, Edges::Exact, false);
        groups.into_iter().flat_map(|group| self.wishes_of_heap(&group)).collect()
    }

    /// The brk area, which a program may have protected or unmapped in parts.
    fn heap_pieces(&self) -> Vec<Piece> {
        let chosen = matches!(self.policy.objects, ObjectChoice::WorthIt | ObjectChoice::All);
        if !chosen || !self.policy.kinds.contains(Kind::Heap) {
            return Vec::new();
        }
        let heap = self.process.space.mappings().iter().filter(|mapping| mapping.name == MappingName::Heap);
        let pieces = heap.filter(|mapping| mapping.protection != Protection::NONE).map(|mapping| {
            let (range, protection) = (mapping.range, mapping.protection);
            let refused = refusal_by_protection(protection).or_else(|| special_in(self.process, range));
            Piece { kind: Kind::Heap, range, protection, anonymous: true, relro_pending: false, refused }
        });
        pieces.collect()
    }

    fn wishes_of_heap(&mut self, group: &Group) -> Vec<Wish> {
        let range = group.range();
        self.plan.considered += range.len();
        // No linking and no base would cover the edges of the heap: they are as small as the program keeps them.
        for edge in range.without(range.whole_pages(self.size)).into_iter().filter(|edge| !edge.is_empty()) {
            self.refuse("[heap]", vec![Kind::Heap], edge, Reason::NoWholePage { bytes: edge.len(), size: self.size });
        }
        let runs = group.runs(self.size).into_iter();
        runs.map(|run| Wish { object: "[heap]".to_owned(), of_executable: true, run }).collect()
    }

    /// Takes the wish into the plan with every attempt that means allow, or refuses it with the first reason.
    fn decide(&mut self, wish: Wish) {
        let mut reasons = Vec::new();
        let mut attempts: Vec<Attempt> = Vec::new();
        for source in self.sources_for(&wish.run) {
            match self.attempt(&wish.run, source) {
                Ok(attempt) => attempts.push(attempt),
                Err(reason) => reasons.push(reason),
            }
        }
        let kinds = kinds_of(wish.run.pieces.iter());
        let Some(first) = attempts.first() else {
            let reason = reasons.into_iter().next().unwrap_or(Reason::NoHugePages);
            return self.refuse(&wish.object, kinds, wish.run.range, reason);
        };
        self.spend(first.clone());
        let Wish { object, run: Run { range, protection, .. }, .. } = wish;
        self.plan.lifts.push(RangeLift { object, kinds, range, protection, attempts });
    }

    fn spend(&mut self, attempt: Attempt) {
        self.allowed_left = self.allowed_left.saturating_sub(attempt.memory);
        self.mappings += MAPPINGS_PER_PART * attempt.parts.len() as u64;
        match attempt.source {
            Source::Image => {}
            Source::Thp => self.available_left = self.available_left.saturating_sub(attempt.memory),
            Source::Hugetlb => {
                let pages = attempt.parts.iter().map(|part| attempt.page_size.pages_for(part.range.len())).sum();
                if let Some(left) = self.pool_left.get_mut(&attempt.page_size) {
                    *left = left.saturating_sub(pages);
                }
            }
        }
    }

    /// Whichever ranges come to need their second source, the bounds hold: second sources that together would take
    /// more than is left are not kept.
    fn drop_fallbacks_beyond_means(&mut self) {
        let (mut allowed, mut available) = (self.allowed_left, self.available_left);
        for lift in &mut self.plan.lifts {
            let first = lift.attempts[0].memory;
            let fallbacks = lift.attempts.split_off(1).into_iter().filter(|attempt| {
                let more = attempt.memory.saturating_sub(first);
                let taken = if attempt.source == Source::Thp { attempt.memory } else { 0 };
                let affordable = more <= allowed && taken <= available;
                if affordable {
                    allowed -= more;
                    available -= taken;
                }
                affordable
            });
            lift.attempts.extend(fallbacks.collect::<Vec<_>>());
        }
    }

    fn sources_for(&self, run: &Run) -> Vec<Source> {
        let pool_allowed =
            !run.protection.write || (self.policy.writable_pages == WritablePages::Hugetlb && !self.process.running);
        // The brk area on pool pages could not grow any more, and brk would fail for ever.
        let pool_possible = run.pieces.iter().all(|piece| piece.kind != Kind::Heap);
        match (self.policy.pages, pool_allowed && pool_possible) {
            (Pages::Thp, _) | (_, false) => vec![Source::Thp],
            (Pages::Hugetlb, true) => vec![Source::Hugetlb],
            // An image never shows what is written.
            (Pages::Auto | Pages::Image, true) if run.protection.write => vec![Source::Hugetlb, Source::Thp],
            (Pages::Image, true) => vec![Source::Image],
            (Pages::Auto, true) => vec![Source::Image, Source::Hugetlb, Source::Thp],
        }
    }

    fn attempt(&self, run: &Run, source: Source) -> Result<Attempt, Reason> {
        let parts = match source {
            Source::Hugetlb => self.pool_parts(run)?,
            Source::Thp => self.thp_parts(run)?,
            Source::Image => self.image_parts(run)?,
        };
        let memory = parts.iter().map(|part| self.memory_of(run, part)).sum();
        self.check_memory(memory, source)?;
        if self.mappings + MAPPINGS_PER_PART * parts.len() as u64 + MOVE_HEADROOM > self.machine.max_mappings {
            return Err(Reason::Mappings { now: self.mappings, most: self.machine.max_mappings });
        }
        Ok(Attempt { source, page_size: self.size, parts, memory })
    }

    fn check_memory(&self, needed: u64, source: Source) -> Result<(), Reason> {
        if needed > self.allowed_left {
            return Err(Reason::Memory { needed, left: self.allowed_left, bound: "--max-memory".to_owned() });
        }
        // Pool pages are set aside already; taking them squeezes nobody.
        if source == Source::Thp && needed > self.available_left {
            let bound = self.machine.memory_bound.clone();
            return Err(Reason::Memory { needed, left: self.available_left, bound });
        }
        Ok(())
    }

    /// What becomes resident by lifting a part, at most: all of it less what is touched anonymous memory already.
    fn memory_of(&self, run: &Run, part: &Part) -> u64 {
        let touched = |range: AddressRange| {
            let anonymous = run.pieces.iter().filter(|piece| piece.anonymous);
            anonymous.map(|piece| self.process.touched.bytes_in(piece.range.intersect(range))).sum::<u64>()
        };
        match &part.way {
            Way::Swap { .. } | Way::MoveAside { .. } => part.range.len() - touched(part.range),
            Way::InPlace { collapse } => collapse.iter().map(|range| range.len() - touched(range)).sum(),
            // The image is there already, for everybody.
            Way::MapImage { .. } => 0,
        }
    }

    fn image_parts(&self, run: &Run) -> Result<Vec<Part>, Reason> {
        let span = self.image_span(run.range).ok_or(Reason::NoImage)?;
        let offset = span.offset + (run.range.start() - span.range.start());
        Ok(vec![Part { range: run.range, way: Way::MapImage { path: span.path.clone(), offset } }])
    }

    /// The image that can show all of the range on huge pages of the wanted size.
    fn image_span(&self, range: AddressRange) -> Option<&'a ImageSpan> {
        let size = self.size.bytes();
        self.process.images.iter().find(|span| {
            span.page_size == self.size && span.range.covers(range) && span.range.start().0 % size == span.offset % size
        })
    }

    /// Cuts a run where an image begins or ends to show it.
    fn cut_at_images(&self, run: Run) -> Vec<Run> {
        if run.protection.write || !matches!(self.policy.pages, Pages::Auto | Pages::Image) {
            return vec![run];
        }
        let mut pieces: Vec<(AddressRange, Option<&ImageSpan>)> = Vec::new();
        for page in run.range.pages(self.size) {
            let span = self.image_span(page);
            match pieces.last_mut() {
                Some((range, same)) if *same == span => *range = AddressRange::new(range.start(), page.end()),
                _ => pieces.push((page, span)),
            }
        }
        pieces.into_iter().map(|(range, _)| run.cut_to(range)).collect()
    }

    fn pool_parts(&self, run: &Run) -> Result<Vec<Part>, Reason> {
        let Some(pool) = self.machine.pool(self.size) else {
            let sizes = self.machine.pools.iter().map(|pool| pool.size).collect();
            return Err(Reason::NoSuchPool { size: self.size, sizes });
        };
        if run.pieces.iter().any(|piece| piece.relro_pending) {
            return Err(Reason::ProtectionPending);
        }
        let needed = self.size.pages_for(run.range.len());
        let available = self.pool_left.get(&self.size).copied().unwrap_or(0);
        if needed > available {
            return Err(Reason::PoolTooSmall { size: self.size, needed, available, total: pool.total });
        }
        let copy = self.to_copy(run, run.range);
        let way = if self.machine.movable_hugetlb {
            Way::Swap { copy }
        } else {
            let mappings = self.process.space.overlapping(run.range);
            Way::MoveAside { copy, mappings: mappings.iter().map(|m| m.range.intersect(run.range)).collect() }
        };
        Ok(vec![Part { range: run.range, way }])
    }

    /// With transparent pages, anonymous memory is advised and collapsed where it lies; only huge pages that hold a
    /// file's pages are replaced by a copy.
    fn thp_parts(&self, run: &Run) -> Result<Vec<Part>, Reason> {
        let thp = self.machine.thp.ok_or(Reason::NoThp)?;
        match thp.mode {
            ThpMode::Never => return Err(Reason::ThpOff),
            ThpMode::OffInProcess => return Err(Reason::ThpOffInProcess),
            ThpMode::Always | ThpMode::Madvise => {}
        }
        if self.size != thp.size {
            return Err(Reason::ThpSize { wanted: self.size, size: thp.size });
        }
        let mut runs: Vec<(AddressRange, bool)> = Vec::new();
        // What a running program may write to is never replaced, even where two mappings share a huge page, which the
        // kernel does not collapse then.
        let never_replaced = self.process.running && run.protection.write;
        for (range, anonymous) in self.spans(run) {
            let anonymous = anonymous || never_replaced;
            match runs.last_mut() {
                Some((last, same)) if *same == anonymous => *last = AddressRange::new(last.start(), range.end()),
                _ => runs.push((range, anonymous)),
            }
        }
        Ok(runs.into_iter().map(|(range, anonymous)| self.thp_part(run, range, anonymous)).collect())
    }

    fn thp_part(&self, run: &Run, range: AddressRange, anonymous: bool) -> Part {
        let way = if anonymous {
            let touched = self.process.touched.within(range).map(|touched| touched.widened(self.size)).collect();
            Way::InPlace { collapse: touched }
        } else {
            Way::Swap { copy: self.to_copy(run, range) }
        };
        Part { range, way }
    }

    /// Cuts a run at huge page borders into what lies wholly in one anonymous mapping and what does not.
    fn spans(&self, run: &Run) -> Vec<(AddressRange, bool)> {
        let mut spans = Vec::new();
        let mut start = run.range.start();
        for mapping in self.process.space.overlapping(run.range).iter().filter(|m| in_place(m)) {
            let whole = mapping.range.intersect(run.range).whole_pages(self.size);
            if whole.is_empty() {
                continue;
            }
            spans.push((AddressRange::new(start, whole.start()), false));
            spans.push((whole, true));
            start = whole.end();
        }
        spans.push((AddressRange::new(start, run.range.end()), false));
        spans.retain(|(range, _)| !range.is_empty());
        spans
    }

    /// The pages of files in `range`, and the anonymous ones that have been touched. Sealed anonymous memory was written
    /// before it was sealed, so all of it counts.
    fn to_copy(&self, run: &Run, range: AddressRange) -> RangeSet {
        let mut copy = RangeSet::new();
        for piece in &run.pieces {
            let here = piece.range.intersect(range);
            if piece.anonymous && piece.protection.write {
                self.process.touched.within(here).for_each(|touched| copy.insert(touched));
            } else {
                copy.insert(here);
            }
        }
        copy
    }

    fn refuse(&mut self, object: &str, kinds: Vec<Kind>, range: AddressRange, reason: Reason) {
        self.plan.refusals.push(Refusal { object: object.to_owned(), kinds, range, reason });
    }

    fn refuse_object(&mut self, object: &LoadedObject, reason: &Reason) {
        let mut pieces = pieces_of(object, self.process, self.machine.base_page);
        pieces.retain(|piece| self.policy.kinds.contains(piece.kind));
        self.refuse_pieces(object.name(), pieces, Some(reason));
    }

    /// Refuses pieces for one reason, or each for its own.
    fn refuse_pieces(&mut self, object: &str, pieces: Vec<Piece>, reason: Option<&Reason>) {
        for piece in pieces {
            let Some(reason) = reason.cloned().or(piece.refused) else { continue };
            self.plan.considered += piece.range.len();
            self.refuse(object, vec![piece.kind], piece.range, reason);
        }
    }
}

/// Memory that the kernel can turn into transparent huge pages without moving it.
fn in_place(mapping: &Mapping) -> bool {
    mapping.is_plain_anonymous() || mapping.name == MappingName::Heap
}

fn nothing(process: &ProcessFacts, policy: &Policy, machine: &MachineFacts, reason: &Reason) -> Plan {
    let mut planner = Planner::new(process, machine, policy, machine.base_page);
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        planner.refuse_object(object, reason);
    }
    let heap = planner.heap_pieces();
    planner.refuse_pieces("[heap]", heap, Some(reason));
    planner.plan
}
