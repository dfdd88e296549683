//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use super::{fine, found};
use crate::facts::{Facts, Khugepaged, Known, ProgramFacts, RunningFacts, SwitchedOff};
use crate::finding::{CheckOutcome, Fix, Severity};
use crate::pool_need::usual_pool;
use address_space::format_bytes;
use foreign_text::quoted;
use machine_facts::THP;
use session::shared::InPlaceAmounts;

/// Entries of a page table that khugepaged may find empty and still collapse, above which memory grows without bound.
const MANY_EMPTY: f64 = 0.9;
/// Divisor of the entries of a page table: khugepaged then collapses only if seven eighths are in use.
const FEW_EMPTY: u64 = 8;

/// Shared memory that is worth a setting.
const MUCH_SHARED: u64 = 64 << 20;

/// `enabled`, general and of the usual size.
pub fn mode(facts: &Facts) -> Vec<CheckOutcome> {
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
    let Some(mode) = facts.thp_mode() else {
        return vec![CheckOutcome::for_root("the mode of transparent huge pages")];
    };
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

/// The mode of each size that has its own (Linux 6.8).
fn by_size(facts: &Facts) -> String {
    let sizes: Vec<String> = facts.thp.sizes.iter().map(|(size, mode)| format!("{size} {mode}")).collect();
    match (&facts.thp.general, sizes.is_empty()) {
        (_, true) => String::new(),
        (Some(general), false) => format!(" (in general {general}; {})", sizes.join(", ")),
        (None, false) => format!(" ({})", sizes.join(", ")),
    }
}

/// `PR_SET_THP_DISABLE`, by the process or an ancestor.
pub fn switched_off(facts: &Facts) -> Vec<CheckOutcome> {
    let who = facts.program.as_ref().map_or("what this shell starts", |program| program.name.as_str());
    match &facts.thp.switched_off {
        None => fine("no process has switched transparent huge pages off"),
        Some(SwitchedOff { except_advised: true, .. }) => found(
            Severity::Note,
            format!("transparent huge pages only where advised, for {who}"),
            "PR_SET_THP_DISABLE with PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18)",
            "nothing: Pagelift advises the memory that it lifts",
            "the mode `always` does not act on this process",
            None,
        ),
        Some(SwitchedOff { inherited_from: Some((pid, name)), .. }) => found(
            Severity::Problem,
            format!("transparent huge pages are switched off for {who}, by an ancestor"),
            format!("THP_enabled: 0, inherited from {name}[{pid}] (prctl PR_SET_THP_DISABLE)"),
            "THP_enabled: 1",
            "its memory gets no transparent huge pages, whatever the system's mode, and no error reports that",
            Some(switch_on(facts)),
        ),
        Some(SwitchedOff { inherited_from: None, .. }) => found(
            Severity::Note,
            format!("{who} has transparent huge pages switched off for itself"),
            "THP_enabled: 0, and 1 in its parent (prctl PR_SET_THP_DISABLE)",
            "nothing, if its author intended it: MariaDB and redis do this",
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
pub fn defrag(facts: &Facts) -> Vec<CheckOutcome> {
    let file = format!("{THP}/defrag");
    let (found_mode, why) = match facts.thp.defrag.as_deref() {
        None => return Vec::new(),
        Some("never") => ("never", "if memory is fragmented, a page fault gets no huge page, advised or not"),
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

/// `khugepaged/max_ptes_none`, if khugepaged acts on all memory.
pub fn bloat(facts: &Facts) -> Vec<CheckOutcome> {
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
        format!("it makes {size} resident if a program has touched one page of {}", facts.base_page),
        Some(Fix::write(entries / FEW_EMPTY, format!("{THP}/khugepaged/max_ptes_none"))),
    )
}

/// Reports whether khugepaged makes progress. Memory that was touched before it was advised depends on its speed.
pub fn khugepaged(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(Khugepaged { compacts, pages, pause }) = facts.thp.khugepaged else { return Vec::new() };
    if facts.thp.size.is_none() || facts.thp_mode() == Some("never") {
        return Vec::new();
    }
    let bytes = pages.saturating_mul(facts.base_page.bytes());
    let speed = format!("{} every {:.1} s", format_bytes(bytes), pause as f64 / 1e3);
    match (pages, compacts) {
        (0, _) => found(
            Severity::Note,
            "khugepaged does nothing",
            format!("0 in {THP}/khugepaged/pages_to_scan"),
            "4096, the kernel's default",
            "memory that was touched before it was advised stays on base pages; `pagelift attach` collapses it at once",
            Some(Fix::write(4096, format!("{THP}/khugepaged/pages_to_scan"))),
        ),
        (_, false) => found(
            Severity::Note,
            "khugepaged does not compact memory",
            format!("0 in {THP}/khugepaged/defrag; it scans {speed}"),
            "1, the kernel's default",
            "it collapses only while whole free blocks are left",
            Some(Fix::write(1, format!("{THP}/khugepaged/defrag"))),
        ),
        _ => fine(format!("khugepaged scans {speed}, in processes with advised memory{}", everywhere(facts))),
    }
}

fn everywhere(facts: &Facts) -> &'static str {
    if facts.thp_mode() == Some("always") { " and in all others" } else { "" }
}

/// Shared memory that the kernel has not aligned for huge pages, or would not align at the next start.
pub fn shared(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(word) = facts.thp.shared.as_deref() else { return Vec::new() };
    if let Some(outcomes) = size_off(facts) {
        return outcomes;
    }
    let is_off = matches!(word, "never" | "deny");
    let in_words = match &facts.program {
        Some(ProgramFacts { running: Some(running), .. }) => unaligned(running),
        Some(program) if is_off && program.known == Known::Postgres && has_no_pool(facts) => {
            Some("a server with shared memory, and no pages in the pool".to_owned())
        }
        _ => None,
    };
    let Some(in_words) = in_words else { return fine(format!("shmem_enabled: {word}")) };
    let (starts, then) = match facts.running() {
        Some(_) => ("restart the program, and `pagelift attach --lift shared` lifts it", "then "),
        None => ("once it runs, `pagelift attach --lift shared` lifts it", ""),
    };
    let fix = match is_off {
        true => Fix::write("advise", format!("{THP}/shmem_enabled"))
            .with_note(format!("{then}{starts}; a file in /etc/tmpfiles.d keeps the setting")),
        false => Fix::by_hand(starts),
    };
    found(
        Severity::Note,
        "shared memory is not aligned for huge pages",
        format!("{word} in {THP}/shmem_enabled; {in_words}"),
        "advise, when the program starts",
        "the kernel aligns shared memory only if the setting permits huge pages; it creates none itself",
        Some(fix),
    )
}

/// The setting of the size, which refuses huge pages to much shared memory of a process, collapsed in place or not.
fn size_off(facts: &Facts) -> Option<Vec<CheckOutcome>> {
    let size = facts.thp.size.filter(|_| facts.thp.shared_of_size.as_deref() == Some("never"))?;
    let running = facts.running()?;
    let on_base_pages = running.shared.0.saturating_sub(running.shared.1);
    let file = format!("{THP}/{}/shmem_enabled", size.directory());
    (running.on_pool() == 0 && on_base_pages >= MUCH_SHARED).then(|| {
        found(
            Severity::Note,
            format!("huge pages of {size} are switched off for shared memory"),
            format!("never in {file}; {} of shared memory on base pages", format_bytes(on_base_pages)),
            "inherit, the kernel's default",
            "the kernel refuses them also to `pagelift attach --lift shared`",
            Some(Fix::write("inherit", &file).with_note("then `pagelift attach --lift shared`")),
        )
    })
}

/// Describes shared memory that was not aligned, if there is much.
fn unaligned(running: &RunningFacts) -> Option<String> {
    let InPlaceAmounts { shared, unaligned_shared, .. } = running.in_place;
    let has_much = running.on_pool() == 0 && unaligned_shared >= MUCH_SHARED;
    has_much.then(|| format!("{} not aligned, {} can be lifted", format_bytes(unaligned_shared), format_bytes(shared)))
}

fn has_no_pool(facts: &Facts) -> bool {
    usual_pool(facts).is_none_or(|pool| pool.available == 0)
}
