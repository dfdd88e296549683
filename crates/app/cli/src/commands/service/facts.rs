//! Facts about a service's programs and this machine.

use super::systemd::{FOLDERS, Unit};
use address_space::ElfImage;
use foreign_text::quoted_path;
use image_store::{DEFAULT_DIRECTORY, FileSystem, Store, StoreMount};
use linux::executed::executed_path;
use linux::nodes::has_several_nodes;
use machine_facts::usual_huge_page;
use process_view::open_regular_file;
use service_units::{ExecCommand, ExecutedPaths, Program, Shell, Surroundings, executed_paths, is_shell};
use session::start::{CommandFiles, find_library};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// systemd's search path for a program without a path (systemd.service(5), "COMMAND LINES").
const SEARCH_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A command whose program has a path: found in the folders of `ExecSearchPath=` (systemd 250), if it names any.
pub fn with_path(command: ExecCommand, search: &[String]) -> anyhow::Result<ExecCommand> {
    if command.path.starts_with(['/', '%']) {
        return Ok(command);
    }
    let usual = SEARCH_PATH.map(str::to_owned);
    let folders = if search.is_empty() { &usual[..] } else { search };
    let files = folders.iter().map(|folder| Path::new(folder).join(&command.path));
    let found = files.map(|file| file.display().to_string()).find(|file| Path::new(file).is_file());
    let missing = || anyhow::anyhow!("{} is in none of {}", command.path, folders.join(", "));
    let found = found.ok_or_else(missing)?;
    Ok(command.found_at(&found))
}

/// The commands of each `ExecStart=` line; `None` for one that cannot be given again, which may hold several.
pub type Lines = [Option<Vec<ExecCommand>>];

/// The programs of the commands of a unit.
pub fn programs(unit: &Unit, lines: &Lines) -> Vec<Program> {
    let is_template = unit.name.contains("@.");
    let shown = expanded(lines, &unit.programs());
    let commands = lines.iter().flatten().flatten();
    commands
        .zip(shown)
        .map(|(command, shown)| {
            // The programs that an instance names are unknown in a template.
            let is_known = !(is_template && command.names_instance());
            let shown = shown.filter(|path| command.path.contains('%') && is_known && command.may_be(path));
            program(command, shown.as_ref().unwrap_or(&command.path))
        })
        .collect()
}

/// The path that systemd shows for each command, by its place: from the first one or, behind a line of which the commands
/// are not known, from the last one.
fn expanded(lines: &Lines, shown: &[String]) -> Vec<Option<String>> {
    let count = |lines: &Lines| lines.iter().map(|line| line.as_ref().map(Vec::len)).sum::<Option<usize>>();
    let all = count(lines);
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let length = line.as_ref().map_or(0, Vec::len);
        let before = count(&lines[..number]).filter(|_| all.is_none_or(|all| all == shown.len()));
        let behind = count(&lines[number..]).and_then(|left| shown.len().checked_sub(left)).filter(|_| all.is_none());
        let first = before.or(behind);
        found.extend((0..length).map(|index| shown.get(first? + index).cloned()));
    }
    found
}

/// The files with these names or paths in the likely folders of a service's programs, and the names without a file.
pub fn named_programs(names: &[String], folders: &[PathBuf]) -> (Vec<Program>, Vec<String>) {
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        // A path stays itself.
        let mut found: Vec<_> = folders.iter().map(|folder| folder.join(name)).filter(|path| path.is_file()).collect();
        if found.is_empty() {
            missing.push(name.clone());
        }
        files.append(&mut found);
    }
    let mut seen = BTreeSet::new();
    files.retain(|path| seen.insert(fs::canonicalize(path).ok()));
    let commands = files.into_iter().map(|file| ExecCommand::default().found_at(&file.display().to_string()));
    (commands.map(|command| program(&command, &command.path.replace("%%", "%"))).collect(), missing)
}

/// The likely folders of programs that a service starts by a script: systemd's search path, `ExecSearchPath=`, and the
/// folders of the unit's own programs and of their link targets.
pub fn likely_folders(search: &[String], programs: &[Program]) -> Vec<PathBuf> {
    let known = SEARCH_PATH.iter().map(PathBuf::from).chain(search.iter().map(PathBuf::from));
    let own = programs.iter().map(|program| PathBuf::from(&program.path));
    let own = own.flat_map(|path| [fs::canonicalize(&path).ok(), Some(path)]).flatten();
    let own = own.filter(|path| path.is_absolute()).filter_map(|path| path.parent().map(Path::to_owned));
    known.chain(own).collect()
}

