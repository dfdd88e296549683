//! Finds out from a program's files which allocator it uses.

use crate::elf::{ElfFacts, OPERATOR_NEW, STARTS_CPP_THREAD, checker_of_library, checker_of_symbol};
use crate::program::Program;
use heap_abi::ACCOUNT_SYMBOL;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Kinds of allocators, distinguished by the way to put them on huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum Family {
    /// The GNU C library's, of version 2.N.
    Glibc {
        /// N, if it is known.
        minor: Option<u32>,
    },
    /// musl's.
    Musl,
    /// jemalloc.
    Jemalloc {
        /// Its version, if it is known.
        version: Option<String>,
        /// The variable that it reads.
        variable: String,
    },
    /// tcmalloc, Google's or gperftools'.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// The one that Pagelift preloads: mimalloc for small blocks, and its own way for large ones.
    Pagelift,
    /// Go's runtime.
    Go,
    /// A Java virtual machine, whose heap is its own.
    Jvm,
    /// That of a tool that checks each use of memory, such as AddressSanitizer.
    Checker {
        /// The tool.
        tool: &'static str,
    },
    /// Another one, or an unknown one.
    Unknown,
}

/// The way in which the allocator comes into the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "how")]
pub enum AllocatorOrigin {
    /// Linked into the executable: a preloaded one does not replace it.
    LinkedIn,
    /// In a shared library: a preloaded one replaces it.
    Library {
        /// The library.
        path: String,
    },
}

/// A language runtime that manages memory above the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// CPython, whose small objects have an allocator of their own.
    Python,
    /// CPython without its global lock. Its objects are in its own mimalloc, which maps its memory directly.
    FreeThreadedPython,
    /// V8 (node), whose heap is mapped by itself.
    V8,
}

/// The allocator that serves a program's `malloc`, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allocator {
    /// The family.
    pub family: Family,
    /// Its place.
    pub place: AllocatorOrigin,
    /// The user has put it before all others by LD_PRELOAD.
    pub preloaded: bool,
    /// A runtime above it.
    pub runtime: Option<Runtime>,
    /// The program or one of its libraries starts threads.
    pub starts_threads: bool,
    /// The evidence for it.
    pub evidence: String,
    /// Settings that its code knows, from the list of settings that differ between versions.
    pub settings: BTreeSet<String>,
}

impl Allocator {
    /// Finds the allocator that serves a program.
    pub fn of(program: &Program) -> Self {
        let exe = &program.executable;
        let starts_threads = exe.defines("pthread_create") || program.objects().any(starts_threads);
        let (family, place, mut evidence) = checker(program)
            .or_else(|| special(program))
            .or_else(|| linked_in(exe))
            .or_else(|| unknown_linked_in(exe))
            .or_else(|| from_libraries(program))
            .unwrap_or_else(|| c_library(program));
        let settings = match &place {
            AllocatorOrigin::LinkedIn => exe.settings.clone(),
            AllocatorOrigin::Library { path } => {
                let serving = program.libraries.iter().find(|facts| is_at(facts, path));
                serving.map(|facts| facts.settings.clone()).unwrap_or_default()
            }
        };
        let of_user = program.libraries.iter().take(program.preloaded);
        let preloaded =
            matches!(&place, AllocatorOrigin::Library { path } if of_user.clone().any(|facts| is_at(facts, path)));
        let runtime = runtime(program);
        let is_tcmalloc = family == Family::Tcmalloc;
        let gperftools = program.objects().filter_map(|facts| facts.gperftools_version.as_ref()).next();
        if let Some(version) = gperftools.filter(|_| is_tcmalloc) {
            evidence += &format!("; of gperftools {version}");
        }
        let v8 = program.objects().filter_map(|facts| facts.v8_version.as_ref()).next();
        if let Some(version) = v8.filter(|_| runtime == Some(Runtime::V8)) {
            evidence += &format!("; V8 {version}");
        }
        if program.is_cut {
            evidence += "; some of its libraries were not searched: its lists of folders are too long";
        }
        Self { family, place, preloaded, runtime, starts_threads, evidence, settings }
    }

