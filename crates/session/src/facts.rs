//! Gathers the facts about a process that the planner needs.

use crate::SessionError;
use crate::data_files::{self, DataFiles};
use crate::files::{self, FilePreparation, KnownFile};
use crate::images::{self, MissingImages, OpenedStore};
use crate::probes;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, Mapping, ObjectRole, PageSize, RangeSet};
use lift_plan::{
    Kind, MachineFacts, Method, Part, Plan, Policy, Probes, ProcessFacts, ThpMode, plan, plan_files, special_mappings,
};
use linux::pagemap::Pagemap;
use machine_facts::{CachedFiles, System, base_page, placed_mappings, system_thp, touched_memory};
use options::{Kinds, Prepare};
use process_view::{LoadedObjects, NotUnderstood, ObjectReader, ProcessFiles};
use ptrace::EntryStop;

/// A process as seen at one moment.
pub struct Seen {
    /// Facts for the planner.
    pub process: ProcessFacts,
    /// Mapped files that are not sound 64-bit objects.
    pub not_understood: Vec<NotUnderstood>,
    /// Objects that no image can show, each with the reason.
    pub without_image: Vec<String>,
    /// Objects of which the store has copies by node, but none for the node of the process, each with the reason.
    pub not_on_node: Vec<String>,
    /// Keeps files in huge folios until the process maps them so.
    pub held: Vec<page_cache::Hold>,
    /// Its data files, if they are to be lifted.
    pub data_files: DataFiles,
}

/// Reads the facts of a process that is stopped at its entry, and plans. `found` is called with the process once its
/// images are known, before the slowest facts are read.
pub fn plan_for(
    stop: &EntryStop,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    policy: &Policy,
    preparation: Preparation,
    ahead: ReadAhead<'_>,
    found: impl FnOnce(&ProcessFacts),
) -> Result<(Seen, Plan), SessionError> {
    let mut seen = look_at(stop.pid(), reader, machine.base_page)?;
    seen.process.other_threads = stop.other_threads > 0;
    plan_seen(stop.pid(), seen, machine, policy, preparation, ahead, found)
}

/// Facts that were read before the program was stopped.
#[derive(Default)]
pub struct ReadAhead<'a> {
    /// The store of images.
    pub store: OpenedStore,
    /// The program's file.
    pub file: Option<&'a KnownFile>,
}

/// The work before a plan.
#[derive(Clone, Copy)]
pub struct Preparation {
    /// The treatment of objects without an image in the store.
    pub missing: MissingImages,
    /// The way to bring files into huge folios.
    pub files: FilePreparation,
}

impl Preparation {
    /// Nothing is made.
    pub const NONE: Self = Self { missing: MissingImages::Leave, files: FilePreparation::Nothing };
}

/// Reads the facts of a running process, and plans.
pub fn plan_for_running(
    pid: i32,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    policy: &Policy,
    preparation: Preparation,
) -> Result<(Seen, Plan), SessionError> {
    let mut seen = look_at(pid, reader, machine.base_page)?;
    seen.process.running = true;
    seen.process.relocates_itself = false;
    let (mut seen, plan) = plan_seen(pid, seen, machine, policy, preparation, ReadAhead::default(), |_| {})?;
    let huge = huge_in_place(pid, &plan, machine.base_page);
    let mut plan = plan.without_collapses_of(&huge);
    if let Some(thp) = machine.thp.filter(|_| policy.kinds.contains(Kind::Files)) {
        let how = match preparation.files {
            FilePreparation::Evicting(how) => how,
            FilePreparation::Nothing | FilePreparation::InPlace => Prepare::Never,
        };
        seen.data_files = data_files::look(pid, reader, thp.size, how, machine.memory_available)?;
        plan.join(plan_files(&seen.data_files.mapped, machine, policy));
    }
    Ok((seen, plan))
}

/// Returns the blocks that a plan collapses in place and that are on huge pages already. Linux before 6.7 does not report
/// them.
fn huge_in_place(pid: i32, plan: &Plan, base_page: PageSize) -> RangeSet {
    let Ok(pagemap) = Pagemap::open(pid, base_page) else { return RangeSet::new() };
    let parts = plan.lifts.iter().flat_map(|lift| &lift.attempts).flat_map(|attempt| &attempt.parts);
    let collapsed: RangeSet = parts.flat_map(collapsed_in_place).collect();
    let huge = collapsed.iter().filter_map(|range| pagemap.huge_private(range).ok());
    huge.flat_map(|huge| huge.iter().collect::<Vec<_>>()).collect()
}

/// Returns the bytes of the chosen memory that huge pages map and that a plan leaves out. Linux before 6.7 does not report
/// them.
pub fn huge_before(pid: i32, seen: &Seen, plan: &Plan, policy: &Policy) -> u64 {
    let mut huge = RangeSet::new();
    if let Ok(pagemap) = Pagemap::open(pid, base_page()) {
        for object in seen.process.objects.iter().filter(|object| policy.objects.chooses(object)) {
            for range in chosen_memory(object, &seen.process.space, policy.kinds) {
                if let Ok(found) = pagemap.huge(range) {
                    found.iter().for_each(|part| huge.insert(part));
                }
            }
        }
    }
    let planned = plan.lifts.iter().map(|lift| lift.range);
    planned.chain(plan.refusals.iter().map(|refusal| refusal.range)).for_each(|range| huge.remove(range));
    huge.bytes() + seen.data_files.huge()
}

