//! An image store for one test, and its images.

use crate::program::copy_in_small_pieces;
use crate::{Context, Output, Program, Session};
use address_space::{ElfImage, PageSize};
use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::statfs;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mounted store; unmounted when dropped.
pub struct TestStore {
    /// Its mount point.
    pub path: PathBuf,
}

impl TestStore {
    /// Makes a store on a tmpfs of this size.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn of(t: &Context, size: &str) -> Result<Self> {
        Self::with(t, &["--size", size])
    }

    /// Makes a store by `pagelift image setup` with these options.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn with(t: &Context, options: &[&str]) -> Result<Self> {
        let store = Self { path: t.folder().join("store") };
        let output = store.image(t, "setup", options)?;
        output.success()?;
        Ok(store)
    }

    /// `pagelift image COMMAND --store … ARGUMENTS`, not yet run.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn command(&self, t: &Context, command: &str, arguments: &[&str]) -> Result<Command> {
        t.pagelift(&[&["image", command, "--store", &self.text()], arguments].concat())
    }

    /// Runs that command to its end.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn image(&self, t: &Context, command: &str, arguments: &[&str]) -> Result<Output> {
        t.run(self.command(t, command, arguments)?)
    }

    /// Makes an image and returns it.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn add(&self, t: &Context, file: &Path) -> Result<Image> {
        let output = self.image(t, "add", &[&file.to_string_lossy()])?.success()?;
        let path = output.stdout.lines().nth(1).context("no path of the image")?.trim();
        Ok(Image { path: PathBuf::from(path) })
    }

    /// Returns the output of `list --json`.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn list(&self, t: &Context) -> Result<Value> {
        let output = self.image(t, "list", &["--json"])?.success()?;
        Ok(serde_json::from_str(&output.stdout)?)
    }

    /// The images of `list --json`.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn images(&self, t: &Context) -> Result<Vec<Value>> {
        let list = self.list(t)?;
        ensure!(list["damaged"] == Value::Array(Vec::new()), "damaged: {}", list["damaged"]);
        list["images"].as_array().cloned().context("no images in the list")
    }

    /// Bytes of memory that the store's files take according to its file system.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn used(&self) -> Result<u64> {
        let stat = statfs(&self.path)?;
        Ok((stat.blocks() - stat.blocks_free()) * stat.block_size() as u64)
    }

    /// Its path as text.
    pub fn text(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.path, MntFlags::MNT_DETACH) {
            eprintln!("{} stays mounted: {error}", self.path.display());
        }
    }
}

/// The folder of a test as a folder of installed programs: mounted below `/opt`. Unmounted when dropped.
pub struct InstalledFolder {
    /// Its mount point.
    pub path: PathBuf,
}

impl InstalledFolder {
    /// Mounts the folder of the test.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(t: &Context) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/opt/pagelift-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        let none = None::<&str>;
        mount(Some(t.folder()), &path, none, MsFlags::MS_BIND, none).inspect_err(|_| drop(fs::remove_dir(&path)))?;
        Ok(Self { path })
    }
}

impl Drop for InstalledFolder {
    fn drop(&mut self) {
        let unmounted = umount2(&self.path, MntFlags::MNT_DETACH).map_err(std::io::Error::from);
        if let Err(error) = unmounted.and_then(|()| fs::remove_dir(&self.path)) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}

/// An image, by its path.
pub struct Image {
    /// Its file.
    pub path: PathBuf,
}

/// A part of an image that whole huge pages can map.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Start in the image.
    pub image_offset: u64,
    /// Start in the source.
    pub source_offset: u64,
    /// Its address before the bias.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// It is code.
    pub execute: bool,
}

