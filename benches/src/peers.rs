//! Other tools on the same work as Pagelift and beside it.
//!
//! For code and data the other tool is libhugetlbfs: it remaps segments of programs that were relinked for it, and only
//! if there are at most three segments (`-z noseparate-code`) and the program is no PIE. For a heap there are glibc's
//! tunables and other allocators. The tables give the kernel's counts of memory, not the requested memory.

use crate::bench::{Arm, Bench, BurstPlan, Course};
use crate::build::Linking;
use crate::table::{print_bursts, ratio_line};
use address_space::format_bytes;
use anyhow::{Context, Result};
use measure::burst_run::{BurstRun, Stop, Unobserved, VariantSpec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{command_exists, is_root};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    code(bench)?;
    heap(bench)
}

/// Room for the code and data of all variants that use the pool.
const CODE_POOL_BYTES: u64 = 256 << 20;

fn code(bench: &mut Bench) -> Result<()> {
    if !command_exists("hugectl") {
        bench.report.skip("peers: code", "no `hugectl`; apt-get install libhugetlbfs-bin");
        return Ok(());
    }
    let _pool = match bench.reserve_pool(CODE_POOL_BYTES) {
        Ok(pool) => pool,
        Err(reason) => {
            bench.report.skip("peers: code", reason);
            return Ok(());
        }
    };
    let _mounted = match HugetlbMount::new(bench.folder.path()) {
        Ok(mounted) => mounted,
        Err(error) => {
            bench.report.skip("peers: code", format!("{error:#}"));
            return Ok(());
        }
    };
    let plain = bench.build_scattered("peers-scattered", Linking::Default)?;
    let relinked = bench.build_scattered("peers-relinked", Linking::HugeSegments)?;
    let pie = bench.build_scattered("peers-two-segments-pie", Linking::TwoHugeSegments)?;
    let fixed = bench.build_scattered("peers-two-segments", Linking::TwoHugeSegmentsNoPie)?;
    let options = ["-q", "--pages", "hugetlb"];
    let mut arms = vec![
        Arm::new("plain", [&plain]),
        Arm::new("plain once more", [&plain]),
        bench.lifted("pagelift", &options, &[&plain]),
        bench.lifted("pagelift, relinked, no PIE, two segments", &options, &[&fixed]),
    ];
    let others = [
        ("libhugetlbfs", &plain),
        ("libhugetlbfs, relinked", &relinked),
        ("libhugetlbfs, relinked, two segments", &pie),
        ("libhugetlbfs, relinked, no PIE, two segments", &fixed),
    ];
    for (name, program) in others {
        let words = ["hugectl", "--force-preload", "--text", "--data", "--bss"].map(PathBuf::from);
        let arm = Arm::new(name, words.into_iter().chain([program.clone()])).silent();
        add_if_it_runs(bench, &mut arms, arm, "code");
    }
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let plan = BurstPlan::new("peers: code", arms, "code", 4, Course::SideBySide);
    let series = bench.run_bursts(plan)?;
    print_bursts(series, Some(1));
    if let Some(theirs) = names.iter().position(|name| name == others[3].0) {
        println!("{}\n{}", ratio_line(series, 0, theirs, 2), ratio_line(series, 0, theirs, 3));
    }
    Ok(())
}

/// Size of the heap worker's heap.
const HEAP_MIB: u64 = 256;
/// Maximum number of variants that run side by side.
const MOST_HEAPS: u64 = 11;

