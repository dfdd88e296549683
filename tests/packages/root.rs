//! A root with a Debian of essential packages and systemd only, or a temporary copy of this machine's root.

use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use test_support::{Context, make_debian, scratch_folder};

/// Limit for the scripts of a busy machine, which install packages several times.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs `$SCRIPT` in `$ROOT`, with `/proc`, `/sys` and `/dev`, in namespaces whose mounts end with it. `$LAYERS`, if it is set,
/// is an empty folder for a copy-on-write copy of `/`, which is then the root.
const ENTER: &str = "if [ -n \"${LAYERS:-}\" ]; then
        mount -t tmpfs tmpfs \"$LAYERS\"
        mkdir \"$LAYERS/upper\" \"$LAYERS/work\"
        mount -t overlay overlay -o \"lowerdir=/,upperdir=$LAYERS/upper,workdir=$LAYERS/work\" \"$ROOT\"
        mkdir -p \"$ROOT$PACKAGES\"
        mount --rbind \"$PACKAGES\" \"$ROOT$PACKAGES\"
    fi
    mount -t proc proc \"$ROOT/proc\"
    mount --rbind /sys \"$ROOT/sys\"
    mount --rbind /dev \"$ROOT/dev\"
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    exec chroot \"$ROOT\" /bin/sh -ec \"$SCRIPT\"";
/// The package managers' own records and caches, which name no file of a package: files, folders that stay when they
/// are empty, and, with a `/` at the end, folders with their contents.
const RECORDS: [&str; 14] = [
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/status-old",
    "var/lib/dpkg/triggers/File",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/dpkg/triggers/Unincorp",
    "var/lib/rpm/",
    "var/log/dpkg.log",
    "var/log/alternatives.log",
    "var/cache/ldconfig",
    "var/cache/ldconfig/aux-cache",
    "etc/ld.so.cache",
    "var/lib/systemd/deb-systemd-helper-enabled",
    "var/lib/systemd/deb-systemd-helper-masked",
];
const BASE: &str = "Name: base
Version: 1
Release: 1
Summary: What the root has
License: none
BuildArch: noarch
";

fn own_release() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(codename.context("no VERSION_CODENAME in /etc/os-release")?.to_owned())
}

pub struct Root {
    path: PathBuf,
    /// For a copy of this machine.
    layers: Option<PathBuf>,
    folder: PathBuf,
}

impl Root {
    /// Makes a tree of this machine's release, from the mirrors of its apt; once for all tests.
    pub fn new(t: &Context) -> Result<Self> {
        Self::of_release(t, &own_release()?, &["--include=systemd"])
    }

    /// Makes a tree of the other release, Debian 12 or 13, without systemd.
    pub fn of_another_release(t: &Context) -> Result<Self> {
        Self::of_release(t, if own_release()? == "bookworm" { "trixie" } else { "bookworm" }, &[])
    }

    fn of_release(t: &Context, codename: &str, more: &[&str]) -> Result<Self> {
        static MADE: Mutex<()> = Mutex::new(());
        let pristine = scratch_folder().join(format!("clean-{codename}"));
        let made = MADE.lock().map_err(|_| anyhow::anyhow!("another test has failed to make the root"))?;
        if !pristine.exists() {
            let part = pristine.with_extension(format!("{}", std::process::id()));
            let options = [&["--quiet", "--variant=essential", "--format=directory"], more].concat();
            make_debian(t, &options, codename, &part)?;
            fs::rename(&part, &pristine)?;
        }
        drop(made);
        let path = t.folder().join("root");
        let mut copy = Command::new("cp");
        copy.arg("-a").args([&pristine, &path]);
        t.run(copy)?.success()?;
        Ok(Self { path, layers: None, folder: t.folder().to_owned() })
    }

    /// This machine's own root; changes are discarded after each [`Root::run`].
    pub fn over_this_machine(t: &Context) -> Result<Self> {
        let (path, layers) = (t.folder().join("root"), t.folder().join("layers"));
        fs::create_dir(&path)?;
        fs::create_dir(&layers)?;
        Ok(Self { path, layers: Some(layers), folder: t.folder().to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a script inside.
    pub fn run(&self, t: &Context, script: &str) -> Result<()> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER]);
        unshare.env("ROOT", &self.path).env("SCRIPT", script).env("PACKAGES", &self.folder).env_remove("LAYERS");
        if let Some(layers) = &self.layers {
            unshare.env("LAYERS", layers);
        }
        t.run_within(unshare, LIMIT)?.success().map(drop)
    }

    pub fn bring(&self, name: &str, folder: &Path) -> Result<()> {
        let inside = self.path.join(name);
        fs::create_dir(&inside)?;
        for entry in fs::read_dir(folder)?.flatten() {
            fs::copy(entry.path(), inside.join(entry.file_name()))?;
        }
        Ok(())
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        Ok(fs::write(path, text)?)
    }

