//! Other C libraries than this machine's, and programs for them, for a machine's initramfs.

use crate::kernel_image;
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use test_support::{Context, Initramfs, program_source, shared_folder};

/// Sources of the programs: tests/GROUP/programs/NAME.c.
const PROGRAMS: [&str; 3] = ["start/pie_by_default", "start/fork_and_write", "heap/holds_a_running_heap"];
/// Fetched by `scripts/fetch-test-kernels`: the oldest tested C library, and two newer ones than this machine's. A
/// program that was built for an older glibc runs with a newer one.
const GLIBCS: [&str; 3] = [OLDEST, "glibc-2.41", "glibc-new"];
const OLDEST: &str = "glibc-2.31";
/// Shared objects that the programs need or load. Before glibc 2.34 threads had a separate object.
const OBJECTS: [&str; 4] = ["ld-linux-x86-64.so.2", "libc.so.6", "libpthread.so.0", "libdl.so.2"];
const MUSL_LINKER: &str = "/lib/ld-musl-x86_64.so.1";

/// The folder in which programs for glibc expect the dynamic linker: a link that the init script sets to one of the
/// libraries.
const CURRENT: &str = "/libc/current";

/// Number of checks that libraries.sh makes of each library.
const CHECKS: usize = 6;

/// Adds /libraries/NAME with the shared objects that are installed here, and /programs/glibc and /programs/musl.
/// Returns the number of checks of these libraries.
pub fn add(t: &Context, initramfs: &mut Initramfs) -> Result<usize> {
    let mut libraries = 0;
    let is_here = |name: &&str| kernel_image(name).join("libc.so.6").exists();
    if GLIBCS.iter().all(is_here) && kernel_image(&format!("{OLDEST}-dev")).exists() {
        for (name, object) in GLIBCS.iter().flat_map(|name| OBJECTS.map(|object| (name, object))) {
            let file = kernel_image(name).join(object);
            initramfs.add_file(&format!("/libraries/{name}/{object}"), &fs::read(file)?);
        }
        add_programs(t, initramfs, "glibc", for_glibc)?;
        libraries += GLIBCS.len();
    } else {
        t.note("other glibcs are not here; fix: scripts/fetch-test-kernels");
    }
    let musl = Path::new(MUSL_LINKER);
    if musl.exists() {
        initramfs.add_folder("/libraries/musl");
        initramfs.add_file(MUSL_LINKER, &fs::read(musl)?);
        let compiler = || Compiler { command: Command::new("musl-gcc"), libraries: Vec::new() };
        add_programs(t, initramfs, "musl", compiler)?;
        libraries += 1;
    } else {
        t.note("musl is not here; fix: apt-get install musl-tools");
    }
    Ok(libraries * CHECKS)
}

/// A compiler with the words before the source and after it.
struct Compiler {
    command: Command,
    libraries: Vec<OsString>,
}

/// The compiler for programs of every glibc: with the headers and objects of the oldest.
fn for_glibc() -> Compiler {
    let (oldest, development) = (kernel_image(OLDEST), kernel_image(&format!("{OLDEST}-dev")));
    let objects = development.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new("gcc");
    command.arg("-isystem").arg(development.join("usr/include"));
    command.arg("-isystem").arg(development.join("usr/include/x86_64-linux-gnu"));
    command.arg(format!("-Wl,--dynamic-linker={CURRENT}/ld-linux-x86-64.so.2,-rpath,{CURRENT}"));
    // Links and scripts of the development package lead to the libraries of the running system.
    command.args(["-nostartfiles", "-nodefaultlibs"]).args(["Scrt1.o", "crti.o"].map(|object| objects.join(object)));
    let shared = ["libpthread.so.0", "libc.so.6", "ld-linux-x86-64.so.2"].map(|object| oldest.join(object).into());
    let rest = ["libc_nonshared.a", "crtn.o"].map(|object| objects.join(object).into());
    Compiler { command, libraries: shared.into_iter().chain(rest).chain(["-lgcc".into()]).collect() }
}

fn add_programs(t: &Context, initramfs: &mut Initramfs, library: &str, compiler: impl Fn() -> Compiler) -> Result<()> {
    for source in PROGRAMS {
        let name = source.rsplit('/').next().unwrap_or(source);
        let out = t.folder().join(format!("{library}-{name}"));
        let Compiler { mut command, libraries } = compiler();
        command.args(["-g", "-O1", "-Wno-unused-result", "-fno-builtin", "-fPIE", "-pie"]);
        command.arg("-I").arg(shared_folder()).arg("-o").arg(&out).arg(program_source(&format!("{source}.c"))?);
        command.args(libraries);
        t.run(command)?.success().with_context(|| format!("{name} does not build for {library}"))?;
        initramfs.add_file(&format!("/programs/{library}/{name}"), &fs::read(&out)?);
        fs::remove_file(out)?;
    }
    Ok(())
}
