//! `pagelift enable --shared`, `--anon`, `--jit` and `--files`: units that lift a service's memory while it runs.

use super::Changed;
use super::facts::this_program;
use super::systemd::{self, FOLDERS, counts_before, write};
use crate::output::Output;
use crate::root_program;
use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use service_units::{ALIGNMENT_UNIT, MEMORY_FILE_NAME, MemoryUnits, alignment_unit};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of the lift of code and data at each start.
const AT_EACH_START: [&str; 19] = [
    "pages",
    "page_size",
    "lift",
    "objects",
    "writable_pages",
    "edges",
    "max_memory",
    "numa",
    "seal",
    "prepare",
    "heap",
    "heap_reserve",
    "heap_allocator",
    "calm",
    "via",
    "only",
    "require",
    "quiet",
    "verbose",
];

/// Kinds of memory that are lifted while a service runs.
#[derive(Args, Clone)]
pub struct MemoryArgs {
    /// Lift the service's shared memory while the service runs, as the memory is filled, instead of code and data at
    /// each start.
    ///
    /// A second unit does that (`pagelift attach --watch`); the service is not changed. New shared mappings are
    /// aligned: shmem_enabled is set from `never` to `advise` before the service starts, and restored when no such
    /// service runs.
    #[arg(long, conflicts_with_all = AT_EACH_START)]
    shared: bool,
    /// Lift its anonymous memory in this way.
    #[arg(long, conflicts_with_all = AT_EACH_START)]
    anon: bool,
    /// Lift its generated code in this way.
    #[arg(long, conflicts_with_all = AT_EACH_START)]
    jit: bool,
    /// Lift its mapped data files in this way. Its threads are stopped for some milliseconds.
    #[arg(long, conflicts_with_all = AT_EACH_START)]
    files: bool,
}

impl MemoryArgs {
    /// The kinds, by the words of `--lift`.
    pub fn kinds(&self) -> Vec<String> {
        let all = [(self.shared, "shared"), (self.anon, "anon"), (self.jit, "jit"), (self.files, "files")];
        all.into_iter().filter(|(is_given, _)| *is_given).map(|(_, word)| word.to_owned()).collect()
    }
}

/// Options for writing units.
pub struct Writing {
    /// Start the lift at once if the service runs.
    pub now: bool,
    /// Only until the next boot.
    pub runtime: bool,
    /// Write nothing.
    pub dry_run: bool,
    /// Print JSON.
    pub json: bool,
}

#[derive(Serialize)]
struct UnitFile {
    path: PathBuf,
    text: String,
}

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    unit: &'a str,
    memory: &'a [String],
    files: &'a [UnitFile],
    written: bool,
    state: &'a [String],
}

/// Writes the units that lift memory of a service while it runs.
pub fn enable(unit: &str, kinds: Vec<String>, writing: &Writing) -> anyhow::Result<()> {
    let launcher = this_program()?;
    if !writing.dry_run {
        root_program::check(&launcher)?;
    }
    let (unit, properties) = systemd::look_up(unit)?;
    ensure!(
        properties.value("Type") != "oneshot",
        "{unit} is of Type=oneshot: its programs end with its start; needed: a service that runs on"
    );
    let units = MemoryUnits { unit, kinds, launcher: launcher.display().to_string() };
    let folders = FOLDERS.map(Path::new);
    let files = files_of(&units, folders[usize::from(writing.runtime)]);
    check(&units, writing.runtime, folders)?;
    let mut state = Vec::new();
    if !writing.dry_run {
        write_all(&units, writing.runtime, folders)?;
        systemd::control(&["daemon-reload"])?;
        state = started(&units, writing.now)?;
    }
    let out = Output::Standard;
    if writing.json {
        let (unit, memory, files) = (units.unit.as_str(), units.kinds.as_slice(), files.as_slice());
        let (format, written) = ("pagelift-service-memory", !writing.dry_run);
        return out.print_json(&Document { format, version: 1, unit, memory, files, written, state: &state });
    }
    for file in &files {
        writeln!(out, "{}:", file.path.display())?;
        file.text.lines().try_for_each(|line| out.print_whole(&format!("  {line}\n")))?;
        writeln!(out)?;
    }
    match state.is_empty() {
        true => writeln!(out, "nothing was written")?,
        false => state.iter().try_for_each(|line| writeln!(out, "written; {line}"))?,
    }
    Ok(())
}

