//! Formats pools, plans and results of reservations.

use super::number::counted;
use super::table::{align_right, table};
use super::unanswered;
use crate::commands::pool::needed::Needed;
use address_space::{PageSize, agreeing, format_bytes};
use lift_plan::ThpMode;
use pools::{
    BootKind, BootMachine, Demoted, GivenBack, KeptFor, KernelArguments, Overcommitted, PoolNeed, PoolRequest,
    PoolView, PoolsView, Released, ReserveOutcome,
};
use process_view::printable;
use std::ffi::OsString;

/// The advice about Kubernetes.
pub const KUBELET: &str =
    "note: the kubelet counts huge pages when it starts; fix: `systemctl restart kubelet` after the pool has changed";
/// The purpose of memory that is set aside.
const ASIDE: &str = "which sets memory aside from which `pagelift pool reserve` gets them later, and which serves movable memory until then";
/// The remaining steps after such a file was written.
pub const SET_ASIDE: &str = "then: `update-grub` and a reboot; after it `pagelift pool reserve` takes the pages, or at each boot \
                             the unit of `pagelift pool plan --install systemd --name` with another name";
/// The remaining steps after files were removed.
pub const UNINSTALLED: &str = "pages that are reserved now stay until `pagelift pool release` (`--record NAME` for those that a \
                               unit has added) or a reboot; after a fragment of GRUB: update-grub";

/// Everything that `pool show` shows.
pub fn view(view: &PoolsView) -> String {
    let mut text = if view.pools.is_empty() {
        "This kernel has no pools of huge pages; needed: CONFIG_HUGETLBFS\n".to_owned()
    } else {
        format!("Pools, in pages\n{}\n", pools_table(&view.pools))
    };
    text += &users(view);
    text += &limits(view);
    text += &memory(view);
    text
}

fn pools_table(pools: &[PoolView]) -> crate::text::table::Table {
    let headings =
        ["size", "node", "total", "free", "reserved", "available", "surplus", "overcommit left", "demotes to"];
    let mut table = table(&headings);
    for pool in pools {
        let counts = &pool.counts;
        let numbers = [counts.total, counts.free, counts.reserved, pool.available, counts.surplus, pool.headroom];
        let mut row = vec![counts.size.to_string(), "all".to_owned()];
        row.extend(numbers.iter().map(u64::to_string));
        row.push(counts.demotes_to.map_or_else(|| "-".to_owned(), |size| size.to_string()));
        table.add_row(row);
        // The kernel counts promised pages for the whole machine only.
        for node in counts.nodes.iter().filter(|_| counts.nodes.len() > 1) {
            let row = ["", &node.node.to_string(), &node.total.to_string(), &node.free.to_string()].map(str::to_owned);
            table.add_row(row.into_iter().chain([
                "-".into(),
                "-".into(),
                node.surplus.to_string(),
                "-".into(),
                "-".into(),
            ]));
        }
    }
    (2..8).for_each(|column| align_right(&mut table, column));
    table
}

fn users(view: &PoolsView) -> String {
    let mut text = String::new();
    let mut table = table(&["process", "pages", "size", "what"]);
    for user in &view.users.processes {
        let process = format!("{}[{}]", user.program, user.pid);
        table.add_row([process, user.size.pages_for(user.bytes).to_string(), user.size.to_string(), user.what.clone()]);
    }
    for file in &view.users.files {
        let path = printable(&file.path.display().to_string());
        let path = file.pid.map_or(path.clone(), |pid| format!("{path}, in the mount namespace of process {pid}"));
        table.add_row(["(file)".to_owned(), file.size.pages_for(file.bytes).to_string(), file.size.to_string(), path]);
    }
    align_right(&mut table, 1);
    if table.row_count() > 0 {
        text += &format!("\nUsed by\n{table}\n");
    }
    for pool in view.pools.iter().filter(|pool| pool.unexplained > 0) {
        let (pages, size) = (pool.unexplained, pool.counts.size);
        text += &format!(
            "{pages} x {size} more have users that are not visible here: unattached System V segments, open but \
             deleted files, or other IPC namespaces\n"
        );
        for segment in view.users.unattached.iter().filter(|segment| segment.may_lie_on(size)) {
            text += &format!(
                "perhaps System V segment {} (key 0x{:08x}, user {}, {}), which no process has attached; the kernel \
                 does not report its pages; `ipcrm -m {}` removes it\n",
                segment.id,
                segment.key,
                segment.uid,
                format_bytes(segment.bytes),
                segment.id
            );
        }
    }
    text += &unanswered::not_permitted(view.users.not_permitted, "pool show");
    text + &unanswered::notes(&view.users.unanswered)
}

