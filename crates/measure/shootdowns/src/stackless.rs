//! Reads samples with stacks of threads that have no stack in a program: kernel threads. If a sample has no registers
//! of a program the kernel omits their values (`perf_output_sample` in kernel/events/core.c,
//! PERF_SAMPLE_REGS_ABI_NONE).

/// `PERF_SAMPLE_REGS_ABI_NONE` of linux/perf_event.h.
const NO_REGISTERS: u64 = 0;
/// Most entries of a chain: `kernel.perf_event_max_stack` is 127 by default, and 640 kB at most.
const MOST_ENTRIES: u64 = 80_000;

/// A sample of TID, TIME, CPU, CALLCHAIN and RAW, of REGS_USER that are none, and of STACK_USER.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stackless {
    pub pid: i32,
    pub tid: i32,
    /// Nanoseconds.
    pub time: u64,
    pub cpu: u32,
    /// The chain with its markers.
    pub chain: Vec<u64>,
    /// The event's record.
    pub raw: Vec<u8>,
}

impl Stackless {
    /// Parses what follows a record's header. `None` if it is cut off or has registers.
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let [pid, tid] = [word(&mut bytes)?, word(&mut bytes)?];
        let time = double_word(&mut bytes)?;
        let [cpu, _] = [word(&mut bytes)?, word(&mut bytes)?];
        let entries = double_word(&mut bytes).filter(|&entries| entries <= MOST_ENTRIES)?;
        let chain = (0..entries).map(|_| double_word(&mut bytes)).collect::<Option<_>>()?;
        let length = word(&mut bytes)? as usize;
        let (raw, rest) = bytes.split_at_checked(length)?;
        let mut rest = rest;
        (double_word(&mut rest)? == NO_REGISTERS).then_some(())?;
        Some(Self { pid: pid as i32, tid: tid as i32, time, cpu, chain, raw: raw.to_vec() })
    }
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_ne_bytes(*first))
}

fn double_word(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_ne_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample as the kernel writes it: the raw record's length covers its padding.
    fn sample(registers: u64) -> Vec<u8> {
        let ids = [37_u32, 38].map(u32::to_ne_bytes).concat();
        let after = [1_u32, 0].map(u32::to_ne_bytes).concat();
        let chain =
            [3_u64, (-128_i64) as u64, 0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000].map(u64::to_ne_bytes).concat();
        let raw = [&12_u32.to_ne_bytes()[..], &[7; 12]].concat();
        [ids, 99_u64.to_ne_bytes().to_vec(), after, chain, raw, [registers, 0].map(u64::to_ne_bytes).concat()].concat()
    }

    #[test]
    fn a_sample_of_a_thread_of_the_kernel_is_read() {
        let found = Stackless::parse(&sample(NO_REGISTERS)).expect("a sample");
        assert_eq!((found.pid, found.tid, found.time, found.cpu), (37, 38, 99, 1));
        assert_eq!(found.chain, [(-128_i64) as u64, 0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000]);
        assert_eq!(found.raw, [7; 12]);
    }

    #[test]
    fn what_has_registers_or_is_cut_off_is_none() {
        assert_eq!(Stackless::parse(&sample(2)), None);
        let whole = sample(NO_REGISTERS);
        for length in 0..whole.len() - 8 {
            assert_eq!(Stackless::parse(&whole[..length]), None, "{length}");
        }
        let mut long = whole;
        long[24..32].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(Stackless::parse(&long), None);
    }
}
