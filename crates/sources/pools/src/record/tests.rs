use super::*;
use crate::simulated::{Simulated, SimulatedNode};
use crate::{Goal, release};
use address_space::PageSize;
use std::os::unix::fs::{PermissionsExt, symlink};

fn machine(at_once: &[u64]) -> Simulated {
    let node = |&at_once: &u64| SimulatedNode { at_once, ..SimulatedNode::default() };
    Simulated::new(&at_once.iter().map(node).collect::<Vec<_>>())
}

fn requests(texts: &[&str]) -> Vec<PoolRequest> {
    texts.iter().map(|text| Simulated::request(text)).collect()
}

/// Does the work of a unit's start.
fn start(machine: &Simulated, record: &ReservationRecord, texts: &[&str]) -> RecordedOutcome {
    let base_page = PageSize::new(1 << 12).unwrap();
    let options =
        ReserveOptions { goal: Goal::Persistent, floor: 0, drop_caches: false, all_or_nothing: false, base_page };
    record.reserve(machine, &requests(texts), &options).unwrap()
}

/// Does the work of a unit's stop. Returns the number of pages taken out of the pool, and the number that the system
/// got back.
fn stop(machine: &Simulated, record: &ReservationRecord, texts: &[&str]) -> (u64, u64, Option<String>) {
    let RecordedRelease { given, note } = record.release(machine, &requests(texts)).unwrap();
    let sum = |of: fn(&GivenBack) -> u64| given.iter().map(of).sum::<u64>();
    (sum(|given| given.change.pages), sum(|given| given.freed), note)
}

/// Pages of each node: all, free, surplus.
fn pools(machine: &Simulated) -> Vec<(u64, u64, u64)> {
    machine.nodes.borrow().iter().map(|node| (node.total, node.free, node.surplus)).collect()
}

fn use_all(machine: &Simulated) {
    machine.nodes.borrow_mut().iter_mut().for_each(|node| node.free = 0);
}

fn record(folder: &tempfile::TempDir) -> ReservationRecord {
    ReservationRecord::within(folder.path(), "db").unwrap()
}

#[test]
fn a_restart_takes_its_own_pages_again() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[200]));
    let record = record(&folder);
    start(&machine, &record, &["2M:64"]);
    use_all(&machine);
    assert_eq!(stop(&machine, &record, &["2M:64"]), (64, 0, None));
    assert_eq!(pools(&machine), [(64, 0, 64)]);
    // They take no memory, so that neither the floor nor pieces of memory matter.
    machine.available.set(0);
    machine.nodes.borrow_mut()[0].at_once = 0;
    let again = start(&machine, &record, &["2M:64"]);
    assert_eq!(pools(&machine), [(64, 0, 0)]);
    let outcome = &again.outcomes[0];
    assert!(outcome.is_met() && outcome.obstacles.is_empty() && outcome.available == 0, "{outcome:?}");
    assert_eq!(machine.writes_to("compact_memory"), 0, "memory was compacted without need");
}

#[test]
fn a_start_after_one_that_got_some_adds_the_others() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[40, 0]));
    let record = record(&folder);
    let some = &start(&machine, &record, &["2M:64"]).outcomes[0];
    assert_eq!((some.wanted, some.added, some.held, some.is_met()), (64, 40, 0, false));
    machine.nodes.borrow_mut()[1].at_once = 100;
    let others = &start(&machine, &record, &["2M:64"]).outcomes[0];
    assert_eq!((others.wanted, others.added, others.held, others.is_met()), (24, 24, 40, true));
    let none = &start(&machine, &record, &["2M:64"]).outcomes[0];
    assert_eq!((none.wanted, none.held, none.is_met()), (0, 64, true));
    assert_eq!(machine.totals(), [40, 24]);
    let text = fs::read_to_string(record.path()).unwrap();
    assert!(text.ends_with("\nboot unknown\n2M:40@0\n2M:24@1\n"), "{text}");
    assert_eq!(stop(&machine, &record, &["2M:64"]), (64, 64, None));
    assert_eq!(machine.totals(), [0, 0]);
}

