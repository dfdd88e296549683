//! Shared images: the cost of a start of a program with a very large library, and the memory of many of its processes.

use crate::bench::{Arm, Bench, timed_arm, unmount};
use crate::build::Linking;
use crate::memory::Crowd;
use crate::table::print_times;
use address_space::format_bytes;
use anyhow::{Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::statfs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use test_support::is_root;

/// A third of the library: it has this content twice as code, once as constants.
const CONTENT_BYTES: usize = 48 << 20;

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
    // Run separately, because a copy of the whole library empties the CPU's caches for the next variant.
    let copied = [&arms[0], &arms[3]].map(|arm| timed_arm(arm.clone())).into();
    print_times(bench.run_timed("images: a private copy", copied)?);
    let shared = || arms[..3].iter().cloned().map(timed_arm).collect();
    print_times(bench.run_timed("images", shared())?);
    println!("aim: an image under 1.5 ms over plain exec");
    if bench.cpu.is_some() {
        // The helper wakes the program on another CPU, which takes an interrupt each time.
        println!("on whatever CPUs the kernel chooses:");
        print_times(bench.run_timed_anywhere("images: on any CPU", shared())?);
    }
    of_the_library(bench, &[&arms[0], &arms[2], &arms[3]])?;
    println!("the store takes {}, which is part of the sum of the images", format_bytes(store.used()?));
    of_compilers(bench, &store)
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
    // The library precedes the source on the command line, but must be linked.
    let options = [folder.as_str(), &path, "-limage-library"];
    let program = bench.build("image-user", &["image-user.c"], Linking::Default, &options)?;
    Ok((library, program))
}

/// A store for one benchmark; unmounted when dropped.
pub(crate) struct Store {
    place: PathBuf,
}

impl Store {
    pub(crate) fn mount(bench: &Bench) -> Result<Self> {
        let place = bench.folder.path().join("store");
        let mut setup = Command::new(&bench.pagelift);
        setup.args(["image", "setup", "--size", "1G", "--store"]).arg(&place).stdout(Stdio::null());
        ensure!(setup.status()?.success(), "`pagelift image setup` failed");
        Ok(Self { place })
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
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

/// Fifty processes that have read all of an unusually large library.
fn of_the_library(bench: &mut Bench, arms: &[&Arm]) -> Result<()> {
    let crowd = Crowd {
        processes: 50,
        words: vec![CONTENT_BYTES.to_string()],
        input: String::new(),
        is_ready: has_written,
        private_bytes: 3 * CONTENT_BYTES as u64,
        arms,
    };
    crowd.measure(bench)
}

/// Two hundred compilers, each of which has compiled a file and waits in a write of its output.
fn of_compilers(bench: &mut Bench, store: &Store) -> Result<()> {
    let asked = Command::new("g++").arg("-print-prog-name=cc1plus").output();
    let Some(compiler) = asked.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())) else {
        bench.report.skip("memory of 200 compilers", "no g++".to_owned());
        return Ok(());
    };
    let options = |pages| ["-q", "--pages", pages, "--lift", "text,rodata"];
    let place = store.place.to_string_lossy().into_owned();
    let arms = [
        Arm::new("plain", [&compiler]),
        bench.lifted("image", &options("image"), &[&compiler]).with("PAGELIFT_STORE", &place),
        bench.lifted("private copy, thp", &options("thp"), &[&compiler]),
    ];
    // More than a pipe holds, so that no program ends before its output is read.
    let functions: String = (0..2000).map(|i| format!("int f{i}(int x) {{ return x * {i} + 1; }}\n")).collect();
    let source = bench.folder.path().join("functions.ii");
    std::fs::write(&source, functions)?;
    let crowd = Crowd {
        processes: 200,
        words: ["-quiet", "-fpreprocessed", &source.to_string_lossy(), "-o", "-"].map(str::to_owned).into(),
        input: String::new(),
        is_ready: stands_in_a_write,
        private_bytes: compiler.metadata()?.len(),
        arms: &[&arms[0], &arms[1], &arms[2]],
    };
    println!("{} processes of {}:", crowd.processes, compiler.display());
    crowd.measure(bench)
}

pub(crate) fn has_written(child: &mut Child) -> bool {
    let Some(output) = &child.stdout else { return false };
    let mut waiting = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
    poll(&mut waiting, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// True if its current system call is a write to standard output (proc_pid_syscall(5)).
fn stands_in_a_write(child: &mut Child) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
    call.starts_with(&format!("{} 0x1 ", libc::SYS_write))
}
