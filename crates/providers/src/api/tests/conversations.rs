//! Conversations against the scripted model server that all adapters treat in the same way: after
//! turns that ended, failed or were cancelled, whose process died, or that could not be stored.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{ExchangeState, Turn};
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ErrorKind, ExecutionContext, Provider, ProviderItem, ProviderOutput,
    ProviderSessionId, StopReason, StreamEvent, Usage,
};
use serde_json::json;

use super::harness::{Harness, Vendor, reported, scripted, session_of, spoken, text};
use crate::tests::FinishedTurn;
use crate::{Conversation, ConversationClaim, ConversationStore};

const SOON: Duration = Duration::from_secs(20);

/// What a turn answered.
fn answer<R: Vendor>(turn: FinishedTurn<R::Output>) -> String {
    R::returned(&turn.1.unwrap()).0.to_owned()
}

pub(crate) async fn a_message_that_is_said_again_is_said_once<R: Vendor>() {
    let broken = Turn { truncate_after: Some(5), ..Turn::text("never whole") };
    let server = scripted([Turn::text("One."), Turn::error(529), broken, Turn::text("Two.")]);
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "first" })).await.0);
    let again = json!({ "prompt": "second", "options": { "resume": session } });
    let failed = harness.turn(again.clone()).await;
    assert_eq!(reported(&failed).0, ErrorCode::Overloaded);
    assert_eq!(failed.1.unwrap_err().detail.unwrap()["sessionId"], json!(session));
    assert_eq!(reported(&harness.turn(again.clone()).await).0, ErrorCode::Network);
    assert_eq!(answer::<R>(harness.turn(again).await), "Two.");
    assert_eq!(spoken::<R>(&server, 3), ["user: first", "assistant: One.", "user: second"]);
}

/// The engine says `continue` to an agent whose vendor failed, and the model has to know what with.
pub(crate) async fn a_turn_that_its_vendor_failed_leaves_its_message<R: Vendor>() {
    let broken = Turn { truncate_after: Some(5), ..Turn::text("never whole") };
    let turns = [
        Turn::text("One."),
        broken,
        Turn::error(529),
        Turn::error(400),
        Turn::text("Two."),
        Turn::text("Three."),
    ];
    let server = scripted(turns);
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "first" })).await.0);
    let say = |prompt: &str| json!({ "prompt": prompt, "options": { "resume": session } });
    for (prompt, code) in [
        ("second", ErrorCode::Network),
        ("continue", ErrorCode::Overloaded),
        // What was wrong with this message would be wrong again.
        ("wrong", ErrorCode::InvalidRequest),
    ] {
        assert_eq!(reported(&harness.turn(say(prompt)).await).0, code);
    }
    assert_eq!(answer::<R>(harness.turn(say("continue")).await), "Two.");
    let said = ["user: first", "assistant: One.", "user: second", "user: continue"];
    assert_eq!(spoken::<R>(&server, 4), said);
    assert_eq!(answer::<R>(harness.turn(say("third")).await), "Three.");
    assert_eq!(spoken::<R>(&server, 5)[3..], ["user: continue", "assistant: Two.", "user: third"]);
}

pub(crate) async fn a_conversation_is_branched_and_stays_as_it_is<R: Vendor>() {
    let server = scripted(["One.", "Left.", "Right.", "Two."].map(Turn::text));
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "first" })).await.0);
    let branch = |prompt: &str| json!({ "prompt": prompt, "options": { "resume": session, "fork": true } });
    let left = harness.turn(branch("left")).await.0;
    let right = harness.turn(branch("right")).await.0;
    let second = harness.turn(json!({ "prompt": "second", "options": { "resume": session } })).await.0;
    let sessions = [session_of(&left), session_of(&right), session_of(&second)];
    assert!(sessions[0] != session && sessions[1] != session && sessions[0] != sessions[1], "{sessions:?}");
    assert_eq!(sessions[2], session);
    let said = |nth: usize| spoken::<R>(&server, nth);
    for (nth, prompt) in [(1, "user: left"), (2, "user: right"), (3, "user: second")] {
        assert_eq!(said(nth), ["user: first", "assistant: One.", prompt]);
    }
}

