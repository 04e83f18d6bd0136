//! The replay of a session that was paused, or waited for a limit, while it was recorded.

use std::{path::Path, sync::Arc, time::Duration};

use inspan_engine::{NodeCalls, ProviderRegistry, Recorder, Replayer, VirtualClock};
use inspan_protocol::{AgentError, DynProvider, Erased, ErrorCode, Outcome, Timestamp};
use serde_json::{Map, json};

use super::stage::pause_after;
use crate::{
    FlowRunner, FlowRunnerBuilder, MemoryStore, Resume, builtin_nodes,
    testing::{Do, TalkProvider, graph},
};

/// The time limit of the slow agent cuts it short in a replay, too.
const FLOW: &str = r#"
name: f
nodes:
  - { id: a, type: talk.agent, input: { prompt: one } }
  - { id: b, type: talk.agent, session: a, dependsOn: [a], input: { prompt: "two {{ a.text }}" } }
  - { id: slow, type: talk.agent, dependsOn: [a], input: { prompt: slow }, policy: { timeout: 10s, continueOnError: true } }
"#;

fn talk() -> TalkProvider {
    TalkProvider::new(|asked, _| match asked.prompt.as_str() {
        "one" => vec![Do::Name("c"), Do::Say("half"), Do::Work(60_000)],
        "continue" => vec![Do::Name("c"), Do::Work(1_000), Do::End("first", None, 1)],
        "two first" => vec![Do::Name("c"), Do::Work(1_000), Do::End("second", None, 1)],
        other => {
            assert_eq!(other, "slow");
            vec![Do::Name("d"), Do::Work(60_000)]
        }
    })
}

fn builder(calls: NodeCalls) -> FlowRunnerBuilder {
    builder_of(FLOW, talk(), calls)
}

fn builder_of(flow: &str, talk: TalkProvider, calls: NodeCalls) -> FlowRunnerBuilder {
    let talk: Arc<dyn DynProvider> = Arc::new(Erased(talk));
    let mut providers = ProviderRegistry::new();
    providers.register(match &calls {
        NodeCalls::Record(recorder) => recorder.record(talk),
        NodeCalls::Replay(replayer) => replayer.replay(talk),
        _ => talk,
    });
    let nodes = builtin_nodes(&providers);
    FlowRunner::builder(graph(flow, &nodes), nodes).node_calls(calls)
}

async fn replay(tapes: &Path) -> crate::FlowRunResult {
    let calls = NodeCalls::Replay(Replayer::load(tapes).unwrap());
    builder(calls).session_id("t".into()).build().run(Map::new()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_paused_while_an_agent_worked_is_replayed() {
    let tapes = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let recorded =
        |recorder: Recorder| builder(NodeCalls::Record(recorder)).session_id("s".into()).store(store.clone());
    let runner = recorded(Recorder::new(tapes.path()).unwrap()).build();
    assert_eq!(pause_after(runner, 5_000).await.1.outcome, Outcome::Paused);
    // The call was not made again.
    let began = tokio::time::Instant::now();
    let error = replay(tapes.path()).await.error.unwrap();
    assert!(error.message.contains("Resume the recorded session `s`, if it is still open"), "{error}");
    assert!(began.elapsed().as_secs() < 1, "{:?}", began.elapsed());

    let runner = recorded(Recorder::continuing(tapes.path())).open(&"s".into()).await.unwrap();
    let live = runner.resume(Resume::default()).await.unwrap();
    let texts = |result: &crate::FlowRunResult| {
        ["a", "b"].map(|node| result.outputs.get(node).map(|output| output["text"].clone()))
    };
    assert_eq!(live.outcome, Outcome::Success, "{:?}", live.error);
    assert_eq!(texts(&live), [Some(json!("first")), Some(json!("second"))]);
    let replayed = replay(tapes.path()).await;
    assert_eq!(replayed.outcome, Outcome::Success, "{:?}", replayed.error);
    assert_eq!(texts(&replayed), texts(&live));
}

#[tokio::test(start_paused = true)]
async fn a_replay_does_not_wait_out_the_limits_of_the_recorded_run() {
    const LIMITED: &str =
        "{ flow: { name: f }, nodes: [{ id: a, type: talk.agent, input: { prompt: go } }] }";
    let tapes = tempfile::tempdir().unwrap();
    let run = async |calls: NodeCalls| {
        let full = AgentError::new(ErrorCode::RateLimited, "full");
        let full = full.with_retry_after(Some(Duration::from_secs(3_000)));
        let talk = TalkProvider::new(move |_, call| match call {
            1..=3 => vec![Do::Fail(full.clone())],
            _ => vec![Do::End("done", None, 1)],
        });
        let began = tokio::time::Instant::now();
        let builder = builder_of(LIMITED, talk, calls).session_id("s".into());
        let clock = Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0)));
        let result = builder.clock(clock).build().run(Map::new()).await.unwrap();
        assert_eq!(result.outputs.get("a").unwrap()["text"], "done");
        began.elapsed().as_secs()
    };
    assert_eq!(run(NodeCalls::Record(Recorder::new(tapes.path()).unwrap())).await, 9_000);
    assert_eq!(run(NodeCalls::Replay(Replayer::load(tapes.path()).unwrap())).await, 3);
}
