//! Attacks of users: to make others run old code, to read private files, and to fill the store.

use crate::runs::{NOT_FROM_THE_FILE, check, end, start};
use crate::safety::{NOBODY, as_nobody, refused};
use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use test_support::{
    Context, Image, InstalledFolder, Need, Output, Program, Session, SilentServer, Test, TestStore, View,
    copy_of_a_program, copy_program, default_huge_page, make_small, poll_until, test_case,
};

/// Offset within a page of the small programs' code, after the page's function, that nothing executes.
const BEHIND_THE_FUNCTION: u64 = 100;

/// A file with a time of change in whole seconds counts as unchanged after this time.
const WHOLE_SECONDS: Duration = Duration::from_secs(4);

/// Time limit of a command while a user holds a lock. Without the lock it takes a second.
const HELD_UP: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    let served =
        || [needs(), ["/dev/fuse", "/usr/include/linux/fuse.h"].map(|path| Need::File(path.into())).to_vec()].concat();
    let disks = ["mkfs.ext4", "debugfs", "losetup"].map(|name| Need::Command(name.into()));
    let with_disks = [needs(), disks.to_vec()].concat();
    vec![
        test_case("writes_through_a_mapping_leave_no_old_image", needs(), written_through_a_mapping),
        test_case("no_image_where_changes_are_not_seen", needs(), changes_unseen),
        test_case("another_medium_gets_no_image_of_the_first", with_disks, another_medium),
        test_case(
            "btrfs_has_images_until_it_is_unmounted",
            [needs(), ["mkfs.btrfs", "losetup"].map(|name| Need::Command(name.into())).to_vec()].concat(),
            on_btrfs,
        ),
        test_case("an_image_is_taken_back_with_its_folder", needs(), taken_back),
        test_case("a_source_that_never_answers_is_not_awaited", served(), source_that_never_answers),
        test_case("a_group_that_is_denied_reads_no_image", needs(), denied_group),
        test_case("a_user_whom_a_list_denies_reads_no_image", needs(), denied_by_a_list),
        test_case("users_do_not_fill_the_store", needs(), users_files),
        test_case("a_foreign_image_is_not_mapped", needs(), foreign_image),
        test_case("locks_of_users_hold_up_no_image", needs(), locked_images),
        test_case("locks_of_users_hold_up_no_preparation", [needs(), vec![Need::LargeFolios]].concat(), locked_record),
        test_case("locks_of_users_hold_up_no_pool", [needs(), vec![Need::Pool(0)]].concat(), locked_pool),
    ]
}

/// Runs a tool that must end with status 0.
pub fn tool(t: &Context, name: &str, arguments: &[&dyn AsRef<OsStr>]) -> Result<Output> {
    let mut command = Command::new(name);
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    t.run(command)?.success()
}

/// The user who owns the folder of an image's source covers it by a file system that never answers.
fn source_that_never_answers(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let folder = t.folder().join("covered");
    fs::create_dir(&folder)?;
    let file = folder.join("program");
    let other = copy_of_a_program(t, "program")?;
    copy_program(t, &other, &file)?;
    store.add(t, &file)?;
    let mut served = SilentServer::mount_over(t, folder, &other)?;
    served.be_silent()?;
    let mut run = t.pagelift(&["run", "--pages", "image", "--"])?;
    run.arg(&other).env("PAGELIFT_STORE", &store.path);
    let list = |words: &[&str]| -> Result<Command> {
        let mut command = t.pagelift(&[&["image"], words].concat())?;
        command.env("PAGELIFT_STORE", &store.path);
        Ok(command)
    };
    for command in [list(&["list"])?, list(&["gc", "--dry-run"])?, list(&["gc"])?] {
        let said = format!("{command:?}");
        let mut session = t.session_within(command, 2 * HELD_UP)?;
        let ended = poll_until(HELD_UP, "the command to end", || session.has_ended().unwrap_or(true));
        if ended.is_err() {
            served.end();
        }
        let output = session.finish()?.success()?;
        ensure!(ended.is_ok() && !output.stderr.contains("was given up"), "{said} waits: {output:?}");
    }
    let session = t.session_within(run, HELD_UP)?;
    session.wait_for_line("ready").context("an unrelated program is not started")?;
    end(session).map(drop)
}

