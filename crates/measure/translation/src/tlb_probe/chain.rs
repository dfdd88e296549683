//! Chains of dependent steps, one in each slot: loads for data, jumps for code.
//!
//! A chain visits every slot once in random order and returns to the first. As each step needs the one before it, its time
//! is the latency of one access.

use crate::tlb_probe::region::{NoMemory, Region};
use fastrand::Rng;
use std::ptr::NonNull;
use std::time::Instant;

/// Seed for the orders of lines.
const SEED: u64 = 0x7461_626c_6520_6f66;

/// The positions of a chain's slots in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One behind the other, a cache line each: the same number of lines on as few pages as possible.
    Packed,
    /// One in each stretch of this many bytes.
    Spread(usize),
}

/// The common parameters of both layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// Number of slots.
    pub count: usize,
    /// Their positions.
    pub layout: Layout,
    /// Bytes of a cache line.
    pub line: usize,
}

impl Slots {
    /// Offset of a slot. Spread slots use all lines of their stretches in turn, so that they meet in no more sets of a
    /// cache than packed ones do.
    pub(crate) fn offset(self, slot: usize) -> usize {
        match self.layout {
            Layout::Packed => slot * self.line,
            Layout::Spread(stretch) => {
                let lines = stretch / self.line;
                slot * stretch + (slot + slot / lines) % lines * self.line
            }
        }
    }

    /// Bytes of a region that holds them.
    pub(crate) fn bytes(self) -> usize {
        match self.layout {
            Layout::Packed => self.count * self.line,
            Layout::Spread(stretch) => self.count * stretch,
        }
    }
}

/// The successor of each slot, in one random cycle through all slots (Sattolo's algorithm).
pub(crate) fn cycle(count: usize, random: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    for last in (1..count).rev() {
        order.swap(last, random.usize(..last));
    }
    let mut next = vec![0; count];
    for (at, &slot) in order.iter().enumerate() {
        next[slot as usize] = order[(at + 1) % count];
    }
    next
}

/// The measured access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads.
    Data,
    /// Jumps.
    Code,
}

/// A chain that has been written into a region.
pub(crate) struct Chain<'a> {
    region: &'a Region,
    slots: Slots,
    access: Access,
}

impl<'a> Chain<'a> {
    /// Writes the chain. A region for code is executable afterwards, and not writable.
    ///
    /// # Panics
    /// If the slots do not fit into the region.
    pub(crate) fn write(region: &'a Region, slots: Slots, next: &[u32], access: Access) -> Result<Self, NoMemory> {
        assert!(slots.bytes() <= region.bytes() && next.len() == slots.count, "the slots must fit");
        if access == Access::Code {
            region.protect(false)?;
        }
        for (slot, &following) in next.iter().enumerate() {
            let (from, to) = (slots.offset(slot), slots.offset(following as usize));
            match access {
                Access::Data => {
                    // SAFETY:
                    // - both offsets are in the region, by the assertion above, and are aligned to a cache line.
                    unsafe {
                        let target = region.start().add(to);
                        region.start().add(from).cast::<NonNull<u8>>().write(target);
                    }
                }
                Access::Code => {
                    // The last jump is a return, so that the cycle ends before its first slot.
                    let jump = if following == 0 { machine::RETURN.to_vec() } else { machine::jump(from, to) };
                    // SAFETY:
                    // - the offset is in the region, which is writable here, and a jump is shorter than a line.
                    unsafe { region.start().add(from).copy_from_nonoverlapping(NonNull::from(&jump[0]), jump.len()) };
                }
            }
        }
        if access == Access::Code {
            region.protect(true)?;
            let jumps = (0..slots.count).map(|slot| region.start().as_ptr().wrapping_add(slots.offset(slot)));
            // SAFETY:
            // - all slots are in the region, by the assertion above, and it is mapped and readable.
            unsafe { machine::make_visible(jumps) };
        }
        Ok(Self { region, slots, access })
    }

    /// Nanoseconds of one step, over at least `steps` steps.
    pub(crate) fn time(&self, steps: usize) -> f64 {
        let rounds = steps.div_ceil(self.slots.count);
        let started = Instant::now();
        match self.access {
            Access::Data => self.load(rounds * self.slots.count),
            Access::Code => (0..rounds).for_each(|_| self.call()),
        }
        started.elapsed().as_nanos() as f64 / (rounds * self.slots.count) as f64
    }

