//! `pagelift align`.

mod folder;
pub mod kept;
mod obstacles;
mod relayout;

use crate::arguments::policy::choice;
use crate::output::{Failures, Output};
use crate::say;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use foreign_text::quoted_path;
use linux::bounded::ELF_HEADERS;
use linux::pages::{base_page, transparent_huge_page};
use object::{ReadCache, ReadRef};
use obstacles::{Obstacle, Package, obstacle, refuse_privilege};
use options::Edges;
use page_cache::alignment::{AlignError, Former, NewAlign, Relayout, RelayoutError, Segments, record};
use page_cache::replacement::{Change, Patch, ReplaceError, replace};
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The extended attribute that holds the former values.
const RECORD: &std::ffi::CStr = c"user.pagelift.align";

/// `pagelift align`.
#[derive(Args, Clone)]
#[command(
    after_help = "After that, the kernel maps the file with huge pages at each plain start if the file is in huge \
folios; `pagelift cache prepare` and `keep` bring it there. The file is replaced by a checked copy with all metadata; \
running processes keep the old file."
)]
pub struct AlignArgs {
    /// Print the expected gain, and change nothing.
    #[arg(long, conflicts_with_all = ["undo", "force"])]
    check: bool,
    /// Restore the file as it was before the alignment, with or without `--relayout`.
    #[arg(long)]
    undo: bool,
    /// Also move whole segments within the file, so that offsets agree with addresses. Addresses, code and data do not
    /// change.
    #[arg(long)]
    relayout: bool,
    /// Write the result of `--relayout` to another file, and leave FILE as it is.
    #[arg(long, short, value_name = "OUT", requires = "relayout", conflicts_with_all = ["check", "undo"])]
    output: Option<PathBuf>,
    /// With `--relayout`: treatment of huge pages that contain both read-only data and code.
    #[arg(long, value_parser = choice::<Edges>(), default_value = "exact", requires = "relayout")]
    edges: Edges,
    /// Also change files that are signed, measured or belong to a package, and files whose former values cannot be
    /// kept. With `--relayout` or `--undo`, also programs with privileges. With `--relayout`, also files with unknown data
    /// after the last section.
    #[arg(long)]
    force: bool,
    /// With `--relayout`: change all programs and shared objects in a folder, such as an unpacked layer of an image. Lists
    /// each changed file, and the reason for each kept file that would gain.
    #[arg(long, value_name = "DIR", requires = "relayout", conflicts_with_all = ["files", "output", "undo"])]
    root: Option<PathBuf>,
    /// Programs or shared objects.
    #[arg(value_name = "FILE", required_unless_present = "root")]
    files: Vec<PathBuf>,
}

impl AlignArgs {
    /// The options for a file in the list of `pagelift cache keep`.
    fn for_list() -> Self {
        Self {
            check: false,
            undo: false,
            relayout: true,
            output: None,
            edges: Edges::Exact,
            force: false,
            root: None,
            files: Vec::new(),
        }
    }
}

/// Aligns a file's segments, or prints the expected effect.
pub fn run(args: &AlignArgs) -> anyhow::Result<()> {
    let huge = transparent_huge_page()
        .context("found a kernel without transparent huge pages, needed CONFIG_TRANSPARENT_HUGEPAGE")?;
    match (&args.root, args.files.as_slice()) {
        (Some(root), _) => folder::run(args, root, huge),
        (None, [path]) => align(args, path, huge),
        (None, _) if args.output.is_some() => bail!("found several files, needed one for --output"),
        (None, files) => {
            let errors = files.iter().filter_map(|path| align(args, path, huge).err());
            let failed: Vec<String> = errors.map(|error| format!("{error:#}")).collect();
            if failed.is_empty() { Ok(()) } else { Err(Failures(failed).into()) }
        }
    }
}