fn heap(bench: &mut Bench) -> Result<()> {
    let needed = MOST_HEAPS * (HEAP_MIB << 20) * 3 / 2;
    if let Some(available) = bench.report.machine.available_bytes.filter(|&available| available < needed) {
        let (found, needed) = (format_bytes(available), format_bytes(needed));
        bench.report.skip("peers: heap", format!("found {found} of available memory, needed {needed}"));
        return Ok(());
    }
    let program = bench.build("heap-worker", &["heap-worker.c"], Linking::Default, &[])?;
    let size = HEAP_MIB.to_string();
    let words = [program.as_os_str(), size.as_ref()];
    let plain = |name: &str| Arm::new(name, words).silent();
    let mut arms = vec![
        plain("plain"),
        plain("plain once more"),
        bench.lifted("pagelift run", &["-q"], &words),
        plain("glibc tunable hugetlb=1").with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ];
    // Each of up to three heaps on the pool needs more than its size: allocators round up.
    let pool = bench.reserve_pool(3 * (HEAP_MIB << 20) * 3 / 2);
    match &pool {
        Ok(_) => arms.push(plain("glibc tunable hugetlb=2").with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")),
        Err(reason) => bench.report.skip("peers: heap on the pool", reason.clone()),
    }
    let allocators = [
        ("jemalloc", "libjemalloc.so.2", "libjemalloc2", None),
        ("jemalloc, thp:always", "libjemalloc.so.2", "libjemalloc2", Some(("MALLOC_CONF", "thp:always"))),
        ("tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", None),
        ("mimalloc", "libmimalloc.so.2", "libmimalloc2.0", None),
        // Later versions than Debian 12's call it MIMALLOC_ALLOW_LARGE_OS_PAGES, and know this name too.
        ("mimalloc, large pages", "libmimalloc.so.2", "libmimalloc2.0", Some(("MIMALLOC_LARGE_OS_PAGES", "1"))),
    ];
    for (name, library, package, variable) in allocators {
        if !library_exists(library) {
            bench.report.skip(format!("peers: {name}"), format!("no {library}; apt-get install {package}"));
            continue;
        }
        let arm = plain(name).with("LD_PRELOAD", library);
        let arm = variable.iter().fold(arm, |arm, (variable, value)| arm.with(variable, value));
        add_if_it_runs(bench, &mut arms, arm, "look-ups");
    }
    if command_exists("hugectl") && pool.is_ok() {
        let hugectl = ["hugectl".as_ref(), "--heap".as_ref(), words[0], words[1]];
        add_if_it_runs(bench, &mut arms, Arm::new("libhugetlbfs --heap", hugectl).silent(), "look-ups");
    }
    let plan = BurstPlan::new("peers: heap", arms, "look-ups", 6, Course::SideBySide);
    print_bursts(bench.run_bursts(plan)?, Some(1));
    Ok(())
}

/// Tries a variant for one round; a variant that cannot run is left out with the reason.
fn add_if_it_runs(bench: &mut Bench, arms: &mut Vec<Arm>, arm: Arm, workload: &str) {
    let check = BurstRun {
        variants: vec![VariantSpec::new(&arm.name, |_| arm.command())],
        workloads: vec![workload.to_owned()],
        seed: 1,
        burst: Duration::from_millis(1),
        lead_in_percent: 0,
        warm_up_rounds: 0,
        generations: 1,
        stop: Stop::Rounds(2),
        cpu: bench.cpu,
        time_limit: Duration::from_secs(60),
    };
    match check.run(&mut Unobserved) {
        Ok(_) => arms.push(arm),
        Err(error) => bench.report.skip(format!("peers: {}", arm.name), error.to_string()),
    }
}

/// True if the dynamic linker's usual folders hold the library.
pub(crate) fn library_exists(name: &str) -> bool {
    let multiarch = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    [multiarch, "/usr/lib64".into(), "/usr/lib".into(), "/usr/local/lib".into()].iter().any(|f| f.join(name).exists())
}

/// A hugetlbfs, on which libhugetlbfs makes its files; unmounted when dropped.
struct HugetlbMount(PathBuf);

impl HugetlbMount {
    fn new(folder: &Path) -> Result<Self> {
        anyhow::ensure!(is_root(), "a hugetlbfs is mounted by root only");
        let place = folder.join("hugetlbfs");
        std::fs::create_dir(&place)?;
        let mount = Command::new("mount").args(["-t", "hugetlbfs", "hugetlbfs"]).arg(&place).output();
        let mount = mount.context("no `mount`")?;
        anyhow::ensure!(mount.status.success(), "mount: {}", String::from_utf8_lossy(&mount.stderr).trim());
        Ok(Self(place))
    }
}

impl Drop for HugetlbMount {
    fn drop(&mut self) {
        crate::bench::unmount(&self.0);
    }
}