    fn load(&self, steps: usize) {
        let first = self.slots.offset(0);
        // SAFETY:
        // - every slot of the cycle holds the address of a slot of the region, which is borrowed.
        unsafe {
            let mut at = self.region.start().add(first);
            for _ in 0..steps {
                at = at.cast::<NonNull<u8>>().read_volatile();
            }
            std::hint::black_box(at);
        }
    }

    fn call(&self) {
        // SAFETY:
        // - the region is executable and holds jumps from slot to slot; the last one returns. Nothing else is changed.
        unsafe {
            let entry: extern "C" fn() = std::mem::transmute(self.region.start().as_ptr());
            entry();
        }
    }
}

/// Jumps of x86-64 (Intel SDM, JMP rel32, RET).
#[cfg(target_arch = "x86_64")]
mod machine {
    /// `ret`.
    pub(super) const RETURN: [u8; 1] = [0xc3];

    /// `jmp` from one offset to another.
    pub(super) fn jump(from: usize, to: usize) -> Vec<u8> {
        let distance = (to as i64 - (from as i64 + 5)) as i32;
        [&[0xe9], &distance.to_le_bytes()[..]].concat()
    }

    /// Nothing to do: instruction caches are coherent.
    ///
    /// # Safety
    /// The addresses are mapped and readable.
    pub(super) unsafe fn make_visible(_jumps: impl Iterator<Item = *mut u8>) {}
}

/// Jumps of AArch64 (Arm ARM, B, RET).
#[cfg(target_arch = "aarch64")]
mod machine {
    /// `ret`.
    pub(super) const RETURN: [u8; 4] = 0xd65f_03c0_u32.to_le_bytes();

    /// `b` from one offset to another, at most 128 MiB apart.
    pub(super) fn jump(from: usize, to: usize) -> Vec<u8> {
        let distance = (to as i64 - from as i64) / 4;
        (0x1400_0000 | (distance as u32 & 0x03ff_ffff)).to_le_bytes().to_vec()
    }

    /// Cleans the data cache and invalidates the instruction cache for each jump.
    ///
    /// # Safety
    /// The addresses are mapped and readable.
    pub(super) unsafe fn make_visible(jumps: impl Iterator<Item = *mut u8> + Clone) {
        // SAFETY:
        // - the addresses are mapped, by the caller's promise; neither instruction changes contents, and Linux allows both to programs.
        unsafe {
            jumps.clone().for_each(|line| std::arch::asm!("dc cvau, {}", in(reg) line, options(nostack)));
            std::arch::asm!("dsb ish", options(nostack));
            jumps.for_each(|line| std::arch::asm!("ic ivau, {}", in(reg) line, options(nostack)));
            std::arch::asm!("dsb ish", "isb", options(nostack));
        }
    }
}

/// The generator for the order of this number of lines.
pub(crate) fn random_of(count: usize) -> Rng {
    Rng::with_seed(SEED ^ count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn a_cycle_visits_every_slot_once(count in 1usize..300, seed in any::<u64>()) {
            let next = cycle(count, &mut Rng::with_seed(seed));
            let mut seen = vec![false; count];
            let mut at = 0;
            for _ in 0..count {
                prop_assert!(!seen[at]);
                seen[at] = true;
                at = next[at] as usize;
            }
            prop_assert_eq!(at, 0);
        }

        #[test]
        fn slots_lie_in_stretches_of_their_own(count in 1usize..300, bits in 9u32..16) {
            let stretch = 1usize << bits;
            let slots = Slots { count, layout: Layout::Spread(stretch), line: 64 };
            for slot in 0..count {
                prop_assert_eq!(slots.offset(slot) / stretch, slot);
                prop_assert_eq!(slots.offset(slot) % 64, 0);
            }
        }
    }

    #[test]
    fn spread_slots_use_all_lines_of_a_page_alike() {
        let slots = Slots { count: 4096, layout: Layout::Spread(4096), line: 64 };
        let mut used = [0; 64];
        (0..slots.count).for_each(|slot| used[slots.offset(slot) % 4096 / 64] += 1);
        assert!(used.iter().all(|&times| times == 64), "{used:?}");
    }
}
