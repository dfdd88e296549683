//! Finds functions that this object's own definitions interpose, in the objects that follow it.

use crate::loaded;
use core::ffi::CStr;
use linux_raw::loaded_objects::Object;

const PT_DYNAMIC: u32 = 2;

/// The address of a function in the first object after this one that defines it.
pub fn next_after_this_object(name: &CStr) -> Option<usize> {
    let (mut passed, mut found) = (false, None);
    loaded::each(|listed| {
        if !passed {
            passed = listed.holds(next_after_this_object as *const () as usize);
        } else if let Some(dynamic) = listed.headers().iter().find(|header| header.kind == PT_DYNAMIC) {
            let dynamic = listed.bias.wrapping_add(dynamic.address as usize);
            // SAFETY:
            // - the dynamic linker lists the object as loaded, and unloads nothing before this function returns.
            found = unsafe { Object::of(listed.bias, dynamic) }.and_then(|object| object.function(name));
        }
        found.is_none()
    });
    found
}
