//! Suspends a program's own PR_SET_THP_DISABLE.

use super::{executor_for, refused};
use crate::SessionError;
use process_view::{ObjectReader, ProcessFiles};
use ptrace::attach::{LiveExecutor, Target};

/// A program whose PR_SET_THP_DISABLE is suspended. Only [`Suspended::end`] sets it again.
pub(crate) struct Suspended(LiveExecutor);

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
        match executor.suspend_thp_disable() {
            Ok(()) => Ok(Self(executor)),
            Err(error) => Err(refused(executor, &error)),
        }
    }

    /// Sets it again. Returns why that failed.
    pub fn end(self) -> Option<String> {
        self.0.finish().still_suspended
    }
}
