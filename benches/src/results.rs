//! Writes the tables of docs/RESULTS.md from records of `pagelift bench` alone: `pagelift-results FOLDER PAGE`.
//!
//! Each record `NAME.jsonl` of the folder gives a row for each of its arms, and the command that repeats it;
//! `NAME.skipped` is the reason for a missing measurement. No measurement is left out. The rest of the page stays.

mod page;

use anyhow::{Context, Result, ensure};
use bench::record::read;
use bench_report::words;
use measure::machine::PoolFacts;
use measure::record::{Design, Record};
use page::Marks;
use process_view::quoted;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;

const MARKS: Marks = Marks {
    begin: "<!-- begin: written by `make results` from its records -->\n",
    end: "<!-- end: written by `make results` -->\n",
};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, page] = &words[..] else { anyhow::bail!("needed: FOLDER PAGE") };
    let records = records(Path::new(folder))?;
    ensure!(!records.is_empty(), "{folder} holds no record; fix: make results");
    let text = fs::read_to_string(page).with_context(|| page.clone())?;
    fs::write(page, MARKS.replaced(&text, &tables(&records, &skipped(Path::new(folder))?))?)
        .with_context(|| page.clone())?;
    println!("{page}: {} records", records.len());
    Ok(())
}

/// Names and records, in order of their names.
fn records(folder: &Path) -> Result<Vec<(String, Record)>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let record = read(&File::open(&path)?).with_context(|| path.display().to_string())?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        records.push((name, record));
    }
    records.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(records)
}

/// Names of skipped measurements, and the reasons.
fn skipped(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "skipped") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push((name, fs::read_to_string(&path)?.trim().to_owned()));
        }
    }
    all.sort();
    Ok(all)
}

fn tables(records: &[(String, Record)], skipped: &[(String, String)]) -> String {
    let mut text = "\n## Does it pay?\n\n".to_owned();
    text += &machines(records);
    text += "\n| measured | compared with plain | difference [95 %] | plain against itself | finding |\n|---|---|---|---|---|\n";
    for (name, record) in records {
        let answer = record.answer();
        let unit = cell(&format!("{} per {}", record.header.unit, words::cost(record)));
        for (number, (arm, of_arm)) in record.header.arms.iter().zip(&answer.arms).enumerate() {
            let first = if number == 0 { format!("{}, {unit}", cell(name)) } else { String::new() };
            let control = if number == 0 { words::interval(&answer.control) } else { String::new() };
            let finding = cell(&words::said(record, &answer, number));
            let _ = writeln!(text, "| {first} | {} | {} | {control} | {finding} |", cell(arm), words::interval(of_arm));
        }
    }
    if !skipped.is_empty() {
        text += "\nNot measured:\n\n";
    }
    for (name, why) in skipped {
        let _ = writeln!(text, "- {}: {}", cell(name), cell(why));
    }
    text += "\nEach measurement, with the command that repeats it at the root of the source, with `target/release` in\nPATH. \
             `make results RESULTS=NAME` makes its files in `target/results/built`; for example `RESULTS=rustc`:\n";
    for (name, record) in records {
        let _ = writeln!(text, "\n- {}: {}{}\n", cell(name), how(record), ended(record));
        let _ = writeln!(text, "      {}", command(record));
    }
    text + "\n"
}

/// Each machine on which a record was measured.
fn machines(records: &[(String, Record)]) -> String {
    let machine = |record: &Record| {
        let facts = &record.header.machine;
        let virtual_machine = if facts.virtual_machine == Some(true) { ", a virtual machine" } else { "" };
        let cpu = facts.cpu_model.as_deref().unwrap_or("unknown CPU");
        let (cpus, kernel) = (facts.cpus, &facts.kernel);
        let version = record.header.pagelift.as_deref().unwrap_or("of an unknown version");
        cell(&format!("{cpus} CPUs of {cpu}{virtual_machine}, Linux {kernel}, Pagelift {version}"))
    };
    let all: BTreeSet<String> = records.iter().map(|(_, record)| machine(record)).collect();
    let busiest = records.iter().filter_map(|(_, record)| record.header.machine.other_load).fold(0.0, f64::max);
    let busy = format!("Others used up to {:.0} % of the CPUs when a measurement began.", busiest * 100.0);
    let all: String = all.into_iter().map(|machine| machine + ".\n").collect();
    format!(
        "Measured by `pagelift bench` on {all}{busy} Intervals are at 95 %. Differences that plain shows against itself are \
         not claimed; programs without a gain are listed, too.\nShort measurements have wide intervals: `TIME=600 make results` takes \
         longer and gives narrower ones.\n"
    )
}

