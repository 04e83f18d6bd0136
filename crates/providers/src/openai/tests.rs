//! Tests of what is special about this vendor; `api/tests` has those that hold for all.

mod conversations;
mod replay;
mod server;
mod threads;
mod tools;

pub(crate) use server::TestApi;
