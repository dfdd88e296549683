//! The two PMUs of IBS as sysfs shows them (`/sys/bus/event_source/devices`).

use perf_event::events::Raw;
use std::path::Path;

/// One PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pmu {
    /// The kernel's number for it.
    pub number: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// `perf_event_attr.config2` that leaves the kernel out (from Linux 6.14 on); without it IBS samples all or nothing.
    pub without_kernel: Option<u64>,
}

/// A field of `perf_event_attr`, as a file of `format` names it: `config:19` for example.
fn field(text: &str) -> Option<(&str, u32)> {
    let (word, bits) = text.trim().split_once(':')?;
    let first = bits.split('-').next()?.parse().ok()?;
    (first < u64::BITS).then_some((word, first))
}

impl Pmu {
    /// Finds the PMU of this name below a folder of devices; `None` if there is none. `switch` is a bit in its `format`
    /// that is set if the PMU has it.
    pub fn find(devices: &Path, name: &str, switch: &str) -> Option<Self> {
        let read = |file: &str| linux::text::text_of(devices.join(name).join(file)).ok();
        let number = read("type")?.trim().parse().ok()?;
        let bit = |format: &str, of: &str| {
            let text = read(&format!("format/{format}"))?;
            field(&text).filter(|(word, _)| *word == of).map(|(_, bit)| 1_u64 << bit)
        };
        Some(Self { number, config: bit(switch, "config").unwrap_or(0), without_kernel: bit("swfilt", "config2") })
    }

    /// The event's `config` words, with the kernel's work or without it; `None` if the PMU cannot do that.
    pub fn event(&self, with_kernel: bool) -> Option<Raw> {
        let config2 = if with_kernel { 0 } else { self.without_kernel? };
        Some(Raw::new(self.config).config2(config2))
    }
}

#[cfg(test)]
mod tests;
