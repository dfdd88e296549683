//! Places in a program for the remaining times of its waits.
//!
//! A call that gets its time by address needs memory for the time that is left. It is stored in the padding after the
//! vDSO's image, where no program has data. The vDSO is never lifted, so the address stays valid as long as the thread
//! waits.
//!
//! The kernel reads a time at the start of a call, before it sleeps. A later lift that interrupts the same call finds the
//! address in its argument, and makes the call again with the time that is stored there. A time is therefore kept until
//! its thread is seen elsewhere:
//! - A place that holds zeros is free. No time is stored as zeros.
//! - A place is written only if it holds what was last read or written there.
//! - The end of a lift clears the places of threads that have left their calls. A lift that was killed clears nothing:
//!   the threads end their waits, and the next lift clears the places.

use super::RemoteMemory;
use super::arch;
use super::guest_code::{ROOM_FOR_CODE, is_vdso, write_code};
use super::inflight_syscall::InflightSyscall;
use super::requests;
use super::thread_list::user_threads;
use address_space::{Address, AddressRange, AddressSpace};
use linux::text::text_of;
use nix::unistd::Pid;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Number of bytes of a `struct timespec`, and the alignment of a place.
const BYTES: usize = 16;

/// Maximum wait for the threads to sleep in calls: those that have just been released are awake.
const SLEEP_TIMEOUT: Duration = Duration::from_millis(5);
/// Interval between two checks of the threads.
const SLEEP_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The contents of a place.
type Contents = [u8; BYTES];

const FREE: Contents = [0; BYTES];

/// Waits of more seconds, more than a century, are none of a program's.
const LONGEST_SECONDS: u64 = 1 << 32;

/// A place in a process, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    process: Pid,
    at: Address,
    holds: Contents,
}

/// The places of threads, by their numbers.
#[derive(Default)]
pub struct TimePlaces {
    of_threads: HashMap<i32, Place>,
}

impl TimePlaces {
    /// Stores a time for the call of a stopped thread, and returns its address. `argument` is the present address of its
    /// time. `None` if there is no room, or if somebody else has written there.
    /// Without the mappings of the process, only a thread that has a place gets one.
    pub fn store(
        &mut self,
        process: Pid,
        thread: Pid,
        space: Option<&AddressSpace>,
        argument: Address,
        time: Duration,
    ) -> Option<Address> {
        let memory = RemoteMemory::open(process.as_raw()).ok()?;
        let known = self.of_threads.remove(&thread.as_raw()).filter(|place| place.process == process);
        let place = known.or_else(|| self.find(&memory, space?, process, argument))?;
        if contents(&memory, place.at) != Some(place.holds) {
            return None;
        }
        let holds = contents_for(time);
        write_code(thread, &memory, place.at, &holds).ok()?;
        self.of_threads.insert(thread.as_raw(), Place { holds, ..place });
        Some(place.at)
    }

    /// Returns the place at the address `argument`, which an earlier lift has used for this call, or a free place, or the
    /// place of a thread that has ended.
    fn find(&mut self, memory: &RemoteMemory, space: &AddressSpace, process: Pid, argument: Address) -> Option<Place> {
        let places = places_of(memory, space, process)?;
        let of_call = places.iter().find(|place| place.at == argument);
        let free = || places.iter().find(|place| place.holds == FREE);
        of_call.or_else(free).copied().or_else(|| self.take_from_ended(process))
    }

    fn take_from_ended(&mut self, process: Pid) -> Option<Place> {
        let has_ended = |thread: i32| !fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(true);
        let of_process = self.of_threads.iter().filter(|(_, place)| place.process == process);
        let ended = of_process.map(|(&thread, _)| thread).find(|&thread| has_ended(thread))?;
        self.of_threads.remove(&ended)
    }

    /// Forgets the places in processes that have ended.
    pub fn forget_ended(&mut self) {
        self.of_threads.retain(|_, place| fs::exists(format!("/proc/{}", place.process)).unwrap_or(true));
    }
}

/// Times in a process that no thread uses any more.
pub struct UnusedTimes(Vec<Place>);