/// Returns the private mappings in an object's segments, filtered by kind.
fn chosen_memory(object: &LoadedObject, space: &AddressSpace, kinds: Kinds) -> Vec<AddressRange> {
    let is_chosen = |mapping: &&Mapping| {
        let protection = mapping.protection;
        let of = |kind| kinds.contains(kind);
        !mapping.shared
            && match () {
                () if protection.execute => of(Kind::Text),
                () if protection.write => of(Kind::Data) || of(Kind::Bss),
                () => protection.read && of(Kind::Rodata),
            }
    };
    let segments = object.image.segments.iter().map(|segment| segment.memory.widened(base_page()).shifted(object.bias));
    let parts = segments.flat_map(|segment| {
        let mappings = space.overlapping(segment).iter().filter(is_chosen);
        mappings.map(move |mapping| mapping.range.intersect(segment))
    });
    parts.collect()
}

fn collapsed_in_place(part: &Part) -> Vec<AddressRange> {
    match &part.method {
        Method::InPlace { collapse } => collapse.iter().collect(),
        _ => Vec::new(),
    }
}

/// Returns the facts for a lift during which the program's PR_SET_THP_DISABLE is suspended, and whether there is one to
/// suspend. A user's request to lift this program outweighs the program's own setting, which was made without knowledge
/// of the lift.
pub fn without_thp_disable(machine: &MachineFacts) -> (MachineFacts, bool) {
    let suspends = machine.thp.is_some_and(|thp| thp.mode == ThpMode::OffInProcess);
    let thp = if suspends { system_thp() } else { machine.thp };
    (MachineFacts { thp, ..machine.clone() }, suspends)
}

fn plan_seen(
    pid: i32,
    mut seen: Seen,
    machine: &MachineFacts,
    policy: &Policy,
    preparation: Preparation,
    ahead: ReadAhead<'_>,
    found: impl FnOnce(&ProcessFacts),
) -> Result<(Seen, Plan), SessionError> {
    let machine = &machine.with_room_for(&seen.process);
    // It is not known yet which ranges only images or files can show.
    let shows_only = policy.pages.only_shows();
    let first = if shows_only { Plan::default() } else { plan(&seen.process, machine, policy) };
    let (CachedFiles { files, changed }, held) =
        files::look(pid, &seen.process, machine, policy, ahead.file, preparation.files);
    let may_be_shown = shows_only || !files.is_empty() || images::may_show(&seen.process, machine, policy);
    if first.lifts.is_empty() && !may_be_shown {
        return Ok((seen, first));
    }
    (seen.process.cached, seen.process.changed, seen.held) = (files, changed, held);
    let Probes { probed, semaphores } = probes::look(pid, &seen.process, machine, policy)?;
    (seen.process.probed, seen.process.semaphores) = (probed, semaphores);
    let images = images::look(pid, &seen.process, machine, policy, preparation.missing, ahead.store);
    (seen.process.images, seen.without_image, seen.not_on_node) = (images.spans, images.missing, images.not_on_node);
    found(&seen.process);
    // Reading the smaps entries of all mappings costs more than all the rest, and they matter only if memory is
    // replaced.
    let shown = seen.process.images.iter().map(|span| span.range.end());
    let mut end = end_of(&first).into_iter().chain(shown).max().unwrap_or(Address(0));
    loop {
        seen.process.special = special_mappings(&ProcessFiles::of(pid).mapping_flags_below(end)?);
        if machine.numa.is_some() {
            let placed = placed_mappings(&System, &format!("/proc/{pid}"), &seen.process.space);
            seen.process.special.extend(placed);
        }
        let second = plan(&seen.process, machine, policy);
        // Memory that images serve leaves pool pages for more than the first plan had.
        match end_of(&second).filter(|&beyond| beyond > end) {
            Some(beyond) => end = beyond,
            None => return Ok((seen, second)),
        }
    }
}

/// The end of the memory that a plan replaces.
fn end_of(plan: &Plan) -> Option<Address> {
    plan.lifts.iter().map(|lift| lift.range.end()).max()
}

fn look_at(pid: i32, reader: &mut ObjectReader, base_page: PageSize) -> Result<Seen, SessionError> {
    let space = ProcessFiles::of(pid).maps()?;
    let LoadedObjects { objects, not_understood, .. } = reader.load(pid, &space)?;
    let touched = touched(pid, &space, &objects, base_page)?;
    let relocates_itself = objects.iter().any(|o| o.role == ObjectRole::Executable && o.image.is_static());
    Ok(Seen {
        process: ProcessFacts { space, objects, touched, relocates_itself, ..ProcessFacts::default() },
        not_understood,
        without_image: Vec::new(),
        not_on_node: Vec::new(),
        held: Vec::new(),
        data_files: DataFiles::default(),
    })
}

/// Returns the touched parts of the anonymous memory of objects and of the heap.
fn touched(
    pid: i32,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
) -> Result<RangeSet, SessionError> {
    let error = |what, error| SessionError::io(format!("{what} /proc/{pid}/pagemap"), error);
    let pagemap = Pagemap::open(pid, base_page).map_err(|found| error("opening", found))?;
    touched_memory(space, objects, base_page, |range| pagemap.touched(range)).map_err(|found| error("reading", found))
}
