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
use crate::{Conversation, ConversationClaim, ConversationStore, OpenAiProvider};

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

/// Who spoke and what.
fn spoken(server: &ModelServer, request: usize) -> Vec<String> {
    let body = server.requests()[request].body.clone();
    let item = |item: &Value| match (item["role"].as_str(), item["type"].as_str()) {
        (Some(role), _) => format!("{role}: {}", item["content"][0]["text"].as_str().unwrap()),
        (None, kind) => format!("<{}>", kind.unwrap_or("none")),
    };
    body["input"].as_array().unwrap().iter().map(item).collect()
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
    let session = session_of(&events);
    let expected = json!({
        "content": "All done.", "threadId": session, "text": "All done.", "sessionId": session, "usage": usage,
        "model": "gpt-5.6-terra", "numTurns": 1, "stopReason": "complete", "durationMs": null,
    });
    assert_eq!((output, text(&events)), (expected, "All done.".to_owned()));
    let request = &server.requests()[0];
    let body = json!({
        "model": "gpt-5.6-terra", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": session, "input": [
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hello" }] },
        ],
    });
    assert_eq!(
        (&request.body, request.path.as_str(), request.ending),
        (&body, "/v1/responses", Ending::Complete)
    );
    let headers = ["content-type", "accept", "authorization"].map(|name| request.headers[name].as_str());
    assert_eq!(headers, ["application/json", "text/event-stream", "<present>"]);
}

#[tokio::test]
async fn a_session_and_a_message_are_enough_in_a_new_process_too() {
    let thought = Turn { blocks: vec![Block::thinking("hm"), Block::text("One.")], ..Turn::default() };
    let server = server([thought, Turn::text("Two."), Turn::text("Three.")]);
    let mut world = World::new(&server.base_url());
    let options =
        json!({ "model": "gpt-5.4", "systemPrompt": "Be brief.", "thinking": "low", "maxTokens": 99 });
    let (events, _) = world.turn(json!({ "prompt": "first", "options": options })).await;
    let session = session_of(&events);
    world.turn(json!({ "prompt": "second", "options": { "resume": session } })).await.1.unwrap();
    // Nothing of the first process is left but the files.
    world.provider = OpenAiProvider::new();
    let (events, output) =
        world.turn(json!({ "prompt": "third", "threadId": session, "model": "gpt-5.6-luna" })).await;
    assert_eq!((session_of(&events), output.unwrap().content), (session, "Three.".to_owned()));
    let all =
        ["user: first", "<reasoning>", "assistant: One.", "user: second", "assistant: Two.", "user: third"];
    assert_eq!([spoken(&server, 1), spoken(&server, 2)], [all[..4].to_vec(), all.to_vec()]);
    // What the vendor keeps nothing of has no id of the vendor's, and its thoughts are as it sealed them.
    let sealed = json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "hm" }],
        "encrypted_content": server.requests()[1].body["input"][1]["encrypted_content"] });
    let answer = json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "One." }] });
    assert_eq!(server.requests()[1].body["input"].as_array().unwrap()[1..3], [sealed.clone(), answer]);
    assert!(sealed["encrypted_content"].is_string());
    let asked = |request: usize| {
        let body = server.requests()[request].body.clone();
        json!([body["model"], body["instructions"], body["reasoning"]["effort"], body["max_output_tokens"]])
    };
    assert_eq!(
        [asked(0), asked(1), asked(2)],
        [
            json!(["gpt-5.4", "Be brief.", "low", 99]),
            json!(["gpt-5.4", "Be brief.", "low", 99]),
            json!(["gpt-5.6-luna", "Be brief.", "low", 99]),
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
    assert_eq!(world.turn(again).await.1.unwrap().content, "Two.");
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
    let turn = &output.turn;
    // The vendor counts tokens at the end only.
    assert_eq!(
        (turn.stop_reason, output.content.as_str(), output.thread_id.as_ref(), turn.usage),
        (StopReason::Aborted, said.as_str(), Some(&session), Usage::default())
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
    assert_eq!((output.turn.stop_reason, output.content.as_str()), (StopReason::Aborted, ""));

    let third = world.turn(json!({ "prompt": "third", "options": { "resume": session } })).await;
    assert_eq!(third.1.unwrap().content, "Back.");
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
    assert_eq!(world.turn(resume).await.1.unwrap().content, "Back.");
    assert_eq!(spoken(&server, 0), ["user: first", "user: second"]);
}

#[tokio::test]
async fn structured_output_is_asked_for_in_the_vendors_form() {
    let answer = json!({ "verdict": "approved", "note": null });
    let server =
        server([Turn::structured(answer), Turn::text("no JSON"), Turn::structured(json!({ "any": 1 }))]);
    let world = World::new(&server.base_url());
    let schema = json!({ "type": "object", "required": ["verdict"], "properties": {
        "verdict": { "type": "string", "minLength": 1 }, "note": { "type": "string" },
    } });
    let input = json!({ "prompt": "judge", "options": { "outputSchema": schema, "thinking": "xhigh" } });
    // What may be missing is, and null stands for nothing.
    let verdict = json!({ "verdict": "approved" });
    assert_eq!(world.turn(input.clone()).await.1.unwrap().turn.structured_output, Some(verdict));
    assert_eq!(world.turn(input).await.1.unwrap().turn.structured_output, None);
    let body = server.requests()[0].body.clone();
    let format = json!({ "type": "json_schema", "name": "output", "strict": true, "schema": {
        "type": "object", "required": ["note", "verdict"], "additionalProperties": false, "properties": {
            "verdict": { "type": "string", "description": "{minLength: 1}" },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        },
    } });
    assert_eq!(body["text"], json!({ "format": format }));
    assert_eq!(body["reasoning"], json!({ "effort": "xhigh", "summary": "auto" }));
    // A schema that the vendor cannot hold the model to is asked for all the same.
    let open = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    let (events, output) =
        world.turn(json!({ "prompt": "count", "options": { "outputSchema": open } })).await;
    assert_eq!(output.unwrap().turn.structured_output, Some(json!({ "any": 1 })));
    assert!(matches!(&events[1], StreamEvent::Warning { code, .. } if code == "schemaNotStrict"));
    let asked = server.requests()[2].body["text"]["format"].clone();
    assert_eq!((&asked["strict"], &asked["schema"]), (&json!(false), &open));
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
        (whole.replace("\"provider\":\"openai\"", "\"provider\":\"other\""), "sessionNotFound"),
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
        (OpenAiProvider::with_store(Arc::new(store.clone())), store)
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
    assert_eq!((events.last(), output.unwrap().content.as_str()), (Some(&warning), "One."));
    let kept = store.0.lock().unwrap().1.clone().unwrap();
    assert_eq!(
        kept.messages,
        [
            json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "first" }] })
        ]
    );
    assert_eq!(world.kept(), "");
}
