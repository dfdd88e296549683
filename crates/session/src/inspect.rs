//! The plan for a file or a process, and the best base of its executable.

use crate::costs::{self, KnownCosts};
use crate::data_files::DataFileReport;
use crate::facts::{Preparation, plan_for_running, without_thp_disable};
pub use crate::files::KnownFile;
use crate::heap::{HeapPlan, heap_plan};
use crate::names::program_name;
use crate::nodes::{FarPages, far_pages, home_of};
use crate::payment::Payment;
use crate::report::{Postponed, document_text, write_document};
use crate::shared::{InPlaceAmounts, InPlaceReports};
use crate::start::base::base_for_file;
use crate::{SessionError, images};
use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, ElfKind, FileNumbers, LoadedObject, Mapping, MappingName,
    MappingUsage, ObjectRole, PageSize, Protection, RangeSet,
};
use lift_plan::{
    BaseChoice, CachedFile, Coverable, Later, MOST_NOTE_BYTES, MachineFacts, Method, Part, Plan, Policy, PoolPages,
    Price, ProcessFacts, RangeLift, Source, Terms, choose_base, coverable, divide, plan, semaphores_in, semaphores_of,
};
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use machine_facts::machine_facts;
use object::ReadCache;
use process_view::coverage::{MemoryCoverage, MemoryKind, ProcessMemory};
use process_view::{BoundedFile, ObjectReader, ProcessFiles, open_executed};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
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
    /// The pools as they are, so that the plan is the one that a lift would make now.
    #[default]
    AsTheyAre,
    /// Pools with enough pages, so that the plan shows the lift's whole demand.
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

/// An object of the program, and its address.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectPlace {
    /// Its file.
    pub path: String,
    /// Its role in the program.
    pub role: ObjectRole,
    /// The difference to the file's addresses, as an address.
    pub bias: Address,
}

/// The parts of the executable that huge pages cover at three bases.
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

/// Memory of a process. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Resident, on pages of any size.
    pub resident: u64,
    /// Resident on huge pages.
    pub huge: u64,
    /// On huge pages in the ranges of the plan: a lift does not add these.
    pub planned_and_huge: u64,
    /// Memory that lifts in place can add.
    pub in_place: InPlaceAmounts,
}

/// The predicted cost of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanCost {
    /// The price.
    #[serde(flatten)]
    pub price: Price,
    /// The costs from which it is predicted.
    pub costs: KnownCosts,
}

impl PlanCost {
    /// Returns the cost of a plan on this machine.
    pub fn of(plan: &Plan) -> Self {
        let costs = costs::known();
        Self { price: plan.price(&costs.costs), costs }
    }
}

/// The ranges of a program that would be lifted, and those that would not, with the reasons.
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
    /// The predicted cost of the lift.
    pub cost: PlanCost,
    /// Memory that a start lifts later, when the program has paid; such ranges are among the refusals of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postponed: Option<Postponed>,
    /// Bytes of a file that a start would bring into huge folios of the page cache first.
    #[serde(skip_serializing_if = "is_zero")]
    pub to_prepare: u64,
    /// The objects of a program that was started up to its entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectPlace>,
    /// Pages that the plan takes of the pools.
    pub pool: Vec<PoolPages>,
    /// Mapped files that are not sound objects, each with the reason.
    pub not_understood: Vec<String>,
    /// Files in huge folios, and images, that the process maps from other NUMA nodes than its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far_pages: Vec<FarPages>,
    /// The allocator and what is done for its heap; `None` if it is unknown.
    pub heap: Option<HeapPlan>,
    /// Resident memory of a process and its amount on huge pages; `None` for a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Amounts>,
    /// Resident memory of a process that belongs to no object and can be lifted in place: shared, anonymous, generated code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryCoverage>,
    /// Data files that a process maps, if their lift is planned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_files: Vec<DataFileReport>,
    /// The plans for its memory that is lifted in place, of the requested kinds.
    #[serde(flatten)]
    pub in_place: InPlaceReports,
    /// True if the program will load shared objects that are not shown here.
    #[serde(skip)]
    pub lacks_shared_objects: bool,
}

