//! Settings of database servers that determine their number of pool pages, from their command line and their files.
//!
//! Sources: MariaDB's and MySQL's documentation of option files, `large_pages`, `innodb_buffer_pool_size`; PostgreSQL's of
//! `huge_pages`, `include_dir` and `shared_memory_size_in_huge_pages`. MariaDB 10.11.19 takes, by strace, its key buffer, the
//! page cache of Aria, the buffer pool and (without a mapped log) two log buffers, each in one allocation.

use crate::facts::Known;
use crate::own_pages::{Buffer, OwnPages, Request, USUAL};
use address_space::byte_count;
use foreign_text::quoted;
use machine_facts::Files;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// Most files that one program's settings are read from.
const MOST_FILES: usize = 64;
/// Option files of MariaDB and MySQL if the command line names none.
const OPTION_FILES: [&str; 2] = ["/etc/my.cnf", "/etc/mysql/my.cnf"];
/// Groups of option files that a server reads. Groups of one release are left out, since the release is not known.
const GROUPS: [&str; 4] = ["mysqld", "server", "mariadb", "mariadbd"];
/// The default size of most of their buffers.
const USUAL_BUFFER: u64 = 128 * MIB;
/// The first releases of MariaDB that allocate their buffer pool in one piece, by series.
const IN_ONE_PIECE: [Release; 3] = [Release::new(10, 11, 12), Release::new(11, 4, 6), Release::new(11, 8, 2)];
/// PostgreSQL's parameter that prints the number of pool pages it needs.
const POSTGRES_PAGES: &str = "shared_memory_size_in_huge_pages";
/// The usual size of PostgreSQL's blocks.
const POSTGRES_BLOCK: u64 = 8 << 10;
/// Number of parts of a buffer pool in older releases.
const PARTS: u64 = 64;
/// Page descriptors add at most 1/24 to the size of each part of a buffer pool.
const DESCRIPTORS: u64 = 24;

/// The release of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Release {
    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

/// Facts about a server besides its settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Length of its largest mapping of anonymous shared memory.
    pub shared: u64,
    /// Release of MariaDB, as its file has it.
    pub mariadb: Option<Release>,
    /// It runs.
    pub runs: bool,
}

/// A setting and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    value: String,
    place: String,
}

type Settings = BTreeMap<String, Setting>;

/// Necessity of a file for the start of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

/// Reads files of settings; later settings replace earlier ones.
struct Reading<'f, F> {
    files: &'f F,
    /// Number of files that may still be read.
    left: usize,
    settings: Settings,
    /// Files that exist, or that another one names, and that cannot be read.
    unread: Vec<String>,
}

impl<'f, F: Files> Reading<'f, F> {
    fn of(files: &'f F) -> Self {
        Self { files, left: MOST_FILES, settings: Settings::new(), unread: Vec::new() }
    }

    /// The text of a file. One that need not exist is missed only if its directory contains it.
    fn text(&mut self, path: &str, need: Need) -> Option<String> {
        self.left = self.left.checked_sub(1)?;
        let text = self.files.text(path);
        if text.is_none() && (need == Need::Required || self.exists(path)) {
            self.unread.push(path.to_owned());
        }
        text
    }

    /// True if the directory of the file can be listed, and contains it.
    fn exists(&self, path: &str) -> bool {
        let parts = path.rsplit_once('/');
        parts.is_some_and(|(folder, name)| self.files.names_in(folder).iter().any(|is| is == name))
    }

    /// Files of a directory with this ending, in the order of their names.
    fn files_in(&self, folder: &str, ending: &str) -> Vec<String> {
        let mut names = self.files.names_in(folder);
        names.sort_unstable();
        names.iter().filter(|name| name.ends_with(ending)).map(|name| format!("{folder}/{name}")).collect()
    }

    /// Settings among these that nothing has set, if a file was not read; with their default values.
    fn assumed(&self, usual: &[(&str, &str)]) -> Vec<String> {
        let is_open = |(name, _): &&(&str, &str)| !self.unread.is_empty() && !self.settings.contains_key(*name);
        usual.iter().filter(is_open).map(|(name, value)| format!("{name} = {value}")).collect()
    }
}

