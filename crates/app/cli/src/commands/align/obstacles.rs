//! Reasons of others against a change of a file.

use linux::bounded::ELF_HEADERS;
use nix::libc::{S_ISGID, S_ISUID};
use object::read::elf::FileHeader as _;
use object::{LittleEndian, ReadCache};
use process_view::{BoundedFile, printable};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Why somebody else counts on the file's bytes.
pub fn obstacle(path: &Path, file: &File) -> anyhow::Result<Option<String>> {
    if linux::attributes::of_file(file, c"security.ima").is_ok() {
        return Ok(Some("found that it is measured or signed (security.ima), which a changed file is not".into()));
    }
    if let Some(section) = signature(file) {
        return Ok(Some(format!("found that it is signed (section {section}), which a changed file is not")));
    }
    let path = std::fs::canonicalize(path)?;
    Ok(package_of(&path).map(|package| {
        format!(
            "found that it belongs to the package {package}, whose check and upgrade would notice and undo the change"
        )
    }))
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

/// The package that a path belongs to, by dpkg or rpm. Where `/bin` is a link to `/usr/bin` a package may name either.
fn package_of(path: &Path) -> Option<String> {
    let unmerged = path.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest));
    for path in [Some(path.to_owned()), unmerged].into_iter().flatten() {
        // dpkg takes patterns.
        let escaped = path.to_str()?.replace('\\', "\\\\").replace('*', "\\*").replace('?', "\\?").replace('[', "\\[");
        for (program, option, asked) in [("dpkg-query", "-S", escaped.as_str()), ("rpm", "-qf", path.to_str()?)] {
            let Ok(output) = Command::new(program).args([option, "--", asked]).output() else { continue };
            if output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let first = text.lines().find(|line| !line.starts_with("diversion "))?;
                return Some(printable(first.split(": ").next().unwrap_or(first)));
            }
        }
    }
    None
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
