//! Sessions from their beginning to their end.

use inspan_flow::RunStore;
use inspan_protocol::{Command, Event, SessionStatus, Timestamp};

use super::cluster::TestCluster;

const TWO: &str = "
flow: { name: two, outputs: { said: '{{ b.stdout }}' } }
nodes:
  - { id: a, type: exec, input: { argv: [echo, one] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: [echo, '{{ a.stdout }}'] } }
";

#[tokio::test]
async fn a_flow_runs_over_many_workers() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TWO).await;
    cluster.run(&session, &[], |_| false).await;
    let expected = [
        "harness:start",
        "phase:start",
        "task:start a",
        "task:complete a",
        "edge:fired a",
        "task:start b",
        "task:complete b",
        "phase:complete",
        "harness:complete",
    ];
    assert_eq!(cluster.facts(&session).await, expected);
    let entry = cluster.store.entry(&session).await.unwrap();
    assert_eq!((entry.digest.status, entry.owner), (SessionStatus::Complete, None));
}

#[tokio::test]
async fn an_attempt_whose_worker_is_gone_begins_again_and_nothing_else_does() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", TWO).await;
    cluster.run(&session, &["b.1"], |_| false).await;
    let facts = cluster.facts(&session).await;
    let count = |fact: &str| facts.iter().filter(|known| *known == fact).count();
    let counts = ["task:start a", "task:start b", "task:interrupted b", "task:complete a", "task:complete b"]
        .map(count);
    assert_eq!(counts, [1, 2, 1, 1, 1]);
}

#[tokio::test]
async fn a_question_is_answered_from_elsewhere() {
    let flow = "
flow: { name: ask }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Which way?', choices: [left, right] } }
  - { id: go, type: exec, dependsOn: [ask], input: { argv: [echo, '{{ ask.choice }}'] } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let asks = |event: &Event| matches!(event, Event::SessionPrompt(_));
    cluster.run(&session, &[], |events| events.iter().any(|event| asks(&event.event))).await;
    let entry = cluster.store.entry(&session).await.unwrap();
    let prompt = entry.digest.prompts[0].prompt_id.clone();
    let reply = |choice: &str| Command::Reply {
        prompt: prompt.clone(),
        content: String::new(),
        choice: Some(choice.to_owned()),
    };
    let wrong = cluster.store.post(&session, &reply("up"), Timestamp::default()).await.unwrap();
    let right = cluster.store.post(&session, &reply("right"), Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let verdicts = [
        cluster.store.answer(&session, wrong).await.unwrap(),
        cluster.store.answer(&session, right).await.unwrap(),
    ];
    let why = format!("`up` is not among the choices of prompt `{prompt}`: left, right");
    assert_eq!(verdicts, [Some(inspan_store::Verdict::Refused(why)), Some(inspan_store::Verdict::Accepted)]);
    let output = cluster.events(&session).await.iter().find_map(|event| match &event.event {
        Event::TaskComplete { task_id, result, .. } if task_id.as_str() == "go" => {
            Some(result["stdout"].clone())
        }
        _ => None,
    });
    assert_eq!(output, Some("right\n".into()));
}