/// The offset in the file of a byte that every image has in a whole huge page, and that can be changed without harm.
fn harmless_place(t: &Context, store: &TestStore, file: &Path) -> Result<u64> {
    let image = store.add(t, file)?;
    let place = image.ranges(file)?[0].source_offset + BEHIND_THE_FUNCTION;
    store.image(t, "remove", &[&image.path.to_string_lossy()])?.success()?;
    Ok(place)
}

fn writer(t: &Context, file: &Path, place: u64) -> Result<Session> {
    let mut command = Program::named("images/writes_through_a_mapping.c")?.command()?;
    command.arg(file).args([&place.to_string(), "65", "66"]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// Checks that the program runs the code of its file, whatever source it was lifted from.
pub fn runs_its_file(t: &Context, store: &TestStore, file: &Path) -> Result<Output> {
    runs_its_file_by(t, store, file, "image")
}

/// Checks it for any `--pages`.
pub fn runs_its_file_by(t: &Context, store: &TestStore, file: &Path, pages: &str) -> Result<Output> {
    let session = start(t, &store.path, &Command::new(file), pages)?;
    let view = View::of(session.pid())?;
    view.check_read_only_contents(view.executable()?)?;
    end(session)
}

fn byte_of(file: &Path, place: u64) -> Result<u8> {
    let mut byte = [0];
    File::open(file)?.read_exact_at(&mut byte, place)?;
    Ok(byte[0])
}

fn changed_at(file: &Path) -> Result<(i64, i64)> {
    let found = file.metadata()?;
    Ok((found.ctime(), found.ctime_nsec()))
}

fn written_through_a_mapping(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let place = harmless_place(t, &store, &file)?;
    chown(&file, Some(NOBODY), Some(NOBODY))?;
    let mut hostile = writer(t, &file, place)?;
    let add = || store.image(t, "add", &[&file.to_string_lossy()]);
    let while_mapped = add()?;
    let before = changed_at(&file)?;
    hostile.send("\n")?;
    let output = hostile.finish()?.success()?;
    ensure!(output.stdout.contains("changed") && byte_of(&file, place)? == 66, "{}", output.stdout);
    t.note(format!("changed without another time: {}", before == changed_at(&file)?));
    runs_its_file(t, &store, &file)?;
    refused(&while_mapped, &["a process has the file open for writing, or mapped", "fuser -v "])?;
    store.add(t, &file)?.compare(t, &file)?;
    // Once there is an image, a write changes the file's time.
    File::options().write(true).open(&file)?.write_all_at(&[67], place)?;
    let image = store.add(t, &file)?;
    let mut hostile = writer(t, &file, place)?;
    hostile.send("\n")?;
    hostile.finish()?.success()?;
    runs_its_file(t, &store, &file)?;
    let after = store.add(t, &file)?;
    ensure!(after.path != image.path, "the old image is taken for the new file's");
    after.compare(t, &file).map(drop)
}

/// A file system mounted for a test; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(t: &Context, name: &str, source: Option<&Path>, kind: &str) -> Result<Self> {
        let path = t.folder().join(name);
        fs::create_dir_all(&path)?;
        mount(source, &path, Some(kind), MsFlags::empty(), None::<&str>).context("mounting")?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        Ok(Self(path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::empty()).or_else(|_| umount2(&self.0, MntFlags::MNT_DETACH)) {
            eprintln!("{} stays mounted: {error}", self.0.display());
        }
    }
}

fn changes_unseen(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let place = harmless_place(t, &store, &copy_of_a_program(t, "program")?)?;
    let memory = Mounted::new(t, "memory", None, "tmpfs")?;
    let file = memory.0.join("program");
    copy_program(t, &t.folder().join("program"), &file)?;
    chown(&file, Some(NOBODY), None)?;
    let before = changed_at(&file)?;
    let added = store.image(t, "add", &[&file.to_string_lossy()])?;
    let mut hostile = writer(t, &file, place)?;
    hostile.send("\n")?;
    hostile.finish()?.success()?;
    ensure!(changed_at(&file)? == before, "this kernel does stamp files of a tmpfs: the list of file systems is short");
    runs_its_file(t, &store, &file)?;
    refused(&added, &["does not give a changed file another time of change", "copy the file"])?;
    chown(&file, Some(0), None)?;
    runs_its_file(t, &store, &file)?;
    ensure!(store.images(t)?.is_empty() && store.used()? == 0, "an image of a file on a tmpfs");
    Ok(())
}

/// Held by the test that uses loop devices: what one detaches, another would get between its two media.
static LOOP_DEVICES: Mutex<()> = Mutex::new(());

fn alone_with_loop_devices() -> MutexGuard<'static, ()> {
    LOOP_DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mounted loop device with a medium; unmounted and detached when dropped.
struct Medium {
    device: PathBuf,
    mounted: Option<Mounted>,
}

impl Medium {
    fn put_in(t: &Context, medium: &Path, device: Option<&Path>, kind: &str) -> Result<Self> {
        let output = match device {
            Some(device) => tool(t, "losetup", &[&device, &medium])?,
            None => tool(t, "losetup", &[&"--find", &"--show", &medium])?,
        };
        let device = device.map_or_else(|| PathBuf::from(output.stdout.trim()), Path::to_owned);
        let mut held = Self { device, mounted: None };
        held.mounted = Some(Mounted::new(t, "medium", Some(&held.device), kind)?);
        Ok(held)
    }

    fn file(&self) -> Result<PathBuf> {
        Ok(self.mounted.as_ref().context("nothing is mounted")?.0.join("program"))
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        drop(self.mounted.take());
        let backing =
            Path::new("/sys/block").join(self.device.file_name().unwrap_or_default()).join("loop/backing_file");
        // The device can be detached once no process, such as udev, has it open.
        let detached = poll_until(Duration::from_secs(30), "the loop device to be free", || {
            let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
            !backing.exists()
        });
        if let Err(error) = detached {
            eprintln!("{}: {error}", self.device.display());
        }
    }
}

/// A medium with a program, and another with the same numbers and times, whose program differs in one byte.
fn two_media(t: &Context, program: &Path, place: u64) -> Result<(PathBuf, PathBuf)> {
    let (first, second) = (t.folder().join("first.img"), t.folder().join("second.img"));
    let contents = t.folder().join("contents");
    fs::create_dir(&contents)?;
    copy_program(t, program, &contents.join("program"))?;
    fs::set_permissions(contents.join("program"), Permissions::from_mode(0o755))?;
    let block = 4096;
    tool(t, "mkfs.ext4", &[&"-q", &"-b", &block.to_string(), &"-d", &contents, &first, &"96M"])?;
    let output = tool(t, "debugfs", &[&"-R", &format!("bmap /program {}", place / block), &first])?;
    let number: u64 = output.stdout.trim().parse().with_context(|| format!("debugfs says {}", output.stdout))?;
    fs::copy(&first, &second)?;
    File::options().write(true).open(&second)?.write_all_at(&[66], number * block + place % block)?;
    Ok((first, second))
}

fn another_medium(t: &Context) -> Result<()> {
    let _alone = alone_with_loop_devices();
    let store = TestStore::of(t, "256M")?;
    let program = copy_of_a_program(t, "program")?;
    let place = harmless_place(t, &store, &program)?;
    let (first, second) = two_media(t, &program, place)?;
    let numbers = |file: &Path| -> Result<_> {
        let found = file.metadata()?;
        Ok((found.dev(), found.ino(), found.size(), found.mtime_nsec(), changed_at(file)?))
    };
    let medium = Medium::put_in(t, &first, None, "ext4")?;
    let (device, before) = (medium.device.clone(), numbers(&medium.file()?)?);
    // An image needs a time of change several seconds ago if the time is in whole seconds, as mkfs writes it.
    let changed = UNIX_EPOCH + Duration::from_secs(changed_at(&medium.file()?)?.0 as u64);
    poll_until(Duration::from_secs(120), "the first medium's file to rest", || {
        SystemTime::now().duration_since(changed).is_ok_and(|age| age > WHOLE_SECONDS)
    })?;
    let old = store.add(t, &medium.file()?)?;
    drop(medium);
    let medium = Medium::put_in(t, &second, Some(&device), "ext4")?;
    let file = medium.file()?;
    ensure!(numbers(&file)? == before && byte_of(&file, place)? == 66, "the second medium differs in its numbers");
    runs_its_file(t, &store, &file)?;
    let new = store.add(t, &file)?;
    ensure!(new.path != old.path, "the second medium gets the image of the first");
    new.compare(t, &file)?;
    store.image(t, "gc", &[])?.success()?;
    ensure!(!old.path.exists() && new.path.exists(), "gc takes the second medium's file for the first's");
    Ok(())
}

/// The kernel's folder of a btrfs has the file system's identifier as its name, at each mount, but each mount makes a
/// new folder.
fn on_btrfs(t: &Context) -> Result<()> {
    let _alone = alone_with_loop_devices();
    let store = TestStore::of(t, "256M")?;
    let file = t.folder().join("btrfs.img");
    File::create(&file)?.set_len(128 << 20)?;
    tool(t, "mkfs.btrfs", &[&"-q", &file])?;
    let medium = Medium::put_in(t, &file, None, "btrfs")?;
    fs::copy(copy_of_a_program(t, "program")?, medium.file()?)?;
    let old = store.add(t, &medium.file()?)?;
    old.compare(t, &medium.file()?)?;
    runs_its_file(t, &store, &medium.file()?)?;
    ensure!(store.images(t)?.len() == 1, "the lift has another image");
    drop(medium);
    let medium = Medium::put_in(t, &file, None, "btrfs")?;
    let new = store.add(t, &medium.file()?)?;
    ensure!(new.path != old.path, "the image of an earlier mount is taken");
    Ok(())
}

/// True if the user `nobody` can read the file.
fn nobody_reads(t: &Context, file: &Path) -> Result<bool> {
    let mut command = Command::new("head");
    command.args(["-c", "100"]).arg(file);
    Ok(!as_nobody(t, command)?.stdout.is_empty())
}

fn taken_back(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let folder = t.folder().join("folder");
    fs::create_dir(&folder)?;
    let file = folder.join("program");
    fs::rename(copy_of_a_program(t, "program")?, &file)?;
    let open = |mode: u32| fs::set_permissions(&folder, Permissions::from_mode(mode));
    let by_gc = || store.image(t, "gc", &[])?.success().map(drop);
    let by_lift = || runs_its_file(t, &store, &file).map(drop);
    let ways: [(&str, &dyn Fn() -> Result<()>); 2] = [("gc", &by_gc), ("a lift", &by_lift)];
    for (name, look) in ways {
        open(0o755)?;
        let image = store.add(t, &file)?;
        ensure!(nobody_reads(t, &image.path)?, "before {name}: nobody can read the image of a file for everybody");
        open(0o700)?;
        ensure!(!nobody_reads(t, &file)?, "before {name}: a private folder can be passed");
        look()?;
        ensure!(image.path.exists(), "{name} removes an image of a file that is still the same");
        ensure!(!nobody_reads(t, &image.path)?, "after {name}: the image of a private file can be read");
    }
    // If there is a newer image, only root can read the old one, too.
    open(0o755)?;
    let image = store.add(t, &file)?;
    fs::set_permissions(&file, Permissions::from_mode(0o700))?;
    by_lift()?;
    ensure!(!nobody_reads(t, &image.path)?, "an image from before can be read");
    Ok(())
}

fn denied_group(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    chown(&file, None, Some(NOBODY))?;
    fs::set_permissions(&file, Permissions::from_mode(0o604))?;
    shows_nobody(t, &store, &file)
}

fn shows_nobody(t: &Context, store: &TestStore, file: &Path) -> Result<()> {
    ensure!(!nobody_reads(t, file)?, "nobody can read {}", file.display());
    let image = store.add(t, file)?;
    ensure!(!nobody_reads(t, &image.path)?, "nobody can read the image of {}", file.display());
    image.compare(t, file).map(drop)
}

fn denied_by_a_list(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "512M")?;
    let deny = |path: &Path| -> Result<()> {
        let mut command = Program::named("images/denies_by_an_access_list.c")?.command()?;
        command.arg(path).arg(NOBODY.to_string());
        t.run(command)?.success().map(drop)
    };
    let file = copy_of_a_program(t, "program")?;
    ensure!(nobody_reads(t, &file)?, "{} cannot be read before it has a list", file.display());
    deny(&file)?;
    shows_nobody(t, &store, &file)?;
    let folder = t.folder().join("folder");
    fs::create_dir(&folder)?;
    let inner = folder.join("program");
    fs::rename(copy_of_a_program(t, "inner")?, &inner)?;
    deny(&folder)?;
    shows_nobody(t, &store, &inner)
}

