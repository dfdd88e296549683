//! Asks systemd, by its own command.

use anyhow::{Context, bail, ensure};
use service_units::{DropIn, FILE_NAME, NAMES, Properties, exec_start};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where administrators' units are, and those until the next boot.
pub const FOLDERS: [&str; 2] = ["/etc/systemd/system", "/run/systemd/system"];

/// A service as systemd has loaded it.
pub struct Unit {
    /// Its name; of a template, with `@.`.
    pub name: String,
    /// Its properties without what Pagelift has added; of a template, those of an instance.
    pub properties: Properties,
    /// The drop-in file of Pagelift that it was loaded with.
    pub own: Option<DropIn>,
    /// Its files but for those of Pagelift, in the order in which systemd reads them.
    pub files: Vec<String>,
}

impl Unit {
    /// Loads a service.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        let name = service_name(name)?;
        // A template has no properties; an instance of it has.
        let asked = name.replace("@.", "@pagelift.");
        let mut properties = show(&asked)?;
        let state = properties.value("LoadState").to_owned();
        ensure!(
            state == "loaded",
            "{name}: systemd says `{state}`; needed: a service; `systemctl list-unit-files` lists them"
        );
        let id = properties.value("Id").to_owned();
        let mut canonical = name.clone();
        if id != asked && !name.contains("@.") {
            // The name was an alias, whose drop-in files are not read under the other names.
            properties = show(&id)?;
            canonical = id;
        }
        ensure!(
            !properties.value("FragmentPath").is_empty() && !properties.is_set("Transient"),
            "{name} has no unit file; needed: a service that was installed"
        );
        let drop_ins = properties.list("DropInPaths").into_iter().filter(|path| !is_own(path));
        let paths: Vec<_> = [properties.value("FragmentPath").to_owned()].into_iter().chain(drop_ins).collect();
        let read = |path: &String| fs::read_to_string(path).with_context(|| format!("reading {path}"));
        let files: Vec<String> = paths.iter().map(read).collect::<Result<_, _>>()?;
        let own = properties.list("DropInPaths").into_iter().filter(|path| is_own(path));
        let own = own.filter_map(|path| DropIn::parse(&fs::read_to_string(path).ok()?)).next_back();
        let properties = own.as_ref().map_or(properties.clone(), |own| own.taken_out_of(&properties, &files));
        Ok(Self { name: canonical, properties, own, files })
    }

    /// The unit's own `ExecStart=` lines.
    pub fn commands(&self) -> Vec<String> {
        exec_start(self.files.iter().map(String::as_str))
    }

    /// The paths of the programs that it starts, specifiers expanded, one for each of its commands in their order.
    pub fn programs(&self) -> Vec<String> {
        let launcher = self.own.as_ref().and_then(DropIn::launcher);
        let commands = self.properties.commands();
        commands.iter().map(|command| command.program(launcher.as_deref()).to_owned()).collect()
    }

    /// The path of its drop-in file in a folder of units.
    pub fn drop_in(&self, folder: &str) -> PathBuf {
        drop_in(&self.name, folder)
    }
}

/// The path of a unit's drop-in file in a folder of units.
pub fn drop_in(unit: &str, folder: &str) -> PathBuf {
    Path::new(folder).join(format!("{unit}.d")).join(FILE_NAME)
}

fn is_own(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|name| name == FILE_NAME)
}

/// The whole name of a service.
pub fn service_name(name: &str) -> anyhow::Result<String> {
    let valid = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    ensure!(!name.is_empty() && name.chars().all(valid), "`{name}` is no name of a unit");
    match name.rsplit_once('.') {
        Some((_, "service")) => Ok(name.to_owned()),
        Some((
            _,
            "socket" | "timer" | "target" | "mount" | "path" | "slice" | "scope" | "swap" | "automount" | "device",
        )) => {
            bail!("{name} executes no program; needed: a .service")
        }
        _ => Ok(format!("{name}.service")),
    }
}

/// Reads the properties of a unit.
pub fn show(unit: &str) -> anyhow::Result<Properties> {
    ensure!(
        Path::new("/run/systemd/system").is_dir(),
        "systemd does not run here (no /run/systemd/system); needed: a machine or container that it has booted"
    );
    let output = Command::new("systemctl").args(["show", "--no-pager", "-p", &NAMES.join(","), "--", unit]).output();
    let output = output.context("systemctl")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "systemctl show {unit}: {}", error.trim());
    Ok(Properties::parse(&String::from_utf8_lossy(&output.stdout)))
}

/// The instances of a template that run, but for those that serve one connection of a socket each (`Accept=yes`), which
/// cannot be started again.
pub fn running_instances(template: &str) -> anyhow::Result<Vec<String>> {
    let words = ["list-units", "--full", "--plain", "--no-legend", "--type=service"];
    let output = Command::new("systemctl")
        .args(words)
        .arg("--state=active,activating,reloading")
        .output()
        .context("systemctl")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "systemctl list-units: {}", error.trim());
    let mut running = Vec::new();
    for name in instances_in(&String::from_utf8_lossy(&output.stdout), template) {
        if show(&name)?.value("StandardInput") != "socket" {
            running.push(name);
        }
    }
    Ok(running)
}

/// The instances of a template among the units that `systemctl list-units` prints, one a line.
fn instances_in(text: &str, template: &str) -> Vec<String> {
    let Some((prefix, suffix)) = template.split_once("@.") else { return Vec::new() };
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let is_instance = |name: &&str| {
        let instance = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('@'));
        instance.and_then(|rest| rest.strip_suffix(suffix)).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    };
    names.filter(is_instance).map(str::to_owned).collect()
}

/// Runs a command of systemctl.
pub fn control(words: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("systemctl").args(words).stdin(Stdio::null()).status().context("systemctl")?;
    ensure!(status.success(), "`systemctl {}` failed ({status}); see `journalctl -xe`", words.join(" "));
    Ok(())
}

/// The drop-in files of Pagelift with their paths.
pub fn installed() -> Vec<(PathBuf, DropIn)> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "d"));
        found.extend(paths.map(|path| path.join(FILE_NAME)).filter_map(|path| {
            let file = DropIn::parse(&fs::read_to_string(&path).ok()?)?;
            Some((path, file))
        }));
    }
    found.sort_by(|a, b| a.1.unit.cmp(&b.1.unit));
    found
}

/// Removes a drop-in file, and its folder where it was made for it and holds nothing else.
pub fn remove(path: &Path, file: &DropIn) -> anyhow::Result<()> {
    fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    if let Some(folder) = path.parent().filter(|_| file.made_folder) {
        // Others may have put files into it.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_those_of_the_template_alone() {
        let text = "a@1.service      loaded active running Description of a@2.service\n\
                    a@x\\x20y.service loaded active running b\n\
                    a@.service       loaded active running c\n\
                    aa@1.service     loaded active running d\n\
                    a.service        loaded active running e\n";
        assert_eq!(instances_in(text, "a@.service"), ["a@1.service", "a@x\\x20y.service"]);
        assert!(instances_in(text, "a.service").is_empty());
    }
}
