//! Machines of 64-bit ARM, with programs that the cross compiler builds.

use crate::{
    LIBRARY_PROGRAMS, LONG_CHECKS, MORE_MAPPINGS, NEWEST_ARM, kernel_image, machine_of, makes_long_checks, run_machine,
    script, with_busybox, with_library,
};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{
    Context, Initramfs, Need, Test, VirtualMachine, makes_all_checks, program_source, shared_folder, target_folder,
    test_case,
};

/// Kernels, each booted once for all its checks.
const KERNELS: [&str; 2] = ["linux-6.1-arm64", NEWEST_ARM];
/// A kernel with base pages of 16 KiB, whose page tables and pools have other page sizes.
const KERNEL_OF_16_KIB: &str = "linux-16k-arm64";
/// Sources and flags of the programs.
const PROGRAMS: [(&str, &str); 8] = [
    ("start/pie_by_default", "-fPIE -pie"),
    ("start/static_pie", "-static-pie -fPIE"),
    ("start/fixed_address_executable", "-fno-pie -no-pie"),
    ("start/relro_stays_read_only", "-fPIE -pie -Wl,-z,now"),
    ("start/heap_grows_and_shrinks", "-fPIE -pie"),
    ("start/handles_signals_at_start", "-fPIE -pie"),
    ("start/fork_and_write", "-fPIE -pie"),
    ("start/near_the_limit_of_mappings", "-fPIE -pie"),
];
/// The way in which a borrowed thread continues differs between architectures.
const LIVE_PROGRAMS: [&str; 6] = [
    "attach/sleeps_in_many_calls",
    "attach/waits_once",
    "attach/has_a_kernel_worker",
    "attach/waits_beside_children",
    "attach/is_woken_by_signals",
    "measuring/storms",
];
/// The heap leaves the pool at forks, and the way in which a stopped thread continues differs between architectures.
const HEAP_PROGRAMS: [&str; 7] = [
    "heap/waits_last_as_long_as_they_should",
    "heap/closes_once_while_it_forks",
    "heap/forks_beside_threads_that_block_signals",
    "heap/forks_while_threads_come_and_go",
    "heap/forks_with_a_full_signal_queue",
    "heap/forks_without_its_first_thread",
    "heap/forks_of_several_threads",
];
const HEAP_FLAGS: &str = "-fno-builtin -pthread";
/// Sizes in KiB of the pools of a kernel with base pages of 4 KiB.
const POOL_SIZES: [u64; 4] = [64, 2 << 10, 32 << 10, 1 << 20];
/// Memory in MiB: a page of 1 GiB that is aligned to its size fits above the kernel.
const MEMORY: u32 = 2900;
/// Minimum number of checks of each kernel.
const CHECKS: usize = 42;
/// Those of `live.sh`.
const LIVE_CHECKS: usize = 20;
const CHECKS_OF_16_KIB: usize = 31;
/// With base pages of 16 KiB a transparent huge page has 32 MiB: code and bss of 70 MB hold one at any address.
const LARGE: &str = "-fPIE -pie -DCODE_PAGES=17500 -DBSS_BYTES=70000000";

pub fn tests() -> Vec<Test> {
    let needs = |kernel: &str| {
        vec![
            Need::Command("qemu-system-aarch64".into()),
            Need::Command("aarch64-linux-gnu-gcc".into()),
            Need::File(kernel_image(kernel).to_string_lossy().into_owned()),
            Need::File(kernel_image("busybox-arm64").to_string_lossy().into_owned()),
            Need::File(arm_pagelift().to_string_lossy().into_owned()),
            Need::File(arm_heap().to_string_lossy().into_owned()),
            Need::File(arm_library().to_string_lossy().into_owned()),
        ]
    };
    let kernels = KERNELS.into_iter();
    let usual = kernels.map(|kernel| test_case(format!("{kernel}/kernel"), needs(kernel), move |t| boot(t, kernel)));
    let other = test_case(format!("{KERNEL_OF_16_KIB}/kernel"), needs(KERNEL_OF_16_KIB), boot_with_16_kib);
    usual.chain([other]).collect()
}

/// Built by `make test` if its compiler is installed.
fn arm_pagelift() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/release/pagelift")
}

fn arm_heap() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/release/libpagelift_heap.so")
}

fn arm_library() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/library/libpagelift.a")
}

/// An initramfs for 64-bit ARM without programs.
fn arm_initramfs() -> Result<Initramfs> {
    let mut initramfs = with_busybox(&kernel_image("busybox-arm64"))?;
    let pagelift = arm_pagelift();
    for file in [pagelift.with_file_name("pagelift-measure"), pagelift, arm_heap()] {
        initramfs.add_file(&format!("/bin/{}", name_of(&file)?), &fs::read(&file)?);
    }
    for library in arm_libraries()? {
        initramfs.add_file(&format!("/lib/{}", name_of(&library)?), &fs::read(&library)?);
    }
    Ok(initramfs)
}

