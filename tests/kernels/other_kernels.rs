//! Other kernels and another architecture, in virtual machines under software emulation: Debian's 5.10, which cannot
//! move hugetlb mappings and knows neither MADV_POPULATE_WRITE nor MADV_COLLAPSE, 6.1, 6.12 and the newest, each booted
//! with one NUMA node, the oldest and the newest also with two, and 64-bit ARM 6.1 and 6.12; file systems with and without large folios
//! on 6.1, 6.12 and the newest kernel; shared, anonymous and executable memory and data files of running programs;
//! programs on each of the usual file systems; programs with glibc 2.31, 2.41, the newest, and musl.

mod arm;
mod c_libraries;
mod file_systems;

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Initramfs, Need, Program, VirtualMachine, check_results, durations_of_checks, main_of_machines,
    makes_all_checks, pagelift_binary, program_source, record_results, shared_folder, target_folder, test_case,
    tests_folder, workspace,
};

/// Far more than needed: the machine is emulated, and other processes may use the same CPUs.
const LIMIT: Duration = Duration::from_secs(3000);
/// Checks that take as long are listed with the durations of the tests.
const LONG: Duration = Duration::from_secs(5);
/// The oldest and the newest kernel of amd64, and the newest of 64-bit ARM.
const OLDEST: &str = "linux-5.10-amd64";
const NEWEST: &str = "linux-new-amd64";
const NEWEST_ARM: &str = "linux-6.12-arm64";
/// Further checks of `kernel.sh` and `storm.sh` if all are made.
const MORE_MAPPINGS: usize = 10;
const MORE_STORMS: usize = 6;
/// Checks of `starts.sh` and `heap.sh` together, which take a minute or two in an emulated machine.
const LONG_CHECKS: usize = 9;
/// Sizes in MiB. A page of 1 GiB fits into the second, above the initramfs, which QEMU places below 2 GiB.
const TWO_NODES: &[u32] = &[700, 2600];
const PROGRAMS: [&str; 11] = [
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
    "start/starts_another_with.c",
];
/// The programs of `live.sh`.
const LIVE_PROGRAMS: [&str; 6] = [
    "attach/sleeps_in_many_calls.c",
    "attach/waits_once.c",
    "attach/has_a_kernel_worker.c",
    "attach/waits_beside_children.c",
    "attach/is_woken_by_signals.c",
    "attach/waits_for_signals.c",
];
/// The programs of `stat.sh` and `storm.sh`.
const MEASURED_PROGRAMS: [&str; 2] = ["measuring/uses_known_pages.c", STORM];
const HEAP_PROGRAMS: [&str; 7] = [
    "heap/waits_last_as_long_as_they_should.c",
    "heap/closes_once_while_it_forks.c",
    "heap/forks_beside_threads_that_block_signals.c",
    "heap/forks_while_threads_come_and_go.c",
    "heap/forks_with_a_full_signal_queue.c",
    "heap/forks_without_its_first_thread.c",
    "heap/forks_of_several_threads.c",
];

/// The programs of `memory.sh`.
const MEMORY_PROGRAMS: [&str; 3] =
    ["attach/holds_shared_memory.c", "attach/holds_private_memory.c", "file_source/maps_data.c"];

/// Programs that lift themselves and check the result.
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
    let on_one_node = |kernel: &'static str, least: usize| {
        let built = CONFORMANCE.map(|(test, _)| Need::File(test_program(test).to_string_lossy().into_owned()));
        let needs = needs(kernel).into_iter().chain(built).collect();
        test_case(format!("{kernel}/kernel"), needs, move |t| boot_with_one_node(t, kernel, least))
    };
    let on_two_nodes = |kernel: &'static str, least: usize| {
        let modules = file_systems::modules_of(kernel).to_string_lossy().into_owned();
        let more = [Need::Command("mkfs.ext4".into()), Need::Command("mkfs.xfs".into()), Need::File(modules)];
        let needs = needs(kernel).into_iter().chain(more).collect();
        test_case(format!("{kernel}/nodes"), needs, move |t| boot_with_two_nodes(t, kernel, least))
    };
    let with_memory = |kernel: &'static str, least: usize| {
        let modules = file_systems::modules_of(kernel).to_string_lossy().into_owned();
        let needs = needs(kernel).into_iter().chain([Need::Command("mkfs.xfs".into()), Need::File(modules)]).collect();
        test_case(format!("{kernel}/memory"), needs, move |t| boot_with_memory(t, kernel, least))
    };
    // The longest tests come first.
    let mut tests = arm::tests();
    tests.extend([
        on_one_node(NEWEST, 97),
        on_one_node(OLDEST, 85),
        on_one_node("linux-6.1-amd64", 71),
        on_one_node("linux-6.12-amd64", 62),
        on_two_nodes(OLDEST, 57),
        on_two_nodes(NEWEST, 97),
    ]);
    if makes_all_checks() {
        tests.extend(["linux-6.1-amd64", "linux-6.12-amd64"].map(|kernel| on_two_nodes(kernel, 97)));
    }
    tests.extend(file_systems::tests(needs));
    tests.extend([
        with_memory(OLDEST, 7),
        with_memory("linux-6.1-amd64", 14),
        with_memory("linux-6.12-amd64", 14),
        with_memory(NEWEST, 14),
    ]);
    main_of_machines(tests)
}

