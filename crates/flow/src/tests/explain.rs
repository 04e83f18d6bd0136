//! Every flow fixture, explained whole; and every beginning of its log, in which no statement may
//! be based on an event that is not there.

use std::{fmt::Write as _, fs, path::PathBuf, sync::Arc, time::Duration};

use inspan_engine::{CountingIds, ProviderRegistry, VirtualClock};
use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, NodePath, PromptKind, RunId, SessionId, Timestamp, Usage,
};
use serde_json::{Map, Value, json};

use crate::{
    About, DescribeNode, Explanation, FlowRunner, FlowRunnerBuilder, Graph, MemoryStore, NodeContext,
    NodeKind, NodeRegistry, NodeType, NodeTypeInfo, Parent, ParentKind, Resume, Reusable, RunStore, Select,
    SessionRecord, WhenWaiting, builtin_nodes, compile, explain, load, testing::graph,
};

/// The fixtures' folder.
fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/flows")
}

/// The fixtures that show what happens to nodes.
const CASES: &[&str] = &[
    "failing",
    "frame_partial",
    "frame_timeout",
    "fan_out_merge",
    "human_input",
    "loop_exhausted",
    "partial",
    "retry",
    "review_loop",
    "routes",
    "stopped",
    "timed_out",
    "two_edges",
];

/// A replacement for the vendors' agents. Its input says what it does.
struct TestAgent;

impl DescribeNode for TestAgent {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("claude.agent", "agents", NodeKind::Agent)
    }
}

impl NodeType for TestAgent {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        if input["limited"] == json!(true) && context.attempt == 1 {
            let mut error = AgentError::new(ErrorCode::RateLimited, "too much").from_provider("claude");
            error.resets_at = Some(context.hub.clock().now() + Duration::from_secs(3_600));
            return Err(error);
        }
        if let Some(usd) = input["costs"].as_f64() {
            let usage = Usage { output_tokens: 10, ..Usage::default() };
            context.hub.emit(Event::AgentUsage {
                usage,
                cost_usd: Some(usd),
                context: None,
                turn_id: None,
                reported: None,
                uncounted: false,
                run_id: RunId::from("r"),
            });
        }
        Ok(json!({ "text": "done" }))
    }
}

fn nodes() -> NodeRegistry {
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(TestAgent);
    nodes
}

fn case(name: &str) -> (Arc<Graph>, SessionRecord, Vec<Arc<Envelope>>) {
    let folder = fixtures().join(name);
    let loaded = load(&folder.join("flow.yaml")).unwrap();
    let compiled = compile(&loaded, &nodes());
    let graph = Arc::new(compiled.unwrap_or_else(|found| panic!("{name}\n{found}")).graph);
    let text = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let log: Vec<Arc<Envelope>> =
        text.lines().map(|line| Arc::new(serde_json::from_str(line).unwrap())).collect();
    let record = record(&graph, log[0].context.session_id.clone());
    (graph, record, log)
}

fn record(graph: &Graph, session: SessionId) -> SessionRecord {
    SessionRecord::new(session, (*graph.source).clone(), graph.input.clone(), Timestamp::default())
}

/// The session, then each node.
fn all(graph: &Graph) -> Vec<About> {
    let nodes = graph.flow().nodes.iter().map(|node| About::Node(NodePath::root(&node.id)));
    std::iter::once(About::Session).chain(nodes).collect()
}

fn shown(explanation: &Explanation) -> String {
    let mut text = format!("{}  [{}]\n", explanation.standing.text, explanation.standing.seq);
    for said in &explanation.because {
        let place = said.task.as_ref().map_or("", NodePath::as_str);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:>3} {place}: {}", said.seq, said.text);
    }
    text
}

fn assert_snapshot(name: &str, text: &str) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn what_became_of_every_node_of_every_fixture() {
    let mut text = String::new();
    for name in CASES {
        let (graph, record, log) = case(name);
        text.push_str(&format!("── {name}\n"));
        for about in all(&graph) {
            text.push_str(&shown(&explain(&graph, &record, &log, about, false)));
        }
        text.push('\n');
    }
    assert_snapshot("fixtures", &text);
}

