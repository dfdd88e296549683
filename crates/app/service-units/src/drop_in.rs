//! The drop-in file.

use crate::choice::{Choice, Way};
use crate::command::{ExecCommand, Launcher};
use crate::file::{Assignment, assignments, service_values};
use crate::properties::{Properties, words_of};
use crate::words::between_quotes;
use std::collections::BTreeSet;

/// Name of the file: it sorts behind those that people write, so that their `ExecStart=` is the one that counts.
pub const FILE_NAME: &str = "zz-pagelift.conf";

const TITLE: &str = "# Written by `pagelift enable`. `pagelift disable` removes it.";
const UNIT: &str = "# Unit: ";
const WAY: &str = "# Way: ";
const OPTIONS: &str = "# Options: ";
const ASKED: &str = "# Asked: ";
const COMMAND: &str = "# ExecStart=";
const FOLDER: &str = "# Folder: made";

/// The values of `Type=` (systemd.service(5)).
const TYPES: [&str; 8] = ["simple", "exec", "forking", "oneshot", "dbus", "notify", "notify-reload", "idle"];

/// The contents of a drop-in file, and their origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// The unit.
    pub unit: String,
    /// The way, in words.
    pub way: String,
    /// The words between `pagelift` and the program; `--only` has the names of all commands.
    pub options: Vec<String>,
    /// The user's words among them, and the words that chose the way.
    pub asked: Vec<String>,
    /// The unit's own `ExecStart=` lines, of which it was made.
    pub commands: Vec<String>,
    /// The folder did not exist before.
    pub made_folder: bool,
    /// The text after the comments.
    pub body: String,
}

/// The commands of a unit.
#[derive(Clone, Copy)]
pub struct UnitCommands<'a> {
    /// The `ExecStart=` lines.
    pub lines: &'a [String],
    /// The commands in these lines.
    pub parsed: &'a [ExecCommand],
}

/// The words that a drop-in file puts before a program.
#[derive(Clone, Copy)]
pub struct LaunchWords<'a> {
    /// Path of pagelift.
    pub pagelift: &'a str,
    /// The user's words.
    pub asked: &'a [String],
    /// The user's words as the chosen way has them.
    pub options: &'a [String],
}

impl DropIn {
    /// Makes the file of `unit`. `after` are the units that give it pages and images.
    pub fn new(
        unit: &str,
        choice: &Choice,
        UnitCommands { lines, parsed: commands }: UnitCommands<'_>,
        LaunchWords { pagelift, asked, options }: LaunchWords<'_>,
        after: &[String],
    ) -> Self {
        let mut words = vec![if choice.way == Way::AfterStart { "attach" } else { "run" }.to_owned()];
        words.extend((choice.way == Way::Preload).then(|| "--via=preload".to_owned()));
        words.extend(choice.pages.map(|pages| format!("--pages={pages}")));
        let is_quiet = options.iter().any(|option| option == "--quiet");
        words.extend((choice.is_silent && !is_quiet).then(|| "--quiet".to_owned()));
        words.extend(options.iter().cloned());
        let launcher = Launcher { program: pagelift.to_owned(), options: words };
        let names: BTreeSet<&str> = choice.only.iter().flatten().map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let all = with_only(&launcher, &names);
        let mut body = String::new();
        if !after.is_empty() {
            body += &format!("[Unit]\nAfter={}\n\n", after.join(" "));
        }
        body += "[Service]\n";
        body += &service(choice, commands, &launcher);
        Self {
            unit: unit.to_owned(),
            way: choice.way.to_string(),
            options: all.options,
            asked: asked.to_vec(),
            commands: lines.to_vec(),
            made_folder: false,
            body,
        }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text =
            format!("{TITLE}\n{UNIT}{}\n{WAY}{}\n{OPTIONS}{}\n", self.unit, self.way, self.options.join(" "));
        let asked: Vec<String> = self.asked.iter().map(|word| between_quotes(&word.replace('\\', "\\\\"))).collect();
        text += &format!("{ASKED}{}\n", asked.join(" "));
        self.commands.iter().for_each(|command| text += &format!("{COMMAND}{command}\n"));
        if self.made_folder {
            text += &format!("{FOLDER}\n");
        }
        text + &self.body
    }

