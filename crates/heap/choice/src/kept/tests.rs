use super::*;
use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// A file that was not changed for long.
const SHELL: &str = "/bin/sh";

/// A folder for facts, and the identity of an executable.
struct AllocatorOrigin {
    above: tempfile::TempDir,
    executable: FileIdentity,
}

impl AllocatorOrigin {
    fn new() -> Self {
        let executable = FileIdentity::of(&std::fs::metadata(SHELL).unwrap());
        Self { above: tempfile::tempdir().unwrap(), executable }
    }

    fn folder(&self) -> PathBuf {
        self.above.path().join("pagelift/heap-facts")
    }

    fn open(&self) -> KeptFacts {
        KeptFacts::in_folder(self.folder(), &self.executable).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder().join(self.open().name)
    }

    /// Keeps the shell's facts.
    fn keep(&self) {
        let mut kept = self.open();
        assert_eq!(read_again(&mut kept, Path::new(SHELL)), facts_of(SHELL).map(|facts| (facts, true)));
        kept.read = WORTH_KEEPING;
        kept.keep();
    }

    /// True if the shell's facts are kept, and the same.
    fn has_kept(&self) -> bool {
        let (facts, was_read) = read_again(&mut self.open(), Path::new(SHELL)).unwrap();
        assert_eq!(Some(facts), facts_of(SHELL));
        !was_read
    }
}

fn facts_of(path: &str) -> Option<ElfFacts> {
    ElfFacts::read(Path::new(path), Reads::Library).unwrap()
}

/// The facts of a file, and whether it was read for them.
fn read_again(kept: &mut KeptFacts, path: &Path) -> Option<(ElfFacts, bool)> {
    let was_read = Cell::new(false);
    let read = || {
        was_read.set(true);
        ElfFacts::read(path, Reads::Library)
    };
    let facts = kept.of_file(&std::fs::metadata(path).unwrap(), Reads::Library, read).unwrap()?;
    Some((ElfFacts { path: path.to_owned(), ..facts }, was_read.get()))
}

