//! Agents that are code, and providers as agents.

use std::{future::pending, task::Poll};

use inspan_protocol::{Envelope, PermissionPolicy};
use serde_json::json;

use super::*;
use crate::{
    Filter, check_order,
    testing::{Do, EventCollector, Script, hub, session},
};

type Act = fn(Value, AgentContext) -> BoxFuture<'static, Result<Value, AgentError>>;

struct Custom {
    brackets: bool,
    act: Act,
}

impl AgentDefinition for Custom {
    fn name(&self) -> &str {
        "custom agent"
    }

    fn emits_start_complete(&self) -> bool {
        self.brackets
    }

    async fn execute(&self, input: Value, context: AgentContext) -> Result<Value, AgentError> {
        (self.act)(input, context).await
    }
}

fn bind(hub: &Hub, definition: impl AgentDefinition) -> ExecutableAgent {
    ExecutableAgent::new(definition, hub.clone(), CancellationToken::new())
}

/// Checks the order and returns the events after `agent:start` with the reasons of the ends.
fn reported(envelopes: Vec<Envelope>) -> Vec<String> {
    check_order(&envelopes).unwrap();
    let brief = |event: Event| match event {
        Event::AgentComplete { success, stop_reason, .. } => format!("complete {success} {stop_reason:?}"),
        Event::AgentText { content, .. } => content,
        other => other.name().to_owned(),
    };
    envelopes.into_iter().map(|envelope| brief(envelope.event)).collect()
}

fn say(context: &AgentContext, content: &str) {
    let run_id = context.run_id.clone();
    context.hub.emit(Event::AgentText { content: content.to_owned(), delta: false, run_id });
}

