//! The files that the processes of a program execute.
//!
//! Every user can start a program with any name that maps any files. So processes count only if root or this process's
//! user owns the program's file, and their executed files count only if one of these two owns them.

use super::chosen::{Chosen, is_large_program};
use address_space::PageSize;
use foreign_text::printable;
use linux::owner::{accountable_user_of, executes_trusted_file, is_of_trusted_user, is_trusted};
use page_cache::{MappedFiles, MappedPart};
use process_view::Unanswered;
use session::running::Chosen as Processes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Maximum number of printed reasons.
const MOST_SAID: usize = 8;

/// Most parts of one file that are tried.
const MOST_TRIED: usize = 64;

/// The files that processes execute.
pub struct Executed {
    /// The files, each with the user whose processes execute it; `None` for root's and this process's user's.
    pub chosen: Vec<(Chosen, Option<u32>)>,
    /// Why others are left out.
    pub left_out: Vec<String>,
    /// Processes of the program that do not answer: they may execute files that are not among the chosen.
    pub unanswered: Vec<Unanswered>,
}

/// Finds the files that the processes of a program execute.
///
/// # Errors
/// No process runs a program of this name.
pub fn executed_by(name: &str, huge: PageSize) -> anyhow::Result<Executed> {
    let (processes, others): (Vec<i32>, Vec<i32>) =
        Processes::ByProgram(name).processes()?.into_iter().partition(|pid| executes_trusted_file(*pid));
    let mut left_out: Vec<String> = others
        .iter()
        .map(|pid| {
            let why = match std::fs::read_link(format!("/proc/{pid}/exe")) {
                Ok(_) => "executes a file of another user",
                Err(_) => "cannot be read",
            };
            format!("process {pid} ({name}) {why} and is skipped")
        })
        .collect();
    let mut mapped = MappedFiles::read()?;
    let mut unanswered = std::mem::take(&mut mapped.unanswered);
    unanswered.retain(|silent| processes.contains(&silent.pid));
    left_out.extend(unanswered.iter().map(Unanswered::to_string));
    let mut chosen = Vec::new();
    for parts in mapped.executed_by(&processes) {
        match open_one(&parts, huge) {
            Ok(Some(one)) => chosen.push((one, users_among(parts.iter().map(|part| part.pid)))),
            Ok(None) => {}
            Err(why) => left_out.push(why),
        }
    }
    if left_out.len() > MOST_SAID {
        let more = left_out.len() - MOST_SAID;
        left_out.truncate(MOST_SAID);
        left_out.push(format!("{more} more are left out"));
    }
    Ok(Executed { chosen: by_turns(with_one_user(chosen)), left_out, unanswered })
}

/// Opens a file by the first of its parts that leads to it, so that a process that has unmapped it does not hide it
/// from others. `None` if it has no whole huge page. The error is the reason for leaving it out.
fn open_one(parts: &[&MappedPart], huge: PageSize) -> Result<Option<Chosen>, String> {
    let mut refused = String::new();
    for part in parts.iter().take(MOST_TRIED) {
        match open(part, huge) {
            Ok(found) => return Ok(found),
            Err(why) => refused = format!("process {}: {why}", part.pid),
        }
    }
    Err(refused)
}

/// Opens the file of a part; `None` if it has no whole huge page. The error is the reason for leaving it out.
fn open(part: &MappedPart, huge: PageSize) -> Result<Option<Chosen>, String> {
    let path = PathBuf::from(part.mapping.path().unwrap_or_default());
    let name = printable(&path.display().to_string());
    let Some((file, _)) = part.open().map_err(|error| format!("{name}: {error}"))? else { return Ok(None) };
    let metadata = file.metadata().map_err(|error| format!("{name}: {error}"))?;
    match is_of_trusted_user(&metadata) {
        true => Ok(is_large_program(&file, huge).then_some(Chosen { path, file })),
        false if metadata.len() < huge.bytes() => Ok(None),
        false => Err(format!("{name} is a file of another user and is left out")),
    }
}

/// The users whose processes execute a file: none if one is root or this process's user.
fn users_among(processes: impl Iterator<Item = i32>) -> BTreeSet<u32> {
    let processes: BTreeSet<i32> = processes.collect();
    let users: BTreeSet<u32> = processes.into_iter().filter_map(accountable_user_of).collect();
    if users.iter().any(|user| is_trusted(*user)) { BTreeSet::new() } else { users }
}

/// The files, each with the one user whose share it counts to: among the users who execute it the one who executes the
/// fewest. A user who executes another user's files, and more, does not exhaust a share that the other user's files
/// count to.
fn with_one_user<T>(files: Vec<(T, BTreeSet<u32>)>) -> Vec<(T, Option<u32>)> {
    let mut counts = BTreeMap::new();
    for user in files.iter().flat_map(|(_, users)| users) {
        *counts.entry(*user).or_insert(0) += 1;
    }
    let one = |users: BTreeSet<u32>| users.into_iter().min_by_key(|user| counts[user]);
    files.into_iter().map(|(file, users)| (file, one(users))).collect()
}

/// The files in such an order that no user's files all precede another user's.
fn by_turns<T>(files: Vec<(T, Option<u32>)>) -> Vec<(T, Option<u32>)> {
    let mut counts = BTreeMap::new();
    let mut turns: Vec<(usize, (T, Option<u32>))> = Vec::new();
    for file in files {
        let turn = counts.entry(file.1).or_insert(0);
        turns.push((*turn, file));
        *turn += 1;
    }
    turns.sort_by_key(|(turn, (_, user))| (user.is_some(), *turn));
    turns.into_iter().map(|(_, file)| file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_to_the_user_who_executes_the_fewest() {
        let files = vec![
            ("server", BTreeSet::from([7, 8])),
            ("a", BTreeSet::from([7])),
            ("b", BTreeSet::from([7])),
            ("root's", BTreeSet::new()),
        ];
        let counted = with_one_user(files);
        assert_eq!(counted, [("server", Some(8)), ("a", Some(7)), ("b", Some(7)), ("root's", None)]);
    }

    #[test]
    fn users_take_turns_behind_root() {
        let files = vec![("a", Some(1)), ("b", Some(1)), ("c", None), ("d", Some(2)), ("e", None)];
        let order: String = by_turns(files).into_iter().map(|(name, _)| name).collect();
        assert_eq!(order, "ceadb");
    }
}
