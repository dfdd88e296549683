//! The room of the store: images that nobody uses, and images that nobody has asked for.

use crate::hostile::{aged, runs_its_file, runs_its_file_by, says_why, tool};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use test_support::{Context, Image, InstalledFolder, Need, Test, TestStore, copy_of_a_program, test_case};

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    vec![
        test_case("images_that_nobody_uses_are_collected", needs(), unused),
        test_case("images_beyond_a_size_are_collected", needs(), by_size),
        test_case("a_store_makes_no_image_by_itself", needs(), only_on_request),
        test_case("room_is_made_by_what_nobody_asked_for", needs(), room),
    ]
}

/// Sets the time of an image's last use to this many days ago.
fn last_used(t: &Context, image: &Image, days: u32) -> Result<()> {
    tool(t, "touch", &[&"-a", &"-d", &format!("{days} days ago"), &image.path]).map(drop)
}

fn unused(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "program")?;
    let image = store.add(t, &file)?;
    let gc = |days: &[&str]| -> Result<bool> {
        store.image(t, "gc", days)?.success()?;
        Ok(image.path.exists())
    };
    ensure!(gc(&[])?, "a new image is removed");
    last_used(t, &image, 40)?;
    // A read by Pagelift itself is no use.
    store.list(t)?;
    ensure!(gc(&["--dry-run"])?, "a dry run removes something");
    ensure!(!gc(&[])?, "an image that nobody has used for 40 days stays");
    let image = store.add(t, &file)?;
    last_used(t, &image, 40)?;
    ensure!(gc(&["--unused-for", "50d"])?, "an image that was used 40 days ago is removed for not being used for 50");
    // A process that maps an image uses it, however long ago the mapping was made.
    let (command, _) = image.mapper(&file)?;
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    last_used(t, &image, 40)?;
    store.image(t, "gc", &[])?.success()?;
    ensure!(image.path.exists(), "an image in use is removed");
    session.send("go on\n")?;
    session.finish()?.success().map(drop)
}

/// The setting stays when the store is mounted anew with other options, and `image add` works all the same.
fn only_on_request(t: &Context) -> Result<()> {
    let store = TestStore::with(t, &["--size", "256M", "--automatic", "no"])?;
    let installed = InstalledFolder::of(t)?;
    copy_of_a_program(t, "program")?;
    let file = installed.path.join("program");
    aged(t, &file)?;
    let (says, lists) = ("images only by `pagelift image add`", |t: &Context| store.image(t, "list", &[]));
    ensure!(lists(t)?.success()?.stdout.contains(says), "{:?}", lists(t)?);
    let setup = store.image(t, "setup", &["--size", "128M"])?.success()?;
    ensure!(setup.stdout.contains(says) && store.list(t)?["automatic"] == false, "{setup:?}");
    says_why(t, &store, &file, "the store makes images only on request")?;
    runs_its_file(t, &store, &file)?;
    ensure!(store.images(t)?.is_empty(), "an image that nobody asked for");
    store.add(t, &file)?.compare(t, &file)?;
    let unit = store.image(t, "setup", &["--print", "systemd"])?.success()?.stdout;
    ensure!(unit.contains("mode=01755"), "{unit}");
    store.image(t, "setup", &["--automatic", "yes"])?.success()?;
    ensure!(store.list(t)?["automatic"] == true, "{}", store.list(t)?);
    let other = copy_of_a_program(t, "other").map(|_| installed.path.join("other"))?;
    aged(t, &other)?;
    runs_its_file_by(t, &store, &other, "auto")?;
    ensure!(store.images(t)?.len() == 2, "no image of root's own file");
    Ok(())
}

/// The longest unused goes first, and none that a process maps.
fn by_size(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let (first, second) = (copy_of_a_program(t, "first")?, copy_of_a_program(t, "second")?);
    let (old, new) = (store.add(t, &first)?, store.add(t, &second)?);
    last_used(t, &old, 3)?;
    // For one of the two.
    let size = (store.used()? * 3 / 4).to_string();
    let gc = |words: &[&str]| -> Result<(bool, bool)> {
        store.image(t, "gc", &[&["--size", &size], words].concat())?.success()?;
        Ok((old.path.exists(), new.path.exists()))
    };
    ensure!(gc(&["--dry-run"])? == (true, true), "a dry run removes something");
    ensure!(gc(&[])? == (false, true), "{:?}", store.images(t)?);
    ensure!(gc(&[])? == (false, true), "an image that has room is removed");
    let (command, _) = new.mapper(&second)?;
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let output = store.image(t, "gc", &["--size", "1M"])?.success()?;
    ensure!(new.path.exists() && output.stdout.contains("more than 1.0 MiB: processes map them"), "{output:?}");
    session.send("go on\n")?;
    session.finish()?.success().map(drop)
}

fn room(t: &Context) -> Result<()> {
    // Half of the store has room for one image, the whole for two.
    let store = TestStore::of(t, "64M")?;
    let installed = InstalledFolder::of(t)?;
    let program = |name| copy_of_a_program(t, name).map(|_| installed.path.join(name));
    let (first, second) = (program("first")?, program("second")?);
    aged(t, &first)?;
    aged(t, &second)?;
    let sources = || -> Result<Vec<String>> {
        let images = store.images(t)?;
        Ok(images.iter().filter_map(|image| image["source"].as_str()).map(str::to_owned).collect())
    };
    let name = |file: &Path| file.display().to_string();
    runs_its_file_by(t, &store, &first, "auto")?;
    ensure!(sources()? == [name(&first)], "{:?}", sources()?);
    runs_its_file_by(t, &store, &second, "auto")?;
    ensure!(sources()? == [name(&first)], "more than half of the store, or made room by what is new: {:?}", sources()?);
    says_why(t, &store, &second, "automatic images may take 32.0 MiB")?;
    let image = Image { path: PathBuf::from(store.images(t)?[0]["image"].as_str().context("no path")?) };
    last_used(t, &image, 2)?;
    runs_its_file_by(t, &store, &second, "auto")?;
    ensure!(sources()? == [name(&second)], "{:?}", sources()?);
    // Requested images get the other half, and are not removed to make room.
    store.add(t, &first)?;
    ensure!(sources()? == [name(&first), name(&second)], "{:?}", sources()?);
    Ok(())
}
