//! The answers of the OpenAI Responses format as types, so that key order is fixed by declaration.
//! Their content and order are decided in `answer.rs`.

use serde::Serialize;
use serde_with::skip_serializing_none;

/// One event of a stream. Of the keys after the first two, each kind of event has a few.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
pub(super) struct ResponsesEvent<'a> {
    /// The name on the `event:` line too.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) sequence_number: usize,
    pub(super) response: Option<&'a ResponseBody>,
    pub(super) item_id: Option<&'a str>,
    pub(super) output_index: Option<usize>,
    pub(super) content_index: Option<usize>,
    pub(super) summary_index: Option<usize>,
    pub(super) item: Option<&'a Item>,
    pub(super) part: Option<&'a ResponsesContent>,
    pub(super) delta: Option<&'a str>,
    pub(super) text: Option<&'a str>,
    pub(super) refusal: Option<&'a str>,
    pub(super) arguments: Option<&'a str>,
    pub(super) input: Option<&'a str>,
}

/// The event that ends a stream with an error.
#[derive(Debug, Serialize)]
pub(super) struct StreamError {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) sequence_number: usize,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

/// The whole answer, or as much of it as there is yet.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ResponseBody {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) status: &'static str,
    pub(super) error: Option<ResponseFailure>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) model: String,
    pub(super) output: Vec<Item>,
    pub(super) parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    /// Nothing is stored between requests.
    pub(super) store: bool,
    pub(super) usage: Option<ResponsesUsage>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ResponseFailure {
    pub(super) code: String,
    pub(super) message: String,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Incomplete {
    pub(super) reason: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<ResponsesContent>,
    },
    Reasoning {
        id: String,
        summary: Vec<ResponsesContent>,
        encrypted_content: Option<String>,
    },
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        arguments: String,
    },
    CustomToolCall {
        id: String,
        status: &'static str,
        call_id: String,
        name: String,
        input: String,
    },
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ResponsesContent {
    OutputText { text: String, annotations: Vec<()> },
    Refusal { refusal: String },
    SummaryText { text: String },
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ResponsesUsage {
    /// Cached tokens are included, unlike in the scenario.
    pub(super) input_tokens: u64,
    pub(super) input_tokens_details: ResponsesInputDetails,
    pub(super) output_tokens: u64,
    pub(super) output_tokens_details: ResponsesOutputDetails,
    pub(super) total_tokens: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ResponsesInputDetails {
    pub(super) cached_tokens: u64,
    pub(super) cache_write_tokens: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ResponsesOutputDetails {
    pub(super) reasoning_tokens: u64,
}
