//! `pagelift status`.

use super::reading::confine_to;
use crate::arguments::process::process_number;
use crate::output::Output;
use crate::text::heap;
use crate::text::number::counted;
use crate::text::table::Table;
use crate::text::table::{align_right, far_pages, table, trimmed};
use crate::text::unanswered;
use address_space::{ObjectRole, PageSize, Protection, format_bytes};
use clap::Args;
use confinement::Reads;
use health::Standing;
use linux::pages::transparent_huge_page;
use process_view::coverage::{
    Coverage, HugeProcesses, LostContents, MemoryCoverage, MemoryKind, ObjectCoverage, Usage,
};
use process_view::{ObservationError, printable};
use session::status::{status_of, status_of_all};

/// Maximum length of names, in characters, so that a table fits into 80 columns.
const WIDEST_NAME: usize = 18;

/// `pagelift status`.
#[derive(Args, Clone)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The number of a process, or the name of its program [default: list every process that has memory on huge pages].
    #[arg(value_name = "PID|NAME", value_parser = process_number)]
    pub pid: Option<i32>,
}

/// Prints the memory that the kernel backs with huge pages now.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    confine_to(Reads::Processes);
    let explained = |error| explain(error, "status");
    let out = Output::Standard;
    match args.pid {
        Some(pid) => out.print_either(args.json, &status_of(pid).map_err(explained)?, |status| {
            let heap = status.preloaded_heap.as_ref().map(heap::preloaded).unwrap_or_default();
            of_process(&status.coverage) + &of_lost(&status.lost) + &far_pages(&status.far_pages) + &heap
        }),
        None => out.print_either(args.json, &status_of_all().map_err(explained)?, of_processes),
    }
}

/// The error with the command that fixes it; `command` is the one that failed.
pub fn explain(error: ObservationError, command: &str) -> anyhow::Error {
    match error {
        ObservationError::NotPermitted { pid } if nix::unistd::geteuid().is_root() => anyhow::anyhow!(
            "process {pid} cannot be read even by this root: it belongs to another container, or a security module \
             protects it; fix: `pagelift {command} PID` on the host, with the number that it has there"
        ),
        ObservationError::NotPermitted { pid } => anyhow::anyhow!(
            "process {pid} cannot be read by this user: it belongs to another user, or has more privileges; \
             fix: `sudo pagelift {command} {pid}`"
        ),
        error => error.into(),
    }
}

fn of_process(coverage: &Coverage) -> String {
    let (name, pid) = (&coverage.name, coverage.pid);
    if coverage.total.mapped == 0 {
        return format!("{name}[{pid}] has no user memory: it is a kernel thread, or has ended\n");
    }
    let total = &coverage.total;
    let standing = Standing { huge: total.huge_bytes(), resident: total.resident, ..Standing::default() };
    let mut rows = usage_table(&["object, part", "prot"]);
    for object in coverage.objects.iter().filter(|object| is_shown(object)) {
        add_object(&mut rows, object);
    }
    let others: Vec<_> = coverage.objects.iter().filter(|object| !is_shown(object)).collect();
    if !others.is_empty() {
        let usage = sum(others.iter().map(|object| &object.total));
        add_row(&mut rows, [&counted(others.len() as u64, "other object"), ""], &usage);
    }
    add_memory(&mut rows, &coverage.memory);
    add_row(&mut rows, ["all memory", ""], &coverage.total);
    let mut text = format!("{}[{pid}]: {}\n\n{}\n", printable(name), standing.in_words(), trimmed(&rows));
    for file in coverage.not_understood.iter().filter(|file| file.executable) {
        text += &format!("note: {}: {}\n", printable(&file.path), file.reason);
    }
    text
}

/// Describes the parts of copies that a program has discarded and will read as zeros.
fn of_lost(lost: &[LostContents]) -> String {
    let line = |lost: &LostContents| {
        let (bytes, path) = (format_bytes(lost.ranges.bytes()), printable(&lost.path));
        let first =
            lost.ranges.iter().next().map(|range| format!(" from {:x} on", range.start().0)).unwrap_or_default();
        format!(
            "warning: {bytes} of the copy of {path} are lost{first}: the process has discarded them (MADV_DONTNEED or \
             MREMAP_DONTUNMAP) and reads zeros instead of the file's contents; needed: a restart, with --pages image or --seal\n"
        )
    };
    lost.iter().map(line).collect()
}

