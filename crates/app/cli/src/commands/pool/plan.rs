//! `pagelift pool plan`.

use super::needed::{Needed, by_command, by_target, pool_policy, this_program};
use super::nodes::placed;
use crate::arguments::heap::{HeapArgs, size_word};
use crate::arguments::policy::{PolicyArgs, words};
use crate::commands::service::systemd;
use crate::output::Output;
use crate::root_program;
use crate::say;
use crate::text::pool as text;
use address_space::PageSize;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use foreign_text::{quoted, quoted_path};
use lift_plan::{Numa, Policy};
use machine_facts::{Files, System, allowed_nodes, default_hugetlb, free_blocks, node_numbers, pool_counts};
use options::HeapPages;
use pools::{BootFile, BootKind, BootMachine, Installation, PoolNeed, PoolRequest, Uninstalled, needs_of};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `pagelift pool plan`.
#[derive(Args, Clone)]
#[command(
    after_help = "Only the pages that `pagelift run --pages hugetlb` takes are counted, and with --heap those of its heap. Add pages that a \
program itself takes from the pool as SIZE:COUNT.\n\nCMD is ended at its entry, before it starts other programs, so there is no --only. \
For make, gcc or another driver, plan for the program that does the work, by its file or a process of it, as many times as it runs at once: \
pagelift pool plan -- \"$(gcc -print-prog-name=cc1plus)\", pagelift pool plan cc1plus."
)]
pub struct PlanArgs {
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    heap: HeapArgs,
    /// Place all pages on this NUMA node [default: the nodes from which the lift takes them: by --numa, otherwise
    /// evenly on the nodes that the program's cpuset and memory policy allow].
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,
    /// Reserve the pages at every boot.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with_all = ["print", "uninstall"])]
    install: Option<BootArg>,
    /// With --install grub or --print grub: set memory aside for gigantic pages (hugetlb_cma=) instead of reserving them at
    /// boot. Movable memory uses it until `pagelift pool reserve` takes the pages.
    #[arg(long)]
    cma: bool,
    /// Only print the text that --install would write.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "uninstall")]
    print: Option<BootArg>,
    /// Only remove the files that --install has written.
    #[arg(long, conflicts_with_all = ["target", "command"])]
    uninstall: bool,
    /// Name of the files that --install writes, so that several programs can have separate files.
    #[arg(long, value_name = "NAME", default_value = "main")]
    name: String,
    /// Root folder for --install and --uninstall, of an image for example.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON.
    #[arg(long, conflicts_with_all = ["install", "print", "uninstall"])]
    json: bool,
    /// Processes by number or by the name of their program, ELF files, or pages such as 2M:64@0; their needs are added up.
    #[arg(value_name = "PID|NAME|FILE|SIZE:COUNT")]
    target: Vec<OsString>,
    /// A program and its arguments; it is started up to its entry point and ended there.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// `--install`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootArg {
    /// A unit that reserves them on each node, early in the boot.
    Systemd,
    /// A file in sysctl.d: pages of the default size, spread over all nodes.
    Sysctl,
    /// The kernel's command line, by a fragment in /etc/default/grub.d (Debian, Ubuntu).
    Grub,
}

impl From<BootArg> for BootKind {
    fn from(arg: BootArg) -> Self {
        match arg {
            BootArg::Systemd => Self::Systemd,
            BootArg::Sysctl => Self::Sysctl,
            BootArg::Grub => Self::Grub,
        }
    }
}

