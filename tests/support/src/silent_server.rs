//! A file system that a program of another user serves, until it stops answering.

use crate::{Context, Program, Session};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user who serves it.
const NOBODY: u32 = 65534;

/// A mounted file system of one file, `file`, and the program that serves it. It never answers a request to write.
pub struct SilentServer {
    server: Option<Session>,
    folder: PathBuf,
}

impl SilentServer {
    /// Mounts it; the file has the contents of this one.
    ///
    /// # Errors
    /// This is not root, or there is no `/dev/fuse`.
    pub fn mount(t: &Context, contents: &Path) -> Result<Self> {
        let mut folders = (0..).map(|number| t.folder().join(format!("served-{number}")));
        let folder = folders.find(|folder| !folder.exists()).context("no name is left")?;
        fs::create_dir(&folder)?;
        Self::mount_over(t, folder, contents)
    }

    /// Mounts it over a folder.
    ///
    /// # Errors
    /// As for [`SilentServer::mount`].
    pub fn mount_over(t: &Context, folder: PathBuf, contents: &Path) -> Result<Self> {
        let mut command = Program::named("cli/serves_a_file_until_told.c")?.command()?;
        command.arg(&folder).arg(contents).arg(NOBODY.to_string());
        let server = t.session(command)?;
        server.wait_for_line("ready")?;
        Ok(Self { server: Some(server), folder })
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops answering requests.
    ///
    /// # Errors
    /// It has ended.
    pub fn be_silent(&mut self) -> Result<()> {
        let server = self.server.as_mut().context("it has ended")?;
        server.send("be silent\n")?;
        server.wait_for_line("silent")
    }

    /// Ends it. Waiting callers get an error.
    pub fn end(&mut self) {
        let Some(server) = self.server.take() else { return };
        drop(server);
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

impl Drop for SilentServer {
    fn drop(&mut self) {
        self.end();
    }
}
