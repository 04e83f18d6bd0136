//! Attempts without the driver: on a backend that sends their progress elsewhere, and when they are lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use inspan_engine::{Hub, NodeCalls, RandomIds, VirtualClock};
use inspan_flow_core::{AttemptDone, AttemptEnd, AttemptSpec, NodeIx, TaskRef};
use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, Host, MessageMode, NodeId, NodePath, Outcome, SessionId,
    Timestamp,
};
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::stage::{Stage, kill, pass, spawn};
use crate::{
    AttemptBackend, AttemptContext, DescribeNode, Mail, NodeContext, NodeKind, NodeRegistry, NodeType,
    NodeTypeInfo, Progress, run_attempt,
    testing::{Do, TalkProvider},
};

/// The backend of a process that only runs attempts: it keeps what it is given.
struct Elsewhere {
    hub: Hub,
    surroundings: AttemptContext,
    cancel: CancellationToken,
    progress: Mutex<Vec<(&'static str, Progress)>>,
    live: Mutex<Vec<String>>,
    mail: AsyncMutex<mpsc::Receiver<Mail>>,
}

impl Elsewhere {
    fn new() -> (Arc<Self>, mpsc::Sender<Mail>) {
        let clock = Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0)));
        let hub = Hub::new(SessionId::from("s"), clock, Arc::new(RandomIds::new()));
        hub.start_session();
        let (post, mail) = mpsc::channel(4);
        let surroundings =
            AttemptContext::new(Host::default(), &Default::default(), &[], NodeCalls::default(), None);
        let backend = Self {
            hub,
            surroundings,
            cancel: CancellationToken::new(),
            progress: Mutex::default(),
            live: Mutex::default(),
            mail: AsyncMutex::new(mail),
        };
        (Arc::new(backend), post)
    }

    fn names(&self) -> Vec<&'static str> {
        self.progress.lock().unwrap().iter().map(|(name, _)| *name).collect()
    }

    fn newest(&self) -> Progress {
        self.progress.lock().unwrap().last().map(|(_, progress)| progress.clone()).unwrap_or_default()
    }
}

impl AttemptBackend for Elsewhere {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn surroundings(&self) -> &AttemptContext {
        &self.surroundings
    }

    fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    fn follows(&self) -> bool {
        true
    }

    fn progress(&self, fact: &Arc<Envelope>, progress: &Progress) {
        let name = Event::NAMES[fact.event.kind()];
        self.progress.lock().unwrap().push((name, progress.clone()));
    }

    fn live(&self, event: &Arc<Envelope>) {
        self.live.lock().unwrap().push(event.event.name().to_owned());
    }

