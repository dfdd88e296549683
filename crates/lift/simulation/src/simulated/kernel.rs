//! The model's state and the rules of mapping, unmapping, protecting and moving.

use super::area::Area;
use super::contents::SimulatedFile;
use super::contents::{Content, Contents, Stretch};
use super::errno::*;
use super::script::{AwaitedGap, Call, Script};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize, Protection, RangeSet};
use lift_execution::FileMapping;
use lift_plan::Placement;
use std::collections::BTreeMap;

/// `mremap` refuses to work if fewer mappings than this are available, and two more are needed for the splits (Linux,
/// `mm/mremap.c`).
const MREMAP_HEADROOM: usize = 3;

/// Transparent huge pages of the model.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedThp {
    /// Their size.
    pub size: PageSize,
    /// Number of available pages.
    pub left: u64,
    /// Faults in advised memory give huge pages; otherwise only collapsing does.
    pub at_fault: bool,
    /// Interval, in calls, at which the kernel, short of memory, splits a huge page of a new mapping that holds only
    /// zeros.
    pub splits_every: Option<usize>,
}

/// A copy of a file on huge pages.
#[derive(Clone, Debug)]
pub struct SimulatedImage {
    /// Its path.
    pub path: String,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Which memory of the process it shows, from which offset on. All else in it is foreign.
    pub shows: Vec<(u64, AddressRange)>,
}

/// Properties of the model's kernel.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    /// Ordinary page size.
    pub base_page: PageSize,
    /// Free pages of each pool.
    pub pools: BTreeMap<PageSize, u64>,
    /// Pool pages that the process may have in use, as a cgroup limits them: more are refused when they are touched.
    pub pool_charge: u64,
    /// Free pool pages on the nodes to which a memory policy confines: more are refused when they are touched.
    pub pool_on_bound_nodes: u64,
    /// Transparent huge pages.
    pub thp: Option<SimulatedThp>,
    /// Shared images.
    pub images: Vec<SimulatedImage>,
    /// Files of the process that are in huge folios of the page cache.
    pub files: Vec<SimulatedFile>,
    /// Page tables that `MADV_DONTNEED` has emptied are freed.
    pub refaults_huge: bool,
    /// Files are mapped in place of others, not only elsewhere.
    pub maps_in_place: bool,
    /// No thread of the program runs during a move, and a refused one is undone.
    pub holds_threads: bool,
    /// `mremap` moves pool memory.
    pub movable_hugetlb: bool,
    /// `MADV_COLLAPSE` exists.
    pub collapse: bool,
    /// `vm.max_map_count`.
    pub max_mappings: usize,
    /// New mappings are below this address.
    pub top: Address,
}

/// A simulated process and its kernel. See the module's description.
#[derive(Clone, Debug)]
pub struct SimulatedKernel {
    pub(super) machine: SimulatedMachine,
    pub(super) areas: Vec<Area>,
    pub(super) contents: Contents,
    /// Pages with memory behind them.
    pub(super) present: RangeSet,
    /// The ranges mapped by transparent huge pages.
    pub(super) huge: RangeSet,
    /// Pages of files that are, or were, mapped through tables of ordinary pages that still exist.
    pub(super) small_tables: RangeSet,
    /// The mappings of files at first.
    pub(super) shown_files: Vec<Mapping>,
    /// The first contents of memory.
    pub(super) originals: Contents,
    /// The first mappings.
    pub(super) first: RangeSet,
    /// Free pages that mappings have not reserved.
    pub(super) pool_left: BTreeMap<PageSize, u64>,
    brk: Option<AddressRange>,
    pub(super) script: Script,
    pub(super) log: Vec<(Call, AddressRange)>,
    pub(super) violations: Vec<String>,
    pub(super) awaited: Vec<AwaitedGap>,
    /// The memory that another thread has mapped.
    pub(super) taken: RangeSet,
}

pub(super) type Errno = Result<(), i32>;

