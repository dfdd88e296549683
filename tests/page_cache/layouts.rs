//! `relayout` entries in the list of `pagelift cache keep`.

use crate::align::align;
use crate::keeping::{keep, list};
use crate::needs;
use crate::relayout::{OTHER_ADDRESS, disagreeing};
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Output, Skipped, Test, copy_program, poll_until, test_case, write_script};

const SOON: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Test> {
    let python = || [needs(), vec![Need::Root, Need::Command("python3".into())]].concat();
    vec![
        test_case("keep/moves_the_segments_of_listed_files_after_each_upgrade", needs(), upgraded),
        test_case("keep/moves_files_of_packages_only_if_told_or_diverted", needs(), packaged),
        test_case("keep/moves_a_file_when_the_list_says_so", needs(), told_later),
        test_case("keep/moves_no_file_whose_package_is_not_known", needs(), unanswered),
        test_case("keep/copies_of_diverted_files_keep_labels_and_lists", python(), labelled),
        test_case("keep/moves_no_file_that_others_can_exchange", [needs(), vec![Need::Root]].concat(), changeable),
    ]
}

fn listed(t: &Context, key: &str, path: &Path) -> Result<PathBuf> {
    list(t, &format!("{key} = [\"{}\"]\n", path.display()))
}

/// The program in the other layout.
fn moved(t: &Context, program: &Path) -> Result<Vec<u8>> {
    let out = t.folder().join("expected");
    align(t, &["--relayout", "-o", &out.to_string_lossy()], program)?.success()?;
    Ok(fs::read(out)?)
}

fn upgraded(t: &Context) -> Result<()> {
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let folder = roots_folder()?;
    let program = folder.path().join("installed");
    copy_program(t, &built, &program)?;
    let expected = moved(t, &built)?;
    let list = listed(t, "relayout", &program)?;
    // The file system may have no large folios: this test does not check the exit status.
    let said = t.run(keep(t, &list, &["--once"])?)?.stdout;
    ensure!(said.contains("installed: laid out anew: huge pages for"), "{said}");
    ensure!(fs::read(&program)? == expected);
    let inode = program.metadata()?.ino();
    let again = t.run(keep(t, &list, &["--relayout"])?)?.success()?;
    ensure!(again.stdout.is_empty() && program.metadata()?.ino() == inode, "{again:?}");
    // An upgrade, as by dpkg and rpm.
    let new = folder.path().join("installed.dpkg-new");
    copy_program(t, &built, &new)?;
    fs::rename(new, &program)?;
    t.run(keep(t, &list, &["--relayout"])?)?.success()?;
    ensure!(fs::read(&program)? == expected, "the upgraded file was not moved");
    crate::started(t, &program)?.finish()?.success()?;
    Ok(())
}

/// Replacements for dpkg's programs: each file belongs to the package `shop`, and `$DIVERTER` has added `$DIVERTED` to
/// the paths of files.
fn dpkg(t: &Context) -> Result<PathBuf> {
    let folder = t.folder().join("dpkg");
    fs::create_dir(&folder)?;
    let divert = "case $1 in --listpackage) [ -z \"$DIVERTED\" ] || echo $DIVERTER;; *) echo \"$2$DIVERTED\";; esac";
    for (name, does) in [("dpkg-query", "echo \"shop: $3\""), ("dpkg-divert", divert)] {
        write_script(t, &folder.join(name), &format!("#!/bin/sh\n{does}\n"))?;
    }
    Ok(folder)
}

/// Runs `cache keep --relayout` for a file that `diverter` has diverted.
fn keep_diverted(
    t: &Context,
    dpkg: &Path,
    (key, program): (&str, &Path),
    diverted: &str,
    diverter: &str,
) -> Result<Output> {
    let mut command: Command = keep(t, &listed(t, key, program)?, &["--relayout"])?;
    command.env("PATH", format!("{}:/usr/bin:/bin", dpkg.display())).env("DIVERTED", diverted);
    command.env("DIVERTER", diverter);
    t.run(command)
}

