//! The meaning of a record of `tlb:tlb_flush`, by the reason's text: the numbers differ between kernel versions.

use crate::format::{Field, Format};

/// The part of a shootdown that a record shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Interrupts are sent to other CPUs; the current thread is the culprit. "remote IPI send", since Linux 4.1.
    Sent,
    /// A CPU flushes since another one requested it; the current thread was interrupted. "remote shootdown".
    Received,
    /// Flushes of a CPU's own, and whatever a later kernel adds: nobody else is interrupted.
    Other,
}

impl Reason {
    fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        match text.as_str() {
            "remote ipi send" | "remote send ipi" => Self::Sent,
            "remote shootdown" => Self::Received,
            _ => Self::Other,
        }
    }
}

/// Reads records of `tlb:tlb_flush` on the running kernel.
#[derive(Clone, Debug)]
pub struct FlushFormat {
    /// Its number for perf_event_open(2).
    pub id: u64,
    /// The value of `reason` in a record of a sender.
    pub sent: i64,
    /// The value of `reason` in a record of a receiver.
    pub received: i64,
    pages: Field,
}

impl FlushFormat {
    /// `None` if the format lacks the fields or names neither sending nor receiving.
    pub fn of(format: &Format) -> Option<Self> {
        let names = format.names_of("reason");
        let value = |reason| names.iter().find(|(_, text)| Reason::of(text) == reason).map(|(value, _)| *value);
        format.field("reason")?;
        Some(Self {
            id: format.id,
            sent: value(Reason::Sent)?,
            received: value(Reason::Received)?,
            pages: format.field("pages")?.clone(),
        })
    }

    /// The memory that a record flushes.
    pub fn flushed(&self, record: &[u8]) -> Option<Flushed> {
        // TLB_FLUSH_ALL is -1UL; before Linux 4.15 a whole flush is recorded as 0 pages or as -1.
        self.pages.number(record).map(|pages| match pages {
            ..=0 => Flushed::Everything,
            _ => Flushed::Pages(pages as u64),
        })
    }
}

/// The memory that one flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// That many base pages, one by one.
    Pages(u64),
    /// All entries of the address space.
    Everything,
}