impl SimulatedKernel {
    /// A process with these mappings, of whose anonymous pages `touched` have been touched. Pages of files and touched
    /// pages hold contents of their own, all others zeros.
    pub fn new(machine: SimulatedMachine, space: &AddressSpace, touched: &RangeSet) -> Self {
        let mut kernel = Self {
            areas: space.mappings().iter().cloned().map(Area::of).collect(),
            contents: Contents::default(),
            present: RangeSet::new(),
            huge: RangeSet::new(),
            small_tables: RangeSet::new(),
            originals: Contents::default(),
            shown_files: space.mappings().iter().filter(|mapping| mapping.path().is_some()).cloned().collect(),
            first: space.mappings().iter().map(|mapping| mapping.range).collect(),
            pool_left: machine.pools.clone(),
            brk: space.heap(),
            script: Script::new(),
            log: Vec::new(),
            violations: Vec::new(),
            awaited: Vec::new(),
            taken: RangeSet::new(),
            machine,
        };
        for area in kernel.areas.clone() {
            let filled: Vec<_> =
                if area.is_plain() { touched.within(area.range()).collect() } else { vec![area.range()] };
            for range in filled {
                let plain = [Stretch { range, content: Content::Original(range.start()) }];
                // A file that is mapped twice shows the same in both places.
                let shown = if area.shows_file() { kernel.file_contents(&area.mapping) } else { plain.to_vec() };
                shown.into_iter().for_each(|stretch| kernel.contents.set(stretch.range, stretch.content));
                kernel.present.insert(range);
                if area.shows_file() {
                    kernel.small_tables.insert(range);
                }
            }
        }
        kernel.originals = kernel.contents.clone();
        kernel.merge();
        kernel
    }

    /// Starts a script that makes calls fail; calls are counted from 0 again.
    pub fn follow(&mut self, script: Script) {
        self.script = script;
        self.log.clear();
        self.awaited.clear();
    }

    /// The calls since the script began, with the ranges they were about.
    pub fn log(&self) -> &[(Call, AddressRange)] {
        &self.log
    }

    /// Violations: accesses that a real kernel would answer with a signal, or that no lift may make.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Returns the contents of `range`.
    pub fn contents(&self, range: AddressRange) -> Vec<Stretch> {
        self.contents.of(range)
    }

    /// The bytes of `range`.
    pub fn read(&self, range: AddressRange) -> Vec<u8> {
        self.contents.read(range)
    }

