//! Heaps in words.

use address_space::format_bytes;
use foreign_text::printable;
use lift_plan::Kind;
use session::LiftReport;
use session::heap::{Anonymous, CalmStart, HeapDecision, HeapInPlace, HeapPlan, PreloadedHeapView, RunningHeap};

/// The decision about the heap of a program that is about to start, as one line. The heap is empty yet, so that another command
/// shows what it gets.
pub fn decision(decision: &HeapDecision, is_short: bool) -> String {
    let HeapDecision { program, notes, .. } = decision;
    let later = if is_short { "" } else { "; `pagelift status` shows its huge pages once it is filled" };
    match &decision.allocator {
        Some(allocator) => format!("pagelift: {program}: heap: {allocator}: {}{later}", notes.join("; ")),
        None => format!("pagelift: {}: heap: not an ELF program of this machine; left as it is", decision.program),
    }
}

/// A heap that was collapsed while its program runs, as one line.
pub fn collapsed(program: &str, pid: i32, now: Anonymous) -> String {
    format!(
        "pagelift: {program}[{pid}]: heap: {} of {} anonymous memory on huge pages, collapsed in place; memory that fills later \
         follows",
        format_bytes(now.huge),
        format_bytes(now.resident)
    )
}

/// The effect of `--calm`, as one line.
pub fn calm(start: &CalmStart) -> String {
    match &start.allocator {
        Some(allocator) => format!("pagelift: {}: calm: {allocator}: {}", start.program, start.notes.join("; ")),
        None => format!("pagelift: {}: calm: not an ELF program; left as it is", start.program),
    }
}

/// The allocator of a program and the action of `--heap=auto` on it.
pub fn plan(plan: &HeapPlan) -> String {
    let mut text = format!("Heap: {}\n", printable(&plan.allocator.to_string()));
    for reason in &plan.choice.reasons {
        text += &format!("  --heap=auto: {}\n", printable(reason));
    }
    for refusal in &plan.choice.refusals {
        text += &format!("  not with --heap=auto: {}\n", printable(&refusal.to_string()));
    }
    text
}

/// The result of collapsing.
pub fn in_place(heap: &HeapInPlace) -> String {
    let mut text = format!(
        "heap: {} of {} anonymous memory on huge pages, {} before",
        format_bytes(heap.after.huge),
        format_bytes(heap.after.resident),
        format_bytes(heap.before.huge)
    );
    if heap.left > 0 {
        text += &format!("; {} in dense blocks could not be collapsed", format_bytes(heap.left));
    }
    for left in &heap.left_alone {
        let fix = left.fix.as_ref().map(|fix| format!(" (fix: {fix})")).unwrap_or_default();
        text += &format!("; left: {}{fix}", printable(&left.reason));
    }
    text
}

/// Returns one line about a lift and a collapse of the heap. The heap comes first if it alone is on huge pages. Its part in the
/// program's break is named only there.
pub fn outcome(report: &LiftReport) -> String {
    let Some(heap) = &report.heap else { return report.line() };
    let line = report.line_beside_heap();
    let head = format!("pagelift: {}[{}]: ", report.program, report.pid);
    match line.strip_prefix(&head) {
        Some(rest) if heap.after.huge > 0 && report.lift.without(Kind::Heap).is_nothing() => {
            format!("{head}{}; code and data: {rest}", in_place(heap))
        }
        _ => format!("{line}; {}", in_place(heap)),
    }
}

/// A preloaded heap.
pub fn preloaded(view: &PreloadedHeapView) -> String {
    match view {
        PreloadedHeapView::Read(heap) => running(heap),
        PreloadedHeapView::NotRead { not_read } => format!("\nPreloaded heap\n  not read: {not_read}\n"),
    }
}

fn running(heap: &RunningHeap) -> String {
    let mut text = String::from("\nPreloaded heap\n");
    if heap.pool_page > 0 {
        text += &format!(
            "  pool, pages of {}: {} used of {} taken, {} requested\n",
            format_bytes(heap.pool_page),
            format_bytes(heap.pool_used),
            format_bytes(heap.pool_taken),
            format_bytes(heap.pool_asked)
        );
    }
    if let Some(why) = heap.shortage {
        text += &format!("  the rest is not on the pool: {why}\n");
    }
    text += &format!("  beside the pool: {}, as the kernel backs it (above)\n", format_bytes(heap.mapped));
    text += &small_blocks(heap);
    text += &format!(
        "  large blocks: {} requested, {} held, {} kept for reuse\n",
        format_bytes(heap.large_asked),
        format_bytes(heap.large_held),
        format_bytes(heap.large_kept)
    );
    text
}

