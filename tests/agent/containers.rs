//! Containers of podman: a server that asks is lifted by the agent of the host, and by an agent in a container.

use crate::SOON;
use crate::machine::Machine;
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use test_support::{
    Context, Need, Program, Session, Skipped, View, copy_program, default_huge_page, pagelift_binary, poll_until,
    workspace,
};

const SERVER: &str = "agent/serves_from_large_code.c";
const IMAGE: &str = "localhost/server:test";
const AGENT: &str = "localhost/pagelift-agent:test";
/// More pool pages than the server's code and constants need.
const POOL: u64 = 32 << 20;

/// Needs of the tests with containers.
pub fn needs() -> Vec<Need> {
    let commands = ["podman", "runc", "gcc", "ldd"].map(|name| Need::Command(name.into()));
    [&[Need::Root, Need::Thp][..], &commands[..]].concat()
}

/// Needs of the test with a limit of pool pages.
pub fn needs_of_limits() -> Vec<Need> {
    [needs(), vec![Need::Command("unshare".into()), Need::Pool(POOL)]].concat()
}

/// A store of images and containers for one test.
struct Podman<'a> {
    t: &'a Context,
    /// Its path is short: podman takes at most 50 characters.
    folder: TempDir,
    /// Words before each command.
    before: Vec<&'static str>,
}

impl<'a> Podman<'a> {
    fn new(t: &'a Context) -> Result<Self> {
        Ok(Self { t, folder: tempfile::Builder::new().prefix("pagelift-").tempdir()?, before: Vec::new() })
    }

    /// Containers in the cgroup hierarchy of version 2. Podman uses it only if it is the sole one, so on other machines
    /// podman sees no other.
    ///
    /// # Errors
    /// [`Skipped`] if the hierarchy has no controller of hugetlb pages.
    fn with_cgroup_2(t: &'a Context) -> Result<Self> {
        const SOLE: &str = "test -e /sys/fs/cgroup/cgroup.controllers || \
             { umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; } && exec \"$@\"";
        let mut podman = Self::new(t)?;
        podman.before = vec!["unshare", "--mount", "sh", "-c", SOLE, "sh"];
        let mut read = podman.within("cat");
        read.arg("/sys/fs/cgroup/cgroup.controllers");
        let controllers = t.run(read)?.success()?.stdout;
        if !controllers.split_whitespace().any(|name| name == "hugetlb") {
            bail!(Skipped(format!("cgroup version 2 has no controller hugetlb; found: {}", controllers.trim())));
        }
        Ok(podman)
    }

    /// A command behind the words.
    fn within(&self, program: &str) -> Command {
        let words: Vec<&str> = self.before.iter().copied().chain([program]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }

    /// Options that make it independent of the machine's own containers.
    fn options(&self) -> Vec<String> {
        let place = |name: &str| self.folder.path().join(name).display().to_string();
        let words =
            ["--root", &place("root"), "--runroot", &place("run"), "--tmpdir", &place("tmp")].map(str::to_owned);
        let fixed = ["--storage-driver", "overlay", "--runtime", "runc", "--cgroup-manager", "cgroupfs"];
        words.into_iter().chain(fixed.map(str::to_owned)).collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.within("podman");
        command.args(self.options()).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        Ok(self.t.run(self.command(words))?.success()?.stdout.trim().to_owned())
    }

    /// Starts a container that is removed at its end. Root cannot raise the usual limits on every machine.
    fn start(&self, name: &str, options: &[&str], image_and_words: &[&str]) -> Result<Session> {
        let usual = ["run", "--rm", "--interactive", "--network", "host", "--name", name];
        let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
        self.t.session(self.command(&[&usual[..], &limits[..], options, image_and_words].concat()))
    }

    /// The number of a container's first process on the host.
    fn pid(&self, name: &str) -> Result<u32> {
        Ok(self.run(&["inspect", "--format", "{{.State.Pid}}", name])?.parse()?)
    }

    /// Makes an image of the server and the libraries that it loads, without another image and without a network.
    fn build_server(&self) -> Result<()> {
        let context = self.folder.path().join("context");
        let program = Program::named(SERVER)?.build()?;
        fs::create_dir_all(context.join("root/usr/bin"))?;
        copy_program(self.t, &program, &context.join("root/usr/bin/serves_from_large_code"))?;
        let mut ldd = Command::new("ldd");
        ldd.arg(&program);
        let libraries = self.t.run(ldd)?.success()?.stdout;
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = context.join("root").join(library.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().context("a folder")?)?;
            fs::copy(library, copy)?;
        }
        fs::write(context.join("Containerfile"), "FROM scratch\nCOPY root /\n")?;
        let context = context.display().to_string();
        self.run(&["build", "--quiet", "--tag", IMAGE, &context]).map(drop)
    }

    /// Starts a server that asks for a lift. Returns its session and its number on the host.
    fn serve(&self, asks: &str, options: &[&str]) -> Result<(Session, u32)> {
        let variable = format!("PAGELIFT_AGENT={asks}");
        let options = [&["--env", &variable][..], options].concat();
        let session = self.start("server", &options, &[IMAGE, "/usr/bin/serves_from_large_code"])?;
        session.wait_for_line("ready")?;
        let pid = self.pid("server")?;
        Ok((session, pid))
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        let _ = self.command(&["rm", "--force", "--all", "--time", "0"]).output();
        // The driver's own mount would keep the folder.
        let _ = Command::new("umount").arg(self.folder.path().join("root/overlay")).output();
    }
}

