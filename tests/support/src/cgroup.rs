//! A cgroup of version 1 or 2, as the machine has it, with one limit for one test; removed when dropped.

use crate::context::{Context, Skipped};
use crate::process::poll_until;
use address_space::PageSize;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The resource that a group limits.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// All memory charged to the group.
    Memory,
    /// Pool pages in use: a fault beyond the limit is SIGBUS.
    HugePages(PageSize),
    /// Pool pages reserved for mappings: a mapping beyond the limit is refused.
    PromisedHugePages(PageSize),
}

impl Limit {
    fn controller(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::HugePages(_) | Self::PromisedHugePages(_) => "hugetlb",
        }
    }

    fn file(self, unified: bool) -> String {
        let limit = if unified { "max" } else { "limit_in_bytes" };
        match self {
            Self::Memory => format!("memory.{limit}"),
            Self::HugePages(page) => format!("hugetlb.{}MB.{limit}", page.bytes() >> 20),
            Self::PromisedHugePages(page) => format!("hugetlb.{}MB.rsvd.{limit}", page.bytes() >> 20),
        }
    }
}

/// A cgroup for one test.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    file: PathBuf,
    undo: Undo,
}

/// The change of the machine's hierarchies to undo after the test.
#[derive(Debug)]
enum Undo {
    Nothing,
    Unmount(PathBuf, &'static str),
    /// Version 2: the root passes a controller to its children only on request.
    KeepFromChildren(PathBuf, &'static str),
}

impl ControlGroup {
    /// Makes a group in the limit's hierarchy of version 1, mounted temporarily if necessary; if that fails, in the
    /// hierarchy of version 2.
    ///
    /// # Errors
    /// The machine has the controller in neither hierarchy, or this is not root.
    pub fn with(t: &Context, limit: Limit, bytes: u64) -> Result<Self> {
        let controller = limit.controller();
        if let Some(root) = version_1(controller) {
            return Self::make(&root, limit, bytes, Undo::Nothing);
        }
        let place = t.folder().join("hierarchy");
        fs::create_dir_all(&place)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "cgroup", "-o", controller, "none"]).arg(&place);
        if t.run(mount)?.success().is_ok() {
            return Self::make(&place, limit, bytes, Undo::Unmount(place.clone(), controller));
        }
        Self::of_version_2(limit, bytes)?.with_context(|| format!("no cgroup controller {controller}"))
    }

    /// Makes a group in the unified hierarchy; `None` if that has no such controller.
    ///
    /// # Errors
    /// This is not root.
    pub fn of_version_2(limit: Limit, bytes: u64) -> Result<Option<Self>> {
        let controller = limit.controller();
        let Some(root) = version_2(controller) else { return Ok(None) };
        let switch = root.join("cgroup.subtree_control");
        let mut undo = Undo::Nothing;
        if !names(&switch, controller) {
            fs::write(&switch, format!("+{controller}")).context("cgroup.subtree_control cannot be set")?;
            undo = Undo::KeepFromChildren(switch, controller);
        }
        Self::make(&root, limit, bytes, undo).map(Some)
    }

    fn make(root: &Path, limit: Limit, bytes: u64, undo: Undo) -> Result<Self> {
        // Tests of one process run side by side.
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("pagelift-test-{}-{number}-{}", std::process::id(), limit.controller()));
        let unified = root.join("cgroup.controllers").exists();
        let file = folder.join(limit.file(unified));
        // Dropping it undoes the changes.
        let group = Self { folder, file, undo };
        fs::create_dir(&group.folder).with_context(|| format!("cannot make {}", group.folder.display()))?;
        let file = &group.file;
        fs::write(file, bytes.to_string()).with_context(|| format!("cannot write {bytes} to {}", file.display()))?;
        let found = fs::read_to_string(file)?;
        ensure!(found.trim() == bytes.to_string(), "{} holds {found}", file.display());
        Ok(group)
    }

    /// The file that sets the limit.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Words that put the command after them into the group.
    pub fn words(&self) -> Vec<String> {
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.folder.display());
        ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    }

    /// The command, inside the group.
    pub fn around(&self, command: &Command) -> Command {
        let words = self.words();
        let mut inside = Command::new(&words[0]);
        inside.args(&words[1..]).arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        remove(&self.folder);
        match &self.undo {
            Undo::Nothing => {}
            Undo::Unmount(place, controller) => {
                // While the kernel still has the group, unmounted or not, version 2 does not get the controller back.
                poll_until(Duration::from_secs(2), "the cgroup to be gone", || groups_of(controller) <= 1).ok();
                Command::new("umount").arg(place).status().ok();
            }
            Undo::KeepFromChildren(switch, controller) => {
                fs::write(switch, format!("-{controller}")).ok();
            }
        }
    }
}