fn name_of(file: &Path) -> Result<String> {
    Ok(file.file_name().context("a name")?.to_string_lossy().into_owned())
}

/// Adds a program that is built with these flags.
fn add_program(t: &Context, initramfs: &mut Initramfs, source: &str, flags: &str, name: &str) -> Result<()> {
    let out = t.folder().join(name);
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    compiler.arg("-O1").args(flags.split(' ')).arg("-o").arg(&out);
    compiler.arg("-I").arg(shared_folder()).arg(program_source(&format!("{source}.c"))?);
    t.run(compiler)?.success()?;
    initramfs.add_file(&format!("/bin/{name}"), &fs::read(&out)?);
    Ok(fs::remove_file(out)?)
}

fn boot(t: &Context, kernel: &str) -> Result<()> {
    let mut initramfs = arm_initramfs()?;
    let live = LIVE_PROGRAMS.map(|source| (source, "-fPIE -pie -pthread"));
    let heap = HEAP_PROGRAMS.map(|source| (source, HEAP_FLAGS));
    let stat = [("measuring/uses_known_pages", "-static")];
    for (source, flags) in [&PROGRAMS[..], &live, &heap, &stat].concat() {
        add_program(t, &mut initramfs, source, flags, source.rsplit('/').next().unwrap_or(source))?;
    }
    add_pages_of_bss(t, &mut initramfs, &POOL_SIZES)?;
    add_library_programs(t, &mut initramfs, &LIBRARY_PROGRAMS)?;
    let mut more = vec!["sizes.sh", "arm_sizes.sh", "stat.sh", "storm.sh"];
    let mut least = if makes_all_checks() { CHECKS + MORE_MAPPINGS } else { CHECKS };
    if makes_long_checks(kernel) {
        more.extend(["live.sh", "starts.sh", "heap.sh"]);
        least += LIVE_CHECKS + LONG_CHECKS;
    }
    initramfs.add_file("/init", &script(kernel, "kernel.sh", &more)?);
    let boot = "hugepagesz=1G hugepages=1 hugepagesz=2M";
    let machine = machine_of(t, kernel, initramfs, vec![MEMORY])?;
    run_machine(t, &VirtualMachine { architecture: "aarch64", boot, ..machine }, least)
}

/// Programs that each have a bss of one page of the size in KiB.
fn add_pages_of_bss(t: &Context, initramfs: &mut Initramfs, sizes: &[u64]) -> Result<()> {
    for kib in sizes {
        let flags = format!("-fPIE -pie -DPAGE={}ull", kib << 10);
        add_program(t, initramfs, "kernels/has_a_bss_of_one_page", &flags, &format!("has_a_bss_of_{kib}"))?;
    }
    Ok(())
}

fn add_library_programs(t: &Context, initramfs: &mut Initramfs, programs: &[&str]) -> Result<()> {
    for program in programs {
        let out = with_library(t, program, "aarch64-linux-gnu-gcc", &arm_library())?;
        initramfs.add_file(&format!("/bin/{program}"), &fs::read(&out)?);
        fs::remove_file(out)?;
    }
    Ok(())
}

/// Base pages of 16 KiB: no code may assume 4 KiB or 2 MiB.
fn boot_with_16_kib(t: &Context) -> Result<()> {
    let mut initramfs = arm_initramfs()?;
    let heap = HEAP_PROGRAMS.map(|source| (source, HEAP_FLAGS));
    for (source, flags) in [&PROGRAMS[..], &heap].concat() {
        add_program(t, &mut initramfs, source, flags, source.rsplit('/').next().unwrap_or(source))?;
    }
    add_program(t, &mut initramfs, "start/pie_by_default", LARGE, "large_pie")?;
    add_pages_of_bss(t, &mut initramfs, &[2 << 10, 32 << 10])?;
    add_library_programs(t, &mut initramfs, &["lifts_itself_onto_2_mib"])?;
    initramfs
        .add_file("/init", &script(KERNEL_OF_16_KIB, "base_16k.sh", &["heap.sh", "sizes.sh", "base_16k_sizes.sh"])?);
    let machine = machine_of(t, KERNEL_OF_16_KIB, initramfs, vec![MEMORY])?;
    let machine = VirtualMachine { architecture: "aarch64", ..machine };
    run_machine(t, &machine, CHECKS_OF_16_KIB)
}

/// The C library and the dynamic linker of the cross compiler.
fn arm_libraries() -> Result<Vec<PathBuf>> {
    let folder = Path::new("/usr/aarch64-linux-gnu/lib");
    let names = ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"];
    let found: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
    ensure!(found.len() >= 3, "the cross compiler's libraries are not in {}", folder.display());
    Ok(found)
}
