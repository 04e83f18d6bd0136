//! The real OpenCode by its server in the cases that it shares.

use inspan_model_server::RecordedRequest;
use serde_json::{Value, json};

use super::checks::same;
use super::servers::{Kind, agent};

pub(super) struct OpenCode;

impl Kind for OpenCode {
    const NAME: &'static str = "opencode";
    const TEXT: &'static str = "text";
    const SESSION: &'static str = "sessionId";
    const TELLS_COST: bool = true;
    const STALL_MS: u64 = 6000;
    const UNKNOWN: &'static str = "ses_00000000000000000000000000";

    fn free() -> Value {
        json!({ "allowedTools": ["bash"] })
    }

    /// As it does unless told otherwise.
    fn asking() -> Value {
        json!({})
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "tool_use", "name": "bash", "input": {
            "command": command, "description": "work",
        } }] })
    }

    fn going_on(prompt: &str, session: &Value) -> Value {
        agent::<Self>(prompt, &json!({ "resume": session }))
    }

    /// Of what it would try again the program tells the words alone, so they are such as vendors use.
    fn refusal(status: u16) -> Value {
        let message = if status == 429 { "Rate limit reached for requests" } else { "refused" };
        json!({ "status": status, "message": message })
    }

    fn conversation(request: &RecordedRequest) -> Vec<String> {
        let messages = request.body["messages"].as_array().into_iter().flatten();
        let spoken =
            messages.filter(|message| matches!(message["role"].as_str(), Some("user" | "assistant")));
        let texts = spoken.filter_map(|message| {
            let parts = message["content"].as_array().into_iter().flatten();
            let joined: String = parts.filter_map(|part| part["text"].as_str()).collect();
            let text = message["content"].as_str().unwrap_or(&joined);
            Some(format!("{}: {text}", message["role"].as_str()?))
        });
        texts.collect()
    }

    fn asked_for(_: &Value, requests: &[RecordedRequest]) -> anyhow::Result<()> {
        same("the requests", &requests.len(), &1)
    }
}
