//! Sessions that are paused, resumed, stopped and saved through their handle.

use std::sync::Arc;

use inspan_engine::{Clock, VirtualClock};
use inspan_protocol::{
    AgentError, Environment, ErrorCode, Event, NodePath, NodeStatus, Outcome, RunSnapshot, SessionStatus,
    Timestamp,
};
use serde_json::{Map, Value, json};

use super::stage::{Stage, kill, pass, pause_after, session, spawn, start};
use crate::{
    Changed, FlowRunner, Lease, Parent, ParentKind, Resume, Reusable, RunError, RunStore, Select,
    SnapshotError, StoreError, WhenWaiting,
    testing::{Do, TalkProvider},
};

/// Agents beside each other, a wait, a person, a loop of effects, and an agent that waits for messages.
const MANY: &str = r#"
flow: { name: many, policy: { timeout: 10m } }
nodes:
  - { id: a, type: talk.agent, input: { prompt: one } }
  - { id: b, type: talk.agent, input: { prompt: two } }
  - { id: chat, type: talk.agent, input: { prompt: three, options: { multiTurn: true, idleTimeoutMs: 20000 } } }
  - { id: wait, type: control.wait, input: { ms: 15000 } }
  - { id: human, type: human.input, input: { prompt: "?", timeout: 30s, default: nothing } }
  - { id: e, type: effect }
  - { id: slow, type: control.wait, input: { ms: 4000 } }
  - { id: end, type: constant, dependsOn: [a, b, chat, wait, human, slow], input: { value: "{{ a.text }} {{ b.text }} {{ chat.text }} {{ human.content }} {{ e.path }}" } }
edges:
  - { from: e, to: slow }
  - { from: slow, to: e, when: "e.path != 'e#3'", maxIterations: 5 }
"#;

/// An agent that waits for messages.
const LISTENS: &str = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one, options: { multiTurn: true, idleTimeoutMs: 60000 } } }\n";

fn talk() -> TalkProvider {
    TalkProvider::new(|asked, _| match asked.prompt.as_str() {
        "one" => vec![Do::Name("c-one"), Do::Say("…"), Do::Work(7_000), Do::End("first", Some(0.1), 5)],
        "two" => vec![Do::Work(3_000), Do::Name("c-two"), Do::Work(9_000), Do::End("second", Some(0.1), 5)],
        "three" => vec![Do::Name("c-three"), Do::Work(1_000), Do::End("third", Some(0.1), 5)],
        other => {
            let own = asked.resume.as_ref().unwrap().as_str();
            let (name, text) = match own {
                "c-one" => ("c-one", "first"),
                "c-two" => ("c-two", "second"),
                _ => ("c-three", "third"),
            };
            assert_eq!((other, asked.goes_on), ("continue", true));
            vec![Do::Name(name), Do::Work(1_000), Do::End(text, Some(0.1), 5)]
        }
    })
}