/// The executable, and each object with information, part by part.
fn is_shown(object: &ObjectCoverage) -> bool {
    object.role == ObjectRole::Executable || object.total.huge_bytes() > 0
}

fn add_object(rows: &mut Table, object: &ObjectCoverage) {
    add_row(rows, [&object.name, ""], &object.total);
    for part in object.parts.iter().filter(|part| part.protection != Protection::NONE) {
        let names: Vec<_> = part.parts.iter().map(ToString::to_string).collect();
        add_row(rows, [&format!("  {}", names.join("+")), &part.protection.to_string()], &part.usage);
    }
}

fn add_memory(rows: &mut Table, memory: &[MemoryCoverage]) {
    let kinds = [
        (MemoryKind::Heap, "[heap]"),
        (MemoryKind::Anonymous, "anonymous memory"),
        (MemoryKind::Jit, "generated code"),
        (MemoryKind::Shared, "shared memory"),
        (MemoryKind::Stack, "[stack]"),
        (MemoryKind::Kernel, "the kernel's"),
    ];
    for (kind, name) in kinds {
        let of_kind: Vec<_> = memory.iter().filter(|m| m.kind == kind).collect();
        if !of_kind.is_empty() {
            add_row(rows, [name, ""], &sum(of_kind.iter().map(|m| &m.usage)));
        }
    }
    let files: Vec<_> = memory.iter().filter(|m| m.kind == MemoryKind::File).collect();
    let smallest = transparent_huge_page().map_or(u64::MAX, PageSize::bytes);
    let is_shown = |m: &&MemoryCoverage| m.usage.huge_bytes() > 0 || m.usage.resident >= smallest;
    let (shown, plain): (Vec<_>, Vec<_>) = files.into_iter().partition(is_shown);
    for file in shown {
        let path = file.path.as_deref().unwrap_or_default();
        add_row(rows, [path.rsplit('/').next().unwrap_or(path), ""], &file.usage);
    }
    if !plain.is_empty() {
        add_row(rows, [&counted(plain.len() as u64, "other file"), ""], &sum(plain.iter().map(|m| &m.usage)));
    }
}

fn of_processes(found: &HugeProcesses) -> String {
    let mut text = String::new();
    if found.processes.is_empty() {
        text += "no process has memory on huge pages\n";
    } else {
        let mut rows = usage_table(&["process", "PID"]);
        align_right(&mut rows, 1);
        for process in &found.processes {
            add_row(&mut rows, [&process.name, &process.pid.to_string()], &process.usage);
        }
        if found.processes.len() > 1 {
            // Shared pages are counted in each process that maps them, so there is no sum to give.
            text += &format!("{} with memory on huge pages\n\n", counted(found.processes.len() as u64, "process"));
        }
        text += &format!("{}\n", trimmed(&rows));
    }
    text += &unanswered::not_permitted(found.not_permitted, "status");
    text += &unanswered::notes(&found.unanswered);
    for process in &found.unreadable {
        text += &format!("note: process {} not read: {}\n", process.pid, printable(&process.reason));
    }
    text
}

/// A table with these headings for the rows, and the columns of a [`Usage`].
fn usage_table(of: &[&str; 2]) -> Table {
    let mut rows = table(&[of[0], of[1], "mapped", "resident", "huge", "pages"]);
    (2..5).for_each(|column| align_right(&mut rows, column));
    rows.make_narrow();
    rows
}

fn add_row(rows: &mut Table, of: [&str; 2], usage: &Usage) {
    let column = |cell: &dyn Fn(&process_view::coverage::HugeBytes) -> String| -> String {
        usage.huge.iter().map(cell).collect::<Vec<_>>().join("\n")
    };
    let pages = column(&|huge| match huge.page_size {
        Some(size) => format!("{} {size}", huge.kind),
        None => huge.kind.to_string(),
    });
    let bytes = column(&|huge| format_bytes(huge.bytes));
    let huge = if bytes.is_empty() { "-".to_owned() } else { bytes };
    rows.add_row([cut(of[0]), of[1].to_owned(), format_bytes(usage.mapped), format_bytes(usage.resident), huge, pages]);
}

/// A name in few characters, with a mark for the omitted rest.
fn cut(name: &str) -> String {
    let name = printable(name);
    if name.chars().count() <= WIDEST_NAME {
        return name;
    }
    let kept: String = name.chars().take(WIDEST_NAME - 1).collect();
    kept + "…"
}

