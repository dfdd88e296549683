//! Format files and tables of interrupts of different kernels. Those in `formats/` and `interrupts/` were recorded on the
//! kernels of their names; others are constructed, with numbers that no kernel has given yet.

use linux::interrupts::InterruptCounts;
use proptest::prelude::*;
use shootdowns::format::{Format, LONGEST};
use shootdowns::reason::{FlushFormat, Flushed};

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

/// As Linux 5.10 to 7.3 write it, with a specific number and names.
fn constructed(id: u64, names: &str) -> String {
    format!(
        "name: tlb_flush\nID: {id}\nformat:\n{COMMON}\tfield:int reason;\toffset:8;\tsize:4;\tsigned:1;\n\
         \tfield:unsigned long pages;\toffset:16;\tsize:8;\tsigned:0;\n\n\
         print fmt: \"pages:%ld reason:%s (%d)\", REC->pages, __print_symbolic(REC->reason, {names}), REC->reason\n"
    )
}

fn record(reason: i32, pages: u64) -> Vec<u8> {
    [&[0; 8][..], &reason.to_ne_bytes(), &[0; 4], &pages.to_ne_bytes()].concat()
}

/// Events of one kernel: the text of their format files, one behind the other.
struct Kernel {
    name: &'static str,
    text: &'static str,
}

macro_rules! kernels {
    ($($name:literal),*) => {
        [$(Kernel { name: $name, text: include_str!(concat!("formats/", $name, ".txt")) }),*]
    };
}

fn kernels() -> [Kernel; 9] {
    kernels!(
        "x86_64-5.10",
        "x86_64-6.1",
        "x86_64-6.12",
        "x86_64-6.18",
        "x86_64-7.3",
        "aarch64-5.10",
        "aarch64-6.1",
        "aarch64-6.12",
        "aarch64-7.3"
    )
}

impl Kernel {
    /// The format file of an event; `None` if this kernel has no such event.
    fn file(&self, event: &str) -> Option<&'static str> {
        let start = self.text.find(&format!("name: {event}\n"))?;
        let rest = &self.text[start..];
        Some(&rest[..rest.find("\n\nname:").map_or(rest.len(), |end| end + 1)])
    }

    fn format(&self, event: &str) -> Option<Format> {
        let format = Format::parse(self.file(event)?).unwrap_or_else(|error| panic!("{} {event}: {error}", self.name));
        assert_eq!(format.name, event);
        Some(format)
    }

    fn is_x86(&self) -> bool {
        self.name.starts_with("x86")
    }
}

/// Names of the kernels that have the event.
fn having(event: &str) -> Vec<&'static str> {
    kernels().iter().filter(|kernel| kernel.format(event).is_some()).map(|kernel| kernel.name).collect()
}

#[test]
fn flushes_of_all_kernels_are_read() {
    let found: Vec<_> = kernels()
        .iter()
        .filter_map(|kernel| {
            let format = kernel.format("tlb_flush")?;
            let flush = FlushFormat::of(&format).unwrap_or_else(|| panic!("{}", kernel.name));
            assert_eq!(flush.id, format.id);
            assert_eq!((flush.sent, flush.received), (4, 1), "{}", kernel.name);
            assert_eq!(flush.flushed(&record(4, 8)), Some(Flushed::Pages(8)));
            assert_eq!(flush.flushed(&record(4, u64::MAX)), Some(Flushed::Everything));
            assert_eq!(flush.flushed(&record(4, 8)[..20]), None);
            assert_eq!(format.field("reason").and_then(|field| field.number(&record(4, 8))), Some(4));
            Some((kernel.name, format.id, format.names_of("reason").len()))
        })
        .collect();
    let wanted = [
        ("x86_64-5.10", 107, 5),
        ("x86_64-6.1", 604, 5),
        ("x86_64-6.12", 684, 5),
        ("x86_64-6.18", 188, 6),
        ("x86_64-7.3", 120, 6),
        // There, too, though nothing on Arm records it; 5.10 and 7.3 have it on x86 only.
        ("aarch64-6.1", 528, 5),
        ("aarch64-6.12", 604, 5),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn requests_of_all_kernels_are_read() {
    let newer = ["x86_64-6.12", "x86_64-6.18", "x86_64-7.3", "aarch64-6.12", "aarch64-7.3"];
    // A record whose every eight bytes are another number.
    let record: Vec<u8> = (0..5u64).flat_map(|word| (0x1000 + word).to_ne_bytes()).collect();
    for (event, function, request) in
        [("csd_queue_cpu", 3, 4), ("csd_function_entry", 1, 2), ("csd_function_exit", 1, 2)]
    {
        assert_eq!(having(event), newer, "{event}");
        for format in kernels().iter().filter_map(|kernel| kernel.format(event)) {
            let number = |field| format.field(field).and_then(|field| field.number(&record));
            assert_eq!((number("func"), number("csd")), (Some(0x1000 + function), Some(0x1000 + request)), "{event}");
        }
    }
    for (event, field) in [("ipi_send_cpumask", "cpumask"), ("ipi_send_cpu", "cpu")] {
        assert_eq!(having(event), newer, "{event}");
        let formats = kernels().into_iter().filter_map(|kernel| kernel.format(event));
        assert!(formats.into_iter().all(|format| format.field(field).is_some_and(|field| field.offset == 8)));
    }
}

#[test]
fn interrupts_and_calls_of_all_kernels_are_read() {
    for event in [
        "call_function_entry",
        "call_function_exit",
        "call_function_single_entry",
        "call_function_single_exit",
        "sys_enter",
    ] {
        for kernel in kernels() {
            let found = kernel.format(event);
            assert_eq!(found.is_some(), event == "sys_enter" || kernel.is_x86(), "{} {event}", kernel.name);
            let field = if event == "sys_enter" { "id" } else { "vector" };
            let places = found.iter().map(|format| format.field(field).map(|field| (field.offset, field.signed)));
            assert!(places.into_iter().all(|place| place == Some((8, true))), "{} {event}", kernel.name);
        }
    }
}

macro_rules! interrupts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("interrupts/", $name, "-cpus.txt")))),*]
    };
}

