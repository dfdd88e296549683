//! The user's environment, and the way in which settings are added to it: the user's settings have priority.

use std::collections::BTreeMap;

/// Variables as the program would get them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process; values that are no text are left out.
    pub fn of_this_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// The text of `/proc/PID/environ`: `NAME=VALUE`, each ended by NUL; values that are no text are left out.
    pub fn parse(bytes: &[u8]) -> Self {
        let variable = |entry: &[u8]| {
            let (name, value) = str::from_utf8(entry).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(bytes.split(|&byte| byte == 0).filter_map(variable).collect())
    }

    /// One variable; empty ones count as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns this environment with a variable set.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// Adds `key=value` to a list of settings such as `GLIBC_TUNABLES` or `MALLOC_CONF`, or `key` alone for an empty value;
/// `None` if all keys are set.
pub fn merged(list: Option<&str>, between: char, equals: char, settings: &[(&str, &str)]) -> Option<String> {
    let is_set = |key: &str| {
        list.unwrap_or_default().split(between).any(|setting| setting.split(equals).next().map(str::trim) == Some(key))
    };
    let setting = |(key, value): &(&str, &str)| match *value {
        "" => (*key).to_owned(),
        value => format!("{key}{equals}{value}"),
    };
    let ours: Vec<String> = settings.iter().filter(|(key, _)| !is_set(key)).map(setting).collect();
    if ours.is_empty() {
        return None;
    }
    // If a key comes twice the last one counts, so the user's come last.
    let all = ours.into_iter().chain(list.filter(|list| !list.is_empty()).map(str::to_owned));
    Some(all.collect::<Vec<_>>().join(&between.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        let settings = [("thp", "always"), ("dirty_decay_ms", "-1")];
        assert_eq!(merged(None, ',', ':', &settings).as_deref(), Some("thp:always,dirty_decay_ms:-1"));
        let merged_list = merged(Some("dirty_decay_ms:0,narenas:2"), ',', ':', &settings);
        assert_eq!(merged_list.as_deref(), Some("thp:always,dirty_decay_ms:0,narenas:2"));
        assert_eq!(merged(Some("thp:never,dirty_decay_ms:5"), ',', ':', &settings), None);
        let tunables = merged(Some("glibc.malloc.arena_max=1"), ':', '=', &[("glibc.malloc.hugetlb", "1")]);
        assert_eq!(tunables.as_deref(), Some("glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"));
    }

    #[test]
    fn another_process_s_environment_is_read() {
        let environment = Environment::parse(b"A=1\0MALLOC_CONF=thp:always,x:=2\0\xff=2\0nothing\0");
        assert_eq!((environment.get("A"), environment.get("nothing")), (Some("1"), None));
        assert_eq!(environment.get("MALLOC_CONF"), Some("thp:always,x:=2"));
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        let environment = Environment::default().with("A", "").with("B", "1");
        assert_eq!((environment.get("A"), environment.get("B"), environment.get("C")), (None, Some("1"), None));
    }
}
