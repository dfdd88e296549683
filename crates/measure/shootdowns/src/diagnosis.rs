//! Names the causes of a process's shootdowns, and the cures.

use crate::cause::Cause;
use crate::lives::Life;
use crate::severity::Severity;
use crate::stacks::Frame;
use crate::summary::ProcessSummary;
pub use heap_choice::cures::Effect;
use heap_choice::cures::{Advice, Cure, Flags, When, cures};
use heap_choice::{Allocator, AllocatorOrigin, Environment, Family, Program, Runtime};
use process_view::{ProcessCode, ProcessFiles};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A finding below this share of a process's shootdowns is not reported.
const SMALLEST_SHARE: f64 = 0.02;
/// Fewer stacks than this prove nothing: a share of a half may as well be a quarter or three quarters.
pub const FEWEST_STACKS: f64 = 20.0;

/// Maximum length of a command line, in bytes. Flags come first.
const MOST_WORDS: usize = 64 << 10;
/// Maximum length of an environment, in bytes: half the default limit of execve(2) for words and environment together.
const MOST_ENVIRONMENT: usize = 1 << 20;
/// Memory of a word or variable beside its text.
const EACH: usize = 128;

/// The cause of one process's shootdowns.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The process.
    pub pid: i32,
    /// The program, among all programs with this number.
    #[serde(skip)]
    pub life: Life,
    /// Its allocator with the evidence for it; `None` if its files cannot be read any more.
    pub allocator: Option<String>,
    /// Variables in its environment that steer its allocator, `NAME=VALUE`, and such flags of a JVM's command line.
    pub environment: Vec<String>,
    /// Their cost, and the recommended action.
    pub severity: Severity,
    /// The senders, the most frequent first.
    pub findings: Vec<Finding>,
}

/// One source of shootdowns.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Share of the process's shootdowns.
    pub share: f64,
    /// It is from fewer than [`FEWEST_STACKS`], so that its share may be far from the true one.
    pub uncertain: bool,
    /// The behaviour.
    pub behaviour: Behaviour,
    /// In words.
    pub text: String,
    /// Settings that end it.
    pub cures: Vec<Remedy>,
    /// The advice if no setting helps.
    pub advice: Option<Advice>,
}

/// A cure as it applies to the process.
#[derive(Clone, Debug, Serialize)]
pub struct Remedy {
    /// The variable.
    pub variable: String,
    /// Settings to add. The process's own settings are left out: a process chooses its environment. `None` if the process
    /// has set all of the recommended ones already.
    pub value: Option<String>,
    /// The process has set the variable to something else, which the settings are to be added to.
    pub beside_others: bool,
    /// Settings that the process has set by itself.
    pub stays: Vec<String>,
    /// Those that have another value: while they stay, the cure has little or no effect.
    pub against: Vec<String>,
    /// All settings of the cure.
    pub whole: String,
    /// Its effect on the behaviour: an end or a reduction.
    pub effect: Effect,
    /// The versions that it applies to.
    pub versions: String,
    /// Its cost.
    pub costs: String,
    /// Its documentation.
    pub source: String,
}

/// The reason why a process sends shootdowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by", content = "how")]
pub enum Behaviour {
    /// The allocator.
    Allocator(Returning),
    /// A runtime's own memory: V8's heap and code, a JVM, Go.
    Runtime,
    /// The program itself, by its own calls.
    Program(Cause),
    /// The program or its allocator: the stack and the process's files do not identify it.
    Unattributed(Cause),
    /// The kernel.
    Kernel(Cause),
}

/// The way in which an allocator gives memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Returning {
    /// madvise on free pages.
    Purging,
    /// munmap of freed blocks or whole heaps.
    Unmapping,
    /// mremap of blocks that realloc makes larger or smaller.
    Moving,
    /// The end of the heap moves down (brk).
    Trimming,
    /// Pages are given back and taken again because calloc wants zeros.
    CallocZeroing,
    /// Free pages are given back because the program calls for it: malloc_trim(3) and its like.
    Requested,
    /// Rights of heap pages change.
    Protecting,
}

