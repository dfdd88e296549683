//! Chromium without a display renders a local page: the same document and the same picture.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Need, Test, test_case, tests_folder};

const LIMIT: Duration = Duration::from_secs(240);
const MODES: [(&str, &[&str]); 3] = [
    ("run", &["--quiet"]),
    ("only", &["--quiet", "--only", "chromium"]),
    ("only_followed", &["--quiet", "--only", "chromium", "--follow-lifted"]),
];

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Thp, Need::Command("chromium".into()), Need::Memory(2 << 30)];
    MODES
        .map(|(name, options)| {
            test_case(format!("chromium/{name}"), needs(), move |t| {
                let plain = render(t, "plain", None)?;
                let lifted = render(t, "lifted", Some(options))?;
                ensure!(lifted.document == plain.document, "plain\n{}\nlifted\n{}", plain.document, lifted.document);
                ensure!(lifted.picture == plain.picture, "the pictures differ; see *.png");
                Ok(())
            })
        })
        .into()
}

struct Rendered {
    document: String,
    picture: Vec<u8>,
}

fn render(t: &Context, name: &str, options: Option<&[&str]>) -> Result<Rendered> {
    let picture = t.folder().join(format!("{name}.png"));
    let mut command = Command::new("chromium");
    // Chromium refuses its sandbox to root.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update"]);
    command.arg(format!("--user-data-dir={}", t.folder().join(name).display()));
    command.args(["--window-size=400,300", "--dump-dom"]).arg(format!("--screenshot={}", picture.display()));
    command.arg(format!("file://{}", tests_folder().join("suites/page.html").display())).current_dir(t.folder());
    let command = match options {
        Some(options) => t.lifted(options, &command)?,
        None => command,
    };
    let document = t.run_within(command, LIMIT)?.success()?.stdout;
    ensure!(document.contains(">148933 primes<"), "the page's script has not run:\n{document}");
    let picture = fs::read(&picture).with_context(|| format!("no {}", picture.display()))?;
    Ok(Rendered { document, picture })
}
