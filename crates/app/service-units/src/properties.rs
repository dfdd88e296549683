//! systemd's properties of a unit (`systemctl show`).

use crate::words::first_word;
use std::collections::BTreeMap;

/// The properties that are read.
pub const NAMES: [&str; 47] = [
    "Id",
    "LoadState",
    "ActiveState",
    "MainPID",
    "ControlGroup",
    "FragmentPath",
    "DropInPaths",
    "Transient",
    "NeedDaemonReload",
    "Accept",
    "Type",
    "PIDFile",
    "GuessMainPID",
    "ConsistsOf",
    "StandardInput",
    "StandardOutput",
    "StandardError",
    "SyslogIdentifier",
    "User",
    "DynamicUser",
    "ExecStart",
    "ExecStartPost",
    "ExecSearchPath",
    "RootDirectory",
    "RootImage",
    "RootDirectoryStartOnly",
    "MountImages",
    "ProtectHome",
    "PrivateTmp",
    "InaccessiblePaths",
    "TemporaryFileSystem",
    "NoExecPaths",
    "ExecPaths",
    "SELinuxContext",
    "AppArmorProfile",
    "SystemCallFilter",
    "SystemCallErrorNumber",
    "MemoryMax",
    "MemoryHigh",
    "MemoryDenyWriteExecute",
    "MemoryTHP",
    "NoNewPrivileges",
    "ProtectSystem",
    "CapabilityBoundingSet",
    "AmbientCapabilities",
    "PrivateUsers",
    "LimitMEMLOCK",
];

/// `SystemCallErrorNumber=kill` as systemd shows it (`SECCOMP_ERROR_NUMBER_KILL`, systemd 252).
const KILL: &str = "2147483646";

/// The effect of a service's `SystemCallFilter=` on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRule {
    /// It is made.
    Allowed,
    /// It fails with an error.
    Fails,
    /// The process is killed by SIGSYS.
    Kills,
}

/// Properties of a unit by their names. One that this systemd does not know is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<String, Vec<String>>);

impl Properties {
    /// Reads the output of `systemctl show`.
    pub fn parse(text: &str) -> Self {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            all.entry(name.to_owned()).or_default().push(value.to_owned());
        }
        Self(all)
    }

    /// The value, empty if there is none.
    pub fn value(&self, name: &str) -> &str {
        self.0.get(name).and_then(|values| values.first()).map_or("", String::as_str)
    }

    /// True if a boolean property is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.value(name) == "yes"
    }

    /// The words of a list, which systemctl prints with quotes and escapes if necessary.
    pub fn list(&self, name: &str) -> Vec<String> {
        words_of(self.value(name))
    }

    /// The commands of `ExecStart=` or another setting of this kind, specifiers expanded, in their order.
    pub fn commands(&self, name: &str) -> Vec<ShownCommand> {
        let lines = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let command = |line: &String| {
            let (path, rest) = line.strip_prefix("{ path=")?.split_once(" ; argv[]=")?;
            let arguments = rest.split_once(" ; ignore_errors=").map_or(rest, |(words, _)| words);
            Some(ShownCommand { path: path.to_owned(), arguments: arguments.to_owned() })
        };
        lines.iter().filter_map(command).collect()
    }

    /// True if the service's standard error is a socket that systemd has passed to it; with `Accept=yes` that is a
    /// client's connection. `inherit` is taken from the input for the output, and from the output for the error;
    /// otherwise systemd shows the default (systemd 252, `setup_output()`, `service_fix_stdio()`).
    pub fn has_socket_for_errors(&self) -> bool {
        let is = |name: &str, words: &[&str]| words.contains(&self.value(name));
        // `fd` is a descriptor of a socket unit, too.
        let is_socket = |name: &str| is(name, &["socket", "fd"]);
        let output = is_socket("StandardOutput") || is("StandardOutput", &["inherit"]) && is_socket("StandardInput");
        is_socket("StandardError") || is("StandardError", &["inherit"]) && output
    }

    /// The settings that limit the service's memory, as assignments. systemd shows `infinity` if there is no limit.
    pub fn memory_limits(&self) -> Vec<String> {
        let limits = ["MemoryMax", "MemoryHigh"].map(|name| (name, self.value(name)));
        let limits = limits.into_iter().filter(|(_, value)| !["", "infinity"].contains(value));
        limits.map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Sets a property to one value.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), vec![value.to_owned()]);
    }

    /// The effect of the service's filter on a call.
    pub fn rule(&self, call: &str) -> CallRule {
        let filter = self.value("SystemCallFilter");
        let (denies, names) = filter.strip_prefix('~').map_or((false, filter), |names| (true, names));
        let own = names.split_whitespace().find(|item| item.split_once(':').map_or(*item, |(name, _)| name) == call);
        let is_allowed = if filter.is_empty() { true } else { own.is_some() != denies };
        if is_allowed {
            return CallRule::Allowed;
        }
        let has_error = own.is_some_and(|item| item.contains(':') && !item.ends_with(":kill"));
        let usual = self.value("SystemCallErrorNumber");
        if has_error || !(usual.is_empty() || usual == "0" || usual == KILL) {
            CallRule::Fails
        } else {
            CallRule::Kills
        }
    }

    /// True if a path may not be executed or mapped executable: the longest matching entry of `NoExecPaths=` and
    /// `ExecPaths=` decides.
    pub fn forbids_executing(&self, path: &str) -> bool {
        let longest = |name| {
            let folders = self.list(name);
            let folders = folders.iter().map(|folder| folder.trim_start_matches(['-', '+']));
            folders.filter(|folder| is_within(path, folder)).map(str::len).max()
        };
        longest("NoExecPaths").is_some_and(|no| longest("ExecPaths").is_none_or(|yes| yes < no))
    }
}

