//! Perf maps of programs whose code is on anonymous memory.

use address_space::{Address, AddressRange};
use process_view::perf_map::{Destination, PerfMapSummary};
use process_view::symbols::SymbolSource;
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

mod common;
use common::{Directory, Program, build_on_anonymous_memory, own_pid, tool};

const NAMES: [&str; 2] = ["liblibrary_number.so", "/on_anonymous_memory"];

/// A lifted program that removes its map when the test ends.
struct Lifted {
    program: Program,
    map: PathBuf,
}

impl Lifted {
    fn start(path: &Path) -> Self {
        let program = Program::start(Command::new(path).args(NAMES));
        let map = PathBuf::from(format!("/tmp/perf-{}.map", program.pid()));
        let _ = std::fs::remove_file(&map);
        Self { program, map }
    }

    fn write(&self) -> (PerfMapSummary, Vec<(AddressRange, String)>) {
        let summary = Destination::of(self.program.pid()).write().unwrap();
        assert_eq!(summary.path.as_deref(), Some(self.map.as_path()));
        let text = std::fs::read_to_string(&self.map).unwrap();
        (summary, text.lines().map(parse).collect())
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.map);
    }
}

fn parse(line: &str) -> (AddressRange, String) {
    let mut fields = line.splitn(3, ' ');
    let mut number = || u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
    let range = AddressRange::sized(Address(number()), number());
    (range, fields.next().unwrap().to_owned())
}

fn source_of<'a>(summary: &'a PerfMapSummary, name: &str) -> &'a SymbolSource {
    &summary.objects.iter().find(|o| o.path.ends_with(name)).unwrap().source
}

fn has(lines: &[(AddressRange, String)], name: &str) -> bool {
    lines.iter().any(|(_, n)| n == name)
}

fn objcopy(arguments: &[&OsStr]) {
    tool("objcopy", arguments);
}

#[test]
fn every_byte_of_lifted_code_has_one_name_and_functions_have_theirs() {
    let directory = Directory::new("perf-map");
    let lifted = Lifted::start(&build_on_anonymous_memory(directory.path()));
    let (summary, lines) = lifted.write();
    assert!(lines.windows(2).all(|w| w[0].0.end() <= w[1].0.start()));
    let named: address_space::RangeSet = lines.iter().map(|(range, _)| *range).collect();
    assert_eq!(named, summary.ranges);
    assert_eq!(summary.symbols, lines.len());
    assert_eq!(source_of(&summary, "liblibrary_number.so"), &SymbolSource::SymbolTable);
    for name in ["main", "find", "_start", "library_number", "hidden_step", "library_number@plt", "fopen@plt"] {
        assert!(has(&lines, name), "{name} in {lines:#?}");
    }
    // The kernel shows the correct name for one symbol.
    let process = process_view::ProcessFiles::of(lifted.program.pid());
    let entry = process.auxiliary().unwrap().entry().unwrap();
    assert_eq!(lines.iter().find(|(range, _)| range.contains(entry)).unwrap().1, "_start");
}

#[test]
fn a_program_on_its_files_needs_no_map() {
    let cat = Program::start(&mut Command::new("cat"));
    let summary = Destination::of(cat.pid()).write().unwrap();
    assert!(summary.path.is_none() && summary.objects.is_empty() && summary.ranges.is_empty());
}

#[test]
fn stripped_files_take_names_from_wherever_there_are_some() {
    let directory = Directory::new("perf-map-stripped");
    let program = build_on_anonymous_memory(directory.path());
    let library = directory.path().join("liblibrary_number.so");
    let debug = directory.path().join("library.debug");
    let (library, debug) = (library.as_os_str(), debug.as_os_str());
    objcopy(&["--only-keep-debug".as_ref(), library, debug]);
    objcopy(&["--strip-all".as_ref(), library]);
    let (summary, lines) = Lifted::start(&program).write();
    assert_eq!(source_of(&summary, "liblibrary_number.so"), &SymbolSource::DynamicSymbols);
    assert!(has(&lines, "library_number") && !has(&lines, "hidden_step"));

    let stripped = std::fs::read(library).unwrap();
    let packed = directory.path().join("packed");
    std::fs::write(&packed, xz(&std::fs::read(debug).unwrap())).unwrap();
    let mut section = std::ffi::OsString::from(".gnu_debugdata=");
    section.push(&packed);
    objcopy(&["--add-section".as_ref(), &section, library]);
    let (summary, lines) = Lifted::start(&program).write();
    assert_eq!(source_of(&summary, "liblibrary_number.so"), &SymbolSource::MiniDebugData);
    assert!(has(&lines, "library_number") && has(&lines, "hidden_step"));

    std::fs::write(library, stripped).unwrap();
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(debug);
    objcopy(&[&link, library]);
    let (summary, lines) = Lifted::start(&program).write();
    assert_eq!(
        source_of(&summary, "liblibrary_number.so"),
        &SymbolSource::DebugFile(Path::new(debug).display().to_string())
    );
    assert!(has(&lines, "library_number") && has(&lines, "hidden_step"));
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[test]
fn a_debug_file_of_another_build_is_not_believed() {
    let directory = Directory::new("perf-map-other-build");
    let program = build_on_anonymous_memory(directory.path());
    let library = directory.path().join("liblibrary_number.so");
    let debug = directory.path().join("library.debug");
    // The program's own debug information under the library's debug file's name.
    objcopy(&["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    objcopy(&["--strip-all".as_ref(), library.as_os_str()]);
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&debug);
    objcopy(&[&link, library.as_os_str()]);
    let (summary, _) = Lifted::start(&program).write();
    assert_eq!(source_of(&summary, "liblibrary_number.so"), &SymbolSource::DynamicSymbols);
}

#[test]
fn what_lies_in_the_place_of_the_map_is_dealt_with() {
    let directory = Directory::new("perf-map-place");
    let lifted = Lifted::start(&build_on_anonymous_memory(directory.path()));
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    symlink(&victim, &lifted.map).unwrap();
    let (_, first) = lifted.write();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(std::fs::symlink_metadata(&lifted.map).unwrap().is_file());
    // Again: the map is replaced, not doubled.
    assert_eq!(lifted.write().1, first);

    // A map that the program keeps for generated code is added to, once.
    let own = "10 20 generated code\n";
    std::fs::write(&lifted.map, own).unwrap();
    let (_, lines) = lifted.write();
    assert_eq!(lines.len(), first.len() + 1);
    assert_eq!(lines[0], (AddressRange::sized(Address(0x10), 0x20), "generated code".to_owned()));
    assert_eq!(lifted.write().1, lines);

    // A map that an earlier process with this PID left is replaced.
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(&lifted.map).unwrap().set_modified(old).unwrap();
    assert_eq!(lifted.write().1, first);
    let leftovers = std::fs::read_dir("/tmp").unwrap().filter_map(Result::ok);
    // Another test of this process may be writing a map at this moment.
    let name = format!("perf-{}.map.{}.new", lifted.program.pid(), own_pid());
    assert!(leftovers.filter(|e| e.file_name().to_string_lossy() == name).count() == 0);
}