pub(crate) async fn a_branch_begins_after_the_turn_that_is_named<R: Vendor>() {
    let server = scripted(["One.", "Two.", "Early.", "Late."].map(Turn::text));
    let harness = Harness::<R>::new(&server.base_url());
    let options = |model: &str, more: serde_json::Value| {
        let mut options = json!({ "model": model });
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options
    };
    let first = harness.turn(json!({ "prompt": "first", "options": options("one", json!({})) })).await;
    let session = session_of(&first.0);
    let ends = first.1.unwrap().facts().turn_id.unwrap();
    let second = options("two", json!({ "resume": session }));
    harness.turn(json!({ "prompt": "second", "options": second })).await.1.unwrap();
    let branch = |prompt: &str, at: &str| {
        let options = json!({ "resume": session, "fork": true, "forkAt": at });
        harness.turn(json!({ "prompt": prompt, "options": options }))
    };
    assert_eq!(answer::<R>(branch("early", ends.as_str()).await), "Early.");
    let model = |nth: usize| server.requests()[nth].body["model"].clone();
    let early = (spoken::<R>(&server, 2), model(2));
    let expected = ["user: first", "assistant: One.", "user: early"].map(str::to_owned);
    assert_eq!(early, (expected.to_vec(), json!("one")));
    for wrong in ["99", "0", "end", ""] {
        let failed = reported(&branch("lost", wrong).await);
        assert_eq!((failed.0, failed.1.as_str()), (ErrorCode::InvalidRequest, "sessionNotFound"), "{wrong}");
    }
    // The conversation itself is as it was, with its own settings.
    let late = json!({ "prompt": "late", "options": { "resume": session } });
    assert_eq!(answer::<R>(harness.turn(late).await), "Late.");
    assert_eq!((spoken::<R>(&server, 3).len(), model(3)), (5, json!("two")));
}

pub(crate) async fn a_conversation_whose_first_turn_failed_can_continue<R: Vendor>() {
    let server = scripted([Turn::error(400), Turn::text("One.")]);
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "lost" })).await.0);
    harness.turn(json!({ "prompt": "first", "options": { "resume": session } })).await.1.unwrap();
    assert_eq!(spoken::<R>(&server, 1), ["user: first"]);
}

pub(crate) async fn a_cancelled_turn_stores_its_text_and_the_conversation_continues<R: Vendor>() {
    let stalls = Turn { stall_after: Some(6), ..Turn::text("said before it was cancelled") };
    let silent = Turn { hang: true, ..Turn::default() };
    let server = scripted([stalls, silent, Turn::text("Back.")]);
    let harness = Harness::<R>::new(&server.base_url());
    let mut returned = 0;
    let (events, output) = harness
        .turn_in(json!({ "prompt": "first" }), harness.context(), |event, context| {
            returned += usize::from(matches!(event, StreamEvent::Text { .. }));
            if returned == 2 {
                context.cancel.cancel();
            }
        })
        .await;
    let (session, output) = (session_of(&events), output.unwrap());
    let returned = text(&events);
    let facts = output.facts();
    assert_eq!(
        (facts.stop_reason, R::returned(&output), facts.usage),
        (StopReason::Aborted, (returned.as_str(), Some(&session)), R::usage_when_cut())
    );
    server.until(SOON, |seen| seen[0].ending == ExchangeState::ClientGone).await.unwrap();

    // Cancelled before a byte came: the message stays, and there is no answer to it.
    let context = harness.context();
    let cancel = context.cancel.clone();
    let resumed =
        harness.turn_in(json!({ "prompt": "second", "options": { "resume": session } }), context, |_, _| {});
    let hanging = async {
        server.until(SOON, |seen| seen.len() == 2 && seen[1].ending == ExchangeState::Stalled).await.unwrap();
        cancel.cancel();
    };
    let ((_, output), ()) = tokio::join!(resumed, hanging);
    let output = output.unwrap();
    assert_eq!((output.facts().stop_reason, R::returned(&output).0), (StopReason::Aborted, ""));

    let third = harness.turn(json!({ "prompt": "third", "options": { "resume": session } })).await;
    assert_eq!(answer::<R>(third), "Back.");
    let expected = [
        "user: first".to_owned(),
        format!("assistant: {returned}"),
        "user: second".to_owned(),
        "user: third".to_owned(),
    ];
    assert_eq!(spoken::<R>(&server, 2), expected);
}

pub(crate) async fn a_turn_whose_process_died_leaves_its_message<R: Vendor>() {
    let server = scripted([Turn::text("Back.")]);
    let harness = Harness::<R>::new(&server.base_url());
    let input = serde_json::from_value(json!({ "prompt": "first" })).unwrap();
    let mut stream = harness.provider.execute(input, harness.context());
    let first = stream.next().await;
    let Some(Ok(ProviderItem::Event(event))) = first else { panic!("{first:?}") };
    let session = session_of(&[event]);
    // Held by its turn until that is gone.
    let resume = json!({ "prompt": "second", "options": { "resume": session } });
    assert_eq!(reported(&harness.turn(resume.clone()).await).1, "sessionBusy");
    drop(stream);
    assert_eq!(answer::<R>(harness.turn(resume).await), "Back.");
    assert_eq!(spoken::<R>(&server, 0), ["user: first", "user: second"]);
}

