//! `pagelift align`.

use crate::output::Output;
use crate::say;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use clap::Args;
use elf_alignment::{AlignError, NewAlign, Segments, record};
use file_replacement::{Change, Patch, replace};
use foreign_text::quoted_path;
use linux::bounded::ELF_HEADERS;
use linux::pages::transparent_huge_page;
use object::read::elf::FileHeader as _;
use object::{LittleEndian, ReadCache};
use process_view::{BoundedFile, FileIdentity, open_regular_file, printable};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The extended attribute that holds the former values.
const RECORD: &std::ffi::CStr = c"user.pagelift.align";

/// `pagelift align`.
#[derive(Args, Clone)]
#[command(
    after_help = "Each plain start is then mapped by huge pages where the file lies in huge folios; `pagelift cache prepare` \
and `keep` see to that. The file is replaced by a checked copy with all metadata; who runs it keeps the old one."
)]
pub struct AlignArgs {
    /// Say what it would bring, and change nothing.
    #[arg(long, conflicts_with_all = ["undo", "force"])]
    check: bool,
    /// Put the former values back.
    #[arg(long)]
    undo: bool,
    /// Change files that are signed, measured or belong to a package, too, and where the former values cannot be kept.
    #[arg(long)]
    force: bool,
    /// A program or shared object.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Aligns a file's segments, or says what that would bring.
pub fn run(args: &AlignArgs) -> anyhow::Result<()> {
    let name = printable(&args.file.display().to_string());
    let huge = transparent_huge_page()
        .context("found a kernel without transparent huge pages, needed CONFIG_TRANSPARENT_HUGEPAGE")?;
    let Some(file) = open_regular_file(&args.file).with_context(|| name.clone())? else {
        bail!("{name}: found something else than a regular file, needed a program or shared object");
    };
    let identity = FileIdentity::of(&file.metadata()?);
    let segments = Segments::read(&ReadCache::new(BoundedFile::new(&file, identity.size, ELF_HEADERS.bytes())))
        .with_context(|| name.clone())?;
    let out = Output::Standard;
    if args.undo {
        let values = segments.undo(&former_values(&file)?).with_context(|| name.clone())?;
        let attributes = vec![(RECORD.to_owned(), None)];
        change(args, &file, &values, attributes, identity).with_context(|| name.clone())?;
        writeln!(out, "{name}: the former alignment is back")?;
        return Ok(());
    }
    let values = match segments.align(huge) {
        Ok(values) => values,
        Err(error @ AlignError::Aligned(_)) => {
            writeln!(out, "{name}: {error}")?;
            return Ok(());
        }
        Err(error) => {
            writeln!(out, "{}", flags(huge))?;
            return Err(error).context(name);
        }
    };
    let brings = benefit(&segments, huge);
    if args.check {
        writeln!(out, "{name}: would bring {brings}, by p_align {} instead of {}", huge, PageSizes(&values))?;
        if let Some(obstacle) = obstacle(&args.file, &file)? {
            writeln!(out, "{obstacle}")?;
        }
    } else {
        let attributes = vec![(RECORD.to_owned(), Some(record(&values).into_bytes()))];
        change(args, &file, &values, attributes, identity).with_context(|| name.clone())?;
        writeln!(out, "{name}: aligned to {huge}: {brings}; undo: pagelift align --undo {}", quoted_path(&args.file))?;
    }
    writeln!(out, "{}", flags(huge))?;
    Ok(())
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

/// What a linker does from the start.
fn flags(huge: PageSize) -> String {
    let size = huge.bytes();
    format!(
        "for the next build: -Wl,-z,max-page-size={size:#x} -Wl,-z,separate-code (GNU ld: segments begin on huge pages), \
         with lld -Wl,-z,separate-loadable-segments; CMake: pagelift_align_segments(TARGET)"
    )
}

/// Replaces the file by a copy with these values.
fn change(
    args: &AlignArgs,
    file: &File,
    values: &[NewAlign],
    attributes: Vec<(std::ffi::CString, Option<Vec<u8>>)>,
    identity: FileIdentity,
) -> anyhow::Result<()> {
    if !args.force
        && let Some(obstacle) = obstacle(&args.file, file)?
    {
        bail!("{obstacle}; fix: build it yourself with the flags that --check prints, or --force");
    }
    let patches = values.iter().map(|value| Patch { at: value.at, bytes: value.new.to_le_bytes().to_vec() }).collect();
    let change = Change { patches, attributes, only_if: Some(identity) };
    match replace(&args.file, &change) {
        Err(file_replacement::ReplaceError::Metadata { what, .. }) if args.force && what.contains("user.pagelift") => {
            replace(&args.file, &Change { attributes: Vec::new(), ..change })?;
            say!("pagelift: the former values could not be kept; to undo, build it anew");
        }
        result => drop(result?),
    }
    Ok(())
}

fn former_values(file: &File) -> anyhow::Result<String> {
    let value = linux::attributes::of_file(file, RECORD)
        .context("found no record of former values (extended attribute user.pagelift.align), needed one")?;
    Ok(String::from_utf8(value).unwrap_or_default())
}

/// Why somebody else counts on the file's bytes.
fn obstacle(path: &Path, file: &File) -> anyhow::Result<Option<String>> {
    if linux::attributes::of_file(file, c"security.ima").is_ok() {
        return Ok(Some("found that it is measured or signed (security.ima), which a changed file is not".into()));
    }
    if let Some(section) = signature(file) {
        return Ok(Some(format!("found that it is signed (section {section}), which a changed file is not")));
    }
    let path = std::fs::canonicalize(path)?;
    Ok(package_of(&path).map(|package| {
        format!(
            "found that it belongs to the package {package}, whose check and upgrade would notice and undo the change"
        )
    }))
}

/// The name of a section that holds a signature.
fn signature(file: &File) -> Option<String> {
    let length = file.metadata().ok()?.len();
    let data = &ReadCache::new(BoundedFile::new(file, length, ELF_HEADERS.bytes()));
    let header = object::elf::FileHeader64::<LittleEndian>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let names = sections.iter().filter_map(|section| sections.section_name(endian, section).ok());
    let is_signature = |name: &&[u8]| {
        let name = name.to_ascii_lowercase();
        name.starts_with(b".sig") || name.windows(9).any(|part| part == b"signature")
    };
    names.into_iter().find(is_signature).map(|name| printable(&String::from_utf8_lossy(name)))
}

/// The package that a path belongs to, by dpkg or rpm. Where `/bin` is a link to `/usr/bin` a package may name either.
fn package_of(path: &Path) -> Option<String> {
    let unmerged = path.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest));
    for path in [Some(path.to_owned()), unmerged].into_iter().flatten() {
        // dpkg takes patterns.
        let escaped = path.to_str()?.replace('\\', "\\\\").replace('*', "\\*").replace('?', "\\?").replace('[', "\\[");
        for (program, option, asked) in [("dpkg-query", "-S", escaped.as_str()), ("rpm", "-qf", path.to_str()?)] {
            let Ok(output) = Command::new(program).args([option, "--", asked]).output() else { continue };
            if output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let first = text.lines().find(|line| !line.starts_with("diversion "))?;
                return Some(printable(first.split(": ").next().unwrap_or(first)));
            }
        }
    }
    None
}
