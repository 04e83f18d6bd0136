//! Flows as tools of an MCP server, and the sessions that its clients start.
