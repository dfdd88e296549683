//! The layouts of real programs. All sizes are 1/32 of the real ones, so that a page of 64 KiB corresponds to a page of
//! 2 MiB in the originals.

use super::{PAGE, Program, RWX, Segment, Shape, range};
use address_space::{MappingName, ObjectRole, Protection};

/// The huge page size of these programs, in bytes.
pub const HUGE: u64 = 64 << 10;

/// New mappings are below this address, as they are below the stack's limit. Programs without a fixed address that have
/// no dynamic linker are directly below it, so that any gap they leave is the first to be filled.
pub const TOP: u64 = 0x7fff_f7fc_6000;

const R: Protection = Protection::READ;
const RX: Protection = Protection::READ_EXECUTE;
const RW: Protection = Protection::READ_WRITE;
const KIB: u64 = 1 << 10;
const EXE: ObjectRole = ObjectRole::Executable;

fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Every layout.
pub fn all() -> Vec<Program> {
    vec![
        mariadbd(),
        node(),
        go(),
        rustc(),
        aligned(),
        big_data(),
        static_pie(),
        two_segments(),
        neighbours_everywhere(),
    ]
}

/// The parts of every dynamic program: the linker, libc, vdso, stack.
fn surroundings(program: &mut Program) {
    let libc = Shape::new("/lib/libc.so.6", ObjectRole::SharedObject, 0x7fff_f7c0_0000, small(50)).relro(3 * PAGE);
    let linker = Shape::new("/lib/ld.so", ObjectRole::DynamicLinker, 0x7fff_f7f0_0000, small(7)).relro(2 * PAGE);
    program.load(&libc, true);
    program.load(&linker, true);
    program.anonymous(range(0x7fff_f7fc_0000, 0x7fff_f7fc_4000), R, MappingName::Special("[vvar]".to_owned()));
    program.anonymous(range(0x7fff_f7fc_4000, 0x7fff_f7fc_6000), RX, MappingName::Special("[vdso]".to_owned()));
    program.anonymous(range(0x7fff_fffd_e000, 0x7fff_ffff_f000), RW, MappingName::Stack);
}

fn small(pages: u64) -> Vec<Segment> {
    vec![
        Segment::new(R, pages / 5 * PAGE + 0x320),
        Segment::new(RX, pages * 3 / 5 * PAGE + 0x10),
        Segment::new(R, pages / 5 * PAGE),
        Segment::new(RW, 4 * PAGE).skew(0xd10).zeros(2 * PAGE),
    ]
}

/// Debian's mariadbd: R 6.5 MiB, RX 9.2, R 7.1, RELRO, RW 11.6 with bss; the heap apart from it.
pub fn mariadbd() -> Program {
    let segments = vec![
        Segment::new(R, 208 * KIB + 0x98),
        Segment::new(RX, 294 * KIB + 0x3a1),
        Segment::new(R, 227 * KIB),
        Segment::new(RW, 270 * KIB).skew(0x7c0).zeros(101 * KIB),
    ];
    let mut program = Program::new("mariadbd");
    let shape = Shape::new("/usr/sbin/mariadbd", EXE, 0x5555_5555_4000, segments).relro(40 * KIB + 0x840);
    let end = program.load(&shape, true).extent().end().0.next_multiple_of(PAGE);
    program.touch(range(end - 80 * KIB, end - 60 * KIB));
    program.touch(range(end - 2 * PAGE, end));
    program.heap(range(end + 9 * PAGE, end + 9 * PAGE + 200 * KIB));
    surroundings(&mut program);
    program.finish()
}

