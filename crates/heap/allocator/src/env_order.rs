//! Makes the order from the words of `PAGELIFT` if no `pagelift run` has made one. Looks up what the launcher would have
//! looked up, before the first allocation.

use crate::ACCOUNT;
use crate::program::Program;
use crate::text::{Text, number_of, text_of};
use address_space::{ByteCount, PageSize};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use heap_abi::{
    LARGEST_GRAIN, MOST_NODES, NodePages, Order, Shortage, free_pages_by_node, pages_to_take, share_by_node,
};
use lift_plan::{HugePool, ThpMode};
use options::{HeapPages, HeapWords};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOLS: &str = "/sys/kernel/mm/hugepages";
const NODES: &str = "/sys/devices/system/node";

/// The smallest page size for which any kernel has a pool or transparent huge pages.
const SMALLEST_GRAIN: u64 = 64 << 10;

/// The order that the words ask for.
pub struct RequestedOrder {
    pub order: Order<'static>,
    pages: HeapPages,
    quiet: bool,
}

/// Makes an order for this program from the words of `PAGELIFT`. `None` if the heap does not act; if it was asked to, a
/// line on standard error says why. `beside_library`: `libpagelift.so` is preloaded too, and reports errors in the words
/// itself.
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
        complain(format_args!("PAGELIFT names no program; needed: only=NAME, for example only=redis-server"));
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
        Ok(Some(order)) => Some(RequestedOrder { order, pages: words.pages, quiet: words.quiet }),
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

fn head(program: &Program) -> Text {
    Text::of(format_args!("pagelift: {}[{}]: heap: ", program.names()[0], program.pid()))
}

/// The reason for which there is no order.
enum Refusal {
    ReserveAlone,
    NoHugePages,
    ThpOff,
    NoPool(PageSize),
}

impl Refusal {
    fn tell(&self, line: &mut Text) {
        match self {
            Self::ReserveAlone => line.add(format_args!("PAGELIFT has heap-reserve= alone; needed: heap=2M beside it")),
            Self::NoHugePages => line.add(format_args!("this kernel has no huge pages of up to {LARGEST_GRAIN} bytes")),
            Self::ThpOff => line.add(format_args!(
                "transparent huge pages are switched off; needed: echo madvise > {THP}/enabled, or heap=2M and pages in \
                 the pool"
            )),
            Self::NoPool(size) => line.add(format_args!("this machine has no huge pages of {size}")),
        }
    }
}

fn transparent_or_pool(words: &HeapWords) -> Result<Option<Order<'static>>, Refusal> {
    let order = || grain().map(Order::transparent).ok_or(Refusal::NoHugePages);
    match words.pages {
        HeapPages::Off if words.reserve.is_some() => Err(Refusal::ReserveAlone),
        HeapPages::Off => Ok(None),
        HeapPages::Thp | HeapPages::Auto if thp_mode() == Some(ThpMode::Never) => Err(Refusal::ThpOff),
        HeapPages::Thp | HeapPages::Auto => order().map(Some),
        HeapPages::Pool(size) => {
            let pool = shares(size, words.reserve).ok_or(Refusal::NoPool(size))?;
            Ok(Some(Order { page: size.bytes(), pool, ..order()? }))
        }
    }
}

fn thp_size() -> Option<u64> {
    number_of(format_args!("{THP}/hpage_pmd_size")).filter(|bytes| bytes.is_power_of_two())
}

fn thp_mode() -> Option<ThpMode> {
    let (mut general, mut own) = ([0; 64], [0; 64]);
    let kib = thp_size()? / 1024;
    let general = text_of(format_args!("{THP}/enabled"), &mut general)?;
    let own = text_of(format_args!("{THP}/hugepages-{kib}kB/enabled"), &mut own).unwrap_or_default();
    ThpMode::read(general, own)
}

/// The heap's grain in bytes, as the launcher chooses it: the largest size of transparent huge pages or of a pool up to
/// [`LARGEST_GRAIN`].
fn grain() -> Option<u64> {
    let thp = thp_size().filter(|&bytes| bytes <= LARGEST_GRAIN);
    let sizes = (SMALLEST_GRAIN.trailing_zeros()..=LARGEST_GRAIN.trailing_zeros()).rev().map(|shift| 1u64 << shift);
    let mut with_pool = sizes.filter(|bytes| pool_number(bytes / 1024, "nr_hugepages").is_some());
    thp.into_iter().chain(with_pool.next()).max()
}

fn pool_number(kib: u64, file: &str) -> Option<u64> {
    number_of(format_args!("{POOLS}/hugepages-{kib}kB/{file}"))
}

/// The pages to take, by node; `None` if there is no such pool.
fn shares(size: PageSize, reserve: Option<u64>) -> Option<[NodePages; MOST_NODES]> {
    let kib = size.kib();
    let read = |file| pool_number(kib, file).unwrap_or(0);
    let free = pool_number(kib, "free_hugepages")?;
    let [reserved, overcommit, surplus] = ["resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages"].map(read);
    let pages = pages_to_take(size, HugePool::available_of(free, reserved, overcommit, surplus), reserve);
    let mut online = [0; 1024];
    let online = text_of(format_args!("{NODES}/online"), &mut online).unwrap_or_default();
    let by_node = free_pages_by_node(online, |node| {
        number_of(format_args!("{NODES}/node{node}/hugepages/hugepages-{kib}kB/free_hugepages"))
    });
    Some(share_by_node(&by_node, pages))
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
                let kib = size.kib();
                let refused = ACCOUNT.shortage.load(Relaxed) == Shortage::PopulationRefused as u64;
                if asked > taken && refused {
                    line.add(format_args!("; a cgroup or cpuset allows no more; needed: a higher hugetlb limit there"));
                    line.add(format_args!(" (its hugetlb.* files); the rest is on transparent huge pages"));
                } else if asked == 0 || asked > taken {
                    line.add(format_args!("; needed: echo NUMBER > {POOLS}/hugepages-{kib}kB/nr_hugepages"));
                    line.add(format_args!("; the rest is on transparent huge pages"));
                }
            }
            HeapPages::Thp | HeapPages::Auto | HeapPages::Off => line.add(format_args!("on transparent huge pages")),
        }
        line.say();
    }
}
