//! The symbol tables of a loaded object.

use core::ffi::CStr;

/// An entry of an object's table of symbols: `Elf64_Sym` (elf(5)).
#[repr(C)]
pub struct SymbolEntry {
    name: u32,
    /// The binding in the four upper bits, the kind in the others.
    pub info: u8,
    other: u8,
    section: u16,
    /// The address in the object's file, if the entry is for a function or a variable.
    pub value: u64,
    size: u64,
}

/// `STB_LOCAL`.
const LOCAL: u8 = 0;
/// `STT_FUNC`, the kind of a function that can be called at its address.
pub const FUNCTION: u8 = 2;
/// `STT_GNU_IFUNC`.
const CHOSEN: u8 = 10;
/// `STT_TLS`: the value is an offset, not an address.
const THREAD_LOCAL: u8 = 6;
/// Set in the version of a symbol that new objects are not linked with.
const OLD_VERSION: u16 = 0x8000;

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// `Elf64_Rela`: where, the symbol's index above 32 bits of the kind, a number to be added.
type Relocation = [u64; 3];

/// A symbol that an object defines for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Where it is; if [`Symbol::is_chosen_by_call`], where the function is that chooses it.
    pub address: usize,
    kind: u8,
}

impl Symbol {
    /// True for a function that another function chooses when the program starts (`STT_GNU_IFUNC`).
    pub fn is_chosen_by_call(self) -> bool {
        self.kind == CHOSEN
    }

    /// True for a function that can be called at its address.
    pub fn is_function(self) -> bool {
        self.kind == FUNCTION
    }
}

/// A loaded object with the tables that its dynamic section names; one that it does not have is null or empty.
#[derive(Clone, Copy)]
pub struct Object {
    bias: usize,
    dynamic: usize,
    names: usize,
    names_size: usize,
    symbols: *const SymbolEntry,
    gnu_hash: *const u32,
    hash: *const u32,
    versions: *const u16,
    own_name: Option<usize>,
    /// Tables with their sizes in bytes.
    relocations: [(usize, usize); 2],
}

/// The value of the first entry of a kind in a dynamic section.
///
/// # Safety
/// `dynamic` is the address of an object's dynamic section.
pub unsafe fn entry(dynamic: usize, wanted: u64) -> Option<u64> {
    // SAFETY:
    // - the caller's promise.
    unsafe { entries(dynamic) }.find(|[tag, _]| *tag == wanted).map(|[_, value]| value)
}

/// # Safety
/// `dynamic` is the address of an object's dynamic section, which stays as long as the entries are used.
unsafe fn entries(dynamic: usize) -> impl Iterator<Item = [u64; 2]> {
    let mut at = dynamic as *const [u64; 2];
    core::iter::from_fn(move || {
        // SAFETY:
        // - the caller's promise: the dynamic section of a loaded object is mapped and ends with an entry of zeros, after
        //   which nothing is read, since that ends the iteration.
        let entry = unsafe { at.read() };
        at = at.wrapping_add(1);
        (entry[0] != DT_NULL).then_some(entry)
    })
    .fuse()
}

impl Object {
    /// The object that is loaded at `bias` and has its dynamic section at `dynamic`; `None` if it has no symbols.
    ///
    /// # Safety
    /// There is such an object, it is relocated or was before it was loaded, and it stays loaded as long as the value and
    /// what comes from it is used.
    pub unsafe fn of(bias: usize, dynamic: usize) -> Option<Self> {
        if dynamic == 0 {
            return None;
        }
        let none = core::ptr::null();
        let mut object = Self {
            bias,
            dynamic,
            names: 0,
            names_size: 0,
            symbols: core::ptr::null(),
            gnu_hash: none,
            hash: none,
            versions: core::ptr::null(),
            own_name: None,
            relocations: [(0, 0); 2],
        };
        // SAFETY:
        // - the caller's promise.
        for [tag, value] in unsafe { entries(dynamic) } {
            let size = value as usize;
            // glibc adds the bias to addresses in most objects; musl does not.
            let at = if size < bias { bias + size } else { size };
            match tag {
                DT_STRTAB => object.names = at,
                DT_STRSZ => object.names_size = size,
                DT_SYMTAB => object.symbols = at as *const SymbolEntry,
                DT_GNU_HASH => object.gnu_hash = at as *const u32,
                DT_HASH => object.hash = at as *const u32,
                DT_VERSYM => object.versions = at as *const u16,
                DT_SONAME => object.own_name = Some(size),
                DT_RELA => object.relocations[0].0 = at,
                DT_RELASZ => object.relocations[0].1 = size,
                DT_JMPREL => object.relocations[1].0 = at,
                DT_PLTRELSZ => object.relocations[1].1 = size,
                _ => {}
            }
        }
        (object.names != 0 && !object.symbols.is_null()).then_some(object)
    }

