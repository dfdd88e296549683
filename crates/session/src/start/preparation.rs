//! Brings the file of a program that starts into huge folios of the page cache, and determines the remaining work.

use super::StartOptions;
use crate::files::{KnownFile, ProgramPath, effort_of, prepare_program};
use address_space::PageSize;
use lift_plan::{BeforeExec, StartWork, shows_files_alone, start_work};
use linux::unasked;
use machine_facts::{base_page, elf_machine, memory_available, usual_huge_page};
use options::Prepare;
use page_cache::{Effort, may_collapse_in_place};
use process_view::ObjectReader;
use std::path::Path;

/// Brings a program's file into huge folios of the page cache, if the options request it, and reads its state: once the
/// program runs, the pages that it touches cannot be evicted any more.
pub fn prepare(path: ProgramPath<'_>, reader: &mut ObjectReader, options: &StartOptions) -> Option<KnownFile> {
    if !options.policy.may_use_files() {
        return None;
    }
    let size = usual_huge_page().filter(|size| options.policy.page_size.is_none_or(|wanted| wanted == *size))?;
    // Most programs are too small. A file system that does not answer is not waited for.
    if unasked::place(path.opened).and_then(unasked::of).is_ok_and(|found| found.length < size.bytes()) {
        return None;
    }
    let available = || memory_available(std::process::id() as i32);
    let effort = match (options.prepare, options.dry_run) {
        (Prepare::Never, _) | (_, false) => effort_of(options.prepare),
        (_, true) => Effort::Foresee,
    };
    prepare_program(path, reader, &options.policy, size, effort, &available)
}

/// Brings the file of a program that will lift itself into huge folios of the page cache, if the options request it.
pub fn prepare_file(program: &Path, options: &StartOptions) {
    // The program's own library reports the errors.
    let _ = prepare(ProgramPath::new(program), &mut ObjectReader::new(), options);
}

/// Returns the start's work for a program. `file` has the known state of its file.
pub fn work_with(
    program: &Path,
    reader: &mut ObjectReader,
    file: Option<&KnownFile>,
    options: &StartOptions,
) -> StartWork {
    // Reading the file here would delay every start that continues to the entry.
    let is_alone = |usual: &PageSize| shows_files_alone(&options.policy, *usual);
    let usual = options.may_end_early().then(usual_huge_page).flatten().filter(is_alone);
    let Some(usual) = usual else { return StartWork::AtEntry };
    let Some(image) = reader.read_ahead(program) else { return StartWork::AtEntry };
    // Most libraries are on the file system of the dynamic linker.
    let collapses = |linker: &String| may_collapse_in_place(Path::new(linker));
    let collapses_libraries = options.prepare != Prepare::Never && image.interpreter.as_ref().is_some_and(collapses);
    let huge = file.map_or(&[][..], KnownFile::huge);
    let (base_page, elf_machine) = (base_page(), elf_machine());
    let program = BeforeExec { image, huge, usual, base_page, elf_machine, collapses_libraries };
    start_work(&program, &options.policy)
}
