//! Counters that database servers keep.

use super::{Counter, WorkError};
use crate::postgres_address;
use mysql::prelude::Queryable;
use std::time::Duration;

/// The longest that a server may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// A global status variable.
pub(super) struct MySql {
    connection: mysql::Conn,
    name: String,
}

impl MySql {
    pub(super) fn at(address: &str, name: &str) -> Result<Self, WorkError> {
        let failed = |error: String| WorkError::no_number(without_password(address), error);
        let options = mysql::Opts::from_url(address).map_err(|error| failed(error.to_string()))?;
        is_name(name).map_err(failed)?;
        let bounds = mysql::OptsBuilder::from_opts(options).read_timeout(Some(LIMIT)).tcp_connect_timeout(Some(LIMIT));
        let connection = mysql::Conn::new(bounds).map_err(|error| failed(error.to_string()))?;
        Ok(Self { connection, name: name.to_owned() })
    }
}

impl Counter for MySql {
    fn read(&mut self) -> Result<f64, WorkError> {
        let failed = |problem: String| WorkError::no_number(&self.name, problem);
        // The statement takes no parameters; the name has been checked.
        let query = format!("SHOW GLOBAL STATUS WHERE Variable_name = '{}'", self.name);
        let row: Option<(String, String)> =
            self.connection.query_first(query).map_err(|error| failed(error.to_string()))?;
        let (_, value) = row.ok_or_else(|| failed("the server has no status variable of this name".to_owned()))?;
        value.parse().map_err(|_| failed(format!("it is {value:?}; needed: a number")))
    }

    fn unit(&self) -> String {
        self.name.clone()
    }
}

/// A column of `pg_stat_database`.
pub(super) struct Postgres {
    client: postgres::Client,
    query: String,
    name: String,
}

impl Postgres {
    pub(super) fn at(address: &str, name: &str) -> Result<Self, WorkError> {
        let failed = |error: String| WorkError::no_number(without_password(address), error);
        is_name(name).map_err(failed)?;
        let mut config = postgres_address::config(address).map_err(|error| failed(error.to_string()))?;
        let client =
            config.connect_timeout(LIMIT).connect(postgres::NoTls).map_err(|error| failed(error.to_string()))?;
        let query = format!("SELECT sum({name})::float8 FROM pg_stat_database");
        Ok(Self { client, query, name: name.to_owned() })
    }
}

impl Counter for Postgres {
    fn read(&mut self) -> Result<f64, WorkError> {
        let failed = |error: postgres::Error| WorkError::no_number(&self.name, error);
        let row = self.client.query_one(&self.query, &[]).map_err(failed)?;
        row.try_get::<_, Option<f64>>(0).map_err(failed)?.ok_or_else(|| WorkError::no_number(&self.name, "it is null"))
    }

    fn unit(&self) -> String {
        if self.name == "xact_commit" { "transactions".to_owned() } else { self.name.clone() }
    }
}

/// A field of INFO.
pub(super) struct Redis {
    connection: redis::Connection,
    name: String,
}

impl Redis {
    pub(super) fn at(address: &str, name: &str) -> Result<Self, WorkError> {
        let failed = |error: redis::RedisError| WorkError::no_number(without_password(address), error);
        let client = redis::Client::open(address).map_err(failed)?;
        let connection = client.get_connection_with_timeout(LIMIT).map_err(failed)?;
        connection.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        Ok(Self { connection, name: name.to_owned() })
    }
}

impl Counter for Redis {
    fn read(&mut self) -> Result<f64, WorkError> {
        let failed = |problem: String| WorkError::no_number(&self.name, problem);
        let info: redis::InfoDict =
            redis::cmd("INFO").query(&mut self.connection).map_err(|error| failed(error.to_string()))?;
        info.get(&self.name).ok_or_else(|| failed("INFO has no number of this name".to_owned()))
    }

    fn unit(&self) -> String {
        if self.name == "total_commands_processed" { "commands".to_owned() } else { self.name.clone() }
    }
}

/// Refuses text that is not a name, since it becomes part of a statement.
fn is_name(name: &str) -> Result<(), String> {
    match name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        true => Ok(()),
        false => Err(format!("{name} is no name of a counter; needed: letters, digits and _")),
    }
}

/// The address for messages and records.
pub fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    // The text after the server's name may contain another @.
    let (server, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    match server.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}{path}", user.split(':').next().unwrap_or_default()),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        assert_eq!(without_password("mysql://root:secret@localhost:3306/"), "mysql://root@localhost:3306/");
        assert_eq!(without_password("redis://localhost"), "redis://localhost");
        assert_eq!(without_password("redis://:secret@h?query=GET a@b:c"), "redis://@h?query=GET a@b:c");
    }

    #[test]
    fn only_names_get_into_a_statement() {
        for error in [
            Postgres::at("postgres://localhost", "x) FROM secrets --").err(),
            MySql::at("mysql://localhost", "x' OR 1 --").err(),
        ] {
            assert!(error.unwrap().to_string().contains("is no name of a counter"));
        }
    }
}
