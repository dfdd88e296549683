//! The memory to lift, and the source of its pages.

use crate::choices::choice;
use crate::{Kind, Kinds, Numa, matches};
use address_space::{LoadedObject, ObjectRole, PageSize};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// Where huge pages may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The file's page cache if it is in huge folios, otherwise a shared image if there is one, otherwise the pool if
    /// pages are free, otherwise transparent huge pages.
    #[default]
    Auto,
    /// The page cache of the files themselves, for what is never written.
    File,
    /// The page cache of the files if it can show them, otherwise shared images, for memory that is never written.
    FileThenImage,
    /// Shared images for what is never written.
    Image,
    /// The hugetlb pool only.
    Hugetlb,
    /// Transparent huge pages only.
    Thp,
}

choice!(Pages {
    "auto" => Auto: "The first available of these: huge folios of the file in the page cache, a shared image, free pages of the hugetlb pool, transparent huge pages.",
    "file" => File: "The page cache of the files themselves, for memory that is never written: nothing is copied.",
    "file+image" => FileThenImage: "The page cache of files that it holds in huge folios, and shared images for the rest.",
    "image" => Image: "Shared images, for memory that is never written (see `pagelift image`).",
    "hugetlb" => Hugetlb: "The hugetlb pool only.",
    "thp" => Thp: "Transparent huge pages only.",
});

impl Pages {
    /// True if the page cache of a file may show memory that is never written.
    pub const fn takes_files(self) -> bool {
        matches!(self, Self::Auto | Self::File | Self::FileThenImage)
    }

    /// True if a shared image may show memory that is never written.
    pub const fn takes_images(self) -> bool {
        matches!(self, Self::Auto | Self::Image | Self::FileThenImage)
    }

    /// True where what is never written is shown from a file or an image, and never copied.
    pub const fn only_shows(self) -> bool {
        matches!(self, Self::File | Self::FileThenImage | Self::Image)
    }
}

/// Whether files are brought into huge folios of the page cache before a program is lifted from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// If no process has the file mapped, within a bound of time and memory, and not again after a failure.
    #[default]
    Auto,
    /// Never: a file is used in its present state.
    Never,
    /// Even after an earlier failure.
    Always,
}

choice!(Prepare {
    "auto" => Auto: "If no process maps the file, within limits of time and memory; not again after a failure.",
    "never" => Never: "Never: files are used in their present state.",
    "always" => Always: "Always, even after a failure.",
});

/// Where huge pages for writable ranges may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritablePages {
    /// Transparent: the kernel handles fork's copy-on-write by itself.
    #[default]
    Thp,
    /// The pool, on request: a child of a fork needs pool pages for what it writes.
    Hugetlb,
}

choice!(WritablePages {
    "thp" => Thp: "Transparent huge pages: fork works as usual.",
    "hugetlb" => Hugetlb: "The pool: after a fork, writing needs free pool pages, or the child is killed by SIGBUS.",
});

/// The treatment of huge pages that contain read-only data and code side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edges {
    /// Leave them on ordinary pages; every protection stays as it was.
    #[default]
    Exact,
    /// Lift them as readable and executable: read-only data in them becomes executable. Never a writable page.
    MergeReadOnly,
}

choice!(Edges {
    "exact" => Exact: "Every protection stays as it was.",
    "merge-read-only" => MergeReadOnly: "Read-only data that shares a huge page with code becomes executable.",
});

/// Which objects to lift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObjectChoice {
    /// The executable and every object that holds at least one whole huge page.
    #[default]
    WorthIt,
    /// The executable alone.
    Executable,
    /// Every object, so that each small one is reported with its reason.
    All,
    /// Objects whose name, file name or path matches one pattern (`*` and `?` as in a shell).
    Matching(Vec<String>),
}

impl ObjectChoice {
    /// True if the object is chosen.
    pub fn chooses(&self, object: &LoadedObject) -> bool {
        match self {
            Self::WorthIt | Self::All => true,
            Self::Executable => object.role == ObjectRole::Executable,
            Self::Matching(patterns) => patterns.iter().any(|pattern| match pattern.as_str() {
                "exe" => object.role == ObjectRole::Executable,
                _ => [object.name(), object.file_name(), &object.path].iter().any(|name| matches(pattern, name)),
            }),
        }
    }
}

impl fmt::Display for ObjectChoice {
    /// The word that [`ObjectChoice::from_str`] reads; empty for the choice that has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorthIt => Ok(()),
            Self::Executable => f.write_str("exe"),
            Self::All => f.write_str("all"),
            Self::Matching(patterns) => f.write_str(&patterns.join(",")),
        }
    }
}

impl FromStr for ObjectChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "exe" => Ok(Self::Executable),
            "all" => Ok(Self::All),
            _ => {
                let patterns: Vec<_> = text.split(',').map(|p| p.trim().to_owned()).collect();
                if patterns.iter().any(String::is_empty) {
                    return Err("an empty pattern; write exe, all or names such as `libjvm*,libz.so.1`".to_owned());
                }
                Ok(Self::Matching(patterns))
            }
        }
    }
}

/// Everything the user can ask of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Source of huge pages.
    pub pages: Pages,
    /// Size of huge pages; the machine's default if not given.
    pub page_size: Option<PageSize>,
    /// Kinds of memory to lift.
    pub kinds: Kinds,
    /// Objects to lift.
    pub objects: ObjectChoice,
    /// Source of huge pages for writable ranges.
    pub writable_pages: WritablePages,
    /// Treatment of huge pages that hold read-only data and code.
    pub edges: Edges,
    /// Most bytes that a lift may make resident, pool pages included.
    pub max_memory: Option<u64>,
    /// NUMA nodes of the pages.
    pub numa: Numa,
    /// Seal copies that are never written (Linux 6.10). They cannot be restored then.
    pub seal: bool,
}

