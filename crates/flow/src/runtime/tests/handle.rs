//! What a program does with a session through its runner and its handle.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inspan_engine::{Channel, CountingIds, Filter, ProviderRegistry, VirtualClock, check_order};
use inspan_protocol::{
    AgentError, BoxError, Envelope, Event, LogLevel, MessageMode, NodeId, Outcome, Rejection, SessionStatus,
    Timestamp,
};
use serde_json::{Map, Value, json};

use super::stage::{Stage, pass, pause_after, session, spawn, start};
use crate::{
    Batch, FlowRunner, FlowRunnerBuilder, NodeContext, Owner, RunError, RunHandle, RunStore, Select,
    builtin_nodes,
    testing::{TalkProvider, graph},
};

const WAIT: &str = r#"
name: wait
nodes:
  - { id: a, type: control.wait, input: { until: "session:message", timeout: 1m } }
  - { id: b, type: echo, dependsOn: [a], input: { text: "{{ a.event.content }}" } }
"#;

fn stage(text: &str) -> Stage {
    Stage::new(text, &TalkProvider::new(|_, _| Vec::new()))
}

fn runner(text: &str) -> FlowRunnerBuilder {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    FlowRunner::builder(graph(text, &nodes), nodes)
        .clock(Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0))))
        .ids(Arc::new(CountingIds::new()))
}

