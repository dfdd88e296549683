//! Finds cgroups below mounted hierarchies.
//!
//! The kernel shows paths relative to the root of the reader's cgroup namespace (cgroup_namespaces(7)). In a container, the cgroup
//! of another pod is `/../../kubepods-x`, and the root of a mount of the host's whole hierarchy is `/../../..`.

use crate::Files;
use crate::cgroup_mount::below;

/// Texts of `/proc/PID/cgroup` and `/proc/self/mountinfo` that `for_each_directory` understands without namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visible {
    /// The cgroups that are below a mount, by their paths below it.
    pub membership: String,
    /// These mounts.
    pub mounts: String,
    /// The cgroup that limits the memory, if it is below no mount.
    pub hidden: Option<String>,
}

/// The cgroup that a line of `/proc/PID/cgroup` names.
#[derive(Clone, Copy)]
struct Line<'a> {
    controllers: &'a str,
    path: &'a str,
}

fn lines(membership: &str) -> impl Iterator<Item = Line<'_>> {
    membership.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some(Line { controllers: fields.next()?, path: fields.next()? })
    })
}

impl Line<'_> {
    fn limits_memory(self) -> bool {
        self.controllers.split(',').any(|name| name == "memory")
    }

    /// The mounts of its hierarchy, those that show most first.
    fn mounts(self, mountinfo: &str) -> Vec<Mount<'_>> {
        let mut mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).filter(|mount| mount.is_of(self)).collect();
        mounts.sort_by_key(|mount| std::cmp::Reverse(climbs(mount.root).0));
        mounts
    }
}

/// A mount of a hierarchy.
#[derive(Clone, Copy)]
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ").filter(|(_, right)| right.starts_with("cgroup"))?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let mut left = left.split(' ');
        let (root, point) = (left.nth(3)?, left.next()?);
        Some(Self { root, point, kind, options })
    }

    fn is_of(&self, line: Line<'_>) -> bool {
        match line.controllers {
            "" => self.kind == "cgroup2",
            names => self.kind == "cgroup" && names.split(',').any(|name| self.options.split(',').any(|it| it == name)),
        }
    }

    /// The path of a cgroup below the mount, without `/` at its ends; `None` if it is elsewhere.
    fn inside(&self, path: &str, mounts: &[Self], own: &Root<'_>) -> Option<String> {
        let trimmed = |path: &str| path.trim_matches('/').to_owned();
        if let Some(inside) = below(path, self.root) {
            return Some(inside.to_owned());
        }
        // Above the path's first part the names of this namespace's root are missing.
        let ((up, rest), (shown, "")) = (climbs(path), climbs(self.root)) else { return None };
        let root = mounts.iter().find(|mount| mount.root == "/")?;
        let above = own(root.point, self.point, shown)?;
        let above = above.split('/').take(shown.checked_sub(up)?).collect::<Vec<_>>().join("/");
        Some(trimmed(&format!("{above}/{}", trimmed(rest))))
    }
}

/// Returns the path of a directory (the root of this cgroup namespace, as mounted) below a mount point that shows so many levels
/// above it.
type Root<'a> = dyn Fn(&str, &str, usize) -> Option<String> + 'a;

/// How many levels a path climbs, and the rest without `/` at its ends.
pub(crate) fn climbs(path: &str) -> (usize, &str) {
    let (mut levels, mut rest) = (0, path.trim_matches('/'));
    while let Some(next) = rest.strip_prefix("..").filter(|next| next.is_empty() || next.starts_with('/')) {
        (levels, rest) = (levels + 1, next.trim_start_matches('/'));
    }
    (levels, rest)
}

/// Translates the cgroups of a process for this namespace's mounts.
pub(crate) fn visible(files: &impl Files, membership: &str, mountinfo: &str) -> Visible {
    let own = &|root: &str, point: &str, levels| files.path_below(point, levels, root);
    let mut visible = Visible::default();
    let limiting = lines(membership).find(|line| line.limits_memory());
    let limiting = limiting.or_else(|| lines(membership).find(|line| line.controllers.is_empty()));
    for line in lines(membership) {
        let mounts = line.mounts(mountinfo);
        let place = mounts.iter().find_map(|mount| Some((mount, mount.inside(line.path, &mounts, own)?)));
        if let Some((Mount { point, kind, options, .. }, inside)) = place {
            visible.membership += &format!("0:{}:/{inside}\n", line.controllers);
            visible.mounts += &format!("0 0 0:0 / {point} rw - {kind} {kind} {options}\n");
        } else if limiting.is_some_and(|limiting| limiting.controllers == line.controllers)
            && !(mounts.is_empty() && line.path == "/")
        {
            visible.hidden = Some(line.path.to_owned());
        }
    }
    visible
}

