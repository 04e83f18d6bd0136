//! A session that is exported, restored elsewhere, and closed.

use inspan_protocol::{Environment, Erased, ErrorKind};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_session_resumes_from_its_state() {
    let script = Script::new([turn("one"), working("half")]);
    let session = open_with(&script, AgentOptions::new().model("m"));
    session.chat("a").await.unwrap();
    let chat = tokio::spawn(session.chat("b"));
    settle().await;
    session.follow_up("c").unwrap();
    session.abort();
    chat.await.unwrap().unwrap_err();
    let state = session.export().unwrap();
    session.close();

    let text = serde_json::to_string(&state).unwrap();
    let exported_at = NOON + Duration::from_secs(1);
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json!({
            "version": 1,
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": [{ "type": "text", "text": "one" }] },
                { "role": "user", "content": "b" },
                { "role": "assistant", "content": [{ "type": "text", "text": "half" }] },
            ],
            "provider": "script", "model": "m", "providerSessionId": "s-1", "queued": ["c"],
            "exportedAt": exported_at,
        })
    );
    let read = AgentSession::read_state(&text).unwrap();
    assert_eq!(read, state);

    let script = Script::new([turn("two")]);
    let options = AgentOptions::new().hub(hub());
    let restored = AgentSession::restore(script.provider(), read.clone(), options).unwrap();
    let again = SessionState { exported_at: read.exported_at, ..restored.export().unwrap() };
    assert_eq!(again, read);
    restored.chat("d").await.unwrap();
    let given = json!({ "prompt": "c\n\nd", "options": { "model": "m", "resume": "s-1" } });
    assert_eq!(script.inputs(), [given]);
    let snapshot = restored.snapshot().unwrap();
    assert_eq!(texts(&snapshot.messages), ["a", "one", "b", "half", "c\n\nd", "two"]);
    assert_eq!((snapshot.turns, snapshot.queued), (3, vec![]));
}

