//! The end of a command: its exit status, the message of a failure, and signals that request the end.

use crate::output::fail;
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit status of Pagelift's own failures, as in env(1), nohup(1) and timeout(1).
pub const OWN_FAILURE: u8 = 125;

/// The status to exit with; a failure is printed.
pub fn finished(result: anyhow::Result<u8>) -> u8 {
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            fail(&error);
            OWN_FAILURE
        }
    }
}

/// A reader that closes the pipe, as in `pagelift status | head`, is not a failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is))
}

/// Set by SIGINT, SIGTERM and SIGHUP from now on, which no longer end this program: the answer so far is wanted, and
/// everything as it was.
pub fn interruptions() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone()).context("handling signals")?;
    }
    Ok(interrupted)
}
