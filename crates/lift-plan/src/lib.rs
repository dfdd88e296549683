//! Pure planner.
