//! On the running kernel, with a file of its own. What the kernel or the file system cannot do is refused with its reason;
//! each test then checks that.

use address_space::PageSize;
use linux::pages::transparent_huge_page;
use page_cache::{Budget, Keeper, KeptFile, LockedFile, MappedFiles, Prepare, Refusal, look, prepare};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BLOCKS: u64 = 4;

struct Sample {
    path: PathBuf,
    file: File,
    _folder: tempfile::TempDir,
}

/// A file of four blocks and a half, written in small pieces, on disk. Its beginning is small after that in any case.
fn sample() -> Option<(Sample, PageSize)> {
    let huge = transparent_huge_page()?;
    // Not /tmp, which may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("sample");
    let mut file = File::create(&path).unwrap();
    let piece: Vec<u8> = (0..1 << 16).map(|at: u32| (at % 251) as u8).collect();
    for _ in 0..(BLOCKS * huge.bytes() + huge.bytes() / 2) / piece.len() as u64 {
        file.write_all(&piece).unwrap();
    }
    file.sync_all().unwrap();
    let file = File::open(&path).unwrap();
    Some((Sample { path, file, _folder: folder }, huge))
}

impl Sample {
    fn prepare(&self, huge: PageSize, way: Prepare, budget: Budget) -> Result<page_cache::Prepared, Refusal> {
        prepare(&self.file, &self.path, 0..u64::MAX, huge, way, budget)
    }

    /// A process that maps the file with every page present, until it is dropped: this test program, with one test.
    fn mapped_by_another(&self) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "maps_a_file_for_another_test", "--nocapture"])
            .env(FILE_TO_MAP, &self.path)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        child.stderr.as_mut().unwrap().read_exact(&mut ready).unwrap();
        Other(child)
    }
}

const FILE_TO_MAP: &str = "PAGE_CACHE_TEST_FILE_TO_MAP";

#[test]
fn maps_a_file_for_another_test() {
    let Some(path) = std::env::var_os(FILE_TO_MAP) else { return };
    let (file, huge) = (File::open(path).unwrap(), transparent_huge_page().unwrap());
    let mapping = linux::file_mapping::FileMapping::readable(&file, 0, BLOCKS * huge.bytes(), huge).unwrap();
    mapping.populate().unwrap();
    eprintln!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// False where this machine cannot do it, for a reason that is not the code's.
fn can(result: &Result<page_cache::Prepared, Refusal>) -> bool {
    match result {
        Ok(_) => true,
        Err(
            refusal @ (Refusal::FileSystem { .. }
            | Refusal::KernelTooOld { .. }
            | Refusal::DataJournal(_)
            | Refusal::Encrypted(_)
            | Refusal::Verity(_)
            | Refusal::StayedSmall { .. }),
        ) => {
            eprintln!("skipped: {refusal}");
            false
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn a_file_gets_into_huge_folios_and_keeps_its_contents() {
    let Some((sample, huge)) = sample() else { return };
    let before = std::fs::read(&sample.path).unwrap();
    let prepared = sample.prepare(huge, Prepare::Always, Budget::UNLIMITED);
    if !can(&prepared) {
        return;
    }
    let prepared = prepared.unwrap();
    assert!(prepared.rest.is_none(), "{:?}", prepared.rest);
    assert_eq!((prepared.of, prepared.extents.bytes()), (BLOCKS * huge.bytes(), BLOCKS * huge.bytes()));
    assert_eq!(prepared.found + prepared.created + prepared.collapsed, prepared.of);
    let seen = look(&sample.file, 0..u64::MAX, huge).unwrap();
    assert_eq!(seen, prepared.extents);
    assert!(seen.covers(&(0..BLOCKS * huge.bytes())) && !seen.covers(&(0..seen.file_length)));
    // Parts are asked for by offset, whole blocks alone count.
    let part = look(&sample.file, 1..3 * huge.bytes() - 1, huge).unwrap();
    assert_eq!((part.huge.len(), part.bytes()), (1, huge.bytes()));
    assert!(part.covers(&(huge.bytes()..2 * huge.bytes())));
    assert!(std::fs::read(&sample.path).unwrap() == before);
    // The second time nothing is left to do.
    let again = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED).unwrap();
    assert_eq!((again.found, again.created, again.collapsed), (again.of, 0, 0));
}

#[test]
fn what_is_small_is_seen_and_left_where_it_was_not_asked_for() {
    let Some((sample, huge)) = sample() else { return };
    // Read again in small pieces.
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    let mut page = [0; 4096];
    for at in (0..BLOCKS * huge.bytes()).step_by(page.len()) {
        sample.file.read_exact_at(&mut page, at).unwrap();
    }
    assert!(look(&sample.file, 0..u64::MAX, huge).unwrap().huge.is_empty());
    let refusal = sample.prepare(huge, Prepare::Never, Budget::UNLIMITED).unwrap_err();
    assert!(matches!(refusal, Refusal::NotAsked { huge: 0, .. }), "{refusal}");
    assert!(look(&sample.file, 0..u64::MAX, huge).unwrap().huge.is_empty());
}

#[test]
fn a_budget_ends_it_and_the_next_attempt_goes_on() {
    let Some((sample, huge)) = sample() else { return };
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let budget = Budget { time: Duration::MAX, bytes: huge.bytes() };
    let first = sample.prepare(huge, Prepare::Auto, budget);
    if !can(&first) {
        return;
    }
    let first = first.unwrap();
    if first.collapsed == 0 {
        assert!(matches!(first.rest, Some(Refusal::OutOfBudget { .. })), "{:?}", first.rest);
    }
    let second = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED).unwrap();
    assert!(second.rest.is_none(), "{:?}", second.rest);
    let none = Budget { time: Duration::ZERO, bytes: u64::MAX };
    assert_eq!(sample.prepare(huge, Prepare::Auto, none).unwrap().found, BLOCKS * huge.bytes());
}

#[test]
fn what_others_map_is_refused_once_and_tried_again_when_they_have_ended() {
    let Some((sample, huge)) = sample() else { return };
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let mut page = [0; 4096];
    for at in (0..BLOCKS * huge.bytes()).step_by(page.len()) {
        sample.file.read_exact_at(&mut page, at).unwrap();
    }
    let other = sample.mapped_by_another();
    let first = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED);
    match &first {
        Ok(prepared) => assert!(prepared.collapsed > 0, "evicted although it was mapped: {prepared:?}"),
        Err(Refusal::Mapped { processes, blocks, .. }) => {
            assert_eq!((processes[0].0, *blocks), (other.0.id() as i32, BLOCKS));
            let second = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED).unwrap_err();
            assert!(matches!(second, Refusal::TriedBefore { .. }), "{second}");
            assert_eq!(second.to_string().matches("; fix").count(), 1, "{second}");
            let users = MappedFiles::read().unwrap().users_of(&sample.file, huge).unwrap();
            assert_eq!(users.processes(), [other.0.id() as i32]);
        }
        Err(_) => {
            can(&first);
            return;
        }
    }
    drop(other);
    let last = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED).unwrap();
    assert_eq!(last.extents.bytes(), BLOCKS * huge.bytes());
}