impl fmt::Display for Returning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Purging => "gives free pages back by madvise",
            Self::Unmapping => "unmaps what is freed",
            Self::Moving => "moves large blocks by mremap where realloc changes their size",
            Self::Trimming => "trims the end of its heap",
            Self::CallocZeroing => "clears memory for calloc by giving its pages back",
            Self::Requested => "gives free pages back because the program calls for it",
            Self::Protecting => "changes the rights of its pages",
        })
    }
}

/// The facts from a process's files and environment.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// Time of its start after the boot, in clock ticks: the kernel reuses PIDs. `None` if it cannot be read.
    start: Option<u64>,
    allocator: Option<Allocator>,
    environment: Environment,
    /// Words of its command line.
    words: Vec<String>,
    /// The number of the object that the allocator's code is in.
    object: Option<usize>,
    /// Bytes that the words and the environment take.
    pub(crate) memory: usize,
}

impl Subject {
    /// Unknown facts that take this memory.
    #[cfg(test)]
    pub fn taking(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    /// The cause of the shootdowns of a process that was watched for this number of seconds.
    pub fn diagnose(&self, process: &ProcessSummary, seconds: f64) -> Diagnosis {
        let mut shares: BTreeMap<Behaviour, f64> = BTreeMap::new();
        for path in &process.paths {
            *shares.entry(self.behaviour(path.cause, &path.frames)).or_default() += path.share;
        }
        let uncertain = process.effective_stacks < FEWEST_STACKS;
        let mut findings: Vec<Finding> = shares
            .into_iter()
            .filter(|(_, share)| *share >= SMALLEST_SHARE)
            .map(|(behaviour, share)| Finding { uncertain, ..self.finding(behaviour, share) })
            .collect();
        findings.sort_by(|a, b| b.share.total_cmp(&a.share));
        Diagnosis {
            pid: process.pid,
            life: process.life,
            allocator: self.allocator.as_ref().map(ToString::to_string),
            environment: self.settings(),
            severity: Severity::of(process, seconds),
            findings,
        }
    }

    /// True if the process's files could be read.
    pub fn is_known(&self) -> bool {
        self.allocator.is_some()
    }

    /// The facts about the process that started at this time: as they are now, or as they were at its first stack. Other processes
    /// with its PID do not count.
    pub fn choose<'a>(now: &'a Self, then: Option<&'a Self>, start: Option<u64>) -> Option<&'a Self> {
        let is_same = |subject: &&Self| start.is_none() || subject.start.is_none() || subject.start == start;
        let both = || [Some(now), then].into_iter().flatten().filter(is_same);
        both().find(|subject| subject.is_known()).or_else(|| both().next())
    }

    /// Looks at a process now.
    pub fn of(pid: i32) -> Self {
        let start = ProcessFiles::of(pid).start_time();
        let code = ProcessCode::of(pid).ok();
        let mut environment = ProcessFiles::of(pid).bytes("environ").unwrap_or_default();
        if environment.len() > MOST_ENVIRONMENT {
            let whole = environment[..MOST_ENVIRONMENT].iter().rposition(|&byte| byte == 0).map_or(0, |end| end + 1);
            environment.truncate(whole);
        }
        let allocator = code.as_ref().and_then(|code| Some(Allocator::of(&Program::of_process(code)?)));
        let object = match (allocator.as_ref().map(|allocator| &allocator.place), &code) {
            (Some(AllocatorOrigin::LinkedIn), _) => Some(0),
            (Some(AllocatorOrigin::Library { path }), Some(code)) => {
                code.objects().iter().position(|object| object.path == *path)
            }
            _ => None,
        };
        let mut words = ProcessFiles::of(pid).bytes("cmdline").unwrap_or_default();
        words.truncate(MOST_WORDS);
        let texts = environment.iter().chain(&words).filter(|&&byte| byte == 0).count();
        let memory = environment.len() + words.len() + EACH * texts;
        let words = words.split(|&byte| byte == 0).map(|word| process_view::printable(&String::from_utf8_lossy(word)));
        let environment = Environment::parse(&environment);
        Self { start, allocator, environment, words: words.collect(), object, memory }
    }

    /// The behaviour that one path shows.
    fn behaviour(&self, cause: Cause, frames: &[Frame]) -> Behaviour {
        if !cause.is_call() || cause == Cause::Exit {
            return Behaviour::Kernel(cause);
        }
        if self.allocator.is_none() || frames.is_empty() {
            return Behaviour::Unattributed(cause);
        }
        let callers = frames.iter().skip_while(|frame| is_call_itself(frame)).take(MOST_CALLERS);
        let by_allocator = callers.clone().any(|frame| self.is_allocator(frame));
        if by_allocator {
            return Behaviour::Allocator(returning(cause, callers));
        }
        let own = self.allocator.as_ref().is_some_and(|allocator| {
            matches!(allocator.family, Family::Go | Family::Jvm) || allocator.runtime == Some(Runtime::V8)
        });
        if own && callers.clone().any(is_runtime) { Behaviour::Runtime } else { Behaviour::Program(cause) }
    }

    /// True for code of the allocator. Where it shares an object with other code (the C library, the program), a function
    /// of its interface must be on the stack.
    fn is_allocator(&self, frame: &Frame) -> bool {
        let Some(allocator) = &self.allocator else { return false };
        if frame.index.is_none() || frame.index != self.object {
            return false;
        }
        let alone = !matches!(allocator.family, Family::Glibc { .. } | Family::Musl | Family::Jvm)
            && allocator.place != AllocatorOrigin::LinkedIn;
        let is_jemalloc = matches!(allocator.family, Family::Jemalloc { .. });
        alone
            || frame
                .function
                .as_deref()
                .is_some_and(|name| is_interface(name) || is_jemalloc && is_inside_jemalloc(name))
    }

    fn finding(&self, behaviour: Behaviour, share: f64) -> Finding {
        let allocator = self.allocator.as_ref();
        let name = allocator.map_or_else(|| "the allocator".to_owned(), short_name);
        let text = match behaviour {
            Behaviour::Allocator(how) => format!("{name} {how}"),
            Behaviour::Runtime => format!("{} changes its own memory", self.runtime_name()),
            Behaviour::Program(cause) => format!("the program's own calls of {cause}"),
            Behaviour::Unattributed(cause) if self.is_known() => {
                format!("calls of {cause}, of which no stack could be read: by whom is not known")
            }
            Behaviour::Unattributed(cause) => format!(
                "calls of {cause}, by the program or by its allocator: it ended before its files were read, or they cannot be \
                 read"
            ),
            Behaviour::Kernel(Cause::Exit) => "processes end or execute another program".to_owned(),
            Behaviour::Kernel(Cause::Unknown) => {
                "the cause is not known (kernel addresses are hidden, or none fits)".to_owned()
            }
            Behaviour::Kernel(cause) => format!("the kernel: {cause}"),
        };
        let advice = match behaviour {
            Behaviour::Allocator(Returning::Requested) => cures().advice_about("requested"),
            Behaviour::Allocator(_) => allocator.and_then(|allocator| cures().advice_for(allocator)),
            Behaviour::Runtime => allocator.and_then(|allocator| cures().advice_for(allocator)),
            Behaviour::Program(_) => cures().advice_about("program"),
            Behaviour::Unattributed(_) => None,
            Behaviour::Kernel(cause) => kernel_part(cause).and_then(|part| cures().advice_about(part)),
        };
        let cures = match behaviour {
            Behaviour::Allocator(how) => self.remedies(how),
            Behaviour::Runtime if allocator.is_some_and(|allocator| allocator.family == Family::Jvm) => {
                self.remedies(Returning::Purging)
            }
            _ => Vec::new(),
        };
        let advice = advice.filter(|_| cures.is_empty()).cloned();
        Finding { share, uncertain: false, behaviour, text, cures, advice }
    }

    /// The owner of a runtime's own memory.
    fn runtime_name(&self) -> &'static str {
        let allocator = self.allocator.as_ref();
        match allocator.map(|allocator| (&allocator.family, allocator.runtime)) {
            Some((Family::Jvm, _)) => "the Java virtual machine",
            Some((Family::Go, _)) => "Go's runtime",
            Some((_, Some(Runtime::V8))) => "V8",
            _ => "the runtime",
        }
    }

