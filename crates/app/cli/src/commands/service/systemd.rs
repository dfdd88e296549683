//! Asks systemd, by its own command.

use anyhow::{Context, bail, ensure};
use service_units::{DropIn, FILE_NAME, NAMES, Properties, exec_start};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folders of administrators' units, and of units until the next boot.
pub const FOLDERS: [&str; 2] = ["/etc/systemd/system", "/run/systemd/system"];

/// The folders of unit files (systemd.unit(5)), except generators' folders; the first has priority.
const UNIT_FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// A service as systemd has loaded it.
pub struct Unit {
    /// Its name; of a template, with `@.`.
    pub name: String,
    /// Its properties without Pagelift's additions; for a template, an instance's.
    pub properties: Properties,
    /// The drop-in file of Pagelift that it was loaded with.
    pub own: Option<DropIn>,
    /// Its files except Pagelift's, in the order in which systemd reads them.
    pub files: Vec<String>,
}

impl Unit {
    /// Loads a service.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        let (name, properties) = look_up(name)?;
        Self::of(name, properties)
    }

    /// A service of this name, with the properties that [`look_up`] has found.
    pub fn of(name: String, properties: Properties) -> anyhow::Result<Self> {
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
        Ok(Self { name, properties, own, files })
    }

    /// The unit's own `ExecStart=` lines.
    pub fn commands(&self) -> Vec<String> {
        exec_start(self.files.iter().map(String::as_str))
    }

    /// The paths of the programs that it starts, specifiers expanded, one for each of its commands in their order.
    pub fn programs(&self) -> Vec<String> {
        let launcher = self.own.as_ref().and_then(DropIn::launcher);
        let commands = self.properties.commands("ExecStart");
        commands.iter().map(|command| command.program(launcher.as_deref()).to_owned()).collect()
    }

    /// The path of its drop-in file in a folder of units.
    pub fn drop_in(&self, folder: &str) -> PathBuf {
        drop_in(&self.name, folder)
    }
}

/// Looks a service up: its real name, for a template with `@.`, and its properties as systemd has read them, for a
/// template an instance's.
pub fn look_up(name: &str) -> anyhow::Result<(String, Properties)> {
    let name = service_name(name)?;
    let asked = instance(&name);
    let properties = show(&asked)?;
    let state = properties.value("LoadState");
    ensure!(
        state == "loaded",
        "{name}: systemd reports `{state}`; needed: a service; `systemctl list-unit-files` lists them"
    );
    let id = properties.value("Id");
    if id == asked || name.contains("@.") {
        return Ok((name, properties));
    }
    // The name was an alias, whose drop-in files are not read under the other names.
    Ok((id.to_owned(), show(id)?))
}

/// True if systemd is known to have read older files of a unit: the new contents take effect only after a
/// daemon-reload.
pub fn is_changed(name: &str, properties: &Properties) -> bool {
    properties.is_set("NeedDaemonReload") || has_unread(name, &properties.list("DropInPaths"), &UNIT_FOLDERS)
}

/// True if a folder of a unit has a drop-in file that is not among those that were read: systemd 252 does not notice
/// one in a new folder (`unit_path_cache`). If several files have a name, the one in the first folder counts, and none
/// if that one is empty or no file.
fn has_unread(unit: &str, read: &[String], folders: &[&str]) -> bool {
    let mut known: BTreeSet<OsString> =
        read.iter().filter_map(|path| Path::new(path).file_name()).map(OsStr::to_owned).collect();
    let entries = folders.iter().flat_map(|folder| fs::read_dir(Path::new(folder).join(format!("{unit}.d"))));
    let mut files = entries.flatten().flatten().map(|entry| entry.path());
    files.any(|path| {
        let is_new = path.file_name().is_some_and(|name| known.insert(name.to_owned()));
        let has_text = || fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
        is_new && path.extension().is_some_and(|end| end == "conf") && has_text()
    })
}

