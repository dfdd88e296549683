//! The plan for a file or a process, and where the base of its executable should be.

use crate::facts::{Preparation, plan_for_running, without_thp_disable};
use crate::files::huge_parts;
use crate::heap::{HeapPlan, heap_plan};
use crate::names::program_name;
use crate::nodes::{FarPages, far_pages, home_of};
use crate::probes::semaphores_of;
use crate::report::write_document;
use crate::shared::InPlaceReports;
use crate::start::base::base_for_file;
use crate::{SessionError, images};
use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, ElfKind, LoadedObject, Mapping, MappingName, ObjectRole, PageSize,
    Protection,
};
use lift_plan::{
    BaseChoice, CachedFile, Coverable, MachineFacts, Plan, Policy, PoolPages, ProcessFacts, RangeLift, Source,
    choose_base, coverable, plan, semaphores_in,
};
use linux::bounded::SEMAPHORE_NOTES;
use machine_facts::machine_facts;
use object::ReadCache;
use process_view::coverage::{MemoryCoverage, MemoryKind, ProcessMemory};
use process_view::{BoundedFile, ObjectReader, ProcessFiles, open_executed};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Example address near which files are shown as loaded; only its bits below a huge page matter.
const EXAMPLE_BASE: u64 = 0x5500_0000_0000;
/// Inode number of the file in the example.
const FILE_INODE: u64 = 1;
/// Maximum number of bytes of a file that are read for its headers.
const MOST_HEADER_BYTES: u64 = 16 << 20;

/// Which pools a plan is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pools {
    /// The pools as they are, so that the plan is what would be done now.
    #[default]
    AsTheyAre,
    /// Pools that lack nothing, so that the plan shows what the lift would take of them.
    Plentiful,
}

impl Pools {
    /// Returns the facts of a machine with these pools.
    pub(crate) fn of(self, machine: MachineFacts) -> MachineFacts {
        match self {
            Self::AsTheyAre => machine,
            Self::Plentiful => machine.with_plentiful_pools(),
        }
    }
}

/// An object of the program, and where it lies.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectPlace {
    /// Its file.
    pub path: String,
    /// What it is to the program.
    pub role: ObjectRole,
    /// What is added to the file's addresses, as an address.
    pub bias: Address,
}

/// What huge pages cover of the executable at three bases.
#[derive(Serialize)]
pub struct Bases {
    /// The size of the huge pages.
    pub page_size: PageSize,
    /// At its present base, for a process.
    pub now: Option<Coverable>,
    /// At a base that is a multiple of the huge page size.
    pub aligned: Coverable,
    /// At the best base.
    pub best: BaseChoice,
}

/// What would be lifted of a program, and what would not, with the reasons.
#[derive(Serialize)]
pub struct Inspection {
    /// Always `pagelift-plan`.
    pub format: &'static str,
    /// Version of the format; it grows with every change that breaks a reader.
    pub version: u32,
    /// The file, or the program's name and the process's number.
    pub target: String,
    /// The bases; `None` for a program whose base is fixed.
    pub bases: Option<Bases>,
    /// The plan.
    pub plan: Plan,
    /// The objects of a program that was started up to its entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectPlace>,
    /// Pages that the plan takes of the pools.
    pub pool: Vec<PoolPages>,
    /// Mapped files that are not sound objects, each with the reason.
    pub not_understood: Vec<String>,
    /// Files in huge folios, and images, that the process maps and that lie on other NUMA nodes than its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far_pages: Vec<FarPages>,
    /// The allocator and what is done for its heap; `None` where it is unknown.
    pub heap: Option<HeapPlan>,
    /// Resident memory of a process that belongs to no object and can be lifted in place: shared, anonymous, generated code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryCoverage>,
    /// The plans for its memory that is lifted in place, of the kinds that the user asked for.
    #[serde(flatten)]
    pub in_place: InPlaceReports,
    /// True where the program will load shared objects that are not shown here.
    #[serde(skip)]
    pub lacks_shared_objects: bool,
}

impl Inspection {
    fn new(target: String, plan: Plan, bases: Option<Bases>, heap: Option<HeapPlan>) -> Self {
        let (format, not_understood, objects) = ("pagelift-plan", Vec::new(), Vec::new());
        let pool = plan.pool_pages_by_size();
        Self {
            format,
            version: 1,
            target,
            bases,
            plan,
            objects,
            pool,
            not_understood,
            far_pages: Vec::new(),
            heap,
            memory: Vec::new(),
            in_place: InPlaceReports::default(),
            lacks_shared_objects: false,
        }
    }

