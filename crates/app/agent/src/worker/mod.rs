//! The short-lived process that plans, lifts or restores one program. Its crash is a refusal, and its memory is given back.

mod forks;

use crate::decision::{ExecutedFile, Identity, Program, of_process};
use crate::discovery::{Sampler, executed_file, scheduling_of, standing_of};
use forks::restore_forks;
use lift_execution::RangeOutcome;
use linux::lock_file::{LockError, LockFile, PassingLock};
use linux::process_handle::ProcessHandle;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use options::{Choice, Kind, Kinds, Pages, Policy};
use process_view::ObjectReader;
use serde::{Deserialize, Serialize};
use session::running::{AttachOptions, Attached, Selected, attach, detach, plan_attach};
use session::shared::{InPlace, InPlaceOptions, InPlaceReport, lift_in_place, newly_huge, plan_in_place};
use session::status::status_of;
use session::{LiftReport, SessionError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the lock that a worker holds as long as it lives.
const LOCK: &str = "worker.lock";
/// Name of the lock of a worker that restores or reads while another one does not end.
const LOCK_BESIDE: &str = "worker.beside.lock";
/// Time for which the worker of a killed agent is waited for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Plan a lift.
    Plan,
    /// Lift.
    Lift,
    /// Undo a lift, also in processes that were forked from it.
    Restore,
    /// Undo a lift in processes that were forked from a process, which may have ended.
    RestoreForks,
    /// Find out whether anything is lifted.
    Look,
}

impl Task {
    /// True if it undoes a lift.
    pub const fn restores(self) -> bool {
        matches!(self, Self::Restore | Self::RestoreForks)
    }

    /// True if it may be performed beside a worker that does not end.
    pub const fn may_be_beside(self) -> bool {
        self.restores() || matches!(self, Self::Look)
    }
}

/// The request, which the supervisor writes to the worker's standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The task.
    pub task: Task,
    /// With which process.
    pub identity: Identity,
    /// The file that the process must execute; `None`: any.
    #[serde(default)]
    pub file: Option<ExecutedFile>,
    /// Kinds of memory, by their words.
    pub kinds: Vec<String>,
    /// Source of pages, by its word.
    pub pages: String,
    /// Most bytes that the lift may make resident.
    pub max_memory: Option<u64>,
    /// Folder of the state.
    pub state: PathBuf,
    /// The process that waits for the answer. Nothing is done if it has ended: a later agent may have looked already.
    pub supervisor: Identity,
    /// Another worker was killed and has not ended, and keeps its lock. Valid if [`Task::may_be_beside`].
    #[serde(default)]
    pub beside: bool,
    /// Time for the processes that were forked from it, in seconds.
    #[serde(default)]
    pub fork_seconds: u64,
    /// Forks that are not tried again.
    #[serde(default)]
    pub tried: Vec<Identity>,
}

/// Bytes on huge pages from one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBytes {
    /// Word of the source.
    pub source: String,
    /// Size of the huge pages.
    pub page_size: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The answer, which the worker writes to its standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Bytes that are, or would be, on huge pages; for a restore, bytes that are back on their files.
    pub covered: u64,
    /// Bytes that a lift has copied to huge pages, or that are huge in the page cache, by source.
    #[serde(default)]
    pub sources: Vec<SourceBytes>,
    /// Bytes that were made resident.
    pub resident: u64,
    /// The part of both that no restore undoes: memory lifted in place, and written memory.
    #[serde(default)]
    pub lasting: Share,
    /// Longest pause in microseconds.
    pub pause_microseconds: u64,
    /// Why nothing was done, or not all: memory in place may be lifted before copies are refused.
    pub refusal: Option<String>,
    /// The process has ended, or is another one.
    pub gone: bool,
    /// No worker could be started, so that nothing was done; `refusal` has the reason.
    #[serde(default)]
    pub not_started: bool,
    /// Mappings that the lift has left other than planned.
    #[serde(default)]
    pub fault: Option<String>,
    /// Something that was not restored: a setting of the program, or processes that were forked from it.
    #[serde(default)]
    pub warning: Option<String>,
    /// Processes that were forked from it and were restored with it.
    #[serde(default)]
    pub forks: Vec<Identity>,
    /// Processes that were forked from it and could not be restored.
    #[serde(default)]
    pub refused_forks: Vec<Identity>,
    /// Number of processes that were forked from it and were not tried.
    #[serde(default)]
    pub late_forks: u64,
}

