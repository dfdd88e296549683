//! Opens the tracepoints that show shootdowns, calls and times.

use crate::calls::{NUMBER, filter};
use crate::format::Field;
use crate::kernel_symbols::KernelSymbols;
use crate::reason::FlushFormat;
use crate::rings::{Counters, Rings, Sampling, Selection};
use crate::times::Step;
use crate::tracepoints::{NoTracepoint, format_of};
use std::env::consts::ARCH;

/// The interpretation of a record.
pub(crate) enum Reader {
    Flush(FlushFormat),
    Call(Field),
}

/// Tracepoints of one kind, open on all CPUs.
pub(crate) struct Events {
    pub reader: Reader,
    pub sent: Rings,
    pub stacks: Rings,
    pub received: Option<Rings>,
    pub all_sent: Counters,
    pub all_received: Option<Counters>,
}

/// Records by which times are measured, with the field of the request's address; interrupts have none.
pub(crate) struct Timing {
    pub rings: Vec<(Step, Option<Field>, Rings)>,
}

impl Events {
    /// Lets the events be recorded, or stops them.
    pub fn run(&mut self, on: bool) {
        self.sent.run(on);
        self.stacks.run(on);
        if let Some(received) = &mut self.received {
            received.run(on);
        }
        self.all_sent.run(on);
        if let Some(received) = &mut self.all_received {
            received.run(on);
        }
    }
}

/// True if kernels of this architecture record `tlb:tlb_flush`. Other kernels may have the event, too (on 64-bit Arm
/// 6.1 and 6.12 have it, 5.10 and 7.3 do not), but only arch/x86/mm/tlb.c records it.
fn records_flushes(architecture: &str) -> bool {
    matches!(architecture, "x86" | "x86_64")
}

pub(crate) fn open_flushes(cpus: &[usize]) -> Result<Events, NoTracepoint> {
    const NAME: &str = "tlb:tlb_flush";
    if !records_flushes(ARCH) {
        return Err(NoTracepoint::NeverRecorded(NAME.to_owned(), ARCH));
    }
    let format = format_of("tlb/tlb_flush")?;
    let format = FlushFormat::of(&format).ok_or_else(|| NoTracepoint::NotUnderstood(NAME.to_owned()))?;
    let with_reason = |reason| Selection { name: NAME, id: format.id, filter: Some(format!("reason == {reason}")) };
    let (sent, received) = (with_reason(format.sent), with_reason(format.received));
    Ok(Events {
        sent: Rings::open(&sent, cpus, Sampling::Records)?,
        stacks: Rings::open(&sent, cpus, Sampling::Stacks)?,
        received: Some(Rings::open(&received, cpus, Sampling::Records)?),
        all_sent: Counters::open(&sent, cpus)?,
        all_received: Some(Counters::open(&received, cpus)?),
        reader: Reader::Flush(format),
    })
}

pub(crate) fn open_calls(cpus: &[usize]) -> Result<Events, NoTracepoint> {
    const NAME: &str = "raw_syscalls:sys_enter";
    let format = format_of("raw_syscalls/sys_enter")?;
    let number = format.field(NUMBER).ok_or_else(|| NoTracepoint::NotUnderstood(NAME.to_owned()))?.clone();
    let calls = Selection { name: NAME, id: format.id, filter: Some(filter()) };
    Ok(Events {
        sent: Rings::open(&calls, cpus, Sampling::Records)?,
        stacks: Rings::open(&calls, cpus, Sampling::Stacks)?,
        received: None,
        all_sent: Counters::open(&calls, cpus)?,
        all_received: None,
        reader: Reader::Call(number),
    })
}

/// The address of requests that are not known; the kernel's own are never at it.
pub(crate) const NO_REQUEST: u64 = 0;

/// Opens the best events by which times are measured, and adds the lost information to `refused`.
pub(crate) fn open_timing_or_less(cpus: &[usize], kernel: &KernelSymbols, refused: &mut Vec<String>) -> Option<Timing> {
    let why = match open_timing(cpus, kernel) {
        Ok(timing) => return Some(timing),
        Err(why) => why,
    };
    let interrupts = open_interrupts(cpus).ok();
    refused.push(match interrupts {
        Some(_) => format!(
            "the time of receivers is that of all function calls between CPUs (irq_vectors:call_function_*), and the time of \
             senders is not measured: {why}"
        ),
        None => format!("times are not measured: {why}"),
    });
    interrupts
}

/// Opens the interrupts by which x86 asks other CPUs to call a function, flushes among them (Linux 3.13 and later).
fn open_interrupts(cpus: &[usize]) -> Result<Timing, NoTracepoint> {
    let events = [
        ("call_function_entry", "irq_vectors:call_function_entry", Step::Entered),
        ("call_function_exit", "irq_vectors:call_function_exit", Step::Left),
        ("call_function_single_entry", "irq_vectors:call_function_single_entry", Step::Entered),
        ("call_function_single_exit", "irq_vectors:call_function_single_exit", Step::Left),
    ];
    let open = |(path, name, step)| {
        let id = format_of(&format!("irq_vectors/{path}"))?.id;
        let selection = Selection { name, id, filter: None };
        Ok((step, None, Rings::open(&selection, cpus, Sampling::Everything)?))
    };
    let rings = events.into_iter().map(open).collect::<Result<_, NoTracepoint>>()?;
    Ok(Timing { rings })
}

/// Opens the events by which times are measured. They include all function calls between CPUs; flushes are identified
/// by the function's address.
fn open_timing(cpus: &[usize], kernel: &KernelSymbols) -> Result<Timing, String> {
    const HANDLER: &str = "flush_tlb_func";
    let handler = kernel.address(HANDLER).ok_or("the kernel hides its addresses (kernel.kptr_restrict)")?;
    let steps = [
        ("csd/csd_queue_cpu", "csd:csd_queue_cpu", Step::Queued),
        ("csd/csd_function_entry", "csd:csd_function_entry", Step::Entered),
        ("csd/csd_function_exit", "csd:csd_function_exit", Step::Left),
    ];
    let open = |(path, name, step)| {
        let format = format_of(path)?;
        let request = format.field("csd").ok_or_else(|| NoTracepoint::NotUnderstood(str::to_owned(name)))?;
        let selection = Selection { name, id: format.id, filter: Some(format!("func == {handler:#x}")) };
        Ok((step, Some(request.clone()), Rings::open(&selection, cpus, Sampling::Everything)?))
    };
    let rings = steps.into_iter().map(open).collect::<Result<_, NoTracepoint>>();
    rings.map(|rings| Timing { rings }).map_err(|why| why.to_string())
}

/// CPUs that are online: `0-3,8`.
pub(crate) fn online_cpus() -> Vec<usize> {
    let text = linux::text::text_of("/sys/devices/system/cpu/online").unwrap_or_default();
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    let cpus: Vec<usize> = ranges.flatten().take(1 << 14).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_nothing_records_is_no_evidence() {
        assert!(records_flushes("x86_64") && !records_flushes("aarch64"));
        let said = NoTracepoint::NeverRecorded("tlb:tlb_flush".to_owned(), "aarch64").to_string();
        assert!(said.starts_with("aarch64 kernels never record the tracepoint tlb:tlb_flush"), "{said}");
    }
}
