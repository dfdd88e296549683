//! Texts with versions and settings of allocators and runtimes.

use super::scan::{Source, find_text};
use std::collections::BTreeSet;

/// Names of settings that distinguish versions of an allocator. The allocator has these texts to read its variable or to
/// print the settings.
const SETTINGS: [&str; 10] = [
    "opt.dirty_decay_ms",
    "opt.calloc_madvise_threshold",
    "opt.decay_time",
    "opt.purge",
    "opt.lg_dirty_mult",
    "purge_delay",
    "allow_decommit",
    "page_reset",
    "TCMALLOC_RELEASE_RATE",
    "TCMALLOC_DISABLE_MEMORY_RELEASE",
];

/// Read-only data of one file: offsets and lengths of its parts.
pub(super) struct ReadOnlyData<'a> {
    pub source: Source<'a>,
    pub parts: Vec<(u64, u64)>,
}

impl ReadOnlyData<'_> {
    /// The first result of `tells` for a text that contains `needle`.
    pub fn told<T>(&self, needle: &str, tells: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.parts.iter().find_map(|&part| find_text(self.source, part, &[needle.as_bytes()], &tells))
    }

    /// Those of [`SETTINGS`] that are in it.
    pub fn settings(&self) -> BTreeSet<String> {
        let needles = SETTINGS.map(|name| format!("{name}\0"));
        let needles: Vec<&[u8]> = needles.iter().map(String::as_bytes).collect();
        let mut known = BTreeSet::new();
        for &part in &self.parts {
            find_text(self.source, part, &needles, |text| {
                if SETTINGS.contains(&text) {
                    known.insert(text.to_owned());
                }
                None::<()>
            });
        }
        known
    }
}

/// In jemalloc's version, before the commit.
pub(super) const JEMALLOC: &str = "-g";
/// In the name of the variable that jemalloc reads, with its end.
pub(super) const JEMALLOC_VARIABLE: &str = "MALLOC_CONF\0";
/// In the answer of gperftools' `tc_version`.
pub(super) const GPERFTOOLS: &str = "gperftools ";
/// In V8's version.
pub(super) const V8: &str = "-node.";
/// In HotSpot's version.
pub(super) const JVM: &str = " JRE (";
/// In the banner of the GNU C library.
pub(super) const GLIBC: &str = "GNU C Library ";

/// Version text of a jemalloc that was built from sources without the file VERSION, as in the crate jemalloc-sys.
const UNKNOWN_JEMALLOC: &str = "0.0.0";

/// jemalloc's own version text, `5.3.0-0-g54eaed1d8b56…`; without the commit, `5.3.0`.
pub(super) fn jemalloc_version(text: &str) -> Option<String> {
    let (version, rest) = text.split_once('-')?;
    let (number, commit) = rest.split_once("-g")?;
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = version.split('.').count() == 3 && version.split('.').all(all_digits) && all_digits(number);
    let is_known = version != UNKNOWN_JEMALLOC;
    (is_version && is_known && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| version.to_owned())
}

/// The variable that jemalloc reads: `MALLOC_CONF`, perhaps with a prefix.
pub(super) fn jemalloc_variable(text: &str) -> Option<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    is_name.then(|| text.to_owned())
}

/// Go's version in `.go.buildinfo`: a magic text, and flags, the second of which means that texts follow these 32
/// bytes; then the length of the version and the version (Go, debug/buildinfo/buildinfo.go).
pub(super) fn go_version(data: &[u8]) -> Option<String> {
    const TEXTS_FOLLOW: u8 = 2;
    let (head, texts) = data.split_at_checked(32)?;
    if !head.starts_with(b"\xff Go buildinf:") || head[15] & TEXTS_FOLLOW == 0 {
        return None;
    }
    let (&length, rest) = texts.split_first()?;
    // A varint; versions are shorter than the maximum of its first byte.
    let version = std::str::from_utf8(rest.get(..usize::from(length & 0x7f))?).ok()?;
    (length < 0x80 && version.starts_with("go") && version.bytes().all(|byte| byte.is_ascii_graphic()))
        .then(|| version.to_owned())
}

/// HotSpot's version in its log lines (hotspot/share/runtime/abstract_vm_version.cpp).
pub(super) fn jvm_version(text: &str) -> Option<String> {
    let version = text.split_once(JVM)?.1.split_once("), built on")?.0;
    (!version.is_empty() && version.bytes().all(|byte| byte.is_ascii_graphic())).then(|| version.to_owned())
}