fn small_blocks(heap: &RunningHeap) -> String {
    let resident = heap.small_resident.map(|bytes| format!("{} resident ", format_bytes(bytes))).unwrap_or_default();
    let arenas = format!("{resident}in arenas of {}", format_bytes(heap.arenas));
    match (heap.small_live, &heap.small_not_known) {
        (Some(live), _) => format!("  small blocks: {} live, {arenas}\n", format_bytes(live)),
        (None, why) => {
            format!("  small blocks: {arenas}; live: not known, {}\n", why.as_deref().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap_abi::{AccountCopy, Shortage};
    use heap_choice::{NotKnown, SmallUse};
    use session::shared::LeftAlone;

    const ACCOUNT: AccountCopy = AccountCopy {
        pool_page: 0,
        pool_asked: 0,
        pool_taken: 0,
        pool_used: 0,
        mapped_used: 96 << 20,
        arenas: 96 << 20,
        large_asked: 0,
        large_held: 0,
        large_kept: 0,
        shortage: Shortage::None,
        small_records: 0,
    };

    #[test]
    fn a_start_names_the_command_that_shows_what_a_heap_gets() {
        let notes = vec!["by its tunable".to_owned()];
        let of = HeapDecision { program: "idx".to_owned(), allocator: Some("glibc's malloc".to_owned()), notes };
        let line = "pagelift: idx: heap: glibc's malloc: by its tunable";
        assert_eq!(decision(&of, true), line);
        assert_eq!(decision(&of, false), format!("{line}; `pagelift status` shows its huge pages once it is filled"));
        let now = Anonymous { resident: 700 << 20, huge: 330 << 20 };
        assert_eq!(
            collapsed("idx", 7, now),
            "pagelift: idx[7]: heap: 330.0 MiB of 700.0 MiB anonymous memory on huge pages, collapsed in place; memory that \
             fills later follows"
        );
    }

    #[test]
    fn what_was_achieved_comes_first() {
        let mut report = LiftReport::new(7, "server".to_owned());
        let anonymous = |huge| Anonymous { resident: 700 << 20, huge };
        report.heap =
            Some(HeapInPlace { before: anonymous(0), after: anonymous(698 << 20), left: 0, left_alone: Vec::new() });
        let text = outcome(&report);
        assert!(
            text.starts_with(
                "pagelift: server[7]: heap: 698.0 MiB of 700.0 MiB anonymous memory on huge pages, 0 B before; "
            ),
            "{text}"
        );
        assert!(
            text.ends_with("; code and data: nothing lifted: the process has none of the requested memory"),
            "{text}"
        );
        assert!(report.is_complete(), "the heap was asked for, and there is no code to lift");
        let (reason, fix) = ("shared since a fork".to_owned(), Some("later".to_owned()));
        let left_alone = vec![LeftAlone { reason, fix, blocks: 2, bytes: 4 << 20, is_fine: false, cause: None }];
        report.heap = Some(HeapInPlace { before: anonymous(0), after: anonymous(0), left: 4 << 20, left_alone });
        let text = outcome(&report);
        assert!(
            text.starts_with("pagelift: server[7]: nothing lifted")
                && text.ends_with(
                    "4.0 MiB in dense blocks could not be collapsed; left: shared since a fork (fix: later)"
                ),
            "{text}"
        );
        assert!(!report.is_complete());
        report.heap = None;
        assert!(!report.is_complete(), "nothing is on huge pages");
    }

    #[test]
    fn text_and_json_tell_the_same_of_small_blocks() {
        let known = |resident| RunningHeap::of(ACCOUNT, Ok(SmallUse { live: 61 << 20, resident }));
        let heap = known(Some(70 << 20));
        assert!(running(&heap).contains("small blocks: 61.0 MiB live, 70.0 MiB resident in arenas of 96.0 MiB\n"));
        let json = serde_json::to_value(PreloadedHeapView::Read(heap)).unwrap();
        assert_eq!(
            (json["small_live"].as_u64(), json["small_resident"].as_u64()),
            (Some(61 << 20), Some(70 << 20)),
            "{json}"
        );
        assert!(json.get("small_not_known").is_none());
        assert!(running(&known(None)).contains("small blocks: 61.0 MiB live, in arenas of 96.0 MiB\n"));
    }

    #[test]
    fn what_is_not_known_is_said_with_its_reason() {
        let heap = RunningHeap::of(ACCOUNT, Err(NotKnown::Inconsistent));
        let text = running(&heap);
        assert!(text.contains("in arenas of 96.0 MiB; live: not known, the heap's records are"), "{text}");
        let json = serde_json::to_value(PreloadedHeapView::Read(heap)).unwrap();
        assert!(json["small_live"].is_null() && json["small_not_known"].is_string(), "{json}");
        let view = PreloadedHeapView::NotRead { not_read: heap_choice::NotRead::OtherVersion { found: 1 }.to_string() };
        assert!(preloaded(&view).contains("not read: libpagelift_heap.so in the process is of another release"));
        assert!(serde_json::to_value(view).unwrap()["not_read"].is_string());
    }
}
