//! Sound inputs: files of the machine and the process that runs the test, and files made here, so that there is always
//! something to damage.

use heap_abi::Order;
use std::fs;

/// Programs and libraries that are small, differ in how they were linked, and are there on most machines.
const FILES: [&str; 6] = [
    "/bin/true",
    "/usr/bin/env",
    "/lib/x86_64-linux-gnu/libdl.so.2",
    "/lib/aarch64-linux-gnu/libdl.so.2",
    "/usr/lib64/libdl.so.2",
    "/sbin/ldconfig",
];

/// ELF files: of the machine, and a shared object made here.
pub fn elf_files() -> Vec<Vec<u8>> {
    let files = FILES.iter().filter_map(|path| fs::read(path).ok());
    let whole = files.filter(|bytes| bytes.starts_with(b"\x7fELF") && bytes.len() <= super::mutation::LONGEST);
    [small_elf()].into_iter().chain(whole).collect()
}

/// Texts of `/proc/PID/maps`.
pub fn maps() -> Vec<Vec<u8>> {
    let text = b"55d0c0a00000-55d0c0a02000 r--p 00000000 fe:00 1234 /usr/bin/my prog (deleted)\n\
        7f0000000000-7f0000200000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)\n\
        7f0000200000-7f0000400000 r-xp 00000000 00:00 0 [anon:text]\n\
        7f0000400000-7f0000401000 rw-s 00000000 00:01 5 /memfd:x (deleted)\n\
        7f0000402000-7f0000403000 r--p 00001000 00:01 6 /a\\012b\n\
        7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\n";
    [text.to_vec()].into_iter().chain(fs::read("/proc/self/maps").ok()).collect()
}

/// A record of `pagelift bench` with each kind of line.
pub fn bench_records() -> Vec<Vec<u8>> {
    vec![include_bytes!("record.jsonl").to_vec()]
}

/// Texts of `/proc/PID/smaps`.
pub fn smaps() -> Vec<Vec<u8>> {
    let text = b"7f0000000000-7f0000400000 r-xp 00000000 00:00 0 [anon:text]\nSize: 4096 kB\nKernelPageSize: 4 kB\n\
        MMUPageSize: 4 kB\nRss: 4096 kB\nAnonHugePages: 2048 kB\nShmemPmdMapped: 0 kB\nFilePmdMapped: 0 kB\n\
        Shared_Hugetlb: 0 kB\nPrivate_Hugetlb: 2048 kB\nTHPeligible: 1\nProtectionKey: 0\nVmFlags: rd ex mr mw me hg\n";
    [text.to_vec()].into_iter().chain(fs::read("/proc/self/smaps").ok()).collect()
}

/// Maps, a NUL, and an ELF file that they contain.
pub fn objects() -> Vec<Vec<u8>> {
    let maps = b"1000000-1001000 r--p 00000000 fe:00 9 /hostile\n1001000-1002000 r-xp 00001000 fe:00 9 /hostile\n\
        1002000-1003000 rw-p 00002000 fe:00 9 /hostile\n1003000-1005000 rw-p 00000000 00:00 0\n";
    let lies_there = [&maps[..], b"\0", &small_elf()].concat();
    let own = fs::read("/proc/self/maps").ok().map(|maps| [&maps[..], b"\0", &small_elf()].concat());
    [lies_there].into_iter().chain(own).collect()
}

/// Orders to the preloaded heap, and what users write into the variable `PAGELIFT`.
pub fn orders() -> Vec<Vec<u8>> {
    let mut order = Order::transparent(2 << 20);
    order.page = 2 << 20;
    order.only = "postgres,a program";
    let words = "heap=2M heap-reserve=1.5G only=redis-server,python* pid=7 --lift=text,data quiet";
    vec![
        order.to_string().into_bytes(),
        b"v4 huge=2097152 page=2097152 pool=0:3,7:1 nodes=chosen".to_vec(),
        words.into(),
    ]
}

/// Texts of a tracepoint's format, of `/proc/interrupts` and of an environment.
pub fn trace_formats() -> Vec<Vec<u8>> {
    let format = b"name: tlb_flush\nID: 188\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int reason;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:unsigned long pages;\toffset:16;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"pages:%ld reason:%s (%d)\", REC->pages, __print_symbolic(REC->reason, { 1, \"remote shootdown\" }, \
        { 4, \"remote IPI send\" }), REC->reason\n";
    let interrupts = b"            CPU0       CPU1\n CAL:     117303      98231   Function call interrupts\n TLB:      55158      57050\n";
    let environment = b"PATH=/bin\0MALLOC_CONF=dirty_decay_ms:-1\0ffffffff81000000 T startup_64\n";
    vec![format.to_vec(), interrupts.to_vec(), environment.to_vec()]
}

