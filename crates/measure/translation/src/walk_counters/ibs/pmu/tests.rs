//! Folders of devices as kernels show them.

use super::*;
use crate::walk_counters::devices::Devices;

#[test]
fn a_kernel_before_6_14_samples_all_or_nothing() {
    let devices = Devices::with(
        "old",
        &[
            ("ibs_op/type", "9\n"),
            ("ibs_op/format/cnt_ctl", "config:19\n"),
            ("ibs_fetch/type", "8\n"),
            ("ibs_fetch/format/rand_en", "config:57\n"),
        ],
    );
    let operations = Pmu::find(&devices.0, "ibs_op", "cnt_ctl").unwrap();
    assert_eq!(operations, Pmu { number: 9, config: 1 << 19, without_kernel: None });
    assert!(operations.event(false).is_none());
    let fetches = Pmu::find(&devices.0, "ibs_fetch", "rand_en").unwrap();
    assert_eq!((fetches.number, fetches.event(true).unwrap().config), (8, 1 << 57));
}

#[test]
fn a_newer_one_can_leave_the_kernel_out() {
    let files = [
        ("ibs_op/type", "11\n"),
        ("ibs_op/format/cnt_ctl", "config:19\n"),
        ("ibs_op/format/swfilt", "config2:0\n"),
        ("ibs_op/format/ldlat", "config1:0-11\n"),
        ("ibs_op/format/l3missonly", "config:16\n"),
        ("ibs_op/caps/zen4_ibs_extensions", "1\n"),
        ("ibs_op/caps/dtlb_pgsize", "1\n"),
    ];
    let devices = Devices::with("new", &files);
    let operations = Pmu::find(&devices.0, "ibs_op", "cnt_ctl").unwrap();
    let (all, user) = (operations.event(true).unwrap(), operations.event(false).unwrap());
    assert_eq!((all.config, all.config2, user.config, user.config2), (1 << 19, 0, 1 << 19, 1));
    assert_eq!(Pmu::find(&devices.0, "ibs_fetch", "rand_en"), None);
}

#[test]
fn a_format_is_a_word_and_a_bit() {
    assert_eq!(field("config2:0\n"), Some(("config2", 0)));
    assert_eq!(field("config1:4-11"), Some(("config1", 4)));
    assert_eq!((field("config:64"), field("config"), field("")), (None, None, None));
}
