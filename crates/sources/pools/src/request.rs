//! A user's request to a pool: `SIZE:COUNT[@NODE]`.

use address_space::PageSize;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Pages of one size, on one node or wherever the kernel places them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolRequest {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub pages: u64,
    /// The node; `None`: spread over all nodes.
    pub node: Option<u32>,
}

impl PoolRequest {
    /// All bytes of the request.
    pub const fn bytes(&self) -> u64 {
        self.pages.saturating_mul(self.size.bytes())
    }
}

/// Why a text is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {found}; needed: SIZE:COUNT or SIZE:COUNT@NODE, for example 2M:64 or 1G:2@0")]
pub struct RequestError {
    text: String,
    found: &'static str,
}

impl FromStr for PoolRequest {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let RequestParts { size, count, node } = parts(text)?;
        let pages = count.parse().map_err(|_| RequestError::new(text, "found no number of pages"))?;
        Ok(Self { size, pages, node })
    }
}

impl RequestError {
    pub(crate) fn new(text: &str, found: &'static str) -> Self {
        Self { text: text.to_owned(), found }
    }
}

/// The parts of a request, `SIZE:COUNT` or `SIZE:COUNT@NODE`.
pub(crate) struct RequestParts<'a> {
    pub size: PageSize,
    /// Not parsed.
    pub count: &'a str,
    pub node: Option<u32>,
}

/// Splits a request into its parts.
pub(crate) fn parts(text: &str) -> Result<RequestParts<'_>, RequestError> {
    let error = |found| RequestError::new(text, found);
    let (size, rest) = text.split_once(':').ok_or_else(|| error("found no colon"))?;
    let (count, node) = match rest.split_once('@') {
        Some((count, node)) => (count, Some(node.parse().map_err(|_| error("found no number of a node"))?)),
        None => (rest, None),
    };
    Ok(RequestParts { size: size.parse().map_err(|_| error("found no page size"))?, count, node })
}

impl fmt::Display for PoolRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", short_size(self.size), self.pages)?;
        self.node.map_or(Ok(()), |node| write!(f, "@{node}"))
    }
}

/// A page size as requests and the kernel's command line have it: `2M`, `1G`, `64K`.
pub fn short_size(size: PageSize) -> String {
    size.to_string().replace(" ", "").trim_end_matches("iB").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_written_alike() {
        for text in ["2M:64", "1G:2@0", "64K:0@3"] {
            assert_eq!(text.parse::<PoolRequest>().unwrap().to_string(), text);
        }
        let request: PoolRequest = "2MiB:3@1".parse().unwrap();
        assert_eq!((request.bytes(), request.node), (6 << 20, Some(1)));
    }

    #[test]
    fn what_is_missing_is_said() {
        let found = |text: &str| text.parse::<PoolRequest>().unwrap_err().to_string();
        assert!(found("64").starts_with("`64`: found no colon; needed: SIZE:COUNT"));
        assert!(["3M:64", "2048:1", "2:64"].iter().all(|text| found(text).contains("found no page size")));
        assert!(found("2M:").contains("found no number of pages") && found("2M:-1").contains("no number of pages"));
        assert!(found("2M:1@x").contains("found no number of a node"));
    }
}
