//! Settings that keep shared memory off huge pages.

use super::*;
use crate::finding::Severity;

/// Linux 6.11 and newer have a setting for each size, which also refuses a collapse in place.
#[test]
fn the_setting_of_the_size_is_seen() {
    let off = |f: &mut Facts| {
        f.thp.shared = Some("advise".into());
        f.thp.shared_of_size = Some("never".into());
    };
    let much = |f: &mut Facts| {
        off(f);
        running_of(f).shared = (100 * MIB, 0);
    };
    let found =
        "never in /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled; 100.0 MiB of shared memory";
    let fix = "echo inherit > /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
    finds("shmem-enabled", Severity::Note, [found, fix], much);
    assert_eq!(found_with(off, "shmem-enabled"), []);
    let lifted = |f: &mut Facts| {
        much(f);
        running_of(f).shared.1 = 90 * MIB;
    };
    assert_eq!(found_with(lifted, "shmem-enabled"), []);
}
