//! Conversations against the scripted model server: what each request holds, in this process and in another, after
//! turns that ended, failed or were cancelled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inspan_protocol::{
    AgentError, Environment, ErrorCode, ProviderSessionId, StopReason, StreamEvent, Usage,
};
use inspan_testkit::{Block, Ending, ModelServer, Scenario, Turn};
use serde_json::{Value, json};

use super::server::{World, text, told};
use crate::{AnthropicProvider, Conversation, ConversationClaim, ConversationStore};

const SOON: Duration = Duration::from_secs(20);

fn server(turns: impl IntoIterator<Item = Turn>) -> ModelServer {
    ModelServer::start(Scenario { aux_detect: false, ..Scenario::of(turns) }).unwrap()
}

fn session_of(events: &[StreamEvent]) -> ProviderSessionId {
    match &events[0] {
        StreamEvent::Session { session_id } => session_id.clone(),
        other => panic!("{other:?} came before the session"),
    }
}

/// Who spoke and what, without marks for the cache.
fn spoken(server: &ModelServer, request: usize) -> Vec<String> {
    let body = server.requests()[request].body.clone();
    let block = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        other => format!("<{}>", other.unwrap_or("none")),
    };
    let message = |message: &Value| {
        let blocks: Vec<String> = message["content"].as_array().unwrap().iter().map(block).collect();
        format!("{}: {}", message["role"].as_str().unwrap(), blocks.join(" | "))
    };
    body["messages"].as_array().unwrap().iter().map(message).collect()
}

#[tokio::test]
async fn a_turn_says_its_session_first_and_all_it_came_to() {
    let server = server([Turn::text("All done.")]);
    let world = World::new(&server.base_url());
    let (events, output) = world.turn(json!({ "prompt": "hello" })).await;
    let mut output = serde_json::to_value(output.unwrap()).unwrap();
    assert!(output["durationMs"].take().is_u64());
    let usage = json!({
        "inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "cacheCreationTokens": 0, "reasoningTokens": 0,
    });
    let expected = json!({
        "text": "All done.", "sessionId": session_of(&events), "usage": usage, "model": "claude-sonnet-5-5",
        "numTurns": 1, "stopReason": "complete", "durationMs": null,
    });
    assert_eq!((output, text(&events)), (expected, "All done.".to_owned()));
    let request = &server.requests()[0];
    let body = json!({
        "model": "claude-sonnet-5-5", "max_tokens": 32000, "stream": true,
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "hello", "cache_control": { "type": "ephemeral" } },
        ] }],
    });
    assert_eq!(
        (&request.body, request.path.as_str(), request.ending),
        (&body, "/v1/messages", Ending::Complete)
    );
    let headers = ["anthropic-version", "content-type", "accept", "x-api-key"]
        .map(|name| request.headers[name].as_str());
    assert_eq!(headers, ["2023-06-01", "application/json", "text/event-stream", "<present>"]);
}

#[tokio::test]
async fn a_session_and_a_message_are_enough_in_a_new_process_too() {
    let thought = Turn { blocks: vec![Block::thinking("hm"), Block::text("One.")], ..Turn::default() };
    let server = server([thought, Turn::text("Two."), Turn::text("Three.")]);
    let mut world = World::new(&server.base_url());
    let options = json!({ "model": "claude-opus-4-1", "systemPrompt": "Be brief.", "thinking": "low", "temperature": 1.0 });
    let (events, _) = world.turn(json!({ "prompt": "first", "options": options })).await;
    let session = session_of(&events);
    world.turn(json!({ "prompt": "second", "options": { "resume": session } })).await.1.unwrap();
    // Nothing of the first process is left but the files.
    world.provider = AnthropicProvider::new();
    let (events, output) = world
        .turn(json!({ "prompt": "third", "options": { "resume": session, "model": "claude-haiku-4-5" } }))
        .await;
    assert_eq!((session_of(&events), output.unwrap().text), (session, "Three.".to_owned()));
    let all =
        ["user: first", "assistant: <thinking> | One.", "user: second", "assistant: Two.", "user: third"];
    assert_eq!([spoken(&server, 1), spoken(&server, 2)], [all[..3].to_vec(), all.to_vec()]);
    let asked = |request: usize| {
        let body = server.requests()[request].body.clone();
        json!([
            body["model"],
            body["system"][0]["text"],
            body["thinking"]["budget_tokens"],
            body["max_tokens"],
            body["temperature"]
        ])
    };
    assert_eq!(
        [asked(0), asked(1), asked(2)],
        [
            json!(["claude-opus-4-1", "Be brief.", 4096, 12288, 1.0]),
            json!(["claude-opus-4-1", "Be brief.", 4096, 12288, 1.0]),
            json!(["claude-haiku-4-5", "Be brief.", 4096, 12288, 1.0]),
        ]
    );
}

