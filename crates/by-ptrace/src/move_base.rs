//! Moves a position-independent executable to another base before its first instruction.
//!
//! Everything that names the old place is corrected: AT_PHDR and AT_ENTRY on the stack, the kernel's own copy of the
//! auxiliary vector (which gdb reads from `/proc/PID/auxv`) and its bounds of code and data. Where the kernel cannot
//! correct its copy (`PR_SET_MM_MAP` needs CONFIG_CHECKPOINT_RESTORE), the base is not moved.

use crate::arch::{self, numbers};
use crate::auxiliary::AuxiliaryVector;
use crate::{InjectError, Injector};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize};
use kernel_calls::numbers as linux;
use kernel_calls::pagemap::Pagemap;
use kernel_calls::text::text_of;
use nix::errno::Errno;

/// Why the base stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// No system call could be made, or memory not be read.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The kernel refused a call.
    #[error("the kernel refused {0}: {1}")]
    Refused(&'static str, Errno),
    /// `/proc/PID/stat` or the stack has not the expected form.
    #[error("{0}")]
    NotUnderstood(&'static str),
}

impl From<std::io::Error> for MoveError {
    fn from(error: std::io::Error) -> Self {
        Self::Inject(InjectError::Memory(error))
    }
}

/// `struct prctl_mm_map` of `linux/prctl.h`.
struct KernelBounds {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
}

/// Moves the image that occupies `extent` by `displacement` bytes (wrapping), to where nothing is mapped.
///
/// The process must be at its exec stop. On success the new maps must be read again.
///
/// # Errors
/// [`MoveError`]; everything is then as it was.
pub fn move_image(
    injector: &mut Injector,
    space: &AddressSpace,
    extent: AddressRange,
    displacement: u64,
    base_page: PageSize,
) -> Result<(), MoveError> {
    check_support(injector, base_page)?;
    let bounds = KernelBounds::read(injector)?;
    let stack_pointer = arch::stack_pointer(injector.registers());
    let mut auxiliary = AuxiliaryVector::read(injector.memory(), stack_pointer)?;
    let mappings = space.overlapping(extent);
    if mappings.iter().any(|mapping| !extent.covers(mapping.range)) {
        return Err(MoveError::NotUnderstood("the image shares a mapping with something else"));
    }
    // Where segments lie far apart the kernel may put the vdso, or anything, into the gap between them.
    let of_image = |mapping: &Mapping| mapping.path().is_some() || mapping.name == MappingName::Anonymous;
    if !mappings.iter().all(of_image) {
        return Err(MoveError::NotUnderstood("something else lies in a gap between the segments of the image"));
    }
    let mut moved = Vec::new();
    let result = move_mappings(injector, mappings, displacement, base_page, &mut moved).and_then(|()| {
        correct_stack(injector, &mut auxiliary, extent, displacement)?;
        bounds.write(injector, displacement, &auxiliary, base_page)
    });
    if let Err(error) = result {
        let back = displacement.wrapping_neg();
        for mapping in moved {
            let _ = match mapping {
                Moved::Mapping(range) => remap(injector, range.shifted(displacement), back),
                Moved::Untouched(range) => unmap(injector, range.shifted(displacement)),
            };
        }
        let there = extent.shifted(displacement);
        let _ = correct_stack(injector, &mut auxiliary, there, back);
        return Err(error);
    }
    for mapping in moved {
        // What is left costs address space only.
        if let Moved::Untouched(range) = mapping {
            let _ = unmap(injector, range);
        }
    }
    injector.change_registers(|registers| {
        let at = arch::instruction_pointer(registers);
        if extent.contains(at) {
            arch::set_instruction_pointer(registers, at + displacement);
        }
    });
    Ok(())
}

/// Asks for the size of the structure, which kernels without `PR_SET_MM_MAP` refuse.
fn check_support(injector: &mut Injector, base_page: PageSize) -> Result<(), MoveError> {
    let scratch = scratch(injector, base_page)?;
    let arguments = [linux::PR_SET_MM, linux::PR_SET_MM_MAP_SIZE, scratch.0, 0, 0, 0];
    injector
        .call(numbers::SYS_prctl, arguments)?
        .map(drop)
        .map_err(|errno| MoveError::Refused("prctl(PR_SET_MM_MAP)", errno))
}

fn scratch(injector: &mut Injector, base_page: PageSize) -> Result<Address, MoveError> {
    injector.scratch(base_page)?.map_err(|errno| MoveError::Refused("mmap of a scratch page", errno))
}

fn remap(injector: &mut Injector, mapping: AddressRange, displacement: u64) -> Result<(), MoveError> {
    let to = mapping.shifted(displacement).start().0;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let arguments = [mapping.start().0, mapping.len(), mapping.len(), flags, to, 0];
    let result = injector.call(numbers::SYS_mremap, arguments)?;
    result.map(drop).map_err(|errno| MoveError::Refused("mremap", errno))
}

/// How a mapping got to its new place. The ranges are the old ones.
enum Moved {
    /// By `mremap`.
    Mapping(AddressRange),
    /// Made anew, for nothing was in it; the old one still stands.
    Untouched(AddressRange),
}

fn move_mappings(
    injector: &mut Injector,
    mappings: &[Mapping],
    displacement: u64,
    base_page: PageSize,
    moved: &mut Vec<Moved>,
) -> Result<(), MoveError> {
    let pagemap = Pagemap::open(injector.pid().as_raw(), base_page).ok();
    for mapping in mappings {
        let touched = pagemap.as_ref().and_then(|pagemap| pagemap.touched(mapping.range).ok());
        let untouched = mapping.is_plain_anonymous() && touched.is_some_and(|touched| touched.is_empty());
        moved.push(if untouched {
            // `mremap` would bring along empty page tables, and where there is a page table no fault gives a huge page.
            map_like(injector, mapping, displacement)?;
            Moved::Untouched(mapping.range)
        } else {
            remap(injector, mapping.range, displacement)?;
            Moved::Mapping(mapping.range)
        });
    }
    Ok(())
}

/// Maps the same anonymous memory at the new place, where nothing is.
fn map_like(injector: &mut Injector, mapping: &Mapping, displacement: u64) -> Result<(), MoveError> {
    let there = mapping.range.shifted(displacement);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let protection = mapping.protection.bits() as u64;
    let arguments = [there.start().0, there.len(), protection, flags, u64::MAX, 0];
    let at = injector.call(numbers::SYS_mmap, arguments)?.map_err(|errno| MoveError::Refused("mmap", errno))?;
    if at == there.start().0 {
        return Ok(());
    }
    // Kernels before 4.17 take the address for a hint.
    let _ = unmap(injector, AddressRange::sized(Address(at), there.len()));
    Err(MoveError::Refused("mmap", Errno::EEXIST))
}

fn unmap(injector: &mut Injector, range: AddressRange) -> Result<(), MoveError> {
    let result = injector.call(numbers::SYS_munmap, [range.start().0, range.len(), 0, 0, 0, 0])?;
    result.map(drop).map_err(|errno| MoveError::Refused("munmap", errno))
}

fn correct_stack(
    injector: &Injector,
    auxiliary: &mut AuxiliaryVector,
    extent: AddressRange,
    displacement: u64,
) -> Result<(), MoveError> {
    for tag in [linux::AT_PHDR, linux::AT_ENTRY] {
        if let Some(value) = auxiliary.value(tag).filter(|value| extent.contains(Address(*value))) {
            auxiliary.set(injector.memory(), tag, value.wrapping_add(displacement))?;
        }
    }
    Ok(())
}

impl KernelBounds {
    fn read(injector: &mut Injector) -> Result<Self, MoveError> {
        let brk = injector.call(numbers::SYS_brk, [0; 6])?.map_err(|errno| MoveError::Refused("brk", errno))?;
        let text = text_of(format!("/proc/{}/stat", injector.pid()))?;
        Self::parse(&text, brk).ok_or(MoveError::NotUnderstood("/proc/PID/stat has not the expected fields"))
    }

    /// Fields by their numbers in proc_pid_stat(5), counted from 1; the second may hold blanks and parentheses.
    fn parse(stat: &str, brk: u64) -> Option<Self> {
        let fields: Vec<u64> = stat.rsplit_once(')')?.1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields.get(number - 3).copied().filter(|value| *value != 0);
        Some(Self {
            start_code: field(26)?,
            end_code: field(27)?,
            start_stack: field(28)?,
            start_data: field(45)?,
            end_data: field(46)?,
            start_brk: field(47)?,
            brk,
            arguments: [field(48)?, field(49)?],
            environment: [field(50)?, field(51)?],
        })
    }

    fn write(
        &self,
        injector: &mut Injector,
        displacement: u64,
        auxiliary: &AuxiliaryVector,
        base_page: PageSize,
    ) -> Result<(), MoveError> {
        let (vector, length) = auxiliary.place();
        let moved = |address: u64| address.wrapping_add(displacement);
        let mut words =
            vec![moved(self.start_code), moved(self.end_code), moved(self.start_data), moved(self.end_data)];
        words.extend([self.start_brk, self.brk, self.start_stack]);
        words.extend(self.arguments);
        words.extend(self.environment);
        words.push(vector.0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend((length as u32).to_ne_bytes());
        // exe_fd -1: the executable stays the same.
        bytes.extend(u32::MAX.to_ne_bytes());
        let scratch = scratch(injector, base_page)?;
        injector.memory().write(scratch, &bytes)?;
        let arguments = [linux::PR_SET_MM, linux::PR_SET_MM_MAP, scratch.0, bytes.len() as u64, 0, 0];
        let result = injector.call(numbers::SYS_prctl, arguments)?;
        result.map(drop).map_err(|errno| MoveError::Refused("prctl(PR_SET_MM_MAP)", errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_last_parenthesis() {
        let numbers: Vec<String> = (4..=52).map(|n| (n * 10).to_string()).collect();
        let stat = format!("7 (a) b)) S {}", numbers.join(" "));
        let bounds = KernelBounds::parse(&stat, 5).unwrap();
        assert_eq!((bounds.start_code, bounds.end_data, bounds.environment[1]), (260, 460, 510));
        assert!(KernelBounds::parse("7 (a) S 1 2", 5).is_none());
    }
}
