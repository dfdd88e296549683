//! Moves a position-independent executable to another base before its first instruction.
//!
//! All references to the old base are corrected: AT_PHDR and AT_ENTRY on the stack, the kernel's copy of the auxiliary
//! vector (which gdb reads from `/proc/PID/auxv`) and its bounds of code and data. Where the kernel cannot correct its
//! copy (`PR_SET_MM_MAP` needs CONFIG_CHECKPOINT_RESTORE), the base is not moved.

use crate::remote::arch::{self, GuestCall, numbers};
use crate::remote::auxiliary::AuxiliaryVector;
use crate::remote::injection::GuestStep;
use crate::remote::{InjectError, Injector};
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize, ProcessStat};
use linux::constants;
use linux::pagemap::Pagemap;
use linux::text::text_of;
use nix::errno::Errno;

/// Why the base is not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// No system call could be made, or memory could not be read.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The kernel refused a call.
    #[error("the kernel refused {0}: {1}")]
    Refused(&'static str, Errno),
    /// `/proc/PID/stat`, the stack or the mappings do not have the expected form.
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

/// Moves the image that occupies `extent` by `displacement` bytes (wrapping), to unmapped addresses.
///
/// The process must be at its exec stop. On success its maps must be read again.
///
/// # Errors
/// [`MoveError`]; nothing has changed then.
pub fn move_image(
    injector: &mut Injector<'_>,
    space: &AddressSpace,
    extent: AddressRange,
    displacement: u64,
    base_page: PageSize,
) -> Result<(), MoveError> {
    check_support(injector, base_page)?;
    let bounds = KernelBounds::read(injector)?;
    let stack_pointer = arch::stack_pointer(injector.registers());
    let auxiliary = AuxiliaryVector::read(injector.memory(), stack_pointer)?;
    let mappings = space.overlapping(extent);
    if mappings.iter().any(|mapping| !extent.covers(mapping.range)) {
        return Err(MoveError::NotUnderstood("the image shares a mapping with other memory"));
    }
    // The kernel may map the vDSO, or any other mapping, into a gap between distant segments.
    let of_image = |mapping: &Mapping| mapping.path().is_some() || mapping.name == MappingName::Anonymous;
    if !mappings.iter().all(of_image) {
        return Err(MoveError::NotUnderstood("another mapping is in a gap between the segments of the image"));
    }
    let steps = Steps::plan(injector, mappings, extent, displacement, base_page, &auxiliary)?;
    steps.make(injector, &bounds, displacement, &auxiliary, base_page)?;
    let at = arch::instruction_pointer(injector.registers());
    if extent.contains(at) {
        injector.change_registers(|registers| arch::set_instruction_pointer(registers, at + displacement))?;
    }
    Ok(())
}

/// The steps that move an image. The process executes them without a stop in between, and completes them even if this
/// process is killed.
struct Steps {
    /// Each step with the one that undoes it.
    steps: Vec<(GuestStep, GuestStep)>,
    /// The steps that unmap old mappings which have been replaced; if these fail, only address space is lost.
    left: Vec<GuestStep>,
}

impl Steps {
    fn plan(
        injector: &Injector<'_>,
        mappings: &[Mapping],
        extent: AddressRange,
        displacement: u64,
        base_page: PageSize,
        auxiliary: &AuxiliaryVector,
    ) -> Result<Self, MoveError> {
        let pagemap = Pagemap::open(injector.pid().as_raw(), base_page).ok();
        let mut planned = Self { steps: Vec::new(), left: Vec::new() };
        for mapping in mappings {
            let range = mapping.range;
            let touched = pagemap.as_ref().and_then(|pagemap| pagemap.touched(range).ok());
            // `mremap` would move empty page tables, and at an address with a page table, a page fault cannot map a
            // huge page.
            if mapping.is_plain_anonymous() && touched.is_some_and(|touched| touched.is_empty()) {
                planned.steps.push((map_like(mapping, displacement), unmap(range.shifted(displacement))));
                planned.left.push(unmap(range));
            } else {
                let back = remap(range.shifted(displacement), displacement.wrapping_neg());
                planned.steps.push((remap(range, displacement), back));
            }
        }
        let mut store = |at: Address, value: u64| {
            let moved = GuestStep::Store(at, value.wrapping_add(displacement));
            planned.steps.push((moved, GuestStep::Store(at, value)));
        };
        for tag in [constants::AT_PHDR, constants::AT_ENTRY] {
            let value = auxiliary.value(tag).filter(|value| extent.contains(Address(*value)));
            if let Some((value, place)) = value.zip(auxiliary.place_of(tag)) {
                store(place, value);
            }
        }
        let next = arch::instruction_pointer(injector.registers());
        if extent.contains(next) {
            store(injector.place_of_next_instruction(), next.0);
        }
        Ok(planned)
    }

    /// Makes the process execute the steps. Where one fails, those before it are undone.
    fn make(
        &self,
        injector: &mut Injector<'_>,
        bounds: &KernelBounds,
        displacement: u64,
        auxiliary: &AuxiliaryVector,
        base_page: PageSize,
    ) -> Result<(), MoveError> {
        let at = scratch(injector, base_page)?;
        let bytes = bounds.moved(displacement, auxiliary);
        injector.memory().write(at, &bytes)?;
        let arguments = [constants::PR_SET_MM, constants::PR_SET_MM_MAP, at.0, bytes.len() as u64, 0, 0];
        let correct_kernel = call(numbers::SYS_prctl, arguments);
        let forward: Vec<GuestStep> = self.steps.iter().map(|(step, _)| *step).chain([correct_kernel]).collect();
        let list: Vec<GuestStep> = forward.iter().copied().chain(self.left.iter().copied()).collect();
        let list_at = at + (bytes.len() as u64).next_multiple_of(8);
        // Seven words for each step, and one that ends the list.
        if list_at + (list.len() as u64 * 7 + 1) * 8 > at + base_page.bytes() {
            return Err(MoveError::NotUnderstood("the image has too many mappings"));
        }
        let (done, result) = injector.run(&list, list_at)?;
        let Err(errno) = result else { return Ok(()) };
        if done >= forward.len() {
            return Ok(());
        }
        let back: Vec<GuestStep> =
            self.steps[..done.min(self.steps.len())].iter().rev().map(|(_, back)| *back).collect();
        let undone = injector.run(&back, list_at)?;
        debug_assert_eq!(undone, (back.len(), Ok(())));
        Err(MoveError::Refused(name_of(&forward[done]), errno))
    }
}

fn call(number: i64, arguments: [u64; 6]) -> GuestStep {
    GuestStep::Call(GuestCall { number, arguments })
}

fn name_of(step: &GuestStep) -> &'static str {
    match step {
        GuestStep::Call(call) if call.number == numbers::SYS_mremap => "mremap",
        GuestStep::Call(call) if call.number == numbers::SYS_mmap => "mmap",
        GuestStep::Call(_) => "prctl(PR_SET_MM_MAP)",
        GuestStep::Store(..) => "a store",
    }
}

