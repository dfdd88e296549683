//! Starts a program with the settings by which its allocator keeps its memory and sends no TLB shootdowns.

use super::start::{HeapStart, family_of, with_variables};
use heap_abi::LIBRARY;
use heap_choice::cures::{Cure, Flags, When, cures};
use heap_choice::{Allocator, Environment, Program};
use std::ffi::{CString, OsString};
use std::path::Path;

/// The actions of a start that make the allocator keep its memory.
#[derive(Debug)]
pub struct CalmStart {
    /// The program's whole environment, if it differs from the one that it would have without.
    pub environment: Option<Vec<CString>>,
    /// The changed variables, by name.
    pub variables: Vec<(String, String)>,
    /// The name of the program's file.
    pub program: String,
    /// The allocator, without the evidence; `None` if the file is not an ELF program.
    pub allocator: Option<String>,
    /// The settings that are made, kept, and impossible.
    pub notes: Vec<String>,
    /// True if no setting was possible.
    pub is_short: bool,
}

/// Decides for the program at `path` and the words of its command line, after the decision about its heap. The user's
/// settings are kept.
pub fn calm(path: &Path, words: &[OsString], heap: &HeapStart) -> CalmStart {
    let user = Environment::of_this_process();
    let program = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
    let mut start = CalmStart {
        environment: None,
        variables: Vec::new(),
        program,
        allocator: None,
        notes: Vec::new(),
        is_short: true,
    };
    let Ok(Some(program)) = Program::read(path, &user) else { return start };
    let allocator = Allocator::of(&program);
    start.allocator = Some(family_of(&allocator));
    let effective = heap.environment.as_ref().map_or_else(|| user.clone(), |variables| environment_of(variables));
    if effective.get("LD_PRELOAD").is_some_and(|preloaded| preloaded.contains(LIBRARY)) {
        start.is_short = false;
        start.notes.push("its heap is Pagelift's, which keeps its memory: no setting is needed".to_owned());
        return start;
    }
    let flags = Flags::of(words.iter().filter_map(|word| word.to_str().map(str::to_owned)), &effective);
    start.take(&allocator, &flags, &user, effective, heap.environment.clone());
    start
}

impl CalmStart {
    fn take(
        &mut self,
        allocator: &Allocator,
        flags: &Flags,
        user: &Environment,
        mut effective: Environment,
        before: Option<Vec<CString>>,
    ) {
        let mut variables: Vec<(String, String)> = Vec::new();
        let always = |cure: &&Cure| cure.when != When::Calloc;
        for cure in cures().of(allocator, flags).into_iter().filter(always) {
            let variable = cure.variable_of(allocator);
            let applied = cure.applied(variable, &effective);
            self.is_short = false;
            if let Some(value) = applied.value {
                self.notes.push(format!("{variable}={value}; it costs: {}", cure.costs));
                effective = effective.with(variable, &value);
                variables.retain(|(name, _)| name != variable);
                variables.push((variable.to_owned(), value));
            }
            // Ignores variables that --heap has set.
            let by_user = cure.applied(variable, user);
            let stays = by_user.stays.join(", ");
            if !by_user.against.is_empty() {
                self.notes.push(format!(
                    "{variable}: {stays} is set in the environment and is kept, so that the shootdowns go on; fix: \
                     {variable}={} in its place",
                    cure.value()
                ));
            } else if !stays.is_empty() {
                self.notes.push(format!("{variable}: {stays} is set in the environment and is kept"));
            }
        }
        if let Some(advice) = self.is_short.then(|| cures().advice_for(allocator)).flatten() {
            self.notes.push(format!("no variable ends its shootdowns: {}", advice.says));
        }
        if self.notes.is_empty() {
            self.notes.push("no setting of this version is known that ends its shootdowns".to_owned());
        }
        if !variables.is_empty() {
            self.environment = Some(with_variables(before, &variables));
            self.variables = variables;
        }
    }
}

fn environment_of(variables: &[CString]) -> Environment {
    Environment::parse(&variables.iter().flat_map(|variable| variable.to_bytes_with_nul()).copied().collect::<Vec<_>>())
}
