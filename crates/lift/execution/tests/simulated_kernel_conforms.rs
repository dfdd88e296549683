//! The simulated kernel meets the requirements on every executor, on every kind of machine.

use address_space::{Address, AddressSpace, PageSize, RangeSet};
use lift_simulation::conformance::{Ground, POOL_PAGES, assert_conforms};
use lift_simulation::simulated::{SimulatedFile, SimulatedImage, SimulatedKernel, SimulatedMachine, SimulatedThp};

const LIBRARY: &str = "/usr/lib/lib.so";
const MAPS: &str = "\
555555554000-555555560000 r-xp 0 fe:0 7 /usr/bin/prog
555555560000-555555570000 rw-p 0 0:0 0 [heap]
7ffff7c00000-7ffff7c10000 r--p 0 fe:0 9 /usr/lib/lib.so
7ffff7f00000-7ffff7f04000 rw-p 0 0:0 0
";

fn size(kib: u64) -> PageSize {
    PageSize::new(kib * 1024).unwrap()
}

fn ground(movable_hugetlb: bool, collapse: bool) -> Ground {
    let (pool, thp, file) = (Some(size(64)), Some(size(64)), Some("/run/images/prog"));
    Ground { base_page: size(4), pool, thp, file, movable_hugetlb, collapse }
}

fn image(path: &str, page_size: PageSize) -> SimulatedImage {
    SimulatedImage { path: path.to_owned(), page_size, shows: Vec::new() }
}

fn kernel(ground: &Ground, huge_pages: u64, at_fault: bool) -> SimulatedKernel {
    let machine = SimulatedMachine {
        base_page: ground.base_page,
        pools: ground.pool.map(|size| (size, POOL_PAGES)).into_iter().collect(),
        pool_charge: u64::MAX,
        pool_on_bound_nodes: u64::MAX,
        maps_in_place: true,
        holds_threads: false,
        images: ground.file.map(|path| image(path, ground.base_page)).into_iter().collect(),
        files: vec![SimulatedFile { path: LIBRARY.to_owned(), own_path: Some(LIBRARY.to_owned()), huge: Vec::new() }],
        refaults_huge: true,
        thp: ground.thp.map(|size| SimulatedThp { size, left: huge_pages, at_fault, splits_every: None }),
        movable_hugetlb: ground.movable_hugetlb,
        collapse: ground.collapse,
        max_mappings: 65_530,
        top: Address(0x7fff_f800_0000),
    };
    SimulatedKernel::new(machine, &AddressSpace::parse(MAPS).unwrap(), &RangeSet::new())
}

#[test]
fn with_huge_pages_to_spare() {
    for (movable, collapse, at_fault) in
        [(true, true, true), (true, true, false), (false, true, true), (false, false, true)]
    {
        let ground = ground(movable, collapse);
        assert_conforms(|| kernel(&ground, 1000, at_fault), &ground);
    }
}

#[test]
fn with_fragmented_memory() {
    for huge_pages in 0..4 {
        let ground = ground(true, true);
        assert_conforms(|| kernel(&ground, huge_pages, true), &ground);
    }
}

#[test]
fn without_huge_pages_only_ordinary_checks_run() {
    let ground = Ground { pool: None, thp: None, ..ground(true, true) };
    let ran = assert_conforms(|| kernel(&ground, 0, false), &ground);
    assert!(ran.iter().all(|name| !name.contains("pool") && !name.contains("huge")), "{ran:?}");
}
