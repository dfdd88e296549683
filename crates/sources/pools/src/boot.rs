//! Texts of files that are read at boot and make a reservation persistent. Pure.

use crate::PoolRequest;
use crate::request::short_size;
use address_space::PageSize;
use serde::Serialize;
use std::collections::BTreeMap;

/// Which file makes pages last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootKind {
    /// A systemd unit that reserves early in each boot, on each node.
    Systemd,
    /// A file of sysctl.d(5): the kernel's default size, spread over all nodes.
    Sysctl,
    /// A fragment of GRUB's configuration with the kernel's own parameters, the only sure way for gigantic pages.
    Grub,
}

impl BootKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Systemd, Self::Sysctl, Self::Grub];
}

/// A file that is read at boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BootFile {
    /// Path from the root folder, without a slash before it.
    pub path: String,
    /// Its text.
    pub text: String,
    /// A symbolic link that makes the file take effect, and its target.
    pub link: Option<(String, String)>,
}

impl BootFile {
    /// The paths of the file and its link, for any content. `name` distinguishes the reservations of several programs.
    pub(crate) fn paths(kind: BootKind, name: &str) -> (String, Option<String>) {
        match kind {
            BootKind::Systemd => (
                format!("etc/systemd/system/pagelift-pool-{name}.service"),
                Some(format!("etc/systemd/system/sysinit.target.wants/pagelift-pool-{name}.service")),
            ),
            BootKind::Sysctl => (format!("etc/sysctl.d/60-pagelift-pool-{name}.conf"), None),
            BootKind::Grub => (format!("etc/default/grub.d/60-pagelift-pool-{name}.cfg"), None),
        }
    }

    /// The file that reserves `requests`. `program` is the path of `pagelift` at boot.
    ///
    /// # Errors
    /// A request that such a file cannot express, and the kind that can.
    pub fn new(
        kind: BootKind,
        name: &str,
        requests: &[PoolRequest],
        program: &str,
        machine: &BootMachine,
    ) -> Result<Self, String> {
        let (path, link) = Self::paths(kind, name);
        let text = match kind {
            BootKind::Systemd => unit(name, requests, program)?,
            BootKind::Sysctl => sysctl(requests, machine.default)?,
            BootKind::Grub => grub(&kernel_arguments(requests, machine), machine)?,
        };
        Ok(Self { link: link.map(|link| (link, format!("/{path}"))), path, text })
    }

    /// The fragment of GRUB's configuration that sets memory aside for the gigantic pages among `requests`, by
    /// [`cma_arguments`]; it takes the place of the one that reserves them.
    ///
    /// # Errors
    /// No page is gigantic, or the kernel cannot do it.
    pub fn with_cma(
        name: &str,
        requests: &[PoolRequest],
        machine: &BootMachine,
        is_gigantic: impl Fn(PageSize) -> bool,
    ) -> Result<Self, String> {
        let (path, _) = Self::paths(BootKind::Grub, name);
        let arguments = cma_arguments(requests, machine, &is_gigantic).ok_or(
            "hugetlb_cma= sets memory aside for gigantic pages only, found none; fix: 1G:1 for example, or no --cma",
        )?;
        if machine.release.is_some_and(|found| found < CMA) {
            return Err(format!("hugetlb_cma= takes Linux 5.7, found {}; fix: no --cma", machine.found()));
        }
        let others: Vec<_> = requests.iter().filter(|request| !is_gigantic(request.size)).copied().collect();
        let others = kernel_arguments(&others, machine);
        let text =
            [others.text, arguments.text].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        let both = KernelArguments { text, unplaced: others.unplaced.or(arguments.unplaced) };
        Ok(Self { path, text: grub(&both, machine)?, link: None })
    }
}

/// The facts about a machine that decide which files it understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootMachine {
    /// The kernel's default size of pool pages.
    pub default: Option<PageSize>,
    /// Major and minor number of the kernel's release; `None` if it is not known, in an image for example.
    pub release: Option<(u32, u32)>,
    /// Its NUMA nodes.
    pub nodes: Vec<u32>,
}

/// The release since which `hugepages=` and `hugetlb_cma=` name nodes (commits b5389086ad7b and 38e719ab2673, both merged on
/// 6 November 2021, after 5.15). An older kernel reads the number before the colon alone: of `1:64` one page.
const NODES_IN_ARGUMENTS: (u32, u32) = (5, 16);
/// The release since which there is `hugetlb_cma=` (commit cf11e85fc08c).
const CMA: (u32, u32) = (5, 7);

