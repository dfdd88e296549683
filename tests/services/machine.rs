//! A Debian in a virtual machine that installs the packages, has its servers lifted, and boots again.

use crate::properties::{OF_A_RUN, PARTS_OF_A_RUN};
use anyhow::{Context as _, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, DebianRelease, Initramfs, Need, VirtualMachine, check_results, modules_in_order, pack_uncompressed,
    packed_needs, program_source, target_folder, tests_folder, unpack_debian,
};

/// Debian 12's own kernel.
const KERNEL: &str = "linux-6.1-amd64";
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c_intel", "ext4"];
/// Limit of each boot. A boot takes 45 s; other processes may use the same CPUs.
const LIMIT: Duration = Duration::from_secs(1500);
/// Minimum number of results of each boot.
const BOOTS: [usize; 2] = [26, 67];
const MEMORY: u32 = 1024;
/// Words for the kernel: huge pages only on request.
const BOOT: &str = "transparent_hugepage=madvise";
/// In MiB: the file system is sparse.
const DISK: &str = "1600M";
/// Units without use in the machine that delay its boots. Without udev the terminal's device never appears.
const UNUSED_UNITS: [&str; 3] = ["serial-getty@ttyS0.service", "e2scrub_reap.service", "systemd-logind.service"];
/// The unit of the container with a server.
const UNIT: &str = "answers.service";

/// Loads the disk's modules, and starts the Debian on the disk. No write waits for the disk, because the disk is not
/// kept.
const INIT: &str = "#!/bin/sh
export PATH=/bin
mount -t proc none /proc
mount -t devtmpfs none /dev
for module in /modules/*; do insmod $module; done
mount -t ext4 -o nobarrier /dev/vda /root
exec switch_root /root /sbin/init
";

pub fn needs() -> Vec<Need> {
    let mut needs = vec![Need::Root, Need::Machine("x86_64".into())];
    let commands = ["qemu-system-x86_64", "mmdebstrap", "busybox", "mkfs.ext4", "dh"];
    needs.extend(commands.map(|name| Need::Command(name.into())));
    needs.extend([kernel(), modules()].map(|file| Need::File(file.to_string_lossy().into_owned())));
    needs.extend(packed_needs());
    needs
}

fn kernel() -> PathBuf {
    target_folder().join("test-kernels").join(KERNEL)
}

fn modules() -> PathBuf {
    kernel().with_file_name(format!("{KERNEL}.modules"))
}

/// Boots twice; `machine/boots.sh` describes the steps and checks of each boot.
pub fn reboots(t: &Context) -> Result<()> {
    let (disk, initramfs) = (disk(t)?, t.folder().join("initramfs"));
    fs::write(&initramfs, first_file_system()?)?;
    let machine = VirtualMachine {
        architecture: "x86_64",
        kernel: kernel(),
        initramfs,
        nodes: vec![MEMORY],
        more_cpus: 0,
        disks: vec![disk.clone()],
        boot: BOOT,
    };
    let result = (1..).zip(BOOTS).try_for_each(|(boot, least)| {
        let output = t.run_within(machine.command(), LIMIT)?;
        let console = output.stdout.replace('\r', "");
        let checks = check_results(&console, least).with_context(|| format!("boot {boot}: {}", output.stderr))?;
        t.note(format!("boot {boot}: {checks} checks in {:?}\n{console}", output.took));
        Ok(())
    });
    // A disk of half a gigabyte is not kept as an artefact.
    fs::remove_file(disk)?;
    result
}

fn first_file_system() -> Result<Vec<u8>> {
    let mut initramfs = Initramfs::default();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    initramfs.add_file("/bin/busybox", &fs::read(busybox.context("no busybox")?)?);
    for applet in ["sh", "mount", "insmod", "switch_root"] {
        initramfs.add_link(&format!("/bin/{applet}"), "busybox");
    }
    for folder in ["/proc", "/dev", "/root"] {
        initramfs.add_folder(folder);
    }
    for (number, module) in modules_in_order(&modules(), &MODULES)?.iter().enumerate() {
        initramfs.add_file(&format!("/modules/{number:02}"), &fs::read(module)?);
    }
    initramfs.add_file("/init", INIT.as_bytes());
    Ok(initramfs.finish())
}

/// The Debian with the packages and the checks, as a file system.
fn disk(t: &Context) -> Result<PathBuf> {
    let root = t.folder().join("root");
    unpack_debian(t, DebianRelease::BOOKWORM, &root)?;
    let result = fill(t, &root).and_then(|()| {
        let disk = t.folder().join("disk");
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-O", "^has_journal", "-d"]).args([&root, &disk]).arg(DISK);
        t.run(make)?.success()?;
        Ok(disk)
    });
    fs::remove_dir_all(root)?;
    result
}

fn fill(t: &Context, root: &Path) -> Result<()> {
    let (checks, units) = (root.join("checks"), root.join("etc/systemd/system"));
    fs::create_dir_all(&checks)?;
    for (revision, folder) in [("1", "packages"), ("2", "later-packages")] {
        pack_uncompressed(t, revision, &checks.join(folder))?;
    }
    let here = tests_folder().join("services/machine");
    fs::copy(here.join("boots.sh"), checks.join("boots.sh"))?;
    fs::copy(here.join("checks.service"), units.join("checks.service"))?;
    let of_a_run = OF_A_RUN.iter().map(|name| format!("^{name}")).chain(PARTS_OF_A_RUN.map(str::to_owned));
    fs::write(checks.join("of-a-run"), of_a_run.map(|line| line + "\n").collect::<String>())?;
    fs::copy(tests_folder().join("services/units").join(UNIT), units.join(UNIT))?;
    fs::copy(program_source("services/answers.js")?, root.join("usr/share/answers.js"))?;
    for unit in ["checks.service", UNIT] {
        symlink(format!("../{unit}"), units.join("multi-user.target.wants").join(unit))?;
    }
    UNUSED_UNITS.iter().try_for_each(|unit| symlink("/dev/null", units.join(unit)))?;
    Ok(())
}
