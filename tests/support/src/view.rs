//! A process as shown by the kernel and the process's dynamic linker.

use crate::process::poll_until;
use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, MappingUsage, PageSize, Protection, bias_of, file_groups,
    parse_smaps,
};
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_ENTRY: u64 = 9;
const PT_DYNAMIC: u32 = 2;
const DT_DEBUG: u64 = 21;
const MOST_OBJECTS: usize = 10_000;

/// An ELF object in a process.
#[derive(Clone, Debug)]
pub struct LoadedElf {
    /// Path of the file.
    pub path: String,
    /// Offset added to its addresses.
    pub bias: u64,
    /// Its headers.
    pub image: ElfImage,
}

/// A snapshot of a process, which should be stopped meanwhile.
#[derive(Clone, Debug)]
pub struct View {
    /// The process.
    pub pid: u32,
    /// Its base page.
    pub base_page: PageSize,
    /// Its mappings.
    pub space: AddressSpace,
    /// Its mappings with the kernel's statistics.
    pub usages: Vec<MappingUsage>,
    /// Its objects, the executable first.
    pub objects: Vec<LoadedElf>,
}

impl View {
    /// Looks at a process.
    ///
    /// # Errors
    /// The process is gone or belongs to another user.
    pub fn of(pid: u32) -> Result<Self> {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).with_context(|| format!("{pid}/{name}"));
        let auxv = auxiliary_vector(pid)?;
        let base_page = PageSize::new(*auxv.get(&AT_PAGESZ).context("no AT_PAGESZ")?)?;
        let space = AddressSpace::parse(&read("maps")?)?;
        let usages = parse_smaps(&read("smaps")?)?;
        let mut view = Self { pid, base_page, space, usages, objects: Vec::new() };
        view.objects = view.find_objects(&auxv)?;
        Ok(view)
    }

    /// The executable.
    ///
    /// # Errors
    /// None was found.
    pub fn executable(&self) -> Result<&LoadedElf> {
        self.objects.first().context("no executable was found")
    }

    /// The object whose path has this end.
    ///
    /// # Errors
    /// There is none.
    pub fn object(&self, end: &str) -> Result<&LoadedElf> {
        self.objects.iter().find(|o| o.path.ends_with(end)).with_context(|| format!("no object …{end}"))
    }

    fn find_objects(&self, auxv: &BTreeMap<u64, u64>) -> Result<Vec<LoadedElf>> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid))?.to_string_lossy().into_owned();
        let image = ElfImage::parse(&*fs::read(format!("/proc/{}/exe", self.pid))?)?;
        let bias = auxv.get(&AT_ENTRY).context("no AT_ENTRY")?.wrapping_sub(image.entry.0);
        let mut objects = vec![LoadedElf { path, bias, image }];
        for (path, bias) in self.link_map(auxv, bias)? {
            if let Ok(image) = fs::read(&path).map_err(anyhow::Error::from).and_then(|b| Ok(ElfImage::parse(&*b)?)) {
                objects.push(LoadedElf { path, bias, image });
            }
        }
        if objects.len() == 1 {
            objects.extend(self.objects_by_mappings(&objects[0].path));
        }
        Ok(objects)
    }

    /// The dynamic linker's own list (link.h), without the executable and the vdso.
    fn link_map(&self, auxv: &BTreeMap<u64, u64>, bias: u64) -> Result<Vec<(String, u64)>> {
        let memory = Memory::of(self.pid)?;
        let Some(r_debug) = debug_address(&memory, auxv, bias)? else { return Ok(Vec::new()) };
        let mut next = memory.word(r_debug + 8)?;
        let mut found = Vec::new();
        for _ in 0..MOST_OBJECTS {
            if next == 0 {
                break;
            }
            let (bias, name) = (memory.word(next)?, memory.text(memory.word(next + 8)?)?);
            if name.starts_with('/') {
                found.push((name, bias));
            }
            next = memory.word(next + 24)?;
        }
        Ok(found)
    }

    /// Also works for a program started through the dynamic linker, which then has no list that can be found from
    /// outside.
    fn objects_by_mappings(&self, executable: &str) -> Vec<LoadedElf> {
        let mut found = Vec::new();
        for (key, mappings) in file_groups(&self.space) {
            if key.path == executable {
                continue;
            }
            let Ok(bytes) = fs::read(&key.path) else { continue };
            let Ok(image) = ElfImage::parse(&*bytes) else { continue };
            for bias in bias_of(&image, &self.space, &mappings, self.base_page) {
                found.push(LoadedElf { path: key.path.clone(), bias, image: image.clone() });
            }
        }
        found
    }

    /// The protections in an object's extent, page by page, as text that does not depend on the base, on names or on
    /// how the kernel splits mappings: `1000-5000 r-x`. Gaps are left out.
    pub fn protections(&self, object: &LoadedElf) -> String {
        let extent = object.image.extent().widened(self.base_page).shifted(object.bias);
        let mut runs: Vec<(AddressRange, Protection, bool)> = Vec::new();
        for mapping in self.space.overlapping(extent) {
            let part = mapping.range.intersect(extent).shifted(object.bias.wrapping_neg());
            match runs.last_mut() {
                Some((range, protection, shared))
                    if range.end() == part.start()
                        && *protection == mapping.protection
                        && *shared == mapping.shared =>
                {
                    *range = AddressRange::new(range.start(), part.end());
                }
                _ => runs.push((part, mapping.protection, mapping.shared)),
            }
        }
        runs.iter()
            .map(|(range, protection, shared)| format!("{range} {protection}{}\n", if *shared { "s" } else { "p" }))
            .collect()
    }

    /// Bytes of the whole process on huge pages, of any source.
    pub fn huge_bytes(&self) -> u64 {
        self.usages.iter().map(MappingUsage::huge).sum()
    }

    /// The process's bytes at an address.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn bytes(&self, range: AddressRange) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len() as usize];
        Memory::of(self.pid)?.read(range.start().0, &mut bytes)?;
        Ok(bytes)
    }

    /// Compares the read-only segments that no relocation changes with the file, byte for byte.
    ///
    /// # Errors
    /// They differ: the address.
    pub fn check_read_only_contents(&self, object: &LoadedElf) -> Result<()> {
        let file = fs::read(&object.path)?;
        for segment in object.image.segments.iter().filter(|s| !s.protection.write && s.file_size > 0) {
            let range = segment.file_memory().shifted(object.bias);
            let found = self.bytes(range)?;
            let wanted = &file[segment.offset as usize..][..segment.file_size as usize];
            let first = found.iter().zip(wanted).position(|(a, b)| a != b);
            ensure!(first.is_none(), "{}: {range} differs from the file at byte {first:?}", object.path);
        }
        Ok(())
    }

    /// Checks in the kernel's table of page flags that every base page of the range is part of a huge page. Root only.
    ///
    /// # Errors
    /// A page is not, or the tables cannot be read.
    pub fn check_page_flags(&self, range: AddressRange, wanted: Flag) -> Result<()> {
        let map = File::open(format!("/proc/{}/pagemap", self.pid))?;
        let flags = File::open("/proc/kpageflags")?;
        for page in range.pages(self.base_page) {
            let entry = word_at(&map, page.start().0 / self.base_page.bytes() * 8)?;
            ensure!(entry >> 63 == 1, "{} is not present", page.start());
            let bits = word_at(&flags, (entry & ((1 << 55) - 1)) * 8)?;
            ensure!(bits >> (wanted as u32) & 1 == 1, "{} lies on no {wanted:?} page: flags {bits:#x}", page.start());
        }
        Ok(())
    }
}

