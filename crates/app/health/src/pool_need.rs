//! The one sum of pool pages that all advice names.

use crate::facts::{Facts, PoolFacts, ProgramFacts};
use crate::own_pages::short;

/// The pool of the usual size.
pub(crate) fn usual_pool(facts: &Facts) -> Option<&PoolFacts> {
    facts.pools.iter().find(|pool| Some(pool.size) == facts.huge_page)
}

/// Pages of the usual size that have to be free in the pool before the program is started (again) or lifted: for the
/// buffers that it requests, or is advised to request, and for code that nothing else can serve. Pages that the process
/// has now are free once it has ended, and do not count.
pub(crate) fn pages_needed(facts: &Facts) -> u64 {
    let (Some(program), Some(size)) = (&facts.program, facts.huge_page) else { return 0 };
    let held = program.running.as_ref().map_or(0, |running| running.on_pool() / size.bytes());
    let own = program.own_pages.as_ref().map_or(0, |own| own.pages(size));
    own.saturating_sub(held).saturating_add(pages_for_code(facts, program))
}

/// Pool pages for the program's code, if neither files nor transparent huge pages can serve it.
pub(crate) fn pages_for_code(facts: &Facts, program: &ProgramFacts) -> u64 {
    let has_thp = facts.thp.size.is_some() && facts.thp_mode() != Some("never");
    if program.lifts.is_empty() && !has_thp { program.pool_pages } else { 0 }
}

/// The command that reserves all pages that [`pages_needed`] counts; `None` if the pool has them.
pub(crate) fn reserve_command(facts: &Facts) -> Option<String> {
    let size = facts.huge_page?;
    let needed = pages_needed(facts);
    let available = usual_pool(facts).map_or(0, |pool| pool.available);
    (needed > available).then(|| format!("pagelift pool reserve {}:{needed}", short(size)))
}
