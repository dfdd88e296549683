//! Facts on which decisions depend.

use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Identity of a process until the next boot: the kernel reuses PIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The PID.
    pub pid: i32,
    /// Time of its start after the boot, in clock ticks (proc_pid_stat(5)).
    pub start: u64,
}

/// The file that a process executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExecutedFile {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Address at which the stack began: another one after each exec, also of the same file. 0 if the kernel does not show it.
    /// The times of a file are no sign of an exec: its owner may set them.
    #[serde(default)]
    pub stack: u64,
}

impl ExecutedFile {
    /// True if the process executes another program now. A reading that failed shows no other program.
    pub fn was_left_for(self, now: Option<Self>) -> bool {
        now.is_some_and(|now| {
            let is_other_space = self.stack != 0 && now.stack != 0 && self.stack != now.stack;
            (self.device, self.inode) != (now.device, now.inode) || is_other_space
        })
    }
}

/// The program of a process, and its place. It changes only by an exec or a move to another cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Path of the executable, as the kernel shows it.
    pub exe: String,
    /// Name of the process (`comm`).
    pub name: String,
    /// Name of the link by which the executable was started, if that is another name than the file's.
    pub link: Option<String>,
    /// systemd unit, from the cgroup.
    pub unit: Option<String>,
    /// Path of the cgroup, without the first `/`.
    pub cgroup: String,
    /// Number of the user.
    pub user: u32,
    /// Name of the user on this machine.
    pub user_name: Option<String>,
    /// Bytes of code of the executable.
    pub text: u64,
    /// Bytes of all memory of the executable that is never written.
    pub read_only: u64,
    /// Build ID of the executable in hexadecimal; if it has none, a hash of its size and first bytes.
    pub build: String,
    /// Number of the user who owns the executable. Anybody can write a build ID into a file, but only into a file of their own.
    pub owner: u32,
    /// The variables of the environment that rules name, and `PAGELIFT_AGENT`.
    pub environment: BTreeMap<String, String>,
}

impl Program {
    /// Path of the executable, also after it was removed or replaced by an upgrade.
    pub fn path(&self) -> &str {
        self.exe.strip_suffix(" (deleted)").unwrap_or(&self.exe)
    }

    /// The name of the build for verdicts. It contains the owner of the file and the user of the process except root: anybody can
    /// copy a build ID, and anybody can run a file of root and slow it down while it is measured.
    pub fn build_of_user(&self) -> String {
        let of = if self.owner == 0 { String::new() } else { format!(" of user {}", self.owner) };
        let by = if self.user == 0 { String::new() } else { format!(" by user {}", self.user) };
        format!("{}{of}{by}", self.build)
    }

    /// The names of builds whose verdicts apply to the process, in their order: root's apply to all users.
    pub fn builds_of_verdicts(&self) -> Vec<String> {
        let of_root = Self { user: 0, ..self.clone() }.build_of_user();
        if self.user == 0 { vec![of_root] } else { vec![of_root, self.build_of_user()] }
    }

    /// Name of the executable.
    pub fn file_name(&self) -> &str {
        self.path().rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&self.name)
    }

    /// The name in records and messages, as in the tables of `status`.
    pub fn shown_name(&self) -> &str {
        self.link.as_deref().unwrap_or_else(|| self.file_name())
    }
}

/// The age and resources of a process at one scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Age.
    pub age: Duration,
    /// CPU time of all its threads.
    pub cpu: Duration,
    /// Resident bytes.
    pub resident: u64,
}

/// Facts that may exclude a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// A thread of the kernel.
    pub is_kernel_thread: bool,
    /// The agent itself, or a process above it.
    pub is_own_line: bool,
    /// PID of its tracer.
    pub traced_by: Option<i32>,
    /// Scheduling policy (sched(7)): of a thread of real time if there is one, otherwise of the first thread.
    pub scheduling: u32,
    /// It has forbidden others to read its memory (PR_SET_DUMPABLE).
    pub is_closed: bool,
}

/// The state of the machine and of a process's cgroups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// CPU pressure of the machine (`some avg10`), in percent.
    pub cpu_pressure: Option<f64>,
    /// Memory pressure of the machine.
    pub memory_pressure: Option<f64>,
    /// CPU pressure of the cgroup.
    pub cgroup_cpu_pressure: Option<f64>,
    /// Memory pressure of the cgroup.
    pub cgroup_memory_pressure: Option<f64>,
    /// Bytes of memory that are available.
    pub available: u64,
    /// Bytes of memory of the machine.
    pub memory: u64,
    /// The cgroup that is nearest to its limit, if one has a limit.
    pub cgroup: Option<CgroupRoom>,
    /// Path of its cgroup, if it is outside of the mounted hierarchies, so that its pressure and limits are unknown.
    pub hidden_cgroup: Option<String>,
}

/// Room below a limit of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupRoom {
    /// Bytes that are left.
    pub left: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// Directory of the cgroup.
    pub directory: String,
}
