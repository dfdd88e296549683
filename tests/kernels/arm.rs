//! Machines of 64-bit ARM, with programs that the cross compiler builds.

use crate::{LIBRARY_PROGRAMS, kernel_image, run_machine, script, with_busybox, with_library};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{
    Context, Initramfs, Need, Test, VirtualMachine, program_source, shared_folder, target_folder, test_case,
};

pub fn tests() -> Vec<Test> {
    let arm = vec![
        Need::Command("qemu-system-aarch64".into()),
        Need::Command("aarch64-linux-gnu-gcc".into()),
        Need::File(kernel_image("linux-6.1-arm64").to_string_lossy().into_owned()),
        Need::File(kernel_image("busybox-arm64").to_string_lossy().into_owned()),
        Need::File(arm_pagelift().to_string_lossy().into_owned()),
        Need::File(arm_library().to_string_lossy().into_owned()),
    ];
    vec![
        test_case("linux-6.1-arm64/kernel", arm.clone(), boot_arm),
        test_case("linux-6.1-arm64/live", arm.clone(), boot_arm_live),
        test_case("linux-6.1-arm64/heap", arm_heap_needs(arm), boot_arm_heap),
    ]
}

/// Built by `make test` where the compiler for it is there.
fn arm_pagelift() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/release/pagelift")
}

fn arm_heap() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/release/libpagelift_heap.so")
}

fn arm_library() -> PathBuf {
    target_folder().join("aarch64-unknown-linux-gnu/library/libpagelift.a")
}

/// An initramfs for 64-bit ARM with some of the programs, each with its flags.
fn arm_initramfs(t: &Context, builds: &[(&str, &str)]) -> Result<Initramfs> {
    let mut initramfs = with_busybox(&kernel_image("busybox-arm64"))?;
    initramfs.add_file("/bin/pagelift", &fs::read(arm_pagelift())?);
    initramfs.add_file("/bin/pagelift-measure", &fs::read(arm_pagelift().with_file_name("pagelift-measure"))?);
    for library in arm_libraries()? {
        initramfs.add_file(
            &format!("/lib/{}", library.file_name().context("a name")?.to_string_lossy()),
            &fs::read(&library)?,
        );
    }
    for (source, flags) in builds {
        let name = source.rsplit('/').next().unwrap_or(source);
        let out = t.folder().join(name);
        let mut compiler = Command::new("aarch64-linux-gnu-gcc");
        compiler.args(["-g", "-O1"]).args(flags.split(' ')).arg("-o").arg(&out);
        compiler.arg("-I").arg(shared_folder()).arg(program_source(&format!("{source}.c"))?);
        t.run(compiler)?.success()?;
        initramfs.add_file(&format!("/bin/{name}"), &fs::read(&out)?);
        fs::remove_file(out)?;
    }
    Ok(initramfs)
}

fn run_arm(t: &Context, mut initramfs: Initramfs, name: &str, least: usize) -> Result<()> {
    initramfs.add_file("/init", &script(name, &[])?);
    let file = t.folder().join("initramfs");
    fs::write(&file, initramfs.finish())?;
    let kernel = kernel_image("linux-6.1-arm64");
    let machine = VirtualMachine {
        architecture: "aarch64",
        kernel,
        initramfs: file,
        nodes: vec![1800],
        more_cpus: 0,
        disks: Vec::new(),
        boot: "",
    };
    run_machine(t, &machine, least)
}

/// Boots the programs that are built for 64-bit ARM.
fn boot_arm(t: &Context) -> Result<()> {
    let mut initramfs = arm_initramfs(
        t,
        &[
            ("start/pie_by_default", "-fPIE -pie"),
            ("start/static_pie", "-static-pie -fPIE"),
            ("start/fixed_address_executable", "-fno-pie -no-pie"),
            ("start/relro_stays_read_only", "-fPIE -pie -Wl,-z,now"),
            ("start/heap_grows_and_shrinks", "-fPIE -pie"),
            ("start/handles_signals_at_start", "-fPIE -pie"),
            ("start/fork_and_write", "-fPIE -pie"),
            ("start/near_the_limit_of_mappings", "-fPIE -pie"),
        ],
    )?;
    let library = arm_library();
    for program in LIBRARY_PROGRAMS {
        let out = with_library(t, program, "aarch64-linux-gnu-gcc", &library)?;
        initramfs.add_file(&format!("/bin/{program}"), &fs::read(&out)?);
        fs::remove_file(out)?;
    }
    run_arm(t, initramfs, "kernel.sh", 47)
}

/// Programs that run are lifted and put back: what a borrowed thread goes on by differs between architectures.
fn boot_arm_live(t: &Context) -> Result<()> {
    let programs =
        ["sleeps_in_many_calls", "waits_once", "has_a_kernel_worker", "waits_beside_children", "is_woken_by_signals"];
    let sources = programs.map(|name| format!("attach/{name}"));
    let builds: Vec<_> = sources.iter().map(|source| (source.as_str(), "-fPIE -pie -pthread")).collect();
    run_arm(t, arm_initramfs(t, &builds)?, "live.sh", 19)
}

fn arm_heap_needs(needs: Vec<Need>) -> Vec<Need> {
    [needs, vec![Need::File(arm_heap().to_string_lossy().into_owned())]].concat()
}

/// The heap leaves the pool at forks: what a stopped thread goes on by differs between architectures.
fn boot_arm_heap(t: &Context) -> Result<()> {
    let programs = [
        "waits_last_as_long_as_they_should",
        "closes_once_while_it_forks",
        "forks_beside_threads_that_block_signals",
        "forks_while_threads_come_and_go",
        "forks_with_a_full_signal_queue",
        "forks_without_its_first_thread",
        "forks_of_several_threads",
    ];
    let sources = programs.map(|name| format!("heap/{name}"));
    let builds: Vec<_> = sources.iter().map(|source| (source.as_str(), "-fno-builtin -pthread")).collect();
    let mut initramfs = arm_initramfs(t, &builds)?;
    let heap = arm_heap();
    let place = format!("/bin/{}", heap.file_name().context("a name")?.to_string_lossy());
    initramfs.add_file(&place, &fs::read(&heap)?);
    run_arm(t, initramfs, "heap.sh", programs.len())
}

/// The C library and the dynamic linker of the cross compiler.
fn arm_libraries() -> Result<Vec<PathBuf>> {
    let folder = Path::new("/usr/aarch64-linux-gnu/lib");
    let names = ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"];
    let found: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
    ensure!(found.len() >= 3, "the cross compiler's libraries are not in {}", folder.display());
    Ok(found)
}
