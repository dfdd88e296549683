//! Hints at the program that does the work of a driver, as `cc1plus` for `g++`.

use foreign_text::quoted;
use session::start::worker_of;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Returns the end of the line about a driver that `pagelift run` has started.
pub fn of_run(driver: &OsStr) -> Option<String> {
    worker_of(driver).map(|worker| hint(driver, &worker))
}

/// Returns the end of the line about a program that `--only` names, if it is a driver and its worker is not named.
pub fn of_followed(program: &OsStr, only: &[String]) -> Option<String> {
    worker_of(program).filter(|worker| !may_name(only, worker)).map(|worker| hint(program, &worker))
}

/// True if the names, which can be patterns, may match a program.
fn may_name(only: &[String], program: &str) -> bool {
    only.iter().any(|name| name == program || name.contains(['*', '?', '[']))
}

fn hint(driver: &OsStr, worker: &str) -> String {
    match is_front_end(driver, worker) {
        true => format!(
            "; this {worker} is rustup's, which executes the {worker} of a toolchain: `pagelift run --only {worker}` lifts it"
        ),
        false => format!("; {worker} does the work: `pagelift run --only {worker}` lifts it"),
    }
}

/// True if the driver has the name of its worker, as rustup's front ends.
fn is_front_end(driver: &OsStr, worker: &str) -> bool {
    Path::new(driver).file_name() == Some(OsStr::new(worker))
}

/// Returns a note on a command whose worker is not examined. `lacks` is a clause about the worker, and `again` the command
/// that examines a program.
pub fn note(command: &[OsString], lacks: &str, again: &str) -> Option<String> {
    let driver = command.first()?;
    worker_of(driver).map(|worker| note_on(driver, &worker, lacks, again))
}

fn note_on(driver: &OsStr, worker: &str, lacks: &str, again: &str) -> String {
    let file = match worker {
        "rustc" | "rustdoc" => format!("\"$(rustc --print sysroot)/bin/{worker}\""),
        _ => format!("\"$({} -print-prog-name={worker})\"", quoted(driver)),
    };
    let name = if is_front_end(driver, worker) { "rustup".into() } else { driver.to_string_lossy() };
    format!("{name} leaves the work to {worker}, {lacks}; fix: {again} -- {file}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_a_command_that_has_the_option() {
        let of = |driver: &str, worker| hint(OsStr::new(driver), worker);
        assert_eq!(of("/usr/bin/g++", "cc1plus"), "; cc1plus does the work: `pagelift run --only cc1plus` lifts it");
        assert_eq!(of("cargo", "rustc"), "; rustc does the work: `pagelift run --only rustc` lifts it");
        assert!(
            of("rustc", "rustc").starts_with("; this rustc is rustup's, which executes the rustc of a toolchain: ")
        );
    }

    #[test]
    fn a_worker_that_is_named_needs_no_hint() {
        let only = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(may_name(&only(&["gcc", "cc1"]), "cc1") && may_name(&only(&["cc*"]), "cc1"));
        assert!(!may_name(&only(&["gcc"]), "cc1"));
        assert_eq!(of_followed(OsStr::new("cc1"), &only(&["cc1"])), None);
    }

    #[test]
    fn a_note_names_the_file_of_the_worker() {
        let of = |driver: &str, worker| note_on(OsStr::new(driver), worker, "which is not traced", "pagelift estimate");
        assert_eq!(
            of("g++", "cc1plus"),
            "g++ leaves the work to cc1plus, which is not traced; fix: pagelift estimate -- \"$(g++ -print-prog-name=cc1plus)\""
        );
        assert_eq!(
            of("rustc", "rustc"),
            "rustup leaves the work to rustc, which is not traced; fix: pagelift estimate -- \"$(rustc --print sysroot)/bin/rustc\""
        );
    }
}