/// Refuses files of others, and files until the next boot beside lasting ones, which systemd reads in their place.
fn check(units: &MemoryUnits, runtime: bool, folders: [&Path; 2]) -> anyhow::Result<()> {
    refuse_foreign(&files_of(units, folders[usize::from(runtime)]))?;
    let lasting = [folders[0].join(units.name()), drop_in(units, folders[0])];
    match lasting.iter().find(|path| runtime && path.exists()) {
        Some(path) => Err(counts_before(&units.unit, path)),
        None => Ok(()),
    }
}

/// Writes the units. Lasting ones replace those until the next boot.
fn write_all(units: &MemoryUnits, runtime: bool, folders: [&Path; 2]) -> anyhow::Result<()> {
    for file in files_of(units, folders[usize::from(runtime)]) {
        write(&file.path, &file.text).with_context(|| format!("writing {}", file.path.display()))?;
    }
    let until_boot = if runtime { Vec::new() } else { files_of(units, folders[1]) };
    for UnitFile { path, .. } in until_boot {
        if fs::read_to_string(&path).is_ok_and(|text| MemoryUnits::is_own_text(&text)) {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    // Others may have put files into it.
    let _ = drop_in(units, folders[1]).parent().filter(|_| !runtime).map(fs::remove_dir);
    Ok(())
}

fn files_of(units: &MemoryUnits, folder: &Path) -> Vec<UnitFile> {
    let mut files = vec![
        UnitFile { path: folder.join(units.name()), text: units.text() },
        UnitFile { path: drop_in(units, folder), text: units.drop_in() },
    ];
    files.extend(units.has_shared().then(|| UnitFile { path: folder.join(ALIGNMENT_UNIT), text: alignment_unit() }));
    files
}

fn drop_in(units: &MemoryUnits, folder: &Path) -> PathBuf {
    folder.join(format!("{}.d", units.unit)).join(MEMORY_FILE_NAME)
}

fn refuse_foreign(files: &[UnitFile]) -> anyhow::Result<()> {
    let foreign = |file: &&UnitFile| fs::read_to_string(&file.path).is_ok_and(|text| !MemoryUnits::is_own_text(&text));
    match files.iter().find(foreign) {
        Some(file) => anyhow::bail!("{} was not written by pagelift; fix: give it another name", file.path.display()),
        None => Ok(()),
    }
}

/// Starts the units that lift if `now`. Returns the state, in words.
fn started(units: &MemoryUnits, now: bool) -> anyhow::Result<Vec<String>> {
    let service = Changed::look(&units.unit, true)?;
    let lifting: Vec<String> = service.running.iter().map(|running| units.name_for(running)).collect();
    if lifting.is_empty() {
        return Ok(vec![format!("{} does not run; its memory is lifted from its next start on", units.unit)]);
    }
    if now {
        let words: Vec<&str> = ["restart", "--"].into_iter().chain(lifting.iter().map(String::as_str)).collect();
        systemd::control(&words)?;
    }
    let line = |(running, lifting): (&String, &String)| match now {
        true => format!("{running} runs on and is lifted now; `journalctl -u {lifting}` shows the result"),
        false => format!(
            "{running} continues; `systemctl start {lifting}` lifts it now; later starts are lifted automatically"
        ),
    };
    Ok(service.running.iter().zip(&lifting).map(line).collect())
}

/// The units of this kind, with the folder that they are in.
pub fn installed() -> Vec<(PathBuf, MemoryUnits)> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(MemoryUnits::is_name));
        let read = named.filter_map(|entry| MemoryUnits::parse(&fs::read_to_string(entry.path()).ok()?));
        found.extend(read.map(|units| (PathBuf::from(folder), units)));
    }
    found.sort_by(|a, b| a.1.unit.cmp(&b.1.unit));
    found
}

/// Removes the chosen units and ends their lifts; memory on huge pages stays there. Returns the removed files and the failures.
pub fn remove(chosen: &[(PathBuf, MemoryUnits)]) -> (Vec<PathBuf>, Vec<String>) {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for (folder, units) in chosen {
        let running = Changed::look(&units.unit, false).map(|service| service.running).unwrap_or_default();
        let lifting: Vec<String> = running.iter().map(|running| units.name_for(running)).collect();
        let stopping = ["stop", "--"].into_iter().chain(lifting.iter().map(String::as_str)).collect::<Vec<_>>();
        if !lifting.is_empty()
            && let Err(error) = systemd::control(&stopping)
        {
            failed.push(format!("{error:#}"));
        }
        let drop_in = drop_in(units, folder);
        for path in [folder.join(units.name()), drop_in.clone()] {
            match fs::remove_file(&path) {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => failed.push(format!("removing {}: {error}", path.display())),
            }
        }
        // Others may have put files into it.
        let _ = drop_in.parent().map(fs::remove_dir);
    }
    removed.extend(remove_alignment());
    (removed, failed)
}

