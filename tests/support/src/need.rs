//! The requirements of tests on the machine. A test with an unmet need is skipped, with the reason.

use crate::pool::PoolReservation;
use address_space::PageSize;
use std::path::Path;

/// One requirement of a test.
#[derive(Clone, Debug)]
pub enum Need {
    /// User 0.
    Root,
    /// Free bytes in the pool of the default huge page size, and not a page more.
    Pool(u64),
    /// This number of free pages of this size. Gigantic pages are seldom available once memory is fragmented.
    PoolOf(PageSize, u64),
    /// Transparent huge pages that can be asked for with `madvise`.
    Thp,
    /// A command in `PATH` or in `/usr/sbin`.
    Command(String),
    /// A file or folder.
    File(String),
    /// At least this kernel.
    Kernel(u32, u32),
    /// A compiler that makes 32-bit programs.
    ThirtyTwoBit,
    /// This machine architecture, as `uname -m` prints it.
    Machine(String),
    /// Bytes of available memory.
    Memory(u64),
    /// A file system below the tests' scratch folder that keeps files in large folios.
    LargeFolios,
    /// Root that may hold other threads' writes to pool pages by `userfaultfd`.
    Userfaultfd,
}

impl Need {
    /// Reads a directive such as `root`, `pool 64M`, `command gdb`, `kernel 6.1`, `machine x86_64`.
    ///
    /// # Errors
    /// The words are no known need.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["root"] => Self::Root,
            ["thp"] => Self::Thp,
            ["large-folios"] => Self::LargeFolios,
            ["userfaultfd"] => Self::Userfaultfd,
            ["32-bit"] => Self::ThirtyTwoBit,
            ["pool", bytes] => Self::Pool(address_space::parse_bytes(bytes)?),
            ["memory", bytes] => Self::Memory(address_space::parse_bytes(bytes)?),
            ["command", name] => Self::Command(name.to_owned()),
            ["file", path] => Self::File(path.to_owned()),
            ["machine", name] => Self::Machine(name.to_owned()),
            ["kernel", version] => {
                let (major, minor) = version_of(version).ok_or_else(|| anyhow::anyhow!("no version: {version}"))?;
                Self::Kernel(major, minor)
            }
            _ => anyhow::bail!("not a need that is known: `{text}`"),
        })
    }

    /// The reason why the need is not met; `None` if it is met. A pool is checked when it is reserved.
    pub fn missing(&self) -> Option<String> {
        let (met, reason) = match self {
            Self::Root => (is_root(), "needs root".to_owned()),
            Self::Pool(_) | Self::PoolOf(..) => (is_root(), "needs root, to reserve huge pages".to_owned()),
            Self::Thp => (thp_can_be_asked_for(), "transparent huge pages are switched off here".to_owned()),
            Self::Command(name) => (command_exists(name), format!("needs the command {name}")),
            Self::File(path) => (Path::new(path).exists(), format!("needs {path}")),
            Self::Kernel(major, minor) => {
                (kernel_version() >= (*major, *minor), format!("needs Linux {major}.{minor} or later"))
            }
            Self::ThirtyTwoBit => {
                let headers = ["/usr/lib/gcc/x86_64-linux-gnu", "/usr/lib32/libc.so.6", "/usr/lib32/crt1.o"];
                (headers.iter().all(|path| Path::new(path).exists()), "needs gcc-multilib".to_owned())
            }
            Self::Machine(name) => (std::env::consts::ARCH == name, format!("only on {name}")),
            Self::LargeFolios => (scratch_has_large_folios(), "needs a scratch folder on ext4 or xfs".to_owned()),
            Self::Userfaultfd => {
                (may_hold_writes(), "needs Linux 5.19 with userfaultfd, and CAP_SYS_PTRACE".to_owned())
            }
            Self::Memory(bytes) => {
                let found = meminfo("MemAvailable").unwrap_or(0);
                (found >= *bytes, format!("needs {} MiB of memory, {} are available", bytes >> 20, found >> 20))
            }
        };
        (!met).then_some(reason)
    }
}

/// Checks all needs and reserves the pool that they ask for, if any.
///
/// # Errors
/// The reason why the test is skipped.
pub(crate) fn meet(needs: &[Need]) -> Result<Option<PoolReservation>, String> {
    for need in needs {
        if let Some(reason) = need.missing() {
            return Err(reason);
        }
    }
    let reserved = needs.iter().find_map(|need| match need {
        Need::Pool(bytes) => Some(PoolReservation::of_default_pages(*bytes)),
        Need::PoolOf(page, pages) => Some(PoolReservation::of(*page, *pages)),
        _ => None,
    });
    reserved.transpose().map_err(|e| format!("{e:#}"))
}

/// True for user 0.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// True if the command exists.
pub fn command_exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.into_iter().any(|folder| folder.join(name).is_file())
}

/// userfaultfd(2): without CAP_SYS_PTRACE it handles no faults of the kernel.
fn may_hold_writes() -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    kernel_version() >= (5, 19)
        && capabilities & CAP_SYS_PTRACE != 0
        && Path::new("/proc/sys/vm/unprivileged_userfaultfd").exists()
}

fn scratch_has_large_folios() -> bool {
    use nix::sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, statfs};
    let folder = crate::scratch_folder();
    let _ = std::fs::create_dir_all(&folder);
    statfs(&folder).is_ok_and(|found| [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC].contains(&found.filesystem_type()))
}

fn thp_can_be_asked_for() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| !text.contains("[never]"))
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel_version() -> (u32, u32) {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().and_then(|text| version_of(&text)).unwrap_or((0, 0))
}

/// A field of `/proc/meminfo`, in bytes.
pub fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let value = line.trim();
    match value.strip_suffix(" kB") {
        Some(kib) => Some(kib.parse::<u64>().ok()? << 10),
        None => value.parse().ok(),
    }
}
