//! Makers of images that compete, that are killed, or that find no room.

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use test_support::{Context, Ending, Image, Need, Program, Test, TestStore, copy_of_a_program, test_case};

const MAKERS: usize = 20;
const KILLS: u64 = 150;
/// Limit of additional rounds, if no kill came before the image or none after it.
const ROUNDS_MORE: u64 = 20;
/// Time limit of a command that waits for no lock, in which others wait up to a minute.
const AT_ONCE: Duration = Duration::from_secs(50);

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    vec![
        test_case("many_makers_make_one_image", needs(), many_makers),
        test_case("a_killed_maker_leaves_nothing", needs(), killed_makers),
        test_case("a_start_of_a_service_waits_for_no_lock", needs(), locked),
        test_case("a_full_store_stays_as_it_is", needs(), full_store),
        test_case("makers_and_removers_at_once", needs(), makers_and_removers),
        test_case("setup_can_be_repeated", needs(), setup_again),
        test_case("a_private_umask_hides_nothing", needs(), private_umask),
    ]
}

fn many_makers(t: &Context) -> Result<()> {
    // The store has room for three: if each maker made a separate image, it would overflow.
    let store = TestStore::of(t, "100M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    let mut makers = Vec::new();
    for _ in 0..MAKERS {
        makers.push(t.session(store.command(t, "add", &[&file.to_string_lossy()])?)?);
    }
    for maker in makers {
        maker.finish()?.success()?;
    }
    let images = store.images(t)?;
    ensure!(images.len() == 1, "{} images", images.len());
    ensure!(images[0]["memory"].as_u64() == Some(store.used()?), "{} used by {}", store.used()?, images[0]);
    store.add(t, &file)?.compare(t, &file).map(drop)
}

/// A number that differs from run to run, so that the moments are random.
fn random(below: u64, round: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (u64::from(now.subsec_nanos()) ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % below
}

fn killed_makers(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    let (mut whole, mut none) = (0, 0);
    // 1.5 times the duration of an undisturbed maker, which depends on the build and on the machine.
    let started = std::time::Instant::now();
    store.image(t, "add", &[&file.to_string_lossy()])?.success()?;
    let mut spread = started.elapsed().as_micros() as u64 * 3 / 2;
    for image in store.images(t)? {
        store.image(t, "remove", &[image["image"].as_str().context("no path")?])?.success()?;
    }
    for round in 0_u64.. {
        // The undisturbed maker may have been much faster than all later ones, or slower.
        match round.checked_sub(KILLS) {
            Some(0..ROUNDS_MORE) if whole == 0 => spread = spread * 3 / 2,
            Some(0..ROUNDS_MORE) if none == 0 => spread = spread * 2 / 3,
            Some(_) => break,
            None => {}
        }
        let mut command = store.command(t, "add", &[&file.to_string_lossy()])?;
        t.mark(&mut command);
        let mut maker = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let wait = Duration::from_micros(random(spread, round));
        std::thread::sleep(wait);
        maker.kill()?;
        maker.wait()?;
        let images = store.images(t)?;
        let taken: u64 = images.iter().filter_map(|image| image["memory"].as_u64()).sum();
        ensure!(store.used()? == taken, "killed after {wait:?}: {} used by {} images", store.used()?, images.len());
        match &images[..] {
            [] => none += 1,
            [image] => {
                whole += 1;
                let path = PathBuf::from(image["image"].as_str().context("no path")?);
                Image { path: path.clone() }.compare(t, &file).with_context(|| format!("killed after {wait:?}"))?;
                store.image(t, "remove", &[&path.to_string_lossy()])?.success()?;
            }
            more => anyhow::bail!("{} images", more.len()),
        }
    }
    t.note(format!("{none} kills came before the image, {whole} after it"));
    ensure!(none > 0 && whole > 0, "{none} kills came before the image, {whole} after it");
    store.image(t, "gc", &[])?.success()?;
    ensure!(std::fs::read_dir(&store.path)?.next().is_none(), "something is left in the store");
    Ok(())
}

fn full_store(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "40M")?;
    let (first, second) = (copy_of_a_program(t, "first")?, copy_of_a_program(t, "second")?);
    let image = store.add(t, &first)?;
    let used = store.used()?;
    let output = store.image(t, "add", &[&second.to_string_lossy()])?;
    ensure!(output.ending == Ending::Exit(125), "{:?}", output.ending);
    for words in ["the image store is full: needed ", "pagelift image gc", "pagelift image setup --size"] {
        ensure!(output.stderr.contains(words), "`{words}` is missing in:\n{}", output.stderr);
    }
    ensure!(store.used()? == used && store.images(t)?.len() == 1, "the store has changed");
    ensure!(std::fs::read_dir(&store.path)?.count() == 1, "an empty folder is left");
    image.compare(t, &first)?;
    // The fix in the message works.
    store.image(t, "setup", &["--size", "100M"])?.success()?;
    store.add(t, &second)?.compare(t, &second).map(drop)
}

fn makers_and_removers(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    for _ in 0..15 {
        let mut sessions = Vec::new();
        for command in ["add", "remove", "add", "gc", "remove", "add"] {
            let arguments = [file.to_string_lossy()];
            let arguments: Vec<&str> = if command == "gc" { vec![] } else { vec![&arguments[0]] };
            sessions.push((command, t.session(store.command(t, command, &arguments)?)?));
        }
        for (command, session) in sessions {
            let output = session.finish()?;
            // The command `add` maps its image to read which parts are huge.
            let missed = ["no image of ", "still map"].iter().any(|t| output.stderr.contains(t));
            let missed = command == "remove" && missed;
            let removed = command == "add" && output.stderr.contains("was removed as soon as it was made");
            ensure!(output.ending == Ending::Exit(0) || missed || removed, "{command}: {}", output.stderr);
        }
        let images = store.images(t)?;
        ensure!(images.len() <= 1, "{} images", images.len());
        let taken: u64 = images.iter().filter_map(|image| image["memory"].as_u64()).sum();
        ensure!(store.used()? == taken, "{} used by {} images", store.used()?, images.len());
    }
    store.add(t, &file)?.compare(t, &file).map(drop)
}

fn setup_again(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "64M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    store.add(t, &file)?;
    let output = store.image(t, "setup", &["--size", "128M"])?.success()?;
    ensure!(output.stdout.contains("at most 128.0 MiB"), "{}", output.stdout);
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(mounts.lines().filter(|line| line.contains(&store.text())).count() == 1, "mounted more than once");
    ensure!(store.images(t)?.len() == 1, "the image is gone");
    let unit = store.image(t, "setup", &["--print", "systemd"])?.success()?.stdout;
    ensure!(unit.contains(&format!("Where={}\n", store.text())) && unit.contains("huge=always"), "{unit}");
    let line = store.image(t, "setup", &["--print", "fstab"])?.success()?.stdout;
    ensure!(line.split_whitespace().count() == 6 && line.contains("x-mount.mkdir=0755"), "{line}");
    // mount(8) accepts the line for fstab.
    let fstab = t.folder().join("fstab");
    let options = ["--install", "fstab", "--fstab", &fstab.to_string_lossy(), "--size", "96M"];
    store.image(t, "setup", &options)?.success()?;
    let mut check = std::process::Command::new("findmnt");
    check.args(["--verify", "--tab-file"]).arg(&fstab);
    let output = t.run(check)?.success()?;
    ensure!(output.stdout.contains("Success"), "{}", output.stdout);
    Ok(())
}

/// Everyone can read folders and images, whatever the umask of root's shell is.
fn private_umask(t: &Context) -> Result<()> {
    let folder = t.folder().join("deep/er/store");
    let line = format!(
        "umask 077; exec {} image setup --store {} --size 64M",
        test_support::pagelift_binary()?.display(),
        folder.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]);
    t.run(shell)?.success()?;
    let store = TestStore { path: folder };
    let file = copy_of_a_program(t, "file")?;
    let line = format!(
        "umask 077; exec {} image add --store {} {}",
        test_support::pagelift_binary()?.display(),
        store.path.display(),
        file.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]);
    t.run(shell)?.success()?;
    let image = store.images(t)?[0].clone();
    ensure!(image["for_everybody"] == true, "{image}");
    let path = PathBuf::from(image["image"].as_str().context("no path")?);
    let mode = |path: &std::path::Path| -> Result<u32> {
        Ok(std::os::unix::fs::PermissionsExt::mode(&path.metadata()?.permissions()) & 0o7777)
    };
    for folder in path.ancestors().skip(1).take(4) {
        ensure!(mode(folder)? == 0o755, "{} has mode {:o}", folder.display(), mode(folder)?);
    }
    ensure!(mode(&path)? == 0o444, "the image has mode {:o}", mode(&path)?);
    Ok(())
}

/// The words of the drop-in files that `pagelift enable` writes.
fn locked(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    let path = file.to_string_lossy();
    let image = store.add(t, &file)?;
    let name = image.path.parent().and_then(|folder| folder.file_name()).context("an image without a folder")?;
    store.image(t, "remove", &[&path])?.success()?;
    let locks = store.path.join(".locks");
    fs::create_dir(&locks)?;
    let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(locks.join(name))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
    let add = || store.command(t, "add", &["--quiet", "--skip-locked", "--", &path]);
    let output = t.run_within(add()?, AT_ONCE)?.success()?;
    ensure!(output.stderr.contains("skipped: another process makes or removes its image"), "{output:?}");
    ensure!(store.images(t)?.is_empty(), "it has made an image under another's lock");
    drop(lock);
    let output = t.run(add()?)?.success()?;
    ensure!(output.stderr.is_empty() && store.images(t)?.len() == 1, "{output:?}");
    Ok(())
}
