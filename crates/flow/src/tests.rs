//! Tests that hold the pure half against real runs.

mod explain;
