//! The index of fingerprints (`examples/fingerprint-index`): one heap backed in many ways, each beside the limit that a
//! hand-written layout on pool pages sets.
//!
//! Variants run alone, one after the other, in turns. In parallel they cannot be compared: the speed of one program
//! varies by up to a fifth with the position of its pages in the machine's memory. Alone, the variants on the pool get
//! the same pages in turn.
//!
//! A second benchmark measures the distance of the pool's heap from the limit more closely, if memory has room for more
//! than one variant: in parallel, so that the machine's drift cancels out too, and each in another's place for half of
//! the time.

use crate::bench::{Arm, Bench, BurstPlan, Course};
use crate::build::Linking;
use crate::table::print_bursts;
use address_space::{PageSize, format_bytes};
use anyhow::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use test_support::{default_huge_page, is_root, meminfo};

/// The names of this benchmark and of the closer one.
pub(crate) const NAME: &str = "fingerprints";
pub(crate) const LIMIT: &str = "heap-limit";

/// Sizes of the index in MiB; sizes without room in memory are skipped, with the numbers.
const SIZES: [u64; 3] = [1 << 10, 4 << 10, 12 << 10];
/// Number of threads that make the index, because allocators differ in threads' heaps.
const THREADS: &str = "2";
/// Memory to plan for, in percent of the index: allocators and layouts need more.
const PERCENT: u64 = 125;
/// Number of starts of each variant, for each size: the large indexes take long to make.
const TURNS: [u32; 3] = [6, 4, 4];
/// Bursts of each start.
const BURSTS: u32 = 60;
/// Number of exchanges of places, for each size.
const EXCHANGES: [u32; 3] = [16, 12, 4];

/// Their parts, one size each.
pub(crate) fn parts() -> impl Iterator<Item = String> {
    let of =
        |benchmark: &'static str| SIZES.into_iter().map(move |mebibytes| format!("{benchmark}/{}", part(mebibytes)));
    of(NAME).chain(of(LIMIT))
}

/// `12G`.
fn part(mebibytes: u64) -> String {
    format!("{}G", mebibytes >> 10)
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let program = build(bench)?;
    let sizes = SIZES.into_iter().zip(TURNS).filter(|(size, _)| bench.takes(NAME, &part(*size)));
    for (mebibytes, turns) in sizes.collect::<Vec<_>>() {
        on_usual_pages(bench, &program, mebibytes, turns)?;
        on_largest_pages(bench, &program, mebibytes, turns)?;
    }
    Ok(())
}

/// Measures the distances of the pool's heap and of the others from the limit.
pub(crate) fn run_exchanged(bench: &mut Bench) -> Result<()> {
    let program = build(bench)?;
    let sizes = SIZES.into_iter().zip(EXCHANGES).filter(|(size, _)| bench.takes(LIMIT, &part(*size)));
    for (mebibytes, exchanges) in sizes.collect::<Vec<_>>() {
        exchanged(bench, &program, mebibytes, exchanges)?;
    }
    Ok(())
}

fn build(bench: &Bench) -> Result<PathBuf> {
    let source = "../../examples/fingerprint-index/fingerprint-index.c";
    bench.build("fingerprint-index", &[source], Linking::Default, &["-pthread"])
}

fn needed(mebibytes: u64) -> u64 {
    (mebibytes << 20) * PERCENT / 100
}

/// False if memory has no room for this number of variants; a skip is recorded if not even one fits.
fn has_room(bench: &mut Bench, mebibytes: u64, times: u64) -> bool {
    let available = meminfo("MemAvailable").unwrap_or(0);
    let needed = needed(mebibytes) * times * 21 / 20;
    if available < needed && times == 1 {
        let (found, needed) = (format_bytes(available), format_bytes(needed));
        bench.report.skip(name(mebibytes), format!("found {found} of available memory, needed {needed}"));
    }
    available >= needed
}

fn name(mebibytes: u64) -> String {
    format!("fingerprints, {}", format_bytes(mebibytes << 20))
}

/// The program with its heap on the pool.
fn on_pool(bench: &Bench, words: &[OsString], mebibytes: u64) -> Arm {
    let reserve = needed(mebibytes).to_string();
    bench.lifted("--heap=2M", &["-q", "--heap=2M", "--heap-reserve", &reserve], words)
}