    fn mail(&self) -> BoxFuture<'_, Mail> {
        async move {
            match self.mail.lock().await.recv().await {
                Some(mail) => mail,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn output(&self, output: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        ready(Ok(json!({ "elsewhere": output["text"] }))).boxed()
    }
}

fn spec(id: &str, node_type: &str, input: Value) -> AttemptSpec {
    let node_id = NodeId::new(id).unwrap();
    AttemptSpec {
        session: "s".into(),
        node: TaskRef::of_flow(NodeIx(0)),
        path: NodePath::root(&node_id),
        node_id,
        node_type: node_type.into(),
        attempt: 1,
        input,
        conversation: None,
        branches: None,
        interrupted: None,
        mail: Vec::new(),
        pool: None,
        secrets: Arc::default(),
        timeout_ms: None,
        is_external: false,
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_run_on_in_another_process_with_its_progress() {
    let talk = TalkProvider::new(|asked, _| match &asked.resume {
        None => vec![Do::Name("c"), Do::Say("…"), Do::Work(60_000), Do::End("never", None, 1)],
        Some(_) => vec![Do::Name("c"), Do::Work(10), Do::End("done", Some(0.1), 1)],
    });
    let nodes = Arc::new(talk.nodes());
    let spec = spec("a", "talk.agent", json!({ "prompt": "one" }));
    let (first, _post) = Elsewhere::new();
    let running = tokio::spawn(run_attempt(nodes.clone(), spec.clone(), Progress::default(), first.clone()));
    pass(100).await;
    assert_eq!(first.names(), ["agent:start", "agent:session"]);
    assert_eq!(*first.live.lock().unwrap(), ["agent:text"]);
    // The process dies: what it has sent is all that is left.
    let sent = serde_json::to_string(&first.newest()).unwrap();
    kill(running).await;

    let (second, _post) = Elsewhere::new();
    let progress: Progress = serde_json::from_str(&sent).unwrap();
    let done = run_attempt(nodes, spec, progress, second.clone()).await;
    let end = AttemptEnd::Output(json!({ "elsewhere": "done" }));
    assert_eq!(done, AttemptDone { node: TaskRef::of_flow(NodeIx(0)), attempt: 1, end });
    assert_eq!(talk.calls(), ["one", "c: continue"]);
    let newest = second.newest();
    let turns = newest.conversation.as_ref().map(|known| known.turns);
    assert_eq!((newest.runs, turns), (2, Some(1)), "its run has an id of its own: a.1.2");
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_the_run_that_takes_it() {
    let talk = TalkProvider::new(|_, _| vec![Do::Name("c"), Do::Work(10), Do::End("done", Some(0.1), 1)]);
    let (backend, post) = Elsewhere::new();
    // It is there before the agent is.
    post.send(Mail { content: "hello".to_owned(), mode: MessageMode::FollowUp }).await.unwrap();
    let input = json!({ "prompt": "one", "options": { "multiTurn": true, "idleTimeoutMs": 1000 } });
    let done =
        run_attempt(talk.nodes().into(), spec("a", "talk.agent", input), Progress::default(), backend).await;
    assert!(matches!(done.end, AttemptEnd::Output(_)), "{done:?}");
    assert_eq!(talk.calls(), ["one", "c: hello"]);
}

/// `fragile`: the task of its first attempt dies.
#[derive(Clone, Default)]
struct Fragile(Arc<AtomicUsize>);

/// Ends the task of the attempt, since it can report nothing any more.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the task of the attempt dies");
    }
}

impl DescribeNode for Fragile {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("fragile", "core", NodeKind::Plain)
    }
}

impl NodeType for Fragile {
    async fn run(&self, context: NodeContext, _: Value) -> Result<Value, AgentError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let _held = PanicsWhenDropped;
                std::future::pending().await
            }
            _ => Ok(json!({ "attempt": context.attempt })),
        }
    }
}

/// `late`: ends with an output as soon as it is cancelled.
struct Late;

impl DescribeNode for Late {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("late", "core", NodeKind::Plain)
    }
}

impl NodeType for Late {
    async fn run(&self, context: NodeContext, _: Value) -> Result<Value, AgentError> {
        context.cancel.cancelled().await;
        Ok(json!({}))
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_well_after_its_timeout_has_failed() {
    let text = "name: late\nnodes: [{ id: a, type: late, policy: { timeout: 1s } }]\n";
    let mut nodes: NodeRegistry = TalkProvider::new(|_, _| Vec::new()).nodes();
    nodes.register(Late);
    let stage = Stage::with(text, nodes);
    let result = spawn(stage.builder().build()).await.unwrap().unwrap();
    let code = result.error.map(|error| error.code);
    assert_eq!((result.outcome, code), (Outcome::Failed, Some(ErrorCode::Timeout)));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_lost_is_started_again_and_the_others_continue() {
    let text = r#"
name: lost
nodes:
  - { id: a, type: fragile, policy: { timeout: 1s } }
  - { id: other, type: effect }
  - { id: end, type: constant, dependsOn: [a, other], input: { value: "{{ a.attempt }}" } }
"#;
    let mut nodes: NodeRegistry = TalkProvider::new(|_, _| Vec::new()).nodes();
    nodes.register(Fragile::default());
    let stage = Stage::with(text, nodes);
    let result = spawn(stage.builder().build()).await.unwrap().unwrap();
    stage.check().await;
    assert_eq!(
        (result.outcome, &result.outputs.get("end")),
        (Outcome::Success, &Some(&json!({ "value": 2 })))
    );
    assert_eq!(
        (stage.count("task:interrupted a").await, stage.effects.done()),
        (1, vec!["other".to_owned()])
    );
    assert_eq!(stage.count("task:failed a").await, 0);
    // The whole time that the first took, from its start to the end of its grace.
    assert_eq!(Duration::from_millis(stage.now()).as_secs(), 16);
}
