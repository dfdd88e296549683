//! The lines of `/proc/interrupts` that concern shootdowns: readable by everybody, on x86 only.

/// Counters of one line, one number for each CPU that is online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounts {
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
        let cpus =
            lines.next().map_or(0, |line| line.split_whitespace().filter(|word| word.starts_with("CPU")).count());
        let line_of = |label: &str| {
            let counts = text.lines().find_map(|line| line.trim_start().strip_prefix(label)?.strip_prefix(':'))?;
            let numbers = counts.split_whitespace().take(cpus).map(str::parse);
            numbers.collect::<Result<Vec<u64>, _>>().ok().filter(|numbers| numbers.len() == cpus && cpus > 0)
        };
        Self { shootdowns: line_of("TLB"), calls: line_of("CAL") }
    }

    /// Reads the counters of this machine.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read() -> std::io::Result<Self> {
        let bytes = linux::text::bytes_of(std::path::Path::new("/proc/interrupts"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Shootdowns received since `earlier`, on all CPUs together; `None` if they are not counted.
    pub fn shootdowns_since(&self, earlier: &Self) -> Option<u64> {
        let (now, before) = (self.shootdowns.as_ref()?, earlier.shootdowns.as_ref()?);
        // A CPU that came online or went offline changes the columns; the sums are still valid.
        let sum = |numbers: &[u64]| numbers.iter().fold(0, |sum: u64, number| sum.wrapping_add(*number));
        Some(sum(now).saturating_sub(sum(before)))
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
        let later = InterruptCounts { shootdowns: Some(vec![55160, 57060]), calls: None };
        assert_eq!(later.shootdowns_since(&counts), Some(12));
        assert_eq!(counts.shootdowns_since(&later), Some(0));
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
