//! Reservations in other files that are read at boot, if the kernel or sysctl(8) accepts only one number of pages.
//! Pure.

use crate::boot::{BootKind, BootMachine};
use address_space::PageSize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{iter, mem};

/// Files that are read at boot, from the root folder: first `file`, then the files in `folders` whose names end with
/// `ending`, in the order of their names. Of files with the same name only the one in the first folder is read.
pub(crate) struct Places {
    pub file: &'static str,
    pub folders: &'static [&'static str],
    pub ending: &'static str,
}

/// The folders of sysctl.d(5) by priority. The last one differs from the one before only on a system with a separate /usr.
const SYSCTL: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];

/// Returns the files of this kind; `None` if files add to each other.
pub(crate) fn places(kind: BootKind) -> Option<Places> {
    match kind {
        BootKind::Systemd => None,
        BootKind::Sysctl => Some(Places { file: "etc/sysctl.conf", folders: &SYSCTL, ending: ".conf" }),
        BootKind::Grub => Some(Places { file: "etc/default/grub", folders: &["etc/default/grub.d"], ending: ".cfg" }),
    }
}

impl Places {
    /// The paths of the files that are read besides the file `own`. `names_in` returns the names in a folder.
    pub fn others(&self, own: &Path, mut names_in: impl FnMut(&Path) -> Vec<String>) -> Vec<PathBuf> {
        let mut by_name = BTreeMap::new();
        for folder in self.folders.iter().map(Path::new) {
            for name in names_in(folder).into_iter().filter(|name| name.ends_with(self.ending)) {
                by_name.entry(name).or_insert(folder);
            }
        }
        let files = by_name.into_iter().filter(|(name, _)| own.file_name() != Some(OsStr::new(name)));
        let files = files.map(|(name, folder)| folder.join(name));
        iter::once(PathBuf::from(self.file)).chain(files).collect()
    }
}

/// A setting that replaces the reservation, or that the reservation would replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// The setting, as in the file.
    pub setting: String,
    /// The reason why one is ignored.
    pub why: &'static str,
}

/// The first setting of pages of these sizes in a text of a file of this kind.
pub(crate) fn earlier(
    kind: BootKind,
    text: &str,
    sizes: &[PageSize],
    machine: &BootMachine,
    is_gigantic: impl Fn(PageSize) -> bool,
) -> Option<Earlier> {
    match kind {
        BootKind::Systemd => None,
        BootKind::Sysctl => in_sysctl(text),
        BootKind::Grub => on_command_line(text, sizes, machine.default, sizes.iter().any(|&size| is_gigantic(size))),
    }
}

fn in_sysctl(text: &str) -> Option<Earlier> {
    let why = "the last file that sets it counts";
    let is_pool = |name: &str| name.trim().trim_start_matches('-').replace('/', ".") == "vm.nr_hugepages";
    let line = text.lines().find(|line| line.split_once('=').is_some_and(|(name, _)| is_pool(name)))?;
    Some(Earlier { setting: line.trim().to_owned(), why })
}

/// `hugepages=` is the number of pages of the size before it, otherwise of the default size. The kernel ignores a
/// second `hugepagesz=` of a size, with the number after it (`hugepagesz_setup` in mm/hugetlb.c), and takes no gigantic
/// page at boot if there is a `hugetlb_cma=`, of which the last one counts.
fn on_command_line(text: &str, sizes: &[PageSize], default: Option<PageSize>, gigantic: bool) -> Option<Earlier> {
    let mut size = default;
    for word in words(text) {
        let word = word.strip_prefix("GRUB_CMDLINE_LINUX=").unwrap_or(&word);
        let word = word.strip_prefix("GRUB_CMDLINE_LINUX_DEFAULT=").unwrap_or(word);
        let Some((name, value)) = word.split_once('=') else { continue };
        if name == "hugepagesz" || name == "default_hugepagesz" {
            size = value.parse().ok();
        }
        let is_number = name == "hugepagesz" || name == "hugepages";
        let why = match name {
            _ if is_number && size.is_some_and(|size| sizes.contains(&size)) => {
                "the kernel reads one number of pages of a size"
            }
            "hugetlb_cma" if gigantic => "the kernel reads one, and takes no gigantic page at boot beside it",
            _ => continue,
        };
        return Some(Earlier { setting: word.to_owned(), why });
    }
    None
}