/// A file or folder that `scripts/fetch-test-kernels` has fetched.
fn kernel_image(name: &str) -> PathBuf {
    target_folder().join("test-kernels").join(name)
}

/// True if a kernel makes the long checks, too: what they test differs between the oldest and the newest kernel, if at all.
fn makes_long_checks(kernel: &str) -> bool {
    [OLDEST, NEWEST, NEWEST_ARM].contains(&kernel) || makes_all_checks()
}

/// The init script of a machine with this kernel: common functions, its checks, and more checks. Some checks have more cases
/// on the newest kernel.
fn script(kernel: &str, name: &str, more: &[&str]) -> Result<Vec<u8>> {
    let folder = tests_folder().join("kernels/machines");
    let mut text = "#!/bin/sh\nexport PATH=/bin:/usr/bin\n".to_owned();
    text += &format!("makes_all_checks={}\n", kernel == NEWEST || makes_all_checks());
    text += &fs::read_to_string(folder.join("checks.sh"))?;
    for name in [&[name], more].concat() {
        text += &fs::read_to_string(folder.join(name)).with_context(|| format!("no {name}"))?;
    }
    text += "\necho END OF CHECKS\nsync\npoweroff -f\n";
    Ok(text.into_bytes())
}

/// The program of `storm.sh`.
const STORM: &str = "measuring/storms.c";
/// CPUs that `storm.sh` sets online.
const MORE_CPUS: u32 = 2;

fn with_busybox(busybox: &Path) -> Result<Initramfs> {
    let mut initramfs = Initramfs::default();
    initramfs.add_file("/bin/busybox", &fs::read(busybox)?);
    let applets = "sh mount awk cat grep tr tail cmp mkdir cp insmod taskset mkfifo rm usleep timeout kill poweroff sync uname ls wc true sleep env sed head ln";
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
    // docs/COMPATIBILITY.md is made of all checks.
    if makes_all_checks() {
        record_results(t.name(), &console)?;
    }
    for (name, took) in durations_of_checks(&console).into_iter().filter(|(_, took)| *took >= LONG) {
        t.note_duration_of(name, took);
    }
    let checks = check_results(&console, least).with_context(|| output.stderr.clone())?;
    t.note(format!("{checks} checks in {:?}", output.took));
    Ok(())
}

/// An initramfs with pagelift and these programs.
fn with_pagelift(programs: &[&str]) -> Result<Initramfs> {
    let mut initramfs = with_busybox(own_busybox()?)?;
    for name in ["pagelift", "pagelift-measure", "libpagelift_heap.so"] {
        initramfs.add_program(&pagelift_binary()?.with_file_name(name), &format!("/bin/{name}"))?;
    }
    initramfs.add_file("/lib/libpagelift.so", &fs::read(target_folder().join("library/libpagelift.so"))?);
    for name in programs {
        let program = Program::named(name)?;
        initramfs.add_program(&program.build()?, &format!("/bin/{}", program.name()))?;
    }
    Ok(initramfs)
}

/// Test programs of the executors: crate, and its name in the machine.
const CONFORMANCE: [(&str, &str); 2] = [("conformance", "conformance_inside"), ("ptrace", "conformance_outside")];

/// The newest test program of this name that cargo has built, or the pattern of its path.
fn test_program(name: &str) -> PathBuf {
    let folder = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_path_buf)).unwrap_or_default();
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.extension().is_none() && file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    let files = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_it);
    let newest = files.max_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok());
    newest.unwrap_or_else(|| folder.join(format!("{name}-*")))
}

