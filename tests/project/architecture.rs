//! The project's rules of structure, checked in the text of its sources.

mod circles;

use anyhow::{Context as _, Result, ensure};
use circles::Crate;
use libtest_mimic::{Failed, Trial as Test};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use test_support::{main_of, workspace};

/// Crates and files that model, plan or calculate: no I/O, no system call, no `unsafe`.
const PURE: [&str; 16] = [
    "crates/base/address-space/src",
    "crates/base/foreign-text/src",
    "crates/base/options/src",
    "crates/lift/plan/src",
    "crates/lift/execution/src",
    "crates/sources/page-cache/src/alignment",
    "crates/heap/abi/src",
    "crates/heap/choice/src/cures",
    "crates/measure/measure/src/statistics",
    "crates/app/agent/src/decision",
    "crates/app/health/src/checks",
    "crates/measure/measure/src/record",
    "crates/measure/bench-report/src",
    "crates/app/service-units/src",
    "crates/lift/shared-memory/src",
    "crates/measure/estimate/src/tlb_model",
];
/// The only dependencies of pure crates on others: statistics, types and records of measurements, and the facts about
/// the machine.
const IMPURE_DEPENDENCIES: [(&str, &str); 2] = [("bench-report", "measure"), ("lift-plan", "machine-facts")];
/// The only crates that handle memory outside of Rust's guarantees or, in QEMU's plugin, another program's functions.
const UNSAFE_CRATES: [&str; 6] = [
    "crates/base/linux/",
    "crates/base/linux-raw/",
    "crates/process/ptrace/",
    "crates/inside/libpagelift/",
    "crates/heap/allocator/",
    "crates/measure/tlb-trace/",
];
/// Program entries that run before Rust's own start-up changes signals and descriptors, an allocator, the launch of a
/// helper in this process's memory, the demo's code, the memory and chains of the probe, and a test of a confined
/// thread's system calls.
const UNSAFE_FILES: [&str; 8] = [
    "crates/app/pagelift/src/main.rs",
    "crates/app/cli/src/allocator.rs",
    "crates/app/cli/src/commands/run.rs",
    "crates/session/src/start/helper.rs",
    "crates/measure/demo-program/src/",
    "crates/measure/translation/src/tlb_probe/chain.rs",
    "crates/measure/translation/src/tlb_probe/region.rs",
    "crates/process/confinement/tests/poisoning.rs",
];
/// A crate that only its own test and libFuzzer use.
const FUZZ_TARGETS: &str = "crates/testing/hostile-input/";
/// Folders above the crates. A crate depends only on crates of the same folder and of earlier ones.
const ROOMS: [&str; 10] =
    ["base", "lift", "process", "sources", "heap", "inside", "session", "measure", "app", "testing"];
const LONGEST: usize = 600;
const SAFETY_WITHIN: usize = 12;

type Rule = (&'static str, fn() -> Result<()>);

fn main() -> ExitCode {
    let rules: [Rule; 21] = [
        ("doc_comments_say_what_an_item_is", doc_comments_say_what_an_item_is),
        ("only_the_items_of_unit_tests_are_left_out", only_the_items_of_unit_tests_are_left_out),
        ("pure_crates_do_no_io", pure_crates_do_no_io),
        ("pure_crates_forbid_unsafe_code", pure_crates_forbid_unsafe_code),
        ("pure_crates_depend_on_pure_crates", pure_crates_depend_on_pure_crates),
        ("unsafe_stands_only_where_it_may", unsafe_stands_only_where_it_may),
        ("each_unsafe_use_states_its_facts", each_unsafe_use_states_its_facts),
        ("circles_of_modules_are_found", circles_of_modules_are_found),
        ("modules_form_no_circles", modules_form_no_circles),
        ("no_file_is_too_long", no_file_is_too_long),
        ("nothing_is_left_undone", nothing_is_left_undone),
        ("no_page_size_is_assumed", no_page_size_is_assumed),
        ("mounts_may_have_any_names", mounts_may_have_any_names),
        ("commands_print_in_one_place", commands_print_in_one_place),
        ("rooms_depend_on_those_before_them", rooms_depend_on_those_before_them),
        ("facts_are_defined_below_the_planner", facts_are_defined_below_the_planner),
        ("nobody_depends_on_the_command_line", nobody_depends_on_the_command_line),
        ("pagelift_links_no_clients_of_databases", pagelift_links_no_clients_of_databases),
        ("fuzz_targets_are_in_no_shipped_program", fuzz_targets_are_in_no_shipped_program),
        ("system_calls_come_from_three_libraries", system_calls_come_from_three_libraries),
        ("the_architecture_page_names_every_folder", the_architecture_page_names_every_folder),
    ];
    let test_case =
        |(name, rule): Rule| Test::test(name, move || rule().map_err(|error| Failed::from(format!("{error:#}"))));
    main_of(rules.into_iter().map(test_case).collect())
}

struct SourceFile {
    /// From the workspace's root, with `/`.
    path: String,
    text: String,
}

impl SourceFile {
    /// Lines with their numbers, without comments and without items compiled only for unit tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut lines = self.text.lines().enumerate();
        std::iter::from_fn(move || {
            loop {
                let (index, line) = lines.next()?;
                if line.trim() != "#[cfg(test)]" {
                    return Some((index + 1, line.split_once("//").map_or(line, |(code, _)| code)));
                }
                skip_item(&line[..line.len() - line.trim_start().len()], &mut lines);
            }
        })
    }

    fn is_test(&self) -> bool {
        self.path.starts_with(FUZZ_TARGETS)
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/benches/")
    }
}