fn limits(view: &PoolsView) -> String {
    let mut text = String::new();
    for limit in &view.cgroup.hugetlb {
        let pages = limit.left / limit.size.bytes();
        text += &format!("  {pages} x {} left below {}\n", limit.size, limit.file);
    }
    if let Some((left, directory)) = &view.cgroup.memory {
        text += &format!("  {} of memory left below the limit of {directory}\n", format_bytes(*left));
    }
    if text.is_empty() { text } else { format!("\nLimits of this cgroup\n{text}") }
}

fn memory(view: &PoolsView) -> String {
    let memory = &view.memory;
    let mut text =
        format!("\nMemory: {} of {} available\n", format_bytes(memory.available), format_bytes(memory.total));
    for free in &memory.free {
        let at_once: Vec<_> = free.at_once.iter().map(|(size, pages)| format!("{pages} x {size}")).collect();
        let at_once =
            if at_once.is_empty() { String::new() } else { format!(", including {} in one piece", at_once.join(", ")) };
        text += &format!("  node {}: {} free{at_once}\n", free.node, format_bytes(free.bytes));
    }
    if let Some(cma) = &view.cma {
        let parameter = cma.for_huge_pages.as_ref().map_or_else(String::new, |value| format!(", hugetlb_cma={value}"));
        text +=
            &format!("  set aside (CMA): {} of {} free{parameter}\n", format_bytes(cma.free), format_bytes(cma.total));
    }
    text += &format!(
        "\nTransparent huge pages in use: anonymous {}, tmpfs {}, files {}\n",
        format_bytes(memory.anonymous_huge),
        format_bytes(memory.shmem_huge),
        format_bytes(memory.file_huge)
    );
    for mode in [ThpMode::Always, ThpMode::Madvise, ThpMode::Never] {
        let of_mode = view.thp.iter().filter(|thp| thp.mode == mode);
        let sizes: Vec<_> = of_mode
            .map(|thp| match thp.in_use.filter(|&pages| pages > 0) {
                Some(pages) => format!("{} ({pages} in use)", thp.size),
                None => thp.size.to_string(),
            })
            .collect();
        let word = match mode {
            ThpMode::Always => "always",
            ThpMode::Madvise => "madvise",
            _ => "never",
        };
        if !sizes.is_empty() {
            text += &format!("  {word}: {}\n", sizes.join(", "));
        }
    }
    text
}

/// A plan to be shown.
pub struct ShownPlan<'a> {
    /// The program that needs the pages.
    pub needed: &'a Needed,
    /// The pages.
    pub needs: &'a [PoolNeed],
    /// The words that ask for the plan again.
    pub words: &'a str,
    /// Their part that a lift needs, too.
    pub policy: &'a str,
    /// The command, if it is for one.
    pub command: &'a [OsString],
    /// True if the plan contains only the needs of the command.
    pub only_command: bool,
    /// The kernel's parameters that reserve them.
    pub arguments: KernelArguments,
    /// The one that sets memory aside for gigantic pages.
    pub cma: Option<KernelArguments>,
    /// The machine that reads them.
    pub machine: &'a BootMachine,
}

/// Needed and available pages, and the commands.
pub fn plan(plan: &ShownPlan<'_>) -> String {
    let name = printable(&plan.needed.name);
    let mut text = String::new();
    if plan.needs.is_empty() {
        text += &format!("{name} takes no pool pages: the memory to lift contains no whole huge page\n");
    } else {
        text += &format!("{name}: pages of the pools\n\n{}\n", needs_table(plan.needs));
        text += &commands(plan);
    }
    plan.needed.notes.iter().for_each(|note| text += &format!("note: {}\n", printable(note)));
    text
}

fn needs_table(needs: &[PoolNeed]) -> crate::text::table::Table {
    let mut table = table(&["size", "node", "needed", "available", "missing", "overcommit left"]);
    for need in needs {
        let numbers = |numbers: [u64; 3]| numbers.map(|number| number.to_string());
        let row =
            [vec![need.size.to_string(), "all".into()], numbers([need.pages, need.available, need.missing]).into()];
        table.add_row(row.concat().into_iter().chain([need.headroom.to_string()]));
        for node in &need.nodes {
            let row = [
                vec![String::new(), node.node.to_string()],
                numbers([node.pages, node.available, node.missing]).into(),
            ];
            table.add_row(row.concat().into_iter().chain([String::new()]));
        }
    }
    (2..6).for_each(|column| align_right(&mut table, column));
    table
}

