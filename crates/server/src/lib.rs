//! The HTTP API, the WebSocket and the web page of sessions, behind one guard.

mod page;

pub use page::{Asset, CONTENT_SECURITY_POLICY, asset};
