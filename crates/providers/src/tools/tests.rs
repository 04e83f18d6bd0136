//! The toolbox with tools of a program and with real MCP servers: names, permissions, answers, faults and ends.

mod harness;
mod host;
mod servers;
