//! The programs of /usr/bin with `pagelift align --relayout` of their files and of their libraries: their output and
//! their ending stay the same.

use crate::usr_bin::{ARGUMENTS, Said, compare_runs, in_scratch, out_of_reach, programs, run};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use test_support::{Context, Ending, Need, Skipped, Test, scratch_folder, test_case};

/// Folders of the copies in both layouts. The names have the same length, so that lines break at the same words.
const LAYOUTS: [&str; 2] = ["first", "other"];
/// The shortest file that is tried, in bytes: a huge page of 2 MiB.
const SHORTEST: u64 = 2 << 20;

pub fn tests() -> Vec<Test> {
    let of_program = |(file, name): (PathBuf, String)| {
        let needs = vec![Need::Thp, Need::Command("ldd".into()), Need::File(file.to_string_lossy().into_owned())];
        test_case(format!("relaid/{name}"), needs, move |t| same_outputs(t, &file, &name))
    };
    programs().into_iter().map(of_program).collect()
}

fn same_outputs(t: &Context, file: &Path, name: &str) -> Result<()> {
    if let Some(why) = out_of_reach() {
        return Err(Skipped(why.clone()).into());
    }
    let libraries = libraries(t)?;
    in_scratch(t, name, |scratch| {
        let [first, other] = LAYOUTS.map(|layout| scratch.join(layout).join(name));
        for layout in LAYOUTS {
            fs::create_dir(scratch.join(layout))?;
        }
        let own = lay_out(t, file, &other)?;
        let others = needed(t, file)?.iter().filter(|needed| libraries.names.contains(*needed)).count();
        if !own && others == 0 {
            return Err(Skipped("neither the program nor any of its libraries gets another layout".into()).into());
        }
        t.note(format!("its own file: {own}; libraries: {others}"));
        for copy in [&first, &other] {
            if !copy.exists() {
                fs::copy(file, copy)?;
            }
            fs::set_permissions(copy, Permissions::from_mode(0o755))?;
        }
        let of_layout = |copy: &Path, argument: &str, folder: &OsStr| -> Result<Said> {
            let mut command = Command::new(copy);
            command.arg(argument).env("LD_LIBRARY_PATH", folder);
            let Said { ending, stdout, stderr } = run(t, &command, scratch)?;
            let [stdout, stderr] = [stdout, stderr].map(|text| without_layout(&text, scratch));
            Ok(Said { ending, stdout, stderr })
        };
        Ok(ARGUMENTS.map(|argument| {
            let plain = || of_layout(&first, argument, OsStr::new(""));
            compare_runs(argument, plain, || of_layout(&other, argument, libraries.folder.as_os_str()))
        }))
    })
}

/// The text with one name for both folders.
fn without_layout(text: &[u8], scratch: &Path) -> Vec<u8> {
    let [first, other] = LAYOUTS.map(|layout| scratch.join(layout).to_string_lossy().into_owned());
    match std::str::from_utf8(text) {
        Ok(text) => text.replace(&other, &first).into_bytes(),
        Err(_) => text.to_owned(),
    }
}

/// Writes a copy in another layout. False if the file has none.
fn lay_out(t: &Context, file: &Path, out: &Path) -> Result<bool> {
    if file.metadata()?.len() < SHORTEST {
        return Ok(false);
    }
    let new = out.with_extension("new");
    let mut align = t.pagelift(&["align", "--relayout", "-o"])?;
    align.arg(&new).arg(file);
    let is_new = t.run(align)?.ending == Ending::Exit(0) && new.exists();
    if is_new {
        fs::rename(new, out)?;
    }
    Ok(is_new)
}

/// The names of the libraries that a program needs, directly or not.
fn needed(t: &Context, file: &Path) -> Result<Vec<String>> {
    let mut ldd = Command::new("ldd");
    ldd.arg(file);
    let output = t.run(ldd)?;
    let names = output.stdout.lines().filter_map(|line| Some(line.split_once(" => ")?.0.trim().to_owned()));
    Ok(names.collect())
}

/// Copies of this machine's libraries in another layout.
struct Libraries {
    folder: PathBuf,
    /// Names by which programs need them.
    names: BTreeSet<String>,
}

fn libraries(t: &Context) -> Result<&'static Libraries> {
    static MADE: OnceLock<Result<Libraries, String>> = OnceLock::new();
    MADE.get_or_init(|| make_libraries(t).map_err(|e| format!("{e:#}"))).as_ref().map_err(|e| anyhow!("{e}"))
}

fn make_libraries(t: &Context) -> Result<Libraries> {
    let folder = scratch_folder().join("relaid-libraries");
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder)?;
    let installed = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&installed).with_context(|| installed.clone())?.flatten() {
        let (name, Ok(file)) = (entry.file_name(), entry.path().canonicalize()) else { continue };
        let Some(own) = file.file_name().filter(|_| file.is_file() && name.to_string_lossy().contains(".so")) else {
            continue;
        };
        let copy = folder.join(own);
        if !copy.exists() && !lay_out(t, &file, &copy)? {
            continue;
        }
        if name != own {
            std::os::unix::fs::symlink(own, folder.join(&name))?;
        }
        names.insert(name.to_string_lossy().into_owned());
    }
    ensure!(!names.is_empty(), "no library of {installed} gets another layout");
    Ok(Libraries { folder, names })
}
