//! The environment with which the program was started, as its C library is about to take it over.

use crate::linking;
use core::ffi::CStr;
use options::VARIABLE;

/// File name of this library, before a version.
const LIBRARY: &[u8] = b"libpagelift.so";

/// Removes this library from LD_PRELOAD, and its variable: children of the program start as they would without it.
///
/// # Safety
/// No other code reads the environment during the call, or has kept addresses in it.
pub unsafe fn remove() {
    let Some(first) = linking::initial_environment() else { return };
    // SAFETY:
    // - the list on the stack ends with a null pointer; its strings, which end with NUL, are on the stack too and may be written
    //   to; by the caller's promise nobody else uses them.
    unsafe {
        let (mut from, mut to) = (first, first);
        while !(*from).is_null() {
            let variable = *from;
            from = from.add(1);
            let length = CStr::from_ptr(variable).count_bytes();
            let bytes = core::slice::from_raw_parts_mut(variable.cast::<u8>(), length + 1);
            if !is_own(&bytes[..length]) && !is_empty_without(bytes, is_this_library) {
                *to = variable;
                to = to.add(1);
            }
        }
        *to = core::ptr::null_mut();
    }
}

fn is_own(variable: &[u8]) -> bool {
    variable.strip_prefix(VARIABLE.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
}

/// True for the file name of this library, with a version or without.
pub fn is_this_library(file: &[u8]) -> bool {
    file.strip_prefix(LIBRARY).is_some_and(|version| version.first().is_none_or(|&byte| byte == b'.'))
}

/// True for the file name of the preloaded heap.
#[cfg(feature = "preload")]
pub fn is_heap(file: &[u8]) -> bool {
    file == heap_abi::LIBRARY.as_bytes()
}

/// Removes libraries from a variable LD_PRELOAD, in place, by the names of their files; true if nothing is left in it. `variable`
/// ends with NUL.
pub fn is_empty_without(variable: &mut [u8], leaves: impl Fn(&[u8]) -> bool) -> bool {
    const NAME: &[u8] = b"LD_PRELOAD=";
    let separates = |byte: u8| byte == b':' || byte == b' ';
    if !variable.starts_with(NAME) {
        return false;
    }
    let end = variable.len() - 1;
    let (mut read, mut written) = (NAME.len(), NAME.len());
    while read < end {
        let stop = (read..end).find(|&at| separates(variable[at])).unwrap_or(end);
        let after = (stop + 1).min(end);
        let file = variable[read..stop].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if !leaves(file) {
            variable.copy_within(read..after, written);
            written += after - read;
        }
        read = after;
    }
    if written > NAME.len() && separates(variable[written - 1]) {
        written -= 1;
    }
    variable[written..].fill(0);
    written == NAME.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn without_us(text: &str) -> (bool, Vec<u8>) {
        let mut bytes = [text.as_bytes(), b"\0"].concat();
        let is_empty = is_empty_without(&mut bytes, is_this_library);
        (is_empty, bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec())
    }

    #[test]
    fn what_the_user_preloads_stays() {
        for (text, is_empty, left) in [
            ("LD_PRELOAD=/usr/lib/libpagelift.so.0", true, "LD_PRELOAD="),
            ("LD_PRELOAD=/my/x.so:/usr/lib/libpagelift.so.0", false, "LD_PRELOAD=/my/x.so"),
            ("LD_PRELOAD=libpagelift.so /my/x.so", false, "LD_PRELOAD=/my/x.so"),
            ("LD_PRELOAD=a.so:libpagelift.so.0.1.0:b.so", false, "LD_PRELOAD=a.so:b.so"),
            ("LD_PRELOAD=libpagelift_heap.so:libpagelift.son", false, "LD_PRELOAD=libpagelift_heap.so:libpagelift.son"),
            ("MY_LD_PRELOAD=libpagelift.so", false, "MY_LD_PRELOAD=libpagelift.so"),
        ] {
            assert_eq!(without_us(text), (is_empty, left.as_bytes().to_vec()), "{text}");
        }
        assert!(is_own(b"PAGELIFT=pid=1") && !is_own(b"PAGELIFT_HEAP=v4") && !is_own(b"PAGELIFT"));
    }
}
