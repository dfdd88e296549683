//! Settings that end the TLB shootdowns sent by an allocator: it then keeps freed memory. For each family and version,
//! with costs and documentation.
//!
//! The knowledge is data, in `cures.toml`. The user's settings never change: [`Cure::applied`] adds only missing
//! settings, and reports those that are kept.
#![forbid(unsafe_code)]

use crate::{Allocator, Environment, Family, Runtime, merged};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// All that is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cures {
    cure: Vec<Cure>,
    advice: Vec<Advice>,
}

/// Environment settings of one allocator, for versions that know them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cure {
    /// Its name in the data.
    pub id: String,
    #[serde(skip_serializing)]
    family: String,
    /// Text that the allocator's file must hold.
    #[serde(default, skip_serializing)]
    knows: Option<String>,
    /// Text that it must not hold.
    #[serde(default, skip_serializing)]
    lacks: Option<String>,
    /// The versions that it is for, in words.
    pub versions: String,
    /// The behaviour that it cures.
    #[serde(default)]
    pub when: When,
    /// The effect.
    pub effect: Effect,
    /// The environment variable.
    pub variable: String,
    #[serde(default, skip_serializing)]
    between: Option<char>,
    #[serde(default, skip_serializing)]
    equals: Option<char>,
    #[serde(skip_serializing)]
    settings: Vec<(String, String)>,
    #[serde(default, skip_serializing)]
    same: Vec<(String, String)>,
    #[serde(default, skip_serializing)]
    also_in: Vec<String>,
    /// Flag that the program must be started with.
    #[serde(default, skip_serializing)]
    with: Option<String>,
    /// Flags that it must not be started with.
    #[serde(default, skip_serializing)]
    without: Vec<String>,
    /// The price.
    pub costs: String,
    /// Its documentation.
    pub source: String,
}

/// The behaviour that a cure is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Memory is given back, in whatever way.
    #[default]
    Always,
    /// Free pages are given back; blocks that are unmapped are not affected.
    Purging,
    /// Memory is given back so that the kernel clears it for `calloc`.
    Calloc,
}

/// The effect of a cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The allocator gives nothing back by itself any more, except for the cases in `costs`.
    Ends,
    /// It gives back less, or less often.
    Reduces,
}

/// The advice if no environment variable helps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// Its name in the data.
    pub id: String,
    #[serde(skip_serializing)]
    family: String,
    #[serde(default, skip_serializing)]
    lacks: Option<String>,
    /// Variables that steer it, though none ends its shootdowns.
    #[serde(default, skip_serializing)]
    pub variables: Vec<String>,
    /// The advice.
    pub says: String,
    /// Its documentation.
    pub source: String,
}

/// Flags that a program is started with: by them a Java virtual machine's collector is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(Vec<String>);

impl Flags {
    /// The words of a command line, and the words of the variables from which java takes flags.
    pub fn of(words: impl IntoIterator<Item = String>, environment: &Environment) -> Self {
        const VARIABLES: [&str; 3] = ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"];
        let lists = VARIABLES.iter().filter_map(|name| environment.get(name));
        let set = lists.flat_map(str::split_whitespace).map(str::to_owned);
        Self(words.into_iter().chain(set).collect())
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|word| word == flag)
    }
}

/// A cure merged with an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The variable's new value; `None` if the user has set it completely.
    pub value: Option<String>,
    /// Settings that are added: names, or the variable's name if it has one value.
    pub added: Vec<String>,
    /// Settings that the user has set and that stay.
    pub stays: Vec<String>,
    /// Those of `stays` that have another value than the cure's, which has little or no effect then.
    pub against: Vec<String>,
}

static CURES: LazyLock<Cures> =
    LazyLock::new(|| toml::from_str(include_str!("cures.toml")).expect("the embedded data are tested"));

/// The data of this release.
pub fn cures() -> &'static Cures {
    &CURES
}

fn name_of(family: &Family) -> &'static str {
    match family {
        Family::Glibc { .. } => "glibc",
        Family::Musl => "musl",
        Family::Jemalloc { .. } => "jemalloc",
        Family::Tcmalloc => "tcmalloc",
        Family::Mimalloc => "mimalloc",
        Family::Pagelift => "pagelift",
        Family::Go => "go",
        Family::Jvm => "jvm",
        Family::Checker { .. } | Family::Unknown => "unknown",
    }
}

