//! The command that measures the claim of a verdict.

use crate::facts::{Facts, Known, ProgramFacts};
use foreign_text::quoted;

/// A command, and its limits.
#[derive(Default)]
pub(super) struct Measure {
    /// The command, if one measures the claim.
    pub command: Option<String>,
    /// Restrictions on the command, and values for its placeholders.
    pub note: Option<String>,
}

impl Measure {
    fn of(command: String) -> Self {
        Self { command: Some(command), note: None }
    }

    fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }
}

/// The measurement of a lift of code, of a heap, or of both.
pub(super) fn of_lift(facts: &Facts, program: &ProgramFacts, has_code: bool, has_heap: bool) -> Measure {
    match (has_code, has_heap) {
        (true, true) if is_server(facts, program) => {
            let heap = of_heap(facts, program).command.unwrap_or_default();
            of_code(facts, program).with_note(format!("of its code only; of its heap: `{heap}`"))
        }
        (true, false) => of_code(facts, program),
        // A heap that was lifted stays so: only starts can be compared. They also lift code.
        (_, true) => of_heap(facts, program),
        (false, false) => Measure::default(),
    }
}

/// True for a program that does not end by itself.
fn is_server(facts: &Facts, program: &ProgramFacts) -> bool {
    // Any program of a user's session has the unit of the user.
    let is_service = facts.permission.unit.as_ref().is_some_and(|unit| !unit.starts_with("user@"));
    match &program.running {
        _ if matches!(program.known, Known::Mysql | Known::Postgres | Known::Redis) => true,
        Some(running) => is_service || running.is_server,
        // The unit is the one of this shell.
        None => false,
    }
}

/// The measurement of a heap. A server does not end by itself, so `bench` starts it, loads it and ends it.
pub(super) fn of_heap(facts: &Facts, program: &ProgramFacts) -> Measure {
    const SERVER: &str = "pagelift bench --heap=auto --load LOAD --server CMD";
    match of_own_setting(program) {
        Some(command) if program.known == Known::Mysql => Measure::of(command),
        _ if is_server(facts, program) => Measure::of(SERVER.to_owned()),
        _ => {
            let measure = Measure::of(format!("pagelift bench --heap=auto -- {}", program.typed()));
            ends(program, measure, &format!("`{SERVER}`"))
        }
    }
}

/// The comparison of a server with and without its own setting; `None` for programs without one.
pub(super) fn of_own_setting(program: &ProgramFacts) -> Option<String> {
    let (off, on) = match program.known {
        Known::Mysql => ("--skip-large-pages", "--large-pages"),
        Known::Postgres => ("-c huge_pages=off", "-c huge_pages=on"),
        _ => return None,
    };
    // Each server needs its own folder and port, so that its words cannot be printed as they are.
    Some(format!("pagelift bench --load LOAD --server 'CMD {off}' --against 'CMD {on}'"))
}

/// The measurement of code.
pub(super) fn of_code(facts: &Facts, program: &ProgramFacts) -> Measure {
    const TOGGLE: &str = "pagelift bench --toggle PID --lift text,rodata";
    let of_server = &format!("`{TOGGLE}`, once it runs under its usual load");
    match &program.running {
        Some(running) => {
            let sudo = if running.foreign && !facts.is_root { "sudo " } else { "" };
            let pages = super::option_of_pages(program);
            Measure::of(format!("{sudo}pagelift bench --toggle {} --lift text,rodata{pages}", running.pid))
        }
        // A server does not end by itself.
        None if program.known == Known::Redis => Measure::of(format!(
            "pagelift bench --toggle --load 'redis://127.0.0.1:{{port}}?query=SET key:{{1..100000}} value' -- {} --port {{port}}",
            program.typed()
        )),
        None if matches!(program.known, Known::Mysql | Known::Postgres) => {
            Measure::of(format!("{TOGGLE}, once it runs under its usual load"))
        }
        None => ends(program, Measure::of(format!("pagelift bench -- {}", program.typed())), of_server),
    }
}

/// The measurement of a command that may not end by itself, with the one of a server.
fn ends(program: &ProgramFacts, measure: Measure, of_server: &str) -> Measure {
    match program.running {
        Some(_) => measure,
        None => measure.with_note(format!("if it ends by itself; of a server: {of_server}")),
    }
}

/// The measurement of a driver's worker.
pub(super) fn of_worker(worker: &str, words: &str) -> String {
    format!("pagelift bench --only {} -- {words}", quoted(worker))
}
