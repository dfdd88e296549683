//! The lines of `/proc/interrupts` that concern TLB shootdowns: readable by everybody, on x86 only.

use std::collections::BTreeMap;

/// Counters of one line, one number for each CPU that is online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounts {
    /// The CPUs of the columns.
    pub cpus: Vec<u32>,
    /// TLB shootdowns received since the machine was started (the line `TLB`); `None` if the kernel has no such line,
    /// as on Arm.
    pub shootdowns: Option<Vec<u64>>,
    /// Function call interrupts received (the line `CAL`), of which shootdowns are a part.
    pub calls: Option<Vec<u64>>,
}

impl InterruptCounts {
    /// Parses the text of `/proc/interrupts`.
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let number = |word: &str| word.strip_prefix("CPU")?.parse().ok();
        let cpus: Vec<u32> =
            lines.next().map_or(Vec::new(), |line| line.split_whitespace().filter_map(number).collect());
        let line_of = |label: &str| {
            let counts = text.lines().find_map(|line| line.trim_start().strip_prefix(label)?.strip_prefix(':'))?;
            let numbers = counts.split_whitespace().take(cpus.len()).map(str::parse);
            let numbers = numbers.collect::<Result<Vec<u64>, _>>().ok();
            numbers.filter(|numbers| numbers.len() == cpus.len() && !cpus.is_empty())
        };
        let (shootdowns, calls) = (line_of("TLB"), line_of("CAL"));
        let is_counted = shootdowns.is_some() || calls.is_some();
        Self { shootdowns, calls, cpus: if is_counted { cpus } else { Vec::new() } }
    }

    /// Reads the counters of this machine.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read() -> std::io::Result<Self> {
        let bytes = crate::text::bytes_of(std::path::Path::new("/proc/interrupts"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Shootdowns received since `earlier`, on all CPUs together that are in both; `None` if they are not counted. The kernel
    /// counts in 32 bits (`irq_tlb_count` in `arch/x86/kernel/irq.c`), and shows only CPUs that are online.
    pub fn shootdowns_since(&self, earlier: &Self) -> Option<u64> {
        let (now, before) = (self.shootdowns.as_ref()?, earlier.shootdowns.as_ref()?);
        let before: BTreeMap<u32, u64> = earlier.cpus.iter().copied().zip(before.iter().copied()).collect();
        let of_both = self.cpus.iter().zip(now).filter_map(|(cpu, now)| Some((*now, *before.get(cpu)?)));
        Some(of_both.map(|(now, before)| u64::from((now as u32).wrapping_sub(before as u32))).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_by_their_label() {
        let x86 = "            CPU0       CPU1\n   0:          5          0   IO-APIC   2-edge      timer\n \
                   CAL:     117303      98231   Function call interrupts\n TLB:      55158      57050   TLB shootdowns\n";
        let counts = InterruptCounts::parse(x86);
        assert_eq!(counts.shootdowns, Some(vec![55158, 57050]));
        assert_eq!(counts.calls, Some(vec![117_303, 98231]));
        let later = InterruptCounts { cpus: vec![0, 1], shootdowns: Some(vec![55160, 57060]), calls: None };
        assert_eq!(later.shootdowns_since(&counts), Some(12));
    }

    #[test]
    fn counters_begin_again_and_cpus_go() {
        let counts = |cpus: &[u32], counts: &[u64]| InterruptCounts {
            cpus: cpus.to_vec(),
            shootdowns: Some(counts.to_vec()),
            calls: None,
        };
        let before = counts(&[0, 1, 2], &[u64::from(u32::MAX), 5_000_000, 7]);
        assert_eq!(counts(&[0, 2], &[9, 8]).shootdowns_since(&before), Some(11));
        assert_eq!(counts(&[0, 1, 2, 3], &[9, 5_000_000, 7, 900]).shootdowns_since(&before), Some(10));
    }

    #[test]
    fn what_is_not_counted_is_not_zero() {
        let arm = "           CPU0       CPU1\nIPI0:        40         51       Rescheduling interrupts\n\
                   IPI1:      1037       1216       Function call interrupts\n";
        assert_eq!(InterruptCounts::parse(arm), InterruptCounts::default());
        for damaged in ["", "TLB: 1 2", "CPU0 CPU1\nTLB: 1\n", "CPU0\nTLB: x\n", "CPU0\nTLB: 99999999999999999999999\n"]
        {
            assert_eq!(InterruptCounts::parse(damaged).shootdowns, None, "{damaged}");
        }
    }
}
