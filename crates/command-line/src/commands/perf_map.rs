use clap::Args;
#[derive(Args, Clone)]
pub struct PerfMapArgs {}
pub fn run(_args: &PerfMapArgs) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
