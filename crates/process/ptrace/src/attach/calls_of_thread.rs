//! A thread of a running program that makes calls while it is stopped.

use super::call_page::CallPage;
use super::remote_call::RemoteCaller;
use crate::remote::RemoteMemory;
use crate::remote::arch::layout::SCRATCH_BYTES;
use crate::remote::arch::numbers;
use crate::remote::calls::{self, failed};
use crate::remote::injection::InjectError;
use address_space::{Address, AddressRange, Protection};
use lift_execution::CallError;
use linux::constants;
use linux::pagemap::Pagemap;
use nix::errno::Errno;

/// Marks staging copies: files are read ahead as `detach` reads them, from the beginning to the end. Programs set MADV_DONTFORK for
/// data, too.
const MARK_OF_COPY: i32 = libc::MADV_SEQUENTIAL;
/// How `VmFlags` of smaps shows it (Documentation/filesystems/proc.rst).
pub(super) const FLAG_OF_COPY: &str = "sr";

/// Protection of a staging copy in anonymous memory until its children do not inherit it. No program maps memory that can only
/// be written: by this the next lift recognizes the copy of a lift that was killed in between.
pub(super) const FRESH: Protection = Protection { read: false, write: true, execute: false };

/// A stopped thread that executes calls.
pub struct Calls<'a, 'b> {
    pub(super) caller: RemoteCaller<'a>,
    pub(super) page: &'b CallPage,
    pub(super) memory: &'b RemoteMemory,
    pub(super) pagemap: &'b Pagemap,
    /// Why a call could not be made; the first such error.
    pub(super) failed: Option<InjectError>,
    /// A staging copy could not be unmapped, and stays.
    pub(super) left_copy: bool,
}

