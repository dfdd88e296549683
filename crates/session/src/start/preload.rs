//! The environment with which a program lifts itself by libpagelift.so, which also works if ptrace is refused.

use address_space::ElfImage;
use heap_choice::{Allocator, Environment, Family};
use options::{VARIABLE, Variable};
use process_view::ObjectReader;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name by which programs load it; the one without a version is for linking, and is in a separate package.
const LIBRARY: &str = "libpagelift.so.0";

/// Returns the environment with which `program` lifts itself as `variable` says: `base`, or else this process's, with
/// the library and its variable added.
///
/// # Errors
/// The reason why the program cannot be lifted in this way.
pub fn preload_environment(
    variable: &Variable,
    program: Option<&Path>,
    base: Option<&[CString]>,
) -> Result<Vec<CString>, String> {
    if let Some(program) = program.filter(|_| variable.only.is_empty())
        && ObjectReader::new().read_ahead(program).is_some_and(ElfImage::is_static)
    {
        return Err(format!("{} is linked statically, so that nothing can be preloaded", program.display()));
    }
    if let Some(why) = program.and_then(|program| checked(program, base)) {
        return Err(why);
    }
    let library = find_library().ok_or(
        "found no libpagelift.so.0 in ../lib of pagelift's folder; fix: install the package libpagelift0 or pagelift-libs, or \
         `make install`",
    )?;
    let words = variable.to_words()?;
    let mut variables: Vec<Vec<u8>> = match base {
        Some(base) => base.iter().map(|variable| variable.as_bytes().to_vec()).collect(),
        None => std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect(),
    };
    let earlier = variables.iter().find_map(|variable| variable.strip_prefix(b"LD_PRELOAD=").map(<[u8]>::to_vec));
    variables.retain(|variable| {
        !variable.starts_with(b"LD_PRELOAD=") && !variable.starts_with(format!("{VARIABLE}=").as_bytes())
    });
    // The user's libraries come first.
    let mut preload = b"LD_PRELOAD=".to_vec();
    if let Some(earlier) = earlier.filter(|earlier| !earlier.is_empty()) {
        preload.extend(earlier);
        preload.push(b':');
    }
    preload.extend(library.as_os_str().as_bytes());
    variables.push(preload);
    variables.push(format!("{VARIABLE}={words}").into_bytes());
    variables.into_iter().map(|variable| CString::new(variable).map_err(|_| "a NUL byte".to_owned())).collect()
}

/// Why nothing is preloaded into a program whose memory a tool checks.
fn checked(program: &Path, base: Option<&[CString]>) -> Option<String> {
    let environment = match base {
        Some(base) => Environment::parse(&base.iter().flat_map(|v| v.to_bytes_with_nul()).copied().collect::<Vec<_>>()),
        None => Environment::of_this_process(),
    };
    let read = heap_choice::Program::read(program, &environment).ok()??;
    match Allocator::of(&read).family {
        Family::Checker { tool } => {
            Some(format!("{} is checked by {tool}, with which nothing can be preloaded", program.display()))
        }
        _ => None,
    }
}

/// Finds the library that is preloaded: installed beside this program, or in the folder in which it was built.
pub fn find_library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let machine = std::env::consts::ARCH;
    let places = ["../lib".to_owned(), format!("../lib/{machine}-linux-gnu"), "../lib64".into(), "../library".into()];
    let found = places.iter().map(|place| folder.join(place).join(LIBRARY)).find(|path| path.is_file())?;
    let found = fs::canonicalize(found).ok()?;
    // Blanks and colons separate the names in LD_PRELOAD.
    (!found.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte))).then_some(found)
}
