//! Makes a plan from facts and a policy.

mod images;

use crate::cached::{CachedPlace, cached_place};
use crate::groups::{Group, Run, group, kinds_of};
use crate::kept::{Kept, kept_pages};
use crate::pieces::{refusal_by_protection, special_in};
use crate::placement::{Placed, PoolOnNodes, memory_bound, place, pool_on};
use crate::{
    Attempt, Edge, EdgeCure, Edges, Kind, MachineFacts, Method, Numa, ObjectChoice, Pages, Part, Piece, Placement,
    Plan, Policy, PoolLimit, ProcessFacts, RangeLift, Reason, Refusal, Source, ThpMode, WritablePages, pieces_of,
};
use address_space::{
    AddressRange, ElfKind, LoadedObject, Mapping, MappingName, ObjectRole, PageSize, Protection, RangeSet,
};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Mappings that a part needs at most: the staging copy, a split on both sides of the swap, and one of the copy itself.
const MAPPINGS_PER_PART: u64 = 4;
/// Mappings kept free below `vm.max_map_count`. `mremap` refuses to work near the limit (Linux, `mm/mremap.c`: two for
/// splits, three more in reserve), and moving memory back from aside must never be refused.
const MOVE_HEADROOM: u64 = 8;

/// Makes the plan for one process.
pub fn plan(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> Plan {
    let Some(size) = policy.page_size.or_else(|| machine.usual_huge_page()) else {
        return nothing(process, policy, machine, &Reason::NoHugePages);
    };
    let mut planner = Planner::new(process, machine, policy, size);
    let mut candidates: Vec<Candidate> = Vec::new();
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        if object.image.machine != machine.elf_machine {
            planner.refuse_object(object, &Reason::OtherMachine(object.image.machine));
        } else {
            candidates.extend(planner.candidates_of(object));
        }
    }
    candidates.extend(planner.heap_candidates());
    candidates.sort_by_key(|candidate| {
        (candidate.run.pieces[0].kind, !candidate.of_executable, core::cmp::Reverse(candidate.run.range.len()))
    });
    candidates.into_iter().for_each(|candidate| planner.decide(candidate));
    planner.drop_fallbacks_beyond_means();
    planner.count_pages_of_whole_lift();
    planner.plan
}

/// A run of whole huge pages that is lifted if pages and memory allow.
struct Candidate {
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
    /// Pages that are available on other nodes only.
    pool_elsewhere: BTreeMap<PageSize, u64>,
    /// The nodes for new pages; `None` on a machine with one node.
    placed: Result<Option<Placed>, Reason>,
    allowed_left: u64,
    available_left: u64,
    memory_bound: String,
    mappings: u64,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(process: &'a ProcessFacts, machine: &'a MachineFacts, policy: &'a Policy, size: PageSize) -> Self {
        let placed = place(machine, policy.numa);
        let nodes = placed.as_ref().ok().and_then(Option::as_ref);
        let pools = machine.pools.iter().map(|pool| {
            let anywhere = PoolOnNodes { here: pool.available, elsewhere: 0 };
            (pool.size, nodes.map_or(anywhere, |placed| pool_on(machine, pool, &placed.nodes)))
        });
        let pools: Vec<_> = pools.collect();
        let (available_left, memory_bound) = memory_bound(machine, nodes);
        Self {
            process,
            machine,
            policy,
            size,
            pool_left: pools.iter().map(|(size, pages)| (*size, pages.here)).collect(),
            pool_elsewhere: pools.iter().map(|(size, pages)| (*size, pages.elsewhere)).collect(),
            placed,
            allowed_left: policy.max_memory.unwrap_or(u64::MAX),
            available_left,
            memory_bound,
            mappings: process.space.mappings().len() as u64,
            plan: Plan::default(),
        }
    }

    fn candidates_of(&mut self, object: &LoadedObject) -> Vec<Candidate> {
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
        groups.into_iter().flat_map(|group| self.candidates_of_group(object, &group, &merged)).collect()
    }

