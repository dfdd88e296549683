//! The mappings of a range of another process (`PROCMAP_QUERY`, Linux 6.11).
//!
//! `/proc/PID/maps` can only be read from its beginning, which takes about 1 µs for each mapping of the process.

use crate::text::open_of_process;
use crate::watch::watched;
use address_space::{Address, AddressRange, Protection, UnnamedMapping};
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `PROCMAP_QUERY_VMA_READABLE` (`linux/fs.h`).
const READABLE: u64 = 0x1;
/// `PROCMAP_QUERY_VMA_WRITABLE`.
const WRITABLE: u64 = 0x2;
/// `PROCMAP_QUERY_VMA_EXECUTABLE`.
const EXECUTABLE: u64 = 0x4;
/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 0x8;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
const COVERING_OR_NEXT: u64 = 0x10;

/// `struct procmap_query` (`linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    found_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

mod request {
    use super::Query;

    nix::ioctl_readwrite!(
        /// `PROCMAP_QUERY` (Linux 6.11, `linux/fs.h`).
        query, b'f', 17, Query
    );
}

/// Returns the mappings of a process that overlap a range, in ascending order.
///
/// # Errors
/// `ENOTTY` before Linux 6.11; otherwise the kernel's.
pub fn mappings_in(pid: i32, range: AddressRange) -> io::Result<Vec<UnnamedMapping>> {
    let maps = open_of_process(format!("/proc/{pid}/maps"))?;
    let (mut found, mut at) = (Vec::new(), range.start());
    while at < range.end() {
        let what = || format!("reading the mappings of process {pid}");
        match watched(what, || mapping_from(&maps, at))? {
            Some(mapping) if mapping.range.start() < range.end() => {
                at = mapping.range.end();
                found.push(mapping);
            }
            _ => break,
        }
    }
    Ok(found)
}

/// The mapping at an address, or else the next one.
fn mapping_from(maps: &File, at: Address) -> io::Result<Option<UnnamedMapping>> {
    let size = size_of::<Query>() as u64;
    let mut query = Query { size, flags: COVERING_OR_NEXT, address: at.0, ..Query::default() };
    // SAFETY:
    // - `query` has the size that the request and `size` name, and the call writes no more than that.
    // - the sizes of the name and the build ID are 0, so that neither is written.
    match unsafe { request::query(maps.as_raw_fd(), &raw mut query) } {
        Ok(_) => {}
        Err(Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let has = |flag| query.found_flags & flag != 0;
    Ok(Some(UnnamedMapping {
        range: AddressRange::new(Address(query.start), Address(query.end)),
        protection: Protection { read: has(READABLE), write: has(WRITABLE), execute: has(EXECUTABLE) },
        shared: has(SHARED),
        offset: query.offset,
        device: (query.major, query.minor),
        inode: query.inode,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::AddressSpace;

    #[test]
    fn a_query_and_the_list_agree() {
        assert_eq!(size_of::<Query>(), 104);
        let (pid, own) = (std::process::id() as i32, std::env::current_exe().unwrap());
        // Other threads map memory meanwhile, but no file of the program.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_file: Vec<&str> = maps.lines().filter(|line| line.ends_with(own.to_str().unwrap())).collect();
        let space = AddressSpace::parse(&of_file.join("\n")).unwrap();
        let listed: Vec<UnnamedMapping> = space.mappings().iter().map(UnnamedMapping::from).collect();
        assert!(listed.len() > 1);
        for mapping in listed {
            match mappings_in(pid, mapping.range) {
                Ok(found) => assert_eq!(found, [mapping]),
                Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::ENOTTY as i32), "before Linux 6.11"),
            }
        }
    }

    #[test]
    fn nothing_is_mapped_behind_the_last_address() {
        let range = AddressRange::new(Address(1 << 62), Address(1 << 63));
        assert_eq!(mappings_in(std::process::id() as i32, range).unwrap_or_default(), []);
    }
}
