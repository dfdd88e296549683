//! Counts of free memory in arenas, and the passes that return free memory. `give_back.c` and mimalloc are compiled into
//! a separate program.
//!
//! The library itself, which would replace this program's allocator, is not linked.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Compiles the cases once and returns the program's path.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let include = env!("MIMALLOC_INCLUDE");
        let program = format!("{}/give_back", env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/give_back.c");
        let status = Command::new("cc")
            .args(["-g", "-O1", "-w", "-DMI_BUILD_RELEASE", "-DMI_DEBUG=0", "-DNDEBUG", "-I", include])
            .arg(format!("-I{include}/../src"))
            .args(["-o", &program])
            .arg(source)
            .arg("-lpthread")
            .status();
        assert!(status.expect("cc starts").success(), "the cases are not compiled");
        program
    })
}

fn run(case: &str) {
    let output = Command::new(program()).arg(case).output().expect("the program starts");
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn new_memory_leaves_the_count_of_free_memory() {
    run("new_memory_leaves_the_count");
}

#[test]
fn memory_is_returned_while_new_memory_is_taken() {
    run("churn_returns_memory");
}

#[test]
fn a_new_thread_searches_no_pages_before_an_interval_has_passed() {
    run("new_threads_search_nothing");
}

#[test]
fn memory_that_is_freed_during_a_pass_is_returned_by_that_thread() {
    run("frees_during_a_pass_count");
}

#[test]
fn memory_that_is_freed_during_a_pass_in_vain_is_returned() {
    run("frees_during_a_vain_pass_count");
}

#[test]
fn memory_that_is_freed_during_a_trim_is_returned() {
    run("frees_during_a_trim_count");
}

#[test]
fn memory_that_is_freed_while_huge_pages_are_broken_up_is_returned() {
    run("frees_during_a_break_up_count");
}
