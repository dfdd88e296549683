//! Confinement of the commands that only read: they drop all other rights before they read foreign data.

use crate::say;
use confinement::{NotConfined, Reads, confine};

/// Confines this program for the rest of its life. Where the kernel does not support that the command still works, and
/// says which rights it keeps.
pub fn confine_to(reads: Reads) {
    if let Err(error) = confine(reads) {
        keeps_rights(&error);
    }
}

/// Says why rights were kept that reading does not take.
pub fn keeps_rights(error: &NotConfined) {
    say!("pagelift: note: this command could not give up rights that it does not need: {error}");
}
