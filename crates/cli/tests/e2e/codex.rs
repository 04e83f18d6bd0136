//! The real Codex by its app server in the cases that it shares, and the one that only it has.

use anyhow::Context as _;
use inspan_model_server::RecordedRequest;
use inspan_protocol::MessageMode;
use inspan_testkit::Sandbox;
use serde_json::{Value, json};

use super::checks::{count, main_requests, same, says, serve};
use super::person::{self, Step};
use super::servers::{Kind, agent};

pub(super) struct Codex;

impl Kind for Codex {
    const NAME: &'static str = "codex";
    const TEXT: &'static str = "code";
    const SESSION: &'static str = "sessionToken";
    const TELLS_COST: bool = false;
    const STALL_MS: u64 = 1500;
    const UNKNOWN: &'static str = "00000000-0000-4000-8000-00000000dead";

    fn free() -> Value {
        json!({ "approvalPolicy": "never", "sandbox": "danger-full-access" })
    }

    fn asking() -> Value {
        json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" })
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "shell", "command": command }] })
    }

    fn going_on(prompt: &str, session: &Value) -> Value {
        let mut again = agent::<Self>(prompt, &json!({}));
        again["nodes"][0]["input"]["sessionToken"] = session.clone();
        again
    }

    fn refusal(status: u16) -> Value {
        json!({ "status": status })
    }

    fn conversation(request: &RecordedRequest) -> Vec<String> {
        let items = request.body["input"].as_array().into_iter().flatten();
        let spoken = items.filter(|item| matches!(item["role"].as_str(), Some("user" | "assistant")));
        let texts = spoken.flat_map(|item| {
            let role = item["role"].as_str().unwrap_or_default();
            let parts = item["content"].as_array().into_iter().flatten();
            parts.filter_map(move |part| Some(format!("{role}: {}", part["text"].as_str()?)))
        });
        texts.filter(|text| !text.starts_with("user: <") && !text.starts_with("user: # AGENTS.md")).collect()
    }

    fn asked_for(schema: &Value, requests: &[RecordedRequest]) -> anyhow::Result<()> {
        same("the schema", &requests[0].body["text"]["format"]["schema"], schema)
    }
}

pub(super) fn steered(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let text = "One word after another, for as long as it may take to be steered.";
    let slow = json!({ "blocks": [{ "type": "text", "text": text, "chunks": 60 }], "chunkMs": 200 });
    let server = serve(sandbox, &[slow, says("Briefly, then.")])?;
    let step = Step::after("agent:text", 3, |hub| {
        let run = hub.active_runs().pop().ok_or("no run is active")?;
        hub.send_to_run(run, "Be brief.", MessageMode::Steer).map_err(|error| error.to_string())
    });
    let result = person::run(sandbox, &agent::<Codex>("role=slow. Talk.", &json!({})), [step])?;
    same("the outcome", &result.outcome, &inspan_protocol::Outcome::Success)?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    same("steered, runs", &["agent:steer", "agent:start"].map(|name| count(&events, name)), &[1, 1])?;
    let strength = events.iter().find(|envelope| envelope.event.name() == "agent:steer");
    let strength = serde_json::to_value(strength.context("nothing was steered")?)?;
    same(
        "how",
        &strength.pointer("/event/strength").or(strength.pointer("/event/payload/strength")).cloned(),
        &Some(json!("native")),
    )?;
    let said = Codex::conversation(main_requests(&server).last().context("no request came")?);
    same("the last words", &said.last().cloned(), &Some("user: Be brief.".to_owned()))
}
