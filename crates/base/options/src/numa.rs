//! NUMA nodes of the pages that a lift fills.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The NUMA nodes of the pages that a lift fills for one process alone. Shared memory (the page cache, an image that
/// all nodes share) stays on its nodes; if an image has copies for single nodes, the copy for the chosen node is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// By the program's own memory policy and cpuset.
    #[default]
    Own,
    /// The node of the CPU on which the program runs at the moment of the lift, and no other.
    Local,
    /// All nodes of its cpuset in turn.
    Interleave,
    /// One node, and no other.
    Node(u32),
}

impl fmt::Display for Numa {
    /// The word that [`Numa::from_str`] reads; empty for the choice that has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => Ok(()),
            Self::Local => f.write_str("local"),
            Self::Interleave => f.write_str("interleave"),
            Self::Node(node) => write!(f, "node={node}"),
        }
    }
}

impl Numa {
    /// The words that [`Numa::parse`] accepts, for messages.
    pub const NEEDED: &str = "needed local or interleave or node=NUMBER";

    /// Reads `local`, `interleave` or `node=NUMBER`, without allocating.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "local" => Some(Self::Local),
            "interleave" => Some(Self::Interleave),
            _ => text.strip_prefix("node=")?.parse().ok().map(Self::Node),
        }
    }
}

impl FromStr for Numa {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("found `{text}`, {}", Self::NEEDED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn words_are_read_as_they_are_written() {
        for numa in [Numa::Local, Numa::Interleave, Numa::Node(0), Numa::Node(17)] {
            assert_eq!(numa.to_string().parse(), Ok(numa));
        }
        for text in ["", "node", "node=", "node=-1", "node=x", "1", "bind"] {
            let why = format!("found `{text}`, needed local or interleave or node=NUMBER");
            assert_eq!(text.parse::<Numa>(), Err(why));
        }
        assert_eq!(Numa::Own.to_string(), "");
    }
}