    /// All files, links and folders except those that package managers and tests keep for themselves.
    pub fn files(&self) -> Result<BTreeSet<String>> {
        let mut find = Command::new("find");
        let found = find.arg(&self.path).args(["-xdev", "-printf", "%P\\n"]).output()?;
        ensure!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        let text = String::from_utf8(found.stdout)?;
        let kept = |file: &&str| {
            let brought = ["old", "new"].iter().any(|name| file.split('/').next() == Some(name));
            let is_record = |record: &&str| record == file || record.ends_with('/') && file.starts_with(*record);
            !brought && !RECORDS.iter().any(is_record)
        };
        Ok(text.lines().filter(kept).map(str::to_owned).collect())
    }

    /// Checks that exactly the files of `before` and `others` exist.
    pub fn left(&self, before: &BTreeSet<String>, others: &[&str]) -> Result<()> {
        let now = self.files()?;
        let missing: Vec<_> = before.difference(&now).collect();
        let more: Vec<_> = now.difference(before).filter(|file| !others.contains(&file.as_str())).collect();
        ensure!(missing.is_empty() && more.is_empty(), "missing after removal: {missing:?}; left: {more:?}");
        ensure!(others.iter().all(|file| now.contains(*file)), "the administrator's files are gone");
        Ok(())
    }

    /// Enables units like an administrator.
    pub fn enable(&self, t: &Context, units: &[&str]) -> Result<()> {
        let mut systemctl = Command::new("systemctl");
        systemctl.arg("--root").arg(&self.path).arg("enable").args(units);
        t.run(systemctl)?.success()?;
        ensure!(self.enabled(units)?.len() == units.len(), "systemctl has enabled only {:?}", self.enabled(units)?);
        Ok(())
    }

    /// The links that enable units.
    pub fn enabled(&self, units: &[&str]) -> Result<Vec<String>> {
        let files = self.files()?;
        let enables = |file: &&String| {
            units
                .iter()
                .any(|unit| file.starts_with("etc/systemd/system/") && file.ends_with(&format!(".wants/{unit}")))
        };
        Ok(files.iter().filter(enables).cloned().collect())
    }

    /// Checks that the programs which units start, and the manual pages that they name, exist.
    pub fn units_are_sound(&self, t: &Context) -> Result<()> {
        let script = "cd /lib/systemd/system
            test \"$(ls pagelift-* | wc -l)\" -ge 3
            for program in $(sed -n 's/^ExecStart=\\([^ ]*\\).*/\\1/p' pagelift-*.service); do test -x $program; done
            for page in $(sed -n 's/^Documentation=man:\\(.*\\)(1)/\\1/p' pagelift-*); do
                test -e /usr/share/man/man1/$page.1.gz
            done";
        self.run(t, script)
    }

    /// Makes rpm's records in the root: of a package that provides the capabilities of the root's C libraries. Every
    /// distribution with rpm has the folders that it makes, and its dynamic linker searches /usr/lib64.
    pub fn make_rpm_root(&self, t: &Context) -> Result<()> {
        let script = "libraries=$(find $ROOT/usr/lib -name 'lib*.so.*' -type f -o -name 'ld-linux*' -type f)
            { printf '%s' \"$BASE\"
              echo \"$libraries\" | /usr/lib/rpm/rpmdeps --provides | sed 's/^/Provides: /'
              for file in /bin/sh /sbin/ldconfig /usr/bin/pkg-config 'rtld(GNU_HASH)'; do echo \"Provides: $file\"; done
              printf '%%description\\nWhat the root has.\\n%%files\\n'
            } > base.spec
            rpmbuild -bb --define \"_topdir $PWD/base\" base.spec
            mkdir -p $ROOT/usr/lib64/pkgconfig $ROOT/usr/share/licenses $ROOT/usr/share/man/man3
            echo /usr/lib64 > $ROOT/etc/ld.so.conf.d/lib64.conf
            rpm --root $ROOT --dbpath /var/lib/rpm --initdb
            rpm --root $ROOT --dbpath /var/lib/rpm -i base/RPMS/noarch/base-1-1.noarch.rpm";
        let mut shell = Command::new("sh");
        shell.args(["-ec", script]).current_dir(&self.folder).env("ROOT", &self.path).env("BASE", BASE);
        t.run(shell)?.success().map(drop)
    }

    pub fn rpm(&self, t: &Context, what: &str, packages: &[PathBuf]) -> Result<()> {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&self.path).args(["--dbpath", "/var/lib/rpm", what]).args(packages);
        let said = t.run(rpm)?.success()?;
        let text = said.stdout + &said.stderr;
        // Debian's rpm always prints a hint to use alien.
        let words: Vec<&str> = text.lines().filter(|line| !line.starts_with("rpm: ")).collect();
        ensure!(words.is_empty(), "rpm {what}: {words:?}");
        Ok(())
    }
}
