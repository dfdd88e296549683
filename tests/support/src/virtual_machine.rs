//! Other kernels: a virtual machine with an initramfs built here, whose init script prints results on the console.

use crate::target_folder;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// An initramfs in the making: a `newc` archive (Documentation/driver-api/early-userspace/buffer-format.rst).
pub struct Initramfs {
    archive: Vec<u8>,
    present: BTreeSet<String>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Default for Initramfs {
    /// The root folder alone. Without an entry for it, everybody could write to it: it would be a tmpfs with mode 1777.
    fn default() -> Self {
        let mut initramfs = Self { archive: Vec::new(), present: BTreeSet::new() };
        initramfs.entry(".", FOLDER, &[]);
        initramfs
    }
}

impl Initramfs {
    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        if !self.present.insert(name.to_owned()) {
            return;
        }
        let number = self.present.len() as u32;
        let mut header = String::from("070701");
        for field in [number, mode, 0, 0, 1, 0, contents.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0] {
            header += &format!("{field:08x}");
        }
        self.archive.extend_from_slice(header.as_bytes());
        self.archive.extend_from_slice(name.as_bytes());
        self.archive.push(0);
        self.pad();
        self.archive.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.archive.resize(self.archive.len().next_multiple_of(4), 0);
    }

    fn folders_above(&mut self, path: &str) {
        let parts: Vec<&str> = path.split('/').collect();
        for end in 1..parts.len() {
            self.entry(&parts[..end].join("/"), FOLDER, &[]);
        }
    }

    /// An empty folder, by its absolute path.
    pub fn add_folder(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        self.folders_above(path);
        self.entry(path, FOLDER, &[]);
    }

    /// A file that can be executed, by its absolute path there.
    pub fn add_file(&mut self, path: &str, contents: &[u8]) {
        let path = path.trim_start_matches('/');
        self.folders_above(path);
        self.entry(path, PROGRAM, contents);
    }

    /// A symbolic link.
    pub fn add_link(&mut self, path: &str, target: &str) {
        let path = path.trim_start_matches('/');
        self.folders_above(path);
        self.entry(path, LINK, target.as_bytes());
    }

    /// A program of this machine, under another path, without debug information, with the shared objects and the dynamic
    /// linker that it needs.
    ///
    /// # Errors
    /// One of the files cannot be read.
    pub fn add_program(&mut self, from: &Path, path: &str) -> Result<()> {
        self.add_file(path, &without_debug_information(from)?);
        let listed = Command::new("ldd").arg(from).output().context("cannot run ldd")?;
        // `name => /path (address)`, or `/path (address)` for the dynamic linker; nothing for a static program.
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            if let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) {
                self.add_file(library, &fs::read(library)?);
            }
        }
        Ok(())
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.archive.resize(self.archive.len().next_multiple_of(512), 0);
        self.archive
    }
}

/// The contents of a program without its debug information, which an emulated machine would unpack at each boot. They are kept
/// for the next machine, and for a day after their last use. Without strip(1) the program is used as it is.
fn without_debug_information(program: &Path) -> Result<Vec<u8>> {
    let contents = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    let folder = target_folder().join("pagelift-tests/stripped");
    let kept = folder.join(format!("{:016x}", hasher.finish()));
    if let Ok(stripped) = fs::read(&kept) {
        // Another test may remove it.
        let _ = File::open(&kept).and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(stripped);
    }
    fs::create_dir_all(&folder)?;
    remove_unused(&folder)?;
    let new = tempfile::NamedTempFile::new_in(&folder)?;
    let stripped = Command::new("strip").arg("--strip-debug").arg("-o").arg(new.path()).arg(program).output();
    if !stripped.is_ok_and(|output| output.status.success()) {
        return Ok(contents);
    }
    let stripped = fs::read(new.path())?;
    new.persist(&kept)?;
    Ok(stripped)
}

