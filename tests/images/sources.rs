//! A file that was replaced, edited, cut or removed never gets an old image.

use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use test_support::{Context, Need, Test, TestStore, copy_of_a_program, poll_until, test_case};

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    vec![
        test_case("an_edited_file_gets_another_image", needs(), edited),
        test_case("edits_right_after_each_other_are_told_apart", needs(), edited_at_once),
        test_case("no_image_of_a_file_that_is_being_written", needs(), being_written),
        test_case("a_replaced_file_gets_another_image", needs(), replaced),
        test_case("a_cut_file_is_refused", needs(), cut),
        test_case("images_of_removed_files_are_collected", needs(), collected),
        test_case("images_in_use_are_kept", needs(), in_use),
    ]
}

/// The state of each image's source in `list`, sorted.
fn states(t: &Context, store: &TestStore) -> Result<Vec<String>> {
    let states = store.images(t)?.iter().map(|image| image["source_state"].as_str().unwrap_or("").to_owned()).collect();
    let mut states: Vec<String> = states;
    states.sort();
    Ok(states)
}

/// The offset in the file of a byte that every image has in a whole huge page.
fn place_in(t: &Context, store: &TestStore, file: &Path) -> Result<u64> {
    let range = store.add(t, file)?.ranges(file)?[0];
    Ok(range.source_offset + range.length / 2)
}

fn write_byte(file: &Path, offset: u64, byte: u8) -> Result<()> {
    Ok(File::options().write(true).open(file)?.write_all_at(&[byte], offset)?)
}

fn edited(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "edited")?;
    let before = store.add(t, &file)?;
    let range = before.ranges(&file)?[0];
    let modified = file.metadata()?.modified()?;
    write_byte(&file, range.source_offset + 100, 0xa5)?;
    // The file's time is restored and its length is the same: only the time of change differs.
    File::options().write(true).open(&file)?.set_modified(modified)?;
    ensure!(states(t, &store)? == ["changed"], "{:?}", states(t, &store)?);
    let after = store.add(t, &file)?;
    ensure!(after.path != before.path, "the old image is taken for the new file's");
    after.compare(t, &file)?;
    let byte = |path: &Path, offset: u64| -> Result<u8> {
        let mut byte = [0];
        File::open(path)?.read_exact_at(&mut byte, offset)?;
        Ok(byte[0])
    };
    ensure!(byte(&after.path, range.image_offset + 100)? == 0xa5, "the new image is old");
    ensure!(states(t, &store)? == ["changed", "same"], "{:?}", states(t, &store)?);
    store.image(t, "gc", &[])?.success()?;
    ensure!(states(t, &store)? == ["same"], "{:?}", states(t, &store)?);
    after.compare(t, &file).map(drop)
}

/// Two edits within one tick of the file system's clock leave the same times.
fn edited_at_once(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "2G")?;
    let file = copy_of_a_program(t, "edited")?;
    let place = place_in(t, &store, &file)?;
    for byte in 0..40 {
        write_byte(&file, place, byte)?;
        let image = store.add(t, &file)?;
        // The file is edited again as soon as the image exists.
        image.compare(t, &file).with_context(|| format!("edit {byte}"))?;
    }
    Ok(())
}

fn being_written(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "1G")?;
    let file = copy_of_a_program(t, "written")?;
    let place = place_in(t, &store, &file)?;
    let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in (0..=u8::MAX).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _ = write_byte(&file, place, byte);
                begun.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let mut refused = 0;
        for _ in 0..10 {
            let output = store.image(t, "add", &[&file.to_string_lossy()]);
            refused += u32::from(output.is_ok_and(|output| output.stderr.contains("the file is being changed")));
        }
        stop.store(true, Ordering::Relaxed);
        refused
    });
    // On a busy machine the writer may pause long enough for an image; that image has the contents at that moment.
    let states = states(t, &store)?;
    ensure!(refused > 0 && states.len() <= 11 - refused as usize, "{refused} of 10 were refused: {states:?}");
    store.add(t, &file)?.compare(t, &file).map(drop)
}

fn replaced(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "replaced")?;
    let before = store.add(t, &file)?;
    let other = copy_of_a_program(t, "other")?;
    fs::rename(&other, &file)?;
    let after = store.add(t, &file)?;
    ensure!(after.path != before.path, "the old image is taken for the new file's");
    ensure!(states(t, &store)? == ["changed", "same"], "{:?}", states(t, &store)?);
    // The kernel updates the time of change for a new name as for new contents.
    fs::hard_link(&file, t.folder().join("another"))?;
    let dry = store.image(t, "gc", &["--dry-run"])?.success()?;
    ensure!(dry.stdout.contains("would remove 2 images"), "{}", dry.stdout);
    ensure!(store.images(t)?.len() == 2, "a dry run removed something");
    Ok(())
}

fn cut(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "cut")?;
    let before = store.add(t, &file)?;
    File::options().write(true).open(&file)?.set_len(1 << 20)?;
    let output = store.image(t, "add", &[&file.to_string_lossy()])?;
    ensure!(output.stderr.contains("the file is cut off: found 1048576 bytes, needed "), "{}", output.stderr);
    ensure!(states(t, &store)? == ["changed"], "{:?}", states(t, &store)?);
    ensure!(before.path.exists(), "the old image is gone before anybody collects it");
    Ok(())
}

fn collected(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let files: Vec<PathBuf> = ["one", "two"].iter().map(|name| copy_of_a_program(t, name)).collect::<Result<_>>()?;
    for file in &files {
        store.add(t, file)?;
    }
    let both = store.used()?;
    fs::remove_file(&files[0])?;
    ensure!(states(t, &store)? == ["gone", "same"], "{:?}", states(t, &store)?);
    let output = store.image(t, "gc", &[])?.success()?;
    ensure!(output.stdout.contains("removed 1 image, "), "{}", output.stdout);
    ensure!(store.used()? == both / 2, "{} used, {both} before", store.used()?);
    store.image(t, "remove", &[&files[1].to_string_lossy()])?.success()?;
    ensure!(store.used()? == 0 && store.images(t)?.is_empty(), "something is left");
    Ok(())
}

fn in_use(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = copy_of_a_program(t, "used")?;
    let image = store.add(t, &file)?;
    let users =
        |t: &Context| -> Result<usize> { Ok(store.images(t)?[0]["users"].as_array().context("no users")?.len()) };
    ensure!(users(t)? == 0, "somebody uses a new image");
    let (command, _) = image.mapper(&file)?;
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    ensure!(users(t)? == 1, "{} users", users(t)?);
    fs::remove_file(&file)?;
    let output = store.image(t, "gc", &[])?.success()?;
    ensure!(output.stdout.contains("processes still map them") && store.images(t)?.len() == 1, "{}", output.stdout);
    let path = image.path.display().to_string();
    let output = store.image(t, "remove", &[&path])?;
    ensure!(output.stderr.contains("1 process still maps this image") && image.path.exists(), "{}", output.stderr);
    store.image(t, "remove", &["--force", &path])?.success()?;
    ensure!(!image.path.exists() && store.used()? > 0, "the user's memory is gone");
    session.send("go on\n")?;
    session.finish()?.success()?;
    // The memory of an ended process outlives it while another process reads its mappings.
    let waited = poll_until(Duration::from_secs(60), "the store's memory to be free", || store.used().ok() == Some(0));
    waited.with_context(|| format!("{:?} bytes are still used, due: 0", store.used()))
}
