//! Suspends a program's own PR_SET_THP_DISABLE.

use super::descendants::children;
use super::{executor_for, refused};
use crate::SessionError;
use machine_facts::is_thp_off;
use process_view::{ObjectReader, ProcessFiles};
use ptrace::attach::{LiveExecutor, Target};
use std::collections::BTreeSet;

/// A program whose PR_SET_THP_DISABLE is suspended. Only [`Suspended::end`] sets it again.
pub(crate) struct Suspended {
    executor: LiveExecutor,
    pid: i32,
    /// Its children before.
    children: BTreeSet<i32>,
}

impl Suspended {
    /// Suspends it, by a call of one of the program's threads.
    ///
    /// # Errors
    /// No thread can make the call.
    pub fn begin(target: Target, reader: &mut ObjectReader) -> Result<Self, SessionError> {
        let pid = target.pid();
        let space = ProcessFiles::of(pid).maps()?;
        let objects = reader.load(pid, &space)?.objects;
        let mut executor = executor_for(target, &space, &objects)?;
        let children = children(pid).collect();
        match executor.suspend_thp_disable() {
            Ok(()) => Ok(Self { executor, pid, children }),
            Err(error) => Err(refused(executor, &error)),
        }
    }

    /// Sets it again. Returns why that failed, or which processes have begun without it.
    pub fn end(self) -> Option<String> {
        let Self { executor, pid, children: before } = self;
        executor.finish().still_suspended.or_else(|| without_setting(pid, &before))
    }
}

/// Names the children that a program has started while its setting was suspended, for which it is off.
fn without_setting(pid: i32, before: &BTreeSet<i32>) -> Option<String> {
    let is_on = |child: &i32| ProcessFiles::of(*child).text("status").is_ok_and(|status| !is_thp_off(&status));
    let started: Vec<_> = children(pid).filter(|child| !before.contains(child)).filter(is_on).collect();
    let numbers = started.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    (!started.is_empty()).then(|| {
        format!(
            "processes {numbers} began while its PR_SET_THP_DISABLE was suspended, and do not have that setting; fix: restart them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_without_the_setting_are_named() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let named = |before: &[i32]| without_setting(own, &before.iter().copied().collect()).unwrap_or_default();
        let (started, known) = (named(&[]), named(&[pid]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(started.contains(&pid.to_string()) && started.contains("PR_SET_THP_DISABLE"), "{started}");
        assert!(!known.contains(&pid.to_string()), "{known}");
    }
}
