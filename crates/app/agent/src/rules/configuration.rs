//! The configuration: settings and rules, checked.

use super::error::{ConfigError, FilePosition};
use super::listen::Listen;
use super::pattern::Pattern;
use super::quantity::{Share, Size, Time};
use super::quiet::QuietHours;
use super::written::{
    AgentTable, AllowTable, FileTable, Keep, KindWord, MatchTable, Mode, PagesWord, Patterns, RuleTable,
};
use options::{Choice, Kind, Kinds, Pages};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;

/// Most rules of all files together.
const MOST_RULES: usize = 1000;
/// Longest name of a rule in bytes; messages, the state and hashes contain it.
const LONGEST_NAME: usize = 64;
/// Ends of the names of units in paths of cgroups.
pub const UNIT_KINDS: [&str; 4] = [".service", ".scope", ".socket", ".mount"];
/// Shortest time between two scans.
const SHORTEST_SCAN: Duration = Duration::from_millis(100);

/// Text of one file, with the name by which errors show it.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Name for messages.
    pub name: String,
    /// Content.
    pub text: String,
}

/// Settings and rules of all files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// `[agent]`.
    pub settings: Settings,
    /// `[[rule]]`, in the order in which they are tried: the first match wins.
    pub rules: Vec<Rule>,
}

/// Settings of the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Treatment of eligible processes.
    pub mode: Mode,
    /// Time between two scans of /proc.
    pub scan: Duration,
    /// Least age of a process.
    pub settle: Duration,
    /// Largest cost of a lift, as a share of the CPU time that the process has used.
    pub overhead: Share,
    /// CPU time that the agent, its workers and the pauses may take, as a share of one core.
    pub cpu: Share,
    /// Longest pause of a program; a lift with a longer one is undone.
    pub max_pause: Duration,
    /// Most bytes that all lifts together may have made resident.
    pub max_memory: Option<u64>,
    /// Most bytes that the lifts of one cgroup may have made resident.
    pub max_memory_per_cgroup: Option<u64>,
    /// Largest CPU pressure (`some avg10`) at which programs are lifted.
    pub max_cpu_pressure: Share,
    /// Largest memory pressure (`some avg10`) at which programs are lifted.
    pub max_memory_pressure: Share,
    /// Least share of free memory at which programs are lifted.
    pub min_free_memory: Share,
    /// Hours without new lifts.
    pub quiet: Vec<QuietHours>,
    /// Address of the metrics server.
    pub metrics: Option<Listen>,
    /// File of metrics that is replaced after each scan.
    pub textfile: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            scan: Duration::from_secs(10),
            settle: Duration::from_secs(30),
            overhead: Share::percent(0.5),
            cpu: Share::percent(0.5),
            max_pause: Duration::from_millis(50),
            max_memory: None,
            max_memory_per_cgroup: None,
            max_cpu_pressure: Share::percent(25.0),
            max_memory_pressure: Share::percent(5.0),
            min_free_memory: Share::percent(10.0),
            quiet: Vec::new(),
            metrics: None,
            textfile: None,
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which no other rule has.
    pub name: String,
    /// The file and line at which it begins.
    pub place: String,
    /// Conditions, all of which a process must meet.
    pub conditions: Conditions,
    /// Memory to lift; nothing if the rule exempts processes.
    pub kinds: Kinds,
    /// Source of huge pages.
    pub pages: Pages,
    /// When a lift stays.
    pub keep: Keep,
    /// Share of machines on which the rule is active.
    pub rollout: Share,
    /// Share of matching processes that stay plain.
    pub holdout: Share,
    /// Most bytes that one lift may make resident.
    pub max_memory: Option<u64>,
    /// The requests that the environment of a process may make; `None` permits to narrow the rule only.
    pub allow: Option<Allowance>,
}

/// Conditions of a rule. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Path of the executable.
    pub exe: Vec<Pattern>,
    /// Name of the executable or of the process.
    pub name: Vec<Pattern>,
    /// systemd unit.
    pub unit: Vec<Pattern>,
    /// Path of the cgroup, without the first `/`.
    pub cgroup: Vec<Pattern>,
    /// Name or number of the user.
    pub user: Vec<Pattern>,
    /// Variable of the environment.
    pub env: Option<EnvCondition>,
    /// Least bytes of code of the executable.
    pub min_text: Option<u64>,
    /// Least CPU time used.
    pub min_cpu: Option<Duration>,
}

