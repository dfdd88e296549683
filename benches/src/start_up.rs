//! The cost of `pagelift run` for a program that cannot gain.

use crate::bench::{Arm, Bench, timed_arm};
use crate::table::print_times;
use anyhow::{Context, Result};
use std::path::PathBuf;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let program = ["/bin/true", "/usr/bin/true"].map(PathBuf::from).into_iter().find(|path| path.exists());
    let program = program.context("there is neither /bin/true nor /usr/bin/true")?;
    let arms = [
        Arm::new("plain exec", [&program]),
        Arm::new("plain exec once more", [&program]),
        Arm::new("env", [PathBuf::from("/usr/bin/env"), program.clone()]),
        bench.lifted("pagelift run", &[], &[&program]),
        bench.lifted("pagelift run -q", &["-q"], &[&program]),
    ];
    let series = bench.run_timed("start-up", arms.into_iter().map(timed_arm).collect())?;
    print_times(series);
    println!("aim: `pagelift run` under 2 ms over plain exec");
    Ok(())
}
