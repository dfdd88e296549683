//! The features of this machine for executors, with pages in its pool as long as the suite runs.

use lift_simulation::conformance::{Ground, POOL_PAGES};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};

/// The ground, whose pool keeps its pages until this is dropped.
pub struct PreparedGround {
    /// The suite's input.
    pub ground: Ground,
    /// The pool's counter and what it held before.
    reserved: Option<(String, String)>,
    /// The lock that every test takes which needs the pool.
    _lock: Option<Flock<File>>,
}

impl PreparedGround {
    /// Reserves pool pages, where that is allowed. `file` is what the executor can map.
    pub fn new(file: Option<&'static str>) -> Self {
        let facts = machine_facts::machine_facts(std::process::id() as i32);
        let lock = File::options().create(true).append(true).open("/run/lock/pagelift-pool.lock");
        let lock = lock.ok().and_then(|file| Flock::lock(file, FlockArg::LockExclusive).ok());
        let size = facts.default_hugetlb.filter(|_| lock.is_some());
        let reserved = size.and_then(|size| {
            let counter = format!("{}/nr_hugepages", machine_facts::pool_directory(size, None));
            let before = fs::read_to_string(&counter).ok()?.trim().to_owned();
            let pages = before.parse::<u64>().unwrap_or(0) + POOL_PAGES;
            fs::write(&counter, pages.to_string()).ok().map(|()| (counter, before))
        });
        let now = machine_facts::machine_facts(std::process::id() as i32);
        let enough = |size: &_| now.pool(*size).is_some_and(|pool| pool.available >= POOL_PAGES);
        let ground = Ground {
            base_page: facts.base_page,
            pool: size.filter(enough),
            thp: facts.thp.map(|thp| thp.size),
            file,
            movable_hugetlb: facts.movable_hugetlb,
            collapse: facts.collapse,
        };
        Self { ground, reserved, _lock: lock }
    }
}

impl Drop for PreparedGround {
    fn drop(&mut self) {
        if let Some((counter, before)) = &self.reserved {
            // A counter that could be written can be written again; otherwise the machine keeps a few pages more.
            let _ = fs::write(counter, before);
        }
    }
}