/// A variable that a process must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvCondition {
    /// Name of the variable.
    pub name: String,
    /// Pattern of its value; `None` for any value.
    pub value: Option<Pattern>,
}

/// The requests that the environment of a process may make.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    /// Kinds of memory.
    pub kinds: Kinds,
    /// Sources of huge pages.
    pub pages: Vec<Pages>,
    /// Most bytes that one lift may make resident.
    pub max_memory: Option<u64>,
}

impl Configuration {
    /// Reads files, in the order in which their rules are tried.
    ///
    /// # Errors
    /// All errors that were found, in the order of the files.
    pub fn read(files: &[ConfigFile]) -> Result<Self, Vec<ConfigError>> {
        let mut reading = Reading::default();
        files.iter().for_each(|file| reading.file(file));
        if !reading.errors.is_empty() {
            return Err(reading.errors);
        }
        Ok(Self { settings: reading.settings.map(|(settings, _)| settings).unwrap_or_default(), rules: reading.rules })
    }
}

/// Results while files are read.
#[derive(Default)]
struct Reading {
    /// With its position.
    settings: Option<(Settings, String)>,
    rules: Vec<Rule>,
    /// Places of the rules by their names.
    names: BTreeMap<String, String>,
    errors: Vec<ConfigError>,
}

/// One file, for messages.
struct Source<'a>(&'a ConfigFile);

impl Source<'_> {
    fn error(&self, span: &Range<usize>, message: impl Into<String>) -> ConfigError {
        let Self(ConfigFile { name, text }) = self;
        ConfigError { file: name.clone(), place: Some(FilePosition::of(text, span)), message: message.into() }
    }

    fn place(&self, span: &Range<usize>) -> String {
        format!("{}:{}", self.0.name, FilePosition::of(&self.0.text, span).line)
    }
}

impl Reading {
    fn file(&mut self, file: &ConfigFile) {
        let source = Source(file);
        let table: FileTable = match toml::from_str(&file.text) {
            Ok(table) => table,
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                self.errors.push(source.error(&span, error.message().replace('\n', "; ")));
                return;
            }
        };
        if let Some(agent) = &table.agent {
            self.settings(&source, agent);
        }
        for rule in &table.rule {
            if self.rules.len() == MOST_RULES {
                self.errors.push(source.error(
                    &rule.span(),
                    format!("more than {MOST_RULES} rules; needed: fewer, with lists of patterns"),
                ));
                return;
            }
            match self.rule(&source, rule) {
                Ok(rule) => self.rules.push(rule),
                Err(error) => self.errors.push(error),
            }
        }
    }

    fn settings(&mut self, source: &Source<'_>, table: &Spanned<AgentTable>) {
        if let Some((_, first)) = &self.settings {
            let message = format!("[agent] is at {first} already; needed: once in all files");
            self.errors.push(source.error(&table.span(), message));
            return;
        }
        match settings(source, table.get_ref()) {
            Ok(settings) => self.settings = Some((settings, source.place(&table.span()))),
            Err(error) => self.errors.push(error),
        }
    }

    fn rule(&mut self, source: &Source<'_>, table: &Spanned<RuleTable>) -> Result<Rule, ConfigError> {
        let (written, place) = (table.get_ref(), source.place(&table.span()));
        let name = written.name.get_ref().clone();
        let error = |span: Range<usize>, message: String| Err(source.error(&span, message));
        if name.is_empty() || name.len() > LONGEST_NAME || !foreign_text::is_printable(&name) {
            return error(
                written.name.span(),
                format!("a rule's name has 1 to {LONGEST_NAME} bytes without control characters"),
            );
        }
        if let Some(first) = self.names.get(&name) {
            return error(
                written.name.span(),
                format!("the rule at {first} has this name already; needed: a unique name"),
            );
        }
        self.names.insert(name.clone(), place.clone());
        let conditions = conditions(source, &written.conditions)?;
        let allow = written.allow.as_ref().map(|allow| allowance(source, allow)).transpose()?;
        let kinds = written.lift.as_ref().map_or_else(|| usual_kinds(allow.as_ref()), |lift| kinds_of(lift.get_ref()));
        let lift_span = written.lift.as_ref().map_or_else(|| table.span(), Spanned::span);
        if let Some(allow) = &allow
            && let Some(kind) = first_outside(kinds, allow.kinds)
        {
            return error(lift_span, format!("the rule lifts {kind}, which its allow.lift does not have"));
        }
        let pages = written.pages.as_ref().map_or(Pages::Auto, |pages| pages.get_ref().0);
        let keep = written.keep.as_ref().map(|keep| *keep.get_ref()).unwrap_or_default();
        let rule = Rule {
            name,
            place,
            conditions,
            kinds,
            pages,
            keep,
            rollout: written.rollout.unwrap_or(Share::ALL),
            holdout: written.holdout.unwrap_or(Share::NONE),
            max_memory: written.max_memory.map(|Size(bytes)| bytes),
            allow,
        };
        match check_lasting(&rule) {
            Some(message) => error(written.keep.as_ref().map_or(lift_span, Spanned::span), message),
            None => Ok(rule),
        }
    }
}

