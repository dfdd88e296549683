//! Where code and data for a thread's calls lie in the program's memory.

use super::borrowing::is_at_call;
use crate::RemoteMemory;
use crate::arch::{self, Registers, call_page};
use crate::requests;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, MappingName, PageSize, RangeSet};
use kernel_calls::pagemap::Pagemap;
use nix::unistd::Pid;
use std::io;

/// First words of a call page, by which one of an earlier lift is found again.
const MARK: [u64; 2] = [u64::from_le_bytes(*b"pagelift"), u64::from_le_bytes(*b"callpage")];

/// Room for what calls take from memory. In bytes.
pub const SCRATCH_BYTES: usize = 0x400;

/// Where in the call page the staging copies are noted, and how many at the most.
const STAGING_LIST: u64 = 0x800;
const MOST_STAGING: u64 = 32;

/// Why a program has no room for our calls.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Neither an executable segment nor the vDSO leaves enough of its last page.
    #[error("no room for {0} bytes of code behind any of its segments, nor behind the vDSO")]
    NoRoomForCode(usize),
    /// Every page of the stack has been used.
    #[error("its main thread's stack has no page that was never used")]
    NoRoomForData,
    /// Its memory could not be accessed.
    #[error("its memory cannot be accessed: {0}")]
    Memory(#[from] io::Error),
}

/// Code and call page in one program.
pub struct CallPage {
    code: AddressRange,
    data: Address,
    /// The code of a lift that was killed stands there.
    left_behind: bool,
}

