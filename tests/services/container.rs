//! A Debian with systemd in a container. Its root is made once from packages, and kept; each run has a copy.

use anyhow::{Context as _, Result, ensure};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use test_support::{
    Context, DebianRelease, pagelift_binary, poll_until, program_source, target_folder, tests_folder, unpack_debian,
};

/// Generous: the machine may be busy.
const BOOT: Duration = Duration::from_secs(300);

/// Fields of smaps that count huge pages, including those of the pool: `auto` uses pool pages if some are free.
const HUGE: [&str; 5] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Private_Hugetlb:", "Shared_Hugetlb:"];

/// The container; killed when dropped.
pub struct Container {
    root: PathBuf,
    nspawn: Cell<Option<Child>>,
    leader: i32,
}

impl Container {
    /// Boots a copy of the root with the tested program in it.
    pub fn start(t: &Context, release: DebianRelease) -> Result<Self> {
        Self::start_with(t, release, install)
    }

    /// Boots a copy of the root that `prepare` has changed.
    pub fn start_with(
        t: &Context,
        release: DebianRelease,
        prepare: impl FnOnce(&Context, &Path) -> Result<()>,
    ) -> Result<Self> {
        let root = t.folder().join("root");
        unpack_debian(t, release, &root)?;
        prepare(t, &root)?;
        Self::boot(t, root)
    }

    /// Restarts systemd and all services: `/run` is empty, and the boot ID is another one.
    pub fn reboot(mut self, t: &Context) -> Result<Self> {
        self.end("reboot")?;
        Self::boot(t, std::mem::take(&mut self.root))
    }

    fn boot(t: &Context, root: PathBuf) -> Result<Self> {
        // The name must be unique among parallel tests.
        let name = format!("{}-{}", t.name().replace('_', "-"), std::process::id());
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--console=pipe"]);
        // Filters of nspawn itself would hide those of the units.
        command.args(["--capability=all", "--machine", &name, "-D"]).arg(&root).env("SYSTEMD_SECCOMP", "0");
        let log = fs::File::create(t.folder().join("console"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        t.mark(&mut command);
        let child = command.spawn()?;
        let nspawn = i32::try_from(child.id())?;
        let mut machine = Self { root, nspawn: Cell::new(Some(child)), leader: 0 };
        // nspawn's first child is a helper, which starts the container's first process and ends.
        poll_until(BOOT, "systemd in the container", || {
            machine.leader = child_of(nspawn).unwrap_or_default();
            machine.leader > 0 && machine.has_booted()
        })
        .with_context(|| fs::read_to_string(t.folder().join("console")).unwrap_or_default())?;
        Ok(machine)
    }

    fn has_booted(&self) -> bool {
        let state = self.command(&["systemctl", "is-system-running"]).output();
        state.is_ok_and(|state| ["running", "degraded"].contains(&String::from_utf8_lossy(&state.stdout).trim()))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.leader.to_string(), "-m", "-u", "-i", "-n", "-p", "-C", "--root", "--wd", "--"]);
        command.args(words).env("PATH", "/usr/sbin:/usr/bin").stdin(Stdio::null());
        command
    }

    /// Runs a command in the container; returns its output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.command(words).output()?;
        let [out, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        ensure!(output.status.success(), "{words:?}: {}\n{out}{error}", output.status);
        Ok(out)
    }

