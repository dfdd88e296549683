//! Unwinds and names the user stacks of a process.
//!
//! Stacks are unwound by the call frame information of the objects, from the registers and the piece of stack in a sample.
//! If an object has none, frame pointers are followed; if the result is shorter than the kernel's own walk by frame
//! pointers, the kernel's is taken.

use address_space::{Address, AddressRange};
use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, UnwindRegsNative, Unwinder, UnwinderNative,
};
use linux::bounded::{Budget, UNWIND_TABLES, UNWIND_TABLES_OF_PROCESS};
use process_view::{ObservationError, ProcessCode, ProcessFiles, printable};
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Frames that are unwound of one stack.
pub const MOST_FRAMES: usize = 48;
/// A process in which code has been mapped is read again, but not more often than this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Registers and stack of a thread at a sample.
#[derive(Clone, Debug, Default)]
pub struct UserStack {
    /// Instruction pointer.
    pub instruction: u64,
    /// Stack pointer.
    pub stack_pointer: u64,
    /// Frame pointer.
    pub frame_pointer: u64,
    /// Link register, if the machine has one.
    pub link: u64,
    /// Bytes from the stack pointer upwards.
    pub bytes: Vec<u8>,
    /// The kernel's walk by frame pointers.
    pub by_frame_pointers: Vec<u64>,
}

/// One frame with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Frame {
    /// The object's name, or the mapping's if the code belongs to no object.
    pub object: String,
    /// The function, if a symbol covers it.
    pub function: Option<String>,
    /// The address as in the object's file.
    pub address: u64,
    /// The object's number in the process: 0 is the executable.
    #[serde(skip)]
    pub index: Option<usize>,
}

impl Frame {
    /// Bytes that it takes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.object.len() + self.function.as_ref().map_or(0, String::len)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => f.write_str(function),
            None => write!(f, "{}+{:#x}", self.object, self.address),
        }
    }
}

/// The code of one process, its unwinding tables and names.
pub struct ProcessStacks {
    pid: i32,
    code: ProcessCode,
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    has_tables: Vec<bool>,
    budget: Budget,
    looked: Instant,
}

impl ProcessStacks {
    /// Looks at process `pid`.
    ///
    /// # Errors
    /// [`ObservationError`] if it cannot be read, for example because it has ended.
    pub fn of(pid: i32) -> Result<Self, ObservationError> {
        let code = ProcessCode::of(pid)?;
        Ok(Self {
            pid,
            has_tables: vec![false; code.objects().len()],
            code,
            unwinder: UnwinderNative::new(),
            cache: CacheNative::new(),
            budget: UNWIND_TABLES_OF_PROCESS.budget(),
            looked: Instant::now(),
        })
    }

    /// Bytes of its unwinding tables and names.
    pub(crate) fn memory(&self) -> u64 {
        UNWIND_TABLES_OF_PROCESS.bytes() - self.budget.left() + self.code.memory()
    }

    /// The process's objects.
    pub fn code(&self) -> &ProcessCode {
        &self.code
    }

    /// The addresses by which the frames of a stack are named, innermost first.
    pub fn unwind(&mut self, stack: &UserStack) -> Vec<u64> {
        let mut frames = self.unwound_by_tables(stack);
        if self.looked.elapsed() >= LOOK_AGAIN && self.is_behind(&frames) {
            frames = self.unwound_by_tables(stack);
        }
        let walked = &stack.by_frame_pointers;
        if frames.len() < walked.len().min(MOST_FRAMES) && !self.is_known(frames.last()) {
            frames = walked.iter().take(MOST_FRAMES).copied().collect();
        }
        frames
    }

    fn is_known(&self, address: Option<&u64>) -> bool {
        address.is_some_and(|&address| self.code.object_at(address).is_some())
    }

    /// Reads the process again if frames are in a file that was not mapped there; true if it did. Generated code, whose
    /// frames are in no object, is no reason: all symbols would be read again.
    fn is_behind(&mut self, frames: &[u64]) -> bool {
        let unknown = |&&address: &&u64| self.code.object_at(address).is_none();
        let unknown: Vec<u64> = frames.iter().filter(unknown).copied().collect();
        if unknown.is_empty() {
            return false;
        }
        self.looked = Instant::now();
        let Ok(space) = ProcessFiles::of(self.pid).maps() else { return false };
        let file_now = |address: u64| {
            let mapping = space.find(Address(address))?;
            mapping.path().filter(|path| path.starts_with('/')).map(printable)
        };
        let is_new = |address: u64| file_now(address).is_some_and(|file| self.code.mapping_at(address) != Some(file));
        let again = unknown.into_iter().any(is_new).then(|| Self::of(self.pid).ok()).flatten();
        again.map(|again| *self = again).is_some()
    }

