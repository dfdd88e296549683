//! Tries the features that a kernel and the restrictions on this process permit: on separate memory, on descriptors
//! that are closed at once, and on a child that ends with the attempt. A release number is not sufficient:
//! distributions backport and omit features, seccomp filters and security modules refuse them.

use crate::advice;
use crate::constants::MADV_COLLAPSE;
use address_space::{Address, AddressRange, PageSize};
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::ffi::c_void;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Position of the page size's logarithm in the flags of mmap(2).
const MAP_HUGE_SHIFT: u32 = 26;
/// `PR_SET_MM_MAP_SIZE` (`linux/prctl.h`): asks how long the structure of `PR_SET_MM_MAP` is.
const SET_MM_MAP_SIZE: libc::c_ulong = 15;

/// The process's own setting of transparent huge pages (prctl(2), `PR_SET_THP_DISABLE`), which children inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpSetting {
    /// As the system has them.
    AsSystem,
    /// None.
    Off,
    /// Only where memory is advised (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    ExceptAdvised,
}

/// Returns this process's own setting of transparent huge pages; `None` if the kernel refuses the call.
pub fn own_thp_setting() -> Option<ThpSetting> {
    // SAFETY:
    // - this request takes no pointer.
    match unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } {
        0 => Some(ThpSetting::AsSystem),
        1 => Some(ThpSetting::Off),
        3 => Some(ThpSetting::ExceptAdvised),
        _ => None,
    }
}

/// Collapses memory of this process onto a transparent huge page (`MADV_COLLAPSE`, Linux 6.1).
///
/// # Errors
/// The kernel's: `EINVAL` where it does not know the advice or transparent huge pages are off for this process.
pub fn collapse(huge: PageSize) -> io::Result<()> {
    let memory = OwnMemory::aligned(huge)?;
    memory.touch();
    // SAFETY:
    // - the range is memory that `memory` owns; its contents stay.
    checked(unsafe { libc::madvise(memory.aligned.cast(), memory.page, MADV_COLLAPSE) }.into())
}

/// Makes the pages of a mapping present before they are used (`MADV_POPULATE_WRITE`, Linux 5.14).
///
/// # Errors
/// The kernel's.
pub fn populate(base: PageSize) -> io::Result<()> {
    let memory = OwnMemory::aligned(base)?;
    // SAFETY:
    // - the range is memory that `memory` owns.
    checked(unsafe { libc::madvise(memory.aligned.cast(), memory.page, libc::MADV_POPULATE_WRITE) }.into())
}

/// Moves a mapping of pool pages (Linux 5.16). It is never touched, so that it takes no page.
///
/// # Errors
/// The kernel's: `EINVAL` before Linux 5.16; `ENOMEM` or `EINVAL` without a pool of this size.
pub fn move_pool_mapping(huge: PageSize) -> io::Result<()> {
    let target = OwnMemory::aligned(huge)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_HUGETLB;
    let flags = flags | ((huge.log2() << MAP_HUGE_SHIFT) as i32);
    let length = target.page;
    // SAFETY:
    // - the kernel chooses a free place.
    let pool = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if pool == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY:
    // - the source was mapped above and nothing else knows it;
    // - `target` owns the destination, and unmaps its mappings when it is dropped.
    let moved = unsafe { libc::mremap(pool, length, length, moves, target.aligned.cast::<c_void>()) };
    if moved != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // SAFETY:
    // - it was not moved, so that it is still mapped, and nothing refers to it.
    unsafe { libc::munmap(pool, length) };
    Err(error)
}

/// Makes an anonymous file of pool pages (memfd_create(2), `MFD_HUGETLB`), without any page.
///
/// # Errors
/// The kernel's.
pub fn pool_file() -> io::Result<()> {
    // SAFETY:
    // - the name ends with NUL, and the call writes no memory.
    let descriptor = unsafe { libc::memfd_create(c"pagelift".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_HUGETLB) };
    owned(descriptor.into()).map(drop)
}

/// Opens a userfaultfd that handles faults of system calls too (userfaultfd(2)).
///
/// # Errors
/// The kernel's: `EPERM` without CAP_SYS_PTRACE where `vm.unprivileged_userfaultfd` is 0.
pub fn userfaultfd() -> io::Result<()> {
    // SAFETY:
    // - the call takes a number only.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) }).map(drop)
}

/// Makes anonymous memory executable that was written to, as every copy of code is (never both at once).
///
/// # Errors
/// The kernel's: `EACCES` or `EPERM` under MemoryDenyWriteExecute, `PR_SET_MDWE` or SELinux without execmem.
pub fn executable_copy(base: PageSize) -> io::Result<()> {
    let memory = OwnMemory::aligned(base)?;
    memory.touch();
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY:
    // - the range is memory that `memory` owns, and nobody writes to it any more.
    checked(unsafe { libc::mprotect(memory.aligned.cast(), memory.page, executable) }.into())
}

