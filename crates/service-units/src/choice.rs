//! Chooses how a service is lifted in its sandbox.

use crate::properties::{CallRule, Properties, is_within};
use serde::Serialize;
use std::fmt;

/// Calls of the ptrace way beside those that nearly every program makes; in a filter of systemd the first two are in
/// `@debug` and the others in `@system-service` (systemd 252; seen under strace and in the kernel's log).
const PTRACE_CALLS: [&str; 12] = [
    "ptrace",
    "pidfd_getfd",
    "clone",
    "wait4",
    "pipe2",
    "prctl",
    "process_vm_readv",
    "mremap",
    "madvise",
    "munmap",
    "tgkill",
    "rt_sigprocmask",
];
/// Calls of the library, as above.
const PRELOAD_CALLS: [&str; 6] = ["process_vm_readv", "mremap", "madvise", "munmap", "statx", "rt_sigprocmask"];
/// Calls that are made in a running program.
const LATER_CALLS: [&str; 6] = ["munmap", "mremap", "madvise", "rt_sigprocmask", "mmap", "openat"];
/// Tells how a file lies in the page cache (Linux 6.5); systemd 252 has it in no group.
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
    /// Code or read-only data of it may fill a huge page.
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
}

/// What the user has asked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `--via`.
    pub via: Option<Way>,
    /// `--pages`, but for `auto`.
    pub pages: Option<String>,
    /// `--only` names the programs to lift.
    pub only: bool,
    /// Options that only the ptrace way has.
    pub only_by_ptrace: Vec<String>,
    /// Options that `pagelift attach` does not have.
    pub only_by_run: Vec<String>,
}

/// What is installed here.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The path of `pagelift`.
    pub pagelift: String,
    /// Why not every user can execute it.
    pub not_for_everybody: Option<String>,
    /// The path of `libpagelift.so`.
    pub library: Option<String>,
    /// The directory of the image store.
    pub store: Option<String>,
    /// SELinux is enforcing.
    pub selinux: bool,
}