fn packaged(t: &Context) -> Result<()> {
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let (sound, expected) = (fs::read(&built)?, moved(t, &built)?);
    let folder = roots_folder()?;
    let program = folder.path().join("installed");
    copy_program(t, &built, &program)?;
    let dpkg = dpkg(t)?;
    let keep_by = |key: &str, diverted: &str, diverter: &str| {
        keep_diverted(t, &dpkg, (key, program.as_path()), diverted, diverter)
    };
    let keep = |key: &str, diverted: &str| keep_by(key, diverted, "LOCAL");
    let refused = keep("relayout", "")?;
    let says = ["the package shop", "dpkg-divert --local --no-rename", "relayout-packaged", "1 file did not get"];
    ensure!(
        refused.ending == Ending::Exit(125) && says.iter().all(|text| refused.stderr.contains(text)),
        "{refused:?}"
    );
    ensure!(fs::read(&program)? == sound, "a refused file was changed");
    keep("relayout-packaged", "")?.success()?;
    ensure!(fs::read(&program)? == expected);
    // The file was installed by the package before the diversion.
    fs::write(&program, &sound)?;
    keep("relayout", ".distrib")?.success()?;
    ensure!(fs::read(&program)? == expected);
    // A diversion by another package: the file then belongs to that package.
    let distributed = folder.path().join("installed.distrib");
    fs::write(&distributed, "of another package")?;
    fs::write(&program, &sound)?;
    let others = keep_by("relayout", ".distrib", "wrappers")?;
    ensure!(others.stderr.contains("the package shop") && fs::read(&program)? == sound, "{others:?}");
    // An administrator's script has replaced the diverted file.
    fs::write(&program, "#!/bin/sh\n# own\n")?;
    let wrapper = keep("relayout", ".distrib")?;
    ensure!(wrapper.stderr.contains("no program") && fs::read(&program)?.ends_with(b"own\n"), "{wrapper:?}");
    fs::write(&program, &sound)?;
    // An upgrade to a file that cannot be moved, and back.
    fs::write(&distributed, "#!/bin/sh\n")?;
    let other = keep("relayout", ".distrib")?;
    ensure!(other.ending == Ending::Exit(125) && other.stderr.contains("no sound 64-bit"), "{other:?}");
    ensure!(fs::read(&program)? == b"#!/bin/sh\n", "the former version stayed");
    fs::remove_file(&distributed)?;
    copy_program(t, &built, &distributed)?;
    let said = keep("relayout", ".distrib")?.success()?.stdout;
    ensure!(said.contains("laid out anew") && fs::read(&program)? == expected, "{said}");
    crate::started(t, &program)?.finish()?.success()?;
    let inode = program.metadata()?.ino();
    ensure!(keep("relayout", ".distrib")?.success()?.stdout.is_empty() && program.metadata()?.ino() == inode);
    fs::set_permissions(&distributed, fs::Permissions::from_mode(0o4755))?;
    let privileged = keep("relayout", ".distrib")?;
    ensure!(privileged.stderr.contains("not copied") && privileged.stderr.contains("set-user-ID"), "{privileged:?}");
    // The package has been removed.
    fs::remove_file(&distributed)?;
    let gone = keep("relayout", ".distrib")?;
    ensure!(gone.ending == Ending::Exit(125) && gone.stderr.contains("a diverted file that is gone"), "{gone:?}");
    Ok(())
}

/// The keeper that runs reads the list again.
fn told_later(t: &Context) -> Result<()> {
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let expected = moved(t, &built)?;
    let folder = roots_folder()?;
    let program = folder.path().join("installed");
    copy_program(t, &built, &program)?;
    let dpkg = dpkg(t)?;
    let mut command = keep(t, &listed(t, "relayout", &program)?, &["--interval", "1"])?;
    command.env("PATH", format!("{}:/usr/bin:/bin", dpkg.display())).env("DIVERTED", "").env("DIVERTER", "");
    let keeper = t.session(command)?;
    poll_until(SOON, "a refusal", || keeper.stderr_so_far().contains("the package shop"))?;
    listed(t, "relayout-packaged", &program)?;
    poll_until(SOON, "the other layout", || fs::read(&program).is_ok_and(|bytes| bytes == expected))
}

/// The database of dpkg may be damaged.
fn unanswered(t: &Context) -> Result<()> {
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let folder = roots_folder()?;
    let program = folder.path().join("installed");
    copy_program(t, &built, &program)?;
    let dpkg = dpkg(t)?;
    fs::write(dpkg.join("dpkg-query"), "#!/bin/sh\necho 'dpkg-query: error: damaged' >&2\nexit 2\n")?;
    let refused = keep_diverted(t, &dpkg, ("relayout", program.as_path()), "", "")?;
    let says = ["dpkg cannot say", "error: damaged"];
    ensure!(
        refused.ending == Ending::Exit(125) && says.iter().all(|text| refused.stderr.contains(text)),
        "{refused:?}"
    );
    ensure!(fs::read(&program)? == fs::read(&built)?, "a refused file was changed");
    Ok(())
}

