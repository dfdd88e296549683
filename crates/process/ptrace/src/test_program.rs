//! A unit test of this crate, executed as a separate program.

use std::process::{Child, Command, Stdio};

/// Starts the test with this path, with a variable in its environment that selects it, and with pipes to its input and
/// from its output.
pub fn spawn(test: &str, variable: &str) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--nocapture"]).env(variable, "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}
