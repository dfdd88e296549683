//! Rights of users, and behaviour with a store that was tampered with.

use anyhow::{Context as _, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{
    Context, Ending, Image, Need, Output, Program, Test, TestStore, copy_of_a_program, pagelift_binary, test_case,
};

/// Number of the user and the group `nobody`.
pub const NOBODY: u32 = 65534;

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    let others = [Need::Root, Need::Thp, Need::Command("unshare".into())];
    vec![
        test_case("an_ordinary_user_uses_and_changes_nothing", needs(), ordinary_user),
        test_case("an_image_shows_nobody_a_private_file", needs(), private_file),
        test_case("a_private_store_is_for_root", needs(), private_store),
        test_case("links_in_a_store_are_not_followed", needs(), links_in_a_store),
        test_case("a_store_behind_a_link_is_refused", needs(), store_behind_a_link),
        test_case("a_store_that_others_could_change_is_refused", needs(), open_store),
        test_case("a_store_on_ordinary_pages_is_refused", needs(), ordinary_pages),
        test_case("setup_hides_no_files", needs(), setup_hides_nothing),
        test_case("file_systems_of_others_are_no_stores", others.to_vec(), file_systems_of_others),
        test_case("a_collection_keeps_files_of_others", needs(), files_of_others),
        test_case("text_relocations_are_refused", needs(), text_relocations),
        test_case("strange_names_stay_harmless", needs(), strange_names),
    ]
}

/// Runs a command as nobody.
pub fn as_nobody(t: &Context, mut command: Command) -> Result<Output> {
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    t.run(command)
}

pub fn refused(output: &Output, words: &[&str]) -> Result<()> {
    ensure!(output.ending == Ending::Exit(125), "{:?}: {}", output.ending, output.stdout);
    for word in words {
        ensure!(output.stderr.contains(word), "`{word}` is missing in:\n{}", output.stderr);
    }
    Ok(())
}

fn ordinary_user(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let path = file.display().to_string();
    let output = as_nobody(t, store.command(t, "add", &[&path])?)?;
    refused(&output, &["only root may change the image store", &format!("pagelift image add {path}")])?;
    let image = store.add(t, &file)?;
    // A request for an existing image needs no rights.
    let output = as_nobody(t, store.command(t, "add", &[&path])?)?.success()?;
    ensure!(output.stdout.contains(&image.path.display().to_string()), "{}", output.stdout);
    refused(&as_nobody(t, store.command(t, "remove", &[&path])?)?, &["only root may change"])?;
    refused(&as_nobody(t, store.command(t, "setup", &["--size", "1G"])?)?, &["only root may change"])?;
    let list = as_nobody(t, store.command(t, "list", &["--json"])?)?.success()?;
    ensure!(list.stdout.contains(&path) && list.stdout.contains("\"processes_not_permitted\": "), "{}", list.stdout);
    let (mapper, _) = image.mapper(&file)?;
    let output = as_nobody(t, mapper)?;
    ensure!(output.stdout.starts_with("same "), "{}", output.stdout);
    ensure!(store.images(t)?.len() == 1, "the image is gone");
    Ok(())
}

fn private_file(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "512M")?;
    let unreadable = copy_of_a_program(t, "unreadable")?;
    fs::set_permissions(&unreadable, Permissions::from_mode(0o711))?;
    let folder = t.folder().join("private");
    fs::create_dir(&folder)?;
    let hidden = folder.join("hidden");
    fs::rename(copy_of_a_program(t, "hidden")?, &hidden)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    for file in [&unreadable, &hidden] {
        let image = store.add(t, file)?;
        let mode = image.path.metadata()?.permissions().mode() & 0o7777;
        ensure!(mode == 0o400, "the image of {} has mode {mode:o}", file.display());
        image.compare(t, file)?;
        let (mapper, _) = image.mapper(file)?;
        let output = as_nobody(t, mapper)?;
        ensure!(output.stdout.starts_with("open: Permission denied"), "{}", output.stdout);
    }
    let list = as_nobody(t, store.command(t, "list", &[])?)?.success()?;
    ensure!(list.stdout.contains("2 images for root only") && !list.stdout.contains("hidden"), "{}", list.stdout);
    Ok(())
}

fn private_store(t: &Context) -> Result<()> {
    let store = TestStore::with(t, &["--size", "64M", "--mode", "700"])?;
    ensure!(store.path.metadata()?.permissions().mode() & 0o7777 == 0o700, "another mode");
    let output = as_nobody(t, store.command(t, "list", &[])?)?;
    refused(&output, &["Permission denied"])?;
    store.image(t, "setup", &["--size", "128M"])?.success()?;
    ensure!(store.path.metadata()?.permissions().mode() & 0o7777 == 0o700, "another size has opened it to all users");
    let unit = as_nobody(t, store.command(t, "setup", &["--print", "systemd"])?)?.success()?.stdout;
    ensure!(unit.contains("mode=0700,"), "{unit}");
    for mode in ["775", "777", "1755", "abc"] {
        let output = store.image(t, "setup", &["--mode", mode])?;
        ensure!(output.ending == Ending::Exit(125), "mode {mode} was taken: {}", output.stdout);
    }
    Ok(())
}

