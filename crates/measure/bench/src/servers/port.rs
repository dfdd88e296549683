//! Whose a port is.

use crate::tree::tree_of;
use linux::owner::user_of;
use std::collections::BTreeSet;

/// The state of a socket that listens (`include/net/tcp_states.h`, `TCP_LISTEN`).
const LISTENING: &str = "0A";

/// Refuses a port on which a socket listens that neither this user nor a user of the server's processes has made. A server
/// that listens elsewhere is not refused.
///
/// # Errors
/// The owner that was found, and the fix.
pub fn port_is_of(port: u16, server: i32) -> Result<(), String> {
    let mut users: BTreeSet<u32> = tree_of(server).into_iter().filter_map(user_of).collect();
    users.insert(nix::unistd::geteuid().as_raw());
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| linux::text::text_of(path).unwrap_or_default());
    let found = tables.iter().flat_map(|table| listeners(table, port)).find(|user| !users.contains(user));
    found.map_or(Ok(()), |user| {
        Err(format!(
            "found port {port} taken by user {user}, needed it for the server; fix: run it again, which takes another port"
        ))
    })
}

/// The users whose sockets listen on a port, in a table such as `/proc/net/tcp` (proc_pid_net(5)).
fn listeners(table: &str, port: u16) -> Vec<u32> {
    let user_of = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, own) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == LISTENING && u16::from_str_radix(own, 16) == Ok(port);
        if listens { fields.get(7)?.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(user_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listeners_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n\
             1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1001        0 2 1\n\
             2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 3 1\n";
        assert_eq!(
            (listeners(table, 8080), listeners(table, 8081), listeners(table, 1)),
            (vec![1000], vec![7], vec![])
        );
    }

    #[test]
    fn a_socket_of_this_user_is_the_servers() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(port_is_of(port, std::process::id() as i32), Ok(()));
        let table = linux::text::text_of("/proc/net/tcp").unwrap();
        assert_eq!(listeners(&table, port), [nix::unistd::geteuid().as_raw()]);
    }
}
