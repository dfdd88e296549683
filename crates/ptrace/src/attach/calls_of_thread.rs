//! A thread of a running program that makes calls while it is stopped.

use super::call_page::{CallPage, SCRATCH_BYTES};
use super::remote_call::RemoteCaller;
use crate::remote::RemoteMemory;
use crate::remote::arch::numbers;
use crate::remote::calls::{self, failed};
use crate::remote::injection::InjectError;
use address_space::{Address, AddressRange};
use lift_execution::CallError;
use linux::pagemap::Pagemap;
use nix::errno::Errno;

/// A stopped thread that executes calls.
pub struct Calls<'a, 'b> {
    pub(super) caller: RemoteCaller<'a>,
    pub(super) page: &'b CallPage,
    pub(super) memory: &'b RemoteMemory,
    pub(super) pagemap: &'b Pagemap,
    /// Why a call could not be made; the first such error.
    pub(super) failed: Option<InjectError>,
}

impl Calls<'_, '_> {
    /// Makes one call.
    ///
    /// # Errors
    /// Those of the call, or of making it.
    pub fn call(&mut self, name: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64, CallError> {
        match self.caller.call(number, arguments) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(errno)) => Err(CallError { call: name, errno: errno as i32 }),
            Err(error) => {
                let failed = calls::not_made(name, &error);
                self.failed.get_or_insert(error);
                Err(failed)
            }
        }
    }

    /// Makes one `madvise`.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn advise(&mut self, name: &'static str, range: AddressRange, advice: i32) -> Result<(), CallError> {
        self.call(name, numbers::SYS_madvise, [range.start().0, range.len(), advice as u64, 0, 0, 0]).map(drop)
    }

    /// Keeps a staging copy out of children (MADV_DONTFORK), or unmaps it: a fork would share its huge pages with the
    /// child, and filling them would split them. Returns its address.
    pub(super) fn keep_from_children(&mut self, copy: AddressRange) -> Result<Address, CallError> {
        if let Err(error) = self.advise("madvise(MADV_DONTFORK)", copy, libc::MADV_DONTFORK) {
            let _ = self.call("munmap", numbers::SYS_munmap, [copy.start().0, copy.len(), 0, 0, 0, 0]);
            return Err(error);
        }
        Ok(copy.start())
    }

    pub(super) fn disable_thp(&mut self, disable: u64, flags: u64) -> Result<(), CallError> {
        let arguments = [libc::PR_SET_THP_DISABLE as u64, disable, flags, 0, 0, 0];
        self.call("prctl(PR_SET_THP_DISABLE)", numbers::SYS_prctl, arguments).map(drop)
    }

    /// Writes bytes to the memory for arguments and returns their address; at most [`SCRATCH_BYTES`].
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn place(&mut self, bytes: &[u8]) -> Result<Address, CallError> {
        if bytes.len() > SCRATCH_BYTES {
            return Err(CallError { call: "placing arguments", errno: Errno::ENAMETOOLONG as i32 });
        }
        let at = self.page.scratch();
        self.memory.write(at, bytes).map_err(|error| failed("writing memory", &error))?;
        Ok(at)
    }
}
