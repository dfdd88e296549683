//! The pools and their limits (`Documentation/admin-guide/mm/hugetlbpage.rst`,
//! `Documentation/admin-guide/cgroup-v2.rst`).

use super::{fine, found};
use crate::facts::{Facts, HugetlbCgroup, NodePool, PoolFacts};
use crate::finding::{CheckOutcome, Fix, Severity};
use crate::own_pages::short;
use crate::pool_need::{pages_for_code, reserve_command};
use address_space::{agreeing, counted, format_bytes};
use machine_facts::POOLS;

/// Pages that overcommit may provide beyond those in use, if the number of needed pages is unknown.
const SOME_PAGES: u64 = 64;

/// Bytes that a pool can give at most.
fn capacity(pool: &PoolFacts) -> u64 {
    pool.total.saturating_add(pool.overcommit).saturating_mul(pool.size.bytes())
}

/// Limits of pages in use without limits of pages promised.
pub fn cgroup(facts: &Facts) -> Vec<CheckOutcome> {
    let limited = facts.cgroups.iter().filter(|cgroup| can_be_reached(facts, cgroup));
    let outcomes: Vec<CheckOutcome> = limited.filter(|cgroup| !is_guarded(facts, cgroup)).flat_map(unguarded).collect();
    match (outcomes.is_empty(), facts.cgroups.is_empty()) {
        (true, true) => fine("no cgroup limits pool pages"),
        (true, false) => fine("cgroup limits of pool pages are checked at mmap"),
        _ => outcomes,
    }
}

/// True if the pool has more than the limit.
fn can_be_reached(facts: &Facts, cgroup: &HugetlbCgroup) -> bool {
    let pool = facts.pools.iter().find(|pool| pool.size == cgroup.size);
    pool.zip(cgroup.in_use).is_some_and(|(pool, limit)| capacity(pool) > limit)
}

