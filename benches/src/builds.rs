//! Whole builds, plain and with their compilers lifted: their duration, and the equality of their files.

use crate::bench::Bench;
use crate::images::Store;
use crate::table::print_times;
use anyhow::Result;
use measure::MeasureError;
use measure::report::VariantFacts;
use measure::start_up::{TimedVariant, time_to_exit};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use test_support::{GOOGLETEST, SourceTree, command_exists, is_root, lifted_programs, same_outputs};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if !is_root() {
        bench.report.skip("builds", "a store is mounted by root only; run `sudo make bench`");
        return Ok(());
    }
    let missing = |commands: &[&str]| commands.iter().find(|name| !command_exists(name)).map(|name| (*name).to_owned());
    match missing(&["cargo"]) {
        Some(name) => bench.report.skip("builds by cargo", format!("no {name}")),
        None => compare(bench, "builds by cargo", &SourceTree::of_rust(bench.folder.path()))?,
    }
    let no_tree = || format!("{GOOGLETEST}; on Debian: apt-get install googletest");
    let tree = (!Path::new(GOOGLETEST).exists()).then(no_tree);
    match missing(&["make", "cmake", "g++"]).or(tree) {
        Some(name) => bench.report.skip("builds by make", format!("no {name}")),
        None => compare(bench, "builds by make", &SourceTree::of_cpp(bench.folder.path()))?,
    }
    Ok(())
}

fn compare(bench: &mut Bench, name: &str, tree: &SourceTree) -> Result<()> {
    let store = Store::mount(bench)?;
    let made = RefCell::new(None);
    let pagelift = bench.pagelift.clone();
    let way = |name: &str, pages| Way {
        name: name.to_owned(),
        tree,
        pagelift: &pagelift,
        store: store.place(),
        pages,
        report: bench.folder.path().join("lifted.json"),
        made: &made,
        lifted: Cell::new(0),
    };
    let ways = [way("plain", None), way("plain once more", None), way("image", Some("image")), way("thp", Some("thp"))];
    let variants = ways.iter().map(|way| (way.facts(), TimedVariant::new(way.name.clone(), || way.timed()))).collect();
    // One build as the reference and to fill the page cache, and one to make the images.
    ways[0].timed()?;
    ways[2].timed()?;
    let series = bench.run_builds(name, variants)?;
    print_times(series);
    let files = made.borrow().as_ref().map_or(0, BTreeMap::len);
    let [.., image, thp] = &ways;
    println!(
        "the same {files} files each time; {} and {} processes of {} lifted, all that there were",
        image.lifted.get(),
        thp.lifted.get(),
        tree.compiler()
    );
    Ok(())
}

/// One way of building the tree.
struct Way<'a> {
    name: String,
    tree: &'a SourceTree,
    pagelift: &'a Path,
    store: &'a Path,
    /// Where the compilers' huge pages come from, if they are lifted.
    pages: Option<&'static str>,
    report: PathBuf,
    /// The outputs of the first build.
    made: &'a RefCell<Option<BTreeMap<PathBuf, Vec<u8>>>>,
    /// Compilers lifted in the last build.
    lifted: Cell<usize>,
}

impl Way<'_> {
    fn command(&self) -> Command {
        let plain = self.tree.command();
        let Some(pages) = self.pages else { return plain };
        let mut command = Command::new(self.pagelift);
        command.args(["run", "-q", "--pages", pages, "--only", self.tree.compiler(), "--report"]).arg(&self.report);
        command.arg("--").arg(plain.get_program()).args(plain.get_args()).env("PAGELIFT_STORE", self.store);
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    fn facts(&self) -> VariantFacts {
        VariantFacts { name: self.name.clone(), command: format!("{:?}", self.command()), ..Default::default() }
    }

    fn timed(&self) -> Result<Duration, MeasureError> {
        let problem = |error| MeasureError::Protocol { variant: self.name.clone(), problem: format!("{error:#}") };
        self.prepare().map_err(problem)?;
        let mut command = self.command();
        command.stderr(Stdio::null());
        let taken = time_to_exit(&self.name, command)?;
        self.check().map_err(problem)?;
        Ok(taken)
    }

    fn prepare(&self) -> Result<()> {
        if self.report.exists() {
            std::fs::remove_file(&self.report)?;
        }
        self.tree.clear()
    }

    /// The files must equal those of the first build; the compilers must be lifted if the way lifts them.
    fn check(&self) -> Result<()> {
        let outputs = self.tree.outputs()?;
        let mut made = self.made.borrow_mut();
        match &*made {
            Some(first) => same_outputs(first, &outputs)?,
            None => *made = Some(outputs),
        }
        if self.pages.is_some() {
            self.lifted.set(lifted_programs(&self.report, self.tree.compiler())?);
        }
        Ok(())
    }
}