/// Removes the unit that aligns shared memory if no service is left that wants it. systemd stops it then, which takes back the setting.
fn remove_alignment() -> Vec<PathBuf> {
    if installed().iter().any(|(_, units)| units.has_shared()) {
        return Vec::new();
    }
    let (own, is_read) = own_alignment(FOLDERS.map(Path::new));
    if is_read {
        let _ = systemd::control(&["stop", "--", ALIGNMENT_UNIT]);
    }
    own.into_iter().filter(|path| fs::remove_file(path).is_ok()).collect()
}

/// Returns the alignment units that Pagelift has written, and true if systemd reads such a file. systemd reads the file in the
/// first folder that has one.
fn own_alignment(folders: [&Path; 2]) -> (Vec<PathBuf>, bool) {
    let is_own = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| MemoryUnits::is_own_text(&text));
    let paths = folders.map(|folder| folder.join(ALIGNMENT_UNIT));
    let is_read = paths.iter().find(|path| path.symlink_metadata().is_ok()).is_some_and(is_own);
    (paths.into_iter().filter(is_own).collect(), is_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_until_the_next_boot_give_way_to_lasting_ones() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = folders.each_ref().map(tempfile::TempDir::path);
        let kinds = vec!["shared".to_owned()];
        let units = MemoryUnits { unit: "x.service".into(), kinds, launcher: "/usr/bin/pagelift".into() };
        let [lasting, until_boot] = folders.map(|folder| files_of(&units, folder));
        let exist = |files: &[UnitFile]| files.iter().map(|file| file.path.exists()).collect::<Vec<_>>();

        check(&units, true, folders).unwrap();
        write_all(&units, true, folders).unwrap();
        assert_eq!((exist(&lasting), exist(&until_boot)), (vec![false; 3], vec![true; 3]));
        check(&units, false, folders).unwrap();
        write_all(&units, false, folders).unwrap();
        assert_eq!((exist(&lasting), exist(&until_boot)), (vec![true; 3], vec![false; 3]));
        assert!(!until_boot[1].path.parent().unwrap().exists(), "the folder of the drop-in file stays");

        let refused = check(&units, true, folders).unwrap_err().to_string();
        let path = lasting[0].path.display();
        let wanted = format!(
            "x.service has {path} already, which counts before one until the next boot; fix: pagelift disable x.service"
        );
        assert_eq!(refused, wanted);
        fs::remove_file(&lasting[0].path).unwrap();
        assert!(check(&units, true, folders).is_err(), "the drop-in file counts, too");
        fs::remove_file(&lasting[1].path).unwrap();
        check(&units, true, folders).expect("other services may have the unit that aligns");
    }

    #[test]
    fn lasting_units_leave_files_of_others() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = folders.each_ref().map(tempfile::TempDir::path);
        let kinds = vec!["anon".to_owned()];
        let units = MemoryUnits { unit: "x.service".into(), kinds, launcher: "/usr/bin/pagelift".into() };
        let path = drop_in(&units, folders[1]);
        write(&path, "[Unit]\n").unwrap();
        write_all(&units, false, folders).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[Unit]\n");
    }

    #[test]
    fn an_alignment_unit_of_others_stays() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = folders.each_ref().map(tempfile::TempDir::path);
        let [lasting, until_boot] = folders.map(|folder| folder.join(ALIGNMENT_UNIT));
        assert_eq!(own_alignment(folders), (vec![], false));
        write(&until_boot, &alignment_unit()).unwrap();
        assert_eq!(own_alignment(folders), (vec![until_boot.clone()], true));
        write(&lasting, "[Service]\nType=oneshot\nExecStart=/bin/true\n").unwrap();
        assert_eq!(own_alignment(folders), (vec![until_boot.clone()], false));
        write(&lasting, &alignment_unit()).unwrap();
        assert_eq!(own_alignment(folders), (vec![lasting, until_boot], true));
    }
}
