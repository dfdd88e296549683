//! `--heap`: looks at the program to be started, chooses how its heap gets huge pages, and says so.

use address_space::{PageSize, format_bytes, parse_bytes};
use clap::{Args, ValueEnum};
use heap::{Allocator, Context, Environment, Forced, Program, Way, Wish, choose, free_pages_by_node};
use heap_contract::{LARGEST_GRAIN, LIBRARY, MOST_NODES, NodePages, pages_to_take, share_by_node};
use huge_page_pools::{Cgroups, HugetlbLimit, pools_at};
use lift_plan::{MachineFacts, ThpMode};
use serde::Serialize;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `--heap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeapArg {
    /// The heap is left as it is.
    #[default]
    Off,
    /// Whatever fits the program's allocator best.
    Auto,
    /// Transparent huge pages.
    Thp,
    /// Pages of the pool.
    Pool(PageSize),
}

impl FromStr for HeapArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "thp" => Ok(Self::Thp),
            size => size
                .parse()
                .map(Self::Pool)
                .map_err(|_| "needed: auto, off, thp, or a size of huge pages, 2M or 1G for example".to_owned()),
        }
    }
}

/// `--heap-allocator`.
#[derive(Clone, Copy, ValueEnum)]
pub enum HeapAllocatorArg {
    /// The program's own, by its settings.
    Own,
    /// A preloaded mimalloc on pages that Pagelift provides.
    Mimalloc,
    /// The program's own, collapsed from outside.
    Collapse,
}

/// What concerns the heap.
#[derive(Args, Clone)]
pub struct HeapArgs {
    /// Put all memory that the program allocates on huge pages: auto, off, thp, or a size of pool pages such as 2M.
    #[arg(long, value_name = "HOW", default_value = "off")]
    pub heap: HeapArg,
    /// Pool memory that the heap takes at the start [default: half of the pool's free pages].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub heap_reserve: Option<u64>,
    /// Overrides the way that --heap finds for the program's allocator.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub heap_allocator: Option<HeapAllocatorArg>,
}

/// What was found of a program's heap, for `inspect`.
#[derive(Serialize)]
pub struct HeapView {
    allocator: Allocator,
    /// With `--heap=auto`.
    way: Way,
}

/// Looks at a file; `None` where it is no program.
pub fn view(path: &Path, file: &File, machine: &MachineFacts) -> Option<HeapView> {
    let environment = Environment::of_this_process();
    let program = Program::of_file(path, file, &environment).ok()??;
    let args = HeapArgs { heap: HeapArg::Auto, heap_reserve: None, heap_allocator: None };
    let (allocator, way) = choose_for(&program, &args, &[], machine, &environment)?;
    Some(HeapView { allocator, way })
}

impl HeapView {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("Heap: {}\n", self.allocator);
        for reason in &self.way.reasons {
            text += &format!("  --heap=auto: {reason}\n");
        }
        for refusal in &self.way.refusals {
            text += &format!("  not with --heap=auto: {refusal}\n");
        }
        text
    }
}

/// What is to be done for a start.
#[derive(Default)]
pub struct HeapStart {
    /// The whole environment of the program, where it is not ours.
    pub environment: Option<Vec<CString>>,
    /// The helper is to collapse the program's memory while it runs, into pages of this size.
    pub collapse: Option<PageSize>,
    /// The line to be said.
    pub message: Option<String>,
    /// What was wished for is not had.
    pub is_short: bool,
}

/// Chooses for the program at `path` (the interpreter of a script).
pub fn prepare(args: &HeapArgs, only: &[String], path: &Path, machine: &MachineFacts) -> HeapStart {
    if args.heap == HeapArg::Off {
        return HeapStart::default();
    }
    let environment = Environment::of_this_process();
    let chosen = match Program::read(path, &environment) {
        Ok(Some(program)) => choose_for(&program, args, only, machine, &environment),
        _ => None,
    };
    let Some((allocator, way)) = chosen else {
        let message = format!("pagelift: {}: heap: not an ELF program of this machine; left as it is", path.display());
        return HeapStart { message: Some(message), is_short: true, ..HeapStart::default() };
    };
    let mut said: Vec<String> = way.refusals.iter().chain(&way.reasons).cloned().collect();
    if let Some(preload) = way.preload.as_ref().filter(|preload| preload.pool_bytes > 0) {
        said.push(format!("{} asked of the pool", format_bytes(preload.pool_bytes)));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).display();
    HeapStart {
        environment: (!way.variables.is_empty()).then(|| with_variables(&way.variables)),
        collapse: way.collapse.then(|| machine.thp.map(|thp| thp.size)).flatten(),
        message: Some(format!("pagelift: {name}: heap: {}: {}", family_of(&allocator), said.join("; "))),
        is_short: !way.refusals.is_empty(),
    }
}

/// The allocator's name without the evidence.
fn family_of(allocator: &Allocator) -> String {
    let text = allocator.to_string();
    text.split(" (").next().unwrap_or(&text).to_owned()
}

fn choose_for(
    program: &Program,
    args: &HeapArgs,
    only: &[String],
    machine: &MachineFacts,
    environment: &Environment,
) -> Option<(Allocator, Way)> {
    if program.executable.machine != machine.elf_machine {
        return None;
    }
    let allocator = Allocator::of(program);
    let (wish, pool) = match args.heap {
        HeapArg::Pool(size) => (Wish::Pool(size), pool_share(size, args.heap_reserve, machine)),
        HeapArg::Thp => (Wish::Thp, [NodePages::default(); MOST_NODES]),
        HeapArg::Auto | HeapArg::Off => (Wish::Auto, [NodePages::default(); MOST_NODES]),
    };
    let context = Context {
        wish,
        forced: args.heap_allocator.map(|which| match which {
            HeapAllocatorArg::Own => Forced::Own,
            HeapAllocatorArg::Mimalloc => Forced::Mimalloc,
            HeapAllocatorArg::Collapse => Forced::Collapse,
        }),
        replaceable: allocator.is_replaceable(program),
        thp: machine.thp.map_or(ThpMode::Never, |thp| thp.mode),
        grain: grain(machine)?,
        library: library(),
        pool,
        only: only.join(","),
        environment,
    };
    let mut way = choose(&allocator, &context);
    if let Wish::Pool(size) = wish
        && way.preload.as_ref().is_some_and(|preload| preload.pool_bytes == 0)
    {
        way.refusals.push(no_pages(size));
    }
    Some((allocator, way))
}

/// Why the pool has no page for this process, and the command that mends it.
fn no_pages(size: PageSize) -> String {
    let pools = pools_at(Path::new("/sys/kernel/mm/hugepages"));
    let free = pools.iter().find(|pool| pool.size == size).map_or(0, |pool| pool.available);
    let limits = Cgroups::of(std::process::id() as i32).limits(&[size]);
    match limits.hugetlb_of(size).filter(|limit| free > 0 && limit.left < size.bytes()) {
        Some(HugetlbLimit { file, .. }) => {
            let file = file.display();
            format!(
                "a cgroup allows no more pages of {size}, of which the pool has {free}; needed: echo BYTES > {file}"
            )
        }
        None => format!("found {free} free pages of {size} in the pool; {}", mend(size)),
    }
}

/// The command that fills the pool.
fn mend(size: PageSize) -> String {
    let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", size.kib());
    if !Path::new(&file).exists() {
        return format!("this machine has no huge pages of {size}");
    }
    format!("needed: echo NUMBER > {file}, or for large pages hugepagesz= and hugepages= when booting")
}

fn pool_share(size: PageSize, wanted: Option<u64>, machine: &MachineFacts) -> [NodePages; MOST_NODES] {
    let available = machine.pool(size).map_or(0, |pool| pool.available);
    if machine.pool(size).is_none() {
        return [NodePages::default(); MOST_NODES];
    }
    let pages = pages_to_take(size, available, wanted);
    share_by_node(&free_pages_by_node(Path::new("/sys/devices/system/node"), size), pages)
}

/// The unit in which the preloaded heap hands memory about.
fn grain(machine: &MachineFacts) -> Option<PageSize> {
    let sizes = machine.thp.iter().map(|thp| thp.size).chain(machine.pools.iter().map(|pool| pool.size));
    sizes.filter(|size| size.bytes() <= LARGEST_GRAIN).max()
}

/// The preloaded library: beside this program in a build, in a folder of its own once installed.
fn library() -> Result<String, String> {
    let us = std::env::current_exe().map_err(|error| format!("this program's own path cannot be told: {error}"))?;
    let folder = us.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../libexec/pagelift").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file()).and_then(|place| place.canonicalize().ok());
    let found = found.and_then(|path| path.into_os_string().into_string().ok());
    // The dynamic linker takes blanks and colons for the ends of names.
    match found.filter(|path| !path.contains([' ', ':'])) {
        Some(path) => Ok(path),
        None => {
            Err(format!("{LIBRARY} is not in {}; needed: `make install`, or `cargo build --release`", folder.display()))
        }
    }
}

/// Our environment with variables set.
fn with_variables(variables: &[(String, String)]) -> Vec<CString> {
    let ours = std::env::vars_os()
        .filter(|(name, _)| !variables.iter().any(|(set, _)| name.to_str() == Some(set)))
        .map(|(name, value)| [name.into_vec(), b"=".to_vec(), value.into_vec()].concat());
    let set = variables.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
    ours.chain(set).filter_map(|variable| CString::new(variable).ok()).collect()
}

/// The file whose allocator counts: the first program that `--only` names and that is found, else the command's own.
pub fn program_that_counts(
    only: &[String],
    own: Option<PathBuf>,
    find: impl Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    only.iter().find_map(|name| find(name)).or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_takes_words_and_sizes() {
        assert_eq!("auto".parse(), Ok(HeapArg::Auto));
        assert_eq!("1G".parse(), Ok(HeapArg::Pool(PageSize::new(1 << 30).unwrap())));
        assert!("3M".parse::<HeapArg>().is_err() && "".parse::<HeapArg>().is_err());
    }

    #[test]
    fn a_variable_is_set_once() {
        let environment = with_variables(&[("PATH".to_owned(), "/nowhere".to_owned())]);
        let paths: Vec<_> = environment.iter().filter(|v| v.to_bytes().starts_with(b"PATH=")).collect();
        assert_eq!(paths, [c"PATH=/nowhere"]);
    }

    #[test]
    fn the_program_that_is_named_counts() {
        let find = |name: &str| (name == "b").then(|| PathBuf::from("/bin/b"));
        let only = ["a".to_owned(), "b".to_owned()];
        assert_eq!(program_that_counts(&only, Some("/bin/sh".into()), find), Some("/bin/b".into()));
        assert_eq!(program_that_counts(&only[..1], Some("/bin/sh".into()), find), Some("/bin/sh".into()));
    }
}