/// node: linked to a fixed address, 27 MB of code, code made at run time beside it, and the heap glued to bss.
pub fn node() -> Program {
    let segments = vec![
        Segment::new(R, 720 * KIB),
        Segment::new(RX, 864 * KIB + 0x123),
        Segment::new(RW, 44 * KIB).skew(0xe58).zeros(70 * KIB),
    ];
    let mut program = Program::new("node");
    let shape = Shape::new("/usr/bin/node", EXE, 0x40_0000, segments).fixed().relro(30 * KIB);
    let end = program.load(&shape, true).extent().end().0.next_multiple_of(PAGE);
    program.touch(range(end - 70 * KIB, end - 10 * KIB));
    program.heap(range(end, end + 132 * KIB));
    program.anonymous(range(0x7fff_f000_0000, 0x7fff_f002_0000), RWX, MappingName::Anonymous);
    program.touch(range(0x7fff_f000_0000, 0x7fff_f000_8000));
    surroundings(&mut program);
    program.finish()
}

/// A static Go program: nothing but code, read-only data and data, all whole pages, and no RELRO.
pub fn go() -> Program {
    let segments =
        vec![Segment::new(RX, 170 * KIB), Segment::new(R, 190 * KIB), Segment::new(RW, 20 * KIB).zeros(90 * KIB)];
    let mut program = Program::new("go");
    let shape = Shape::new("/usr/bin/hugo", EXE, 0x40_0000, segments).fixed().without_interpreter();
    let end = program.load(&shape, false).extent().end().0.next_multiple_of(PAGE);
    program.facts.relocates_itself = true;
    program.touch(range(page_of(end - 30 * KIB), page_of(end - 20 * KIB)));
    program.anonymous(range(0xc0_0000_0000, 0xc0_0040_0000), RW, MappingName::Anonymous);
    program.anonymous(range(0x7fff_fffd_e000, 0x7fff_ffff_f000), RW, MappingName::Stack);
    program.finish()
}

/// rustc: a small executable, and its code in a library of 150 MB between neighbours that touch it.
pub fn rustc() -> Program {
    let mut program = Program::new("rustc");
    let exe = Shape::new("/usr/bin/rustc", EXE, 0x5555_5555_4000, small(4)).relro(PAGE);
    let end = program.load(&exe, true).extent().end().0.next_multiple_of(PAGE);
    program.heap(range(end + 0x3000, end + 0x3000 + 132 * KIB));
    let segments = vec![
        Segment::new(R, 1200 * KIB + 0x11c),
        Segment::new(RX, 2700 * KIB + 0x8d5),
        Segment::new(RW, 340 * KIB).skew(0x600).zeros(13 * KIB),
    ];
    let driver = Shape::new("/usr/lib/librustc_driver.so", ObjectRole::SharedObject, 0x7fff_f600_0000, segments);
    let driver = driver.relro(310 * KIB + 0xa00);
    let extent = program.load(&driver, true).extent();
    let end = extent.end().0.next_multiple_of(PAGE);
    program.touch(range(end - 8 * KIB, end));
    program.anonymous(range(0x7fff_f5ff_0000, 0x7fff_f600_0000), Protection::NONE, MappingName::Anonymous);
    program.load(&Shape::new("/lib/libm.so.6", ObjectRole::SharedObject, end, small(20)).relro(PAGE), true);
    surroundings(&mut program);
    program.finish()
}

/// Linked with `-z max-page-size` and `-z separate-code`: every segment on its own huge pages, gaps between.
pub fn aligned() -> Program {
    let segments = vec![
        Segment::new(R, 60 * KIB),
        Segment::new(RX, 256 * KIB),
        Segment::new(R, 130 * KIB),
        Segment::new(RW, 128 * KIB).zeros(192 * KIB),
    ];
    let mut program = Program::new("aligned");
    let shape = Shape::new("/opt/server", EXE, 0x5555_5558_0000, segments).aligned(HUGE).relro(64 * KIB);
    let end = program.load(&shape, true).extent().end().0.next_multiple_of(PAGE);
    program.touch(range(page_of(end - 130 * KIB), page_of(end - 120 * KIB)));
    program.heap(range(end + HUGE, end + 3 * HUGE));
    surroundings(&mut program);
    program.finish()
}

