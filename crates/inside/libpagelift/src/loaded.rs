//! The dynamic linker's list of the loaded objects, from the C library's `dl_iterate_phdr`. An object is added when it
//! is completely mapped.

use crate::linking;
use address_space::{Address, AddressRange, RangeSet};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};

/// The first fields of `struct dl_phdr_info` (dl_iterate_phdr(3)).
#[repr(C)]
pub struct Listed {
    /// Added to the addresses in the file.
    pub bias: usize,
    name: *const core::ffi::c_char,
    headers: *const ProgramHeader,
    count: u16,
    loads: u64,
}

/// `Elf64_Phdr` (elf(5)).
#[repr(C)]
pub struct ProgramHeader {
    /// `PT_LOAD` and so on.
    pub kind: u32,
    flags: u32,
    offset: u64,
    /// Address in the file.
    pub address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

const PT_LOAD: u32 = 1;

impl Listed {
    /// The object's program headers.
    pub fn headers(&self) -> &[ProgramHeader] {
        // SAFETY:
        // - the object's program headers are mapped as long as it is loaded, which it is while this reference lives.
        unsafe { core::slice::from_raw_parts(self.headers, usize::from(self.count)) }
    }

    /// The path that the object was loaded by; empty for the program itself.
    #[cfg(feature = "preload")]
    pub fn path(&self) -> &[u8] {
        if self.name.is_null() {
            return &[];
        }
        // SAFETY:
        // - the dynamic linker gives a string that ends with NUL and lives as long as the object is loaded, which it is
        //   while this reference lives.
        unsafe { core::ffi::CStr::from_ptr(self.name) }.to_bytes()
    }

    fn segments(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let loaded = self.headers().iter().filter(|header| header.kind == PT_LOAD);
        loaded.map(|header| {
            let start = self.bias.wrapping_add(header.address as usize) as u64;
            AddressRange::sized(Address(start), header.memory_size)
        })
    }

    fn extent(&self) -> Option<AddressRange> {
        self.segments()
            .reduce(|one, other| AddressRange::new(one.start().min(other.start()), one.end().max(other.end())))
    }

    /// True if one of its segments contains the address.
    #[cfg(feature = "preload")]
    pub fn holds(&self, address: usize) -> bool {
        self.segments().any(|segment| segment.contains(Address(address as u64)))
    }
}

/// Calls `each` for the listed objects until it returns false. Returns false if there is no such list.
pub fn each(mut each: impl FnMut(&Listed) -> bool) -> bool {
    let mut each: &mut dyn FnMut(&Listed) -> bool = &mut each;
    // SAFETY:
    // - the callback takes a pointer to such a function, which lives longer than this call and is used by nobody else.
    unsafe { linking::for_each_object(pass_on, core::ptr::from_mut(&mut each).cast()) }
}

/// # Safety
/// `listed` points to the dynamic linker's description of an object, and `each` to a `&mut dyn FnMut(&Listed) -> bool`
/// that nobody else uses until this returns.
unsafe extern "C" fn pass_on(listed: *const c_void, _size: usize, each: *mut c_void) -> c_int {
    // SAFETY:
    // - the caller's promise.
    let (listed, each) = unsafe { (&*listed.cast::<Listed>(), &mut *each.cast::<&mut dyn FnMut(&Listed) -> bool>()) };
    c_int::from(!each(listed))
}

/// The addresses of all segments of listed objects; `None` if there is no such list.
pub fn all_segments() -> Option<RangeSet> {
    let mut all = RangeSet::new();
    each(|listed| {
        listed.segments().for_each(|segment| all.insert(segment));
        true
    })
    .then_some(all)
}

/// The addresses from the first to the last segment of each listed object. `None` in a program without a dynamic linker,
/// which unloads nothing; empty if the list is not known.
pub fn extents() -> Option<Vec<AddressRange>> {
    let mut all = Vec::new();
    let is_known = each(|listed| {
        all.extend(listed.extent());
        true
    });
    (is_known || linking::in_dynamic_linker().is_some()).then_some(all)
}

/// The number of objects that were ever loaded.
#[cfg(feature = "preload")]
pub fn loads() -> u64 {
    let mut loads = 0;
    each(|listed| {
        loads = listed.loads;
        false
    });
    loads
}

/// True if one of the newest objects has a segment of at least this many bytes.
#[cfg(feature = "preload")]
pub fn newest_hold(newest: u64, bytes: u64) -> bool {
    let mut count = 0u64;
    each(|_| {
        count += 1;
        true
    });
    let (mut index, mut found) = (0, false);
    each(|listed| {
        index += 1;
        found |= index + newest > count && listed.segments().any(|segment| segment.len() >= bytes);
        !found
    });
    found
}

/// True if this object was loaded at the program's start, by its name in the program or by LD_PRELOAD, and not by a later
/// dlopen. Objects are listed in the order of loading, breadth first: the program's own dependencies precede the dynamic
/// linker, which only the C library depends on, and objects that are loaded later follow it.
#[cfg(feature = "preload")]
pub fn was_loaded_at_start() -> bool {
    let mut found = None;
    each(|listed| {
        if listed.holds(was_loaded_at_start as *const () as usize) {
            found = Some(true);
        } else if linking::in_dynamic_linker().is_some_and(|linker| listed.holds(linker)) {
            found = Some(false);
        }
        found.is_none()
    });
    found == Some(true)
}
