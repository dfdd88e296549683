//! Heaps on huge pages: decided at a start, collapsed in place while the program runs, read back from a preloaded heap.

mod calm;
mod in_place;
mod preloaded;
mod start;
mod watcher;

pub use calm::{CalmStart, calm};
pub use heap_choice::Forced;
pub(crate) use in_place::anonymous;
pub use in_place::{Anonymous, HeapInPlace, collapse_in_place};
pub use preloaded::{PreloadedHeapView, RunningHeap, preloaded_heap};
pub use start::{
    HeapAtExec, HeapDecision, HeapOptions, HeapPlan, HeapStart, heap_at_exec, heap_plan, library, prepare_heap,
    with_variables,
};
pub(crate) use watcher::collapse_while_it_runs;