pub fn says_why(t: &Context, store: &TestStore, file: &Path, why: &str) -> Result<()> {
    let words = [&["-v", "--pages", "auto"], &NOT_FROM_THE_FILE[..]].concat();
    let mut command = t.lifted(&words, &Command::new(file))?;
    command.env("PAGELIFT_STORE", &store.path);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    session.wait_for_stderr(why)?;
    end(session).map(drop)
}

fn users_files(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let installed = InstalledFolder::of(t)?;
    let file = installed.path.join("program");
    copy_program(t, &Program::named("images/sparse_on_disk.c")?.build()?, &file)?;
    chown(&file, Some(NOBODY), None)?;
    let (stored, size) = (file.metadata()?.blocks() * 512, file.metadata()?.size());
    ensure!(stored < size / 100, "{stored} of {size} bytes are stored: not sparse");
    runs_its_file_by(t, &store, &file, "auto")?;
    ensure!(store.used()? == 0, "{stored} bytes of a user take {} of the store", store.used()?);
    says_why(t, &store, &file, "no image is made of it automatically, since its owner is user 65534")?;
    // Files that others may write, and files on mounts of others, do not count as root's own either.
    chown(&file, Some(0), None)?;
    fs::set_permissions(&file, Permissions::from_mode(0o757))?;
    says_why(t, &store, &file, "since others than root may write it (mode 757)")?;
    fs::set_permissions(&file, Permissions::from_mode(0o755))?;
    let place = t.folder().join("nosuid");
    fs::create_dir(&place)?;
    let none = None::<&str>;
    mount(Some(t.folder()), &place, none, MsFlags::MS_BIND, none)?;
    let mounted = Mounted(place.clone());
    mount(none, &place, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID, none)?;
    says_why(t, &store, &place.join("program"), "since it is on a mount with `nosuid`")?;
    drop(mounted);
    // A program that was just built, or copied, may be built again.
    says_why(t, &store, &file, "found that it was written less than a day ago")?;
    aged(t, &file)?;
    // The same file in a folder that is not of the system.
    says_why(t, &store, &t.folder().join("program"), "found a file outside of the folders of installed programs")?;
    ensure!(store.images(t)?.is_empty(), "an image that nobody asked for");
    runs_its_file_by(t, &store, &file, "auto")?;
    ensure!(store.images(t)?.len() == 1, "no image of root's own file");
    let young = copy_of_a_program(t, "young")?;
    end(start(t, &store.path, &Command::new(&young), "image")?)?;
    ensure!(store.images(t)?.len() == 2, "no image although it was named as the source");
    Ok(())
}

