//! Code from the page cache of a program's own file: the cost of a start beside plain exec and an image, the memory of
//! many processes, and the speed of scattered code beside a program that was linked for huge pages.
//!
//! All files are prepared before (`pagelift cache prepare`), so that plain programs get the best of the page cache,
//! too: the kernel maps a file by huge entries by itself if the file is linked for it.

use crate::bench::{Arm, Bench, BurstPlan, Course, timed_arm};
use crate::build::Linking;
use crate::images::{Store, has_written};
use crate::memory::Crowd;
use crate::table::{print_bursts, print_times, ratio_line};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use test_support::is_root;

pub(crate) const NAME: &str = "file";

/// The parts of the benchmark.
const PARTS: [&str; 4] = ["fixed-address", "library", "largest", "scattered-code"];

pub(crate) fn parts() -> impl Iterator<Item = String> {
    PARTS.into_iter().map(|part| format!("{NAME}/{part}"))
}

/// A third of the library's constants and code, and a quarter of the program's own sections.
const LIBRARY_BYTES: usize = 16 << 20;
/// A quarter of the code of the largest program, which has 280 MiB.
const LARGEST_BYTES: usize = 70 << 20;
/// Processes of the largest program: a browser has at least this number.
const BROWSER_PROCESSES: usize = 4;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let scattered = bench.build_scattered("file-scattered", Linking::Default)?;
    if let Err(reason) = prepare(bench, &scattered).map(drop) {
        bench.report.skip(NAME, format!("{reason:#}"));
        return Ok(());
    }
    for part in PARTS.into_iter().filter(|part| bench.takes(NAME, part)).collect::<Vec<_>>() {
        match part {
            "scattered-code" => scattered_code(bench, &scattered)?,
            part => starts_and_memory(bench, part)?,
        }
    }
    Ok(())
}

/// Measures a part, beside images in a separate store if one can be mounted.
fn starts_and_memory(bench: &mut Bench, part: &str) -> Result<()> {
    let store = if is_root() {
        Some(Store::mount(bench)?)
    } else {
        bench
            .report
            .skip(format!("file/{part}: beside images"), "a store is mounted by root only; run `sudo make bench`");
        None
    };
    let measure = match part {
        "fixed-address" => fixed_address,
        "library" => congruent_library,
        _ => largest,
    };
    measure(bench, store.as_ref())
}

/// Brings a file into huge folios of the page cache. As root it is kept there until the result is dropped, because the
/// kernel may drop unmapped pages at any time.
fn prepare(bench: &Bench, file: &Path) -> Result<Kept> {
    let output = Command::new(&bench.pagelift).args(["cache", "prepare"]).arg(file).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "not prepared: {}", text.trim());
    if !is_root() {
        return Ok(Kept(None));
    }
    let list = bench.folder.path().join("kept-file");
    std::fs::write(&list, format!("{}\n", file.display()))?;
    let mut keep = Command::new(&bench.pagelift);
    keep.args(["cache", "keep", "--lock", "--budget", "4G", "--config"]).arg(list);
    let mut kept = Kept(Some(keep.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?));
    // This end of the pipe stays open: the keeper may write more.
    let said = kept.0.as_mut().and_then(|keeper| keeper.stdout.as_mut()).context("no standard output")?;
    let locked = BufReader::new(said).lines().map_while(Result::ok).any(|line| line.ends_with(" locked"));
    anyhow::ensure!(locked, "`pagelift cache keep` has not locked {}", file.display());
    Ok(kept)
}