    /// Returns the runs of a group to lift. `merged` are the object's groups with read-only data and code merged.
    fn candidates_of_group(&mut self, object: &LoadedObject, group: &Group, merged: &[Group]) -> Vec<Candidate> {
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
        let runs: Vec<Run> = runs.into_iter().flat_map(|run| self.cut_out_kept(object, run)).collect();
        let runs = runs.into_iter().flat_map(|run| self.cut_at_sources(run));
        runs.map(|run| Candidate { object: object.name().to_owned(), of_executable, run }).collect()
    }

    /// Cuts out of a run the huge pages that stay with their file, and refuses those.
    fn cut_out_kept(&mut self, object: &LoadedObject, run: Run) -> Vec<Run> {
        let mut free = RangeSet::from_iter([run.range]);
        for Kept { pages, reason } in kept_pages(self.process, object, &run, self.size) {
            if reason == Reason::FileHeader && self.stays_on_file(&run.cut_to(pages)) {
                continue;
            }
            for part in free.within(pages).collect::<Vec<_>>() {
                self.refuse(object.name(), kinds_of(run.cut_to(part).pieces.iter()), part, reason.clone());
                free.remove(part);
            }
        }
        free.iter().map(|range| run.cut_to(range)).collect()
    }

    /// True if the file itself is the first source for a run and can show it.
    fn stays_on_file(&self, run: &Run) -> bool {
        let shows = || self.policy.numa == Numa::Own && self.file_methods(run).is_ok();
        self.policy.pages == Pages::File || self.sources_for(run).first() == Some(&Source::File) && shows()
    }

    fn note_edge(&mut self, object: &LoadedObject, group: &Group, merged: &[Group], edge: AddressRange) {
        let protection =
            group.pieces.iter().find(|p| p.range.overlaps(edge)).map_or(Default::default(), |p| p.protection);
        // Merging helps if a huge page across the border contains only read-only data and code of one object. A start
        // with merging moves an executable to a base that suits both together.
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

    fn heap_candidates(&mut self) -> Vec<Candidate> {
        let (refused, pieces): (Vec<_>, Vec<_>) = self.heap_pieces().into_iter().partition(|p| p.refused.is_some());
        self.refuse_pieces("[heap]", refused, None);
        let groups = group(pieces, Edges::Exact, false);
        groups.into_iter().flat_map(|group| self.candidates_of_heap(&group)).collect()
    }

    /// Returns the pieces of the brk area, parts of which a program may have protected or unmapped.
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

    fn candidates_of_heap(&mut self, group: &Group) -> Vec<Candidate> {
        let range = group.range();
        self.plan.considered += range.len();
        // Neither linking nor another base would cover the edges of the heap.
        for edge in range.without(range.whole_pages(self.size)).into_iter().filter(|edge| !edge.is_empty()) {
            self.refuse("[heap]", vec![Kind::Heap], edge, Reason::NoWholePage { bytes: edge.len(), size: self.size });
        }
        let runs = group.runs(self.size).into_iter();
        runs.map(|run| Candidate { object: "[heap]".to_owned(), of_executable: true, run }).collect()
    }

    /// Adds the candidate to the plan with every attempt that pages and memory allow, or refuses it with the first
    /// reason.
    fn decide(&mut self, candidate: Candidate) {
        let mut reasons = Vec::new();
        let mut attempts: Vec<Attempt> = Vec::new();
        for source in self.sources_for(&candidate.run) {
            match self.attempts(&candidate.run, source) {
                Ok(found) => attempts.extend(found),
                Err(reason) => reasons.push(reason),
            }
        }
        let kinds = kinds_of(candidate.run.pieces.iter());
        let Some(first) = attempts.first() else {
            let reason = reasons.into_iter().next().unwrap_or(Reason::NoHugePages);
            return self.refuse(&candidate.object, kinds, candidate.run.range, reason);
        };
        self.spend(first.clone());
        let Candidate { object, run: Run { range, protection, .. }, .. } = candidate;
        self.plan.lifts.push(RangeLift { object, kinds, range, protection, attempts });
    }

    fn spend(&mut self, attempt: Attempt) {
        self.allowed_left = self.allowed_left.saturating_sub(attempt.memory);
        self.mappings += MAPPINGS_PER_PART * attempt.parts.len() as u64;
        match attempt.source {
            Source::Image | Source::File => {}
            Source::Thp => self.available_left = self.available_left.saturating_sub(attempt.memory),
            Source::Hugetlb => {
                let pages = attempt.parts.iter().map(|part| attempt.page_size.pages_for(part.range.len())).sum();
                if let Some(left) = self.pool_left.get_mut(&attempt.page_size) {
                    *left = left.saturating_sub(pages);
                }
            }
        }
    }

    /// Drops second sources that together would take more than is left, so that the bounds hold whichever ranges need
    /// theirs.
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
        let pool_allowed = !run.protection.write
            || (self.policy.writable_pages == WritablePages::Hugetlb && !self.process.may_write_during_copies());
        // On pool pages the brk area could not grow any more: brk would always fail.
        let pool_possible = run.pieces.iter().all(|piece| piece.kind != Kind::Heap);
        match (self.policy.pages, pool_allowed && pool_possible) {
            (Pages::Thp, _) | (_, false) => vec![Source::Thp],
            (Pages::Hugetlb, true) => vec![Source::Hugetlb],
            // An image never shows writable memory.
            (Pages::Auto | Pages::Image | Pages::File | Pages::FileThenImage, true) if run.protection.write => {
                vec![Source::Hugetlb, Source::Thp]
            }
            (Pages::Image, true) => vec![Source::Image],
            (Pages::File, true) => vec![Source::File],
            (Pages::FileThenImage, true) => vec![Source::File, Source::Image],
            (Pages::Auto, true) => {
                let copy = self.image_span(run.range).is_some_and(|span| span.node.is_some());
                let shared = match (copy, self.policy.numa) {
                    // A copy on the process's own node is nearer than the page cache may be.
                    (true, Numa::Own) => vec![Source::Image, Source::File],
                    (true, _) => vec![Source::Image],
                    (false, Numa::Own) => vec![Source::File, Source::Image],
                    (false, _) => vec![],
                };
                [shared, vec![Source::Hugetlb, Source::Thp]].concat()
            }
        }
    }

