//! Shared images: what is in them, who may make them, what becomes of them, and that tools read them.

mod contents;
mod hostile;
mod making;
mod runs;
mod safety;
mod sources;
mod tools;

use pagelift_tests::main_of;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut trials = contents::trials();
    trials.extend(making::trials());
    trials.extend(sources::trials());
    trials.extend(safety::trials());
    trials.extend(hostile::trials());
    trials.extend(tools::trials());
    trials.extend(runs::trials());
    main_of(trials)
}
