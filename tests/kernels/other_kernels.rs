//! Other kernels and another architecture, in virtual machines under software emulation: Debian's 5.10, which cannot move
//! hugetlb mappings and knows neither MADV_POPULATE_WRITE nor MADV_COLLAPSE, 6.1, two NUMA nodes, and 64-bit ARM; file
//! systems with and without large folios on 6.1, 6.12 and the newest kernel.

mod file_systems;

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Initramfs, Need, Program, Test, VirtualMachine, check_results, main_of, pagelift_binary, program_source,
    record_results, shared_folder, target_folder, test_case, tests_folder, workspace,
};

/// Far more than it takes: the machine is emulated, and others may be busy on the same processors.
const LIMIT: Duration = Duration::from_secs(900);
/// Sizes in MiB. A page of 1 GiB fits into the second, above the initramfs, which QEMU puts below 2 GiB.
const TWO_NODES: &[u32] = &[700, 2600];
const PROGRAMS: [&str; 10] = [
    "start/pie_by_default.c",
    "start/static_pie.c",
    "start/fixed_address_executable.c",
    "start/no_libc.S",
    "start/relro_stays_read_only.c",
    "start/threads_of_a_constructor.c",
    "start/heap_grows_and_shrinks.c",
    "start/fork_and_write.c",
    "start/handles_signals_at_start.c",
    "start/near_the_limit_of_mappings.c",
];

/// Programs that lift themselves and check what came of it.
const LIBRARY_PROGRAMS: [&str; 5] = [
    "restores_byte_for_byte",
    "forks_with_an_empty_pool",
    "lifts_itself",
    "other_threads_run",
    "handlers_of_the_program_around_fork",
];

fn main() -> ExitCode {
    let needs = |kernel: &str| {
        vec![
            Need::Command("qemu-system-x86_64".into()),
            Need::File(kernel_image(kernel).to_string_lossy().into_owned()),
            Need::Command("busybox".into()),
            Need::Machine("x86_64".into()),
        ]
    };
    let arm = vec![
        Need::Command("qemu-system-aarch64".into()),
        Need::Command("aarch64-linux-gnu-gcc".into()),
        Need::File(kernel_image("linux-6.1-arm64").to_string_lossy().into_owned()),
        Need::File(kernel_image("busybox-arm64").to_string_lossy().into_owned()),
        Need::File(arm_pagelift().to_string_lossy().into_owned()),
        Need::File(arm_library().to_string_lossy().into_owned()),
    ];
    let on = |kernel: &'static str, script: &'static str, nodes: &'static [u32], least: usize| {
        let name = format!("{kernel}/{}", script.trim_end_matches(".sh"));
        test_case(name, needs(kernel), move |t| boot(t, kernel, script, nodes, least))
    };
    let mut tests: Vec<Test> = vec![
        on("linux-5.10-amd64", "kernel.sh", &[1800], 47),
        on("linux-6.1-amd64", "kernel.sh", &[1800], 58),
        on("linux-5.10-amd64", "nodes.sh", TWO_NODES, 42),
        on("linux-6.1-amd64", "nodes.sh", TWO_NODES, 44),
        on("linux-new-amd64", "nodes.sh", TWO_NODES, 42),
        test_case("linux-6.1-arm64/kernel", arm.clone(), boot_arm),
        test_case("linux-6.1-arm64/live", arm.clone(), boot_arm_live),
        test_case("linux-6.1-arm64/heap", arm_heap_needs(arm), boot_arm_heap),
    ];
    tests.extend(file_systems::tests(needs));
    main_of(tests)
}

/// What `scripts/fetch-test-kernels` has fetched.
fn kernel_image(name: &str) -> PathBuf {
    target_folder().join("test-kernels").join(name)
}

/// The init script of a machine, with what it checks beside its own.
fn script(name: &str, more: &[&str]) -> Result<Vec<u8>> {
    let folder = tests_folder().join("kernels/machines");
    let mut text = "#!/bin/sh\nexport PATH=/bin:/usr/bin\n".to_owned();
    text += &fs::read_to_string(folder.join("checks.sh"))?;
    for name in [&[name], more].concat() {
        text += &fs::read_to_string(folder.join(name)).with_context(|| format!("no {name}"))?;
    }
    text += "\necho END OF CHECKS\nsync\npoweroff -f\n";
    Ok(text.into_bytes())
}

/// The program of `storm.sh`.
const STORM: &str = "measuring/storms.c";

