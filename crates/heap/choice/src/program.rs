//! A program and the libraries that the dynamic linker will load with it.

use crate::default_folders::Linker;
use crate::elf::{ElfFacts, Reads};
use crate::kept::{KeptFacts, facts_at};
use crate::libraries::SearchPaths;
use crate::settings::Environment;
use process_view::{FileIdentity, FoundFile, ProcessCode, open_regular_file};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::mem;
use std::path::Path;

/// No program loads more libraries than this by DT_NEEDED.
const MOST_LIBRARIES: usize = 1000;
/// Maximum number of paths that are searched for the libraries of one program. 500 libraries, each in the last of 100 folders, need 50,000.
const MOST_LOOKUPS: usize = 1 << 16;

/// An executable with its preloaded and needed libraries, in the order in which symbols are looked up.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The executable.
    pub executable: ElfFacts,
    /// Its libraries: preloaded ones first, then breadth-first by DT_NEEDED.
    pub libraries: Vec<ElfFacts>,
    /// Number of the libraries that LD_PRELOAD puts first.
    pub preloaded: usize,
    /// Some libraries were not searched, because the lists of folders are too long.
    pub is_cut: bool,
}

impl Program {
    /// Reads an executable and follows its libraries; `None` if it is no 64-bit ELF file.
    ///
    /// # Errors
    /// The executable cannot be read. A library that cannot be found or read is left out.
    pub fn read(path: &Path, environment: &Environment) -> io::Result<Option<Self>> {
        match open_regular_file(path)? {
            Some(file) => Self::with(path, &file, environment, Reads::Executable),
            None => Ok(None),
        }
    }

    /// Like [`Program::read`], for a program that is about to be started: facts of files that this user has started before are
    /// not read again while the files are the same.
    ///
    /// # Errors
    /// The executable cannot be read.
    pub fn read_at_start(path: &Path, environment: &Environment) -> io::Result<Option<Self>> {
        let Some(found) = FoundFile::at(path)? else { return Ok(None) };
        let mut kept = KeptFacts::of_executable(&FileIdentity::of(&found.metadata()?));
        let Some(executable) = facts_at(path, Reads::Executable, kept.as_mut())? else { return Ok(None) };
        let program = Self::with_libraries(executable, environment, Reads::Library, kept.as_mut());
        kept.into_iter().for_each(KeptFacts::keep);
        Ok(Some(program))
    }

    /// Like [`Program::read`], for an executable that is already open: a process that has given up rights since may not be
    /// able to open it again. Versions of runtimes are read, too.
    ///
    /// # Errors
    /// The executable cannot be read.
    pub fn of_file(path: &Path, file: &File, environment: &Environment) -> io::Result<Option<Self>> {
        Self::with(path, file, environment, Reads::Versions { executable: true })
    }

    /// Like [`Program::read`], for an executable that is already open.
    ///
    /// # Errors
    /// The executable cannot be read.
    pub fn of_open(path: &Path, file: &File, environment: &Environment) -> io::Result<Option<Self>> {
        Self::with(path, file, environment, Reads::Executable)
    }

    fn with(path: &Path, file: &File, environment: &Environment, reads: Reads) -> io::Result<Option<Self>> {
        let executable = ElfFacts::of_file(path, file, reads)?;
        Ok(executable.map(|executable| Self::with_libraries(executable, environment, reads.of_libraries(), None)))
    }

    fn with_libraries(
        executable: ElfFacts,
        environment: &Environment,
        reads: Reads,
        kept: Option<&mut KeptFacts>,
    ) -> Self {
        let mut program = Self { executable, ..Self::default() };
        if let Some(interpreter) = program.executable.interpreter.clone() {
            let linker = Linker { path: &interpreter, machine: program.executable.machine };
            let paths = SearchPaths::of_system(environment.get("LD_LIBRARY_PATH").map(str::to_owned), linker);
            program.follow(&paths, environment.get("LD_PRELOAD").unwrap_or_default(), reads, kept);
        }
        program
    }

    /// The program that a process runs now, by the objects that it has mapped. The C library comes last, since every
    /// other definition of `malloc` has priority. `None` if the executable cannot be read.
    pub fn of_process(code: &ProcessCode) -> Option<Self> {
        let facts = |index: usize| {
            let reads = Reads::Versions { executable: index == 0 };
            let path = Path::new(&code.objects().get(index)?.path);
            ElfFacts::of_file(path, &code.file_of(index)?, reads).ok()?
        };
        let executable = facts(0)?;
        let mut libraries: Vec<ElfFacts> = (1..code.objects().len().min(MOST_LIBRARIES)).filter_map(facts).collect();
        libraries.sort_by_key(|library| library.glibc_minor.is_some());
        Some(Self { executable, libraries, preloaded: 0, is_cut: false })
    }