    /// Why a preloaded library's `malloc` does not take the place of this allocator; `None` if it does.
    pub fn not_replaceable(&self, program: &Program) -> Option<&'static str> {
        let is_gnu = program.libraries.iter().any(|library| library.glibc_minor.is_some());
        match (&self.family, &self.place) {
            (Family::Jvm | Family::Go, _) => Some("its heap is not malloc's"),
            (Family::Checker { .. }, _) => {
                Some("it checks its memory by its own allocator, and no other allocator can be preloaded")
            }
            _ if self.runtime == Some(Runtime::FreeThreadedPython) => {
                Some("free-threaded Python allocates its objects by its own allocator, whatever malloc is")
            }
            (Family::Musl, _) => Some("the preloaded heap is made for the GNU C library, and this program has musl"),
            (_, AllocatorOrigin::LinkedIn) => Some("its allocator is linked in, so that a preloaded one is not used"),
            _ if !is_gnu => Some("the preloaded heap needs the GNU C library"),
            (Family::Unknown, AllocatorOrigin::Library { path }) if self.preloaded && !passes_on(path, program) => {
                Some(ITS_OWN)
            }
            (Family::Jemalloc { .. } | Family::Tcmalloc | Family::Mimalloc, _) if self.preloaded => Some(ITS_OWN),
            (Family::Unknown, AllocatorOrigin::Library { path }) if is_debugger(path) => {
                Some("it finds memory errors, which a preloaded malloc would hide")
            }
            (_, AllocatorOrigin::Library { path }) if gives_new(path, program) => Some(
                "its allocator defines its own C++ operators new and delete, which the program uses and a preloaded malloc \
                 does not replace",
            ),
            _ => None,
        }
    }
}

/// True for an object that starts threads by itself. The C++ libraries do so on behalf of others, which call
/// [`STARTS_CPP_THREAD`], or pthread_create from inline functions (libc++).
fn starts_threads(object: &ElfFacts) -> bool {
    let name = object.soname.as_deref().unwrap_or_default();
    let is_runtime =
        ["libstdc++.so", "libc++.so", "libc.so", "libpthread.so"].iter().any(|start| name.starts_with(start));
    let functions = ["pthread_create", "thrd_create", STARTS_CPP_THREAD];
    !is_runtime && functions.iter().any(|&function| object.imports.contains(function))
}

/// Why an allocator that the user has preloaded is not replaced.
const ITS_OWN: &str = "the allocator that LD_PRELOAD names comes first and stays; fix: LD_PRELOAD without it";

/// True if the library at `path` may call the next definitions of its functions: it looks some up, or calls the C library's
/// functions by their other names.
fn passes_on(path: &str, program: &Program) -> bool {
    let asks = ["dlsym", "dlvsym", "__libc_malloc", "__libc_calloc", "__libc_memalign"];
    let library = program.libraries.iter().find(|facts| is_at(facts, path));
    library.is_some_and(|library| asks.iter().any(|&name| library.imports.contains(name)))
}

fn is_at(facts: &ElfFacts, path: &str) -> bool {
    facts.path.as_os_str() == path
}

/// True if the program's C++ code allocates from this library without calling `malloc`. The C++ library's own operators
/// call `malloc`; an object that defines the operators does not use another object's.
fn gives_new(path: &str, program: &Program) -> bool {
    let definer = program.objects().find(|object| object.exports(OPERATOR_NEW));
    let uses = |object: &ElfFacts| object.imports.contains(OPERATOR_NEW) && !object.exports(OPERATOR_NEW);
    definer.is_some_and(|object| is_at(object, path)) && program.objects().any(uses)
}

/// True for the library of an allocator that finds errors: Electric Fence, DUMA, dmalloc. Unlike the tools that compilers build
/// in, these bear other preloaded libraries.
fn is_debugger(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["libefence.so", "libduma.so", "libdmalloc"].iter().any(|start| name.starts_with(start))
}

type Found = (Family, AllocatorOrigin, String);