    fn unwound_by_tables(&mut self, stack: &UserStack) -> Vec<u64> {
        let mut frames = self.unwound(stack);
        // Tables are read for objects that contain a frame; with them the next frames may differ.
        for _ in 0..self.has_tables.len() {
            if !self.read_tables_of(&frames) {
                break;
            }
            frames = self.unwound(stack);
        }
        frames
    }

    fn unwound(&mut self, stack: &UserStack) -> Vec<u64> {
        let mut read = |address: u64| {
            let at = address.checked_sub(stack.stack_pointer).and_then(|at| usize::try_from(at).ok()).ok_or(())?;
            let bytes = stack.bytes.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
            bytes.try_into().map(u64::from_ne_bytes).map_err(|_| ())
        };
        let registers = registers(stack);
        let mut walk = self.unwinder.iter_frames(stack.instruction, registers, &mut self.cache, &mut read);
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = walk.next()
            && frames.len() < MOST_FRAMES
        {
            frames.push(frame.address_for_lookup());
        }
        frames
    }

    /// Reads the tables of objects that contain the addresses; true if there are new ones.
    fn read_tables_of(&mut self, addresses: &[u64]) -> bool {
        let mut is_new = false;
        for &address in addresses {
            let Some(index) = self.code.object_at(address).filter(|&index| !self.has_tables[index]) else { continue };
            self.has_tables[index] = true;
            is_new |= self.add_tables(index);
        }
        is_new
    }

    fn add_tables(&mut self, index: usize) -> bool {
        let sections = self.code.unwind_sections(index, UNWIND_TABLES);
        let size = |section: &Option<(AddressRange, Vec<u8>)>| section.as_ref().map_or(0, |(_, bytes)| bytes.len());
        if !self.budget.spend((size(&sections.frames) + size(&sections.index)) as u64) || sections.frames.is_none() {
            return false;
        }
        let object = &self.code.objects()[index];
        let split =
            |section: Option<(AddressRange, Vec<u8>)>| section.map(|(range, bytes)| (span(range), bytes)).unzip();
        let ((eh_frame_svma, eh_frame), (eh_frame_hdr_svma, eh_frame_hdr)) =
            (split(sections.frames), split(sections.index));
        let tables = ExplicitModuleSectionInfo {
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            got_svma: sections.offsets.map(span),
            ..ExplicitModuleSectionInfo::default()
        };
        let module = Module::new(object.name().to_owned(), span(object.extent()), object.bias, tables);
        self.unwinder.add_module(module);
        true
    }

    /// Names a frame.
    pub fn name(&mut self, address: u64) -> Frame {
        if let Some(place) = self.code.place(address) {
            return Frame {
                object: printable(place.object),
                function: place.function.map(str::to_owned),
                address: place.in_file,
                index: Some(place.index),
            };
        }
        let object = self.code.mapping_at(address).unwrap_or_else(|| "not mapped".to_owned());
        Frame { object, function: None, address, index: None }
    }
}

fn span(range: AddressRange) -> Range<u64> {
    range.start().0..range.end().0
}

#[cfg(target_arch = "x86_64")]
fn registers(stack: &UserStack) -> UnwindRegsNative {
    UnwindRegsNative::new(stack.instruction, stack.stack_pointer, stack.frame_pointer)
}

#[cfg(target_arch = "aarch64")]
fn registers(stack: &UserStack) -> UnwindRegsNative {
    UnwindRegsNative::new(stack.link, stack.stack_pointer, stack.frame_pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_this_test_is_named() {
        let mut stacks = ProcessStacks::of(std::process::id() as i32).unwrap();
        let frame = stacks.name(an_address_of_this_test_is_named as fn() as usize as u64);
        assert!(frame.to_string().contains("an_address_of_this_test_is_named"), "{frame}");
        assert_eq!(frame.index, Some(0));
        assert_eq!(stacks.name(1).to_string(), "not mapped+0x1");
    }

    #[test]
    fn a_stack_of_nonsense_ends() {
        let mut stacks = ProcessStacks::of(std::process::id() as i32).unwrap();
        let address = a_stack_of_nonsense_ends as fn() as usize as u64;
        for filler in [0u8, 0x41, 0xff] {
            let stack = UserStack {
                instruction: address,
                stack_pointer: 0x1000,
                frame_pointer: 0x1008,
                bytes: vec![filler; 4096],
                ..UserStack::default()
            };
            assert!(stacks.unwind(&stack).len() <= MOST_FRAMES);
        }
    }
}
