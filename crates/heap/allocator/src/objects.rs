//! The objects that the dynamic linker has loaded: which of them define an allocator's functions, and which use C++'s.
//!
//! dlsym(3) would not do: where it finds nothing it allocates a message, and the heap has not started yet.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::null;
use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};

/// Why blocks of this heap and blocks of another allocator would meet in this program; `None` where they do not.
///
/// All objects that the program starts with are relocated already; those of dlopen(3) come later.
pub fn obstacle() -> Option<&'static str> {
    let (mut count, mut own, mut next, mut new) = (0, None, None, None);
    let mut executable_has_malloc = false;
    each(&mut |object| {
        if count == 0 {
            executable_has_malloc = object.defines(c"malloc");
        }
        if own.is_none() {
            own = object.holds(obstacle as *const () as usize).then_some(count);
        } else if next.is_none() {
            next = object.defines(c"malloc").then_some(count);
        }
        if new.is_none() {
            new = object.defines(OPERATOR_NEW).then_some(count);
        }
        count += 1;
    });
    if executable_has_malloc {
        return Some("the executable defines malloc itself");
    }
    // The operators of whoever would serve malloc without this library; those of the C++ library call malloc.
    let is_past_malloc = next.is_some() && next == new;
    (is_past_malloc && is_new_used()).then_some(
        "its allocator has C++'s operators new and delete of its own, which the program uses and this heap does not replace",
    )
}

/// True where an object defines this symbol.
pub fn define(name: &CStr) -> bool {
    let mut found = false;
    each(&mut |object| found = found || object.defines(name));
    found
}

/// C++'s plain operator new, beside which there are all others (Itanium C++ ABI, 5.1.5).
const OPERATOR_NEW: &CStr = c"_Znwm";
/// Beginnings of the names of all global operators new and delete.
const OPERATORS: [&[u8]; 4] = [b"_Znwm", b"_Znam", b"_ZdlPv", b"_ZdaPv"];

/// True where an object uses an operator of another one. What defines the operators does not use those of others.
fn is_new_used() -> bool {
    let mut found = false;
    each(&mut |object| found = found || !object.defines(OPERATOR_NEW) && object.uses(&OPERATORS));
    found
}

/// Calls `act` for each object, in the order in which symbols are looked up: the executable comes first.
fn each(act: &mut dyn FnMut(&Object)) {
    let mut act: &mut dyn FnMut(&Object) = act;
    // SAFETY:
    // - `pass_on` takes a pointer to such a reference, which lives longer than this call and is used by nobody else.
    unsafe { libc::dl_iterate_phdr(Some(pass_on), (&raw mut act).cast()) };
}

/// # Safety
/// `info` is the dynamic linker's description of an object, and `act` points to a `&mut dyn FnMut(&Object)`.
unsafe extern "C" fn pass_on(info: *mut dl_phdr_info, _: usize, act: *mut c_void) -> c_int {
    // SAFETY:
    // - the caller's promise; the object's headers are mapped while the callback runs.
    unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let object = Object::of(info.dlpi_addr as usize, headers);
        (*act.cast::<&mut dyn FnMut(&Object)>())(&object);
    }
    0
}

const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// `Elf64_Rela`: where, the symbol's index above 32 bits of the kind, a number to be added.
type Relocation = [u64; 3];

/// A loaded object, with the tables that its dynamic section names; a table that it does not have is null or empty.
struct Object<'a> {
    base: usize,
    headers: &'a [Elf64_Phdr],
    names: usize,
    symbols: *const Elf64_Sym,
    gnu_hash: *const u32,
    hash: *const u32,
    /// Tables with their sizes in bytes.
    relocations: [(usize, usize); 2],
}

impl<'a> Object<'a> {
    /// # Safety
    /// An object with these headers is loaded at `base`, and stays so as long as the value lives.
    unsafe fn of(base: usize, headers: &'a [Elf64_Phdr]) -> Self {
        let mut object =
            Self { base, headers, names: 0, symbols: null(), gnu_hash: null(), hash: null(), relocations: [(0, 0); 2] };
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return object };
        let mut entry = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
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

    fn holds(&self, address: usize) -> bool {
        let loaded = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        loaded.into_iter().any(|header| {
            let start = self.base + header.p_vaddr as usize;
            (start..start + header.p_memsz as usize).contains(&address)
        })
    }

    /// True if it defines this symbol for all objects.
    fn defines(&self, name: &CStr) -> bool {
        if self.names == 0 || self.symbols.is_null() {
            return false;
        }
        // SAFETY:
        // - the tables of a loaded object are mapped and sound, by the promise of `of`: the dynamic linker has used them.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.is_in_gnu_hash(name)
            } else if !self.hash.is_null() {
                // The second word is the number of symbols.
                (1..self.hash.add(1).read()).any(|index| self.is_definition(index, name))
            } else {
                false
            }
        }
    }

    /// Looks a symbol up in the GNU hash table: a header of four words, a filter, the buckets, and a chain of hashes whose
    /// lowest bit marks the end.
    ///
    /// # Safety
    /// The object has this table, one of symbols and one of names.
    unsafe fn is_in_gnu_hash(&self, name: &CStr) -> bool {
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
                if hash | 1 == wanted | 1 && self.is_definition(index, name) {
                    return true;
                }
                if hash & 1 == 1 {
                    return false;
                }
                index += 1;
            }
        }
        false
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
        // - the caller's promise; names of symbols lie in the table of names and end with NUL.
        unsafe { CStr::from_ptr((self.names + (*self.symbols.add(index as usize)).st_name as usize) as *const _) }
    }

    /// True if a relocation refers to a symbol whose name begins with one of these texts.
    fn uses(&self, beginnings: &[&[u8]]) -> bool {
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
