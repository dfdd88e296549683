//! Confinement of the commands that only read: they drop all other rights before they read foreign data.

use crate::exit::OWN_FAILURE;
use crate::say;
use confinement::{NotConfined, Reads, confine};
use linux::watch;

/// Confines this program for the rest of its life. If the kernel does not support that, the command still works, and
/// names the rights that it keeps. From then on no read of a process takes longer than [`watch::LIMIT`].
pub fn confine_to(reads: Reads) {
    if let Err(error) = confine(reads) {
        keeps_rights(&error);
    }
    limit_reads();
}

/// Ends this program if one read of a process takes longer than [`watch::LIMIT`].
pub fn limit_reads() {
    watch::start(OWN_FAILURE.into());
}

/// Says why rights were kept that reading does not take.
pub fn keeps_rights(error: &NotConfined) {
    say!("pagelift: note: this command could not give up rights that it does not need: {error}");
}
