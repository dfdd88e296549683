//! The plan of a dry run of `pagelift run`, by object.

use crate::EstimateError;
use address_space::{Address, AddressRange, PageSize};
use serde::Serialize;
use serde_json::Value;

/// An object of the planned process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedObject {
    /// Path as maps shows it.
    pub path: String,
    /// The difference to the file's addresses (wrapping).
    pub bias: u64,
}

/// The planned process: the addresses of its objects, and their parts on huge pages after the lift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedPages {
    /// Objects.
    pub objects: Vec<PlannedObject>,
    /// Ranges and the size of their pages, by address.
    pub huge: Vec<(AddressRange, PageSize)>,
}

impl PlannedPages {
    /// Reads the document that `pagelift run --dry-run --report` writes. The first attempt of each lift counts.
    ///
    /// # Errors
    /// [`EstimateError::Plan`].
    pub fn parse(text: &str) -> Result<Self, EstimateError> {
        let document: Value = serde_json::from_str(text).map_err(|error| EstimateError::Plan(error.to_string()))?;
        let objects = list(&document["objects"])?.iter().map(object).collect::<Option<Vec<_>>>();
        let mut huge = Vec::new();
        for lift in list(&document["plan"]["lifts"])? {
            let attempt = &lift["attempts"][0];
            let size = attempt["page_size"].as_u64().and_then(|bytes| PageSize::new(bytes).ok());
            let size = size.ok_or_else(|| wrong("page size", attempt))?;
            for part in list(&attempt["parts"])? {
                let range = range(&part["range"]).ok_or_else(|| wrong("range", part))?;
                huge.push((range.whole_pages(size), size));
            }
        }
        huge.sort_unstable_by_key(|(range, _)| range.start());
        Ok(Self { objects: objects.ok_or_else(|| wrong("object", &document["objects"]))?, huge })
    }

    /// The size of the huge page at an address, if there is to be one.
    pub fn huge_at(&self, address: Address) -> Option<PageSize> {
        let behind = self.huge.partition_point(|(range, _)| range.start() <= address);
        let (range, size) = self.huge.get(behind.checked_sub(1)?)?;
        range.contains(address).then_some(*size)
    }

    /// The bias of the object at this path in the planned process.
    pub fn bias_of(&self, path: &str) -> Option<u64> {
        self.objects.iter().find(|object| object.path == path).map(|object| object.bias)
    }
}

fn wrong(what: &str, value: &Value) -> EstimateError {
    EstimateError::Plan(format!("no {what} in {value:.200}"))
}

fn list(value: &Value) -> Result<&Vec<Value>, EstimateError> {
    value.as_array().ok_or_else(|| wrong("list", value))
}

fn object(value: &Value) -> Option<PlannedObject> {
    Some(PlannedObject { path: value["path"].as_str()?.to_owned(), bias: address(&value["bias"])?.0 })
}

/// Addresses are texts such as 0x1000, since JSON's numbers lose precision.
fn address(value: &Value) -> Option<Address> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok().map(Address)
}

fn range(value: &Value) -> Option<AddressRange> {
    Some(AddressRange::new(address(&value["start"])?, address(&value["end"])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{
        "objects": [{"path": "/bin/x", "role": "executable", "bias": "0x5555555ff000"}],
        "plan": {"lifts": [
            {"object": "x", "attempts": [
                {"source": "thp", "page_size": 2097152, "parts": [
                    {"range": {"start": "0x555555a00000", "end": "0x555555e00000"}, "way": {"swap": {}}},
                    {"range": {"start": "0x555555600000", "end": "0x555555800000"}, "way": "refault"}]},
                {"source": "hugetlb", "page_size": 1073741824, "parts": []}]}]}}"#;

    #[test]
    fn the_first_attempt_says_what_becomes_huge() {
        let planned = PlannedPages::parse(DOCUMENT).unwrap();
        let huge = |address| planned.huge_at(Address(address)).map(PageSize::bytes);
        assert_eq!(huge(0x5555_5560_0000), Some(2 << 20));
        assert_eq!(huge(0x5555_557f_ffff), Some(2 << 20));
        assert_eq!(huge(0x5555_5580_0000), None);
        assert_eq!(huge(0x5555_55a0_1000), Some(2 << 20));
        assert_eq!(huge(0x5555_5550_0000), None);
        assert_eq!((planned.bias_of("/bin/x"), planned.bias_of("/bin/y")), (Some(0x5555_555f_f000), None));
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        for text in
            ["", "{}", r#"{"objects": [{}], "plan": {"lifts": []}}"#, r#"{"objects": [], "plan": {"lifts": [{}]}}"#]
        {
            assert!(matches!(PlannedPages::parse(text), Err(EstimateError::Plan(_))), "{text}");
        }
    }
}