fn library(facts: &ElfFacts) -> AllocatorOrigin {
    AllocatorOrigin::Library { path: facts.path.display().to_string() }
}

/// A tool that checks the program's memory, by its runtime in one of the objects or by a library that it needs.
fn checker(program: &Program) -> Option<Found> {
    program.objects().find_map(|facts| {
        let symbols = facts.defines.iter().chain(&facts.imports);
        let by_symbol = symbols.filter_map(|name| Some((checker_of_symbol(name)?, name.clone()))).next();
        let names = facts.soname.iter().chain(&facts.needed);
        let by_library = || names.filter_map(|name| Some((checker_of_library(name)?, name.clone()))).next();
        let (tool, name) = by_symbol.or_else(by_library)?;
        let place = program
            .libraries
            .iter()
            .find(|library| library.exports("malloc"))
            .map_or(AllocatorOrigin::LinkedIn, library);
        let place = if program.executable.exports("malloc") { AllocatorOrigin::LinkedIn } else { place };
        Some((Family::Checker { tool }, place, format!("{} has {name}", facts.path.display())))
    })
}

/// Programs whose memory is not malloc's in the first place.
fn special(program: &Program) -> Option<Found> {
    if program.executable.is_go {
        let evidence = match &program.executable.go_version {
            Some(version) => format!("it was built by {version}"),
            None => "it carries Go's build information".to_owned(),
        };
        return Some((Family::Go, AllocatorOrigin::LinkedIn, evidence));
    }
    let jvm = |facts: &&ElfFacts| {
        let name = facts.soname.as_deref().unwrap_or_default();
        name.starts_with("libjli.so") || name.starts_with("libjvm.so")
    };
    let found = program.libraries.iter().find(jvm)?;
    let name = found.soname.clone().unwrap_or_default();
    let evidence = match program.libraries.iter().find_map(|facts| facts.jvm_version.as_ref()) {
        Some(version) => format!("{version}; it needs {name}"),
        None => format!("it needs {name}"),
    };
    Some((Family::Jvm, library(found), evidence))
}

/// An allocator among the objects' symbols.
fn known_symbols(facts: &ElfFacts) -> Option<(Family, String)> {
    if facts.defines(ACCOUNT_SYMBOL) {
        return Some((Family::Pagelift, ACCOUNT_SYMBOL.to_owned()));
    }
    let symbol = |wanted: &dyn Fn(&str) -> bool| facts.defines.iter().find(|name| wanted(name)).cloned();
    if let Some(name) = symbol(&|name| name.ends_with("mallctl")) {
        let variable = facts.jemalloc_variable.clone().unwrap_or_else(|| "MALLOC_CONF".to_owned());
        return Some((Family::Jemalloc { version: facts.jemalloc_version.clone(), variable }, name));
    }
    let tcmalloc = ["tc_malloc", "tc_version", "TCMallocInternalMalloc"];
    if let Some(name) = symbol(&|name| tcmalloc.contains(&name)) {
        return Some((Family::Tcmalloc, name));
    }
    symbol(&|name| matches!(name, "mi_malloc" | "mi_version")).map(|name| (Family::Mimalloc, name))
}

fn linked_in(exe: &ElfFacts) -> Option<Found> {
    let (family, symbol) = known_symbols(exe)?;
    Some((family, AllocatorOrigin::LinkedIn, format!("the executable defines {symbol}")))
}

/// A `malloc` of the executable's, which all objects call: symbol look-up begins with the executable.
fn unknown_linked_in(exe: &ElfFacts) -> Option<Found> {
    let serves = exe.interpreter.is_some() && exe.exports("malloc");
    serves.then(|| (Family::Unknown, AllocatorOrigin::LinkedIn, "the executable defines malloc".to_owned()))
}

