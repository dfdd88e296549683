//! The lift of a program that requests pages of the pool by itself: these are for its buffers.

use crate::facts::ProgramFacts;
use crate::own_pages::Request;
use lift_plan::{Pages, Plan, RangeLift, Reason, Source};
use session::SessionError;
use session::inspect::Inspection;

/// The plan of a lift without the pool, if the program requests pages of the pool by itself. `of` returns the plan with other
/// pages.
pub fn leave_pool(
    facts: &mut ProgramFacts,
    usual: Inspection,
    of: impl Fn(Pages) -> Result<Inspection, SessionError>,
) -> Result<Inspection, SessionError> {
    let requests = facts.own_pages.as_ref().is_some_and(|own| own.request != Request::Off);
    if !requests || !has_copy(&usual) {
        return Ok(usual);
    }
    // Its processes share files and images.
    let shared = of(Pages::FileThenImage)?;
    let lifted = |of: &Inspection| read_only(&of.plan) + of.postponed.as_ref().map_or(0, |postponed| postponed.bytes);
    let (pages, inspection) = match lifted(&shared) >= lifted(&usual) / 2 {
        true => (Pages::FileThenImage, shared),
        false => (Pages::Thp, of(Pages::Thp)?),
    };
    facts.pages = Some(pages);
    Ok(inspection)
}

/// Bytes that a source serves. Written memory gets transparent huge pages with each source.
fn read_only(plan: &Plan) -> u64 {
    plan.lifts.iter().filter(|lift| !lift.protection.write).map(|lift| lift.range.len()).sum()
}

/// True if a lift copies memory, which takes pages of the pool as soon as it has some. Only copies are postponed.
pub fn has_copy(inspection: &Inspection) -> bool {
    let is_copy = |lift: &RangeLift| matches!(lift.attempts[0].source, Source::Hugetlb | Source::Thp);
    inspection.postponed.is_some() || inspection.plan.lifts.iter().any(is_copy)
}

/// True for the reasons that files and images do not serve a range which a copy would.
pub fn is_of_source(reason: &Reason) -> bool {
    matches!(reason, Reason::NotCongruent { .. } | Reason::NoCachedFile | Reason::NoImage { .. } | Reason::NotInImage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, AddressRange, PageSize, Protection};

    /// MariaDB that was started plainly: 18 MiB of code and constants at other addresses than in its file, and 18 MiB of
    /// written memory, which each source serves.
    #[test]
    fn written_memory_is_no_part_of_what_a_source_serves() {
        let lift = |bytes: u64, protection| RangeLift {
            object: "mariadbd".to_owned(),
            kinds: Vec::new(),
            range: AddressRange::new(Address(0), Address(bytes)),
            protection,
            attempts: Vec::new(),
        };
        let lifts = vec![lift(18 << 20, Protection::READ_WRITE), lift(8 << 20, Protection::READ_EXECUTE)];
        assert_eq!(read_only(&Plan { lifts, ..Plan::default() }), 8 << 20);
    }

    #[test]
    fn reasons_of_sources_are_no_shortfall_of_the_program() {
        let size = PageSize::new(2 << 20).unwrap();
        assert!(is_of_source(&Reason::NotInImage) && is_of_source(&Reason::NoImage { file: None }));
        assert!(!is_of_source(&Reason::ThpSize { wanted: size, size }));
    }
}
