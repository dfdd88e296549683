//! Detects whether the kernel may be writing to a process's memory. Reads of io_uring and AIO continue while no thread
//! of the process waits for them, and some write to pages, not to addresses. Their destinations are not visible to
//! other processes.

/// Name of io_uring's rings in maps, and in a descriptor's link.
const RING: &[u8] = b"[io_uring]";
/// Name of AIO contexts in maps (`fs/aio.c`).
const CONTEXT: &[u8] = b"/[aio]";
/// Longest beginning of a name that the end of one piece of text can hold.
const KEPT: usize = if RING.len() > CONTEXT.len() { RING.len() } else { CONTEXT.len() } - 1;

/// Reads what a process shows in `/proc`, without keeping it.
pub trait ProcessFiles {
    /// Passes on the text of `/proc/PID/maps`, in pieces of any length; `None` where it cannot be read to its end.
    fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()>;

    /// Passes on the target of each link in `/proc/PID/fd`; `None` if some cannot be read.
    fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()>;
}

/// True if such a read may be in progress, or if that is unknown.
pub fn kernel_may_write(process: &mut impl ProcessFiles) -> bool {
    // A ring that is mapped by the program itself (IORING_SETUP_NO_MMAP) shows as a descriptor only, and one whose
    // descriptor is closed as a mapping only.
    maps_show(process).unwrap_or(true) || descriptors_show(process).unwrap_or(true)
}

fn maps_show(process: &mut impl ProcessFiles) -> Option<bool> {
    let mut search = Search { found: false, kept: [0; KEPT], length: 0 };
    process.maps(&mut |piece| search.take(piece))?;
    Some(search.found)
}

fn descriptors_show(process: &mut impl ProcessFiles) -> Option<bool> {
    let mut found = false;
    process.descriptors(&mut |target| found |= target.ends_with(RING))?;
    Some(found)
}

/// Looks for the names in text that comes in pieces.
struct Search {
    found: bool,
    /// The end of the text so far.
    kept: [u8; KEPT],
    length: usize,
}

impl Search {
    fn take(&mut self, piece: &[u8]) {
        // A text that begins in the earlier pieces and ends in this piece.
        let mut seam = [0; 2 * KEPT];
        let begin = piece.len().min(KEPT);
        seam[..self.length].copy_from_slice(&self.kept[..self.length]);
        seam[self.length..self.length + begin].copy_from_slice(&piece[..begin]);
        let seam = &seam[..self.length + begin];
        self.found |= [RING, CONTEXT].iter().any(|name| holds(seam, name) || holds(piece, name));
        let end = if piece.len() >= KEPT { piece } else { seam };
        let end = &end[end.len().saturating_sub(KEPT)..];
        self.kept[..end.len()].copy_from_slice(end);
        self.length = end.len();
    }
}

fn holds(text: &[u8], name: &[u8]) -> bool {
    text.windows(name.len()).any(|part| part == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files<'a> {
        maps: Option<&'a str>,
        descriptors: Option<&'a [&'a str]>,
        piece: usize,
    }

    impl ProcessFiles for Files<'_> {
        fn maps(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
            self.maps?.as_bytes().chunks(self.piece).for_each(take);
            Some(())
        }

        fn descriptors(&mut self, take: &mut dyn FnMut(&[u8])) -> Option<()> {
            self.descriptors?.iter().for_each(|target| take(target.as_bytes()));
            Some(())
        }
    }

    const PLAIN: &str = "55d0-55d1 r-xp 00000000 08:01 1 /usr/bin/[io_uring\n7f00-7f01 rw-p 00000000 00:00 0 [stack]\n";
    const LINKS: &[&str] = &["/dev/null", "anon_inode:[eventpoll]", "socket:[4711]"];

    #[test]
    fn rings_and_contexts_are_found_in_pieces_of_any_length() {
        let ring = "7f10-7f11 rw-s 00000000 00:0f 1 anon_inode:[io_uring]\n";
        let context = "7f10-7f11 rw-s 00000000 00:0f 1 /[aio] (deleted)\n";
        for piece in 1..120 {
            let seen = |text: &str| kernel_may_write(&mut Files { maps: Some(text), descriptors: Some(LINKS), piece });
            assert!(!seen(PLAIN), "{piece}");
            for found in [ring, context] {
                assert!(seen(&(found.to_owned() + PLAIN)) && seen(&(PLAIN.to_owned() + found)), "{piece}");
            }
        }
    }

    #[test]
    fn a_ring_that_is_not_mapped_is_found_by_its_descriptor() {
        let descriptors = Some(&["/dev/null", "anon_inode:[io_uring]", "pipe:[1]"][..]);
        assert!(kernel_may_write(&mut Files { maps: Some(PLAIN), descriptors, piece: 64 }));
    }

    #[test]
    fn what_cannot_be_read_may_hold_anything() {
        assert!(kernel_may_write(&mut Files { maps: None, descriptors: Some(LINKS), piece: 64 }));
        assert!(kernel_may_write(&mut Files { maps: Some(PLAIN), descriptors: None, piece: 64 }));
    }
}
