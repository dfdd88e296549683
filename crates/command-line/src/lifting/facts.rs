//! Gathers what the planner needs to know of a process.

use super::images::{self, Known, MissingImages};
use super::probes;
use address_space::{Address, AddressRange, AddressSpace, ObjectRole, PageSize, RangeSet};
use anyhow::Context;
use huge_page_pools::system_thp;
use kernel_calls::pagemap::Pagemap;
use lift_plan::{MachineFacts, Pages, Plan, Policy, ProcessFacts, ThpMode, plan, special_mappings};
use observation::{LoadedObjects, NotUnderstood, ObjectReader, ProcessFiles};

/// A process as seen at one moment.
pub struct Seen {
    /// For the planner.
    pub process: ProcessFacts,
    /// Mapped files that are no sound 64-bit objects.
    pub not_understood: Vec<NotUnderstood>,
    /// Objects that no image can show, each with the reason.
    pub without_image: Vec<String>,
}

/// Looks at a process that stands at its entry, and plans. `found` is told of the process when its images are known, and
/// before what takes longest is looked up.
pub fn plan_for(
    pid: i32,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    policy: &Policy,
    missing: MissingImages,
    known: Known,
    found: impl FnOnce(&ProcessFacts),
) -> anyhow::Result<(Seen, Plan)> {
    let seen = look_at(pid, reader, machine.base_page)?;
    plan_seen(pid, seen, machine, policy, missing, known, found)
}

/// Looks at a process that runs, and plans.
pub fn plan_for_running(
    pid: i32,
    reader: &mut ObjectReader,
    machine: &MachineFacts,
    policy: &Policy,
    missing: MissingImages,
) -> anyhow::Result<(Seen, Plan)> {
    let mut seen = look_at(pid, reader, machine.base_page)?;
    seen.process.running = true;
    seen.process.relocates_itself = false;
    plan_seen(pid, seen, machine, policy, missing, Known::default(), |_| {})
}

/// The facts for a lift during which the program's PR_SET_THP_DISABLE is suspended, and whether there is one to suspend:
/// whoever asks for a lift of this very program asks for more than the program, which knew of none.
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
    missing: MissingImages,
    known: Known,
    found: impl FnOnce(&ProcessFacts),
) -> anyhow::Result<(Seen, Plan)> {
    let machine = &with_room_for_the_program(machine, &seen.process);
    // Without images nothing is lifted from images.
    let first = if policy.pages == Pages::Image { Plan::default() } else { plan(&seen.process, machine, policy) };
    if first.lifts.is_empty() && policy.pages != Pages::Image {
        return Ok((seen, first));
    }
    seen.process.probed = probes::find(pid, &seen.process, &first, machine.base_page);
    let images = images::look(pid, &seen.process, machine, policy, missing, known);
    (seen.process.images, seen.without_image) = (images.spans, images.missing);
    found(&seen.process);
    // The account of every mapping costs more than all the rest, and only matters where something is to be replaced.
    let shown = seen.process.images.iter().map(|span| span.range.end());
    let mut end = end_of(&first).into_iter().chain(shown).max().unwrap_or(Address(0));
    loop {
        seen.process.special = special_mappings(&ProcessFiles::of(pid).mapping_flags_below(end)?);
        let second = plan(&seen.process, machine, policy);
        // What images show leaves room for more than the first plan had.
        match end_of(&second).filter(|&beyond| beyond > end) {
            Some(beyond) => end = beyond,
            None => return Ok((seen, second)),
        }
    }
}

/// The end of what a plan replaces.
fn end_of(plan: &Plan) -> Option<Address> {
    plan.lifts.iter().map(|lift| lift.range.end()).max()
}

/// Takes off what the program will still touch of its own writable memory: a lift must leave room for it.
fn with_room_for_the_program(machine: &MachineFacts, process: &ProcessFacts) -> MachineFacts {
    let writable = process.space.mappings().iter().filter(|mapping| mapping.protection.write && !mapping.shared);
    let of_objects = writable.filter(|m| process.objects.iter().any(|o| o.extent().overlaps(m.range)));
    let untouched: u64 = of_objects.map(|m| m.range.len() - process.touched.bytes_in(m.range)).sum();
    MachineFacts { memory_available: machine.memory_available.saturating_sub(untouched), ..machine.clone() }
}

fn look_at(pid: i32, reader: &mut ObjectReader, base_page: PageSize) -> anyhow::Result<Seen> {
    let space = ProcessFiles::of(pid).maps()?;
    let LoadedObjects { objects, not_understood, .. } = reader.load(pid, &space)?;
    let touched = touched(pid, &space, &objects_extents(&objects), base_page)?;
    let relocates_itself = objects.iter().any(|o| o.role == ObjectRole::Executable && o.image.is_static());
    Ok(Seen {
        process: ProcessFacts { space, objects, touched, relocates_itself, ..ProcessFacts::default() },
        not_understood,
        without_image: Vec::new(),
    })
}

fn objects_extents(objects: &[address_space::LoadedObject]) -> Vec<AddressRange> {
    objects.iter().map(address_space::LoadedObject::extent).collect()
}

/// What has been touched of the anonymous memory of objects and of the heap.
fn touched(pid: i32, space: &AddressSpace, extents: &[AddressRange], base_page: PageSize) -> anyhow::Result<RangeSet> {
    let heap = space.heap();
    let pagemap = Pagemap::open(pid, base_page).with_context(|| format!("opening /proc/{pid}/pagemap"))?;
    let mut touched = RangeSet::new();
    for mapping in space.mappings().iter().filter(|mapping| mapping.inode == 0 && mapping.protection.write) {
        let of_interest = extents.iter().any(|extent| extent.widened(base_page).overlaps(mapping.range))
            || heap.is_some_and(|heap| heap.overlaps(mapping.range));
        if of_interest {
            let found = pagemap.touched(mapping.range).with_context(|| format!("reading /proc/{pid}/pagemap"))?;
            found.iter().for_each(|range| touched.insert(range));
        }
    }
    Ok(touched)
}
