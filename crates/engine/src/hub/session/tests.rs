//! What each command does, and every refusal.

use inspan_protocol::{
    AgentError, CommandKind, ErrorCode, NodePath, Prompt, PromptKind, Redactor, SessionId,
};
use serde_json::json;

use super::*;
use crate::testing::{EventCollector, hub, log, quiet_hub};

fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

fn at(hub: &Hub, id: &str) -> Hub {
    hub.with_task(NodePath::root(&node(id)))
}

fn message(content: &str, run: Option<&str>, agent: Option<&str>, mode: Option<MessageMode>) -> Event {
    Event::SessionMessage {
        content: content.to_owned(),
        run_id: run.map(RunId::from),
        agent_name: agent.map(str::to_owned),
        mode,
        receivers: None,
    }
}

fn to_all(content: &str, receivers: u32) -> Event {
    let (content, receivers) = (content.to_owned(), Some(receivers));
    Event::SessionMessage { content, run_id: None, agent_name: None, mode: None, receivers }
}

fn mails(mailbox: &Mailbox) -> Vec<(String, MessageMode)> {
    mailbox.take().into_iter().map(|mail| (mail.content, mail.mode)).collect()
}

fn follow(content: &str) -> (String, MessageMode) {
    (content.to_owned(), MessageMode::FollowUp)
}

#[test]
fn commands_are_refused_before_the_session_and_after_it() {
    let hub = quiet_hub();
    let mut watch = EventCollector::new(&hub);
    let mailbox = hub.open_mailbox(&"run-1".into(), "coder", MultiTurn::On);
    let all = |hub: &Hub| {
        [
            hub.send("a").map(drop),
            hub.send_to(node("n"), "a", MessageMode::Steer),
            hub.send_to_run("run-1".into(), "a", MessageMode::FollowUp),
            hub.reply("p".into(), "a", None),
            hub.close("run-1".into()),
            hub.abort(None),
        ]
    };
    let refused = [const { Err(Rejection::NotActive) }; 6];
    assert_eq!(all(&hub), refused);
    hub.start_session();
    assert_eq!(hub.send("taken"), Ok(1));
    hub.end_session();
    hub.start_session();
    assert_eq!(all(&hub), refused);

    let rejected =
        |command| Event::SessionRejected { command, reason: "the session is not active".to_owned() };
    use CommandKind::*;
    let six = [Send, SendTo, SendToRun, Reply, Close, Abort].map(rejected);
    let expected = [six.to_vec(), vec![to_all("taken", 1)], six.to_vec()].concat();
    assert_eq!(watch.events(), expected);
    assert_eq!(mails(&mailbox), [follow("taken")]);
    assert!(!hub.aborted().is_cancelled());
}

#[test]
fn messages_reach_the_runs_they_are_for() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let old = at(&hub, "code").open_mailbox(&"run-1".into(), "coder", MultiTurn::On);
    let new = at(&hub, "code").open_mailbox(&"run-2".into(), "coder", MultiTurn::Off);
    let other = at(&hub, "review").open_mailbox(&"run-3".into(), "reviewer", MultiTurn::On);
    assert_eq!(hub.active_runs(), ["run-1", "run-2", "run-3"].map(RunId::from));
    hub.send("all").unwrap();
    hub.send_to(node("code"), "newest", MessageMode::Steer).unwrap();
    hub.send_to_run("run-1".into(), "one", MessageMode::FollowUp).unwrap();
    drop(new);
    hub.send_to(node("code"), "next newest", MessageMode::FollowUp).unwrap();
    hub.close("run-3".into()).unwrap();

    assert_eq!(mails(&old), [follow("all"), follow("one"), follow("next newest")]);
    assert_eq!((mails(&other), other.is_closing()), (vec![follow("all")], true));
    use MessageMode::*;
    assert_eq!(
        watch.events(),
        [
            to_all("all", 2),
            message("newest", Some("run-2"), Some("coder"), Some(Steer)),
            message("one", Some("run-1"), None, Some(FollowUp)),
            message("next newest", Some("run-1"), Some("coder"), Some(FollowUp)),
            Event::SessionClose { run_id: "run-3".into() },
        ]
    );
}

