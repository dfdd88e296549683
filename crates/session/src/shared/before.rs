//! Facts about memory that a program will fill, before the program starts.

use super::InPlace;
use super::gather::machine;
use address_space::PageSize;
use linux::capabilities::{self, CapabilitySet};
use shared_memory::{Reason, SHMEM_ENABLED};

/// The machine's settings for one kind of memory of a program that is about to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The reason why it cannot be lifted, with the fix.
    pub refused: Option<String>,
    /// The reason why a part will not be lifted, with the fix. The setting takes effect for programs that start
    /// afterwards.
    pub in_part: Option<String>,
}

/// Reads what the machine and this user's rights allow.
pub fn expectation(memory: InPlace) -> Expectation {
    let (found, settings) = match machine(memory) {
        Ok(found) => found,
        Err(error) => return Expectation { refused: Some(error.to_string()), in_part: None },
    };
    let may_collapse = capabilities::of_this_thread().is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_NICE));
    let refused = found.refused.clone().or((!may_collapse).then_some(Reason::NotPermitted));
    let in_part = (memory == InPlace::Shared).then(|| shmem(found.never, settings.word(), found.huge)).flatten();
    Expectation { refused: refused.as_ref().map(in_words), in_part: in_part.filter(|_| refused.is_none()) }
}

/// The part that the settings of shared memory keep off huge pages: placement is decided when the program maps it.
fn shmem(never: bool, of_size: Option<&str>, huge: PageSize) -> Option<String> {
    match of_size {
        Some(word @ "never") => Some(in_words(&Reason::SizeOff { size: huge, word: word.to_owned() })),
        _ if never => Some(format!(
            "shmem_enabled is `never`, so that the kernel places it anywhere, and most of it cannot be lifted; fix: before the \
             start, echo advise > {SHMEM_ENABLED}"
        )),
        _ => None,
    }
}

fn in_words(reason: &Reason) -> String {
    reason.fix().map_or_else(|| reason.to_string(), |fix| format!("{reason}; fix: {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_shared_memory_are_named_with_their_fix() {
        let huge = PageSize::new(2 << 20).unwrap();
        let never = shmem(true, Some("inherit"), huge).unwrap();
        assert!(
            never.starts_with("shmem_enabled is `never`")
                && never.contains("; fix: before the start, echo advise > /sys/"),
            "{never}"
        );
        let size = shmem(true, Some("never"), huge).unwrap();
        assert!(size.contains("hugepages-2048kB/shmem_enabled is `never`; fix: echo inherit > "), "{size}");
        assert_eq!((shmem(false, None, huge), shmem(false, Some("advise"), huge)), (None, None));
    }

    #[test]
    fn private_memory_depends_on_no_setting_of_shared_memory() {
        assert_eq!(expectation(InPlace::Anonymous).in_part, None);
        assert_eq!(expectation(InPlace::Anonymous).refused, expectation(InPlace::Jit).refused);
    }
}
