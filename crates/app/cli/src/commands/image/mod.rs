//! `pagelift image`: the store of shared images.

mod list;
mod setup;

use crate::arguments::size::size;
use crate::arguments::time::days;
use crate::commands::reading::limit_reads;
use crate::output::Output;
use crate::say;
use crate::text::number::{counted, of_all};
use crate::text::unanswered;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use image_store::{Collection, Form, Image, Layout, Request, Store, StoreError, Users, default_directory};
use linux::file_rights::FileRights;
use linux::owner::{Lasting, foreign_part};
use linux::pages::base_page;
use linux::watch::watched;
use machine_facts::{System, nodes_with_cpus};
use process_view::{open_regular_file, printable};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The user and group of nobody's rights.
const NOBODY: u32 = 65534;

/// `pagelift image`.
#[derive(Args, Clone)]
pub struct ImageArgs {
    /// The action.
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Subcommand, Clone)]
enum ImageCommand {
    /// Mount a store, and optionally mount it at every boot.
    Setup(setup::SetupArgs),
    /// Make images of programs and shared objects.
    Add(AddArgs),
    /// List the images, the processes that use them, and changes of their files.
    List(ListArgs),
    /// Remove images.
    Remove(RemoveArgs),
    /// Remove images that no process maps and whose file was changed or removed, or that were not used for long.
    Gc(GcArgs),
}

#[derive(Args, Clone)]
struct StoreArg {
    /// Directory of the store [default: $PAGELIFT_STORE, otherwise /run/pagelift/images].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

impl StoreArg {
    fn path(&self) -> PathBuf {
        self.store.clone().unwrap_or_else(default_directory)
    }

    fn open(&self) -> Result<Store, StoreError> {
        Store::open(&self.path())
    }
}

#[derive(Args, Clone)]
struct AddArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Offset of the object's base above a multiple of the huge page size [default: the base that `pagelift run`
    /// chooses for a program, 0 for a shared object].
    #[arg(long, value_name = "BYTES", value_parser = offset)]
    base_offset: Option<u64>,
    /// Make a copy for each NUMA node, with all its pages on that node; processes get the copy of the node they run on.
    #[arg(long)]
    per_node: bool,
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
    /// Skip a file, with a message, while another process makes or removes its image. A service that starts has a limit of
    /// time.
    #[arg(long, hide = true)]
    skip_locked: bool,
    /// Programs and shared objects.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Args, Clone)]
struct ListArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone)]
struct RemoveArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Also remove images that processes map; the processes keep the memory until they end.
    #[arg(long)]
    force: bool,
    /// Source files of images, or paths of images.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Args, Clone)]
struct GcArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Only list the images that would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Also remove images that were not used for this time, such as 7d. Times of use are exact to a day.
    #[arg(long, alias = "unused-days", value_name = "TIME", default_value = "30d", value_parser = days())]
    unused_for: Duration,
    /// Also remove images that nobody maps, the longest unused first, until the others take at most this, 512M for example.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
}

/// Runs one of the commands.
pub fn run(args: &ImageArgs) -> anyhow::Result<()> {
    limit_reads();
    match &args.command {
        ImageCommand::Setup(args) => setup::run(args),
        ImageCommand::Add(args) => add(args),
        ImageCommand::List(args) => list::run(&args.store.open()?, args.json),
        ImageCommand::Remove(args) => remove(args),
        ImageCommand::Gc(args) => collect(args),
    }
}

/// A number of bytes, in hexadecimal too, as `inspect` prints it.
fn offset(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|error| error.to_string()),
        None => address_space::parse_bytes(text).map_err(|error| error.to_string()),
    }
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let store = args.store.open()?;
    let store = if args.skip_locked { store.without_waiting() } else { store };
    let nodes = nodes_for(args);
    let mut failed = 0;
    for path in &args.files {
        let mut has_failed = false;
        for &node in &nodes {
            match add_one(&store, path, args.base_offset, node) {
                Ok(_) if args.quiet => {}
                Ok(text) => writeln!(Output::Standard, "{text}")?,
                Err(error) if args.skip_locked && is_locked(&error) => {
                    say!("pagelift: {}: skipped: another process makes or removes its image", path.display());
                }
                Err(error) => {
                    say!("pagelift: {}: {error:#}", path.display());
                    has_failed = true;
                }
            }
        }
        failed += usize::from(has_failed);
    }
    match failed {
        0 => Ok(()),
        failed if args.per_node => {
            bail!("without an image for each node: {}", of_all(failed, args.files.len(), "file"))
        }
        failed => bail!("without an image: {}", of_all(failed, args.files.len(), "file")),
    }
}

fn is_locked(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Locked { .. }))
}

/// The nodes that get a copy each; `None` is the image that all nodes share.
fn nodes_for(args: &AddArgs) -> Vec<Option<u32>> {
    let nodes = if args.per_node { nodes_with_cpus(&System) } else { Vec::new() };
    if nodes.len() > 1 {
        return nodes.into_iter().map(Some).collect();
    }
    if args.per_node && !args.quiet {
        say!("pagelift: found one NUMA node with memory and CPUs, on which one image serves every process");
    }
    vec![None]
}