/// The process that keeps a file.
struct Kept(Option<Child>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.0 {
            // The keeper may have ended by itself.
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

/// A program's arms: plain starts, and lifts from its file and from an image.
fn arms(bench: &Bench, program: &Path, object: &Path, store: Option<&Store>) -> Result<Vec<Arm>> {
    let lifted = |pages: &str| {
        let options = ["-q", "--pages", pages, "--prepare", "never", "--lift", "text,rodata"];
        bench.lifted(pages, &options, &[program])
    };
    let mut arms = vec![Arm::new("plain", [program]), Arm::new("plain once more", [program]), lifted("file")];
    if let Some(store) = store {
        let mut add = Command::new(&bench.pagelift);
        add.args(["image", "add", "--store"]).arg(store.place()).arg(object);
        let output = add.output()?;
        anyhow::ensure!(output.status.success(), "no image: {}", String::from_utf8_lossy(&output.stderr).trim());
        let place: OsString = store.place().into();
        arms.push(lifted("image").with("PAGELIFT_STORE", place.to_str().context("a path that is no text")?));
    }
    Ok(arms)
}

/// Times their starts, on one CPU and on any.
fn time_starts(bench: &mut Bench, name: &str, arms: &[Arm], aim: &str) -> Result<()> {
    let timed = || arms.iter().cloned().map(timed_arm).collect();
    println!("{name}, starts:");
    print_times(bench.run_timed(&format!("file: {name}"), timed())?);
    if bench.cpu.is_some() {
        // The helper wakes the program on another CPU, which takes an interrupt each time.
        println!("on whatever CPUs the kernel chooses:");
        print_times(bench.run_timed_anywhere(&format!("file: {name}, on any CPU"), timed())?);
    }
    println!("aim: {aim}");
    Ok(())
}

/// Measures the memory of a number of processes that have each read a number of bytes.
fn weigh(bench: &mut Bench, arms: &[Arm], processes: usize, bytes: usize) -> Result<()> {
    let arms: Vec<&Arm> = arms.iter().filter(|arm| arm.name != "plain once more").collect();
    let crowd = Crowd {
        processes,
        words: vec![bytes.to_string()],
        input: String::new(),
        is_ready: has_written,
        private_bytes: 0,
        arms: &arms,
    };
    crowd.measure(bench)
}

/// A file for the assembler to include; its pages are all different, and none is zero.
fn content(bench: &Bench, bytes: usize) -> Result<(PathBuf, String)> {
    let content = bench.folder.path().join("file-content");
    std::fs::write(&content, (0..bytes).map(|i| ((i * 7919) >> 8) as u8 | 1).collect::<Vec<u8>>())?;
    let define = format!("-DCONTENT=\"{}\"", content.display());
    Ok((content, define))
}

fn fixed_address(bench: &mut Bench, store: Option<&Store>) -> Result<()> {
    let (content, define) = content(bench, LIBRARY_BYTES)?;
    let program = bench.build("file-fixed", &["large-program.c"], Linking::Default, &["-no-pie", &define])?;
    std::fs::remove_file(content)?;
    let _kept = prepare(bench, &program)?;
    let arms = arms(bench, &program, &program, store)?;
    time_starts(bench, "a program of a fixed address", &arms, "`file` at most 0.5 ms over plain exec")
}

fn congruent_library(bench: &mut Bench, store: Option<&Store>) -> Result<()> {
    let (content, define) = content(bench, LIBRARY_BYTES)?;
    let options = ["-shared", "-fPIC", &define];
    // Its address agrees with its offset at any base that the dynamic linker chooses.
    let library = bench.build("libimage-library.so", &["image-library.c"], Linking::HugeSegments, &options)?;
    std::fs::remove_file(content)?;
    let folder = format!("-L{}", bench.folder.path().display());
    let path = format!("-Wl,-rpath,{},--no-as-needed", bench.folder.path().display());
    let options = [folder.as_str(), &path, "-limage-library"];
    let program = bench.build("file-user", &["image-user.c"], Linking::Default, &options)?;
    let kept = prepare(bench, &library)?;
    let arms = arms(bench, &program, &library, store)?;
    time_starts(bench, "a program with a congruent library", &arms, "`file` at most 0.5 ms over plain exec")?;
    // The keeper would have a share of the memory.
    drop(kept);
    for processes in [50, 200] {
        drop(prepare(bench, &library)?);
        weigh(bench, &arms, processes, LIBRARY_BYTES)?;
    }
    Ok(())
}

/// A position-independent program with 280 MiB of code.
fn largest(bench: &mut Bench, store: Option<&Store>) -> Result<()> {
    let (content, define) = content(bench, LARGEST_BYTES)?;
    let program = bench.build("file-largest", &["huge-text.c"], Linking::Default, &[&define])?;
    std::fs::remove_file(content)?;
    let kept = prepare(bench, &program)?;
    let arms = arms(bench, &program, &program, store)?;
    time_starts(bench, "a program with 280 MiB of code", &arms, "`file` at most 2 ms over plain exec")?;
    drop(kept);
    for processes in [BROWSER_PROCESSES, 50, 200] {
        drop(prepare(bench, &program)?);
        weigh(bench, &arms, processes, LARGEST_BYTES)?;
    }
    println!("aim: `file` at most plain's memory, and nothing anonymous beside plain's");
    Ok(())
}

fn scattered_code(bench: &mut Bench, plain: &Path) -> Result<()> {
    let relinked = bench.build_scattered("file-scattered-relinked", Linking::HugeSegments)?;
    let laid_out = laid_out(bench, plain)?;
    // Files prepared earlier may have been reclaimed since.
    let _kept = [prepare(bench, plain)?, prepare(bench, &relinked)?, prepare(bench, &laid_out)?];
    let options = ["-q", "--pages", "file", "--prepare", "never", "--lift", "text,rodata"];
    let arms = vec![
        Arm::new("plain", [plain]),
        Arm::new("plain once more", [plain]),
        bench.lifted("file", &options, &[plain]),
        Arm::new("relinked", [&relinked]),
        Arm::new("relinked once more", [&relinked]),
        Arm::new("laid out anew", [&laid_out]),
    ];
    let plan = BurstPlan::new("file: scattered code", arms, "code", 5, Course::SideBySide);
    let series = bench.run_bursts(plan)?;
    print_bursts(series, Some(1));
    println!("{}", ratio_line(series, 0, 3, 2));
    println!("{}", ratio_line(series, 0, 3, 4));
    println!("{}", ratio_line(series, 0, 3, 5));
    println!("aim: at most 1.02 (98 % of the relinked program's speed)");
    Ok(())
}

/// A copy of a program in the layout of `pagelift align --relayout`.
fn laid_out(bench: &Bench, program: &Path) -> Result<PathBuf> {
    let copy = program.with_extension("laid-out");
    let mut align = Command::new(&bench.pagelift);
    align.args(["align", "--relayout", "-o"]).arg(&copy).arg(program);
    let output = align.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "no other layout: {}", text.trim());
    Ok(copy)
}