    /// Lets the program write; the memory must be mapped and writable.
    ///
    /// # Errors
    /// `EFAULT` where it is not.
    pub fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), i32> {
        let range = AddressRange::sized(at, bytes.len() as u64);
        self.write_to(range)?;
        self.contents.write(at, bytes);
        Ok(())
    }

    /// The mappings, as maps shows them.
    pub fn mappings(&self) -> AddressSpace {
        let named = self.areas.iter().map(|area| {
            let mut mapping = area.mapping.clone();
            let touches = |brk: AddressRange| area.range().start() <= brk.end() && area.range().end() >= brk.start();
            if mapping.name == MappingName::Anonymous && self.brk.is_some_and(touches) {
                mapping.name = MappingName::Heap;
            }
            mapping
        });
        AddressSpace::from_mappings(named.collect())
    }

    /// Returns the number of pool pages that are left.
    pub fn pool_left(&self, size: PageSize) -> u64 {
        self.pool_left.get(&size).copied().unwrap_or(0)
    }

    /// True if all of `range` is on huge pages of at least `size`.
    pub fn is_huge(&self, range: AddressRange, size: PageSize) -> bool {
        self.huge_in(range, size).covers(range)
    }

    /// The ranges that core dumps omit (`MADV_DONTDUMP`).
    pub fn not_dumped(&self) -> RangeSet {
        self.areas.iter().filter(|area| area.not_dumped).map(Area::range).collect()
    }

    /// Memory with PROT_BTI.
    pub fn guarded(&self) -> RangeSet {
        self.areas.iter().filter(|area| area.guards_branches).map(Area::range).collect()
    }

    /// Gives all code PROT_BTI, as a dynamic linker does at the start of a program.
    pub fn guard_code(&mut self) {
        self.areas.iter_mut().for_each(|area| area.guards_branches = area.mapping.protection.execute);
    }

    /// Everything that is mapped.
    pub fn mapped(&self) -> RangeSet {
        self.areas.iter().map(Area::range).collect()
    }

    /// The program's own `brk`: moves the end of the brk area.
    ///
    /// # Errors
    /// Something else is in the way, or the memory cannot be allocated or freed.
    pub fn brk(&mut self, end: Address) -> Result<(), i32> {
        let brk = self.brk.ok_or(ENOMEM)?;
        let page = self.machine.base_page;
        let (old, new) = (brk.end().align_up(page).ok_or(ENOMEM)?, end.align_up(page).ok_or(ENOMEM)?);
        if new > old {
            let grown = AddressRange::new(old, new);
            if self.areas.iter().any(|area| area.range().overlaps(grown))
                || self.areas.len() > self.machine.max_mappings
            {
                return Err(ENOMEM);
            }
            self.insert(Area::anonymous(grown, None));
            self.merge();
        } else {
            self.remove(AddressRange::new(new, old))?;
        }
        self.brk = Some(AddressRange::new(brk.start(), end));
        Ok(())
    }

    pub(super) fn area_at(&self, address: Address) -> Option<&Area> {
        let index = self.areas.partition_point(|area| area.range().end() <= address);
        self.areas.get(index).filter(|area| area.range().contains(address))
    }

    pub(super) fn overlapping(&self, range: AddressRange) -> &[Area] {
        let first = self.areas.partition_point(|area| area.range().end() <= range.start());
        let last = self.areas.partition_point(|area| area.range().start() < range.end());
        &self.areas[first..last.max(first)]
    }

    pub(super) fn check_pages(&self, range: AddressRange) -> Errno {
        let page = self.machine.base_page;
        let whole = range.start().is_aligned(page) && range.end().is_aligned(page) && !range.is_empty();
        if whole { Ok(()) } else { Err(EINVAL) }
    }

    /// The borders of `range` at which an area must be split; an error if that would cut a pool page.
    pub(super) fn splits(&self, range: AddressRange) -> Result<Vec<Address>, i32> {
        let mut splits = Vec::new();
        for border in [range.start(), range.end()] {
            let Some(area) = self.area_at(border).filter(|area| area.range().start() < border) else { continue };
            if area.pool.is_some_and(|size| !border.is_aligned(size)) {
                return Err(EINVAL);
            }
            splits.push(border);
        }
        Ok(splits)
    }

    /// Splits areas so that none crosses a border of `range`, unless the number of mappings forbids it.
    pub(super) fn split(&mut self, range: AddressRange) -> Errno {
        for border in self.splits(range)? {
            if self.areas.len() >= self.machine.max_mappings {
                return Err(ENOMEM);
            }
            self.split_at(border);
        }
        Ok(())
    }

    fn split_at(&mut self, border: Address) {
        let index = self.areas.partition_point(|area| area.range().end() <= border);
        let Some(area) = self.areas.get(index).filter(|area| area.range().start() < border) else { return };
        let below = area.cut(AddressRange::new(area.range().start(), border));
        let above = area.cut(AddressRange::new(border, area.range().end()));
        self.areas.splice(index..=index, [below, above]);
        self.split_huge(border);
    }

    pub(super) fn insert(&mut self, area: Area) {
        let index = self.areas.partition_point(|other| other.range().start() < area.range().start());
        self.areas.insert(index, area);
    }

    /// Joins areas that the kernel would have joined.
    pub(super) fn merge(&mut self) {
        self.areas.dedup_by(|next, area| {
            let joins = area.continues_in(next);
            if joins {
                area.mapping.range = AddressRange::new(area.range().start(), next.range().end());
            }
            joins
        });
    }

    /// Sealed memory is not unmapped, moved, or protected anew (mseal(2)).
    fn check_seals(&self, range: AddressRange) -> Errno {
        if self.overlapping(range).iter().any(|area| area.sealed) { Err(EPERM) } else { Ok(()) }
    }

    /// `munmap`.
    pub(super) fn remove(&mut self, range: AddressRange) -> Errno {
        self.check_pages(range)?;
        self.check_seals(range)?;
        let splits = self.splits(range)?;
        // A hole in the middle of an area makes two of one.
        let punches = self
            .area_at(range.start())
            .is_some_and(|area| area.range().start() < range.start() && range.end() < area.range().end());
        if punches && self.areas.len() >= self.machine.max_mappings {
            return Err(ENOMEM);
        }
        splits.into_iter().for_each(|border| self.split_at(border));
        for area in self.overlapping(range).to_vec() {
            self.give_back(&area);
        }
        self.areas.retain(|area| !range.covers(area.range()));
        self.forget(range);
        Ok(())
    }

    fn forget(&mut self, range: AddressRange) {
        self.contents.clear(range);
        self.present.remove(range);
        self.huge.remove(range);
        self.small_tables.remove(range);
    }

    fn give_back(&mut self, area: &Area) {
        let Some(size) = area.pool else { return };
        let present = self.present.bytes_in(area.range()) / size.bytes();
        self.machine.pool_charge += present;
        let of_bound_nodes = if area.bound { present } else { 0 };
        self.machine.pool_on_bound_nodes = self.machine.pool_on_bound_nodes.saturating_add(of_bound_nodes);
        *self.pool_left.entry(size).or_default() += area.range().len() / size.bytes();
    }

    /// `mmap` of anonymous memory in a place that is free.
    pub(super) fn place(&mut self, range: AddressRange, pool: Option<PageSize>) -> Errno {
        self.check_pages(range)?;
        if self.areas.len() > self.machine.max_mappings {
            return Err(ENOMEM);
        }
        if let Some(size) = pool {
            if !range.start().is_aligned(size) || !range.end().is_aligned(size) {
                return Err(EINVAL);
            }
            let left = self.pool_left.get_mut(&size).ok_or(EINVAL)?;
            *left = left.checked_sub(range.len() / size.bytes()).ok_or(ENOMEM)?;
        }
        self.insert(Area::anonymous(range, pool));
        self.merge();
        Ok(())
    }

    /// `mbind`, which decides only about pages that are not present yet.
    pub(super) fn bind(&mut self, range: AddressRange, placement: &Placement) -> Errno {
        // The model has the nodes 0 and 1.
        if placement.nodes.is_empty() || placement.nodes.iter().any(|node| node > 1) {
            return Err(EINVAL);
        }
        if self.present.overlaps(range) {
            self.violations.push(format!("{range} gets a memory policy after its pages"));
        }
        self.change(range, |area| area.bound = true).map_err(|errno| if errno == ENOMEM { EFAULT } else { errno })
    }

    /// The highest free place, as the kernel chooses it.
    pub(super) fn free_place(&self, length: u64, alignment: PageSize) -> Option<Address> {
        let mut end = self.machine.top;
        for area in self.areas.iter().rev().filter(|area| area.range().start() < self.machine.top) {
            if let Some(start) = end.0.checked_sub(length).map(|start| Address(start).align_down(alignment))
                && start >= area.range().end()
            {
                return Some(start);
            }
            end = end.min(area.range().start());
        }
        end.0.checked_sub(length).map(|start| Address(start).align_down(alignment)).filter(|start| start.0 > 0)
    }

    /// `mmap` of an image over existing mappings.
    pub(super) fn place_image(&mut self, range: AddressRange, file: FileMapping<'_>) -> Errno {
        let FileMapping { path, offset, protection } = file;
        self.check_pages(range)?;
        let image = self.machine.images.iter().find(|image| image.path == path).cloned().ok_or(ENOENT)?;
        // In this order: mmap checks the number of mappings before it removes any.
        if self.areas.len() > self.machine.max_mappings {
            return Err(ENOMEM);
        }
        if !self.overlapping(range).is_empty() {
            self.remove(range)?;
        }
        self.contents.set(range, Content::Foreign(offset));
        for (from, shown) in image.shows {
            let (first, end) = (offset.max(from), (offset + range.len()).min(from + shown.len()));
            if first < end {
                let place = AddressRange::sized(range.start() + (first - offset), end - first);
                let original = AddressRange::sized(shown.start() + (first - from), end - first);
                for Stretch { range, content } in self.originals.of(original) {
                    self.contents.set(range.shifted(place.start() - original.start()), content);
                }
            }
        }
        self.insert(Area::image(range, path, offset, protection, image.page_size));
        self.merge();
        Ok(())
    }

    /// `mprotect`.
    pub(super) fn change_protection(&mut self, range: AddressRange, protection: Protection) -> Errno {
        if protection.write && protection.execute {
            self.violations.push(format!("mprotect makes {range} writable and executable at once"));
        }
        self.check_seals(range)?;
        // mprotect without PROT_BTI takes it away.
        self.change(range, |area| (area.mapping.protection, area.guards_branches) = (protection, false))
    }

    /// Changes a property of all of `range`; the part before a hole is changed in any case.
    pub(super) fn change(&mut self, range: AddressRange, change: impl Fn(&mut Area)) -> Errno {
        self.check_pages(range)?;
        self.split(range)?;
        let mut mapped = 0;
        for area in self.areas.iter_mut().filter(|area| range.covers(area.range())) {
            change(area);
            mapped += area.range().len();
        }
        self.merge();
        if mapped == range.len() { Ok(()) } else { Err(ENOMEM) }
    }

    /// `mremap(MREMAP_FIXED)`: the destination is removed first, then the source is checked.
    pub(super) fn move_area(&mut self, from: AddressRange, to: Address) -> Errno {
        let target = AddressRange::sized(to, from.len());
        self.check_pages(from)?;
        self.check_pages(target)?;
        if from.overlaps(target) {
            return Err(EINVAL);
        }
        self.check_seals(from)?;
        if self.areas.len() + 2 + MREMAP_HEADROOM >= self.machine.max_mappings {
            return Err(ENOMEM);
        }
        self.remove(target)?;
        let area = self.area_at(from.start()).ok_or(EFAULT)?.clone();
        if !area.range().covers(from) {
            return Err(EFAULT);
        }
        if let Some(size) = area.pool {
            let aligned = [from.start(), from.end(), to].into_iter().all(|border| border.is_aligned(size));
            if !self.machine.movable_hugetlb || !aligned {
                return Err(EINVAL);
            }
        }
        if self.areas.len() + MREMAP_HEADROOM >= self.machine.max_mappings {
            return Err(ENOMEM);
        }
        self.split(from)?;
        self.carry(area.cut(from), target);
        Ok(())
    }

    fn carry(&mut self, area: Area, target: AddressRange) {
        let from = area.range();
        let delta = target.start() - from.start();
        self.contents.copy(from, target.start());
        let present: Vec<_> = self.present.within(from).collect();
        let small_tables: Vec<_> = self.small_tables.within(from).collect();
        let huge = self.carried_huge(from, delta);
        self.areas.retain(|other| other.range() != from);
        self.forget(from);
        present.iter().for_each(|range| self.present.insert(range.shifted(delta)));
        small_tables.iter().for_each(|range| self.small_tables.insert(range.shifted(delta)));
        huge.into_iter().for_each(|range| self.huge.insert(range));
        // Memory that has never been touched is numbered anew.
        let plain = area.is_plain();
        let moved = if plain && !present.is_empty() { area.moved.wrapping_add(delta) } else { 0 };
        let mapping = address_space::Mapping { range: target, ..area.mapping };
        self.insert(Area { mapping, moved, ..area });
        self.merge();
    }
}