impl UnusedTimes {
    /// Finds them while the program runs: a thread that is seen in another call does not come back to the one before. If a
    /// thread is awake, none is known to be unused, since it may be about to begin its call.
    pub fn of(process: Pid) -> Self {
        let memory = RemoteMemory::open(process.as_raw()).ok();
        let mut places = memory.and_then(|memory| places_of(&memory, &space_of(process)?, process)).unwrap_or_default();
        places.retain(|place| is_time(&place.holds));
        let deadline = Instant::now() + SLEEP_TIMEOUT;
        let mut used = if places.is_empty() { Some(BTreeSet::new()) } else { arguments_of_threads(process) };
        while used.is_none() && Instant::now() < deadline {
            thread::sleep(SLEEP_POLL_INTERVAL);
            used = arguments_of_threads(process);
        }
        places.retain(|place| used.as_ref().is_some_and(|used| !used.contains(&place.at.0)));
        Self(places)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Clears their places, unless they have been used again. `thread` is a stopped one of the process.
    pub fn clear(self, thread: Pid) {
        for place in self.0 {
            let memory = RemoteMemory::open(place.process.as_raw());
            if let Some(memory) = memory.ok().filter(|memory| contents(memory, place.at) == Some(place.holds)) {
                // If it fails, the time stays until the next lift.
                let _ = write_code(thread, &memory, place.at, &FREE);
            }
        }
    }
}

/// Returns the arguments of the calls in which the threads of a process are; `None` if one is in none, or awake.
fn arguments_of_threads(process: Pid) -> Option<BTreeSet<u64>> {
    let listing = user_threads(process, |_| true).ok().filter(|listing| listing.is_complete)?;
    let mut arguments = BTreeSet::new();
    for thread in listing.threads {
        arguments.extend(match requests::registers(Pid::from_raw(thread)) {
            Ok(registers) => arch::call_registers(&registers).1,
            // It is not stopped by this process.
            Err(_) => InflightSyscall::of(process, thread).ok().flatten()?.arguments,
        });
    }
    Some(arguments)
}

fn contents(memory: &RemoteMemory, at: Address) -> Option<Contents> {
    let mut bytes = FREE;
    memory.read(at, &mut bytes).ok()?;
    Some(bytes)
}

/// True for contents that [`contents_for`] can have made of a wait. Others are not Pagelift's.
fn is_time(contents: &Contents) -> bool {
    let (seconds, nanoseconds) = contents.split_at(8);
    let [seconds, nanoseconds] =
        [seconds, nanoseconds].map(|bytes| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes));
    *contents != FREE && seconds < LONGEST_SECONDS && nanoseconds < 1_000_000_000
}

/// A time as a `struct timespec`. No time at all is stored as the shortest one.
fn contents_for(time: Duration) -> Contents {
    let time = time.max(Duration::from_nanos(1));
    let mut bytes = FREE;
    bytes[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
    bytes[8..].copy_from_slice(&u64::from(time.subsec_nanos()).to_ne_bytes());
    bytes
}

/// Reads the mappings of a process.
pub fn space_of(process: Pid) -> Option<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{process}/maps")).ok()?).ok()
}

/// Returns all places of a process; `None` if its memory cannot be read.
fn places_of(memory: &RemoteMemory, space: &AddressSpace, process: Pid) -> Option<Vec<Place>> {
    let room = room_after_vdso(memory, space)?;
    let mut bytes = vec![0; room.len() as usize];
    memory.read(room.start(), &mut bytes).ok()?;
    let (chunks, _) = bytes.as_chunks::<BYTES>();
    let place =
        |(index, &holds): (usize, &Contents)| Place { process, at: room.start() + (index * BYTES) as u64, holds };
    Some(chunks.iter().enumerate().map(place).collect())
}

/// Returns the padding after the vDSO's image, without the end, where code is placed.
fn room_after_vdso(memory: &RemoteMemory, space: &AddressSpace) -> Option<AddressRange> {
    let vdso = space.mappings().iter().find(|mapping| is_vdso(mapping) && !mapping.protection.write)?.range;
    let mut image = vec![0; usize::try_from(vdso.len()).ok()?];
    memory.read(vdso.start(), &mut image).ok()?;
    let start = end_of_image(&image)?.checked_next_multiple_of(BYTES as u64)?;
    let length = vdso.len().checked_sub(ROOM_FOR_CODE as u64)?.checked_sub(start)?;
    Some(AddressRange::sized(vdso.start() + start, length / BYTES as u64 * BYTES as u64))
}

