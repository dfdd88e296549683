//! The count of reserved pages while a child has the pages of a process that has ended.
//!
//! Linux 6.10 and later count too few then, below zero even, if the pages were reserved.

use crate::count;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::process::Command;
use test_support::{Context, Need, Program, Session, Test, default_huge_page, pool_file, test_case};

const PROGRAM: &str = "pools/leaves_pages_to_its_child.c";
/// For two programs of four pages each.
const POOL: u64 = 32 << 20;

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Pool(POOL), Need::Command("gcc".into())];
    vec![
        test_case("free_pages_are_used_where_the_kernel_counts_too_few_reserved_ones", needs(), counted_too_few),
        test_case("lifted_code_leaves_the_count_of_reserved_pages_as_it_is", needs(), left_as_it_is),
    ]
}

/// A daemon that is lifted, or not, before it forks.
fn started(t: &Context, lifted: bool) -> Result<Session> {
    let mut program = Command::new(Program::named(PROGRAM)?.build()?);
    if lifted {
        program.arg("maps-no-pages");
        program = t.lifted(&["--pages", "hugetlb", "--lift", "text"], &program)?;
    }
    let session = t.session(program)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn counted_too_few(t: &Context) -> Result<()> {
    let other = started(t, false)?;
    let page = default_huge_page()?;
    t.note(format!("resv_hugepages: {}", count(page, "resv_hugepages")?));
    let lifted = started(t, true)?;
    ensure!(lifted.stderr_so_far().contains("(hugetlb)"), "{}", lifted.stderr_so_far());
    let shown: Value = serde_json::from_str(&t.run(t.pagelift(&["pool", "show", "--json"])?)?.success()?.stdout)?;
    let own = |pool: &&Value| pool["size"].as_u64() == Some(page.bytes());
    let pool = shown["pools"].as_array().and_then(|pools| pools.iter().find(own)).context("no pool")?;
    ensure!(
        pool["reserved"] == 0 && pool["available"] == pool["free"] && pool["free"] == count(page, "free_hugepages")?,
        "{pool}"
    );
    lifted.finish()?.success()?;
    other.finish()?.success()?;
    t.pool()?.wait_until_all_free()
}

fn left_as_it_is(t: &Context) -> Result<()> {
    let lifted = started(t, true)?;
    let page = default_huge_page()?;
    let reserved = std::fs::read_to_string(pool_file(page, "resv_hugepages"))?;
    ensure!(reserved.trim() == "0", "the kernel counts {} reserved pages: {}", reserved.trim(), lifted.stderr_so_far());
    lifted.finish()?.success()?;
    t.pool()?.wait_until_all_free()
}