    /// Reads a file; `None` if `enable` did not write it.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(TITLE)?.strip_prefix('\n')?;
        let comments = rest.lines().take_while(|line| line.starts_with("# "));
        let value = |name: &str| comments.clone().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let length: usize = comments.clone().map(|line| line.len() + 1).sum();
        let options: Vec<String> = value(OPTIONS)?.split_whitespace().map(str::to_owned).collect();
        Some(Self {
            unit: value(UNIT)?,
            way: value(WAY)?,
            // Files of earlier versions do not distinguish requested from chosen options.
            asked: value(ASKED).map_or_else(|| options.iter().skip(1).cloned().collect(), |asked| words_of(&asked)),
            options,
            commands: comments.clone().filter_map(|line| line.strip_prefix(COMMAND)).map(str::to_owned).collect(),
            made_folder: value(FOLDER).is_some(),
            body: rest.get(length..)?.to_owned(),
        })
    }
}

impl DropIn {
    /// The path of the `pagelift` that it has started.
    pub fn launcher(&self) -> Option<String> {
        let starts = |name: &str| ["ExecStart", "ExecStartPost"].contains(&name);
        let mut lines = assignments(&self.body).into_iter().filter(|line| starts(&line.name) && !line.value.is_empty());
        let command = ExecCommand::parse_line(&lines.next_back()?.value).ok()?.into_iter().next()?;
        Some(command.path.replace("%%", "%"))
    }

    /// The values that it gives a setting of `[Service]`, empty ones too.
    pub fn values(&self, name: &str) -> Vec<String> {
        service_values([self.body.as_str()], name)
    }

    /// The unit's properties as they would be without this file, which was in force when they were read. `files`
    /// contains the files that it hides, and all others of the unit in systemd's order.
    #[must_use]
    pub fn taken_out_of(&self, read: &Properties, files: &[String]) -> Properties {
        let values = |name: &str| service_values(files.iter().map(String::as_str), name);
        let mut all = read.clone();
        for Assignment { section, name, value } in assignments(&self.body) {
            match (section.as_str(), name.as_str()) {
                ("Service", "Type") => all.set("Type", &kind(&values("Type"), &values("BusName"))),
                ("Service", "SyslogIdentifier") => {
                    all.set("SyslogIdentifier", &values("SyslogIdentifier").pop().unwrap_or_default());
                }
                ("Service", "ExecPaths") => {
                    let added = words_of(&value.replace("%%", "%"));
                    let kept = all.list("ExecPaths").into_iter().filter(|path| !added.contains(path));
                    let kept: Vec<String> = kept.map(|path| between_quotes(&path.replace('\\', "\\\\"))).collect();
                    all.set("ExecPaths", &kept.join(" "));
                }
                _ => {}
            }
        }
        all
    }
}

/// The effective `Type=` of these values and the values of `BusName=`: the last one that systemd knows, or systemd's
/// default (systemd 252, `service_add_extras()`). systemd ignores unknown and empty values.
fn kind(values: &[String], bus_names: &[String]) -> String {
    let usual = if bus_names.iter().any(|name| !name.is_empty()) { "dbus" } else { "simple" };
    let last = values.iter().rev().find(|value| TYPES.contains(&value.as_str()));
    last.map_or(usual, String::as_str).to_owned()
}

/// The lines of `[Service]`.
fn service(choice: &Choice, commands: &[ExecCommand], launcher: &Launcher) -> String {
    let mut text = String::new();
    let program = between_quotes(&launcher.program.replace('%', "%%"));
    if choice.waits_for_exec {
        text += "Type=exec\n";
    }
    text += &choice.journal_name.iter().map(|name| format!("SyslogIdentifier={name}\n")).collect::<String>();
    if !choice.exec_paths.is_empty() {
        // If one is missing, for example because the store is not mounted, the unit must start nevertheless.
        let paths = choice.exec_paths.iter().map(|path| format!("-{}", between_quotes(&path.replace('%', "%%"))));
        text += &format!("ExecPaths={}\n", paths.collect::<Vec<_>>().join(" "));
    }
    if choice.way == Way::Ptrace {
        for source in &choice.image_sources {
            let path = between_quotes(&source.replace('$', "$$"));
            text += &format!("ExecStartPre=-+{program} image add --quiet --skip-locked -- {path}\n");
        }
    }
    if choice.way == Way::AfterStart {
        let words = launcher.options.iter().map(|word| crate::words::quoted(word, true));
        let words = words.collect::<Vec<_>>().join(" ");
        // With --require the failure is the unit's.
        let ignored = if launcher.options.iter().any(|word| word == "--require") { "" } else { "-" };
        return text + &format!("ExecStartPost={ignored}+{program} {words} $MAINPID\n");
    }
    text += "ExecStart=\n";
    for (index, command) in commands.iter().enumerate() {
        let names = choice.only.get(index).map_or(&[][..], Vec::as_slice);
        text += &format!("ExecStart={}\n", command.started_by(&with_only(launcher, names)));
    }
    text
}