#[tokio::test(start_paused = true)]
async fn a_flow_waits_for_a_message() {
    let (handle, running) = start(runner(WAIT).build());
    pass(1_000).await;
    assert_eq!(handle.hub().send("hello"), Ok(1));
    let result = running.await.unwrap().unwrap();
    let text = result.outputs.get("b").unwrap().clone();
    assert_eq!((result.outcome, text), (Outcome::Success, json!({ "text": "hello" })));
    assert_eq!(result.duration_ms, 1_000);
    assert!(handle.hub().send("too late").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_stored_before_a_crash_ends_the_wait_after_it() {
    let before = stage(WAIT);
    let (handle, running) = start(before.builder().build());
    pass(1_000).await;
    assert_eq!(handle.hub().send("hello"), Ok(1));
    running.await.unwrap().unwrap();
    // What a process leaves that dies once the message is stored.
    let mut log = before.store.read(&session(), 1, Select::All).await.unwrap();
    let message = log.iter().position(|envelope| envelope.event.name() == "session:message").unwrap();
    log.truncate(message + 1);
    let after = stage(WAIT);
    let record = before.store.record(&session()).await.unwrap();
    let lease = after.store.create(&record, &Owner::of_process(), Timestamp::default()).await.unwrap();
    after.store.append(&lease, Batch { events: &log, answers: &[] }).await.unwrap();
    after.store.release(&lease).await.unwrap();

    let result = after.resume().await;
    let text = result.outputs.get("b").cloned();
    assert_eq!((result.outcome, text), (Outcome::Success, Some(json!({ "text": "hello" }))));
    after.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_wait_counts_from_its_first_start() {
    let stage = stage(WAIT);
    let (_, paused) = pause_after(stage.builder().build(), 40_000).await;
    assert_eq!(paused.outcome, Outcome::Paused);
    let began = stage.now();
    assert_eq!(stage.resume().await.outcome, Outcome::Failed);
    assert_eq!(stage.now() - began, 20_000);
}

#[tokio::test(start_paused = true)]
async fn the_events_are_given_back_without_a_store() {
    let flow = "name: one\nnodes:\n  - { id: a, type: echo, input: { text: hi } }\n";
    let result = runner(flow).with_events().build().start_session().run(Map::new()).await.unwrap();
    let names: Vec<_> = result.events.iter().map(|envelope| envelope.event.name()).collect();
    assert_eq!(
        names,
        ["harness:start", "phase:start", "task:start", "task:complete", "phase:complete", "harness:complete"]
    );
    let quiet = runner(flow).build().run(Map::new()).await.unwrap();
    assert_eq!(quiet.events.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_session_is_paused_again_with_the_same_snapshot() {
    let stage = stage("name: wait\nnodes:\n  - { id: a, type: control.wait, input: { ms: 60000 } }\n");
    let runner = stage.builder().build();
    let handle = runner.handle();
    assert!(handle.pause(None).await.is_err(), "before it has started");
    let running = spawn(runner);
    pass(1_000).await;
    let first = handle.pause(None).await.unwrap();
    let second = handle.pause(None).await.unwrap();
    assert_eq!((first.status, &first), (SessionStatus::Paused, &second));
    running.await.unwrap().unwrap();
    assert_eq!(handle.pause(None).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_begun_is_resumed_and_not_run() {
    let text = "name: wait\nnodes:\n  - { id: a, type: effect }\n  - { id: b, type: control.wait, dependsOn: [a], input: { ms: 60000 } }\n";
    let stage = stage(text);
    let snapshot = pause_after(stage.builder().build(), 1_000).await.0;
    let restored = stage.builder().restore(&snapshot).unwrap().run(Map::new()).await.unwrap_err();
    let opened = stage.open().await.run(Map::new()).await.unwrap_err();
    let refused = "session `s` has already started: call `resume` to continue it";
    assert_eq!([restored.to_string(), opened.to_string()], [refused, refused]);
    assert_eq!(stage.effects.done(), ["a"]);
}

#[derive(Default)]
struct Listens(Mutex<Vec<String>>);

impl Channel for Listens {
    fn name(&self) -> &str {
        "late"
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        self.0.lock().unwrap().push(envelope.event.name().to_owned());
        Ok(())
    }

    async fn on_complete(&self) -> Result<(), BoxError> {
        self.0.lock().unwrap().push("done".to_owned());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_joins_a_session_that_runs() {
    let (handle, running) = start(runner(WAIT).build());
    pass(1_000).await;
    let channel = Arc::new(Listens::default());
    handle.attach(channel.clone()).await.unwrap();
    handle.hub().send("hello").unwrap();
    running.await.unwrap().unwrap();
    let seen = channel.0.lock().unwrap().clone();
    assert_eq!(
        seen,
        [
            "channel:registered",
            "channel:started",
            "session:message",
            "task:complete",
            "edge:fired",
            "task:start",
            "task:complete",
            "phase:complete",
            "harness:complete",
            "done",
        ]
    );
    assert!(handle.attach(channel).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_handle_answers_before_the_session_has_begun() {
    let within = async |handle: &RunHandle| {
        let channel = Arc::new(Listens::default());
        let answers = async {
            let snapshot = handle.snapshot().await.unwrap();
            handle.attach(channel.clone()).await.unwrap();
            assert_eq!(handle.pause(None).await, Err(Rejection::NotActive));
            snapshot.status
        };
        let answered = tokio::time::timeout(Duration::from_secs(1), answers);
        (answered.await.expect("it hangs"), channel)
    };
    let stage = stage("name: wait\nnodes:\n  - { id: a, type: control.wait, input: { ms: 60000 } }\n");
    let runner = stage.builder().build().start_session();
    let handle = runner.handle();
    let (status, channel) = within(&handle).await;
    assert_eq!(status, SessionStatus::Idle);
    let running = spawn(runner);
    pass(1_000).await;
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    let seen = channel.0.lock().unwrap().clone();
    assert!(seen.contains(&"harness:start".to_owned()) && seen.last().unwrap() == "done", "{seen:?}");

    let runner = stage.open().await;
    let handle = runner.handle();
    assert_eq!(within(&handle).await.0, SessionStatus::Paused);
    // A handle does not hold the session of a runner that is dropped unused.
    drop(runner);
    assert!(handle.attach(channel).await.is_err() && handle.snapshot().await.is_none());
    assert_eq!(stage.resume().await.outcome, Outcome::Success);
}

/// `listen`: an agent that is code, as a node.
struct ListenNode;

struct ListenAgent;

impl inspan_engine::AgentDefinition for ListenAgent {
    fn name(&self) -> &str {
        "listener"
    }

    async fn execute(&self, _: Value, context: inspan_engine::AgentContext) -> Result<Value, AgentError> {
        let mut messages = context.hub.subscribe(Filter::name("session:message").of_run(context.run_id));
        let received = messages.next().await.map(|envelope| serde_json::to_value(&envelope.event).unwrap());
        Ok(json!({ "text": received.unwrap_or_default()["content"] }))
    }
}

impl crate::DescribeNode for ListenNode {
    fn describe(&self) -> crate::NodeTypeInfo {
        crate::NodeTypeInfo::with_open_schemas("listen", "core", crate::NodeKind::Plain)
    }
}

impl crate::NodeType for ListenNode {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let agent = inspan_engine::ExecutableAgent::new(ListenAgent, context.hub, context.cancel);
        agent.execute(input).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_reaches_an_agent_of_code_within_a_flow() {
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(ListenNode);
    let flow = "name: l\nnodes:\n  - { id: a, type: listen }\n";
    let (handle, running) = start(FlowRunner::builder(graph(flow, &nodes), nodes).with_events().build());
    pass(1_000).await;
    let node = NodeId::new("a").unwrap();
    assert_eq!(handle.hub().send_to(node.clone(), "hello", MessageMode::FollowUp), Ok(()));
    let result = running.await.unwrap().unwrap();
    let log: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    check_order(&log).unwrap();
    assert_eq!(result.outputs.get(&node).unwrap().clone(), json!({ "text": "hello" }));
}

/// `tell`: says a secret in an event of its own and by an agent that is code.
struct TellNode;

struct TellAgent;

const SECRET: &str = "told-4711-xyz";

impl inspan_engine::AgentDefinition for TellAgent {
    fn name(&self) -> &str {
        "teller"
    }

    async fn execute(&self, _: Value, context: inspan_engine::AgentContext) -> Result<Value, AgentError> {
        let (content, run_id) = (format!("I say {SECRET}"), context.run_id);
        context.hub.emit(Event::AgentText { content, delta: false, run_id });
        Ok(json!({}))
    }
}

impl crate::DescribeNode for TellNode {
    fn describe(&self) -> crate::NodeTypeInfo {
        crate::NodeTypeInfo::with_open_schemas("tell", "core", crate::NodeKind::Plain)
    }
}

impl crate::NodeType for TellNode {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let message = format!("I log {SECRET}");
        context.hub.emit(Event::Log { level: LogLevel::Info, message, fields: Map::new() });
        inspan_engine::ExecutableAgent::new(TellAgent, context.hub, context.cancel).execute(input).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_node_and_an_agent_of_code_emit_is_stored_without_secrets() {
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(TellNode);
    let graph = graph("name: t\nnodes:\n  - { id: a, type: tell }\n", &nodes);
    let env = [("MY_TOKEN".to_owned(), SECRET.to_owned())].into_iter().collect();
    let result = FlowRunner::builder(graph, nodes).env(env).with_events().build().run(Map::new()).await;
    let events: Vec<String> =
        result.unwrap().events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    assert!(!events.iter().any(|event| event.contains(SECRET)), "{events:#?}");
    assert_eq!(events.iter().filter(|event| event.contains("[redacted MY_TOKEN]")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_id_would_name_another_file_is_refused() {
    let stage = stage(WAIT);
    let mut snapshot = (*pause_after(stage.builder().build(), 1_000).await.0).clone();
    for id in ["../x", "", "a b", "x\n", "-x", &"x".repeat(129)] {
        let runner = stage.builder().session_id(id.into()).build();
        let refused = runner.run(Map::new()).await.unwrap_err();
        assert!(matches!(refused, RunError::SessionId(_)), "{id}: {refused}");
        snapshot.session_id = id.into();
        let refused = stage.builder().restore(&snapshot).err().unwrap();
        assert!(matches!(refused, RunError::SessionId(_)), "{id}: {refused}");
    }
    assert_eq!(stage.store.entries("", 9).await.unwrap().len(), 1);
}
