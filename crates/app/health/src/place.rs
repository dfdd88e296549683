//! Commands for the place in which they are typed: each works there, or names the place in which it does.

use crate::facts::Place;
use crate::finding::Fix;
use foreign_text::quoted_text;

impl Place {
    /// A command that may begin with `sudo`, without it if there is none.
    pub(crate) fn typed(self, command: &str) -> String {
        match command.strip_prefix("sudo ").filter(|_| self.lacks_sudo) {
            Some(command) => format!("su -c {}", quoted_text(command)),
            None => command.to_owned(),
        }
    }

    /// A fix that can be followed here.
    pub(crate) fn fixed(self, fix: Fix, is_root: bool) -> Fix {
        let is_setting = |command: &String| {
            let of_kernel = command.contains("> /sys/") || command.contains("> /proc/sys/");
            of_kernel || ["sysctl ", "pagelift pool "].iter().any(|start| command.starts_with(start))
        };
        if self.is_read_only && fix.as_root && fix.commands.iter().any(is_setting) {
            let note = fix.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            let commands = fix.commands.join("; ");
            return Fix::by_hand(format!("as root of the host, since settings are read-only here: `{commands}`{note}"));
        }
        if self.lacks_sudo && fix.as_root && !is_root {
            let commands = fix.commands.iter().map(|command| format!("su -c {}", quoted_text(command))).collect();
            return Fix { commands, as_root: false, note: fix.note };
        }
        fix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_works_where_it_is_typed() {
        let (host, no_sudo) = (Place::default(), Place { lacks_sudo: true, ..Place::default() });
        assert_eq!(host.typed("sudo pagelift attach 7"), "sudo pagelift attach 7");
        assert_eq!(no_sudo.typed("sudo pagelift attach 7"), "su -c 'pagelift attach 7'");
        assert_eq!(no_sudo.typed("pagelift run -- x"), "pagelift run -- x");
        let setting = || Fix::sysctl("vm.x", 1);
        assert_eq!(host.fixed(setting(), false).typed(false), ["sudo sysctl vm.x=1"]);
        assert_eq!(no_sudo.fixed(setting(), false).typed(false), ["su -c 'sysctl vm.x=1'"]);
        assert_eq!(no_sudo.fixed(setting(), true).typed(true), ["sysctl vm.x=1"]);
        let container = Place { is_read_only: true, lacks_sudo: true };
        let fix = container.fixed(Fix::write(1, "/sys/x"), true);
        assert!(
            fix.commands.is_empty() && fix.note.unwrap().contains("of the host, since settings are read-only here")
        );
        let attach = container.fixed(Fix::root("pagelift attach 7"), true);
        assert_eq!(attach.typed(true), ["pagelift attach 7"]);
    }
}