    /// Returns the attempts to lift a run from one source, best first; never none.
    fn attempts(&self, run: &Run, source: Source) -> Result<Vec<Attempt>, Reason> {
        let ways = match source {
            Source::Hugetlb => vec![self.pool_parts(run)?],
            Source::Thp => vec![self.thp_parts(run)?],
            Source::Image => vec![self.image_parts(run)?],
            Source::File => self.file_methods(run)?.into_iter().map(|method| whole(run, method)).collect(),
        };
        ways.into_iter().map(|parts| self.attempt(run, source, parts)).collect()
    }

    fn attempt(&self, run: &Run, source: Source, parts: Vec<Part>) -> Result<Attempt, Reason> {
        let memory = parts.iter().map(|part| self.memory_of(run, part)).sum();
        self.check_memory(memory, source)?;
        if self.mappings + MAPPINGS_PER_PART * parts.len() as u64 + MOVE_HEADROOM > self.machine.max_mappings {
            return Err(Reason::Mappings { now: self.mappings, most: self.machine.max_mappings });
        }
        let placement = self.placement_of(source, &parts)?;
        Ok(Attempt { source, page_size: self.size, parts, memory, placement })
    }

    /// Returns the memory policy for the new pages of these parts. Memory that stays in place keeps the program's own
    /// policy.
    fn placement_of(&self, source: Source, parts: &[Part]) -> Result<Option<Placement>, Reason> {
        match source {
            Source::File if self.policy.numa != Numa::Own => Err(Reason::SharedPages),
            Source::Image | Source::File => Ok(None),
            _ if parts.iter().all(|part| matches!(part.method, Method::InPlace { .. })) => Ok(None),
            _ => Ok(self.placed.clone()?.and_then(|placed| placed.placement)),
        }
    }

    fn check_memory(&self, needed: u64, source: Source) -> Result<(), Reason> {
        if needed > self.allowed_left {
            return Err(Reason::Memory { needed, left: self.allowed_left, bound: "--max-memory".to_owned() });
        }
        // Pool pages are reserved already; using them takes no other memory.
        if source == Source::Thp && needed > self.available_left {
            let bound = self.memory_bound.clone();
            return Err(Reason::Memory { needed, left: self.available_left, bound });
        }
        Ok(())
    }

