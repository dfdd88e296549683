//! The ways to run a program: glibc and its tunables, other allocators, Pagelift.

use super::programs::Program;
use crate::bench::Bench;
use crate::build::Linking;
use crate::peers::library_exists;
use address_space::PageSize;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The way that the others are beside.
pub(super) const BASELINE: &str = "glibc";
/// The baseline once more.
pub(super) const CONTROL: &str = "glibc once more";
/// The other allocators and settings, without Pagelift.
pub(super) const PEERS: [&str; 6] =
    ["glibc, hugetlb=1", "glibc, hugetlb=2", "jemalloc", "jemalloc, thp:always", "tcmalloc", "mimalloc 3, large pages"];
/// Pagelift's ways.
pub(super) const OURS: [&str; 3] = ["--heap=auto", "--heap=thp", "--heap=2M"];

/// A way to run the programs.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) name: String,
    library: Option<PathBuf>,
    variables: Vec<(&'static str, &'static str)>,
    /// The words before the program.
    words: String,
}

impl Way {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), library: None, variables: Vec::new(), words: String::new() }
    }

    fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.variables.push((variable, value));
        self
    }

    /// The words before the program, which load a library of ours first and set `more` variables.
    pub(super) fn before(&self, first: Option<&Path>, more: &[(&str, String)]) -> String {
        let libraries: Vec<String> =
            first.into_iter().chain(self.library.as_deref()).map(|library| library.display().to_string()).collect();
        let preload = (!libraries.is_empty()).then(|| format!("LD_PRELOAD={}", libraries.join(":")));
        let own = self.variables.iter().map(|(variable, value)| format!("{variable}={value}"));
        let more = more.iter().map(|(variable, value)| format!("{variable}={value}"));
        let variables: Vec<String> = preload.into_iter().chain(own).chain(more).collect();
        let env = if variables.is_empty() { String::new() } else { format!("env {} ", variables.join(" ")) };
        env + &self.words
    }
}

/// Ways that are the same for all programs: glibc, and the installed peers.
pub(super) fn common(bench: &mut Bench) -> Vec<Way> {
    let tunable = |way: Way, value| way.with("GLIBC_TUNABLES", value);
    let mut ways = vec![
        Way::new(BASELINE),
        Way::new(CONTROL),
        tunable(Way::new(PEERS[0]), "glibc.malloc.hugetlb=1"),
        tunable(Way::new(PEERS[1]), "glibc.malloc.hugetlb=2"),
    ];
    let preloaded = [
        (PEERS[2], "libjemalloc.so.2", "libjemalloc2", None),
        (PEERS[3], "libjemalloc.so.2", "libjemalloc2", Some(("MALLOC_CONF", "thp:always"))),
        (PEERS[4], "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", None),
    ];
    for (name, library, package, variable) in preloaded {
        if !library_exists(library) {
            bench.report.skip(format!("heap-programs: {name}"), format!("no {library}; apt-get install {package}"));
            continue;
        }
        let way = Way { library: Some(library.into()), ..Way::new(name) };
        ways.push(variable.iter().fold(way, |way, (variable, value)| way.with(variable, value)));
    }
    match mimalloc(bench) {
        Ok(library) => {
            let way = Way { library: Some(library), ..Way::new(PEERS[5]) };
            ways.push(way.with("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"));
        }
        Err(error) => bench.report.skip(format!("heap-programs: {}", PEERS[5]), format!("{error:#}")),
    }
    ways
}

/// The common ways and Pagelift's. Without a pool, those that need one are left out.
pub(super) fn for_program(bench: &Bench, program: Program, common: &[Way], pool: bool) -> Vec<Way> {
    let needs_pool = |way: &Way| way.name == PEERS[1];
    let mut ways: Vec<Way> = common.iter().filter(|way| pool || !needs_pool(way)).cloned().collect();
    ways.push(pagelift(bench, OURS[0], "--heap=auto"));
    ways.push(pagelift(bench, OURS[1], "--heap=thp --heap-allocator=mimalloc"));
    if pool {
        ways.push(pagelift(bench, OURS[2], &format!("--heap=2M --heap-reserve={}", program.pool_bytes)));
    }
    ways
}

/// glibc, and Pagelift on a pool of larger pages.
pub(super) fn on_larger_pages(bench: &Bench, program: Program, page: PageSize) -> Vec<Way> {
    let reserve = page.pages_for(program.pool_bytes) * page.bytes();
    let options = format!("--heap={} --heap-reserve={reserve}", page.bytes());
    vec![Way::new(BASELINE), Way::new(CONTROL), pagelift(bench, &format!("--heap={page}"), &options)]
}

fn pagelift(bench: &Bench, name: &str, options: &str) -> Way {
    Way { words: format!("{} run -q {options} --", bench.pagelift.display()), ..Way::new(name) }
}

/// mimalloc 3, compiled from the sources that this workspace's crate libmimalloc-sys carries.
fn mimalloc(bench: &Bench) -> Result<PathBuf> {
    let sources = crate_folder("libmimalloc-sys")?.join("c_src/mimalloc/v3");
    let include = format!("-I{}", sources.join("include").display());
    let source = sources.join("src/static.c").display().to_string();
    let options = ["-shared", "-fPIC", "-O3", "-ftls-model=initial-exec", "-fno-builtin-malloc", "-w", "-pthread"];
    let defined =
        ["-DNDEBUG", "-DMI_BUILD_RELEASE", "-DMI_MALLOC_OVERRIDE", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT"];
    let more = [&options[..], &defined, &[&include]].concat();
    bench.build("libmimalloc-3.so", &[&source], Linking::Default, &more)
}

/// The folder of a crate that this workspace depends on, from cargo.
fn crate_folder(name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut command = Command::new(cargo);
    // Crates of other platforms need not have been downloaded.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &platform]);
    let output = command.arg("--manifest-path").arg(manifest).output().context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {}: {}", output.status, said.trim());
    let text: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let mut packages = text["packages"].as_array().into_iter().flatten();
    let package = packages.find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("cargo has no sources of {name}"))?;
    Ok(Path::new(manifest).parent().context("a manifest is in a folder")?.to_owned())
}
