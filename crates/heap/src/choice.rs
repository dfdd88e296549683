//! Chooses the way in which a program's heap gets huge pages: a function of what was found, and of what the user wants
//! and has set already.
//!
//! Facts about allocators, with their sources: glibc's tunable `glibc.malloc.hugetlb` came with 2.35; with value 1 it
//! advises the main heap and mapped chunks, threads' arenas only from 2.43, and looks whether the mode of transparent
//! huge pages is `madvise` before (glibc's NEWS and malloc/malloc.c). jemalloc's `thp:always` came with 5.1 (its
//! ChangeLog). Go before and after 1.21.2 has no setting that asks for huge pages (its diagnostics page and runtime
//! release notes). `JDK_JAVA_OPTIONS` is read by the launcher of Java 9 and later (java(1)).

use crate::allocator::{Allocator, Family, Place, Runtime};
use crate::settings::{Environment, merged};
use address_space::PageSize;
use heap_contract::{NodePages, ORDER_VARIABLE, Order};
use lift_plan::ThpMode;
use serde::Serialize;

/// `--heap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The best way that costs nobody else anything: transparent huge pages.
    Auto,
    /// Transparent huge pages.
    Thp,
    /// Pages of this size from the pool.
    Pool(PageSize),
}

/// `--heap-allocator`: overrides the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// The allocator that the program has, by its own settings.
    Own,
    /// The preloaded mimalloc.
    Mimalloc,
    /// None is touched: memory is collapsed from outside.
    Collapse,
}

/// What the choice depends on beside the allocator.
pub struct Context<'a> {
    /// `--heap`.
    pub wish: Wish,
    /// `--heap-allocator`.
    pub forced: Option<Forced>,
    /// A preloaded `malloc` would take the place of the program's.
    pub replaceable: bool,
    /// The mode of transparent huge pages.
    pub thp: ThpMode,
    /// The grain of the preloaded heap.
    pub grain: PageSize,
    /// Where the preloaded library lies, or why there is none.
    pub library: Result<String, String>,
    /// Pool pages to take, where the wish is the pool.
    pub pool: [NodePages; heap_contract::MOST_NODES],
    /// `--only`, divided by commas.
    pub only: String,
    /// What the user has set.
    pub environment: &'a Environment,
}

/// The preloaded heap's part of a way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preload {
    /// Bytes that it takes from the pool.
    pub pool_bytes: u64,
}

/// How a heap gets huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Variables to set for the program, each with its whole value.
    pub variables: Vec<(String, String)>,
    /// The preloaded heap, where it is used.
    pub preload: Option<Preload>,
    /// The program's memory is collapsed from outside while it runs.
    pub collapse: bool,
    /// What is done and why, in sentences without an end.
    pub reasons: Vec<String>,
    /// What was wished for and is not had, and why.
    pub refusals: Vec<String>,
}

/// Chooses.
pub fn choose(allocator: &Allocator, context: &Context) -> Way {
    let mut way = Way::default();
    match context.forced {
        Some(Forced::Mimalloc) => {
            if !preload(allocator, context, &mut way) {
                own(allocator, context, &mut way);
            }
        }
        Some(Forced::Own) => own(allocator, context, &mut way),
        Some(Forced::Collapse) => collapse(&mut way, "asked for by --heap-allocator"),
        None => match context.wish {
            Wish::Pool(size) => from_pool(allocator, context, size, &mut way),
            Wish::Auto | Wish::Thp => best(allocator, context, &mut way),
        },
    }
    way
}

/// The best way on transparent huge pages.
fn best(allocator: &Allocator, context: &Context, way: &mut Way) {
    if context.thp == ThpMode::Never {
        way.refusals.push(
            "transparent huge pages are switched off; needed: echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled, or --heap=2M and pages in the pool"
                .to_owned(),
        );
        return;
    }
    let preload_instead = |why: &str, way: &mut Way| {
        way.reasons.push(why.to_owned());
        if !preload(allocator, context, way) {
            own(allocator, context, way);
        }
    };
    match &allocator.family {
        Family::Glibc { minor } if context.replaceable => match (allocator.runtime, minor) {
            (Some(Runtime::Python), _) => preload_instead("Python's own arenas are too small for huge pages", way),
            (_, Some(minor)) if *minor < 35 => preload_instead("this glibc has no setting for huge pages", way),
            (None, Some(minor)) if *minor < 43 && allocator.starts_threads => {
                preload_instead("this glibc's setting does not reach the heaps of threads, which the program has", way);
            }
            _ => own(allocator, context, way),
        },
        Family::Jemalloc { version, .. } if context.replaceable && !has_thp(version.as_deref()) => {
            preload_instead("this jemalloc has no setting for huge pages", way);
        }
        Family::Tcmalloc | Family::Mimalloc | Family::Unknown if context.replaceable => {
            preload_instead("its own settings do not ask for transparent huge pages", way);
        }
        _ => own(allocator, context, way),
    }
}

fn from_pool(allocator: &Allocator, context: &Context, size: PageSize, way: &mut Way) {
    if allocator.family == Family::Jvm {
        return java(context, Some(size), way);
    }
    if !preload(allocator, context, way) {
        way.refusals.push(format!("its heap cannot stand on {size} pages of the pool"));
        best(allocator, context, way);
    }
}