fn sum<'a>(usages: impl Iterator<Item = &'a Usage>) -> Usage {
    let mut sum = Usage::default();
    usages.for_each(|usage| sum += usage);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{PageSize, RangeSet};
    use process_view::coverage::{HugeBytes, HugeKind, HugeProcess, Part, PartCoverage, UnreadableProcess};

    const LONG_NAME: &str = "/opt/lib/a-shared-object-with-a-name-of-many-characters\u{1b}[31m.so.1.2.3";

    fn usage(bytes: u64) -> Usage {
        let huge = |kind, log2: u32| HugeBytes { kind, page_size: PageSize::new(1 << log2).ok(), bytes };
        let huge = vec![huge(HugeKind::Hugetlb, 21), huge(HugeKind::Hugetlb, 29), huge(HugeKind::Thp, 21)];
        Usage { mapped: bytes, resident: bytes, huge }
    }

    fn coverage() -> Coverage {
        let bytes = (1 << 30) - (1 << 18);
        let part = PartCoverage {
            parts: vec![Part::Relro, Part::Data, Part::Bss, Part::Heap],
            protection: Protection::READ_WRITE,
            ranges: RangeSet::new(),
            usage: usage(bytes),
        };
        let object = |path: &str, role, total, parts| {
            let name = path.rsplit('/').next().unwrap().to_owned();
            ObjectCoverage { name, path: path.to_owned(), role, total, parts }
        };
        let plain = Usage { huge: Vec::new(), ..usage(1 << 20) };
        Coverage {
            version: 1,
            pid: 4_194_304,
            name: "a-name-of-15-ch".into(),
            total: usage(bytes),
            objects: vec![
                object("/usr/bin/server", ObjectRole::Executable, plain.clone(), Vec::new()),
                object(LONG_NAME, ObjectRole::SharedObject, usage(bytes), vec![part]),
                object("/lib/small.so", ObjectRole::SharedObject, plain.clone(), Vec::new()),
            ],
            memory: vec![
                MemoryCoverage { kind: MemoryKind::File, path: Some(LONG_NAME.into()), usage: usage(bytes) },
                MemoryCoverage { kind: MemoryKind::File, path: Some("/etc/plain".into()), usage: plain.clone() },
                MemoryCoverage { kind: MemoryKind::Jit, path: None, usage: plain },
            ],
            not_understood: Vec::new(),
        }
    }

    fn nobody(not_permitted: u64) -> HugeProcesses {
        HugeProcesses {
            version: 1,
            processes: Vec::new(),
            not_permitted,
            unanswered: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    fn widest_line(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or_default()
    }

    #[test]
    fn the_widest_table_fits_into_80_columns() {
        let one = of_process(&coverage());
        assert!(widest_line(&one) <= 80, "{one}");
        let process = HugeProcess { pid: 4_194_304, name: coverage().name, usage: usage((1 << 30) - (1 << 18)) };
        let processes = HugeProcesses { version: 1, processes: vec![process.clone(), process], ..nobody(0) };
        let all = of_processes(&processes);
        assert!(widest_line(&all) <= 80, "{all}");
    }

    #[test]
    fn each_kind_of_page_has_its_line_and_no_name_reaches_the_terminal_raw() {
        let text = of_process(&coverage());
        for pages in ["hugetlb 2 MiB", "hugetlb 512 MiB", "thp 2 MiB"] {
            assert!(text.contains(pages), "{pages} in {text}");
        }
        assert!(text.contains("1 other object ") && text.contains("1 other file "), "{text}");
        assert!(text.contains("generated code "), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn memory_without_mappings_is_explained() {
        let none = Coverage { total: Usage::default(), objects: Vec::new(), memory: Vec::new(), ..coverage() };
        assert!(of_process(&none).contains("kernel thread"));
        assert!(of_processes(&nobody(2)).starts_with("no process has memory on huge pages\nnote: 2 processes"));
        let unreadable = UnreadableProcess { pid: 7, reason: "/proc/7/smaps cannot be read: too\u{1b} long".into() };
        let text = of_processes(&HugeProcesses { unreadable: vec![unreadable], ..nobody(0) });
        assert!(text.ends_with("note: process 7 not read: /proc/7/smaps cannot be read: too? long\n"), "{text}");
    }
}
