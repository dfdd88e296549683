//! Reads the account that a preloaded heap keeps of itself.

use heap_contract::{ACCOUNT_SYMBOL, Account, AccountCopy, LIBRARY};
use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{Object, ObjectSymbol, ReadCache};
use observation::ProcessFiles;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The account of a process's preloaded heap; `None` where it has none, or does not act there, or may not be read.
pub fn read_account(pid: i32) -> Option<AccountCopy> {
    let process = ProcessFiles::of(pid);
    let space = process.maps().ok()?;
    let (start, range) = space.mappings().iter().find_map(|mapping| match &mapping.name {
        address_space::MappingName::File { path, .. } if path.rsplit('/').next() == Some(LIBRARY) => {
            Some((mapping.range.start().0.checked_sub(mapping.offset)?, mapping.range))
        }
        _ => None,
    })?;
    // The file that is really mapped, whatever lies at its path now.
    let name = format!("map_files/{:x}-{:x}", range.start().0, range.end().0);
    let file = File::open(process.path(&name)).ok().or_else(|| {
        let path = space.mappings().iter().find(|mapping| mapping.range == range)?;
        match &path.name {
            address_space::MappingName::File { path, deleted: false } => {
                File::open(process.path("root").join(path.trim_start_matches('/'))).ok()
            }
            _ => None,
        }
    })?;
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(ACCOUNT_SYMBOL))?;
    let mut bytes = [0; Account::BYTES];
    let memory = File::open(process.path("mem")).ok()?;
    memory.read_exact_at(&mut bytes, start.checked_add(symbol.address())?).ok()?;
    AccountCopy::from_bytes(&bytes)
}
