//! Entry points for the fuzz targets of `hostile-input`: readers that no caller outside of this crate needs.

use crate::elf::{ElfFacts, Reads};
use crate::small_blocks::model::{CHUNK, model};
use heap_abi::{Account, AccountCopy, Found};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A change to the model of a program's memory: the piece (1 byte), the offset in it (4 bytes), the new value (8
/// bytes).
const CHANGE: usize = 13;

/// Reads the facts about the allocator in an ELF file; false if there are none.
///
/// # Panics
/// There can be no file in memory.
pub fn read_allocator(bytes: &[u8]) -> bool {
    let written = || -> std::io::Result<_> {
        let mut file = File::from(memfd_create("hostile", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(bytes)?;
        ElfFacts::read(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), Reads::Versions { executable: true })
    };
    let facts = written();
    assert!(facts.is_ok(), "a file in memory can be read");
    facts.is_ok_and(|facts| facts.is_some())
}

/// Reads an account from the first bytes, then the records of small blocks of a program in whose memory the rest of the
/// bytes have changed something.
///
/// # Panics
/// More bytes are reported in use than exist.
pub fn read_records(bytes: &[u8]) {
    let (account, changes) = bytes.split_at(bytes.len().min(Account::BYTES));
    if let Some(head) = account.first_chunk() {
        Found::at(head);
    }
    if let Ok(account) = account.try_into() {
        AccountCopy::from_bytes(account);
    }
    let (mut memory, _) = model();
    for change in changes.chunks_exact(CHANGE) {
        let (place, value) = change.split_at(CHANGE - 8);
        let count = memory.pieces.len();
        let piece = &mut memory.pieces[usize::from(place[0]) % count].1;
        let offset = u32::from_le_bytes([place[1], place[2], place[3], place[4]]) as usize % (piece.len() - 7);
        piece[offset..offset + 8].copy_from_slice(value);
    }
    let arenas = 4 * CHUNK;
    assert!(memory.live(arenas).unwrap_or(0) <= arenas, "more is in use than there is");
}

/// Inputs for [`read_records`] that change little: an account, and one word in each piece.
pub fn sound_records() -> Vec<Vec<u8>> {
    let account = vec![0; Account::BYTES];
    let count = model().0.pieces.len() as u8;
    let change = |piece: u8| [&[piece][..], &[0; 4], &u64::from(piece).to_le_bytes()].concat();
    let changes: Vec<u8> = (0..count).flat_map(change).collect();
    vec![account.clone(), [account, changes].concat()]
}
