//! The parts that a library without a runtime provides itself.

use crate::own_memory::OwnMemory;
use alloc::string::ToString;

/// In the archive: runs before the other constructors of the object that it is linked into. The shared library has a
/// separate start.
#[cfg(not(feature = "preload"))]
#[used]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".init_array.00001")]
static pagelift_at_start: extern "C" fn() = at_start;

#[cfg(not(feature = "preload"))]
extern "C" fn at_start() {
    crate::fork_handlers::register_at_start();
}

#[global_allocator]
static MEMORY: OwnMemory = OwnMemory;

/// A fault of the library itself: says where, and ends the process as a failed assertion does.
#[panic_handler]
fn panic(fault: &core::panic::PanicInfo<'_>) -> ! {
    let _ = linux_raw::write(2, b"pagelift: a fault of the library: ");
    let _ = linux_raw::write(2, fault.to_string().as_bytes());
    let _ = linux_raw::write(2, b"\n");
    linux_raw::abort()
}
