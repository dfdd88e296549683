//! Counts events by perf_event_open(2).

use crate::walk_counters::{Counted, Counts, CpuIdentity, EventCount, Family, What};
use perf_event::events::{Hardware, Raw};
use perf_event::{Builder, Counter, ReadFormat};
use std::fs;
use std::io;
use std::path::Path;

/// The maximum of events that are counted at the same time: a hardware thread has four general counters if its core has
/// two threads (Haswell to Cascade Lake), and the NMI watchdog may use one. Cycles and instructions have separate
/// counters on Intel.
const AT_ONCE: usize = 3;
/// `perf_event_attr.config` of cycles and instructions has the PMU in its upper half if a CPU has several (Linux 5.13).
const PMU_SHIFT: u32 = 32;
pub(crate) const DEVICES: &str = "/sys/bus/event_source/devices";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The target of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process: all its threads, and the threads that they start. Before Linux 5.13 also the processes that they
    /// start, as [`Counts::with_children`] shows.
    Process(i32),
    /// A process with all its threads, and the threads and processes that these start from now on.
    ProcessWithChildren(i32),
    /// All programs that this thread starts from now on, from their exec on, with all descendants.
    Children,
    /// Everything, on all CPUs.
    System,
}

/// Why nothing is counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCounters {
    /// The kernel has found no performance monitoring unit.
    #[error(
        "this machine shows no PMU: {DEVICES} has none of a CPU; needed: a bare machine, or a virtual one whose host passes its \
         PMU on; fix: on the host, `-cpu host,pmu=on` (QEMU), a metal or whole-socket instance (clouds)"
    )]
    NoPmu,
    /// No table has this CPU.
    #[error(
        "no table of events for this CPU: {0}; fix: add a table to crates/measure/translation/families and to TABLES in \
         family.rs"
    )]
    UnknownCpu(CpuIdentity),
    /// The kernel does not permit it.
    #[error(
        "not permitted: kernel.perf_event_paranoid is {found}; needed: {needed}, or CAP_PERFMON; fix: \
         `sysctl kernel.perf_event_paranoid={needed}` as root on the host"
    )]
    NotPermitted {
        /// `kernel.perf_event_paranoid`.
        found: String,
        /// The value that would suffice.
        needed: i32,
    },
    /// No core of a kind that the tables know is in use.
    #[error(
        "no PMU in {DEVICES} has CPUs of this kind: {0}; needed: one of their own, as the kernel shows on a bare machine"
    )]
    NoCores(String),
    /// Something else.
    #[error("perf_event_open: {0}")]
    Kernel(String),
}

/// Events that are being counted on one kind of core.
pub struct Counting {
    counts: Counts,
    cycles: Vec<Counter>,
    instructions: Vec<Counter>,
    /// For each event of the family, one counter for each thread or CPU.
    events: Vec<Vec<Counter>>,
}

/// A place for counters: a thread or a CPU.
#[derive(Clone, Copy)]
enum Place {
    Thread(i32),
    Oneself,
    Cpu(usize),
}

/// The parts that a counter excludes, if the kernel requires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scope {
    /// The kernel's work is counted too.
    with_kernel: bool,
    /// Only the process's own threads are counted, not the processes that its threads start.
    threads_only: bool,
}

impl Scope {
    fn of(target: Target) -> Self {
        Self { with_kernel: true, threads_only: matches!(target, Target::Process(_)) }
    }

    /// The scope to try after this error; `None` if no other scope helps.
    fn instead(self, error: &io::Error, place: Place) -> Option<Self> {
        if self.with_kernel && is_refusal(error) && !matches!(place, Place::Cpu(_)) {
            return Some(Self { with_kernel: false, ..self });
        }
        // The kernel does not know `inherit_thread` (before Linux 5.13).
        (self.threads_only && is_not_known(error)).then_some(Self { threads_only: false, ..self })
    }

    /// Opens with this scope, or with the remaining scope if the kernel refuses that.
    fn settle<T>(&mut self, place: Place, mut open: impl FnMut(Self) -> io::Result<T>) -> io::Result<T> {
        let mut opened = open(*self);
        while let Err(error) = &opened
            && let Some(scope) = self.instead(error, place)
        {
            *self = scope;
            opened = open(scope);
        }
        opened
    }
}

/// True if the kernel may not know an attribute of the event; the library has a separate error for E2BIG.
fn is_not_known(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) || error.kind() == io::ErrorKind::Unsupported
}