#[test]
fn pages_of_a_node_stay_its_own() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[9, 9]));
    let record = record(&folder);
    start(&machine, &record, &["2M:3@0", "2M:4@1"]);
    use_all(&machine);
    start(&machine, &record, &["2M:5@0", "2M:4@1", "2M:1"]);
    assert_eq!(machine.totals().iter().sum::<u64>(), 10);
    assert_eq!(stop(&machine, &record, &[]), (10, 3, None));
    start(&machine, &record, &["2M:3@0", "2M:4@1"]);
    assert_eq!(pools(&machine), [(3, 0, 0), (4, 0, 0)]);
}

#[test]
fn without_a_record_the_pages_that_are_named_go_back() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[100]));
    let record = record(&folder);
    // As a unit of a Pagelift that wrote no record leaves them, beside others of the kernel's command line.
    machine.nodes.borrow_mut()[0].total = 74;
    let (pages, freed, note) = stop(&machine, &record, &["2M:64"]);
    assert_eq!((pages, freed, pools(&machine)), (64, 0, vec![(74, 0, 64)]));
    assert!(note.unwrap().contains("found no "));
    assert!(start(&machine, &record, &["2M:64"]).outcomes[0].is_met());
    assert_eq!(pools(&machine), [(74, 0, 0)]);
    stop(&machine, &record, &["2M:64"]);
    assert_eq!(stop(&machine, &record, &["2M:64"]), (0, 0, None), "the pages of others were given back");
}

#[test]
fn a_record_that_cannot_be_used_is_replaced() {
    let machine = machine(&[100]);
    let others = [
        "",
        "no record",
        "boot unknown\n2M:-1\n",
        "boot unknown\n2M:1 and more\n",
        "# a comment\n2M:1\n",
        "writable",
        "link",
    ];
    for text in others {
        let folder = tempfile::tempdir().unwrap();
        let record = record(&folder);
        let victim = folder.path().join("victim");
        match text {
            "link" => {
                fs::write(&victim, "boot unknown\n2M:3\n").unwrap();
                symlink(&victim, record.path()).unwrap();
            }
            "writable" => {
                fs::write(record.path(), "boot unknown\n2M:3\n").unwrap();
                fs::set_permissions(record.path(), fs::Permissions::from_mode(0o646)).unwrap();
            }
            text => fs::write(record.path(), text).unwrap(),
        }
        let started = start(&machine, &record, &["2M:4"]);
        assert!(started.note.is_some_and(|note| note.contains(".record: ")), "{text}");
        assert_eq!(machine.totals(), [4], "{text}");
        let files = folder.path().read_dir().unwrap().count();
        assert_eq!(files, 1 + usize::from(text == "link"), "{text}: a file was left");
        assert_eq!(stop(&machine, &record, &[]), (4, 4, None), "{text}");
        if text == "link" {
            assert!(fs::read_to_string(victim).unwrap().ends_with("2M:3\n"), "the link was followed");
        }
    }
}

#[test]
fn another_boot_has_forgotten_the_pages() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[100]));
    let record = record(&folder);
    fs::write(record.path(), "boot another\n2M:4@0\n").unwrap();
    let started = start(&machine, &record, &["2M:4"]);
    assert_eq!((started.note, machine.totals()), (None, vec![4]));
}

#[test]
fn pages_that_somebody_has_released_are_added_again() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[100]));
    let (first, second) = (record(&folder), ReservationRecord::within(folder.path(), "web").unwrap());
    start(&machine, &first, &["2M:10"]);
    start(&machine, &second, &["2M:7"]);
    let records = records_in(folder.path(), &machine);
    release(&machine, &records, &"2M:7".parse().unwrap()).unwrap();
    // Those that are left may be either's: no reservation counts on another's.
    assert!(start(&machine, &second, &["2M:7"]).outcomes[0].is_met());
    assert_eq!(machine.totals(), [17]);
    release(&machine, &records, &"2M:17".parse().unwrap()).unwrap();
    assert_eq!(stop(&machine, &first, &["2M:10"]), (0, 0, None));
}

