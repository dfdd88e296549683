//! Leases on files (fcntl(2), "Leases"), by which the kernel reports whether a file is open elsewhere.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `F_SETSIG` (`asm-generic/fcntl.h`), which the libc crate lacks.
const F_SETSIG: libc::c_int = 10;

/// A lease on an open file. Dropping it gives it back.
///
/// A process that then opens the file in a way that conflicts waits until the lease is given back, for
/// `/proc/sys/fs/lease-break-time` seconds at most.
#[derive(Debug)]
pub struct Lease<'a> {
    file: &'a File,
    kind: libc::c_int,
}

impl<'a> Lease<'a> {
    /// Takes a read lease, which is granted only while no process has the file open for writing. A mapping counts as
    /// long as it exists, even if its descriptor was closed: it keeps the open file, which keeps `i_writecount` (Linux
    /// 5.10 to 6.18). On overlayfs it does not count, since the mapping keeps the file of the lower layer.
    ///
    /// # Errors
    /// The kernel's: `EAGAIN` where the file is open for writing; `EACCES` where it belongs to another user and the
    /// caller lacks `CAP_LEASE`; `EINVAL` where the file system has no leases.
    pub fn against_writers(file: &'a File) -> io::Result<Self> {
        Self::take(file, libc::F_RDLCK)
    }

    /// Takes a write lease, which is granted only while no other open file or mapping of the file exists in any
    /// process.
    ///
    /// # Errors
    /// As [`Lease::against_writers`]; `EAGAIN` where the file is open or mapped elsewhere.
    pub fn against_everybody(file: &'a File) -> io::Result<Self> {
        Self::take(file, libc::F_WRLCK)
    }

    fn take(file: &'a File, kind: libc::c_int) -> io::Result<Self> {
        // The default signal of a lease that is being broken is SIGIO, which ends a process; SIGURG is ignored by
        // default.
        control(file, F_SETSIG, libc::SIGURG)?;
        control(file, libc::F_SETLEASE, kind)?;
        Ok(Self { file, kind })
    }

    /// False once another process has begun to open the file in a way that conflicts.
    pub fn is_kept(&self) -> bool {
        control(self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == self.kind)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = control(self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY:
    // - the commands used here take an integer and touch no memory of this process.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_mapping::FileMapping;
    use crate::pages::base_page;
    use std::path::PathBuf;

    struct Named(PathBuf);

    impl Named {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pagelift-lease-{name}-{}", std::process::id()));
            std::fs::write(&path, vec![1; base_page().bytes() as usize]).unwrap();
            Self(path)
        }

        fn open(&self) -> File {
            File::open(&self.0).unwrap()
        }
    }

    impl Drop for Named {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_writer_keeps_the_lease_away_until_its_file_is_closed() {
        let named = Named::new("writer");
        let file = named.open();
        let writer = File::options().write(true).open(&named.0).unwrap();
        let refused = Lease::against_writers(&file).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        drop(writer);
        assert!(Lease::against_writers(&file).unwrap().is_kept());
        // The lease was given back: a writer need not wait.
        File::options().write(true).open(&named.0).unwrap();
    }

    #[test]
    fn an_opener_that_conflicts_is_seen() {
        use std::os::unix::fs::OpenOptionsExt;
        let named = Named::new("opener");
        let file = named.open();
        let lease = Lease::against_writers(&file).unwrap();
        let refused = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&named.0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        assert!(!lease.is_kept());
    }

    #[test]
    fn a_mapping_counts_as_a_user_though_its_file_is_closed() {
        let named = Named::new("user");
        let file = named.open();
        let page = base_page();
        let mapping = FileMapping::readable(&named.open(), 0, page.bytes(), page).unwrap();
        assert!(Lease::against_everybody(&file).is_err());
        assert!(Lease::against_writers(&file).is_ok());
        drop(mapping);
        assert!(Lease::against_everybody(&file).unwrap().is_kept());
    }
}
