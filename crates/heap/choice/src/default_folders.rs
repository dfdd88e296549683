//! Folders in which the dynamic linker looks by itself, without a cache: a container or an initramfs may have none.

use object::elf::{EM_AARCH64, EM_X86_64};
use process_view::FoundFile;
use std::path::{Path, PathBuf};

/// A dynamic linker, identified by the facts in an executable.
#[derive(Clone, Copy, Debug)]
pub struct Linker<'a> {
    /// PT_INTERP.
    pub path: &'a str,
    /// `e_machine` of the executable.
    pub machine: u16,
}

/// Folders that every glibc may have been built for, after those for its own triplet (`ld.so --help` lists them).
/// musl's linker has others, see [`musl_folders`].
const COMMON: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// The folders that musl's linker uses if it has no list (ldso/dynlink.c).
const MUSL: &str = "/lib:/usr/local/lib:/usr/lib";

impl Linker<'_> {
    /// True for musl's, which has no cache and its own list.
    pub fn is_musl(&self) -> bool {
        self.file_name().starts_with("ld-musl-")
    }

    fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// The folders of this linker on this machine.
    pub fn folders(&self) -> Vec<PathBuf> {
        if self.is_musl() {
            let list = self.musl_list().and_then(|list| linux::text::text_of(list).ok());
            return musl_folders(list.as_deref());
        }
        let real = real_path(Path::new(self.path));
        self.glibc_folders(real.as_deref().unwrap_or(Path::new(self.path)))
    }

    /// The folders of a glibc whose linker is the file `real`: that file's own folder if the C library is in it, then
    /// Debian's for the machine, then the common ones.
    fn glibc_folders(&self, real: &Path) -> Vec<PathBuf> {
        let triplet = match object::elf::Machine(self.machine) {
            EM_X86_64 => Some("x86_64-linux-gnu"),
            EM_AARCH64 => Some("aarch64-linux-gnu"),
            _ => None,
        };
        let of_triplet = ["/lib", "/usr/lib"].map(|folder| triplet.map(|triplet| Path::new(folder).join(triplet)));
        let beside = real.parent().map(Path::to_owned);
        let common = COMMON.iter().map(PathBuf::from);
        let mut folders: Vec<PathBuf> =
            beside.into_iter().chain(of_triplet.into_iter().flatten()).chain(common).collect();
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        folders
    }

    /// The list of musl's linker: `/etc/ld-musl-ARCH.path`. A linker elsewhere may have one beside it, which is not read: the
    /// program that names the linker could make it any file.
    fn musl_list(&self) -> Option<PathBuf> {
        let is_usual = Path::new(self.path).parent() == Some(Path::new("/lib"));
        let name = self.file_name().split(".so").next()?;
        is_usual.then(|| Path::new("/etc").join(format!("{name}.path")))
    }
}

/// The path of a regular file without symbolic links; `None` if there is no such file, or its file system is not asked. Paths
/// come from foreign files, and canonicalize(3) would wait for every file system on the way.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    FoundFile::at(path).ok()??.path().ok()
}

/// Folders of a list, one in each line or between colons; without a list those that musl knows by itself.
fn musl_folders(list: Option<&str>) -> Vec<PathBuf> {
    list.unwrap_or(MUSL)
        .split([':', '\n'])
        .map(str::trim)
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent_folder::SilentFolder;

    fn glibc(path: &str, machine: u16, real: &str) -> Vec<String> {
        let folders = Linker { path, machine }.glibc_folders(Path::new(real));
        folders.iter().map(|folder| folder.display().to_string()).collect()
    }

    #[test]
    fn glibc_looks_beside_its_linker_and_in_the_folders_of_the_triplet() {
        let path = "/lib64/ld-linux-x86-64.so.2";
        let debian = glibc(path, EM_X86_64.0, "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        let due = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
        assert_eq!(debian, due);
        // A copied linker that is no link: the folders of the triplet still count.
        let copied = glibc(path, EM_X86_64.0, path);
        assert_eq!(copied[..3], ["/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]);
        let arm = glibc("/lib/ld-linux-aarch64.so.1", EM_AARCH64.0, "/lib/ld-linux-aarch64.so.1");
        assert_eq!(arm[..3], ["/lib", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]);
        let elsewhere = glibc("/gnu/store/x/lib/ld.so", 0, "/gnu/store/x/lib/ld.so");
        assert_eq!(elsewhere[..2], ["/gnu/store/x/lib", "/lib64"]);
    }

    #[test]
    fn a_linker_on_a_file_system_that_never_answers_is_not_waited_for() {
        let Some(folder) = SilentFolder::mount() else { return };
        let path = folder.path().join("ld.so").display().to_string();
        let folders = folder.within_limit(move || Linker { path: &path, machine: EM_X86_64.0 }.folders());
        assert_eq!(folders.and_then(|folders| folders.first().cloned()).as_deref(), Some(folder.path()));
    }

    #[test]
    fn musl_has_a_list_of_its_own() {
        let linker = |path| Linker { path, machine: EM_X86_64.0 };
        let usual = linker("/lib/ld-musl-x86_64.so.1");
        assert!(usual.is_musl() && !linker("/lib64/ld-linux-x86-64.so.2").is_musl());
        assert_eq!(usual.musl_list(), Some(PathBuf::from("/etc/ld-musl-x86_64.path")));
        assert_eq!(linker("/opt/musl/lib/ld-musl-x86_64.so.1").musl_list(), None);
        assert_eq!(musl_folders(None), ["/lib", "/usr/local/lib", "/usr/lib"].map(PathBuf::from));
        let listed = musl_folders(Some("/lib/x86_64-linux-musl\n/usr/lib:/opt\n"));
        assert_eq!(listed, ["/lib/x86_64-linux-musl", "/usr/lib", "/opt"].map(PathBuf::from));
    }
}
