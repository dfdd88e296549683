//! Files and processes of other users, which root prepares or must leave alone.

use crate::{cache, large_program, needs, started};
use anyhow::{Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;
use test_support::{Context, Ending, Need, Session, Test, copy_program, test_case};

/// The other user.
const NOBODY: u32 = 65534;

pub fn tests() -> Vec<Test> {
    let root = || [needs(), vec![Need::Root, Need::Command("setpriv".into())]].concat();
    vec![
        test_case("hostile/holes_on_tmpfs_stay_holes", vec![Need::Thp, Need::Kernel(6, 1)], holes),
        test_case("hostile/a_program_of_the_name_decides_nothing", root(), same_name),
        test_case("hostile/a_program_of_the_name_is_not_kept", root(), same_name_kept),
    ]
}

/// A file with one page in each block: collapsed, it takes 512 times as much memory.
fn holes(t: &Context) -> Result<()> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let path = folder.path().join("sparse");
    let file = File::create(&path)?;
    let block = huge_page()?;
    file.set_len(8 * block)?;
    for number in 0..8 {
        file.write_all_at(b"x", number * block)?;
    }
    let before = file.metadata()?.blocks();
    let output = t.run(cache(t, &["prepare"], &path)?)?;
    let after = file.metadata()?.blocks();
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("a sparse file"), "{output:?}");
    ensure!(after <= before * 2, "{before} blocks of 512 bytes before, {after} after");
    // Full blocks are still made huge.
    file.write_all_at(&vec![1; block as usize], 3 * block)?;
    let output = t.run(cache(t, &["prepare"], &path)?)?;
    let after = file.metadata()?.blocks();
    ensure!(after <= (before + block / 512) * 2, "{after} after: {output:?}");
    Ok(())
}

/// Bytes of a huge page.
fn huge_page() -> Result<u64> {
    Ok(fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?.trim().parse()?)
}

/// A program of root and one of another user with the same name, both running.
struct SameName {
    own: PathBuf,
    _own: Session,
    others: PathBuf,
    _others: Session,
    _folder: tempfile::TempDir,
}

impl SameName {
    fn start(t: &Context, name: &str) -> Result<Self> {
        let folder = tempfile::tempdir_in("/var/tmp")?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let own = t.folder().join(name);
        fs::rename(large_program(t, "")?, &own)?;
        let others = folder.path().join(name);
        copy_program(t, &own, &others)?;
        chown(&others, Some(NOBODY), Some(NOBODY))?;
        let session = started(t, &own)?;
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--"]).arg(&others);
        let other = t.session(command)?;
        other.wait_for_line("ready")?;
        Ok(Self { own, _own: session, others, _others: other, _folder: folder })
    }
}

fn same_name(t: &Context) -> Result<()> {
    let programs = SameName::start(t, "has-a-namesake")?;
    let output = t.run(t.pagelift(&["cache", "prepare", "--running", "has-a-namesake"])?)?;
    let all = format!("{}{}", output.stdout, output.stderr);
    ensure!(all.contains(&format!("{}: ", programs.own.display())), "{output:?}");
    ensure!(!all.contains(&*programs.others.to_string_lossy()), "the other user's file was looked at: {output:?}");
    ensure!(output.stderr.contains("executes a file of another user and is skipped"), "{output:?}");
    ensure!(!output.stderr.contains(" of 2 files"), "the other user's file counts: {output:?}");
    Ok(())
}

fn same_name_kept(t: &Context) -> Result<()> {
    let programs = SameName::start(t, "is-kept-by-name")?;
    let list = t.folder().join("cache.conf");
    fs::write(&list, "running is-kept-by-name\n")?;
    let mut command = t.pagelift(&["cache", "keep", "--once", "--config"])?;
    command.arg(&list);
    let output = t.run(command)?;
    let all = format!("{}{}", output.stdout, output.stderr);
    ensure!(all.contains(&*programs.own.to_string_lossy()), "{output:?}");
    ensure!(!all.contains(&*programs.others.to_string_lossy()), "the other user's file was kept: {output:?}");
    Ok(())
}
