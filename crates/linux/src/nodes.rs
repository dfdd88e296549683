//! NUMA nodes.

use std::fs;

/// True on a machine with several NUMA nodes (`Documentation/ABI/stable/sysfs-devices-node`).
pub fn has_several_nodes() -> bool {
    fs::read_to_string("/sys/devices/system/node/online").is_ok_and(|list| list.contains(['-', ',']))
}
