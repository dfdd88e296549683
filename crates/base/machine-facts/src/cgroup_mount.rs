//! The paths of cgroups below the root of a mount.

/// The part of a cgroup's path that is below a mounted root, without `/` at its ends; `None` if the cgroup is elsewhere.
pub(crate) fn below<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let inside = path.strip_prefix(root.trim_end_matches('/'))?;
    let is_below = inside.is_empty() || inside.starts_with('/');
    // From another cgroup namespace, a path climbs above the root of this one.
    let inside = inside.trim_matches('/');
    (is_below && inside.split('/').next() != Some("..")).then_some(inside)
}