/// Skips an item that is indented by `indent`, with its attributes.
fn skip_item<'a>(indent: &str, lines: &mut impl Iterator<Item = (usize, &'a str)>) {
    let ends = |line: &str| line.strip_prefix(indent).is_some_and(|rest| rest == "}" || rest == "};");
    let first = lines.find(|(_, line)| !line.trim_start().starts_with("#["));
    if first.is_some_and(|(_, line)| !line.ends_with([';', '}'])) {
        lines.find(|(_, line)| ends(line));
    }
}

fn sources(folder: &str, extensions: &[&str]) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    collect(&workspace().join(folder), extensions, &mut files)?;
    ensure!(!files.is_empty(), "no source was found in {folder}");
    Ok(files)
}

fn collect(folder: &Path, extensions: &[&str], into: &mut Vec<SourceFile>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, extensions, into)?;
            }
        } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(workspace()).unwrap_or(&path).to_string_lossy().into_owned();
            into.push(SourceFile { path, text });
        }
    }
    Ok(())
}

fn rust_sources() -> Result<Vec<SourceFile>> {
    sources("crates", &["rs"])
}

fn pure_sources() -> Result<Vec<SourceFile>> {
    let files: Vec<SourceFile> =
        rust_sources()?.into_iter().filter(|file| PURE.iter().any(|pure| file.path.starts_with(pure))).collect();
    for pure in PURE {
        ensure!(
            files.iter().any(|file| file.path.starts_with(pure)),
            "{pure} is not there any more: correct this list"
        );
    }
    Ok(files)
}

fn refuse(found: Vec<String>, rule: &str) -> Result<()> {
    ensure!(found.is_empty(), "{rule}\n  {}", found.join("\n  "));
    Ok(())
}

/// True if `line` has `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part_of_name) && !line[at + word.len()..].starts_with(part_of_name))
}

/// The other rules do not check lines that `code` leaves out.
fn only_the_items_of_unit_tests_are_left_out() -> Result<()> {
    let text = "\
one(); // A comment.
#[cfg(test)]
mod tests;
struct Two;
impl Two {
    #[cfg(test)]
    #[must_use]
    fn for_tests() -> Self {
        Self
    }
    fn three() {}
    #[cfg(test)]
    fn empty() {}
}
#[cfg(test)]
use four::{
    five,
};
#[cfg(test)]
mod tests {
    fn six() {}
}
seven();
";
    let file = SourceFile { path: String::new(), text: text.to_owned() };
    let left: Vec<_> = file.code().map(|(number, line)| (number, line.trim())).collect();
    let expected =
        [(1, "one();"), (4, "struct Two;"), (5, "impl Two {"), (11, "fn three() {}"), (14, "}"), (23, "seven();")];
    ensure!(left == expected, "{left:?}");
    Ok(())
}