impl Inspection {
    fn new(target: String, plan: Plan, bases: Option<Bases>, heap: Option<HeapPlan>) -> Self {
        let (format, not_understood, objects) = ("pagelift-plan", Vec::new(), Vec::new());
        let pool = plan.pool_pages_by_size();
        let cost = PlanCost::of(&plan);
        Self {
            format,
            version: 1,
            target,
            bases,
            plan,
            cost,
            postponed: None,
            to_prepare: 0,
            objects,
            pool,
            not_understood,
            far_pages: Vec::new(),
            heap,
            now: None,
            memory: Vec::new(),
            data_files: Vec::new(),
            in_place: InPlaceReports::default(),
            lacks_shared_objects: false,
        }
    }

    /// The plan of a program that was started up to its entry, or of a process that is only read.
    pub fn of_plan(target: String, plan: Plan) -> Self {
        Self::new(target, plan, None, None)
    }

    /// Adds the amounts of memory of the process, if it can be read; ranges that are wholly on huge pages leave the plan.
    pub fn with_memory_of(mut self, pid: i32) -> Self {
        if let Ok(memory) = ProcessMemory::read(pid) {
            self.take_memory(&memory);
        }
        self
    }

    /// Returns the bytes that a lift would add to those on huge pages.
    pub fn adds(&self) -> u64 {
        self.plan.planned().saturating_sub(self.now.map_or(0, |now| now.planned_and_huge))
    }

    /// Adds the ranges that a start lifts later.
    pub fn with_later(mut self, later: &Later) -> Self {
        self.postponed = Postponed::of(later);
        self
    }

    /// Adds the addresses of these objects.
    pub fn with_objects(mut self, objects: &[LoadedObject]) -> Self {
        let place = |object: &LoadedObject| ObjectPlace {
            path: object.path.clone(),
            role: object.role,
            bias: Address(object.bias),
        };
        self.objects = objects.iter().map(place).collect();
        self
    }

    /// Writes the plan: the only document of its file, or one more line.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &Path, as_line: bool) -> io::Result<()> {
        write_document(self, path, as_line)
    }

    /// Writes the plan to an open file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_to(&self, mut file: File) -> io::Result<()> {
        file.write_all(document_text(self, false)?.as_bytes())
    }
}

/// Returns the plan for a process without executing it.
///
/// # Errors
/// The process has ended, or may not be read.
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
    inspection = inspection.with_memory_of(pid);
    inspection.data_files = seen.data_files.reports;
    inspection.far_pages = far_pages(pid, &seen.process.space, home, &ranges);
    let not_understood = seen.not_understood.iter().filter(|file| file.executable);
    inspection.not_understood = not_understood.map(|file| format!("{}: {}", file.path, file.reason)).collect();
    Ok(inspection)
}

impl Inspection {
    /// Adds the amounts of resident and huge memory. Ranges that are wholly on huge pages leave the plan: a lift would
    /// collapse them once more, which changes nothing.
    fn take_memory(&mut self, memory: &ProcessMemory) {
        let is_meant = |memory: &MemoryCoverage| {
            matches!(memory.kind, MemoryKind::Shared | MemoryKind::Anonymous | MemoryKind::Jit | MemoryKind::File)
                && memory.usage.resident > 0
        };
        let coverage = memory.coverage();
        self.plan.lifts.retain(|lift| huge_within(memory, lift.range) < lift.range.len());
        self.pool = self.plan.pool_pages_by_size();
        self.cost.price = self.plan.price(&self.cost.costs.costs);
        let planned_and_huge = self.plan.lifts.iter().map(|lift| filled_and_huge(memory, lift)).sum();
        let (resident, huge) = (coverage.total.resident, coverage.total.huge_bytes());
        self.now = Some(Amounts { resident, huge, planned_and_huge, in_place: InPlaceAmounts::of(memory) });
        self.memory = coverage.memory.into_iter().filter(is_meant).collect();
    }
}