/// Asks for the structure by which the kernel's copy of the auxiliary vector is corrected (`PR_SET_MM_MAP`; needs
/// CONFIG_CHECKPOINT_RESTORE).
///
/// # Errors
/// The kernel's.
pub fn auxiliary_vector_can_be_set() -> io::Result<()> {
    let mut size: libc::c_uint = 0;
    // SAFETY:
    // - the request writes one unsigned int, which `size` is.
    checked(unsafe { libc::prctl(libc::PR_SET_MM, SET_MM_MAP_SIZE, &raw mut size, 0, 0) }.into())
}

/// The permitted actions on a child.
#[derive(Debug)]
pub struct ChildAttempts {
    /// It was seized and stopped by ptrace.
    pub traced: io::Result<()>,
    /// Its memory was collapsed (`process_madvise` with `MADV_COLLAPSE`); `None` where the kernel has no transparent huge
    /// pages.
    pub collapsed: Option<io::Result<()>>,
}

/// Seizes a child of this process and collapses its memory; the child is ended before this returns.
///
/// # Errors
/// No child can be made.
pub fn act_on_child(huge: Option<PageSize>) -> io::Result<ChildAttempts> {
    let memory = huge.map(OwnMemory::aligned).transpose()?;
    let (mut ready, tell) = io::pipe()?;
    let child = Child::start(memory.as_ref(), tell)?;
    await_child(&mut ready)?;
    let collapsed = memory.as_ref().map(|memory| advice::collapse(child.0.as_raw(), memory.range()));
    let traced = ptrace::seize(child.0, ptrace::Options::empty())
        .and_then(|()| ptrace::interrupt(child.0))
        .and_then(|()| waitpid(child.0, None))
        .map(drop)
        .map_err(io::Error::from);
    Ok(ChildAttempts { traced, collapsed })
}

fn await_child(ready: &mut PipeReader) -> io::Result<()> {
    ready.read_exact(&mut [0])
}

/// A child that waits until it is killed, which it is when this is dropped.
struct Child(Pid);

impl Child {
    fn start(memory: Option<&OwnMemory>, tell: PipeWriter) -> io::Result<Self> {
        let (first, tell) = (memory.map(|memory| memory.aligned), tell.as_raw_fd());
        // SAFETY:
        // - the child only writes to its own memory and makes calls that are safe after a fork of a program with
        //   threads (signal-safety(7)): prctl, write, pause and _exit.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY:
                // - `first`, where there is one, is writable memory that was mapped before the fork;
                // - the byte that is written from is a constant.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if let Some(first) = first {
                        first.write_volatile(1);
                    }
                    libc::write(tell, c"r".as_ptr().cast(), 1);
                    libc::pause();
                    libc::_exit(0)
                }
            }
            pid => Ok(Self(Pid::from_raw(pid))),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It is a child of this process that nobody else waits for, so that the number is still its own.
        let _ = nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGKILL);
        while let Ok(status) = waitpid(self.0, None) {
            if matches!(status, nix::sys::wait::WaitStatus::Signaled(..) | nix::sys::wait::WaitStatus::Exited(..)) {
                break;
            }
        }
    }
}

/// Anonymous memory of this process that holds one aligned page of a size; unmapped when dropped.
struct OwnMemory {
    start: *mut c_void,
    length: usize,
    aligned: *mut u8,
    page: usize,
}

impl OwnMemory {
    fn aligned(page: PageSize) -> io::Result<Self> {
        let page = page.bytes() as usize;
        let length = 2 * page;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY:
        // - the kernel chooses a free place.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let aligned = start.cast::<u8>().map_addr(|address| address.next_multiple_of(page));
        Ok(Self { start, length, aligned, page })
    }

    fn touch(&self) {
        // SAFETY:
        // - the page is in the mapping, which is writable and has no other user.
        unsafe { self.aligned.write_volatile(1) };
    }

    fn range(&self) -> AddressRange {
        AddressRange::sized(Address(self.aligned.addr() as u64), self.page as u64)
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY:
        // - the range was mapped by `aligned`, and nothing refers to it any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    checked(descriptor)?;
    // SAFETY:
    // - the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{base_page, transparent_huge_page};
    use crate::release::kernel_release;

    /// Mappings of pool pages.
    fn held() -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("hugepage")).count()
    }

    #[test]
    fn attempts_answer_and_leave_nothing() {
        let before = held();
        if let Some(huge) = transparent_huge_page().filter(|_| kernel_release() >= (6, 1)) {
            // The kernel may have no free memory in pieces of a huge page at this moment, or the page may be in use.
            let is_collapsed = (0..100).any(|_| collapse(huge).is_ok());
            assert_eq!(is_collapsed, own_thp_setting() != Some(ThpSetting::Off));
        }
        if let Some(huge) = transparent_huge_page().filter(|_| kernel_release() >= (5, 16)) {
            assert!(move_pool_mapping(huge).is_ok() && pool_file().is_ok());
        }
        assert_eq!(populate(base_page()).is_ok(), kernel_release() >= (5, 14));
        assert!(executable_copy(base_page()).is_ok());
        let _ = (userfaultfd(), auxiliary_vector_can_be_set());
        let attempts = act_on_child(transparent_huge_page()).unwrap();
        assert!(attempts.traced.is_ok(), "{attempts:?}");
        assert_eq!(held(), before);
    }
}
