//! A machine that exists in a test only: its sysfs tree, and a kernel that allocates pages within its memory.

use crate::{PoolRequest, Settings};
use address_space::PageSize;
use machine_facts::{Files, NODES, pool_directory};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

/// One node's memory and pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedNode {
    /// Pages in the pool.
    pub total: u64,
    /// Number of free pages.
    pub free: u64,
    /// Number of surplus pages.
    pub surplus: u64,
    /// Number of pages in one piece.
    pub at_once: u64,
    /// Pages that a compaction makes of pieces.
    pub after_compaction: u64,
}

/// The machine; the kernel as `set_max_huge_pages` in mm/hugetlb.c behaves.
pub struct Simulated {
    pub size: PageSize,
    pub nodes: RefCell<Vec<SimulatedNode>>,
    pub reserved: u64,
    pub available: Cell<u64>,
    /// Bytes of each node's page cache, which no page is made of here.
    pub cached: u64,
    /// The value written to each setting, in order.
    pub written: RefCell<Vec<(String, String)>>,
    /// Writes to paths that hold this fail like this.
    pub refuses: Option<(&'static str, i32)>,
    /// Interrupted after this number of writes.
    pub interrupted_after: Option<usize>,
    /// No file can be read after this number of writes.
    pub unreadable_after: Option<usize>,
}

impl Simulated {
    /// The only process.
    pub const PID: i32 = 77;

    pub fn new(nodes: &[SimulatedNode]) -> Self {
        Self {
            size: "2M".parse().unwrap(),
            nodes: RefCell::new(nodes.to_vec()),
            reserved: 0,
            available: Cell::new(1 << 30),
            cached: 1 << 30,
            written: RefCell::default(),
            refuses: None,
            interrupted_after: None,
            unreadable_after: None,
        }
    }

    pub fn request(text: &str) -> PoolRequest {
        text.parse().unwrap()
    }

    pub fn totals(&self) -> Vec<u64> {
        self.nodes.borrow().iter().map(|node| node.total).collect()
    }

    /// Number of writes to a setting.
    pub fn writes_to(&self, name: &str) -> usize {
        self.written.borrow().iter().filter(|(path, _)| path.ends_with(name)).count()
    }

    fn sum(&self, of: impl Fn(&SimulatedNode) -> u64) -> u64 {
        self.nodes.borrow().iter().map(of).sum()
    }

    fn compact(&self, only: Option<usize>) {
        for (index, node) in self.nodes.borrow_mut().iter_mut().enumerate() {
            if only.is_none_or(|only| only == index) {
                node.at_once += std::mem::take(&mut node.after_compaction);
            }
        }
    }

    /// Sets the persistent size: nodes in turn, as the kernel interleaves.
    fn resize(&self, only: Option<usize>, count: u64) {
        let promised = self.reserved;
        let mut nodes = self.nodes.borrow_mut();
        let chosen: Vec<usize> = only.map_or_else(|| (0..nodes.len()).collect(), |only| vec![only]);
        let persistent =
            |nodes: &[SimulatedNode]| chosen.iter().map(|&i| nodes[i].total - nodes[i].surplus).sum::<u64>();
        let mut moved = true;
        while persistent(&nodes) != count && moved {
            moved = false;
            let grows = persistent(&nodes) < count;
            for &index in &chosen {
                let free: u64 = nodes.iter().map(|node| node.free).sum();
                let node = &mut nodes[index];
                let step = match (grows, node.surplus, node.at_once, node.free) {
                    (true, 1.., ..) => (0, 0, -1, 0),
                    (true, _, 1.., _) => (1, 1, 0, -1),
                    (false, _, _, 1..) if free > promised => (-1, -1, 0, 1),
                    (false, surplus, ..) if surplus < node.total => (0, 0, 1, 0),
                    _ => continue,
                };
                node.total = node.total.wrapping_add_signed(step.0);
                node.free = node.free.wrapping_add_signed(step.1);
                node.surplus = node.surplus.wrapping_add_signed(step.2);
                node.at_once = node.at_once.wrapping_add_signed(step.3);
                moved = true;
                if persistent(&nodes) == count {
                    break;
                }
            }
        }
        drop(nodes);
    }