/// Links in a store are not followed, although only root could create them.
fn links_in_a_store(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let image = store.add(t, &file)?;
    let folder = image.path.parent().context("no folder")?.to_owned();
    let elsewhere = t.folder().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    let victim = elsewhere.join("victim");
    fs::copy(&image.path, &victim)?;
    fs::set_permissions(&victim, Permissions::from_mode(0o444))?;
    let tampered = |t: &Context, problem: &str| -> Result<()> {
        let list = store.list(t)?;
        ensure!(list["images"].as_array().is_some_and(Vec::is_empty), "an image: {}", list["images"]);
        ensure!(list["damaged"][0]["problem"] == problem, "{}", list["damaged"]);
        refused(&store.image(t, "add", &[&file.to_string_lossy()])?, &[problem, "pagelift image gc"])?;
        store.image(t, "gc", &[])?.success()?;
        ensure!(fs::read_dir(&store.path)?.next().is_none() && victim.exists(), "gc followed a link, or left it");
        Ok(())
    };
    fs::remove_file(&image.path)?;
    symlink(&victim, &image.path)?;
    tampered(t, "a symbolic link or a mount")?;
    symlink(&elsewhere, &folder)?;
    tampered(t, "it is no folder")?;
    fs::write(&folder, "")?;
    tampered(t, "it is no folder")?;
    let put = |mode: u32, owner: u32, contents: &[u8]| -> Result<()> {
        fs::create_dir(&folder)?;
        fs::write(&image.path, contents)?;
        fs::set_permissions(&image.path, Permissions::from_mode(mode))?;
        Ok(chown(&image.path, Some(owner), None)?)
    };
    let sound = fs::read(&victim)?;
    put(0o644, 0, &sound)?;
    tampered(t, "writable")?;
    put(0o444, NOBODY, &sound)?;
    tampered(t, "not owned by root")?;
    put(0o444, 0, &sound[..sound.len() - 1])?;
    tampered(t, "its length is no whole number of huge pages")?;
    put(0o444, 0, &vec![0; sound.len()])?;
    tampered(t, "no record")?;
    put(0o444, 0, b"")?;
    tampered(t, "its length is no whole number of huge pages")?;
    put(0o444, 0, &sound)?;
    fs::hard_link(&image.path, folder.join("second"))?;
    tampered(t, "more than one file")?;
    store.add(t, &file)?.compare(t, &file).map(drop)
}

fn store_behind_a_link(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let link = t.folder().join("link");
    symlink(&store.path, &link)?;
    let list = |path: &Path| t.run(t.pagelift(&["image", "list", "--store", &path.to_string_lossy()])?);
    refused(&list(&link)?, &["a symbolic link or a file on the way"])?;
    symlink(t.folder(), t.folder().join("to-folder"))?;
    refused(&list(&t.folder().join("to-folder/store"))?, &["a symbolic link or a file on the way"])?;
    refused(&list(&t.folder().join("nothing"))?, &["no image store at ", "pagelift image setup"])?;
    let output = t.run(t.pagelift(&["image", "setup", "--store", &link.to_string_lossy()])?)?;
    refused(&output, &["a symbolic link or a file on the way"])
}

fn open_store(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let list = || store.image(t, "list", &[]);
    fs::set_permissions(&store.path, Permissions::from_mode(0o777))?;
    refused(&list()?, &["mode 777", "chmod go-w "])?;
    fs::set_permissions(&store.path, Permissions::from_mode(0o755))?;
    chown(&store.path, Some(NOBODY), None)?;
    refused(&list()?, &["owner 65534", "chown root:root "])?;
    chown(&store.path, Some(0), None)?;
    list()?.success().map(drop)
}

fn ordinary_pages(t: &Context) -> Result<()> {
    let folder = t.folder().join("plain");
    fs::create_dir(&folder)?;
    let list = |path: &Path| t.run(t.pagelift(&["image", "list", "--store", &path.to_string_lossy()])?);
    refused(&list(&folder)?, &["a file system of type ", "needed a tmpfs mounted `huge=always`, or hugetlbfs"])?;
    let store = TestStore::of(t, "64M")?;
    for (options, words) in [
        ("remount,huge=never", ["a tmpfs mounted `huge=never`", "remount,huge=always"]),
        ("remount,huge=advise", ["a tmpfs mounted `huge=advise`", "remount,huge=always"]),
        ("remount,huge=always,noexec", ["mounted `noexec`", "remount,exec"]),
    ] {
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).arg(&store.path);
        t.run(mount)?.success()?;
        refused(&list(&store.path)?, &words)?;
    }
    Ok(())
}

