//! `pagelift align --relayout`.

use crate::align::{align, always_huge};
use crate::{needs, prepared, prepared_and_held};
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Ending, Skipped, Test, copy_program, shared_folder, test_case};

pub fn tests() -> Vec<Test> {
    vec![
        test_case("relayout/plain_starts_are_mapped_by_huge_pages_and_undo_gives_the_same_bytes", needs(), moved),
        test_case("relayout/a_program_of_lld_is_mapped_by_huge_pages", needs(), of_lld),
        test_case("relayout/edges_map_the_huge_page_that_code_and_data_share", needs(), edges),
        test_case("relayout/a_new_program_in_the_old_file_is_moved_too", needs(), rewritten),
        test_case("relayout/check_changes_nothing_and_names_what_stays", needs(), checked),
        test_case("relayout/another_file_gets_the_same_bytes_each_time", needs(), elsewhere),
        test_case("relayout/another_file_is_a_copy_if_the_segments_agree_already", needs(), elsewhere_as_it_is),
        test_case("relayout/all_files_of_a_folder_are_moved_and_listed", needs(), folder),
        test_case("relayout/what_reads_itself_or_has_privileges_is_refused", needs(), refused),
        test_case("relayout/undo_needs_force_for_programs_with_privileges", needs(), undone_with_privileges),
    ]
}

/// A program of three huge pages of code whose offsets disagree with their addresses. GNU ld places a segment with any
/// offset that agrees within a page, if the address of a section is given.
pub fn disagreeing(t: &Context, flags: &[&str]) -> Result<PathBuf> {
    let source = test_support::program_source("page_cache/large_code.c")?;
    let program = t.folder().join("disagreeing");
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-O1", "-fno-toplevel-reorder", "-fPIE", "-pie"]).args(flags).arg("-o").arg(&program).arg(source);
    gcc.arg("-I").arg(shared_folder());
    t.run(gcc)?.success()?;
    Ok(program)
}

pub const OTHER_ADDRESS: &[&str] = &["-Wl,-Ttext=0x1001000"];

pub fn relayout(t: &Context, options: &[&str], path: &Path) -> Result<String> {
    Ok(align(t, &[&["--relayout"], options].concat(), path)?.success()?.stdout)
}

fn moved(t: &Context) -> Result<()> {
    for flags in [OTHER_ADDRESS, &["-no-pie", "-Wl,-Ttext=0x1001000"]] {
        let program = disagreeing(t, flags)?;
        prepared(t, &program)?;
        let before = fs::read(&program)?;
        ensure!(!always_huge(t, &program)?, "every start was mapped by huge pages before");
        let said = relayout(t, &[], &program)?;
        ensure!(said.contains("huge pages for 8.0 MiB") || said.contains("huge pages for 6.0 MiB"), "{said}");
        let (_, held) = prepared_and_held(t, &program)?;
        ensure!(always_huge(t, &program)?, "a start was not mapped by huge pages");
        drop(held);
        let again = relayout(t, &[], &program)?;
        ensure!(again.contains("already"), "{again}");
        align(t, &["--undo"], &program)?.success()?;
        ensure!(fs::read(&program)? == before, "other bytes after --undo");
        ensure!(align(t, &["--undo"], &program)?.ending == Ending::Exit(125), "undone twice");
    }
    Ok(())
}

fn edges(t: &Context) -> Result<()> {
    let data = t.folder().join("data.c");
    fs::write(&data, "__attribute__((used)) const char data[4 << 20] = {1};\n")?;
    let program = disagreeing(t, &[OTHER_ADDRESS[0], &data.to_string_lossy()])?;
    let before = fs::read(&program)?;
    let mut huge = Vec::new();
    for (edges, says) in [("exact", None), ("merge-read-only", Some("of read-only data become executable"))] {
        let options = ["--edges", edges];
        let said = relayout(t, &[&options[..], &["--check"]].concat(), &program)?;
        ensure!(says.is_none_or(|says| said.contains(says)), "{said}");
        relayout(t, &options, &program)?;
        let (_, _held) = prepared_and_held(t, &program)?;
        huge.push(crate::huge_bytes(&crate::started(t, &program)?)?);
        align(t, &["--undo"], &program)?.success()?;
        ensure!(fs::read(&program)? == before, "other bytes after --undo");
    }
    ensure!(huge[1] == huge[0] + (2 << 20), "{huge:?}");
    Ok(())
}

