//! Finds functions that this object's own definitions interpose, in the objects that follow it.

use crate::loaded::{self, ProgramHeader};
use core::ffi::CStr;

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// `STT_FUNC`, and `STT_GNU_IFUNC`, which needs a call to be resolved and is not taken.
const FUNCTION: u8 = 2;

/// The address of a function in the first object after this one that defines it.
pub fn next_after_this_object(name: &[u8]) -> Option<usize> {
    let (mut passed, mut found) = (false, None);
    loaded::each(|listed| {
        if !passed {
            passed = listed.holds(next_after_this_object as *const () as usize);
        } else if let Some(dynamic) = listed.headers().iter().find(|header| header.kind == PT_DYNAMIC) {
            // SAFETY:
            // - the dynamic linker lists the object as loaded, and unloads nothing before this function returns.
            let tables = unsafe { Tables::of(listed.bias, dynamic) };
            found = tables.and_then(|tables| tables.function(name));
        }
        found.is_none()
    });
    found
}

/// The tables of one loaded object.
struct Tables {
    bias: usize,
    names: usize,
    symbols: *const Symbol,
    hash: *const u32,
}

impl Tables {
    /// # Safety
    /// The header is that of the dynamic section of an object which is loaded at `bias`, and stays so as long as the tables
    /// are used.
    unsafe fn of(bias: usize, dynamic: &ProgramHeader) -> Option<Self> {
        let mut entry = (bias + dynamic.address as usize) as *const [u64; 2];
        let (mut names, mut symbols, mut hash) = (None, None, None);
        loop {
            // SAFETY:
            // - the caller's promise: the dynamic section of a loaded object is mapped and ends with an entry of zeros.
            let [tag, value] = unsafe { entry.read() };
            // glibc has added the bias to these, musl has not.
            let at = if (value as usize) < bias { bias + value as usize } else { value as usize };
            match tag {
                0 => break,
                DT_STRTAB => names = Some(at),
                DT_SYMTAB => symbols = Some(at),
                DT_GNU_HASH => hash = Some(at),
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        Some(Self { bias, names: names?, symbols: symbols? as *const Symbol, hash: hash? as *const u32 })
    }

    /// Looks a function up by the GNU hash table: a header of four words, a filter, the buckets, and a chain of hashes
    /// whose lowest bit marks the end.
    fn function(&self, name: &[u8]) -> Option<usize> {
        let wanted = name.iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY:
        // - the table of a loaded object, which it is by the promise of `of`, is mapped and sound: the dynamic linker has
        //   used it.
        unsafe {
            let [buckets, first, filter] = [self.hash.read(), self.hash.add(1).read(), self.hash.add(2).read()];
            let buckets_at = self.hash.add(4 + 2 * filter as usize);
            let chains_at = buckets_at.add(buckets as usize);
            let mut index = buckets_at.add((wanted % buckets.max(1)) as usize).read();
            while index >= first && index != 0 {
                let hash = chains_at.add((index - first) as usize).read();
                if hash | 1 == wanted | 1
                    && let Some(found) = self.function_at(index, name)
                {
                    return Some(found);
                }
                if hash & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
        None
    }

    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn function_at(&self, index: u32, name: &[u8]) -> Option<usize> {
        // SAFETY:
        // - the caller's promise; names of symbols lie in the table of names and end with NUL.
        let (symbol, text) = unsafe {
            let symbol = &*self.symbols.add(index as usize);
            (symbol, CStr::from_ptr((self.names + symbol.name as usize) as *const _))
        };
        let defined = symbol.section != 0 && symbol.info & 15 == FUNCTION;
        (defined && text.to_bytes() == name).then(|| self.bias + symbol.value as usize)
    }
}
