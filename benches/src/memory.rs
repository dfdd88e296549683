//! Memory of many processes of one program together, by the kernel's own counts.

use crate::bench::{Arm, Bench};
use crate::table::table;
use address_space::format_bytes;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use test_support::{meminfo, poll_until};

/// Time for all processes of one arm to do their work, on a busy machine too.
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// Memory that the machine must have left besides the memory of the processes.
const RESERVE: u64 = 2 << 30;

/// Many processes of the same program.
pub(crate) struct Crowd<'a> {
    pub(crate) processes: usize,
    /// Words after the arm's own.
    pub(crate) words: Vec<String>,
    /// Standard input of each process; it stays open.
    pub(crate) input: String,
    /// True once a process has done its work and waits.
    pub(crate) is_ready: fn(&mut Child) -> bool,
    /// Bytes of a private copy of the program in each process; 0 if no arm has one.
    pub(crate) private_bytes: u64,
    /// The arms. The last one may have a private copy in each process.
    pub(crate) arms: &'a [&'a Arm],
}

impl Crowd<'_> {
    /// Starts all processes of each arm in turn and prints their memory; the figures are added to the notes of the
    /// arm's last series.
    pub(crate) fn measure(&self, bench: &mut Bench) -> Result<()> {
        let headings =
            ["", "memory of all", "anonymous", "files", "images", "on huge pages", "of each", "page tables of all"];
        let mut rows = table(&headings);
        for (number, arm) in self.arms.iter().enumerate() {
            let needed = self.private_bytes * self.processes as u64 + RESERVE;
            let free = meminfo("MemAvailable").unwrap_or(0);
            if number + 1 == self.arms.len() && free < needed {
                let reason = format!("{} of memory are needed, {} are free", format_bytes(needed), format_bytes(free));
                bench.report.skip(format!("memory of {} processes: {}", self.processes, arm.name), reason);
                continue;
            }
            let taken = Waiting::start(self, arm)?.taken()?;
            let [all, anonymous, files, images, huge, tables] = taken;
            let mut row = vec![arm.name.clone()];
            row.extend([all, anonymous, files, images, huge, all / self.processes as u64, tables].map(format_bytes));
            rows.add_row(row);
            let mut facts = bench.report.series.iter_mut().flat_map(|series| &mut series.variants);
            if let Some(facts) = facts.rfind(|facts| facts.name == arm.name) {
                let note = format!(
                    "{} processes of {} take {all} bytes (sum of Pss), {anonymous} of them anonymous, and {tables} bytes of page tables",
                    self.processes,
                    self.words.join(" ")
                );
                facts.notes.push(note);
            }
        }
        println!("{} processes; what they share is counted once (sums of Pss)\n{rows}", self.processes);
        Ok(())
    }
}

/// Processes that wait; killed when dropped.
struct Waiting(Vec<Child>);

impl Waiting {
    fn start(crowd: &Crowd, arm: &Arm) -> Result<Self> {
        let mut waiting = Self(Vec::new());
        for _ in 0..crowd.processes {
            let mut command = arm.command();
            command.args(&crowd.words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().with_context(|| format!("cannot start {}", arm.name))?;
            child.stdin.as_mut().context("a pipe")?.write_all(crowd.input.as_bytes())?;
            waiting.0.push(child);
        }
        for child in &mut waiting.0 {
            poll_until(TIME_LIMIT, &format!("a process of {}", arm.name), || {
                (crowd.is_ready)(child) || child.try_wait().is_ok_and(|status| status.is_some())
            })?;
            ensure!(child.try_wait()?.is_none(), "{} ended early", arm.name);
        }
        Ok(waiting)
    }

    /// Bytes of all processes: proportional set size, its anonymous, file and shared-memory parts, memory mapped by
    /// huge entries, counted in each process, and page tables.
    fn taken(&self) -> Result<[u64; 6]> {
        let mut sums = [0; 6];
        for child in &self.0 {
            let folder = Path::new("/proc").join(child.id().to_string());
            let text = ["smaps_rollup", "status"].map(|name| std::fs::read_to_string(folder.join(name)));
            let [rollup, status] = text;
            let text = rollup? + &status?;
            let field = |name: &str| -> Result<u64> {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                let line = line.with_context(|| format!("no {name} in smaps_rollup or status"))?;
                Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
            };
            let huge = field("AnonHugePages")? + field("ShmemPmdMapped")? + field("FilePmdMapped")?;
            let own =
                [field("Pss")?, field("Pss_Anon")?, field("Pss_File")?, field("Pss_Shmem")?, huge, field("VmPTE")?];
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        Ok(sums)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
        }
        for child in &mut self.0 {
            child.wait().ok();
        }
    }
}
