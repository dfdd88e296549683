//! Writes the table of estimates of docs/RESULTS.md from outputs of `pagelift estimate --json`:
//! `pagelift-estimates FOLDER PAGE`. The rest of the page stays.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- begin: written by `make estimates` -->\n";
const END: &str = "<!-- end: written by `make estimates` -->\n";
/// The estimates in the order of the table, with their subjects.
const NAMES: [(&str, &str); 5] = [
    ("mariadb", "MariaDB, point selects"),
    ("cc1plus", "cc1plus, `-O2`"),
    ("node", "node"),
    ("java", "java"),
    ("java-early", "java, libjvm.so loaded before the entry"),
];
const VARIANTS: [&str; 3] = ["plain", "lifted", "heap too"];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, page] = &words[..] else { anyhow::bail!("needed: FOLDER PAGE") };
    let mut estimates = Vec::new();
    for (name, title) in NAMES {
        let path = Path::new(folder).join(format!("{name}.json"));
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let estimate: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        estimates.push((title, estimate));
    }
    ensure!(!estimates.is_empty(), "{folder} holds no estimate; fix: make estimates");
    let text = fs::read_to_string(page).with_context(|| page.clone())?;
    fs::write(page, replaced(&text, &table(&estimates)?)?).with_context(|| page.clone())?;
    println!("{page}: {} estimates", estimates.len());
    Ok(())
}

/// The page with the part between the marks replaced.
fn replaced(page: &str, table: &str) -> Result<String> {
    let marks = page.find(BEGIN).zip(page.find(END)).filter(|(begin, end)| begin < end);
    let (begin, end) = marks.with_context(|| format!("the page lacks its marks:\n{BEGIN}{END}"))?;
    Ok(format!("{}{BEGIN}{table}{}", &page[..begin], &page[end..]))
}

fn table(estimates: &[(&str, Value)]) -> Result<String> {
    let mut text =
        "| program | pages | code misses | code walks | data misses | data walks |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (title, estimate) in estimates {
        for (variant, pages) in VARIANTS.into_iter().enumerate() {
            let figure = |side: &str, name: &str| figure(estimate, variant, side, name);
            let title = if variant == 0 { title } else { "" };
            let _ = writeln!(
                text,
                "| {title} | {pages} | {:.3} | {:.4} | {:.3} | {:.4} |",
                figure("code", "misses")?,
                figure("code", "walks")?,
                figure("data", "misses")?,
                figure("data", "walks")?
            );
        }
    }
    text += "\n";
    for (title, estimate) in estimates {
        let trace = &estimate["trace"];
        let (instructions, threads) = (&trace["instructions"], &trace["threads"]);
        let (skipped, seconds) = (&trace["slice"]["skip"], &trace["slice"]["after_seconds"]);
        let _ = writeln!(
            text,
            "- {title}: {instructions} instructions, after {skipped} instructions and {seconds} s; threads: {threads}"
        );
    }
    Ok(text)
}

/// Events per 1,000 instructions.
fn figure(estimate: &Value, variant: usize, side: &str, name: &str) -> Result<f64> {
    let counted = estimate["trace"]["instructions"].as_f64().context("no instructions")?;
    let count = estimate["variants"][variant][side][name].as_f64();
    Ok(count.with_context(|| format!("no {name} of {side}"))? * 1000.0 / counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_have_enough_digits_and_the_rest_of_the_page_stays() {
        let side = |misses: u64, walks: u64| json!({"code": {"misses": misses, "walks": walks}, "data": {"misses": 0, "walks": 1}});
        let estimate = json!({
            "trace": {"instructions": 1_000_000, "threads": 4, "slice": {"skip": 0, "after_seconds": 20}},
            "variants": [side(9_685, 1), side(0, 0), side(0, 0)],
        });
        let table = table(&[("MariaDB", estimate)]).unwrap();
        assert!(table.contains("| MariaDB | plain | 9.685 | 0.0010 | 0.000 | 0.0010 |"), "{table}");
        assert!(
            table.contains("|  | heap too | 0.000 | 0.0000 |")
                && table.contains("after 0 instructions and 20 s; threads: 4"),
            "{table}"
        );
        let page = replaced(&format!("before\n{BEGIN}old\n{END}after\n"), "new\n").unwrap();
        assert_eq!(page, format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(replaced("no marks", "new").is_err());
    }
}
