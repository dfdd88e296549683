//! Chooses how a program's heap gets huge pages: a function of the facts, the user's request, and the settings in the
//! user's environment.
//!
//! Facts about allocators, with their sources: glibc's tunable `glibc.malloc.hugetlb` came with 2.35; with value 1 it
//! advises the main heap and mapped chunks, threads' arenas only from 2.43, and looks whether the mode of transparent
//! huge pages is `madvise` before (glibc's NEWS and malloc/malloc.c). jemalloc's `thp:always` came with 5.1 (its
//! ChangeLog). A jemalloc that was built outside its repository may call itself 0.0.0; it aborts at a setting that it does not
//! know if `abort_conf` is set. Settings by which jemalloc returns no memory are left to `cures`: they multiply the size of
//! a program that has freed most of its memory. Go before and after 1.21.2 has no setting that asks for huge pages (its
//! diagnostics page and runtime release notes). `JDK_JAVA_OPTIONS` is read by the launcher of Java 9 and later (java(1)).

use crate::allocator::{Allocator, Family, Runtime};
use crate::settings::{Environment, merged};
use address_space::PageSize;
use heap_abi::{NodePages, ORDER_VARIABLE, Order};
use machine_facts::ThpMode;
use options::HeapPages;
use serde::Serialize;

/// `--heap-allocator`: overrides the choice by the allocator's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// The allocator that the program has, by its own settings.
    Own,
    /// The preloaded mimalloc.
    Mimalloc,
    /// No allocator is changed: memory is collapsed from outside.
    Collapse,
}

/// The inputs of the choice besides the allocator.
pub struct Context<'a> {
    /// `--heap`; the choice takes `Off` as `Auto`.
    pub pages: HeapPages,
    /// `--heap-allocator`.
    pub forced: Option<Forced>,
    /// Why a preloaded `malloc` would not take the place of the program's, see [`Allocator::not_replaceable`].
    pub not_replaceable: Option<&'static str>,
    /// The mode of transparent huge pages.
    pub thp: ThpMode,
    /// The grain of the preloaded heap.
    pub grain: PageSize,
    /// The path of the preloaded library, or the reason why there is none.
    pub library: Result<String, String>,
    /// Pool pages to take, if `pages` is the pool.
    pub pool: [NodePages; heap_abi::MOST_NODES],
    /// `--numa` has chosen their nodes.
    pub chosen_nodes: bool,
    /// `--only`, divided by commas.
    pub only: String,
    /// The user's settings.
    pub environment: &'a Environment,
}

/// The preloaded heap's part of a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preload {
    /// Bytes that it takes from the pool.
    pub pool_bytes: u64,
}

/// The way in which a heap gets huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapChoice {
    /// Variables to set for the program, each with its whole value.
    pub variables: Vec<(String, String)>,
    /// The preloaded heap, if it is used.
    pub preload: Option<Preload>,
    /// The program's memory is collapsed from outside while it runs.
    pub collapse: bool,
    /// The actions and their reasons, in sentences without a full stop.
    pub reasons: Vec<String>,
    /// Requests that are not possible, with the reasons.
    pub refusals: Vec<String>,
}

/// Chooses how the heap of a program with this allocator gets huge pages.
pub fn choose(allocator: &Allocator, context: &Context) -> HeapChoice {
    let mut choice = HeapChoice::default();
    if let Family::Checker { tool } = &allocator.family {
        choice.refusals.push(format!(
            "{tool} checks its memory by its own allocator, which cannot be replaced; fix: a build without it"
        ));
        return choice;
    }
    match context.forced {
        Some(Forced::Mimalloc) => {
            if !preload(allocator, context, &mut choice) {
                own(allocator, context, &mut choice);
            }
        }
        Some(Forced::Own) => own(allocator, context, &mut choice),
        Some(Forced::Collapse) => collapse(&mut choice, "asked for by --heap-allocator"),
        None => match context.pages {
            HeapPages::Pool(size) => from_pool(allocator, context, size, &mut choice),
            HeapPages::Auto | HeapPages::Thp | HeapPages::Off => best(allocator, context, &mut choice),
        },
    }
    choice
}

