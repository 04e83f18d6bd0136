//! The console: a live session's events as lines or as a picture that is redrawn, and questions that are
//! answered on the terminal. It only watches the session.

mod asker;
mod editor;
mod form;
mod painter;
mod plain;
mod question;
mod screen;
mod summary;
mod tree;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use asker::AnswerSinks;
pub(crate) use form::fields;
pub(crate) use painter::{Painter, Setting};
pub(crate) use plain::{ArgumentsDisplay, Detail, PlainLog, head};
pub(crate) use question::{block as question, read as read_answer, unattended};
pub(crate) use screen::{Device, restore};
