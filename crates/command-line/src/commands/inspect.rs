//! `pagelift inspect`.

use crate::cli::InspectArgs;
pub fn run(_args: &InspectArgs) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