/// The first library that defines `malloc` serves it.
fn from_libraries(program: &Program) -> Option<Found> {
    let first = program.libraries.iter().find(|facts| facts.exports("malloc"))?;
    let path = first.path.display();
    if let Some((family, symbol)) = known_symbols(first) {
        return Some((family, library(first), format!("{path} defines malloc and {symbol}")));
    }
    if let Some(minor) = first.glibc_minor {
        return Some((Family::Glibc { minor: Some(minor) }, library(first), format!("{path} defines malloc")));
    }
    if is_musl(first) || is_c_library_of_musl(first, &program.executable) {
        return Some((Family::Musl, library(first), format!("{path} is musl")));
    }
    Some((Family::Unknown, library(first), format!("{path} defines malloc and is none that is known")))
}

fn is_musl(facts: &ElfFacts) -> bool {
    let name = facts.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.contains("musl") || facts.defines("__malloc_replaced") || facts.defines("__malloc_allzerop")
}

/// musl's libc.so. Its symbols and name do not always identify it, but the program's dynamic linker does.
fn is_c_library_of_musl(facts: &ElfFacts, exe: &ElfFacts) -> bool {
    let is_linker_musl = exe.interpreter.as_deref().is_some_and(|path| path.contains("ld-musl"));
    is_linker_musl && facts.path.file_name().is_some_and(|name| name == "libc.so")
}

fn c_library(program: &Program) -> Found {
    let exe = &program.executable;
    if let Some(interpreter) = exe.interpreter.as_deref().filter(|path| path.contains("ld-musl")) {
        let place = AllocatorOrigin::Library { path: interpreter.to_owned() };
        return (Family::Musl, place, format!("its dynamic linker is {interpreter}"));
    }
    if exe.glibc_minor.is_some() || (exe.interpreter.is_none() && exe.defines("__libc_malloc") && !is_musl(exe)) {
        let family = Family::Glibc { minor: exe.glibc_minor };
        return (family, AllocatorOrigin::LinkedIn, "a static program with the GNU C library".to_owned());
    }
    if exe.interpreter.is_none() && is_musl(exe) {
        return (Family::Musl, AllocatorOrigin::LinkedIn, "a static program with musl".to_owned());
    }
    let evidence = match &exe.interpreter {
        Some(_) => "no library found for the program defines malloc",
        None => "a static program without allocator symbols",
    };
    (Family::Unknown, AllocatorOrigin::LinkedIn, evidence.to_owned())
}

fn runtime(program: &Program) -> Option<Runtime> {
    let mut objects = program.objects();
    let python = |facts: &ElfFacts| {
        let main = ["Py_BytesMain", "Py_Main"];
        main.iter().any(|&name| facts.defines(name) || facts.imports.contains(name))
    };
    if python(&program.executable) {
        // Declared only if the global lock is disabled (CPython, Include/object.h and Include/refcount.h).
        let is_free_threaded = objects.any(|facts| facts.defines("_Py_DecRefShared"));
        return Some(if is_free_threaded { Runtime::FreeThreadedPython } else { Runtime::Python });
    }
    let v8 = ["_ZN2v87Isolate3NewERKNS0_12CreateParamsE", "napi_create_function"];
    objects.any(|facts| v8.iter().any(|&name| facts.defines(name))).then_some(Runtime::V8)
}

