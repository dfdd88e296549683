//! What is known of a service's programs and of this machine.

use super::systemd::{FOLDERS, Unit};
use address_space::{ElfImage, PageSize};
use image_store::{FileSystem, Store, StoreMount, default_directory};
use machine_facts::usual_huge_page;
use service_units::{ExecCommand, Program, Surroundings};
use session::start::{CommandFiles, find_library};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where systemd looks for a program of no path (systemd.service(5), "COMMAND LINES").
const SEARCH_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A command whose program has a path.
pub fn with_path(command: ExecCommand) -> anyhow::Result<ExecCommand> {
    if command.path.starts_with(['/', '%']) {
        return Ok(command);
    }
    let files = SEARCH_PATH.iter().map(|folder| Path::new(folder).join(&command.path));
    let found = files.map(|file| file.display().to_string()).find(|file| Path::new(file).is_file());
    let missing = || anyhow::anyhow!("{} is in none of {}", command.path, SEARCH_PATH.join(", "));
    let found = found.ok_or_else(missing)?;
    Ok(command.found_at(&found))
}

/// The programs of the commands. `expanded` are their paths as systemd has them.
pub fn programs(commands: &[ExecCommand], expanded: &[String]) -> Vec<Program> {
    commands
        .iter()
        .enumerate()
        .map(|(index, command)| {
            let has_specifier = command.path.contains('%');
            let path = expanded.get(index).filter(|_| has_specifier).unwrap_or(&command.path);
            program(command, path)
        })
        .collect()
}

fn program(command: &ExecCommand, path: &str) -> Program {
    let files = CommandFiles::of(OsStr::new(path));
    let image = files.executed().and_then(|file| image_store::read_elf(&File::open(file).ok()?).ok());
    let fills = |image: &ElfImage, page: PageSize| {
        image.segments.iter().any(|segment| !segment.protection.write && segment.memory.len() >= page.bytes())
    };
    // Of what cannot be looked at, such as a file that an instance names, nothing is excluded.
    let is_large = image.as_ref().zip(usual_huge_page()).is_none_or(|(image, page)| fills(image, page));
    Program {
        path: path.to_owned(),
        named: command.path.clone(),
        is_large,
        privileged: files.privileged(),
        is_script: files.is_script(),
        is_static: image.is_some_and(|image| image.is_static()),
        is_unconfined: command.is_unconfined(),
        not_prefixable: None,
    }
}

/// What is installed on this machine.
pub fn surroundings(pagelift: &Path) -> Surroundings {
    let enforces = fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|text| text.trim() == "1");
    let store = Store::open_to_map(&default_directory()).ok().map(|store| store.path().display().to_string());
    Surroundings {
        pagelift: pagelift.display().to_string(),
        not_for_everybody: not_for_everybody(pagelift),
        library: find_library().map(|library| library.display().to_string()),
        store,
        selinux: enforces,
    }
}

/// Why a user other than root cannot execute a file.
fn not_for_everybody(file: &Path) -> Option<String> {
    let needed = |path: &&Path| if *path == file { 0o005 } else { 0o001 };
    let mode = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    let closed = file.ancestors().find(|path| mode(path) & needed(path) != needed(path))?;
    Some(format!(
        "{} has mode {:o}, needed for User=: read and execute for everybody; fix: chmod o+rx {}",
        closed.display(),
        mode(closed) & 0o7777,
        closed.display()
    ))
}

/// The units behind which a service is ordered: those of the image store and of the pool.
pub fn ordered_behind(unit: &Unit) -> Vec<String> {
    let mount = StoreMount::new(&default_directory(), FileSystem::Tmpfs, None, None, 0o755);
    let mut units: Vec<String> = mount.map(|mount| mount.systemd_unit().0).into_iter().collect();
    let entries = fs::read_dir(FOLDERS[0]).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut pools: Vec<_> =
        names.filter(|name| name.starts_with("pagelift-pool-") && name.ends_with(".service")).collect();
    pools.sort();
    units.extend(pools);
    units.retain(|name| *name != unit.name);
    units
}

/// This program's path, without links.
pub fn this_program() -> anyhow::Result<PathBuf> {
    Ok(fs::canonicalize(std::env::current_exe()?)?)
}
