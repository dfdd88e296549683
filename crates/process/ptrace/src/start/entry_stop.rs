//! Stops a program at its entry, by the code of `guest_code`, to which AT_ENTRY of the auxiliary vector is set.
//!
//! The code makes no system call, for a constructor may have installed a seccomp filter that kills the program for it. It
//! writes an announcement below the stack, again and again, until it is stopped or has counted to its end.
//!
//! The kernel's copy of the vector, which debuggers read from `/proc/PID/auxv`, keeps the real entry.

use crate::remote::arch::{self, guest};
use crate::remote::auxiliary::AuxiliaryVector;
use crate::remote::guest_code::{GuestCode, mappings_with_room, vdso_at, write_code};
use crate::remote::{RemoteMemory, requests};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, ProcessStat};
use linux::constants;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use linux::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;

/// Maximum number of bytes of one mapping that are searched for the entry's address.
const SEARCHED: u64 = 8 << 20;

/// Distance of the announcement from the stack pointer of a new program. In bytes; more than the code has on the stack.
const BELOW_STACK: u64 = 512;

/// Number of words behind the code.
const WORDS: usize = 4;

/// Field of `/proc/PID/stat`, counted from 1 (proc_pid_stat(5)).
const START_OF_STACK: usize = 28;

/// Upper half of an announcement.
const ANNOUNCES: u32 = 0x7ca1_5e9d;

/// A program that announces when it is about to be entered.
pub struct AwaitedEntry {
    code: GuestCode,
    entry: Address,
    /// Where it does so. The stack there is unused at the entry.
    announcement: Address,
    memory: RemoteMemory,
    places: Places,
}

/// Where a program's entry is kept.
struct Places {
    /// The words that hold the address of the code instead of the entry.
    words: Vec<Address>,
    /// A dynamic linker that was started as a program maps it.
    by_linker: bool,
    /// The word that gets the entry if the program is entered without a stop.
    mark: Option<Address>,
}

