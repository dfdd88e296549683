//! Pages of short measurements.

use super::*;
use measure::machine::PoolFacts;

#[test]
fn counts_agree_with_their_nouns() {
    let mut short = record(&["thp"], 1, Design::Toggle);
    let Some(Event::Observed(seen)) = short.events.get_mut(1) else { panic!("no observation") };
    seen.lift.as_mut().unwrap().left_out = 1;
    seen.map.as_mut().unwrap().left_out.ranges = 1;
    short.header.machine.pools = vec![PoolFacts { page_bytes: 1 << 21, total: 1, free: 1 }];
    let page = html(&[source("a", short)]);
    for expected in [
        "1 block, too few for an interval",
        "load: 1 block of four windows",
        "1 page of 2 MiB, 1 free",
        "1 smaller range is not in the record.",
        "1 mapping of little memory is left out.",
        "found 1 pair,",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    for wrong in ["1 pairs", "1 blocks", "1 pages", "1 mappings"] {
        assert!(!page.contains(&format!(">{wrong}")) && !page.contains(&format!(" {wrong}")), "{wrong}\n{page}");
    }
}

/// A chart of one value shows nothing that the number does not.
#[test]
fn one_pair_is_not_drawn() {
    let drawn = |blocks| {
        let page = html(&[source("a", record(&["thp"], blocks, Design::Toggle))]);
        (page.matches("<svg").count(), page.matches("Not drawn: found 1 pair, needed 2 of one arm").count())
    };
    assert_eq!(drawn(1), (0, 2));
    let (drawings, refusals) = drawn(20);
    assert!(drawings > 0 && refusals == 0, "{drawings} drawings, {refusals} refusals");
}