    fn follow(&mut self, paths: &SearchPaths, preloaded: &str, reads: Reads, mut kept: Option<&mut KeptFacts>) {
        let mut seen = HashSet::new();
        let preloaded = preloaded.split([':', ' ']).filter(|name| !name.is_empty());
        let first = preloaded.clone().count();
        let named = preloaded.chain(self.executable.needed.iter().map(String::as_str));
        // Names, each with the index of the library that needs it; none for the executable.
        let mut waiting: Vec<(String, Option<usize>)> = named.map(|name| (name.to_owned(), None)).collect();
        let (mut next, mut lookups) = (0, MOST_LOOKUPS);
        while next < waiting.len() && next < MOST_LIBRARIES {
            let (name, asker) = (mem::take(&mut waiting[next].0), waiting[next].1);
            next += 1;
            if seen.contains(&name) {
                continue;
            }
            let asker = asker.map_or(&self.executable, |index| &self.libraries[index]);
            let read = |path: &Path| facts_at(path, reads, kept.as_deref_mut());
            let found = find(paths, &name, asker, (&self.executable, read), &mut lookups);
            seen.insert(name);
            if lookups == 0 {
                self.is_cut = true;
                break;
            }
            let Some(found) = found else { continue };
            let room = MOST_LIBRARIES.saturating_sub(waiting.len());
            let asker = Some(self.libraries.len());
            waiting.extend(found.needed.iter().take(room).map(|needed| (needed.clone(), asker)));
            self.libraries.push(found);
            self.preloaded += usize::from(next <= first);
        }
    }

    /// The executable and its libraries, in the order in which symbols are looked up.
    pub fn objects(&self) -> impl Iterator<Item = &ElfFacts> {
        std::iter::once(&self.executable).chain(&self.libraries)
    }
}

/// Finds a library. Each path that is tried takes one from `lookups`; at 0 the search ends.
fn find(
    paths: &SearchPaths,
    name: &str,
    asker: &ElfFacts,
    (exe, mut read): (&ElfFacts, impl FnMut(&Path) -> io::Result<Option<ElfFacts>>),
    lookups: &mut usize,
) -> Option<ElfFacts> {
    let inherited = asker.rpath.as_deref().or(exe.rpath.as_deref());
    let candidates = paths.candidates(name, &asker.path, inherited, asker.runpath.as_deref());
    let mut counted = candidates.map_while(|path| {
        *lookups = lookups.saturating_sub(1);
        (*lookups > 0).then_some(path)
    });
    counted.find_map(|path| {
        // A library for another machine with the same name is skipped, as the linker does.
        read(&path).ok().flatten().filter(|facts| facts.machine == exe.machine)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;

    #[test]
    fn the_libraries_of_this_test_are_found() {
        let path = std::env::current_exe().unwrap();
        let program = Program::read(&path, &Environment::default()).unwrap().unwrap();
        let libc = program.libraries.iter().find(|l| l.soname.as_deref() == Some("libc.so.6")).expect("its libc");
        assert!(libc.glibc_minor.is_some_and(|minor| minor >= 17), "{libc:?}");
        assert!(libc.defines("malloc"));
    }

    #[test]
    fn the_libraries_of_this_test_are_found_without_a_cache() {
        let executable = ElfFacts::read(&std::env::current_exe().unwrap(), Reads::Executable).unwrap().unwrap();
        let interpreter = executable.interpreter.clone().expect("a dynamic linker");
        let linker = Linker { path: &interpreter, machine: executable.machine };
        let paths = SearchPaths { folders: linker.folders(), ..SearchPaths::default() };
        let mut program = Program { executable, ..Program::default() };
        program.follow(&paths, "", Reads::Library, None);
        assert!(program.libraries.iter().any(|library| library.soname.as_deref() == Some("libc.so.6")));
    }

    #[test]
    fn the_number_of_lookups_is_bounded() {
        let needed: Vec<String> = (0..900).map(|number| format!("libnothing{number}.so")).collect();
        let folders = (0..500_000).map(|number| format!("/nothing/{number}")).collect::<Vec<_>>().join(":");
        let hostile = ElfFacts { needed, runpath: Some(folders), ..ElfFacts::default() };
        let mut program = Program { executable: hostile, ..Program::default() };
        program.follow(&SearchPaths::default(), "", Reads::Library, None);
        assert!(program.is_cut && program.libraries.is_empty());
        assert!(Allocator::of(&program).evidence.contains("lists of folders are too long"));
        let mut usual = Program::default();
        usual.executable.needed = vec!["libnothing.so".to_owned()];
        usual.follow(&SearchPaths::default(), "", Reads::Library, None);
        assert!(!usual.is_cut && !Allocator::of(&usual).evidence.contains("too long"));
    }
}
