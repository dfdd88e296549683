//! Starts QEMU's user mode with the plugin, and ends it.

use crate::error::PLUGIN;
use crate::{EstimateError, Request};
use descendants::{StartedProcess, kill_with_descendants, with_descendants};
use linux::search_path::find_program;
use nix::sys::personality::{self, Persona};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Passed to the plugin before QEMU checks its version; not visible to the program.
const VERSION_VARIABLE: &str = "PAGELIFT_QEMU_PLUGIN_VERSION";

/// Interval between checks that a wait still makes sense.
const LOOK: Duration = Duration::from_millis(50);
/// The time that the program and its descendants have to end by SIGTERM.
const TO_END: Duration = Duration::from_secs(10);

/// QEMU's user mode for this architecture.
#[derive(Clone, Debug)]
pub struct Qemu {
    command: PathBuf,
    version: String,
}

#[cfg(target_arch = "x86_64")]
const NAME: &str = "qemu-x86_64";
#[cfg(target_arch = "aarch64")]
const NAME: &str = "qemu-aarch64";

impl Qemu {
    /// Looks for it in PATH.
    ///
    /// # Errors
    /// [`EstimateError::NoQemu`], and the kernel's.
    pub fn find() -> Result<Self, EstimateError> {
        let command = find_program(NAME.as_ref()).ok_or(EstimateError::NoQemu { name: NAME })?;
        let output = Command::new(&command).arg("--version").output();
        let output = output.map_err(EstimateError::io(command.display().to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Self { command, version: text.lines().next().unwrap_or(NAME).to_owned() })
    }

    /// Its version text.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The version of the plugins' interface to ask for: QEMU up to 8 takes 0 and 1, later ones take 2 and more.
    fn plugin_version(&self) -> u32 {
        let number = self.version.split_once("version ").map(|(_, rest)| rest.split('.').next().unwrap_or(rest));
        if number.and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 9) { 2 } else { 1 }
    }

    /// The plugin beside this program.
    ///
    /// # Errors
    /// [`EstimateError::NoPlugin`].
    pub fn find_plugin() -> Result<PathBuf, EstimateError> {
        let own = std::env::current_exe().map_err(EstimateError::io("finding this program"))?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let places = [folder.join(PLUGIN), folder.join("../libexec/pagelift").join(PLUGIN)];
        let found = places.iter().find(|place| place.is_file()).and_then(|place| place.canonicalize().ok());
        found.ok_or_else(|| EstimateError::NoPlugin { name: PLUGIN, folder: folder.to_owned() })
    }

    /// Starts the program and waits until the plugin connects.
    pub(crate) fn start(&self, request: &Request<'_>, interrupted: &dyn Fn() -> bool) -> Result<Traced, EstimateError> {
        let folder = tempfile::Builder::new().prefix("pagelift-trace").tempdir();
        let folder = folder.map_err(EstimateError::io("making a folder for the trace's socket"))?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).map_err(EstimateError::io(socket.display().to_string()))?;
        let mut command = self.command(request, &socket).map_err(EstimateError::io("preparing QEMU"))?;
        let child = command.spawn().map_err(EstimateError::io(self.command.display().to_string()))?;
        let mut traced = Traced { child, stream: None, _folder: folder };
        listener.set_nonblocking(true).map_err(EstimateError::io("the trace's socket"))?;
        while traced.stream.is_none() {
            match listener.accept() {
                Ok((stream, _)) => traced.stream = Some(stream),
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(EstimateError::io("the trace's socket")(error));
                }
                Err(_) => traced.look(&self.command, interrupted)?,
            }
        }
        Ok(traced)
    }

    /// The program's output goes to standard error: standard output is the estimate's.
    fn command(&self, request: &Request<'_>, socket: &Path) -> io::Result<Command> {
        let mut plugin = OsString::from("file=");
        plugin.push(&request.plugin);
        plugin.push(",socket=");
        plugin.push(socket);
        let page = linux::pages::base_page().bytes();
        plugin.push(format!(",page={page},skip={},after={}", request.slice.skip, request.slice.after_seconds));
        let mut command = Command::new(&self.command);
        if let Some(variables) = request.environment {
            command.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
        }
        command.env(VERSION_VARIABLE, self.plugin_version().to_string()).arg("-U").arg(VERSION_VARIABLE);
        // All instructions that it can translate; the usual CPU has no AVX.
        command.arg("-cpu").arg("max").arg("-plugin").arg(plugin);
        command.arg("-0").arg(&request.words[0]).arg(request.program).args(&request.words[1..]);
        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        Ok(command)
    }
}