fn program(command: &ExecCommand, path: &str) -> Program {
    let files = CommandFiles::of(OsStr::new(path));
    let file = files.executed().and_then(opened);
    let image = file.as_ref().and_then(|file| image_store::read_elf(file).ok());
    // A file that cannot be read, for example one that an instance names, is never excluded.
    let is_large = image.as_ref().is_none_or(fills_a_page);
    let libraries = files.libraries().into_iter().filter(|library| {
        opened(library).is_some_and(|file| image_store::read_elf(&file).as_ref().is_ok_and(fills_a_page))
    });
    Program {
        path: path.to_owned(),
        named: command.path.clone(),
        is_large,
        privileged: files.privileged(),
        is_script: files.is_script(),
        is_static: image.is_some_and(|image| image.is_static()),
        is_unconfined: command.is_unconfined(),
        not_prefixable: None,
        not_in_page_cache: file.as_ref().and_then(page_cache::unfit).map(|refusal| refusal.to_string()),
        libraries: libraries.map(|library| library.display().to_string()).collect(),
        shell: is_shell(path).then(|| shell(command)),
    }
}

/// Opens a regular file. The unit's user may own the folder, and put a pipe or a device there at any time.
fn opened(path: &Path) -> Option<File> {
    open_regular_file(path).ok()?
}

/// The program that a command's shell executes by its own words: the only one whose code may fill a huge page or, among
/// smaller ones, the only one that the shell becomes. If there are several, the user has to choose: all names in
/// `--only` are waited for, so the first one would stay traced.
fn shell(command: &ExecCommand) -> Shell {
    let executed = command.shell_text().map(|text| executed_paths(&text)).unwrap_or_default();
    let ExecutedPaths { paths, replaces_shell, others, has_unknown } = &executed;
    let files = |paths: &mut dyn Iterator<Item = &String>, is_meant: &dyn Fn(&ElfImage) -> bool| -> BTreeSet<PathBuf> {
        paths.filter_map(|path| program_file(path, is_meant)).collect()
    };
    let mut found = files(&mut paths.iter().chain(others), &fills_a_page);
    if found.is_empty() && *replaces_shell {
        found = files(&mut paths.iter(), &|_| true);
    }
    let only = found.pop_first().filter(|_| found.is_empty() && !has_unknown);
    let programs = only.map(|file| {
        let path = file.display().to_string();
        let own = ExecCommand { privileges: command.privileges, ..ExecCommand::default() };
        program(&own.found_at(&path), &path)
    });
    Shell { programs: programs.into_iter().collect(), is_replaced: *replaces_shell }
}

/// The file of a program that is no shell, without links, if it may be executed and is a suitable ELF file. A link with
/// another name would be a name that no program has.
fn program_file(path: &str, is_meant: &dyn Fn(&ElfImage) -> bool) -> Option<PathBuf> {
    let file = fs::canonicalize(path).ok().filter(|file| !is_shell(path) && !is_shell(&file.to_string_lossy()))?;
    let is_program = |metadata: fs::Metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    let image = opened(&file).filter(|file| file.metadata().is_ok_and(is_program));
    image.and_then(|file| image_store::read_elf(&file).ok()).filter(is_meant).map(|_| file)
}

/// True if code or read-only data may fill a huge page.
fn fills_a_page(image: &ElfImage) -> bool {
    usual_huge_page().is_none_or(|page| {
        image.segments.iter().any(|segment| !segment.protection.write && segment.memory.len() >= page.bytes())
    })
}

/// The software that is installed on this machine.
pub fn surroundings(pagelift: &Path) -> Surroundings {
    let enforces = fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|text| text.trim() == "1");
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    // A variable of this shell counts for no service.
    let directory = Path::new(DEFAULT_DIRECTORY);
    let store = Store::open_to_map(directory).ok().map(|store| store.path().display().to_string());
    Surroundings {
        pagelift: pagelift.display().to_string(),
        not_for_everybody: not_for_everybody(pagelift),
        library: find_library().map(|library| library.display().to_string()),
        heap_library: session::heap::library().ok(),
        store_closed: store.as_ref().and_then(|_| closed(directory, 0o001)),
        store,
        several_nodes: has_several_nodes(),
        selinux: enforces,
        ptrace_scope: scope.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
    }
}