fn commands(plan: &ShownPlan<'_>) -> String {
    let mut text = String::new();
    for need in plan.needs.iter().filter(|need| !need.has_pool) {
        text += &format!(
            "This kernel has no pool of pages of {}; `pagelift pool show` lists those there are.\n",
            need.size
        );
    }
    let requests: Vec<_> = plan.needs.iter().flat_map(PoolNeed::requests).collect();
    let words = requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let missing: u64 = plan.needs.iter().map(|need| need.missing).sum();
    text += &match missing {
        0 => "\nAll pages are there.\n".to_owned(),
        _ => format!("\nNow, as root\n  pagelift pool reserve {words}\n"),
    };
    if !plan.command.is_empty() {
        let command = foreign_text::words(plan.command);
        text += &format!("Then\n  pagelift run --pages hugetlb{} -- {command}\n", plan.policy);
        if plan.only_command {
            text += &format!(
                "Or both, and the pages back at its end\n  pagelift pool reserve --for{} -- {command}\n",
                plan.policy
            );
        }
    } else if let Some(pid) = plan.needed.pid {
        text += &format!("Then\n  pagelift attach --pages hugetlb{} {pid}\n", plan.policy);
    }
    text += "\nTo have them after every boot, as root, one of\n";
    let install = |how: &str, what: &str| format!("  pagelift pool plan --install {how}{}\n      {what}\n", plan.words);
    text += &install("systemd", "a unit that reserves them on each node, early in the boot");
    let is_plain = requests.iter().all(|request| request.node.is_none()) && plan.needs.len() == 1 && plan.cma.is_none();
    if is_plain {
        text += &install("sysctl", "/etc/sysctl.d: vm.nr_hugepages, where that is the kernel's default size");
    }
    let note = plan.arguments.note(plan.machine);
    match &note {
        None => {
            text += &install("grub", &format!("the kernel's command line: {}; then update-grub", plan.arguments.text))
        }
        Some(why) => text += &format!("  (not by the kernel's command line: {}: {why})\n", plan.arguments.text),
    }
    if let Some(cma) = &plan.cma {
        text += "Gigantic pages are sure to be had at boot only, by the kernel's command line; or\n";
        text += &match cma.note(plan.machine) {
            None => install("grub --cma", &format!("{}, {ASIDE}", cma.text)),
            Some(why) => format!("  {}, {ASIDE}\n      (not by --install: {why})\n", cma.text),
        };
    }
    text + "`--print` in place of `--install` shows the file; `pagelift pool plan --uninstall` removes it.\n"
}

/// The remaining steps after a file was written.
pub fn installed(kind: BootKind) -> &'static str {
    match kind {
        BootKind::Systemd => {
            "the pages are reserved at the next boot; now: `pagelift pool reserve`, with the same pages, or `systemctl start` of the \
             unit, which adds them in any case"
        }
        BootKind::Sysctl => "the pages are reserved at the next boot; now: `sysctl --system`",
        BootKind::Grub => {
            "then: `update-grub` and a reboot; where GRUB reads no /etc/default/grub.d (Fedora): \
             `grubby --update-kernel=ALL --args=...` with the parameters of --print grub"
        }
    }
}

fn on_node(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on node {node}"))
}

/// The outcome of a request.
pub fn outcome(outcome: &ReserveOutcome) -> String {
    let (size, place) = (outcome.request.size, on_node(outcome.request.node));
    let mut text = if outcome.undone && outcome.added < outcome.wanted {
        let wanted = counted(outcome.wanted, "missing page");
        format!("{size}{place}: got {} of {wanted}; the pool is as before", outcome.added)
    } else if outcome.undone {
        format!("{size}{place}: undone, since another request was not met")
    } else if outcome.wanted == 0 && outcome.held > 0 {
        format!("{size}{place}: added before: {}", counted(outcome.request.pages, "page"))
    } else if outcome.wanted == 0 {
        format!("{size}{place}: available already: {}", counted(outcome.available_before, "page"))
    } else {
        let held = match outcome.held {
            0 => String::new(),
            held => format!(" beside {held} that were added before"),
        };
        format!(
            "{size}{place}: added {} of {}{held}; {} available now, {} before",
            outcome.added,
            counted(outcome.wanted, "page"),
            outcome.available,
            outcome.available_before
        )
    };
    if outcome.changes.len() > 1 {
        let shares: Vec<_> =
            outcome.changes.iter().map(|change| format!("{}{}", change.pages, on_node(change.node))).collect();
        text += &format!(" ({})", shares.join(", "));
    }
    for obstacle in &outcome.obstacles {
        text += &format!("\n  in the way: {obstacle}");
    }
    if !outcome.is_met() && !outcome.obstacles.is_empty() {
        text += &format!(
            "\n  fix: at boot memory is whole: `pagelift pool plan --install systemd {}`, for pages of 1G `--install grub`",
            outcome.request
        );
    }
    text
}