/// The best choice on transparent huge pages.
fn best(allocator: &Allocator, context: &Context, choice: &mut HeapChoice) {
    if context.thp == ThpMode::Never {
        choice.refusals.push(
            "transparent huge pages are switched off; fix: echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled, or --heap=2M and pages in the pool"
                .to_owned(),
        );
        return;
    }
    let preload_instead = |why: &str, choice: &mut HeapChoice| {
        choice.reasons.push(why.to_owned());
        if !preload(allocator, context, choice) {
            own(allocator, context, choice);
        }
    };
    let is_replaceable = context.not_replaceable.is_none();
    match &allocator.family {
        Family::Glibc { minor } if is_replaceable => match (allocator.runtime, minor) {
            (Some(Runtime::Python), _) => preload_instead("Python's own arenas are too small for huge pages", choice),
            (_, Some(minor)) if *minor < 35 => preload_instead("this glibc has no setting for huge pages", choice),
            (None, Some(minor)) if *minor < 43 && allocator.starts_threads => {
                preload_instead(
                    "this glibc's setting does not reach the heaps of threads, which the program or one of its libraries \
                     starts",
                    choice,
                );
            }
            _ => own(allocator, context, choice),
        },
        Family::Jemalloc { version, .. } if is_replaceable && !has_thp(version.as_deref()) => {
            preload_instead(without_thp(version.as_deref()), choice);
        }
        Family::Tcmalloc | Family::Mimalloc | Family::Pagelift if is_replaceable => {
            preload_instead("its own settings do not request transparent huge pages", choice);
        }
        _ => own(allocator, context, choice),
    }
}

fn from_pool(allocator: &Allocator, context: &Context, size: PageSize, choice: &mut HeapChoice) {
    if allocator.family == Family::Jvm {
        return java(context, Some(size), choice);
    }
    if !preload(allocator, context, choice) {
        choice.refusals.push(format!("its heap cannot use {size} pool pages"));
        best(allocator, context, choice);
    }
}

/// Chooses the preloaded mimalloc; false, with a refusal, if that is not possible.
fn preload(allocator: &Allocator, context: &Context, choice: &mut HeapChoice) -> bool {
    if let Some(why) = context.not_replaceable {
        choice.refusals.push(why.to_owned());
        return false;
    }
    let library = match &context.library {
        Ok(library) => library,
        Err(why) => {
            choice.refusals.push(why.clone());
            return false;
        }
    };
    let mut order = Order { only: &context.only, ..Order::transparent(context.grain.bytes()) };
    if let HeapPages::Pool(size) = context.pages {
        order.page = size.bytes();
        order.pool = context.pool;
        order.chosen = context.chosen_nodes;
    }
    order.python = allocator.runtime == Some(Runtime::Python) && context.environment.get("PYTHONMALLOC").is_none();
    // The user's preloaded libraries come first and get each call before the heap.
    let before = context.environment.get("LD_PRELOAD");
    let value = before.map_or_else(|| library.clone(), |before| format!("{before}:{library}"));
    choice.variables.push(("LD_PRELOAD".to_owned(), value));
    choice.variables.push((ORDER_VARIABLE.to_owned(), order.to_string()));
    if order.python {
        choice.reasons.push("Python's small objects go there too, as by PYTHONMALLOC=malloc".to_owned());
    }
    choice.preload = Some(Preload { pool_bytes: order.pool_bytes() });
    choice.reasons.push(match (&allocator.family, allocator.preloaded) {
        (Family::Unknown, true) => "a preloaded mimalloc serves what LD_PRELOAD of yours passes on".to_owned(),
        (Family::Unknown, false) => {
            "a preloaded mimalloc takes the place of this allocator, as you have asked".to_owned()
        }
        _ => "a preloaded mimalloc takes the place of its malloc".to_owned(),
    });
    choice.collapse = allocator.runtime == Some(Runtime::V8);
    if choice.collapse {
        choice.reasons.push("V8 maps its heap by itself: that is collapsed from outside".to_owned());
    }
    true
}

fn collapse(choice: &mut HeapChoice, why: &str) {
    choice.collapse = true;
    choice.reasons.push(format!("its memory is collapsed from outside while it runs: {why}"));
}