#[test]
fn the_interrupts_of_all_kernels_are_read() {
    let tables = interrupts!("x86_64-5.10-2", "x86_64-6.1-2", "x86_64-6.12-2", "x86_64-7.3-2");
    let wanted = [([0, 0], [36, 23]), ([0, 1], [155, 111]), ([2, 4], [222, 191]), ([1, 2], [139, 332])];
    for ((name, text), (shootdowns, calls)) in tables.into_iter().zip(wanted) {
        let counts = InterruptCounts::parse(text);
        let wanted = (Some(shootdowns.to_vec()), Some(calls.to_vec()));
        assert_eq!((counts.shootdowns, counts.calls), wanted, "{name}");
    }
    let tables = interrupts!("x86_64-5.10-4", "x86_64-6.1-4", "x86_64-6.12-4", "x86_64-7.3-4");
    let wanted = [
        ([1, 1, 0, 0], [59, 29, 0, 3]),
        ([1, 1, 0, 0], [194, 131, 13, 5]),
        ([2, 5, 0, 0], [247, 222, 6, 3]),
        ([1, 3, 0, 0], [169, 369, 7, 3]),
    ];
    for ((name, text), (shootdowns, calls)) in tables.into_iter().zip(wanted) {
        let counts = InterruptCounts::parse(text);
        let wanted = (Some(shootdowns.to_vec()), Some(calls.to_vec()));
        assert_eq!((counts.shootdowns, counts.calls), wanted, "{name}");
    }
}

#[test]
fn interrupts_of_arm_say_nothing_of_shootdowns() {
    let tables = interrupts!(
        "aarch64-5.10-2",
        "aarch64-5.10-4",
        "aarch64-6.1-2",
        "aarch64-6.1-4",
        "aarch64-6.12-2",
        "aarch64-6.12-4",
        "aarch64-7.3-2",
        "aarch64-7.3-4"
    );
    for (name, text) in tables {
        assert!(text.contains("Function call interrupts"), "{name}");
        assert_eq!(InterruptCounts::parse(text), InterruptCounts::default(), "{name}");
    }
}

#[test]
fn cpus_that_come_online_keep_the_sum() {
    for [(name, two), (_, four)] in [
        interrupts!("x86_64-5.10-2", "x86_64-5.10-4"),
        interrupts!("x86_64-6.12-2", "x86_64-6.12-4"),
        interrupts!("x86_64-7.3-2", "x86_64-7.3-4"),
    ] {
        let (before, after) = (InterruptCounts::parse(two), InterruptCounts::parse(four));
        let more = if name == "x86_64-5.10-2" { 2 } else { 1 };
        assert_eq!(after.shootdowns_since(&before), Some(more), "{name}");
    }
}

#[test]
fn numbers_are_told_by_their_names() {
    let older = "{ 0, \"flush on task switch\" }, { 1, \"remote shootdown\" }, { 2, \"local shootdown\" }, \
                 { 3, \"local mm shootdown\" }, { 4, \"remote ipi send\" }";
    let flush = FlushFormat::of(&Format::parse(&constructed(92, older)).unwrap()).unwrap();
    assert_eq!((flush.id, flush.sent, flush.received), (92, 4, 1));
    let moved = "{ 0x7, \"remote shootdown\" }, { -2, \"remote IPI send\" }";
    let flush = FlushFormat::of(&Format::parse(&constructed(93, moved)).unwrap()).unwrap();
    assert_eq!((flush.sent, flush.received), (-2, 7));
    // Before Linux 4.1 nothing is recorded of senders.
    let oldest = "{ 0, \"flush on task switch\" }, { 1, \"remote shootdown\" }";
    assert!(FlushFormat::of(&Format::parse(&constructed(94, oldest)).unwrap()).is_none());
    // Constants that the kernel has not resolved are no numbers.
    let unresolved = "{ TLB_REMOTE_SHOOTDOWN, \"remote shootdown\" }, { 4, \"remote IPI send\" }";
    assert!(FlushFormat::of(&Format::parse(&constructed(95, unresolved)).unwrap()).is_none());
}

#[test]
fn damaged_formats_are_refused() {
    for text in ["", "name: x\n", "name: x\nID: 5\n", "ID: 5\nname: x\nfield:int a;\toffset:1;\n", "name: x\nID: -1\n"]
    {
        assert!(Format::parse(text).is_err(), "{text:?}");
    }
    assert!(Format::parse(&" ".repeat(LONGEST + 1)).is_err());
    let far = "name: x\nID: 5\nfield:u64 a;\toffset:18446744073709551615;\tsize:8;\tsigned:0;\n";
    assert_eq!(Format::parse(far).unwrap().fields[0].number(&[0; 64]), None);
}

proptest! {
    #[test]
    fn no_damaged_format_makes_the_reader_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        raw in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = kernels()[3].file("tlb_flush").unwrap_or_default().as_bytes().to_vec();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(format) = Format::parse(&String::from_utf8_lossy(&bytes)) {
            format.names_of("reason");
            format.fields.iter().filter_map(|field| field.number(&raw)).for_each(|_| ());
            let _ = FlushFormat::of(&format).map(|flush| flush.flushed(&raw));
        }
    }
}
