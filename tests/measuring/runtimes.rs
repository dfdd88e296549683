//! Storms of runtimes that manage their own memory: Go's is named with advice, since no setting ends it, and Java's
//! with the cure for its collector, which works. The tests of `heap_choice::cures` check the cures for other
//! collectors.

use crate::{first_finding, is_cured, seen_by, storm_by};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::process::Command;
use test_support::{Context, Need, Program, Session, Test, test_case};

const JAVA: &str = "measuring/Storms.java";

pub fn tests(needs: &[Need]) -> Vec<Test> {
    let with = |compiler: &str| [needs, &[Need::Command(compiler.to_owned())]].concat();
    vec![
        test_case("go_is_named_with_advice", with("go"), go),
        test_case("go_that_is_asked_to_give_back_is_told_from_its_scavenger", with("go"), go_that_is_asked),
        test_case("java_is_named_and_cured", with("javac"), java),
    ]
}

fn go_storm(t: &Context, words: &[&str]) -> Result<Session> {
    let mut command = Command::new(Program::named("measuring/storms_of_go.go")?.build()?);
    command.args(words);
    storm_by(t, command)
}

/// Checks that the storm of Go is reported with this text, this advice and no cure.
fn go_says(t: &Context, words: &[&str], text: &str, advice: &str) -> Result<()> {
    let (report, _) = seen_by(t, || go_storm(t, words))?;
    let allocator = report["diagnoses"][0]["allocator"].as_str().unwrap_or_default();
    ensure!(allocator.starts_with("Go's runtime (it was built by go1."), "{allocator}");
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == text && finding["cures"].as_array().is_some_and(Vec::is_empty), "{finding}");
    ensure!(finding["advice"]["says"].as_str().is_some_and(|says| says.contains(advice)), "{finding}");
    Ok(())
}

fn go(t: &Context) -> Result<()> {
    go_says(t, &[], "Go's runtime gives free pages back by madvise", "GODEBUG=madvdontneed=0 (Go 1.12 and later)")?;
    let output = t.run({
        let mut command = t.pagelift(&["run", "--calm", "--dry-run", "--"])?;
        command.arg(Program::named("measuring/storms_of_go.go")?.build()?);
        command
    })?;
    ensure!(output.stderr.contains("no variable ends its shootdowns: Go's scavenger"), "{}", output.stderr);
    Ok(())
}

fn go_that_is_asked(t: &Context) -> Result<()> {
    let text = "Go's runtime gives free pages back because the program calls for it";
    go_says(t, &["asks"], text, "debug.FreeOSMemory")
}

fn java_storm(t: &Context, calm: bool) -> Result<Session> {
    let mut command = match calm {
        true => t.pagelift(&["run", "--quiet", "--calm", "--", "java"])?,
        false => Command::new("java"),
    };
    command.args(["-Xmx512m", "-XX:+UseG1GC"]).arg("-cp").arg(Program::named(JAVA)?.build()?).arg("Storms");
    storm_by(t, command)
}

fn java(t: &Context) -> Result<()> {
    let storms = seen_by(t, || java_storm(t, false))?;
    let diagnosis = &storms.0["diagnoses"][0];
    let allocator = diagnosis["allocator"].as_str().unwrap_or_default();
    ensure!(allocator.starts_with("a Java virtual machine (") && allocator.contains("libj"), "{allocator}");
    let set: Vec<_> =
        diagnosis["environment"].as_array().into_iter().flatten().filter_map(|text| text.as_str()).collect();
    ensure!(set.contains(&"-Xmx512m"), "{set:?}");
    // The heap's growth may cause as many shootdowns, when the kernel replaces its zero page.
    let findings = diagnosis["findings"].as_array().context("no findings")?;
    let own = |finding: &&Value| finding["text"] == "the Java virtual machine changes its own memory";
    let finding = findings.iter().find(own).with_context(|| format!("{findings:#?}"))?;
    ensure!(finding["share"].as_f64() > Some(0.2), "{finding}");
    let first = &finding["cures"][0];
    ensure!(first["variable"] == "JDK_JAVA_OPTIONS" && first["value"] == "-XX:MaxHeapFreeRatio=100", "{finding}");
    is_cured(t, java_storm(t, true)?, &storms)
}
