//! The last resort for a range that the kernel has unmapped without moving the copy there: its contents on ordinary pages, before
//! any thread runs.

use super::LiveExecutor;
use crate::attach::calls_of_thread::Calls;
use crate::attach::own_mapping::space_of;
use crate::remote::arch::numbers;
use crate::remote::calls::failed;
use address_space::{Address, AddressRange, AddressSpace, Protection, RangeSet};
use lift_execution::CallError;
use nix::unistd::Pid;
use std::thread::sleep;
use std::time::Duration;

/// Tries for each step. The kernel may lack memory for a moment.
const TRIES: u32 = 20;
/// Time between two tries.
const BETWEEN: Duration = Duration::from_millis(5);
/// Number of bytes that are copied at a time.
const AT_ONCE: u64 = 256 << 10;

/// The memory of a range before its swap, and the address of its copy.
pub(super) struct Refill {
    pid: Pid,
    pieces: Vec<Piece>,
}

/// A part of the range with one protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    range: AddressRange,
    protection: Protection,
    /// Address of its contents in the copy.
    from: Address,
}

/// The steps that fill a gap; a trait, so that a test can make each step fail.
trait Fill {
    fn map(&mut self, range: AddressRange) -> Result<(), CallError>;
    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError>;
    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError>;
    fn pause(&mut self);
}

impl LiveExecutor {
    /// Notes what a range holds that is about to be replaced by the copy at `from`.
    pub(super) fn refill(&self, range: AddressRange, from: Address) -> Refill {
        Refill { pid: self.process.pid(), pieces: pieces(&self.planned, range, from) }
    }
}

impl Refill {
    /// Fills the unmapped parts. All threads are stopped.
    ///
    /// # Errors
    /// The first step that failed at each try.
    pub fn fill(&self, calls: &mut Calls<'_, '_>) -> Result<(), CallError> {
        let space = space_of(self.pid).map_err(|error| failed("reading maps", &error))?;
        let mapped = space.mappings().iter().map(|mapping| mapping.range).collect();
        fill(&missing(&self.pieces, &mapped), calls)
    }
}

fn pieces(before: &AddressSpace, range: AddressRange, from: Address) -> Vec<Piece> {
    let piece = |mapping: &address_space::Mapping| {
        let part = mapping.range.intersect(range);
        Piece { range: part, protection: mapping.protection, from: from + (part.start() - range.start()) }
    };
    before.overlapping(range).iter().map(piece).collect()
}

/// The unmapped parts of these pieces.
fn missing(pieces: &[Piece], mapped: &RangeSet) -> Vec<Piece> {
    let gaps = |piece: &Piece| {
        let mut gaps = RangeSet::new();
        gaps.insert(piece.range);
        mapped.within(piece.range).for_each(|there| gaps.remove(there));
        let piece = *piece;
        let of_gap = move |gap: AddressRange| Piece {
            range: gap,
            from: piece.from + (gap.start() - piece.range.start()),
            ..piece
        };
        gaps.within(piece.range).map(of_gap).collect::<Vec<_>>()
    };
    pieces.iter().flat_map(gaps).collect()
}

fn fill(pieces: &[Piece], filler: &mut impl Fill) -> Result<(), CallError> {
    for &Piece { range, protection, from } in pieces {
        persist(filler, |filler| filler.map(range))?;
        persist(filler, |filler| filler.copy(AddressRange::sized(from, range.len()), range.start()))?;
        if protection != Protection::READ_WRITE {
            persist(filler, |filler| filler.protect(range, protection))?;
        }
    }
    Ok(())
}

fn persist<F: Fill>(filler: &mut F, mut step: impl FnMut(&mut F) -> Result<(), CallError>) -> Result<(), CallError> {
    let mut result = step(filler);
    for _ in 1..TRIES {
        if result.is_ok() {
            break;
        }
        filler.pause();
        result = step(filler);
    }
    result
}

impl Fill for Calls<'_, '_> {
    fn map(&mut self, range: AddressRange) -> Result<(), CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = Protection::READ_WRITE.bits() as u64;
        let arguments = [range.start().0, range.len(), protection, flags as u64, u64::MAX, 0];
        self.call("mmap", numbers::SYS_mmap, arguments).map(drop)
    }

    fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
        let mut buffer = vec![0; AT_ONCE.min(from.len()) as usize];
        let mut done = 0;
        while done < from.len() {
            let chunk = &mut buffer[..(from.len() - done).min(AT_ONCE) as usize];
            self.memory.read(from.start() + done, chunk).map_err(|error| failed("reading memory", &error))?;
            self.memory.write(to + done, chunk).map_err(|error| failed("writing memory", &error))?;
            done += chunk.len() as u64;
        }
        Ok(())
    }

    fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), protection.bits() as u64, 0, 0, 0];
        self.call("mprotect", numbers::SYS_mprotect, arguments).map(drop)
    }

    fn pause(&mut self) {
        sleep(BETWEEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails each step so many times before it succeeds.
    struct Failing {
        times: u32,
        left: u32,
        done: Vec<String>,
    }

    impl Failing {
        fn step(&mut self, what: String) -> Result<(), CallError> {
            if self.left > 0 {
                self.left -= 1;
                return Err(CallError { call: "step", errno: libc::ENOMEM });
            }
            self.left = self.times;
            self.done.push(what);
            Ok(())
        }
    }

    impl Fill for Failing {
        fn map(&mut self, range: AddressRange) -> Result<(), CallError> {
            self.step(format!("map {range}"))
        }

        fn copy(&mut self, from: AddressRange, to: Address) -> Result<(), CallError> {
            self.step(format!("copy {from} {:x}", to.0))
        }

        fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
            self.step(format!("protect {range} {protection}"))
        }

        fn pause(&mut self) {}
    }

    fn gaps() -> Vec<Piece> {
        let before = AddressSpace::parse("400000-600000 r-xp 0 fe:00 9 /a\n600000-800000 rw-p 0 fe:00 9 /a\n").unwrap();
        let range = AddressRange::new(Address(0x400000), Address(0x800000));
        let all = pieces(&before, range, Address(0x10000000));
        let mapped: RangeSet = [AddressRange::new(Address(0x400000), Address(0x500000))].into_iter().collect();
        missing(&all, &mapped)
    }

    #[test]
    fn what_is_missing_gets_its_contents_and_protection_back() {
        let mut filler = Failing { times: TRIES - 1, left: TRIES - 1, done: Vec::new() };
        fill(&gaps(), &mut filler).unwrap();
        let wanted = [
            "map 500000-600000",
            "copy 10100000-10200000 500000",
            "protect 500000-600000 r-x",
            "map 600000-800000",
            "copy 10200000-10400000 600000",
        ];
        assert_eq!(filler.done, wanted);
    }

    #[test]
    fn a_step_that_fails_each_time_is_an_error() {
        let mut filler = Failing { times: TRIES, left: TRIES, done: Vec::new() };
        assert_eq!(fill(&gaps(), &mut filler).unwrap_err().errno, libc::ENOMEM);
        assert!(filler.done.is_empty());
    }
}