/// Kinds that are lifted if a rule names none.
fn usual_kinds(allow: Option<&Allowance>) -> Kinds {
    let restorable = restorable();
    allow.map_or(restorable, |allow| intersection(restorable, allow.kinds))
}

/// Kinds of memory that can be restored.
fn restorable() -> Kinds {
    Kinds::of(&[Kind::Text, Kind::Rodata])
}

/// The kinds of both sets.
pub fn intersection(one: Kinds, other: Kinds) -> Kinds {
    let both = Kind::ALL.iter().map(|named| named.value).filter(|&kind| one.contains(kind) && other.contains(kind));
    Kinds::of(&both.collect::<Vec<_>>())
}

/// The first kind of `kinds` that `allowed` lacks.
fn first_outside(kinds: Kinds, allowed: Kinds) -> Option<Kind> {
    Kind::ALL.iter().map(|named| named.value).find(|&kind| kinds.contains(kind) && !allowed.contains(kind))
}

/// Memory that cannot be restored needs a budget, and no measurement can undo its lift.
fn check_lasting(rule: &Rule) -> Option<String> {
    let all = rule.allow.as_ref().map_or(rule.kinds, |allow| rule.kinds.and(allow.kinds));
    let lasting = first_outside(all, restorable())?;
    if rule.keep == Keep::IfItPays {
        return Some(format!(
            "keep = \"if it pays\" with {lasting}, which cannot be restored once it is lifted; \
             needed: lift = [\"text\", \"rodata\"], or keep = \"always\""
        ));
    }
    let has_budget = rule.max_memory.or(rule.allow.as_ref().and_then(|allow| allow.max_memory)).is_some();
    (!has_budget).then(|| {
        format!("the rule lifts {lasting}, which cannot be restored, without a budget; fix: max_memory = \"128M\", for example")
    })
}

fn kinds_of(words: &[KindWord]) -> Kinds {
    Kinds::of(&words.iter().map(|KindWord(kind)| *kind).collect::<Vec<_>>())
}

fn settings(source: &Source<'_>, table: &AgentTable) -> Result<Settings, ConfigError> {
    let usual = Settings::default();
    if let Some(scan) = &table.scan
        && scan.get_ref().0 < SHORTEST_SCAN
    {
        return Err(
            source.error(&scan.span(), format!("found {}; needed: at least {}", scan.get_ref(), Time(SHORTEST_SCAN)))
        );
    }
    for share in [&table.overhead, &table.cpu].into_iter().flatten() {
        if share.get_ref().ratio() == 0.0 {
            return Err(source.error(&share.span(), "found 0 %, by which nothing would ever be lifted; needed: more"));
        }
    }
    if let Some(path) = &table.textfile
        && !(path.get_ref().is_absolute() && path.get_ref().file_name().is_some())
    {
        return Err(source.error(&path.span(), "found no absolute path of a file; needed: one, such as \"/var/lib/prometheus/node-exporter/pagelift.prom\""));
    }
    let time = |time: Option<Time>, usual| time.map_or(usual, |Time(time)| time);
    let share = |share: &Option<Spanned<Share>>, usual| share.as_ref().map_or(usual, |share| *share.get_ref());
    Ok(Settings {
        mode: table.mode.unwrap_or_default(),
        scan: time(table.scan.as_ref().map(|scan| *scan.get_ref()), usual.scan),
        settle: time(table.settle, usual.settle),
        overhead: share(&table.overhead, usual.overhead),
        cpu: share(&table.cpu, usual.cpu),
        max_pause: time(table.max_pause, usual.max_pause),
        max_memory: table.max_memory.map(|Size(bytes)| bytes),
        max_memory_per_cgroup: table.max_memory_per_cgroup.map(|Size(bytes)| bytes),
        max_cpu_pressure: table.max_cpu_pressure.unwrap_or(usual.max_cpu_pressure),
        max_memory_pressure: table.max_memory_pressure.unwrap_or(usual.max_memory_pressure),
        min_free_memory: table.min_free_memory.unwrap_or(usual.min_free_memory),
        quiet: table.quiet.clone(),
        metrics: table.metrics.clone(),
        textfile: table.textfile.as_ref().map(|path| path.get_ref().clone()),
    })
}