impl AwaitedEntry {
    /// Prepares a program at its exec stop.
    ///
    /// # Errors
    /// There is no room for the code, or the stack does not have the layout of a new program; nothing has changed then.
    pub fn at_exec(pid: Pid, entry: Address) -> io::Result<Self> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let stack = arch::stack_pointer(&requests::registers(pid)?);
        let vector = AuxiliaryVector::read(&memory, stack)?;
        let place = vector.place_of(constants::AT_ENTRY).ok_or_else(|| io::Error::other("it was given no AT_ENTRY"))?;
        let vdso = vector.value(constants::AT_SYSINFO_EHDR);
        let vdso = vdso.and_then(|start| vdso_at(&memory, Address(start), base_page()));
        let places = Places { words: vec![place], by_linker: false, mark: Some(place) };
        Self::set(pid, memory, stack, entry, places, vdso)
    }

    /// Prepares a program that is being mapped by a dynamic linker which was started as a program: the linker keeps the
    /// entry in its own memory. Returns `None` where the entry is not there yet.
    ///
    /// # Errors
    /// Where there is no room for the code, or memory cannot be read; nothing has changed then.
    pub fn in_linker(pid: Pid, entry: Address) -> io::Result<Option<Self>> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let space = space_of(pid)?;
        let linker = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        let is_linkers = |mapping: &&Mapping| {
            let whose = match &mapping.name {
                MappingName::Stack | MappingName::Heap | MappingName::Anonymous => true,
                _ => mapping.path().is_some_and(|path| linker.as_os_str() == path),
            };
            whose && mapping.protection.write && !mapping.shared
        };
        let pagemap = Pagemap::open(pid.as_raw(), base_page())?;
        let places =
            space.mappings().iter().filter(is_linkers).flat_map(|m| places_of(&memory, &pagemap, m.range, entry));
        let places: Vec<Address> = places.collect();
        if places.is_empty() {
            return Ok(None);
        }
        let stack = stack_at_exec(pid)?;
        // The linker's own places may no longer be writable by then.
        let mark = last_word(&space, stack).filter(|&at| memory.read_word(at).is_ok_and(|word| word == 0));
        let places = Places { words: places, by_linker: true, mark };
        Self::set(pid, memory, stack, entry, places, None).map(Some)
    }

    fn set(
        pid: Pid,
        memory: RemoteMemory,
        stack: Address,
        entry: Address,
        places: Places,
        vdso: Option<AddressRange>,
    ) -> io::Result<Self> {
        let announcement = Address((stack.0 - BELOW_STACK) & !7);
        let mark = places.mark.map_or(0, |place| place.0);
        let words: [u64; WORDS] =
            [announcement.0, u64::from(ANNOUNCES) << 32 | u64::from(guest::ROUNDS), mark, entry.0];
        let mut bytes = guest::ENTRY.code().to_vec();
        let first = bytes.len() - size_of_val(&words);
        for (place, word) in bytes[first..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let code = match GuestCode::place(pid, &memory, &bytes, vdso.into_iter()) {
            Ok(code) => code,
            Err(_) => GuestCode::place(pid, &memory, &bytes, mappings_with_room(&space_of(pid)?))?,
        };
        let awaited = Self { code, entry, announcement, memory, places };
        // The code is complete: from here on it is harmless even if this process is killed.
        for &place in &awaited.places.words {
            if let Err(error) = awaited.memory.write(place, &awaited.code.at().0.to_ne_bytes()) {
                awaited.restore_places();
                let _ = awaited.code.erase(pid, &awaited.memory);
                return Err(error);
            }
        }
        Ok(awaited)
    }

    /// True if the running program seems to be about to be entered.
    pub fn is_announced(&self) -> bool {
        self.memory.read_word(self.announcement).is_ok_and(|word| word >> 32 == u64::from(ANNOUNCES))
    }

    /// True if the running program has been entered without a stop.
    pub fn is_over(&self) -> bool {
        self.places.mark.is_some_and(|place| self.memory.read_word(place).is_ok_and(|word| word == self.entry.0))
    }

    /// Gives a program that has been entered without a stop what belongs to it. The code stays: a thread may be in it.
    pub fn leave(&self, pid: Pid) {
        if let Some(mark) = self.places.mark.filter(|_| self.places.by_linker) {
            self.restore_entry(stack_at_exec(pid).ok());
            let _ = self.memory.write(mark, &[0; 8]);
        }
    }

    /// True if the stopped thread waits in the code.
    pub fn is_reached(&self, pid: Pid) -> bool {
        let at = |registers| arch::instruction_pointer(&registers).0.wrapping_sub(self.code.at().0);
        requests::registers(pid).is_ok_and(|registers| guest::entry_waits().contains(&at(registers)))
    }

    /// Puts the thread, which waits in the code, at the entry with its own registers, and removes the code.
    ///
    /// # Errors
    /// Where the thread has ended or has been replaced by an exec.
    pub fn enter(&self, pid: Pid) -> io::Result<()> {
        // The other threads run. If another thread executes a program, it takes over the thread's number, and the memory
        // then belongs to the previous program.
        if requests::is_at_exec(pid)? {
            return Err(Errno::ESRCH.into());
        }
        let registers = requests::registers(pid)?;
        let mut stack = [0; guest::ENTRY_STACK_BYTES];
        self.memory.read(arch::stack_pointer(&registers), &mut stack)?;
        let registers = guest::at_entry(&registers, &stack, self.entry);
        // First: if this process is killed here, the thread passes the code, and the program finds its own entry all the same.
        self.restore_entry(Some(arch::stack_pointer(&registers)));
        requests::set_registers_of_same_program(pid, &registers)?;
        let _ = self.code.erase(pid, &self.memory);
        Ok(())
    }

    /// Lets a stopped child, which has a copy of this program's memory, pass the code without waiting.
    ///
    /// # Errors
    /// Where its memory cannot be written, or is not such a copy.
    pub fn let_pass(&self, child: Pid) -> io::Result<()> {
        let memory = RemoteMemory::open(child.as_raw())?;
        let code = self.code.range();
        let (mut ours, mut its) = (vec![0; code.len() as usize], vec![0; code.len() as usize]);
        self.memory.read(code.start(), &mut ours)?;
        memory.read(code.start(), &mut its)?;
        if ours != its {
            return Err(io::Error::other("it has other memory"));
        }
        // The code makes no announcement if the word is not below the stack.
        let word = code.end().0 - (WORDS * size_of::<u64>()) as u64;
        write_code(child, &memory, Address(word), &u64::MAX.to_ne_bytes())
    }

    /// Restores what the program reads of its entry. `stack` is the stack pointer of its exec or its entry.
    fn restore_entry(&self, stack: Option<Address>) {
        // A linker that was started as a program has copied the entry to its auxiliary vector.
        if let Some(stack) = stack.filter(|_| self.places.by_linker)
            && let Ok(mut vector) = AuxiliaryVector::read(&self.memory, stack)
            && vector.value(constants::AT_ENTRY) == Some(self.code.at().0)
        {
            let _ = vector.set(&self.memory, constants::AT_ENTRY, self.entry.0);
        }
        self.restore_places();
    }

    fn restore_places(&self) {
        for &place in &self.places.words {
            // Values that the program has written there since are its own.
            if self.memory.read_word(place).is_ok_and(|word| word == self.code.at().0) {
                let _ = self.memory.write(place, &self.entry.0.to_ne_bytes());
            }
        }
    }
}

/// Returns the last word of the stack, which the kernel leaves empty above the name of the program.
fn last_word(space: &AddressSpace, stack: Address) -> Option<Address> {
    let mapping = space.mappings().iter().find(|mapping| mapping.range.contains(stack))?;
    Some(Address(mapping.range.end().0 - size_of::<u64>() as u64))
}

/// Returns the stack pointer with which a process has begun to execute its program.
fn stack_at_exec(pid: Pid) -> io::Result<Address> {
    let text = text_of(format!("/proc/{pid}/stat"))?;
    let start =
        ProcessStat::parse(&text).and_then(|stat| stat.number::<u64>(START_OF_STACK)).filter(|&start| start != 0);
    start.map(Address).ok_or_else(|| io::Error::other("/proc/PID/stat does not show the start of its stack"))
}

fn space_of(pid: Pid) -> io::Result<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{pid}/maps"))?).map_err(io::Error::other)
}

/// Returns the places in a range whose word equals an address. Only touched pages are read: reading the program's bss
/// would map zero pages there, and a range with these cannot be collapsed.
fn places_of(memory: &RemoteMemory, pagemap: &Pagemap, range: AddressRange, entry: Address) -> Vec<Address> {
    // A stack is used from its end.
    let searched = AddressRange::new(Address(range.end().0 - range.len().min(SEARCHED)), range.end());
    let Ok(touched) = pagemap.touched(searched) else { return Vec::new() };
    let mut places = Vec::new();
    for part in touched.iter() {
        let mut bytes = vec![0; part.len() as usize];
        if memory.read(part.start(), &mut bytes).is_ok() {
            let words = bytes.chunks_exact(8).enumerate();
            let equal = words.filter(|(_, word)| *word == entry.0.to_ne_bytes());
            places.extend(equal.map(|(index, _)| part.start() + index as u64 * 8));
        }
    }
    places
}