/// A cgroup of version 2 that can be frozen, thawed and removed when it is dropped.
#[derive(Debug)]
pub struct Freezer {
    folder: PathBuf,
}

impl Freezer {
    /// # Errors
    /// [`Skipped`] if the machine has no hierarchy of version 2. The kernel's, if this is not root.
    pub fn new() -> Result<Self> {
        let Some((root, _)) = mounts("cgroup2").next() else {
            bail!(Skipped("no cgroup hierarchy of version 2 is mounted".to_owned()));
        };
        let folder = root.join(format!("pagelift-test-{}-frozen", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Takes a process in.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&self, pid: u32) -> Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).context("cannot move a process into a cgroup")
    }

    /// CPU time of its processes, as the kernel counts it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cpu_time(&self) -> Result<Duration> {
        let text = fs::read_to_string(self.folder.join("cpu.stat")).context("cpu.stat cannot be read")?;
        let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Ok(Duration::from_micros(microseconds.context("no usage_usec in cpu.stat")?.parse()?))
    }

    /// Freezes or thaws, and waits until that is done.
    ///
    /// # Errors
    /// The kernel's; it takes longer than two minutes.
    pub fn freeze(&self, freeze: bool) -> Result<()> {
        let state = u8::from(freeze);
        fs::write(self.folder.join("cgroup.freeze"), state.to_string()).context("cgroup.freeze cannot be set")?;
        let (events, wanted) = (self.folder.join("cgroup.events"), format!("frozen {state}"));
        let is_done = || fs::read_to_string(&events).is_ok_and(|text| text.lines().any(|line| line == wanted));
        poll_until(Duration::from_secs(120), "the cgroup to be frozen or thawed", is_done)
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        fs::write(self.folder.join("cgroup.freeze"), "0").ok();
        remove(&self.folder);
    }
}

/// A cgroup of version 1. Its frozen processes behave as in an uninterruptible sleep: SIGKILL does not end them before they are
/// thawed.
#[derive(Debug)]
pub struct DeepFreezer {
    folder: PathBuf,
}

impl DeepFreezer {
    /// # Errors
    /// [`Skipped`] if the machine has no freezer of version 1. The kernel's, if this is not root.
    pub fn new() -> Result<Self> {
        let Some(root) = version_1("freezer") else {
            bail!(Skipped("no freezer of cgroup version 1 is mounted".to_owned()));
        };
        let folder = root.join(format!("pagelift-test-{}-frozen", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Takes a process in and freezes it.
    ///
    /// # Errors
    /// The kernel's; it takes longer than two minutes.
    pub fn freeze(&self, pid: u32) -> Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).context("cannot move a process into a cgroup")?;
        self.set("FROZEN")
    }

    /// Thaws its processes.
    ///
    /// # Errors
    /// As [`Self::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.set("THAWED")
    }

    fn set(&self, state: &str) -> Result<()> {
        let file = self.folder.join("freezer.state");
        fs::write(&file, state).context("freezer.state cannot be set")?;
        let is_done = || fs::read_to_string(&file).is_ok_and(|text| text.trim() == state);
        poll_until(Duration::from_secs(120), "the cgroup to be frozen or thawed", is_done)
    }
}

impl Drop for DeepFreezer {
    fn drop(&mut self) {
        fs::write(self.folder.join("freezer.state"), "THAWED").ok();
        remove(&self.folder);
    }
}

/// Removes a cgroup, as soon as its last process has ended.
fn remove(folder: &Path) {
    let removed = (0..100).any(|_| {
        let gone = fs::remove_dir(folder).is_ok() || !folder.exists();
        if !gone {
            std::thread::sleep(Duration::from_millis(10));
        }
        gone
    });
    if !removed {
        eprintln!("the cgroup {} could not be removed", folder.display());
    }
}

/// Mount point of the hierarchy of version 1 with this controller.
fn version_1(controller: &str) -> Option<PathBuf> {
    mounts("cgroup").find(|(_, options)| options.split(',').any(|option| option == controller)).map(|(place, _)| place)
}

/// Mount point of version 2, if it has this controller.
fn version_2(controller: &str) -> Option<PathBuf> {
    mounts("cgroup2").map(|(place, _)| place).find(|place| names(&place.join("cgroup.controllers"), controller))
}

/// Number of groups of a controller, its root included (cgroups(7)).
fn groups_of(controller: &str) -> u64 {
    let text = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(controller)?.strip_prefix('\t'));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Mount points and options of the file systems of one kind.
fn mounts(kind: &str) -> impl Iterator<Item = (PathBuf, String)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places: Vec<_> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, found, options) = (fields.next()?, fields.next()?, fields.next()?);
            (found == kind).then(|| (PathBuf::from(place), options.to_owned()))
        })
        .collect();
    places.into_iter()
}

fn names(file: &Path, controller: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
}