#[test]
fn a_file_is_read_once() {
    let place = AllocatorOrigin::new();
    assert!(!place.has_kept());
    place.keep();
    assert!(place.has_kept());
    assert_eq!(std::fs::metadata(place.file()).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(std::fs::metadata(place.folder()).unwrap().mode() & 0o7777, 0o700);
    // The facts about the shell stay if another file's facts are added.
    let mut kept = place.open();
    assert!(read_again(&mut kept, Path::new(SHELL)).is_some_and(|(_, was_read)| !was_read));
    assert!(read_again(&mut kept, Path::new("/usr/bin/env")).is_some_and(|(_, was_read)| was_read));
    kept.read = WORTH_KEEPING;
    kept.keep();
    assert!(place.has_kept());
    assert!(read_again(&mut place.open(), Path::new("/usr/bin/env")).is_some_and(|(_, was_read)| !was_read));
}

#[test]
fn little_work_is_not_kept() {
    let place = AllocatorOrigin::new();
    let mut kept = place.open();
    read_again(&mut kept, Path::new(SHELL)).unwrap();
    kept.keep();
    assert!(!place.folder().exists());
}

#[test]
fn a_changed_file_is_read() {
    let place = AllocatorOrigin::new();
    let file = place.above.path().join("program");
    std::fs::copy(SHELL, &file).unwrap();
    let mut kept = place.open();
    assert!(read_again(&mut kept, &file).is_some_and(|(_, was_read)| was_read));
    assert_eq!((kept.read, kept.records.len()), (0, 0), "it was written a moment ago");
    // As if it had been kept before it was written to.
    let mut older = FileIdentity::of(&std::fs::metadata(&file).unwrap());
    older.changed.1 -= 1;
    record::add(&mut kept.records, &(older, Reads::Library), &ElfFacts::default());
    kept.write().unwrap();
    assert!(read_again(&mut place.open(), &file).is_some_and(|(_, was_read)| was_read));
}

#[test]
fn the_facts_of_another_build_do_not_count() {
    let place = AllocatorOrigin::new();
    place.keep();
    let mut kept = place.open();
    assert_eq!(kept.places.len(), 1);
    let mut other = kept.build;
    other.modified.1 ^= 1;
    kept.build = other;
    read_again(&mut kept, Path::new(SHELL)).unwrap();
    kept.write().unwrap();
    assert!(!place.has_kept());
}

#[test]
fn only_a_file_of_this_user_alone_counts() {
    let place = AllocatorOrigin::new();
    place.keep();
    let file = place.file();
    for mode in [0o604, 0o660, 0o602] {
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        assert!(!place.has_kept(), "{mode:o}");
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert!(place.has_kept());
    let other = place.above.path().join("other name");
    std::fs::hard_link(&file, &other).unwrap();
    assert!(!place.has_kept(), "it has two names");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    assert!(!place.has_kept(), "a link leads to it");
    std::fs::remove_file(&file).unwrap();
    std::fs::rename(&other, &file).unwrap();
    assert!(place.has_kept());
    if geteuid().is_root() {
        nix::unistd::chown(&file, Some(65534.into()), None).unwrap();
        assert!(!place.has_kept(), "it is another user's");
    }
}

#[test]
fn facts_are_not_written_where_others_write() {
    let place = AllocatorOrigin::new();
    place.keep();
    std::fs::remove_file(place.file()).unwrap();
    for (folder, mode) in [(place.folder(), 0o720), (place.above.path().join("pagelift"), 0o777)] {
        let before = std::fs::metadata(&folder).unwrap().permissions();
        std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        place.keep();
        assert!(!place.has_kept(), "{}", folder.display());
        std::fs::set_permissions(&folder, before).unwrap();
    }
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::remove_dir(place.folder()).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), place.folder()).unwrap();
    place.keep();
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_another_process_writes_is_left_alone() {
    let place = AllocatorOrigin::new();
    place.keep();
    let new = place.folder().join(format!("{}.new", place.open().name));
    std::fs::remove_file(place.file()).unwrap();
    std::fs::write(&new, "half").unwrap();
    place.keep();
    assert!(!place.has_kept() && new.exists());
    std::fs::remove_file(&new).unwrap();
    place.keep();
    assert!(place.has_kept() && !new.exists());
}

#[test]
fn damaged_facts_are_no_facts() {
    let place = AllocatorOrigin::new();
    place.keep();
    let contents = std::fs::read(place.file()).unwrap();
    let build = place.open().build;
    assert_eq!(record::places(&contents, &build).map(|places| places.len()), Some(1));
    for length in 0..contents.len() {
        let places = record::places(&contents[..length], &build);
        assert!(places.is_none_or(|places| places.is_empty()), "{length}");
    }
    for at in 0..contents.len() {
        let mut damaged = contents.clone();
        damaged[at] ^= 0xff;
        for place in record::places(&damaged, &build).unwrap_or_default().into_values() {
            // No panic; the facts may be any.
            let _ = record::facts(&damaged[place]);
        }
    }
    let large = vec![0; KEPT_FACTS.bytes() as usize + 1];
    std::fs::write(place.file(), large).unwrap();
    assert!(!place.has_kept());
}

#[test]
fn all_facts_are_kept() {
    let text = |text: &str| Some(text.to_owned());
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let facts = ElfFacts {
        path: PathBuf::new(),
        machine: 62,
        interpreter: text("/lib64/ld-linux-x86-64.so.2"),
        is_dynamic: true,
        needed: vec!["libz.so".to_owned(), "liba.so".to_owned(), String::new()],
        rpath: text(""),
        runpath: text("/run\u{e9}"),
        soname: text("libx.so"),
        defines: set(&["malloc", "free"]),
        exports: set(&["malloc"]),
        imports: set(&["dlsym"]),
        is_go: true,
        go_version: text("go1.26"),
        jvm_version: text("21+35"),
        glibc_minor: Some(36),
        needed_glibc_minor: Some(17),
        jemalloc_version: text("5.3.0"),
        jemalloc_variable: text("MALLOC_CONF"),
        gperftools_version: text("2.10"),
        v8_version: text("11.3.244.8-node.38"),
        settings: set(&["opt.purge"]),
    };
    let key = (AllocatorOrigin::new().executable, Reads::Executable);
    for facts in [facts, ElfFacts::default()] {
        let mut records = Vec::new();
        record::add(&mut records, &key, &facts);
        let file = record::file(&key.0, &records);
        let places = record::places(&file, &key.0).unwrap();
        assert_eq!(record::facts(&file[places[&key].clone()]), Some(facts));
    }
}

#[test]
fn only_facts_of_elf_files_that_were_read_are_kept() {
    let place = AllocatorOrigin::new();
    let metadata = std::fs::metadata(SHELL).unwrap();
    let mut kept = place.open();
    assert_eq!(kept.of_file(&metadata, Reads::Library, || Ok(None)).unwrap(), None);
    let refused = kept.of_file(&metadata, Reads::Library, || Err(io::ErrorKind::Other.into()));
    assert!(refused.is_err() && kept.records.is_empty() && kept.read == 0);
    // A file whose reads fail has no facts.
    let path = place.above.path().join("program");
    std::fs::copy(SHELL, &path).unwrap();
    let unreadable = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert!(ElfFacts::of_file(&path, &unreadable, Reads::Library).is_err());
    assert_eq!(ElfFacts::read(&path, Reads::Library).unwrap(), facts_of(SHELL).map(|facts| ElfFacts { path, ..facts }));
}

#[test]
fn only_files_whose_identity_changes_with_them_have_kept_facts() {
    let metadata = std::fs::metadata(SHELL).unwrap();
    let kept = |root| KeptFacts { root, ..AllocatorOrigin::new().open() };
    let (here, elsewhere) = (kept(Some(metadata.dev())), kept(Some(metadata.dev() + 1)));
    let [ext4, tmpfs, squashfs, fuse] = [0xef53, 0x0102_1994, 0x7371_7368, 0x6573_5546].map(FsType);
    let of = |kept: &KeptFacts| {
        [ext4, OVERLAYFS_SUPER_MAGIC, squashfs, tmpfs, fuse].map(|kind| kept.has_identity(kind, &metadata))
    };
    assert_eq!(of(&here), [true, true, true, false, false]);
    assert_eq!(of(&elsewhere), [true, false, false, false, false], "another one may be mounted there later");
}
