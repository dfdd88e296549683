//! Stops a program at its entry, by the code of `guest_code`, to which AT_ENTRY of the auxiliary vector is set.
//!
//! The kernel's copy of the vector, which debuggers read from `/proc/PID/auxv`, keeps the real entry.

use crate::remote::arch::{self, guest};
use crate::remote::auxiliary::AuxiliaryVector;
use crate::remote::guest_code::{GuestCode, mappings_with_room, vdso_at};
use crate::remote::{RemoteMemory, requests};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName};
use linux::constants;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use linux::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;

/// Maximum number of bytes of one mapping that are searched for the entry's address.
const SEARCHED: u64 = 8 << 20;

/// A program that reports by SIGURG when it is about to be entered.
#[derive(Debug)]
pub struct AwaitedEntry {
    code: GuestCode,
    entry: Address,
    /// The places that hold the address of the code instead of the entry.
    places: Vec<Address>,
    /// A dynamic linker that was started as a program maps it.
    by_linker: bool,
}

impl AwaitedEntry {
    /// Prepares a program at its exec stop.
    ///
    /// # Errors
    /// Where there is no room for the code, or the stack is not laid out as that of a new program; nothing has changed
    /// then.
    pub fn at_exec(pid: Pid, entry: Address) -> io::Result<Self> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        let vector = AuxiliaryVector::read(&memory, arch::stack_pointer(&requests::registers(pid)?))?;
        let place = vector.place_of(constants::AT_ENTRY).ok_or_else(|| io::Error::other("it was given no AT_ENTRY"))?;
        let vdso = vector.value(constants::AT_SYSINFO_EHDR);
        let vdso = vdso.and_then(|start| vdso_at(&memory, Address(start), base_page()));
        Self::set(pid, &memory, entry, vdso, |code| Self { code, entry, places: vec![place], by_linker: false })
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
        Self::set(pid, &memory, entry, None, |code| Self { code, entry, places, by_linker: true }).map(Some)
    }

    fn set(
        pid: Pid,
        memory: &RemoteMemory,
        entry: Address,
        vdso: Option<AddressRange>,
        awaited: impl FnOnce(GuestCode) -> Self,
    ) -> io::Result<Self> {
        let mut bytes = guest::ENTRY.code().to_vec();
        let last = bytes.len() - size_of::<u64>();
        bytes[last..].copy_from_slice(&entry.0.to_ne_bytes());
        let code = match GuestCode::place(pid, memory, &bytes, vdso.into_iter()) {
            Ok(code) => code,
            Err(_) => GuestCode::place(pid, memory, &bytes, mappings_with_room(&space_of(pid)?))?,
        };
        let awaited = awaited(code);
        // The code is complete: from here on it is harmless even if this process is killed.
        for &place in &awaited.places {
            if let Err(error) = memory.write(place, &awaited.code.at().0.to_ne_bytes()) {
                awaited.restore(pid, memory);
                return Err(error);
            }
        }
        Ok(awaited)
    }

    /// True where a thread that has stopped for this signal is about to enter the program.
    pub fn is_reached(&self, pid: Pid, signal: i32) -> bool {
        let reported = self.code.at() + guest::entry_reported();
        signal == libc::SIGURG
            && requests::registers(pid).is_ok_and(|registers| arch::instruction_pointer(&registers) == reported)
    }

    /// Puts the thread, which has reached the code, at the entry with its own registers, and removes the code.
    ///
    /// # Errors
    /// Where the thread has ended or has been replaced by an exec.
    pub fn enter(&self, pid: Pid) -> io::Result<()> {
        let memory = RemoteMemory::open(pid.as_raw())?;
        // The other threads run. One of them that executes a program takes over the thread's number; from here on
        // `memory` is that of the previous program.
        if requests::is_at_exec(pid)? {
            return Err(Errno::ESRCH.into());
        }
        let registers = requests::registers(pid)?;
        let mut stack = [0; guest::ENTRY_STACK_BYTES];
        memory.read(arch::stack_pointer(&registers), &mut stack)?;
        let (registers, mask) = guest::at_entry(&registers, &stack, self.entry);
        requests::set_signal_mask(pid, mask)?;
        requests::set_registers_of_same_program(pid, &registers)?;
        self.restore(pid, &memory);
        Ok(())
    }

    fn restore(&self, pid: Pid, memory: &RemoteMemory) {
        let ours = self.code.at();
        for &place in &self.places {
            // Values that the program has written there since are its own.
            if memory.read_word(place).is_ok_and(|word| word == ours.0) {
                let _ = memory.write(place, &self.entry.0.to_ne_bytes());
            }
        }
        if self.by_linker {
            self.restore_vector(pid, memory);
        }
        let _ = self.code.erase(pid, memory);
    }

    /// A linker that was started as a program has copied the entry to its auxiliary vector.
    fn restore_vector(&self, pid: Pid, memory: &RemoteMemory) {
        let stack_pointer = requests::registers(pid).map(|registers| arch::stack_pointer(&registers));
        if let Ok(mut vector) = stack_pointer.map_err(io::Error::from).and_then(|at| AuxiliaryVector::read(memory, at))
            && vector.value(constants::AT_ENTRY) == Some(self.code.at().0)
        {
            let _ = vector.set(memory, constants::AT_ENTRY, self.entry.0);
        }
    }
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