fn pure_crates_do_no_io() -> Result<()> {
    const IO: [&str; 16] = [
        "std::fs",
        "std::process",
        "std::net",
        "std::env",
        "std::io",
        "std::thread",
        "std::time",
        "std::os",
        "libc::",
        "nix::",
        "rustix::",
        "linux::",
        "println!",
        "eprintln!",
        "print!",
        "eprint!",
    ];
    let mut found = Vec::new();
    for file in pure_sources()?.iter().filter(|file| !file.is_test()) {
        for (number, line) in file.code() {
            let used =
                IO.iter().find(|word| has_word(line, word.trim_end_matches(['!', ':'])) && line.contains(**word));
            found.extend(used.map(|word| format!("{}:{number}: {word}", file.path)));
        }
    }
    refuse(found, "I/O where only values may come in and go out:")
}

fn pure_crates_forbid_unsafe_code() -> Result<()> {
    const CRATES: [&str; 10] = [
        "app/service-units",
        "base/address-space",
        "base/foreign-text",
        "base/options",
        "heap/abi",
        "lift/execution",
        "lift/plan",
        "lift/shared-memory",
        "measure/bench-report",
        "measure/measure",
    ];
    for pure in CRATES.map(|name| format!("crates/{name}/src/lib.rs")) {
        let text = fs::read_to_string(workspace().join(&pure)).with_context(|| format!("no {pure}"))?;
        ensure!(text.contains("#![forbid(unsafe_code)]"), "{pure} does not forbid unsafe code");
    }
    Ok(())
}

