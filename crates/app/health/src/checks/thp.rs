//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use super::{fine, found};
use crate::facts::{Facts, SwitchedOff};
use crate::finding::{Fix, Outcome, Severity};
use foreign_text::quoted;
use machine_facts::THP;

/// Entries of a page table that khugepaged may find empty and still collapse, above which memory grows without bound.
const MANY_EMPTY: f64 = 0.9;
/// Divisor of the entries of a page table: khugepaged then collapses only where seven eighths are in use.
const FEW_EMPTY: u64 = 8;

/// `enabled`, general and of the usual size.
pub fn mode(facts: &Facts) -> Vec<Outcome> {
    let Some(size) = facts.thp.size else {
        return found(
            Severity::Problem,
            "this kernel has no transparent huge pages",
            format!("no {THP}/hpage_pmd_size"),
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
            "writable memory and heaps get huge pages from the pool only",
            Some(Fix::by_hand("another kernel; until then --pages hugetlb with pages in the pool")),
        );
    };
    let Some(mode) = facts.thp_mode() else { return vec![Outcome::for_root("the mode of transparent huge pages")] };
    if mode != "never" {
        return fine(format!("transparent huge pages of {size}: {mode}{}", by_size(facts)));
    }
    let own = format!("{THP}/{}/enabled", size.directory());
    let general_is_off = facts.thp.general.as_deref() == Some("never");
    let file = if general_is_off { format!("{THP}/enabled") } else { own };
    let lasting = match general_is_off {
        true => "transparent_hugepage=madvise on the kernel's command line keeps it after a reboot",
        false => "the kernel's command line keeps it after a reboot: thp_anon=SIZE:inherit",
    };
    found(
        Severity::Problem,
        "transparent huge pages are switched off",
        format!("never in {file}{}", by_size(facts)),
        "madvise or always",
        "no data, bss or heap gets a huge page, and code only from the page cache, an image or the pool",
        Some(Fix::write("madvise", &file).with_note(lasting)),
    )
}

/// The mode of each size that has one of its own (Linux 6.8).
fn by_size(facts: &Facts) -> String {
    let sizes: Vec<String> = facts.thp.sizes.iter().map(|(size, mode)| format!("{size} {mode}")).collect();
    match (&facts.thp.general, sizes.is_empty()) {
        (_, true) => String::new(),
        (Some(general), false) => format!(" (in general {general}; {})", sizes.join(", ")),
        (None, false) => format!(" ({})", sizes.join(", ")),
    }
}

/// `PR_SET_THP_DISABLE`, by the process or an ancestor.
pub fn switched_off(facts: &Facts) -> Vec<Outcome> {
    let who = facts.program.as_ref().map_or("what this shell starts", |program| program.name.as_str());
    match &facts.thp.switched_off {
        None => fine("no process has switched transparent huge pages off"),
        Some(SwitchedOff { except_advised: true, .. }) => found(
            Severity::Note,
            format!("transparent huge pages only where advised, for {who}"),
            "PR_SET_THP_DISABLE with PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18)",
            "nothing: Pagelift advises what it lifts",
            "the mode `always` does not act on this process",
            None,
        ),
        Some(SwitchedOff { inherited_from: Some((pid, name)), .. }) => found(
            Severity::Problem,
            format!("transparent huge pages are switched off for {who}, by an ancestor"),
            format!("THP_enabled: 0, inherited from {name}[{pid}] (prctl PR_SET_THP_DISABLE)"),
            "THP_enabled: 1",
            "no memory of it gets a transparent huge page, whatever the system's mode, and nothing reports that",
            Some(switch_on(facts)),
        ),
        Some(SwitchedOff { inherited_from: None, .. }) => found(
            Severity::Note,
            format!("{who} has transparent huge pages switched off for itself"),
            "THP_enabled: 0, and 1 in its parent (prctl PR_SET_THP_DISABLE)",
            "nothing, if its author meant it: MariaDB and redis do this",
            "Pagelift suspends it while it lifts; memory that the program touches later stays on base pages",
            facts.permission.unit.as_ref().map(|unit| {
                Fix::user(format!("systemctl show -p MemoryTHP -- {}", quoted(unit))).with_note(
                    "`disable` there comes from systemd: systemctl edit the unit, MemoryTHP=inherit, restart",
                )
            }),
        ),
    }
}

/// Starts the program with the setting taken back. No tool of util-linux does that; perl is on every Debian and Fedora.
fn switch_on(facts: &Facts) -> Fix {
    let prctl = if cfg!(target_arch = "x86_64") { 157 } else { 167 };
    let command = match &facts.program {
        Some(program) => program.typed(),
        None => "\"$SHELL\"".to_owned(),
    };
    Fix::user(format!("perl -e 'syscall({prctl}, 41, 0, 0, 0, 0); exec @ARGV' {command}")).with_note(
        "starts it with the setting taken back; better: change the ancestor, or in a systemd unit MemoryTHP=",
    )
}

/// `defrag`.
pub fn defrag(facts: &Facts) -> Vec<Outcome> {
    let file = format!("{THP}/defrag");
    let (found_mode, why) = match facts.thp.defrag.as_deref() {
        None => return Vec::new(),
        Some("never") => ("never", "where memory is fragmented a page fault gets no huge page, advised or not"),
        Some("always") => ("always", "every page fault of every program may stall in compaction, for milliseconds"),
        Some(mode) => return fine(format!("defrag: {mode}")),
    };
    found(
        Severity::Advice,
        "compaction at page faults is set badly",
        format!("{found_mode} in {file}"),
        "madvise or defer+madvise",
        why,
        Some(Fix::write("madvise", &file)),
    )
}

/// `khugepaged/max_ptes_none`, where khugepaged acts on all memory.
pub fn bloat(facts: &Facts) -> Vec<Outcome> {
    let (Some(most), Some(size)) = (facts.thp.max_ptes_none, facts.thp.size) else { return Vec::new() };
    let entries = size.bytes() / facts.base_page.bytes();
    if facts.thp_mode() != Some("always") || (most as f64) < entries as f64 * MANY_EMPTY {
        return fine(format!("khugepaged/max_ptes_none: {most} of {entries}"));
    }
    found(
        Severity::Advice,
        "khugepaged makes sparse memory grow",
        format!("max_ptes_none is {most} of {entries}, and the mode is always"),
        format!("{} or less", entries / FEW_EMPTY),
        format!("it makes {size} resident where a program has touched one page of {}", facts.base_page),
        Some(Fix::write(entries / FEW_EMPTY, format!("{THP}/khugepaged/max_ptes_none"))),
    )
}