#[test]
fn every_refusal_is_typed_and_leaves_an_event() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let run = |id: &str| RunId::from(id);
    let ended = at(&hub, "done").open_mailbox(&run("ended"), "a", MultiTurn::On);
    drop(ended);
    let closing = at(&hub, "closing").open_mailbox(&run("closing"), "a", MultiTurn::On);
    hub.close(run("closing")).unwrap();
    let single = hub.open_mailbox(&run("single"), "a", MultiTurn::Off);
    let full = at(&hub, "full").open_mailbox(&run("full"), "a", MultiTurn::Off);
    for number in 0..crate::MAILBOX_CAPACITY {
        hub.send_to_run(run("full"), number.to_string(), MessageMode::FollowUp).unwrap();
    }
    watch.events();
    let to = |id: &str| hub.send_to_run(run(id), "m", MessageMode::FollowUp);
    let to_node = |id: &str| hub.send_to(node(id), "m", MessageMode::FollowUp);
    let seen = [
        hub.send("m").map(drop),
        to("nobody"),
        to("ended"),
        to("closing"),
        to("full"),
        to_node("nowhere"),
        to_node("done"),
        to_node("closing"),
        to_node("full"),
        hub.close(run("ended")),
        hub.close(run("nobody")),
    ];
    use Rejection::*;
    let expected = [
        NoListener,
        UnknownRun(run("nobody")),
        RunEnded(run("ended")),
        RunEnded(run("closing")),
        MailboxFull(run("full")),
        NoRunOfNode(node("nowhere")),
        NoRunOfNode(node("done")),
        NoRunOfNode(node("closing")),
        MailboxFull(run("full")),
        RunEnded(run("ended")),
        UnknownRun(run("nobody")),
    ];
    use CommandKind as C;
    let kinds = [
        C::Send,
        C::SendToRun,
        C::SendToRun,
        C::SendToRun,
        C::SendToRun,
        C::SendTo,
        C::SendTo,
        C::SendTo,
        C::SendTo,
        C::Close,
        C::Close,
    ];
    let events: Vec<_> = expected
        .iter()
        .zip(kinds)
        .map(|(reason, command)| Event::SessionRejected { command, reason: reason.to_string() })
        .collect();
    assert_eq!(seen, expected.map(Err));
    assert_eq!(watch.events(), events);
    drop((closing, single, full));
}

#[test]
fn a_message_for_all_reaches_all_or_none() {
    let hub = hub();
    let empty = hub.open_mailbox(&"run-1".into(), "a", MultiTurn::On);
    let full = hub.open_mailbox(&"run-2".into(), "a", MultiTurn::On);
    for number in 0..crate::MAILBOX_CAPACITY {
        hub.send_to_run("run-2".into(), number.to_string(), MessageMode::FollowUp).unwrap();
    }
    assert_eq!(hub.send("m"), Err(Rejection::MailboxFull("run-2".into())));
    assert_eq!((mails(&empty), mails(&full).len()), (vec![], crate::MAILBOX_CAPACITY));
}

#[test]
fn an_abort_is_reported_to_those_who_watch() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let (mine, yours) = (hub.aborted(), hub.aborted());
    // A watcher's own token does not affect the session.
    yours.cancel();
    assert!(!mine.is_cancelled());
    hub.abort(Some("enough".to_owned())).unwrap();
    assert!(mine.is_cancelled());
    assert!(hub.aborted().is_cancelled());
    assert_eq!(watch.events(), [Event::SessionAbort { reason: Some("enough".to_owned()) }]);
}