/// mold writes its output into the old file, which keeps the extended attribute of the old contents.
fn rewritten(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let before = fs::read(&program)?;
    relayout(t, &[], &program)?;
    fs::write(&program, &before)?;
    let said = relayout(t, &[], &program)?;
    ensure!(said.contains("huge pages for"), "{said}");
    align(t, &["--undo"], &program)?.success()?;
    ensure!(fs::read(&program)? == before, "other bytes after --undo");
    Ok(())
}

/// By default lld gives code an offset that disagrees with its address. The test uses the lld of the Rust toolchain.
fn of_lld(t: &Context) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir"]);
    let libraries = t.run(rustc).ok().map(|output| PathBuf::from(output.stdout.trim()));
    let linker = libraries.and_then(|path| Some(path.parent()?.join("bin/gcc-ld"))).filter(|path| path.exists());
    let Some(linker) = linker else { return Err(Skipped("found no lld beside rustc, needed it".into()).into()) };
    let folder = format!("-B{}", linker.display());
    let program = disagreeing(t, &[&folder, "-fuse-ld=lld"])?;
    prepared(t, &program)?;
    ensure!(align(t, &[], &program)?.ending == Ending::Exit(125), "offsets agree without --relayout");
    let before = fs::metadata(&program)?;
    relayout(t, &[], &program)?;
    let after = fs::metadata(&program)?;
    ensure!(after.size() < before.size() + (1 << 20) && after.blocks() * 512 < before.size() + (1 << 20), "{after:?}");
    let (_, _held) = prepared_and_held(t, &program)?;
    ensure!(always_huge(t, &program)?, "a start was not mapped by huge pages");
    Ok(())
}

fn checked(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let before = fs::read(&program)?;
    let said = relayout(t, &["--check"], &program)?;
    for part in
        ["would bring huge pages for", "for at most 0 B code", "on the disk, would be", "fill no whole huge page"]
    {
        ensure!(said.contains(part), "no \"{part}\" in {said}");
    }
    ensure!(said.contains(&format!("; fix: pagelift align --relayout {}\n", program.display())), "{said}");
    ensure!(fs::read(&program)? == before, "--check has changed it");
    Ok(())
}

fn elsewhere(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let before = fs::read(&program)?;
    let [one, other] = ["one", "other"].map(|name| t.folder().join(name));
    for out in [&one, &other] {
        relayout(t, &["-o", &out.to_string_lossy()], &program)?;
        ensure!(crate::started(t, out)?.finish()?.success().is_ok());
    }
    ensure!(fs::read(&one)? == fs::read(&other)? && fs::read(&program)? == before);
    ensure!(one.metadata()?.mode() & 0o777 == program.metadata()?.mode() & 0o777);
    relayout(t, &[], &program)?;
    ensure!(fs::read(&one)? == fs::read(&program)?, "-o gives other bytes");
    Ok(())
}

/// A build gets its output in each case. Holes stay holes.
fn elsewhere_as_it_is(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let before = fs::read(&program)?;
    relayout(t, &[], &program)?;
    let out = t.folder().join("out");
    let copied = || -> Result<()> {
        let said = relayout(t, &["-o", &out.to_string_lossy()], &program)?;
        ensure!(said.contains("already") && said.contains(&format!("{}: a copy of", out.display())), "{said}");
        ensure!(fs::read(&out)? == fs::read(&program)?, "other bytes");
        ensure!(out.metadata()?.mode() & 0o777 == program.metadata()?.mode() & 0o777);
        Ok(())
    };
    fs::OpenOptions::new().write(true).open(&program)?.set_len(8 * before.len() as u64)?;
    copied()?;
    ensure!(out.metadata()?.blocks() * 512 < 2 * before.len() as u64, "its holes were filled");
    fs::OpenOptions::new().write(true).open(&program)?.set_len(0)?;
    fs::write(&program, &before)?;
    relayout(t, &[], &program)?;
    copied()?;
    crate::started(t, &out)?.finish()?.success()?;
    align(t, &["--undo"], &out)?.success()?;
    ensure!(fs::read(&out)? == before, "the copy has no record of the former layout");
    Ok(())
}