/// The variants beside the plain program and the limit; true for a variant on pool pages.
fn variants(bench: &mut Bench, words: &[OsString], mebibytes: u64, pool: bool) -> Vec<(Arm, bool)> {
    let plain = |name: &str| Arm::new(name, words).silent();
    let mimalloc = ["-q", "--heap=thp", "--heap-allocator=mimalloc"];
    let mut all = vec![
        (bench.lifted("--heap=auto", &["-q", "--heap=auto"], words), false),
        (bench.lifted("--heap=thp, mimalloc", &mimalloc, words), false),
        (plain("glibc hugetlb=1").with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), false),
    ];
    if pool {
        all.push((on_pool(bench, words, mebibytes), true));
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

/// The limit: the same data in a hand-written layout on pool pages.
fn by_hand(words: &[OsString], page: PageSize) -> Arm {
    let words = words.iter().cloned().chain([page.bytes().to_string().into()]);
    Arm::new(&format!("by hand on {page}"), words)
}

/// All in one group. If memory has room for the pool beside the others, it stays, and the variants on the pool get the
/// same pages in turn. Otherwise it is reserved for each start, and returned for the next.
fn on_usual_pages(bench: &mut Bench, program: &Path, mebibytes: u64, turns: u32) -> Result<()> {
    if !has_room(bench, mebibytes, 1) {
        return Ok(());
    }
    let words = words_of(program, mebibytes);
    let page = default_huge_page()?;
    let bytes = needed(mebibytes);
    let room_beside = has_room(bench, mebibytes, 2);
    let pool = bench.reserve_pool(bytes).inspect_err(|reason| {
        bench.report.skip(format!("{}: the pool", name(mebibytes)), reason.clone());
    });
    let there_is_one = pool.is_ok();
    let stays = pool.ok().filter(|_| room_beside);
    let mut arms = vec![(Arm::new("plain", &words).silent(), false)];
    if there_is_one {
        arms.insert(0, (by_hand(&words, page), true));
    }
    arms.append(&mut variants(bench, &words, mebibytes, there_is_one));
    let given = |(arm, pool): (Arm, bool)| if pool && stays.is_none() { arm.with_pool(bytes) } else { arm };
    let arms = arms.into_iter().map(given).collect();
    one_group(bench, &name(mebibytes), arms, turns)
}

fn one_group(bench: &mut Bench, name: &str, arms: Vec<Arm>, turns: u32) -> Result<()> {
    let plan = BurstPlan::new(name, arms, "queries", turns, Course::Alone(BURSTS));
    print_bursts(bench.run_bursts(plan)?, None);
    Ok(())
}

/// The pool's heap, the limit and as many others as fit into memory at once; they exchange their pages.
fn exchanged(bench: &mut Bench, program: &Path, mebibytes: u64, exchanges: u32) -> Result<()> {
    let title = format!("{}, places exchanged", name(mebibytes));
    let room = (2..).take_while(|&times| has_room(bench, mebibytes, times)).last().unwrap_or(0) as usize;
    if room == 0 {
        let (found, each) = (meminfo("MemAvailable").unwrap_or(0), needed(mebibytes));
        let (found, each) = (format_bytes(found), format_bytes(each));
        bench.report.skip(title, format!("found {found} of available memory, needed room for two of {each}"));
        return Ok(());
    }
    let words = words_of(program, mebibytes);
    let (mut arms, others): (Vec<_>, Vec<_>) =
        variants(bench, &words, mebibytes, true).into_iter().partition(|(_, pool)| *pool);
    arms.insert(1, (by_hand(&words, default_huge_page()?), true));
    arms.truncate(room);
    let on_pool = arms.len() as u64;
    if room > arms.len() + others.len() {
        arms.push((Arm::new("plain", &words).silent(), false));
        arms.extend(others);
    }
    let _pool = match bench.reserve_pool(on_pool * needed(mebibytes)) {
        Ok(pool) => pool,
        Err(reason) => {
            bench.report.skip(title, reason);
            return Ok(());
        }
    };
    let arms = arms.into_iter().map(|(arm, _)| arm).collect();
    let plan = BurstPlan::new(&title, arms, "queries", exchanges, Course::Exchanged(BURSTS));
    print_bursts(bench.run_bursts(plan)?, None);
    Ok(())
}

/// Runs on the machine's next larger pool pages. If fewer pages are available than the heap needs, it takes these and
/// continues on ordinary pages; it is compared with the plain program.
fn on_largest_pages(bench: &mut Bench, program: &Path, mebibytes: u64, turns: u32) -> Result<()> {
    let Ok(page) = PageSize::new(1 << 30) else { return Ok(()) };
    let title = format!("{} on {page}", name(mebibytes));
    if !is_root() || !test_support::pool_file(page, "nr_hugepages").exists() {
        bench.report.skip(title, "needs root and a machine with pages of 1 GiB".to_owned());
        return Ok(());
    }
    let wanted = page.pages_for(needed(mebibytes));
    let pool = match bench.reserve_up_to(page, wanted) {
        Ok(pool) => pool,
        Err(reason) => {
            bench.report.skip(title, reason);
            return Ok(());
        }
    };
    let words = words_of(program, mebibytes);
    let reserve = (page.bytes() * pool.pages()).to_string();
    let lifted = |name: &str| bench.lifted(name, &["-q", "--heap=1G", "--heap-reserve", &reserve], &words);
    if pool.pages() == wanted {
        let arms = vec![by_hand(&words, page), lifted("--heap=1G")];
        return one_group(bench, &title, arms, turns);
    }
    let left = wanted - pool.pages();
    let some = lifted(&format!("--heap=1G, {} of {wanted} pages", pool.pages()));
    bench.report.skip(format!("{title}: by hand"), format!("the kernel had no room for {left} of {wanted} pages"));
    let auto = bench.lifted("--heap=auto", &["-q", "--heap=auto"], &words);
    one_group(bench, &title, vec![Arm::new("plain", &words).silent(), auto, some], turns)
}
