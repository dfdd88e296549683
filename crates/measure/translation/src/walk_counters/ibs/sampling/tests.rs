//! Rings of this kernel, whose records are from a software event: without IBS there are no others here.

use super::*;
use crate::walk_counters::devices::Devices;
use crate::walk_counters::{Estimate, families};
use std::hint::black_box;
use std::process::Command;

#[test]
fn a_machine_without_ibs_has_no_sampling() {
    let devices = Devices::with("none", &[("cpu/type", "4\n")]);
    assert!(Sampling::start_at(&devices.0, Target::Process(std::process::id() as i32)).is_none());
}

/// PERF_TYPE_SOFTWARE, whose event 0 is the CPU's clock in ns (linux/perf_event.h).
fn clock(name: &str) -> Devices {
    Devices::with(name, &[("ibs_op/type", "1\n"), ("ibs_fetch/type", "1\n")])
}

fn records(sampling: &Sampling) -> u64 {
    sampling.operations.as_ref().unwrap().tally.refills().records
}

/// Records arrive, but none from IBS make an estimate; if the kernel permits no rings, the result is that reason.
fn nothing_is_estimated(sampling: &mut Sampling, mut work: impl FnMut()) {
    let open = sampling.operations.as_ref().unwrap().samplers.is_ok();
    for _ in 0..1_000 {
        if !open || records(sampling) > 0 {
            break;
        }
        work();
        sampling.drain();
    }
    assert_eq!(records(sampling) > 0, open);
    let walks = sampling.with(&families()[0].blank(true));
    let (Estimate::NotEstimated(code), Estimate::NotEstimated(data)) = (walks.code, walks.data) else {
        panic!("something was estimated")
    };
    match open {
        true => {
            assert!(data.contains("IBS samples are page walks; needed: 30") && code.contains("needed: 30"), "{data}")
        }
        false => assert!(data.contains("ibs_op: ") && code.contains("ibs_fetch: "), "{data}"),
    }
}

fn calculate() {
    black_box((0..1 << 20).fold(0_u64, |sum, number: u64| sum.wrapping_add(black_box(number))));
}

#[test]
fn a_process_has_a_ring_for_each_thread() {
    let devices = clock("process");
    let mut sampling = Sampling::start_at(&devices.0, Target::Process(std::process::id() as i32)).unwrap();
    nothing_is_estimated(&mut sampling, calculate);
}

#[test]
fn a_command_is_sampled_from_its_exec_on() {
    let devices = clock("command");
    let mut sampling = Sampling::start_at(&devices.0, Target::Children).unwrap();
    calculate();
    sampling.drain();
    assert_eq!(records(&sampling), 0, "this thread was sampled, too");
    nothing_is_estimated(&mut sampling, || {
        let counts = Command::new("sh").args(["-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"]).status();
        assert!(counts.unwrap().success());
    });
}

#[test]
fn the_machine_has_a_ring_for_each_cpu() {
    let devices = clock("machine");
    let mut sampling = Sampling::start_at(&devices.0, Target::System).unwrap();
    nothing_is_estimated(&mut sampling, calculate);
}

/// Events of PMUs that the kernel does not know are refused, with the reason.
#[test]
fn a_refusal_has_its_reason() {
    let devices = Devices::with("unknown", &[("ibs_op/type", "4000000000\n")]);
    let sampling = Sampling::start_at(&devices.0, Target::Children).unwrap();
    let walks = sampling.with(&families()[0].blank(true));
    assert!(matches!(&walks.data, Estimate::NotEstimated(why) if why.starts_with("ibs_op: ")), "{walks:?}");
    assert_eq!(walks.code, Estimate::NotEstimated("the kernel has no PMU ibs_fetch".to_owned()));
}