/// Data and bss of more than 1 GB, mostly untouched.
pub fn big_data() -> Program {
    let segments = vec![
        Segment::new(R, 10 * KIB),
        Segment::new(RX, 100 * KIB),
        Segment::new(RW, 900 * KIB).skew(0xfe0).zeros(33 << 20),
    ];
    let mut program = Program::new("big-data");
    let shape = Shape::new("/opt/solver", EXE, 0x5555_5555_4000, segments).relro(2 * PAGE);
    let end = program.load(&shape, true).extent().end().0.next_multiple_of(PAGE);
    for from in [(32 << 20) + 5 * PAGE, 17 << 20, (9 << 20) + 60 * KIB, PAGE] {
        program.touch(range(end - from, end - from + PAGE));
    }
    program.touch(range(end - (25 << 20), end - (24 << 20)));
    program.heap(range(end + 0x21000, end + 0x21000 + 33 * PAGE));
    surroundings(&mut program);
    program.finish()
}

/// A static-PIE at its entry: relocations and RELRO are still to come, and so is the heap.
pub fn static_pie() -> Program {
    let segments = vec![
        Segment::new(R, 90 * KIB),
        Segment::new(RX, 280 * KIB),
        Segment::new(R, 100 * KIB),
        Segment::new(RW, 300 * KIB).skew(0x9f0).zeros(140 * KIB),
    ];
    let mut program = Program::new("static-pie");
    let shape = Shape::new("/opt/static", EXE, 0, segments).without_interpreter().relro(129 * KIB);
    let length = shape.object().extent().end().0.next_multiple_of(PAGE);
    program.load(&Shape { at: TOP - length - PAGE, ..shape }, false);
    program.facts.relocates_itself = true;
    program.anonymous(range(0x7fff_fffd_e000, 0x7fff_ffff_f000), RW, MappingName::Stack);
    program.finish()
}

/// The older shape of two segments, started with the heap some way behind.
pub fn two_segments() -> Program {
    let segments = vec![Segment::new(RX, 500 * KIB), Segment::new(RW, 150 * KIB).skew(0xd90).gap(3).zeros(100)];
    let mut program = Program::new("two-segments");
    let shape = Shape::new("/usr/games/old", EXE, 0x40_0000, segments).fixed().relro(20 * KIB);
    let end = program.load(&shape, true).extent().end().0.next_multiple_of(PAGE);
    program.heap(range(end + 0x5000, end + 0x5000 + 64 * KIB));
    surroundings(&mut program);
    program.finish()
}

/// Guards, code made at run time and foreign files on all sides and in between, and properties that forbid copying.
pub fn neighbours_everywhere() -> Program {
    let segments = vec![
        Segment::new(R, 150 * KIB),
        Segment::new(RX, 260 * KIB),
        Segment::new(R, 140 * KIB),
        Segment::new(RW, 200 * KIB).zeros(300 * KIB),
    ];
    let mut program = Program::new("neighbours");
    let at = 0x5555_5555_b000;
    let object = program.load(&Shape::new("/opt/jit", EXE, at, segments).relro(90 * KIB), true);
    let extent = object.extent();
    let end = extent.end().0.next_multiple_of(PAGE);
    program.touch(range(end - 300 * KIB, end - 100 * KIB));
    program.anonymous(range(at - 4 * PAGE, at), Protection::NONE, MappingName::Anonymous);
    program.anonymous(range(end, end + 8 * PAGE), RWX, MappingName::Anonymous);
    // The program has mapped a guard, a file and executable memory into its bss, and locked a part.
    let bss = page_of(end - 290 * KIB);
    program.anonymous(range(bss, bss + PAGE), Protection::NONE, MappingName::Anonymous);
    program.file(range(bss + 20 * PAGE, bss + 23 * PAGE), R, "/var/lib/table", 0, 77);
    program.anonymous(range(bss + 50 * PAGE, bss + 52 * PAGE), RWX, MappingName::Anonymous);
    program.special(range(end - 3 * PAGE, end), "locked in memory (mlock)");
    surroundings(&mut program);
    program.finish()
}
