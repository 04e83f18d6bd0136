//! Tests of what is special about this vendor; `api/tests` has those that hold for all.

mod conversations;
mod harmed;
mod server;
mod tools;

crate::api::tests::vendor_tests!(server::TestApi);
