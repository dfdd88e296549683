//! The order: the pages, their number on each node, and the programs.

use crate::VERSION;
use core::fmt;

/// Nodes with pool pages of their own that an order can name.
pub const MOST_NODES: usize = 16;

/// Pool pages of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePages {
    /// The node's number.
    pub node: u32,
    /// Pages to take there.
    pub pages: u64,
}

/// The instructions to the preloaded heap. Text form: `v4 huge=2097152 page=2097152 pool=0:512,1:512 nodes=chosen
/// python=malloc only=NAME,NAME`; all words but the first three are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<'a> {
    /// Bytes of a transparent huge page: the grain in which memory is handed about.
    pub huge: u64,
    /// Bytes of a pool page; 0 if nothing comes from the pool.
    pub page: u64,
    /// The nodes of the pool's pages; entries with 0 pages are unused.
    pub pool: [NodePages; MOST_NODES],
    /// The user has chosen these nodes, so that the program's own memory policy does not count.
    pub chosen: bool,
    /// Python is to have its small objects from `malloc`, as by `PYTHONMALLOC=malloc`, which no child is to inherit.
    pub python: bool,
    /// Names of the programs to act in; empty for the first program alone.
    pub only: &'a str,
}

impl<'a> Order<'a> {
    /// An order for transparent huge pages alone.
    pub fn transparent(huge: u64) -> Self {
        Self { huge, page: 0, pool: [NodePages::default(); MOST_NODES], chosen: false, python: false, only: "" }
    }

    /// Reads the text form; `None` if it is not one of this version.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (version, mut rest) = text.split_once(' ')?;
        if version.strip_prefix('v')?.parse::<u64>() != Ok(VERSION) {
            return None;
        }
        let mut order = Self::transparent(0);
        while !rest.is_empty() {
            // Names may contain blanks, so they are last and take the rest of the text.
            if let Some(names) = rest.strip_prefix("only=") {
                order.only = names;
                break;
            }
            let (field, tail) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = tail;
            match field.split_once('=')? {
                ("huge", value) => order.huge = value.parse().ok()?,
                ("page", value) => order.page = value.parse().ok()?,
                ("pool", value) => order.read_pool(value)?,
                ("nodes", "chosen") => order.chosen = true,
                ("python", "malloc") => order.python = true,
                _ => return None,
            }
        }
        let sound = |bytes: u64| bytes.is_power_of_two() && bytes >= 4096;
        (sound(order.huge) && (order.page == 0 || sound(order.page))).then_some(order)
    }

    fn read_pool(&mut self, text: &str) -> Option<()> {
        for (index, entry) in text.split(',').enumerate() {
            let (node, pages) = entry.split_once(':')?;
            *self.pool.get_mut(index)? = NodePages { node: node.parse().ok()?, pages: pages.parse().ok()? };
        }
        Some(())
    }

    /// True if the order is for a program of this name or path.
    pub fn names(&self, path: &str) -> bool {
        let short = path.rsplit('/').next().unwrap_or(path);
        self.only.is_empty() || self.only.split(',').any(|name| name == short || name == path)
    }

    /// Bytes asked of the pool.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.iter().fold(0, |sum: u64, node| sum.saturating_add(node.pages.saturating_mul(self.page)))
    }
}

impl fmt::Display for Order<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{VERSION} huge={} page={}", self.huge, self.page)?;
        let mut before = " pool=";
        for node in self.pool.iter().filter(|node| node.pages > 0) {
            write!(f, "{before}{}:{}", node.node, node.pages)?;
            before = ",";
        }
        if self.chosen {
            f.write_str(" nodes=chosen")?;
        }
        if self.python {
            f.write_str(" python=malloc")?;
        }
        if !self.only.is_empty() {
            write!(f, " only={}", self.only)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn an_order_survives_its_text() {
        let mut order = Order::transparent(1 << 21);
        assert_eq!(Order::parse(&order.to_string()), Some(order));
        order.page = 1 << 30;
        order.pool[0] = NodePages { node: 0, pages: 3 };
        order.pool[1] = NodePages { node: 7, pages: 1 };
        order.only = "redis-server,a program";
        assert_eq!(Order::parse(&order.to_string()), Some(order));
        assert_eq!(order.pool_bytes(), 4 << 30);
        let text = std::format!("v{VERSION} huge=2097152 page=1073741824 pool=0:3,7:1 only=redis-server,a program");
        assert_eq!(order.to_string(), text);
        order.chosen = true;
        order.python = true;
        assert!(order.to_string().contains("pool=0:3,7:1 nodes=chosen python=malloc only="));
        assert_eq!(Order::parse(&order.to_string()), Some(order));
        assert_eq!(
            Order::parse(&std::format!("v{VERSION} huge=4096 page=4096")).map(|order| (order.huge, order.page)),
            Some((4096, 4096))
        );
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for text in ["huge=3 page=0", "huge=2048 page=0", "huge=2097152 page=2048", "huge=2097152 page=x", "page=4096"]
        {
            assert_eq!(Order::parse(&std::format!("v{VERSION} {text}")), None, "{text}");
        }
        let (this, other) = (std::format!("v{VERSION}"), std::format!("v{} huge=2097152 page=0", VERSION + 1));
        assert_eq!(["", &this, &other].map(Order::parse), [None; 3]);
        let nodes = ["0:1"; MOST_NODES + 1].join(",");
        assert_eq!(Order::parse(&std::format!("v{VERSION} huge=2097152 page=2097152 pool={nodes}")), None);
    }

    #[test]
    fn programs_are_meant_by_name_or_path() {
        let order = Order { only: "postgres,/usr/bin/env", ..Order::transparent(1 << 21) };
        assert!(order.names("/usr/lib/postgresql/15/bin/postgres") && order.names("/usr/bin/env"));
        assert!(!order.names("/bin/env") && !order.names("/usr/bin/postgresql"));
    }
}