    /// Runs a command that must fail; returns its messages.
    pub fn fail(&self, words: &[&str]) -> Result<String> {
        let output = self.command(words).output()?;
        ensure!(!output.status.success(), "{words:?} has not failed");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The number of a unit's main process, in the container.
    pub fn main_pid(&self, unit: &str) -> Result<i32> {
        Ok(self.run(&["systemctl", "show", unit, "-p", "MainPID", "--value"])?.trim().parse()?)
    }

    /// True for a unit that has started.
    pub fn is_active(&self, unit: &str) -> bool {
        self.run(&["systemctl", "is-active", unit]).is_ok()
    }

    /// The messages of a unit so far. The journal receives them with a delay, unless it is synchronized.
    pub fn journal(&self, unit: &str) -> Result<String> {
        self.run(&["journalctl", "--sync"])?;
        self.run(&["journalctl", "-o", "cat", "--no-pager", "-u", unit])
    }

    /// Upgrades packages, each to a later version of the installed one in which this file differs.
    pub fn upgrade(&self, packages: &[(&str, Option<&str>)]) -> Result<()> {
        let repack = |(name, file): &(&str, Option<&str>)| {
            let words: Vec<&str> = ["repack", *name].into_iter().chain(*file).collect();
            self.run(&words).map(|path| path.trim().to_owned())
        };
        let files = packages.iter().map(repack).collect::<Result<Vec<_>>>()?;
        let words = ["env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "-i"];
        self.run(&[&words[..], &files.iter().map(String::as_str).collect::<Vec<_>>()].concat()).map(drop)?;
        for (name, _) in packages {
            let version = self.run(&["dpkg-query", "-W", "-f", "${Version} ${Status}", name])?;
            ensure!(version.contains("+upgraded install ok installed"), "{name} is {version} after its upgrade");
        }
        Ok(())
    }

    /// The mappings of a process.
    pub fn maps(&self, pid: i32) -> Result<String> {
        self.run(&["cat", &format!("/proc/{pid}/maps")])
    }

    /// The images that a process maps.
    pub fn images(&self, pid: i32) -> Result<Vec<String>> {
        let maps = self.maps(pid)?;
        let mut paths: Vec<String> =
            maps.lines().filter_map(|line| Some(line[line.find("/run/pagelift/images/")?..].to_owned())).collect();
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    /// The container's first process, as this machine numbers it.
    pub fn leader(&self) -> i32 {
        self.leader
    }

    /// Bytes of executable mappings that the kernel backs by huge pages.
    pub fn huge_code(&self, pid: i32) -> Result<u64> {
        Ok(self.huge_mappings(pid)?.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Fails with these mappings if a process has code on huge pages.
    pub fn has_no_huge_code(&self, pid: i32) -> Result<()> {
        let huge = self.huge_mappings(pid)?;
        ensure!(huge.is_empty(), "it has code on huge pages: {huge:?}");
        Ok(())
    }

    /// Executable mappings of a process with huge pages, and their bytes.
    fn huge_mappings(&self, pid: i32) -> Result<Vec<(String, u64)>> {
        let text = self.run(&["cat", &format!("/proc/{pid}/smaps")])?;
        let (mut mapping, mut found) = (None, Vec::new());
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), mapping) {
                (Some(name), Some(kib), Some(mapping)) if HUGE.contains(&name) && kib != "0" => {
                    found.push((format!("{mapping} {name}"), kib.parse::<u64>()? << 10));
                }
                (Some(first), Some(protection), _) if !first.ends_with(':') => {
                    mapping = protection.contains('x').then_some(line);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Powers the container off.
    pub fn stop(&self) -> Result<()> {
        self.end("poweroff")
    }

    /// Ends all processes by `systemctl poweroff` or `reboot`. nspawn is part of no unit, and ends then as well.
    fn end(&self, how: &str) -> Result<()> {
        // The connection is lost before the command ends.
        let _ = self.command(&["systemctl", "--no-block", how]).output();
        let mut child = self.nspawn.take().context("it was stopped before")?;
        let mut ended = false;
        poll_until(BOOT, "the container's end", || {
            ended = matches!(child.try_wait(), Ok(Some(_)));
            ended
        })
        .inspect_err(|_| kill(&mut child))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(mut child) = self.nspawn.take() {
            // The units' journal is kept with the artefacts; with its first process the whole container ends.
            let journal = self.command(&["journalctl", "--no-pager", "-b"]).output();
            if let (Ok(journal), Some(folder)) = (journal, self.root.parent()) {
                let _ = fs::write(folder.join("journal"), journal.stdout);
            }
            if self.leader > 0 {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.leader), nix::sys::signal::SIGKILL);
            }
            kill(&mut child);
        }
        // A root of half a gigabyte is not kept as an artefact. After a reboot the next container has it.
        if !self.root.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// nspawn ends by itself once the container has ended, and removes its mounts.
fn kill(child: &mut Child) {
    let ended = poll_until(Duration::from_secs(60), "nspawn to end", || matches!(child.try_wait(), Ok(Some(_))));
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn child_of(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Adds the command that [`Container::upgrade`] runs.
pub fn add_repack(root: &Path) -> Result<()> {
    let repack = root.join("usr/bin/repack");
    fs::copy(tests_folder().join("services/repack.sh"), &repack)?;
    Ok(fs::set_permissions(repack, fs::Permissions::from_mode(0o755))?)
}

/// Installs the tested program, the library and the small units in the root.
fn install(t: &Context, root: &Path) -> Result<()> {
    let bin = root.join("usr/bin");
    fs::copy(pagelift_binary()?, bin.join("pagelift"))?;
    fs::copy(target_folder().join("library/libpagelift.so"), root.join("usr/lib/libpagelift.so.0"))?;
    let heap = pagelift_binary()?.with_file_name("libpagelift_heap.so");
    fs::create_dir_all(root.join("usr/libexec/pagelift"))?;
    fs::copy(heap, root.join("usr/libexec/pagelift/libpagelift_heap.so"))?;
    add_repack(root)?;
    for (name, source) in [
        ("hardened", "services/hardened.c"),
        ("prints-words", "services/prints_words.c"),
        ("forks", "services/forks.c"),
    ] {
        let mut build = Command::new("gcc");
        build.args(["-O1", "-o"]).arg(bin.join(name)).arg(program_source(source)?);
        t.run(build)?.success()?;
    }
    // Outside of systemd's search path.
    let beside = root.join("opt/server");
    fs::create_dir(&beside)?;
    fs::copy(bin.join("forks"), beside.join("server"))?;
    script(&beside.join("start"), "exec /opt/server/server stay")?;
    script(&bin.join("start-by-script"), "exec sleep 1000")?;
    fs::copy(program_source("services/answers.js")?, root.join("usr/share/answers.js"))?;
    let units = tests_folder().join("services/units");
    for unit in fs::read_dir(units)?.flatten() {
        fs::copy(unit.path(), root.join("etc/systemd/system").join(unit.file_name()))?;
    }
    Ok(())
}

/// Writes a script that everybody can execute.
fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