#[test]
fn no_statement_rests_on_an_event_that_is_not_there() {
    for name in CASES {
        let (graph, record, log) = case(name);
        for end in 0..=log.len() {
            for about in all(&graph) {
                let explanation = explain(&graph, &record, &log[..end], about.clone(), false);
                let said = explanation.because.iter().chain([&explanation.standing]);
                for said in said {
                    assert!(said.seq <= end as u64, "{name}, {end} events, {about:?}: {said:?}");
                    assert_eq!(said.at.is_some(), said.seq > 0, "{name}, {end} events, {about:?}: {said:?}");
                }
            }
        }
    }
}

#[test]
fn reasons_that_an_older_log_does_not_hold_are_derived() {
    for name in CASES {
        let (graph, record, log) = case(name);
        let older = log.iter().map(|envelope| {
            let mut envelope = Envelope::clone(envelope);
            match &mut envelope.event {
                Event::TaskCancelled { reason, cause, .. } => (*reason, *cause) = (None, None),
                Event::TaskSkipped { failures, .. } => failures.clear(),
                _ => {}
            }
            Arc::new(envelope)
        });
        let older: Vec<_> = older.collect();
        for about in all(&graph) {
            let explained = [&log, &older].map(|log| explain(&graph, &record, log, about.clone(), false));
            assert_eq!(explained[0], explained[1], "{name}, {about:?}");
        }
    }
}

/// A flow whose session is stored in memory, in virtual time.
struct Kept {
    graph: Arc<Graph>,
    store: Arc<MemoryStore>,
    session: SessionId,
}

impl Kept {
    fn new(text: &str) -> Self {
        let store = Arc::new(MemoryStore::new());
        Self { graph: graph(text, &nodes()), store, session: SessionId::from("s") }
    }

    fn builder(&self) -> FlowRunnerBuilder {
        FlowRunner::builder(self.graph.clone(), nodes())
            .clock(Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0))))
            .ids(Arc::new(CountingIds::new()))
            .session_id(self.session.clone())
            .store(self.store.clone())
            .when_waiting(WhenWaiting::LeaveUnlessTimed)
    }

    async fn run(&self) {
        self.builder().build().run(Map::new()).await.unwrap();
    }

    async fn log(&self) -> Vec<Arc<Envelope>> {
        self.store.read(&self.session, 1, Select::All).await.unwrap()
    }

    /// Throws away what came after some event, as if the process had died there.
    async fn cut_after(&mut self, name: &str) {
        let mut log = self.log().await;
        let end = log.iter().position(|envelope| envelope.event.name() == name).unwrap();
        log.truncate(end + 1);
        let (record, store) = (self.store.record(&self.session).await.unwrap(), MemoryStore::new());
        let lease = store.create(&record, &crate::Owner::of_process(), Timestamp::default()).await.unwrap();
        store.append(&lease, crate::Batch { events: &log, answers: &[] }).await.unwrap();
        store.release(&lease).await.unwrap();
        self.store = Arc::new(store);
    }

    async fn resume(&self) {
        let runner = self.builder().open(&self.session).await.unwrap();
        runner.resume(Resume::default()).await.unwrap();
    }

    /// Another session in the same store, which does what an earlier one has left to do.
    async fn take_over(before: &Self, name: &str, kind: ParentKind, until: u64) -> Self {
        let run = crate::Run::new(before.graph.clone(), &before.session, Map::new(), None);
        let reusable = Arc::new(Reusable::of(run, &before.log().await, u64::MAX));
        let kept =
            Self { session: SessionId::from(name), store: before.store.clone(), graph: before.graph.clone() };
        let parent = Parent::new(before.session.clone(), until, kind);
        kept.builder().reusing(reusable, parent).build().run(Map::new()).await.unwrap();
        kept
    }

    async fn explain(&self, about: About) -> Explanation {
        let record = self.store.record(&self.session).await.unwrap();
        explain(&self.graph, &record, &self.log().await, about, false)
    }

    async fn shown(&self) -> String {
        let mut text = String::new();
        for about in all(&self.graph) {
            text.push_str(&shown(&self.explain(about).await));
        }
        text
    }
}