/// The path of the cgroup that systemd or a container runtime has made, without the first `/`. Levels above this namespace
/// have their names if the host's hierarchy is mounted; otherwise they are left out.
pub fn cgroup_path(files: &impl Files, membership: &str, mountinfo: &str) -> String {
    let own = &|root: &str, point: &str, levels| files.path_below(point, levels, root);
    let mut best: Option<Line<'_>> = None;
    for line in lines(membership).filter(|line| !climbs(line.path).1.is_empty()) {
        // Version 2 and systemd's own hierarchy are preferred; containers without systemd are known by others only.
        if best.is_none() || matches!(line.controllers, "" | "name=systemd") {
            best = Some(line);
        }
    }
    let Some(line) = best else { return String::new() };
    let (up, rest) = climbs(line.path);
    let mounts = line.mounts(mountinfo);
    let named = (up > 0).then(|| mounts.iter().find_map(|mount| mount.inside(line.path, &mounts, own))).flatten();
    named.unwrap_or_else(|| rest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "30 20 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    const HOST: &str = "31 20 0:26 /../../../.. /host/cgroup ro - cgroup2 cgroup2 rw\n";
    const OTHER_POD: &str = "0::/../../kubepods-burstable-podb.slice/cri-b.scope\n";
    const SERVICE: &str = "0::/../../../../system.slice/a.service\n";

    /// Files that know the root of this namespace by a path below the host's mount.
    struct Own(Option<&'static str>);

    impl Files for Own {
        fn text(&self, _: &str) -> Option<String> {
            None
        }

        fn names_in(&self, _: &str) -> Vec<String> {
            Vec::new()
        }

        fn path_below(&self, top: &str, levels: usize, directory: &str) -> Option<String> {
            let found = self.0?;
            assert!(["/host/cgroup", "/host"].contains(&top) && (levels == 4 || levels == 1) && directory != top);
            Some(found.to_owned())
        }
    }

    const UNKNOWN: Own = Own(None);
    const KNOWN: Own = Own(Some("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda.slice/cri-a.scope"));

    #[test]
    fn cgroups_of_other_pods_have_their_names() {
        let both = format!("{OWN}{HOST}");
        let pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb.slice/cri-b.scope";
        assert_eq!(cgroup_path(&KNOWN, OTHER_POD, &both), pod);
        assert_eq!(cgroup_path(&KNOWN, SERVICE, &both), "system.slice/a.service");
        assert_eq!(cgroup_path(&UNKNOWN, OTHER_POD, OWN), "kubepods-burstable-podb.slice/cri-b.scope");
        assert_eq!(cgroup_path(&UNKNOWN, "0::/../..\n4:memory:/x", OWN), "x");
        assert_eq!(visible(&KNOWN, OTHER_POD, &both).membership, format!("0::/{pod}\n"));
    }

    #[test]
    fn a_cgroup_below_no_mount_is_hidden() {
        let hidden = |membership: &str, mounts: &str| visible(&UNKNOWN, membership, mounts).hidden;
        assert_eq!(hidden(SERVICE, OWN).as_deref(), Some("/../../../../system.slice/a.service"));
        assert_eq!(hidden(SERVICE, HOST), None);
        assert!(hidden(OTHER_POD, HOST).is_some(), "the names above are not known");
        assert_eq!(hidden("0::/a", OWN), None);
        assert!(hidden("0::/a", "").is_some());
        assert_eq!(hidden("0::/", ""), None, "the root has no limits");
        let part = "31 20 0:27 /docker/abc /c rw - cgroup cgroup rw,memory\n";
        assert_eq!(hidden("0::/\n4:memory:/docker/abc/x", part), None);
        assert!(hidden("0::/\n4:memory:/docker/abcd", part).is_some());
        let memory =
            "31 20 0:27 /.. /host rw - cgroup cgroup rw,memory\n32 20 0:27 / /own rw - cgroup cgroup rw,memory\n";
        assert!(hidden("0::/\n4:memory:/", memory).is_none(), "this namespace's own cgroup");
        assert_eq!(visible(&Own(Some("a")), "4:memory:/x", memory).membership, "0:memory:/a/x\n");
    }
}
