//! The testkit: a scripted model server on loopback, fixture loading, golden files and byte splitting.
//! It knows no flow, no hub and no vendor's adapter; whoever tests those brings them along.

mod anthropic;
mod endpoints;
mod fixtures;
mod gemini;
mod golden;
mod harm;
mod mcp;
mod openai;
mod plan;
mod record;
mod request;
mod scenario;
mod script;
mod server;
mod speech;
mod split;
mod wire;

pub use endpoints::Endpoints;
pub use fixtures::{FixtureError, case_folders, fixture_dir, read_json, read_jsonl, read_text};
pub use golden::{GoldenMode, check_golden, compare_golden};
pub use harm::harmed;
pub use mcp::MCP_SERVER;
pub use record::{Ending, HISTORY_LIMIT, RecordedRequest, RequestKind, SECRET_PRESENT, TurnRef};
pub use scenario::{After, Block, ErrorEvent, HttpError, Matcher, Scenario, ScenarioError, Turn, Usage};
pub use script::ServerState;
pub use server::{Listening, ModelServer, ServerError};
pub use split::{Split, cut_in_two, one_byte_chunks, random_chunks, split_everywhere};
pub use wire::sorted;
