//! The obstacles for each way in a sandbox.

use super::{CACHE_CALL, Chooser, Program, Way, paths};
use crate::properties::{CallRule, is_within};
use options::{Choice as _, HeapPages, Pages};

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
/// Says from which NUMA nodes pages come; in a filter of systemd it is in `@resources`.
const NODE_CALL: &str = "mbind";

impl Chooser<'_> {
    /// The obstacles for `pagelift run` before the program.
    pub(super) fn against_prefix(&self) -> Vec<String> {
        let (unit, here) = (self.unit, self.here);
        let mut found: Vec<String> =
            self.programs.iter().filter_map(|program| program.not_prefixable.clone()).collect();
        let named = self.programs.iter().flat_map(|program| self.named_by(program));
        found.extend(self.programs.iter().chain(named).filter_map(|program| program.privileged.clone()));
        let program = here.pagelift.as_str();
        found.extend(self.other_root().map(|root| format!("{root}, and {program} is not in there")));
        let hides_home = ["yes", "tmpfs"].contains(&unit.value("ProtectHome"));
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
                "SELinux would run the program in another domain, the domain of the first executed program".to_owned(),
            );
        }
        if !unit.value("AppArmorProfile").is_empty() {
            found.push(format!("AppArmorProfile={} would be applied to pagelift", unit.value("AppArmorProfile")));
        }
        found.extend(here.not_for_everybody.clone().filter(|_| self.is_another_user()));
        found
    }

    pub(super) fn against_preload(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.here.library.is_none() {
            found.push("libpagelift.so is not installed".to_owned());
        }
        // A starter of the named programs passes the environment on.
        let fixed = self.lifted().into_iter().filter(|program| program.is_static);
        found.extend(fixed.map(|program| format!("{} is linked statically", program.path)));
        let options = self.wanted.only_by_ptrace.iter();
        found.extend(options.map(|option| format!("{option} needs ptrace")));
        let pages = self.wanted.pages;
        if pages.only_shows() && pages.takes_images() {
            found.push(format!("--pages {}: from inside no image is mapped", pages.word()));
        } else if self.forbids_copied_code() && pages != Pages::File {
            found.push("MemoryDenyWriteExecute= forbids copies of code, and from inside no image is mapped".to_owned());
        }
        found
    }

    pub(super) fn against_later(&self) -> Vec<String> {
        let mut found = self.against_command_after();
        if self.unit.value("Type") == "oneshot" {
            found.push("Type=oneshot leaves no process to attach to".to_owned());
        }
        if self.unit.has_socket_for_errors() {
            found.push(
                "attach writes why it fails to the unit's standard error, which is a socket; fix: StandardError=journal"
                    .to_owned(),
            );
        }
        found.extend(self.wanted.only_by_run.iter().map(|option| format!("attach has no {option}")));
        found.extend(self.programs.iter().filter_map(|program| self.against_main_process(program)));
        found
    }

    /// Settings that hide pagelift from `ExecStartPost=+`: the prefix removes the sandbox except these (systemd 252 and
    /// 257, `apply_mount_namespace()`), and a missing program is skipped without a failure. With another root, a bound
    /// program finds no /proc.
    fn against_command_after(&self) -> Vec<String> {
        let program = self.here.pagelift.as_str();
        let root = self.other_root().filter(|_| !self.unit.is_set("RootDirectoryStartOnly"));
        let root = root.map(|root| {
            format!(
                "{root} holds for ExecStartPost=, too, and {program} or /proc is not in there; fix: \
                 RootDirectoryStartOnly=yes"
            )
        });
        let hidden = self.hidden_by("TemporaryFileSystem", program);
        let hidden =
            hidden.map(|folder| format!("TemporaryFileSystem={folder} hides {program} from ExecStartPost=, too"));
        root.into_iter().chain(hidden).collect()
    }

    /// The setting that gives the service a separate file system, if one does.
    fn other_root(&self) -> Option<String> {
        let roots = ["RootDirectory", "RootImage"].map(|name| (name, self.unit.value(name)));
        let mut others = roots.into_iter().filter(|(_, root)| !["", "/"].contains(root));
        others.next().map(|(name, root)| format!("{name}={root}"))
    }

    /// The reason why `attach`, which lifts the main process, may find a shell. It finds the program that the shell
    /// executes if that program leaves its starter (`forking`), or if it reports its own start and the shell has become
    /// the program.
    fn against_main_process(&self, program: &Program) -> Option<String> {
        let shell = program.shell.as_ref().filter(|_| !self.wanted.only)?;
        let (path, executed) = (&program.path, paths(&shell.programs).join(" or "));
        match self.unit.value("Type") {
            "forking" | "oneshot" => None,
            "notify" | "notify-reload" | "dbus" if shell.is_replaced => None,
            "notify" | "notify-reload" | "dbus" => Some(format!(
                "attach would find {path}, which starts {executed} without exec and stays the main process"
            )),
            kind => Some(format!(
                "attach may find {path}, since Type={kind} does not wait until it has executed {executed}; fix: \
                 Type=notify, if the program supports it"
            )),
        }
    }

    /// Settings that would hide the main process from systemd: without a file that names it, systemd uses the only
    /// process in the unit's control group whose parent is the first process, which is also true for a helper (systemd
    /// 252, `unit_search_main_pid()`).
    pub(super) fn against_guessing(&self) -> Option<String> {
        let unit = self.unit;
        let guesses =
            unit.value("Type") == "forking" && unit.value("PIDFile").is_empty() && unit.value("GuessMainPID") != "no";
        // The programs that a shell names are given to --only.
        let has_only = self.wanted.only || self.programs.iter().any(|program| program.shell.is_some());
        let option = match (has_only, self.wanted.heap) {
            (true, _) => "--only",
            (false, HeapPages::Off) => return None,
            (false, _) => "--heap",
        };
        guesses.then(|| {
            format!(
                "Type=forking without PIDFile= makes systemd guess the main process, which fails while a helper also \
                 runs, as for {option}; fix: PIDFile="
            )
        })
    }

    /// The calls that `SystemCallFilter=` refuses.
    pub(super) fn against_calls(&self, way: Way) -> Vec<String> {
        let mut calls = match way {
            Way::Ptrace => PTRACE_CALLS.to_vec(),
            Way::Preload => PRELOAD_CALLS.to_vec(),
            Way::AfterStart => LATER_CALLS.to_vec(),
        };
        calls.extend(self.wanted.numa.then_some(NODE_CALL));
        let refused: Vec<&str> = calls.into_iter().filter(|call| self.rule(call) != CallRule::Allowed).collect();
        let consequence = |call: &&str| self.rule(call) == CallRule::Kills;
        let ends = if refused.iter().any(consequence) { "kills a process for" } else { "refuses" };
        let mut found = Vec::new();
        found.extend((!refused.is_empty()).then(|| format!("SystemCallFilter= {ends} {}", refused.join(", "))));
        // The heap continues without it if it fails.
        let places = matches!(self.wanted.heap, HeapPages::Pool(_)) && self.here.several_nodes;
        if places && way != Way::AfterStart && !refused.contains(&NODE_CALL) && self.rule(NODE_CALL) == CallRule::Kills
        {
            found.push(format!(
                "SystemCallFilter= kills a process for {NODE_CALL}, by which a heap takes pool pages of each node"
            ));
        }
        found
    }

    /// The calls that Yama refuses (Documentation/admin-guide/LSM/Yama.rst).
    pub(super) fn against_scope(&self, way: Way) -> Option<String> {
        match (self.here.ptrace_scope, way) {
            (0 | 1, _) | (_, Way::Preload) => None,
            // `+` has all capabilities.
            (2, Way::AfterStart) => None,
            (2, Way::Ptrace) if self.may_trace() => None,
            (2, Way::Ptrace) => Some(
                "kernel.yama.ptrace_scope is 2, and User= or CapabilityBoundingSet= takes CAP_SYS_PTRACE; \
                 fix: sysctl kernel.yama.ptrace_scope=1"
                    .to_owned(),
            ),
            (scope, _) => {
                Some(format!("kernel.yama.ptrace_scope is {scope}, which forbids ptrace until the next boot"))
            }
        }
    }

    /// True for a service with CAP_SYS_PTRACE.
    fn may_trace(&self) -> bool {
        const NEEDED: &str = "cap_sys_ptrace";
        let has = |name: &str| self.unit.list(name).iter().any(|capability| capability == NEEDED);
        !self.is_confined() || has("CapabilityBoundingSet") && (!self.is_another_user() || has("AmbientCapabilities"))
    }

    /// True if the service does not run as root.
    pub(super) fn is_another_user(&self) -> bool {
        !["", "root", "0"].contains(&self.unit.value("User")) || self.unit.is_set("DynamicUser")
    }

    /// Why the page cache shows no program's code.
    pub(super) fn against_files(&self, way: Way) -> Option<String> {
        if way != Way::AfterStart && self.rule(CACHE_CALL) == CallRule::Kills {
            return Some(format!("SystemCallFilter= kills a process for {CACHE_CALL}, which the page cache needs"));
        }
        let programs = self.lifted().into_iter();
        let why: Option<Vec<&String>> = programs.map(|program| program.not_in_page_cache.as_ref()).collect();
        why?.first().map(|why| (*why).clone())
    }

    /// The obstacles for every source of huge pages for code.
    pub(super) fn against_pages(&self, way: Way) -> Option<String> {
        let pages = self.wanted.pages;
        if pages.only_shows()
            && pages.takes_files()
            && way != Way::AfterStart
            && self.rule(CACHE_CALL) == CallRule::Kills
        {
            let word = pages.word();
            return Some(format!("SystemCallFilter= kills a process for {CACHE_CALL}, which --pages {word} needs"));
        }
        let shown = pages == Pages::Auto && self.forbids_copied_code();
        if way == Way::Preload || pages != Pages::Image && !shown {
            return None;
        }
        let store = self.visible_store();
        let files = self.against_files(way);
        if matches!(store, Ok(Some(_))) || shown && files.is_none() {
            return None;
        }
        let why = if shown { "MemoryDenyWriteExecute= forbids copies of code:" } else { "--pages image" };
        let files = files.filter(|_| shown).map(|why| format!(" (not the page cache: {why})")).unwrap_or_default();
        Some(match store {
            Err(hidden) => format!("{why} needs the image store, but {hidden}{files}"),
            Ok(_) => format!("{why} needs an image store{files}; fix: pagelift image setup --install systemd"),
        })
    }

    /// The folder of a list of folders in which a path is hidden.
    fn hidden_by(&self, name: &str, path: &str) -> Option<String> {
        let folders = self.unit.list(name).into_iter().map(|item| item.trim_start_matches(['-', '+']).to_owned());
        let mut folders =
            folders.map(|item| item.split_once(':').map_or(item.clone(), |(folder, _)| folder.to_owned()));
        folders.find(|folder| is_within(path, folder))
    }

    /// The store, if the service can open its images, which the service itself does for every kind of lift.
    pub(super) fn visible_store(&self) -> Result<Option<&str>, String> {
        let Some(store) = self.here.store.as_deref() else { return Ok(None) };
        if let Some(root) = self.other_root() {
            return Err(format!("it is not in {root}"));
        }
        for name in ["InaccessiblePaths", "TemporaryFileSystem"] {
            if let Some(folder) = self.hidden_by(name, store) {
                return Err(format!("{name}={folder} hides it"));
            }
        }
        match self.here.store_closed.as_ref().filter(|_| self.is_confined() && self.is_another_user()) {
            Some(why) => Err(format!("User= cannot open its images: {why}")),
            None => Ok(Some(store)),
        }
    }
}