fn how(record: &Record) -> String {
    let blocks = record.timed_blocks().count();
    let pools = record.header.machine.pools.iter().filter(|pool| pool.total > 0);
    let in_pool = |pool: &PoolFacts| format!("; {} pages of {} MiB in the pool", pool.total, pool.page_bytes >> 20);
    design(record, blocks) + &pools.map(in_pool).collect::<String>()
}

fn design(record: &Record, blocks: usize) -> String {
    let starts: BTreeSet<u32> = record.blocks().iter().map(|block| block.start).collect();
    match record.header.design {
        Design::Toggle => format!("a live process, {blocks} blocks of four windows"),
        Design::Runs => format!("whole runs, {blocks} blocks of four"),
        Design::Servers => format!("servers side by side, {} starts, {blocks} blocks of four bursts", starts.len()),
    }
}

fn ended(record: &Record) -> String {
    words::end(record).map_or_else(String::new, |end| format!("; {}", cell(&end)))
}

/// The command without the file of the record, quoted for a shell.
fn command(record: &Record) -> String {
    let mut words = record.header.command.iter();
    let mut kept = vec!["pagelift".to_owned()];
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" | "--output" => drop(words.next()),
            "--" => {
                kept.push(word.clone());
                kept.extend(words.by_ref().map(quoted));
            }
            _ => kept.push(quoted(word)),
        }
    }
    kept.join(" ")
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::record::{Event, Header, TimedBlock};
    use measure::toggle::{Blocks, Measured, Per, Treatment, Window};

    fn record(gain: f64) -> Record {
        let arms = vec!["thp".to_owned(), "a|b".to_owned()];
        let mut header = Header::new(Design::Servers, "server".into(), arms, "queries".into(), Per::CpuSecond, 3);
        header.command =
            ["bench", "--load", "it's {port}", "-o", "x", "--", "sh", "-o", ""].map(str::to_owned).to_vec();
        let block = |(number, block): (usize, measure::toggle::Block)| {
            let in_force = |treated: bool| treated && block.treatment == Treatment::Arm(0);
            let work = |treated: bool| if in_force(treated) { gain } else { 1.0 };
            let windows =
                block.treated().map(|treated| Window { work: work(treated), cpu: 1.0, wall: 1.0, cycles: 0.0 });
            let measured = Measured { block, start: (number / 12) as u32, windows };
            Event::Block(Box::new(TimedBlock {
                measured,
                at: None,
                counters: None,
                switches: None,
                latency: None,
                retried: None,
                unlifted: None,
                unchecked: false,
            }))
        };
        Record { header, events: Blocks::new(2, 1).take(60).enumerate().map(block).collect() }
    }

    #[test]
    fn a_record_gives_its_rows_and_its_command() {
        let nothing = ("node".to_owned(), "no node".to_owned());
        let text = tables(&[("redis".to_owned(), record(1.1))], &[nothing]);
        assert!(text.contains("\nNot measured:\n\n- node: no node\n"), "{text}");
        let expected = "| redis, queries per CPU second | thp | +10.0 % [+10.0, +10.0] | +0.0 % [+0.0, +0.0] | it pays";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("|  | a\\|b | +0.0 % [+0.0, +0.0] |  | no difference"), "{text}");
        assert!(
            text.contains("redis: servers side by side, 5 starts, 60 blocks of four bursts; the file was cut off"),
            "{text}"
        );
        assert!(text.contains("      pagelift bench --load \"it's {port}\" -- sh -o ''\n"), "{text}");
    }

    #[test]
    fn only_records_are_read_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let line = serde_json::to_string(&record(1.0).header).unwrap() + "\n";
        for name in ["b.jsonl", "a.jsonl", ".new", "note.txt"] {
            fs::write(folder.path().join(name), &line).unwrap();
        }
        let names: Vec<String> = records(folder.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
        fs::write(folder.path().join("c.jsonl"), "no record\n").unwrap();
        assert!(records(folder.path()).is_err());
    }
}
