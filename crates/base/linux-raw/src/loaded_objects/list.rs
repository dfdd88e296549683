//! The dynamic linker's list of objects, and the C library among them.

use crate::loaded_objects::auxiliary::Entries;
use crate::loaded_objects::tables::Object;
use core::ffi::{CStr, c_char};

/// `Elf64_Phdr` (elf(5)).
#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;

/// Places in `Elf64_Ehdr` (elf(5)): the offset of the program headers, and their number.
const E_PHOFF: usize = 32;
const E_PHNUM: usize = 56;
/// Size of `Elf64_Ehdr`, behind which linkers put the program headers.
const FILE_HEADER: u64 = 64;

/// The first fields of `struct r_debug` (link.h).
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
}

/// `struct link_map` (link.h), as far as it is public.
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
}

/// An object in the dynamic linker's list.
pub struct Linked {
    map: &'static LinkMap,
    /// The object's tables.
    pub object: Object,
}

impl Linked {
    /// The path by which the object was loaded; empty for the program itself.
    pub fn path(&self) -> &[u8] {
        if self.map.name.is_null() {
            return &[];
        }
        // SAFETY:
        // - the dynamic linker gives a string that ends with NUL and stays as long as the object, by the promise of
        //   `Process::objects`.
        unsafe { CStr::from_ptr(self.map.name) }.to_bytes()
    }
}

/// The objects in the order in which they were loaded, the executable first: up to the last one that the program starts
/// with, this is also the order in which symbols are looked up.
pub struct Objects {
    next: *const LinkMap,
}

impl Iterator for Objects {
    type Item = Linked;

    fn next(&mut self) -> Option<Linked> {
        loop {
            // SAFETY:
            // - the list's entries are null or point to an entry, which stays while this iterator is used, by the promise
            //   of `Process::objects`.
            let map = unsafe { self.next.as_ref() }?;
            self.next = map.next;
            // SAFETY:
            // - the entry's object is loaded at this bias with this dynamic section.
            if let Some(object) = unsafe { Object::of(map.bias, map.dynamic) } {
                return Some(Linked { map, object });
            }
        }
    }
}

/// The kernel's facts about this process: the places of the dynamic linker and of the executable.
#[derive(Clone, Copy)]
pub struct Process(Entries);

impl Process {
    /// This process; `None` without `/proc`.
    pub fn this() -> Option<Self> {
        Entries::read().map(Self)
    }

    /// This process, where there is no `/proc`, by a function that gives the value of an entry of the auxiliary vector, or 0;
    /// `None` if it has none.
    ///
    /// # Safety
    /// The values are the kernel's or the dynamic linker's for this process (getauxval(3)).
    pub unsafe fn by_auxiliary_vector(value: impl Fn(u32) -> usize) -> Option<Self> {
        Some(Entries::by(value)).filter(|entries| entries.headers != 0).map(Self)
    }

    /// The objects that are loaded now; none in a static program, or if the dynamic linker publishes no list.
    ///
    /// # Safety
    /// No other thread unloads an object as long as the list, and what comes from it, is used: there is one thread, or
    /// this one runs the constructor of an object, for which the dynamic linker holds its lock.
    pub unsafe fn objects(self) -> Objects {
        Objects { next: self.debug().map_or(core::ptr::null(), |debug| debug.first) }
    }

    /// The dynamic linker; `None` in a static program. If the program was started as `ld.so PROGRAM`, it is what the
    /// kernel has executed.
    pub fn linker(self) -> Option<Object> {
        if self.0.linker == 0 {
            return self.executed().map(|(object, _)| object).filter(|object| object.symbol(LIST).is_some());
        }
        // SAFETY:
        // - the kernel has mapped the dynamic linker's file there from its beginning; it is never unmapped.
        unsafe {
            let headers = self.0.linker + ((self.0.linker + E_PHOFF) as *const u64).read() as usize;
            let count = ((self.0.linker + E_PHNUM) as *const u16).read();
            let headers = core::slice::from_raw_parts(headers as *const Header, usize::from(count));
            let first = headers.iter().find(|header| header.kind == PT_LOAD)?;
            object_of(headers, self.0.linker.wrapping_sub(first.address as usize)).map(|(object, _)| object)
        }
    }

    /// The C library: glibc by its name, musl because it is the dynamic linker itself. `None` in a static program, or for
    /// another C library. It is never unloaded.
    pub fn c_library(self) -> Option<Object> {
        if let Some(linker) = self.linker().filter(|linker| linker.function(OF_C_LIBRARIES).is_some()) {
            return Some(linker);
        }
        // SAFETY:
        // - the search ends at the C library, which the program starts with: objects that can be unloaded follow it.
        let mut objects = unsafe { self.objects() };
        objects.find(|linked| linked.object.name() == Some(GLIBC)).map(|linked| linked.object)
    }

    /// The file that the kernel has executed, and the address of its dynamic section.
    fn executed(self) -> Option<(Object, usize)> {
        if self.0.headers == 0 {
            return None;
        }
        // SAFETY:
        // - the kernel gives the place and the number of the executable's program headers, and they stay there.
        let headers = unsafe { core::slice::from_raw_parts(self.0.headers as *const Header, self.0.count) };
        let in_file = match headers.iter().find(|header| header.kind == PT_PHDR) {
            Some(own) => own.address,
            // glibc's dynamic linker has no such entry: its headers follow the file's, with which its first segment begins.
            None => headers.iter().find(|header| header.kind == PT_LOAD && header.offset == 0)?.address + FILE_HEADER,
        };
        // SAFETY:
        // - the kernel has loaded it at the address in its headers.
        unsafe { object_of(headers, self.0.headers.wrapping_sub(in_file as usize)) }
    }

    /// The published list: the executable's dynamic section leads to it, or its name in the dynamic linker.
    fn debug(self) -> Option<&'static Debug> {
        let by_executable = || {
            let (_, dynamic) = self.executed()?;
            // SAFETY:
            // - the dynamic section of the executed program.
            unsafe { crate::loaded_objects::tables::entry(dynamic, DT_DEBUG) }.filter(|&at| at != 0)
        };
        let at = match by_executable() {
            Some(at) => at as usize,
            None => self.linker()?.symbol(LIST)?.address,
        };
        // SAFETY:
        // - the dynamic linker has stored the list's address there, or defines the list under this name; its address is
        //   fixed. A version of 0 means that it is not filled yet.
        unsafe { (at as *const Debug).as_ref() }.filter(|debug| debug.version > 0)
    }
}

/// # Safety
/// These are the program headers of an object that is loaded at `bias`.
unsafe fn object_of(headers: &[Header], bias: usize) -> Option<(Object, usize)> {
    let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
    let at = bias.wrapping_add(dynamic.address as usize);
    // SAFETY:
    // - the caller's promise.
    Some((unsafe { Object::of(bias, at) }?, at))
}

const DT_DEBUG: u64 = 21;

/// glibc's name of the list in its dynamic linker, which has it there whatever the executable's dynamic section says.
const LIST: &CStr = c"_r_debug";

/// The name by which every object that needs glibc needs it.
const GLIBC: &[u8] = b"libc.so.6";

/// A function that every C library has.
const OF_C_LIBRARIES: &CStr = c"__libc_start_main";