fn align(args: &AlignArgs, path: &Path, huge: PageSize) -> anyhow::Result<()> {
    let name = printable(&path.display().to_string());
    let Some(file) = open_regular_file(path).with_context(|| name.clone())? else {
        bail!("{name}: found a non-regular file, needed a program or shared object");
    };
    let identity = FileIdentity::of(&file.metadata()?);
    let data = ReadCache::new(BoundedFile::new(&file, identity.size, ELF_HEADERS.bytes()));
    let target = Target { args, asker: Asker::Command, path, name: &name, file: &file, identity };
    if args.relayout && !args.undo {
        return relayout::run(&target, &data, huge).context(name.clone());
    }
    let segments = Segments::read(&data).with_context(|| name.clone())?;
    let out = Output::Standard;
    if args.undo {
        return undo(&target, &segments, &data).context(name.clone());
    }
    let values = match segments.align(huge) {
        Ok(values) => values,
        Err(error @ AlignError::Aligned(_)) => {
            writeln!(out, "{name}: {error}")?;
            return Ok(());
        }
        Err(error) => {
            let other_layout = Relayout::plan(&data, huge, base_page(), false, Edges::Exact).map(drop);
            let unchanged = why_unaligned(error, other_layout, path);
            writeln!(out, "{}", unchanged.as_ref().map_or_else(|_| flags(huge), |why| format!("{name}: {why}")))?;
            return unchanged.map(drop).context(name);
        }
    };
    let brings = benefit(&segments, huge);
    if args.check {
        let found = format!("found p_align {}, needed {huge}, which would bring {brings}", PageSizes(&values));
        target.print_check(&found, "pagelift align")?;
    } else {
        let attributes = vec![(RECORD.to_owned(), Some(record(&values).into_bytes()))];
        target.change(patches(&values), attributes).with_context(|| name.clone())?;
        writeln!(out, "{name}: aligned to {huge}: {brings}; undo: pagelift align --undo {}", quoted_path(path))?;
    }
    writeln!(out, "{}", flags(huge))?;
    Ok(())
}

/// Returns why a file that cannot be aligned has nothing to gain.
///
/// # Errors
/// The reason with its fix, if another layout would bring huge pages, or if that is unknown.
fn why_unaligned(
    error: AlignError,
    other_layout: Result<(), RelayoutError>,
    path: &Path,
) -> Result<String, anyhow::Error> {
    match other_layout {
        Err(nothing @ (RelayoutError::Done(_) | RelayoutError::TooSmall(_))) => Ok(nothing_to_gain(&nothing)),
        Ok(()) => bail!("{error}; fix: pagelift align --relayout {}", quoted_path(path)),
        Err(_) if matches!(error, AlignError::NothingCongruent(_)) => {
            bail!("{error}; fix: link it again with the printed flags")
        }
        Err(_) => Err(error.into()),
    }
}

/// Why a file is left as it is, without a failure.
fn nothing_to_gain(why: &RelayoutError) -> String {
    format!("{why}; nothing is changed")
}

/// The present values, each once.
struct PageSizes<'a>(&'a [NewAlign]);

impl std::fmt::Display for PageSizes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sizes: Vec<u64> = self.0.iter().map(|value| value.old).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let sizes: Vec<String> = sizes.into_iter().map(format_bytes).collect();
        write!(f, "{}", sizes.join(" and "))
    }
}

fn benefit(segments: &Segments, huge: PageSize) -> String {
    let ((code, other), (all_code, all_other)) = (segments.covered(huge), segments.read_only());
    format!(
        "huge pages for {} of {} code and {} of {} read-only data in each start",
        format_bytes(code),
        format_bytes(all_code),
        format_bytes(other),
        format_bytes(all_other)
    )
}

/// The linker flags that make a change of the file needless.
fn flags(huge: PageSize) -> String {
    let size = huge.bytes();
    format!(
        "for the next build: -Wl,-z,max-page-size={size:#x} -Wl,-z,separate-code (GNU ld: segments begin on huge pages), \
         with lld -Wl,-z,separate-loadable-segments; CMake: pagelift_align_segments(TARGET)"
    )
}

/// Extended attributes to be set, or removed if there is no value.
type Attributes = Vec<(CString, Option<Vec<u8>>)>;

/// The origin of a request for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// This command.
    Command,
    /// The list of `pagelift cache keep`.
    List {
        /// True if a file of a package may be changed.
        packaged: bool,
    },
}

impl Asker {
    fn accepts(self, obstacle: &Obstacle) -> bool {
        self == Self::List { packaged: true } && matches!(obstacle, Obstacle::Package(_))
    }

    /// The fix for an obstacle, for messages.
    fn fix(self, obstacle: &Obstacle, path: &Path) -> String {
        let list = "or list it under `relayout-packaged`";
        match (self, obstacle) {
            (Self::List { .. }, Obstacle::Package(Package { is_of_dpkg: true, .. })) => {
                let path = quoted_path(path);
                format!("`dpkg-divert --local --no-rename --divert {path}.distrib --add {path}`, {list}")
            }
            (Self::List { .. }, Obstacle::Package(_)) => format!("build it yourself, {list}"),
            _ => "build it yourself with the flags that --check prints, or --force".to_owned(),
        }
    }
}

/// The file to be changed.
struct Target<'a> {
    args: &'a AlignArgs,
    asker: Asker,
    path: &'a Path,
    /// Its path, printable.
    name: &'a str,
    file: &'a File,
    identity: FileIdentity,
}