/// How a service is to be lifted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// `--pages`, where it is not the user's.
    pub pages: Option<&'static str>,
    /// Paths that the unit must be allowed to execute.
    pub exec_paths: Vec<String>,
    /// Programs, as their commands name them, of which root makes images before each start.
    pub image_sources: Vec<String>,
    /// systemd is to wait for the exec, so that what runs is the program.
    pub waits_for_exec: bool,
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
/// What stands against each of them.
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
    /// True where the sandbox applies to a program.
    fn is_confined(&self) -> bool {
        self.programs.iter().any(|program| !program.is_unconfined)
    }

    fn rule(&self, call: &str) -> CallRule {
        if self.is_confined() { self.unit.rule(call) } else { CallRule::Allowed }
    }

    /// True where memory that was written cannot become code.
    fn forbids_copied_code(&self) -> bool {
        self.is_confined() && self.unit.is_set("MemoryDenyWriteExecute")
    }

    fn pages(&self) -> &str {
        self.wanted.pages.as_deref().unwrap_or("auto")
    }

    /// Why a unit such as Debian's postgresql.service, which starts `/bin/true`, is not the one that is meant.
    fn stands_for_others(&self) -> Option<String> {
        let does_nothing = |program: &Program| program.path.rsplit('/').next() == Some("true");
        let program = self.programs.first().filter(|_| self.programs.iter().all(does_nothing))?;
        let parts = self.unit.list("ConsistsOf");
        let fix = match parts.first() {
            Some(part) => format!("the units that do the work are {}; fix: pagelift enable {part}", parts.join(", ")),
            None => {
                format!("needed: the unit that does the work; systemctl list-dependencies {}", self.unit.value("Id"))
            }
        };
        Some(format!("it starts {} only, which does nothing: {fix}", program.path))
    }

    /// What no way gets around.
    fn refused_anyway(&self) -> Vec<String> {
        let mut found: Vec<String> = self.stands_for_others().into_iter().collect();
        for program in self.programs {
            found.extend(program.privileged.clone());
            if program.is_script && !self.wanted.only {
                found.push(format!(
                    "{} is a script; needed: the name of the program that it starts; fix: --only NAME",
                    program.path
                ));
            }
        }
        if self.unit.value("MemoryTHP") == "disable" && self.pages() != "hugetlb" {
            found.push(
                "MemoryTHP=disable forbids transparent huge pages and images; fix: --pages hugetlb --lift text,rodata \
                 with a pool, or another MemoryTHP="
                    .to_owned(),
            );
        }
        if self.forbids_copied_code() && ["thp", "hugetlb"].contains(&self.pages()) {
            found.push(format!(
                "MemoryDenyWriteExecute= forbids copies of code, and --pages {} makes them; fix: --pages image",
                self.pages()
            ));
        }
        found
    }

    fn obstacles(&self, way: Way) -> Vec<String> {
        let mut found = match way {
            Way::Ptrace => self.against_prefix(),
            Way::Preload => [self.against_prefix(), self.against_preload()].concat(),
            Way::AfterStart => self.against_later(),
        };
        found.extend(self.against_calls(way));
        found.extend(self.against_pages(way));
        found
    }

    /// What stands against `pagelift run` before the program.
    fn against_prefix(&self) -> Vec<String> {
        let (unit, here) = (self.unit, self.here);
        let mut found: Vec<String> =
            self.programs.iter().filter_map(|program| program.not_prefixable.clone()).collect();
        let program = here.pagelift.as_str();
        for name in ["RootDirectory", "RootImage"] {
            let root = unit.value(name);
            if !root.is_empty() && root != "/" {
                found.push(format!("{name}={root}, and {program} is not in there"));
            }
        }
        let hides_home = !["", "no"].contains(&unit.value("ProtectHome"));
        if hides_home && ["/home", "/root", "/run/user"].iter().any(|home| is_within(program, home)) {
            found.push(format!("ProtectHome= hides {program}; fix: install it in /usr"));
        }
        if !["", "no"].contains(&unit.value("PrivateTmp"))
            && ["/tmp", "/var/tmp"].iter().any(|tmp| is_within(program, tmp))
        {
            found.push(format!("PrivateTmp= hides {program}; fix: install it in /usr"));
        }
        for name in ["InaccessiblePaths", "TemporaryFileSystem"] {
            if let Some(folder) = self.hidden_by(name, program) {
                found.push(format!("{name}={folder} hides {program}"));
            }
        }
        if here.selinux {
            found.push(
                "SELinux would run the program in another domain, which is that of the first program executed"
                    .to_owned(),
            );
        }
        if !unit.value("AppArmorProfile").is_empty() {
            found.push(format!("AppArmorProfile={} would be applied to pagelift", unit.value("AppArmorProfile")));
        }
        let user = unit.value("User");
        let as_user = !["", "root", "0"].contains(&user) || unit.is_set("DynamicUser");
        found.extend(here.not_for_everybody.clone().filter(|_| as_user));
        found
    }

    fn against_preload(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.here.library.is_none() {
            found.push("libpagelift.so is not installed".to_owned());
        }
        let fixed = self.programs.iter().filter(|program| program.is_static);
        found.extend(fixed.map(|program| format!("{} is linked statically", program.path)));
        let options = self.wanted.only_by_ptrace.iter();
        found.extend(options.map(|option| format!("{option} needs ptrace")));
        if self.pages() == "image" {
            found.push("from inside no image is mapped".to_owned());
        } else if self.forbids_copied_code() {
            found.push("MemoryDenyWriteExecute= forbids copies of code, and from inside no image is mapped".to_owned());
        }
        found
    }

    fn against_later(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.unit.value("Type") == "oneshot" {
            found.push("Type=oneshot leaves no process to attach to".to_owned());
        }
        found.extend(self.wanted.only_by_run.iter().map(|option| format!("attach has no {option}")));
        found
    }

    /// What `SystemCallFilter=` refuses.
    fn against_calls(&self, way: Way) -> Option<String> {
        let calls: &[&str] = match way {
            Way::Ptrace => &PTRACE_CALLS,
            Way::Preload => &PRELOAD_CALLS,
            Way::AfterStart => &LATER_CALLS,
        };
        let refused: Vec<&str> = calls.iter().copied().filter(|call| self.rule(call) != CallRule::Allowed).collect();
        let consequence = |call: &&str| self.rule(call) == CallRule::Kills;
        let ends = if refused.iter().any(consequence) { "kills a process for" } else { "refuses" };
        (!refused.is_empty()).then(|| format!("SystemCallFilter= {ends} {}", refused.join(", ")))
    }

    /// What stands against every source of huge pages for code.
    fn against_pages(&self, way: Way) -> Option<String> {
        if self.pages() == "file" && way != Way::AfterStart && self.rule(CACHE_CALL) == CallRule::Kills {
            return Some(format!("SystemCallFilter= kills a process for {CACHE_CALL}, which --pages file needs"));
        }
        let images = self.pages() == "image" || self.forbids_copied_code() && self.pages() == "auto";
        if way == Way::Preload || !images {
            return None;
        }
        let why =
            if self.pages() == "image" { "--pages image" } else { "MemoryDenyWriteExecute= forbids copies of code:" };
        match self.visible_store() {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!("{why} needs an image store; fix: pagelift image setup --install systemd")),
            Err(hidden) => Some(format!("{why} needs the image store, but {hidden}")),
        }
    }

    /// The folder of a list of folders in which a path is hidden.
    fn hidden_by(&self, name: &str, path: &str) -> Option<String> {
        let folders = self.unit.list(name).into_iter().map(|item| item.trim_start_matches(['-', '+']).to_owned());
        let mut folders =
            folders.map(|item| item.split_once(':').map_or(item.clone(), |(folder, _)| folder.to_owned()));
        folders.find(|folder| is_within(path, folder))
    }

    /// The store, where the service can see it.
    fn visible_store(&self) -> Result<Option<&str>, String> {
        let Some(store) = self.here.store.as_deref() else { return Ok(None) };
        for name in ["RootDirectory", "RootImage"] {
            let root = self.unit.value(name);
            if !root.is_empty() && root != "/" {
                return Err(format!("it is not in {name}={root}"));
            }
        }
        for name in ["InaccessiblePaths", "TemporaryFileSystem"] {
            if let Some(folder) = self.hidden_by(name, store) {
                return Err(format!("{name}={folder} hides it"));
            }
        }
        Ok(Some(store))
    }

    fn choice(&self, way: Way, mut reasons: Vec<String>) -> Choice {
        let store = self.visible_store().ok().flatten();
        let pages = self.choose_pages(way, store, &mut reasons);
        let uses_images =
            store.is_some() && way != Way::Preload && ["auto", "image"].contains(&pages.unwrap_or(self.pages()));
        for program in self.programs.iter().filter(|program| !program.is_large && !self.wanted.only) {
            reasons.push(format!(
                "note: no code of {} itself fills a huge page; its libraries, data and heap alone can gain",
                program.path
            ));
        }
        let mut needed = Vec::new();
        if way != Way::AfterStart {
            needed.push((self.here.pagelift.clone(), "pagelift"));
        }
        if way == Way::Preload {
            needed.extend(self.here.library.clone().map(|library| (library, "the library")));
        }
        if uses_images {
            needed.extend(store.map(|store| (store.to_owned(), "code in images")));
        }
        needed.retain(|(path, _)| self.is_confined() && self.unit.forbids_executing(path));
        for (path, what) in &needed {
            reasons.push(format!("ExecPaths={path} is added: NoExecPaths= forbids executing {what}"));
        }
        let waits_for_exec = way == Way::AfterStart && self.unit.value("Type") == "simple";
        if waits_for_exec {
            reasons.push(
                "Type=exec instead of simple: attach must find the program, not systemd before its exec".to_owned(),
            );
        }
        let exec_paths = needed.into_iter().map(|(path, _)| path).collect();
        let large = self.programs.iter().filter(|program| program.is_large && uses_images && way == Way::Ptrace);
        let mut image_sources: Vec<String> = large.map(|program| program.named.clone()).collect();
        image_sources.dedup();
        Choice { way, pages, exec_paths, image_sources, waits_for_exec, reasons }
    }

    /// The source of pages, where the sandbox excludes some.
    fn choose_pages(&self, way: Way, store: Option<&str>, reasons: &mut Vec<String>) -> Option<&'static str> {
        if self.pages() != "auto" {
            return None;
        }
        if self.forbids_copied_code() {
            reasons.push(
                "--pages image: MemoryDenyWriteExecute= forbids copies of code, and images are mapped".to_owned(),
            );
            return Some("image");
        }
        if way == Way::AfterStart || self.rule(CACHE_CALL) != CallRule::Kills {
            return None;
        }
        let pages = if store.is_some() && way == Way::Ptrace { "image" } else { "thp" };
        let why =
            format!("SystemCallFilter= kills a process for {CACHE_CALL}, by which `auto` looks at the page cache");
        reasons.push(format!("--pages {pages}: {why}"));
        Some(pages)
    }
}

#[cfg(test)]
mod tests;
