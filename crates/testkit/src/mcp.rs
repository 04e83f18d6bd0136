//! A small MCP server for tests: a script for `/bin/sh`, so that a real process stands at the other end of the pipes.
//! What is expected of its tools is left to the tests.

/// The script. Its tools are `count`, `die`, `error`, `fail`, `hang`, `huge`, `lie`, `picture`, `say`, `secret`, `slow`
/// and `strange.name`; in the folder it works in, `herd.log` has a line for each call of `count` and `hang`, and
/// `herd.pids` the numbers of its processes.
pub const MCP_SERVER: &str = include_str!("mcp/herd.sh");