    /// The plan of a program that was started up to its entry, or of a process that is only looked at.
    pub fn of_plan(target: String, plan: Plan) -> Self {
        Self::new(target, plan, None, None)
    }

    /// Adds where these objects lie.
    pub fn with_objects(mut self, objects: &[LoadedObject]) -> Self {
        let place = |object: &LoadedObject| ObjectPlace {
            path: object.path.clone(),
            role: object.role,
            bias: Address(object.bias),
        };
        self.objects = objects.iter().map(place).collect();
        self
    }

    /// Writes the plan: the only document of its file, or one more line of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &Path, as_line: bool) -> io::Result<()> {
        write_document(self, path, as_line)
    }
}

/// Returns the plan for a process without executing it.
///
/// # Errors
/// The process has ended, or may not be looked at.
pub fn inspect_process(pid: i32, policy: &Policy, pools: Pools) -> Result<Inspection, SessionError> {
    // As `attach` would lift it.
    let (machine, _) = without_thp_disable(&machine_facts(pid));
    let machine = pools.of(machine);
    let (seen, plan) = plan_for_running(pid, &mut ObjectReader::new(), &machine, policy, Preparation::NONE)?;
    let executable = seen.process.objects.iter().find(|object| object.role == ObjectRole::Executable);
    let bases = executable.and_then(|object| bases(&object.image, Some(object.bias), &machine, policy));
    let path = PathBuf::from(format!("/proc/{pid}/exe"));
    let opened = open_executed(&ProcessFiles::of(pid)).ok().flatten();
    let heap = opened.and_then(|(file, _)| heap_plan(&path, &file, &machine));
    let mut inspection = Inspection::new(format!("{}[{pid}]", program_name(pid)), plan, bases, heap);
    let shared = |lift: &&RangeLift| matches!(lift.attempts[0].source, Source::File | Source::Image);
    let ranges: Vec<_> = inspection.plan.lifts.iter().filter(shared).map(|lift| lift.range).collect();
    let home = home_of(pid, &machine, policy.numa);
    inspection.memory = memory_besides_objects(pid);
    inspection.far_pages = far_pages(pid, &seen.process.space, home, &ranges);
    let not_understood = seen.not_understood.iter().filter(|file| file.executable);
    inspection.not_understood = not_understood.map(|file| format!("{}: {}", file.path, file.reason)).collect();
    Ok(inspection)
}

/// Resident memory that is lifted in place; none if the process has ended meanwhile.
fn memory_besides_objects(pid: i32) -> Vec<MemoryCoverage> {
    let Ok(process) = ProcessMemory::read(pid) else { return Vec::new() };
    let is_meant = |memory: &MemoryCoverage| {
        matches!(memory.kind, MemoryKind::Shared | MemoryKind::Anonymous | MemoryKind::Jit) && memory.usage.resident > 0
    };
    process.coverage().memory.into_iter().filter(is_meant).collect()
}