impl BootMachine {
    fn reads_nodes(&self) -> bool {
        self.release.is_none_or(|release| release >= NODES_IN_ARGUMENTS)
    }

    fn found(&self) -> String {
        self.release.map_or_else(|| "an unknown one".to_owned(), |(major, minor)| format!("{major}.{minor}"))
    }

    /// True for numbers that the kernel itself assigns when it spreads their sum over all nodes.
    fn are_spread(&self, by_node: &BTreeMap<Option<u32>, u64>) -> bool {
        let (least, most) = (by_node.values().min(), by_node.values().max());
        by_node.keys().copied().eq(self.nodes.iter().copied().map(Some))
            && least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }
}

/// Parameters of the kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelArguments {
    /// The parameters.
    pub text: String,
    /// A node on which pages were wanted and that the kernel does not read: the parameters name the sum of all nodes.
    pub unplaced: Option<u32>,
}

impl KernelArguments {
    /// The part of the request that they do not express, if any.
    pub fn note(&self, machine: &BootMachine) -> Option<String> {
        let node = self.unplaced?;
        Some(format!(
            "the command line names nodes since Linux 5.16, found {}, which spreads the sum over all nodes; needed: node {node}",
            machine.found()
        ))
    }
}

/// Requests with their pages added up by size and node.
fn summed(requests: &[PoolRequest]) -> BTreeMap<PageSize, BTreeMap<Option<u32>, u64>> {
    let mut sums: BTreeMap<PageSize, BTreeMap<Option<u32>, u64>> = BTreeMap::new();
    for request in requests {
        *sums.entry(request.size).or_default().entry(request.node).or_default() += request.pages;
    }
    sums
}

/// The parameters of the kernel's command line that reserve these pages
/// (`Documentation/admin-guide/kernel-parameters.txt`): `hugepagesz=1G hugepages=0:2,1:2`. All pages of a size are either
/// placed or not; a kernel that reads no nodes gets the sum.
pub fn kernel_arguments(requests: &[PoolRequest], machine: &BootMachine) -> KernelArguments {
    let mut unplaced = None;
    let mut of_size = |(size, by_node): (PageSize, BTreeMap<Option<u32>, u64>)| {
        let value = value_of(&by_node, machine, "", &mut unplaced);
        format!("hugepagesz={} hugepages={value}", short_size(size))
    };
    let text = summed(requests).into_iter().map(&mut of_size).collect::<Vec<_>>().join(" ");
    KernelArguments { text, unplaced }
}

/// The parameter that sets memory aside for gigantic pages and lends it to movable memory until they are reserved while
/// the kernel runs; `None` if `is_gigantic` is false for all requests. With this parameter the kernel takes no gigantic
/// page at boot.
pub fn cma_arguments(
    requests: &[PoolRequest],
    machine: &BootMachine,
    is_gigantic: impl Fn(PageSize) -> bool,
) -> Option<KernelArguments> {
    let mut mib_by_node: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for request in requests.iter().filter(|request| is_gigantic(request.size)) {
        *mib_by_node.entry(request.node).or_default() += request.bytes() >> 20;
    }
    if mib_by_node.is_empty() {
        return None;
    }
    let mut unplaced = None;
    let value = value_of(&mib_by_node, machine, "M", &mut unplaced);
    Some(KernelArguments { text: format!("hugetlb_cma={value}"), unplaced })
}

/// `0:2,1:2`, or the sum if not all pages are placed or the kernel does not read that form.
fn value_of(
    by_node: &BTreeMap<Option<u32>, u64>,
    machine: &BootMachine,
    unit: &str,
    unplaced: &mut Option<u32>,
) -> String {
    let placed: Vec<_> =
        by_node.iter().filter_map(|(node, number)| Some(format!("{}:{number}{unit}", (*node)?))).collect();
    if placed.len() == by_node.len() && machine.reads_nodes() {
        return placed.join(",");
    }
    if !machine.reads_nodes() && !machine.are_spread(by_node) {
        *unplaced = by_node.keys().flatten().next().copied().or(*unplaced);
    }
    format!("{}{unit}", by_node.values().sum::<u64>())
}

