//! The transports that adapters and nodes share: requests over HTTP, MCP servers, the lines of a program's output, and
//! the search for a program by its name.

mod http;
mod lines;
mod mcp;
mod program;

pub use http::{Answer, Broken, Clocks, Http, Request, duration, http_date, retry_after, wait_in};
pub use lines::{LINE_LIMIT, Line, LineSplitter, whole_pairs};
pub use mcp::{Close, Connection, McpContext, McpResult, McpServer, filled};
pub use program::{ProgramQuery, directory, find, is_found, not_a_directory};
// The types of an HTTP request that are part of this interface.
pub use reqwest::{
    Method, StatusCode, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