fn remap(mapping: AddressRange, displacement: u64) -> GuestStep {
    let to = mapping.shifted(displacement).start().0;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    call(numbers::SYS_mremap, [mapping.start().0, mapping.len(), mapping.len(), flags, to, 0])
}

/// Maps equal anonymous memory at the new place, where nothing is mapped.
fn map_like(mapping: &Mapping, displacement: u64) -> GuestStep {
    let there = mapping.range.shifted(displacement);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let protection = mapping.protection.bits() as u64;
    call(numbers::SYS_mmap, [there.start().0, there.len(), protection, flags, u64::MAX, 0])
}

fn unmap(range: AddressRange) -> GuestStep {
    call(numbers::SYS_munmap, [range.start().0, range.len(), 0, 0, 0, 0])
}

/// Requests the size of the structure, which kernels without `PR_SET_MM_MAP` refuse.
fn check_support(injector: &mut Injector<'_>, base_page: PageSize) -> Result<(), MoveError> {
    let scratch = scratch(injector, base_page)?;
    let arguments = [constants::PR_SET_MM, constants::PR_SET_MM_MAP_SIZE, scratch.0, 0, 0, 0];
    injector
        .call(numbers::SYS_prctl, arguments)?
        .map(drop)
        .map_err(|errno| MoveError::Refused("prctl(PR_SET_MM_MAP)", errno))
}

fn scratch(injector: &mut Injector<'_>, base_page: PageSize) -> Result<Address, MoveError> {
    injector.scratch(base_page)?.map_err(|errno| MoveError::Refused("mmap of a scratch page", errno))
}

impl KernelBounds {
    fn read(injector: &mut Injector<'_>) -> Result<Self, MoveError> {
        let brk = injector.call(numbers::SYS_brk, [0; 6])?.map_err(|errno| MoveError::Refused("brk", errno))?;
        let text = text_of(format!("/proc/{}/stat", injector.pid()))?;
        Self::parse(&text, brk).ok_or(MoveError::NotUnderstood("/proc/PID/stat has not the expected fields"))
    }

    /// Parses fields by their numbers in proc_pid_stat(5), counted from 1.
    fn parse(stat: &str, brk: u64) -> Option<Self> {
        let fields: Vec<u64> = ProcessStat::parse(stat)?.fields().map(|f| f.parse().unwrap_or(0)).collect();
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

    /// Returns `struct prctl_mm_map` with code and data at their new place.
    fn moved(&self, displacement: u64, auxiliary: &AuxiliaryVector) -> Vec<u8> {
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
        // exe_fd -1: the executable does not change.
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes
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
