//! The answer of a check.

use foreign_text::{quoted, quoted_path_text};
use serde::Serialize;
use std::fmt;

/// The importance of a finding; the last is worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing needs to be done.
    Note,
    /// All works; this would make it better.
    Advice,
    /// Huge pages cannot be had, or the program may be killed.
    Problem,
}

/// The area of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The kernel's features.
    Kernel,
    /// Transparent huge pages.
    Thp,
    /// The hugetlb pools and their limits.
    Pool,
    /// Free memory, and the kernel's own actions on memory.
    Memory,
    /// The rights of the process and its user.
    Permission,
    /// The hypervisor.
    Host,
    /// The requirements of measuring.
    Measuring,
    /// The program.
    Program,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Thp => "transparent huge pages",
            Self::Pool => "pool",
            Self::Memory => "memory",
            Self::Permission => "permissions",
            Self::Host => "host",
            Self::Measuring => "measuring",
            Self::Program => "program",
        })
    }
}

/// The fix of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// Commands for a shell, one after the other; empty if no command helps.
    pub commands: Vec<String>,
    /// They need root.
    pub as_root: bool,
    /// Further information: necessary restarts, the cost, how it survives a reboot.
    pub note: Option<String>,
}

impl Fix {
    /// A command that root types.
    pub fn root(command: impl Into<String>) -> Self {
        Self { commands: vec![command.into()], as_root: true, note: None }
    }

    /// A command that the user types.
    pub fn user(command: impl Into<String>) -> Self {
        Self { commands: vec![command.into()], as_root: false, note: None }
    }

    /// A fix without a command.
    pub fn by_hand(words: impl Into<String>) -> Self {
        Self { note: Some(words.into()), ..Self::default() }
    }

    /// Adds further information.
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// A value for a file of the kernel, whose path is quoted: users choose the names of cgroups.
    pub fn write(value: impl fmt::Display, file: impl fmt::Display) -> Self {
        Self::root(format!("echo {value} > {}", quoted_path_text(&file.to_string())))
    }

    /// A setting of sysctl(8), which a file in `/etc/sysctl.d` keeps.
    pub fn sysctl(name: &str, value: impl fmt::Display) -> Self {
        let lasting = format!("{name} = {value} in /etc/sysctl.d/60-pagelift.conf keeps it after a reboot");
        Self::root(format!("sysctl {name}={value}")).with_note(lasting)
    }

    /// The commands as a user of this kind types them.
    pub fn typed(&self, is_root: bool) -> Vec<String> {
        let prefix = |command: &String| match (self.as_root && !is_root, command.contains(['>', '|', '\'', '$'])) {
            (false, _) => command.clone(),
            (true, false) => format!("sudo {command}"),
            (true, true) => format!("sudo sh -c {}", quoted(command)),
        };
        self.commands.iter().map(prefix).collect()
    }
}

/// A check's unmet requirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check that found it.
    pub check: &'static str,
    /// The area.
    pub area: Area,
    /// Its importance.
    pub severity: Severity,
    /// The finding in a few words.
    pub title: String,
    /// Found, and the place.
    pub found: String,
    /// Wanted instead.
    pub wanted: String,
    /// Why that matters.
    pub why: String,
    /// The fix; `None` if there is none.
    pub fix: Option<Fix>,
}

/// A fact that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotSeen {
    /// Name of the check.
    pub check: &'static str,
    /// The missing fact, and the reason.
    pub what: String,
    /// Root would see it.
    pub root_sees: bool,
}

/// One answer of a check. A check that does not apply gives none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// As it should be; the observed value.
    Fine(String),
    /// Wanting.
    Found {
        /// Its importance.
        severity: Severity,
        /// The finding in a few words.
        title: String,
        /// Found, and the place.
        found: String,
        /// Wanted instead.
        wanted: String,
        /// Why that matters.
        why: String,
        /// The fix.
        fix: Option<Fix>,
    },
    /// Could not be read.
    NotSeen {
        /// The missing fact, and the reason.
        what: String,
        /// Root would see it.
        root_sees: bool,
    },
}

impl CheckOutcome {
    /// All is well; the text is the observed value.
    pub fn fine(seen: impl Into<String>) -> Self {
        Self::Fine(seen.into())
    }

    /// Something that root would see.
    pub fn for_root(what: impl Into<String>) -> Self {
        Self::NotSeen { what: what.into(), root_sees: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_is_typed_by_root_and_by_others() {
        let write = Fix::write("madvise", "/sys/x");
        assert_eq!(write.typed(true), ["echo madvise > /sys/x"]);
        assert_eq!(write.typed(false), ["sudo sh -c 'echo madvise > /sys/x'"]);
        assert_eq!(Fix::write(1, "/c/x;touch y").typed(true), ["echo 1 > '/c/x;touch y'"]);
        assert_eq!(Fix::sysctl("vm.x", 1).typed(false), ["sudo sysctl vm.x=1"]);
        assert_eq!(Fix::user("a 'b'").typed(false), ["a 'b'"]);
    }
}