fn words(requests: &[PoolRequest]) -> String {
    requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Runs before sysinit.target, when memory is still in large pieces, and after sysctl(8). Pages are added, so that
/// several such units, and the reservations of the kernel's command line, do not count each other's pages as their own.
/// A record identifies a unit's own pages: a start after an incomplete one adds the others, and a stop gives back pages
/// in use, too, which the next start takes again. Without a record (it was damaged, or an earlier Pagelift that wrote
/// none started the unit) a stop gives back the pages that it names.
fn unit(name: &str, requests: &[PoolRequest], program: &str) -> Result<String, String> {
    // A specifier, a quote or a blank would mean something else to systemd (systemd.service(5)).
    if program.contains(|c: char| c.is_whitespace() || c.is_control() || "%\"'\\$;".contains(c)) {
        return Err(format!(
            "the path {program} cannot be used in a unit; needed: a path without blanks and special characters"
        ));
    }
    let words = words(requests);
    Ok(format!(
        "[Unit]\n\
         Description=Huge pages in the pool: {words}\n\
         Documentation=man:pagelift-pool(1)\n\
         ConditionPathExists=/sys/kernel/mm/hugepages\n\
         RequiresMountsFor={program}\n\
         ConditionFileIsExecutable={program}\n\
         DefaultDependencies=no\n\
         After=systemd-sysctl.service\n\
         Before=sysinit.target kubelet.service\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         TimeoutStartSec=10min\n\
         RemainAfterExit=yes\n\
         ExecStart={program} pool reserve --add --record {name} {words}\n\
         ExecStop={program} pool release --record {name} {words}\n\
         \n\
         [Install]\n\
         WantedBy=sysinit.target\n"
    ))
}

fn sysctl(requests: &[PoolRequest], default: Option<PageSize>) -> Result<String, String> {
    let instead = "fix: --install systemd, or --install grub";
    if let Some(request) = requests.iter().find(|request| Some(request.size) != default) {
        let usual = default.map_or_else(|| "none".to_owned(), short_size);
        return Err(format!(
            "sysctl sets the pool of the default size only (found {usual}, needed {}); {instead}",
            short_size(request.size)
        ));
    }
    if let Some(node) = requests.iter().find_map(|request| request.node) {
        return Err(format!("sysctl spreads pages over all nodes, needed: node {node}; {instead}"));
    }
    let pages: u64 = requests.iter().map(|request| request.pages).sum();
    Ok(format!(
        "# All pages of the pool, not only these: the last file that sets it counts.\nvm.nr_hugepages = {pages}\n"
    ))
}

fn grub(arguments: &KernelArguments, machine: &BootMachine) -> Result<String, String> {
    if let Some(why) = arguments.note(machine) {
        return Err(format!("{why}; fix: --install systemd, which reserves on each node, or a kernel from 5.16 on"));
    }
    Ok(format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {}\"\n", arguments.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(texts: &[&str]) -> Vec<PoolRequest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A machine with two nodes.
    fn linux(major: u32, minor: u32) -> BootMachine {
        BootMachine { default: PageSize::new(2 << 20).ok(), release: Some((major, minor)), nodes: vec![0, 1] }
    }

    fn gigantic(size: PageSize) -> bool {
        size.bytes() >= 1 << 30
    }

    #[test]
    fn the_kernel_reads_sizes_before_their_numbers() {
        let arguments = |texts: &[&str]| kernel_arguments(&requests(texts), &linux(5, 16)).text;
        assert_eq!(arguments(&["2M:64"]), "hugepagesz=2M hugepages=64");
        let placed = ["1G:2@0", "2M:64", "1G:2@1", "1G:1@0"];
        assert_eq!(arguments(&placed), "hugepagesz=2M hugepages=64 hugepagesz=1G hugepages=0:3,1:2");
        // The kernel's grammar cannot place only some pages.
        assert_eq!(arguments(&["2M:1@0", "2M:3"]), "hugepagesz=2M hugepages=4");
    }

    #[test]
    fn a_kernel_that_reads_no_nodes_gets_the_sum_or_nothing() {
        let old = linux(5, 15);
        let on_one = kernel_arguments(&requests(&["1G:2@1"]), &old);
        assert_eq!((on_one.text.as_str(), on_one.unplaced), ("hugepagesz=1G hugepages=2", Some(1)));
        let note = on_one.note(&old).unwrap();
        assert!(note.contains("since Linux 5.16, found 5.15") && note.contains("needed: node 1"), "{note}");
        // The pages that the kernel spreads.
        let spread = kernel_arguments(&requests(&["1G:2@0", "1G:1@1"]), &old);
        assert_eq!((spread.text.as_str(), spread.note(&old)), ("hugepagesz=1G hugepages=3", None));
        let unknown = BootMachine { release: None, ..old.clone() };
        assert_eq!(kernel_arguments(&requests(&["1G:2@1"]), &unknown).text, "hugepagesz=1G hugepages=1:2");
        let grub = |texts: &[&str]| BootFile::new(BootKind::Grub, "db", &requests(texts), "/x", &old);
        let refused = grub(&["1G:2@1"]).unwrap_err();
        assert!(refused.contains("fix: --install systemd"), "{refused}");
        assert!(grub(&["1G:2"]).is_ok() && grub(&["1G:1@0", "1G:1@1"]).is_ok());
    }

    #[test]
    fn memory_is_set_aside_for_gigantic_pages_only() {
        let of = |texts: &[&str], machine: &BootMachine| cma_arguments(&requests(texts), machine, gigantic);
        let text = |texts: &[&str]| of(texts, &linux(5, 16)).map(|arguments| arguments.text);
        assert_eq!(text(&["2M:64"]), None);
        assert_eq!(text(&["2M:64", "1G:2"]).unwrap(), "hugetlb_cma=2048M");
        assert_eq!(text(&["1G:2@0", "1G:1@1"]).unwrap(), "hugetlb_cma=0:2048M,1:1024M");
        let old = of(&["1G:2@0", "1G:1@1"], &linux(5, 10)).unwrap();
        assert_eq!((old.text.as_str(), old.unplaced), ("hugetlb_cma=3072M", Some(0)));
    }

    #[test]
    fn a_fragment_sets_memory_aside_and_reserves_the_others() {
        let of = |texts: &[&str], machine: &BootMachine| BootFile::with_cma("db", &requests(texts), machine, gigantic);
        let file = of(&["2M:5", "1G:2@0"], &linux(6, 1)).unwrap();
        assert_eq!(file.path, "etc/default/grub.d/60-pagelift-pool-db.cfg");
        let expected = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=2M hugepages=5 hugetlb_cma=0:2048M\"\n";
        assert_eq!((file.text.as_str(), file.link), (expected, None));
        assert!(of(&["2M:5"], &linux(6, 1)).unwrap_err().contains("found none"));
        assert!(of(&["1G:1"], &linux(5, 6)).unwrap_err().contains("takes Linux 5.7, found 5.6"));
        assert!(of(&["1G:1@1"], &linux(5, 10)).unwrap_err().contains("needed: node 1; fix: "));
    }

    #[test]
    fn a_unit_reserves_on_each_node() {
        let requests = requests(&["2M:5@0", "2M:4@1"]);
        let file = BootFile::new(BootKind::Systemd, "db", &requests, "/usr/bin/pagelift", &linux(6, 1)).unwrap();
        assert_eq!(file.path, "etc/systemd/system/pagelift-pool-db.service");
        assert!(file.text.contains("\nExecStart=/usr/bin/pagelift pool reserve --add --record db 2M:5@0 2M:4@1\n"));
        assert!(file.text.contains("\nExecStop=/usr/bin/pagelift pool release --record db 2M:5@0 2M:4@1\n"));
        assert!(file.text.contains("\nAfter=systemd-sysctl.service\n"), "sysctl would take the pages away again");
        assert!(file.text.contains("\nConditionFileIsExecutable=/usr/bin/pagelift\n"), "skipped once it is removed");
        let (link, target) = file.link.unwrap();
        assert_eq!(link, "etc/systemd/system/sysinit.target.wants/pagelift-pool-db.service");
        assert_eq!(target, "/etc/systemd/system/pagelift-pool-db.service");
        let strange = BootFile::new(BootKind::Systemd, "db", &requests, "/a b/pagelift", &linux(6, 1));
        assert!(strange.unwrap_err().contains("cannot be used in a unit"));
    }

    #[test]
    fn sysctl_says_what_it_cannot() {
        let of = |texts: &[&str]| BootFile::new(BootKind::Sysctl, "db", &requests(texts), "/x", &linux(6, 1));
        assert!(of(&["2M:64", "2M:1"]).unwrap().text.ends_with("\nvm.nr_hugepages = 65\n"));
        assert!(of(&["1G:1"]).unwrap_err().contains("found 2M, needed 1G"));
        assert!(of(&["2M:1@1"]).unwrap_err().contains("needed: node 1"));
    }

    #[test]
    fn grub_keeps_what_is_set_already() {
        let file = BootFile::new(BootKind::Grub, "db", &requests(&["1G:2@0"]), "/x", &linux(5, 16)).unwrap();
        assert_eq!(file.text, "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages=0:2\"\n");
    }
}
