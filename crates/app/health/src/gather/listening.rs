//! Sockets on which a process accepts connections.

use process_view::ProcessFiles;
use std::collections::HashSet;
use std::fs;

/// The state of a TCP socket that listens (`include/net/tcp_states.h`, `TCP_LISTEN`).
const LISTENING: &str = "0A";
/// The flag of a Unix socket that listens (`include/uapi/linux/net.h`, `__SO_ACCEPTCON`).
const ACCEPTS: u32 = 1 << 16;
/// Columns of `/proc/PID/net/tcp` (proc_pid_net(5)).
const TCP_STATE: usize = 3;
const TCP_INODE: usize = 9;
/// Columns of `/proc/PID/net/unix`.
const UNIX_FLAGS: usize = 3;
const UNIX_INODE: usize = 6;

/// True if a process has a socket that listens. False also if its descriptors cannot be read.
pub fn listens(pid: i32) -> bool {
    let files = ProcessFiles::of(pid);
    let table = |name| files.text(name).unwrap_or_default();
    let mut listening: HashSet<u64> = HashSet::new();
    ["net/tcp", "net/tcp6"].iter().for_each(|name| listening.extend(listening_tcp(&table(name))));
    listening.extend(listening_unix(&table("net/unix")));
    let Ok(descriptors) = fs::read_dir(files.path("fd")) else { return false };
    let mut links = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| inode_of(&link.to_string_lossy()).is_some_and(|inode| listening.contains(&inode)))
}

fn listening_tcp(table: &str) -> impl Iterator<Item = u64> {
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(TCP_INODE).filter(|_| fields[TCP_STATE] == LISTENING)?.parse().ok()
    })
}

fn listening_unix(table: &str) -> impl Iterator<Item = u64> {
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(UNIX_FLAGS)?, 16).ok()?;
        fields.get(UNIX_INODE).filter(|_| flags & ACCEPTS != 0)?.parse().ok()
    })
}

/// The inode of a socket, from the text of its link.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn sockets_that_listen_are_read() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 41 1\n\
             1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1001        0 42 1\n";
        assert_eq!(listening_tcp(tcp).collect::<Vec<_>>(), [41]);
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 51 /run/s\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 52\n";
        assert_eq!(listening_unix(unix).collect::<Vec<_>>(), [51]);
        assert_eq!((inode_of("socket:[51]"), inode_of("/dev/null")), (Some(51), None));
    }

    #[test]
    fn a_process_with_a_listener_is_a_server() {
        let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens(std::process::id() as i32));
        assert!(!listens(i32::MAX));
    }
}
