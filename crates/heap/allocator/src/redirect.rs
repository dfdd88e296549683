//! Lookups of an allocator's function in the object that defines it return this heap's function. Such lookups come from
//! libraries loaded with RTLD_DEEPBIND, foreign function interfaces that use the C library's handle, and dlvsym(3).
//! Otherwise blocks of this heap would reach the C library's `free`, because strdup(3) and others take their blocks
//! from the heap.
//!
//! In the symbol tables of all objects after this library, the entries for these names are changed to the heap's
//! functions. The tables are data: a page is writable and not executable during the change, before the program has a
//! second thread, and gets its protection back. No code is changed, and symbols that are bound already are bound to the
//! heap, which is the first object.

use crate::c_library::{behind, is_own, objects};
use crate::sys::base_page;
use address_space::{Address, AddressRange};
use core::ffi::CStr;
use libc::{Elf64_Ehdr, Elf64_Phdr};
use linux_raw::loaded_objects::{FUNCTION, Object, SymbolEntry};

/// Names of an allocator's functions in any library, each with the name of this heap's replacement.
const FUNCTIONS: [(&CStr, &CStr); 27] = [
    (c"malloc", c"malloc"),
    (c"calloc", c"calloc"),
    (c"realloc", c"realloc"),
    (c"reallocarray", c"reallocarray"),
    (c"free", c"free"),
    (c"cfree", c"cfree"),
    (c"free_sized", c"free_sized"),
    (c"free_aligned_sized", c"free_aligned_sized"),
    (c"memalign", c"memalign"),
    (c"aligned_alloc", c"aligned_alloc"),
    (c"posix_memalign", c"posix_memalign"),
    (c"valloc", c"valloc"),
    (c"pvalloc", c"pvalloc"),
    (c"malloc_usable_size", c"malloc_usable_size"),
    (c"malloc_trim", c"malloc_trim"),
    (c"mallinfo", c"mallinfo"),
    (c"mallinfo2", c"mallinfo2"),
    (c"malloc_info", c"malloc_info"),
    (c"malloc_stats", c"malloc_stats"),
    (c"__libc_malloc", c"malloc"),
    (c"__libc_calloc", c"calloc"),
    (c"__libc_realloc", c"realloc"),
    (c"__libc_free", c"free"),
    (c"__libc_memalign", c"memalign"),
    (c"__libc_valloc", c"valloc"),
    (c"__libc_pvalloc", c"pvalloc"),
    (c"__libc_reallocarray", c"reallocarray"),
];

/// Entries that are changed: 27 names in the C library, its dynamic linker, and an allocator.
const MOST_ENTRIES: usize = 128;
const MOST_PAGES: usize = 128;

/// An entry of a table of symbols, and the value that it gets.
#[derive(Clone, Copy)]
struct Entry {
    symbol: *mut SymbolEntry,
    value: u64,
}

/// A page with such entries, and the protection that it has.
#[derive(Clone, Copy)]
struct Page {
    start: usize,
    protection: i32,
}

/// The changes, all found before the first is made.
struct Changes {
    entries: [Option<Entry>; MOST_ENTRIES],
    pages: [Option<Page>; MOST_PAGES],
}

/// Why the tables stay as they are.
pub enum Refusal {
    /// Another reason, found before.
    Other(&'static str),
    /// They are not laid out as linkers do it.
    NotUnderstood,
    /// mprotect(2) was refused with this error.
    Refused(i32),
}

/// Redirects lookups in all objects after this library to the heap. On failure nothing is changed.
///
/// # Safety
/// The process has one thread, and this heap gives every block from now on.
pub unsafe fn redirect() -> Result<(), Refusal> {
    let mut changes = Changes { entries: [None; MOST_ENTRIES], pages: [None; MOST_PAGES] };
    // SAFETY:
    // - the caller's promise.
    let (own, mut behind) = unsafe { (objects().map(|linked| linked.object).find(is_own), behind()) };
    if !own.is_some_and(|own| behind.all(|object| changes.add(&object, &own))) {
        return Err(Refusal::NotUnderstood);
    }
    let pages = || changes.pages.iter().flatten();
    for (done, page) in pages().enumerate() {
        // SAFETY:
        // - a page of symbols and names only, which are data: nobody executes it.
        if let Err(error) = unsafe { page.protect(libc::PROT_READ | libc::PROT_WRITE) } {
            pages().take(done).for_each(Page::restore);
            return Err(Refusal::Refused(error));
        }
    }
    for entry in changes.entries.iter().flatten() {
        // SAFETY:
        // - the entry is in a loaded object's table, whose pages have just become writable, and nobody else reads the
        //   entry.
        unsafe {
            (*entry.symbol).value = entry.value;
            (*entry.symbol).info = (*entry.symbol).info & 0xf0 | FUNCTION;
        }
    }
    pages().for_each(Page::restore);
    Ok(())
}

impl Changes {
    /// Adds an object's entries, which will lead to functions of `own`; false if there is no room for them or its tables may
    /// share a page with code.
    fn add(&mut self, object: &Object, own: &Object) -> bool {
        let mut is_understood = true;
        for (name, function) in FUNCTIONS {
            let Some(function) = own.function(function) else { return false };
            object.each_definition(name, &mut |symbol| {
                let value = function.wrapping_sub(object.bias()) as u64;
                is_understood &= self.add_entry(Entry { symbol: symbol.cast_mut(), value }, object);
            });
        }
        is_understood
    }

