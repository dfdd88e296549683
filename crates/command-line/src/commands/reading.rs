//! Commands that only read give up the right to do more before they read what others wrote.

use confinement::{Reads, confine};

/// Confines this program for the rest of its life. Where the kernel does not do that the command works all the same, and
/// says what it still could do.
pub fn confine_to(reads: Reads) {
    if let Err(error) = confine(reads) {
        eprintln!("pagelift: note: this command could not give up rights that it does not need: {error}");
    }
}