impl Policy {
    /// False if a lift by this policy makes no memory resident, so that the amount of free memory does not matter:
    /// shared images and the page cache show resident memory.
    pub fn may_fill_memory(&self) -> bool {
        let writable = [Kind::Data, Kind::Bss, Kind::Heap];
        !self.pages.only_shows() || writable.into_iter().any(|kind| self.kinds.contains(kind))
    }

    /// True where code or read-only data may come from the page cache of its file.
    pub fn may_use_files(&self) -> bool {
        let read_only = [Kind::Text, Kind::Rodata];
        self.pages.takes_files() && read_only.into_iter().any(|kind| self.kinds.contains(kind))
    }

    /// True where code or read-only data may come from a shared image.
    pub fn may_use_images(&self) -> bool {
        let read_only = [Kind::Text, Kind::Rodata];
        self.pages.takes_images() && read_only.into_iter().any(|kind| self.kinds.contains(kind))
    }

    /// False if no decision of the planner by this policy depends on the pools.
    pub fn may_take_from_pools(&self) -> bool {
        let for_read_only = matches!(self.pages, Pages::Auto | Pages::Hugetlb);
        for_read_only || self.writable_pages == WritablePages::Hugetlb || self.page_size.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::Choice;
    use address_space::{Address, ElfImage, ElfKind};

    #[test]
    fn object_choices_are_read() {
        assert_eq!("exe".parse(), Ok(ObjectChoice::Executable));
        assert_eq!("a,b*".parse(), Ok(ObjectChoice::Matching(vec!["a".into(), "b*".into()])));
        assert_eq!("all".parse(), Ok(ObjectChoice::All));
        assert!("a,,b".parse::<ObjectChoice>().is_err());
    }

    #[test]
    fn objects_are_chosen_by_role_name_or_path() {
        let object = |path: &str, role| {
            let image = ElfImage {
                machine: 62,
                kind: ElfKind::PositionIndependent,
                entry: Address(0),
                headers: None,
                segments: Vec::new(),
                relro: None,
                interpreter: None,
                dynamic: true,
                text_relocations: false,
                soname: None,
                build_id: None,
            };
            LoadedObject { path: path.to_owned(), link: None, role, bias: 0, image }
        };
        let objects = [
            object("/usr/bin/exe-1", ObjectRole::Executable),
            object("/usr/lib/libz.so.1", ObjectRole::SharedObject),
            object("/opt/exe", ObjectRole::SharedObject),
        ];
        let chosen = |choice: ObjectChoice| objects.each_ref().map(|object| choice.chooses(object));
        let matching = |patterns: &[&str]| ObjectChoice::Matching(patterns.iter().map(|&p| p.to_owned()).collect());
        assert_eq!([chosen(ObjectChoice::All), chosen(ObjectChoice::WorthIt)], [[true; 3]; 2]);
        assert_eq!(chosen(ObjectChoice::Executable), [true, false, false]);
        // `exe` is the executable, with any name, and no object of that name.
        assert_eq!(chosen(matching(&["exe"])), [true, false, false]);
        assert_eq!(chosen(matching(&["libz*", "none"])), [false, true, false]);
        assert_eq!(chosen(matching(&["/opt/*"])), [false, false, true]);
        assert_eq!(chosen(matching(&["lib"])), [false; 3]);
    }

    #[test]
    fn images_are_taken_where_their_name_says_so_and_by_default() {
        let taking: Vec<&str> = Pages::ALL.iter().filter(|c| c.value.takes_images()).map(|c| c.word).collect();
        assert_eq!(taking, ["auto", "file+image", "image"]);
    }

    #[test]
    fn only_what_a_policy_may_take_is_looked_at() {
        let of = |pages, kinds: &[Kind]| Policy { pages, kinds: Kinds::of(kinds), ..Policy::default() };
        let read_only = [Kind::Text, Kind::Rodata];
        let fills = [
            of(Pages::Image, &read_only),
            of(Pages::File, &read_only),
            of(Pages::Image, &[Kind::Text, Kind::Heap]),
            of(Pages::Thp, &read_only),
        ];
        assert_eq!(fills.map(|policy| policy.may_fill_memory()), [false, false, true, true]);
        assert!(!of(Pages::FileThenImage, &read_only).may_fill_memory());
        let files = [of(Pages::File, &[Kind::Rodata]), of(Pages::Auto, &[Kind::Data]), of(Pages::Image, &read_only)];
        assert_eq!(files.map(|policy| policy.may_use_files()), [true, false, false]);
        assert!(of(Pages::FileThenImage, &read_only).may_use_files());
        let takes = [Pages::Auto, Pages::Image, Pages::Hugetlb, Pages::Thp].map(|pages| of(pages, &read_only));
        assert_eq!(takes.each_ref().map(Policy::may_take_from_pools), [true, false, true, false]);
        let asked = |policy: Policy| policy.may_take_from_pools();
        assert!(asked(Policy { writable_pages: WritablePages::Hugetlb, ..takes[3].clone() }));
        assert!(asked(Policy { page_size: PageSize::new(4096).ok(), ..takes[3].clone() }));
    }
}
