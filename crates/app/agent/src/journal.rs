//! Sends actions to the journal of systemd, with fields that can be searched: `journalctl PAGELIFT_ACTION=lifted`.
//!
//! An entry is one datagram (systemd.io, "Journal Native Protocol"): a line `FIELD=VALUE` for each field.

use crate::supervisor::Action;
use foreign_text::printable;
use std::fs::File;
use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

const SOCKET: &str = "/run/systemd/journal/socket";
/// Device and inode of the stream that systemd has made standard error, if that is the journal (systemd.exec(5)).
const STREAM: &str = "JOURNAL_STREAM";
/// Priorities of syslog(3).
const WARNING: u8 = 4;
const INFORMATION: u8 = 6;

/// The journal.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal, if standard error of this process goes there.
    pub fn of_standard_error() -> Option<Self> {
        let stream = std::env::var(STREAM).ok()?;
        let own = File::from(stderr().as_fd().try_clone_to_owned().ok()?).metadata().ok()?;
        (stream == format!("{}:{}", own.dev(), own.ino())).then(|| Self::at(Path::new(SOCKET)))?.ok()
    }

    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixDatagram::unbound()?, path: path.to_owned() })
    }

    /// Sends an action.
    ///
    /// # Errors
    /// No journal listens, or the entry is too long for a datagram.
    pub fn send(&self, action: &Action) -> io::Result<()> {
        self.socket.send_to(entry(action).as_bytes(), &self.path).map(drop)
    }
}

/// The entry. A line feed would begin another field, and `printable` replaces it.
fn entry(action: &Action) -> String {
    let priority = if action.is_warning() { WARNING } else { INFORMATION };
    let message = [
        ("MESSAGE", action.to_string()),
        ("PRIORITY", priority.to_string()),
        ("SYSLOG_IDENTIFIER", "pagelift-agent".to_owned()),
    ];
    let fields = message.into_iter().chain(action.fields());
    fields.map(|(field, value)| format!("{field}={}\n", printable(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Identity, Reason, Refusal};
    use crate::supervisor::Named;

    #[test]
    fn an_entry_has_the_fields_of_its_action() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let named = Named {
            program: "x\nPRIORITY=0".to_owned(),
            identity: Identity { pid: 7, start: 1 },
            rule: "r".to_owned(),
            build: "b".to_owned(),
        };
        let refusal = Refusal::new(Reason::Traced, "it is traced");
        journal.send(&Action::Refused { named: named.clone(), refusal, last: false }).unwrap();
        let mut bytes = [0; 4096];
        let length = listener.recv(&mut bytes).unwrap();
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        let replaced = printable(&named.program);
        assert_eq!(
            text,
            format!(
                "MESSAGE=not lifted {replaced}[7] by rule \"r\": it is traced\nPRIORITY=6\n\
                 SYSLOG_IDENTIFIER=pagelift-agent\nPAGELIFT_ACTION=refused\nPAGELIFT_PROGRAM={replaced}\n\
                 PAGELIFT_PID=7\nPAGELIFT_RULE=r\nPAGELIFT_BUILD_ID=b\nPAGELIFT_REASON=traced\n"
            )
        );
        assert!(entry(&Action::Failed { what: "no".to_owned() }).contains("\nPRIORITY=4\n"));
        drop(listener);
        assert!(journal.send(&Action::Stopped { lifted: 1 }).is_err());
    }

    #[test]
    fn standard_error_of_a_test_is_no_journal() {
        assert!(std::env::var_os(STREAM).is_some() || Journal::of_standard_error().is_none());
    }
}