/// True if this cgroup or one above it refuses a mapping before the limit is reached. Cgroups are listed from the
/// process's own upwards.
fn is_guarded(facts: &Facts, cgroup: &HugetlbCgroup) -> bool {
    let above = |other: &&HugetlbCgroup| {
        let inside = cgroup.directory.strip_prefix(&other.directory);
        other.size == cgroup.size && inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    facts.cgroups.iter().filter(above).any(|other| other.promised.zip(cgroup.in_use).is_some_and(|(p, max)| p <= max))
}

fn unguarded(cgroup: &HugetlbCgroup) -> Vec<CheckOutcome> {
    let limit = cgroup.in_use.unwrap_or_default();
    let fix = match &cgroup.promised_file {
        Some(file) => Fix::write(limit, file)
            .with_note("in a container the runtime sets it: hugepage limits with rsvd (runc 1.1, containerd 1.6)"),
        None => {
            Fix::by_hand("this kernel has no such limit (Linux 5.7 has); raise the limit, or do not use the pool there")
        }
    };
    found(
        Severity::Problem,
        format!("a cgroup limits {} pool pages without a limit of promises", cgroup.size),
        format!("{} in {}, and none in its rsvd file", format_bytes(limit), cgroup.in_use_file),
        "the rsvd limit, not above the other",
        "beyond the limit mmap still succeeds, and the program is killed by SIGBUS when it touches the page",
        Some(fix),
    )
}

/// Free pages on nodes that the process may not use.
pub fn nodes(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(allowed) = &facts.permission.allowed_nodes else { return Vec::new() };
    let misplaced = facts.pools.iter().filter_map(|pool| {
        let (own, others): (Vec<&NodePool>, Vec<_>) = pool.nodes.iter().partition(|part| allowed.contains(&part.node));
        let others: Vec<_> = others.into_iter().filter(|part| part.free > 0).collect();
        (!others.is_empty() && own.iter().all(|part| part.free == 0)).then(|| wrong_node(pool, allowed, &own, &others))
    });
    let outcomes: Vec<CheckOutcome> = misplaced.flatten().collect();
    match outcomes.is_empty() {
        true if facts.pools.iter().any(|pool| pool.total > 0) => fine("the pool's free pages are on allowed nodes"),
        _ => outcomes,
    }
}

/// `own`: the parts of the pool that the process may use. `others`: those with free pages that it may not use.
fn wrong_node(pool: &PoolFacts, allowed: &[u32], own: &[&NodePool], others: &[&NodePool]) -> Vec<CheckOutcome> {
    let node = own.first().map(|part| part.node).or(allowed.first().copied()).unwrap_or_default();
    let free: u64 = others.iter().map(|part| part.free).sum();
    let nodes: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let elsewhere: Vec<String> = others.iter().map(|part| format!("node {}", part.node)).collect();
    let size = pool.size.word();
    // Pages in use and recorded pages stay on every node.
    let to_release = others.iter().map(|part| (part.node, pool.unrecorded_on(part))).filter(|(_, pages)| *pages > 0);
    let back: Vec<String> = to_release.map(|(node, pages)| format!("{size}:{pages}@{node}")).collect();
    let fix = Fix::root(format!("pagelift pool reserve {size}:{free}@{node}"));
    found(
        Severity::Problem,
        format!("the pool of {} pages is on the wrong node", pool.size),
        format!(
            "{free} free {}, all on other nodes ({}); the process may use node {}",
            agreeing(free, "page"),
            elsewhere.join(", "),
            nodes.join(", ")
        ),
        format!("free pages on node {node}"),
        "a mapping succeeds by the sum of all nodes, and the program is killed by SIGBUS when it touches the page",
        Some(match back.as_slice() {
            [] => fix,
            back => fix.with_note(format!(
                "and release them where they are free now: pagelift pool release {}",
                back.join(" ")
            )),
        }),
    )
}

/// Every pool, with its pages on each node.
pub fn sizes(facts: &Facts) -> Vec<CheckOutcome> {
    facts.pools.iter().map(|pool| CheckOutcome::fine(described(pool))).collect()
}

fn described(pool: &PoolFacts) -> String {
    let beyond = match pool.overcommit {
        0 => String::new(),
        pages => format!(", and {pages} more by overcommit"),
    };
    let nodes: Vec<String> = pool.nodes.iter().map(|part| format!("node {}: {} free", part.node, part.free)).collect();
    let nodes = if nodes.is_empty() || pool.total == 0 { String::new() } else { format!(" ({})", nodes.join(", ")) };
    format!("pool of {} pages: {}{nodes}{beyond}", pool.size, counted(pool.total, "page"))
}

/// Checks that the pool can serve the program.
pub fn pages(facts: &Facts) -> Vec<CheckOutcome> {
    let size = facts.huge_page;
    let Some(pool) = facts.pools.iter().find(|pool| Some(pool.size) == size) else {
        return match facts.pools.is_empty() {
            true => found(
                Severity::Note,
                "this kernel has no pool of huge pages",
                format!("nothing in {POOLS}"),
                "CONFIG_HUGETLBFS, for --pages hugetlb and --heap=2M",
                "everything else works without",
                None,
            ),
            false => Vec::new(),
        };
    };
    match &facts.program {
        Some(program) => match pages_for_code(facts, program) {
            0 => fine("pool: not needed for code, which other huge pages serve"),
            needed => for_code(facts, pool, needed),
        },
        None if pool.available > 0 => {
            fine(format!("pool: {} of {} available", counted(pool.available, "page"), pool.size))
        }
        None => found(
            Severity::Note,
            format!("the pool of {} pages is empty", pool.size),
            format!("{}, none available", counted(pool.total, "page")),
            "some, only for --pages hugetlb and --heap=2M",
            "everything else works without; overcommit takes pages when they are wanted and keeps none",
            Some(Fix::root(format!(
                "pagelift pool overcommit {}:{}",
                short(pool.size),
                pool.overcommit.saturating_add(SOME_PAGES)
            ))),
        ),
    }
}

fn for_code(facts: &Facts, pool: &PoolFacts, needed: u64) -> Vec<CheckOutcome> {
    if pool.available >= needed {
        return fine(format!("pool: {} of {} available, {needed} needed", counted(pool.available, "page"), pool.size));
    }
    let state = if pool.available == 0 { "empty" } else { "too small" };
    found(
        Severity::Advice,
        format!("the pool of {} pages is {state} for the program's code", pool.size),
        format!("{} of {} available", pool.available, counted(pool.total, "page")),
        format!("{needed} available"),
        "transparent huge pages are off, and nothing else serves the code",
        reserve_command(facts).map(|command| {
            let bytes = (needed - pool.available).saturating_mul(pool.size.bytes());
            Fix::root(command).with_note(format!(
                "takes {} of memory; `pagelift pool plan --install systemd` keeps it after a reboot",
                format_bytes(bytes)
            ))
        }),
    )
}