/// A shared object of three segments with an interpreter, a note, a dynamic table, symbols and stubs.
fn small_elf() -> Vec<u8> {
    const PAGE: u64 = 4096;
    const TEXTS: &[u8] = b"\0libsmall.so\0_ZN3foo3barEv\0main\0";
    const NAMES: &[u8] = b"\0.symtab\0.strtab\0.plt\0.rodata\0.gnu_debuglink\0";
    let note = [&words32(&[4, 4, 3])[..], b"GNU\0", &[0xab, 0xcd, 0xef, 1]].concat();
    let dynamic = words64(&[5, PAGE / 2, 10, TEXTS.len() as u64, 14, 1, 1, 1, 30, 4, 0, 0]);
    let symbols = [symbol(0, 0, 0), symbol(13, PAGE, 16), symbol(27, PAGE + 16, 0)].concat();
    // jmp *0x1000(%rip); the rest of the stub is padding.
    let stub = [&[0xff, 0x25, 0, 0x10, 0, 0][..], &[0x90; 10]].concat();
    let link = [&b"x.debug\0"[..], &[1, 2, 3, 4]].concat();
    let at = [0x300, 0x340, 0x800, 0xa00, 0xb00, 0x1000, 0xc00, 0xd00].map(|at| at as u64);
    let pieces = [&b"/lib/ld.so\0"[..], &note, TEXTS, &dynamic, &symbols, &stub, NAMES, &link];
    let sections = [
        section(0, 0, [0; 4], 0),
        section(1, 2, [0, at[4], symbols.len() as u64, 24], 2),
        section(9, 3, [0, at[2], TEXTS.len() as u64, 0], 0),
        section(17, 1, [PAGE, PAGE, 16, 16], 0),
        section(22, 1, [at[2], at[2], TEXTS.len() as u64, 0], 0),
        section(30, 1, [0, at[7], link.len() as u64, 0], 0),
        section(9, 3, [0, at[6], NAMES.len() as u64, 0], 0),
    ];
    let mut bytes = [&[0x7f, b'E', b'L', b'F', 2, 1, 1][..], &[0; 9], &[3, 0, 62, 0, 1, 0, 0, 0]].concat();
    bytes.extend(words64(&[PAGE, 64, 2 * PAGE + 64]));
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 7, 0, 64, 0, sections.len() as u8, 0, 6, 0]);
    for header in [
        segment(1, 4, [0, 0, 0xe00, 0xe00, PAGE]),
        segment(1, 5, [PAGE, PAGE, 64, 64, PAGE]),
        segment(1, 6, [2 * PAGE, 2 * PAGE, 64, 3 * PAGE, PAGE]),
        segment(0x6474_e552, 4, [2 * PAGE, 2 * PAGE, 32, 32, 1]),
        segment(3, 4, [at[0], at[0], 11, 11, 1]),
        segment(4, 4, [at[1], at[1], note.len() as u64, 20, 4]),
        segment(2, 6, [at[3], at[3], dynamic.len() as u64, dynamic.len() as u64, 8]),
    ] {
        bytes.extend(header);
    }
    bytes.resize(2 * PAGE as usize + 64, 0);
    for (at, piece) in at.iter().zip(pieces) {
        bytes[*at as usize..*at as usize + piece.len()].copy_from_slice(piece);
    }
    bytes.extend(sections.concat());
    bytes
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A program header: type, flags, offset, address, size in the file, size in memory, alignment.
fn segment(kind: u32, flags: u32, [offset, address, file, memory, align]: [u64; 5]) -> Vec<u8> {
    [words32(&[kind, flags]), words64(&[offset, address, address, file, memory, align])].concat()
}

/// A section header: name, type, [address, offset, size, size of an entry], number of the section that belongs to it.
fn section(name: u32, kind: u32, [address, offset, size, entry]: [u64; 4], link: u32) -> Vec<u8> {
    [words32(&[name, kind]), words64(&[0, address, offset, size]), words32(&[link, 0]), words64(&[1, entry])].concat()
}

/// A global function in section 3: name, address, size.
fn symbol(name: u32, address: u64, size: u64) -> Vec<u8> {
    [words32(&[name]), vec![0x12, 0, 3, 0], words64(&[address, size])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, AddressRange, AddressSpace, ElfImage, parse_smaps};

    #[test]
    fn the_readers_understand_every_sample() {
        for bytes in elf_files() {
            ElfImage::parse(&bytes[..]).unwrap();
        }
        let everything = AddressRange::new(Address(0), Address(u64::MAX));
        let symbols: usize =
            elf_files().iter().map(|bytes| process_view::fuzzing::read_symbols(bytes, everything)).sum();
        let images: usize = elf_files().iter().map(|bytes| image_store::fuzzing::make_recipe(bytes)).sum();
        let known = elf_files().iter().filter(|bytes| heap_choice::fuzzing::read_allocator(bytes)).count();
        assert!(symbols > 10 && images > 1 && known > 1, "{symbols} symbols, {images} images, {known} allocators");
        let image = ElfImage::parse(&small_elf()[..]).unwrap();
        assert_eq!((image.segments.len(), image.interpreter.as_deref()), (3, Some("/lib/ld.so")));
        assert_eq!(image.build_id.as_deref(), Some("abcdef01"));
        for text in maps() {
            AddressSpace::parse(&String::from_utf8(text).unwrap()).unwrap();
        }
        for text in smaps() {
            assert!(!parse_smaps(&String::from_utf8(text).unwrap()).unwrap().is_empty());
        }
        let format = String::from_utf8(trace_formats().remove(0)).unwrap();
        let format = shootdowns::format::Format::parse(&format).unwrap();
        assert!(shootdowns::reason::FlushFormat::of(&format).is_some_and(|flush| flush.sent == 4));
        assert!(Order::parse(str::from_utf8(&orders()[0]).unwrap()).is_some());
    }
}