fn with_busybox(busybox: &Path) -> Result<Initramfs> {
    let mut initramfs = Initramfs::default();
    initramfs.add_file("/bin/busybox", &fs::read(busybox)?);
    let applets = "sh mount awk cat grep tr tail cmp mkdir cp insmod taskset mkfifo rm usleep timeout kill poweroff sync uname ls wc true sleep env sed head";
    for applet in applets.split(' ') {
        initramfs.add_link(&format!("/bin/{applet}"), "busybox");
    }
    for folder in ["/proc", "/sys", "/dev", "/tmp", "/run"] {
        initramfs.add_folder(folder);
    }
    Ok(initramfs)
}

fn own_busybox() -> Result<&'static Path> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    found.context("no busybox")
}

fn run_machine(t: &Context, machine: &VirtualMachine, least: usize) -> Result<()> {
    let output = t.run_within(machine.command(), LIMIT)?;
    let console = output.stdout.replace('\r', "");
    record_results(t.name(), &console)?;
    let checks = check_results(&console, least).with_context(|| output.stderr.clone())?;
    t.note(format!("{checks} checks in {:?}", output.took));
    Ok(())
}

fn boot(t: &Context, kernel: &str, name: &str, nodes: &[u32], least: usize) -> Result<()> {
    let mut initramfs = with_busybox(own_busybox()?)?;
    initramfs.add_program(&pagelift_binary()?, "/bin/pagelift")?;
    initramfs.add_program(&pagelift_binary()?.with_file_name("pagelift-measure"), "/bin/pagelift-measure")?;
    for name in PROGRAMS.iter().chain(&["start/starts_another_with.c", STORM]) {
        let program = Program::named(name)?;
        initramfs.add_program(&program.build()?, &format!("/bin/{}", program.name()))?;
    }
    if name == "kernel.sh" {
        // Kernels that cannot move pool pages take code away for a moment, so the library must be an object of its own
        // there, and with other threads it lifts nothing; nor can they hold writes.
        let old = kernel.starts_with("linux-5.10");
        let (file, programs) =
            if old { ("libpagelift.so", &LIBRARY_PROGRAMS[..2]) } else { ("libpagelift.a", &LIBRARY_PROGRAMS[..]) };
        for program in programs {
            let out = with_library(t, program, "gcc", &target_folder().join("library").join(file))?;
            initramfs.add_program(&out, &format!("/bin/{program}"))?;
            fs::remove_file(out)?;
        }
    }
    let more: &[&str] = match (kernel, name) {
        ("linux-6.1-amd64", "kernel.sh") => &["storm.sh", "doctor.sh"],
        _ => &[],
    };
    initramfs.add_file("/init", &script(name, more)?);
    let file = t.folder().join("initramfs");
    fs::write(&file, initramfs.finish())?;
    // Without two nodes nothing looks at it.
    let boot = if nodes.len() > 1 { "hugepagesz=1G hugepages=1 hugepagesz=2M" } else { "" };
    let (kernel, nodes) = (kernel_image(kernel), nodes.to_vec());
    let machine = VirtualMachine { architecture: "x86_64", kernel, initramfs: file, nodes, disks: Vec::new(), boot };
    run_machine(t, &machine, least)
}

/// One of the library's own test programs, linked with it.
fn with_library(t: &Context, name: &str, compiler: &str, library: &Path) -> Result<PathBuf> {
    let out = t.folder().join(name);
    let mut compiler = Command::new(compiler);
    compiler.args(["-g", "-O1", "-Wno-unused-result", "-I"]).arg(workspace().join("include")).arg("-o").arg(&out);
    compiler.arg("-I").arg(shared_folder()).arg(program_source(&format!("library/{name}.c"))?);
    let run_path = format!("-Wl,-rpath,{}", library.parent().unwrap_or(library).display());
    compiler.arg(library).arg(run_path).arg("-lpthread");
    t.run(compiler)?.success().context("it does not build; the library is built by `packaging/library/build`")?;
    Ok(out)
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
    run_arm(t, initramfs, "kernel.sh", 45)
}

/// Programs that run are lifted and put back: what a borrowed thread goes on by differs between architectures.
fn boot_arm_live(t: &Context) -> Result<()> {
    let programs =
        ["sleeps_in_many_calls", "waits_once", "has_a_kernel_worker", "waits_beside_children", "is_woken_by_signals"];
    let sources = programs.map(|name| format!("attach/{name}"));
    let builds: Vec<_> = sources.iter().map(|source| (source.as_str(), "-fPIE -pie -pthread")).collect();
    run_arm(t, arm_initramfs(t, &builds)?, "live.sh", 15)
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
