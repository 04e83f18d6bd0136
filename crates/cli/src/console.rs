//! The console: a live session's events as lines or as a picture that is redrawn, and questions that are
//! answered on the terminal. What happens in the session is decided elsewhere; the console only looks on.

mod agent;
mod format;
mod line;
mod look;
mod plain;
mod spent;
mod state;
mod summary;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use line::{Line, Tone, clean};