fn setup_hides_nothing(t: &Context) -> Result<()> {
    let folder = t.folder().join("full");
    fs::create_dir(&folder)?;
    fs::write(folder.join("file"), "x")?;
    let setup = |path: &str| t.run(t.pagelift(&["image", "setup", "--store", path])?);
    refused(&setup(&folder.to_string_lossy())?, &["a folder with files in it"])?;
    refused(&setup("/proc")?, &["mounted there"])?;
    refused(&setup("relative")?, &["needed an absolute path"])?;
    refused(&setup("/run/a b")?, &["needed an absolute path"])?;
    ensure!(!PathBuf::from("/run/a b").exists(), "a folder was made");
    Ok(())
}

/// A tmpfs or hugetlbfs that was mounted for other purposes, such as /dev/hugepages, keeps its options, its mode and its
/// files.
fn file_systems_of_others(t: &Context) -> Result<()> {
    const SCRIPT: &str = r#"
        mkdir "$3" && mount -t "$1" -o "$2" other "$3" && touch "$3/file" || exit 1
        state() { stat -c %a "$3"; grep " $3 " /proc/self/mountinfo; ls -A "$3"; }
        state "$@" >"$3.before"
        for command in "setup $4" gc list; do
            "$5" image $command --store "$3" && { echo "$command was accepted"; exit 1; }
        done
        state "$@" >"$3.after"
        diff "$3.before" "$3.after""#;
    for (kind, options, option) in [
        ("tmpfs", "mode=755,size=64m,huge=always", ""),
        ("tmpfs", "mode=1777,size=64m,huge=always", ""),
        ("hugetlbfs", "mode=755", "--hugetlbfs"),
    ] {
        let place = t.folder().join(format!("{kind}-{}", options.len()));
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", SCRIPT, "sh", kind, options]).arg(&place).arg(option).arg(pagelift_binary()?);
        let output = t.run(command)?.success()?;
        let found =
            format!("found a {kind} of the source `other` mounted there, needed an empty directory, or a store");
        ensure!(output.stderr.contains(&found), "{}", output.stderr);
    }
    Ok(())
}

fn files_of_others(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    fs::write(store.path.join("notes"), "x")?;
    fs::create_dir(store.path.join("empty"))?;
    store.image(t, "gc", &[])?.success()?;
    ensure!(fs::read_dir(&store.path)?.count() == 2, "gc removed files that Pagelift did not write");
    let list = store.image(t, "list", &[])?.success()?.stdout;
    ensure!(list.contains("note: notes: not an image's name; `pagelift image gc` keeps it"), "{list}");
    Ok(())
}

fn text_relocations(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let program = Program::named("start/text_relocations.c")?;
    if let Some(reason) = program.needs()?.iter().filter(|need| !matches!(need, Need::Pool(_))).find_map(Need::missing)
    {
        t.note(reason);
        return Ok(());
    }
    let file = program.build()?.display().to_string();
    refused(&store.image(t, "add", &[&file])?, &["it has text relocations"])?;
    for (file, words) in [
        ("/bin/true", "nothing read-only in it fills a huge page"),
        ("/etc/passwd", "not an ELF file"),
        ("/dev/zero", "not a regular file"),
        ("/", "not a regular file"),
        ("/nowhere", "No such file"),
    ] {
        refused(&store.image(t, "add", &[file])?, &[file, words, "without an image: 1 of 1 file"])?;
    }
    ensure!(fs::read_dir(&store.path)?.next().is_none(), "something is left in the store");
    Ok(())
}

fn strange_names(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let plain = copy_of_a_program(t, "plain")?;
    let strange = t.folder().join("a \u{1b}[31m\n..name");
    fs::rename(plain, &strange)?;
    let output = store.image(t, "add", &[&strange.to_string_lossy()])?.success()?;
    ensure!(!output.stdout.contains('\u{1b}'), "an escape sequence is printed");
    let rows = store.images(t)?;
    let path = PathBuf::from(rows[0]["image"].as_str().context("no path")?);
    ensure!(path.ends_with("a___31m_..name"), "{}", path.display());
    Image { path }.compare(t, &strange)?;
    ensure!(rows[0]["source_state"] == "same", "{}", rows[0]);
    let list = store.image(t, "list", &[])?.success()?;
    let named = list.stdout.lines().filter(|line| line.ends_with("/a ?[31m?..name")).count();
    ensure!(!list.stdout.contains('\u{1b}') && named == 1, "{}", list.stdout);
    Ok(())
}
