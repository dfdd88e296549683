//! What the user asks for.

use crate::Kind;
use address_space::{LoadedObject, ObjectRole, PageSize};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::{Chars, FromStr};

/// Where huge pages may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// A shared image where there is one, else the pool where pages are free, else transparent huge pages.
    #[default]
    Auto,
    /// Shared images for what is never written.
    Image,
    /// The hugetlb pool only.
    Hugetlb,
    /// Transparent huge pages only.
    Thp,
}

/// Where huge pages for writable ranges may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritablePages {
    /// Transparent: the kernel handles fork's copy-on-write by itself.
    #[default]
    Thp,
    /// The pool, on request: a child of a fork needs pool pages for what it writes.
    Hugetlb,
}

/// What to do with huge pages that hold read-only data and code side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edges {
    /// Leave them on ordinary pages; every protection stays as it was.
    #[default]
    Exact,
    /// Lift them as readable and executable: read-only data in them becomes executable. Never a writable page.
    MergeReadOnly,
}

/// A set of [`Kind`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ALL: Self = Self(0b1_1111);

    /// The set of these kinds.
    pub fn of(kinds: &[Kind]) -> Self {
        Self(kinds.iter().fold(0, |set, &kind| set | 1 << kind as u8))
    }

    /// True where `kind` is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::ALL
    }
}

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
    /// Objects whose file name or path matches one of these patterns (`*` and `?` as in a shell).
    Matching(Vec<String>),
}

impl ObjectChoice {
    /// True where the object is chosen.
    pub fn chooses(&self, object: &LoadedObject) -> bool {
        match self {
            Self::WorthIt | Self::All => true,
            Self::Executable => object.role == ObjectRole::Executable,
            Self::Matching(patterns) => patterns.iter().any(|pattern| match pattern.as_str() {
                "exe" => object.role == ObjectRole::Executable,
                _ => matches(pattern, object.name()) || matches(pattern, &object.path),
            }),
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

/// Shell-like matching of a whole text by a pattern with `*` and `?`. Allocates nothing.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Behind the last `*`: the rest of the pattern, and of the text from where the `*` ends for now.
    let mut star: Option<(Chars, Chars)> = None;
    loop {
        let (before, mut behind) = (text.clone(), pattern.clone());
        match (behind.next(), text.next()) {
            (Some('*'), _) => {
                star = Some((behind.clone(), before.clone()));
                (pattern, text) = (behind, before);
            }
            (None, None) => return true,
            (Some(c), Some(found)) if c == '?' || c == found => pattern = behind,
            (_, None) => return false,
            (_, Some(_)) => {
                let Some((after, taken)) = &mut star else { return false };
                taken.next();
                (pattern, text) = (after.clone(), taken.clone());
            }
        }
    }
}

/// Everything the user can ask of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Source of huge pages.
    pub pages: Pages,
    /// Size of huge pages; the machine's usual one where not given.
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
}

impl Policy {
    /// False where a lift by this policy makes nothing resident, so that it does not matter how much memory is left: shared
    /// images show what is there already.
    pub fn may_fill_memory(&self) -> bool {
        let writable = [Kind::Data, Kind::Bss, Kind::Heap];
        self.pages != Pages::Image || writable.into_iter().any(|kind| self.kinds.contains(kind))
    }

    /// False where nothing that the planner does by this policy depends on the pools.
    pub fn may_take_from_pools(&self) -> bool {
        let for_read_only = matches!(self.pages, Pages::Auto | Pages::Hugetlb);
        for_read_only || self.writable_pages == WritablePages::Hugetlb || self.page_size.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::{Address, ElfImage, ElfKind};

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text, expected) in [
            ("libjvm*", "libjvm.so", true),
            ("*.so", "libjvm.so", true),
            ("lib?.so", "libz.so", true),
            ("lib?.so", "libzz.so", false),
            ("*z*s*", "libz.so.1", true),
            ("lib?.so", "bin1.so", false),
            ("libz.so", "libm.so", false),
            ("", "x", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

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
            LoadedObject { path: path.to_owned(), role, bias: 0, image }
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
        // `exe` means the executable, whatever it is called, and no object of that name.
        assert_eq!(chosen(matching(&["exe"])), [true, false, false]);
        assert_eq!(chosen(matching(&["libz*", "none"])), [false, true, false]);
        assert_eq!(chosen(matching(&["/opt/*"])), [false, false, true]);
        assert_eq!(chosen(matching(&["lib"])), [false; 3]);
    }

    #[test]
    fn only_what_a_policy_may_take_is_looked_at() {
        let of = |pages, kinds: &[Kind]| Policy { pages, kinds: Kinds::of(kinds), ..Policy::default() };
        let read_only = [Kind::Text, Kind::Rodata];
        let fills =
            [of(Pages::Image, &read_only), of(Pages::Image, &[Kind::Text, Kind::Heap]), of(Pages::Thp, &read_only)];
        assert_eq!(fills.map(|policy| policy.may_fill_memory()), [false, true, true]);
        let takes = [Pages::Auto, Pages::Image, Pages::Hugetlb, Pages::Thp].map(|pages| of(pages, &read_only));
        assert_eq!(takes.each_ref().map(Policy::may_take_from_pools), [true, false, true, false]);
        let asked = |policy: Policy| policy.may_take_from_pools();
        assert!(asked(Policy { writable_pages: WritablePages::Hugetlb, ..takes[3].clone() }));
        assert!(asked(Policy { page_size: PageSize::new(4096).ok(), ..takes[3].clone() }));
    }

    #[test]
    fn kinds_are_a_set() {
        let set = Kinds::of(&[Kind::Text, Kind::Bss]);
        assert!(set.contains(Kind::Text) && set.contains(Kind::Bss) && !set.contains(Kind::Data));
        assert!(Kinds::ALL.contains(Kind::Heap));
        assert_eq!(Kinds::of(&[Kind::Text, Kind::Bss, Kind::Text]), set, "a kind that is named twice is in the set");
    }
}