fn outcome(report: &Result<crate::FlowRunResult, RunError>) -> Outcome {
    report.as_ref().unwrap().outcome
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_paused_anywhere_resumes_to_the_same_end() {
    let whole = Stage::new(MANY, &talk());
    let result = whole.builder().build().run(Map::new()).await.unwrap();
    whole.check().await;
    assert_eq!(result.outcome, Outcome::Success, "{:?}", result.error);
    let outputs = |result: &crate::FlowRunResult| result.outputs.get("end").unwrap().clone();
    assert_eq!(outputs(&result), json!({ "value": "first second third nothing e#3" }));
    for at in [0, 1, 500, 1_500, 4_005, 5_000, 12_000, 20_500, 29_999] {
        let talk = talk();
        let stage = Stage::new(MANY, &talk);
        let (handle, running) = start(stage.builder().build());
        pass(at).await;
        tokio::task::yield_now().await;
        // Pausing twice is one pause.
        let (once, twice) = tokio::join!(handle.pause(Some("lunch".to_owned())), handle.pause(None));
        assert_eq!(
            (once.unwrap().status, twice.unwrap().status),
            (SessionStatus::Paused, SessionStatus::Paused)
        );
        assert_eq!((outcome(&running.await.unwrap()), talk.running()), (Outcome::Paused, 0), "at {at}");
        stage.check().await;
        pass(3_600_000).await;
        let resumed = stage.resume().await;
        stage.check().await;
        assert_eq!(
            (resumed.outcome, outputs(&resumed)),
            (Outcome::Success, outputs(&result)),
            "at {at}: {:?}",
            resumed.error
        );
        // The first, which was never interrupted before it named its conversation, never gets its prompt
        // twice.
        let first = talk.calls().iter().filter(|call| *call == "one").count();
        assert_eq!(first, 1, "at {at}: {:?}", talk.calls());
        let effects = stage.effects.done();
        assert!(effects.len() <= 4, "{effects:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_runs_with_the_same_facts_have_the_same_ids() {
    let mut logs = Vec::new();
    for _ in 0..2 {
        let stage = Stage::new(MANY, &talk());
        pause_after(stage.builder().build(), 5_000).await;
        stage.resume().await;
        stage.check().await;
        logs.push(stage.log().await);
    }
    assert_eq!(logs[0], logs[1]);
    let runs: Vec<_> = logs[0]
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::AgentStart { run_id, .. } => Some(run_id.as_str()),
            Event::SessionPrompt(asked) => Some(asked.prompt_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(runs, ["a.1", "b.1", "chat.1", "human.1", "a.2", "b.2", "chat.2", "human.1"]);
    // Another session shares none of them.
    let other = Stage::new(MANY, &talk()).builder().session_id("t".into()).build();
    let events = other.run(Map::new()).await.unwrap().events;
    let same = logs[0].iter().filter(|mine| events.iter().any(|theirs| theirs.id == mine.id)).count();
    assert_eq!(same, 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_forgets_a_cut_turn_is_asked_again_while_none_has_ended() {
    let begins = |then: Do| vec![Do::Name("c"), Do::Say("hm"), then, Do::End("first", None, 1)];
    for (forgets, second) in [(true, "c: one"), (false, "c: continue")] {
        let play = TalkProvider::new(move |asked, _| match asked.resume {
            None => begins(Do::Work(60_000)),
            Some(_) => vec![Do::End("done", None, 1)],
        });
        let play = if forgets { play.forgetful() } else { play };
        let stage = Stage::new(LISTENS, &play);
        pause_after(stage.builder().build(), 10).await;
        stage.resume().await;
        assert_eq!(play.calls(), ["one", second], "{forgets}");
    }
    let play = TalkProvider::new(move |asked, _| match asked.prompt.as_str() {
        "one" => begins(Do::Work(1)),
        "more" => begins(Do::Work(60_000)),
        _ => vec![Do::End("done", None, 1)],
    });
    let play = play.forgetful();
    let stage = Stage::new(LISTENS, &play);
    let runner = stage.builder().build();
    let (handle, hub) = (runner.handle(), runner.hub().clone());
    let running = spawn(runner);
    pass(10).await;
    hub.send("more").unwrap();
    pass(10).await;
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    stage.resume().await;
    assert_eq!(play.calls(), ["one", "c: more", "c: continue"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_had_answered_and_waited_for_messages_waits_again() {
    for message in [None, Some("go on")] {
        let play = TalkProvider::new(|asked, _| match asked.resume {
            None => vec![Do::Name("c"), Do::End("first", Some(0.5), 1)],
            Some(_) => vec![Do::End("done", Some(0.25), 1)],
        });
        let stage = Stage::new(LISTENS, &play);
        pause_after(stage.builder().build(), 10).await;
        let runner = stage.builder().open(&session()).await.unwrap();
        // It is paused once more before it hears anything.
        let handle = runner.handle();
        let running = tokio::spawn(async move { runner.resume(Resume::default()).await });
        pass(10).await;
        handle.pause(None).await.unwrap();
        running.await.unwrap().unwrap();
        let runner = stage.builder().open(&session()).await.unwrap();
        let message = message.map(str::to_owned);
        let result = runner.resume(Resume { message: message.clone(), ..Resume::default() }).await.unwrap();
        stage.check().await;
        let (calls, text, usd) = match message {
            None => (&["one"][..], "first", 0.5),
            Some(_) => (&["one", "c: go on"][..], "done", 0.75),
        };
        assert_eq!(
            (play.calls(), &result.outputs.get("a").unwrap()["text"]),
            (calls.iter().map(|call| (*call).to_owned()).collect(), &json!(text))
        );
        assert_eq!(result.cost_usd, Some(usd));
    }
}

#[tokio::test(start_paused = true)]
async fn the_caller_chooses_the_message_to_agents() {
    let play = TalkProvider::new(|asked, _| match &asked.resume {
        None => vec![Do::Name(if asked.prompt == "one" { "c-one" } else { "c-two" }), Do::Work(60_000)],
        Some(_) => vec![Do::Work(1), Do::End("done", None, 1)],
    });
    let text = "name: two\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n  - { id: b, type: talk.agent, input: { prompt: two } }\n";
    let stage = Stage::new(text, &play);
    let paused = pause_after(stage.builder().build(), 10).await.0;
    let conversations: Vec<_> =
        paused.agent_sessions.values().map(|known| known.session_id.to_string()).collect();
    assert_eq!(conversations, ["c-one", "c-two"]);
    let resume = Resume {
        message: Some("go on with told-4711-xyz".to_owned()),
        messages: [("b".to_owned(), "hurry".to_owned())].into(),
        ..Resume::default()
    };
    let env = Environment::from_iter([("MY_TOKEN".to_owned(), "told-4711-xyz".to_owned())]);
    let runner = stage.builder().env(env).open(&session()).await.unwrap();
    let result = runner.resume(resume).await.unwrap();
    stage.check().await;
    let told = stage.log().await.into_iter().find_map(|envelope| match envelope.event {
        Event::FlowResumed { message, .. } => Some(message),
        _ => None,
    });
    assert_eq!(told.as_deref(), Some("go on with [redacted MY_TOKEN]"));
    let attempts = result.nodes.iter().map(|(_, node)| node.attempts).collect::<Vec<_>>();
    assert_eq!((result.outcome, attempts), (Outcome::Success, vec![2, 2]));
    assert_eq!(play.calls(), ["one", "two", "c-one: one\n\ngo on with told-4711-xyz", "c-two: two\n\nhurry"]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_session_has_ended() {
    let play = talk();
    let stage = Stage::new(MANY, &play);
    let (handle, running) = start(stage.builder().build());
    pass(2_000).await;
    handle.stop(Some("enough".to_owned())).unwrap();
    let result = running.await.unwrap().unwrap();
    stage.check().await;
    assert_eq!((result.outcome, play.running(), stage.now()), (Outcome::Stopped, 0, 2_000));
    let refused = stage.builder().open(&session()).await.err().unwrap();
    assert!(matches!(refused, RunError::Ended { .. }), "{refused}");
    let late = (handle.pause(None).await.is_err(), handle.stop(None).is_err());
    assert_eq!((late, handle.snapshot().await.unwrap().status), ((true, true), SessionStatus::Aborted));
}

#[tokio::test(start_paused = true)]
async fn commands_before_the_run_are_of_the_session_too() {
    let stage = Stage::new(MANY, &talk());
    let runner = stage.builder().build();
    let handle = runner.handle();
    let runner = runner.start_session();
    assert!(handle.hub().send("nobody hears this").is_err());
    handle.stop(None).unwrap();
    let result = runner.run(Map::new()).await.unwrap();
    stage.check().await;
    assert_eq!((result.outcome, stage.effects.done().len()), (Outcome::Stopped, 0));
    assert_eq!(stage.story().await[..3], ["session:rejected", "session:abort", "harness:start"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_running_session_resumes_elsewhere() {
    let play = talk();
    let stage = Stage::new(MANY, &play);
    let (handle, running) = start(stage.builder().build());
    let mut snapshots = Vec::new();
    for at in [1_000, 5_000, 6_500] {
        pass(at).await;
        snapshots.push(handle.snapshot().await.unwrap());
    }
    for snapshot in snapshots {
        assert_eq!(snapshot.status, SessionStatus::Running);
        let saved: RunSnapshot = serde_json::from_str(&serde_json::to_string(&snapshot).unwrap()).unwrap();
        // With a separate store, whose log begins after the snapshot; and again after a pause there.
        let elsewhere = Stage::new(MANY, &talk());
        let runner = elsewhere.builder().restore(&saved).unwrap();
        let there = runner.handle();
        let resumed = tokio::spawn(runner.resume(Resume::default()));
        pass(600).await;
        there.pause(None).await.unwrap();
        let (_, paused) = (resumed.await.unwrap().unwrap(), elsewhere.resume().await);
        let end = paused.outputs.get("end").unwrap().clone();
        assert_eq!(
            (paused.outcome, end),
            (Outcome::Success, json!({ "value": "first second third nothing e#3" }))
        );
    }
    running.await.unwrap().unwrap();
    let last = handle.snapshot().await.unwrap();
    assert_eq!(last.status, SessionStatus::Complete);
    let other = Stage::new(&MANY.replace("15000", "16000"), &talk());
    let changed = Stage::new(MANY, &talk()).builder().restore(&last).err().unwrap();
    assert!(matches!(changed, RunError::Ended { .. }));
    let mut half = last;
    half.status = SessionStatus::Paused;
    let refused = other.builder().restore(&half).err().unwrap();
    assert!(matches!(refused, RunError::Snapshot(SnapshotError::Flow { .. })));
    assert!(other.builder().changed(Changed::Accept).restore(&half).is_ok());
    half.version += 1;
    let refused = other.builder().restore(&half).err().unwrap();
    assert!(matches!(refused, RunError::Snapshot(SnapshotError::Version { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_session_is_continued_and_forked_with_its_finished_work() {
    let text = "
flow: { name: parts, input: { word: one } }
nodes:
  - { id: a, type: effect, input: { text: '{{ flow.input.word }}' } }
  - { id: b, type: effect, dependsOn: [a] }
  - { id: c, type: control.wait, dependsOn: [b], input: { until: 'session:message', timeout: 1s } }
";
    let stage = Stage::new(text, &talk());
    let word: Map<String, Value> = [("word".to_owned(), json!("two"))].into_iter().collect();
    let run = async |builder: crate::FlowRunnerBuilder, id: &str, input: &Map<String, Value>| {
        let result = builder.session_id(id.into()).build().run(input.clone()).await.unwrap();
        (result.outcome, stage.effects.take())
    };
    let done = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>();
    assert_eq!(run(stage.builder(), "s", &word).await, (Outcome::Failed, done(&["a", "b"])));
    // The input is that of the session before, so nothing is done twice.
    let continued = stage.builder().continuing(&"s".into()).await.unwrap();
    assert_eq!(run(continued, "t", &Map::new()).await, (Outcome::Failed, done(&[])));
    let fork = stage.builder().fork(&"t".into(), NodePath::new("b#1")).await.unwrap();
    assert_eq!(run(fork, "u", &Map::new()).await, (Outcome::Failed, done(&["b"])));
    let other = [("word".to_owned(), json!("three"))].into_iter().collect();
    let continued = stage.builder().continuing(&"u".into()).await.unwrap();
    assert_eq!(run(continued, "v", &other).await, (Outcome::Failed, done(&["a", "b"])));

    // One that is opened takes over the rest itself.
    let fork = stage.builder().fork(&"v".into(), NodePath::new("c")).await.unwrap();
    let (handle, running) = start(fork.session_id("w".into()).build());
    pass(100).await;
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    let unended = stage.builder().continuing(&"w".into()).await.err().unwrap();
    assert!(matches!(unended, RunError::NotEnded { .. }), "{unended}");
    let fork = stage.builder().fork(&"w".into(), NodePath::new("b")).await.unwrap();
    assert_eq!(run(fork, "x", &Map::new()).await, (Outcome::Failed, done(&["b"])));
    let opened = stage.builder().open(&"w".into()).await.unwrap().resume(Resume::default()).await.unwrap();
    assert_eq!((opened.outcome, stage.effects.take()), (Outcome::Failed, done(&[])));
    for place in ["d", "a#2"] {
        let refused = stage.builder().fork(&"s".into(), NodePath::new(place)).await.err().unwrap();
        let begins = format!("a fork of session `s` cannot begin at `{place}`: ");
        assert!(refused.to_string().starts_with(&begins), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_one_process_drives_a_session() {
    let stage = Stage::new(MANY, &talk());
    let (handle, running) = start(stage.builder().build());
    pass(100).await;
    let refused = stage.builder().open(&session()).await.err().unwrap();
    assert!(matches!(refused, RunError::Store(StoreError::Held { .. })), "{refused}");
    assert!(refused.to_string().starts_with("session `s` is run by process "), "{refused}");
    let unknown = stage.builder().open(&"t".into()).await.err().unwrap();
    assert_eq!(unknown.to_string(), "there is no session `t` in the store");
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    let held = stage.open().await;
    assert!(stage.builder().open(&session()).await.is_err());
    assert_eq!(held.resume(Resume::default()).await.unwrap().outcome, Outcome::Success);
}

const ASK: &str = "name: ask\nnodes:\n  - { id: human, type: human.input, input: { prompt: \"?\", timeout: 30s, default: nothing } }\n  - { id: e, type: effect, dependsOn: [human] }\n";

#[tokio::test(start_paused = true)]
async fn a_process_leaves_while_a_person_thinks_and_a_later_one_takes_the_default() {
    let stage = Stage::new(ASK, &talk());
    let left = stage.builder().when_waiting(WhenWaiting::Leave).build().run(Map::new()).await.unwrap();
    assert_eq!((left.outcome, left.status, stage.now()), (Outcome::Waiting, SessionStatus::Waiting, 0));
    assert_eq!(
        left.nodes.iter().map(|(_, node)| node.status).collect::<Vec<_>>(),
        [NodeStatus::Pending, NodeStatus::Waiting]
    );
    stage.check().await;
    pass(10_000).await;
    let again = stage.resume_and_leave().await;
    assert_eq!((again.outcome, stage.now()), (Outcome::Waiting, 10_000));
    let deadlines: Vec<_> = again
        .open_prompts()
        .iter()
        .map(|open| (open.prompt_id.to_string(), open.deadline.unwrap().as_millis()))
        .collect();
    assert_eq!(deadlines, [("human.1".to_owned(), 30_000)]);
    // The time passed while no process ran it: the default is taken at once.
    pass(50_000).await;
    let done = stage.resume_and_leave().await;
    stage.check().await;
    assert_eq!(
        (done.outcome, stage.now(), stage.effects.done()),
        (Outcome::Success, 60_010, vec!["e".to_owned()])
    );
    assert_eq!(stage.count("session:reply human").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_stays_where_the_end_of_the_wait_is_known() {
    let stage = Stage::new(ASK, &talk());
    let stays =
        stage.builder().when_waiting(WhenWaiting::LeaveUnlessTimed).build().run(Map::new()).await.unwrap();
    assert_eq!((stays.outcome, stage.now()), (Outcome::Success, 30_010));
    let open = Stage::new(&ASK.replace(", timeout: 30s, default: nothing", ""), &talk());
    let leaves =
        open.builder().when_waiting(WhenWaiting::LeaveUnlessTimed).build().run(Map::new()).await.unwrap();
    assert_eq!((leaves.outcome, open.now()), (Outcome::Waiting, 0));
}

#[tokio::test(start_paused = true)]
async fn a_question_of_one_item_keeps_no_other_from_its_retry() {
    let text = r#"
name: items
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body:
      nodes:
        - { id: ask, type: human.input, when: "item == 1", input: { prompt: ok? } }
        - { id: work, type: talk.agent, when: "item == 2", policy: { retry: { maxAttempts: 2, backoff: 2s } }, input: { prompt: work } }
"#;
    let play = TalkProvider::new(|_, nth| match nth {
        1 => vec![Do::Fail(AgentError::new(ErrorCode::Network, "no"))],
        _ => vec![Do::End("done", None, 1)],
    });
    let stage = Stage::new(text, &play);
    let left =
        stage.builder().when_waiting(WhenWaiting::LeaveToPeople).build().run(Map::new()).await.unwrap();
    assert_eq!((left.outcome, play.calls().len(), stage.now()), (Outcome::Waiting, 2, 2_000));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_ends_a_wait_is_acted_on_before_the_process_leaves() {
    let question = "{ id: human, type: human.input, input: { prompt: ok? } }";
    let of_flow = format!("flow: {{ name: t, policy: {{ timeout: 2s }} }}\nnodes: [{question}]\n");
    let of_node = format!(
        "name: t\nnodes: [{}]\n",
        question.replace("human.input,", "human.input, policy: { timeout: 2s },")
    );
    let of_frame = format!(
        "name: t\nnodes:\n  - {{ id: each, type: control.foreach, input: {{ items: [1] }}, body: {{ policy: {{ timeout: 2s }}, nodes: [{question}] }} }}\n"
    );
    for (text, outcome) in
        [(of_flow, Outcome::TimedOut), (of_node, Outcome::Failed), (of_frame, Outcome::Failed)]
    {
        let stage = Stage::new(&text, &talk());
        let ended = stage
            .builder()
            .when_waiting(WhenWaiting::LeaveUnlessTimed)
            .build()
            .run(Map::new())
            .await
            .unwrap();
        assert_eq!((ended.outcome, stage.now()), (outcome, 2_000), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_counts_from_where_it_began() {
    let stage =
        Stage::new("name: w\nnodes:\n  - { id: wait, type: control.wait, input: { ms: 60000 } }\n", &talk());
    pause_after(stage.builder().build(), 10_000).await;
    pass(30_000).await;
    let result = stage.resume().await;
    let output = serde_json::to_value(&result.outputs).unwrap();
    assert_eq!((output, stage.now()), (json!({ "wait": { "waitedMs": 60_000 } }), 60_000));
}

#[tokio::test(start_paused = true)]
async fn without_a_store_a_session_resumes_from_its_snapshot_alone() {
    let play = talk();
    let nodes = play.nodes();
    let text = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n";
    let graph = crate::testing::graph(text, &nodes);
    let (snapshot, paused) =
        pause_after(FlowRunner::builder(graph.clone(), nodes.clone()).build(), 100).await;
    assert_eq!(paused.outcome, Outcome::Paused);
    let runner = FlowRunner::builder(graph, nodes).restore(&snapshot).unwrap();
    let result = runner.resume(Resume::default()).await.unwrap();
    assert_eq!(
        (result.outcome, play.calls()),
        (Outcome::Success, vec!["one".to_owned(), "c-one: continue".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_cut_short_before_it_said_anything_gets_its_prompt_again() {
    // The vendor names a conversation before it has the prompt; and one that is gone on with has a name before.
    let text = "name: two\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n  \
                - { id: b, type: talk.agent, dependsOn: [a], session: a, input: { prompt: PROMPT } }\n";
    for (prompt, says, message, sent) in [
        ("two", false, None, "c: two"),
        ("two", true, None, "c: continue"),
        ("two", false, Some("hurry"), "c: two\n\nhurry"),
        // It has no answer yet, whatever its own prompt says.
        ("continue", false, None, "c: continue"),
    ] {
        for how in ["pauses", "dies", "is edited"] {
            let play = TalkProvider::new(move |asked, call| {
                assert_eq!(asked.goes_on, call == 3 && says, "{prompt}: {how}");
                match call {
                    2 if says => vec![Do::Name("c"), Do::Say("…"), Do::Work(60_000)],
                    2 => vec![Do::Name("c"), Do::Work(60_000)],
                    _ => vec![Do::Name("c"), Do::Say("ok"), Do::End("done", Some(0.1), 1)],
                }
            });
            let stage = Stage::new(&text.replace("PROMPT", prompt), &play);
            if how == "pauses" {
                pause_after(stage.builder().build(), 1_000).await;
            } else {
                let running = spawn(stage.builder().build());
                pass(1_000).await;
                kill(running).await;
                stage.store.inner.release(&Lease { session: session(), epoch: 1 }).await.unwrap();
            }
            let result = if how == "is edited" {
                // Another session takes over, which has no message for it.
                let log = stage.store.inner.read(&session(), 1, Select::All).await.unwrap();
                let run = crate::Run::new(stage.graph.clone(), &session(), Map::new(), None);
                let left = Arc::new(Reusable::of(run, &log, u64::MAX));
                let seq = log.len() as u64;
                let parent = Parent::new(session(), seq, ParentKind::Resume);
                let next = stage.builder().session_id("t".into()).reusing(left, parent).build();
                next.run(Map::new()).await.unwrap()
            } else {
                let resume = Resume { message: message.map(str::to_owned), ..Resume::default() };
                let result = stage.open().await.resume(resume).await.unwrap();
                stage.check().await;
                result
            };
            assert_eq!(result.outcome, Outcome::Success, "{how}");
            let sent = if how == "is edited" { sent.trim_end_matches("\n\nhurry") } else { sent };
            assert_eq!(play.calls(), ["one", &format!("c: {prompt}"), sent], "{how}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_named_no_conversation_starts_over_with_the_message() {
    let text = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n";
    let rows = [(None, vec!["one", "one", "one"]), (Some("hurry"), vec!["one", "one", "one\n\nhurry"])];
    for (message, expected) in rows {
        let last = expected.len();
        let play = TalkProvider::new(move |_, call| match call {
            call if call < last => vec![Do::Work(60_000)],
            _ => vec![Do::Name("d"), Do::Say("ok"), Do::End("done", Some(0.1), 1)],
        });
        let stage = Stage::new(text, &play);
        pause_after(stage.builder().build(), 1_000).await;
        let runner = stage.open().await;
        let handle = runner.handle();
        let running = tokio::spawn(runner.resume(Resume::default()));
        pass(1_000).await;
        handle.pause(None).await.unwrap();
        running.await.unwrap().unwrap();
        let resume = Resume { message: message.map(str::to_owned), ..Resume::default() };
        let result = stage.open().await.resume(resume).await.unwrap();
        stage.check().await;
        assert_eq!(
            (result.outcome, play.calls()),
            (Outcome::Success, expected.into_iter().map(str::to_owned).collect())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_waited_out_in_the_agents_own_conversation() {
    let mut error = AgentError::new(ErrorCode::RateLimited, "come back later");
    error.resets_at = Some(Timestamp::from_millis(3_600_000));
    let play = TalkProvider::new(move |_, call| match call {
        1 => vec![Do::Name("c-one"), Do::Work(1_000), Do::Fail(error.clone())],
        _ => vec![Do::Name("c-one"), Do::End("done", Some(0.1), 1)],
    });
    let text = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n";
    let stage = Stage::new(text, &play);
    let leaves = stage.builder().when_waiting(WhenWaiting::Leave).build().run(Map::new()).await.unwrap();
    assert_eq!((leaves.outcome, stage.now()), (Outcome::Waiting, 1_000));
    let stays = stage.builder().when_waiting(WhenWaiting::LeaveUnlessTimed).open(&session()).await.unwrap();
    let result = stays.resume(Resume::default()).await.unwrap();
    stage.check().await;
    assert_eq!(
        (result.outcome, stage.now(), play.calls().join(", ")),
        (Outcome::Success, 3_600_000, "one, c-one: continue".to_owned())
    );
}

/// A clock that was set back.
struct SetBack(VirtualClock);

impl Clock for SetBack {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.now().as_millis() - 3_600_000)
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_session_never_goes_back() {
    const WAIT: &str = "name: w\nnodes:\n  - { id: wait, type: control.wait, input: { ms: 60000 } }\n";
    let stage = Stage::new(WAIT, &talk());
    pause_after(stage.builder().build(), 10_000).await;
    // The clock is an hour back when the next process begins, and nothing waits for an hour.
    let clock = Arc::new(SetBack(VirtualClock::starting_at(Timestamp::from_millis(10_000))));
    let runner = stage.builder().clock(clock).open(&session()).await.unwrap();
    let result = runner.resume(Resume::default()).await.unwrap();
    let times: Vec<_> = stage.log().await.iter().map(|envelope| envelope.timestamp).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!((result.outcome, stage.now()), (Outcome::Success, 60_000));
}
