//! On the running kernel, with a separate file. Operations that the kernel or the file system does not support are
//! refused with the reason; each test then checks that. A test holds its huge folios as long as it relies on them:
//! reclaim may drop unmapped pages at any time (DAMON does so although memory is free).

use address_space::PageSize;
use linux::pages::transparent_huge_page;
use page_cache::{
    Budget, Effort, Hold, Keeper, KeptFile, LockedFile, MappedFiles, Prepared, Refusal, Users, look, look_and_hold,
    prepare,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 4;
/// An attempt is not repeated for so long if another process has the file mapped as memory shared with it.
const PAUSE: Duration = Duration::from_secs(1);

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
    fn prepare(&self, huge: PageSize, effort: Effort, budget: Budget<'_>) -> Result<Prepared, Refusal> {
        prepare(&self.file, &self.path, 0..u64::MAX, huge, effort, budget)
    }

    /// Evicts the file's pages that are not mapped.
    fn evict(&self) {
        nix::fcntl::posix_fadvise(&self.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }

    /// Makes the whole file small: evicts it, except for mapped pages, and reads it page by page.
    fn make_small(&self, huge: PageSize) {
        nix::fcntl::posix_fadvise(&self.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
        self.evict();
        let mut page = [0; 4096];
        for at in (0..BLOCKS * huge.bytes()).step_by(page.len()) {
            self.file.read_exact_at(&mut page, at).unwrap();
        }
    }

    /// Bytes in huge folios.
    fn huge_bytes(&self, huge: PageSize) -> u64 {
        look(&self.file, 0..u64::MAX, huge).unwrap().bytes()
    }

    /// Number of base pages that are not cached of the whole blocks.
    fn missing(&self, huge: PageSize) -> u64 {
        let pages = BLOCKS * huge.bytes() / linux::pages::base_page().bytes();
        pages - linux::file_cache::cached_pages(&self.file, 0..BLOCKS * huge.bytes()).unwrap().cached
    }

    /// A process that maps the file, until it is dropped: this test program, with one test.
    fn mapped_by_another(&self, present: Present) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "maps_a_file_for_another_test", "--nocapture"])
            .env(FILE_TO_MAP, &self.path)
            .env(PAGES_TO_MAP, format!("{present:?}"))
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
const PAGES_TO_MAP: &str = "PAGE_CACHE_TEST_PAGES_TO_MAP";

/// The pages that another process maps.
#[derive(Debug)]
enum Present {
    All,
    /// Few of each block.
    SomeOfEachBlock,
}

#[test]
fn maps_a_file_for_another_test() {
    let Some(path) = std::env::var_os(FILE_TO_MAP) else { return };
    let (file, huge) = (File::open(path).unwrap(), transparent_huge_page().unwrap());
    let mapping = linux::file_mapping::FileMapping::readable(&file, 0, BLOCKS * huge.bytes(), huge).unwrap();
    match std::env::var(PAGES_TO_MAP).unwrap() == format!("{:?}", Present::All) {
        true => mapping.populate().unwrap(),
        false => mapping.touch(&(0..BLOCKS).map(|block| block * huge.bytes()).collect::<Vec<_>>()).unwrap(),
    }
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

/// False if this machine cannot do it, for a reason outside of the code.
fn can(result: &Result<Prepared, Refusal>) -> bool {
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
    let prepared = sample.prepare(huge, Effort::Always, Budget::UNLIMITED);
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
    // Parts are requested by offset; only whole blocks count.
    let part = look(&sample.file, 1..3 * huge.bytes() - 1, huge).unwrap();
    assert_eq!((part.huge.len(), part.bytes()), (1, huge.bytes()));
    assert!(part.covers(&(huge.bytes()..2 * huge.bytes())));
    assert!(std::fs::read(&sample.path).unwrap() == before);
    // The second time nothing is left to do: the huge blocks are held.
    let again = sample.prepare(huge, Effort::Once, Budget::UNLIMITED).unwrap();
    assert_eq!((again.found, again.created, again.collapsed), (again.of, 0, 0));
}

#[test]
fn what_is_small_is_seen_and_left_where_it_was_not_asked_for() {
    let Some((sample, huge)) = sample() else { return };
    sample.make_small(huge);
    assert!(look(&sample.file, 0..u64::MAX, huge).unwrap().huge.is_empty());
    let refusal = sample.prepare(huge, Effort::Look, Budget::UNLIMITED).unwrap_err();
    assert!(matches!(refusal, Refusal::NotAsked { huge: 0, .. }), "{refusal}");
    assert!(look(&sample.file, 0..u64::MAX, huge).unwrap().huge.is_empty());
}

#[test]
fn a_budget_ends_it_and_the_next_attempt_goes_on() {
    let Some((sample, huge)) = sample() else { return };
    nix::fcntl::posix_fadvise(&sample.file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let budget = Budget { bytes: &|| huge.bytes(), ..Budget::UNLIMITED };
    let first = sample.prepare(huge, Effort::Once, budget);
    if !can(&first) {
        return;
    }
    let first = first.unwrap();
    if first.collapsed == 0 {
        assert!(matches!(first.rest, Some(Refusal::OutOfBudget { .. })), "{:?}", first.rest);
    }
    let second = sample.prepare(huge, Effort::Once, Budget::UNLIMITED).unwrap();
    assert!(second.rest.is_none() && second.found >= first.extents.bytes(), "{second:?}");
    let none = Budget { time: Duration::ZERO, ..Budget::UNLIMITED };
    assert_eq!(sample.prepare(huge, Effort::Once, none).unwrap().found, BLOCKS * huge.bytes());
}

#[test]
fn what_others_map_is_refused_once_and_tried_again_when_they_have_ended() {
    let Some((sample, huge)) = sample() else { return };
    sample.make_small(huge);
    let other = sample.mapped_by_another(Present::All);
    let begin = Instant::now();
    let first = sample.prepare(huge, Effort::Once, Budget::UNLIMITED);
    match &first {
        Ok(prepared) => assert!(prepared.collapsed > 0, "evicted although it was mapped: {prepared:?}"),
        Err(Refusal::Mapped { processes, blocks, .. }) => {
            assert_eq!((processes[0].0, *blocks), (other.0.id() as i32, BLOCKS));
            let second = sample.prepare(huge, Effort::Once, Budget::UNLIMITED).unwrap_err();
            let is_later = begin.elapsed() > PAUSE && matches!(second, Refusal::Mapped { .. });
            assert!(is_later || matches!(second, Refusal::TriedBefore { .. }), "{second}");
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
    let last = sample.prepare(huge, Effort::Once, Budget::UNLIMITED).unwrap();
    assert_eq!(last.extents.bytes(), BLOCKS * huge.bytes());
}

#[test]
fn what_is_no_file_or_too_small_is_refused() {
    let Some((sample, huge)) = sample() else { return };
    let refuse = |file: &File, offsets| {
        prepare(file, &sample.path, offsets, huge, Effort::Always, Budget::UNLIMITED).unwrap_err()
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
    if !can(&sample.prepare(huge, Effort::Always, Budget::UNLIMITED)) {
        return;
    }
    let paths = [sample.path.clone().into()];
    let mut keeper = Keeper::new(huge, None);
    let round = |keeper: &mut Keeper| keeper.round(&paths).remove(0);
    assert!(matches!(round(&mut keeper).kept, KeptFile::Prepared(_)));
    let held = hold_all(&sample.file, huge, || drop(round(&mut keeper)));
    assert!(matches!(round(&mut keeper).kept, KeptFile::Same));
    drop(held);
    sample.evict();
    assert_eq!(sample.huge_bytes(huge), 0);
    drop(hold_all(&sample.file, huge, || drop(round(&mut keeper))));
    // Replaced by a copy of small writes.
    let other = sample.path.with_extension("new");
    std::fs::copy(&sample.path, &other).unwrap();
    std::fs::rename(&other, &sample.path).unwrap();
    assert!(matches!(round(&mut keeper).kept, KeptFile::Prepared(_)));
    let file = File::open(&sample.path).unwrap();
    let held = hold_all(&file, huge, || drop(round(&mut keeper)));
    // Locked within a budget of three blocks, which then stay when the cache is dropped.
    let mut keeper = Keeper::new(huge, Some(3 * huge.bytes() + 1));
    match round(&mut keeper).locked {
        Some(LockedFile::OverBudget { locked, of }) => {
            assert_eq!((locked, of), (3 * huge.bytes(), BLOCKS * huge.bytes()))
        }
        Some(LockedFile::Refused(error)) => return eprintln!("skipped: {error}"),
        other => panic!("{other:?}"),
    }
    assert!(round(&mut keeper).locked.is_none(), "the same was reported again");
    drop(held);
    nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert_eq!(look(&file, 0..u64::MAX, huge).unwrap().bytes(), 3 * huge.bytes());
    drop(keeper);
    std::fs::remove_file(&sample.path).unwrap();
    let mut keeper = Keeper::new(huge, None);
    assert!(matches!(round(&mut keeper).kept, KeptFile::Unreadable(_)));
    assert!(matches!(round(&mut keeper).kept, KeptFile::Same));
}

/// Holds all blocks of a file; `prepare` is called if some were dropped before they were held.
fn hold_all(file: &File, huge: PageSize, mut prepare: impl FnMut()) -> Hold {
    for _ in 0..10 {
        let (found, held) = look_and_hold(file, 0..u64::MAX, huge).unwrap();
        if found.bytes() == BLOCKS * huge.bytes() {
            return held;
        }
        prepare();
    }
    panic!("blocks are dropped or stay small whatever is done");
}

#[test]
fn what_was_prepared_stays_as_long_as_it_is_held() {
    let Some((sample, huge)) = sample() else { return };
    let prepared = sample.prepare(huge, Effort::Always, Budget::UNLIMITED);
    if !can(&prepared) {
        return;
    }
    let Prepared { extents, held, .. } = prepared.unwrap();
    assert_eq!(extents.bytes(), BLOCKS * huge.bytes());
    sample.evict();
    assert_eq!(sample.huge_bytes(huge), BLOCKS * huge.bytes(), "evicted although it was held");
    drop(held);
    sample.evict();
    assert_eq!(sample.huge_bytes(huge), 0, "held by nobody, and not evicted");
    // Small blocks are not held by a look: they can be evicted afterwards.
    sample.make_small(huge);
    let (found, held) = look_and_hold(&sample.file, 0..u64::MAX, huge).unwrap();
    assert_eq!(found.bytes(), 0);
    sample.evict();
    assert!(sample.missing(huge) >= BLOCKS * huge.bytes() / linux::pages::base_page().bytes());
    drop(held);
}

/// After preparing a file that another process maps, all of the file is in the page cache: pages of at most one block
/// were evicted and read again. Reclaim may drop pages meanwhile, so one success in several tries is enough.
#[test]
fn who_maps_a_file_loses_nothing_of_it() {
    let Some((sample, huge)) = sample() else { return };
    for users in [Users::BeforeEviction, Users::OncePagesStay] {
        let missing = (0..10).find_map(|_| {
            sample.make_small(huge);
            let _other = sample.mapped_by_another(Present::SomeOfEachBlock);
            let result = sample.prepare(huge, Effort::Always, Budget { users, ..Budget::UNLIMITED });
            let missing = sample.missing(huge);
            match &result {
                Ok(prepared) => assert!(prepared.collapsed > 0, "evicted although it was mapped: {prepared:?}"),
                Err(Refusal::Mapped { blocks, .. }) => assert_eq!(*blocks, BLOCKS),
                Err(_) => return (!can(&result)).then_some(0),
            }
            (missing == 0).then_some(0)
        });
        assert_eq!(missing, Some(0), "{users:?}: pages are missing after each of 10 tries");
    }
}

#[test]
fn a_keeper_does_not_repeat_what_another_has_tried_in_vain() {
    let Some((sample, huge)) = sample() else { return };
    sample.make_small(huge);
    let other = sample.mapped_by_another(Present::All);
    let begin = Instant::now();
    // As by a timer: each round is a separate one.
    let round = || Keeper::new(huge, None).round(&[sample.path.clone().into()]).remove(0).kept;
    match round() {
        KeptFile::Refused(Refusal::Mapped { .. }) => {}
        // This kernel collapses in place, or the file system has no large folios.
        _ => return,
    }
    let second = round();
    let is_later = begin.elapsed() > PAUSE && matches!(second, KeptFile::Refused(Refusal::Mapped { .. }));
    assert!(is_later || matches!(second, KeptFile::Refused(Refusal::TriedBefore { .. })), "{second:?}");
    drop(other);
    let third = round();
    assert!(matches!(third, KeptFile::Prepared(_)), "{third:?}");
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
    let prepared = sample.prepare(huge, Effort::Once, Budget::UNLIMITED);
    if can(&prepared) {
        let prepared = prepared.unwrap();
        assert_eq!(prepared.extents.bytes(), BLOCKS * huge.bytes(), "{:?}", prepared.rest);
    }
}