/// The pages that stay although a request was not met, and the command that releases them; `None` if none stay.
pub fn kept(outcome: &ReserveOutcome, record: Option<&str>) -> Option<String> {
    let keeps = !outcome.is_met() && !outcome.undone && outcome.added > 0;
    let pages = counted(outcome.added, "page");
    let release = match record {
        Some(name) => format!("--record {name}"),
        None => PoolRequest { pages: outcome.added, ..outcome.request }.to_string(),
    };
    keeps.then(|| {
        format!("  {pages} kept: `pagelift pool release {release}` releases them; `--all-or-nothing` keeps none")
    })
}

/// The released pages.
pub fn released(released: &Released) -> String {
    let Released { size, pages, kept, recorded, left, node } = released;
    let place = on_node(*node);
    let mut text = format!("{size}{place}: released {}; {left} left in the pool", counted(*pages, "page"));
    if *kept > 0 {
        text += &format!(
            "; {kept} of the requested pages remain: in use, reserved, or missing (`pagelift pool show` lists the users)"
        );
    }
    for KeptFor { name, holder, pages } in recorded {
        let stay = if *pages == 1 { "stays" } else { "stay" };
        let pages = format!("{} {stay}", counted(*pages, "free page"));
        text += &match holder {
            Some(pid) => format!("; {pages} for process {pid}, which releases its pages when it ends"),
            None => {
                format!("; {pages} for the record {name} (`pagelift pool release --record {name}` releases its pages)")
            }
        };
    }
    text
}

/// The pages given back.
pub fn given_back(given: &GivenBack) -> String {
    let place = on_node(given.change.node);
    let mut text =
        format!("{}{place}: gave back {} of {}", given.change.size, given.freed, counted(given.change.pages, "page"));
    if given.freed < given.change.pages {
        text += "; the others are in use, and follow when they are freed";
    }
    text
}

/// The demoted pages.
pub fn demoted(demoted: &Demoted) -> String {
    let Demoted { from, pages, to, gained } = demoted;
    format!("{from}: split {} into {} of {to}", counted(*pages, "page"), counted(*gained, "page"))
}

/// The new limit, and its meaning.
pub fn overcommitted(set: &Overcommitted) -> String {
    let Overcommitted { size, before, now, surplus, available } = set;
    let bytes = format_bytes(PageSize::bytes(*size).saturating_mul(*now));
    let exist = if *surplus == 1 { "exists" } else { "exist" };
    let surplus_pages = agreeing(*now, "page");
    let first =
        format!("{size}: at most {now} surplus {surplus_pages} ({bytes}), {before} before; {surplus} {exist} now");
    let available = match available {
        1 => "the 1 page that the pool has available".to_owned(),
        available => format!("the {available} pages that the pool has available"),
    };
    match now {
        0 => format!("{first}\n  programs get {available}, and no more"),
        _ => format!(
            "{first}\n  programs get {available} first, then pages that the kernel \
             allocates when they are mapped and takes back when they are freed. That can fail where memory is in pieces: \
             enough for what starts once a month; what must always start needs `pagelift pool reserve`. It lasts until the \
             next boot."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_stay_after_a_shortage_have_their_release() {
        let mut found = ReserveOutcome {
            request: "2M:99@1".parse().unwrap(),
            available_before: 0,
            available: 7,
            held: 0,
            wanted: 99,
            added: 7,
            changes: Vec::new(),
            obstacles: Vec::new(),
            undone: false,
        };
        let text = |request: &str| {
            format!("  7 pages kept: `pagelift pool release {request}` releases them; `--all-or-nothing` keeps none")
        };
        assert_eq!(kept(&found, None), Some(text("2M:7@1")));
        assert_eq!(kept(&found, Some("db")), Some(text("--record db")));
        found.undone = true;
        assert_eq!(kept(&found, None), None, "all is undone");
        (found.undone, found.added) = (false, 99);
        assert_eq!(kept(&found, None), None, "the request is met");
    }

    #[test]
    fn recorded_pages_that_stay_are_named() {
        let kept = |name: &str, holder, pages| KeptFor { name: name.to_owned(), holder, pages };
        let recorded = vec![kept("db", None, 64), kept("held.7.9", Some(7), 1)];
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!(
            released(&Released { size, node: None, pages: 1, kept: 0, recorded, left: 65 }),
            "2 MiB: released 1 page; 65 left in the pool; 64 free pages stay for the record db (`pagelift pool release \
             --record db` releases its pages); 1 free page stays for process 7, which releases its pages when it ends"
        );
    }
}
