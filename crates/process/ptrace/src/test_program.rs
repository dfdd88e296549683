//! A unit test of this crate, executed as a program of its own.

use std::process::{Child, Command, Stdio};

/// Starts the test of this path, with a variable in its environment by which it knows that it is meant, and with pipes to its
/// input and from its output.
pub fn spawn(test: &str, variable: &str) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--nocapture"]).env(variable, "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}
