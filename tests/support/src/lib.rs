//! The shared parts of the end-to-end tests: tests with requirements, a reserved pool, programs built from
//! `tests/GROUP/programs`, runs with a time limit, and an independent view of the memory that backs a process.
//!
//! No module here uses the code that lifts: the due huge pages are computed from the ELF files and `/proc` alone.
#![forbid(unsafe_code)]

mod cgroup;
mod compatibility;
mod context;
mod cpu_times;
mod debian;
mod due;
mod image_store;
mod mariadb;
mod need;
mod outcomes;
mod packages;
mod pool;
mod process;
mod program;
mod python_tests;
mod scheduling;
mod setting;
mod silent_server;
mod sizes;
mod source_tree;
mod uprobe;
mod view;
mod virtual_machine;

pub use cgroup::{ControlGroup, DeepFreezer, Freezer, Limit};
pub use compatibility::record_results;
pub use context::{Context, Skipped, main_of, main_of_machines, main_of_one_at_a_time, main_of_waiting, test_case};
pub use cpu_times::CpuTimes;
pub use debian::{DebianRelease, make_debian, unpack_debian};
pub use due::{Kind, Source, check_lifted, check_range, check_unlifted, due_ranges, source_of};
pub use image_store::{
    Image, InstalledFolder, Range, TestStore, copy_of_a_program, copy_program, hold, make_small, write_script,
};
pub use mariadb::{MariadbServer, sysbench_count};
pub use need::{Need, command_exists, is_root, meminfo};
pub use outcomes::{Outcome, Outcomes};
pub use packages::{PackageKind, files_of, pack, pack_uncompressed, packed_needs, packer, remove_packages};
pub use pool::{PoolReservation, available_pages, default_huge_page, pool_file};
pub use process::{Ending, Output, Session, exchange_text, poll_until};
pub use program::{Program, program_files, program_source, shared_folder};
pub use python_tests::{FinishedPythonTests, PythonRun, PythonTests, RunningPythonTests, python, python_name};
pub use scheduling::{LATE_HELPER, repeat_upon, until_scheduled};
pub use setting::Setting;
pub use silent_server::SilentServer;
pub use source_tree::{GOOGLETEST, SourceTree, lifted_programs, same_outputs};
pub use uprobe::Uprobe;
pub use view::{Flag, LoadedElf, View, process_field, process_state, tracer_of};
pub use virtual_machine::{
    Initramfs, VirtualMachine, check_results, durations_of_checks, makes_all_checks, modules_in_order,
};

/// One test, with its name and body.
pub use libtest_mimic::Trial as Test;
pub use sizes::mebibytes;
use std::path::PathBuf;

/// The folder of all tests, where each group has its `programs/`.
pub fn tests_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default()
}

/// The workspace's root folder.
pub fn workspace() -> PathBuf {
    tests_folder().parent().map(PathBuf::from).unwrap_or_default()
}

/// The folder for builds and kept files of the tests: `pagelift-tests` in the target folder of this test.
pub fn scratch_folder() -> PathBuf {
    target_folder().join("pagelift-tests")
}

/// Cargo's target folder, from the path of the running executable: a test (`target/PROFILE/deps/NAME`) or a program
/// (`target/PROFILE/NAME`).
pub fn target_folder() -> PathBuf {
    let running = std::env::current_exe().unwrap_or_default();
    let profile = running.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    profile.and_then(std::path::Path::parent).map(PathBuf::from).unwrap_or_default()
}

/// The `pagelift` under test: `$PAGELIFT_BINARY`, the release build, or the build of this test's profile, whichever is
/// found first.
///
/// # Errors
/// No `pagelift` was built: the command that builds one.
pub fn pagelift_binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("PAGELIFT_BINARY") {
        return Ok(PathBuf::from(path));
    }
    let built = ["release", "debug"].map(|profile| target_folder().join(profile).join("pagelift"));
    built.into_iter().find(|path| path.exists()).ok_or_else(|| {
        anyhow::anyhow!("no pagelift in {}/release; build it with `cargo build --release`", target_folder().display())
    })
}
