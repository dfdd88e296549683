//! The objects of real processes: this test itself and programs started for the purpose.

use address_space::{AddressSpace, LoadedObject, ObjectRole};
use process_view::{AuxiliaryVector, FileIdentity, LoadedObjects, ObjectReader, ProcessFiles, load_objects};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

mod common;
use common::{Directory, Program, build_on_anonymous_memory, own_pid, tool};

fn loaded(pid: i32) -> (LoadedObjects, AddressSpace, AuxiliaryVector) {
    let process = ProcessFiles::of(pid);
    let space = process.maps().unwrap();
    (load_objects(pid, &space).unwrap(), space, process.auxiliary().unwrap())
}

fn role(objects: &LoadedObjects, role: ObjectRole) -> Vec<&LoadedObject> {
    objects.objects.iter().filter(|o| o.role == role).collect()
}

fn dynamic_linker_of_cat() -> PathBuf {
    let (objects, ..) = loaded(Program::start(&mut Command::new("cat")).pid());
    PathBuf::from(objects.executable().unwrap().image.interpreter.as_deref().unwrap())
}

#[test]
fn this_test_is_found_where_the_kernel_put_it() {
    let (objects, _, auxiliary) = loaded(own_pid());
    assert_eq!(objects.not_understood, []);
    let executable = objects.executable().unwrap();
    assert_eq!(Path::new(&executable.path), std::env::current_exe().unwrap());
    assert_eq!(executable.entry(), auxiliary.entry().unwrap());
    assert_eq!(executable.image.headers.unwrap() + executable.bias, auxiliary.program_headers().unwrap());
    let linkers = role(&objects, ObjectRole::DynamicLinker);
    assert_eq!(linkers.len(), 1);
    assert_eq!(linkers[0].extent().start(), auxiliary.dynamic_linker().unwrap());
    assert!(role(&objects, ObjectRole::SharedObject).iter().any(|o| o.name().starts_with("libc.")));
}

#[test]
fn a_program_started_through_the_linker_is_the_executable() {
    let cat = std::fs::canonicalize("/bin/cat").unwrap();
    let program = Program::start(Command::new(dynamic_linker_of_cat()).arg(&cat));
    let (objects, _, auxiliary) = loaded(program.pid());
    assert_eq!(auxiliary.dynamic_linker(), None);
    assert_eq!(Path::new(&objects.executable().unwrap().path), cat);
    assert_eq!(role(&objects, ObjectRole::DynamicLinker)[0].entry(), auxiliary.entry().unwrap());
}

#[test]
fn a_program_whose_file_is_gone_or_replaced_is_still_understood() {
    let directory = Directory::new("replaced");
    let copy = directory.path().join("cat");
    // By another process: a child that another test is just starting would still have the file open for writing.
    tool("cp", [OsStr::new("/bin/cat"), copy.as_ref()]);
    let program = Program::start(&mut Command::new(&copy));
    for replacement in [None, Some("not an ELF file")] {
        std::fs::remove_file(&copy).unwrap();
        if let Some(text) = replacement {
            std::fs::write(&copy, text).unwrap();
        } else {
            std::fs::copy("/bin/true", &copy).unwrap();
        }
        let (objects, _, auxiliary) = loaded(program.pid());
        let executable = objects.executable().unwrap();
        assert_eq!(Path::new(&executable.path), copy);
        assert_eq!(executable.entry(), auxiliary.entry().unwrap());
        assert_eq!(objects.not_understood, []);
    }
}

#[test]
fn objects_that_stand_on_anonymous_memory_alone_are_still_named() {
    let directory = Directory::new("anonymous");
    let program = build_on_anonymous_memory(directory.path());
    let plain = Program::start(&mut Command::new(&program));
    let names = ["liblibrary_number.so", "/on_anonymous_memory"];
    for arguments in [&names[..1], &names[1..], &names[..]] {
        let lifted = Program::start(Command::new(&program).args(arguments));
        let maps = ProcessFiles::of(lifted.pid()).text("maps").unwrap();
        assert!(arguments.iter().all(|name| !maps.contains(name)), "{maps}");
        let shape = |pid| -> Vec<_> { loaded(pid).0.objects.into_iter().map(|o| (o.role, o.path, o.image)).collect() };
        let mut expected = shape(plain.pid());
        let mut seen = shape(lifted.pid());
        expected.sort_by(|a, b| a.1.cmp(&b.1));
        seen.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(seen, expected, "without the files of {arguments:?}");
        let (objects, _, auxiliary) = loaded(lifted.pid());
        assert_eq!(objects.executable().unwrap().entry(), auxiliary.entry().unwrap());
    }
}

#[test]
fn a_file_that_was_read_ahead_is_known() {
    let space = ProcessFiles::of(own_pid()).maps().unwrap();
    let expected = ObjectReader::new().load(own_pid(), &space).unwrap().objects;
    let own = std::env::current_exe().unwrap();
    let file = FileIdentity::of(&std::fs::metadata(&own).unwrap());
    let mut reader = ObjectReader::new();
    assert!(reader.known(&file).is_none());
    let image = reader.read_ahead(&own).cloned();
    assert_eq!(image.as_ref(), Some(&expected[0].image));
    assert_eq!(reader.known(&file).cloned(), image);
    assert!(reader.read_ahead(std::path::Path::new("/dev/null")).is_none());
}

#[test]
fn a_reader_remembers_files_and_gives_the_same_again() {
    let space = ProcessFiles::of(own_pid()).maps().unwrap();
    let mut reader = ObjectReader::new();
    let first = reader.load(own_pid(), &space).unwrap();
    let again = reader.load(own_pid(), &space).unwrap();
    assert_eq!(first.objects, again.objects);
}

#[test]
fn kernel_threads_have_no_objects() {
    // 2 is kthreadd, except in a separate PID namespace.
    let process = ProcessFiles::of(2);
    if process.text("comm").is_ok_and(|name| name.trim() == "kthreadd") && process.maps().is_ok() {
        let space = process.maps().unwrap();
        assert!(space.mappings().is_empty() && load_objects(2, &space).unwrap().objects.is_empty());
    }
}
