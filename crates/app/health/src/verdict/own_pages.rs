//! The verdict about a program that requests pool pages by itself and lacks them: only a start can have them.

use super::measure::of_own_setting;
use super::{Estimate, Verdict, by_data, code, head, of_buffers, run_command, what};
use crate::facts::{Facts, Known, ProgramFacts};
use crate::finding::Finding;
use crate::own_pages::{OwnPages, Request, USUAL};
use crate::pool_need::usual_pool;
use address_space::format_bytes;

/// The check that finds missing pages.
const CHECK: &str = "own-pages";
/// Size from which buffers outweigh code.
const MUCH_MEMORY: u64 = 64 << 20;

/// True if the user has set the request. PostgreSQL makes one by default.
pub(super) fn is_explicit(program: &ProgramFacts) -> bool {
    program.own_pages.as_ref().is_some_and(|own| own.source != USUAL)
}

/// The advice to reserve the pages and to start the program.
pub(super) fn of_own_pages(
    facts: &Facts,
    program: &ProgramFacts,
    findings: &[Finding],
    before: &str,
) -> Option<Verdict> {
    let own = program.own_pages.as_ref().filter(|own| own.request != Request::Off)?;
    let finding = findings.iter().find(|finding| finding.check == CHECK)?;
    let bytes = bytes_of(own);
    if bytes < MUCH_MEMORY || has_pages(facts, program, own) {
        return None;
    }
    let reserve = finding.fix.as_ref().and_then(|fix| fix.typed(facts.is_root).into_iter().next());
    let noun = noun(program);
    let at_least = match own.buffers.is_empty() {
        true if own.assumed.is_empty() => "at least ",
        true => "assumed: ",
        false => "",
    };
    let memory =
        format!("its {noun} ({at_least}{}) can be on pool pages from its start ({})", format_bytes(bytes), own.setting);
    let steps = match (&program.running, &reserve, facts.place.is_read_only) {
        (_, Some(_), true) => "as root of the host, reserve them; then start it",
        (Some(_), Some(_), false) => "reserve them, then restart it",
        (Some(_), None, _) => "the pool has them: restart it",
        (None, ..) => "reserve them, then start it",
    };
    let has_code = !program.lifts.is_empty();
    let code = code(facts, program).filter(|_| has_code);
    let begin = match program.running {
        Some(_) => format!("{};", head(program, before)),
        None => format!("{}:", program.name),
    };
    let meanwhile = match code.as_ref().is_some_and(|code| code.is_worthwhile) {
        true => meanwhile(facts, program),
        false => String::new(),
    };
    Some(Verdict {
        summary: format!("{begin} {memory}: {steps}{meanwhile}"),
        run: reserve.filter(|_| !facts.place.is_read_only),
        measure: of_own_setting(program),
        measure_note: of_own_setting(program)
            .map(|_| "CMD with {port} and {dir} in place of its port and folder, as LOAD your queries".to_owned()),
        estimates: std::iter::once(estimate(facts, program, bytes, noun)).chain(code).collect(),
    })
}

fn bytes_of(own: &OwnPages) -> u64 {
    let buffers = own.buffers.iter().map(|buffer| buffer.bytes).fold(0, u64::saturating_add);
    buffers.max(own.least)
}

/// True if the pool has the pages of a program that is not started yet.
fn has_pages(facts: &Facts, program: &ProgramFacts, own: &OwnPages) -> bool {
    let available = usual_pool(facts).map_or(0, |pool| pool.available.saturating_mul(pool.size.bytes()));
    program.running.is_none() && own.buffers.is_empty() && available >= own.least
}

fn noun(program: &ProgramFacts) -> &'static str {
    match program.known {
        Known::Postgres => "shared memory",
        Known::Java => "heap",
        _ => "buffers",
    }
}

fn estimate(facts: &Facts, program: &ProgramFacts, bytes: u64, noun: &'static str) -> Estimate {
    match program.known {
        Known::Postgres => of_buffers(&format_bytes(bytes)),
        _ => Estimate { what: noun, ..by_data(facts, &format!("{} by its settings", format_bytes(bytes))) },
    }
}

/// The lift of the program's code, which takes no pages of the pool.
fn meanwhile(facts: &Facts, program: &ProgramFacts) -> String {
    let command = run_command(facts, program, false);
    match program.running {
        Some(_) => format!("; until then `{command}` lifts {}", what(program)),
        None => format!("; `{command}` also lifts {}", what(program)),
    }
}