pub(crate) async fn an_answer_that_nobody_got_is_taken_when_the_turn_goes_on<R: Vendor>() {
    let stalls = Turn { stall_after: Some(6), ..Turn::text("never whole") };
    let rest = ["Four.", "Five."].map(Turn::text);
    let server = scripted([Turn::text("One."), Turn::text("Two."), stalls].into_iter().chain(rest));
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "first" })).await.0);
    let input = json!({ "prompt": "continue", "options": { "resume": session } });
    let going_on = || ExecutionContext { goes_on: true, ..harness.context() };
    let turn = |input| harness.turn_in(input, going_on(), |_, _| {});
    let goes_on = || async { turn(input.clone()).await.1.unwrap().facts() };
    // As often as its process dies; nothing is asked.
    for _ in 0..2 {
        let facts = goes_on().await;
        let tokens = Usage { input_tokens: 100, output_tokens: 20, ..Usage::default() };
        let seen = (facts.text.as_str(), facts.stop_reason, facts.usage, facts.session);
        assert_eq!(seen, ("One.", StopReason::Complete, tokens, Some(session.clone())));
    }
    assert_eq!(server.requests().len(), 1);
    // A person may say it too.
    assert_eq!(answer::<R>(harness.turn(input.clone()).await), "Two.");
    assert_eq!(goes_on().await.text, "Two.");
    // What was cut has no answer.
    let context = harness.context();
    let cancels = |event: &StreamEvent, context: &ExecutionContext| {
        if matches!(event, StreamEvent::Text { .. }) {
            context.cancel.cancel();
        }
    };
    harness
        .turn_in(json!({ "prompt": "third", "options": { "resume": session } }), context, cancels)
        .await
        .1
        .unwrap();
    assert_eq!((goes_on().await.text.as_str(), server.requests().len()), ("Four.", 4));
    // A branch begins with another turn.
    let branch = json!({ "prompt": "continue", "options": { "resume": session, "fork": true } });
    assert_eq!(answer::<R>(turn(branch).await), "Five.");
}

pub(crate) async fn a_damaged_conversation_is_refused_without_a_request<R: Vendor>() {
    let server = scripted([Turn::text("One.")]);
    let harness = Harness::<R>::new(&server.base_url());
    let session = session_of(&harness.turn(json!({ "prompt": "first" })).await.0);
    let path = harness.folder.path().join(format!("conversations/{session}.json"));
    let whole = std::fs::read_to_string(&path).unwrap();
    let resume = json!({ "prompt": "second", "options": { "resume": session } });
    for (bytes, kind) in [
        (whole[..whole.len() / 2].to_owned(), "sessionDamaged"),
        (whole.replace("\"settings\":{", "\"settings\":{\"maxTokens\":\"many\","), "sessionDamaged"),
        (
            whole.replace(
                &format!("\"provider\":\"{}\"", <R::Api as crate::api::Api>::PROVIDER),
                "\"provider\":\"other\"",
            ),
            "sessionNotFound",
        ),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let turn = harness.turn(resume.clone()).await;
        assert_eq!(reported(&turn), (ErrorCode::InvalidRequest, kind.to_owned(), String::new()));
        assert!(turn.1.unwrap_err().message.contains(session.as_str()));
    }
    assert_eq!(server.requests().len(), 1);
}

/// A store that takes a conversation so many times, and then no more; or only for a while, if the disk is full.
#[derive(Clone)]
struct Filling(Arc<Mutex<(usize, Option<Conversation>)>>, ErrorCode);

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
        let mut stored = self.0.lock().unwrap();
        let Some(places) = stored.0.checked_sub(1) else {
            if self.1 == ErrorCode::Process {
                stored.0 = 1;
            }
            return Err(AgentError::new(self.1, "full").with_kind(ErrorKind::SessionNotStored));
        };
        *stored = (places, Some(conversation.clone()));
        Ok(())
    }
}

pub(crate) async fn no_turn_succeeds_whose_answer_is_not_stored<R: Vendor>() {
    let server = scripted([Turn::text("One."), Turn::text("Two.")]);
    let mut harness = Harness::<R>::new(&server.base_url());
    let filling = |places, code| {
        let store = Filling(Arc::new(Mutex::new((places, None))), code);
        (R::with_store(Arc::new(store.clone())), store)
    };
    // Before anything has cost money it is an error.
    harness.provider = filling(0, ErrorCode::Process).0;
    let refused = harness.turn(json!({ "prompt": "first" })).await;
    assert_eq!((reported(&refused).0, server.requests().len()), (ErrorCode::Process, 0));
    // Afterwards too: the next turn would not know the answer. What it cost is counted.
    let (provider, store) = filling(1, ErrorCode::ConfigInvalid);
    harness.provider = provider;
    let failed = harness.turn(json!({ "prompt": "first" })).await;
    let seen = (ErrorCode::ConfigInvalid, "sessionNotKept".to_owned(), "One.".to_owned());
    assert_eq!(reported(&failed), seen);
    assert!(failed.0.iter().any(|event| matches!(event, StreamEvent::Usage { .. })));
    let stored = || store.0.lock().unwrap().1.clone().unwrap().messages;
    assert_eq!(stored(), [R::user("first")]);
    // A disk that was full for a moment costs nothing.
    let (provider, store) = filling(1, ErrorCode::Process);
    harness.provider = provider;
    let (_, output) = harness.turn(json!({ "prompt": "first" })).await;
    assert_eq!(R::returned(&output.unwrap()).0, "Two.");
    assert_eq!(store.0.lock().unwrap().1.clone().unwrap().messages.len(), 2);
    assert_eq!(harness.stored(), "");
}
