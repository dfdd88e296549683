//! Makes the order from the words of `PAGELIFT` if no `pagelift run` has made one. Reads the launcher's facts itself,
//! before the first allocation.

use crate::pool::pool_count;
use crate::program::{Program, ProgramBuffer};
use crate::redirect::{self, redirect};
use crate::text::{Text, number_of, text_of};
use crate::{ACCOUNT, confinement, objects};
use address_space::{ByteCount, PageSize};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use heap_abi::{
    LARGEST_GRAIN, MOST_NODES, NodeMask, NodePages, Order, Shortage, available_on, first_node, free_pages_by_node,
    has_node, pages_to_take, share_by_node, share_evenly,
};
use machine_facts::{HugePool, ThpMode};
use options::{HeapPages, HeapWords, Numa};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const NODES: &str = "/sys/devices/system/node";

/// The smallest page size for which any kernel has a pool or transparent huge pages.
const SMALLEST_GRAIN: u64 = 64 << 10;

/// The order of the words.
pub struct RequestedOrder {
    pub order: Order<'static>,
    pages: HeapPages,
    /// Free pages of the pool on nodes that this program may not use.
    elsewhere: u64,
    quiet: bool,
}

/// Makes an order for this program from the words of `PAGELIFT`. `None` if the heap does not act; if it was requested,
/// a line on standard error names the reason. `beside_library`: `libpagelift.so` is preloaded too, and reports errors
/// in the words itself.
pub fn order_of(text: &str, program: &Program, beside_library: bool) -> Option<RequestedOrder> {
    if !HeapWords::are_in(text) && HeapWords::parse(text).is_ok() {
        return None;
    }
    let complain = |why: fmt::Arguments| {
        if !beside_library {
            Text::of(format_args!("pagelift: {why}")).say();
        }
    };
    if !HeapWords::name_any(text) {
        complain(format_args!("PAGELIFT names no program; fix: only=NAME, for example only=redis-server"));
        return None;
    }
    if !HeapWords::name_this(text, &program.names(), program.pid()) {
        return None;
    }
    let words = match HeapWords::parse(text) {
        Ok(words) => words,
        Err(why) => {
            complain(format_args!("{why}"));
            return None;
        }
    };
    match transparent_or_pool(&words) {
        Ok(Some((order, elsewhere))) => {
            Some(RequestedOrder { order, pages: words.pages, elsewhere, quiet: words.quiet })
        }
        Ok(None) => None,
        Err(why) => {
            let mut line = head(program);
            why.tell(&mut line);
            line.add(format_args!("; the program keeps its own heap"));
            line.say();
            None
        }
    }
}

/// True if the heap cannot serve this program, and then prints the reason as one line on standard error. Otherwise,
/// every later look-up of the allocator's functions finds this heap's.
///
/// # Safety
/// As for [`redirect`].
pub unsafe fn declines() -> bool {
    // SAFETY:
    // - the caller's promise.
    let redirected =
        unsafe { objects::obstacle().map_or_else(|| redirect(), |why| Err(redirect::Refusal::Other(why))) };
    let Err(why) = redirected else { return false };
    let mut line = head(&Program::this(&mut ProgramBuffer::new()));
    match why {
        redirect::Refusal::Other(why) => line.add(format_args!("{why}")),
        redirect::Refusal::NotUnderstood => {
            line.add(format_args!("its C library's table of symbols has an unknown form, and cannot lead to this heap"))
        }
        redirect::Refusal::Refused(error) => line.add(format_args!(
            "its C library's table of symbols cannot lead to this heap: mprotect is refused (error {error}); needed: leave to \
             make memory writable"
        )),
    }
    line.add(format_args!("; the program keeps its own heap"));
    line.say();
    true
}

fn head(program: &Program) -> Text {
    Text::of(format_args!("pagelift: {}[{}]: heap: ", program.names()[0], program.pid()))
}

/// The reason for which there is no order.
enum Refusal {
    ReserveAlone,
    NoHugePages,
    ThpOff,
    NoPool(PageSize),
    NodeForbidden(u32),
    NoLocalNode,
}