/// The preloaded mimalloc; false with a reason where it cannot be.
fn preload(allocator: &Allocator, context: &Context, way: &mut Way) -> bool {
    if !context.replaceable {
        let why = match (&allocator.family, &allocator.place) {
            (Family::Jvm | Family::Go, _) => "its heap is not malloc's",
            (Family::Musl, _) => "the preloaded heap is made for the GNU C library, and this program has musl",
            (_, Place::LinkedIn) => "its allocator is linked in, so that a preloaded one is not used",
            _ => "the preloaded heap needs the GNU C library",
        };
        way.refusals.push(why.to_owned());
        return false;
    }
    let library = match &context.library {
        Ok(library) => library,
        Err(why) => {
            way.refusals.push(why.clone());
            return false;
        }
    };
    let mut order = Order { only: &context.only, ..Order::transparent(context.grain.bytes()) };
    if let Wish::Pool(size) = context.wish {
        order.page = size.bytes();
        order.pool = context.pool;
    }
    let before = context.environment.get("LD_PRELOAD");
    let value = before.map_or_else(|| library.clone(), |before| format!("{library}:{before}"));
    way.variables.push(("LD_PRELOAD".to_owned(), value));
    way.variables.push((ORDER_VARIABLE.to_owned(), order.to_string()));
    if allocator.runtime == Some(Runtime::Python) && context.environment.get("PYTHONMALLOC").is_none() {
        way.variables.push(("PYTHONMALLOC".to_owned(), "malloc".to_owned()));
        way.reasons.push("PYTHONMALLOC=malloc sends Python's small objects there too".to_owned());
    }
    way.preload = Some(Preload { pool_bytes: order.pool_bytes() });
    way.reasons.push("a preloaded mimalloc takes the place of its malloc".to_owned());
    way.collapse = allocator.runtime == Some(Runtime::V8);
    if way.collapse {
        way.reasons.push("V8 maps its heap by itself: that is collapsed from outside".to_owned());
    }
    true
}

fn collapse(way: &mut Way, why: &str) {
    way.collapse = true;
    way.reasons.push(format!("its memory is collapsed from outside while it runs: {why}"));
}

/// The settings of the allocator that the program has.
fn own(allocator: &Allocator, context: &Context, way: &mut Way) {
    match &allocator.family {
        Family::Glibc { minor } => glibc(*minor, allocator, context, way),
        Family::Jemalloc { version, variable } => jemalloc(version.as_deref(), variable, context, way),
        Family::Jvm => java(context, None, way),
        Family::Go => collapse(way, "Go has no setting that asks for huge pages"),
        Family::Musl => collapse(way, "musl has no setting for huge pages"),
        Family::Tcmalloc => collapse(way, "tcmalloc has no setting that asks for transparent huge pages"),
        Family::Mimalloc => {
            collapse(way, "mimalloc's setting would take pool pages without the means to survive a fork")
        }
        Family::Unknown => collapse(way, "no setting of its allocator is known"),
    }
}

fn glibc(minor: Option<u32>, allocator: &Allocator, context: &Context, way: &mut Way) {
    const KEY: &str = "glibc.malloc.hugetlb";
    if minor.is_some_and(|minor| minor < 35) {
        return collapse(way, "this glibc has no setting for huge pages");
    }
    if minor.is_none() {
        // An older one passes over settings that it does not know.
        collapse(way, "it cannot be told whether this glibc has the setting");
    }
    if context.thp == ThpMode::Always && minor.is_some_and(|minor| minor < 43) {
        way.reasons.push("transparent huge pages are given to all memory here (mode always)".to_owned());
        return;
    }
    match merged(context.environment.get("GLIBC_TUNABLES"), ':', '=', &[(KEY, "1")]) {
        Some(value) => {
            way.variables.push(("GLIBC_TUNABLES".to_owned(), value));
            way.reasons.push(format!("glibc is told by {KEY}=1 to advise its heap for transparent huge pages"));
        }
        None => way.reasons.push(format!("{KEY} is set by you and stays")),
    }
    if allocator.runtime == Some(Runtime::V8) {
        collapse(way, "V8 maps its heap by itself");
    }
}

fn has_thp(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or("0.0").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 1)
}

fn jemalloc(version: Option<&str>, variable: &str, context: &Context, way: &mut Way) {
    let before = context.environment.get(variable);
    let settings: &[(&str, &str)] = match has_thp(version) {
        true => &[("thp", "always"), ("dirty_decay_ms", "-1"), ("muzzy_decay_ms", "-1")],
        false => &[("purge", "decay"), ("decay_time", "-1")],
    };
    match merged(before, ',', ':', settings) {
        Some(value) => {
            let text = settings.iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>().join(",");
            way.variables.push((variable.to_owned(), value));
            way.reasons.push(format!(
                "jemalloc is told by {variable}={text}; without purging, huge pages stay whole, and so does its memory"
            ));
        }
        None => way.reasons.push(format!("{variable} is set by you and stays")),
    }
    if !has_thp(version) {
        collapse(way, "this jemalloc has no setting for huge pages");
    }
}

fn java(context: &Context, pool: Option<PageSize>, way: &mut Way) {
    const VARIABLE: &str = "JDK_JAVA_OPTIONS";
    let set_by_user = ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"].iter().any(|name| {
        let value = context.environment.get(name).unwrap_or_default();
        value.contains("UseTransparentHugePages") || value.contains("UseLargePages")
    });
    if set_by_user {
        way.reasons.push("huge pages for Java are set by you and stay".to_owned());
        return;
    }
    let option = match pool {
        None => "-XX:+UseTransparentHugePages".to_owned(),
        Some(size) => format!("-XX:+UseLargePages -XX:LargePageSizeInBytes={}", size.bytes()),
    };
    let before = context.environment.get(VARIABLE);
    let value = before.map_or_else(|| option.clone(), |before| format!("{option} {before}"));
    way.variables.push((VARIABLE.to_owned(), value));
    way.reasons.push(format!("Java is told by {VARIABLE}={option}, and says so on standard error"));
}

#[cfg(test)]
mod tests;