/// Prints the plan, or makes it last.
pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let out = Output::Standard;
    let installation = Installation::new(&args.root, &args.name)?;
    if args.cma && args.install.or(args.print).is_none() {
        bail!("--cma belongs to a file; fix: --install grub --cma, or --print grub --cma");
    }
    if args.uninstall {
        let Uninstalled { removed, kept } = installation.uninstall()?;
        kept.iter().for_each(|kept| say!("pagelift: note: {kept}"));
        if removed.is_empty() {
            bail!("found no installed files named {} under {}", args.name, args.root.display());
        }
        removed.iter().try_for_each(|path| writeln!(out, "removed {}", path.display()))?;
        reload_systemd(args, &removed);
        writeln!(out, "{}", text::UNINSTALLED)?;
        return Ok(());
    }
    let needed = needed(args)?;
    let needs = needs_of(&needed.requests, &pool_counts(&System), &allowed_nodes(&System, "/proc/self"));
    let requests: Vec<_> = needs.iter().flat_map(PoolNeed::requests).collect();
    if let Some(kind) = args.print.or(args.install) {
        if requests.is_empty() {
            bail!("{} needs no pages of a pool", needed.name);
        }
        let file = boot_file(args, kind, &requests)?;
        if args.print.is_some() {
            out.print_whole(&file.text)?;
            return Ok(());
        }
        return install(args, kind, &installation, &requests, &file);
    }
    if args.json {
        let machine = boot_machine(args);
        let arguments = pools::kernel_arguments(&requests, &machine);
        let notes: Vec<_> = needed.notes.iter().cloned().chain(arguments.note(&machine)).collect();
        let document = serde_json::json!({
            "format": "pagelift-pool-plan", "version": 1, "target": needed.name, "needs": needs,
            "kernel_arguments": arguments.text, "notes": notes,
        });
        out.print_json(&document)?;
        return Ok(());
    }
    let (words, policy) = (plan_words(args), policy_words(args) + &heap_words(args));
    let machine = boot_machine(args);
    let shown = text::ShownPlan {
        needed: &needed,
        needs: &needs,
        words: &words,
        policy: &policy,
        command: &args.command,
        only_command: args.target.is_empty() && args.heap.words().is_empty(),
        arguments: pools::kernel_arguments(&requests, &machine),
        cma: pools::cma_arguments(&requests, &machine, is_gigantic),
        machine: &machine,
    };
    write!(out, "{}", text::plan(&shown))?;
    Ok(())
}

fn needed(args: &PlanArgs) -> anyhow::Result<Needed> {
    let policy = pool_policy(args.policy.policy());
    if let (Some(node), Numa::Node(chosen)) = (args.node, policy.numa)
        && node != chosen
    {
        bail!(
            "found --node {node} with --numa node={chosen}, which takes no page there; fix: --node {chosen}, or no --node"
        );
    }
    let mut all = Needed { name: String::new(), requests: Vec::new(), notes: Vec::new(), pid: None };
    let mut names = Vec::new();
    let mut take = |mut needed: Needed| {
        needed.requests.iter_mut().for_each(|request| request.node = request.node.or(args.node));
        let placed = placed(&needed.requests, policy.numa, needed.pid)?;
        names.push(needed.name);
        all.requests.extend(placed.requests);
        let notes: Vec<_> = needed.notes.into_iter().chain(placed.note).collect();
        all.notes.extend(notes.into_iter().filter(|note| !all.notes.contains(note)).collect::<Vec<_>>());
        all.pid = needed.pid.or(all.pid);
        anyhow::Ok(())
    };
    for target in &args.target {
        match target.to_str().filter(|text| text.contains(':') && !Path::new(text).exists()) {
            Some(text) => {
                let request: PoolRequest = text.parse()?;
                let (name, notes) = (request.to_string(), Vec::new());
                take(Needed { name, requests: vec![request], notes, pid: None })?;
            }
            None => {
                let needed = by_target(target, &policy)?;
                if let (true, Some(pid)) = (args.command.is_empty(), needed.pid) {
                    refuse_running_heap(&args.heap, &needed.name, pid)?;
                }
                take(needed)?;
            }
        }
    }
    if !args.command.is_empty() {
        take(by_command(&args.command, &policy)?)?;
    }
    if let Some(request) = of_heap(&args.heap)? {
        take(Needed { name: "its heap".to_owned(), requests: vec![request], notes: Vec::new(), pid: None })?;
    }
    if names.is_empty() {
        bail!("found nothing to plan for; needed: `-- CMD`, a process, a file, or pages such as 2M:64");
    }
    all.name = names.join(", ");
    Ok(all)
}

