//! The address at which metrics are served.

use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of the metrics server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// A port of loopback.
    Loopback(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Socket(text.into()));
        }
        let needed = "needed: an address of loopback with a port, as 127.0.0.1:9273, or the path of a socket";
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(_) => Err(format!("found an address that others can reach; {needed}")),
            Err(_) => Err(format!("found no address; {needed}")),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_sockets_are_addresses() {
        assert!(matches!("[::1]:9273".parse(), Ok(Listen::Loopback(_))));
        assert_eq!("/run/s".parse(), Ok(Listen::Socket("/run/s".into())));
        assert_eq!("127.0.0.1:9273".parse::<Listen>().unwrap().to_string(), "127.0.0.1:9273");
        for wrong in ["0.0.0.0:9273", "10.0.0.1:1", "localhost", "", ":9273"] {
            assert!(wrong.parse::<Listen>().unwrap_err().contains("needed: "), "{wrong}");
        }
    }
}