/// Chooses the settings of the allocator that the program has.
fn own(allocator: &Allocator, context: &Context, choice: &mut HeapChoice) {
    if allocator.runtime == Some(Runtime::FreeThreadedPython) {
        return collapse(choice, "free-threaded Python has no setting for huge pages");
    }
    match &allocator.family {
        Family::Glibc { minor } => glibc(*minor, allocator, context, choice),
        Family::Jemalloc { version, variable } => {
            if has_thp(version.as_deref()) {
                jemalloc(variable, context, choice);
            } else {
                collapse(choice, without_thp(version.as_deref()));
            }
        }
        Family::Jvm => java(context, None, choice),
        Family::Go => collapse(choice, "Go has no setting that requests huge pages"),
        Family::Musl => collapse(choice, "musl has no setting for huge pages"),
        Family::Tcmalloc => collapse(choice, "tcmalloc has no setting that requests transparent huge pages"),
        Family::Mimalloc | Family::Pagelift => {
            collapse(choice, "mimalloc's setting would take pool pages without the means to survive a fork")
        }
        Family::Unknown if context.not_replaceable.is_none() => {
            collapse(choice, "its allocator is unknown and is kept (--heap-allocator mimalloc replaces it)")
        }
        Family::Unknown => collapse(choice, "no setting of its allocator is known"),
        Family::Checker { .. } => {}
    }
}

fn glibc(minor: Option<u32>, allocator: &Allocator, context: &Context, choice: &mut HeapChoice) {
    const KEY: &str = "glibc.malloc.hugetlb";
    if minor.is_some_and(|minor| minor < 35) {
        return collapse(choice, "this glibc has no setting for huge pages");
    }
    if minor.is_none() {
        // An older one ignores settings that it does not know.
        collapse(choice, "it is unknown whether this glibc has the setting");
    }
    if context.thp == ThpMode::Always && minor.is_some_and(|minor| minor < 43) {
        choice.reasons.push("transparent huge pages are given to all memory here (mode always)".to_owned());
        return;
    }
    match merged(context.environment.get("GLIBC_TUNABLES"), ':', '=', &[(KEY, "1")]) {
        Some(value) => {
            choice.variables.push(("GLIBC_TUNABLES".to_owned(), value));
            choice.reasons.push(format!("{KEY}=1 makes glibc advise its heap for transparent huge pages"));
        }
        None => choice.reasons.push(format!("{KEY} is set in the environment and is kept")),
    }
    if allocator.runtime == Some(Runtime::V8) {
        collapse(choice, "V8 maps its heap by itself");
    }
}

fn has_thp(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or("0.0").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 1)
}

/// Why a jemalloc without [`has_thp`] gets no setting for huge pages.
fn without_thp(version: Option<&str>) -> &'static str {
    match version {
        Some(_) => "this jemalloc has no setting for huge pages",
        None => "the version of this jemalloc is unknown, and only 5.1 and later have a setting for huge pages",
    }
}

fn jemalloc(variable: &str, context: &Context, choice: &mut HeapChoice) {
    match merged(context.environment.get(variable), ',', ':', &[("thp", "always")]) {
        Some(value) => {
            choice.variables.push((variable.to_owned(), value));
            choice
                .reasons
                .push(format!("{variable}=thp:always makes jemalloc advise its memory for transparent huge pages"));
        }
        None => choice.reasons.push(format!("{variable} is set in the environment and is kept")),
    }
}

fn java(context: &Context, pool: Option<PageSize>, choice: &mut HeapChoice) {
    const VARIABLE: &str = "JDK_JAVA_OPTIONS";
    let set_by_user = ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"].iter().any(|name| {
        let value = context.environment.get(name).unwrap_or_default();
        value.contains("UseTransparentHugePages") || value.contains("UseLargePages")
    });
    if set_by_user {
        choice.reasons.push("huge pages for Java are set in the environment and are kept".to_owned());
        return;
    }
    let option = match pool {
        None => "-XX:+UseTransparentHugePages".to_owned(),
        Some(size) => format!("-XX:+UseLargePages -XX:LargePageSizeInBytes={}", size.bytes()),
    };
    let before = context.environment.get(VARIABLE);
    let value = before.map_or_else(|| option.clone(), |before| format!("{option} {before}"));
    choice.variables.push((VARIABLE.to_owned(), value));
    choice.reasons.push(format!("Java reads {VARIABLE}={option}, and reports that on standard error"));
}

#[cfg(test)]
mod tests;