/// Removes files that have not been used for a day.
fn remove_unused(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|used| used.elapsed());
        if age.is_ok_and(|age| age.is_ok_and(|age| age > Duration::from_secs(24 * 60 * 60))) {
            // Another machine may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// True if the machines make all checks, and with the settings of a usual kernel: `make compatibility` and `make machines`
/// set a variable for that. Otherwise they leave out what takes long and hardly differs between kernels.
pub fn makes_all_checks() -> bool {
    std::env::var_os("PAGELIFT_TEST_ALL_CHECKS").is_some()
}

/// A machine to boot, by QEMU's software emulation (`/dev/kvm` may be missing or hang in a virtual machine).
pub struct VirtualMachine {
    /// `x86_64` or `aarch64`.
    pub architecture: &'static str,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// Sizes of the memory of each NUMA node, in MiB.
    pub nodes: Vec<u32>,
    /// More words for the kernel's command line.
    pub boot: &'static str,
    /// Additional CPUs, off until a script sets them online; the machine starts with two.
    pub more_cpus: u32,
    /// Contents of its virtio disks: `/dev/vda`, `/dev/vdb` and so on.
    pub disks: Vec<PathBuf>,
}

impl VirtualMachine {
    /// The command that boots it, with its console on standard output.
    pub fn command(&self) -> Command {
        let mut qemu = Command::new(format!("qemu-system-{}", self.architecture));
        // Arm: QEMU takes many times as long for a CPU with pointer authentication, and half a minute to measure the TLBs of a CPU
        // that Pagelift does not know. Page tables of the kernel alone (KPTI) double the time, and the kernel uses them if its
        // own address is random. x86-64: where the CPU stores strings fast, kernels clear and copy pages byte by byte, which
        // takes half as long again when emulated; protection of user memory from the kernel, a fifth level of page tables,
        // mitigations and pages that are cleared at each allocation take a tenth, and are left to a run of all checks. On a busy
        // host the kernel would replace the time stamp counter by a clock that advances by ticks of 4 ms, with which waits seem
        // to end early.
        let (machine, cpu, console, faster) = match self.architecture {
            "aarch64" => ("virt", "neoverse-n1,pmu=off", "ttyAMA0", "mitigations=off nokaslr init_on_alloc=0"),
            _ if makes_all_checks() => ("pc", "max,erms=off,fsrm=off", "ttyS0", "tsc=reliable"),
            _ => {
                let cpu = "max,erms=off,fsrm=off,smap=off,smep=off,la57=off";
                ("pc", cpu, "ttyS0", "tsc=reliable mitigations=off init_on_alloc=0")
            }
        };
        let megabytes: u32 = self.nodes.iter().sum();
        // One thread for all CPUs. With a thread for each, QEMU 7.2 can keep the translation of an instruction that another CPU
        // has just patched: Linux 6.12 and 7.3 meet a breakpoint that is gone (`int3` in trace_syscall_enter), and panic, within
        // seconds of switching raw_syscalls:sys_enter on and off. Two machines at once use two CPUs anyway.
        qemu.args(["-machine", machine, "-cpu", cpu, "-accel", "tcg,thread=single", "-nodefaults"]);
        qemu.args(["-smp", &(2 + self.more_cpus).to_string()]);
        qemu.args(["-no-reboot", "-display", "none", "-serial", "stdio", "-m", &format!("{megabytes}M")]);
        if self.nodes.len() > 1 {
            for (node, size) in self.nodes.iter().enumerate() {
                qemu.args(["-object", &format!("memory-backend-ram,id=node{node},size={size}M")]);
                qemu.args(["-numa", &format!("node,nodeid={node},memdev=node{node},cpus={node}")]);
            }
        }
        for disk in &self.disks {
            qemu.arg("-drive").arg(format!("file={},format=raw,if=virtio", disk.display()));
        }
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
        qemu.args([
            "-append",
            &format!("console={console} quiet loglevel=4 panic=-1 rdinit=/init maxcpus=2 {faster} {}", self.boot),
        ]);
        qemu
    }
}

/// Files of these modules and of their dependencies, each after its dependencies. Names are in the kernel's form, with
/// `_` for `-`.
///
/// # Errors
/// A module cannot be read. A module in `wanted` without a file counts as a built-in part of the kernel.
pub fn modules_in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder).with_context(|| format!("no modules in {}", folder.display()))?;
    let files: Vec<PathBuf> = files.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let mut order = Vec::new();
    for name in wanted {
        add_module(name, &files, &mut order)?;
    }
    Ok(order)
}

