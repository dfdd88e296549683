use super::*;
use crate::simulated::{Simulated, SimulatedNode};
use crate::{Amount, ReleaseRequest, release};

fn node(at_once: u64, after_compaction: u64) -> SimulatedNode {
    SimulatedNode { at_once, after_compaction, ..SimulatedNode::default() }
}

fn options(goal: Goal) -> ReserveOptions {
    let base_page = PageSize::new(1 << 12).unwrap();
    ReserveOptions { goal, floor: 0, drop_caches: false, all_or_nothing: false, base_page }
}

fn run(machine: &Simulated, texts: &[&str], options: &ReserveOptions) -> Vec<ReserveOutcome> {
    let requests: Vec<_> = texts.iter().map(|text| Simulated::request(text)).collect();
    reserve(machine, &requests, options).unwrap()
}

#[test]
fn only_what_is_missing_is_added() {
    let machine = Simulated::new(&[SimulatedNode { total: 5, free: 4, ..node(100, 0) }]);
    let met = &run(&machine, &["2M:10"], &options(Goal::Available))[0];
    assert_eq!((met.available_before, met.wanted, met.added, met.is_met()), (4, 6, 6, true));
    assert_eq!(machine.totals(), [11]);
    let again = &run(&machine, &["2M:10"], &options(Goal::Available))[0];
    assert_eq!((again.wanted, again.added, again.is_met()), (0, 0, true));
    let added = &run(&machine, &["2M:10"], &options(Goal::Added))[0];
    assert_eq!((added.added, machine.totals()), (10, vec![21]));
    assert_eq!(machine.writes_to("compact_memory"), 0, "memory was compacted without need");
}

#[test]
fn promised_pages_are_not_available() {
    let machine = Simulated { reserved: 3, ..Simulated::new(&[SimulatedNode { total: 4, free: 4, ..node(9, 0) }]) };
    assert_eq!(run(&machine, &["2M:4"], &options(Goal::Available))[0].added, 3);
}

#[test]
fn memory_is_compacted_first_where_it_is_in_pieces() {
    let machine = Simulated::new(&[node(2, 8)]);
    let met = &run(&machine, &["2M:6"], &options(Goal::Available))[0];
    assert_eq!((met.added, met.obstacles.len()), (6, 0));
    let order: Vec<_> = machine.written.borrow().iter().map(|(path, _)| path.clone()).collect();
    assert!(order[0].ends_with("compact_memory") && order.len() == 2, "{order:?}");
}

#[test]
fn what_a_node_lacks_comes_from_the_others() {
    let machine = Simulated::new(&[node(2, 0), node(20, 0)]);
    let met = &run(&machine, &["2M:10"], &options(Goal::Available))[0];
    assert_eq!((met.added, machine.totals()), (10, vec![2, 8]));
    assert_eq!(
        met.changes.iter().map(|change| (change.node, change.pages)).collect::<Vec<_>>(),
        [(Some(0), 2), (Some(1), 8)]
    );
}

#[test]
fn a_node_that_is_asked_for_is_the_only_one() {
    let machine = Simulated::new(&[node(2, 3), node(20, 0)]);
    let short = &run(&machine, &["2M:10@0"], &options(Goal::Available))[0];
    assert_eq!((short.added, short.is_met(), machine.totals()), (5, false, vec![5, 0]));
    let [Obstacle::Fragmented { node: 0, at_once: Some(0), blocks: Some(blocks), .. }] = short.obstacles[..] else {
        panic!("{:?}", short.obstacles)
    };
    assert_eq!((blocks.unmovable, blocks.reclaimable, blocks.all), (7, 3, 100));
    assert!(short.obstacles[0].to_string().contains("of 100 blocks of memory 7 hold the kernel's own"));
    assert!(machine.writes_to("node0/compact") > 0 && machine.writes_to("compact_memory") == 0);
}