impl Counting {
    /// Starts counting the events of this machine's CPU: one for each kind of core that is in use.
    ///
    /// # Errors
    /// [`NoCounters`].
    pub fn start(target: Target) -> Result<Vec<Self>, NoCounters> {
        let devices = Path::new(DEVICES);
        if !has_pmu(devices) {
            return Err(NoCounters::NoPmu);
        }
        let cpu = CpuIdentity::read();
        let families = Family::of(&cpu);
        if families.is_empty() {
            return Err(NoCounters::UnknownCpu(cpu));
        }
        linux::descriptors::allow_most();
        in_use(families, devices)?.into_iter().map(|family| Self::of(family, target, devices)).collect()
    }

    fn of(family: &'static Family, target: Target, devices: &Path) -> Result<Self, NoCounters> {
        let pmu = family.pmu.as_deref().map(|pmu| pmu_type(devices, pmu)).transpose()?;
        let places = places(target, family, devices)?;
        let mut scope = Scope::of(target);
        let mut counting = Self {
            counts: family.blank(scope.with_kernel),
            cycles: Vec::new(),
            instructions: Vec::new(),
            events: family.events.iter().map(|_| Vec::new()).collect(),
        };
        for &place in &places {
            match scope.settle(place, |scope| counting.open(family, pmu, place, scope)) {
                // A thread has ended since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                result => result.map_err(|error| explained(&error, target))?,
            }
        }
        counting.counts.with_kernel = scope.with_kernel;
        counting.counts.with_children = scope.threads_only != Scope::of(target).threads_only;
        // For the whole machine, each kind of core is counted on its own CPUs.
        counting.counts.on_some_cores = family.pmu.is_some() && target != Target::System;
        if counting.cycles.is_empty() {
            let what = if target == Target::System { "CPU" } else { "thread" };
            return Err(NoCounters::Kernel(format!("no {what} is left")));
        }
        Ok(counting)
    }

    /// Opens all events at one place: cycles and instructions by themselves, the others in groups that are counted together.
    fn open(&mut self, family: &Family, pmu: Option<u32>, place: Place, scope: Scope) -> io::Result<()> {
        let of_pmu = |hardware: Hardware| {
            let mut builder = builder(hardware, place, scope);
            let attributes = builder.attrs_mut();
            attributes.config |= u64::from(pmu.unwrap_or(0)) << PMU_SHIFT;
            builder.build()
        };
        let cycles = of_pmu(Hardware::CPU_CYCLES)?;
        let instructions = of_pmu(Hardware::INSTRUCTIONS)?;
        self.cycles.push(cycles);
        self.instructions.push(instructions);
        for group in family.groups(AT_ONCE) {
            let mut leader: Option<usize> = None;
            for index in group {
                let mut builder = builder(Raw::new(family.events[index].config()), place, scope);
                if let Some(pmu) = pmu {
                    builder.attrs_mut().type_ = pmu;
                }
                let counter = match leader.and_then(|leader| self.events[leader].last_mut()) {
                    Some(leader) => {
                        builder.enabled(true);
                        builder.attrs_mut().set_enable_on_exec(0);
                        builder.build_with_group(LeaderOf(leader))
                    }
                    None => builder.build(),
                };
                match counter {
                    Ok(counter) => {
                        self.events[index].push(counter);
                        leader = leader.or(Some(index));
                    }
                    Err(error) => self.counts.events[index].not_counted = Some(refused(&error)),
                }
            }
        }
        Ok(())
    }

    /// True if the PMU itself counts the time of page walks.
    pub fn counts_cycles_of_walks(&self) -> bool {
        self.counts.events.iter().any(|event| matches!(event.counts, What::Active | What::Pending))
    }

    /// The counts until now.
    pub fn read(&mut self) -> Counts {
        let mut counts = self.counts.clone();
        fill(&mut counts.cycles, &mut self.cycles);
        fill(&mut counts.instructions, &mut self.instructions);
        for (event, counters) in counts.events.iter_mut().zip(&mut self.events) {
            fill(event, counters);
        }
        counts
    }
}

/// The leader of a group, as the library wants it.
struct LeaderOf<'a>(&'a mut Counter);

impl AsMut<Counter> for LeaderOf<'_> {
    fn as_mut(&mut self) -> &mut Counter {
        self.0
    }
}

fn builder<'a>(event: impl perf_event::events::Event, place: Place, scope: Scope) -> Builder<'a> {
    let mut builder = Builder::new(event);
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    builder.exclude_kernel(!scope.with_kernel).exclude_hv(true).inherit_thread(scope.threads_only);
    match place {
        Place::Thread(thread) => builder.observe_pid(thread).any_cpu().inherit(true).enabled(true),
        Place::Oneself => builder.observe_self().any_cpu().inherit(true).enable_on_exec(true),
        Place::Cpu(cpu) => builder.any_pid().one_cpu(cpu).enabled(true),
    };
    builder
}