/// Why a user other than root cannot execute a file.
fn not_for_everybody(file: &Path) -> Option<String> {
    closed(file, 0o005)
}

/// Why not everybody has these rights to a path, and may reach it.
fn closed(file: &Path, rights: u32) -> Option<String> {
    let needed = |path: &Path| if path == file { rights } else { 0o001 };
    let mode = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    let closed = file.ancestors().find(|path| mode(path) & needed(path) != needed(path))?;
    let (words, letters) = if needed(closed) == 0o005 { ("read and execute", "rx") } else { ("search", "x") };
    Some(format!(
        "{} has mode {:o}, needed for User=: {words} for everybody; fix: chmod o+{letters} {}",
        closed.display(),
        mode(closed) & 0o7777,
        quoted_path(closed)
    ))
}

/// The units after which a service is ordered: the image store's mount and the pools' services.
pub fn ordered_behind(unit: &Unit) -> Vec<String> {
    let mount = StoreMount::new(Path::new(DEFAULT_DIRECTORY), FileSystem::Tmpfs, None, None, 0o755);
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

/// This program's path, without links. Where /proc is not mounted, as while a package manager works in another root, it is
/// the path by which the program was executed.
///
/// # Errors
/// Neither leads to a file.
pub fn this_program() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().or_else(|error| executed_path().ok_or(error))?;
    Ok(fs::canonicalize(path)?)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A program's file with one read-only segment of this length in memory.
    pub fn elf(memory: u64) -> Vec<u8> {
        const HEADERS: u64 = 64 + 56;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        // ET_DYN for x86-64, version 1; no entry, headers of segments behind this one, none of sections.
        [3_u16, 62, 1, 0].iter().for_each(|value| file.extend(value.to_le_bytes()));
        [0_u64, 64, 0].iter().for_each(|value| file.extend(value.to_le_bytes()));
        [0_u16, 0, 64, 56, 1, 64, 0, 0].iter().for_each(|value| file.extend(value.to_le_bytes()));
        // PT_LOAD with PF_R: offset, address twice, bytes in the file and in memory, alignment.
        [1_u32, 4].iter().for_each(|value| file.extend(value.to_le_bytes()));
        [0_u64, 0, 0, HEADERS, memory, 4096].iter().for_each(|value| file.extend(value.to_le_bytes()));
        assert_eq!(file.len() as u64, HEADERS);
        file
    }

    /// Makes a file that everybody may execute.
    pub fn executable(path: &Path, content: &[u8]) {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// More than any huge page has, in bytes.
    pub const LARGE: u64 = 1 << 40;

    #[test]
    fn large_programs_that_a_shell_executes_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["server", "other", "data", "bash"] {
            executable(&folder.path().join(name), &elf(LARGE));
        }
        executable(&folder.path().join("small"), &elf(4096));
        executable(&folder.path().join("script"), b"#!/bin/sh\nexit\n");
        fs::set_permissions(path("data"), fs::Permissions::from_mode(0o644)).unwrap();
        let found = |line: &str| {
            let command = ExecCommand::parse_line(line).unwrap().remove(0);
            let shell = program(&command, &command.path).shell?;
            Some((shell.programs.into_iter().map(|program| program.path).collect::<Vec<_>>(), shell.is_replaced))
        };
        std::os::unix::fs::symlink("server", path("link")).unwrap();
        let [server, other, data, bash, small] = ["server", "other", "data", "bash", "small"].map(path);
        let line = format!("/bin/sh -c \"set -f; {small} || exit 1; exec {} $OPTIONS\"", path("link"));
        assert_eq!(found(&line), Some((vec![server.clone()], true)), "by the name of its file");
        let line = format!("/bin/sh -ec '{small}; \"{server}\" {data} &'");
        assert_eq!(found(&line), Some((vec![server.clone()], false)));
        for several in [format!("{other}; exec {server}"), format!("[ -e /x ] && exec {other}; exec {server}")] {
            assert_eq!(found(&format!("/bin/sh -c '{several}'")), Some((vec![], true)), "{several}");
        }
        assert_eq!(
            found(&format!("/bin/sh -c '{other}; exec $$X'")),
            Some((vec![], true)),
            "what X names is not known"
        );
        let line = format!("/bin/sh -c '{data}; {bash}; {}; {}; {}'", path("script"), path("none"), path("."));
        assert_eq!(found(&line), Some((vec![], false)), "none is a large program that can be executed");
        // One that the shell becomes need not be large: its libraries may be.
        assert_eq!(found(&format!("/bin/sh -c 'exec {small}'")), Some((vec![small.clone()], true)));
        if usual_huge_page().is_some() {
            assert_eq!(found(&format!("/bin/sh -c '{small}'")), Some((vec![], false)));
        }
        assert_eq!(found(&format!("/bin/sh {server}")), Some((vec![], false)));
        assert_eq!(found(&format!("{server} -c 'exec {server}'")), None);
    }

    #[test]
    fn a_pipe_in_place_of_a_program_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(opened(&pipe).is_none() && opened(&link).is_none() && opened(Path::new("/dev/null")).is_none());
        executable(&folder.path().join("server"), &elf(LARGE));
        assert!(opened(&folder.path().join("server")).is_some());
    }

    #[test]
    fn a_program_of_no_path_is_looked_for_where_the_unit_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sh");
        fs::write(&file, "").unwrap();
        let found = |line: &str, search: &[String]| {
            with_path(ExecCommand::parse_line(line).unwrap().remove(0), search).map(|command| command.path)
        };
        let search = [folder.path().join("none").display().to_string(), folder.path().display().to_string()];
        assert_eq!(found("sh -c :", &search).unwrap(), file.display().to_string());
        assert!(found("sh -c :", &[]).unwrap().ends_with("bin/sh"));
        assert_eq!(found("/bin/x", &search).unwrap(), "/bin/x");
        assert!(found("sh -c :", &search[..1]).unwrap_err().to_string().contains("is in none of"));
    }
    #[test]
    fn a_program_that_a_script_starts_is_found_beside_it_or_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let [bin, links] = ["bin", "links"].map(|name| folder.path().join(name));
        for folder in [&bin, &links] {
            fs::create_dir(folder).unwrap();
        }
        for name in ["starts", "server"] {
            fs::write(bin.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(bin.join("starts"), links.join("starts")).unwrap();
        let script = Program { path: links.join("starts").display().to_string(), ..Program::default() };
        let path = bin.join("server").display().to_string();
        let named = |names: &[&str], programs: &[Program]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let (found, missing) = named_programs(&names, &likely_folders(&[], programs));
            (found.into_iter().map(|program| program.path).collect::<Vec<_>>(), missing)
        };
        assert_eq!(named(&["server"], &[]), (vec![], vec!["server".to_owned()]));
        assert_eq!(named(&["server"], std::slice::from_ref(&script)), (vec![path.clone()], vec![]));
        assert_eq!(named(&[&path, "server"], &[script]), (vec![path.clone()], vec![]), "one file once");
        assert_eq!(named(&[&path], &[]), (vec![path], vec![]));
    }

    #[test]
    fn commands_are_paired_with_what_systemd_shows_by_their_place() {
        let line = |text: &str| ExecCommand::parse_line(text).ok();
        let shown = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let paired = |lines: &[&str], names: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|text| line(text)).collect();
            expanded(&lines, &shown(names)).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        assert_eq!(paired(&["/a ; /b", "/c"], &["a", "b", "c"]), ["a", "b", "c"]);
        // `$X` is a program that cannot be repeated, alone or with others.
        assert_eq!(paired(&["$X ; /y", "/c"], &["x", "y", "c"]), ["c"]);
        assert_eq!(paired(&["/a", "$X", "/c ; /d"], &["a", "x", "c", "d"]), ["a", "c", "d"]);
        assert_eq!(paired(&["$X", "/b", "$X"], &["x", "b", "x"]), [""], "it may be any of them");
        assert_eq!(paired(&["/a", "/b"], &["old"]), ["", ""], "the unit has changed");
    }

    #[test]
    fn a_folder_that_is_closed_to_others_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(folder.path(), 0o755);
        set(&inner, 0o755);
        assert_eq!(closed(&inner, 0o001), None);
        set(&inner, 0o750);
        let why = closed(&inner, 0o001).unwrap();
        assert!(why.contains("has mode 750") && why.ends_with(&format!("chmod o+x {}", inner.display())), "{why}");
        set(&inner, 0o711);
        assert_eq!(closed(&inner, 0o001), None);
        assert!(closed(&inner, 0o005).unwrap().contains("chmod o+rx"));
    }
}
