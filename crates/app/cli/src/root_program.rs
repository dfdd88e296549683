//! This program as root's units execute it.

use anyhow::{Context, bail};
use linux::owner::{Lasting, foreign_part};
use std::path::Path;

/// Refuses a program that users other than root can change: root's units would execute their code.
///
/// # Errors
/// The part of the path that was found, and the fix.
pub fn check(program: &Path) -> anyhow::Result<()> {
    let found =
        foreign_part(program, Lasting::EachBoot).with_context(|| format!("looking at {}", program.display()))?;
    let Some(part) = found else { return Ok(()) };
    bail!(
        "{} would be executed by root, but {part}; needed: a file and folders that root alone can change; fix: install \
         pagelift to /usr/local (`make install PREFIX=/usr/local` as root, or a package), and run it from there",
        program.display()
    );
}