    fn flags(&self) -> Flags {
        Flags::of(self.words.iter().cloned(), &self.environment)
    }

    fn remedies(&self, how: Returning) -> Vec<Remedy> {
        let Some(allocator) = &self.allocator else { return Vec::new() };
        let fits = |cure: &&Cure| match cure.when {
            _ if how == Returning::Requested => false,
            When::Always => true,
            When::Purging => matches!(how, Returning::Purging | Returning::CallocZeroing),
            When::Calloc => how == Returning::CallocZeroing,
        };
        let (mut environment, mut ours) = (self.environment.clone(), Environment::default());
        let remedy = |cure: &Cure| {
            let variable = cure.variable_of(allocator);
            let applied = cure.applied(variable, &environment);
            // Cures of one variable build on each other.
            let value = cure.applied_to(variable, &environment, ours.get(variable)).value;
            if let (Some(all), Some(value)) = (&applied.value, &value) {
                environment = environment.clone().with(variable, all);
                ours = ours.clone().with(variable, value);
            }
            Remedy {
                variable: variable.to_owned(),
                value,
                beside_others: self.environment.get(variable).is_some(),
                stays: applied.stays,
                against: applied.against,
                whole: cure.value(),
                effect: cure.effect,
                versions: cure.versions.clone(),
                costs: cure.costs.clone(),
                source: cure.source.clone(),
            }
        };
        cures().of(allocator, &self.flags()).into_iter().filter(fits).map(remedy).collect()
    }