/// The unit whose properties are read: a template has none, but its instance has.
pub fn instance(name: &str) -> String {
    name.replace("@.", "@pagelift.")
}

/// The error for a lasting file of the same name, which systemd reads in place of one until the next boot.
pub fn counts_before(unit: &str, lasting: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{unit} has {} already, which counts before one until the next boot; fix: pagelift disable {}",
        lasting.display(),
        foreign_text::quoted(unit)
    )
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

/// True if systemd has booted this machine or container (sd_booted(3)).
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The note about units that were written where systemd does not run.
pub const WITHOUT: &str =
    "note: systemd does not run here (no /run/systemd/system); the units act only after a boot with systemd";

/// Reads the properties of a unit.
pub fn show(unit: &str) -> anyhow::Result<Properties> {
    ensure!(
        is_running(),
        "systemd does not run here (no /run/systemd/system); needed: a machine or container that it has booted"
    );
    let output = Command::new("systemctl").args(["show", "--no-pager", "-p", &NAMES.join(","), "--", unit]).output();
    let output = output.context("systemctl")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "systemctl show {unit}: {}", error.trim());
    Ok(Properties::parse(&String::from_utf8_lossy(&output.stdout)))
}

/// The control group of a service that runs, as a path below the root of the hierarchy.
pub fn control_group(name: &str) -> anyhow::Result<String> {
    let (name, properties) = look_up(name)?;
    ensure!(!name.contains("@."), "{name} is a template; needed: one of its instances");
    let group = properties.value("ControlGroup");
    ensure!(!group.is_empty(), "{name} does not run; fix: systemctl start {}", foreign_text::quoted(&name));
    Ok(group.to_owned())
}

/// The running instances of a template, except instances that serve one connection of a socket each (`Accept=yes`) and
/// cannot be started again.
pub fn running_instances(template: &str) -> anyhow::Result<Vec<String>> {
    if serves_connections(template)? {
        return Ok(Vec::new());
    }
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

/// True for a template of which a socket unit starts an instance for each connection, whether as its input or as another
/// descriptor: such a socket has the template's name (systemd.socket(5), `Accept=`).
fn serves_connections(template: &str) -> anyhow::Result<bool> {
    let Some(socket) = template.strip_suffix("@.service") else { return Ok(false) };
    Ok(show(&format!("{socket}.socket"))?.is_set("Accept"))
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

/// Writes a file whole or not at all.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    // systemd reads only files that end in `.conf`.
    let mut file = tempfile::Builder::new().prefix(".pagelift").suffix(".new").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Removes a drop-in file, and its folder if that was made for it and is otherwise empty.
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
    fn a_drop_in_file_that_was_not_read_is_seen() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = folders.each_ref().map(|folder| folder.path().to_str().unwrap());
        let is_unread = |read: &[&str]| {
            let read: Vec<String> = read.iter().map(|&path| path.to_owned()).collect();
            has_unread("a.service", &read, &paths)
        };
        let write = |folder: &str, name: &str, text: &str| {
            fs::create_dir_all(folder).unwrap();
            fs::write(Path::new(folder).join(name), text).unwrap();
        };
        assert!(!is_unread(&[]), "there is no folder");
        let [own, other] = [format!("{}/a.service.d", paths[0]), format!("{}/a.service.d", paths[1])];
        write(&format!("{}/b.service.d", paths[0]), "x.conf", "[Service]");
        write(&own, "x.conf~", "[Service]");
        write(&own, "masked.conf", "");
        assert!(!is_unread(&[]), "none of them is read");
        write(&other, "x.conf", "[Service]");
        assert!(is_unread(&[]) && is_unread(&["/etc/y.conf"]));
        write(&own, "x.conf", "[Service]");
        assert!(!is_unread(&[&format!("{own}/x.conf")]), "it counts in place of the other");
        write(&own, "x.conf", "");
        assert!(!is_unread(&[]), "it is masked");
    }

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