/// A bit of `/proc/kpageflags` (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, Debug)]
pub enum Flag {
    /// `KPF_HUGE`: of the hugetlb pool.
    Hugetlb = 17,
    /// `KPF_THP`.
    TransparentHuge = 22,
}

struct Memory(File);

impl Memory {
    fn of(pid: u32) -> Result<Self> {
        Ok(Self(File::open(format!("/proc/{pid}/mem")).context("the process's memory cannot be opened")?))
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        self.0
            .read_exact_at(into, address)
            .with_context(|| format!("cannot read {} at {}", into.len(), Address(address)))
    }

    fn word(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn text(&self, address: u64) -> Result<String> {
        let mut text = Vec::new();
        let mut byte = [0];
        while text.len() < 4096 {
            self.read(address + text.len() as u64, &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn word_at(file: &File, offset: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn auxiliary_vector(pid: u32) -> Result<BTreeMap<u64, u64>> {
    let bytes = fs::read(format!("/proc/{pid}/auxv"))?;
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..]))).collect())
}

/// Address of the dynamic linker's `struct r_debug`, from the executable's dynamic section.
fn debug_address(memory: &Memory, auxv: &BTreeMap<u64, u64>, bias: u64) -> Result<Option<u64>> {
    let headers = *auxv.get(&AT_PHDR).context("no AT_PHDR")?;
    let mut dynamic = None;
    for index in 0..auxv.get(&AT_PHNUM).copied().unwrap_or(0) {
        let header = headers + index * 56;
        if memory.word(header)? as u32 == PT_DYNAMIC {
            dynamic = Some(memory.word(header + 16)?);
        }
    }
    let Some(mut entry) = dynamic.map(|address| address.wrapping_add(bias)) else { return Ok(None) };
    loop {
        match (memory.word(entry)?, memory.word(entry + 8)?) {
            (0, _) => return Ok(None),
            (DT_DEBUG, value) => return Ok(Some(value).filter(|&v| v != 0)),
            _ => entry += 16,
        }
    }
}

/// A field of `/proc/PID/status`.
pub fn process_field(pid: u32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The thread that traces a process, unless it is one of this test: at the end of a tracing, Linux 6.18 shows the parent for
/// a moment (`ptrace_parent` reads it beside `__ptrace_unlink`), and a test that kills the tracer would kill itself.
pub fn tracer_of(pid: u32) -> Option<i32> {
    let tracer: i32 = process_field(pid, "TracerPid")?.parse().ok()?;
    let is_own = fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false);
    (tracer != 0 && !is_own).then_some(tracer)
}

/// Waits until the process is in one of these states (`T` stopped, `t` stopped under a tracer, `Z` ended, `S` asleep).
///
/// # Errors
/// The process reaches none within two minutes.
pub fn process_state(pid: u32, wanted: &str) -> Result<()> {
    let what = format!("process {pid} to be in one of the states {wanted}");
    let is_one = |state: String| state.chars().next().is_some_and(|state| wanted.contains(state));
    poll_until(Duration::from_secs(120), &what, || process_field(pid, "State").is_some_and(is_one))
}
