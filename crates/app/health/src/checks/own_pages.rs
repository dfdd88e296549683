//! Pool pages that programs request by their own settings.

use super::{fine, found};
use crate::facts::{Facts, Known, ProgramFacts, RunningFacts};
use crate::finding::{CheckOutcome, Fix, Severity};
use crate::own_pages::{OwnPages, Request, USUAL, short};
use crate::pool_need::{pages_needed, reserve_command, usual_pool};
use address_space::{PageSize, counted, format_bytes};

/// Pages of buffers that are worth a word.
const MANY_PAGES: u64 = 8;

/// Size from which shared memory matters without a request for huge pages.
const MUCH_MEMORY: u64 = 64 << 20;

/// Reports whether the program has the pool pages that it requests, or should request them.
pub fn own_pages(facts: &Facts) -> Vec<CheckOutcome> {
    let Some((program, size)) = facts.program.as_ref().zip(facts.huge_page) else { return Vec::new() };
    let Some(own) = &program.own_pages else { return Vec::new() };
    let mut outcomes = of_settings(facts, program, own, size);
    outcomes.extend(unread(own));
    outcomes
}

/// The settings that could not be read, and those that are assumed instead.
fn unread(own: &OwnPages) -> Option<CheckOutcome> {
    let what = || {
        let files = own.unread.join(", ");
        format!("the settings in {files}; assumed: {}", own.assumed.join(", "))
    };
    (!own.assumed.is_empty()).then(|| CheckOutcome::for_root(what()))
}

fn of_settings(facts: &Facts, program: &ProgramFacts, own: &OwnPages, size: PageSize) -> Vec<CheckOutcome> {
    match (&program.running, own.request) {
        (Some(running), Request::IfPossible | Request::Required) if has_fallen_back(program, own, running) => {
            // A server that tries the pool by default does not need it if its memory was lifted in place.
            match own.source == USUAL && is_lifted(running.anonymous, running.shared) {
                true => fine(format!("{}: its memory is on huge pages, but not of the pool", own.setting)),
                false => fell_back(facts, program, running, own, size),
            }
        }
        (Some(running), Request::IfPossible | Request::Required) if running.on_pool() > 0 => {
            fine(format!("{}: {} on the pool", own.setting, format_bytes(running.on_pool())))
        }
        (running, Request::Off)
            if own.pages(size) >= MANY_PAGES
                && !running.as_ref().is_some_and(|running| is_lifted(running.anonymous, running.shared)) =>
        {
            not_requested(facts, program, own, size)
        }
        (None, Request::IfPossible | Request::Required) => would_fall_back(facts, program, own, size),
        _ if own.request == Request::Off => fine(format!("{} (not set)", own.setting)),
        _ => fine(format!("{} ({})", own.setting, own.source_in_words())),
    }
}

fn has_fallen_back(program: &ProgramFacts, own: &OwnPages, running: &RunningFacts) -> bool {
    match program.known {
        // It commits its heap in parts.
        Known::Java => running.on_pool() == 0 && !own.buffers.is_empty(),
        _ => own.fell_back(&running.pool_mappings),
    }
}

/// True if most of the data is on huge pages already, by any means.
fn is_lifted(anonymous: (u64, u64), shared: (u64, u64)) -> bool {
    (anonymous.1 + shared.1) * 2 > anonymous.0 + shared.0
}

fn pool_in_words(facts: &Facts, size: PageSize) -> String {
    let (total, available) = usual_pool(facts).map_or((0, 0), |pool| (pool.total, pool.available));
    format!("{available} of {} of {size} available", counted(total, "page"))
}

fn wanted(facts: &Facts, own: &OwnPages, size: PageSize) -> String {
    let pages = counted(pages_needed(facts).max(own.pages(size)), "page");
    format!("{pages} of {size} available when it starts: {}", own.in_words())
}

fn fell_back(
    facts: &Facts,
    program: &ProgramFacts,
    running: &RunningFacts,
    own: &OwnPages,
    size: PageSize,
) -> Vec<CheckOutcome> {
    let on_pool = running.on_pool();
    // PostgreSQL tries by default.
    let is_asked = own.source != USUAL || running.shared.0 >= MUCH_MEMORY;
    found(
        if is_asked { Severity::Advice } else { Severity::Note },
        format!("{} asks for pool pages, but fell back to base pages", program.name),
        format!(
            "{} ({}); {} reserved on the pool; {}",
            own.setting,
            own.source_in_words(),
            format_bytes(on_pool),
            pool_in_words(facts, size)
        ),
        wanted(facts, own, size),
        "a server takes a buffer from the pool only if the pool has pages for the whole buffer when the server starts",
        Some(reserved(facts).with_note(format!("then restart it{}", afterwards(own, size)))),
    )
}

