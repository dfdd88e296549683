//! Screens about processes, files and the machine fit terminals of 80 and of 120 columns. Their contents depend on the
//! machine, so that they cannot be compared with whole screens as in `screens.rs`.

use crate::{alone, needs_thp};
use anyhow::{Result, ensure};
use test_support::{Context, Need, Program, Test, test_case};

const WIDTHS: [usize; 2] = [80, 120];
const PID: &str = "PID";
const FILE: &str = "FILE";

/// Commands, with the number and the file of a process in place of [`PID`] and [`FILE`].
const COMMANDS: [&str; 21] = [
    "inspect PID",
    "inspect --lift all PID",
    "inspect FILE",
    "status",
    "status PID",
    "stat --for 100ms -p PID",
    "attach --dry-run PID",
    "attach --dry-run --heap=thp PID",
    "attach --dry-run --lift all PID",
    "attach -v PID",
    "detach PID",
    "run --dry-run -- FILE",
    "run --dry-run --pages hugetlb -- FILE",
    "pool show",
    "pool plan FILE",
    "pool plan -- FILE",
    "cache status",
    "cache status FILE",
    "align --check FILE",
    "align --relayout --check FILE",
    "image list",
];

/// One test for all commands.
pub fn test() -> Test {
    let needs = vec![Need::Root, Need::Pool(0), Need::Command("gcc".into())];
    test_case("screens_fit_the_terminal", needs, |t| WIDTHS.into_iter().try_for_each(|width| fit(t, width)))
}

fn fit(t: &Context, width: usize) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let file = Program::named("cli/has_constants_and_heap.c")?.build()?.display().to_string();
    let mut session = t.session(std::process::Command::new(&file))?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    for words in COMMANDS {
        let replaced = |word| match word {
            PID => pid.as_str(),
            FILE => file.as_str(),
            word => word,
        };
        let words: Vec<&str> = words.split(' ').map(replaced).collect();
        let mut command = t.pagelift(&words)?;
        command.env("COLUMNS", width.to_string());
        // The status of a check or of an empty machine is no matter here.
        let output = t.run(command)?;
        for line in output.stdout.lines().chain(output.stderr.lines()) {
            ensure!(fits(line, width), "{words:?}: wider than {width} columns: {line}");
        }
        ensure!(!(output.stdout + &output.stderr).trim().is_empty(), "{words:?}: no screen");
    }
    session.send("\n")?;
    session.finish()?.success().map(drop)
}

/// True if the line fits, or is one word, which is never broken.
fn fits(line: &str, width: usize) -> bool {
    line.chars().count() <= width || !line.trim().contains(' ')
}