#[tokio::test(start_paused = true)]
async fn the_engine_begins_and_completes_an_agent() {
    let failed = || AgentError::new(ErrorCode::NodeFailed, "no");
    let aborted = || AgentError::new(ErrorCode::Aborted, "cancelled");
    let panicked = AgentError::new(ErrorCode::NodeFailed, "agent `custom agent` panicked");
    let rows: [(Act, _, &str); 5] = [
        (
            |input, context| {
                say(&context, "hi");
                async { Ok(input) }.boxed()
            },
            Ok(json!(1)),
            "complete true Complete",
        ),
        (
            |_, context| {
                say(&context, "hi");
                async { Err(AgentError::new(ErrorCode::NodeFailed, "no")) }.boxed()
            },
            Err(failed()),
            "complete false Error",
        ),
        (
            |_, context| {
                say(&context, "hi");
                async { Err(AgentError::new(ErrorCode::Aborted, "cancelled")) }.boxed()
            },
            Err(aborted()),
            "complete false Aborted",
        ),
        (
            |_, context| {
                async move {
                    say(&context, "hi");
                    panic!("on purpose")
                }
                .boxed()
            },
            Err(panicked.clone()),
            "complete false Error",
        ),
        (
            |_, context| {
                say(&context, "hi");
                panic!("on purpose")
            },
            Err(panicked),
            "complete false Error",
        ),
    ];
    for (act, expected, end) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let agent = bind(&hub, Custom { brackets: false, act });
        assert_eq!(agent.execute(json!(1)).await, expected);
        assert_eq!(reported(watch.envelopes()), ["agent:start", "hi", end]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_agent_is_completed() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let agent = bind(&hub, Custom { brackets: false, act: |_, _| pending().boxed() });
    let mut running = Box::pin(agent.execute(Value::Null));
    assert!(matches!(futures::poll!(&mut running), Poll::Pending));
    drop(running);
    assert_eq!(reported(watch.envelopes()), ["agent:start", "complete false Aborted"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_it_itself_is_left_alone() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let agent = bind(&hub, Custom { brackets: true, act: |input, _| async { Ok(input) }.boxed() });
    assert_eq!((agent.name(), agent.execute(json!(1)).await), ("custom agent", Ok(json!(1))));
    assert_eq!(reported(watch.envelopes()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_an_agent() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let output = json!({ "text": "done", "sessionId": "s-1" });
    let script = Script::new([vec![Do::Say(session("s-1")), Do::Ask("Bash"), Do::Output(output)]]);
    let permissions = PermissionPolicy::Ask { deadline: std::time::Duration::from_secs(5) };
    let agent = ProviderAgent::new("coder", script.provider()).host(Host { permissions, ..Host::default() });
    let expected = json!({ "text": "done", "sessionId": "s-1", "stopReason": "complete", "numTurns": 1,
        "usage": inspan_protocol::Usage::default() });
    assert_eq!(bind(&hub, agent).execute(json!({ "prompt": "go" })).await, Ok(expected));
    assert_eq!(
        reported(watch.envelopes()),
        [
            "agent:start",
            "agent:session",
            "session:prompt",
            "session:reply",
            "Deny { message: \"permission was denied\" }",
            "agent:usage",
            "complete true Complete",
        ]
    );
    // The run's id is the one that the wrapper made, and the only one.
    assert_eq!(hub.ids().run_id(), "run-2");
}

/// Gets its messages by events, as any subscriber does, until one says `end`.
fn listening(_: Value, context: AgentContext) -> BoxFuture<'static, Result<Value, AgentError>> {
    let mut messages = context.hub.subscribe(Filter::name("session:message").of_run(context.run_id));
    async move {
        let mut received = Vec::new();
        while let Some(envelope) = messages.next().await {
            if let Event::SessionMessage { content, .. } = &envelope.event {
                if content == "end" {
                    break;
                }
                received.push(content.clone());
            }
        }
        Ok(json!(received))
    }
    .boxed()
}

#[tokio::test(start_paused = true)]
async fn messages_reach_an_agent_that_subscribes_to_them() {
    use inspan_protocol::{MessageMode::FollowUp, NodeId, NodePath, Rejection};
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let node = NodeId::new("code").unwrap();
    let at = hub.with_task(NodePath::root(&node));
    let agent = bind(&at, Custom { brackets: false, act: listening });
    let mut running = Box::pin(agent.execute(Value::Null));
    assert!(matches!(futures::poll!(&mut running), Poll::Pending));
    let run = hub.active_runs().pop().unwrap();
    assert_eq!(hub.send_to_run(run.clone(), "by run", FollowUp), Ok(()));
    assert_eq!(hub.send_to(node, "by node", FollowUp), Ok(()));
    assert_eq!(hub.send("to all"), Ok(1));
    hub.emit(Event::SessionMessage {
        content: "by emit".to_owned(),
        run_id: Some(run.clone()),
        agent_name: None,
        mode: None,
        receivers: None,
    });
    hub.send_to_run(run.clone(), "end", FollowUp).unwrap();
    assert_eq!(running.await, Ok(json!(["by run", "by node", "to all", "by emit"])));
    assert_eq!(hub.send_to_run(run.clone(), "late", FollowUp), Err(Rejection::RunEnded(run)));
    let names = watch.names();
    let ends: Vec<_> = names.iter().map(String::as_str).filter(|name| name.starts_with("agent:")).collect();
    assert_eq!(ends, ["agent:start", "agent:complete"]);
}

#[tokio::test(start_paused = true)]
async fn messages_wait_in_the_mailbox_of_an_agent_that_does_not_subscribe() {
    use inspan_protocol::MessageMode::FollowUp;
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let takes: Act = |_, context| {
        async move {
            context.mailbox.wakeup().await;
            let taken: Vec<_> = context.mailbox.take().into_iter().map(|mail| mail.content).collect();
            // Nothing reads what comes now.
            context.hub.send_to_run(context.run_id, "unread", FollowUp).unwrap();
            Ok(json!(taken))
        }
        .boxed()
    };
    // Sent as soon as the run is visible, before the agent has done anything.
    let first = hub.clone();
    let _observer = hub.observe(
        Filter::name("agent:start"),
        Arc::new(move |envelope: &Arc<Envelope>| {
            if let Event::AgentStart { run_id, .. } = &envelope.event {
                first.send_to_run(run_id.clone(), "first", FollowUp).unwrap();
            }
        }),
    );
    let agent = bind(&hub, Custom { brackets: false, act: takes });
    assert_eq!(agent.execute(Value::Null).await, Ok(json!(["first"])));
    let reported: Vec<_> = watch
        .events()
        .into_iter()
        .map(|event| match event {
            Event::AgentWarning { code, message, .. } => format!("{code}: {message}"),
            other => other.name().to_owned(),
        })
        .collect();
    assert_eq!(
        reported,
        [
            "agent:start",
            "session:message",
            "session:message",
            "undelivered: the run ends before this message reaches it: unread",
            "agent:complete",
        ]
    );
}
