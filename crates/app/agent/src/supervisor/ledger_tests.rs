//! The ledger and its file.

use super::*;

pub fn entry(pid: i32) -> Entry {
    Entry {
        identity: Identity { pid, start: 5 },
        file: ExecutedFile::default(),
        program: "a\u{1b}[8m".to_owned(),
        build: "b".to_owned(),
        owner: 0,
        user: 0,
        rule: "r".to_owned(),
        cgroup: String::new(),
        kinds: vec!["text".to_owned()],
        options: "text auto".to_owned(),
        progress: Progress { state: State::Lifting, refusals: 1 },
        covered: 0,
        sources: Vec::new(),
        lost: 0,
        resident: 0,
        lasting: Share::default(),
        forks: 0,
        pause_microseconds: 0,
        changed: 1,
        refusal: None,
    }
}

#[test]
fn a_ledger_lasts_until_the_next_boot() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::load(folder.path(), "boot").unwrap();
    ledger.put(entry(1));
    ledger.put(entry(2));
    ledger.put(Entry { covered: 7, refusal: Some(Refusal::new(Reason::Traced, "x")), ..entry(1) });
    ledger.block(Block {
        build: "b".to_owned(),
        owner: 0,
        user: 0,
        program: "a".to_owned(),
        why: "it crashed".to_owned(),
    });
    ledger.count(Reason::Traced);
    // Left by a killed agent.
    fs::write(folder.path().join(".lifts.json.new"), "half").unwrap();
    ledger.save(folder.path()).unwrap();
    assert_eq!(Ledger::load(folder.path(), "boot").unwrap(), ledger);
    assert_eq!((ledger.lifts.len(), ledger.lifts[0].covered), (2, 7));
    assert!(ledger.block_of("b", 0, 0).unwrap().text.ends_with("it crashed") && ledger.block_of("c", 0, 0).is_none());
    assert!(Ledger::load(folder.path(), "next boot").unwrap().lifts.is_empty());
    let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
    assert!(foreign_text::is_printable(text.trim_end()), "{text}");
}

/// A build ID is text in a file that any user can write.
#[test]
fn a_user_blocks_no_program_of_the_system() {
    let mut ledger = Ledger::default();
    let block = |owner, why: &str| Block { owner, user: owner, why: why.to_owned(), ..block("b") };
    ledger.block(block(1000, "crafted"));
    assert!(ledger.block_of("b", 1000, 1000).is_some() && ledger.block_of("b", 0, 0).is_none());
    ledger.block(block(0, "real"));
    ledger.block(block(1000, "crafted again"));
    assert_eq!(ledger.blocked.len(), 2);
    assert!(ledger.block_of("b", 0, 0).unwrap().text.ends_with("real"));
    for number in 0..2 * MOST_BLOCKED {
        ledger.block(Block { build: number.to_string(), ..block(1000, "crafted") });
    }
    assert_eq!(ledger.blocked.len(), MOST_BLOCKED);
    assert!(ledger.block_of("b", 0, 0).is_some() && ledger.block_of("b", 1000, 1000).is_none());
}

fn block(build: &str) -> Block {
    Block { build: build.to_owned(), owner: 0, user: 0, program: String::new(), why: String::new() }
}

/// Anybody may execute a file of root, and send a signal to the process.
#[test]
fn a_users_process_blocks_a_program_of_the_system_only_for_that_user() {
    let mut ledger = Ledger::default();
    ledger.block(Block { user: 1000, ..block("b") });
    let is_blocked = |ledger: &Ledger, user| ledger.block_of("b", 0, user).is_some();
    assert!(is_blocked(&ledger, 1000) && !is_blocked(&ledger, 0) && !is_blocked(&ledger, 1001));
    ledger.block(block("b"));
    assert!(is_blocked(&ledger, 1000) && is_blocked(&ledger, 0) && is_blocked(&ledger, 1001));
    for number in 0..2 * MOST_BLOCKED {
        ledger.block(Block { user: 1000, ..block(&number.to_string()) });
    }
    assert!(is_blocked(&ledger, 0), "blocks by a user are forgotten first");
}