impl Image {
    /// The last number of the folder's name is the base offset, the one before it the page size.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn layout(&self) -> Result<(u64, PageSize)> {
        let folder = self.path.parent().and_then(Path::file_name).context("no folder")?.to_string_lossy().into_owned();
        let mut numbers = folder.rsplit('-').map(|text| u64::from_str_radix(text, 16));
        let (offset, size) = (numbers.next().context("no offset")??, numbers.next().context("no size")??);
        Ok((offset, PageSize::new(size)?))
    }

    /// The shape of the image.
    ///
    /// # Errors
    /// It is no sound ELF file.
    pub fn elf(&self) -> Result<ElfImage> {
        elf_of(&self.path)
    }

    /// Returns the parts of the image that can be mapped, computed from the headers of the source and the image.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn ranges(&self, source: &Path) -> Result<Vec<Range>> {
        let (base_offset, huge) = self.layout()?;
        let (source, image) = (elf_of(source)?, self.elf()?);
        ensure!(source.segments.len() == image.segments.len(), "the image has other segments");
        let mut ranges = Vec::new();
        for (old, new) in source.segments.iter().zip(&image.segments) {
            ensure!((old.memory, old.protection) == (new.memory, new.protection), "{old:?} became {new:?}");
            let whole = old.memory.shifted(base_offset).whole_pages(huge);
            if old.protection.write || whole.is_empty() {
                continue;
            }
            let into = whole.start().0 - base_offset - old.memory.start().0;
            let (source_offset, image_offset) = (old.offset + into, new.offset + into);
            ensure!(image_offset % huge.bytes() == 0, "{new:?} does not agree with its addresses");
            let address = whole.start().0 - base_offset;
            let execute = old.protection.execute;
            ranges.push(Range { image_offset, source_offset, address, length: whole.len(), execute });
        }
        Ok(ranges)
    }

    /// The command that maps it and compares every byte with the source.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn mapper(&self, source: &Path) -> Result<(Command, u64)> {
        let ranges = self.ranges(source)?;
        let mut command = Program::named("images/image_maps_like_its_source.c")?.command()?;
        command.arg(&self.path).arg(source).arg(self.layout()?.1.bytes().to_string());
        for range in &ranges {
            for number in [range.image_offset, range.source_offset, range.length] {
                command.arg(number.to_string());
            }
            command.arg(if range.execute { "x" } else { "r" });
        }
        Ok((command, ranges.iter().map(|range| range.length).sum()))
    }

    /// Maps the image and compares every byte; returns the number of compared bytes, and of those on huge pages.
    ///
    /// # Errors
    /// The error of `pagelift` or of the kernel.
    pub fn compare(&self, t: &Context, source: &Path) -> Result<(u64, u64)> {
        let (command, bytes) = self.mapper(source)?;
        let mut session = t.session(command)?;
        session.send("go on\n")?;
        let output = session.finish()?.success()?;
        let numbers: Vec<u64> = output.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        ensure!(output.stdout.starts_with("same ") && numbers.first() == Some(&bytes), "{}", output.stdout);
        Ok((bytes, numbers[1]))
    }
}

fn elf_of(path: &Path) -> Result<ElfImage> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    ElfImage::parse(&bytes[..]).with_context(|| path.display().to_string())
}

/// Copies a program by another process, in pieces that the page cache keeps in small folios. If this process wrote the
/// file itself, a new child of another test could still have it open for writing, and executing it would fail as busy.
///
/// # Errors
/// The message of dd.
pub fn copy_program(t: &Context, from: &Path, to: &Path) -> Result<()> {
    t.note(format!("+ copy {} {}", from.display(), to.display()));
    copy_in_small_pieces(from, to)
}

/// Writes a file that everybody can execute, at once: like [`copy_program`], by another process.
///
/// # Errors
/// The message of install.
pub fn write_script(t: &Context, path: &Path, text: &str) -> Result<()> {
    let mut written = path.as_os_str().to_owned();
    written.push(".written");
    fs::write(&written, text)?;
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(&written).arg(path);
    t.run(install)?.success()?;
    Ok(fs::remove_file(&written)?)
}

/// Evicts a file that nobody maps, and reads it again so that its folios are small, whatever their state before.
///
/// # Errors
/// It cannot be read, or the kernel refuses the advice.
pub fn make_small(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).context("posix_fadvise")?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).context("posix_fadvise")?;
    for offset in (0..file.metadata()?.len()).step_by(4 << 10) {
        file.read_at(&mut [0; 1], offset)?;
    }
    Ok(())
}

/// Starts a process that keeps a file mapped: reclaim may drop unmapped files at any time, even if memory is free. It
/// ends when the session is dropped.
///
/// # Errors
/// It cannot be built or started.
pub fn hold(t: &Context, path: &Path) -> Result<Session> {
    let mut command = Command::new(Program::named("support/holds_a_file.c")?.build()?);
    command.arg(path);
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// A copy of a small program with a few huge pages, in the test's folder, readable by everybody.
///
/// # Errors
/// The kernel's or the compiler's error.
pub fn copy_of_a_program(t: &Context, name: &str) -> Result<PathBuf> {
    let copy = t.folder().join(name);
    copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}
