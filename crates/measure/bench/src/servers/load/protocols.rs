//! One connection that sends a request and waits for its answer, in the protocol of each kind of server.

use super::cancel::Cancel;
use crate::postgres_address;
use mysql::prelude::Queryable;
use std::time::Duration;

/// The longest that a server may take for one answer.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// The most that is read of an HTTP answer, in bytes.
const MOST: u64 = 256 << 20;

/// A protocol of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// MySQL and MariaDB, text protocol.
    MySql,
    /// PostgreSQL, simple query protocol.
    Postgres,
    /// RESP: Redis and compatible servers.
    Resp,
    /// HTTP/1.1, connections kept.
    Http,
}

impl Protocol {
    /// The name of one request, in the plural.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::MySql | Self::Postgres => "queries",
            Self::Resp => "commands",
            Self::Http => "requests",
        }
    }

    /// Says why a server does not answer yet. An error that is its answer, for a database that is still to be made for example,
    /// is no reason.
    pub(super) fn is_ready(self, address: &str, request: &str) -> Result<(), String> {
        match self {
            Self::MySql => match MySql::open(address) {
                Ok(_) | Err(mysql::Error::MySqlError(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            Self::Postgres => match Postgres::open(address) {
                Ok(_) => Ok(()),
                // While it starts it answers that it does.
                Err(error) => match error.code() {
                    Some(code) if *code != postgres::error::SqlState::CANNOT_CONNECT_NOW => Ok(()),
                    _ => Err(in_full(&error)),
                },
            },
            Self::Resp | Self::Http => self.connect(address)?.is_ready(request),
        }
    }

    /// A connection.
    pub(super) fn connect(self, address: &str) -> Result<Box<dyn Connection>, String> {
        Ok(match self {
            Self::MySql => Box::new(MySql::connect(address)?),
            Self::Postgres => Box::new(Postgres::connect(address)?),
            Self::Resp => Box::new(Resp::connect(address)?),
            Self::Http => Box::new(Http::new()),
        })
    }
}

/// A connection.
pub(super) trait Connection: Send {
    /// Sends a request and reads the whole answer.
    fn ask(&mut self, request: &str) -> Result<(), String>;

    /// Has the server give up the request that is being answered; for a client whose reads have no limit.
    fn cancel(&self) -> Option<Cancel> {
        None
    }

    /// Returns why the server is not ready for requests; a failed request is no reason.
    fn is_ready(&mut self, _request: &str) -> Result<(), String> {
        Ok(())
    }
}

struct MySql(mysql::Conn);

impl MySql {
    fn open(address: &str) -> Result<mysql::Conn, mysql::Error> {
        let options = mysql::OptsBuilder::from_opts(mysql::Opts::from_url(address)?);
        mysql::Conn::new(options.read_timeout(Some(LIMIT)).tcp_connect_timeout(Some(LIMIT)))
    }

    fn connect(address: &str) -> Result<Self, String> {
        Self::open(address).map(Self).map_err(|error| error.to_string())
    }
}

impl Connection for MySql {
    fn ask(&mut self, request: &str) -> Result<(), String> {
        self.0.query_drop(request).map_err(|error| error.to_string())
    }
}

struct Postgres(postgres::Client);

impl Postgres {
    fn open(address: &str) -> Result<postgres::Client, postgres::Error> {
        let mut config = postgres_address::config(address)?;
        config.connect_timeout(LIMIT).tcp_user_timeout(LIMIT).connect(postgres::NoTls)
    }

    fn connect(address: &str) -> Result<Self, String> {
        Self::open(address).map(Self).map_err(|error| in_full(&error))
    }
}

impl Connection for Postgres {
    fn ask(&mut self, request: &str) -> Result<(), String> {
        self.0.simple_query(request).map(drop).map_err(|error| in_full(&error))
    }

    fn cancel(&self) -> Option<Cancel> {
        let token = self.0.cancel_token();
        // A server that has gone has no request left.
        Some(Box::new(move || drop(token.cancel_query(postgres::NoTls))))
    }
}

/// The error with its causes: `db error` alone has no information.
fn in_full(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

struct Resp(redis::Connection);

impl Resp {
    fn connect(address: &str) -> Result<Self, String> {
        let client = redis::Client::open(address).map_err(|error| error.to_string())?;
        let connection = client.get_connection_with_timeout(LIMIT).map_err(|error| error.to_string())?;
        connection.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
        Ok(Self(connection))
    }
}

impl Connection for Resp {
    fn ask(&mut self, request: &str) -> Result<(), String> {
        let mut words = request.split_ascii_whitespace();
        let mut command = redis::cmd(words.next().unwrap_or("PING"));
        words.for_each(|word| {
            command.arg(word);
        });
        command.query::<redis::Value>(&mut self.0).map(drop).map_err(|error| error.to_string())
    }

    /// While it loads its data it takes connections, and answers with an error.
    fn is_ready(&mut self, _request: &str) -> Result<(), String> {
        self.ask("PING")
    }
}

struct Http(ureq::Agent);

impl Http {
    fn new() -> Self {
        Self(ureq::Agent::config_builder().timeout_global(Some(LIMIT)).proxy(None).build().into())
    }
}

impl Connection for Http {
    fn ask(&mut self, request: &str) -> Result<(), String> {
        let mut answer = self.0.get(request).call().map_err(|error| error.to_string())?;
        answer.body_mut().with_config().limit(MOST).read_to_vec().map(drop).map_err(|error| error.to_string())
    }

    fn is_ready(&mut self, request: &str) -> Result<(), String> {
        match self.0.get(request).call() {
            Ok(_) | Err(ureq::Error::StatusCode(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}
