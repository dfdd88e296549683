//! `pagelift align --relayout`.

use super::obstacles::{privilege, refuse_privilege};
use super::{Attributes, RECORD, Target, flags, former_values, nothing_to_gain};
use crate::output::Output;
use address_space::{PageSize, format_bytes};
use anyhow::{Context, bail};
use foreign_text::quoted_path;
use linux::pages::base_page;
use object::{ReadCache, ReadRef};
use options::Edges;
use page_cache::alignment::{Field, Former, Piece, Relayout, RelayoutError, Segment, Segments};
use page_cache::replacement::{Change, Moved, Order, Patch, write_copy};
use process_view::printable;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Size of the blocks in which `st_blocks` counts, in bytes (stat(2)).
const BLOCK: u64 = 512;

/// Gives a file's segments other offsets, or prints the expected effect.
pub fn run<'a, R: ReadRef<'a>>(target: &Target, data: R, huge: PageSize) -> anyhow::Result<()> {
    let (args, name, out) = (target.args, target.name, Output::Standard);
    let relayout = match Relayout::plan(data, huge, base_page(), args.force, args.edges) {
        Ok(relayout) => relayout,
        Err(error @ (RelayoutError::Done(_) | RelayoutError::TooSmall(_))) => {
            writeln!(out, "{name}: {}", nothing_to_gain(&error))?;
            let Some(path) = &args.output else { return Ok(()) };
            // A file in the other layout keeps its record.
            let kept = linux::attributes::of_file(target.file, RECORD).ok();
            let attributes = kept.map(|record| (RECORD.to_owned(), Some(record))).into_iter().collect();
            write_out(target, path, Change { attributes, ..Change::default() })?;
            writeln!(out, "{}: a copy of {name}", shown(path))?;
            return Ok(());
        }
        Err(error) => {
            writeln!(out, "{}", flags(huge))?;
            return Err(error.into());
        }
    };
    if args.check {
        let (before, brings) = (at_present(&relayout.before, huge), brings(&relayout, huge));
        let command = match args.edges {
            Edges::MergeReadOnly => "pagelift align --relayout --edges merge-read-only",
            Edges::Exact => "pagelift align --relayout",
        };
        target.print_check(&format!("found {before}, needed a layout that would bring {brings}"), command)?;
        print_sizes(target, &relayout)?;
        print_uncovered(name, &relayout.after, huge)?;
        if let Some(privilege) = privilege(target.file)? {
            writeln!(out, "found {privilege}, needed --force to change such a program")?;
        }
        return Ok(());
    }
    if let Some(path) = &args.output {
        write_out(target, path, copied(&relayout))?;
        writeln!(out, "{}: {name} with another layout: {}", shown(path), brings(&relayout, huge))?;
        return Ok(());
    }
    replace_file(target, &relayout)?;
    let undo = quoted_path(target.path);
    writeln!(out, "{name}: laid out anew: {}; undo: pagelift align --undo {undo}", brings(&relayout, huge))?;
    Ok(())
}

/// Writes a copy with a change to another path.
fn write_out(target: &Target, path: &Path, change: Change) -> anyhow::Result<()> {
    let change = Change { only_if: Some(target.identity), ..change };
    write_copy(target.file, path, &change).with_context(|| shown(path))
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Replaces a file by one with the new layout.
pub fn replace_file(target: &Target, relayout: &Relayout) -> anyhow::Result<()> {
    if !target.args.force {
        refuse_privilege(target.file)?;
    }
    if has_former_values(target, relayout) {
        bail!("found that the file was aligned before, needed it as it was; fix: `pagelift align --undo`");
    }
    target.change(changed(relayout), record(relayout))
}

/// True if the file's record fits its contents. A linker that writes a new program into the old file, as mold does, keeps
/// the attribute of the old contents, which is replaced then.
fn has_former_values(target: &Target, relayout: &Relayout) -> bool {
    let Ok(record) = former_values(target.file) else { return false };
    match Former::is_record(&record) {
        true => Former::parse(&record, &ReadCache::new(target.file)).is_ok(),
        false => relayout.before.undo(&record).is_ok(),
    }
}

fn record(relayout: &Relayout) -> Attributes {
    vec![(RECORD.to_owned(), Some(relayout.record().into_bytes()))]
}

/// The change that restores a file.
pub fn restored(former: &Former) -> Change {
    ordered(former.length, &former.pieces, &former.fields)
}

/// The change for a copy elsewhere.
pub fn copied(relayout: &Relayout) -> Change {
    Change { attributes: record(relayout), ..changed(relayout) }
}

fn changed(relayout: &Relayout) -> Change {
    ordered(relayout.length, &relayout.pieces, &relayout.fields)
}

fn ordered(length: u64, pieces: &[Piece], fields: &[Field]) -> Change {
    let moved = |&Piece { from, to, length }: &Piece| Moved { from, to, length };
    let patch = |field: &Field| Patch { at: field.to, bytes: field.new.to_le_bytes().to_vec() };
    let order = Order { length, parts: pieces.iter().map(moved).collect() };
    Change { order: Some(order), patches: fields.iter().map(patch).collect(), ..Change::default() }
}

pub fn brings(relayout: &Relayout, huge: PageSize) -> String {
    let covered = format!("{} at each start", covered(&relayout.after, huge));
    match relayout.widened {
        0 => covered,
        widened => format!("{covered}, of which {} of read-only data become executable", format_bytes(widened)),
    }
}

fn covered(segments: &Segments, huge: PageSize) -> String {
    let ((code, other), (all_code, all_other)) = (segments.covered(huge), segments.read_only());
    format!(
        "huge pages for {} of {} code and {} of {} read-only data",
        format_bytes(code),
        format_bytes(all_code),
        format_bytes(other),
        format_bytes(all_other)
    )
}

/// The coverage of a start of the file as it is.
fn at_present(before: &Segments, huge: PageSize) -> String {
    let (code, other) = before.covered(huge);
    let (code, other) = (format_bytes(code), format_bytes(other));
    match before.is_placed(huge) {
        true => format!("huge pages for {code} code and {other} read-only data at present"),
        false => format!(
            "huge pages for at most {code} code and {other} read-only data at present, if the kernel happens to place it well"
        ),
    }
}

fn print_sizes(target: &Target, relayout: &Relayout) -> anyhow::Result<()> {
    let disk = target.file.metadata()?.blocks().saturating_mul(BLOCK);
    writeln!(
        Output::Standard,
        "{}: {} long, would be {}; {} on the disk, would be {}",
        target.name,
        format_bytes(relayout.old_length),
        format_bytes(relayout.length),
        format_bytes(disk),
        format_bytes(relayout.written(base_page()))
    )?;
    Ok(())
}

/// Prints the parts that stay on small pages, and the reason.
fn print_uncovered(name: &str, after: &Segments, huge: PageSize) -> anyhow::Result<()> {
    for segment in after.all.iter().filter(|segment| !segment.writable) {
        let Segment { address, length, executable, .. } = *segment;
        let rest = length - segment.covered(huge);
        if rest == 0 {
            continue;
        }
        let why = match segment.is_congruent(huge) || length < huge.bytes() {
            true => "fill no whole huge page",
            false => "are in a segment that holds the file header, which stays at offset 0",
        };
        let kind = if executable { "code" } else { "read-only data" };
        let (rest, end) = (format_bytes(rest), address.saturating_add(length));
        writeln!(Output::Standard, "{name}: {rest} of {kind} at {address:x}-{end:x} {why}")?;
    }
    Ok(())
}