impl Calls<'_, '_> {
    /// Makes one call.
    ///
    /// # Errors
    /// Those of the call, or of making it.
    pub fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, CallError> {
        match self.caller.call(number, arguments) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(errno)) => Err(CallError { call: name, errno: errno as i32 }),
            Err(error) => {
                let failed = calls::not_made(name, &error);
                self.failed.get_or_insert(error);
                Err(failed)
            }
        }
    }

    /// Makes one `madvise`.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn advise(&mut self, name: &'static str, range: AddressRange, advice: i32) -> Result<(), CallError> {
        self.call(name, numbers::SYS_madvise, [range.start().0, range.len(), advice as u64, 0, 0, 0]).map(drop)
    }

    /// Makes one `mprotect`.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn protect(&mut self, range: AddressRange, protection: Protection) -> Result<(), CallError> {
        let arguments = [range.start().0, range.len(), protection.bits() as u64, 0, 0, 0];
        self.call("mprotect", numbers::SYS_mprotect, arguments).map(drop)
    }

    /// Names anonymous memory (`PR_SET_VMA_ANON_NAME`).
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn name(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        let at = self.place(&[name.as_bytes(), &[0]].concat())?;
        let arguments = [constants::PR_SET_VMA, constants::PR_SET_VMA_ANON_NAME, range.start().0, range.len(), at.0, 0];
        self.call("prctl(PR_SET_VMA)", numbers::SYS_prctl, arguments).map(drop)
    }

    /// Names anonymous memory, unless the kernel knows no such names or a filter refuses the call.
    ///
    /// # Errors
    /// No call can be made any more.
    pub fn name_if_possible(&mut self, range: AddressRange, name: &str) -> Result<(), CallError> {
        match self.name(range, name) {
            Err(_) if matches!(self.failed, Some(InjectError::Filtered)) => {
                self.failed = None;
                Ok(())
            }
            Err(error) if self.failed.is_some() => Err(error),
            _ => Ok(()),
        }
    }

    /// Maps a staging copy, marks it ([`MARK_OF_COPY`]) and keeps it out of children (MADV_DONTFORK): a fork would share its
    /// huge pages with the child, and filling them would split them. Returns its address; a copy that cannot be kept from them is
    /// unmapped.
    ///
    /// Linux 7.3 does not take that back from pool pages (MADV_DOFORK fails with EINVAL there, seen with 7.3.4), so that
    /// the program's children would lack them after the swap. Such a copy is mapped again and only marked; a child of a fork
    /// in these moments keeps it, which nobody writes to once it is filled.
    pub(super) fn map_staging(
        &mut self,
        length: u64,
        may_be_of_pool: bool,
        map: impl Fn(&mut Self) -> Result<u64, CallError>,
    ) -> Result<Address, CallError> {
        let copy = AddressRange::sized(Address(map(self)?), length);
        let mark = |calls: &mut Self, copy| calls.advise("madvise(MADV_SEQUENTIAL)", copy, MARK_OF_COPY);
        self.or_unmap(copy, |calls| mark(calls, copy))?;
        let dont_fork = |calls: &mut Self| calls.advise("madvise(MADV_DONTFORK)", copy, libc::MADV_DONTFORK);
        let kept = dont_fork(self).and_then(|()| match may_be_of_pool {
            true => self.advise("madvise(MADV_DOFORK)", copy, libc::MADV_DOFORK).map(|()| true),
            false => Ok(false),
        });
        match kept {
            Ok(false) => Ok(copy.start()),
            Ok(true) => self.or_unmap(copy, dont_fork),
            Err(error) => {
                self.unmap(copy);
                if !may_be_of_pool || error.call != "madvise(MADV_DOFORK)" || error.errno != Errno::EINVAL as i32 {
                    return Err(error);
                }
                let copy = AddressRange::sized(Address(map(self)?), length);
                self.or_unmap(copy, |calls| mark(calls, copy))
            }
        }
    }

    /// Makes a new staging copy readable and returns its address; one that stays as it is is unmapped.
    pub(super) fn open_staging(&mut self, copy: AddressRange) -> Result<Address, CallError> {
        self.or_unmap(copy, |calls| calls.protect(copy, Protection::READ_WRITE))
    }

    /// Makes further calls on a new staging copy and returns its address; if they fail, it is unmapped.
    pub(super) fn or_unmap(
        &mut self,
        copy: AddressRange,
        advise: impl FnOnce(&mut Self) -> Result<(), CallError>,
    ) -> Result<Address, CallError> {
        advise(self).inspect_err(|_| self.unmap(copy)).map(|()| copy.start())
    }

    fn unmap(&mut self, copy: AddressRange) {
        let unmapped = self.call("munmap", numbers::SYS_munmap, [copy.start().0, copy.len(), 0, 0, 0, 0]);
        self.left_copy |= unmapped.is_err();
    }

    /// Makes a staging copy ordinary memory of the program, which its children inherit.
    pub(super) fn end_staging(&mut self, copy: AddressRange) -> Result<(), CallError> {
        match self.advise("madvise(MADV_DOFORK)", copy, libc::MADV_DOFORK) {
            // Then it is one that is only marked: see `map_staging`.
            Err(error) if error.errno == Errno::EINVAL as i32 => {}
            result => result?,
        }
        self.advise("madvise(MADV_NORMAL)", copy, libc::MADV_NORMAL)
    }

    pub(super) fn disable_thp(&mut self, disable: u64, flags: u64) -> Result<(), CallError> {
        let arguments = [libc::PR_SET_THP_DISABLE as u64, disable, flags, 0, 0, 0];
        self.call("prctl(PR_SET_THP_DISABLE)", numbers::SYS_prctl, arguments).map(drop)
    }

    /// Writes bytes to the memory for arguments and returns their address; at most [`SCRATCH_BYTES`].
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn place(&mut self, bytes: &[u8]) -> Result<Address, CallError> {
        if bytes.len() > SCRATCH_BYTES {
            return Err(CallError { call: "placing arguments", errno: Errno::ENAMETOOLONG as i32 });
        }
        self.page.place(self.memory, bytes).map_err(|error| failed("writing memory", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_shows_the_mark_of_a_copy_with_which_files_are_read_ahead() {
        const LENGTH: usize = 1 << 20;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY:
        // - the kernel chooses free addresses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY:
        // - the range is this mapping, whose contents stay.
        assert_eq!(unsafe { libc::madvise(memory, LENGTH, MARK_OF_COPY) }, 0);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", memory as usize);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let shown = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let has = |flag| shown.split_whitespace().any(|shown| shown == flag);
        assert!(has(FLAG_OF_COPY) && !has("rr"), "{shown}");
        // SAFETY:
        // - no reference to the mapping exists.
        assert_eq!(unsafe { libc::munmap(memory, LENGTH) }, 0);
    }
}