    /// The settings in the process's environment for its allocator, and in its command line for a JVM.
    fn settings(&self) -> Vec<String> {
        let Some(allocator) = &self.allocator else { return Vec::new() };
        let flags = self.flags();
        let mut names: Vec<&str> =
            cures().of(allocator, &flags).iter().flat_map(|cure| cure.variables(allocator)).collect();
        names.extend(cures().advice_for(allocator).iter().flat_map(|advice| &advice.variables).map(String::as_str));
        names.sort_unstable();
        names.dedup();
        let set = |name: &str| Some(format!("{name}={}", process_view::printable(self.environment.get(name)?)));
        let flags = self.words.iter().filter(|word| allocator.family == Family::Jvm && is_jvm_flag(word)).cloned();
        names.into_iter().filter_map(set).chain(flags).collect()
    }
}

/// Flags of java that steer its memory; others may hold secrets.
fn is_jvm_flag(word: &str) -> bool {
    const BEGINNINGS: [&str; 5] = ["-Xms", "-Xmx", "-Xmn", "-XX:+Use", "-XX:-Use"];
    const PARTS: [&str; 4] = ["Heap", "Uncommit", "Size=", "PeriodicGC"];
    BEGINNINGS.iter().any(|start| word.starts_with(start))
        || word.strip_prefix("-XX:").is_some_and(|rest| PARTS.iter().any(|part| rest.contains(part)))
}

/// Callers that are examined: an allocator has few functions.
const MOST_CALLERS: usize = 16;

/// The allocator's name and version without the evidence.
fn short_name(allocator: &Allocator) -> String {
    let text = allocator.to_string();
    text.split(" (").next().unwrap_or(&text).to_owned()
}