    /// Returns the maximum of bytes that lifting a part makes resident: the whole part, less touched anonymous memory.
    fn memory_of(&self, run: &Run, part: &Part) -> u64 {
        let touched = |range: AddressRange| {
            let anonymous = run.pieces.iter().filter(|piece| piece.anonymous);
            anonymous.map(|piece| self.process.touched.bytes_in(piece.range.intersect(range))).sum::<u64>()
        };
        match &part.method {
            Method::Swap { .. } | Method::MoveAside { .. } => part.range.len() - touched(part.range),
            Method::InPlace { collapse } => collapse.iter().map(|range| range.len() - touched(range)).sum(),
            // The image, or the page cache, is in memory already, shared by all processes.
            Method::MapImage { .. } | Method::Refault | Method::MapAgain { .. } => 0,
        }
    }

    /// Cuts a run at the places from which, or up to which, an image or a file in huge folios shows it.
    fn cut_at_sources(&self, run: Run) -> Vec<Run> {
        let images = self.policy.pages.takes_images();
        let files = self.policy.pages.takes_files() && self.fault_of_files().is_none();
        if run.protection.write || !(images || files) {
            return vec![run];
        }
        let shown = |page: AddressRange| {
            let file = self.cached_place(page).ok().filter(|_| files);
            (file.map(|place| place.mapping), self.image_span(page).filter(|_| images))
        };
        let mut pieces: Vec<(AddressRange, _)> = Vec::new();
        for page in run.range.pages(self.size) {
            let shown = shown(page);
            match pieces.last_mut() {
                Some((range, same)) if *same == shown => *range = AddressRange::new(range.start(), page.end()),
                _ => pieces.push((page, shown)),
            }
        }
        pieces.into_iter().map(|(range, _)| run.cut_to(range)).collect()
    }

