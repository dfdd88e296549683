//! Reads the facts of this process and makes a plan.

use crate::auxiliary::Auxiliary;
use crate::executor::own_space;
use crate::live_restrictions::LiveRestrictions;
use crate::machine::{machine_facts, placed_mappings};
use crate::objects::objects_of;
use crate::pagemap::Pagemap;
use crate::probes::SearchedCode;
use crate::{cached, files, probes, records};
use address_space::{PageSize, RangeSet, parse_flags};
use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use lift_execution::CallError;
use lift_plan::{MachineFacts, Plan, Policy, Probes, ProcessFacts, plan, special_mappings};
use machine_facts::{CachedFiles, Looks, touched_memory};

/// The facts of this process at one moment, and the plan for it.
pub struct Seen {
    /// The planner's facts about the process.
    pub process: ProcessFacts,
    /// The machine.
    pub machine: MachineFacts,
    /// The plan, without what is not safe from inside.
    pub plan: Plan,
    /// The code that was searched for probes.
    pub code: SearchedCode,
}

/// Reads the facts and plans. Ranges that are lifted already are left out.
///
/// # Errors
/// A text that says what could not be read.
pub fn look(policy: &Policy, lifted: &[records::LiftRecord]) -> Result<Seen, String> {
    let auxiliary = Auxiliary::read().ok_or_else(no_proc)?;
    let machine = machine_facts(auxiliary.base_page, Looks::for_policy(policy));
    let space = own_space().map_err(|error| error.to_string())?;
    let objects = objects_of(&space, &auxiliary);
    let restrictions = LiveRestrictions::of(&objects);
    let mut process = ProcessFacts { space, objects, ..ProcessFacts::default() };
    process.touched = touched(&process, auxiliary.base_page).map_err(|error| error.to_string())?;
    let with_room = machine.with_room_for(&process);
    let CachedFiles { files, changed } = cached::look(&process, &machine, policy);
    (process.cached, process.changed) = (files, changed);
    let mut made = plan(&process, &with_room, policy);
    leave_lifted(&mut made, lifted);
    let mut code = SearchedCode::default();
    if !made.lifts.is_empty() {
        let (Probes { probed, semaphores }, searched) = probes::look(&process, &machine, policy);
        (process.probed, process.semaphores, code) = (probed, semaphores, searched);
        // Reading smaps takes longer than all the rest, and is only needed if something is replaced.
        let smaps = files::text(c"/proc/thread-self/smaps").map_err(|_| no_proc())?;
        process.special = parse_flags(&smaps).map(|flags| special_mappings(&flags)).map_err(|e| e.to_string())?;
        if machine.numa.is_some() {
            process.special.extend(placed_mappings(&process.space));
        }
        made = plan(&process, &with_room, policy);
        leave_lifted(&mut made, lifted);
    }
    restrictions.keep_what_is_safe(&mut made);
    Ok(Seen { process, machine, plan: made, code })
}

fn no_proc() -> String {
    "found no /proc/self; needed to see this process's memory: mount -t proc proc /proc".to_owned()
}

fn leave_lifted(plan: &mut Plan, lifted: &[records::LiftRecord]) {
    plan.lifts.retain(|lift| !lifted.iter().any(|record| record.range.overlaps(lift.range)));
}

/// The touched pages of the anonymous memory of objects and of the heap.
fn touched(process: &ProcessFacts, base_page: PageSize) -> Result<RangeSet, CallError> {
    let failed = |errno| CallError { call: "reading /proc/self/pagemap", errno };
    let pagemap = Pagemap::open(base_page).map_err(failed)?;
    touched_memory(&process.space, &process.objects, base_page, |range| pagemap.touched(range)).map_err(failed)
}
