//! What the tests of the adapters share whose turns are exchanges. What is expected of a vendor is left to those tests.

pub(crate) mod replay;