fn state(provider: &str) -> SessionState {
    serde_json::from_value(json!({
        "version": 1, "provider": provider, "model": "old", "thinking": "high", "systemPrompt": "be kind",
        "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "one" }],
        "providerSessionId": "s-1", "exportedAt": NOON,
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_options_win_over_the_state() {
    let script = Script::new([turn("two")]);
    let options = AgentOptions::new().model("new").hub(hub());
    let session = AgentSession::restore(script.provider(), state("script"), options).unwrap();
    session.chat("b").await.unwrap();
    let given = json!({ "prompt": "b", "options": { "model": "new", "resume": "s-1" } });
    assert_eq!(script.inputs(), [given]);
    // What this provider does not take waits for one that does.
    let exported = session.export().unwrap();
    assert_eq!((exported.model.as_str(), exported.thinking), ("new", Some(ThinkingLevel::High)));
    assert_eq!(exported.system_prompt.as_deref(), Some("be kind"));
}

#[tokio::test(start_paused = true)]
async fn another_provider_receives_the_conversation() {
    let script = Script::new([turn("two"), turn("three")]);
    let session =
        AgentSession::restore(script.provider(), state("other"), AgentOptions::new().hub(hub())).unwrap();
    session.chat("b").await.unwrap();
    session.chat("c").await.unwrap();
    let first = "This conversation began elsewhere. What was said so far:\n\nThe user:\na\n\nYou:\none\n\nIt goes on here.\n\nb";
    assert_eq!(prompts(&script), [fresh(first), resumed("c")]);
    // Neither the other's model nor its conversation is taken for this one's.
    assert_eq!(script.inputs()[0]["options"], json!({}));
    let exported = session.export().unwrap();
    assert_eq!((exported.provider.as_str(), exported.model.as_str()), ("script", ""));
    assert_eq!(texts(&exported.messages), ["a", "one", "b", "two", "c", "three"]);
}

#[test]
fn another_version_is_refused_by_name() {
    let message = "the state of the session has version 2, and only version 1 is known here";
    let newer = SessionState { version: 2, ..state("script") };
    let restored = AgentSession::restore(Script::new([]).provider(), newer, AgentOptions::new());
    let read = AgentSession::read_state(r#"{ "version": 2, "somethingNew": true }"#);
    for error in [restored.err().unwrap(), read.unwrap_err()] {
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::ConfigInvalid, message));
    }
    let broken = AgentSession::read_state("{}").unwrap_err();
    assert_eq!(broken.code, ErrorCode::ConfigInvalid);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_after_the_close() {
    let script = Script::new([working("x")]);
    let provider: Arc<dyn DynProvider> = Arc::new(Erased(script));
    let (provider_left, thing) = (Arc::downgrade(&provider), Arc::new(()));
    let (thing_left, in_sink) = (Arc::downgrade(&thing), thing);
    let options = AgentOptions::new().sink(move |_| drop(Arc::clone(&in_sink)));
    let session = AgentSession::new(provider, options).unwrap();
    let handle = session.clone();
    let chat = tokio::spawn(session.chat("a"));
    settle().await;
    let hub = session.hub().unwrap();
    session.close();
    session.close();
    assert_eq!(chat.await.unwrap().unwrap_err().error.code, ErrorCode::Aborted);
    assert_eq!((provider_left.upgrade().is_none(), thing_left.upgrade()), (true, None));
    let refused = [
        handle.chat("b").await.err().map(AgentError::from),
        handle.follow_up("b").err(),
        handle.export().err(),
        handle.snapshot().err(),
        handle.chat_stream("b").next().await.and_then(Result::err).map(AgentError::from),
    ];
    for error in refused {
        assert_eq!(error.map(|error| error.message), Some("the session is closed".to_owned()));
    }
    handle.abort();
    assert_eq!((handle.drain_queue(), handle.hub().is_none()), (vec![], true));
    assert!(hub.send("x").is_err());
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_exported() {
    let env: Environment = [("A_KEY".to_owned(), "abcdefgh1".to_owned())].into_iter().collect();
    let script = Script::new([turn("it is abcdefgh1"), turn("yes")]);
    let session = open_with(&script, AgentOptions::new().env(env));
    let result = session.chat("what is it?").await.unwrap();
    let state = serde_json::to_string(&(session.export().unwrap(), result)).unwrap();
    assert!(state.contains("[redacted A_KEY]") && !state.contains("abcdefgh1"), "{state}");
    session.chat("is it abcdefgh1?").await.unwrap();
    let state = serde_json::to_string(&session.export().unwrap()).unwrap();
    assert_eq!(state.matches("[redacted A_KEY]").count(), 2, "{state}");
    assert!(!state.contains("abcdefgh1"), "{state}");
}

#[tokio::test(start_paused = true)]
async fn sessions_and_their_chats_can_be_sent() {
    fn sendable<T: Send>(_: &T) {}
    let script = Script::new([]);
    let session = open(&script);
    sendable(&session.chat("a"));
    sendable(&session.chat_stream("a"));
    sendable(&run_agent(script.provider(), "a"));
    let _ = session.hub().map(|hub| hub.subscribe(Filter::all()));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_the_provider_does_not_know_is_sent_again() {
    let unknown = || {
        let error = AgentError::new(ErrorCode::InvalidRequest, "no such conversation: s-1");
        vec![Do::Fail(error.with_kind(ErrorKind::SessionNotFound))]
    };
    let script = Script::new([unknown(), turn("two"), turn("three"), unknown()]);
    let hub = hub();
    let mut warnings = hub.subscribe(Filter::names(["agent:start", "agent:warning", "agent:complete"]));
    let options = AgentOptions::new().hub(hub.clone());
    let session = AgentSession::restore(script.provider(), state("script"), options).unwrap();
    let result = session.chat("b").await.unwrap();
    session.chat("c").await.unwrap();
    let retold = "This conversation began elsewhere. What was said so far:\n\nThe user:\na\n\nYou:\none\n\n\
        It goes on here.\n\nb";
    let first = &prompts(&script)[..3];
    assert_eq!(first, [resumed("b"), fresh(retold), resumed("c")]);
    assert_eq!(
        (result.text.as_str(), texts(&result.messages)),
        ("two", vec!["b".to_owned(), "two".to_owned()])
    );
    let snapshot = session.snapshot().unwrap();
    assert_eq!(texts(&snapshot.messages), ["a", "one", "b", "two", "c", "three"]);
    assert_eq!(snapshot.turns, 2);
    let seen: Vec<_> = crate::testing::drain(&mut warnings)
        .into_iter()
        .map(|envelope| match envelope.event {
            Event::AgentWarning { code, .. } => code,
            other => other.name().to_owned(),
        })
        .collect();
    let one = ["agent:start", "agent:complete"];
    assert_eq!(seen, [&one[..], &["agent:start", "retold", "agent:complete"], &one].concat());
    // Once it has answered, a conversation that is gone is an error.
    let error = session.chat("d").await.unwrap_err();
    assert!(error.error.is(ErrorKind::SessionNotFound));
}
