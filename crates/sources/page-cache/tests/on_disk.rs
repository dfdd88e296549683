//! Replacements of real files.

use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use page_cache::replacement::{Change, Moved, Order, Patch, ReplaceError, replace, write_copy};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

struct Sample {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn sample() -> Sample {
    // Not /tmp, which may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().canonicalize().unwrap().join("file");
    let bytes: Vec<u8> = (0..(9 << 20) + 12345).map(|at: u32| (at % 251) as u8).collect();
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    Sample { folder, path }
}

impl Sample {
    /// Nothing but the file is in its folder.
    fn is_alone(&self) -> bool {
        fs::read_dir(self.folder.path()).unwrap().count() == 1
    }
}

#[test]
fn the_copy_is_another_file_with_everything_the_same() {
    let sample = sample();
    let (before, bytes) = (fs::metadata(&sample.path).unwrap(), fs::read(&sample.path).unwrap());
    let replaced = replace(&sample.path, &Change::default()).unwrap();
    let after = fs::metadata(&sample.path).unwrap();
    assert!(fs::read(&sample.path).unwrap() == bytes && sample.is_alone());
    assert_ne!(before.ino(), after.ino());
    let shown = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.size(), m.mtime(), m.mtime_nsec(), m.nlink());
    assert_eq!(shown(&before), shown(&after));
    assert_eq!((replaced.path, replaced.old.metadata().unwrap().nlink()), (sample.path.clone(), 0));
    assert_eq!(replaced.file.metadata().unwrap().ino(), after.ino());
}

#[test]
fn patches_reach_over_pieces_and_attributes_are_set_and_removed() {
    let sample = sample();
    let mut expected = fs::read(&sample.path).unwrap();
    let at = (8 << 20) - 3;
    expected[at..at + 6].copy_from_slice(b"patch!");
    let name = c"user.pagelift-test".to_owned();
    let patches = vec![Patch { at: at as u64, bytes: b"patch!".to_vec() }];
    let attributes = vec![(name.clone(), Some(b"x".to_vec()))];
    let change = Change { patches, attributes, ..Change::default() };
    match replace(&sample.path, &change) {
        Err(ReplaceError::Metadata { what, .. }) if what.contains("user.") => {
            eprintln!("skipped: no extended attributes here");
            return;
        }
        result => drop(result.unwrap()),
    }
    assert!(fs::read(&sample.path).unwrap() == expected);
    let value = || linux::attributes::of_file(&fs::File::open(&sample.path).unwrap(), &name);
    assert_eq!(value().unwrap(), b"x");
    let change = Change { attributes: vec![(name.clone(), None)], ..Change::default() };
    replace(&sample.path, &change).unwrap();
    assert!(value().is_err() && fs::read(&sample.path).unwrap() == expected && sample.is_alone());
}

#[test]
fn parts_move_and_leave_holes() {
    const MIB: u64 = 1 << 20;
    let sample = sample();
    let before = fs::read(&sample.path).unwrap();
    let parts = vec![
        Moved { from: 0, to: 0, length: 3 * MIB },
        Moved { from: 3 * MIB, to: 64 * MIB, length: 6 * MIB },
        Moved { from: 9 * MIB, to: 90 * MIB + 1, length: 12345 },
    ];
    let patches = vec![Patch { at: 64 * MIB, bytes: b"patch!".to_vec() }];
    let order = Order { length: 91 * MIB, parts: parts.clone() };
    replace(&sample.path, &Change { order: Some(order), patches, ..Change::default() }).unwrap();
    let mut expected = vec![0; 91 * MIB as usize];
    for Moved { from, to, length } in parts.iter().copied() {
        expected[to as usize..(to + length) as usize].copy_from_slice(&before[from as usize..(from + length) as usize]);
    }
    expected[64 * MIB as usize..][..6].copy_from_slice(b"patch!");
    assert!(fs::read(&sample.path).unwrap() == expected);
    let blocks = fs::metadata(&sample.path).unwrap().blocks() * 512;
    assert!(blocks < 12 * MIB, "{blocks} bytes on the disk");
    // The way back, of a file that is nearly all holes.
    let parts = parts.iter().map(|part| Moved { from: part.to, to: part.from, length: part.length }).collect();
    let patches = vec![Patch { at: 3 * MIB, bytes: before[3 * MIB as usize..][..6].to_vec() }];
    let order = Order { length: before.len() as u64, parts };
    replace(&sample.path, &Change { order: Some(order), patches, ..Change::default() }).unwrap();
    assert!(fs::read(&sample.path).unwrap() == before && sample.is_alone());
}

