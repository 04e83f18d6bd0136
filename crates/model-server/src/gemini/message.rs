//! The answers of the Gemini API as types, so that key order is fixed by declaration.

use serde::Serialize;
use serde_json::Value;

/// One event of a stream, or the whole answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GeminiAnswer {
    pub(super) candidates: Vec<Candidate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_metadata: Option<GeminiUsage>,
    pub(super) model_version: String,
    pub(super) response_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate {
    pub(super) content: GeminiContent,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) finish_reason: Option<String>,
    pub(super) index: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct GeminiContent {
    pub(super) parts: Vec<GeminiPart>,
    pub(super) role: &'static str,
}

/// A text, a thought (a text that says so), or a call.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GeminiPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) function_call: Option<FunctionCall>,
}

impl GeminiPart {
    pub(super) fn text(text: String) -> Self {
        Self { text: Some(text), ..Self::default() }
    }

    pub(super) fn thought(text: String) -> Self {
        Self { text: Some(text), thought: true, ..Self::default() }
    }
}

/// A call comes whole, in streams too.
#[derive(Debug, Serialize)]
pub(super) struct FunctionCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) args: Value,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GeminiUsage {
    /// Cached tokens are included, unlike in the scenario.
    pub(super) prompt_token_count: u64,
    pub(super) cached_content_token_count: u64,
    /// Thoughts are not included, unlike in the scenario.
    pub(super) candidates_token_count: u64,
    pub(super) thoughts_token_count: u64,
    pub(super) total_token_count: u64,
}

/// The body of an HTTP error, and of an error within a stream.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    pub(super) error: ErrorObject,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorObject {
    pub(super) code: u16,
    pub(super) message: String,
    pub(super) status: String,
}
