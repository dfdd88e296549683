//! Files in huge folios on other file systems and kernels, and programs on each file system: each machine is booted
//! once, with a disk for each file system.

use crate::{kernel_image, run_machine, script, with_pagelift};
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Initramfs, Need, Program, Test, VirtualMachine, modules_in_order, test_case};

const PROGRAMS: [&str; 4] = [
    "start/fixed_address_executable.c",
    "start/pie_by_default.c",
    "start/starts_another_with.c",
    "kernels/metadata_of_a_file.c",
];
/// Size of each disk in bytes. It is sparse; mkfs.xfs refuses much smaller ones.
const DISK_BYTES: u64 = 320 << 20;
/// The kernel modules that the machines need, unless they are built in.
pub const MODULES: [&str; 10] = [
    "virtio_pci",
    "virtio_blk",
    "crc32c_cryptoapi",
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "xfs",
    "erofs",
    "btrfs",
    "overlay",
];

/// A kernel, its file systems in the order of their disks, and the minimum number of its checks.
const MACHINES: [(&str, &[&str], usize); 4] = [
    ("linux-5.10-amd64", &["xfs", "ext4", "btrfs"], PROGRAMS_ON),
    ("linux-6.1-amd64", &["xfs", "ext4", "btrfs"], 28 + PROGRAMS_ON),
    ("linux-6.12-amd64", &["xfs", "erofs", "btrfs", "ext4"], 44 + PROGRAMS_ON),
    ("linux-new-amd64", &["xfs", "ext4", "btrfs"], 68 + PROGRAMS_ON),
];
/// Checks of programs_on.sh: seven on each of ext4, xfs, btrfs, tmpfs and overlayfs.
const PROGRAMS_ON: usize = 35;

pub fn tests(needs: impl Fn(&str) -> Vec<Need>) -> Vec<Test> {
    let machines = MACHINES.into_iter().map(|(kernel, file_systems, least)| {
        let makers = file_systems.iter().map(|name| Need::Command(format!("mkfs.{name}")));
        let modules = Need::File(modules_of(kernel).to_string_lossy().into_owned());
        let needs = needs(kernel).into_iter().chain(makers).chain([modules]).collect();
        test_case(format!("{kernel}/files"), needs, move |t| boot(t, kernel, file_systems, least))
    });
    machines.collect()
}

/// Adds kernel modules that are not built in, and their dependencies, in the order of loading.
pub fn add_modules(initramfs: &mut Initramfs, kernel: &str, names: &[&str]) -> Result<()> {
    for (number, module) in modules_in_order(&modules_of(kernel), names)?.iter().enumerate() {
        let name = module.file_name().context("a module without a name")?.to_string_lossy();
        initramfs.add_file(&format!("/modules/{number:02}-{name}"), &fs::read(module)?);
    }
    Ok(())
}

pub fn modules_of(kernel: &str) -> PathBuf {
    kernel_image(&format!("{kernel}.modules"))
}

fn boot(t: &Context, kernel: &str, file_systems: &[&str], least: usize) -> Result<()> {
    let mut initramfs = with_pagelift(&PROGRAMS)?;
    let programs = t.folder().join("programs");
    fs::create_dir(&programs)?;
    for source in PROGRAMS {
        let program = Program::named(source)?;
        fs::copy(program.build()?, programs.join(program.name()))?;
    }
    add_modules(&mut initramfs, kernel, &MODULES)?;
    initramfs.add_file("/init", &script(kernel, "files.sh", &["programs_on.sh"])?);
    let file = t.folder().join("initramfs");
    fs::write(&file, initramfs.finish())?;
    let disks = file_systems.iter().map(|name| disk(t, name, &programs)).collect::<Result<_>>()?;
    let machine = VirtualMachine {
        architecture: "x86_64",
        kernel: kernel_image(kernel),
        initramfs: file,
        nodes: vec![1800],
        more_cpus: 0,
        disks,
        boot: "",
    };
    run_machine(t, &machine, least)
}

/// An empty file system; a read-only one holds the programs.
pub fn disk(t: &Context, file_system: &str, programs: &Path) -> Result<PathBuf> {
    let path = t.folder().join(format!("{file_system}.disk"));
    let mut maker = Command::new(format!("mkfs.{file_system}"));
    if file_system == "erofs" {
        maker.arg(&path).arg(programs);
    } else {
        File::create(&path)?.set_len(DISK_BYTES)?;
        maker.arg(if file_system == "ext4" { "-q" } else { "-f" }).arg(&path);
    }
    t.run(maker)?.success()?;
    Ok(path)
}