/// The pages of a heap that `run --heap SIZE --heap-reserve BYTES` takes.
fn of_heap(heap: &HeapArgs) -> anyhow::Result<Option<PoolRequest>> {
    match (heap.heap, heap.heap_reserve) {
        (HeapPages::Off, None) => Ok(None),
        (HeapPages::Off, Some(_)) => {
            bail!("found --heap-reserve alone; needed: the size of its pages; fix: --heap=2M beside it")
        }
        (HeapPages::Pool(size), Some(bytes)) => {
            Ok(Some(PoolRequest { size, pages: size.pages_for(bytes), node: None }))
        }
        (HeapPages::Pool(size), None) => bail!(
            "found --heap={} without the bytes of the heap, which takes half of the free pages then; fix: --heap-reserve \
             SIZE beside it",
            size.word()
        ),
        (HeapPages::Auto | HeapPages::Thp, _) => bail!(
            "found --heap=auto or --heap=thp, which use transparent huge pages and need no pool; needed: a heap on pool pages; \
             fix: --heap=2M --heap-reserve SIZE, or no --heap"
        ),
    }
}

/// Refuses a heap on pool pages for a running process: only a start puts it there.
fn refuse_running_heap(heap: &HeapArgs, name: &str, pid: i32) -> anyhow::Result<()> {
    let HeapPages::Pool(size) = heap.heap else { return Ok(()) };
    let reserve = heap.heap_reserve.map_or_else(|| "SIZE".to_owned(), size_word);
    bail!(
        "found --heap={} for {name}, which runs: its heap cannot take pool pages; fix: `pagelift pool plan --heap={} \
         --heap-reserve {reserve} -- CMD` for its next start, or `pagelift attach --heap=thp {pid}`",
        size.word(),
        size.word()
    )
}

fn heap_words(args: &PlanArgs) -> String {
    args.heap.words().iter().map(|word| format!(" {}", quoted(word))).collect()
}

/// The words of the policy that differ from the default.
fn policy_words(args: &PlanArgs) -> String {
    let usual = words(&Policy::default());
    let own = words(&args.policy.policy());
    own.into_iter().filter(|word| !usual.contains(word)).map(|word| format!(" {}", quoted(word))).collect()
}

/// The words that ask for this plan again.
fn plan_words(args: &PlanArgs) -> String {
    let mut words = policy_words(args) + &heap_words(args);
    if let Some(node) = args.node {
        words += &format!(" --node {node}");
    }
    for target in &args.target {
        words += &format!(" {}", quoted(target));
    }
    if !args.command.is_empty() {
        words += " --";
        args.command.iter().for_each(|word| words += &format!(" {}", quoted(word)));
    }
    words
}

fn boot_file(args: &PlanArgs, kind: BootArg, requests: &[PoolRequest]) -> anyhow::Result<BootFile> {
    let machine = boot_machine(args);
    let file = match (args.cma, kind) {
        (false, _) => BootFile::new(kind.into(), &args.name, requests, &program_at_boot(&args.root)?, &machine),
        (true, BootArg::Grub) => BootFile::with_cma(&args.name, requests, &machine, is_gigantic),
        (true, _) => bail!("--cma sets memory aside by the kernel's command line; fix: --install grub --cma"),
    };
    file.map_err(anyhow::Error::msg)
}

/// This machine; for another machine whose image is written only the size is assumed to equal this one's.
fn boot_machine(args: &PlanArgs) -> BootMachine {
    let default = default_hugetlb(&System.text("/proc/meminfo").unwrap_or_default());
    let release = (args.root == Path::new("/")).then(linux::release::kernel_release);
    BootMachine { default, release, nodes: node_numbers(&System) }
}

/// The path of this program at boot: of an image, that in the image.
fn program_at_boot(root: &Path) -> anyhow::Result<String> {
    if root == Path::new("/") {
        return Ok(this_program()?.display().to_string());
    }
    let usual = ["/usr/bin/pagelift", "/usr/local/bin/pagelift"];
    let found = usual.into_iter().find(|path| root.join(&path[1..]).exists());
    if found.is_none() {
        say!("pagelift: note: there is no pagelift in {} yet; needed at boot: {}", root.display(), usual[0]);
    }
    Ok(found.unwrap_or(usual[0]).to_owned())
}

