//! The console: a live session's events as lines or as a picture that is redrawn, and questions that are
//! answered on the terminal. It only watches the session.

mod agent;
mod asker;
mod editor;
mod form;
pub(crate) mod format;
mod keys;
mod line;
pub(crate) mod look;
mod painter;
mod permission;
mod plain;
mod question;
mod row;
mod screen;
mod spent;
mod state;
mod summary;
mod tree;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use crate::safe::{clean, harmless};
pub(crate) use agent::call;
pub(crate) use asker::AnswerSinks;
pub(crate) use form::fields;
pub(crate) use line::{Line, Tone};
pub(crate) use painter::{Painter, Setting};
pub(crate) use permission::Permission;
pub(crate) use plain::{Arguments, Detail, PlainLog, head};
pub(crate) use question::{block as question, read as read_answer, unattended};
pub(crate) use row::{EdgeCounts, FrameRow, NodeRow, inside, label};
pub(crate) use screen::{Device, restore};
pub(crate) use spent::Spent;
pub(crate) use state::{ConsoleState, EarlyEnd};