impl Answer {
    /// Number of processes that were forked from it and stay lifted.
    pub fn lifted_forks(&self) -> u64 {
        self.late_forks.saturating_add(self.refused_forks.len() as u64)
    }
}

/// A part of a lift, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// On huge pages.
    pub covered: u64,
    /// Made resident.
    pub resident: u64,
}

impl Share {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            covered: self.covered.saturating_add(other.covered),
            resident: self.resident.saturating_add(other.resident),
        }
    }
}

/// Performs a request.
pub fn perform(request: &Request) -> Answer {
    let refused = |why: String| Answer { refusal: Some(why), ..Answer::default() };
    // A worker of a killed agent may still be busy.
    let is_beside = request.beside && request.task.may_be_beside();
    let lock = if is_beside { LOCK_BESIDE } else { LOCK };
    let _lock = match lock_in(&request.state, lock, LONGEST_WAIT) {
        Ok(lock) => lock,
        Err(error) => return refused(not_taken(&request.state, lock, &error)),
    };
    let runs = |identity: Identity| {
        let now = Sampler::now().ok().and_then(|sampler| sampler.sample(identity.pid));
        now.is_some_and(|sample| sample.identity == identity)
    };
    if !runs(request.supervisor) {
        return refused("the agent has ended".to_owned());
    }
    if request.task == Task::RestoreForks {
        return restore_forks(Answer::default(), request);
    }
    let pid = request.identity.pid;
    let Some(handle) = ProcessHandle::open(pid).ok().filter(|_| runs(request.identity)) else {
        // Without descriptors or memory nothing is known about it.
        return match Sampler::now().is_ok_and(|sampler| !sampler.lives(request.identity)) {
            true => Answer { gone: true, ..Answer::default() },
            false => Answer { not_started: true, ..refused(format!("process {pid} cannot be read at this moment")) },
        };
    };
    let _process = match lock_process(&request.state, pid, Duration::ZERO) {
        Ok(lock) => lock,
        Err(error) => return Answer { not_started: true, ..refused(not_locked(pid, &error)) },
    };
    if let Some(why) = changed_since_decision(request) {
        return refused(why);
    }
    let process = Selected { handle: Some(&handle), ..Selected::by_number(pid) };
    let policy = match policy(request) {
        Ok(policy) => policy,
        Err(why) => return refused(why),
    };
    let answer = match request.task {
        Task::Plan => plan(pid, &policy),
        Task::Lift => Ok(lift(&process, &policy)),
        Task::Restore | Task::RestoreForks => restore(&process, request),
        Task::Look => look(pid),
    };
    let answer = answer.unwrap_or_else(|error| refused(error.in_full()));
    match answer.refusal {
        Some(_) if !handle.is_alive() => Answer { gone: true, ..Answer::default() },
        _ => answer,
    }
}

/// Why the process that the supervisor has chosen is not lifted any more: the worker may have waited for the lock.
fn changed_since_decision(request: &Request) -> Option<String> {
    let pid = request.identity.pid;
    if request.task != Task::Lift {
        return None;
    }
    if request.file.is_some_and(|file| executed_file(pid) != Some(file)) {
        return Some("it has executed another program since it was chosen".to_owned());
    }
    let sample = Sampler::now().ok()?.sample(pid)?;
    let scheduling = scheduling_of(pid, sample.scheduling);
    let standing = standing_of(pid, &BTreeSet::new(), scheduling, sample.is_kernel_thread);
    of_process(pid, &Program::default(), &standing).map(|refusal| refusal.text)
}

/// Takes the lock of workers, and waits for another worker for `most` at the longest.
///
/// # Errors
/// Another worker holds it for too long, or it cannot be made.
pub fn take_lock(state: &Path, most: Duration) -> Result<LockFile, String> {
    lock_in(state, LOCK, most).map_err(|error| not_taken(state, LOCK, &error))
}

