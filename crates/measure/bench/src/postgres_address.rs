//! Addresses of PostgreSQL servers.

/// Start of the name of a server's socket, before its port (libpq, "Connection URIs").
const SOCKET_NAME: &str = ".s.PGSQL.";
const PARAMETER: &str = "socket=";

/// The settings of a connection. `?socket=PATH`, as `mysql://` addresses have it, names the server's socket or its folder.
///
/// # Errors
/// The address is not understood.
pub(crate) fn config(address: &str) -> Result<postgres::Config, postgres::Error> {
    with_host_folder(address).as_deref().unwrap_or(address).parse()
}

/// The address with the folder of its `socket=` as the host, as libpq has it; `None` without that parameter.
fn with_host_folder(address: &str) -> Option<String> {
    let (before, parameters) = address.split_once('?')?;
    let (sockets, others): (Vec<&str>, Vec<&str>) = parameters.split('&').partition(|one| one.starts_with(PARAMETER));
    let socket = sockets.first()?.strip_prefix(PARAMETER)?;
    let (scheme, rest) = before.split_once("://")?;
    let (server, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, host) =
        server.rsplit_once('@').map_or((String::new(), server), |(user, host)| (format!("{user}@"), host));
    let (folder, port) = match socket.rsplit_once('/').filter(|(_, name)| name.starts_with(SOCKET_NAME)) {
        Some((folder, name)) => (folder, name.strip_prefix(SOCKET_NAME)),
        None => (socket, host.rsplit_once(':').map(|(_, port)| port)),
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let others = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    Some(format!("{scheme}://{user}{}{port}{path}{others}", folder.replace('%', "%25").replace('/', "%2F")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres::config::Host;
    use std::path::PathBuf;

    #[test]
    fn a_socket_is_a_host() {
        let cases = [
            ("postgres://me@localhost/db?socket=/run/postgresql", "me", "/run/postgresql", 5432),
            ("postgresql://me@/db?socket=/run/postgresql/.s.PGSQL.5433", "me", "/run/postgresql", 5433),
            ("postgres://me:secret@h:5434/db?connect_timeout=3&socket=/run/50%", "me", "/run/50%", 5434),
            ("postgres://me@%2Frun%2Fother/db", "me", "/run/other", 5432),
        ];
        for (address, user, folder, port) in cases {
            let config = config(address).unwrap();
            assert_eq!(config.get_user(), Some(user), "{address}");
            assert_eq!(config.get_hosts(), [Host::Unix(PathBuf::from(folder))], "{address}");
            // A port that is not given is the usual one.
            assert_eq!(config.get_ports().first().copied().unwrap_or(5432), port, "{address}");
            assert_eq!(config.get_dbname(), Some("db"), "{address}");
        }
        let tcp = config("postgres://me@127.0.0.1:5433/db").unwrap();
        assert_eq!(tcp.get_hosts(), [Host::Tcp("127.0.0.1".to_owned())]);
        assert!(config("postgres://me@h/db?sockets=/x").is_err(), "another parameter");
    }
}