/// Returns the number of bytes that belong to an ELF image: its segments, and the table of its sections.
fn end_of_image(image: &[u8]) -> Option<u64> {
    let word = |at: u64, length: usize| {
        let mut bytes = [0; 8];
        let at = usize::try_from(at).ok()?;
        bytes[..length].copy_from_slice(image.get(at..at.checked_add(length)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    // Elf64_Ehdr and Elf64_Phdr of elf(5).
    let (segments, sections) = (word(32, 8)?, word(40, 8)?);
    let [segment_bytes, segment_count, section_bytes, section_count] = [54, 56, 58, 60].map(|at| word(at, 2));
    let (segment_bytes, section_bytes) = (segment_bytes?, section_bytes?);
    let mut end = sections.checked_add(section_bytes * section_count?)?;
    for index in 0..segment_count? {
        let at = segments.checked_add(index * segment_bytes)?;
        end = end.max(word(at.checked_add(8)?, 8)?.checked_add(word(at.checked_add(32)?, 8)?)?);
    }
    (image.starts_with(b"\x7fELF") && end <= image.len() as u64).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::tracee::{Running, Stopped, Waited};
    use std::process::{Child, Command};

    const ELSEWHERE: Address = Address(0x1000);

    fn sleeper() -> (Child, Pid, Stopped) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let running = Running::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        running.interrupt().unwrap();
        let Waited::Stopped(stopped, _) = running.wait().unwrap() else { panic!("the process has ended") };
        (child, pid, stopped)
    }

    fn vdso_of(pid: Pid) -> (Address, Vec<u8>) {
        let space = space_of(pid).unwrap();
        let range = space.mappings().iter().find(|mapping| is_vdso(mapping)).unwrap().range;
        let mut bytes = vec![0; range.len() as usize];
        RemoteMemory::open(pid.as_raw()).unwrap().read(range.start(), &mut bytes).unwrap();
        (range.start(), bytes)
    }

    fn time_at(pid: Pid, at: Address) -> [u64; 2] {
        let memory = RemoteMemory::open(pid.as_raw()).unwrap();
        [0, 8].map(|offset| memory.read_word(at + offset).unwrap())
    }

    #[test]
    fn a_time_stays_at_its_place_until_no_thread_uses_it() {
        let (mut child, pid, stopped) = sleeper();
        let (start, before) = vdso_of(pid);
        let space = space_of(pid);
        let space = space.as_ref();
        let mut places = TimePlaces::default();
        let mut store = |seconds| places.store(pid, pid, space, ELSEWHERE, Duration::from_secs(seconds)).unwrap();
        let at = store(7);
        assert_eq!((store(5), time_at(pid, at)), (at, [5, 0]));
        let offset = (at - start) as usize;
        let (_, after) = vdso_of(pid);
        assert!(before[offset..][..BYTES] == FREE && after[..offset] == before[..offset]);
        assert!(after[offset + BYTES..] == before[offset + BYTES..]);
        // Another lift finds it by the argument of the call, and takes another place for another call.
        let other = TimePlaces::default().store(pid, pid, space, ELSEWHERE, Duration::ZERO).unwrap();
        assert_ne!(other, at);
        assert_eq!(time_at(pid, other), [0, 1]);
        assert_eq!(TimePlaces::default().store(pid, pid, space, at, Duration::from_secs(4)), Some(at));
        assert_eq!(time_at(pid, at), [4, 0]);
        // It is cleared only once no call has it as its argument.
        let registers = requests::registers(pid).unwrap();
        let mut waiting = registers;
        arch::set_argument(&mut waiting, 3, at.0);
        requests::set_registers(pid, &waiting).unwrap();
        UnusedTimes::of(pid).clear(pid);
        assert_eq!((time_at(pid, at), time_at(pid, other)), ([4, 0], [0, 0]));
        requests::set_registers(pid, &registers).unwrap();
        UnusedTimes::of(pid).clear(pid);
        assert!(vdso_of(pid).1 == before);
        stopped.detach(0).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_somebody_else_has_written_is_not_written_over() {
        let (mut child, pid, stopped) = sleeper();
        let space = space_of(pid);
        let mut places = TimePlaces::default();
        let at = places.store(pid, pid, space.as_ref(), ELSEWHERE, Duration::from_secs(7)).unwrap();
        let memory = RemoteMemory::open(pid.as_raw()).unwrap();
        write_code(pid, &memory, at, &[0xff; BYTES]).unwrap();
        assert_eq!(places.store(pid, pid, space.as_ref(), at, Duration::from_secs(5)), None);
        UnusedTimes::of(pid).clear(pid);
        assert_eq!(time_at(pid, at), [u64::MAX; 2]);
        stopped.detach(0).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn all_places_can_be_taken_and_those_of_ended_threads_are_taken_again() {
        let (mut child, pid, stopped) = sleeper();
        let mut places = TimePlaces::default();
        let memory = RemoteMemory::open(pid.as_raw()).unwrap();
        let space = space_of(pid).unwrap();
        let count = places_of(&memory, &space, pid).unwrap().len();
        assert!(count >= 5, "{count} places");
        // No thread has these numbers.
        for number in 0..=count as i32 {
            let thread = Pid::from_raw(i32::MAX - number);
            let place = places.find(&memory, &space, pid, ELSEWHERE).unwrap();
            memory.write(place.at, &contents_for(Duration::from_secs(1))).unwrap();
            places.of_threads.insert(thread.as_raw(), Place { holds: contents_for(Duration::from_secs(1)), ..place });
        }
        assert_eq!(places.of_threads.len(), count);
        assert_eq!(TimePlaces::default().find(&memory, &space, pid, ELSEWHERE), None);
        stopped.detach(0).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        places.forget_ended();
        assert!(places.of_threads.is_empty());
    }
}
