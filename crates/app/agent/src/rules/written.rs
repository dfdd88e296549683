//! The tables of a configuration file as they are written.

use super::listen::Listen;
use super::pattern::Pattern;
use super::quantity::{Share, Size, Time};
use super::quiet::QuietHours;
use options::{Choice, Kind, Pages};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::PathBuf;
use toml::Spanned;

/// One file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTable {
    pub agent: Option<Spanned<AgentTable>>,
    #[serde(default)]
    pub rule: Vec<Spanned<RuleTable>>,
}

/// `[agent]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTable {
    pub mode: Option<Mode>,
    pub scan: Option<Spanned<Time>>,
    pub settle: Option<Time>,
    pub overhead: Option<Spanned<Share>>,
    pub cpu: Option<Spanned<Share>>,
    pub max_pause: Option<Time>,
    pub max_memory: Option<Size>,
    pub max_memory_per_cgroup: Option<Size>,
    pub max_cpu_pressure: Option<Share>,
    pub max_memory_pressure: Option<Share>,
    pub min_free_memory: Option<Share>,
    #[serde(default)]
    pub quiet: Vec<QuietHours>,
    pub metrics: Option<Listen>,
    pub textfile: Option<Spanned<PathBuf>>,
}

/// The agent's treatment of eligible processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Reports the lifts that it would make, and lifts nothing.
    #[default]
    Observe,
    /// Lifts.
    Act,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observe => "observe",
            Self::Act => "act",
        })
    }
}

/// `[[rule]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTable {
    pub name: Spanned<String>,
    #[serde(rename = "match")]
    pub conditions: Spanned<MatchTable>,
    pub lift: Option<Spanned<Vec<KindWord>>>,
    pub pages: Option<Spanned<PagesWord>>,
    pub keep: Option<Spanned<Keep>>,
    pub rollout: Option<Share>,
    pub holdout: Option<Share>,
    pub max_memory: Option<Size>,
    pub allow: Option<Spanned<AllowTable>>,
}

/// `match = { … }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatchTable {
    #[serde(default)]
    pub exe: Patterns,
    #[serde(default)]
    pub name: Patterns,
    #[serde(default)]
    pub unit: Patterns,
    #[serde(default)]
    pub cgroup: Patterns,
    #[serde(default)]
    pub user: Patterns,
    pub env: Option<Spanned<String>>,
    pub min_text: Option<Size>,
    pub min_cpu: Option<Time>,
}

/// `allow = { … }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowTable {
    pub lift: Option<Vec<KindWord>>,
    pub pages: Option<Vec<PagesWord>>,
    pub max_memory: Option<Size>,
}

/// When a lift stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Keep {
    /// If measured blocks show that it pays; otherwise the lift is undone.
    #[default]
    #[serde(rename = "if it pays")]
    IfItPays,
    /// Without a measurement.
    #[serde(rename = "always")]
    Always,
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IfItPays => "if it pays",
            Self::Always => "always",
        })
    }
}

/// A kind of memory, by the word that `--lift` has for it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct KindWord(pub Kind);

impl TryFrom<String> for KindWord {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        Kind::from_word(&word).map(Self)
    }
}

/// A source of huge pages, by the word that `--pages` has for it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct PagesWord(pub Pages);

impl TryFrom<String> for PagesWord {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        Pages::from_word(&word).map(Self)
    }
}

/// One pattern or a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(pub Vec<Pattern>);

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Patterns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern or a list of patterns")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Patterns, E> {
                Ok(Patterns(vec![Pattern::try_from(text.to_owned()).map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Patterns, A::Error> {
                let mut patterns = Vec::new();
                while let Some(pattern) = items.next_element()? {
                    patterns.push(pattern);
                }
                if patterns.is_empty() {
                    return Err(de::Error::custom("an empty list matches nothing; needed: at least one pattern"));
                }
                Ok(Patterns(patterns))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}