fn add_one(store: &Store, path: &Path, base_offset: Option<u64>, node: Option<u32>) -> anyhow::Result<String> {
    let file = open(path)?;
    let elf = image_store::read_elf(&file)?;
    let size = store.page_size();
    let layout = base_offset
        .map_or_else(|| Layout::most_likely(&elf, size, base_page()), |base_offset| Layout::at(size, base_offset));
    let image = store.make(&file, Form { layout, node }, Request::Explicit)?;
    Ok(describe(&image, size))
}

/// Opens a regular file. Where another user than root can exchange a part of its path, it is opened with that user's rights:
/// a link could lead to a file that this user may not read.
fn open(path: &Path) -> anyhow::Result<File> {
    let open = || open_regular_file(path);
    let part = if nix::unistd::geteuid().is_root() {
        let look = || foreign_part(path, Lasting::Now);
        watched(|| format!("looking at the path {}", printable(&path.display().to_string())), look)
            .context("looking at its path")?
    } else {
        None
    };
    let opened = match part {
        None => open(),
        // Anybody may have put it there.
        Some(part) if part.user == 0 => FileRights { user: NOBODY, group: NOBODY, groups: Vec::new() }.act(open)?,
        Some(part) => FileRights { user: part.user, group: part.group, groups: Vec::new() }.act(open)?,
    };
    opened.context("opening it")?.context("not a regular file")
}

fn describe(image: &Image, size: PageSize) -> String {
    let coverage = match image.coverage() {
        Ok(coverage) => {
            format!("{} of {} mappable on {size} pages", format_bytes(coverage.huge), format_bytes(coverage.mappable))
        }
        Err(error) => format!("coverage unknown: {error}"),
    };
    let readers = if image.for_everybody() { "" } else { ", for root only: not every user can read the file" };
    let base = image.layout().base_offset();
    let name = printable(&image.source().display().to_string());
    let node = on_node(image);
    format!("{name}: {coverage}, base offset {base:#x}{node}{readers}\n  {}", image.path().display())
}

/// The node of a copy for one node, as an addition to a line.
fn on_node(image: &Image) -> String {
    image.node().map(|node| format!(", for node {node}")).unwrap_or_default()
}

fn remove(args: &RemoveArgs) -> anyhow::Result<()> {
    let store = args.store.open()?;
    let users = Users::read()?;
    let images = store.list()?.images;
    for file in &args.files {
        let chosen: Vec<&Image> = images.iter().filter(|image| is_meant(image, file)).collect();
        if chosen.is_empty() {
            bail!(
                "no image of {} in {}; `pagelift image list` shows those there are",
                file.display(),
                store.path().display()
            );
        }
        for image in chosen {
            let count = users.of(image).len() as u64;
            if count > 0 && !args.force {
                return Err(StoreError::InUse(count)).context(image.path().display().to_string());
            }
            if let Some(silent) = users.unseen(image).filter(|_| !args.force) {
                let refused = StoreError::MayBeInUse { pid: silent.pid, name: silent.name.clone() };
                return Err(refused).context(image.path().display().to_string());
            }
            store.remove(image)?;
            let after = if count > 0 {
                format!("; in use by {} until the end", counted(count, "process"))
            } else {
                String::new()
            };
            writeln!(Output::Standard, "removed {}{after}", image.path().display())?;
        }
    }
    Ok(())
}

/// By the image's own path, or by the path of its source, which may be gone.
fn is_meant(image: &Image, file: &Path) -> bool {
    let absolute = fs::canonicalize(file).or_else(|_| std::path::absolute(file)).unwrap_or_else(|_| file.to_owned());
    image.path() == absolute || image.source() == absolute
}

fn collect(args: &GcArgs) -> anyhow::Result<()> {
    let collection = Collection { dry_run: args.dry_run, unused_for: Some(args.unused_for), most_bytes: args.size };
    let collected = args.store.open()?.collect(collection)?;
    let out = Output::Standard;
    let verb = if args.dry_run { "would remove" } else { "removed" };
    for image in &collected.images {
        let source = printable(&image.source().display().to_string());
        writeln!(out, "{verb} {} (of {source}{})", image.path().display(), on_node(image))?;
    }
    let (count, bytes) = (collected.images.len(), format_bytes(collected.bytes));
    let (images, debris) = (counted(count as u64, "image"), counted(collected.debris, "other thing"));
    writeln!(out, "{verb} {images}, {bytes}, and {debris}")?;
    if collected.in_use > 0 {
        writeln!(out, "kept {} of changed files: processes still map them", counted(collected.in_use, "image"))?;
    }
    if !collected.unanswered.is_empty() {
        write!(out, "{}", unanswered::notes(&collected.unanswered))?;
    }
    if collected.may_be_in_use > 0 {
        let images = counted(collected.may_be_in_use, "unused image");
        writeln!(out, "note: {images} kept, because a process that does not answer may map them")?;
    }
    if let Some(size) = args.size.filter(|&size| collected.kept_bytes > size) {
        let (kept, size) = (format_bytes(collected.kept_bytes), format_bytes(size));
        let may = if collected.unanswered.is_empty() { "" } else { ", or may map them without answering" };
        writeln!(out, "note: the kept images take {kept}, more than {size}: processes map them{may}")?;
    }
    if collected.withdrawn > 0 {
        let (images, would) = (counted(collected.withdrawn, "image"), if args.dry_run { "would be " } else { "" });
        writeln!(out, "{images} {would}restricted to root: not every user can read the files themselves")?;
    }
    Ok(())
}