/// The name of a manifest's package.
fn package(manifest: &SourceFile) -> Option<&str> {
    manifest.text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// The crates that a crate is built from, without those that only its tests use.
fn built_from(manifest: &SourceFile) -> Vec<&str> {
    let mut counts = false;
    let mut names = Vec::new();
    for line in manifest.text.lines() {
        if line.starts_with('[') {
            counts = line.ends_with("dependencies]") && !line.ends_with("dev-dependencies]");
        } else if counts {
            names.extend(line.split(['=', '.', ' ']).next());
        }
    }
    names
}

fn pure_crates_depend_on_pure_crates() -> Result<()> {
    let manifests = sources("crates", &["toml"])?;
    let folder = |manifest: &SourceFile| manifest.path.strip_suffix("/Cargo.toml").map(str::to_owned);
    let crates = manifests.iter().filter_map(|manifest| Some((folder(manifest)?, manifest)));
    let (pure, others): (Vec<_>, Vec<_>) =
        crates.partition(|(folder, _)| PURE.iter().any(|source| source.strip_suffix("/src") == Some(folder.as_str())));
    let others: Vec<&str> = others.iter().filter_map(|(_, manifest)| package(manifest)).collect();
    let mut found = Vec::new();
    for (folder, manifest) in &pure {
        let own = package(manifest).with_context(|| format!("{folder} has no name"))?;
        found.extend(built_from(manifest).into_iter().filter(|name| others.contains(name)).map(|name| (own, name)));
    }
    let gone = IMPURE_DEPENDENCIES.iter().find(|known| !found.contains(known));
    ensure!(gone.is_none(), "{gone:?} is not there any more: correct this list");
    let refused = found.iter().filter(|dependency| !IMPURE_DEPENDENCIES.contains(dependency));
    let refused = refused.map(|(own, name)| format!("{own} depends on {name}")).collect();
    refuse(refused, "pure crates that depend on others:")
}

fn unsafe_stands_only_where_it_may() -> Result<()> {
    let mut found = Vec::new();
    for file in rust_sources()?.iter().chain(&sources("tests", &["rs"])?) {
        let allowed = UNSAFE_CRATES.iter().chain(&UNSAFE_FILES).any(|place| file.path.starts_with(place));
        if allowed || file.path.ends_with("project/architecture.rs") {
            continue;
        }
        let uses = file.text.lines().enumerate().filter(|(_, line)| {
            let code = line.split_once("//").map_or(*line, |(code, _)| code);
            has_word(code, "unsafe")
        });
        found.extend(uses.map(|(index, line)| format!("{}:{}: {}", file.path, index + 1, line.trim())));
    }
    refuse(found, "`unsafe` outside its few places:")
}

fn each_unsafe_use_states_its_facts() -> Result<()> {
    let mut found = Vec::new();
    for file in rust_sources()? {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split_once("//").map_or(*line, |(code, _)| code);
            let is_block = has_word(code, "unsafe") && (code.contains("unsafe {") || code.contains("unsafe impl"));
            let is_function = code.contains("unsafe fn") && !code.contains("= unsafe") && !code.contains("(unsafe");
            let above = &lines[index.saturating_sub(SAFETY_WITHIN)..=index];
            let stated = |word: &str| above.iter().any(|l| l.contains(word));
            if (is_block && !stated("SAFETY:")) || (is_function && !stated("# Safety") && !stated("SAFETY:")) {
                found.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    refuse(found, "`unsafe` without the facts that make it sound:")
}

/// A comment that begins with such a word refers to text that its reader has not read.
fn doc_comments_say_what_an_item_is() -> Result<()> {
    const RIDDLES: [&str; 6] = ["Of ", "The same", "So ", "Likewise", "Ditto", "As above"];
    let mut found = Vec::new();
    let folders = ["crates", "tests", "benches"].map(|folder| sources(folder, &["rs"]));
    for file in folders.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        let mut before = "";
        for (index, line) in file.text.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("/// ");
            let is_first = !before.trim_start().starts_with("///") || before.trim() == "///";
            if is_first && comment.is_some_and(|text| RIDDLES.iter().any(|riddle| text.starts_with(riddle))) {
                found.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
            before = line;
        }
    }
    refuse(found, "doc comments that do not say what their item is:")
}

/// The rule below does not check uses that `Crate` misses.
fn circles_of_modules_are_found() -> Result<()> {
    let circles = |files: &[(&str, &str)]| {
        let mut modules = Crate::default();
        files.iter().for_each(|(path, code)| modules.add(path, (*code).to_owned()));
        modules.circles()
    };
    let root = ("lib.rs", "mod a;\nmod b;\npub use b::{\n    C,\n    inner::D as E,\n};");
    let found = circles(&[root, ("a.rs", "use crate::C;"), ("b/mod.rs", "mod inner;"), ("b/inner.rs", "")]);
    ensure!(found.is_empty(), "{found:?}");
    let found = circles(&[root, ("a.rs", "use crate::{x, C};"), ("b.rs", "fn f() { super::a::g() }")]);
    ensure!(found == ["a uses b", "b uses a"], "{found:?}");
    let files =
        [("a.rs", "use crate::b::inner::{D};"), ("b/mod.rs", "use inner::D;"), ("b/inner.rs", "use super::super::a;")];
    ensure!(circles(&files) == ["a uses b::inner", "b::inner uses a"], "{:?}", circles(&files));
    Ok(())
}

/// Two modules that use each other cannot be read or changed separately.
fn modules_form_no_circles() -> Result<()> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for file in rust_sources()?.iter().filter(|file| !file.is_test()) {
        let Some((name, path)) = file.path.split_once("/src/") else { continue };
        if path != "main.rs" && !path.starts_with("bin/") {
            let code = file.code().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
            crates.entry(name.to_owned()).or_default().add(path, code);
        }
    }
    let of_crate = |(name, modules): (&String, &mut Crate)| -> Vec<String> {
        modules.circles().into_iter().map(|line| format!("{name}: {line}")).collect()
    };
    refuse(crates.iter_mut().flat_map(of_crate).collect(), "modules in circles:")
}

fn no_file_is_too_long() -> Result<()> {
    let extensions = ["rs", "c", "h", "S", "go", "sh", "py", "toml"];
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        for file in sources(folder, &extensions)? {
            let lines = file.text.lines().count();
            if lines > LONGEST {
                found.push(format!("{}: {lines} lines", file.path));
            }
        }
    }
    refuse(found, "longer than a reader can keep in mind:")
}