/// Identifies a jemalloc without a version by the settings that it knows.
fn jemalloc_by(settings: &BTreeSet<String>) -> &'static str {
    let knows = [
        ("opt.dirty_decay_ms", "jemalloc 5"),
        ("opt.decay_time", "jemalloc 4.1 to 4.5"),
        ("opt.lg_dirty_mult", "jemalloc 4.0 or older"),
    ];
    knows.iter().find(|(name, _)| settings.contains(*name)).map_or("jemalloc", |(_, words)| words)
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.family {
            Family::Glibc { minor: Some(minor) } => write!(f, "glibc 2.{minor}")?,
            Family::Glibc { minor: None } => write!(f, "glibc")?,
            Family::Musl => write!(f, "musl")?,
            Family::Jemalloc { version: Some(version), .. } => write!(f, "jemalloc {version}")?,
            Family::Jemalloc { version: None, .. } => f.write_str(jemalloc_by(&self.settings))?,
            Family::Tcmalloc => write!(f, "tcmalloc")?,
            Family::Mimalloc => write!(f, "mimalloc")?,
            Family::Pagelift => write!(f, "Pagelift's heap")?,
            Family::Go => write!(f, "Go's runtime")?,
            Family::Jvm => write!(f, "a Java virtual machine")?,
            Family::Checker { tool } => f.write_str(tool)?,
            Family::Unknown => write!(f, "an unknown allocator")?,
        }
        match self.runtime {
            Some(Runtime::Python) => write!(f, " below Python's")?,
            Some(Runtime::FreeThreadedPython) => write!(f, " beside free-threaded Python's")?,
            Some(Runtime::V8) => write!(f, " beside V8's heap")?,
            None => {}
        }
        write!(f, " ({})", self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, exports: &[&str], imports: &[&str]) -> ElfFacts {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let (exports, imports) = (names(exports), names(imports));
        ElfFacts { path: path.into(), defines: exports.clone(), exports, imports, ..ElfFacts::default() }
    }

    fn program(executable: ElfFacts, libraries: &[&ElfFacts]) -> Program {
        let c_library = ElfFacts { glibc_minor: Some(36), ..object("/lib/libc.so.6", &["malloc"], &[]) };
        let libraries = libraries.iter().map(|&library| library.clone()).chain([c_library]).collect();
        let executable = ElfFacts { interpreter: Some("/lib/ld.so".into()), ..executable };
        Program { executable, libraries, preloaded: 0, is_cut: false }
    }

    #[test]
    fn an_allocator_with_operators_of_its_own_stays_where_they_are_used() {
        let tcmalloc = object("/lib/libtcmalloc.so", &["malloc", "tc_malloc", OPERATOR_NEW], &[]);
        let cpp = object("/lib/libstdc++.so", &[OPERATOR_NEW], &["malloc"]);
        let of = |executable: &ElfFacts, libraries: &[&ElfFacts]| {
            let program = program(executable.clone(), libraries);
            let allocator = Allocator::of(&program);
            assert_eq!(allocator.family, Family::Tcmalloc, "{allocator:?}");
            allocator.not_replaceable(&program)
        };
        let plain = object("/bin/c", &[], &["malloc"]);
        let user = object("/bin/c++", &[], &["malloc", OPERATOR_NEW]);
        assert!(of(&user, &[&tcmalloc, &cpp]).is_some_and(|why| why.contains("its own C++ operators new and delete")));
        let using = object("/lib/libx.so", &[], &[OPERATOR_NEW]);
        assert!(of(&plain, &[&tcmalloc, &using, &cpp]).is_some());
        // In C nobody calls them; the C++ library's come first in the order of symbols; so do the program's own.
        assert_eq!(of(&plain, &[&tcmalloc, &cpp]), None);
        assert_eq!(of(&user, &[&cpp, &tcmalloc]), None);
        assert_eq!(of(&object("/bin/own", &[OPERATOR_NEW], &[OPERATOR_NEW]), &[&tcmalloc, &using, &cpp]), None);
    }

    #[test]
    fn threads_are_found_wherever_they_are_started() {
        let named = |name: &str, imports: &[&str]| ElfFacts { soname: Some(name.into()), ..object(name, &[], imports) };
        let cpp = named("libstdc++.so.6", &["pthread_create"]);
        let of = |imports: &[&str], libraries: &[&ElfFacts]| {
            Allocator::of(&program(object("/bin/x", &[], imports), libraries)).starts_threads
        };
        // Each C++ program has the C++ library, and few have threads.
        assert!(!of(&["malloc"], &[]) && !of(&["malloc"], &[&cpp]));
        assert!(of(&["pthread_create"], &[]) && of(&["thrd_create"], &[]));
        assert!(of(&[STARTS_CPP_THREAD], &[&cpp]));
        assert!(of(&[], &[&named("libgomp.so.1", &["pthread_create"])]));
        assert!(of(&[], &[&cpp, &named("libLLVM.so.14", &[STARTS_CPP_THREAD])]));
    }

    #[test]
    fn a_python_without_its_lock_is_told_apart() {
        let of = |library: &[&str]| {
            let python = object("/usr/bin/python", &[], &["Py_BytesMain"]);
            let program = program(python, &[&object("/lib/libpython.so", library, &["malloc"])]);
            let allocator = Allocator::of(&program);
            (allocator.runtime, allocator.not_replaceable(&program).is_none())
        };
        assert_eq!(of(&["Py_BytesMain"]), (Some(Runtime::Python), true));
        assert_eq!(of(&["Py_BytesMain", "_Py_DecRefShared"]), (Some(Runtime::FreeThreadedPython), false));
    }

    #[test]
    fn an_executable_s_own_malloc_is_not_the_c_library_s() {
        let program = |executable| program(executable, &[]);
        let own = program(object("/bin/own", &["malloc", "free"], &[]));
        let allocator = Allocator::of(&own);
        assert_eq!(
            (&allocator.family, &allocator.place),
            (&Family::Unknown, &AllocatorOrigin::LinkedIn),
            "{allocator}"
        );
        assert!(allocator.not_replaceable(&own).is_some_and(|why| why.contains("linked in")));
        // A malloc that only the executable itself sees leaves the C library's to all libraries.
        let mut hidden = object("/bin/hidden", &[], &["malloc"]);
        hidden.defines.insert("malloc".into());
        assert_eq!(Allocator::of(&program(hidden)).family, Family::Glibc { minor: Some(36) });
    }

    #[test]
    fn tools_that_check_memory_are_known_wherever_they_are() {
        let linked = object("/bin/x", &["malloc", "__asan_init"], &[]);
        let needing = ElfFacts { needed: vec!["liblsan.so.0".into()], ..object("/bin/x", &[], &["malloc"]) };
        let using = object("/bin/x", &[], &["malloc", "__tsan_init"]);
        let plain = object("/bin/x", &[], &["malloc"]);
        let runtime = ElfFacts { soname: Some("libasan.so.8".into()), ..object("/lib/libasan.so.8", &["malloc"], &[]) };
        let cases = [
            (linked, None, "AddressSanitizer"),
            (needing, None, "LeakSanitizer"),
            (using, None, "ThreadSanitizer"),
            (plain, Some(&runtime), "AddressSanitizer"),
        ];
        for (executable, library, expected) in cases {
            let program = program(executable, &library.into_iter().collect::<Vec<_>>());
            let allocator = Allocator::of(&program);
            assert_eq!(allocator.family, Family::Checker { tool: expected }, "{allocator}");
            assert!(allocator.not_replaceable(&program).is_some_and(|why| why.contains("checks its memory")));
        }
    }

    #[test]
    fn an_allocator_that_finds_errors_stays() {
        let of = |path: &str| {
            let program = program(object("/bin/x", &[], &["malloc"]), &[&object(path, &["malloc"], &[])]);
            let why = Allocator::of(&program).not_replaceable(&program);
            why.is_some_and(|why| why.contains("finds memory errors"))
        };
        assert_eq!(
            ["libefence.so.0", "libdmallocth.so.5", "libmine.so"].map(|name| of(&format!("/lib/{name}"))),
            [true, true, false]
        );
    }

    #[test]
    fn what_the_user_preloads_comes_first() {
        let of = |library: &ElfFacts| {
            let program = Program { preloaded: 1, ..program(object("/bin/x", &[], &["malloc"]), &[library]) };
            let allocator = Allocator::of(&program);
            (allocator.preloaded, allocator.not_replaceable(&program).is_some_and(|why| why.contains("LD_PRELOAD")))
        };
        assert_eq!(of(&object("/my/tracer.so", &["malloc"], &["dlsym"])), (true, false));
        assert_eq!(of(&object("/my/allocator.so", &["malloc"], &[])), (true, true));
        assert_eq!(of(&object("/my/libjemalloc.so", &["malloc", "mallctl"], &["dlsym"])), (true, true));
        assert_eq!(of(&object("/my/libx.so", &["free_x"], &[])), (false, false));
    }
}
