//! Whether the kernel may be writing to the heap by itself: reads of io_uring and AIO go on while no thread of the process
//! waits for them, some of them to pages rather than to addresses. Nothing tells from outside where they write to.

use crate::directory::for_each_number;
use crate::sys::{close, open, read};
use crate::text::Text;

/// How maps names the rings of io_uring and of AIO, and a descriptor's link the former.
const RING: &[u8] = b"[io_uring]";
const CONTEXT: &[u8] = b"/[aio]";

/// True where such a read may be under way, or where nothing can be known.
pub fn may_be_under_way() -> bool {
    // A ring that is mapped by the program itself (IORING_SETUP_NO_MMAP) shows as a descriptor only, and one whose
    // descriptor is closed as a mapping only.
    maps_show_rings().unwrap_or(true) || descriptors_show_rings().unwrap_or(true)
}

fn maps_show_rings() -> Option<bool> {
    let file = open(c"/proc/self/maps", 0)?;
    let mut found = false;
    let mut buffer = [0u8; 4096];
    // What may be the beginning of a name stays in front of the next piece.
    let keep = RING.len().max(CONTEXT.len()) - 1;
    let mut kept = 0;
    let whole = loop {
        match read(file, &mut buffer[kept..]) {
            Some(0) => break true,
            Some(length) => {
                let text = &buffer[..kept + length];
                found |= [RING, CONTEXT].iter().any(|name| text.windows(name.len()).any(|part| part == *name));
                let rest = text.len().saturating_sub(keep);
                kept = text.len() - rest;
                buffer.copy_within(rest..rest + kept, 0);
            }
            None => break false,
        }
    };
    close(file);
    whole.then_some(found)
}

fn descriptors_show_rings() -> Option<bool> {
    let mut found = false;
    for_each_number(c"/proc/self/fd", |descriptor| {
        let mut target = [0u8; 64];
        let path = Text::of(format_args!("/proc/self/fd/{descriptor}"));
        let Some(path) = path.as_path() else { return false };
        // SAFETY:
        // - the path ends with NUL, and the kernel writes at most as many bytes as the buffer has.
        let length = unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
        found |= usize::try_from(length).is_ok_and(|length| target[..length].ends_with(RING));
        true
    })?;
    Some(found)
}