fn write_rule(machine: &Machine<'_>) -> Result<()> {
    machine.write(
        "40-ask.toml",
        "[[rule]]\nname = \"ask\"\nmatch = { env = \"PAGELIFT_AGENT\", exe = \"/usr/bin/serves_from_large_code\" }\n\
         keep = \"always\"\nallow = { lift = [\"text\", \"rodata\"], pages = [\"thp\", \"hugetlb\"] }\n",
    )
}

/// Its environment asks, its root is on overlayfs, and its seccomp filter is podman's own.
pub fn asks(t: &Context) -> Result<()> {
    let (machine, podman) = (Machine::new(t, "act", "")?, Podman::new(t)?);
    write_rule(&machine)?;
    podman.build_server()?;
    let (mut server, pid) = podman.serve("lift=text,rodata pages=thp", &["--user", "1000", "--read-only"])?;
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts"))?;
    ensure!(mounts.starts_with("overlay / overlay "), "{mounts}");
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{pid}]"))?;
    ensure!(View::of(pid)?.huge_bytes() > 0, "nothing is on huge pages");
    server.send("\n")?;
    server.wait_for_line("all right")?;
    // The end of the container leaves nothing.
    podman.run(&["stop", "--time", "0", "server"])?;
    server.finish()?;
    let left = || machine.status().is_ok_and(|status| status["ledger"]["lifts"] == Value::Array(Vec::new()));
    poll_until(SOON, "an empty ledger", left)?;
    ensure!(podman.run(&["ps", "--all", "--quiet"])?.is_empty(), "a container is left");
    ensure!(machine.status()?["ledger"]["blocked"] == Value::Array(Vec::new()), "{}", machine.status()?);
    machine.stop(agent).map(drop)
}

/// Pages of the pool come out of the container's own limit, though more are free on the machine.
pub fn limited(t: &Context) -> Result<()> {
    let (machine, podman) = (Machine::new(t, "act", "")?, Podman::with_cgroup_2(t)?);
    write_rule(&machine)?;
    podman.build_server()?;
    let page = default_huge_page()?;
    let agent = machine.agent()?;
    for (pages, is_lifted) in [(1, false), (POOL / page.bytes(), true)] {
        let file = format!("hugetlb.{}MB.max", page.bytes() >> 20);
        let limit = format!("--cgroup-conf={file}={}", pages * page.bytes());
        // Other controllers may be in hierarchies of version 1.
        let (server, pid) = podman.serve("lift=text,rodata pages=hugetlb", &["--pids-limit=-1", &limit])?;
        if is_lifted {
            agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{pid}]"))?;
            ensure!(View::of(pid)?.usages.iter().any(|usage| usage.hugetlb > 0), "nothing is on pages of the pool");
        } else {
            agent.wait_for_stderr(&format!("not lifted serves_from_large_code[{pid}]"))?;
            let said = agent.stderr_so_far();
            ensure!(said.contains("1 allowed by ") && said.contains(&file), "{said}");
            ensure!(View::of(pid)?.huge_bytes() == 0, "it has huge pages");
        }
        server.finish()?;
    }
    machine.stop(agent).map(drop)
}

/// An agent with the rights of the DaemonSet: two capabilities, podman's seccomp filter, a read-only root.
pub fn agent_inside(t: &Context) -> Result<()> {
    let (machine, podman) = (Machine::new(t, "act", "")?, Podman::new(t)?);
    podman.build_server()?;
    build_agent(t, &podman)?;
    let (plain, plain_pid) = podman.serve("lift=text,rodata pages=thp", &["--security-opt", "seccomp=unconfined"])?;
    write_rule(&machine)?;
    let volume = |folder: PathBuf, inside: &str| format!("--volume={}:{inside}", folder.display());
    let state = t.folder().join("run");
    fs::create_dir(&state)?;
    let rules = volume(t.folder().join("agent.d"), "/etc/pagelift/agent.d:ro");
    let run = volume(state, "/run/pagelift");
    let cgroups = "--volume=/sys/fs/cgroup:/host/sys/fs/cgroup:ro";
    let rights =
        ["--cap-drop=ALL", "--cap-add=SYS_PTRACE", "--cap-add=DAC_OVERRIDE", "--security-opt=no-new-privileges"];
    let usual = ["--pid=host", "--read-only", &rules, &run, cgroups];
    let agent = podman.start("agent", &[&rights[..], &usual[..]].concat(), &[AGENT])?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{plain_pid}]"))?;
    ensure!(View::of(plain_pid)?.huge_bytes() > 0, "nothing is on huge pages");
    plain.finish()?;
    // The kernel shows filters to processes without a filter only.
    let (filtered, pid) = podman.serve("lift=text,rodata pages=thp", &[])?;
    agent.wait_for_stderr(&format!("not lifted serves_from_large_code[{pid}]"))?;
    agent.wait_for_stderr("no filter on Pagelift itself (found: one)")?;
    let agent_pid = Pid::from_raw(i32::try_from(podman.pid("agent")?)?);
    kill(agent_pid, Signal::SIGTERM)?;
    let said = agent.finish()?.stderr;
    ensure!(said.contains("stopped: 0 processes still lifted"), "{said}");
    filtered.finish().map(drop)
}

/// Makes the image of the agent by its recipe.
fn build_agent(t: &Context, podman: &Podman<'_>) -> Result<()> {
    let builder = t.folder().join("builder");
    let options = podman.options().join(" ");
    fs::write(&builder, format!("#!/bin/sh\nexec podman {options} \"$@\"\n"))?;
    fs::set_permissions(&builder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut make = Command::new("packaging/container/make-image");
    make.arg(AGENT).current_dir(workspace()).env("BUILDER", &builder);
    make.env("RELEASE", pagelift_binary()?.parent().context("a folder")?);
    t.run(make)?.success().map(drop)
}
