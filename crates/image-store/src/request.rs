//! Why an image is made, which decides of what files and how large.

/// Who asks for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A person: of any file, as large as the store has room for.
    Explicit,
    /// Nobody; a process could use it. Such images are made of root's own files only: what other users may write or
    /// exchange would take memory at their choice.
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