/// Returns the plan for an open file, as if it were loaded alone.
///
/// # Errors
/// The file is not a sound ELF file of 64 bits.
pub fn inspect_file(path: &Path, file: &File, policy: &Policy, pools: Pools) -> Result<Inspection, SessionError> {
    let name = path.display().to_string();
    let length = file.metadata().map_err(|error| SessionError::io(format!("reading {name}"), error))?.len();
    let bytes = ReadCache::new(BoundedFile::new(file, length, MOST_HEADER_BYTES));
    let image = ElfImage::parse(&bytes)
        .map_err(|error| SessionError::Refused(format!("{name} cannot be inspected: {error}")))?;
    let needed = image.segments.iter().map(|segment| segment.offset + segment.file_size).max().unwrap_or(0);
    if needed > length {
        let cut = format!("{name} is cut off: found {length} bytes, needed {needed} for its segments");
        return Err(SessionError::Refused(cut));
    }
    let machine = pools.of(machine_facts(std::process::id() as i32));
    let bases = bases(&image, None, &machine, policy);
    let huge = machine.thp.filter(|_| policy.may_use_files()).map_or_else(Vec::new, |thp| huge_parts(file, thp.size));
    let bias = match (image.kind, &bases) {
        (ElfKind::PositionIndependent, Some(bases)) => {
            let has_image = |size| images::may_be_had(Some(file), &image, size);
            let for_file = base_for_file(&image, &huge, policy, (bases.page_size, &bases.best), &has_image).ok();
            EXAMPLE_BASE + for_file.map_or(bases.best.offset, |base| base.offset)
        }
        (ElfKind::PositionIndependent, None) => EXAMPLE_BASE,
        (ElfKind::FixedAddress, _) => 0,
    };
    let mut process = as_loaded(path, image, bias, machine.base_page);
    let own_path = Some(path.display().to_string());
    process.cached =
        vec![CachedFile { path: name.clone(), inode: FILE_INODE, huge, own_path, ..CachedFile::default() }];
    let budget = &mut SEMAPHORE_NOTES.budget();
    process.semaphores = semaphores_in(&process, &machine, policy, |object| semaphores_of(file, &object.image, budget));
    let plan = plan(&process, &machine, policy);
    let mut inspection = Inspection::new(name, plan, bases, heap_plan(path, file, &machine));
    inspection.lacks_shared_objects = process.objects[0].image.interpreter.is_some();
    Ok(inspection)
}

/// Compares bases; `None` for programs whose base is fixed.
fn bases(image: &ElfImage, bias: Option<u64>, machine: &MachineFacts, policy: &Policy) -> Option<Bases> {
    let size = policy.page_size.or_else(|| machine.usual_huge_page())?;
    if image.kind == ElfKind::FixedAddress {
        return None;
    }
    let at = |bias| coverable(image, bias, size, machine.base_page, policy.kinds, policy.edges);
    let best = choose_base(image, size, machine.base_page, policy.kinds, policy.edges);
    Some(Bases { page_size: size, now: bias.map(at), aligned: at(0), best })
}

/// Returns the facts of a process that has loaded and relocated only this file and touched nothing.
fn as_loaded(path: &Path, image: ElfImage, bias: u64, base_page: PageSize) -> ProcessFacts {
    let path = path.display().to_string();
    let object = LoadedObject { path: path.clone(), role: ObjectRole::Executable, bias, image };
    let relro = object.relro(base_page);
    let mut mappings: Vec<Mapping> = Vec::new();
    for segment in &object.image.segments {
        let pages = segment.memory.widened(base_page).shifted(bias);
        let file_pages = segment.file_memory().widened(base_page).shifted(bias);
        let sealed = relro.filter(|_| segment.protection.write).map_or(pages.start(), |r| r.end().max(pages.start()));
        let end_of_file = if segment.file_size == 0 { pages.start() } else { file_pages.end() };
        let first_offset = segment.offset & !(base_page.bytes() - 1);
        let mut push = |start: Address, end: Address, protection: Protection, from_file: bool| {
            let start = start.max(mappings.last().map_or(start, |last| last.range.end()));
            let range = AddressRange::new(start, end);
            if !range.is_empty() {
                let offset = first_offset.wrapping_add(start - pages.start());
                mappings.push(mapping(range, protection, from_file.then(|| (path.clone(), offset))));
            }
        };
        if segment.protection.write {
            push(pages.start(), sealed, Protection { write: false, ..segment.protection }, true);
        }
        push(pages.start(), end_of_file, segment.protection, true);
        push(pages.start(), pages.end(), segment.protection, false);
    }
    // The dynamic linker writes relocations into what is writable, RELRO included.
    let written = object.image.segments.iter().filter(|segment| segment.protection.write);
    let changed = written.map(|segment| segment.memory.widened(base_page).shifted(bias)).collect();
    let space = AddressSpace::from_mappings(mappings);
    ProcessFacts { space, objects: vec![object], changed, ..ProcessFacts::default() }
}

fn mapping(range: AddressRange, protection: Protection, file: Option<(String, u64)>) -> Mapping {
    let (inode, offset) = file.as_ref().map_or((0, 0), |(_, offset)| (FILE_INODE, *offset));
    let name = file.map_or(MappingName::Anonymous, |(path, _)| MappingName::File { path, deleted: false });
    Mapping { range, protection, shared: false, offset, device: (0, 0), inode, name }
}
