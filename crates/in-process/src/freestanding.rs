//! What a library without a runtime brings along.

use crate::calls;
use crate::own_state::OwnMemory;
use alloc::string::ToString;

#[global_allocator]
static MEMORY: OwnMemory = OwnMemory;

/// A fault of the library itself: says where, and ends the process as a failed assertion does.
#[panic_handler]
fn panic(fault: &core::panic::PanicInfo<'_>) -> ! {
    let _ = calls::write(2, b"pagelift: a fault of the library: ");
    let _ = calls::write(2, fault.to_string().as_bytes());
    let _ = calls::write(2, b"\n");
    calls::abort()
}