/// Makes a file look as if it had been written two days ago.
pub fn aged(t: &Context, file: &Path) -> Result<()> {
    tool(t, "touch", &[&"-m", &"-d", &"2 days ago", &file]).map(drop)
}

/// The owner of a mount namespace mounts a separate file over the image in the store.
fn foreign_image(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = Program::named("start/fixed_address_executable.c")?.build()?;
    let image = store.add(t, &file)?;
    let forged = t.folder().join("forged");
    fs::copy(&image.path, &forged)?;
    fs::set_permissions(&forged, Permissions::from_mode(0o644))?;
    let range = image.ranges(&file)?[0];
    let place = range.image_offset + BEHIND_THE_FUNCTION;
    File::options().write(true).open(&forged)?.write_all_at(&[66], place)?;
    let mut command = Command::new("unshare");
    let script = r#"mount --bind "$1" "$2" && exec "$3""#;
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.args([&forged, &image.path, &file]);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let mut attach = t.pagelift(&["attach", "--pages", "image", &session.pid().to_string()])?;
    attach.env("PAGELIFT_STORE", &store.path);
    let output = t.run(attach)?;
    let view = View::of(session.pid())?;
    view.check_read_only_contents(view.executable()?)?;
    ensure!(!view.space.mappings().iter().any(|m| m.path().is_some_and(|path| image.path.ends_with(path))), "mapped");
    t.note(output.stderr);
    end(session)?;
    // Processes that see the image itself use it.
    let session = start(t, &store.path, &Command::new(&file), "image")?;
    check(&session, &store.path)?;
    end(session).map(drop)
}

