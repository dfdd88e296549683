//! A Debian with systemd and servers, from packages: made once, kept as an archive, and unpacked by each test that boots it.

use crate::context::{Context, Skipped};
use crate::process::Ending;
use crate::scratch_folder;
use anyhow::{Result, bail};
use nix::fcntl::{Flock, FlockArg};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A release of Debian that tests boot.
#[derive(Clone, Copy)]
pub struct DebianRelease {
    /// Its name, which is a part of the archive's.
    codename: &'static str,
    packages: &'static str,
}

impl DebianRelease {
    /// Debian 12 with all servers.
    pub const BOOKWORM: Self = Self {
        codename: "bookworm",
        packages: "systemd,systemd-sysv,dbus,redis-server,mariadb-server,postgresql,nodejs,procps",
    };
    /// Debian 13 with one server: what counts is its systemd.
    pub const TRIXIE: Self = Self { codename: "trixie", packages: "systemd,systemd-sysv,dbus,redis-server,procps" };

    /// Its name.
    pub const fn codename(self) -> &'static str {
        self.codename
    }
}

/// Generous: the mirror may be slow.
const MAKING: Duration = Duration::from_secs(900);
/// The mirror may be out of reach for a moment.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(20);

/// Unpacks the Debian into a new folder.
///
/// # Errors
/// [`Skipped`] if apt has no mirror or the root cannot be made from it.
pub fn unpack_debian(t: &Context, release: DebianRelease, root: &Path) -> Result<()> {
    let archive = archive(t, release)?;
    fs::create_dir(root)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(root);
    t.run(unpack)?.success().map(drop)
}

/// The mirror that this machine's own apt uses.
///
/// # Errors
/// [`Skipped`] if apt uses no mirror of Debian.
fn debian_mirror() -> Result<String> {
    let output =
        Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let debian = text.lines().find_map(|line| line.strip_suffix(" Debian Debian"));
    debian.map(str::to_owned).ok_or_else(|| Skipped("apt has no Debian mirror here".to_owned()).into())
}

/// Makes a root from packages by mmdebstrap with these options, as a folder or as an archive.
///
/// # Errors
/// [`Skipped`] if apt has no mirror, or if the root cannot be made from it, which is tried again.
pub fn make_debian(t: &Context, options: &[&str], codename: &str, output: &Path) -> Result<()> {
    let mirror = debian_mirror()?;
    let mut why = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        let mut make = Command::new("mmdebstrap");
        make.args(options).arg(codename).arg(output).arg(&mirror);
        match t.run_within(make, MAKING) {
            Ok(made) if made.ending == Ending::Exit(0) => return Ok(()),
            Ok(made) => made.stderr.lines().last().unwrap_or_default().clone_into(&mut why),
            Err(error) => why = format!("{error:#}"),
        }
        if output.is_dir() {
            fs::remove_dir_all(output)?;
        } else if output.exists() {
            fs::remove_file(output)?;
        }
    }
    bail!(Skipped(format!("mmdebstrap could not make a root: {why}")))
}

/// Returns the archive; makes it from packages if it does not exist yet.
fn archive(t: &Context, release: DebianRelease) -> Result<PathBuf> {
    let DebianRelease { codename, packages } = release;
    let archive = scratch_folder().join(format!("{codename}-with-services.tar"));
    fs::create_dir_all(scratch_folder())?;
    // Another test may make it at this moment, which takes minutes.
    let file = fs::File::create(archive.with_extension("lock"))?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if archive.exists() {
        return Ok(archive);
    }
    let part = archive.with_extension("part.tar");
    let left_out = ["man", "doc", "locale"].map(|folder| format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    let left_out = left_out.each_ref().map(String::as_str);
    make_debian(t, &[&["--variant=minbase", "--include", packages][..], &left_out].concat(), codename, &part)?;
    fs::rename(part, &archive)?;
    Ok(archive)
}
