//! What the tests of all agent CLIs share, and the faults that every one of them survives.

pub(crate) mod replay;