fn install(
    args: &PlanArgs,
    kind: BootArg,
    installation: &Installation,
    requests: &[PoolRequest],
    file: &BootFile,
) -> anyhow::Result<()> {
    let out = Output::Standard;
    let others = installation.found();
    if let Some(other) = others.first() {
        let root = match args.root.as_path() {
            root if root == Path::new("/") => String::new(),
            root => format!(" --root {}", quoted_path(root)),
        };
        bail!(
            "{} reserves pages for the name {} already; fix: `pagelift pool plan --uninstall --name {}{root}` first, or another \
             --name",
            other.display(),
            installation.name(),
            installation.name()
        );
    }
    if args.root == Path::new("/") && BootKind::from(kind) == BootKind::Systemd {
        root_program::check(&this_program()?)?;
    }
    installation.check_others(kind.into(), requests, &boot_machine(args), is_gigantic)?;
    let written = installation.install(file).context("installing")?;
    written.iter().try_for_each(|path| writeln!(out, "wrote {}", path.display()))?;
    reload_systemd(args, &written);
    if BootKind::from(kind) == BootKind::Systemd && args.root == Path::new("/") && !systemd::is_running() {
        say!("pagelift: {}", systemd::WITHOUT);
    }
    writeln!(out, "{}", if args.cma { text::SET_ASIDE } else { text::installed(kind.into()) })?;
    Ok(())
}

/// Has a running systemd read its units again.
fn reload_systemd(args: &PlanArgs, paths: &[PathBuf]) {
    let has_unit = paths.iter().any(|path| path.extension().is_some_and(|extension| extension == "service"));
    if has_unit && args.root == Path::new("/") && systemd::is_running() {
        let reloaded = Command::new("systemctl").arg("daemon-reload").status();
        if !reloaded.is_ok_and(|status| status.success()) {
            say!("pagelift: note: `systemctl daemon-reload` failed; the next boot reads the unit anyway");
        }
    }
}

/// True for pages that are larger than the largest piece of memory that the kernel keeps.
pub fn is_gigantic(size: PageSize) -> bool {
    let largest = free_blocks(&System).iter().map(|free| free.pages_of(size, machine_facts::base_page())).next();
    matches!(largest, Some(None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::PageSize;

    #[test]
    fn the_heap_of_a_running_process_gets_no_pages() {
        let of = |heap, reserve| {
            refuse_running_heap(&HeapArgs { heap, heap_reserve: reserve, heap_allocator: None }, "redis[7]", 7)
        };
        let pool = HeapPages::Pool(PageSize::new(2 << 20).unwrap());
        assert!(of(HeapPages::Off, None).is_ok());
        let expected = |reserve| {
            format!(
                "found --heap=2M for redis[7], which runs: its heap cannot take pool pages; fix: `pagelift pool plan --heap=2M \
                 --heap-reserve {reserve} -- CMD` for its next start, or `pagelift attach --heap=thp 7`"
            )
        };
        assert_eq!(of(pool, Some(128 << 20)).unwrap_err().to_string(), expected("128M"));
        assert_eq!(of(pool, None).unwrap_err().to_string(), expected("SIZE"), "not the fix --heap-reserve alone");
    }

    #[test]
    fn a_heap_needs_the_pages_of_its_reserve() {
        let of = |heap, reserve| of_heap(&HeapArgs { heap, heap_reserve: reserve, heap_allocator: None });
        let pool = HeapPages::Pool(PageSize::new(2 << 20).unwrap());
        let text = |request: Option<PoolRequest>| request.unwrap().to_string();
        assert_eq!(text(of(pool, Some((64 << 20) + 1)).unwrap()), "2M:33");
        assert!(of(HeapPages::Off, None).unwrap().is_none());
        for (heap, reserve) in
            [(HeapPages::Off, Some(1)), (pool, None), (HeapPages::Auto, None), (HeapPages::Thp, Some(1))]
        {
            let error = of(heap, reserve).unwrap_err().to_string();
            assert!(error.contains("fix: --heap"), "{error}");
        }
    }
}
