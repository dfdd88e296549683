//! The one sum of pool pages that all advice names.

use crate::facts::{Facts, PoolFacts, ProgramFacts};
use crate::own_pages::short;

/// The pool of the usual size.
pub(crate) fn usual_pool(facts: &Facts) -> Option<&PoolFacts> {
    facts.pools.iter().find(|pool| Some(pool.size) == facts.huge_page)
}

/// Pages of the usual size that have to be free in the pool when the program is started (again) or lifted: for the
/// buffers that it requests, or is advised to request, and for code that nothing else can serve.
pub(crate) fn pages_needed(facts: &Facts) -> u64 {
    let (own, code) = needs(facts);
    own.saturating_add(code)
}

/// Pages for buffers, and for code.
fn needs(facts: &Facts) -> (u64, u64) {
    let (Some(program), Some(size)) = (&facts.program, facts.huge_page) else { return (0, 0) };
    (program.own_pages.as_ref().map_or(0, |own| own.pages(size)), pages_for_code(facts, program))
}

/// Pages that the running program has now, which are free for its buffers once it has ended.
fn pages_held(facts: &Facts) -> u64 {
    let running = facts.program.as_ref().and_then(|program| program.running.as_ref());
    running.zip(facts.huge_page).map_or(0, |(running, size)| running.on_pool() / size.bytes())
}

/// Pool pages for the program's code, if neither files nor transparent huge pages can serve it.
pub(crate) fn pages_for_code(facts: &Facts, program: &ProgramFacts) -> u64 {
    let has_thp = facts.thp.size.is_some() && facts.thp_mode() != Some("never");
    if program.lifts.is_empty() && !has_thp { program.pool_pages } else { 0 }
}

/// The command that reserves all pages that [`pages_needed`] counts; `None` if the pool has them once the program has
/// ended. The number does not depend on the pages that the program has now: it is right before and after that end.
pub(crate) fn reserve_command(facts: &Facts) -> Option<String> {
    let size = facts.huge_page?;
    let (own, code) = needs(facts);
    let available = usual_pool(facts).map_or(0, |pool| pool.available);
    let lacks = own.saturating_sub(pages_held(facts)).saturating_add(code) > available;
    lacks.then(|| format!("pagelift pool reserve {}:{}", short(size), own.saturating_add(code)))
}
