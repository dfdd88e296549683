//! A process as a user names it: by its number, or by the name of its program.

use address_space::format_bytes;
use anyhow::bail;
use foreign_text::printable;
use linux::search_path::find_program;
use process_view::ProcessFiles;
use session::running::Chosen;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Maximum number of processes that are listed for an ambiguous name.
const MOST_LISTED: usize = 8;
/// Maximum number of characters that are shown of each command.
const WIDEST_COMMAND: usize = 60;
/// Words of the error if several processes have it.
const MANY_RUN: &str = " processes run ";
/// The beginning of the error if no process has a program's name.
pub const NONE_RUNS: &str = "no process runs a program named ";

/// Returns the number of the process that a word names.
///
/// # Errors
/// The word matches no process, or several, which are listed.
pub fn process_number(word: &str) -> Result<i32, String> {
    if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
        let pid = process_number_of(word).ok_or_else(|| format!("no process has the number {word}"))?;
        return process_of_thread(pid).map_or(Ok(pid), |process| {
            Err(format!("{pid} is a thread of process {process}, needed: the number of a process; fix: {process}"))
        });
    }
    if word.starts_with('-') {
        return Err("needed: the number of a process, or the name of its program".to_owned());
    }
    let found = Chosen::ByProgram(word).processes().map_err(|error| error.to_string())?;
    match found.as_slice() {
        [pid] => Ok(*pid),
        several => Err(choices(word, several)),
    }
}

/// Returns the process that a word names by its number or the name of its program; `None` for a file.
///
/// # Errors
/// The word is neither a file nor one process.
pub fn process_unless_file(word: &OsStr) -> Result<Option<i32>, String> {
    let Some(text) = word.to_str() else { return Ok(None) };
    let is_number = text.parse::<i32>().is_ok();
    if !is_number && (text.contains('/') || Path::new(text).exists()) {
        return Ok(None);
    }
    process_number(text).map(Some).map_err(|why| match is_number {
        true => why,
        false => format!("{} is neither a file nor one process: {why}", printable(text)),
    })
}

/// A sentence that names the process of a program whose name is also a file's, if it runs.
pub fn process_besides_file(word: &OsStr) -> Option<String> {
    let name = word.to_str().filter(|word| !word.contains('/'))?;
    let pid = match process_number(name) {
        Ok(pid) => pid.to_string(),
        Err(why) if why.contains(MANY_RUN) => "PID".to_owned(),
        Err(_) => return None,
    };
    Some(format!(
        "This is the file {} in the current folder; of the process: `pagelift inspect {pid}`.",
        printable(name)
    ))
}

/// Refuses a command that is only the number of a process, and no program. `fix` is the command before the number.
///
/// # Errors
/// The number, and the command that acts on a process.
pub fn refuse_process(command: &[OsString], fix: &str) -> anyhow::Result<()> {
    let [word] = command else { return Ok(()) };
    let number = word.to_str().filter(|word| process_number_of(word).is_some());
    match number.filter(|_| find_program(word).is_none()) {
        Some(number) => bail!("{number} is the number of a process, needed: a command; fix: {fix} {number}"),
        None => Ok(()),
    }
}

/// For a positional argument that exists only for its message: the process is an option's value.
///
/// # Errors
/// Always: the option.
pub fn needs_option(word: &str) -> Result<i32, String> {
    Err(format!("a process is given as -p {}", printable(word)))
}

/// The process of a thread that is not its first one: `top -H` and `ps -L` show the numbers of threads, too.
fn process_of_thread(number: i32) -> Option<i32> {
    let status = ProcessFiles::of(number).text("status").ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    (process != number && process > 0).then_some(process)
}

/// The number of a process, if a word is one.
fn process_number_of(word: &str) -> Option<i32> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|pid| is_number && *pid > 0)
}

fn choices(name: &str, pids: &[i32]) -> String {
    let lines = pids.iter().take(MOST_LISTED).map(|pid| format!("\n  {pid:>7}  {}", described(*pid)));
    let more = pids.len().saturating_sub(MOST_LISTED);
    let rest = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    format!(
        "{}{MANY_RUN}{}; needed: the number of one:{}{rest}",
        pids.len(),
        printable(name),
        lines.collect::<String>()
    )
}

/// Memory and command of a process.
fn described(pid: i32) -> String {
    let process = ProcessFiles::of(pid);
    let words = process.bytes("cmdline").unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let command: String = printable(words.trim_end()).chars().take(WIDEST_COMMAND).collect();
    let resident = process.text("statm").ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    let resident = resident.map_or(0, |pages| pages.saturating_mul(linux::pages::base_page().bytes()));
    format!("{:>9} resident  {command}", format_bytes(resident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_number_or_a_name() {
        // A number that no process and no thread can have (PID_MAX_LIMIT of the kernel).
        assert_eq!(process_number("4711000"), Ok(4711000));
        let own = std::process::id();
        assert_eq!(process_number(&own.to_string()), Ok(own as i32));
        let thread = std::thread::spawn(|| process_number(&nix::unistd::gettid().to_string())).join().unwrap();
        let why = thread.unwrap_err();
        assert!(why.contains(&format!("is a thread of process {own}, needed")), "{why}");
        assert!(
            process_number("0").is_err() && process_number("99999999999").is_err() && process_number("-1").is_err()
        );
        let none = process_number("no-such-program-anywhere").unwrap_err();
        assert!(none.contains("no process runs a program named no-such-program-anywhere"), "{none}");
        let refused = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            refuse_process(&words, "pagelift stat -p").map_err(|error| error.to_string())
        };
        let why = "4711 is the number of a process, needed: a command; fix: pagelift stat -p 4711";
        assert_eq!(refused(&["4711"]), Err(why.to_owned()));
        assert!(refused(&["4711", "x"]).is_ok() && refused(&["./4711"]).is_ok() && refused(&["0"]).is_ok());
        let listed = choices("a\u{1b}b", &[1; 10]);
        assert_eq!(process_unless_file(OsStr::new("4711000")), Ok(Some(4711000)));
        assert_eq!(process_unless_file(OsStr::new("src")), Ok(None), "a file of the crate's folder");
        assert_eq!(process_unless_file(OsStr::new("/no/such/file")), Ok(None));
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let besides = process_besides_file(OsStr::new("sleep")).unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(besides.contains("of the process: `pagelift inspect "), "{besides}");
        assert_eq!(process_besides_file(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(process_besides_file(OsStr::new("/proc/self/exe")), None);
        let neither = process_unless_file(OsStr::new("no-such-program-anywhere")).unwrap_err();
        assert!(
            neither.starts_with("no-such-program-anywhere is neither a file nor one process: no process"),
            "{neither}"
        );
        assert!(
            listed.starts_with("10 processes run a?b; needed: the number of one:\n")
                && listed.ends_with("\n  and 2 more"),
            "{listed}"
        );
    }
}