fn nothing_is_left_undone() -> Result<()> {
    let mut found = Vec::new();
    for file in rust_sources()?.iter().chain(&sources("tests", &["rs", "c", "h", "S", "go", "sh"])?) {
        if file.path.ends_with("project/architecture.rs") {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            if ["TODO", "FIXME", "XXX", "todo!", "unimplemented!"]
                .iter()
                .any(|word| has_word(line, word.trim_end_matches('!')) && line.contains(*word))
            {
                found.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    refuse(found, "left undone:")
}

/// Page sizes are read from the machine; a number that looks like a page size is an assumption.
fn no_page_size_is_assumed() -> Result<()> {
    const SIZES: [&str; 8] =
        ["2 << 20", "1 << 21", "2097152", "0x200000", "0x20_0000", "2 * 1024 * 1024", "2048 * 1024", "2_097_152"];
    let mut found = Vec::new();
    for file in
        rust_sources()?.iter().filter(|file| !file.is_test() && !file.path.starts_with("crates/measure/demo-program"))
    {
        for (number, line) in file.code() {
            // `32 << 20` is a different number.
            let is_whole = |at: usize| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            if SIZES.iter().any(|size| line.match_indices(size).any(|(at, _)| is_whole(at))) {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    refuse(found, "a page size written down instead of read:")
}

/// Users mount file systems (FUSE) on folders whose names need not be UTF-8.
fn mounts_may_have_any_names() -> Result<()> {
    let mut found = Vec::new();
    for file in rust_sources()?.iter().filter(|file| !file.is_test()) {
        let reads = file.code().filter(|(_, line)| line.contains("read_to_string") && line.contains("mountinfo"));
        found.extend(reads.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())));
    }
    refuse(found, "lists of mounts that `linux::text::text_of` does not read:")
}

/// A message that is printed elsewhere could contain control characters for the terminal.
fn commands_print_in_one_place() -> Result<()> {
    const PLACE: &str = "crates/app/cli/src/output.rs";
    const PRINTS: [&str; 6] = ["println!", "print!", "eprintln!", "eprint!", "stdout", "stderr"];
    // Streams for a child, a descriptor's number, and output of a child.
    const OTHERS: [&str; 7] =
        ["Stdio::", ".stdout", ".stderr", "stderr_of", "mut stderr", "use_stderr", "fn open_as_process"];
    let is_command = |path: &str| {
        ["crates/app/cli/", "crates/app/measure-cli/", "crates/app/pagelift/"]
            .iter()
            .any(|folder| path.starts_with(folder))
    };
    let mut found = Vec::new();
    for file in rust_sources()?.iter().filter(|file| is_command(&file.path) && file.path != PLACE && !file.is_test()) {
        for (number, line) in file.code() {
            let calls = |word: &&str| match word.strip_suffix('!') {
                Some(name) => has_word(line, name) && line.contains(*word),
                None => has_word(line, word) && line.contains(&format!("{word}()")),
            };
            if PRINTS.iter().any(calls) && !OTHERS.iter().any(|other| line.contains(other)) {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    let place = fs::read_to_string(workspace().join(PLACE)).with_context(|| format!("no {PLACE}"))?;
    ensure!(place.contains("io::stdout()") && place.contains("io::stderr()"), "{PLACE} does not print any more");
    refuse(found, "printed past crates/app/cli/src/output.rs:")
}

fn dependencies(manifest: &SourceFile) -> impl Iterator<Item = &str> {
    manifest.text.lines().map(|line| line.split(['=', '.', ' ']).next().unwrap_or_default().trim())
}

/// No folder needs a later one, so the crates can be read in order from `base`.
fn rooms_depend_on_those_before_them() -> Result<()> {
    let manifests = sources("crates", &["toml"])?;
    let mut places = BTreeMap::new();
    for manifest in &manifests {
        let Some(name) = package(manifest) else { continue };
        let room = manifest.path.split('/').nth(1).unwrap_or_default();
        let place = ROOMS.iter().position(|known| *known == room);
        places.insert(name, place.with_context(|| format!("{}: no room `{room}` in this list", manifest.path))?);
    }
    let mut found = Vec::new();
    for (manifest, own) in manifests.iter().filter_map(|manifest| Some((manifest, package(manifest)?))) {
        let later = built_from(manifest).into_iter().filter(|name| places.get(name) > places.get(own));
        found.extend(later.map(|name| format!("{own} depends on {name}")));
    }
    ensure!(places.len() > ROOMS.len(), "only {} crates were found", places.len());
    refuse(found, "crates that depend on a later room:")
}

/// A plan is made from facts; readers and users of facts need no planner.
fn facts_are_defined_below_the_planner() -> Result<()> {
    let defines = |line: &str| {
        let name = line.trim_start().strip_prefix("pub struct ")?.split(|c: char| !c.is_alphanumeric()).next()?;
        name.ends_with("Facts").then(|| name.to_owned())
    };
    let mut found = Vec::new();
    for file in sources("crates/lift", &["rs"])?.iter().filter(|file| !file.is_test()) {
        found.extend(
            file.code().filter_map(|(number, line)| Some(format!("{}:{number}: {}", file.path, defines(line)?))),
        );
    }
    let heap = sources("crates/heap", &["toml"])?;
    let heap = heap.iter().filter(|manifest| built_from(manifest).contains(&"lift-plan"));
    found.extend(heap.map(|manifest| format!("{} depends on lift-plan", manifest.path)));
    let facts = sources("crates/base/machine-facts/src", &["rs"])?;
    let defined: Vec<_> = facts.iter().flat_map(|file| file.text.lines().filter_map(defines)).collect();
    ensure!(["MachineFacts", "ProcessFacts"].iter().all(|name| defined.iter().any(|n| n == name)), "only {defined:?}");
    refuse(found, "facts above machine-facts, or a heap that needs the planner:")
}

fn nobody_depends_on_the_command_line() -> Result<()> {
    // Each may depend on earlier ones.
    const PROGRAM: [&str; 3] = ["cli", "measure-cli", "pagelift"];
    for manifest in sources("crates", &["toml"])? {
        let own = package(&manifest).and_then(|own| PROGRAM.iter().position(|name| *name == own));
        let refused = &PROGRAM[own.unwrap_or(0)..];
        let found =
            dependencies(&manifest).find(|name| refused.contains(name) && Some(*name) != own.map(|at| PROGRAM[at]));
        ensure!(found.is_none(), "{} depends on {}", manifest.path, found.unwrap_or_default());
    }
    Ok(())
}

/// Every start of `pagelift run` would load their constants.
fn pagelift_links_no_clients_of_databases() -> Result<()> {
    const MEASURING: [&str; 2] = ["bench", "bench-report"];
    let manifests = sources("crates", &["toml"])?;
    let cli = manifests.iter().find(|file| file.path == "crates/app/cli/Cargo.toml").context("no crates/app/cli")?;
    let found: Vec<_> = dependencies(cli).filter(|name| MEASURING.contains(name)).collect();
    ensure!(found.is_empty(), "crates/app/cli depends on {found:?}");
    let main = fs::read_to_string(workspace().join("crates/app/pagelift/src/main.rs"))?;
    ensure!(
        !main.contains("measure_cli"),
        "pagelift's main.rs uses measure_cli, which is the part of pagelift-measure"
    );
    Ok(())
}

/// The architecture page describes the purpose of each library.
fn system_calls_come_from_three_libraries() -> Result<()> {
    const OTHERS: [&str; 5] = ["rustix", "syscalls", "sc", "linux-syscall", "procfs"];
    const KERNEL_HEADERS: &str = "linux-raw-sys";
    let mut found = Vec::new();
    let mut manifests = sources("crates", &["toml"])?;
    manifests.extend(sources("tests", &["toml"])?);
    for manifest in manifests {
        let names = manifest.text.lines().map(|line| line.split(['=', '.', ' ']).next().unwrap_or_default());
        let refused = names.filter(|name| {
            OTHERS.contains(name) || *name == KERNEL_HEADERS && manifest.path != "crates/base/linux-raw/Cargo.toml"
        });
        found.extend(refused.map(|name| format!("{}: {name}", manifest.path)));
    }
    refuse(found, "system calls are made by nix and libc, and by linux-raw-sys in crates/base/linux-raw only:")
}

/// The feature `fuzzing` makes readers public for the fuzz targets; no other crate enables it.
fn fuzz_targets_are_in_no_shipped_program() -> Result<()> {
    let manifests = sources("crates", &["toml"])?;
    let others = manifests.iter().filter(|file| !file.path.starts_with(FUZZ_TARGETS));
    let asks = |line: &str| line.contains("hostile-input") || line.contains("features") && line.contains("\"fuzzing\"");
    let found = others.filter(|file| file.text.lines().any(asks)).map(|file| file.path.clone()).collect();
    ensure!(manifests.iter().any(|file| file.path.starts_with(FUZZ_TARGETS)), "{FUZZ_TARGETS} is not there any more");
    refuse(found, "crates that use the fuzz targets:")
}

fn the_architecture_page_names_every_folder() -> Result<()> {
    let page = fs::read_to_string(workspace().join("docs/ARCHITECTURE.md")).context("no docs/ARCHITECTURE.md")?;
    let manifests = sources("crates", &["toml"])?;
    let missing = manifests.iter().filter_map(|manifest| {
        let folder = manifest.path.strip_suffix("/Cargo.toml")?;
        let name = folder.rsplit('/').next()?.to_owned();
        (!page.contains(&format!("{name}/"))).then_some(name)
    });
    refuse(missing.collect(), "folders that docs/ARCHITECTURE.md does not name:")
}