impl Target<'_> {
    /// Prints the finding of `--check` with the command that makes the change, or the reason of others against it.
    fn print_check(&self, found: &str, command: &str) -> anyhow::Result<()> {
        let (out, name) = (Output::Standard, self.name);
        let Some(obstacle) = obstacle(self.path, self.file)? else {
            writeln!(out, "{name}: {found}; fix: {command} {}", quoted_path(self.path))?;
            return Ok(());
        };
        writeln!(out, "{name}: {found}")?;
        writeln!(out, "{obstacle}; fix: {}", self.asker.fix(&obstacle, self.path))?;
        Ok(())
    }

    /// Replaces the file by a copy with a change.
    fn change(&self, change: Change, attributes: Attributes) -> anyhow::Result<()> {
        let args = self.args;
        if !args.force
            && let Some(obstacle) = obstacle(self.path, self.file)?
            && !self.asker.accepts(&obstacle)
        {
            bail!("{obstacle}; fix: {}", self.asker.fix(&obstacle, self.path));
        }
        let change = Change { attributes, only_if: Some(self.identity), ..change };
        match replace(self.path, &change) {
            Err(ReplaceError::Metadata { what, error }) if what.contains("user.pagelift") => {
                if !args.force {
                    bail!(
                        "found that the file system cannot keep the former values ({error}), needed them for --undo; fix: \
                         --force"
                    );
                }
                replace(self.path, &Change { attributes: Vec::new(), ..change })?;
                say!("pagelift: the former values could not be kept; to undo, build the file again");
            }
            result => drop(result?),
        }
        Ok(())
    }
}

fn patches(values: &[NewAlign]) -> Change {
    let patches = values.iter().map(|value| Patch { at: value.at, bytes: value.new.to_le_bytes().to_vec() }).collect();
    Change { patches, ..Change::default() }
}

/// Restores the file from its record. The file's owner can write any record, and the replacement keeps privileges, which a
/// write by the owner would remove.
fn undo<'a, R: ReadRef<'a>>(target: &Target, segments: &Segments, data: R) -> anyhow::Result<()> {
    if !target.args.force {
        refuse_privilege(target.file)?;
    }
    let record = former_values(target.file)?;
    let (change, what) = match Former::is_record(&record) {
        true => (relayout::restored(&Former::parse(&record, data)?), "layout"),
        false => (patches(&segments.undo(&record)?), "alignment"),
    };
    target.change(change, vec![(RECORD.to_owned(), None)])?;
    writeln!(Output::Standard, "{}: the former {what} is restored", target.name)?;
    Ok(())
}

fn former_values(file: &File) -> anyhow::Result<String> {
    let value = match linux::attributes::of_file(file, RECORD) {
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => bail!(
            "found no record of former values (extended attribute user.pagelift.align), needed the one that `pagelift align` \
             writes"
        ),
        found => found.context("reading the record of former values (extended attribute user.pagelift.align)")?,
    };
    Ok(String::from_utf8(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_gain_is_no_failure_and_another_layout_is_the_fix() {
        let (huge, path) = (PageSize::new(2 << 20).unwrap(), Path::new("my program"));
        let fixed = || AlignError::Fixed { covered: 0, code: 8 << 20 };
        let why = |error, other_layout| why_unaligned(error, other_layout, path).map_err(|error| error.to_string());
        let small = why(AlignError::NothingCongruent(huge), Err(RelayoutError::TooSmall(huge))).unwrap();
        assert!(small.starts_with("found no read-only segment that holds a whole huge page") && !small.contains("fix"));
        assert!(
            why(fixed(), Err(RelayoutError::Done(huge))).unwrap().contains("agree with huge pages of 2 MiB already")
        );
        for error in [fixed(), AlignError::NothingCongruent(huge)] {
            let refused = why(error, Ok(())).unwrap_err();
            assert!(refused.ends_with("; fix: pagelift align --relayout 'my program'"), "{refused}");
        }
        let unknown = why(AlignError::NothingCongruent(huge), Err(RelayoutError::NoSections)).unwrap_err();
        assert!(unknown.ends_with("; fix: link it again with the printed flags"), "{unknown}");
        assert_eq!(why(fixed(), Err(RelayoutError::NoSections)).unwrap_err(), fixed().to_string());
    }

    #[test]
    fn a_file_without_a_record_is_reported_without_the_error_of_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let error = format!("{:#}", former_values(&file).unwrap_err());
        let is_supported = linux::attributes::names_of(&file).is_ok();
        assert!(!is_supported || error.starts_with("found no record") && !error.contains("os error"), "{error}");
    }
}
