//! A confined thread takes no page frames away, though before Linux 5.9 it keeps the capability for that.

use confinement::{Reads, confine};
use nix::libc;
use std::io;
use std::ptr;
use std::thread;

/// The result of madvise(2) for this advice with no bytes at all.
fn advise_nothing(advice: libc::c_int) -> io::Result<()> {
    // SAFETY:
    // - no byte is within the range.
    match unsafe { libc::madvise(ptr::null_mut(), 0, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn no_page_frame_is_taken_from_those_who_use_it() {
    let answers = || {
        confine(Reads::Processes).unwrap();
        [libc::MADV_HWPOISON, libc::MADV_SOFT_OFFLINE, libc::MADV_DONTNEED].map(advise_nothing)
    };
    let [poison, offline, give_back] = thread::spawn(answers).join().unwrap();
    for refused in [poison, offline] {
        // Without a filter the kernel says EPERM, or does it.
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSYS));
    }
    give_back.unwrap();
}
