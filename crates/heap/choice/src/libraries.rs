//! Finds shared libraries as the dynamic linker does (ld.so(8)).

use crate::default_folders::{Linker, real_path};
use std::cell::LazyCell;
use std::cmp::Ordering;
use std::ffi::c_char;
use std::iter;
use std::path::{Path, PathBuf};

/// Folders of one list that are searched. Packages of Nix have up to about 100.
const MOST_FOLDERS: usize = 256;
/// Bytes of a path that the kernel does not take any more (`PATH_MAX`).
const LONGEST_PATH: usize = nix::libc::PATH_MAX as usize;

/// The folders that are searched for a library, besides those named in an object.
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
    /// `runpath`. Folders after the first 256 of a list are left out. A name that is longer than any path has no candidates.
    pub fn candidates<'a>(
        &'a self,
        name: &'a str,
        asker: &'a Path,
        rpath: Option<&'a str>,
        runpath: Option<&'a str>,
    ) -> impl Iterator<Item = PathBuf> {
        let itself = name.contains('/').then(|| PathBuf::from(name));
        let is_searched = itself.is_none();
        let rpath = rpath.filter(|_| runpath.is_none());
        let lists = [rpath, self.from_environment.as_deref(), runpath];
        let origin = LazyCell::new(move || origin_of(asker));
        let listed = lists.into_iter().flatten().flat_map(folders_of);
        let listed = listed.map(move |folder| expand(folder, || &origin).join(name));
        let cached = iter::once(()).flat_map(move |()| self.cache.find(name)).map(PathBuf::from);
        let known = self.folders.iter().map(move |folder| folder.join(name));
        let all = itself.into_iter().chain(listed.chain(cached).chain(known).take_while(move |_| is_searched));
        all.take_while(move |_| name.len() < LONGEST_PATH)
    }
}

/// The folders of a list. No file has a path longer than the kernel takes.
fn folders_of(list: &str) -> impl Iterator<Item = &str> {
    let folders = list.split([':', ';']).filter(|folder| !folder.is_empty()).take(MOST_FOLDERS);
    folders.filter(|folder| folder.len() < LONGEST_PATH)
}

/// The folder of an object, without symbolic links.
fn origin_of(object: &Path) -> PathBuf {
    let absolute = real_path(object).unwrap_or_else(|| object.to_owned());
    absolute.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Replaces the first `$ORIGIN` by the folder of the object that contains it. A path with a second one would be the path of
/// a folder below itself.
fn expand<'a>(folder: &str, origin: impl FnOnce() -> &'a PathBuf) -> PathBuf {
    if !folder.contains('$') {
        return PathBuf::from(folder);
    }
    let folder = folder.replace("${ORIGIN}", "$ORIGIN");
    PathBuf::from(folder.replacen("$ORIGIN", &origin().to_string_lossy(), 1))
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
/// Offset of the key in an entry.
const KEY: usize = 4;
/// Offset of the value in an entry.
const VALUE: usize = 8;

/// Order of two names in the cache, which begins with the greatest one: bytes by value, and runs of digits as numbers (glibc,
/// elf/dl-cache.c, `_dl_cache_libcmp`).
fn compare(mut left: &[u8], mut right: &[u8]) -> Ordering {
    loop {
        match (left.first(), right.first()) {
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let order = take_number(&mut left).cmp(&take_number(&mut right));
                if order != Ordering::Equal {
                    return order;
                }
            }
            (Some(a), _) if a.is_ascii_digit() => return Ordering::Greater,
            (_, Some(b)) if b.is_ascii_digit() => return Ordering::Less,
            (Some(a), Some(b)) if a == b => (left, right) = (&left[1..], &right[1..]),
            // The linker compares characters of C, which have a sign on some machines.
            (a, b) => return a.map(|&a| a as c_char).unwrap_or(0).cmp(&b.map(|&b| b as c_char).unwrap_or(0)),
        }
    }
}

/// Removes the number with which a text begins.
fn take_number(text: &mut &[u8]) -> i32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    number.iter().fold(0, |number: i32, digit| number.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')))
}

impl LoaderCache {
    /// Reads the cache; empty if there is none in this format.
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