const PAYING: &str = "
flow: { name: paying, policy: { budget: { usd: 1 } } }
nodes:
  - { id: first, type: claude.agent, input: { costs: 2 } }
  - { id: second, type: claude.agent, dependsOn: [first], input: { costs: 2 } }
";
const LIMITED: &str = "
flow: { name: limited }
nodes: [{ id: agent, type: claude.agent, input: { limited: true } }]
";
const WAITING: &str = "
flow: { name: waiting }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Go on?', choices: [yes, no] } }
  - { id: after, type: echo, dependsOn: [ask], input: { text: '{{ ask.choice }}' } }
";
const LASTING: &str = "
flow: { name: lasting, policy: { maxConcurrency: 1 } }
nodes:
  - { id: sent, type: control.wait, effects: external, input: { ms: 1000 } }
  - { id: done, type: control.wait, input: { ms: 1000 } }
";

const IN_ANY_CASE: &str = "
flow: { name: in-any-case }
nodes:
  - { id: never, type: echo, when: 'false', input: { text: a } }
  - { id: instead, type: echo, dependsOn: [{ node: never, on: skipped }], input: { text: b } }
  - { id: slow, type: control.wait, input: { ms: 5000 } }
  - { id: bad, type: control.fail, dependsOn: [instead], input: { message: broken } }
  - { id: after_slow, type: echo, dependsOn: [{ node: slow, on: any }], input: { text: c } }
  - { id: after_bad, type: echo, dependsOn: [{ node: bad, on: any }], input: { text: d } }
";
const IN_FRAMES: &str = "
flow: { name: in-frames }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2], as: n, onItemError: continue }
    body:
      nodes:
        - { id: check, type: control.fail, input: { message: '{{ n }} is wrong' } }
        - { id: use, type: echo, dependsOn: [check], input: { text: '{{ n }}' } }
";

