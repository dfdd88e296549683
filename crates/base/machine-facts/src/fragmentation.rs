//! How memory is cut up: `/proc/buddyinfo` and `/proc/pagetypeinfo` (proc(5), `Documentation/filesystems/proc.rst`).

use crate::Files;
use address_space::PageSize;
use alloc::vec;
use alloc::vec::Vec;
use serde::Serialize;

/// Free memory of one node by the size of its pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FreeBlocks {
    /// Number of the node.
    pub node: u32,
    /// Number of free blocks of two to the power of the index base pages, of all zones together.
    pub by_order: Vec<u64>,
}

impl FreeBlocks {
    /// The number of pages of `size` in the present free blocks. `None` for pages that are larger than the largest
    /// block, such as pages of 1 GiB on most machines.
    pub fn pages_of(&self, size: PageSize, base_page: PageSize) -> Option<u64> {
        let order = size.log2().checked_sub(base_page.log2())? as usize;
        let blocks = self.by_order.get(order..).filter(|blocks| !blocks.is_empty())?;
        Some(blocks.iter().enumerate().map(|(above, count)| count << above).sum())
    }

    /// All free bytes.
    pub fn bytes(&self, base_page: PageSize) -> u64 {
        self.by_order.iter().enumerate().map(|(order, count)| (count << order) * base_page.bytes()).sum()
    }
}

/// The use of the blocks of one node's memory; the kernel groups pages by whether they can be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageBlocks {
    /// Number of the node.
    pub node: u32,
    /// Blocks that hold the kernel's own memory, which nothing can move.
    pub unmovable: u64,
    /// Blocks of caches that can be dropped but not moved.
    pub reclaimable: u64,
    /// All blocks.
    pub all: u64,
}

/// Free memory of each node, from `/proc/buddyinfo`; empty if that cannot be read.
pub fn free_blocks(files: &impl Files) -> Vec<FreeBlocks> {
    let mut nodes: Vec<FreeBlocks> = Vec::new();
    for line in files.text("/proc/buddyinfo").unwrap_or_default().lines() {
        let Some((node, counts)) = node_line(line) else { continue };
        let index = nodes.iter().position(|found| found.node == node).unwrap_or_else(|| {
            nodes.push(FreeBlocks { node, by_order: vec![0; counts.len()] });
            nodes.len() - 1
        });
        nodes[index].by_order.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    nodes
}

/// The use of each node's blocks, from `/proc/pagetypeinfo`; empty if that cannot be read, which needs root.
pub fn page_blocks(files: &impl Files) -> Vec<PageBlocks> {
    const TITLE: &str = "Number of blocks type";
    let text = files.text("/proc/pagetypeinfo").unwrap_or_default();
    let mut lines = text.lines().skip_while(|line| !line.starts_with(TITLE));
    let Some(title) = lines.next() else { return Vec::new() };
    let kinds: Vec<&str> = title[TITLE.len()..].split_whitespace().collect();
    let mut nodes: Vec<PageBlocks> = Vec::new();
    // With the kernel's option page_owner, a table of mixed blocks follows.
    for (node, counts) in lines.take_while(|line| !line.starts_with("Number of")).filter_map(node_line) {
        let index = nodes.iter().position(|found| found.node == node).unwrap_or_else(|| {
            nodes.push(PageBlocks { node, ..PageBlocks::default() });
            nodes.len() - 1
        });
        for (kind, count) in kinds.iter().zip(counts) {
            nodes[index].all += count;
            match *kind {
                "Unmovable" => nodes[index].unmovable += count,
                "Reclaimable" => nodes[index].reclaimable += count,
                _ => {}
            }
        }
    }
    nodes
}

/// Reads `Node 0, zone   Normal    357    896 ...`.
fn node_line(line: &str) -> Option<(u32, Vec<u64>)> {
    let (node, zone) = line.strip_prefix("Node")?.split_once(',')?;
    let counts = zone.split_whitespace().skip(2).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
    Some((node.trim().parse().ok()?, counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    /// Recorded on Linux 6.18, shortened, with a second node.
    #[test]
    fn zones_of_a_node_are_added() {
        let mut files = WrittenFiles::default();
        files.write(
            "/proc/buddyinfo",
            "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
             Node 0, zone   Normal    357    896    897    550    421    295    199     72     16      1     25 \n\
             Node 1, zone   Normal      1      0      0      0      0      0      0      0      0      0      0 ",
        );
        let nodes = free_blocks(&files);
        assert_eq!(nodes.iter().map(|node| node.node).collect::<Vec<_>>(), [0, 1]);
        let base = size(4096);
        assert_eq!(nodes[0].pages_of(size(2 << 20), base), Some(2 + 2 * 28));
        assert_eq!(nodes[0].pages_of(size(4 << 20), base), Some(28));
        assert_eq!((nodes[0].pages_of(size(1 << 30), base), nodes[1].pages_of(size(2 << 20), base)), (None, Some(0)));
        assert_eq!(nodes[1].bytes(base), 4096);
        assert_eq!(FreeBlocks { node: 0, by_order: vec![1, 0, 3] }.bytes(base), 13 * 4096);
        assert!(free_blocks(&WrittenFiles::default()).is_empty());
    }

    #[test]
    fn blocks_are_counted_by_what_holds_them() {
        let mut files = WrittenFiles::default();
        files.write(
            "/proc/pagetypeinfo",
            "Page block order: 9\nPages per block:  512\n\n\
             Free pages count per migrate type at order       0      1 \n\
             Node    0, zone      DMA, type    Unmovable      0      0 \n\n\
             Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate \n\
             Node 0, zone      DMA            1            7            0            0            0 \n\
             Node 0, zone   Normal          147         7209          324            0            0 \n\
             Node 1, zone   Normal           12           20            3            0            1 \n\
             Number of mixed blocks    Unmovable      Movable  Reclaimable   HighAtomic      Isolate \n\
             Node 0, zone   Normal            9           80            2            0            0 ",
        );
        let nodes = [
            PageBlocks { node: 0, unmovable: 148, reclaimable: 324, all: 7688 },
            PageBlocks { node: 1, unmovable: 12, reclaimable: 3, all: 36 },
        ];
        assert_eq!(page_blocks(&files), nodes);
        assert!(page_blocks(&WrittenFiles::default()).is_empty());
    }
}
