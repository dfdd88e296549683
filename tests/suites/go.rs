//! The tests of Go's own runtime and of the packages next to the kernel. Debian's golang-go contains their sources, and
//! so does any other Go toolchain.

use crate::{compare, plain_once};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use test_support::{Context, Ending, Need, Outcome, Outcomes, Skipped, Test, scratch_folder, test_case};

const PACKAGES: [&str; 8] = ["runtime", "runtime/debug", "sync", "os", "os/exec", "os/signal", "syscall", "time"];
const LIMIT: Duration = Duration::from_secs(900);

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Thp, Need::Command("go".into())];
    let of_package = |package: &'static str| {
        [
            test_case(format!("go/{package}/run"), needs(), move |t| check(t, package, false)),
            test_case(format!("go/{package}/only"), needs(), move |t| check(t, package, true)),
        ]
    };
    PACKAGES.into_iter().flat_map(of_package).collect()
}

fn check(t: &Context, package: &str, followed: bool) -> Result<()> {
    let tests = Tests::of(t, package)?;
    let plain = plain_once(&format!("go/{package}"), || tests.outcomes(t, tests.command()))?;
    let name = tests.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut options = vec!["--quiet"];
    if followed {
        options.extend(["--only", &name, "--follow-lifted"]);
    }
    let lifted = tests.outcomes(t, t.lifted(&options, &tests.command())?)?;
    compare(&format!("go/{package}/{}", if followed { "only" } else { "run" }), &plain, &lifted)
}

/// The tests of a package, built.
struct Tests {
    root: PathBuf,
    folder: PathBuf,
    program: PathBuf,
}

impl Tests {
    fn of(t: &Context, package: &str) -> Result<Self> {
        static BUILDING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut go = Command::new("go");
        go.args(["env", "GOROOT"]);
        let root = PathBuf::from(t.run(go)?.success()?.stdout.trim());
        let folder = root.join("src").join(package);
        let sources = fs::read_dir(&folder)
            .map(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with("_test.go")));
        if !sources.unwrap_or(false) {
            return Err(Skipped(format!("no tests in {}", folder.display())).into());
        }
        let programs = scratch_folder().join("go-tests");
        fs::create_dir_all(&programs)?;
        let program = programs.join(format!("{}.test", package.replace('/', "-")));
        let mut go = Command::new("go");
        go.args(["test", "-c", "-o"]).arg(&program).current_dir(&folder);
        t.run_within(go, LIMIT)?.success().context("go test -c")?;
        Ok(Self { root, folder, program })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-test.v", "-test.short", "-test.timeout=14m"]).current_dir(&self.folder);
        command.env("GOROOT", &self.root).env_remove("GOFLAGS");
        command
    }

    fn outcomes(&self, t: &Context, command: Command) -> Result<Outcomes> {
        let output = t.run_within(command, LIMIT)?;
        let mut outcomes = Outcomes::default();
        for line in output.stdout.lines() {
            // `--- PASS: TestName (0.01s)`; lines of subtests are indented.
            let Some((word, rest)) = line.strip_prefix("--- ").and_then(|line| line.split_once(": ")) else { continue };
            let name = rest.split_whitespace().next().context("a test without a name")?;
            outcomes.add(
                name,
                match word {
                    "PASS" => Outcome::Passed,
                    "SKIP" => Outcome::Skipped,
                    _ => Outcome::Failed,
                },
            );
        }
        let ended_well = matches!(output.ending, Ending::Exit(0 | 1));
        ensure!(ended_well, "{:?}:\n{}{}", output.ending, output.stdout, output.stderr);
        Ok(outcomes)
    }
}
