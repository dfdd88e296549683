//! Chooses the way to lift a service in its sandbox.

mod obstacles;

use crate::properties::{CallRule, Properties};
use foreign_text::{quoted, words};
use options::{Choice as _, HeapPages, Pages};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Reports the state of a file in the page cache (Linux 6.5); systemd 252 has it in no group.
const CACHE_CALL: &str = "cachestat";

/// A way to lift a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// `pagelift run`, by ptrace.
    Ptrace,
    /// `pagelift run --via preload`: the program lifts itself.
    Preload,
    /// `pagelift attach` from outside of the sandbox, once the program runs.
    AfterStart,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ptrace => "run, by ptrace",
            Self::Preload => "run, by preload",
            Self::AfterStart => "attach after each start",
        })
    }
}

/// A program of `ExecStart=`.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its path, specifiers expanded.
    pub path: String,
    /// The path as the command names it.
    pub named: String,
    /// Its code or read-only data may fill a huge page.
    pub is_large: bool,
    /// Why it cannot be traced: it gains privileges by its exec.
    pub privileged: Option<String>,
    /// A script.
    pub is_script: bool,
    /// Linked statically.
    pub is_static: bool,
    /// systemd applies no sandbox to it (`+`).
    pub is_unconfined: bool,
    /// Its command line cannot be given again behind another program.
    pub not_prefixable: Option<String>,
    /// Why the page cache cannot hold its file in huge folios, if known.
    pub not_in_page_cache: Option<String>,
    /// Paths of the large libraries that the dynamic linker loads with it.
    pub libraries: Vec<String>,
    /// The programs that it starts, if it is a shell.
    pub shell: Option<Shell>,
}

/// The facts about the programs that a shell starts.
#[derive(Clone, Debug, Default)]
pub struct Shell {
    /// The large ones that its own words execute.
    pub programs: Vec<Program>,
    /// It becomes them (`exec`), so that its process is theirs.
    pub is_replaced: bool,
}

/// The user's request.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `--via`.
    pub via: Option<Way>,
    /// `--pages`.
    pub pages: Pages,
    /// `--only` names the programs to lift.
    pub only: bool,
    /// The named programs that were found.
    pub found: Vec<Program>,
    /// Names or patterns of which no file was found.
    pub missing: Vec<String>,
    /// `--heap`.
    pub heap: HeapPages,
    /// True if `--numa` chooses nodes.
    pub numa: bool,
    /// Options that only the ptrace way has.
    pub only_by_ptrace: Vec<String>,
    /// Options that `pagelift attach` does not have.
    pub only_by_run: Vec<String>,
    /// Options that have something written to the standard error, with `--quiet` too.
    pub not_silent: Vec<String>,
}

/// The software that is installed here.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The path of `pagelift`.
    pub pagelift: String,
    /// Why not every user can execute it.
    pub not_for_everybody: Option<String>,
    /// The path of `libpagelift.so`.
    pub library: Option<String>,
    /// The path of `libpagelift_heap.so`.
    pub heap_library: Option<String>,
    /// The directory of the image store.
    pub store: Option<String>,
    /// Why users other than root cannot open its images.
    pub store_closed: Option<String>,
    /// The machine has several NUMA nodes.
    pub several_nodes: bool,
    /// SELinux is enforcing.
    pub selinux: bool,
    /// `kernel.yama.ptrace_scope`; 0 if there is none.
    pub ptrace_scope: u32,
}

/// The way to lift a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// `--pages`, if it differs from the user's.
    pub pages: Option<&'static str>,
    /// For each command the paths for `--only` that its own shell names, if the user names none.
    pub only: Vec<Vec<String>>,
    /// Paths that the unit must be allowed to execute.
    pub exec_paths: Vec<String>,
    /// Programs as their commands name them, and libraries, of which root makes images before each start; specifiers are not
    /// expanded.
    pub image_sources: Vec<String>,
    /// systemd waits for the exec, so that the main process is the program.
    pub waits_for_exec: bool,
    /// The journal's name for the programs' output, which would otherwise be pagelift's.
    pub journal_name: Option<String>,
    /// Nothing may be written to the standard error, which is a socket.
    pub is_silent: bool,
    /// Why it is this way, one reason a line.
    pub reasons: Vec<String>,
}

