//! `attach --heap`: collapses what a running program has allocated, in place, and reads back what came of it.

use address_space::{MappingName, format_bytes};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use heap::{CollapseError, collapse_once};
use kernel_calls::pages::base_page;
use lift_plan::MachineFacts;
use observation::ProcessFiles;
use serde::Serialize;

/// `--heap` of `attach`. Pages of the pool cannot be put below memory that others may be writing to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachHeapArg {
    /// The heap is left as it is.
    #[default]
    Off,
    /// Transparent huge pages, in place.
    Thp,
}

/// Anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Anonymous {
    resident: u64,
    huge: u64,
}

/// What collapsing gave.
#[derive(Clone, Debug, Serialize)]
pub struct HeapInPlace {
    before: Anonymous,
    after: Anonymous,
}

/// Collapses a process's anonymous memory where at least half of a huge page is in use.
///
/// # Errors
/// The kernel has no transparent huge pages or does not let us, or the process has ended.
pub fn collapse_in_place(pid: i32, machine: &MachineFacts) -> Result<HeapInPlace> {
    let huge = machine.thp.map(|thp| thp.size).context("heap: this kernel has no transparent huge pages")?;
    let before = anonymous(pid)?;
    match collapse_once(pid, huge, base_page()) {
        Ok(_) => Ok(HeapInPlace { before, after: anonymous(pid)? }),
        Err(CollapseError::Gone) => bail!("heap: the process has ended, or may not be looked at"),
        Err(CollapseError::Refused(error)) => {
            bail!("heap: collapsing is refused ({error}); needed: Linux 6.1 and CAP_SYS_NICE, which root has")
        }
    }
}

fn anonymous(pid: i32) -> Result<Anonymous> {
    let usages = ProcessFiles::of(pid).smaps().context("heap: reading its memory")?;
    let is_anonymous = |name: &MappingName| !matches!(name, MappingName::Special(_) | MappingName::Stack);
    let all = usages.iter().filter(|usage| usage.mapping.inode == 0 && is_anonymous(&usage.mapping.name));
    Ok(all.fold(Anonymous::default(), |sum, usage| Anonymous {
        resident: sum.resident + usage.resident,
        huge: sum.huge + usage.anonymous_huge,
    }))
}

impl HeapInPlace {
    /// For people.
    pub fn text(&self) -> String {
        format!(
            "heap: {} of {} anonymous memory on huge pages, {} before",
            format_bytes(self.after.huge),
            format_bytes(self.after.resident),
            format_bytes(self.before.huge)
        )
    }
}
