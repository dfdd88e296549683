use super::*;
use linux::leases::Lease;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, SealFlag, fcntl};
use nix::unistd::{getuid, setfsuid};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The value of this field in `/proc/PID/status` of the calling thread.
fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().to_owned()
}

/// In a separate thread: a confined thread stays confined.
fn confined<T: Send + 'static>(reads: Reads, work: impl FnOnce() -> T + Send + 'static) -> T {
    let all = move || {
        confine(reads).unwrap();
        work()
    };
    thread::spawn(all).join().unwrap()
}

fn is_refused<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
}

#[test]
fn no_capability_is_left_where_only_own_files_are_read() {
    let fields = || ["CapEff", "CapPrm", "CapInh", "NoNewPrivs", "Seccomp"].map(status);
    let none = "0000000000000000".to_owned();
    let expected = [none.clone(), none.clone(), none, "1".to_owned(), "2".to_owned()];
    assert_eq!(confined(Reads::Own, fields), expected);
}

#[test]
fn of_capabilities_only_those_for_reading_are_left() {
    let held = || u64::from_str_radix(&status("CapEff"), 16).unwrap();
    let before = held();
    let left = confined(Reads::Processes, held);
    let reading = [libc_bit(2), libc_bit(19), libc_bit(40)].into_iter().sum::<u64>();
    assert_eq!(left & !(reading | libc_bit(21)), 0, "{left:#x}");
    assert_eq!(left & reading, before & reading, "what reading takes is kept");
    if before & libc_bit(40) != 0 {
        assert_eq!(left & libc_bit(21), 0, "CAP_SYS_ADMIN is not needed");
    }
}

/// The mask of a capability by its number in linux/capability.h.
fn libc_bit(number: u32) -> u64 {
    1 << number
}

#[test]
fn files_are_read_and_threads_started() {
    let read = || {
        let names = fs::read_dir("/proc/self").unwrap().count();
        let pages = vec![1u8; 1 << 22];
        let in_thread = thread::spawn(move || pages.len()).join().unwrap();
        (fs::read("/proc/self/exe").unwrap().len() > 4096, names > 10, in_thread)
    };
    assert_eq!(confined(Reads::Own, read), (true, true, 1 << 22));
}

#[test]
fn descriptors_are_looked_at_and_copied() {
    let file = File::open("/proc/self/exe").unwrap();
    let looks = move || {
        let copy = file.try_clone().unwrap();
        fcntl(&copy, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let flags = OFlag::from_bits_truncate(fcntl(&copy, FcntlArg::F_GETFL).unwrap());
        (fcntl(&copy, FcntlArg::F_GETFD), flags & OFlag::O_ACCMODE)
    };
    assert_eq!(confined(Reads::Own, looks), (Ok(0), OFlag::O_RDONLY));
}

/// Each of these calls is a step towards a signal for another process, or towards a wait of all who open a file.
#[test]
fn no_descriptor_is_made_to_signal_or_to_keep_others_waiting() {
    let path = std::env::temp_dir().join(format!("confinement-signals-{}", std::process::id()));
    fs::write(&path, "").unwrap();
    let file = File::open(&path).unwrap();
    assert!(Lease::against_writers(&file).is_ok(), "without a filter there is nothing to refuse");
    let refused = confined(Reads::Processes, move || {
        let control = |argument: FcntlArg<'_>| fcntl(&file, argument).map_err(io::Error::from);
        [
            ("chosen a signal (F_SETSIG)", is_refused(Lease::against_writers(&file))),
            ("asked for signals (O_ASYNC)", is_refused(control(FcntlArg::F_SETFL(OFlag::O_ASYNC)))),
            ("changed flags", is_refused(control(FcntlArg::F_SETFL(OFlag::O_NONBLOCK)))),
            ("sized a pipe", is_refused(control(FcntlArg::F_SETPIPE_SZ(4096)))),
            ("sealed a file", is_refused(control(FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)))),
        ]
    });
    fs::remove_file(&path).unwrap();
    let done: Vec<_> = refused.into_iter().filter(|(_, refused)| !refused).map(|(what, _)| what).collect();
    assert!(done.is_empty(), "a confined thread has {done:?}");
}

#[test]
fn nothing_is_written_executed_or_sent() {
    let folder = std::env::temp_dir().join(format!("confinement-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("file");
    fs::write(&file, "as it was").unwrap();
    let (there, path) = (folder.clone(), file.clone());
    let refused = confined(Reads::Processes, move || {
        [
            ("opened for writing", is_refused(OpenOptions::new().write(true).open(&path))),
            ("opened for both", is_refused(OpenOptions::new().read(true).write(true).open(&path))),
            ("created", is_refused(File::create_new(there.join("new")))),
            ("removed", is_refused(fs::remove_file(&path))),
            ("renamed", is_refused(fs::rename(&path, there.join("other")))),
            ("made a folder", is_refused(fs::create_dir(there.join("folder")))),
            ("executed", Command::new("/bin/true").spawn().is_err()),
            ("sent", is_refused(UdpSocket::bind("127.0.0.1:0"))),
            ("changed its user", setfsuid(getuid()).as_raw() == u32::MAX),
        ]
    });
    let done: Vec<_> = refused.into_iter().filter(|(_, refused)| !refused).map(|(what, _)| what).collect();
    assert!(done.is_empty(), "a confined thread has {done:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "as it was");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    fs::remove_dir_all(&folder).unwrap();
}

/// A program that waits until its standard input is closed.
fn waiting(words: &[&str]) -> Child {
    let wait = ["sh", "-c", "echo; read line"];
    let mut command = Command::new(words[0]);
    let mut child = command.args(&words[1..]).args(wait).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    child
}

#[test]
fn processes_of_subordinate_ids_count_to_their_user() {
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user"];
    let may_unshare = || Command::new(user[0]).args(&user[1..]).arg("true").status();
    if !nix::unistd::geteuid().is_root() || !may_unshare().is_ok_and(|status| status.success()) {
        return;
    }
    let mut maker = waiting(&user);
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", maker.id()), "0 65534 1\n1 100000 10\n").unwrap();
    }
    let mut inner = waiting(&["nsenter", "--user", &format!("--target={}", maker.id()), "setpriv", "--reuid=5"]);
    let pid = inner.id() as i32;
    let found = confined(Reads::Processes, move || linux::owner::accountable_user_of(pid));
    for child in [&mut inner, &mut maker] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    assert_eq!(found, Some(65534));
}

#[test]
fn confining_twice_takes_nothing_back() {
    // A second filter would need prctl, or seccomp.
    let again = || confine(Reads::Processes).is_err();
    assert!(confined(Reads::Own, again));
    assert_eq!(confined(Reads::Own, || status("Seccomp")), "2");
}