impl Refusal {
    fn tell(&self, line: &mut Text) {
        match self {
            Self::ReserveAlone => line.add(format_args!("PAGELIFT has heap-reserve= without heap=; fix: add heap=2M")),
            Self::NoHugePages => line.add(format_args!("this kernel has no huge pages of up to {LARGEST_GRAIN} bytes")),
            Self::ThpOff => line.add(format_args!(
                "transparent huge pages are switched off; fix: echo madvise > {THP}/enabled, or heap=2M and pages in \
                 the pool"
            )),
            Self::NodeForbidden(node) => line.add(format_args!(
                "numa=node={node} is not a node that it may take memory from; fix: one of its cpuset (Mems_allowed_list in \
                 /proc/self/status)"
            )),
            Self::NoLocalNode => {
                line.add(format_args!("numa=local: the node that it runs on is not one that its cpuset allows"))
            }
            Self::NoPool(size) => line.add(format_args!("this machine has no huge pages of {size}")),
        }
    }
}

/// The order, and the free pages of the pool that are on nodes which this program may not use.
fn transparent_or_pool(words: &HeapWords) -> Result<Option<(Order<'static>, u64)>, Refusal> {
    let order = || grain().map(Order::transparent).ok_or(Refusal::NoHugePages);
    match words.pages {
        HeapPages::Off if words.reserve.is_some() => Err(Refusal::ReserveAlone),
        HeapPages::Off => Ok(None),
        HeapPages::Thp | HeapPages::Auto if thp_mode() == Some(ThpMode::Never) => Err(Refusal::ThpOff),
        HeapPages::Thp | HeapPages::Auto => Ok(Some((order()?, 0))),
        HeapPages::Pool(size) => {
            let nodes = nodes_for(words.numa)?;
            let shares = shares(size, words.reserve, words.numa, nodes.as_ref()).ok_or(Refusal::NoPool(size))?;
            let chosen = words.numa != Numa::Own;
            Ok(Some((Order { page: size.bytes(), pool: shares.by_node, chosen, ..order()? }, shares.elsewhere)))
        }
    }
}

/// The nodes from which the pool's pages may come; `None` if the kernel does not report them.
fn nodes_for(numa: Numa) -> Result<Option<NodeMask>, Refusal> {
    let only = |node: u32, refusal| {
        let Some(mut mask) = confinement::allowed() else { return if node == 0 { Ok(None) } else { Err(refusal) } };
        let allowed = has_node(&mask, node);
        mask.iter_mut().zip(0..).for_each(|(word, index)| *word &= u64::from(index == node / 64) << (node % 64));
        if allowed { Ok(Some(mask)) } else { Err(refusal) }
    };
    match numa {
        Numa::Own => Ok(confinement::own()),
        Numa::Interleave => Ok(confinement::allowed()),
        Numa::Node(node) => only(node, Refusal::NodeForbidden(node)),
        Numa::Local => {
            let node = confinement::running_on().ok_or(Refusal::NoLocalNode)?;
            only(node, Refusal::NoLocalNode)
        }
    }
}

fn thp_size() -> Option<u64> {
    number_of(format_args!("{THP}/hpage_pmd_size")).filter(|bytes| bytes.is_power_of_two())
}

fn thp_mode() -> Option<ThpMode> {
    let (mut general, mut own) = ([0; 64], [0; 64]);
    let size = PageSize::new(thp_size()?).ok()?;
    let general = text_of(format_args!("{THP}/enabled"), &mut general)?;
    let own = text_of(format_args!("{THP}/{}/enabled", size.directory()), &mut own).unwrap_or_default();
    ThpMode::read(general, own)
}

/// The heap's grain in bytes, as the launcher chooses it: the largest size of transparent huge pages or of a pool up to
/// [`LARGEST_GRAIN`].
fn grain() -> Option<u64> {
    let thp = thp_size().filter(|&bytes| bytes <= LARGEST_GRAIN);
    let shifts = (SMALLEST_GRAIN.trailing_zeros()..=LARGEST_GRAIN.trailing_zeros()).rev();
    let sizes = shifts.filter_map(|shift| PageSize::new(1 << shift).ok());
    let mut with_pool = sizes.filter(|&size| pool_count(size, "nr_hugepages").is_some());
    thp.into_iter().chain(with_pool.next().map(PageSize::bytes)).max()
}