fn fill(event: &mut EventCount, counters: &mut [Counter]) {
    let mut sum: Option<Counted> = None;
    for counter in counters {
        match counter.read_count_and_time() {
            Ok(read) => {
                let counted = Counted { raw: read.count, enabled: read.time_enabled, running: read.time_running };
                sum = Some(sum.unwrap_or_default().plus(counted));
            }
            Err(error) => {
                (event.counted, event.not_counted) = (None, Some(format!("it cannot be read: {error}")));
                return;
            }
        }
    }
    // Counted in some threads only is not counted.
    if event.not_counted.is_none() {
        event.counted = sum;
    }
}

fn places(target: Target, family: &Family, devices: &Path) -> Result<Vec<Place>, NoCounters> {
    let failed = |error: io::Error| NoCounters::Kernel(error.to_string());
    Ok(match target {
        Target::Children => vec![Place::Oneself],
        Target::Process(pid) | Target::ProcessWithChildren(pid) => {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)?;
            threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Place::Thread).collect()
        }
        Target::System => {
            // If there are several kinds of cores, the PMU of each names its own.
            let cpus = match &family.pmu {
                Some(pmu) => linux::text::text_of(devices.join(pmu).join("cpus")).map(|text| cpu_list(&text)),
                None => online_cpus(),
            };
            cpus.map_err(failed)?.into_iter().map(Place::Cpu).collect()
        }
    })
}

/// CPUs that run.
pub(crate) fn online_cpus() -> io::Result<Vec<usize>> {
    linux::text::text_of("/sys/devices/system/cpu/online").map(|text| cpu_list(&text))
}

/// Reads a list of CPUs, `0-3,8` for example.
fn cpu_list(text: &str) -> Vec<usize> {
    const MOST: usize = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?.min(MOST))
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The families of kinds of cores that are in use: kinds of a hybrid CPU that the firmware or the administrator has
/// disabled have no PMU, or one without CPUs.
fn in_use(families: Vec<&'static Family>, devices: &Path) -> Result<Vec<&'static Family>, NoCounters> {
    let has_cpus = |family: &&'static Family| {
        let Some(folder) = family.pmu.as_ref().map(|pmu| devices.join(pmu)) else { return true };
        let cpus = linux::text::text_of(folder.join("cpus"));
        folder.is_dir() && cpus.map_or(true, |text| !cpu_list(&text).is_empty())
    };
    let (used, others): (Vec<_>, Vec<_>) = families.into_iter().partition(has_cpus);
    if used.is_empty() {
        let names: Vec<&str> = others.iter().map(|family| family.name.as_str()).collect();
        return Err(NoCounters::NoCores(names.join("; ")));
    }
    Ok(used)
}

fn has_pmu(devices: &Path) -> bool {
    let Ok(devices) = fs::read_dir(devices) else { return false };
    devices.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name == "cpu" || name == "cpu_core" || name == "cpu_atom" || name.starts_with("armv")
    })
}

/// The kernel's number for a PMU.
fn pmu_type(devices: &Path, name: &str) -> Result<u32, NoCounters> {
    let path = devices.join(name).join("type");
    let text =
        linux::text::text_of(&path).map_err(|error| NoCounters::Kernel(format!("{}: {error}", path.display())))?;
    text.trim().parse().map_err(|_| NoCounters::Kernel(format!("{} is no number", path.display())))
}

pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

pub(crate) fn explained(error: &io::Error, target: Target) -> NoCounters {
    if !is_refusal(error) {
        return NoCounters::Kernel(refused(error));
    }
    let found = linux::text::text_of(PARANOID).map_or_else(|_| "not known".to_owned(), |text| text.trim().to_owned());
    NoCounters::NotPermitted { found, needed: if target == Target::System { 0 } else { 2 } }
}

