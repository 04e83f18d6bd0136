//! A scripted model server on loopback: it answers requests in the formats of Anthropic, OpenAI and Gemini as a
//! scenario says, with the delays, errors and faults that the scenario requests, and records the requests.

mod anthropic;
mod gemini;
mod openai;
mod plan;
mod record;
mod scenario;
mod script;
mod server;
mod speech;
mod wire;

pub use record::{ExchangeState, HISTORY_LIMIT, RecordedRequest, RequestKind, SECRET_PRESENT, TurnRef};
pub use scenario::{After, Block, ErrorEvent, HttpError, Matcher, Scenario, ScenarioError, Turn, Usage};
pub use script::ServerState;
pub use server::{Endpoints, Listening, ModelServer, ServerError};
pub use wire::sorted;