/// Pages of a pool.
struct Shares {
    by_node: [NodePages; MOST_NODES],
    /// Free ones on other nodes.
    elsewhere: u64,
}

/// The number of pages to take from each of these nodes, or from all; `None` if there is no such pool.
fn shares(size: PageSize, reserve: Option<u64>, numa: Numa, nodes: Option<&NodeMask>) -> Option<Shares> {
    let read = |file| pool_count(size, file).unwrap_or(0);
    let free = pool_count(size, "free_hugepages")?;
    let [reserved, overcommit, surplus] = ["resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages"].map(read);
    let available = HugePool::available_of(free, HugePool::reserved_of(reserved), overcommit, surplus);
    let mut online = [0; 1024];
    let online = text_of(format_args!("{NODES}/online"), &mut online).unwrap_or_default();
    let mut elsewhere = 0;
    let by_node = free_pages_by_node(online, |node| {
        let free = number_of(format_args!("{NODES}/node{node}/hugepages/{}/free_hugepages", size.directory()))?;
        let may_be_used = nodes.is_none_or(|nodes| has_node(nodes, node));
        elsewhere += if may_be_used { 0 } else { free };
        may_be_used.then_some(free)
    });
    let pages = pages_to_take(size, available_on(available, free.saturating_sub(elsewhere), free), reserve);
    let home = nodes.and_then(first_node).unwrap_or(0);
    let share = if numa == Numa::Interleave { share_evenly } else { share_by_node };
    Some(Shares { by_node: share(&by_node, pages, home), elsewhere })
}

/// Returns the order with only those nodes from which this program may take memory. The order may have been made for a
/// program with another cpuset and memory policy.
pub fn within_confinement<'a>(order: &Order<'a>) -> Order<'a> {
    let nodes = if order.chosen { confinement::allowed() } else { confinement::own() };
    let (Some(nodes), Ok(size)) = (nodes, PageSize::new(order.page)) else { return *order };
    let may_be_used = |share: &NodePages| share.pages == 0 || has_node(&nodes, share.node);
    if order.pool.iter().all(may_be_used) {
        return *order;
    }
    match shares(size, Some(order.pool_bytes()), Numa::Own, Some(&nodes)).filter(|_| !order.chosen) {
        Some(shares) => Order { pool: shares.by_node, ..*order },
        None => {
            let of_chosen = |share: NodePages| if may_be_used(&share) { share } else { NodePages::default() };
            Order { pool: order.pool.map(of_chosen), ..*order }
        }
    }
}

impl RequestedOrder {
    /// Writes the result to standard error, once the heap has started.
    pub fn tell(&self, program: &Program) {
        if self.quiet {
            return;
        }
        let mut line = head(program);
        match self.pages {
            HeapPages::Pool(size) => {
                let (taken, asked) = (ACCOUNT.pool_taken.load(Relaxed), ACCOUNT.pool_asked.load(Relaxed));
                match asked {
                    0 => line.add(format_args!("found no free page of {size} in the pool")),
                    _ => line.add(format_args!("{} taken from the pool of {size} pages", ByteCount(taken))),
                }
                if asked > taken {
                    line.add(format_args!(", {} asked for", ByteCount(asked)));
                }
                let refused = ACCOUNT.shortage.load(Relaxed) == Shortage::PopulationRefused as u64;
                if self.elsewhere > 0 && (asked == 0 || asked > taken) {
                    line.add(format_args!(" ({} free ones are on nodes that it may not use)", self.elsewhere));
                }
                if asked > taken && refused {
                    line.add(format_args!("; a cgroup or cpuset allows no more; fix: a higher hugetlb limit there"));
                    line.add(format_args!(" (its hugetlb.* files); the rest is on transparent huge pages"));
                } else if asked == 0 || asked > taken {
                    match size.pages_for(asked) {
                        0 => line.add(format_args!("; fix: pagelift pool reserve {}:NUMBER", size.word())),
                        pages => line.add(format_args!("; fix: pagelift pool reserve {}:{pages}", size.word())),
                    }
                    line.add(format_args!("; the rest is on transparent huge pages"));
                }
            }
            HeapPages::Thp | HeapPages::Auto | HeapPages::Off => line.add(format_args!("on transparent huge pages")),
        }
        line.say();
    }
}