impl CallPage {
    /// Finds room; nothing is written yet.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn find(
        memory: &RemoteMemory,
        space: &AddressSpace,
        objects: &[LoadedObject],
        pagemap: &Pagemap,
        base_page: PageSize,
    ) -> Result<Self, PageError> {
        let code = arch::LOOP_CODE.code();
        let length = code.len() + size_of::<u64>();
        let place =
            room_for_code(memory, space, objects, base_page, length)?.ok_or(PageError::NoRoomForCode(length))?;
        let mut there = vec![0; length];
        memory.read(place, &mut there)?;
        let left_behind = is_ours(&there);
        let data = room_for_data(memory, space, pagemap, base_page, left_behind)?.ok_or(PageError::NoRoomForData)?;
        Ok(Self { code: AddressRange::sized(place, length as u64), data, left_behind })
    }

    /// Writes the code. No thread may be in it.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn install(&self, memory: &RemoteMemory) -> io::Result<()> {
        memory.write(self.code.start(), arch::LOOP_CODE.code())?;
        self.write(memory, 0, MARK[0])?;
        self.write(memory, 8, MARK[1])?;
        self.write(memory, call_page::INSIDE, 0)?;
        self.write(memory, call_page::NUMBER, u64::MAX)
    }

    /// True where a lift that was killed has left its code, in which a thread may still be.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind
    }

    /// True where a thread is in the code, or in a signal handler that will return into it.
    pub fn is_occupied(&self, memory: &RemoteMemory) -> bool {
        let words = [0, 8, call_page::INSIDE as u64].map(|offset| memory.read_word(self.data + offset).unwrap_or(0));
        words[..2] == MARK && words[2] != 0
    }

    /// Notes that the thread is outside again, where it is taken out by us.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_outside(&self, memory: &RemoteMemory) -> io::Result<()> {
        self.write(memory, call_page::INSIDE, 0)
    }

    /// Takes a stopped thread out of the code, where a lift that was killed has left it to wait there.
    ///
    /// # Errors
    /// Where the thread or the memory is gone.
    pub fn bring_out(&self, memory: &RemoteMemory, thread: Pid) -> io::Result<()> {
        let registers = requests::registers(thread)?;
        if !self.code.contains(arch::instruction_pointer(&registers)) {
            return Ok(());
        }
        let mut state = [0; arch::STATE_BYTES];
        memory.read(self.data + call_page::RETURN as u64, &mut state)?;
        if let Some(registers) = arch::way_out(&registers, self.data, &state, is_at_call(memory, &registers)) {
            // In this order: a thread that is inside is found there without the note, too.
            self.set_outside(memory)?;
            requests::set_registers(thread, &registers)?;
        }
        Ok(())
    }

    /// Takes the code out again. No thread may be in it.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn erase(&self, memory: &RemoteMemory) -> io::Result<()> {
        memory.write(self.code.start(), &vec![0; self.code.len() as usize])
    }

    /// The code and the word behind it.
    pub fn code(&self) -> AddressRange {
        self.code
    }

    /// The call page.
    pub fn data(&self) -> Address {
        self.data
    }

    /// Notes with what registers and signal mask a stopped thread goes on afterwards, and where.
    pub fn set_return(&self, memory: &RemoteMemory, thread: Pid, registers: &Registers) -> io::Result<()> {
        let mask = requests::signal_mask(thread)?;
        let state = arch::return_state(thread, registers, mask, is_at_call(memory, registers))?;
        self.write(memory, call_page::NUMBER, u64::MAX)?;
        self.write(memory, call_page::OLD_MASK, mask)?;
        memory.write(self.data + call_page::RETURN as u64, &state)?;
        let slot = self.code.end() - size_of::<u64>() as u64;
        memory.write(slot, &arch::instruction_pointer(registers).0.to_ne_bytes())
    }

    /// Notes the next call. Its number is written last: only then there is one.
    pub fn set_call(&self, memory: &RemoteMemory, number: i64, arguments: [u64; 6]) -> io::Result<()> {
        for (index, argument) in arguments.into_iter().enumerate() {
            self.write(memory, call_page::ARGUMENTS + index * 8, argument)?;
        }
        self.write(memory, call_page::NUMBER, number as u64)
    }

    /// The staging copies that are noted.
    pub fn staging(&self, memory: &RemoteMemory) -> RangeSet {
        let word = |index: u64| memory.read_word(self.data + STAGING_LIST + index * 8).unwrap_or(0);
        (0..MOST_STAGING).map(|i| AddressRange::sized(Address(word(i * 2)), word(i * 2 + 1))).collect()
    }

    /// Notes the staging copies; more than fit are not noted.
    pub fn set_staging(&self, memory: &RemoteMemory, staging: &RangeSet) -> io::Result<()> {
        let mut words = vec![0; MOST_STAGING as usize * 2];
        for (pair, range) in words.chunks_exact_mut(2).zip(staging.iter()) {
            pair.copy_from_slice(&[range.start().0, range.len()]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        memory.write(self.data + STAGING_LIST, &bytes)
    }

    /// Room for what calls take from memory, within the call page.
    pub fn scratch(&self) -> Address {
        self.data + 0x400
    }

    fn write(&self, memory: &RemoteMemory, offset: usize, value: u64) -> io::Result<()> {
        memory.write(self.data + offset as u64, &value.to_ne_bytes())
    }
}

/// Room for code that is mapped, readable, executable, and of no meaning to the program.
fn room_for_code(
    memory: &RemoteMemory,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
    length: usize,
) -> io::Result<Option<Address>> {
    match room_behind_segments(memory, space, objects, base_page, length)? {
        Some(place) => Ok(Some(place)),
        None => room_behind_vdso(memory, space, length),
    }
}

/// The padding of the kernel's own shared object, for static programs whose only code ends close to a page's end. The
/// kernel lets a debugger write there, into a copy that is this process's own.
fn room_behind_vdso(memory: &RemoteMemory, space: &AddressSpace, length: usize) -> io::Result<Option<Address>> {
    let Some(vdso) = space.mappings().iter().find(|m| m.name == MappingName::Special("[vdso]".into())) else {
        return Ok(None);
    };
    // The object's last table may itself end in a few zeros; what lies further behind is padding.
    const LAST_ZEROS: u64 = 64;
    let room = (length as u64).next_multiple_of(16);
    if !vdso.protection.execute || vdso.range.len() < room + LAST_ZEROS {
        return Ok(None);
    }
    let start = Address(vdso.range.end().0 - room);
    let mut there = vec![0; (LAST_ZEROS + room) as usize];
    memory.read(Address(start.0 - LAST_ZEROS), &mut there)?;
    let (before, own) = there.split_at(LAST_ZEROS as usize);
    let is_free = before.iter().all(|&byte| byte == 0) && (own.iter().all(|&byte| byte == 0) || is_ours(own));
    Ok(is_free.then_some(start))
}

/// The rest of an executable segment's last page; of the smallest segment that has room there. What is written makes the
/// page the process's own, and an image can no longer show the huge page that it belongs to: small segments have none.
fn room_behind_segments(
    memory: &RemoteMemory,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
    length: usize,
) -> io::Result<Option<Address>> {
    let segments = objects.iter().flat_map(|object| object.image.segments.iter().map(move |segment| (object, segment)));
    let mut segments: Vec<_> = segments.filter(|(_, s)| s.protection.execute && !s.protection.write).collect();
    segments.sort_by_key(|(_, segment)| segment.memory.len());
    for (object, segment) in segments {
        let end = segment.memory.end() + object.bias;
        let Some(page_end) = end.align_up(base_page) else { continue };
        let start = Address((end.0 + 15) & !15);
        let Some(mapping) = space.find(end.align_down(base_page)) else { continue };
        let fits = page_end.0.saturating_sub(start.0) >= length as u64 && end.0 % base_page.bytes() != 0;
        if !fits || !mapping.protection.execute || !mapping.protection.read || mapping.path().is_none() {
            continue;
        }
        let mut there = vec![0; length];
        memory.read(start, &mut there)?;
        // Something is there that the segment does not own; a file may map the next segment's bytes here.
        if there.iter().all(|&byte| byte == 0) || is_ours(&there) {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Code that a killed predecessor has left.
fn is_ours(there: &[u8]) -> bool {
    there.starts_with(arch::LOOP_CODE.code())
}

fn room_for_data(
    memory: &RemoteMemory,
    space: &AddressSpace,
    pagemap: &Pagemap,
    base_page: PageSize,
    left_behind: bool,
) -> io::Result<Option<Address>> {
    let Some(stack) = space.mappings().iter().find(|mapping| mapping.name == MappingName::Stack) else {
        return Ok(None);
    };
    let touched = pagemap.touched(stack.range)?;
    let is_marked = |page: AddressRange| -> io::Result<bool> {
        Ok([memory.read_word(page.start())?, memory.read_word(page.start() + 8)?] == MARK)
    };
    // Whoever may still be in the code works with the page of that time, below which the stack may have grown.
    if left_behind {
        for page in stack.range.pages(base_page).filter(|&page| touched.overlaps(page)) {
            if is_marked(page)? {
                return Ok(Some(page.start()));
            }
        }
    }
    for page in stack.range.pages(base_page) {
        if !touched.overlaps(page) || is_marked(page)? {
            return Ok(Some(page.start()));
        }
    }
    Ok(None)
}
