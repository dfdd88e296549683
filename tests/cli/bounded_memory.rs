//! Pagelift's memory is bounded when it reads hostile files and processes.

use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use test_support::{
    Context, ControlGroup, Ending, Limit, Need, Output, Program, Session, Test, copy_program, main_of, test_case,
};

/// Memory limit of `pagelift` while it reads hostile data, in bytes. The kernel kills it if it needs more.
const MOST: u64 = 640 << 20;
/// Exit status if Pagelift itself fails.
const FAILED: i32 = 125;
/// Size of a table above all bounds, in bytes.
const GIBIBYTE: u64 = 1 << 30;

const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const DYNSYM: u32 = 11;
const GNU_HASH: u32 = 0x6fff_fff6;

fn main() -> ExitCode {
    let gcc = || vec![Need::Root, Need::Command("gcc".into())];
    let tests: Vec<Test> = vec![
        test_case("perf_map/symbol_table_of_a_gigabyte", gcc(), |t| perf_map(t, sparse_table)),
        test_case("perf_map/millions_of_symbols_with_long_names", gcc(), |t| perf_map(t, dense_table)),
        test_case("inspect/a_hash_table_whose_chain_is_a_hole", gcc(), |t| inspect(t, endless_chain)),
        test_case("inspect/names_that_all_need_a_look", gcc(), |t| inspect(t, full_of_signs)),
        test_case("status/heap_library_with_tables_of_a_gigabyte", gcc(), heap_library),
        test_case("status/mappings_with_long_paths", [gcc(), vec![Need::Thp]].concat(), long_paths),
        test_case("status/as_many_mappings_as_are_allowed", gcc(), many_mappings),
        test_case("cache_status/a_file_of_a_tebibyte_of_holes", gcc(), |t| file_of_holes(t, false)),
        test_case("cache_status/a_file_of_holes_on_overlayfs", gcc(), |t| file_of_holes(t, true)),
    ];
    main_of(tests)
}

/// An ELF file whose section headers can be changed.
struct Elf {
    file: File,
}

/// A section header: its position in the file, and its type, offset, size and link.
#[derive(Clone, Copy)]
struct Header {
    at: u64,
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
}

impl Elf {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(path)? })
    }

    fn number<const N: usize>(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes[..N], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The section headers (ELF-64 object file format, "Sections").
    fn headers(&self) -> Result<Vec<Header>> {
        let (table, length, count) = (self.number::<8>(0x28)?, self.number::<2>(0x3a)?, self.number::<2>(0x3c)?);
        let header = |at| -> Result<Header> {
            let (kind, link) = (self.number::<4>(at + 4)? as u32, self.number::<4>(at + 40)? as u32);
            Ok(Header { at, kind, offset: self.number::<8>(at + 24)?, size: self.number::<8>(at + 32)?, link })
        };
        (0..count).map(|index| header(table + index * length)).collect()
    }

    fn header(&self, kind: u32) -> Result<Header> {
        self.headers()?.into_iter().find(|header| header.kind == kind).with_context(|| format!("no section {kind}"))
    }

    /// Moves a section to the end of the file, with this size; its bytes are a hole.
    fn move_to_end(&self, header: Header, size: u64) -> Result<u64> {
        let offset = self.file.metadata()?.len().next_multiple_of(1 << 12);
        self.file.set_len(offset + size)?;
        self.file.write_all_at(&offset.to_le_bytes(), header.at + 24)?;
        self.file.write_all_at(&size.to_le_bytes(), header.at + 32)?;
        Ok(offset)
    }
}

/// The symbol table is a hole.
fn sparse_table(elf: &Elf) -> Result<()> {
    elf.move_to_end(elf.header(SYMTAB)?, GIBIBYTE).map(drop)
}

/// Every entry is the same function under a different name with thousands of letters.
fn dense_table(elf: &Elf) -> Result<()> {
    const NAME: u64 = 8 << 10;
    const ENTRY: usize = 24;
    let header = elf.header(SYMTAB)?;
    let mut entries = vec![0; header.size as usize];
    elf.file.read_exact_at(&mut entries, header.offset)?;
    let largest = entries.chunks_exact(ENTRY).max_by_key(|entry| entry[16..].iter().rev().copied().collect::<Vec<_>>());
    let entry = largest.context("an empty symbol table")?;
    let names = elf.headers()?[header.link as usize];
    ensure!(names.kind == STRTAB, "the symbol table has no names");
    let count = 100 << 20;
    let at = elf.move_to_end(names, count)?;
    let text: Vec<u8> = (0..count).map(|index| if index % NAME == 0 { 0 } else { b'a' + (index % 23) as u8 }).collect();
    elf.file.write_all_at(&text, at)?;
    let table: Vec<u8> = (0..(96 << 20) / ENTRY as u32)
        .flat_map(|index| {
            let name = 1 + index % (count as u32 - 2);
            [&name.to_le_bytes()[..], &entry[4..]].concat()
        })
        .collect();
    let at = elf.move_to_end(header, table.len() as u64)?;
    Ok(elf.file.write_all_at(&table, at)?)
}

/// One bucket, a filter that passes every name, and a chain of zeros, which has no end.
fn endless_chain(elf: &Elf) -> Result<()> {
    let at = elf.move_to_end(elf.header(GNU_HASH)?, 150 << 20)?;
    let words = [1, 1, 1, 0, u32::MAX, u32::MAX, 1];
    Ok(elf.file.write_all_at(&words.map(u32::to_le_bytes).concat(), at)?)
}

