//! Reasons of others against a change of a file.

use anyhow::bail;
use linux::bounded::ELF_HEADERS;
use nix::libc::{S_ISGID, S_ISUID};
use object::read::elf::FileHeader as _;
use object::{LittleEndian, ReadCache};
use process_view::{BoundedFile, printable};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A reason against changing a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its bytes are signed or measured; the text names the signature or measurement.
    Signed(String),
    /// It belongs to a package.
    Package(Package),
}

/// An installed package.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name, printable.
    pub name: String,
    /// True if dpkg has installed it.
    pub is_of_dpkg: bool,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signed(text) => f.write_str(text),
            Self::Package(Package { name, .. }) => write!(
                f,
                "found that it belongs to the package {name}, whose check and upgrade would notice and undo the change"
            ),
        }
    }
}

/// Returns the reason why others depend on the file's bytes.
pub fn obstacle(path: &Path, file: &File) -> anyhow::Result<Option<Obstacle>> {
    if let Some(found) = signed(file) {
        return Ok(Some(Obstacle::Signed(found)));
    }
    Ok(package_of(&std::fs::canonicalize(path)?)?.map(Obstacle::Package))
}

/// The finding, for messages, if the file is signed or measured.
pub fn signed(file: &File) -> Option<String> {
    if linux::attributes::of_file(file, c"security.ima").is_ok() {
        return Some("found that it is measured or signed (security.ima), which a changed file is not".to_owned());
    }
    signature(file).map(|section| format!("found that it is signed (section {section}), which a changed file is not"))
}

/// The name of a section that holds a signature.
fn signature(file: &File) -> Option<String> {
    let length = file.metadata().ok()?.len();
    let data = &ReadCache::new(BoundedFile::new(file, length, ELF_HEADERS.bytes()));
    let header = object::elf::FileHeader64::<LittleEndian>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let names = sections.iter().filter_map(|section| sections.section_name(endian, section).ok());
    let is_signature = |name: &&[u8]| {
        let name = name.to_ascii_lowercase();
        name.starts_with(b".sig") || name.windows(9).any(|part| part == b"signature")
    };
    names.into_iter().find(is_signature).map(|name| printable(&String::from_utf8_lossy(name)))
}

/// Exit status of dpkg-query(1) after an error, as of a damaged database. If no package has the file, it is 1.
const NO_ANSWER: i32 = 2;

/// The package that a path belongs to, by dpkg or rpm. Where `/bin` is a link to `/usr/bin` a package may name either.
///
/// # Errors
/// dpkg cannot say.
fn package_of(path: &Path) -> anyhow::Result<Option<Package>> {
    let unmerged = path.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest));
    for path in [Some(path.to_owned()), unmerged].into_iter().flatten() {
        let Some(path) = path.to_str() else { return Ok(None) };
        // dpkg takes patterns.
        let escaped = path.replace('\\', "\\\\").replace('*', "\\*").replace('?', "\\?").replace('[', "\\[");
        for (program, option, asked) in [("dpkg-query", "-S", escaped.as_str()), ("rpm", "-qf", path)] {
            let command = &mut Command::new(program);
            let Ok(output) = command.env("LC_ALL", "C").args([option, "--", asked]).output() else { continue };
            let is_of_dpkg = program == "dpkg-query";
            if is_of_dpkg && output.status.code() == Some(NO_ANSWER) {
                let why = String::from_utf8_lossy(&output.stderr);
                let why = printable(why.lines().next().unwrap_or_default());
                bail!(
                    "found that dpkg cannot say to which package the file belongs ({why}), needed an answer; fix: --force"
                );
            }
            let text = String::from_utf8_lossy(&output.stdout);
            if let Some(line) = text.lines().find(|line| output.status.success() && !is_of_diversion(line)) {
                let name = printable(line.split(": ").next().unwrap_or(line));
                return Ok(Some(Package { name, is_of_dpkg }));
            }
        }
    }
    Ok(None)
}

/// True for a line of `dpkg-query -S` about a diversion, a package's or a local one.
fn is_of_diversion(line: &str) -> bool {
    line.starts_with("diversion ") || line.starts_with("local diversion ")
}

/// True if dpkg knows a package's file by exactly this path. A diversion of another name of the file has no effect.
pub fn is_installed_as(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return false };
    let output = Command::new("dpkg-query").env("LC_ALL", "C").args(["-S", "--", text]).output();
    output.is_ok_and(|output| {
        let found = String::from_utf8_lossy(&output.stdout);
        found.lines().any(|line| !is_of_diversion(line) && line.split_once(": ").is_some_and(|(_, own)| own == text))
    })
}

/// The path at which dpkg installs a package's file of this path (dpkg-divert(1)) if the administrator has diverted it. If a
/// package has, the file at `path` is that package's.
pub fn locally_diverted_to(path: &Path) -> Option<PathBuf> {
    let asked = |option: &str| -> Option<Vec<u8>> {
        let output = Command::new("dpkg-divert").env("LC_ALL", "C").arg(option).arg(path).output().ok()?;
        let mut text = output.stdout;
        (output.status.success() && text.pop() == Some(b'\n')).then_some(text)
    };
    asked("--listpackage").filter(|package| package == b"LOCAL")?;
    let other = PathBuf::from(OsString::from_vec(asked("--truename")?));
    (other.is_absolute() && other != path).then_some(other)
}

/// An error if a program has privileges by its file.
pub fn refuse_privilege(file: &File) -> anyhow::Result<()> {
    match privilege(file)? {
        Some(privilege) => {
            bail!("found {privilege}, needed a program without privileges; fix: --force, if others trust you with it")
        }
        None => Ok(()),
    }
}

/// The privilege that a program has by its file, if any: set-user-ID, set-group-ID or capabilities.
pub fn privilege(file: &File) -> anyhow::Result<Option<&'static str>> {
    let mode = file.metadata()?.mode();
    Ok(match () {
        () if mode & S_ISUID != 0 => Some("set-user-ID"),
        () if mode & S_ISGID != 0 && mode & 0o010 != 0 => Some("set-group-ID"),
        () if linux::attributes::of_file(file, c"security.capability").is_ok() => Some("file capabilities"),
        () => None,
    })
}
