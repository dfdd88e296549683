//! Shares of machines and of processes, chosen by hash: the same files give each machine the same answer after a restart.

use super::facts::Identity;
use super::refusal::{Reason, Refusal};
use crate::rules::{Rule, Share};
use sha2::{Digest, Sha256};

/// True if the hash of these texts falls into the share.
pub(super) fn is_chosen(share: Share, texts: &[&str]) -> bool {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    let digest = hash.finalize();
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    // 53 bits are exact in a double.
    (number >> 11) as f64 / (1_u64 << 53) as f64 >= 1.0 - share.ratio()
}

/// Why a rule lifts nothing on this machine, or not this process.
pub fn excluded(rule: &Rule, machine: &str, boot: &str, identity: Identity) -> Option<Refusal> {
    if !is_chosen(rule.rollout, &["rollout", machine, &rule.name]) {
        let text =
            format!("rule \"{}\" has rollout = {}, and this machine is not among these", rule.name, rule.rollout);
        return Some(Refusal::new(Reason::NotRolledOut, text));
    }
    let process = format!("{} {}", identity.pid, identity.start);
    is_chosen(rule.holdout, &["holdout", machine, boot, &process]).then(|| {
        let text =
            format!("rule \"{}\" has holdout = {}, and this process stays plain as a control", rule.name, rule.holdout);
        Refusal::new(Reason::Holdout, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_grow_without_exchanging_machines() {
        let chosen = |percent| -> Vec<u32> {
            (0..10_000)
                .filter(|machine| is_chosen(Share::percent(percent), &["rollout", &machine.to_string(), "a"]))
                .collect()
        };
        assert!(chosen(0.0).is_empty());
        assert_eq!(chosen(100.0).len(), 10_000);
        let (one, ten) = (chosen(1.0), chosen(10.0));
        assert!((60..140).contains(&one.len()) && (900..1100).contains(&ten.len()), "{} {}", one.len(), ten.len());
        assert!(one.iter().all(|machine| ten.contains(machine)), "a larger share keeps the machines of a smaller one");
    }

    #[test]
    fn texts_are_not_joined() {
        let half = Share::percent(50.0);
        let differ =
            (0..100).any(|n| is_chosen(half, &[&format!("a{n}"), "b"]) != is_chosen(half, &[&format!("a{n}b"), ""]));
        assert!(differ);
    }
}