    fn tree(&self) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        if self.unreadable_after.is_some_and(|after| self.written.borrow().len() >= after) {
            return tree;
        }
        let nodes = self.nodes.borrow();
        let mut write = |path: String, value: String| tree.insert(path, format!("{value}\n"));
        let pool = |node: Option<u32>, file: &str| format!("{}/{file}", pool_directory(self.size, node));
        write(pool(None, "nr_hugepages"), self.sum(|node| node.total).to_string());
        write(pool(None, "free_hugepages"), self.sum(|node| node.free).to_string());
        write(pool(None, "surplus_hugepages"), self.sum(|node| node.surplus).to_string());
        write(pool(None, "resv_hugepages"), self.reserved.to_string());
        write(pool(None, "nr_overcommit_hugepages"), "0".into());
        write(format!("{NODES}/online"), format!("0-{}", nodes.len() - 1));
        let kib = |bytes: u64| format!("{} kB", bytes >> 10);
        let available = kib(self.available.get());
        write("/proc/meminfo".into(), format!("MemTotal: {}\nMemAvailable: {available}", kib(16 << 30)));
        let mut buddies = String::new();
        for (index, node) in nodes.iter().enumerate() {
            let number = Some(index as u32);
            write(pool(number, "nr_hugepages"), node.total.to_string());
            write(pool(number, "free_hugepages"), node.free.to_string());
            write(pool(number, "surplus_hugepages"), node.surplus.to_string());
            let free = kib((node.at_once + node.after_compaction) * self.size.bytes());
            let cached = kib(self.cached);
            let memory = [("MemTotal", kib(8 << 30)), ("MemFree", free), ("Inactive(file)", cached)];
            let memory: String = memory.iter().map(|(name, value)| format!("Node {index} {name}: {value}\n")).collect();
            write(format!("{NODES}/node{index}/meminfo"), memory);
            let pieces = node.after_compaction * 512;
            buddies += &format!("Node {index}, zone Normal {pieces} 0 0 0 0 0 0 0 0 {} 0\n", node.at_once);
        }
        write("/proc/buddyinfo".into(), buddies);
        write(format!("/proc/{}/stat", Self::PID), format!("{} (pagelift) S{} 220", Self::PID, " 0".repeat(18)));
        let title = "Number of blocks type     Unmovable      Movable  Reclaimable";
        write("/proc/pagetypeinfo".into(), format!("{title}\nNode 0, zone Normal 7 90 3"));
        tree
    }
}

impl Files for Simulated {
    fn text(&self, path: &str) -> Option<String> {
        self.tree().remove(path)
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        let tree = self.tree();
        let below = tree.keys().filter_map(|file| file.strip_prefix(path)?.strip_prefix('/'));
        let mut names: Vec<_> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        names.dedup();
        names
    }
}

impl Settings for Simulated {
    fn set(&self, path: &str, value: &str) -> io::Result<()> {
        self.written.borrow_mut().push((path.to_owned(), value.to_owned()));
        if let Some((part, error)) = self.refuses
            && path.contains(part)
        {
            return Err(io::Error::from_raw_os_error(error));
        }
        let node = path.strip_prefix(&format!("{NODES}/node")).and_then(|rest| rest.split_once('/'));
        let node = node.and_then(|(node, _)| node.parse().ok());
        match path.rsplit('/').next() {
            Some("compact" | "compact_memory") => self.compact(node),
            Some("nr_hugepages") => self.resize(node, value.parse().unwrap()),
            Some("drop_caches") => {}
            _ => panic!("no such setting: {path}"),
        }
        Ok(())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted_after.is_some_and(|after| self.written.borrow().len() >= after)
    }
}