/// A launcher that lifts only programs with these names, if there are any.
fn with_only(launcher: &Launcher, names: &[impl AsRef<str>]) -> Launcher {
    let mut launcher = launcher.clone();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    launcher.options.extend((!names.is_empty()).then(|| format!("--only={}", names.join(","))));
    launcher
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec_start;

    fn choice(way: Way) -> Choice {
        let (exec_paths, image_sources) = (vec!["/run/x".to_owned()], vec!["/bin/a".to_owned()]);
        let (pages, journal_name) = (Some("image"), (way != Way::AfterStart).then(|| "a%%b".to_owned()));
        let (only, reasons, waits_for_exec, is_silent) = (Vec::new(), Vec::new(), false, false);
        Choice { way, pages, only, exec_paths, image_sources, waits_for_exec, journal_name, is_silent, reasons }
    }

    fn drop_in(way: Way) -> DropIn {
        let lines = ["-/bin/a 'b c' ; @/bin/d e".to_owned(), "/bin/f $X".to_owned()];
        let commands: Vec<_> = lines.iter().flat_map(|line| ExecCommand::parse_line(line).unwrap()).collect();
        let options = ["--lift=text".to_owned()];
        DropIn::new(
            "x.service",
            &choice(way),
            UnitCommands { lines: &lines, parsed: &commands },
            LaunchWords { pagelift: "/usr/bin/pagelift", asked: &["--pages=a b".to_owned()], options: &options },
            &["y.mount".into()],
        )
    }

    #[test]
    fn each_command_is_given_again() {
        let file = drop_in(Way::Ptrace);
        let run = "/usr/bin/pagelift run --pages=image --lift=text";
        let expected =
            [format!("-{run} -- /bin/a 'b c'"), format!("{run} --argv0 e -- /bin/d"), format!("{run} -- /bin/f $X")];
        assert_eq!(exec_start(["[Service]\nExecStart=/bin/old\n", &file.text()]), expected);
        assert!(file.text().contains(
            "\n[Unit]\nAfter=y.mount\n\n[Service]\nSyslogIdentifier=a%%b\nExecPaths=-/run/x\nExecStartPre=-+"
        ));
        assert_eq!(file.text().matches("image add --quiet --skip-locked -- /bin/a\n").count(), 1);
        assert_eq!(file.text().matches("image add").count(), 1);
    }

    #[test]
    fn each_command_has_the_names_that_its_own_shell_gives() {
        let lines = ["-/bin/sh -c 'exec /opt/x%%y' ; /bin/b $X".to_owned(), "/bin/sh -c '/c; /a'".to_owned()];
        let commands: Vec<_> = lines.iter().flat_map(|line| ExecCommand::parse_line(line).unwrap()).collect();
        let only = [&["/opt/x%y"][..], &[], &["/c", "/a"]];
        let only: Vec<Vec<String>> =
            only.iter().map(|names| names.iter().map(|&name| name.to_owned()).collect()).collect();
        let choice = Choice { only, pages: None, ..choice(Way::Ptrace) };
        let asked = ["--require".to_owned()];
        let file = DropIn::new(
            "x.service",
            &choice,
            UnitCommands { lines: &lines, parsed: &commands },
            LaunchWords { pagelift: "/bin/pagelift", asked: &asked, options: &asked },
            &[],
        );
        let expected = [
            "-/bin/pagelift run --require --only=/opt/x%%y -- /bin/sh -c 'exec /opt/x%%y'",
            "/bin/pagelift run --require -- /bin/b $X",
            "/bin/pagelift run --require --only=/c,/a -- /bin/sh -c '/c; /a'",
        ];
        assert_eq!(exec_start([file.text().as_str()]), expected);
        assert_eq!(file.options, ["run", "--require", "--only=/a,/c,/opt/x%y"]);
        assert_eq!(file.asked, asked, "what the shells name is no word of the user");
        assert_eq!(DropIn::parse(&file.text()), Some(file));
    }

    #[test]
    fn a_unit_that_is_lifted_after_its_start_keeps_its_commands() {
        let text = drop_in(Way::AfterStart).text();
        assert_eq!(exec_start(["[Service]\nExecStart=/bin/old\n", &text]), ["/bin/old"]);
        assert!(text.ends_with("ExecStartPost=-+/usr/bin/pagelift attach --pages=image --lift=text $MAINPID\n"));
    }

    #[test]
    fn a_file_is_read_again() {
        for way in [Way::Ptrace, Way::Preload, Way::AfterStart] {
            let file = DropIn { made_folder: way == Way::Ptrace, ..drop_in(way) };
            assert_eq!(file.launcher().as_deref(), Some("/usr/bin/pagelift"));
            assert_eq!(DropIn::parse(&file.text()), Some(file));
        }
        let old = drop_in(Way::Ptrace).text().replace("# Asked: \"--pages=a b\"\n", "");
        assert_eq!(DropIn::parse(&old).unwrap().asked, ["--pages=image", "--lift=text"]);
        assert_eq!(DropIn::parse("[Service]\nExecStart=\n"), None);
    }

    #[test]
    fn what_a_drop_in_file_adds_is_taken_out() {
        let own = "ExecPaths=/usr/lib \"/a b\"\nType=simple\nSyslogIdentifier=\nUser=web\n";
        let with = "ExecPaths=/usr/lib \"/a b\" -/usr/bin/page%lift\nType=exec\nSyslogIdentifier=a%b\nUser=web\n";
        let file = DropIn {
            unit: "x.service".into(),
            way: String::new(),
            options: Vec::new(),
            asked: Vec::new(),
            commands: Vec::new(),
            made_folder: false,
            body: "[Unit]\nAfter=x\n[Service]\nType=exec\nSyslogIdentifier=a%%b\nExecPaths=-/usr/bin/page%%lift\n"
                .into(),
        };
        assert_eq!(file.taken_out_of(&Properties::parse(with), &[]), Properties::parse(own));
        let other = DropIn { body: "[Service]\nExecStart=\n".into(), ..file };
        assert_eq!(other.taken_out_of(&Properties::parse(own), &[]), Properties::parse(own));
    }

    #[test]
    fn what_a_drop_in_file_hides_is_what_the_other_files_say() {
        let read = Properties::parse("Type=exec\nSyslogIdentifier=web\n");
        let hides = DropIn { body: "[Service]\nType=exec\nSyslogIdentifier=web\n".into(), ..drop_in(Way::Ptrace) };
        let found = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|&text| format!("[Service]\n{text}\n")).collect();
            let own = hides.taken_out_of(&read, &files);
            [own.value("Type").to_owned(), own.value("SyslogIdentifier").to_owned()]
        };
        for (files, expected) in [
            (&["User=web"][..], ["simple", ""]),
            (&["Type=idle", "Type=notify\nSyslogIdentifier=a b"], ["notify", "a b"]),
            (&["Type=forking\nSyslogIdentifier=a", "Type=\nSyslogIdentifier="], ["forking", ""]),
            (&["Type=notify-reload", "Type=other\n[Unit]\nType=simple"], ["notify-reload", ""]),
            (&["BusName=org.x", "BusName="], ["dbus", ""]),
            (&["BusName=org.x", "Type=simple"], ["simple", ""]),
        ] {
            assert_eq!(found(files), expected, "{files:?}");
        }
        let shows = DropIn { body: "[Service]\nExecStart=\n".into(), ..hides };
        assert_eq!(shows.taken_out_of(&read, &["[Service]\nType=notify\n".into()]), read, "it hides nothing of these");
    }

    #[test]
    fn a_file_for_a_unit_that_must_be_silent_says_quiet_once() {
        let silent = Choice { is_silent: true, ..choice(Way::Preload) };
        let lines = ["/bin/a".to_owned()];
        let commands = ExecCommand::parse_line(&lines[0]).unwrap();
        for options in [&["--calm".to_owned()][..], &["--calm".to_owned(), "--quiet".to_owned()]] {
            let words = LaunchWords { pagelift: "/bin/pagelift", asked: options, options };
            let commands = UnitCommands { lines: &lines, parsed: &commands };
            let file = DropIn::new("x.service", &silent, commands, words, &[]);
            let quiet = file.options.iter().filter(|word| *word == "--quiet").count();
            assert_eq!((quiet, file.asked.as_slice()), (1, options), "{file:?}");
            assert!(file.body.contains(" --quiet ") && file.body.ends_with(" -- /bin/a\n"), "{file:?}");
        }
    }
}
