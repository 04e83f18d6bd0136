//! The built-in providers, each by its name; and the turns and the person of the tests of several of them.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ExecutionContext, PermissionBroker, PermissionDecision, PermissionRequest, Provider,
    ProviderItem, ProviderSessionId, StreamEvent,
};
use serde_json::{Value, json};

use super::*;

/// The events of a turn and its end.
pub(crate) type FinishedTurn<O> = (Vec<StreamEvent>, Result<O, AgentError>);

/// Runs a turn to its end, and shows each event as it comes.
pub(crate) async fn watched<P: Provider>(
    provider: &P,
    input: P::Input,
    context: ExecutionContext,
    mut watch: impl FnMut(&StreamEvent),
) -> FinishedTurn<P::Output> {
    let mut stream = provider.execute(input, context);
    let mut events = Vec::new();
    let end = loop {
        match stream.next().await.expect("the stream ended without an output or an error") {
            Ok(ProviderItem::Event(event)) => {
                watch(&event);
                events.push(event);
            }
            Ok(ProviderItem::Output(output)) => break Ok(output),
            Err(error) => break Err(error),
        }
    };
    assert!(stream.next().await.is_none(), "something came after the end");
    (events, end)
}

/// Answers every question for permission so, and notes it.
#[derive(Clone)]
pub(crate) struct Person {
    pub(crate) says: PermissionDecision,
    asked: Arc<Mutex<Vec<PermissionRequest>>>,
}

impl Person {
    pub(crate) fn says(says: PermissionDecision) -> Self {
        Self { says, asked: Arc::default() }
    }

    /// Allows everything, with this input if there is one.
    pub(crate) fn allows(updated_input: Option<Value>) -> Self {
        Self::says(PermissionDecision::Allow { updated_input })
    }

    pub(crate) fn asked(&self) -> Vec<PermissionRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl PermissionBroker for Person {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        self.asked.lock().unwrap().push(request);
        Box::pin(std::future::ready(self.says.clone()))
    }
}

#[test]
fn each_is_there_under_its_name_and_describes_itself() {
    let names: Vec<String> = builtin().iter().map(|provider| provider.descriptor().provider_type).collect();
    assert_eq!(
        names,
        [
            "acp",
            "anthropic",
            "claude",
            "codex",
            "droid",
            "echo",
            "gemini",
            "openai",
            "opencode",
            "qwen",
            "scripted"
        ]
    );
    for provider in builtin() {
        let name = provider.descriptor().provider_type;
        for schema in [provider.input_schema(), provider.output_schema()] {
            assert!(jsonschema::validator_for(&schema).is_ok(), "{name}");
            assert_eq!(schema["type"], "object", "{name}");
        }
    }
}

#[test]
fn a_limit_of_nothing_is_refused_before_it_is_used() {
    for provider in builtin() {
        let name = provider.descriptor().provider_type;
        let schema = jsonschema::validator_for(&provider.input_schema()).unwrap();
        let accepts = |option: &str, value: u32| {
            schema.is_valid(&json!({ "prompt": "p", "options": { option: value } }))
        };
        let is_of_vendor = !["echo", "scripted"].contains(&name.as_str());
        assert_eq!(accepts("stallTimeoutMs", 1), is_of_vendor, "{name}");
        if !is_of_vendor {
            continue;
        }
        for option in ["maxTurns", "stallTimeoutMs", "maxBudgetUsd"] {
            assert!(!accepts(option, 0), "{name}: {option}");
        }
    }
}

/// The built-in provider of this name.
fn named(name: &str) -> Arc<dyn DynProvider> {
    let mut all = builtin().into_iter();
    all.find(|provider| provider.descriptor().provider_type == name).unwrap()
}

#[test]
fn each_resumes_a_conversation_by_its_own_field() {
    let returned = || json!([{ "role": "user", "content": "a" }]);
    let more = |options| json!({ "prompt": "more", "options": options });
    let turns = || json!([[{ "text": "b" }, "hang"]]);
    let rows = [
        (
            "acp",
            json!({ "prompt": "a", "options": { "command": "x" } }),
            more(json!({ "command": "x", "resume": "s-1" })),
        ),
        (
            "anthropic",
            json!({ "messages": returned(), "options": { "maxTokens": 9 } }),
            more(json!({ "maxTokens": 9, "resume": "s-1" })),
        ),
        (
            "claude",
            json!({ "messages": returned(), "options": { "model": "m" } }),
            more(json!({ "model": "m", "resume": "s-1" })),
        ),
        (
            "codex",
            json!({ "prompt": "a", "options": { "resume": "s-0", "model": "m" } }),
            json!({ "prompt": "more", "sessionToken": "s-1", "options": { "model": "m" } }),
        ),
        ("droid", json!({ "prompt": "a" }), more(json!({ "resume": "s-1" }))),
        ("echo", json!({ "prompt": "a" }), more(json!({ "resume": "s-1" }))),
        ("gemini", json!({ "messages": returned() }), more(json!({ "resume": "s-1" }))),
        (
            "openai",
            json!({ "prompt": "a", "model": "m", "options": { "maxTokens": 9, "resume": "s-0" } }),
            json!({ "prompt": "more", "threadId": "s-1", "model": "m", "options": { "maxTokens": 9 } }),
        ),
        (
            "opencode",
            json!({ "messages": returned(), "options": { "agent": "plan" } }),
            more(json!({ "agent": "plan", "resume": "s-1" })),
        ),
        ("qwen", json!({ "prompt": "a" }), more(json!({ "resume": "s-1" }))),
        (
            "scripted",
            json!({ "prompt": "a", "options": { "turns": turns() } }),
            more(json!({ "turns": turns(), "resume": "s-1" })),
        ),
    ];
    assert_eq!(rows.len(), builtin().len());
    let session = ProviderSessionId::from("s-1");
    for (name, input, expected) in rows {
        let next = named(name).resume(input, &session, "more").unwrap();
        assert_eq!(next, expected, "{name}");
        assert_eq!(named(name).input_facts(&next).unwrap().session.as_ref(), Some(&session), "{name}");
    }
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let rows = [
        ("acp", json!({ "prompt": "a", "options": { "systemPrompt": "x" } }), "systemPrompt"),
        ("anthropic", json!({ "prompt": "a", "options": { "tools": ["Read"] } }), "tools"),
        ("claude", json!({ "prompt": "a", "options": { "temperature": 1 } }), "temperature"),
        ("codex", json!({ "prompt": "a", "options": { "allowedTools": ["Read"] } }), "allowedTools"),
        ("droid", json!({ "prompt": "a", "options": { "tools": [] } }), "tools"),
        ("echo", json!({ "prompt": "a", "option": {} }), "option"),
        ("gemini", json!({ "prompt": "a", "options": { "maxTurns": 1 } }), "maxTurns"),
        ("openai", json!({ "prompt": "a", "options": { "maxThinkingTokens": 1024 } }), "maxThinkingTokens"),
        ("opencode", json!({ "prompt": "a", "options": { "permissionMode": "plan" } }), "permissionMode"),
        ("qwen", json!({ "prompt": "a", "options": { "temperature": 1 } }), "temperature"),
        ("scripted", json!({ "prompt": "a", "options": { "turns": [[{ "txt": "b" }]] } }), "txt"),
    ];
    assert_eq!(rows.len(), builtin().len());
    for (name, input, key) in rows {
        let error = named(name).input_facts(&input).unwrap_err();
        let reported = (error.code, error.message.contains(key));
        assert_eq!(reported, (inspan_protocol::ErrorCode::ConfigInvalid, true), "{name}");
    }
}