/// The words of a shell's text, without quotes and comments.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => word.extend(signs.next().filter(|&next| next != '\n')),
            '#' if quote.is_none() && word.is_empty() => {
                signs.find(|&sign| sign == '\n');
            }
            '"' | '\'' if quote.is_none_or(|open| open == sign) => {
                quote = if quote.is_none() { Some(sign) } else { None };
                // A parameter begins behind it.
                words.push(mem::take(&mut word));
            }
            sign if sign.is_whitespace() => words.push(mem::take(&mut word)),
            sign => word.push(sign),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(text: &str, size: &str) -> Option<String> {
        let machine = BootMachine { default: "2M".parse().ok(), ..BootMachine::default() };
        let is_gigantic = |size: PageSize| size.bytes() >= 1 << 30;
        let found = earlier(BootKind::Grub, text, &[size.parse().unwrap()], &machine, is_gigantic);
        found.map(|earlier| earlier.setting)
    }

    #[test]
    fn a_size_is_read_once() {
        let text = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX quiet hugepagesz=1G hugepages=0:2,1:2 hugepages2=3\"\n";
        assert_eq!(found_in(text, "1G").as_deref(), Some("hugepagesz=1G"));
        assert_eq!(found_in(text, "2M"), None);
        // A number without a size before it is one of pages of the default size.
        let plain = "GRUB_CMDLINE_LINUX_DEFAULT='hugepages=64'";
        assert_eq!([found_in(plain, "2M").as_deref(), found_in(plain, "1G").as_deref()], [Some("hugepages=64"), None]);
        let other = "GRUB_CMDLINE_LINUX=\"default_hugepagesz=1G hugepages=2\"";
        assert_eq!([found_in(other, "2M").as_deref(), found_in(other, "1G").as_deref()], [None, Some("hugepages=2")]);
        assert_eq!(found_in("GRUB_CMDLINE_LINUX=default_hugepagesz=1G", "1G"), None, "a size alone reserves nothing");
        assert_eq!(found_in("GRUB_CMDLINE_LINUX=hugepages=3", "2M").as_deref(), Some("hugepages=3"));
    }

    #[test]
    fn memory_that_is_set_aside_keeps_gigantic_pages_from_being_taken() {
        let text = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugetlb_cma=0:2048M\"";
        assert_eq!(
            [found_in(text, "1G").as_deref(), found_in(text, "2M").as_deref()],
            [Some("hugetlb_cma=0:2048M"), None]
        );
    }

    #[test]
    fn words_are_those_of_a_shell() {
        let comments = "# hugepagesz=1G, don't\nA=1 # hugepagesz=1G\nGRUB_CMDLINE_LINUX=\"a#b \\\n  c\"\n";
        assert_eq!(found_in(comments, "1G"), None);
        assert_eq!(words(comments), ["A=1", "GRUB_CMDLINE_LINUX=", "a#b", "c"]);
        assert_eq!(words("X='say \"hello'"), ["X=", "say", "\"hello"]);
    }

    #[test]
    fn files_of_all_folders_are_read_by_name() {
        let names_in = |folder: &Path| {
            let names: &[&str] = match folder.to_str().unwrap() {
                "etc/sysctl.d" => &["50-a.conf", "README"],
                "run/sysctl.d" => &["60-own.conf", "70-b.conf"],
                "usr/lib/sysctl.d" => &["10-c.conf", "50-a.conf", "70-b.conf"],
                _ => &[],
            };
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let others = places(BootKind::Sysctl).unwrap().others(Path::new("etc/sysctl.d/60-own.conf"), names_in);
        let read =
            ["etc/sysctl.conf", "usr/lib/sysctl.d/10-c.conf", "etc/sysctl.d/50-a.conf", "run/sysctl.d/70-b.conf"];
        assert_eq!(others, read.map(PathBuf::from));
    }

    #[test]
    fn sysctl_has_one_number() {
        let found = |text: &str| earlier(BootKind::Sysctl, text, &[], &BootMachine::default(), |_| false);
        assert_eq!(found(" -vm/nr_hugepages=3\n").unwrap().setting, "-vm/nr_hugepages=3");
        for text in ["# vm.nr_hugepages = 3\n", "; vm.nr_hugepages = 3\n", "vm.nr_hugepages_mempolicy = 3\n", ""] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