/// Returns the bytes that a lift fills and that are on huge pages.
fn filled_and_huge(memory: &ProcessMemory, lift: &RangeLift) -> u64 {
    let filled = |part: &Part, huge: &RangeSet| match &part.method {
        Method::InPlace { collapse } => collapse.iter().map(|range| huge.bytes_in(range)).sum(),
        _ => huge.bytes_in(part.range),
    };
    match huge_parts_of(memory, lift.range) {
        Ok(huge) => lift.attempts[0].parts.iter().map(|part| filled(part, &huge)).sum::<u64>(),
        Err(bytes) => bytes,
    }
}

/// Returns the bytes of a range that are on huge pages.
fn huge_within(memory: &ProcessMemory, range: AddressRange) -> u64 {
    huge_parts_of(memory, range).map_or_else(|bytes| bytes, |huge| huge.bytes())
}

/// Returns the parts of a range that are on huge pages.
///
/// # Errors
/// The number of their bytes, if the kernel counts by mapping only (Linux before 6.7).
fn huge_parts_of(memory: &ProcessMemory, range: AddressRange) -> Result<RangeSet, u64> {
    let pagemap = Pagemap::open(memory.pid, base_page()).and_then(|pagemap| pagemap.huge(range));
    pagemap.map_err(|_| {
        let inside = memory.usages.iter().filter(|usage| range.covers(usage.mapping.range));
        inside.map(MappingUsage::huge).sum()
    })
}

/// The conditions of a start of a file.
#[derive(Clone, Copy)]
pub struct FileLift<'a> {
    /// The file's state in the page cache after the start's preparation.
    pub known: Option<&'a KnownFile>,
    /// The limits for the cost of copies.
    pub payment: Option<Payment>,
    /// The pools for which the plan is made.
    pub pools: Pools,
}

/// Returns the plan of a start of an open file, as if it were loaded alone.
///
/// # Errors
/// The file is not a sound ELF file of 64 bits.
pub fn inspect_file(
    path: &Path,
    file: &File,
    policy: &Policy,
    FileLift { known, payment, pools }: FileLift<'_>,
) -> Result<Inspection, SessionError> {
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
    let huge = known.map_or_else(Vec::new, |known| known.huge().to_vec());
    let bias = match (image.kind, &bases) {
        (ElfKind::PositionIndependent, Some(bases)) => {
            let has_image = |size| images::may_be_had(Some(file), &image, size, policy.pages);
            let for_file = base_for_file(&image, &huge, policy, bases.page_size, &bases.best, &has_image).ok();
            EXAMPLE_BASE + for_file.map_or(bases.best.offset, |base| base.offset)
        }
        (ElfKind::PositionIndependent, None) => EXAMPLE_BASE,
        (ElfKind::FixedAddress, _) => 0,
    };
    let mut process = as_loaded(path, image, bias, machine.base_page);
    let own_path = Some(path.display().to_string());
    let shortfall = known.and_then(KnownFile::shortfall).cloned();
    process.cached = vec![CachedFile {
        path: name.clone(),
        numbers: FileNumbers { device: (0, 0), inode: FILE_INODE },
        huge,
        shortfall,
        own_path,
    }];
    let mut left = MOST_NOTE_BYTES;
    process.semaphores = semaphores_in(&process, &machine, policy, |object| {
        semaphores_of(&object.image, &mut left, |offset, into| file.read_exact_at(into, offset).ok())
    });
    let (mut plan, mut later) = (plan(&process, &machine, policy), Later::default());
    if let Some(Payment { allowance, share }) = payment {
        let terms = Terms { costs: costs::known().costs, allowance, share, never_later: None };
        (plan, later) = divide(plan, &terms);
    }
    let mut inspection = Inspection::new(name, plan, bases, heap_plan(path, file, &machine)).with_later(&later);
    // The whole file was read, but a start prepares only the parts that are never written.
    let read_only = process.space.mappings().iter().filter(|mapping| mapping.inode != 0 && !mapping.protection.write);
    let needed: u64 = read_only.map(|mapping| mapping.range.len()).sum();
    inspection.to_prepare = known.map_or(0, KnownFile::made).min(needed);
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
    let object = LoadedObject { path: path.clone(), link: None, role: ObjectRole::Executable, bias, image };
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
    // The dynamic linker writes relocations into writable memory, RELRO included.
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

/// For serde, which asks by reference.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}
