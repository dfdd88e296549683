//! Format files of different kernels. Those in `formats/` were recorded on Linux 6.18, x86-64. The older ones are constructed
//! from the kernel's TRACE_EVENT definitions (include/trace/events/tlb.h of 5.10 and 6.1: five reasons, in small letters); Arm
//! has no `tlb` events at all.

use proptest::prelude::*;
use shootdowns::format::{Format, LONGEST};
use shootdowns::reason::{FlushFormat, Flushed};

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

/// As Linux 5.10 to 6.12 write it, with a number of its own.
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

#[test]
fn the_recorded_format_is_read() {
    let format = Format::parse(include_str!("formats/x86_64-6.18-tlb_flush.txt")).unwrap();
    assert_eq!((format.name.as_str(), format.id, format.fields.len()), ("tlb_flush", 188, 6));
    assert_eq!(format.names_of("reason").len(), 6);
    let flush = FlushFormat::of(&format).unwrap();
    assert_eq!((flush.sent, flush.received), (4, 1));
    assert_eq!(flush.flushed(&record(4, 8)), Some(Flushed::Pages(8)));
    assert_eq!(flush.flushed(&record(4, u64::MAX)), Some(Flushed::Everything));
    assert_eq!(flush.flushed(&record(4, 8)[..20]), None);
}

#[test]
fn other_recorded_formats_are_read() {
    let queue = Format::parse(include_str!("formats/x86_64-6.18-csd_queue_cpu.txt")).unwrap();
    let (request, cpu) = (queue.field("csd").unwrap(), queue.field("cpu").unwrap());
    assert_eq!((request.offset, request.size, cpu.offset), (32, 8, 8));
    let entry = Format::parse(include_str!("formats/x86_64-6.18-csd_function_entry.txt")).unwrap();
    assert_eq!(entry.field("func").map(|field| field.offset), Some(8));
    let call = Format::parse(include_str!("formats/x86_64-6.18-sys_enter.txt")).unwrap();
    assert_eq!(call.field("args").map(|field| (field.offset, field.size)), Some((16, 48)));
    assert!(call.field("id").unwrap().signed);
    let mask = Format::parse(include_str!("formats/x86_64-6.18-ipi_send_cpumask.txt")).unwrap();
    assert_eq!(mask.field("cpumask").map(|field| field.size), Some(4));
    let vector = Format::parse(include_str!("formats/x86_64-6.18-call_function_entry.txt")).unwrap();
    assert!(vector.field("vector").is_some() && vector.names_of("vector").is_empty());
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
        let mut bytes = include_bytes!("formats/x86_64-6.18-tlb_flush.txt").to_vec();
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
