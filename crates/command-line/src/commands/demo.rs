use clap::Args;
#[derive(Args, Clone)]
pub struct DemoArgs {}
pub fn run(_args: &DemoArgs) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