/// Sets an extended attribute, of which the value is given in hexadecimal digits.
pub fn set_attribute(t: &Context, path: &Path, name: &str, value: &str) -> Result<bool> {
    let mut python = Command::new("python3");
    python.args(["-c", "import os, sys; os.setxattr(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]))"]);
    python.arg(path).args([name, value]);
    Ok(t.run(python)?.ending == Ending::Exit(0))
}

fn attribute(t: &Context, path: &Path, name: &str) -> Result<String> {
    let mut python = Command::new("python3");
    python.args(["-c", "import os, sys; print(os.getxattr(sys.argv[1], sys.argv[2]).hex())"]).arg(path).arg(name);
    Ok(t.run(python)?.success()?.stdout)
}

/// A copy would be open to others than its file, or start its service without the service's label.
fn labelled(t: &Context) -> Result<()> {
    /// Version 2; read and execute for the owner and user 77, nothing for the group and others (linux/posix_acl.h).
    const LIST: &str = "0200000001000500ffffffff020005004d00000004000000ffffffff10000500ffffffff20000000ffffffff";
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let folder = roots_folder()?;
    let [program, distributed] = ["installed", "installed.distrib"].map(|name| folder.path().join(name));
    copy_program(t, &built, &distributed)?;
    let dpkg = dpkg(t)?;
    let keep = || keep_diverted(t, &dpkg, ("relayout", program.as_path()), ".distrib", "LOCAL");
    if !set_attribute(t, &distributed, "system.posix_acl_access", LIST)? {
        return Err(Skipped("found a file system without access control lists, needed one with them".into()).into());
    }
    let is_labelled = set_attribute(t, &distributed, "security.selinux", "7800")?;
    keep()?.success()?;
    ensure!(attribute(t, &program, "system.posix_acl_access")?.trim_end() == LIST, "another list");
    ensure!(!is_labelled || attribute(t, &program, "security.selinux")?.trim_end() == "7800", "another label");
    ensure!(program.metadata()?.mode() == distributed.metadata()?.mode());
    let before = fs::read(&program)?;
    if set_attribute(t, &distributed, "security.pagelift-test", "78")? {
        let unknown = keep()?;
        let says = ["not copied", "security.pagelift-test"];
        ensure!(says.iter().all(|text| unknown.stderr.contains(text)), "{unknown:?}");
        ensure!(fs::read(&program)? == before, "it was copied without the attribute");
    }
    Ok(())
}

/// A path through a link, and a path that another user can change, are refused: the file could be replaced at any
/// moment.
fn changeable(t: &Context) -> Result<()> {
    let built = disagreeing(t, OTHER_ADDRESS)?;
    let sound = fs::read(&built)?;
    let folder = roots_folder()?;
    let (inner, link) = (folder.path().join("inner"), folder.path().join("link"));
    let program = inner.join("installed");
    fs::create_dir(&inner)?;
    copy_program(t, &built, &program)?;
    std::os::unix::fs::symlink(&program, &link)?;
    let linked = t.run(keep(t, &listed(t, "relayout", &link)?, &["--relayout"])?)?;
    let own = format!("list {}", program.display());
    ensure!(linked.stderr.contains("a path with links") && linked.stderr.contains(&own), "{linked:?}");
    std::os::unix::fs::chown(&inner, Some(65534), None)?;
    let foreign = t.run(keep(t, &listed(t, "relayout", &program)?, &["--relayout"])?)?;
    ensure!(foreign.stderr.contains("belongs to user 65534"), "{foreign:?}");
    ensure!(fs::read(&program)? == sound && link.is_symlink(), "a refused file was changed");
    Ok(())
}

/// A folder whose path only root can change, even if another user owns the workspace.
fn roots_folder() -> Result<tempfile::TempDir> {
    // `keep` moves no file whose path has links.
    let parent = fs::canonicalize("/var/tmp")?;
    Ok(tempfile::Builder::new().prefix("pagelift-layouts-").tempdir_in(parent)?)
}
