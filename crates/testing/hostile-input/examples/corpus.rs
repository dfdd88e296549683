//! Writes the samples of every target to FOLDER/TARGET/NUMBER, for fuzzers to begin with.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;

fn main() -> Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).context("needed: a folder")?);
    for target in hostile_input::TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        for (number, sample) in (target.samples)().iter().enumerate() {
            let path = folder.join(number.to_string());
            fs::write(&path, sample).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}