    fn add_entry(&mut self, entry: Entry, object: &Object) -> bool {
        let (start, size) = (entry.symbol as usize, size_of::<SymbolEntry>());
        let first = start - start % base_page();
        let are_known =
            (first..start + size).step_by(base_page()).all(|page| self.add_page(page, object).unwrap_or(false));
        let place = self.entries.iter_mut().find(|place| place.is_none());
        are_known && place.map(|place| *place = Some(entry)).is_some()
    }

    fn add_page(&mut self, start: usize, object: &Object) -> Option<bool> {
        if self.pages.iter().flatten().any(|page| page.start == start) {
            return Some(true);
        }
        let protection = protection_of(start, object)?;
        // Linkers put code behind all tables.
        let may_be_code = protection & libc::PROT_EXEC != 0 && start + base_page() > object.end_of_names();
        let place = self.pages.iter_mut().find(|place| place.is_none())?;
        *place = Some(Page { start, protection });
        Some(!may_be_code)
    }
}

/// The protection that an object's headers give a page; `None` if they are not mapped at its base, or have no such page.
fn protection_of(page: usize, object: &Object) -> Option<i32> {
    let header = object.bias() as *const Elf64_Ehdr;
    // SAFETY:
    // - all but the executable, which is before this library, are mapped from their first page on, which holds the file's header;
    //   the kernel and the dynamic linker have read it there. `is_header` checks that.
    // - the program's headers are in the same page or after it, in the first segment.
    let headers = unsafe {
        if !is_header(&*header) {
            return None;
        }
        let first = (object.bias() + (*header).e_phoff as usize) as *const Elf64_Phdr;
        core::slice::from_raw_parts(first, usize::from((*header).e_phnum))
    };
    let segment = headers.iter().find(|segment| {
        let start = object.bias().wrapping_add(segment.p_vaddr as usize);
        let whole_pages = start - start % base_page()..start + segment.p_filesz as usize;
        segment.p_type == libc::PT_LOAD && whole_pages.contains(&page)
    })?;
    let bits = [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE), (libc::PF_X, libc::PROT_EXEC)];
    Some(bits.into_iter().filter(|(flag, _)| segment.p_flags & flag != 0).fold(0, |all, (_, bit)| all | bit))
}

fn is_header(header: &Elf64_Ehdr) -> bool {
    header.e_ident.starts_with(b"\x7fELF") && usize::from(header.e_phentsize) == size_of::<Elf64_Phdr>()
}

impl Page {
    /// # Safety
    /// Nobody executes the page, or writes to it while it is not writable.
    unsafe fn protect(&self, protection: i32) -> Result<(), linux_raw::Errno> {
        let range = AddressRange::sized(Address(self.start as u64), base_page() as u64);
        // SAFETY:
        // - the caller's promise; contents stay.
        unsafe { linux_raw::mprotect(range, protection) }
    }

    fn restore(&self) {
        // SAFETY:
        // - the protection that the page had. A kernel that gives no page back its right to be executed (PR_SET_MDWE, SELinux)
        //   lets it be read; there is no code in it.
        unsafe {
            if self.protect(self.protection).is_err() {
                let _ = self.protect(libc::PROT_READ);
            }
        }
    }
}