/// True if no worker holds its lock any more. Waits for `most` at the longest.
///
/// # Errors
/// The lock cannot be made.
pub fn has_no_worker(state: &Path, most: Duration) -> Result<bool, String> {
    match lock_in(state, LOCK, most) {
        Ok(_) => Ok(true),
        Err(LockError::Held(_)) => Ok(false),
        Err(error) => Err(not_taken(state, LOCK, &error)),
    }
}

fn lock_in(state: &Path, name: &str, most: Duration) -> Result<LockFile, LockError> {
    let directory = open(state, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    LockFile::take(directory, name, most)
}

fn not_taken(state: &Path, name: &str, error: &LockError) -> String {
    format!("the lock {name} in {} cannot be taken: {error:?}", state.display())
}

/// Takes the lock of a process that is lifted, restored or measured, and waits for `most` at the longest. Its file is removed with
/// it.
///
/// # Errors
/// Another command holds it for too long, or it cannot be made.
pub fn lock_process(state: &Path, pid: i32, most: Duration) -> Result<PassingLock, LockError> {
    let directory = open(state, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    PassingLock::take(directory, &format!("process.{pid}.lock"), most)
}

/// Why a process is left to another command.
pub fn not_locked(pid: i32, error: &LockError) -> String {
    match error {
        LockError::Held(_) => {
            format!("another command lifts, restores or measures process {pid} at this moment; fix: wait for its end")
        }
        error => format!("the lock of process {pid} cannot be taken: {error:?}"),
    }
}

fn policy(request: &Request) -> Result<Policy, String> {
    let kinds = request.kinds.iter().map(|word| Kind::from_word(word)).collect::<Result<Vec<_>, _>>()?;
    Ok(Policy {
        kinds: Kinds::of(&kinds),
        pages: Pages::from_word(&request.pages)?,
        max_memory: request.max_memory,
        ..Policy::default()
    })
}

/// The policy for kinds that are lifted by copies, if any, with the memory that `answer` leaves.
fn usual(policy: &Policy, answer: &Answer) -> Option<Policy> {
    let kinds = policy.kinds.planned();
    (!kinds.is_empty()).then(|| Policy { kinds, max_memory: left(policy, answer), ..policy.clone() })
}

/// Bytes that may still become resident; `None` without a limit.
fn left(policy: &Policy, answer: &Answer) -> Option<u64> {
    policy.max_memory.map(|most| most.saturating_sub(answer.resident))
}

fn in_place(policy: &Policy) -> impl Iterator<Item = InPlace> {
    let kinds = policy.kinds;
    InPlace::ALL.into_iter().filter(move |memory| kinds.contains(memory.kind()))
}

fn plan(pid: i32, policy: &Policy) -> Result<Answer, SessionError> {
    let mut answer = Answer::default();
    for memory in in_place(policy) {
        let options = InPlaceOptions { most: left(policy, &answer), ..InPlaceOptions::of(memory) };
        let planned = plan_in_place(&[pid], options)?;
        answer.covered += planned.segments.iter().map(|segment| segment.planned).sum::<u64>();
        answer.resident += planned.segments.iter().map(|segment| segment.adds).sum::<u64>();
    }
    if let Some(usual) = usual(policy, &answer) {
        let plan = plan_attach(pid, &usual, &mut ObjectReader::new())?;
        answer.covered += plan.planned();
        if answer.covered == 0 && plan.lifts.is_empty() {
            let mut report = LiftReport::new(pid, String::new());
            report.take(plan, lift_execution::LiftOutcome::default(), Duration::ZERO);
            answer.refusal = Some(reason_of(&report));
        }
    }
    Ok(answer)
}

fn lift(process: &Selected<'_>, policy: &Policy) -> Answer {
    let in_place = |options: InPlaceOptions<'_>| match process.handle.is_some_and(|handle| !handle.is_alive()) {
        true => Ok(None),
        false => lift_in_place(&[process.pid], options).map(|lifted| Some(share_of(&lifted))),
    };
    let copies = |policy: Policy| {
        let options = AttachOptions { policy, ..AttachOptions::default() };
        let before = huge_bytes_of(process.pid);
        match attach(process, &options, &mut ObjectReader::new()) {
            Ok(attached) => Ok(attached.map(|attached| answer_of(&attached))),
            Err(error) => {
                stopped(&error, before?, huge_bytes_of(process.pid)?).map_or(Err(error), |answer| Ok(Some(answer)))
            }
        }
    };
    lift_all(policy, in_place, copies)
}

/// Lifts each kind of memory, with the memory that the kinds before it have left. A lift returns `None` if the process
/// has ended. After an error the answer contains the lifts before it.
fn lift_all(
    policy: &Policy,
    mut lift_in_place: impl FnMut(InPlaceOptions<'_>) -> Result<Option<Share>, SessionError>,
    lift_copies: impl FnOnce(Policy) -> Result<Option<Answer>, SessionError>,
) -> Answer {
    let mut answer = Answer::default();
    let gone = Answer { gone: true, ..Answer::default() };
    let refused = |answer: Answer, error: &SessionError| Answer { refusal: Some(error.in_full()), ..answer };
    // Memory in place first: a lift by copies can be undone, and this cannot.
    for memory in in_place(policy) {
        let options = InPlaceOptions { most: left(policy, &answer), ..InPlaceOptions::of(memory) };
        match lift_in_place(options) {
            Ok(Some(lifted)) => answer.lasting = answer.lasting.and(lifted),
            Ok(None) => return gone,
            Err(error) => return refused(answer, &error),
        }
        Share { covered: answer.covered, resident: answer.resident } = answer.lasting;
    }
    let Some(usual) = usual(policy, &answer) else { return answer };
    match lift_copies(usual) {
        Ok(Some(copies)) => Answer {
            covered: answer.covered.saturating_add(copies.covered),
            resident: answer.resident.saturating_add(copies.resident),
            lasting: answer.lasting.and(copies.lasting),
            refusal: copies.refusal.filter(|_| answer.covered == 0),
            ..copies
        },
        Ok(None) => gone,
        Err(error) => refused(answer, &error),
    }
}

/// The answer for copies of which an error has stopped some; `None` if nothing was lifted.
fn stopped(error: &SessionError, before: u64, after: u64) -> Option<Answer> {
    let covered = after.checked_sub(before).filter(|covered| *covered > 0)?;
    Some(Answer { covered, resident: covered, refusal: Some(error.in_full()), ..Answer::default() })
}

/// Memory that was lifted in place.
fn share_of(lifted: &InPlaceReport) -> Share {
    let added = lifted.segments.iter().map(|segment| segment.filled.unwrap_or(0) + segment.read_back.unwrap_or(0));
    Share { covered: newly_huge(lifted), resident: added.sum() }
}

/// The answer for copies alone.
fn answer_of(attached: &Attached) -> Answer {
    let lift = &attached.report.lift;
    let pause = attached.pause.longest.max(attached.pause.longest_of_one);
    // Memory that the program writes cannot be moved back while it runs.
    let written = lift.ranges.iter().filter(|range| range.protection.write);
    let lasting = written.map(|range| Share { covered: range.covered.bytes(), resident: range.made_resident });
    let is_nothing = lift.covered_bytes == 0;
    Answer {
        covered: lift.covered_bytes,
        resident: lift.made_resident_bytes,
        lasting: lasting.fold(Share::default(), Share::and),
        pause_microseconds: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
        refusal: (is_nothing && lift.unexpected.is_empty()).then(|| reason_of(&attached.report)),
        fault: (!lift.unexpected.is_empty()).then(|| reason_of(&attached.report)),
        warning: attached.report.still_suspended.clone(),
        sources: sources_of(&lift.ranges),
        ..Answer::default()
    }
}

fn sources_of(ranges: &[RangeOutcome]) -> Vec<SourceBytes> {
    let mut sources = BTreeMap::<(String, u64), u64>::new();
    for range in ranges {
        if let Some(source) = range.source {
            *sources.entry((source.to_string(), range.page_size.bytes())).or_default() += range.covered.bytes();
        }
    }
    let sources = sources.into_iter().filter(|(_, bytes)| *bytes > 0);
    sources.map(|((source, page_size), bytes)| SourceBytes { source, page_size, bytes }).collect()
}

/// The reason of a lift that has lifted nothing, without the name of the program.
fn reason_of(report: &LiftReport) -> String {
    let line = report.line();
    line.split_once("]: ").map_or(line.clone(), |(_, reason)| reason.to_owned())
}

/// Restores a process, and those that were forked from it: they have the copies of the lift, too.
fn restore(process: &Selected<'_>, request: &Request) -> Result<Answer, SessionError> {
    let Some(detached) = detach(process)? else { return Ok(Answer { gone: true, ..Answer::default() }) };
    let pause = u64::try_from(detached.pause.longest.as_micros()).unwrap_or(u64::MAX);
    let answer = Answer { covered: detached.restored, pause_microseconds: pause, ..Answer::default() };
    Ok(restore_forks(answer, request))
}

fn look(pid: i32) -> Result<Answer, SessionError> {
    Ok(Answer { covered: huge_bytes_of(pid)?, ..Answer::default() })
}

/// Bytes of the program's objects on huge pages.
fn huge_bytes_of(pid: i32) -> Result<u64, SessionError> {
    Ok(status_of(pid)?.coverage.objects.iter().map(|object| object.total.huge_bytes()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 4] = [Kind::Text, Kind::Shared, Kind::Anon, Kind::Jit];

    fn policy(kinds: &[Kind], max_memory: Option<u64>) -> Policy {
        Policy { kinds: Kinds::of(kinds), max_memory, ..Policy::default() }
    }

    #[test]
    fn all_kinds_together_stay_below_the_limit() {
        for (max_memory, expected) in [(Some(10), vec![Some(10), Some(6), Some(2), Some(0)]), (None, vec![None; 4])] {
            let (mut limits, mut of_copies) = (Vec::new(), None);
            let in_place = |options: InPlaceOptions<'_>| {
                limits.push(options.most);
                Ok(Some(Share { covered: 8, resident: 4 }))
            };
            let copies = |policy: Policy| {
                of_copies = Some(policy.max_memory);
                Ok(Some(Answer { covered: 1, resident: 1, pause_microseconds: 7, ..Answer::default() }))
            };
            let answer = lift_all(&policy(&ALL, max_memory), in_place, copies);
            limits.extend(of_copies);
            assert_eq!(limits, expected);
            assert_eq!((answer.covered, answer.resident, answer.pause_microseconds), (25, 13, 7));
        }
    }

    /// The process of this test, as the supervisor has chosen it.
    fn chosen() -> Request {
        let own = crate::discovery::own_identity().unwrap();
        Request {
            task: Task::Lift,
            identity: own,
            file: executed_file(own.pid),
            kinds: Vec::new(),
            pages: "auto".to_owned(),
            max_memory: None,
            state: PathBuf::new(),
            supervisor: own,
            beside: false,
            fork_seconds: 0,
            tried: Vec::new(),
        }
    }

    #[test]
    fn a_program_that_was_executed_since_the_decision_is_not_lifted() {
        assert!(executed_file(chosen().identity.pid).unwrap().stack > 0);
        assert_eq!(changed_since_decision(&chosen()), None);
        let other = chosen().file.map(|file| ExecutedFile { stack: file.stack + 1, ..file });
        let changed = Request { file: other, ..chosen() };
        assert!(changed_since_decision(&changed).unwrap().contains("another program"));
        assert_eq!(changed_since_decision(&Request { task: Task::Restore, ..changed }), None);
    }

    #[test]
    fn a_refusal_contains_the_memory_that_was_lifted_before() {
        let share = Share { covered: 8, resident: 4 };
        let no = || SessionError::Refused("no".to_owned());
        let answer = lift_all(&policy(&ALL, None), |_| Ok(Some(share)), |_| Err(no()));
        let expected = Share { covered: 24, resident: 12 };
        assert_eq!((answer.lasting, answer.covered, answer.resident), (expected, 24, 12));
        assert_eq!(answer.refusal.as_deref(), Some("no"));
        let second_fails = |options: InPlaceOptions<'_>| match options.memory {
            InPlace::Shared => Ok(Some(share)),
            _ => Err(no()),
        };
        let answer = lift_all(&policy(&ALL, None), second_fails, |_| Ok(None));
        assert_eq!((answer.lasting, answer.refusal.is_some(), answer.gone), (share, true, false));
    }
}
