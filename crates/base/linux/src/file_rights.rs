//! Work on files with another user's rights, and without those of this program.
//!
//! Linux keeps credentials for each thread (credentials(7)); only the C library applies them to the whole process. The
//! work runs in a thread that takes on the user's file system IDs and groups, drops every capability, and ends with the
//! work, so that nothing has to be restored. Its real, effective and saved user IDs do not change, so that the user can
//! neither signal nor trace it (kill(2), ptrace(2)).

use crate::capabilities::{self, CapabilitySet};
use crate::watch::with_same_limit;
use std::io;
use std::thread;

/// The rights to files that a thread takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRights {
    /// File system user ID, in this program's user namespace.
    pub user: u32,
    /// File system group ID.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl FileRights {
    /// Reads the rights from the text of `/proc/PID/status`; `None` where a field is missing.
    pub fn of_status(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // Real, effective, saved and file system ID (proc_pid_status(5)).
        let of_file_system = |name| field(name)?.split_whitespace().nth(3)?.parse().ok();
        let groups = field("Groups")?.split_whitespace().map(|group| group.parse().ok());
        Some(Self {
            user: of_file_system("Uid")?,
            group: of_file_system("Gid")?,
            groups: groups.collect::<Option<_>>()?,
        })
    }

    /// Runs `work` with these rights and without any capability.
    ///
    /// # Errors
    /// The kernel's, where this program may not take on the user's IDs. `work` has not run then.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let work = with_same_limit(work);
        thread::scope(|scope| {
            let worker = thread::Builder::new().spawn_scoped(scope, || self.take_on().map(|()| work()))?;
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Changes the calling thread irrevocably.
    fn take_on(&self) -> io::Result<()> {
        // SAFETY:
        // - the call takes integers only.
        checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
        self.take_on_groups()?;
        // Both return the previous ID, and an invalid ID changes nothing (setfsuid(2)).
        set_file_system_id(libc::SYS_setfsgid, self.group)?;
        set_file_system_id(libc::SYS_setfsuid, self.user)?;
        capabilities::drop_all_but(CapabilitySet::NONE)
    }

    /// A user without CAP_SETGID keeps its own groups, which give it no additional right.
    fn take_on_groups(&self) -> io::Result<()> {
        // SAFETY:
        // - the list has as many group IDs of four bytes as its length says, and is only read.
        let set = checked(unsafe { libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) });
        match set {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && !is_root() => Ok(()),
            result => result,
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn set_file_system_id(call: libc::c_long, id: u32) -> io::Result<()> {
    let set = |id: u32| {
        // SAFETY:
        // - the call takes an integer only, and acts on this thread only.
        unsafe { libc::syscall(call, id) as u32 }
    };
    set(id);
    match set(u32::MAX) == id {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn own_status() -> String {
        fs::read_to_string("/proc/thread-self/status").unwrap()
    }

    #[test]
    fn the_rights_of_a_status_are_those_for_files() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t9 10 \n";
        let rights = FileRights { user: 4, group: 8, groups: vec![9, 10] };
        assert_eq!(FileRights::of_status(text), Some(rights));
        assert_eq!(FileRights::of_status("Uid:\t1\t2\t3\t4\n"), None);
    }

    #[test]
    fn no_capability_is_left_and_only_in_the_thread() {
        let before = own_status();
        let rights = FileRights::of_status(&before).unwrap();
        let within = rights.act(own_status).unwrap();
        let zero = |text: &str, field: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim();
            value.bytes().all(|digit| digit == b'0')
        };
        assert!(["CapEff:", "CapPrm:", "CapInh:"].iter().all(|field| zero(&within, field)), "{within}");
        assert!(within.contains("NoNewPrivs:\t1"));
        let of_rights = |text: &str| {
            let wanted = |line: &&str| line.starts_with("Cap") || line.starts_with("Uid") || line.starts_with("Groups");
            text.lines().filter(wanted).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(of_rights(&own_status()), of_rights(&before));
    }

    #[test]
    fn root_acts_as_the_user_that_it_takes_on() {
        if !is_root() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("pagelift-file-rights-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let other = FileRights { user: 65_533, group: 65_532, groups: vec![65_531] };
        let refused = other.act(|| fs::write(folder.join("file"), "")).unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let status = other.act(|| fs::write(folder.join("file"), "").map(|()| own_status())).unwrap().unwrap();
        assert_eq!(FileRights::of_status(&status), Some(other.clone()));
        let file = fs::metadata(folder.join("file")).unwrap();
        assert_eq!((file.uid(), file.gid()), (other.user, other.group));
        fs::remove_dir_all(&folder).unwrap();
    }
}
