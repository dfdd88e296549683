//! Stops a program at its entry, by the code of `guest_code` to which its entry in the auxiliary vector leads.
//!
//! The kernel's own copy of the vector, which debuggers read from `/proc/PID/auxv`, keeps the real entry.

use crate::arch::{self, guest};
use crate::auxiliary::AuxiliaryVector;
use crate::guest_code::{GuestCode, mappings_with_room, vdso_at};
use crate::{RemoteMemory, requests};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName};
use kernel_calls::numbers as linux;
use kernel_calls::pagemap::Pagemap;
use kernel_calls::pages::base_page;
use kernel_calls::text::text_of;
use nix::unistd::Pid;
use std::io;

/// Of one mapping at most so much is searched for the entry's address. In bytes.
const SEARCHED: u64 = 8 << 20;

/// A program that will tell us by SIGURG when it is about to be entered.
#[derive(Debug)]
pub struct AwaitedEntry {
    code: GuestCode,
    entry: Address,
    /// Where the address of the code stands in place of the entry's.
    places: Vec<Address>,
}

impl AwaitedEntry {
    /// For a program at its exec stop.
    ///
    /// # Errors
    /// Where there is no room for the code, or the stack has not the form of a fresh one; nothing has changed then.
    pub fn at_exec(pid: Pid, entry: Address) -> io::Result<Self> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let vector = AuxiliaryVector::read(&memory, arch::stack_pointer(&requests::registers(pid)?))?;
        let place = vector.place_of(linux::AT_ENTRY).ok_or_else(|| io::Error::other("it was given no AT_ENTRY"))?;
        let vdso = vector.value(linux::AT_SYSINFO_EHDR);
        let vdso = vdso.and_then(|start| vdso_at(&memory, Address(start), base_page()));
        Self::set(pid, &memory, entry, vdso, vec![place])
    }

    /// For a program that is being mapped by a dynamic linker that was started as one: the linker keeps the entry in its
    /// own memory. `None` where it does not yet.
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
        Self::set(pid, &memory, entry, None, places).map(Some)
    }

    fn set(
        pid: Pid,
        memory: &RemoteMemory,
        entry: Address,
        vdso: Option<AddressRange>,
        places: Vec<Address>,
    ) -> io::Result<Self> {
        let mut bytes = guest::ENTRY.code().to_vec();
        let last = bytes.len() - size_of::<u64>();
        bytes[last..].copy_from_slice(&entry.0.to_ne_bytes());
        let code = match GuestCode::place(pid, memory, &bytes, vdso.into_iter()) {
            Ok(code) => code,
            Err(_) => GuestCode::place(pid, memory, &bytes, mappings_with_room(&space_of(pid)?))?,
        };
        let awaited = Self { code, entry, places };
        // The code is complete: from here on it does no harm, whatever becomes of us.
        for &place in &awaited.places {
            if let Err(error) = memory.write(place, &awaited.code.at().0.to_ne_bytes()) {
                awaited.take_back(pid, memory);
                return Err(error);
            }
        }
        Ok(awaited)
    }

    /// True where a thread that has stopped for this signal is about to enter the program.
    pub fn is_reached(&self, pid: Pid, signal: i32) -> bool {
        let told = self.code.at() + guest::entry_told();
        signal == libc::SIGURG
            && requests::registers(pid).is_ok_and(|registers| arch::instruction_pointer(&registers) == told)
    }

    /// Puts the thread, which has reached it, at the entry with all its registers, and takes everything back.
    ///
    /// # Errors
    /// Where the thread is gone.
    pub fn enter(&self, pid: Pid) -> io::Result<()> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let registers = requests::registers(pid)?;
        let mut stack = [0; guest::ENTRY_STACK_BYTES];
        memory.read(arch::stack_pointer(&registers), &mut stack)?;
        let (registers, mask) = guest::at_entry(&registers, &stack, self.entry);
        requests::set_signal_mask(pid, mask)?;
        requests::set_registers(pid, &registers)?;
        self.take_back(pid, &memory);
        Ok(())
    }

    fn take_back(&self, pid: Pid, memory: &RemoteMemory) {
        let ours = self.code.at();
        for &place in &self.places {
            // What the program has written there since is its own.
            if memory.read_word(place).is_ok_and(|word| word == ours.0) {
                let _ = memory.write(place, &self.entry.0.to_ne_bytes());
            }
        }
        // A linker that was started as a program has copied the entry to its auxiliary vector.
        let stack_pointer = requests::registers(pid).map(|registers| arch::stack_pointer(&registers));
        if let Ok(mut vector) = stack_pointer.map_err(io::Error::from).and_then(|at| AuxiliaryVector::read(memory, at))
            && vector.value(linux::AT_ENTRY) == Some(ours.0)
        {
            let _ = vector.set(memory, linux::AT_ENTRY, self.entry.0);
        }
        let _ = self.code.erase(pid, memory);
    }
}

fn space_of(pid: Pid) -> io::Result<AddressSpace> {
    AddressSpace::parse(&text_of(format!("/proc/{pid}/maps"))?).map_err(io::Error::other)
}

/// Where the words of a range equal an address. Only what the process has touched is read: reading the program's bss would
/// map pages of zeros there, and a range with these cannot be collapsed.
fn places_of(memory: &RemoteMemory, pagemap: &Pagemap, range: AddressRange, entry: Address) -> Vec<Address> {
    // Of a stack, the end is in use.
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
