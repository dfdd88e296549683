//! A uprobe for the duration of a test, in a separate instance of tracefs.

use crate::Context;
use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A uprobe that counts; it and its mount are removed with this value.
pub struct Uprobe {
    folder: PathBuf,
    event: String,
}

impl Uprobe {
    /// Sets a probe at an offset in a file, in bytes.
    ///
    /// # Errors
    /// There is no tracefs, or the kernel refuses the offset.
    pub fn new(t: &Context, file: &Path, offset: u64) -> Result<Self> {
        Self::at(t, file, &format!("{offset:#x}"))
    }

    /// Like [`Uprobe::new`], with the offset of the semaphore that the kernel counts up as long as the probe is set.
    ///
    /// # Errors
    /// As for [`Uprobe::new`].
    pub fn with_semaphore(t: &Context, file: &Path, offset: u64, semaphore: u64) -> Result<Self> {
        Self::at(t, file, &format!("{offset:#x}({semaphore:#x})"))
    }

    fn at(t: &Context, file: &Path, place: &str) -> Result<Self> {
        let folder = t.folder().join("tracing");
        fs::create_dir(&folder)?;
        mount(Some("tracefs"), &folder, Some("tracefs"), MsFlags::empty(), None::<&str>).context("no tracefs")?;
        // Tests of one process run side by side.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let set = Self { folder, event: format!("pagelift_{}_{number}", std::process::id()) };
        let probe = format!("p:{}/spin {}:{place}\n", set.event, file.display());
        set.write("uprobe_events", &probe).with_context(|| probe.clone())?;
        fs::create_dir(set.folder.join(set.instance()))?;
        set.enable("1")?;
        Ok(set)
    }

    /// Switches the probe off and returns the number of hits.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn hits(&self) -> Result<usize> {
        let trace = fs::read_to_string(self.folder.join(self.instance()).join("trace"))?;
        self.enable("0")?;
        Ok(trace.lines().filter(|line| line.contains("spin: (")).count())
    }

    fn instance(&self) -> String {
        format!("instances/{}", self.event)
    }

    /// Switches the probe on or off.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn switch(&self, on: bool) -> Result<()> {
        self.enable(if on { "1" } else { "0" })
    }

    fn enable(&self, value: &str) -> Result<()> {
        self.write(&format!("{}/events/{}/enable", self.instance(), self.event), value)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let mut file = fs::File::options().append(true).open(self.folder.join(file))?;
        Ok(file.write_all(text.as_bytes())?)
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        self.enable("0").ok();
        self.write("uprobe_events", &format!("-:{}/spin\n", self.event)).ok();
        fs::remove_dir(self.folder.join(self.instance())).ok();
        umount2(&self.folder, MntFlags::MNT_DETACH).ok();
    }
}
