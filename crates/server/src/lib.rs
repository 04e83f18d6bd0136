//! The HTTP API, the WebSocket and the web page of sessions, behind one guard.