fn not_requested(facts: &Facts, program: &ProgramFacts, own: &OwnPages, size: PageSize) -> Vec<CheckOutcome> {
    let place = match program.known {
        Known::Mysql => " below [mysqld]",
        _ => " in postgresql.conf",
    };
    let memlock = match program.known {
        // It takes System V segments, MariaDB private mappings.
        Known::Mysql if own.buffers.iter().all(|buffer| !buffer.name.contains("aria")) => {
            ", LimitMEMLOCK=infinity in the unit"
        }
        _ => "",
    };
    found(
        Severity::Note,
        format!("{} can have its buffers on the pool", program.name),
        match own.source.as_str() {
            USUAL if !own.unread.is_empty() => format!("{} ({})", own.setting, own.source_in_words()),
            USUAL => format!("{} is not set", own.setting),
            source => format!("{} is not set, but off in {source}", own.setting),
        },
        wanted(facts, own, size),
        "buffers that are visited at random gain most; they are on huge pages from the first request on",
        Some(reserved(facts).with_note(format!(
            "then {}{place}{memlock}, and a {}{}",
            own.setting,
            if program.running.is_some() { "restart" } else { "start" },
            afterwards(own, size)
        ))),
    )
}

fn would_fall_back(facts: &Facts, program: &ProgramFacts, own: &OwnPages, size: PageSize) -> Vec<CheckOutcome> {
    let available = usual_pool(facts).map_or(0, |pool| pool.available);
    let from = format!("{} ({})", own.setting, own.source_in_words());
    if let Some(command) = &own.command {
        return would_print(facts, program, (own, command), size);
    }
    let needed = pages_needed(facts);
    if needed <= available {
        return fine(format!("{from}: {} needed, {available} available", counted(needed, "page")));
    }
    let severity = if own.request == Request::Required { Severity::Problem } else { Severity::Advice };
    found(
        severity,
        format!("{} requests more pages than the pool has", program.name),
        format!("{from}; {}", pool_in_words(facts, size)),
        wanted(facts, own, size),
        match own.request {
            Request::Required => "it does not start without",
            _ => "it prints a warning at most, and uses base pages",
        },
        Some(reserved(facts)),
    )
}

/// The answer about a program whose own command prints the number of pages.
fn would_print(
    facts: &Facts,
    program: &ProgramFacts,
    (own, command): (&OwnPages, &String),
    size: PageSize,
) -> Vec<CheckOutcome> {
    let available = usual_pool(facts).map_or(0, |pool| pool.available);
    // Files that were not read can set less than the default.
    let least = if own.assumed.is_empty() { size.pages_for(own.least) } else { 0 };
    let (severity, title, why) = match own.request {
        Request::Required if available < least.max(1) => {
            (Severity::Problem, "requests more pages than the pool has", "with fewer pages it does not start")
        }
        // It takes more than its buffers, often less than an eighth.
        Request::Required if available < least + least / 8 => {
            (Severity::Advice, "may request more pages than the pool has", "with fewer pages it does not start")
        }
        Request::Required => (Severity::Note, "takes pool pages when it starts", "with fewer pages it does not start"),
        _ if available < least.max(1) => (
            Severity::Note,
            "uses base pages for its shared memory",
            "shared memory on huge pages has smaller page tables in every backend",
        ),
        _ => (Severity::Note, "takes pool pages when it starts", "with fewer pages it uses base pages"),
    };
    let as_owner = match &own.owned {
        Some(directory) => format!("runuser -u \"$(stat -c %U {directory})\" -- "),
        None => String::new(),
    };
    let fix = Fix::root(format!("pagelift pool reserve {}:$({as_owner}{command})", short(size)));
    found(
        severity,
        format!("{} {title}", program.name),
        format!("{} ({}); {}", own.setting, own.source_in_words(), pool_in_words(facts, size)),
        match least {
            0 => "as many pages as shared_memory_size_in_huge_pages".to_owned(),
            least => format!("as many pages as shared_memory_size_in_huge_pages, which are more than {least}"),
        },
        why,
        Some(if available >= least.max(1) { fix.with_note("does nothing if the pool has them") } else { fix }),
    )
}

/// The command that reserves the sum; none if the pool has the pages.
fn reserved(facts: &Facts) -> Fix {
    Fix { commands: reserve_command(facts).into_iter().collect(), as_root: true, note: None }
}

/// Numbers from settings are upper bounds.
fn afterwards(own: &OwnPages, size: PageSize) -> String {
    match own.buffers.len() {
        0 | 1 => String::new(),
        _ => format!(
            "; it takes at most {pages} pages: `pagelift pool show` lists its pages, and `pagelift pool release {}:N` returns the \
             others, N = {pages} minus its pages",
            short(size),
            pages = own.pages(size)
        ),
    }
}
