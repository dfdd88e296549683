//! Shared images: their contents, the rights to make them, their life cycle, and tools that read them.

mod contents;
mod hostile;
mod making;
mod room;
mod runs;
mod safety;
mod sources;
mod tools;

use std::process::ExitCode;
use test_support::main_of;

fn main() -> ExitCode {
    let mut tests = contents::tests();
    tests.extend(making::tests());
    tests.extend(sources::tests());
    tests.extend(safety::tests());
    tests.extend(hostile::tests());
    tests.extend(room::tests());
    tests.extend(tools::tests());
    tests.extend(runs::tests());
    main_of(tests)
}