/// A symbol's name without the version that some tables add: `cfree@GLIBC_2.2.5`.
fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// The C library's wrapper of the system call.
fn is_call_itself(frame: &Frame) -> bool {
    const WRAPPERS: [&str; 9] =
        ["madvise", "munmap", "mprotect", "mremap", "mmap", "mmap64", "brk", "sbrk", "process_madvise"];
    frame.function.as_deref().is_some_and(|name| WRAPPERS.contains(&without_version(name).trim_start_matches('_')))
}

/// A function that requests or returns memory.
fn is_interface(name: &str) -> bool {
    const NAMES: [&str; 21] = [
        "int_free",
        "int_malloc",
        "heap_trim",
        "munmap_chunk",
        "free",
        "cfree",
        "libc_free",
        "malloc",
        "libc_malloc",
        "calloc",
        "libc_calloc",
        "realloc",
        "reallocarray",
        "libc_realloc",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "malloc_trim",
        "dallocx",
        "sdallocx",
        "rallocx",
    ];
    const BEGINNINGS: [&str; 9] = [
        "operator delete",
        "operator new",
        "je_",
        "mi_",
        "tc_",
        "tcmalloc",
        "_rjem_",
        "runtime.",
        "malloc_arena_thread",
    ];
    let bare = without_version(name).trim_start_matches('_');
    NAMES.contains(&bare) || BEGINNINGS.iter().any(|start| bare.starts_with(start.trim_start_matches('_')))
}

/// A function of jemalloc itself: if it is linked in, its interface may have been inlined into these (jemalloc 5,
/// src/jemalloc.c, pac.c, tcache.c, arena.c, extent.c).
fn is_inside_jemalloc(name: &str) -> bool {
    const BEGINNINGS: [&str; 9] = [
        "malloc_default",
        "free_default",
        "sdallocx_default",
        "tcache_bin_flush_",
        "arena_decay",
        "pac_decay_",
        "pac_purge",
        "extent_dalloc_",
        "background_thread_entry",
    ];
    BEGINNINGS.iter().any(|start| name.starts_with(start))
}

fn is_runtime(frame: &Frame) -> bool {
    let by_name = |name: &str| name.contains("v8::") || name.starts_with("runtime.");
    frame.object.starts_with("libjvm.so") || frame.index == Some(0) && frame.function.as_deref().is_none_or(by_name)
}

/// A function by which a program asks its allocator to give free memory back.
fn is_request(frame: &Frame) -> bool {
    const NAMES: [&str; 4] = ["malloc_trim", "mallctl", "mallctlbymib", "mi_collect"];
    const PARTS: [&str; 3] = ["freeOSMemory", "ReleaseFreeMemory", "ReleaseMemoryToSystem"];
    frame.function.as_deref().is_some_and(|name| {
        let bare = without_version(name).trim_start_matches('_');
        let bare = bare.strip_prefix("je_").unwrap_or(bare);
        NAMES.contains(&bare) || PARTS.iter().any(|part| name.contains(part))
    })
}

fn returning<'a>(cause: Cause, mut callers: impl Iterator<Item = &'a Frame> + Clone) -> Returning {
    if callers.clone().any(is_request) {
        return Returning::Requested;
    }
    let zeroes =
        |frame: &Frame| frame.function.as_deref().is_some_and(|name| without_version(name).ends_with("calloc"));
    match cause {
        Cause::Madvise if callers.any(zeroes) => Returning::CallocZeroing,
        Cause::Madvise => Returning::Purging,
        Cause::Mremap => Returning::Moving,
        Cause::Brk => Returning::Trimming,
        Cause::Mprotect => Returning::Protecting,
        _ => Returning::Unmapping,
    }
}

fn kernel_part(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::NumaBalancing => Some("kernel-numa-balancing"),
        Cause::Ksm => Some("kernel-ksm"),
        Cause::Khugepaged => Some("kernel-khugepaged"),
        Cause::Migration => Some("kernel-migration"),
        Cause::Damon => Some("kernel-damon"),
        Cause::Reclaim => Some("kernel-reclaim"),
        Cause::Fork => Some("kernel-fork"),
        Cause::CopyOnWrite => Some("kernel-copy-on-write"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
