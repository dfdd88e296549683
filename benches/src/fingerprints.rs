//! The index of fingerprints (`examples/fingerprint-index`): one heap backed in many ways, each beside the limit that a
//! hand-written layout on pool pages sets.
//!
//! All contestants of a series live at once, so the ways are tried in groups that memory has room for; the limit and
//! the plain program are in every group.

use crate::bench::{Arm, Bench, BurstPlan};
use crate::build::Linking;
use crate::table::print_bursts;
use address_space::{PageSize, format_bytes};
use anyhow::Result;
use pagelift_tests::{PoolReservation, default_huge_page, is_root, meminfo};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Sizes of the index in MiB; those that memory has no room for are skipped with the numbers.
const SIZES: [u64; 3] = [1 << 10, 4 << 10, 12 << 10];
/// The index is made by so many threads, since threads' heaps are where allocators differ.
const THREADS: &str = "2";
/// Contestants at once, the limit and the plain program among them.
const MOST_AT_ONCE: u64 = 5;
/// Allocators and layouts need more than the index: so many percent of it are counted on.
const PERCENT: u64 = 115;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.build(
        "fingerprint-index",
        &["../../examples/fingerprint-index/fingerprint-index.c"],
        Linking::Default,
        &["-pthread"],
    )?;
    for mebibytes in SIZES {
        on_usual_pages(bench, &program, mebibytes)?;
    }
    on_largest_pages(bench, &program, SIZES[0])
}

fn needed(mebibytes: u64) -> u64 {
    (mebibytes << 20) * PERCENT / 100
}

/// How many contestants memory has room for; `None` where there are too few, which is noted.
fn room(bench: &mut Bench, mebibytes: u64) -> Option<u64> {
    let available = meminfo("MemAvailable").unwrap_or(0);
    let room = (available * 4 / 5 / needed(mebibytes)).min(MOST_AT_ONCE);
    if room >= 3 {
        return Some(room);
    }
    let (found, needed) = (format_bytes(available), format_bytes(needed(mebibytes) * 3 * 5 / 4));
    bench.report.skip(name(mebibytes), format!("found {found} of available memory, needed {needed}"));
    None
}

fn name(mebibytes: u64) -> String {
    format!("fingerprints, {}", format_bytes(mebibytes << 20))
}