/// The pool pages that a server of this kind takes; `None` for other programs.
pub fn own_pages(known: Known, command: &[String], files: &impl Files, observed: Observed) -> Option<OwnPages> {
    match known {
        Known::Mysql => Some(of_mysql(command, files, observed)),
        Known::Postgres => Some(of_postgres(command, files, observed)),
        _ => None,
    }
}

/// The pool pages of a Java heap, if `-XX:+UseLargePages` is among these words of its command line and environment.
pub fn of_java<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Option<OwnPages> {
    let setting = "-XX:+UseLargePages";
    words.clone().find(|word| *word == setting)?;
    let most = words.filter_map(|word| byte_count(word.strip_prefix("-Xmx")?)).last();
    let buffers = most.map(|bytes| Buffer::one("-Xmx", bytes)).into_iter().collect();
    let source = "its command line or environment".to_owned();
    Some(OwnPages { request: Request::IfPossible, setting: setting.to_owned(), source, buffers, ..OwnPages::default() })
}

fn of_mysql(command: &[String], files: &impl Files, observed: Observed) -> OwnPages {
    let reading = mysql_settings(command, files);
    let assumed = reading.assumed(&[("large_pages", "OFF"), ("innodb_buffer_pool_size", "128M")]);
    let Reading { settings, unread, .. } = reading;
    let bytes =
        |name: &str, usual: u64| settings.get(name).and_then(|setting| byte_count(&setting.value)).unwrap_or(usual);
    let is_mariadb = command.first().is_some_and(|word| word.contains("mariadb")) || observed.mariadb.is_some();
    let pool = bytes("innodb_buffer_pool_size", USUAL_BUFFER);
    let name = "innodb_buffer_pool_size".to_owned();
    let in_parts = |parts: u64, bytes: u64| Buffer {
        name: name.clone(),
        bytes: bytes.saturating_add(bytes / DESCRIPTORS),
        allocations: parts,
    };
    let pool = match is_mariadb {
        // Of an unknown release the larger number.
        true if !observed.mariadb.is_some_and(is_in_one_piece) => in_parts(PARTS, pool),
        true => Buffer { name: name.clone(), bytes: pool, allocations: 1 },
        false => {
            let chunk = bytes("innodb_buffer_pool_chunk_size", USUAL_BUFFER).max(MIB);
            let instances = bytes("innodb_buffer_pool_instances", if pool >= 1 << 30 { 8 } else { 1 }).max(1);
            let unit = chunk.saturating_mul(instances);
            let whole = pool.div_ceil(unit).saturating_mul(unit);
            in_parts(whole / chunk, whole)
        }
    };
    let key_buffer = bytes("key_buffer_size", if is_mariadb { USUAL_BUFFER } else { 8 * MIB });
    let mut buffers = vec![pool, Buffer::one("key_buffer_size", key_buffer)];
    if is_mariadb {
        buffers.push(Buffer::one("aria_pagecache_buffer_size", bytes("aria_pagecache_buffer_size", USUAL_BUFFER)));
    }
    let log = bytes("innodb_log_buffer_size", 16 * MIB).saturating_mul(2);
    buffers.push(Buffer { name: "2 x innodb_log_buffer_size".to_owned(), bytes: log, allocations: 2 });
    let (request, source) = match settings.get("large_pages") {
        Some(Setting { value, place }) if is_on(value) => (Request::IfPossible, place.clone()),
        Some(Setting { place, .. }) => (Request::Off, place.clone()),
        None => (Request::Off, USUAL.to_owned()),
    };
    OwnPages { request, setting: "large_pages=ON".to_owned(), source, buffers, unread, assumed, ..OwnPages::default() }
}

fn is_in_one_piece(release: Release) -> bool {
    let is_of_series = |first: &&Release| (first.major, first.minor) == (release.major, release.minor);
    IN_ONE_PIECE.iter().find(is_of_series).is_some_and(|first| release.patch >= first.patch) || release.major >= 12
}

/// The release of MariaDB in a part of its file: `10.11.19-MariaDB`.
pub fn release_in(bytes: &[u8]) -> Option<Release> {
    const MARK: &[u8] = b"-MariaDB\0";
    let at = bytes.windows(MARK.len()).position(|window| window == MARK)?;
    let start =
        bytes[..at].iter().rposition(|byte| *byte != b'.' && !byte.is_ascii_digit()).map_or(0, |before| before + 1);
    let mut numbers = std::str::from_utf8(&bytes[start..at]).ok()?.split('.').map(|number| number.parse().ok());
    Some(Release::new(numbers.next()??, numbers.next()??, numbers.next()??))
}