    /// Libraries of this name, in the order of the cache. As in the linker, names that are not sorted may not be found.
    fn find<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let mut first = 0;
        let mut end = self.number(CACHE_MAGIC.len()).unwrap_or(0).min(self.data.len() / CACHE_ENTRY);
        let count = end;
        while first < end {
            let middle = first.midpoint(end);
            match self.text(middle, KEY).map(|key| compare(key, name.as_bytes())) {
                Some(Ordering::Greater) => first = middle + 1,
                _ => end = middle,
            }
        }
        // `lib1.so` and `lib01.so` have the same place in the order.
        let has_place = |key: &&[u8]| compare(key, name.as_bytes()) == Ordering::Equal;
        let entries = (first..count).map_while(move |index| Some((index, self.text(index, KEY).filter(has_place)?)));
        let of_name = entries.filter(move |(_, key)| *key == name.as_bytes());
        of_name.filter_map(|(index, _)| std::str::from_utf8(self.text(index, VALUE)?).ok())
    }

    /// The text whose place is at `offset` of an entry.
    fn text(&self, index: usize, offset: usize) -> Option<&[u8]> {
        let text = self.data.get(self.number(CACHE_HEADER + index * CACHE_ENTRY + offset)?..)?;
        Some(&text[..memchr::memchr(0, text)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent_folder::SilentFolder;

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
        let data = cache(&[("liby.so", "/opt/liby.so"), ("libx.so.1", "/opt/x/libx.so.1")]);
        let cache = LoaderCache::parse(data).unwrap();
        let paths = SearchPaths { from_environment: Some("/env".into()), cache, folders: vec!["/lib/default".into()] };
        let candidates = |name, rpath, runpath| -> Vec<PathBuf> {
            paths.candidates(name, Path::new("/prog/x"), rpath, runpath).collect()
        };
        let found = candidates("libx.so.1", Some("/old"), None);
        let due = ["/old/libx.so.1", "/env/libx.so.1", "/opt/x/libx.so.1", "/lib/default/libx.so.1"];
        assert_eq!(found, due.map(PathBuf::from));
        let found = candidates("libx.so.1", Some("/old"), Some("$ORIGIN/../lib"));
        assert_eq!(found[..2], ["/env/libx.so.1", "/prog/../lib/libx.so.1"].map(PathBuf::from));
        assert_eq!(candidates("/a/b.so", Some("/old"), None), [PathBuf::from("/a/b.so")]);
    }

    #[test]
    fn a_file_system_that_never_answers_is_not_waited_for() {
        let Some(folder) = SilentFolder::mount() else { return };
        let asker = folder.path().join("x");
        let found = folder
            .within_limit(move || SearchPaths::default().candidates("libx.so", &asker, None, Some("$ORIGIN")).next());
        assert_eq!(found.flatten(), Some(folder.path().join("libx.so")));
    }

    #[test]
    fn a_list_of_any_length_is_searched_in_part() {
        let long = format!("/first:{}:{}", "x".repeat(LONGEST_PATH), "/folder:".repeat(500_000));
        let paths = SearchPaths { from_environment: Some(long.clone()), ..SearchPaths::default() };
        let count = |rpath, runpath| paths.candidates("libx.so", Path::new("/prog/x"), rpath, runpath).count();
        assert_eq!(count(None, Some(&long)), 2 * (MOST_FOLDERS - 1));
        assert_eq!(count(Some(&long), None), 2 * (MOST_FOLDERS - 1));
        assert_eq!(paths.candidates("/lib/libx.so", Path::new("/prog/x"), None, Some(&long)).count(), 1);
    }

    #[test]
    fn a_name_that_is_longer_than_any_path_is_not_searched() {
        let (longest, paths) = ("x".repeat(LONGEST_PATH - 1), SearchPaths::default());
        let count = |name: &str| paths.candidates(name, Path::new("/prog/x"), None, Some("/a:/b")).count();
        assert_eq!([count(&longest), count(&(longest.clone() + "x")), count(&("/".to_owned() + &longest))], [2, 0, 0]);
    }

    #[test]
    fn names_are_in_the_order_of_the_linker() {
        let sorted = ["lib12.so", "lib2.so", "liba.so.12", "liba.so.9", "liba.so.", "liba.so", "liba-x.so", "lib"];
        assert!(sorted.is_sorted_by(|greater, less| {
            let orders = [compare(greater.as_bytes(), less.as_bytes()), compare(less.as_bytes(), greater.as_bytes())];
            orders == [Ordering::Greater, Ordering::Less]
        }));
        assert_eq!(compare(b"lib1.so", b"lib01.so"), Ordering::Equal);
        assert_eq!(compare(b"", b""), Ordering::Equal);
        assert!(compare(b"99999999999999999999", b"1") != Ordering::Equal);
    }

    #[test]
    fn every_library_of_a_cache_is_found() {
        let names =
            ["libc.so.6", "libb.so.01", "libb.so.1", "libb.so.1", "liba2.so", "liba.so.10", "liba.so.9", "lib.so"];
        for length in 0..=names.len() {
            let entries: Vec<_> =
                names[..length].iter().enumerate().map(|(at, name)| (*name, at.to_string())).collect();
            let entries: Vec<_> = entries.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let cache = LoaderCache::parse(cache(&entries)).unwrap();
            for name in names {
                let due = entries.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value);
                assert_eq!(cache.find(name).collect::<Vec<_>>(), due.collect::<Vec<_>>(), "{name} of {length}");
            }
            assert_eq!(cache.find("libx.so").next(), None);
        }
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