#[test]
fn memory_in_place_stays_after_a_refusal_and_a_restore() {
    let share = Share { covered: 8, resident: 4 };
    let refused = Answer { covered: 8, resident: 4, lasting: share, ..Answer::default() };
    let lifted = Answer { covered: 5, resident: 3, ..Answer::default() };
    let entry = entry(1).with(&refused).with(&lifted);
    assert_eq!((entry.covered, entry.resident, entry.lasting), (13, 7, share));
    let restored = entry.clone().restored(Progress { state: State::Restored, refusals: 0 }, 9);
    assert_eq!((restored.covered, restored.resident, restored.lasting, restored.changed), (8, 4, share, 9));
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        "",
        "{",
        "[]",
        "{\"version\":9,\"boot\":\"b\",\"lifts\":[],\"blocked\":[],\"counts\":{\"scans\":0,\"lifts\":0,\"restored\":0,\"refusals\":{}}}",
    ] {
        fs::write(folder.path().join(NAME), text).unwrap();
        assert_eq!(Ledger::load(folder.path(), "b").unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
    }
}

#[test]
fn a_damaged_or_too_large_file_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["{".to_owned(), " ".repeat(LARGEST as usize + 1)] {
        fs::write(folder.path().join(NAME), &text).unwrap();
        let (ledger, what) = Ledger::load_or_move_aside(folder.path(), "boot").unwrap();
        assert!(ledger.lifts.is_empty() && what.unwrap().contains(ASIDE));
        assert_eq!(fs::read_to_string(folder.path().join(ASIDE)).unwrap(), text);
        ledger.save(folder.path()).unwrap();
        assert_eq!(Ledger::load_or_move_aside(folder.path(), "boot").unwrap(), (ledger, None));
    }
}

/// A process whose user chooses the longest names.
fn hostile(pid: i32, state: State) -> Entry {
    let text = "\u{1}".repeat(5_000);
    let program = Program { exe: text.clone(), cgroup: text.clone(), build: "b".repeat(200), ..Program::default() };
    let progress = Progress { state, refusals: 2 };
    let identity = Identity { pid, start: 5 };
    let entry = Entry::new(identity, ExecutedFile::default(), &program, "r", &["text"], progress, pid as u64);
    let source = SourceBytes { source: "hugetlb".to_owned(), page_size: u64::MAX, bytes: u64::MAX };
    Entry { refusal: Some(Refusal::new(Reason::LiftRefused, text)), sources: vec![source; 8], ..entry }
}

/// The agent moved a file aside that it had written itself, and with it the lifts.
#[test]
fn the_file_stays_readable_with_the_longest_texts() {
    const PART: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::load(folder.path(), "boot").unwrap();
    for number in 0..PART {
        ledger.put(hostile(number as i32, State::Refused));
        let why = "\u{1}".repeat(5_000);
        ledger.block(Block { build: number.to_string(), program: why.clone(), why, ..block("") });
    }
    ledger.save(folder.path()).unwrap();
    assert_eq!(Ledger::load(folder.path(), "boot").unwrap(), ledger);
    let size = fs::metadata(folder.path().join(NAME)).unwrap().len();
    let most = size / PART as u64 * MOST_ENTRIES.max(MOST_BLOCKED) as u64;
    assert!(most < LARGEST, "{most}");
}

/// Entries of plain processes give way to others.
#[test]
fn the_number_of_entries_is_bounded() {
    let mut ledger = Ledger::default();
    let of = |pid, state| Entry { progress: Progress { state, refusals: 2 }, changed: pid as u64, ..entry(pid) };
    let last = MOST_ENTRIES as i32 + 500;
    (1..=last).for_each(|pid| ledger.put(of(pid, if pid <= 100 { State::Kept } else { State::Refused })));
    assert_eq!((ledger.lifts.len(), ledger.is_full()), (MOST_ENTRIES, None));
    let pids: Vec<i32> = ledger.lifts.iter().map(|entry| entry.identity.pid).collect();
    assert!((1..=100).all(|pid| pids.contains(&pid)) && pids.contains(&last) && !pids.contains(&101));
    ledger.lifts.iter_mut().for_each(|entry| entry.progress.state = State::Kept);
    assert_eq!(ledger.is_full().map(|refusal| refusal.reason), Some(Reason::TooManyLifted));
}

/// Two long paths with the same beginning are two cgroups.
#[test]
fn long_paths_of_cgroups_have_their_own_budgets() {
    let path = |end: &str| "a/".repeat(400) + end;
    let program = |end: &str| Program { cgroup: path(end), ..Program::default() };
    let mut ledger = Ledger::default();
    for (pid, end) in [(1, "x"), (2, "y")] {
        let identity = Identity { pid, start: 5 };
        let entry = Entry::new(identity, Default::default(), &program(end), "r", &[], Progress::default(), 1);
        ledger.put(Entry { resident: pid as u64, ..entry });
    }
    assert_eq!((ledger.resident_of_lifts(&path("x")), ledger.resident_of_lifts(&path("y"))), ((3, 1), (3, 2)));
    assert!(ledger.lifts[0].cgroup.len() <= LONGEST_CGROUP + 4);
}
