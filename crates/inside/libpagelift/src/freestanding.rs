//! The parts that a library without a runtime provides itself.

use crate::own_memory::OwnMemory;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

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
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    if !HAS_BEGUN.swap(true, Ordering::Relaxed) {
        let _ = writeln!(StandardError, "pagelift: a fault of the library: {fault}");
    }
    linux_raw::abort()
}

/// Writes without allocation: there may be no memory.
struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        linux_raw::write(2, text.as_bytes()).map(drop).map_err(|_| fmt::Error)
    }
}