/// Boots one machine for all checks that need one node.
fn boot_with_one_node(t: &Context, kernel: &str, least: usize) -> Result<()> {
    // The live programs take two minutes in an emulated machine, so only the oldest and the newest kernel run them.
    // They are large, and an initramfs must fit into half of the machine's memory.
    let is_live = [OLDEST, NEWEST].contains(&kernel);
    let live = if is_live { &LIVE_PROGRAMS[..] } else { &[] };
    let mut initramfs = with_pagelift(&[&PROGRAMS[..], live, &MEASURED_PROGRAMS, &HEAP_PROGRAMS].concat())?;
    // If the kernel cannot move pool pages, code is unmapped for a moment: the library must be a separate object, lifts
    // nothing while other threads run, and cannot hold writes.
    let old = kernel.starts_with("linux-5.10");
    let (file, programs) =
        if old { ("libpagelift.so", &LIBRARY_PROGRAMS[..2]) } else { ("libpagelift.a", &LIBRARY_PROGRAMS[..]) };
    for program in programs {
        let out = with_library(t, program, "gcc", &target_folder().join("library").join(file))?;
        initramfs.add_program(&out, &format!("/bin/{program}"))?;
        fs::remove_file(out)?;
    }
    for (test, name) in CONFORMANCE {
        initramfs.add_program(&test_program(test), &format!("/bin/{name}"))?;
    }
    let mut least = least;
    if makes_all_checks() && kernel != NEWEST {
        least += MORE_MAPPINGS + MORE_STORMS;
    }
    let mut more = vec!["conformance.sh", "groups.sh", "limits.sh", "stat.sh"];
    if is_live {
        more.push("live.sh");
    }
    if makes_long_checks(kernel) {
        more.extend(["starts.sh", "heap.sh"]);
        least += if old { LONG_CHECKS - 1 } else { LONG_CHECKS };
    }
    more.push("storm.sh");
    if kernel == "linux-6.1-amd64" {
        least += c_libraries::add(t, &mut initramfs)?;
        // The last one forbids tracing until the machine ends.
        more.extend(["libraries.sh", "doctor.sh"]);
    }
    initramfs.add_file("/init", &script(kernel, "kernel.sh", &more)?);
    let machine = VirtualMachine { more_cpus: MORE_CPUS, ..machine_of(t, kernel, initramfs, vec![1800])? };
    run_machine(t, &machine, least)
}

fn boot_with_two_nodes(t: &Context, kernel: &str, least: usize) -> Result<()> {
    let mut initramfs = with_pagelift(&PROGRAMS)?;
    let page_of_bss = Program::named("kernels/has_a_bss_of_one_page.c")?.build()?;
    initramfs.add_program(&page_of_bss, "/bin/has_a_bss_of_1048576")?;
    let mut disks = Vec::new();
    // Before Linux 5.15 disks have no distinguishing numbers, so their files get no images.
    if !kernel.starts_with("linux-5.10") {
        file_systems::add_modules(&mut initramfs, kernel, &file_systems::MODULES)?;
        for file_system in ["ext4", "xfs"] {
            disks.push(file_systems::disk(t, file_system, t.folder())?);
        }
    }
    initramfs.add_file("/init", &script(kernel, "sizes.sh", &["nodes.sh", "groups.sh", "memory_limits.sh"])?);
    let boot = "hugepagesz=1G hugepages=1 hugepagesz=2M";
    let machine = VirtualMachine { disks, boot, ..machine_of(t, kernel, initramfs, TWO_NODES.to_vec())? };
    run_machine(t, &machine, least)
}

/// Boots one machine for memory of running programs besides objects.
fn boot_with_memory(t: &Context, kernel: &str, least: usize) -> Result<()> {
    let mut initramfs = with_pagelift(&MEMORY_PROGRAMS)?;
    file_systems::add_modules(&mut initramfs, kernel, &file_systems::MODULES)?;
    initramfs.add_file("/init", &script(kernel, "memory.sh", &[])?);
    let disks = vec![file_systems::disk(t, "xfs", t.folder())?];
    run_machine(t, &VirtualMachine { disks, ..machine_of(t, kernel, initramfs, vec![1200])? }, least)
}

/// A machine with nodes of these sizes in MiB, and nothing more.
fn machine_of(t: &Context, kernel: &str, initramfs: Initramfs, nodes: Vec<u32>) -> Result<VirtualMachine> {
    let file = t.folder().join("initramfs");
    fs::write(&file, initramfs.finish())?;
    let kernel = kernel_image(kernel);
    Ok(VirtualMachine {
        architecture: "x86_64",
        kernel,
        initramfs: file,
        nodes,
        more_cpus: 0,
        disks: Vec::new(),
        boot: "",
    })
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