#[test]
fn the_floor_is_kept() {
    let machine = Simulated::new(&[node(100, 0)]);
    let floor = (1 << 30) - (7 << 20);
    let short = &run(&machine, &["2M:10"], &ReserveOptions { floor, ..options(Goal::Available) })[0];
    assert_eq!((short.added, machine.totals()), (3, vec![3]));
    assert!(matches!(short.obstacles[..], [Obstacle::Floor { available: 0x4000_0000, wanted: 0x0140_0000, .. }]));
    assert!(short.obstacles[0].to_string().contains("--keep-free"));
}

/// The machine has enough in all; the simulated one has 8 of its 16 GiB on each node.
#[test]
fn the_floor_of_a_node_is_kept() {
    let machine = Simulated { cached: 0, ..Simulated::new(&[node(10, 0), node(100, 0)]) };
    let options = ReserveOptions { floor: 6 << 20, ..options(Goal::Available) };
    let short = &run(&machine, &["2M:10@0"], &options)[0];
    assert_eq!((short.added, machine.totals()), (8, vec![8, 0]));
    let [Obstacle::Floor { node: Some(0), available, floor, .. }] = short.obstacles[..] else {
        panic!("{:?}", short.obstacles)
    };
    assert_eq!((available, floor), (20 << 20, 3 << 20));
    assert!(short.obstacles[0].to_string().starts_with("memory of node 0: found 20"), "{}", short.obstacles[0]);
    assert!(run(&machine, &["2M:10@1"], &options)[0].is_met());
}

#[test]
fn all_or_nothing_puts_every_pool_back() {
    let machine = Simulated::new(&[SimulatedNode { total: 3, free: 1, ..node(4, 0) }, node(4, 0)]);
    let all = ReserveOptions { all_or_nothing: true, ..options(Goal::Added) };
    let outcomes = run(&machine, &["2M:3@1", "2M:9@0", "2M:1"], &all);
    assert_eq!(outcomes.len(), 2, "the third request was tried after all");
    assert!(outcomes.iter().all(|outcome| outcome.undone && !outcome.is_met() && outcome.changes.is_empty()));
    let nodes = machine.nodes.borrow();
    let found: Vec<_> = nodes.iter().map(|node| (node.total, node.free, node.surplus, node.at_once)).collect();
    assert_eq!(found, [(3, 1, 0, 4), (0, 0, 0, 4)]);
}

#[test]
fn surplus_pages_that_become_persistent_are_not_counted_as_added() {
    let machine = Simulated::new(&[SimulatedNode { total: 3, free: 0, surplus: 2, ..node(9, 0) }]);
    let met = &run(&machine, &["2M:4"], &options(Goal::Available))[0];
    assert_eq!((met.added, met.changes[0].pages, machine.totals()), (4, 6, vec![7]));
    let given = give_back(&machine, &met.changes).unwrap();
    assert_eq!(given[0].freed, 4);
    let node = machine.nodes.borrow()[0];
    assert_eq!((node.total, node.free, node.surplus), (3, 0, 2));
}

#[test]
fn pages_in_use_are_given_back_later() {
    let machine = Simulated::new(&[node(9, 0)]);
    let met = run(&machine, &["2M:5"], &options(Goal::Added)).remove(0);
    machine.nodes.borrow_mut()[0].free -= 2;
    let given = give_back(&machine, &met.changes).unwrap();
    let node = machine.nodes.borrow()[0];
    assert_eq!((given[0].freed, node.total, node.surplus), (3, 2, 2));
}

#[test]
fn a_refusal_is_said_with_what_helps() {
    let refuses = |error| Simulated { refuses: Some(("nr_hugepages", error)), ..Simulated::new(&[node(9, 0)]) };
    let why = |error| run(&refuses(error), &["2M:1"], &options(Goal::Added))[0].obstacles[0].to_string();
    assert!(why(13).contains("needed: root"), "{}", why(13));
    assert!(why(30).contains("on the host"), "{}", why(30));
    let machine = Simulated { refuses: Some(("compact", 13)), ..Simulated::new(&[node(2, 8)]) };
    assert_eq!(run(&machine, &["2M:2"], &options(Goal::Added))[0].added, 2, "compaction is no condition");
    let machine = Simulated { refuses: Some(("drop_caches", 13)), ..Simulated::new(&[node(2, 8)]) };
    let drop = ReserveOptions { drop_caches: true, ..options(Goal::Added) };
    let error = reserve(&machine, &[Simulated::request("2M:1")], &drop).unwrap_err().to_string();
    assert!(error.contains("drop_caches") && machine.totals() == [0], "{error}");
}

