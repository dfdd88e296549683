//! Memory and files that calls take as arguments.

use address_space::{Address, AddressRange};

/// Memory of the process for arguments that a call reads from memory.
pub(super) enum Scratch {
    /// Below the stack, with the previous contents.
    BelowStack(Address, Vec<u8>),
    /// A mapping made for this purpose.
    Mapped(AddressRange),
}

impl Scratch {
    pub fn start(&self) -> Address {
        match self {
            Self::BelowStack(at, _) => *at,
            Self::Mapped(range) => range.start(),
        }
    }
}

/// A file that the process is made to open.
pub(super) struct Opening {
    pub path: String,
    /// `None` while the call is being made.
    pub descriptor: Option<u64>,
}

/// A file that is open in the process.
pub(crate) struct OpenFile {
    pub path: String,
    pub descriptor: u64,
}

/// Returns the arguments of `openat` for reading a file whose path is at this address. The flags keep the call from
/// waiting for a pipe and from acquiring a terminal.
pub(crate) fn arguments_to_open(path: Address) -> [u64; 6] {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
    [libc::AT_FDCWD as u64, path.0, flags, 0, 0, 0]
}