/// The names of dynamic symbols consist of thousands of `@`, each of which makes a reader search the text.
fn full_of_signs(elf: &Elf) -> Result<()> {
    let names = elf.headers()?[elf.header(DYNSYM)?.link as usize];
    let count = 150 << 20;
    let at = elf.move_to_end(names, count)?;
    let text: Vec<u8> = (0..count).map(|index| if index % (64 << 10) == 0 { 0 } else { b'@' }).collect();
    Ok(elf.file.write_all_at(&text, at)?)
}

/// Inspects a damaged copy of a program, including the choice of its heap.
fn inspect(t: &Context, damage: fn(&Elf) -> Result<()>) -> Result<()> {
    let copy = t.folder().join("damaged");
    copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &copy)?;
    damage(&Elf::open(&copy)?)?;
    let output = bounded(t, &["inspect", copy.to_str().context("a path")?])?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.contains("Heap"), "{output:?}");
    Ok(())
}

/// Runs `pagelift` in a cgroup with little memory.
fn bounded(t: &Context, arguments: &[&str]) -> Result<Output> {
    let group = ControlGroup::with(t, Limit::Memory, MOST)?;
    t.run(group.around(&t.pagelift(arguments)?))
}

fn start(t: &Context, program: &Path, arguments: &[&str]) -> Result<Session> {
    let mut command = Command::new(program);
    command.args(arguments);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn end(mut session: Session) -> Result<()> {
    session.send("go on\n")?;
    ensure!(session.finish()?.ending == Ending::Exit(0), "the program did not go on");
    Ok(())
}

/// A copy of the program that the test may change.
fn copy(t: &Context, name: &str) -> Result<PathBuf> {
    let path = t.folder().join(name);
    copy_program(t, &Program::named("cli/maps_a_file.c")?.build()?, &path)?;
    Ok(path)
}

fn perf_map(t: &Context, change: fn(&Elf) -> Result<()>) -> Result<()> {
    let program = copy(t, "hostile")?;
    change(&Elf::open(&program)?)?;
    let session = start(t, &program, &["/dev/null", "0", "without"])?;
    let output = bounded(t, &["perf-map", &session.pid().to_string()])?;
    fs::remove_file(format!("/tmp/perf-{}.map", session.pid())).ok();
    let output = output.success()?;
    ensure!(output.stdout.contains("symbols"), "{output:?}");
    end(session)
}

fn heap_library(t: &Context) -> Result<()> {
    let library = copy(t, "libpagelift_heap.so")?;
    let elf = Elf::open(&library)?;
    for kind in [SYMTAB, DYNSYM] {
        elf.move_to_end(elf.header(kind)?, GIBIBYTE)?;
    }
    let program = copy(t, "hostile")?;
    let session = start(t, &program, &[&library.to_string_lossy(), "1"])?;
    let output = bounded(t, &["status", &session.pid().to_string()])?.success()?;
    ensure!(output.stdout.contains("all memory"), "{output:?}");
    end(session)
}

/// Paths near the maximum length in maps, in as many mappings as the kernel permits a process.
fn long_paths(t: &Context) -> Result<()> {
    let mut folder = t.folder().to_path_buf();
    while folder.as_os_str().len() < 3600 {
        folder.push("a".repeat(250));
    }
    fs::create_dir_all(&folder)?;
    let file = folder.join("file");
    fs::write(&file, "x")?;
    let session = start(t, &copy(t, "hostile")?, &[&file.to_string_lossy(), "60000", "huge"])?;
    let output = bounded(t, &["status", &session.pid().to_string()])?;
    ensure!(output.ending == Ending::Exit(FAILED), "{output:?}");
    ensure!(output.stderr.contains("more than"), "the reason is not said: {}", output.stderr);
    // All other processes are still listed.
    let output = bounded(t, &["status"])?.success()?;
    let note = format!("note: process {} not read: /proc/{0}/smaps cannot be read: more than", session.pid());
    ensure!(output.stdout.contains(&note), "`{note}` is missing in\n{}", output.stdout);
    end(session)
}

/// A mounted overlay of folders, for whose files the kernel does not count cached pages.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(folder: &Path) -> Result<Self> {
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(folder.join(name))?;
        }
        let place = |name: &str| folder.join(name).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", place("lower"), place("upper"), place("work"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "-o", &options, "overlay"]).arg(folder.join("merged"));
        ensure!(mount.status()?.success(), "overlayfs cannot be mounted");
        Ok(Self(folder.join("merged")))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Holes are not accessed: the kernel would have to allocate zero pages and page tables for a hole.
fn file_of_holes(t: &Context, on_overlay: bool) -> Result<()> {
    let overlay = on_overlay.then(|| Overlay::mount(t.folder())).transpose()?;
    let folder = overlay.as_ref().map_or(t.folder(), |overlay| &overlay.0);
    let file = folder.join("holes");
    File::create(&file)?.set_len(1 << 40)?;
    let program = Program::named("cli/names_what_never_comes.c")?.build()?;
    let session = start(t, &program, &[&file.to_string_lossy()])?;
    let output = bounded(t, &["cache", "status"])?.success()?;
    let line = output.stdout.lines().find(|line| line.ends_with("/holes")).context("the file is not listed")?;
    ensure!(line.contains("1.0 TiB"), "{line}");
    bounded(t, &["cache", "status", &file.to_string_lossy()])?.success()?;
    let output = bounded(t, &["cache", "prepare", &file.to_string_lossy()])?;
    ensure!(output.ending == Ending::Exit(FAILED), "{output:?}");
    end(session)
}

fn many_mappings(t: &Context) -> Result<()> {
    let program = copy(t, "hostile")?;
    let session = start(t, &program, &[&program.to_string_lossy(), "65000"])?;
    let output = bounded(t, &["status", &session.pid().to_string()])?.success()?;
    ensure!(output.stdout.contains("all memory"), "{output:?}");
    end(session)
}
