//! Scattered code: 5,120 functions, each on a separate page, entered at random.
//!
//! The gain of a lift of a default-linked binary, relative to the possible gain. The measure is the same program
//! relinked with segments that begin on huge pages, in memory and in the file. It can get onto huge pages in three
//! ways, and the table has them all: `pagelift run` of the relinked program (which leaves no edges of its text);
//! without Pagelift, a start from a tmpfs mounted `huge=always`; and, if the file system keeps files in folios as large
//! as a huge page (ext4 since about 6.16), no action: the kernel maps aligned text by huge entries by itself (`file` in
//! the table), as long as the file has come into the page cache in such folios.

use crate::bench::{Arm, Bench, BurstPlan, Course};
use crate::build::Linking;
use crate::table::{print_bursts, ratio_line};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::is_root;

/// Room in the pool for two lifted workers, with all their liftable memory.
const POOL_BYTES: u64 = 128 << 20;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let plain = bench.build_scattered("scattered", Linking::Default)?;
    let relinked = bench.build_scattered("scattered-relinked", Linking::HugeSegments)?;
    let mut arms = vec![
        Arm::new("plain", [&plain]),
        Arm::new("plain once more", [&plain]),
        bench.lifted("lifted, thp", &["-q", "--pages", "thp"], &[&plain]),
        Arm::new("relinked, not lifted", [&relinked]),
        bench.lifted("relinked and lifted, thp", &["-q", "--pages", "thp"], &[&relinked]),
    ];
    let mut pairs = vec![("lifted, thp", "relinked and lifted, thp")];
    let pool = bench.reserve_pool(POOL_BYTES);
    match &pool {
        Ok(_) => {
            let options = ["-q", "--pages", "hugetlb"];
            arms.push(bench.lifted("lifted, hugetlb", &options, &[&plain]));
            arms.push(bench.lifted("relinked and lifted, hugetlb", &options, &[&relinked]));
            pairs.push(("lifted, hugetlb", "relinked and lifted, hugetlb"));
        }
        Err(reason) => bench.report.skip("scattered-code: hugetlb", reason.clone()),
    }
    let huge_tmpfs = HugeTmpfs::with(bench.folder.path(), &relinked);
    match &huge_tmpfs {
        Ok(mounted) => {
            arms.push(Arm::new("relinked, on tmpfs huge=always", [&mounted.program]));
            pairs.push(("lifted, thp", "relinked, on tmpfs huge=always"));
        }
        Err(reason) => bench.report.skip("scattered-code: tmpfs", format!("{reason:#}")),
    }
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let number = |name: &str| names.iter().position(|n| n == name);
    let plan = BurstPlan::new("scattered-code", arms, "code", 5, Course::SideBySide);
    let series = bench.run_bursts(plan)?;
    print_bursts(series, Some(1));
    for (lifted, measure) in pairs {
        if let (Some(lifted), Some(measure)) = (number(lifted), number(measure)) {
            println!("{}", ratio_line(series, 0, measure, lifted));
        }
    }
    println!("aim: at most 1.02 (98 % of the relinked program's speed)");
    Ok(())
}

/// A tmpfs whose files are on huge pages, with a copy of a program in it; unmounted when dropped.
pub(crate) struct HugeTmpfs {
    place: PathBuf,
    pub(crate) program: PathBuf,
}

impl HugeTmpfs {
    pub(crate) fn with(folder: &Path, program: &Path) -> Result<Self> {
        anyhow::ensure!(is_root(), "a tmpfs is mounted by root only");
        let place = folder.join("huge-tmpfs");
        std::fs::create_dir(&place)?;
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "huge=always,size=256m", "tmpfs"]).arg(&place).output()?;
        anyhow::ensure!(mount.status.success(), "mount: {}", String::from_utf8_lossy(&mount.stderr).trim());
        let mounted = Self { program: place.join("program"), place };
        std::fs::copy(program, &mounted.program).context("copying to the tmpfs")?;
        Ok(mounted)
    }
}

impl Drop for HugeTmpfs {
    fn drop(&mut self) {
        crate::bench::unmount(&self.place);
    }
}