#[test]
fn a_message_lies_in_its_mailbox_before_anyone_can_react_to_its_event() {
    let hub = hub();
    let mailbox = Arc::new(hub.open_mailbox(&"run-1".into(), "a", MultiTurn::On));
    let seen: Arc<parking_lot::Mutex<Vec<(String, MessageMode)>>> = Arc::default();
    let _observer = {
        let (mailbox, seen) = (mailbox.clone(), seen.clone());
        let look = move |_: &Arc<inspan_protocol::Envelope>| seen.lock().extend(mails(&mailbox));
        hub.observe(crate::Filter::name("session:message"), Arc::new(look))
    };
    hub.send("m").unwrap();
    assert_eq!(*seen.lock(), [follow("m")]);
}

#[test]
fn an_observer_may_give_commands() {
    let hub = hub();
    let mailbox = hub.open_mailbox(&"run-1".into(), "a", MultiTurn::On);
    let mut watch = EventCollector::new(&hub);
    let answering = {
        let hub = hub.clone();
        Arc::new(move |_: &Arc<inspan_protocol::Envelope>| {
            drop((hub.send("from within"), hub.close("nobody".into())));
        })
    };
    let _observer = hub.observe(crate::Filter::name("log"), answering);
    hub.emit(crate::testing::log("go"));
    assert_eq!(watch.names(), ["log", "session:message", "session:rejected"]);
    assert_eq!(mails(&mailbox), [follow("from within")]);
    assert_eq!(hub.session_id(), &SessionId::from("flow-1"));
}

#[test]
fn an_emitted_message_is_sent_or_refused() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let mailbox = hub.open_mailbox(&"run-1".into(), "a", MultiTurn::On);
    hub.emit(message("to one", Some("run-1"), None, Some(MessageMode::Steer)));
    hub.emit(message("to all", None, None, None));
    hub.emit(message("to nobody", Some("run-2"), None, None));
    assert_eq!(mails(&mailbox), [("to one".to_owned(), MessageMode::Steer), follow("to all")]);
    drop(mailbox);
    hub.emit(message("too late", None, None, None));
    let refused =
        |command, reason: &Rejection| Event::SessionRejected { command, reason: reason.to_string() };
    assert_eq!(
        watch.events(),
        [
            message("to one", Some("run-1"), None, Some(MessageMode::Steer)),
            to_all("to all", 1),
            refused(CommandKind::SendToRun, &Rejection::UnknownRun("run-2".into())),
            refused(CommandKind::Send, &Rejection::NoListener),
        ]
    );
}

#[test]
fn a_message_to_all_reaches_subscribers_that_wait_for_messages() {
    use crate::Filter;
    let hub = hub();
    let watches = ["*", "log", "session:message,log", "session:reply"];
    let listens = ["session:message", "session:*", "session:message,session:close"];
    let subscribe = |text: &str| hub.subscribe(Filter::parse(text).unwrap());
    let watching: Vec<_> = watches.into_iter().map(subscribe).collect();
    let refused = hub.send("nobody waits");
    let mut listening: Vec<_> = listens.into_iter().map(subscribe).collect();
    assert_eq!((refused, hub.send("hello")), (Err(Rejection::NoListener), Ok(3)));
    let received: Vec<_> =
        listening.iter_mut().map(|events| crate::testing::drain(events).pop().unwrap().event).collect();
    assert_eq!(received, vec![to_all("hello", 3); 3]);
    drop((watching, listening));
    assert_eq!(hub.send("nobody waits any more"), Err(Rejection::NoListener));
}

