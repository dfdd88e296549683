//! The drop-in file.

use crate::choice::{Choice, Way};
use crate::command::{ExecCommand, Launcher};
use crate::words::between_quotes;

/// Name of the file: it sorts behind those that people write, so that their `ExecStart=` is the one that counts.
pub const FILE_NAME: &str = "zz-pagelift.conf";

const TITLE: &str = "# Written by `pagelift enable`. `pagelift disable` removes it.";
const UNIT: &str = "# Unit: ";
const WAY: &str = "# Way: ";
const OPTIONS: &str = "# Options: ";
const COMMAND: &str = "# ExecStart=";
const FOLDER: &str = "# Folder: made";

/// What a drop-in file holds, and what it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// The unit.
    pub unit: String,
    /// The way, in words.
    pub way: String,
    /// The words between `pagelift` and the program.
    pub options: Vec<String>,
    /// The unit's own `ExecStart=` lines, of which it was made.
    pub commands: Vec<String>,
    /// The folder did not exist before.
    pub made_folder: bool,
    /// What stands behind the comments.
    pub body: String,
}

impl DropIn {
    /// Makes the file of `unit`, whose `ExecStart=` lines are `lines`, and `commands` when they are read. `options` are the
    /// user's, `after` the units that give it pages and images.
    pub fn new(
        unit: &str,
        choice: &Choice,
        (lines, commands): (&[String], &[ExecCommand]),
        (pagelift, options): (&str, &[String]),
        after: &[String],
    ) -> Self {
        let mut words = vec![if choice.way == Way::AfterStart { "attach" } else { "run" }.to_owned()];
        words.extend((choice.way == Way::Preload).then(|| "--via=preload".to_owned()));
        words.extend(choice.pages.map(|pages| format!("--pages={pages}")));
        words.extend(options.iter().cloned());
        let launcher = Launcher { program: pagelift.to_owned(), options: words };
        let mut body = String::new();
        if !after.is_empty() {
            body += &format!("[Unit]\nAfter={}\n\n", after.join(" "));
        }
        body += "[Service]\n";
        body += &service(choice, commands, &launcher);
        Self {
            unit: unit.to_owned(),
            way: choice.way.to_string(),
            options: launcher.options,
            commands: lines.to_vec(),
            made_folder: false,
            body,
        }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text =
            format!("{TITLE}\n{UNIT}{}\n{WAY}{}\n{OPTIONS}{}\n", self.unit, self.way, self.options.join(" "));
        self.commands.iter().for_each(|command| text += &format!("{COMMAND}{command}\n"));
        if self.made_folder {
            text += &format!("{FOLDER}\n");
        }
        text + &self.body
    }

    /// Reads a file; `None` where it was not written by this.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(TITLE)?.strip_prefix('\n')?;
        let comments = rest.lines().take_while(|line| line.starts_with("# "));
        let value = |name: &str| comments.clone().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let length: usize = comments.clone().map(|line| line.len() + 1).sum();
        Some(Self {
            unit: value(UNIT)?,
            way: value(WAY)?,
            options: value(OPTIONS)?.split_whitespace().map(str::to_owned).collect(),
            commands: comments.clone().filter_map(|line| line.strip_prefix(COMMAND)).map(str::to_owned).collect(),
            made_folder: value(FOLDER).is_some(),
            body: rest.get(length..)?.to_owned(),
        })
    }
}

/// The lines of `[Service]`.
fn service(choice: &Choice, commands: &[ExecCommand], launcher: &Launcher) -> String {
    let mut text = String::new();
    let program = between_quotes(&launcher.program.replace('%', "%%"));
    if choice.waits_for_exec {
        text += "Type=exec\n";
    }
    if !choice.exec_paths.is_empty() {
        // Without one of them, as when the store is not mounted, the unit must start nevertheless.
        let paths = choice.exec_paths.iter().map(|path| format!("-{}", between_quotes(&path.replace('%', "%%"))));
        text += &format!("ExecPaths={}\n", paths.collect::<Vec<_>>().join(" "));
    }
    if choice.way == Way::Ptrace {
        for command in commands.iter().filter(|command| choice.image_sources.contains(&command.path)) {
            let path = between_quotes(&command.path.replace('$', "$$"));
            text += &format!("ExecStartPre=-+{program} image add --quiet -- {path}\n");
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
    commands.iter().for_each(|command| text += &format!("ExecStart={}\n", command.started_by(launcher)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec_start;

    fn choice(way: Way) -> Choice {
        let (exec_paths, image_sources) = (vec!["/run/x".to_owned()], vec!["/bin/a".to_owned()]);
        Choice { way, pages: Some("image"), exec_paths, image_sources, waits_for_exec: false, reasons: Vec::new() }
    }

    fn drop_in(way: Way) -> DropIn {
        let lines = ["-/bin/a 'b c' ; @/bin/d e".to_owned(), "/bin/f $X".to_owned()];
        let commands: Vec<_> = lines.iter().flat_map(|line| ExecCommand::parse_line(line).unwrap()).collect();
        let options = ["--lift=text".to_owned()];
        DropIn::new(
            "x.service",
            &choice(way),
            (&lines, &commands),
            ("/usr/bin/pagelift", &options),
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
        assert!(file.text().contains("\n[Unit]\nAfter=y.mount\n\n[Service]\nExecPaths=-/run/x\nExecStartPre=-+"));
        assert_eq!(file.text().matches("image add --quiet -- /bin/a\n").count(), 1);
        assert_eq!(file.text().matches("image add").count(), 1);
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
            assert_eq!(DropIn::parse(&file.text()), Some(file));
        }
        assert_eq!(DropIn::parse("[Service]\nExecStart=\n"), None);
    }
}