#[tokio::test]
async fn a_turn_that_failed_takes_its_message_back() {
    let broken = Turn { truncate_after: Some(5), ..Turn::text("never whole") };
    let server = server([Turn::text("One."), Turn::error(529), broken, Turn::text("Two.")]);
    let world = World::new(&server.base_url());
    let session = session_of(&world.turn(json!({ "prompt": "first" })).await.0);
    let again = json!({ "prompt": "second", "options": { "resume": session } });
    let failed = world.turn(again.clone()).await;
    assert_eq!(told(&failed).0, ErrorCode::Overloaded);
    assert_eq!(failed.1.unwrap_err().detail.unwrap()["sessionId"], json!(session));
    assert_eq!(told(&world.turn(again.clone()).await).0, ErrorCode::Network);
    assert_eq!(world.turn(again).await.1.unwrap().text, "Two.");
    assert_eq!(spoken(&server, 3), ["user: first", "assistant: One.", "user: second"]);
}

#[tokio::test]
async fn a_first_turn_that_failed_can_be_gone_on_with() {
    let server = server([Turn::error(500), Turn::text("One.")]);
    let world = World::new(&server.base_url());
    let session = session_of(&world.turn(json!({ "prompt": "lost" })).await.0);
    world.turn(json!({ "prompt": "first", "options": { "resume": session } })).await.1.unwrap();
    assert_eq!(spoken(&server, 1), ["user: first"]);
}

#[tokio::test]
async fn a_cancelled_turn_keeps_what_was_said_and_goes_on() {
    let stalls = Turn { stall_after: Some(6), ..Turn::text("said before it was cancelled") };
    let silent = Turn { hang: true, ..Turn::default() };
    let server = server([stalls, silent, Turn::text("Back.")]);
    let world = World::new(&server.base_url());
    let mut said = 0;
    let (events, output) = world
        .turn_in(json!({ "prompt": "first" }), world.context(), |event, context| {
            said += usize::from(matches!(event, StreamEvent::Text { .. }));
            if said == 2 {
                context.cancel.cancel();
            }
        })
        .await;
    let (session, output) = (session_of(&events), output.unwrap());
    let said = text(&events);
    let usage = Usage { input_tokens: 100, output_tokens: 1, ..Usage::default() };
    assert_eq!(
        (output.stop_reason, output.text.as_str(), output.session_id, output.usage),
        (StopReason::Aborted, said.as_str(), Some(session.clone()), usage)
    );
    server.until(SOON, |seen| seen[0].ending == Ending::ClientGone).await.unwrap();

    // Cancelled before a byte came: the message stands, and there is no answer to it.
    let context = world.context();
    let cancel = context.cancel.clone();
    let resumed =
        world.turn_in(json!({ "prompt": "second", "options": { "resume": session } }), context, |_, _| {});
    let hanging = async {
        server.until(SOON, |seen| seen.len() == 2 && seen[1].ending == Ending::Stalled).await.unwrap();
        cancel.cancel();
    };
    let ((_, output), ()) = tokio::join!(resumed, hanging);
    let output = output.unwrap();
    assert_eq!((output.stop_reason, output.text.as_str()), (StopReason::Aborted, ""));

    let third = world.turn(json!({ "prompt": "third", "options": { "resume": session } })).await;
    assert_eq!(third.1.unwrap().text, "Back.");
    let expected = [
        "user: first".to_owned(),
        format!("assistant: {said}"),
        "user: second".to_owned(),
        "user: third".to_owned(),
    ];
    assert_eq!(spoken(&server, 2), expected);
}

#[tokio::test]
async fn a_turn_whose_process_died_leaves_its_message() {
    let server = server([Turn::text("Back.")]);
    let world = World::new(&server.base_url());
    let input = serde_json::from_value(json!({ "prompt": "first" })).unwrap();
    let mut stream = inspan_protocol::Provider::execute(&world.provider, input, world.context());
    let first = futures::StreamExt::next(&mut stream).await;
    let Some(Ok(inspan_protocol::ProviderItem::Event(event))) = first else { panic!("{first:?}") };
    let session = session_of(&[event]);
    // Held by its turn until that is gone.
    let resume = json!({ "prompt": "second", "options": { "resume": session } });
    assert_eq!(told(&world.turn(resume.clone()).await).1, "sessionBusy");
    drop(stream);
    assert_eq!(world.turn(resume).await.1.unwrap().text, "Back.");
    assert_eq!(spoken(&server, 0), ["user: first", "user: second"]);
}

