//! Real programs, plain and lifted: the same results, no error, a clean end, and the due memory on huge pages.

mod builds;
mod compilers;
mod cpython;
mod databases;
mod interpreters;
mod mariadb;

use anyhow::{Context as _, Result, ensure};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;
use test_support::{
    Context, Kind, LoadedElf, Need, Test, View, check_lifted, default_huge_page, due_ranges, main_of, poll_until,
    source_of, test_case,
};

fn main() -> ExitCode {
    let mut tests = mariadb::tests();
    tests.extend(databases::tests());
    tests.extend(interpreters::tests());
    tests.extend(cpython::tests());
    tests.extend(compilers::tests());
    tests.extend(builds::tests());
    main_of(tests)
}

/// The answer of a plain program. The first test that needs it runs the program; the tests of other sources of pages
/// compare with the same answer.
struct PlainAnswer(Mutex<Option<String>>);

impl PlainAnswer {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, run: impl FnOnce() -> Result<String>) -> Result<String> {
        let mut answer = self.0.lock().map_err(|_| anyhow::anyhow!("the test that ran the plain program panicked"))?;
        let known = match answer.take() {
            Some(known) => known,
            None => run()?,
        };
        Ok(answer.insert(known).clone())
    }
}

/// One test for each source of pages: with a pool of this size in bytes, and on transparent huge pages.
fn both_ways(name: &str, needs: &[&str], pool: u64, body: fn(&Context, &str) -> Result<()>) -> Vec<Test> {
    let parsed = || needs.iter().map(|need| Need::parse(need).unwrap_or(Need::Root)).collect::<Vec<_>>();
    let mut with_pool = parsed();
    with_pool.push(Need::Pool(pool));
    let mut with_thp = parsed();
    with_thp.push(Need::Thp);
    vec![
        test_case(format!("{name}/hugetlb"), with_pool, move |t| body(t, "hugetlb")),
        test_case(format!("{name}/thp"), with_thp, move |t| body(t, "thp")),
    ]
}

/// Checks that the object's kinds which hold whole huge pages are on huge pages; at least one kind must hold some.
fn check_object(t: &Context, view: &View, object: &LoadedElf, kinds: &[Kind], pages: &str) -> Result<()> {
    let huge = default_huge_page()?;
    let holds_any = |kind: &Kind| !due_ranges(object, &[*kind], view.base_page, huge).is_empty();
    let kinds: Vec<Kind> = kinds.iter().copied().filter(holds_any).collect();
    ensure!(!kinds.is_empty(), "nothing of {} holds a whole huge page", object.path);
    let bytes = check_lifted(view, object, &kinds, huge, |writable| source_of(pages, writable))?;
    t.note(format!("{}: {kinds:?}, {} MiB on huge pages", object.path, bytes >> 20));
    Ok(())
}

/// Checks a running process until the check passes; a starting program needs a moment.
fn soon(what: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = Ok(());
    let waited = poll_until(Duration::from_secs(120), what, || {
        last = check();
        last.is_ok()
    });
    match (waited, last) {
        (Ok(()), _) => Ok(()),
        (Err(waited), last) => last.with_context(|| format!("{waited:#}")),
    }
}