#[test]
fn caches_are_dropped_only_when_asked_for() {
    let machine = Simulated::new(&[node(0, 0)]);
    assert!(!run(&machine, &["2M:1"], &options(Goal::Added))[0].is_met());
    assert_eq!(machine.writes_to("drop_caches"), 0);
    run(&machine, &["2M:1"], &ReserveOptions { drop_caches: true, ..options(Goal::Added) });
    assert_eq!(machine.writes_to("drop_caches"), 1);
}

#[test]
fn an_interruption_ends_it_and_undoes_it_where_that_was_asked_for() {
    let interrupted = || Simulated { interrupted_after: Some(2), ..Simulated::new(&[node(2, 8), node(0, 0)]) };
    let machine = interrupted();
    let short = &run(&machine, &["2M:20"], &options(Goal::Added))[0];
    assert_eq!((short.added, short.obstacles.clone()), (10, vec![Obstacle::Interrupted]));
    let machine = interrupted();
    run(&machine, &["2M:20"], &ReserveOptions { all_or_nothing: true, ..options(Goal::Added) });
    assert_eq!(machine.totals(), [0, 0]);
}

#[test]
fn what_does_not_exist_is_refused_before_anything_changes() {
    let machine = Simulated::new(&[node(9, 0), node(9, 0)]);
    let refused = |texts: [&str; 2]| {
        let error = reserve(&machine, &texts.map(Simulated::request), &options(Goal::Added)).unwrap_err();
        assert!(machine.written.borrow().is_empty());
        error.to_string()
    };
    assert_eq!(refused(["2M:1", "1G:1"]), "there is no pool of pages of 1 GiB; found: 2M");
    assert_eq!(refused(["2M:1", "2M:1@7"]), "there is no node 7; found: 0, 1");
}

#[test]
fn release_takes_what_is_free_and_promised_to_nobody() {
    let full = SimulatedNode { total: 10, free: 6, surplus: 1, ..node(0, 0) };
    let release_of = |machine: &Simulated, text: &str| {
        let request: ReleaseRequest = text.parse().unwrap();
        let released = release(machine, &[], &request).unwrap();
        (released.pages, released.kept, released.left)
    };
    let machine = Simulated { reserved: 2, ..Simulated::new(&[full, node(0, 0)]) };
    assert_eq!(release_of(&machine, "2M:1"), (1, 0, 9));
    assert_eq!(release_of(&machine, "2M:7@0"), (3, 4, 6));
    assert_eq!(release_of(&machine, "2M:all@1"), (0, 0, 0));
    assert_eq!(release_of(&machine, "2M:all"), (0, 0, 6));
    assert!(matches!("2M:all".parse::<ReleaseRequest>().unwrap().amount, Amount::All));
    assert!("2M:some".parse::<ReleaseRequest>().unwrap_err().to_string().contains("nor `all`"));
}

#[test]
fn requests_for_the_same_pages_are_added_up() {
    let machine = Simulated::new(&[node(40, 0), node(40, 0)]);
    let outcomes = run(&machine, &["2M:3", "2M:4@1", "2M:5"], &options(Goal::Available));
    let found: Vec<_> = outcomes.iter().map(|outcome| (outcome.request.to_string(), outcome.added)).collect();
    assert_eq!(found, [("2M:4@1".to_owned(), 4), ("2M:8".to_owned(), 8)]);
    assert_eq!(machine.totals().iter().sum::<u64>(), 12);
}

#[test]
fn what_cannot_be_met_in_full_is_not_begun() {
    let machine = Simulated::new(&[node(1000, 0)]);
    let all = ReserveOptions { all_or_nothing: true, ..options(Goal::Added) };
    let outcomes = run(&machine, &["2M:900"], &all);
    assert!(outcomes[0].undone && machine.writes_to("nr_hugepages") == 0, "{outcomes:?}");
}
