//! Shared images: what a start costs a program with a very large library, and what many processes of it take of memory.

use crate::bench::{Arm, Bench, process_trial, unmount};
use crate::build::Linking;
use crate::table::{print_trials, table};
use address_space::format_bytes;
use anyhow::{Context, Result, ensure};
use nix::sys::statfs::statfs;
use pagelift_tests::{is_root, meminfo};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Three times this is the library: code twice, constants once.
const CONTENT_BYTES: usize = 48 << 20;
const PROCESSES: u64 = 50;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if !is_root() {
        bench.report.skip("images", "a store is mounted by root only; run `sudo make bench`");
        return Ok(());
    }
    let (library, program) = build(bench)?;
    let store = Store::mount(bench)?;
    let mut add = Command::new(&bench.pagelift);
    ensure!(
        add.args(["image", "add", "--store"]).arg(&store.place).arg(&library).stdout(Stdio::null()).status()?.success(),
        "no image of the library could be made"
    );
    let place = store.place.to_string_lossy().into_owned();
    let lifted = |name: &str, pages: &str| {
        let options = ["-q", "--pages", pages, "--lift", "text,rodata"];
        bench.lifted(name, &options, &[&program]).with("PAGELIFT_STORE", &place)
    };
    let arms = [
        Arm::new("plain", [&program]),
        Arm::new("plain once more", [&program]),
        lifted("image", "image"),
        lifted("private copy, thp", "thp"),
    ];
    let trials = arms.iter().cloned().map(process_trial).collect();
    print_trials(bench.run_trials("images", trials)?);
    println!("aim: an image under 1.5 ms over plain exec");
    memory(bench, &[&arms[0], &arms[2], &arms[3]], &store)
}

fn build(bench: &Bench) -> Result<(PathBuf, PathBuf)> {
    let content = bench.folder.path().join("image-content");
    std::fs::write(&content, (0..CONTENT_BYTES).map(|i| ((i * 7919) >> 8) as u8 | 1).collect::<Vec<u8>>())?;
    let define = format!("-DCONTENT=\"{}\"", content.display());
    let options = ["-shared", "-fPIC", &define];
    let library = bench.build("libimage-library.so", &["image-library.c"], Linking::Default, &options)?;
    std::fs::remove_file(&content)?;
    let folder = format!("-L{}", bench.folder.path().display());
    let path = format!("-Wl,-rpath,{},--no-as-needed", bench.folder.path().display());
    // The library stands before the source on the command line, and is needed all the same.
    let options = [folder.as_str(), &path, "-limage-library"];
    let program = bench.build("image-user", &["image-user.c"], Linking::Default, &options)?;
    Ok((library, program))
}

struct Store {
    place: PathBuf,
}

impl Store {
    fn mount(bench: &Bench) -> Result<Self> {
        let place = bench.folder.path().join("store");
        let mut setup = Command::new(&bench.pagelift);
        setup.args(["image", "setup", "--size", "1G", "--store"]).arg(&place).stdout(Stdio::null());
        ensure!(setup.status()?.success(), "`pagelift image setup` failed");
        Ok(Self { place })
    }

    fn used(&self) -> Result<u64> {
        let stat = statfs(&self.place)?;
        Ok((stat.blocks() - stat.blocks_free()) * stat.block_size() as u64)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        unmount(&self.place);
    }
}

/// Processes that wait; killed when dropped.
struct Waiting(Vec<Child>);

impl Waiting {
    fn start(arm: &Arm) -> Result<Self> {
        let mut waiting = Self(Vec::new());
        for _ in 0..PROCESSES {
            let mut command = arm.command();
            command.arg(CONTENT_BYTES.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
            waiting.0.push(command.spawn().with_context(|| format!("cannot start {}", arm.name))?);
        }
        for child in &mut waiting.0 {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().context("a pipe")?).read_line(&mut line)?;
            ensure!(line.starts_with("ready"), "{} ended early", arm.name);
        }
        Ok(waiting)
    }

    /// Proportional set sizes, in bytes: what is shared is counted once in all.
    fn proportional(&self) -> Result<u64> {
        let mut sum = 0;
        for child in &self.0 {
            let text = std::fs::read_to_string(Path::new("/proc").join(child.id().to_string()).join("smaps_rollup"))?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss in smaps_rollup")?;
            sum += line.trim().trim_end_matches(" kB").parse::<u64>()? << 10;
        }
        Ok(sum)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn memory(bench: &mut Bench, arms: &[&Arm], store: &Store) -> Result<()> {
    let needed = (PROCESSES + 10) * 3 * CONTENT_BYTES as u64;
    let free = meminfo("MemAvailable").unwrap_or(0);
    let mut rows = table(&["", "memory of all processes", "share of each"]);
    for arm in arms {
        if arm.name.starts_with("private") && free < needed {
            let reason = format!("{} of memory are needed, {} are free", format_bytes(needed), format_bytes(free));
            bench.report.skip("images: memory of private copies", reason);
            continue;
        }
        let bytes = Waiting::start(arm)?.proportional()?;
        rows.add_row([arm.name.clone(), format_bytes(bytes), format_bytes(bytes / PROCESSES)]);
        let note = format!("{PROCESSES} processes take {bytes} bytes (sum of Pss)");
        let series = bench.report.series.last_mut().context("the series was taken in")?;
        if let Some(facts) = series.contestants.iter_mut().find(|facts| facts.name == arm.name) {
            facts.notes.push(note);
        }
    }
    let used = format_bytes(store.used()?);
    println!(
        "{PROCESSES} processes that have read all of the library; the store takes {used}, part of the sum\n{rows}"
    );
    Ok(())
}