    fn cached_place(&self, page: AddressRange) -> Result<CachedPlace<'a>, Reason> {
        cached_place(self.process, page, self.size)
    }

    /// Returns why files of this machine and process are not mapped by huge pages of the wanted size, if so. The kernel
    /// maps files so in every mode of transparent huge pages but one.
    fn fault_of_files(&self) -> Option<Reason> {
        match self.machine.thp {
            None => Some(Reason::NoThp),
            Some(thp) if thp.mode == ThpMode::OffInProcess => Some(Reason::ThpOffInProcess),
            Some(thp) => (thp.size != self.size).then_some(Reason::ThpSize { wanted: self.size, size: thp.size }),
        }
    }

    /// Returns the ways to map a run from the page cache, best first.
    fn file_methods(&self, run: &Run) -> Result<Vec<Method>, Reason> {
        if let Some(fault) = self.fault_of_files() {
            return Err(fault);
        }
        // A run is cut at both ends of the part that a file shows, so that the facts about one page hold for all.
        let mut place = None;
        for page in run.range.pages(self.size) {
            place = Some(self.cached_place(page)?);
        }
        let place = place.ok_or(Reason::NoCachedFile)?;
        if run.pieces.iter().any(|piece| piece.protection != run.protection) {
            return Err(Reason::NoCachedFile);
        }
        let offset = run.range.start().0.wrapping_sub(place.distance);
        let again = place.file.own_path.clone().map(|path| Method::MapAgain { path, offset });
        let methods: Vec<_> = self.machine.refaults_huge.then_some(Method::Refault).into_iter().chain(again).collect();
        if methods.is_empty() { Err(Reason::NoCachedFile) } else { Ok(methods) }
    }

    fn pool_parts(&self, run: &Run) -> Result<Vec<Part>, Reason> {
        let Some(pool) = self.machine.pool(self.size) else {
            let sizes = self.machine.pools.iter().map(|pool| pool.size).collect();
            return Err(Reason::NoSuchPool { size: self.size, sizes });
        };
        if run.pieces.iter().any(|piece| piece.relro_pending) {
            return Err(Reason::ProtectionPending);
        }
        // Moving the range aside removes it from the threads for a while: they must be stopped during the whole lift.
        if self.process.running && !self.machine.movable_hugetlb {
            return Err(Reason::PoolPagesStay(self.size));
        }
        let needed = self.size.pages_for(run.range.len());
        let available = self.pool_left.get(&self.size).copied().unwrap_or(0);
        if needed > available {
            return Err(self.pool_shortage(needed, available, pool.total));
        }
        let copy = self.to_copy(run, run.range);
        let method = if self.machine.movable_hugetlb {
            Method::Swap { copy }
        } else {
            let mappings = self.process.space.overlapping(run.range);
            Method::MoveAside { copy, mappings: mappings.iter().map(|m| m.range.intersect(run.range)).collect() }
        };
        Ok(vec![Part { range: run.range, method }])
    }

    fn pool_shortage(&self, needed: u64, available: u64, total: u64) -> Reason {
        let (size, elsewhere) = (self.size, self.pool_elsewhere.get(&self.size).copied().unwrap_or(0));
        match &self.placed {
            Ok(Some(placed)) if available + elsewhere >= needed => Reason::PoolOnOtherNodes {
                size,
                needed,
                available,
                elsewhere,
                nodes: placed.nodes.clone(),
                whole: needed,
            },
            _ => match self.machine.pool_limits.iter().find(|limit| limit.size == size && limit.pool >= needed) {
                Some(PoolLimit { limit, file, .. }) => {
                    Reason::PoolLimited { size, needed, available, limit: *limit, file: file.clone() }
                }
                None => Reason::PoolTooSmall { size, needed, available, total, whole: needed },
            },
        }
    }

    /// Cuts a run into parts for transparent huge pages. Anonymous memory is advised and collapsed in place; only huge
    /// pages that hold a file's pages are replaced by a copy.
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
        // Memory that the program may write to during the lift is never replaced, not even if two mappings share a huge
        // page, which the kernel then does not collapse.
        let never_replaced = self.process.may_write_during_copies() && run.protection.write;
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
        let method = if anonymous {
            let touched = self.process.touched.within(range).map(|touched| touched.widened(self.size)).collect();
            Method::InPlace { collapse: touched }
        } else {
            Method::Swap { copy: self.to_copy(run, range) }
        };
        Part { range, method }
    }

    /// Divides a run at huge page borders into parts that are wholly in one anonymous mapping, and the rest.
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

    /// Returns the pages of files in `range`, and the touched anonymous pages. Sealed anonymous memory was written
    /// before the sealing, so it counts completely.
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

    /// Adds the pages of all ranges to each refusal for want of pages, so that one reservation is enough.
    fn count_pages_of_whole_lift(&mut self) {
        let missing = |refusal: &Refusal| match refusal.reason {
            Reason::PoolTooSmall { needed, .. } | Reason::PoolOnOtherNodes { needed, .. } => needed,
            _ => 0,
        };
        let all = self.plan.pool_pages(self.size) + self.plan.refusals.iter().map(missing).sum::<u64>();
        for refusal in &mut self.plan.refusals {
            if let Reason::PoolTooSmall { whole, .. } | Reason::PoolOnOtherNodes { whole, .. } = &mut refusal.reason {
                *whole = all;
            }
        }
    }

    fn refuse(&mut self, object: &str, kinds: Vec<Kind>, range: AddressRange, reason: Reason) {
        self.plan.refusals.push(Refusal { object: object.to_owned(), kinds, range, reason });
    }

    fn refuse_object(&mut self, object: &LoadedObject, reason: &Reason) {
        let mut pieces = pieces_of(object, self.process, self.machine.base_page);
        pieces.retain(|piece| self.policy.kinds.contains(piece.kind));
        self.refuse_pieces(object.name(), pieces, Some(reason));
    }

    /// Refuses pieces for `reason`, or each for its own.
    fn refuse_pieces(&mut self, object: &str, pieces: Vec<Piece>, reason: Option<&Reason>) {
        for piece in pieces {
            let Some(reason) = reason.cloned().or(piece.refused) else { continue };
            self.plan.considered += piece.range.len();
            self.refuse(object, vec![piece.kind], piece.range, reason);
        }
    }
}

/// A run that is lifted as one part.
fn whole(run: &Run, method: Method) -> Vec<Part> {
    vec![Part { range: run.range, method }]
}

/// True for memory that the kernel can turn into transparent huge pages without moving it.
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