    /// True for two values of one loaded object.
    pub fn is_same(&self, other: &Self) -> bool {
        self.dynamic == other.dynamic
    }

    /// The difference between the addresses in memory and in its file.
    pub fn bias(&self) -> usize {
        self.bias
    }

    /// The end of its table of names.
    pub fn end_of_names(&self) -> usize {
        self.names + self.names_size
    }

    /// Address of the dynamic section, which is in a segment of the object.
    pub fn dynamic(&self) -> usize {
        self.dynamic
    }

    /// The object's own name (`DT_SONAME`).
    pub fn name(&self) -> Option<&[u8]> {
        // SAFETY:
        // - the entry is an offset of a text in the table of names.
        self.own_name.map(|offset| unsafe { CStr::from_ptr((self.names + offset) as *const _) }.to_bytes())
    }

    /// A symbol that it defines for other objects, in the version that new programs are linked with.
    pub fn symbol(&self, name: &CStr) -> Option<Symbol> {
        let mut found = None;
        self.each_index(name, &mut |index| {
            // SAFETY:
            // - the index is one of the symbol table's.
            if found.is_none() && unsafe { !self.is_old(index) } {
                found = Some(index);
            }
        });
        // SAFETY:
        // - as above.
        let entry = unsafe { &*self.symbols.add(found? as usize) };
        let kind = entry.info & 15;
        (kind != THREAD_LOCAL).then(|| Symbol { address: self.bias.wrapping_add(entry.value as usize), kind })
    }

    /// Calls `act` with each entry of its table that defines this symbol for other objects: one for each version that it has.
    pub fn each_definition(&self, name: &CStr, act: &mut dyn FnMut(*const SymbolEntry)) {
        self.each_index(name, &mut |index| act(self.symbols.wrapping_add(index as usize)));
    }

    fn each_index(&self, name: &CStr, act: &mut dyn FnMut(u32)) {
        // SAFETY:
        // - the tables of a loaded object are mapped and sound, by the promise of `of`: the dynamic linker uses them.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.each_by_gnu_hash(name, act);
            } else if !self.hash.is_null() {
                // The second word is the number of symbols.
                (1..self.hash.add(1).read()).filter(|&index| self.is_definition(index, name)).for_each(act);
            }
        }
    }

    /// The address of a function that it defines for other objects.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        self.symbol(name).filter(|symbol| symbol.is_function()).map(|symbol| symbol.address)
    }

    /// Looks symbols up by the GNU hash table: a header of four words, a filter, the buckets, and a chain of hashes whose
    /// lowest bit marks the end.
    ///
    /// # Safety
    /// The object has this table, one of symbols and one of names.
    unsafe fn each_by_gnu_hash(&self, name: &CStr, act: &mut dyn FnMut(u32)) {
        let hash = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
        let wanted = name.to_bytes().iter().fold(5381, hash);
        // SAFETY:
        // - the caller's promise: the dynamic linker uses the table in the same way.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| self.gnu_hash.add(at).read());
            let buckets_at = self.gnu_hash.add(4 + 2 * filter as usize);
            let chains_at = buckets_at.add(buckets as usize);
            let mut index = buckets_at.add((wanted % buckets.max(1)) as usize).read();
            while index >= first && index != 0 {
                let hash = chains_at.add((index - first) as usize).read();
                if hash | 1 == wanted | 1 && self.is_definition(index, name) {
                    act(index);
                }
                if hash & 1 == 1 {
                    return;
                }
                index += 1;
            }
        }
    }

    /// True in a version that new programs are not linked with.
    ///
    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn is_old(&self, index: u32) -> bool {
        // SAFETY:
        // - the caller's promise; the table of versions has an entry for each symbol.
        unsafe { !self.versions.is_null() && self.versions.add(index as usize).read() & OLD_VERSION != 0 }
    }

    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn is_definition(&self, index: u32, name: &CStr) -> bool {
        // SAFETY:
        // - the caller's promise.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            symbol.section != 0 && symbol.info >> 4 != LOCAL && self.name_of(index) == name
        }
    }

    /// # Safety
    /// `index` is one of the symbol table's.
    unsafe fn name_of(&self, index: u32) -> &CStr {
        // SAFETY:
        // - the caller's promise; names of symbols are in the table of names and end with NUL.
        unsafe { CStr::from_ptr((self.names + (*self.symbols.add(index as usize)).name as usize) as *const _) }
    }

    /// True if a relocation refers to a symbol whose name begins with one of these texts.
    pub fn uses(&self, beginnings: &[&[u8]]) -> bool {
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
