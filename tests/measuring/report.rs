//! `pagelift report` with new records of `pagelift bench`.

use super::{SHORT, finished, started};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use test_support::{Context, Ending, Need, Test, test_case};

pub fn tests(needs: impl Fn() -> Vec<Need>) -> Vec<Test> {
    vec![
        test_case("report/a_live_program", needs(), live_program),
        test_case("report/whole_runs", needs(), whole_runs),
        test_case("report/mistakes", vec![], mistakes),
    ]
}

/// The observations of the program in a record.
fn observations(record: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(record)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(lines.iter().filter_map(|line| line.get("observed").cloned()).collect())
}

/// Bytes on huge pages in the map of an observation.
fn huge_in_map(seen: &Value) -> Result<u64> {
    let ranges = seen["map"]["ranges"].as_array().context("no map")?;
    let huge = ranges.iter().filter_map(|range| range["huge"].as_array()).flatten();
    Ok(huge.filter_map(|huge| huge["bytes"].as_u64()).sum())
}

fn live_program(t: &Context) -> Result<()> {
    let session = started(t)?;
    let (pid, record, page) = (session.pid().to_string(), t.folder().join("record"), t.folder().join("page.html"));
    let (file, output) = (record.display().to_string(), page.display().to_string());
    t.run(t.pagelift(&[&["bench", "--toggle", &pid][..], &SHORT, &["--for", "2", "-o", &file]].concat())?)?
        .success()?;
    let seen = observations(&record)?;
    ensure!(seen.len() == 3, "it was looked at {} times", seen.len());
    let arms: Vec<Option<u64>> = seen.iter().map(|seen| seen["arm"].as_u64()).collect();
    ensure!(arms == [None, Some(0), None], "{arms:?}");
    let huge: Vec<u64> = seen.iter().map(huge_in_map).collect::<Result<_>>()?;
    let covered = seen[1]["lift"]["covered"].as_u64().context("no lift")?;
    ensure!(huge[0] == 0 && huge[1] >= covered && covered > 0 && huge[2] == 0, "{huge:?}, lifted {covered}");
    ensure!(seen.iter().all(|seen| seen["memory"]["resident"].as_u64() > Some(0)), "no memory was seen");
    let said = t.run(t.pagelift(&["report", &file, "-o", &output])?)?.success()?;
    ensure!(said.stdout.starts_with(&format!("{output}: ")) && said.stdout.ends_with(" KB\n"), "{said:?}");
    let html = fs::read_to_string(&page)?;
    for expected in [
        "<h1",
        "plain against itself",
        "<b class=\"h0\"",
        "--pages=thp",
        "on huge pages, read back",
        "CPU time in the kernel",
    ] {
        ensure!(html.contains(expected), "{expected} is not in {output}");
    }
    let markdown = t.run(t.pagelift(&["report", "--markdown", &file, &file])?)?.success()?;
    ensure!(markdown.stdout.starts_with("## Does it pay? 2 measurements\n"), "{markdown:?}");
    finished(session)
}

/// Runs are observed while they run. Without `-o` the page gets a default name.
fn whole_runs(t: &Context) -> Result<()> {
    let record = t.folder().join("record");
    let file = record.display().to_string();
    t.run(t.pagelift(&["bench", "--for", "4", "--pages", "thp", "-o", &file, "--", "sleep", "0.3"])?)?.success()?;
    let seen = observations(&record)?;
    let lifted = seen.iter().find(|seen| seen["arm"] == 0).context("no lifted run was looked at")?;
    ensure!(lifted["lift"]["program"] == "sleep" && lifted["process"] == "sleep", "{lifted}");
    ensure!(lifted["memory"]["resident"].as_u64() > Some(0), "{lifted}");
    let mut command = t.pagelift(&["report", &file])?;
    command.current_dir(t.folder());
    let said = t.run(command)?.success()?;
    ensure!(said.stdout.starts_with("pagelift-report.html: "), "{said:?}");
    let html = fs::read_to_string(t.folder().join("pagelift-report.html"))?;
    ensure!(html.contains("sleep 0.3") && html.contains("holds no whole"), "{html}");
    Ok(())
}

fn mistakes(t: &Context) -> Result<()> {
    let header = "{\"format\":\"pagelift-bench\",\"version\":1,\"design\":\"runs\",\"machine\":{\"architecture\":\"\",\
        \"kernel\":\"\",\"cpus\":1,\"base_page_bytes\":4096,\"pools\":[],\"governors\":[]},\"program\":\"x\",\
        \"arms\":[\"a\"],\"unit\":\"runs\",\"per\":\"second\",\"seed\":1}\n";
    let write = |name: &str, text: &str| -> Result<String> {
        let path = t.folder().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let (sound, bad) = (write("sound", header)?, write("bad", &format!("{header}{{\"blok\":1}}\n"))?);
    let none = t.folder().join("none").display().to_string();
    let many = vec![sound.as_str(); 17];
    let cases: [(Vec<&str>, String); 6] = [
        (vec![], "required".to_owned()),
        (vec![&none], format!("pagelift: {none}: No such file")),
        (vec![&bad], format!("pagelift: {bad}: line 2 is not one of `pagelift bench -o`: unknown variant `blok`")),
        (vec![&sound, "-o", &sound], "is a record, which the page would replace; fix: another -o".to_owned()),
        (vec![&sound, "-o", &bad], "found a file that is no page of `pagelift report`".to_owned()),
        (many, "17 files are too many for a page; fix: 16 at most".to_owned()),
    ];
    for (words, expected) in cases {
        let mut command = t.pagelift(&[&["report"], &words[..]].concat())?;
        command.current_dir(t.folder());
        let output = t.run(command)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(&expected), "{words:?}: {output:?}");
    }
    let page = t.folder().join("pagelift-report.html");
    ensure!(fs::read_to_string(&sound)? == header && !page.exists());
    // Somebody who may write to the folder has put a pipe there.
    nix::unistd::mkfifo(&page, nix::sys::stat::Mode::S_IRWXU)?;
    let mut command = t.pagelift(&["report", &sound])?;
    command.current_dir(t.folder());
    let output = t.run(command)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("found a file of another kind"), "{output:?}");
    Ok(())
}