fn conditions(source: &Source<'_>, table: &Spanned<MatchTable>) -> Result<Conditions, ConfigError> {
    let written = table.get_ref();
    let patterns = |Patterns(patterns): &Patterns| patterns.clone();
    let conditions = Conditions {
        exe: patterns(&written.exe),
        name: patterns(&written.name),
        unit: patterns(&written.unit),
        cgroup: patterns(&written.cgroup),
        user: patterns(&written.user),
        env: written.env.as_ref().map(|env| env_condition(source, env)).transpose()?,
        min_text: written.min_text.map(|Size(bytes)| bytes),
        min_cpu: written.min_cpu.map(|Time(time)| time),
    };
    if conditions == Conditions::default() {
        let message =
            "no condition, so that every process would match; needed: at least one; for all processes: exe = \"*\"";
        return Err(source.error(&table.span(), message));
    }
    match never_met(&conditions) {
        Some(message) => Err(source.error(&table.span(), message)),
        None => Ok(conditions),
    }
}

/// Why no process ever meets a condition: by a name in the place of a path, a path of a cgroup as the kernel writes it, or a unit
/// without its kind.
fn never_met(conditions: &Conditions) -> Option<String> {
    let is_name = |pattern: &&Pattern| !pattern.may_begin_with_slash();
    let of_exe = conditions.exe.iter().find(is_name).map(|pattern| {
        format!("exe = \"{pattern}\" matches no path; needed: \"*/{pattern}\", or name = \"{pattern}\"")
    });
    let of_cgroup = || {
        let pattern = conditions.cgroup.iter().find(|pattern| pattern.begins_with_slash())?;
        Some(format!("cgroup = \"{pattern}\" matches no cgroup; needed: the path without the first /"))
    };
    let of_unit = || {
        let is_unit = |pattern: &Pattern| UNIT_KINDS.iter().any(|kind| pattern.may_end_with(kind));
        let pattern = conditions.unit.iter().find(|pattern| !is_unit(pattern))?;
        Some(format!("unit = \"{pattern}\" matches no unit; needed: its kind, too, such as \"{pattern}.service\""))
    };
    of_exe.or_else(of_cgroup).or_else(of_unit)
}

fn env_condition(source: &Source<'_>, text: &Spanned<String>) -> Result<EnvCondition, ConfigError> {
    let error = |message: String| source.error(&text.span(), message);
    let (name, value) = match text.get_ref().split_once('=') {
        Some((name, value)) => (name, Some(Pattern::try_from(value.to_owned()).map_err(error)?)),
        None => (text.get_ref().as_str(), None),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(error("needed: the name of a variable, or NAME=PATTERN".to_owned()));
    }
    Ok(EnvCondition { name: name.to_owned(), value })
}

fn allowance(source: &Source<'_>, table: &Spanned<AllowTable>) -> Result<Allowance, ConfigError> {
    let written = table.get_ref();
    let kinds = written.lift.as_deref().map_or_else(restorable, kinds_of);
    if kinds.is_empty() {
        return Err(source.error(&table.span(), "allow.lift is empty; needed: at least one kind of memory"));
    }
    let pages = written.pages.as_deref().map(|words| words.iter().map(|PagesWord(pages)| *pages).collect());
    let pages = pages.unwrap_or_else(|| Pages::ALL.iter().map(|named| named.value).collect());
    Ok(Allowance { kinds, pages, max_memory: written.max_memory.map(|Size(bytes)| bytes) })
}
