//! Tests of what is special about this vendor; `api/tests` has those that hold for all.

mod conversations;
mod server;
mod threads;
mod tools;

crate::api::tests::vendor_tests!(server::TestApi);
