//! Names processes that were left out because they do not answer or may not be read.

use super::number::counted;
use foreign_text::printable;
use linux::watch;
use process_view::{Silence, Unanswered};

/// Number of processes that are named in one line.
const MOST_NAMED: usize = 8;

/// A line for the processes that did not answer, and one for those that were not read.
pub fn notes(unanswered: &[Unanswered]) -> String {
    let of = |reason: Silence| unanswered.iter().filter(|process| process.reason == reason).collect::<Vec<_>>();
    let (silent, others) = (of(Silence::NoAnswer), of(Silence::NotAsked));
    let mut text = String::new();
    if !silent.is_empty() {
        let (count, seconds) = (counted(silent.len() as u64, "process"), watch::LIMIT.as_secs());
        text +=
            &format!("note: {count} did not answer within {seconds} s, left out: {}; fix: end it\n", named(&silent));
    }
    if !others.is_empty() {
        let (count, silent) = (counted(others.len() as u64, "process"), silent.len());
        text += &format!("note: {count} not read, because so many did not answer ({silent}): {}\n", named(&others));
    }
    text
}

/// A line for `count` processes that this user may not read; empty without any. `command` is the command that root may
/// run to read them.
pub fn not_permitted(count: u64, command: &str) -> String {
    not_permitted_to(count, command, nix::unistd::geteuid().is_root())
}

fn not_permitted_to(count: u64, command: &str, is_root: bool) -> String {
    if count == 0 {
        return String::new();
    }
    let fix = match is_root {
        true => format!("not even root may read them here; run `pagelift {command}` on the host"),
        false => format!("they belong to other users; run `sudo pagelift {command}`"),
    };
    format!("note: {} not read: {fix}\n", counted(count, "process"))
}

fn named(processes: &[&Unanswered]) -> String {
    let names =
        processes.iter().take(MOST_NAMED).map(|process| format!("{} {}", process.pid, printable(&process.name)));
    let names: Vec<_> = names.collect();
    match processes.len().saturating_sub(MOST_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, reason: Silence) -> Unanswered {
        Unanswered { pid, name: "a\u{1b}b".to_owned(), reason }
    }

    #[test]
    fn root_is_not_asked_to_become_root() {
        let text = |count, is_root| not_permitted_to(count, "status", is_root);
        assert_eq!(text(0, true), "");
        assert_eq!(
            text(1, true),
            "note: 1 process not read: not even root may read them here; run `pagelift status` on the host\n"
        );
        assert_eq!(
            text(2, false),
            "note: 2 processes not read: they belong to other users; run `sudo pagelift status`\n"
        );
    }

    #[test]
    fn silent_processes_are_counted_and_named() {
        assert_eq!(notes(&[]), "");
        let one = notes(&[process(7, Silence::NoAnswer)]);
        assert_eq!(one, "note: 1 process did not answer within 30 s, left out: 7 a?b; fix: end it\n");
        let mut all: Vec<_> = (1..=9).map(|pid| process(pid, Silence::NotAsked)).collect();
        all.push(process(20, Silence::NoAnswer));
        let text = notes(&all);
        assert!(text.contains("note: 9 processes not read, because so many did not answer (1): 1 a?b, 2 "), "{text}");
        assert!(text.ends_with("8 a?b and 1 more\n"), "{text}");
    }
}