/// Starts a process of an ordinary user with a shared lock on every file below these paths that the user can open.
/// Returns it, and the number of locks.
fn locking(t: &Context, paths: &[&Path]) -> Result<(Session, usize)> {
    let mut command = Program::named("images/locks_what_it_can_open.c")?.command()?;
    command.args(paths).uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    let said = session.stdout_so_far();
    let count = said.lines().find_map(|line| line.strip_suffix(" locked")).context("no count")?.parse()?;
    Ok((session, count))
}

fn locked_images(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let (first, second) = (copy_of_a_program(t, "first")?, copy_of_a_program(t, "second")?);
    let folder_of = |image: &Image| image.path.parent().map(Path::to_owned).context("no folder");
    // A killed maker has left an empty folder that everyone can open.
    let left = folder_of(&store.add(t, &second)?)?;
    store.image(t, "remove", &[&second.to_string_lossy()])?.success()?;
    fs::create_dir(&left)?;
    fs::set_permissions(&left, Permissions::from_mode(0o755))?;
    let image = store.add(t, &first)?;
    let (mut hostile, locked) = locking(t, &[&store.path])?;
    ensure!(locked >= 4, "{locked} locked: not the store, both folders and the image");
    let within = |name: &str, arguments: &[&str]| -> Result<Output> {
        t.run_within(store.command(t, name, arguments)?, HELD_UP)?.success()
    };
    within("add", &[&second.to_string_lossy()])?;
    ensure!(folder_of(&store.add(t, &second)?)? == left, "the image is in another folder");
    fs::remove_file(&first)?;
    within("gc", &[])?;
    ensure!(!folder_of(&image)?.exists(), "an image of a file that is gone stays, since somebody has locked it");
    within("remove", &[&second.to_string_lossy()])?;
    ensure!(fs::read_dir(&store.path)?.next().is_none(), "something is left in the store");
    hostile.send("\n")?;
    hostile.finish()?.success().map(drop)
}