impl Cures {
    /// The cures that this allocator knows in a program that is started with these flags.
    pub fn of<'a>(&'a self, allocator: &Allocator, flags: &Flags) -> Vec<&'a Cure> {
        // GLIBC_TUNABLES came with glibc 2.26.
        if matches!(allocator.family, Family::Glibc { minor: Some(..26) }) {
            return Vec::new();
        }
        let family = name_of(&allocator.family);
        self.cure.iter().filter(|cure| cure.family == family && cure.fits(allocator, flags)).collect()
    }

    /// The advice for an allocator without a cure, and for a runtime above the allocator.
    pub fn advice_for(&self, allocator: &Allocator) -> Option<&Advice> {
        let runtime = (allocator.runtime == Some(Runtime::V8)).then(|| self.advice_about("v8")).flatten();
        let family = name_of(&allocator.family);
        let lacks = |advice: &&Advice| advice.lacks.as_ref().is_none_or(|text| !allocator.settings.contains(text));
        runtime.or_else(|| self.advice.iter().find(|advice| advice.family == family && lacks(advice)))
    }

    /// The advice for a cause that is no allocator: `program`, `v8`, `kernel-ksm`.
    pub fn advice_about(&self, what: &str) -> Option<&Advice> {
        self.advice.iter().find(|advice| advice.family == what)
    }
}

impl Cure {
    fn fits(&self, allocator: &Allocator, flags: &Flags) -> bool {
        let knows = |text: &String| allocator.settings.contains(text);
        let by_version = self.knows.as_ref().is_none_or(knows) && !self.lacks.as_ref().is_some_and(knows);
        let by_flags = self.with.iter().all(|flag| flags.has(flag)) && !self.without.iter().any(|flag| flags.has(flag));
        by_version && by_flags
    }

    /// The variable that this allocator reads: jemalloc may be built with a prefix.
    pub fn variable_of<'a>(&'a self, allocator: &'a Allocator) -> &'a str {
        match &allocator.family {
            Family::Jemalloc { variable, .. } => variable,
            _ => &self.variable,
        }
    }

    /// All variables in which a user may have set a part.
    pub fn variables<'a>(&'a self, allocator: &'a Allocator) -> impl Iterator<Item = &'a str> {
        let others = self.same.iter().map(|(name, _)| name).chain(&self.also_in).map(String::as_str);
        [self.variable_of(allocator)].into_iter().chain(others)
    }

    /// The settings in the variable's syntax.
    pub fn value(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| self.setting(name, value)).collect();
        settings.join(&self.between.map(String::from).unwrap_or_default())
    }

    fn setting(&self, name: &str, value: &str) -> String {
        match self.equals {
            Some(_) if value.is_empty() => name.to_owned(),
            Some(equals) => format!("{name}{equals}{value}"),
            None => value.to_owned(),
        }
    }

    /// Merges the cure with the value of `variable` in the environment. The user's settings are kept.
    pub fn applied(&self, variable: &str, environment: &Environment) -> Applied {
        self.applied_to(variable, environment, environment.get(variable))
    }

    /// Merges the cure with `list` as the variable's value, and omits settings that the environment already has: so no
    /// text of the environment is in the value.
    pub fn applied_to<'a>(&self, variable: &str, environment: &'a Environment, list: Option<&str>) -> Applied {
        let before = environment.get(variable);
        let (Some(between), Some(equals)) = (self.between, self.equals) else {
            let names = vec![variable.to_owned()];
            return match before {
                Some(found) => {
                    let against = if found.trim() == self.value() { Vec::new() } else { names.clone() };
                    Applied { value: None, added: Vec::new(), stays: names, against }
                }
                None => Applied { value: Some(self.value()), added: names, stays: Vec::new(), against: Vec::new() },
            };
        };
        let value_in = |list: Option<&'a str>, name: &str| {
            let settings = list.unwrap_or_default().split(between);
            // Of several, the last counts.
            settings
                .map(|setting| setting.split_once(equals).unwrap_or((setting, "")))
                .rfind(|(key, _)| key.trim() == name)
        };
        let by_the_user = |name: &str| {
            let same = || self.same.iter().find_map(|(other, of)| environment.get(other).filter(|_| of == name));
            let elsewhere = || self.also_in.iter().find_map(|other| value_in(environment.get(other), name));
            let set = value_in(before, name).map(|(_, value)| value).or_else(same);
            set.or_else(|| elsewhere().map(|(_, value)| value)).map(str::trim)
        };
        let (stays, ours): (Vec<_>, Vec<_>) = self.settings.iter().partition(|(name, _)| by_the_user(name).is_some());
        let against = stays.iter().filter(|(name, value)| by_the_user(name) != Some(value.as_str()));
        let against = against.map(|(name, _)| name.clone()).collect();
        let ours: Vec<(&str, &str)> = ours.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Applied {
            value: merged(list, between, equals, &ours),
            added: ours.iter().map(|(name, value)| self.setting(name, value)).collect(),
            stays: stays.iter().map(|(name, _)| name.clone()).collect(),
            against,
        }
    }
}

#[cfg(test)]
mod tests;