fn add_module(name: &str, files: &[PathBuf], order: &mut Vec<PathBuf>) -> Result<()> {
    let is_it = |path: &&PathBuf| path.file_stem().is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name);
    let Some(file) = files.iter().find(is_it).filter(|file| !order.contains(file)) else { return Ok(()) };
    for needed in modules_needed(&fs::read(file)?) {
        add_module(&needed, files, order)?;
    }
    order.push(file.clone());
    Ok(())
}

/// The names in the line `depends=` of a module's `.modinfo` section (kernel/module/main.c; the lines end with a zero
/// byte).
fn modules_needed(module: &[u8]) -> Vec<String> {
    const NAME: &[u8] = b"\0depends=";
    let Some(at) = module.windows(NAME.len()).position(|window| window == NAME) else { return Vec::new() };
    let value = module[at + NAME.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// The results that an init script has printed: `RESULT ok NAME` or `RESULT failed NAME: why`.
///
/// # Errors
/// A check failed, there was none, or the script did not finish.
pub fn check_results(console: &str, least: usize) -> Result<usize> {
    let results: Vec<&str> = console.lines().filter_map(|line| line.split_once("RESULT ")).map(|(_, r)| r).collect();
    let failed: Vec<&&str> = results.iter().filter(|result| !result.starts_with("ok ")).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    ensure!(console.contains("END OF CHECKS"), "the script did not come to its end:\n{}", tail(console));
    ensure!(results.len() >= least, "only {} of {least} checks were made:\n{}", results.len(), tail(console));
    Ok(results.len())
}

/// How long each check of an init script took, from its lines `AT SECONDS`, which precede the results.
pub fn durations_of_checks(console: &str) -> Vec<(&str, Duration)> {
    let (mut found, mut at, mut last) = (Vec::new(), 0.0, 0.0);
    for line in console.lines() {
        if let Some(seconds) = line.strip_prefix("AT ").and_then(|text| text.parse().ok()) {
            at = seconds;
        } else if let Some((_, result)) = line.split_once("RESULT ok ") {
            found.push((result, Duration::try_from_secs_f64(at - last).unwrap_or_default()));
            last = at;
        }
    }
    found
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_one_that_can_be_listed() {
        let mut initramfs = Initramfs::default();
        initramfs.add_file("/usr/bin/x", b"contents");
        initramfs.add_link("/bin/y", "/usr/bin/x");
        let archive = initramfs.finish();
        assert_eq!(archive.len() % 512, 0);
        let mut names = Vec::new();
        let mut rest = &archive[..];
        while rest.starts_with(b"070701") {
            let field = |n: usize| {
                let text = std::str::from_utf8(&rest[6 + 8 * n..14 + 8 * n]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (size, name_size) = (field(6), field(11));
            names.push(String::from_utf8(rest[110..110 + name_size - 1].to_vec()).unwrap());
            let data = (110 + name_size).next_multiple_of(4);
            rest = &rest[(data + size).next_multiple_of(4)..];
        }
        assert_eq!(names, [".", "usr", "usr/bin", "usr/bin/x", "bin", "bin/y", "TRAILER!!!"]);
    }

    #[test]
    fn a_module_names_what_it_needs() {
        assert_eq!(modules_needed(b"license=GPL\0depends=xor,raid6-pq\0retpoline=Y"), ["xor", "raid6_pq"]);
        assert!(modules_needed(b"\0depends=\0x").is_empty() && modules_needed(b"name=x").is_empty());
    }

    #[test]
    fn a_failed_check_or_a_missing_end_is_an_error() {
        assert_eq!(check_results("RESULT ok a\nRESULT ok b\nEND OF CHECKS\n", 2).unwrap(), 2);
        assert!(check_results("RESULT ok a\nRESULT failed b: x\nEND OF CHECKS\n", 2).is_err());
        assert!(check_results("RESULT ok a\n", 1).is_err());
        let timed = "AT 2.50\nRESULT ok a\n[ 3.0] kernel: AT 9\nAT 4.00\nRESULT ok b\nAT 3\nRESULT ok c\n";
        let expected = [("a", 2500), ("b", 1500), ("c", 0)].map(|(name, ms)| (name, Duration::from_millis(ms)));
        assert_eq!(durations_of_checks(timed), expected);
        assert!(check_results("END OF CHECKS\n", 1).is_err());
    }
}