/// Has the programs that are started from now on get the same addresses at each start, so that an estimate can be
/// repeated (personality(2)).
///
/// # Errors
/// The kernel's.
pub fn fix_addresses() -> io::Result<()> {
    let persona = personality::get()?;
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE)?;
    Ok(())
}

/// A program under QEMU.
pub struct Traced {
    child: Child,
    stream: Option<UnixStream>,
    _folder: TempDir,
}

impl Traced {
    /// Number of the process. The program's memory is QEMU's, at the same addresses.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The trace. Reads time out after a moment.
    pub fn stream(&mut self) -> Result<UnixStream, EstimateError> {
        let stream = self.stream.take().ok_or(EstimateError::Form)?;
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK)));
        ready.map_err(EstimateError::io("the trace's socket"))?;
        Ok(stream)
    }

    /// Looks after the program before it has connected, and waits a moment.
    fn look(&mut self, qemu: &Path, interrupted: &dyn Fn() -> bool) -> Result<(), EstimateError> {
        let ended = self.child.try_wait().map_err(EstimateError::io("waiting for QEMU"))?;
        let qemu = qemu.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(status) = ended {
            return Err(EstimateError::DidNotBegin { qemu, status: status.to_string() });
        }
        if interrupted() {
            return Err(EstimateError::DidNotBegin { qemu, status: "interrupted".to_owned() });
        }
        std::thread::sleep(LOOK / 10);
        Ok(())
    }

    /// Ends the program, if it still runs, and returns its status.
    pub fn end(mut self) -> String {
        self.ended().map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    fn ended(&mut self) -> io::Result<std::process::ExitStatus> {
        let processes = self.processes();
        let begun = Instant::now();
        // It may be at its end anyway.
        while self.child.try_wait()?.is_none() && begun.elapsed() < LOOK {
            std::thread::sleep(LOOK / 10);
        }
        descendants::end(&processes, TO_END);
        self.child.wait()
    }

    /// The program and its descendants. Each process that the program forks runs under QEMU, too.
    fn processes(&self) -> Vec<StartedProcess> {
        with_descendants(StartedProcess::of(self.pid()).as_slice())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_with_descendants(&self.processes());
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of QEMU that has a child, and this child.
    fn traced() -> (Traced, StartedProcess) {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("sh").args(["-c", "sleep 1000; true"]).spawn().unwrap();
        let traced = Traced { child, stream: None, _folder: folder };
        let until = Instant::now() + Duration::from_secs(60);
        while traced.processes().len() < 2 {
            assert!(Instant::now() < until, "the shell has no child after 60 s");
            std::thread::sleep(LOOK);
        }
        let sleep = traced.processes()[1];
        (traced, sleep)
    }

    #[test]
    fn the_end_of_a_program_ends_its_descendants() {
        let (program, child) = traced();
        assert!(program.end().contains("SIGTERM"));
        assert!(!child.runs());
    }

    #[test]
    fn a_program_that_is_dropped_leaves_no_descendants() {
        let (program, child) = traced();
        drop(program);
        let until = Instant::now() + Duration::from_secs(60);
        while child.runs() {
            assert!(Instant::now() < until, "the child of the program still runs after 60 s");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn the_interface_follows_the_version() {
        let of = |version: &str| Qemu { command: PathBuf::new(), version: version.to_owned() }.plugin_version();
        assert_eq!(of("qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"), 1);
        assert_eq!(of("qemu-x86_64 version 8.2.2"), 1);
        assert_eq!(of("qemu-aarch64 version 10.0.3"), 2);
        assert_eq!(of("qemu"), 1);
    }
}