#[tokio::test(start_paused = true)]
async fn what_people_say_is_stored_without_secrets_and_arrives_as_it_was_said() {
    let hub = hub();
    hub.start_session();
    hub.redact(&Redactor::default().with_variables([("MY_TOKEN", "told-4711-xyz")]));
    let mut watch = EventCollector::new(&hub);
    let (said, clean) = ("use told-4711-xyz", "use [redacted MY_TOKEN]");
    let mailbox = hub.open_mailbox(&"run-1".into(), "coder", MultiTurn::On);
    hub.send_to_run("run-1".into(), said, MessageMode::FollowUp).unwrap();
    let asked = hub.ask(hub.new_prompt(PromptKind::Input, "which?"));
    let id = asked.prompt_id().clone();
    hub.reply(id.clone(), said, None).unwrap();
    hub.pause(Some(said.to_owned())).unwrap();
    hub.abort(Some(said.to_owned())).unwrap();
    assert_eq!((mails(&mailbox), asked.await.unwrap().content), (vec![follow(said)], said.to_owned()));
    let reason = Some(clean.to_owned());
    let stored = watch.events();
    let stored: Vec<_> = stored.into_iter().filter(|event| event.name() != "session:prompt").collect();
    assert_eq!(
        stored,
        [
            message(clean, Some("run-1"), None, Some(MessageMode::FollowUp)),
            Event::SessionReply { prompt_id: id, content: clean.to_owned(), choice: None, is_default: false },
            Event::SessionPause { reason: reason.clone(), cause: None },
            Event::SessionAbort { reason },
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_emitted_by_a_handle_that_redacts_has_no_secrets() {
    let plain = hub();
    let hub = plain.redacting(&Redactor::default().with_variables([("MY_TOKEN", "told-4711-xyz")]));
    let mut watch = EventCollector::new(&hub);
    let secret = "told-4711-xyz";
    let in_prompt = |hub: &Hub| Prompt {
        choices: Some(vec![secret.to_owned(), "no".to_owned()]),
        default: Some(secret.to_owned()),
        detail: Some(json!({ "a": secret })),
        ..hub.new_prompt(PromptKind::Input, secret)
    };
    let error = AgentError::new(ErrorCode::Auth, secret);
    let events = [
        json!({ "type": "log", "level": "info", "message": secret, "fields": { "a": [secret] } }),
        json!({ "type": "exec:output", "stream": "stdout", "text": secret }),
        json!({ "type": "agent:text", "content": secret, "delta": true, "runId": "r" }),
        json!({ "type": "agent:thinking", "content": secret, "delta": false, "runId": "r" }),
        json!({ "type": "agent:session", "sessionId": secret, "runId": "r" }),
        json!({ "type": "agent:tool:start", "toolName": "t", "toolUseId": secret, "input": { "a": secret }, "runId": "r" }),
        json!({ "type": "agent:tool:complete", "toolName": "t", "toolUseId": "1", "result": secret, "isError": false, "runId": "r" }),
        json!({ "type": "agent:warning", "code": "c", "message": secret, "runId": "r" }),
        json!({ "type": "channel:error", "name": "c", "error": secret }),
        json!({ "type": "task:failed", "taskId": "a", "willRetry": false, "error": error }),
        json!({ "type": "task:complete", "taskId": "a", "durationMs": 1, "result": { "a": secret } }),
        json!({ "type": "session:prompt", "promptId": "p", "prompt": "?", "kind": "input", "schema": { "title": secret } }),
        json!({ "type": "session:pause", "reason": secret }),
        json!({ "type": "_mine", "a": { secret: secret } }),
    ];
    let count = events.len() + 3;
    // What is made of a handle redacts too.
    let inner = at(&hub, "a").with_attempt(NodePath::root(&node("a")), 1, [0, 0]).with_agent("r".into());
    for event in events {
        inner.emit(serde_json::from_value(event).unwrap());
    }
    let asked = hub.ask(in_prompt(&hub));
    hub.pause(Some(secret.to_owned())).unwrap();
    hub.reply(asked.prompt_id().clone(), "", Some("[redacted MY_TOKEN]".to_owned())).unwrap();
    assert_eq!(asked.await.unwrap().choice.as_deref(), Some("[redacted MY_TOKEN]"));
    let seen = watch.events();
    assert_eq!(seen.len(), count);
    for event in seen {
        let stored = serde_json::to_string(&event).unwrap();
        assert!(stored.contains("[redacted MY_TOKEN]") && !stored.contains(secret), "{stored}");
    }
    // Others are as they were emitted.
    for hub in [plain, hub.as_redacted()] {
        assert_eq!(hub.emit(log(secret)).event, log(secret));
    }
}