/// Everyone can read the records of attempts.
fn locked_record(t: &Context) -> Result<()> {
    let folder = Path::new("/run/pagelift/page-cache");
    let file = copy_of_a_program(t, "program")?;
    make_small(&file)?;
    let found = file.metadata()?;
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), changed_at(&file)?);
    let [of_file, of_times] = [
        format!("{:x}-{:x}-{:x}", found.dev(), found.ino(), found.size()),
        format!("{:x}.{:x}-{:x}.{:x}", modified.0, modified.1, changed.0, changed.1),
    ];
    let record = folder.join(format!("{of_file}-{of_times}"));
    fs::create_dir_all(folder)?;
    fs::write(&record, "")?;
    let (mut hostile, locked) = locking(t, &[folder])?;
    ensure!(locked >= 2, "{locked} locked: not the folder and the record");
    let output = t.run_within(t.pagelift(&["cache", "prepare", &file.to_string_lossy()])?, HELD_UP);
    fs::remove_file(&record).or_else(|error| if record.exists() { Err(error) } else { Ok(()) })?;
    let output = output?;
    ensure!(!output.stderr.contains("another process"), "{output:?}");
    hostile.send("\n")?;
    hostile.finish()?.success().map(drop)
}

/// In earlier versions everyone could read the lock file of pools.
fn locked_pool(t: &Context) -> Result<()> {
    let lock = Path::new("/run/pagelift-pool.lock");
    drop(File::options().create(true).append(true).open(lock)?);
    fs::set_permissions(lock, Permissions::from_mode(0o644))?;
    let request = format!("{}K:1", default_huge_page()?.kib());
    let reserve = || t.run_within(t.pagelift(&["pool", "reserve", &request])?, HELD_UP)?.success();
    reserve()?;
    let (mut hostile, _) = locking(t, &[lock])?;
    let output = reserve()?;
    ensure!(output.stdout.contains("available already"), "{output:?}");
    hostile.send("\n")?;
    hostile.finish()?.success().map(drop)
}
