//! `pagelift run --via preload`: the program lifts itself, by the library in its environment. Also where ptrace is
//! refused.

use crate::cli::RunArgs;
use address_space::ElfImage;
use lift_plan::{Edges, Kind, ObjectChoice, Pages, Policy, WritablePages};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libpagelift.so";

/// The environment with which the program lifts itself: that of `base`, or else this process's, with the library and
/// its words in it.
///
/// # Errors
/// Why the program cannot be lifted in this way, in words.
pub fn environment(args: &RunArgs, program: Option<&Path>, base: Option<&[CString]>) -> Result<Vec<CString>, String> {
    for (given, option) in [
        (args.dry_run, "--dry-run"),
        (args.report.is_some(), "--report"),
        (args.perf_map, "--perf-map"),
        (args.follow_lifted, "--follow-lifted"),
    ] {
        if given {
            return Err(format!("{option} needs --via ptrace"));
        }
    }
    if let Some(program) = program.filter(|_| args.only.is_empty())
        && let Ok(image) = fs::read(program).map_err(drop).and_then(|file| ElfImage::parse(&*file).map_err(drop))
        && image.is_static()
    {
        return Err(format!("{} is linked statically, so that nothing can be preloaded", program.display()));
    }
    let library = find_library().ok_or("libpagelift.so is not installed beside pagelift, in ../lib: make install")?;
    let words = words(args)?;
    let mut variables: Vec<Vec<u8>> = match base {
        Some(base) => base.iter().map(|variable| variable.as_bytes().to_vec()).collect(),
        None => std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect(),
    };
    let earlier = variables.iter().find_map(|variable| variable.strip_prefix(b"LD_PRELOAD=").map(<[u8]>::to_vec));
    variables.retain(|variable| !variable.starts_with(b"LD_PRELOAD=") && !variable.starts_with(b"PAGELIFT="));
    let mut preload = [b"LD_PRELOAD=", library.as_os_str().as_bytes()].concat();
    if let Some(earlier) = earlier.filter(|earlier| !earlier.is_empty()) {
        preload.push(b':');
        preload.extend(earlier);
    }
    variables.push(preload);
    variables.push(format!("PAGELIFT={words}").into_bytes());
    variables.into_iter().map(|variable| CString::new(variable).map_err(|_| "a NUL byte".to_owned())).collect()
}

/// Where the library lies: installed beside this program, or in the folder it was built in.
fn find_library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let machine = std::env::consts::ARCH;
    let places = ["../lib".to_owned(), format!("../lib/{machine}-linux-gnu"), "../lib64".into(), "../library".into()];
    let found = places.iter().map(|place| folder.join(place).join(LIBRARY)).find(|path| path.is_file())?;
    let found = fs::canonicalize(found).ok()?;
    // Blanks and colons separate the names in LD_PRELOAD.
    (!found.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte))).then_some(found)
}

/// The library's words for the options. Without --only they name this process, which is to become the program, so that
/// no other process acts on them.
fn words(args: &RunArgs) -> Result<String, String> {
    let mut words = policy_words(&args.policy.policy())?;
    if args.only.is_empty() {
        words.push(format!("pid={}", std::process::id()));
    } else {
        words.push(format!("only={}", args.only.join(",")));
    }
    words.extend(args.require.then(|| "require".to_owned()));
    words.extend(args.quiet.then(|| "quiet".to_owned()));
    words.extend(args.verbose.then(|| "verbose".to_owned()));
    if words.iter().any(|word| word.contains(char::is_whitespace)) {
        return Err("names with blanks in them need --via ptrace".to_owned());
    }
    Ok(words.join(" "))
}

fn policy_words(policy: &Policy) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let kinds = [Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss, Kind::Heap];
    let kinds: Vec<_> = kinds.iter().filter(|kind| policy.kinds.contains(**kind)).map(ToString::to_string).collect();
    words.push(format!("lift={}", kinds.join(",")));
    words.push(match policy.pages {
        Pages::Auto => "pages=auto".to_owned(),
        Pages::Hugetlb => "pages=hugetlb".to_owned(),
        Pages::Thp => "pages=thp".to_owned(),
        Pages::Image => return Err("--pages image needs --via ptrace".to_owned()),
    });
    if policy.writable_pages == WritablePages::Hugetlb {
        words.push("writable-pages=hugetlb".to_owned());
    }
    if policy.edges == Edges::MergeReadOnly {
        words.push("edges=merge-read-only".to_owned());
    }
    words.extend(policy.page_size.map(|size| format!("page-size={}", size.bytes())));
    words.extend(policy.max_memory.map(|bytes| format!("max-memory={bytes}")));
    match &policy.objects {
        ObjectChoice::WorthIt => {}
        ObjectChoice::Executable => words.push("objects=exe".to_owned()),
        ObjectChoice::All => words.push("objects=all".to_owned()),
        ObjectChoice::Matching(patterns) => words.push(format!("objects={}", patterns.join(","))),
    }
    Ok(words)
}