/// Who takes part beside the plain program and the limit; true where it takes pool pages.
fn contestants(bench: &mut Bench, words: &[OsString], mebibytes: u64, pool: bool) -> Vec<(Arm, bool)> {
    let plain = |name: &str| Arm::new(name, words).silent();
    let reserve = needed(mebibytes).to_string();
    let mimalloc = ["-q", "--heap=thp", "--heap-allocator=mimalloc"];
    let mut all = vec![
        (bench.lifted("--heap=auto", &["-q", "--heap=auto"], words), false),
        (bench.lifted("--heap=thp, mimalloc", &mimalloc, words), false),
        (plain("glibc hugetlb=1").with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), false),
    ];
    if pool {
        all.push((bench.lifted("--heap=2M", &["-q", "--heap=2M", "--heap-reserve", &reserve], words), true));
        all.push((plain("glibc hugetlb=2").with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2"), true));
    }
    let libraries = [
        ("jemalloc, thp:always", "libjemalloc.so.2", "libjemalloc2", Some(("MALLOC_CONF", "thp:always"))),
        ("tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", None),
        ("mimalloc 2.0", "libmimalloc.so.2", "libmimalloc2.0", None),
    ];
    for (name, library, package, variable) in libraries {
        if crate::peers::library_exists(library) {
            let arm = plain(name).with("LD_PRELOAD", library);
            all.push((variable.iter().fold(arm, |arm, (variable, value)| arm.with(variable, value)), false));
        } else {
            bench.report.skip(format!("fingerprints: {name}"), format!("no {library}; apt-get install {package}"));
        }
    }
    all
}

fn words_of(program: &Path, mebibytes: u64) -> Vec<OsString> {
    vec![program.into(), mebibytes.to_string().into(), THREADS.into()]
}

/// The limit: the same data laid out by hand on pool pages.
fn by_hand(words: &[OsString], page: PageSize) -> Arm {
    let words = words.iter().cloned().chain([page.bytes().to_string().into()]);
    Arm::new(&format!("by hand on {page}"), words)
}

fn on_usual_pages(bench: &mut Bench, program: &Path, mebibytes: u64) -> Result<()> {
    let Some(room) = room(bench, mebibytes) else { return Ok(()) };
    let words = words_of(program, mebibytes);
    let page = default_huge_page()?;
    // The limit and one more contestant of a group stand on the pool.
    let pool = bench.reserve_pool(2 * needed(mebibytes));
    // Making the index takes time too, and all of a group's are made anew in each generation.
    let time = bench.time;
    bench.time = time.max(Duration::from_millis(mebibytes * 10));
    let result = usual_groups(bench, &words, mebibytes, room, page, pool);
    bench.time = time;
    result
}

fn usual_groups(
    bench: &mut Bench,
    words: &[OsString],
    mebibytes: u64,
    room: u64,
    page: PageSize,
    pool: std::result::Result<PoolReservation, String>,
) -> Result<()> {
    if let Err(reason) = &pool {
        bench.report.skip(format!("{}: the pool", name(mebibytes)), reason.clone());
    }
    let (on_pool, beside): (Vec<_>, Vec<_>) =
        contestants(bench, words, mebibytes, pool.is_ok()).into_iter().partition(|(_, pool)| *pool);
    let free_places = room as usize - 2;
    let mut on_pool = on_pool.into_iter();
    let mut beside = beside.into_iter();
    loop {
        let mut group: Vec<Arm> = on_pool.next().into_iter().map(|(arm, _)| arm).collect();
        group.extend(beside.by_ref().take(free_places - group.len()).map(|(arm, _)| arm));
        if group.is_empty() {
            return Ok(());
        }
        let limit = pool.is_ok().then(|| by_hand(words, page));
        one_group(bench, &name(mebibytes), limit, words, group)?;
    }
}

fn one_group(bench: &mut Bench, name: &str, limit: Option<Arm>, words: &[OsString], group: Vec<Arm>) -> Result<()> {
    let mut arms: Vec<Arm> = limit.into_iter().collect();
    arms.push(Arm::new("plain", words).silent());
    arms.extend(group);
    let plan = BurstPlan { name: name.to_owned(), arms, workloads: vec!["queries".into()], generations: 2 };
    print_bursts(bench.run_bursts(plan)?, None);
    Ok(())
}

/// The same on the machine's next larger pool pages, where so many can be had.
fn on_largest_pages(bench: &mut Bench, program: &Path, mebibytes: u64) -> Result<()> {
    let Ok(page) = PageSize::new(1 << 30) else { return Ok(()) };
    let title = format!("{} on {page}", name(mebibytes));
    let pages = 2 * page.pages_for(needed(mebibytes));
    if !is_root() || !pagelift_tests::pool_file(page, "nr_hugepages").exists() {
        bench.report.skip(title, "needs root and a machine with pages of 1 GiB".to_owned());
        return Ok(());
    }
    let _pool = match PoolReservation::of(page, pages) {
        Ok(pool) => pool,
        Err(error) => {
            bench.report.skip(title, format!("{error:#}"));
            return Ok(());
        }
    };
    let words = words_of(program, mebibytes);
    let reserve = (page.bytes() * page.pages_for(needed(mebibytes))).to_string();
    let lifted = bench.lifted("--heap=1G", &["-q", "--heap=1G", "--heap-reserve", &reserve], &words);
    one_group(bench, &title, Some(by_hand(&words, page)), &words, vec![lifted])
}
