//! Identifies the CPU by `/proc/cpuinfo`.

use serde::Serialize;
use std::fmt;

/// The facts that select the tables of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuIdentity {
    /// `vendor_id` on x86-64, `CPU implementer` on AArch64.
    pub vendor: String,
    /// `cpu family`, x86-64 only.
    pub family: u64,
    /// `model`, x86-64 only.
    pub model: u64,
    /// `stepping`, x86-64 only.
    pub stepping: u64,
    /// `CPU part`, AArch64 only.
    pub part: u64,
}

impl CpuIdentity {
    /// Reads the identity of the first CPU that the kernel lists.
    pub fn read() -> Self {
        linux::text::text_of("/proc/cpuinfo").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Reads the first CPU of `/proc/cpuinfo`. Missing fields stay empty.
    pub fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let fields = text.lines().filter_map(|line| line.split_once(':'));
            fields.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let number = |name: &str| field(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let part = field("CPU part").and_then(|part| u64::from_str_radix(part.trim_start_matches("0x"), 16).ok());
        Self {
            vendor: field("vendor_id").or_else(|| field("CPU implementer")).unwrap_or_default().to_owned(),
            family: number("cpu family"),
            model: number("model"),
            stepping: number("stepping"),
            part: part.unwrap_or(0),
        }
    }
}

impl fmt::Display for CpuIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vendor, family, model, stepping, part } = self;
        match part {
            0 => write!(f, "{vendor} family {family}, model {model:#x}, stepping {stepping}"),
            part => write!(f, "implementer {vendor}, part {part:#x}"),
        }
    }
}