/// A command as `systemctl show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCommand {
    /// The file that is executed.
    pub path: String,
    /// `argv` with blanks between its words.
    pub arguments: String,
}

impl ShownCommand {
    /// The path of the program: of a command that starts `launcher`, the word behind its `--`.
    pub fn program(&self, launcher: Option<&str>) -> &str {
        let launched = self.arguments.split_once(" -- ").filter(|_| launcher == Some(self.path.as_str()));
        launched.map_or(&self.path, |(_, command)| command.split(' ').next().unwrap_or(command))
    }
}

/// The words of a text, up to the first one that systemd would not accept.
pub fn words_of(text: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), text);
    while let Ok(Some((word, next))) = first_word(rest) {
        words.push(String::from_utf8_lossy(&word).into_owned());
        rest = next;
    }
    words
}

/// True if a path is the folder or is in it.
pub fn is_within(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_systemd_shows_them() {
        let rule = |text: &str, call: &str| Properties::parse(text).rule(call);
        assert_eq!(rule("", "ptrace"), CallRule::Allowed);
        assert_eq!(rule("SystemCallFilter=~", "ptrace"), CallRule::Allowed);
        let allows = "SystemCallFilter=read write\nSystemCallErrorNumber=";
        assert_eq!(rule(&format!("{allows}{KILL}"), "ptrace"), CallRule::Kills);
        assert_eq!(rule(&format!("{allows}1"), "ptrace"), CallRule::Fails);
        assert_eq!(rule(&format!("{allows}1"), "read"), CallRule::Allowed);
        let denies = format!("SystemCallFilter=~ptrace mbind:EPERM\nSystemCallErrorNumber={KILL}");
        assert_eq!(rule(&denies, "ptrace"), CallRule::Kills);
        assert_eq!(rule(&denies, "mbind"), CallRule::Fails);
        assert_eq!(rule(&denies, "read"), CallRule::Allowed);
    }

    #[test]
    fn a_socket_is_inherited_from_the_input_to_the_error() {
        for (input, output, error, expected) in [
            ("socket", "inherit", "inherit", true),
            ("null", "socket", "inherit", true),
            ("null", "journal", "socket", true),
            ("fd", "inherit", "inherit", true),
            ("socket", "journal", "inherit", false),
            ("socket", "inherit", "journal", false),
            ("socket", "socket", "null", false),
            ("null", "journal", "inherit", false),
            ("tty", "inherit", "inherit", false),
            ("", "", "", false),
        ] {
            let text = format!("StandardInput={input}\nStandardOutput={output}\nStandardError={error}");
            assert_eq!(Properties::parse(&text).has_socket_for_errors(), expected, "{text}");
        }
    }

    #[test]
    fn the_longest_path_decides_what_may_be_executed() {
        let redis = Properties::parse("NoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib -/opt");
        assert!(redis.forbids_executing("/usr/bin/pagelift") && redis.forbids_executing("/usr/library"));
        assert!(!redis.forbids_executing("/usr/lib/libpagelift.so") && !redis.forbids_executing("/opt/x"));
        assert!(!Properties::parse("ExecPaths=/usr").forbids_executing("/bin/x"));
    }

    #[test]
    fn lists_are_read_with_their_quotes() {
        let text = "DropInPaths=/etc/a.conf \"/run/a@b\\\\x20c.d/z.conf\"";
        assert_eq!(Properties::parse(text).list("DropInPaths"), ["/etc/a.conf", "/run/a@b\\x20c.d/z.conf"]);
    }

    #[test]
    fn programs_are_those_of_each_command() {
        let text = "ExecStart={ path=/bin/a ; argv[]=/bin/a x ; ignore_errors=no ; pid=0 }\n\
                    ExecStart={ path=/bin/b c ; argv[]=b ; ignore_errors=yes ; pid=0 }\nUser=x\n";
        let programs = |text: &str, launcher| -> Vec<String> {
            let commands = Properties::parse(text).commands("ExecStart");
            commands.iter().map(|command| command.program(launcher).to_owned()).collect()
        };
        assert_eq!(programs(text, None), ["/bin/a", "/bin/b c"]);
        assert_eq!(Properties::parse(text).commands("ExecStart")[0].arguments, "/bin/a x");
        assert_eq!(Properties::parse(text).value("User"), "x");
        let launched =
            "ExecStart={ path=/bin/pagelift ; argv[]=/bin/pagelift run --argv0 x -- /bin/a -- b ; ignore_errors=no }";
        assert_eq!(programs(launched, Some("/bin/pagelift")), ["/bin/a"]);
        assert_eq!(programs(launched, Some("/opt/pagelift")), ["/bin/pagelift"]);
    }
}