#[test]
fn all_does_not_include_recorded_pages() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[40, 40]));
    let (first, second) = (record(&folder), ReservationRecord::within(folder.path(), "web").unwrap());
    start(&machine, &first, &["2M:10@0"]);
    start(&machine, &second, &["2M:3@0", "2M:4@1"]);
    let others = |pages: [u64; 2]| {
        for (node, pages) in machine.nodes.borrow_mut().iter_mut().zip(pages) {
            (node.total, node.free) = (node.total + pages, node.free + pages);
        }
    };
    let release_of = |text: &str| {
        let records = records_in(folder.path(), &machine);
        let released = release(&machine, &records, &text.parse().unwrap()).unwrap();
        let kept: Vec<_> = released.recorded.into_iter().map(|kept| (kept.name, kept.pages)).collect();
        (released.pages, released.kept, kept)
    };
    let kept = |db: u64, web: u64| vec![("db".to_owned(), db), ("web".to_owned(), web)];
    others([5, 6]);
    assert_eq!(release_of("2M:all@0"), (5, 0, kept(10, 3)));
    others([5, 0]);
    assert_eq!(release_of("2M:all"), (11, 0, kept(10, 7)));
    assert_eq!(machine.totals(), [13, 4]);
    // The program of one record, or another program, uses 6 pages. The other record's program has not started.
    machine.nodes.borrow_mut()[0].free -= 6;
    assert_eq!(release_of("2M:all").0, 0);
    // A number includes recorded pages.
    assert_eq!(release_of("2M:2@1"), (2, 0, Vec::new()));
}

#[test]
fn nothing_stays_added_where_it_cannot_be_recorded() {
    let machine = machine(&[100]);
    let nowhere = ReservationRecord::within(Path::new("/nowhere/to/be/found"), "db").unwrap();
    let base_page = PageSize::new(1 << 12).unwrap();
    let options =
        ReserveOptions { goal: Goal::Persistent, floor: 0, drop_caches: false, all_or_nothing: false, base_page };
    let error = nowhere.reserve(&machine, &requests(&["2M:4"]), &options).unwrap_err();
    assert!(error.to_string().contains("pagelift-pool-db.record: No such file"), "{error}");
    assert_eq!(machine.totals(), [0]);
    assert!(ReservationRecord::of("../db").is_err() && ReservationRecord::of("").is_err());
}

#[test]
fn pages_stay_where_their_release_cannot_be_recorded() {
    let (folder, machine) = (tempfile::tempdir().unwrap(), machine(&[100, 100]));
    let record = record(&folder);
    // The pages of the kernel's command line.
    machine.nodes.borrow_mut()[0].total = 10;
    start(&machine, &record, &["2M:4@0", "2M:4@1"]);
    let before = fs::read_to_string(record.path()).unwrap();
    // No new file can be written.
    let new = folder.path().join("pagelift-pool-db.new");
    fs::create_dir(&new).unwrap();
    let error = record.release(&machine, &requests(&["2M:4@0", "2M:4@1"])).unwrap_err();
    assert!(error.to_string().contains("pagelift-pool-db.record: "), "{error}");
    assert_eq!((machine.totals(), fs::read_to_string(record.path()).unwrap()), (vec![14, 4], before));
    fs::remove_dir(&new).unwrap();
    assert_eq!(stop(&machine, &record, &[]), (8, 8, None));
    assert_eq!(machine.totals(), [10, 0]);
}

#[test]
fn pages_that_the_kernel_keeps_stay_recorded() {
    let (folder, mut machine) = (tempfile::tempdir().unwrap(), machine(&[100, 100]));
    let record = record(&folder);
    start(&machine, &record, &["2M:4@0", "2M:3@1"]);
    machine.refuses = Some(("node1/", 22));
    assert!(record.release(&machine, &[]).is_err());
    assert_eq!(machine.totals(), [0, 3]);
    assert!(fs::read_to_string(record.path()).unwrap().ends_with("boot unknown\n2M:3@1\n"));
    machine.refuses = None;
    assert_eq!(stop(&machine, &record, &[]), (3, 3, None));
}