#[tokio::test(start_paused = true)]
async fn an_edge_that_fires_in_any_case_says_how_its_source_ended() {
    let kept = Kept::new(IN_ANY_CASE);
    kept.run().await;
    let shown = kept.shown().await;
    assert_snapshot("in_any_case", &shown);
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_frame_that_has_ended_waits_for_nothing() {
    let kept = Kept::new(IN_FRAMES);
    kept.run().await;
    let said = shown(&kept.explain(About::Node(NodePath::new("each[1]/use"))).await);
    assert_snapshot("in_frames", &said);
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_asked_whose_process_is_gone_is_not_waited_for() {
    let mut kept = Kept::new(WAITING);
    kept.run().await;
    kept.cut_after("session:prompt").await;
    let record = kept.store.record(&kept.session).await.unwrap();
    let mut log = kept.log().await;
    let mut said = |kind, is_lost| {
        let asked = Arc::make_mut(log.last_mut().unwrap());
        let Event::SessionPrompt(prompt) = &mut asked.event else { panic!("{asked:?}") };
        prompt.kind = kind;
        let about = About::Node(NodePath::new("ask"));
        explain(&kept.graph, &record, &log, about, is_lost).standing.text
    };
    let waits = "`ask` waits for an answer";
    assert_eq!([said(PromptKind::Input, true), said(PromptKind::Permission, false)], [waits; 2]);
    let gone = "`ask` was interrupted in attempt 1: the process is gone";
    assert_eq!(said(PromptKind::Permission, true), gone);
}

#[tokio::test(start_paused = true)]
async fn a_default_is_no_answer_of_a_person() {
    let kept = Kept::new(
        "{ flow: { name: f }, nodes: [{ id: ok, type: human.input, input: { prompt: 'Go?', timeout: 1h, default: no } }] }",
    );
    kept.run().await;
    let shown = kept.shown().await;
    assert!(shown.contains("ok: nobody answered, and the default was taken: no"), "{shown}");
}

/// The process dies while a node runs that may have effects outside, and another session continues.
#[tokio::test(start_paused = true)]
async fn a_person_is_to_decide_also_in_a_session_that_continues_another() {
    let mut before = Kept::new(LASTING);
    before.run().await;
    before.cut_after("task:start").await;
    let kept = Kept::take_over(&before, "next", ParentKind::Resume, 3).await;
    let standing = kept.explain(About::Node(NodePath::new("sent"))).await.standing;
    assert_eq!(standing.text, "`sent` was interrupted and may have taken effect: a person must decide");
}

#[tokio::test(start_paused = true)]
async fn sessions_that_rest_run_out_or_died() {
    let mut text = String::new();
    let mut add = |title: &str, shown: String| text.push_str(&format!("── {title}\n{shown}\n"));

    let kept = Kept::new(PAYING);
    kept.run().await;
    add("the budget is used up", kept.shown().await);

    let kept = Kept::new(LIMITED);
    kept.run().await;
    add("a usage limit was waited out", kept.shown().await);

    let kept = Kept::new(WAITING);
    kept.run().await;
    add("a person is waited for", kept.shown().await);

    let kept = Kept::new(LASTING);
    let runner = kept.builder().build();
    let handle = runner.handle();
    let running = tokio::spawn(runner.run(Map::new()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    handle.pause(Some("lunch".to_owned())).await.unwrap();
    running.await.unwrap().unwrap();
    add("paused", kept.shown().await);

    let mut kept = Kept::new(LASTING);
    kept.run().await;
    kept.cut_after("task:start").await;
    add("died", kept.shown().await);
    kept.resume().await;
    add("died, and gone on with", kept.shown().await);

    let before = Kept::new(LASTING);
    before.run().await;
    let kept = Kept::take_over(&before, "fork", ParentKind::Fork, 9).await;
    add("forked", kept.shown().await);

    assert_snapshot("sessions", &text);
}

#[test]
fn a_node_that_is_ready_waits_for_a_place() {
    let (graph, record, log) = case("fan_out_merge");
    let about = About::Node(NodePath::new("style"));
    let explanation = explain(&graph, &record, &log[..20], about, false);
    assert_eq!(
        (explanation.standing.text.as_str(), explanation.standing.seq),
        ("`style` is ready and waits for a free slot: 2 of 2 are in use", 20)
    );
}

#[test]
fn a_frame_says_what_became_of_it_and_one_that_is_not_there_does_so_too() {
    let (graph, record, log) = case("foreach_fails");
    let said = |path: &str| {
        let explanation = explain(&graph, &record, &log, About::Node(NodePath::new(path)), false);
        (explanation.standing.text, explanation.because.is_empty())
    };
    let rows = [
        ("each[0]", "`each[0]` completed", false),
        ("each[1]", "`each[1]` failed: `check`: 2 is even [NODE_FAILED]", false),
        ("each[99]", "`each[99]` does not exist: `each` has 3 items, from 0 on", true),
    ];
    for (path, standing, is_alone) in rows {
        assert_eq!(said(path), (standing.to_owned(), is_alone));
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_fails_for_a_reason_of_its_own_is_named_with_the_session() {
    let flow = |policy: &str| {
        format!(
            "
flow: {{ name: items }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [1, 2, 3], as: n, onItemError: {policy} }}
    body:
      outputs: {{ o: '{{{{ e.value.k }}}}' }}
      policy: {{ timeout: 2m }}
      nodes:
        - {{ id: e, type: constant, when: 'n != 3', input: {{ value: '{{{{ {{\"k\": 1}} if n == 1 else 7 }}}}' }} }}
        - {{ id: w, type: control.wait, when: 'n == 3', input: {{ ms: 999000 }} }}
"
        )
    };
    let because = async |policy: &str| {
        let kept = Kept::new(&flow(policy));
        kept.run().await;
        let said = kept
            .explain(About::Session)
            .await
            .because
            .into_iter()
            .filter(|said| said.text.contains("failed:"));
        said.map(|said| (said.task.unwrap().to_string(), said.text)).collect::<Vec<_>>()
    };
    let said = because("continue").await;
    let (places, texts): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    assert_eq!(places, ["each[1]", "each[2]"], "{texts:?}");
    assert!(texts[0].starts_with("`each[1]` failed: node `each`, key `body.outputs.o`:"), "{texts:?}");
    assert!(texts[1].starts_with("`each[2]` failed: item 2 of `each` did not end within"), "{texts:?}");
    // The failure of the node says it.
    let fails = because("fail").await;
    assert!(fails.iter().all(|(place, _)| place == "each"), "{fails:?}");
}
