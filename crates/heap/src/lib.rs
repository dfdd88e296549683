//! Allocator choice.