fn is_on(value: &str) -> bool {
    ["", "1", "on", "true", "yes"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Settings of MariaDB and MySQL; later ones replace earlier ones, and the command line all.
fn mysql_settings<'f, F: Files>(command: &[String], files: &'f F) -> Reading<'f, F> {
    let words = command.get(1..).unwrap_or_default();
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let mut reading = Reading::of(files);
    let mut pending: Vec<(&str, Need)> = match option("--defaults-file") {
        _ if words.iter().any(|word| word == "--no-defaults") => Vec::new(),
        Some(file) => vec![(file, Need::Required)],
        None => OPTION_FILES.map(|path| (path, Need::Optional)).to_vec(),
    };
    pending.extend(option("--defaults-extra-file").map(|path| (path, Need::Required)));
    pending.iter().for_each(|(path, need)| read_option_file(&mut reading, path, *need));
    for (index, word) in words.iter().enumerate() {
        let Some(text) = word.strip_prefix("--") else { continue };
        let next = words.get(index + 1).filter(|next| !next.starts_with('-')).map(String::as_str);
        let (name, value) = text.split_once('=').unwrap_or((text, next.unwrap_or_default()));
        take(&mut reading.settings, name, value, "its command line");
    }
    reading
}

fn take(settings: &mut Settings, name: &str, value: &str, place: &str) {
    let name = name.trim().replace('-', "_").to_ascii_lowercase();
    let (name, value) = match name.strip_prefix("skip_").or_else(|| name.strip_prefix("disable_")) {
        Some(rest) => (rest.to_owned(), "OFF"),
        None => (name.strip_prefix("loose_").unwrap_or(&name).to_owned(), value),
    };
    settings.insert(name, Setting { value: unquoted(value).to_owned(), place: place.to_owned() });
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    let inner = |mark: char| value.strip_prefix(mark)?.strip_suffix(mark);
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

/// Reads an option file and the files that it includes, in the order of their lines.
fn read_option_file(reading: &mut Reading<'_, impl Files>, path: &str, need: Need) {
    let Some(text) = reading.text(path, need) else { return };
    let mut is_meant = false;
    for line in text.lines().map(str::trim) {
        if let Some(folder) = line.strip_prefix("!includedir") {
            let paths = reading.files_in(folder.trim().trim_end_matches('/'), ".cnf");
            paths.iter().for_each(|path| read_option_file(reading, path, Need::Required));
        } else if let Some(path) = line.strip_prefix("!include") {
            read_option_file(reading, path.trim(), Need::Required);
        } else if let Some(group) = line.strip_prefix('[') {
            is_meant = GROUPS.contains(&group.trim_end_matches(']').trim());
        } else if is_meant && !line.is_empty() && !line.starts_with(['#', ';']) {
            let line = line.split(" #").next().unwrap_or(line);
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            take(&mut reading.settings, name, value, path);
        }
    }
}

fn of_postgres(command: &[String], files: &impl Files, observed: Observed) -> OwnPages {
    let words = command.get(1..).unwrap_or_default();
    let given = postgres_words(words);
    let data = after(words, "-D").or_else(|| given.get("data_directory").map(|setting| setting.value.clone()));
    let in_data = |name: &str| data.as_ref().map(|data| format!("{data}/{name}"));
    let main = given.get("config_file").map(|setting| setting.value.clone()).or_else(|| in_data("postgresql.conf"));
    let mut reading = Reading::of(files);
    for (path, need) in [(main, Need::Required), (in_data("postgresql.auto.conf"), Need::Optional)] {
        path.iter().for_each(|path| read_postgres_file(&mut reading, path, need));
    }
    reading.settings.extend(given);
    let usual = [("huge_pages", "try"), ("shared_buffers", "128MB")];
    // The mapping of a server that runs shows the size of its buffers.
    let assumed = reading.assumed(if observed.shared == 0 { &usual } else { &usual[..1] });
    let Reading { settings, unread, .. } = reading;
    let (value, source) = match settings.get("huge_pages") {
        Some(Setting { value, place }) => (value.to_ascii_lowercase(), place.clone()),
        None => ("try".to_owned(), USUAL.to_owned()),
    };
    let request = match value.as_str() {
        "on" => Request::Required,
        "off" => Request::Off,
        _ => Request::IfPossible,
    };
    let buffers = match observed.shared {
        0 => Vec::new(),
        bytes => vec![Buffer::one("shared memory", bytes)],
    };
    let prints = data.filter(|_| !observed.runs && buffers.is_empty());
    let owned = prints.map(quoted);
    // Options on its command line change the number.
    let started = || foreign_text::words(command.iter().map(String::as_str).chain(["-C", POSTGRES_PAGES]));
    let command = owned.as_ref().map(|_| started());
    let setting = if request == Request::Required { "huge_pages = on" } else { "huge_pages = try" }.to_owned();
    let least = settings.get("shared_buffers").map_or(Some(USUAL_BUFFER), |buffers| postgres_bytes(&buffers.value));
    OwnPages { request, setting, source, buffers, command, least: least.unwrap_or(0), owned, unread, assumed }
}

/// A size of PostgreSQL's settings. A number without a unit counts blocks.
fn postgres_bytes(value: &str) -> Option<u64> {
    match value.parse::<u64>() {
        Ok(blocks) => blocks.checked_mul(POSTGRES_BLOCK),
        Err(_) => byte_count(value),
    }
}

fn after(words: &[String], option: &str) -> Option<String> {
    let follows = words.iter().position(|word| word == option).and_then(|at| words.get(at + 1));
    let joined = || words.iter().find_map(|word| word.strip_prefix(option).filter(|rest| !rest.is_empty()));
    follows.map(String::as_str).or_else(joined).map(str::to_owned)
}

/// Settings of a command line of PostgreSQL: `-c NAME=VALUE`, `--NAME=VALUE` and `-B BUFFERS`.
fn postgres_words(words: &[String]) -> Settings {
    let mut settings = Settings::new();
    for (index, word) in words.iter().enumerate() {
        let buffers = match word.strip_prefix("-B") {
            Some("") => words.get(index + 1).map(String::as_str),
            joined => joined,
        };
        if let Some(buffers) = buffers {
            take(&mut settings, "shared_buffers", buffers, "its command line");
        }
        let pair = match (word.strip_prefix("--"), word.as_str()) {
            (Some(pair), _) => Some(pair),
            (None, "-c") => words.get(index + 1).map(String::as_str),
            (None, _) => word.strip_prefix("-c").filter(|pair| !pair.is_empty()),
        };
        if let Some((name, value)) = pair.and_then(|pair| pair.split_once('=')) {
            take(&mut settings, name, value, "its command line");
        }
    }
    settings
}

fn read_postgres_file(reading: &mut Reading<'_, impl Files>, path: &str, need: Need) {
    let Some(text) = reading.text(path, need) else { return };
    let beside = |name: &str| match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("{}/{name}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(end) = line.find(|c: char| c == '=' || c.is_whitespace()) else { continue };
        let (name, rest) = line.split_at(end);
        let value = unquoted(rest.trim_start().trim_start_matches('='));
        match name {
            "include" => read_postgres_file(reading, &beside(value), Need::Required),
            "include_if_exists" => read_postgres_file(reading, &beside(value), Need::Optional),
            "include_dir" => {
                let paths = reading.files_in(&beside(value), ".conf");
                paths.iter().for_each(|path| read_postgres_file(reading, path, Need::Required));
            }
            _ => take(&mut reading.settings, name, value, path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::tests::Written;
    use address_space::PageSize;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn pages(own: &OwnPages) -> u64 {
        own.pages(PageSize::new(2 << 20).unwrap())
    }

    /// strace of MariaDB 10.11.19 with these settings: 53 + 62 + 256 pages, and 16 for its log buffers if it does not map
    /// the log.
    #[test]
    fn buffers_of_mariadb_come_from_its_settings() {
        let files = Written::of(&[(
            "/a.cnf",
            "[client]\nkey_buffer_size=1G\n[mysqld]\ninnodb-buffer-pool-size = 512M # large\n; no\nlarge_pages\n",
        )]);
        let runs = Observed { mariadb: Some(Release::new(10, 11, 19)), runs: true, ..Observed::default() };
        let own = own_pages(Known::Mysql, &words("mariadbd --defaults-file=/a.cnf"), &files, runs).unwrap();
        assert_eq!(
            (own.request, own.source.as_str(), pages(&own)),
            (Request::IfPossible, "/a.cnf", 256 + 64 + 64 + 16)
        );
        assert!(own.in_words().starts_with("innodb_buffer_pool_size 512.0 MiB, key_buffer_size 128.0 MiB"));
        let words = words("mariadbd --defaults-file=/a.cnf --skip-large-pages --key_buffer_size 16M");
        let own = own_pages(Known::Mysql, &words, &files, runs).unwrap();
        assert_eq!(
            (own.request, own.source.as_str(), pages(&own)),
            (Request::Off, "its command line", 256 + 8 + 64 + 16)
        );
    }

    #[test]
    fn the_last_limit_of_a_java_heap_counts() {
        let of = |text: &'static str| of_java(text.split(' '));
        assert_eq!(of("java -Xmx1g"), None);
        assert_eq!(of("java -Xmx1g -XX:+UseLargePages -Xmx2g").map(|own| pages(&own)), Some(1024));
        assert_eq!(of("java -XX:+UseLargePages").map(|own| pages(&own)), Some(0));
    }

    #[test]
    fn the_release_of_mariadb_is_in_its_file() {
        assert_eq!(release_in(b"x\x0010.11.19-MariaDB\0y"), Some(Release::new(10, 11, 19)));
        assert_eq!(
            (release_in(b"10.11-MariaDB\0"), release_in(b"1.2.3-MariaDB-log\0"), release_in(b"")),
            (None, None, None)
        );
        assert!(is_in_one_piece(Release::new(10, 11, 12)) && is_in_one_piece(Release::new(12, 0, 1)));
        assert!(!is_in_one_piece(Release::new(10, 6, 30)) && !is_in_one_piece(Release::new(11, 8, 1)));
    }

    #[test]
    fn parts_of_a_buffer_pool_are_rounded_up_one_by_one() {
        let none = Written::of(&[]);
        let older = Observed { mariadb: Some(Release::new(10, 11, 11)), runs: true, ..Observed::default() };
        let own = own_pages(Known::Mysql, &words("mariadbd --innodb-buffer-pool-size=512M"), &none, older).unwrap();
        assert_eq!(own.buffers[0].pages(PageSize::new(2 << 20).unwrap()), 64 * 5, "8 MiB and the descriptors each");
        let mysql = words("mysqld --innodb-buffer-pool-size=1200M --large-pages=1");
        let own = own_pages(Known::Mysql, &mysql, &none, Observed::default()).unwrap();
        assert_eq!(own.request, Request::IfPossible);
        assert_eq!(
            own.buffers[0].pages(PageSize::new(2 << 20).unwrap()),
            16 * 67,
            "2 GiB: 8 instances of 128 MiB each"
        );
        assert!(!own.in_words().contains("aria"));
    }

    #[test]
    fn included_files_are_read_in_order_and_a_circle_ends() {
        let files = Written::of(&[
            ("/etc/mysql/my.cnf", "!includedir /etc/mysql/conf.d/\n!include /etc/mysql/my.cnf"),
            ("/etc/mysql/conf.d/b.cnf", "[mariadb]\ninnodb_buffer_pool_size=\"64M\""),
            ("/etc/mysql/conf.d/a.cnf", "[server]\ninnodb_buffer_pool_size=32M\nlarge_pages=0"),
            ("/etc/mysql/conf.d/c.bak", "[server]\ninnodb_buffer_pool_size=1G"),
        ]);
        let release = Observed { mariadb: Some(Release::new(11, 8, 2)), ..Observed::default() };
        let own = own_pages(Known::Mysql, &words("mariadbd"), &files, release).unwrap();
        assert_eq!((own.buffers[0].bytes, own.source.as_str()), (64 << 20, "/etc/mysql/conf.d/a.cnf"));
        let alone = own_pages(Known::Mysql, &words("mariadbd --no-defaults"), &files, release).unwrap();
        assert_eq!((alone.buffers[0].bytes, alone.source.as_str()), (128 << 20, "its default"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named_with_what_is_assumed() {
        let of = |text: &str, files: &Written, observed| {
            let known = if text.starts_with("postgres") { Known::Postgres } else { Known::Mysql };
            let own = own_pages(known, &words(text), files, observed).unwrap();
            (own.unread.join(" "), own.assumed.join(" "), own.source_in_words())
        };
        let (none, new) = (Written::of(&[]), Observed::default());
        let (file, both) = ("/d/postgresql.conf".to_owned(), "huge_pages = try shared_buffers = 128MB".to_owned());
        let source = "assumed: /d/postgresql.conf cannot be read".to_owned();
        assert_eq!(of("postgres -D /d", &none, new), (file.clone(), both, source.clone()));
        let one = "huge_pages = try".to_owned();
        assert_eq!(of("postgres -D /d -B 64", &none, new), (file.clone(), one.clone(), source.clone()));
        let runs = Observed { shared: 1 << 30, runs: true, ..Observed::default() };
        assert_eq!(of("postgres -D /d", &none, runs), (file, one, source));
        let read = Written::of(&[("/d/postgresql.conf", "include_if_exists = 'x'\ninclude 'y'")]);
        assert_eq!(of("postgres -D /d", &read, new).0, "/d/y");
        assert_eq!(of("postgres", &none, new), (String::new(), String::new(), USUAL.to_owned()));
        assert_eq!(of("mariadbd", &none, new), (String::new(), String::new(), USUAL.to_owned()));
        let own = of("mariadbd --defaults-file=/a.cnf --large-pages", &none, new);
        let assumed = "innodb_buffer_pool_size = 128M".to_owned();
        assert_eq!(own, ("/a.cnf".to_owned(), assumed, "its command line".to_owned()));
    }

    /// `postgres -C shared_memory_size_in_huge_pages` printed 163 for shared_buffers=300MB, of which smaps showed a mapping
    /// of 332,832 KiB.
    #[test]
    fn shared_memory_of_postgresql_is_as_long_as_its_mapping() {
        let files = Written::of(&[
            ("/d/postgresql.conf", "shared_buffers = 300MB\nhuge_pages off\ninclude_dir = 'conf.d'"),
            ("/d/conf.d/x.conf", "huge_pages = 'on'\t# all"),
            ("/d/postgresql.auto.conf", "work_mem = '4MB'"),
        ]);
        let runs = Observed { shared: 332_832 << 10, runs: true, ..Observed::default() };
        let own = own_pages(Known::Postgres, &words("postgres -D /d"), &files, runs).unwrap();
        let found = (own.request, own.source.as_str(), pages(&own), own.command.as_deref());
        assert_eq!(found, (Request::Required, "/d/conf.d/x.conf", 163, None));
        let started =
            own_pages(Known::Postgres, &words("postgres -D /d -c huge_pages=off"), &files, Observed::default());
        let started = started.unwrap();
        assert_eq!((started.request, started.source.as_str()), (Request::Off, "its command line"));
        // With its other options PostgreSQL 15 prints 276, without them 72.
        let command = "postgres -D /d -c huge_pages=off -C shared_memory_size_in_huge_pages";
        let found = (pages(&started), started.command.as_deref(), started.owned.as_deref());
        assert_eq!(found, (0, Some(command), Some("/d")));
        let least = |text: &str| own_pages(Known::Postgres, &words(text), &files, Observed::default()).unwrap().least;
        let [shared, number] = ["-D /d -c shared_buffers=512MB", "-D /d --shared-buffers=65536"];
        let sizes = ["-D /d", shared, number, "-D /e", "-D /e -B 128", "-D /e -B256"];
        let sizes = sizes.map(|options| least(&format!("postgres {options}")) >> 20);
        assert_eq!(sizes, [300, 512, 512, 128, 1, 2]);
        let unknown = own_pages(Known::Postgres, &words("postgres -D/e"), &files, Observed::default()).unwrap();
        assert_eq!((unknown.request, unknown.source.as_str()), (Request::IfPossible, "its default"));
        assert_eq!(own_pages(Known::Other, &words("x"), &files, Observed::default()), None);
    }
}