/// Result of `tc_version`.
pub(super) fn gperftools_version(text: &str) -> Option<String> {
    let version = text.strip_prefix(GPERFTOOLS)?;
    let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_version.then(|| version.to_owned())
}

/// V8's version as node has it: four numbers and its own patches (v8, src/utils/version.cc; node, deps/v8).
pub(super) fn v8_version(text: &str) -> Option<String> {
    let (version, patches) = text.split_once(V8)?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = version.split('.').count() == 4 && version.split('.').all(is_number) && is_number(patches);
    is_version.then(|| text.to_owned())
}

/// The minor version in the banner of a static GNU C library.
pub(super) fn banner_minor(text: &str) -> Option<u32> {
    let rest = text.split_once(GLIBC)?.1.split_once("version 2.")?.1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn source(file: &File) -> Source<'_> {
        Source { file, failed: Box::leak(Box::default()) }
    }

    fn told<T>(bytes: &[u8], needle: &str, tells: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        ReadOnlyData { source: source(&file), parts: vec![(0, bytes.len() as u64)] }.told(needle, tells)
    }

    #[test]
    fn gperftools_and_v8_tell_their_versions() {
        let data = b"tc_version\0gperftools %d\0gperftools 2.10\x0011.3-node.1\x0011.3.244.8-node.38\0";
        assert_eq!(told(data, GPERFTOOLS, gperftools_version).as_deref(), Some("2.10"));
        assert_eq!(told(data, V8, v8_version).as_deref(), Some("11.3.244.8-node.38"));
        assert_eq!(told(b"gperftools \0", GPERFTOOLS, gperftools_version), None);
        assert_eq!(told(b"1.2.3.x-node.1\0", V8, v8_version), None);
    }

    #[test]
    fn jemalloc_tells_its_version_and_its_variable() {
        let data = b"x\x00a-1-gzz\x005.3.0-0-g54eaed1d8b56b1\x00_RJEM_MALLOC_CONF\x00config.malloc_conf\x00";
        assert_eq!(told(data, JEMALLOC, jemalloc_version).as_deref(), Some("5.3.0"));
        assert_eq!(told(data, JEMALLOC_VARIABLE, jemalloc_variable).as_deref(), Some("_RJEM_MALLOC_CONF"));
        assert_eq!(told(b"1.2.3\x002022-01-01-gzz\x00", JEMALLOC, jemalloc_version), None);
        let unknown = b"0.0.0-0-g0000000000000000000000000000000000000000\x00";
        assert_eq!(told(unknown, JEMALLOC, jemalloc_version), None);
    }

    #[test]
    fn settings_are_whole_texts() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = b"xpurge_delay\0opt.purge\0allow_decommit\0allow_decommit_\0";
        file.write_all(bytes).unwrap();
        let data = ReadOnlyData { source: source(&file), parts: vec![(0, bytes.len() as u64)] };
        assert_eq!(data.settings().into_iter().collect::<Vec<_>>(), ["allow_decommit", "opt.purge"]);
    }

    #[test]
    fn go_tells_its_version() {
        let build = |flags: u8, texts: &[u8]| {
            let mut data = b"\xff Go buildinf:\x08".to_vec();
            data.push(flags);
            data.resize(32, 0);
            [data, texts.to_vec()].concat()
        };
        assert_eq!(go_version(&build(2, b"\x08go1.26.8\xc0\x06rest")).as_deref(), Some("go1.26.8"));
        assert_eq!(go_version(&build(0, b"\x08go1.17.8")), None, "pointers stand there");
        assert_eq!(go_version(&build(2, b"\x20go1.26.8")), None, "it is cut off");
        assert_eq!(go_version(b"\xff Go buildinf:"), None);
    }

    #[test]
    fn a_java_virtual_machine_tells_its_version() {
        let text = "OpenJDK 64-Bit Server VM (21+35) for linux-amd64 JRE (21.0.1+12-LTS), built on 2023";
        assert_eq!(jvm_version(text).as_deref(), Some("21.0.1+12-LTS"));
        assert_eq!(jvm_version("a JRE (of somebody) that was, built on"), None);
    }

    #[test]
    fn a_static_library_tells_its_version_in_its_banner() {
        let text = "GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright";
        assert_eq!(banner_minor(text), Some(36));
        assert_eq!(banner_minor("no library"), None);
    }
}
