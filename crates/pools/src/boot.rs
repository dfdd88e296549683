//! What makes a reservation last: texts of files that are read at boot. Pure.

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
    /// A symbolic link, and what it shows, that makes the file take effect.
    pub link: Option<(String, String)>,
}

impl BootFile {
    /// The paths of the file and its link, whatever it says. `name` tells the reservations of several programs apart.
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

    /// The file that reserves `requests`. `program` is the path of `pagelift` at boot, `default` the kernel's default
    /// size.
    ///
    /// # Errors
    /// What such a file cannot express, and what can.
    pub fn new(
        kind: BootKind,
        name: &str,
        requests: &[PoolRequest],
        program: &str,
        default: Option<PageSize>,
    ) -> Result<Self, String> {
        let (path, link) = Self::paths(kind, name);
        let text = match kind {
            BootKind::Systemd => unit(requests, program)?,
            BootKind::Sysctl => sysctl(requests, default)?,
            BootKind::Grub => grub(requests),
        };
        Ok(Self { link: link.map(|link| (link, format!("/{path}"))), path, text })
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
/// (`Documentation/admin-guide/kernel-parameters.txt`): `hugepagesz=1G hugepages=0:2,1:2`. Nodes are understood since
/// Linux 5.15, and all pages of a size are either placed or not.
pub fn kernel_arguments(requests: &[PoolRequest]) -> String {
    let of_size = |(size, by_node): (PageSize, BTreeMap<Option<u32>, u64>)| {
        let placed: Vec<_> = by_node.iter().filter_map(|(node, pages)| Some(format!("{}:{pages}", (*node)?))).collect();
        let pages: u64 = by_node.values().sum();
        let is_placed = placed.len() == by_node.len();
        let value = if is_placed { placed.join(",") } else { pages.to_string() };
        format!("hugepagesz={} hugepages={value}", short_size(size))
    };
    summed(requests).into_iter().map(of_size).collect::<Vec<_>>().join(" ")
}

/// The parameter that sets memory aside for gigantic pages and lends it to movable memory until they are reserved while
/// the kernel runs (Linux 5.7, by node since 5.16); `None` where `is_gigantic` is true of no request.
pub fn cma_argument(requests: &[PoolRequest], is_gigantic: impl Fn(PageSize) -> bool) -> Option<String> {
    let of_interest: Vec<_> = requests.iter().filter(|request| is_gigantic(request.size)).copied().collect();
    let mut by_node: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for request in &of_interest {
        *by_node.entry(request.node).or_default() += request.bytes() >> 20;
    }
    if by_node.is_empty() {
        return None;
    }
    let all: u64 = by_node.values().sum();
    let nodes: Vec<_> = by_node.iter().filter_map(|(node, mib)| Some(format!("{}:{mib}M", (*node)?))).collect();
    let value = if nodes.len() == by_node.len() { nodes.join(",") } else { format!("{all}M") };
    Some(format!("hugetlb_cma={value}"))
}

fn words(requests: &[PoolRequest]) -> String {
    requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Runs before sysinit.target, when memory is still in large pieces. Pages are added, so that several such units, and
/// what the kernel's command line reserves, do not count each other's pages as their own.
fn unit(requests: &[PoolRequest], program: &str) -> Result<String, String> {
    // A specifier, a quote or a blank would mean something else to systemd (systemd.service(5)).
    if program.contains(|c: char| c.is_whitespace() || c.is_control() || "%\"'\\$;".contains(c)) {
        return Err(format!("the path {program} cannot stand in a unit; needed: one without blanks and special signs"));
    }
    let words = words(requests);
    Ok(format!(
        "[Unit]\n\
         Description=Huge pages in the pool: {words}\n\
         Documentation=man:pagelift-pool(1)\n\
         ConditionPathExists=/sys/kernel/mm/hugepages\n\
         RequiresMountsFor={program}\n\
         DefaultDependencies=no\n\
         Before=sysinit.target kubelet.service\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart={program} pool reserve --add {words}\n\
         ExecStop={program} pool release {words}\n\
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

fn grub(requests: &[PoolRequest]) -> String {
    format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {}\"\n", kernel_arguments(requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(texts: &[&str]) -> Vec<PoolRequest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_kernel_reads_sizes_before_their_numbers() {
        assert_eq!(kernel_arguments(&requests(&["2M:64"])), "hugepagesz=2M hugepages=64");
        let placed = requests(&["1G:2@0", "2M:64", "1G:2@1", "1G:1@0"]);
        assert_eq!(kernel_arguments(&placed), "hugepagesz=2M hugepages=64 hugepagesz=1G hugepages=0:3,1:2");
        // The kernel's grammar has no way to place some of them only.
        assert_eq!(kernel_arguments(&requests(&["2M:1@0", "2M:3"])), "hugepagesz=2M hugepages=4");
    }

    #[test]
    fn memory_is_set_aside_for_gigantic_pages_only() {
        let gigantic = |size: PageSize| size.bytes() >= 1 << 30;
        assert_eq!(cma_argument(&requests(&["2M:64"]), gigantic), None);
        assert_eq!(cma_argument(&requests(&["2M:64", "1G:2"]), gigantic).unwrap(), "hugetlb_cma=2048M");
        assert_eq!(cma_argument(&requests(&["1G:2@0", "1G:1@1"]), gigantic).unwrap(), "hugetlb_cma=0:2048M,1:1024M");
    }

    #[test]
    fn a_unit_reserves_on_each_node() {
        let requests = requests(&["2M:5@0", "2M:4@1"]);
        let file = BootFile::new(BootKind::Systemd, "db", &requests, "/usr/bin/pagelift", None).unwrap();
        assert_eq!(file.path, "etc/systemd/system/pagelift-pool-db.service");
        assert!(file.text.contains("\nExecStart=/usr/bin/pagelift pool reserve --add 2M:5@0 2M:4@1\n"));
        let (link, target) = file.link.unwrap();
        assert_eq!(link, "etc/systemd/system/sysinit.target.wants/pagelift-pool-db.service");
        assert_eq!(target, "/etc/systemd/system/pagelift-pool-db.service");
        let strange = BootFile::new(BootKind::Systemd, "db", &requests, "/a b/pagelift", None);
        assert!(strange.unwrap_err().contains("cannot stand in a unit"));
    }

    #[test]
    fn sysctl_says_what_it_cannot() {
        let default = PageSize::new(2 << 20).ok();
        let of = |texts: &[&str]| BootFile::new(BootKind::Sysctl, "db", &requests(texts), "/x", default);
        assert!(of(&["2M:64", "2M:1"]).unwrap().text.ends_with("\nvm.nr_hugepages = 65\n"));
        assert!(of(&["1G:1"]).unwrap_err().contains("found 2M, needed 1G"));
        assert!(of(&["2M:1@1"]).unwrap_err().contains("needed: node 1"));
    }

    #[test]
    fn grub_keeps_what_is_set_already() {
        let file = BootFile::new(BootKind::Grub, "db", &requests(&["1G:2@0"]), "/x", None).unwrap();
        assert_eq!(file.text, "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages=0:2\"\n");
    }
}
