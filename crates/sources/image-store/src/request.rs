//! Requests for images, which determine of what files they are made and how large.

/// The origin of a request for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A user: images of any file, as large as the store has room for.
    Explicit,
    /// No user; a process could use it. Such images are made of root's own files only: other users could otherwise take
    /// memory with files that they write or exchange.
    Automatic {
        /// Most memory that the image may take, in bytes.
        most_bytes: u64,
    },
}

impl Request {
    pub(crate) fn is_automatic(self) -> bool {
        matches!(self, Self::Automatic { .. })
    }

    pub(crate) fn most_bytes(self) -> u64 {
        match self {
            Self::Explicit => u64::MAX,
            Self::Automatic { most_bytes } => most_bytes,
        }
    }
}
