//! The common code of all binaries in `fuzz_targets`.

pub use hostile_input;
pub use libfuzzer_sys;

/// Hands libFuzzer's inputs to the target of this name.
#[macro_export]
macro_rules! fuzz {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            let target = $crate::hostile_input::target($name).expect("a target of this name");
            (target.run)(bytes);
        });
    };
}