#[test]
fn what_is_no_file_or_too_small_is_refused() {
    let Some((sample, huge)) = sample() else { return };
    let refuse = |file: &File, offsets| {
        prepare(file, &sample.path, offsets, huge, Prepare::Always, Budget::UNLIMITED).unwrap_err()
    };
    assert!(matches!(refuse(&File::open("/").unwrap(), 0..u64::MAX), Refusal::NotRegular));
    assert!(matches!(refuse(&sample.file, 1..huge.bytes()), Refusal::TooSmall { .. }));
    assert!(look(&sample.file, 1..huge.bytes(), huge).unwrap().huge.is_empty());
}

#[test]
fn a_truncated_file_harms_nobody() {
    let Some((sample, huge)) = sample() else { return };
    File::options().write(true).open(&sample.path).unwrap().set_len(huge.bytes() / 2).unwrap();
    assert!(look(&sample.file, 0..u64::MAX, huge).unwrap().huge.is_empty());
}

#[test]
fn a_keeper_prepares_again_what_was_dropped_or_replaced_and_holds_what_it_locks() {
    let Some((sample, huge)) = sample() else { return };
    if !can(&sample.prepare(huge, Prepare::Always, Budget::UNLIMITED)) {
        return;
    }
    let drop_pages = |sample: &Sample| {
        nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        look(&sample.file, 0..u64::MAX, huge).unwrap().bytes()
    };
    let paths = [sample.path.clone()];
    let mut keeper = Keeper::new(huge, None);
    let round = |keeper: &mut Keeper| keeper.round(&paths).remove(0);
    assert!(matches!(round(&mut keeper).kept, KeptFile::Prepared(_)));
    assert!(matches!(round(&mut keeper).kept, KeptFile::Same));
    assert_eq!(drop_pages(&sample), 0);
    round(&mut keeper);
    assert_eq!(look(&sample.file, 0..u64::MAX, huge).unwrap().bytes(), BLOCKS * huge.bytes());
    // Replaced by a copy of small writes.
    let other = sample.path.with_extension("new");
    std::fs::copy(&sample.path, &other).unwrap();
    std::fs::rename(&other, &sample.path).unwrap();
    assert!(matches!(round(&mut keeper).kept, KeptFile::Prepared(_)));
    let file = File::open(&sample.path).unwrap();
    assert_eq!(look(&file, 0..u64::MAX, huge).unwrap().bytes(), BLOCKS * huge.bytes());
    // Locked within a budget of three blocks, which then stay when the cache is dropped.
    let mut keeper = Keeper::new(huge, Some(3 * huge.bytes() + 1));
    match round(&mut keeper).locked {
        Some(LockedFile::OverBudget { locked, of }) => {
            assert_eq!((locked, of), (3 * huge.bytes(), BLOCKS * huge.bytes()))
        }
        Some(LockedFile::Refused(error)) => return eprintln!("skipped: {error}"),
        other => panic!("{other:?}"),
    }
    nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert_eq!(look(&file, 0..u64::MAX, huge).unwrap().bytes(), 3 * huge.bytes());
    drop(keeper);
    std::fs::remove_file(&sample.path).unwrap();
    assert!(matches!(round(&mut Keeper::new(huge, None)).kept, KeptFile::Unreadable(_)));
}

/// Pages that are cached here and there must not end up in the next block's read-ahead, in small pieces.
#[test]
fn scattered_pages_do_not_keep_blocks_small() {
    let Some((sample, huge)) = sample() else { return };
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    for at in (0..BLOCKS * huge.bytes()).step_by(64 << 10) {
        sample.file.read_exact_at(&mut [0], at).unwrap();
    }
    let prepared = sample.prepare(huge, Prepare::Auto, Budget::UNLIMITED);
    if can(&prepared) {
        let prepared = prepared.unwrap();
        assert_eq!(prepared.extents.bytes(), BLOCKS * huge.bytes(), "{:?}", prepared.rest);
    }
}
