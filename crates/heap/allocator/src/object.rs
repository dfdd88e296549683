//! The tables of one loaded object: the symbols that it defines, and those that its relocations name.

use core::ffi::CStr;
use core::ptr::null;
use libc::Elf64_Sym;

/// An entry of a dynamic section: tag and value.
pub type DynamicEntry = [u64; 2];

const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// `Elf64_Rela`: where, the symbol's index above 32 bits of the kind, a number to be added.
type Relocation = [u64; 3];

/// A loaded object, with the tables that its dynamic section names; a table that it does not have is null or empty.
pub struct Object {
    /// Added to the addresses in its file.
    pub base: usize,
    dynamic: *const DynamicEntry,
    names: usize,
    names_size: usize,
    symbols: *const Elf64_Sym,
    gnu_hash: *const u32,
    hash: *const u32,
    /// Tables with their sizes in bytes.
    relocations: [(usize, usize); 2],
}

impl Object {
    /// # Safety
    /// An object with this dynamic section is loaded at `base`, and stays so as long as the value lives.
    pub unsafe fn of(base: usize, dynamic: *const DynamicEntry) -> Self {
        let mut object = Self {
            base,
            dynamic,
            names: 0,
            names_size: 0,
            symbols: null(),
            gnu_hash: null(),
            hash: null(),
            relocations: [(0, 0); 2],
        };
        let mut entry = dynamic;
        loop {
            // SAFETY:
            // - the caller's promise: the dynamic section of a loaded object is mapped and ends with an entry of zeros.
            let [tag, value] = unsafe { entry.read() };
            let size = value as usize;
            // The dynamic linker has added the base to addresses, but not in the vDSO.
            let at = if size < base { base + size } else { size };
            match tag {
                0 => return object,
                DT_STRTAB => object.names = at,
                DT_STRSZ => object.names_size = size,
                DT_SYMTAB => object.symbols = at as *const Elf64_Sym,
                DT_GNU_HASH => object.gnu_hash = at as *const u32,
                DT_HASH => object.hash = at as *const u32,
                DT_RELA => object.relocations[0].0 = at,
                DT_RELASZ => object.relocations[0].1 = size,
                DT_JMPREL => object.relocations[1].0 = at,
                DT_PLTRELSZ => object.relocations[1].1 = size,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
    }

    /// True if this is its dynamic section.
    pub fn has_dynamic(&self, dynamic: *const DynamicEntry) -> bool {
        self.dynamic == dynamic
    }

    /// The end of its table of names; 0 if it has none.
    pub fn end_of_names(&self) -> usize {
        self.names + self.names_size
    }

    /// True if it defines this symbol for all objects.
    pub fn defines(&self, name: &CStr) -> bool {
        let mut found = false;
        self.each_definition(name, &mut |_| found = true);
        found
    }

    /// The address of a function that it defines for all objects.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        /// `STT_FUNC`.
        const FUNCTION: u8 = 2;
        let mut found = None;
        self.each_definition(name, &mut |symbol| {
            // SAFETY:
            // - the entry is one of a loaded object's table.
            let symbol = unsafe { &*symbol };
            if symbol.st_info & 15 == FUNCTION {
                found = Some(self.base.wrapping_add(symbol.st_value as usize));
            }
        });
        found
    }

    /// Calls `act` with each entry of the symbol table that defines this symbol for all objects; there are several
    /// entries if the symbol has several versions.
    pub fn each_definition(&self, name: &CStr, act: &mut dyn FnMut(*const Elf64_Sym)) {
        if self.names == 0 || self.symbols.is_null() {
            return;
        }
        let mut check = |index: u32| {
            // SAFETY:
            // - the index is within the symbol table: it comes from the table's hash table.
            if unsafe { self.is_definition(index, name) } {
                act(self.symbols.wrapping_add(index as usize));
            }
        };
        // SAFETY:
        // - the tables of a loaded object are mapped and sound, by the promise of `of`: the dynamic linker has used them.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.each_with_hash(name, &mut check);
            } else if !self.hash.is_null() {
                // The second word is the number of symbols.
                (1..self.hash.add(1).read()).for_each(check);
            }
        }
    }

    /// Calls `act` with each symbol of a name's hash in the GNU hash table: a header of four words, a filter, the buckets, and a
    /// chain of hashes whose lowest bit marks the end.
    ///
    /// # Safety
    /// The object has this table.
    unsafe fn each_with_hash(&self, name: &CStr, act: &mut dyn FnMut(u32)) {
        let wanted =
            name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // SAFETY:
        // - the caller's promise: the dynamic linker has used the table in the same way.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| self.gnu_hash.add(at).read());
            let buckets_at = self.gnu_hash.add(4 + 2 * filter as usize);
            let chains_at = buckets_at.add(buckets as usize);
            let mut index = buckets_at.add((wanted % buckets.max(1)) as usize).read();
            while index >= first && index != 0 {
                let hash = chains_at.add((index - first) as usize).read();
                if hash | 1 == wanted | 1 {
                    act(index);
                }
                if hash & 1 == 1 {
                    return;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn is_definition(&self, index: u32, name: &CStr) -> bool {
        /// `STB_LOCAL`.
        const LOCAL: u8 = 0;
        // SAFETY:
        // - the caller's promise.
        let (symbol, text) = unsafe { (&*self.symbols.add(index as usize), self.name_of(index)) };
        symbol.st_shndx != 0 && symbol.st_info >> 4 != LOCAL && text == name
    }

    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn name_of(&self, index: u32) -> &CStr {
        // SAFETY:
        // - the caller's promise; names of symbols are in the table of names and end with NUL.
        unsafe { CStr::from_ptr((self.names + (*self.symbols.add(index as usize)).st_name as usize) as *const _) }
    }

    /// True if a relocation refers to a symbol whose name begins with one of `beginnings`.
    pub fn uses(&self, beginnings: &[&[u8]]) -> bool {
        if self.names == 0 || self.symbols.is_null() {
            return false;
        }
        self.relocations.iter().filter(|(table, _)| *table != 0).any(|&(table, bytes)| {
            // SAFETY:
            // - the table of a loaded object is mapped, by the promise of `of`: the dynamic linker has used it.
            let entries =
                unsafe { core::slice::from_raw_parts(table as *const Relocation, bytes / size_of::<Relocation>()) };
            entries.iter().map(|[_, info, _]| (info >> 32) as u32).filter(|&index| index != 0).any(|index| {
                // SAFETY:
                // - the dynamic linker has looked this symbol up.
                let name = unsafe { self.name_of(index) }.to_bytes();
                beginnings.iter().any(|beginning| name.starts_with(beginning))
            })
        })
    }
}
