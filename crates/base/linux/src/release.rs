//! The release of the running kernel.

pub use linux_raw::kernel_release;