fn refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV) => {
            "the kernel or the hypervisor does not offer the event here".to_owned()
        }
        Some(libc::EMFILE) => {
            "no descriptor is left: each thread takes one for each event; fix: a higher `ulimit -n`".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk_counters::devices::Devices;
    use crate::walk_counters::families;
    use perf_event::events::Software;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpu_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(cpu_list("nonsense"), Vec::<usize>::new());
    }

    /// Alder Lake with both kinds of cores, and with the efficient ones switched off.
    #[test]
    fn cores_that_are_not_in_use_take_no_counts_from_the_others() {
        const CORES: [(&str, &str); 3] =
            [("cpu_core/type", "4\n"), ("cpu_core/cpus", "0-3\n"), ("cpu_atom/type", "10\n")];
        let alder_lake = CpuIdentity { vendor: "GenuineIntel".into(), family: 6, model: 0x97, stepping: 2, part: 0 };
        let found = |name: &str, files: &[(&str, &str)]| {
            let devices = Devices::with(&format!("cores-{name}"), files);
            let used = in_use(Family::of(&alder_lake), &devices.0)?;
            let cpus = |family: &&Family| match places(Target::System, family, &devices.0) {
                Ok(places) => places.len(),
                Err(error) => panic!("{error}"),
            };
            assert!(used.iter().all(|family| pmu_type(&devices.0, family.pmu.as_ref().unwrap()).is_ok()));
            Ok::<_, NoCounters>(used.iter().map(cpus).collect::<Vec<_>>())
        };
        let mut both = found("both", &[&CORES[..], &[("cpu_atom/cpus", "4-5\n")]].concat()).unwrap();
        both.sort_unstable();
        assert_eq!(both, [2, 4]);
        assert_eq!(found("empty", &[&CORES[..], &[("cpu_atom/cpus", "\n")]].concat()).unwrap(), [4]);
        assert_eq!(found("absent", &CORES[..2]).unwrap(), [4]);
        let error = found("none", &[("cpu_atom/cpus", "\n")]).unwrap_err().to_string();
        assert!(error.contains("P cores") && error.contains("E cores"), "{error}");
        let zen = vec![Family::of(&families()[0].examples().next().unwrap())[0]];
        assert_eq!(in_use(zen.clone(), Path::new("/nowhere")).unwrap(), zen, "a CPU with one kind of cores");
    }

    /// The process is counted if there is a PMU; otherwise the reason is reported.
    #[test]
    fn this_process_is_counted_or_the_reason_is_said() {
        match Counting::start(Target::Process(std::process::id() as i32)) {
            Ok(mut counting) => {
                let counts = counting[0].read();
                assert!(counts.cycles.counted.is_some_and(|counted| counted.enabled > 0), "{counts:?}");
            }
            Err(error) => {
                assert!(error.to_string().contains("; needed: ") || error.to_string().contains("; fix: "), "{error}")
            }
        }
    }

    /// A software event, since there may be no PMU: the faults of a child belong to another process.
    #[test]
    fn children_of_a_process_are_not_its_own() {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let thread = Place::Thread(thread.file_name().unwrap().to_str().unwrap().parse().unwrap());
        let open = |threads_only| {
            let mut scope = Scope { with_kernel: true, threads_only };
            let counter = scope.settle(thread, |scope| builder(Software::PAGE_FAULTS, thread, scope).build());
            Ok::<_, io::Error>((counter?, scope.threads_only))
        };
        // The kernel may not permit it.
        let (Ok((mut with_children, _)), Ok((mut alone, threads_only))) = (open(false), open(true)) else { return };
        assert!(std::process::Command::new("true").status().unwrap().success());
        let (alone, with_children) = (alone.read().unwrap(), with_children.read().unwrap());
        assert_eq!(with_children > alone + 10, threads_only, "{with_children} faults, {alone} without children");
    }

    #[test]
    fn a_kernel_that_cannot_leave_children_out_counts_them_and_says_so() {
        let (process, place) = (Scope::of(Target::Process(1)), Place::Thread(1));
        assert!(process.threads_only && !Scope::of(Target::ProcessWithChildren(1)).threads_only);
        assert!(!Scope::of(Target::Children).threads_only && !Scope::of(Target::System).threads_only);
        let settled = |refuses: &dyn Fn(Scope) -> Option<io::Error>| {
            let mut scope = process;
            let result = scope.settle(place, |scope| refuses(scope).map_or(Ok(()), Err));
            (scope.with_kernel, scope.threads_only, result.is_ok())
        };
        assert_eq!(settled(&|_| None), (true, true, true));
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let errors: [fn() -> io::Error; 3] =
            [unsupported, || io::Error::from_raw_os_error(libc::EINVAL), || io::Error::from_raw_os_error(libc::E2BIG)];
        for error in errors {
            assert_eq!(settled(&|scope| scope.threads_only.then(error)), (true, false, true));
            assert!(!settled(&|_| Some(error())).2, "the reason is another one");
        }
        let refused = || io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(settled(&|scope| scope.with_kernel.then(refused)), (false, true, true));
        let both = |scope: Scope| match scope.with_kernel {
            true => Some(refused()),
            false => scope.threads_only.then(unsupported),
        };
        assert_eq!(settled(&both), (false, false, true));
        assert_eq!(process.instead(&refused(), Place::Cpu(0)), None);
    }

    #[test]
    fn a_refusal_names_the_setting_and_the_command() {
        let error = explained(&io::Error::from_raw_os_error(libc::EACCES), Target::System);
        assert!(error.to_string().contains("sysctl kernel.perf_event_paranoid=0"), "{error}");
        let error = explained(&io::Error::from_raw_os_error(libc::ENOENT), Target::Children);
        assert!(error.to_string().contains("does not offer"), "{error}");
    }
}