fn folder(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let root = t.folder().join("root");
    fs::create_dir_all(root.join("usr/bin"))?;
    let [moved, with_privileges, link] = ["usr/bin/moved", "privileged", "link"].map(|name| root.join(name));
    copy_program(t, &program, &moved)?;
    copy_program(t, &program, &with_privileges)?;
    fs::set_permissions(&with_privileges, fs::Permissions::from_mode(0o4755))?;
    std::os::unix::fs::symlink(&program, link)?;
    fs::write(root.join("data"), vec![1; 4 << 20])?;
    let before = fs::read(&program)?;
    let checked = relayout(t, &["--check", "--root"], &root)?;
    ensure!(checked.ends_with("files would be laid out anew: 2; kept although they gain: 0\n"), "{checked}");
    ensure!(fs::read(&moved)? == before, "--check has changed a file");
    let said = relayout(t, &["--root"], &root)?;
    ensure!(
        said.contains("usr/bin/moved: huge pages for") && said.contains("privileged: kept: found set-user-ID"),
        "{said}"
    );
    ensure!(said.ends_with("files laid out anew: 1; kept although they gain: 1\n"), "{said}");
    ensure!(fs::read(&moved)? != before && fs::read(&program)? == before, "a link was followed");
    crate::started(t, &moved)?.finish()?.success()?;
    let none = align(t, &["--relayout", "--root"], &root.join("data"))?;
    ensure!(none.ending == Ending::Exit(125) && none.stdout.contains("root/data: not listed"), "{none:?}");
    Ok(())
}

fn refused(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let sound = fs::read(&program)?;
    let is_refused = |path: &Path, says: &str| {
        let output = align(t, &["--relayout"], path)?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(says), "{output:?}");
        Ok(())
    };
    let with = |end: &[u8]| fs::write(&program, [&sound, end].concat());
    with(b"appended data that begin at an offset")?;
    is_refused(&program, "after the last section")?;
    relayout(t, &["--force"], &program)?;
    ensure!(fs::read(&program)?.ends_with(b"at an offset"), "data at the end did not stay there");
    fs::remove_file(&program)?;
    with(b"MEI\x0c\x0b\x0a\x0b\x0e found from the end")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    is_refused(&program, "set-user-ID")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::hard_link(&program, t.folder().join("link"))?;
    is_refused(&program, "hard links")?;
    fs::remove_file(t.folder().join("link"))?;
    relayout(t, &[], &program)?;
    let text = t.folder().join("text");
    fs::write(&text, "no program")?;
    is_refused(&text, "no sound 64-bit")
}

/// The owner of the program can write its record, and root's replacement would keep the privileges.
fn undone_with_privileges(t: &Context) -> Result<()> {
    let program = disagreeing(t, OTHER_ADDRESS)?;
    let before = fs::read(&program)?;
    relayout(t, &[], &program)?;
    let moved = fs::read(&program)?;
    for (mode, privilege) in [(0o2755, "set-group-ID"), (0o4755, "set-user-ID")] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode))?;
        let output = align(t, &["--undo"], &program)?;
        let is_refused = output.ending == Ending::Exit(125) && output.stderr.contains(&format!("found {privilege}, "));
        ensure!(is_refused && output.stderr.contains("fix: --force"), "{output:?}");
        ensure!(fs::read(&program)? == moved, "other bytes without --force");
    }
    align(t, &["--undo", "--force"], &program)?.success()?;
    ensure!(fs::read(&program)? == before, "other bytes after --undo");
    Ok(())
}
