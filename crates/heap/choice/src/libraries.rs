//! Finds shared libraries as the dynamic linker does (ld.so(8)).

use crate::default_folders::Linker;
use std::path::{Path, PathBuf};

/// Where a library is looked for, beside what an object says itself.
#[derive(Clone, Debug, Default)]
pub struct SearchPaths {
    /// `LD_LIBRARY_PATH`.
    pub from_environment: Option<String>,
    /// The linker's cache.
    pub cache: LoaderCache,
    /// Folders that the linker knows by itself.
    pub folders: Vec<PathBuf>,
}

impl SearchPaths {
    /// The places of this system for programs of a linker, with the value of `LD_LIBRARY_PATH`.
    pub fn of_system(from_environment: Option<String>, linker: Linker<'_>) -> Self {
        let cache = match linker.is_musl() {
            true => LoaderCache::default(),
            false => LoaderCache::read(Path::new("/etc/ld.so.cache")),
        };
        Self { from_environment, cache, folders: linker.folders() }
    }

    /// Candidates for a name that the object at `asker` needs, in the linker's order. `rpath` counts only if there is no
    /// `runpath`.
    pub fn candidates(&self, name: &str, asker: &Path, rpath: Option<&str>, runpath: Option<&str>) -> Vec<PathBuf> {
        if name.contains('/') {
            return vec![PathBuf::from(name)];
        }
        let rpath = rpath.filter(|_| runpath.is_none());
        let lists = [rpath, self.from_environment.as_deref(), runpath];
        let listed = lists.into_iter().flatten().flat_map(|list| list.split([':', ';'])).filter(|f| !f.is_empty());
        let mut found: Vec<PathBuf> = listed.map(|folder| expand(folder, asker).join(name)).collect();
        found.extend(self.cache.find(name).map(PathBuf::from));
        found.extend(self.folders.iter().map(|folder| folder.join(name)));
        found
    }
}

/// Replaces `$ORIGIN` by the folder of the object that says it.
fn expand(folder: &str, asker: &Path) -> PathBuf {
    if !folder.contains('$') {
        return PathBuf::from(folder);
    }
    let absolute = asker.canonicalize().unwrap_or_else(|_| asker.to_owned());
    let origin = absolute.parent().unwrap_or(Path::new("/"));
    let folder = folder.replace("${ORIGIN}", "$ORIGIN");
    PathBuf::from(folder.replace("$ORIGIN", &origin.to_string_lossy()))
}

/// `/etc/ld.so.cache` in the form that the GNU C library writes since 2.32 (`glibc-ld.so.cache1.1`), alone or after the
/// older one.
#[derive(Clone, Debug, Default)]
pub struct LoaderCache {
    /// From the magic text on.
    data: Vec<u8>,
}

const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Magic (20 bytes), number of entries, length of strings (4 each), flags and reserved words.
const CACHE_HEADER: usize = 48;
/// Flags, key, value, version of the system (4 bytes each), capabilities (8).
const CACHE_ENTRY: usize = 24;

impl LoaderCache {
    /// Reads the cache; empty where there is none in this form.
    pub fn read(path: &Path) -> Self {
        linux::text::bytes_of(path).ok().and_then(Self::parse).unwrap_or_default()
    }

    fn parse(mut data: Vec<u8>) -> Option<Self> {
        let start = memchr::memmem::find(&data, CACHE_MAGIC)?;
        data.drain(..start);
        (data.len() >= CACHE_HEADER).then_some(Self { data })
    }

    fn number(&self, at: usize) -> Option<usize> {
        Some(u32::from_le_bytes(self.data.get(at..at + 4)?.try_into().ok()?) as usize)
    }

    /// Libraries of this name, in the order of the cache.
    fn find<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let count = self.number(CACHE_MAGIC.len()).unwrap_or(0).min(self.data.len() / CACHE_ENTRY);
        (0..count).filter_map(move |index| {
            let entry = CACHE_HEADER + index * CACHE_ENTRY;
            let key = self.data.get(self.number(entry + 4)?..)?;
            // Most names differ in their lengths.
            let is_it = key.get(name.len()) == Some(&0) && key.starts_with(name.as_bytes());
            let value = self.data.get(self.number(entry + 8)?..).filter(|_| is_it)?;
            std::str::from_utf8(&value[..memchr::memchr(0, value)?]).ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let strings_at = CACHE_HEADER + entries.len() * CACHE_ENTRY;
        let mut table = Vec::new();
        for (key, value) in entries {
            let key_at = strings_at + strings.len();
            strings.extend(key.bytes().chain([0]));
            let value_at = strings_at + strings.len();
            strings.extend(value.bytes().chain([0]));
            for number in [3u32, key_at as u32, value_at as u32, 0, 0, 0] {
                table.extend(number.to_le_bytes());
            }
        }
        let mut data = CACHE_MAGIC.to_vec();
        data.extend((entries.len() as u32).to_le_bytes());
        data.resize(CACHE_HEADER, 0);
        data.extend(table);
        data.extend(strings);
        data
    }

    #[test]
    fn the_linker_looks_in_its_own_order() {
        let data = cache(&[("libx.so.1", "/opt/x/libx.so.1"), ("liby.so", "/opt/liby.so")]);
        let cache = LoaderCache::parse(data).unwrap();
        let paths = SearchPaths { from_environment: Some("/env".into()), cache, folders: vec!["/lib/default".into()] };
        let found = paths.candidates("libx.so.1", Path::new("/prog/x"), Some("/old"), None);
        let due = ["/old/libx.so.1", "/env/libx.so.1", "/opt/x/libx.so.1", "/lib/default/libx.so.1"];
        assert_eq!(found, due.map(PathBuf::from));
        let found = paths.candidates("libx.so.1", Path::new("/prog/x"), Some("/old"), Some("$ORIGIN/../lib"));
        assert_eq!(found[..2], ["/env/libx.so.1", "/prog/../lib/libx.so.1"].map(PathBuf::from));
        assert_eq!(paths.candidates("/a/b.so", Path::new("/x"), None, None), [PathBuf::from("/a/b.so")]);
    }

    #[test]
    fn a_damaged_cache_is_no_danger() {
        let data = cache(&[("libx.so.1", "/opt/x/libx.so.1")]);
        for length in 0..data.len() {
            let cache = LoaderCache::parse(data[..length].to_vec()).unwrap_or_default();
            assert!(cache.find("libx.so.1").count() <= 1);
        }
        assert!(LoaderCache::parse(b"nothing".to_vec()).is_none());
        let mut huge = data;
        huge[CACHE_MAGIC.len()..CACHE_MAGIC.len() + 4].fill(0xff);
        assert_eq!(LoaderCache::parse(huge).unwrap().find("libx.so.1").next(), Some("/opt/x/libx.so.1"));
    }
}