#[test]
fn a_copy_elsewhere_has_no_privileges_and_leaves_the_file_alone() {
    let sample = sample();
    fs::set_permissions(&sample.path, fs::Permissions::from_mode(0o4751)).unwrap();
    let (source, before) = (File::open(&sample.path).unwrap(), fs::metadata(&sample.path).unwrap());
    let other = sample.folder.path().join("other");
    symlink("nowhere", &other).unwrap();
    let change = Change { patches: vec![Patch { at: 1, bytes: b"patch!".to_vec() }], ..Change::default() };
    for _ in 0..2 {
        write_copy(&source, &other, &change).unwrap();
    }
    let written = fs::symlink_metadata(&other).unwrap();
    assert!(written.is_file() && written.mode() & 0o7777 == 0o751 && written.size() == before.size());
    assert_eq!(fs::read(&other).unwrap()[..8], *b"\0patch!\x07");
    assert_eq!(fs::metadata(&sample.path).unwrap().ino(), before.ino());
    assert!(matches!(write_copy(&source, &sample.path, &change), Err(ReplaceError::SameFile)));
    assert!(matches!(write_copy(&source, sample.folder.path(), &change), Err(ReplaceError::NotRegular)));
    assert_eq!(fs::read_dir(sample.folder.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_replaced_safely_stays() {
    let sample = sample();
    let inode = fs::metadata(&sample.path).unwrap().ino();
    let refuse = || replace(&sample.path, &Change::default()).unwrap_err();
    let writer = OpenOptions::new().append(true).open(&sample.path).unwrap();
    assert!(matches!(refuse(), ReplaceError::BeingWritten), "{}", refuse());
    drop(writer);
    let other = sample.folder.path().join("other name");
    fs::hard_link(&sample.path, &other).unwrap();
    assert!(matches!(refuse(), ReplaceError::HardLinks(2)));
    fs::remove_file(&other).unwrap();
    assert!(matches!(replace(sample.folder.path(), &Change::default()).unwrap_err(), ReplaceError::NotRegular));
    assert!(matches!(replace("/dev/null".as_ref(), &Change::default()).unwrap_err(), ReplaceError::NotRegular));
    let identity = process_view::FileIdentity::of(&fs::metadata(&sample.path).unwrap());
    File::options().append(true).open(&sample.path).unwrap().write_all(b"more").unwrap();
    let change = Change { only_if: Some(identity), ..Change::default() };
    assert!(matches!(replace(&sample.path, &change).unwrap_err(), ReplaceError::Changed));
    assert!(fs::metadata(&sample.path).unwrap().ino() == inode && sample.is_alone());
}

#[test]
fn a_link_leads_to_its_file_and_stays() {
    let sample = sample();
    let link = sample.folder.path().join("link");
    symlink(&sample.path, &link).unwrap();
    let replaced = replace(&link, &Change::default()).unwrap();
    assert_eq!((replaced.path, fs::read_link(&link).unwrap()), (sample.path.clone(), sample.path.clone()));
}

#[test]
fn a_file_that_runs_is_replaced_and_goes_on() {
    let sample = sample();
    // cp writes the file: the kernel executes no file that is open for writing, and a child of another test inherits the open
    // files of this process until it executes its program.
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("/bin/sleep").arg(&sample.path).status().unwrap().success());
    let mut child = std::process::Command::new(&sample.path).arg("60").spawn().unwrap();
    replace(&sample.path, &Change::default()).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    let exe = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap();
    assert_eq!(exe.to_string_lossy(), format!("{} (deleted)", sample.path.display()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn root_keeps_owner_set_user_id_capabilities_and_lists() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sample = sample();
    umask(Mode::from_bits_truncate(0o077));
    std::os::unix::fs::chown(&sample.path, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(&sample.path, fs::Permissions::from_mode(0o6755)).unwrap();
    // cap_net_raw=ep of version 2 (linux/capability.h).
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let list = list();
    let mut set = vec![];
    for (name, value) in
        [(c"security.capability", &capability[..]), (c"system.posix_acl_access", &list), (c"trusted.x", b"y")]
    {
        if linux::attributes::set(&fs::File::open(&sample.path).unwrap(), name, value).is_ok() {
            set.push((name, value.to_vec()));
        }
    }
    assert!(!set.is_empty(), "no attribute could be set");
    let before = fs::metadata(&sample.path).unwrap();
    replace(&sample.path, &Change::default()).unwrap();
    let after = fs::metadata(&sample.path).unwrap();
    assert_eq!((after.uid(), after.gid(), after.mode()), (1234, 4321, before.mode()));
    for (name, value) in set {
        let found = linux::attributes::of_file(&fs::File::open(&sample.path).unwrap(), name).unwrap();
        assert_eq!(found, value, "{name:?}");
    }
}

/// An access control list of version 2 with an entry for user 77 (linux/posix_acl.h).
fn list() -> Vec<u8> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let none = u32::MAX;
    let entries = [entry(1, 7, none), entry(2, 5, 77), entry(4, 5, none), entry(16, 5, none), entry(32, 5, none)];
    [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

#[test]
fn a_copy_has_no_list_of_its_folder() {
    let sample = sample();
    let source = File::open(&sample.path).unwrap();
    source.set_permissions(fs::Permissions::from_mode(0o750)).unwrap();
    let folder = File::open(sample.folder.path()).unwrap();
    if linux::attributes::set(&folder, c"system.posix_acl_default", &list()).is_err() {
        eprintln!("skipped: no access control lists here");
        return;
    }
    let copy = sample.folder.path().join("copy");
    write_copy(&source, &copy, &Change::default()).unwrap();
    let copy = File::open(copy).unwrap();
    assert!(linux::attributes::of_file(&copy, c"system.posix_acl_access").is_err());
    assert_eq!(copy.metadata().unwrap().mode() & 0o777, 0o750);
}

#[test]
fn holes_are_not_filled() {
    let sample = sample();
    let length = fs::metadata(&sample.path).unwrap().len();
    let file = OpenOptions::new().write(true).open(&sample.path).unwrap();
    file.set_len(10 * length).unwrap();
    drop(file);
    let before = fs::metadata(&sample.path).unwrap();
    assert!(matches!(replace(&sample.path, &Change::default()), Err(ReplaceError::Sparse)));
    let after = fs::metadata(&sample.path).unwrap();
    assert!((before.ino(), before.blocks()) == (after.ino(), after.blocks()) && sample.is_alone());
    // A copy elsewhere has the same holes.
    let copy = sample.folder.path().join("copy");
    write_copy(&File::open(&sample.path).unwrap(), &copy, &Change::default()).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(&sample.path).unwrap());
    let blocks = fs::metadata(&copy).unwrap().blocks() * 512;
    assert!(blocks < 2 * length, "{blocks} bytes on the disk");
}