#[tokio::test]
async fn structured_output_is_asked_for_in_the_vendors_form() {
    let verdict = json!({ "verdict": "approved" });
    let server =
        server([Turn { structured: Some(verdict.clone()), ..Turn::default() }, Turn::text("no JSON")]);
    let world = World::new(&server.base_url());
    let schema = json!({ "type": "object", "required": ["verdict"], "properties": { "verdict": { "type": "string", "minLength": 1 } } });
    let input = json!({ "prompt": "judge", "options": { "outputSchema": schema, "thinking": "xhigh" } });
    assert_eq!(world.turn(input.clone()).await.1.unwrap().structured_output, Some(verdict));
    assert_eq!(world.turn(input).await.1.unwrap().structured_output, None);
    let body = server.requests()[0].body.clone();
    let format = json!({ "type": "json_schema", "schema": {
        "type": "object", "required": ["verdict"], "additionalProperties": false,
        "properties": { "verdict": { "type": "string", "description": "{minLength: 1}" } },
    } });
    assert_eq!(body["output_config"], json!({ "format": format, "effort": "xhigh" }));
    assert_eq!(body["thinking"], json!({ "type": "adaptive", "display": "summarized" }));
}

#[tokio::test]
async fn a_damaged_conversation_is_named_and_nobody_is_asked() {
    let server = server([Turn::text("One.")]);
    let world = World::new(&server.base_url());
    let session = session_of(&world.turn(json!({ "prompt": "first" })).await.0);
    let path = world.folder.path().join(format!("conversations/{session}.json"));
    let whole = std::fs::read_to_string(&path).unwrap();
    let resume = json!({ "prompt": "second", "options": { "resume": session } });
    for (bytes, kind) in [
        (whole[..whole.len() / 2].to_owned(), "sessionDamaged"),
        (whole.replace("\"settings\":{", "\"settings\":{\"maxTokens\":\"many\","), "sessionDamaged"),
        (whole.replace("\"provider\":\"anthropic\"", "\"provider\":\"other\""), "sessionNotFound"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let turn = world.turn(resume.clone()).await;
        assert_eq!(told(&turn), (ErrorCode::InvalidRequest, kind.to_owned(), String::new()));
        assert!(turn.1.unwrap_err().message.contains(session.as_str()));
    }
    assert_eq!(server.requests().len(), 1);
}

/// A store that takes a conversation so many times, and then no more.
#[derive(Clone)]
struct Filling(Arc<Mutex<(usize, Option<Conversation>)>>);

impl ConversationStore for Filling {
    fn claim(
        &self,
        _: &ProviderSessionId,
        _: &Environment,
    ) -> Result<Box<dyn ConversationClaim>, AgentError> {
        Ok(Box::new(self.clone()))
    }
}

impl ConversationClaim for Filling {
    fn read(&mut self) -> Result<Conversation, AgentError> {
        self.0.lock().unwrap().1.clone().ok_or_else(|| AgentError::new(ErrorCode::InvalidRequest, "none"))
    }

    fn write(&mut self, conversation: &Conversation) -> Result<(), AgentError> {
        let mut kept = self.0.lock().unwrap();
        kept.0 = kept.0.checked_sub(1).ok_or_else(|| AgentError::new(ErrorCode::ConfigInvalid, "full"))?;
        kept.1 = Some(conversation.clone());
        Ok(())
    }
}

#[tokio::test]
async fn a_store_that_is_full_costs_no_answer() {
    let server = server([Turn::text("One.")]);
    let mut world = World::new(&server.base_url());
    let filling = |places| {
        let store = Filling(Arc::new(Mutex::new((places, None))));
        (AnthropicProvider::with_store(Arc::new(store.clone())), store)
    };
    // Before anything was paid for it is an error.
    world.provider = filling(0).0;
    let refused = world.turn(json!({ "prompt": "first" })).await;
    assert_eq!((told(&refused).0, server.requests().len()), (ErrorCode::ConfigInvalid, 0));
    // Afterwards the answer is given, and the user is warned.
    let (provider, store) = filling(1);
    world.provider = provider;
    let (events, output) = world.turn(json!({ "prompt": "first" })).await;
    let warning = StreamEvent::Warning {
        code: "sessionNotKept".to_owned(),
        message: "the answer is not in the conversation: full".to_owned(),
    };
    assert_eq!((events.last(), output.unwrap().text.as_str()), (Some(&warning), "One."));
    let kept = store.0.lock().unwrap().1.clone().unwrap();
    assert_eq!(kept.messages, [json!({ "role": "user", "content": [{ "type": "text", "text": "first" }] })]);
    assert_eq!(world.kept(), "");
}
