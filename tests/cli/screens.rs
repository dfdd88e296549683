//! Whole screens of the command line: help, and what is said about mistakes. `TRYCMD=overwrite` writes them anew.

use std::path::Path;
use test_support::{pagelift_binary, tests_folder};

#[test]
fn screens_are_as_they_were_reviewed() {
    let pagelift = pagelift_binary().expect("a pagelift to test");
    trycmd::TestCases::new()
        .register_bin("pagelift", Path::new(&pagelift))
        .case(tests_folder().join("cli/screens/*.trycmd"));
}