/// Why no way works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub Vec<String>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n  "))
    }
}

struct Chooser<'a> {
    unit: &'a Properties,
    programs: &'a [Program],
    wanted: &'a Wanted,
    here: &'a Surroundings,
}

/// Chooses the first way that works: by ptrace, by preload, after the start.
///
/// # Errors
/// The obstacles for each way.
pub fn choose(
    unit: &Properties,
    programs: &[Program],
    wanted: &Wanted,
    here: &Surroundings,
) -> Result<Choice, Refusal> {
    let chooser = Chooser { unit, programs, wanted, here };
    let refused = chooser.refused_anyway();
    if !refused.is_empty() {
        return Err(Refusal(refused));
    }
    let mut reasons = Vec::new();
    let all = [Way::Ptrace, Way::Preload, Way::AfterStart];
    for way in all.into_iter().filter(|way| wanted.via.is_none_or(|via| via == *way)) {
        let obstacles = chooser.obstacles(way);
        if obstacles.is_empty() {
            return Ok(chooser.choice(way, reasons));
        }
        reasons.extend(obstacles.into_iter().map(|obstacle| format!("not `{way}`: {obstacle}")));
    }
    Err(Refusal(reasons))
}

impl Chooser<'_> {
    /// True if the sandbox applies to a program.
    fn is_confined(&self) -> bool {
        self.programs.iter().any(|program| !program.is_unconfined)
    }

    fn rule(&self, call: &str) -> CallRule {
        if self.is_confined() { self.unit.rule(call) } else { CallRule::Allowed }
    }

    /// True if memory that was written cannot become code.
    fn forbids_copied_code(&self) -> bool {
        self.is_confined() && self.unit.is_set("MemoryDenyWriteExecute")
    }

    /// The reason why a unit such as Debian's postgresql.service, which starts `/bin/true`, is not the intended one.
    fn stands_for_others(&self) -> Option<String> {
        let does_nothing = |program: &Program| program.path.rsplit('/').next() == Some("true");
        let program = self.programs.first().filter(|_| self.programs.iter().all(does_nothing))?;
        let parts = self.unit.list("ConsistsOf");
        let fix = match parts.first() {
            Some(part) => {
                format!("the units that do the work are {}; fix: pagelift enable {}", parts.join(", "), quoted(part))
            }
            None => {
                format!(
                    "needed: the unit that does the work; systemctl list-dependencies -- {}",
                    quoted(self.unit.value("Id"))
                )
            }
        };
        Some(format!("it starts {} only, which does nothing: {fix}", program.path))
    }

    /// Reasons that rule out every way.
    fn refused_anyway(&self) -> Vec<String> {
        let mut found: Vec<String> = self.stands_for_others().into_iter().collect();
        for program in self.programs.iter().filter(|_| !self.wanted.only) {
            let kind = match &program.shell {
                Some(shell) if shell.programs.is_empty() => "shell",
                _ if program.is_script => "script",
                _ => continue,
            };
            found.push(format!(
                "{} is a {kind}; needed: the name of the program that it starts; fix: --only NAME",
                program.path
            ));
        }
        if self.unit.value("MemoryTHP") == "disable" && self.wanted.pages != Pages::Hugetlb {
            found.push(
                "MemoryTHP=disable forbids transparent huge pages and images; fix: --pages hugetlb --lift text,rodata \
                 with a pool, or another MemoryTHP="
                    .to_owned(),
            );
        }
        let pages = self.wanted.pages;
        if self.forbids_copied_code() && pages != Pages::Auto && !pages.only_shows() {
            found.push(format!(
                "MemoryDenyWriteExecute= forbids copies of code, and --pages {} makes them; fix: --pages image, or file",
                pages.word()
            ));
        }
        if self.unit.has_socket_for_errors() {
            found.extend(self.wanted.not_silent.iter().map(|option| {
                format!(
                    "{option} writes to the unit's standard error, which is a socket, as for each client of Accept=yes; \
                     fix: StandardError=journal"
                )
            }));
        }
        found
    }

    fn obstacles(&self, way: Way) -> Vec<String> {
        let mut found = match way {
            Way::Ptrace => self.against_prefix().into_iter().chain(self.against_guessing()).collect(),
            Way::Preload => [self.against_prefix(), self.against_preload()].concat(),
            Way::AfterStart => self.against_later(),
        };
        found.extend(self.against_calls(way));
        found.extend(self.against_scope(way));
        found.extend(self.against_pages(way));
        found
    }

    fn choice(&self, way: Way, mut reasons: Vec<String>) -> Choice {
        let store = self.visible_store().ok().flatten();
        let chosen = self.choose_pages(way, store, &mut reasons);
        let pages = chosen.unwrap_or(self.wanted.pages);
        let uses_images = store.is_some() && way != Way::Preload && pages.takes_images();
        if pages == Pages::FileThenImage && !uses_images {
            reasons.push("note: no image store can be used; the page cache alone serves".to_owned());
        }
        for program in self.lifted().into_iter().filter(|program| !program.is_large && !self.wanted.only) {
            reasons.push(format!(
                "note: no code of {} itself fills a huge page; its libraries, data and heap alone can gain",
                program.path
            ));
        }
        let only = self.names_of_shells(way, &mut reasons);
        let exec_paths = self.exec_paths(way, store.filter(|_| uses_images), &mut reasons);
        let kind = self.unit.value("Type");
        let waits_for_exec = way == Way::AfterStart && ["simple", "idle"].contains(&kind);
        if waits_for_exec {
            reasons.push(format!(
                "Type=exec instead of {kind}: attach must find the program, not systemd before its exec"
            ));
        }
        let journal_name = if way == Way::AfterStart { None } else { self.journal_name(&mut reasons) };
        let is_silent = self.unit.has_socket_for_errors();
        if is_silent {
            reasons.push(
                "--quiet: the unit's standard error is a socket, to which the line on the lift would be written; \
                 StandardError=journal has it in the journal"
                    .to_owned(),
            );
        }
        let makes_images = uses_images && way == Way::Ptrace;
        let image_sources = if makes_images { self.made_before(is_silent, &mut reasons) } else { Vec::new() };
        let pages = chosen.map(Pages::word);
        Choice { way, pages, only, exec_paths, image_sources, waits_for_exec, journal_name, is_silent, reasons }
    }

    /// The programs whose images root makes before each start.
    fn made_before(&self, is_silent: bool, reasons: &mut Vec<String>) -> Vec<String> {
        let sources = self.image_sources();
        if let Some((why, fix)) = self.against_images(is_silent) {
            let files = words(sources.iter().map(|path| path.replace("%%", "%")));
            reasons.extend((!sources.is_empty()).then(|| {
                format!(
                    "note: root makes no image before a start, since {why}; fix: {fix}after each upgrade: pagelift image \
                     add {files}"
                )
            }));
            return Vec::new();
        }
        if self.is_another_user() {
            reasons.extend(self.wanted.missing.iter().map(|name| {
                format!(
                    "note: root makes no image of {name} before a start, and User= may not: it was not found next to \
                     the unit's programs or on systemd's search path; fix: --only /PATH/OF/{name}"
                )
            }));
        }
        sources
    }

    /// Why no images are made before a start, and the beginning of the fix. `image add` writes errors to the unit's standard
    /// error, and is charged to the unit's cgroup, as the images are.
    fn against_images(&self, is_silent: bool) -> Option<(String, &'static str)> {
        if is_silent {
            return Some(("errors would be written to the socket".to_owned(), "StandardError=journal, or "));
        }
        let limits = self.unit.memory_limits();
        (!limits.is_empty()).then(|| (format!("its memory would count towards {}", limits.join(" and ")), ""))
    }

    /// The paths that the unit must be allowed to execute, with the store whose images are used.
    fn exec_paths(&self, way: Way, store: Option<&str>, reasons: &mut Vec<String>) -> Vec<String> {
        let here = self.here;
        let mut needed = Vec::new();
        if way != Way::AfterStart {
            needed.push((here.pagelift.clone(), "pagelift"));
            let heap = here.heap_library.clone().filter(|_| self.wanted.heap != HeapPages::Off);
            needed.extend(heap.map(|library| (library, "the library of the heap")));
        }
        if way == Way::Preload {
            needed.extend(here.library.clone().map(|library| (library, "the library")));
        }
        needed.extend(store.map(|store| (store.to_owned(), "code in images")));
        needed.retain(|(path, _)| self.is_confined() && self.unit.forbids_executing(path));
        for (path, what) in &needed {
            reasons.push(format!("ExecPaths={path} is added: NoExecPaths= forbids executing {what}"));
        }
        needed.into_iter().map(|(path, _)| path).collect()
    }

    /// The known lifted programs: named by the user, otherwise by the commands and, for a shell, by its words.
    fn lifted(&self) -> Vec<&Program> {
        if self.wanted.only {
            return self.wanted.found.iter().collect();
        }
        let commands = self.programs.iter();
        commands
            .flat_map(|program| match &program.shell {
                Some(_) => self.named_by(program),
                None => std::slice::from_ref(program),
            })
            .collect()
    }

    /// The programs that the words of a command's shell execute, if the user names none.
    fn named_by<'p>(&self, program: &'p Program) -> &'p [Program] {
        match &program.shell {
            Some(shell) if !self.wanted.only => &shell.programs,
            _ => &[],
        }
    }

    /// For each command the paths for `--only` that its own shell names; `attach` needs none.
    fn names_of_shells(&self, way: Way, reasons: &mut Vec<String>) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        for program in self.programs {
            let names = paths(self.named_by(program));
            let (shell, executed) = (&program.path, names.join(" or "));
            if !names.is_empty() && way == Way::AfterStart {
                reasons.push(format!(
                    "no --only: {shell} executes {executed}, which is the main process once the service has started"
                ));
            } else if !names.is_empty() {
                reasons.push(format!("--only {}: {shell} executes {executed}", names.join(",")));
            }
            all.push(names);
        }
        if way == Way::AfterStart { Vec::new() } else { all }
    }

    /// The large programs, or those that `--only` names, with the large libraries of a service whose user may not make
    /// images itself.
    fn image_sources(&self) -> Vec<String> {
        let mut sources = Vec::new();
        // A script could only have one through its interpreter.
        for program in self.lifted().into_iter().filter(|program| !program.is_script) {
            sources.extend(program.is_large.then(|| program.named.clone()));
            let libraries = program.libraries.iter().filter(|_| self.is_another_user());
            sources.extend(libraries.map(|library| library.replace('%', "%%")));
        }
        let mut seen = BTreeSet::new();
        sources.retain(|source| seen.insert(source.clone()));
        sources
    }

    /// The name of the programs, if the unit itself gives none: systemd uses the name of the executed file.
    fn journal_name(&self, reasons: &mut Vec<String>) -> Option<String> {
        if !self.unit.value("SyslogIdentifier").is_empty() {
            return None;
        }
        let name = |program: &Program| program.named.rsplit('/').next().unwrap_or_default().to_owned();
        let first = name(self.programs.first()?);
        if self.programs.iter().any(|program| name(program) != first) {
            reasons.push(
                "note: the journal names its lines pagelift, since its programs have several names; fix: SyslogIdentifier="
                    .to_owned(),
            );
            return None;
        }
        reasons.push(format!("SyslogIdentifier={first}: its lines in the journal keep this name"));
        Some(first)
    }

    /// The source of pages, if the sandbox excludes some.
    fn choose_pages(&self, way: Way, store: Option<&str>, reasons: &mut Vec<String>) -> Option<Pages> {
        if self.wanted.pages != Pages::Auto {
            return None;
        }
        if self.forbids_copied_code() {
            let pages = match (store, self.against_files(way)) {
                (Some(_), Some(_)) => Pages::Image,
                (Some(_), None) => Pages::FileThenImage,
                (None, _) => Pages::File,
            };
            reasons.push(format!(
                "--pages {}: MemoryDenyWriteExecute= forbids copies of code, and files and images are mapped",
                pages.word()
            ));
            return Some(pages);
        }
        if way == Way::AfterStart || self.rule(CACHE_CALL) != CallRule::Kills {
            return None;
        }
        let pages = if store.is_some() && way == Way::Ptrace { Pages::Image } else { Pages::Thp };
        let why = format!("SystemCallFilter= kills a process for {CACHE_CALL}, by which `auto` reads the page cache");
        reasons.push(format!("--pages {}: {why}", pages.word()));
        Some(pages)
    }
}

fn paths(programs: &[Program]) -> Vec<String> {
    programs.iter().map(|program| program.path.clone()).collect()
}

#[cfg(test)]
mod tests;
