//! The pages that core dumps of a lifted program omit: exactly the pool pages whose contents a debugger finds in the
//! file.

use crate::scenario::{Run, Scenario, scenarios_of};
use crate::support::programs;
use address_space::{Address, AddressRange, MappingName, PageSize, RangeSet};
use lift_execution::RangeOutcome;
use lift_plan::Source;
use lift_simulation::simulated::Script;

/// The contents that private mappings of existing files show.
fn shown_by_files(scenario: &Scenario) -> RangeSet {
    let is_file = |name: &MappingName| matches!(name, MappingName::File { deleted: false, .. });
    scenario
        .process
        .space
        .mappings()
        .iter()
        .filter(|mapping| is_file(&mapping.name))
        .map(|mapping| mapping.range)
        .collect()
}

/// Addresses of the first bytes of files, which a core dump must contain for the build-id.
fn file_starts(scenario: &Scenario) -> Vec<Address> {
    let mappings = scenario.process.space.mappings().iter();
    mappings
        .filter(|mapping| mapping.offset == 0 && mapping.path().is_some())
        .map(|mapping| mapping.range.start())
        .collect()
}

fn huge_pages(range: AddressRange, size: PageSize) -> impl Iterator<Item = AddressRange> {
    let whole = range.whole_pages(size);
    (0..whole.len() / size.bytes())
        .map(move |page| AddressRange::sized(whole.start() + page * size.bytes(), size.bytes()))
}

/// The pages of a lifted range that dumps may omit, by their contents.
fn omitted(scenario: &Scenario, range: &RangeOutcome) -> RangeSet {
    let (files, starts) = (shown_by_files(scenario), file_starts(scenario));
    if range.source != Some(Source::Hugetlb) || range.protection.write {
        return RangeSet::new();
    }
    let pages = range.lifted.iter().flat_map(|lifted| huge_pages(lifted, range.page_size));
    pages.filter(|page| files.covers(*page) && !starts.iter().any(|start| page.contains(*start))).collect()
}

fn omitted_by(scenario: &Scenario, run: &Run<'_>) -> RangeSet {
    run.outcome.ranges.iter().flat_map(|range| omitted(scenario, range).iter().collect::<Vec<_>>()).collect()
}

#[test]
fn dumps_omit_pool_pages_that_show_a_file_and_nothing_else() {
    let (mut pages_omitted, mut first_pages_kept) = (0, 0);
    for scenario in programs::all().iter().flat_map(scenarios_of) {
        let run = scenario.run(&Script::new());
        let expected = omitted_by(&scenario, &run);
        assert_eq!(run.kernel.not_dumped(), expected, "{}", scenario.name);
        pages_omitted += expected.iter().count();
        let of_pool = |range: &&RangeOutcome| range.source == Some(Source::Hugetlb) && !range.protection.write;
        let lifted: RangeSet =
            run.outcome.ranges.iter().filter(of_pool).flat_map(|range| range.lifted.iter()).collect();
        first_pages_kept +=
            file_starts(&scenario).iter().filter(|start| lifted.covers(AddressRange::sized(**start, 1))).count();
    }
    assert!(pages_omitted > 0, "no scenario has pool pages that show a file");
    assert!(first_pages_kept > 0, "no scenario lifts the first page of a file");
}
