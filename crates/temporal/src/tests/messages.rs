//! Messages to the agents and waits of a session.

use std::{sync::Arc, time::Duration};

use inspan_flow::{Resume, RunStore};
use inspan_protocol::{Command, Envelope, Event, MessageMode, NodeId, Timestamp};
use inspan_store::Verdict;

use super::cluster::TestCluster;

/// Whether at least so many events have this name.
fn has(events: &[Arc<Envelope>], name: &str, count: usize) -> bool {
    events.iter().filter(|event| event.event.name() == name).count() >= count
}

/// What an agent was given that says a word.
fn said(events: &[Arc<Envelope>], word: &str) -> usize {
    let texts = events.iter().filter_map(|event| match &event.event {
        Event::AgentText { content, .. } => Some(content),
        _ => None,
    });
    texts.filter(|text| text.contains(word)).count()
}

#[tokio::test]
async fn a_message_to_all_is_answered_once_by_each_also_after_a_pause() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: one, type: echo.agent, input: { prompt: hello, options: { multiTurn: true } } }
  - { id: two, type: echo.agent, input: { prompt: hello, options: { multiTurn: true } } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let until = async |wanted: &dyn Fn(&[Arc<Envelope>]) -> bool| {
        while !wanted(&cluster.events(&session).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let people = async {
        until(&|events| has(events, "agent:usage", 2)).await;
        let message = Command::Send { content: "together".to_owned() };
        cluster.store.post(&session, &message, Timestamp::default()).await.unwrap();
        until(&|events| has(events, "agent:usage", 4)).await;
        let pause = Command::Pause { reason: None };
        cluster.store.post(&session, &pause, Timestamp::default()).await.unwrap();
    };
    tokio::join!(cluster.run(&session, &[], |events| has(events, "flow:paused", 1)), people);
    cluster.store.resume(&session, Resume::default(), Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], |events| has(events, "agent:usage", 6)).await;
    assert_eq!(said(&cluster.events(&session).await, "together"), 2);
}

#[tokio::test]
async fn an_attempt_that_runs_its_agent_again_takes_messages() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: one, type: echo.agent, input: { prompt: hello } }
";
    let cluster = TestCluster::new();
    let whole = cluster.add("flow-1", flow).await;
    cluster.run(&whole, &[], |_| false).await;
    let session = cluster.add("flow-2", flow).await;
    let attempt = cluster.decider().decide(&session, &[], None).await.unwrap().running.remove(0);
    // Its conversation is gone: the run ends, and another one begins.
    let mut events = cluster.events(&whole).await;
    events.retain(|event| matches!(event.event, Event::AgentStart { .. } | Event::AgentComplete { .. }));
    assert_eq!(events.len(), 2);
    let (node, mode) = (NodeId::new("one").unwrap(), MessageMode::default());
    let message = Command::SendTo { node, content: "alone".to_owned(), mode };
    let mut verdicts = Vec::new();
    for event in [&events[0], &events[1], &events[0]] {
        cluster.append(&session, &attempt, Arc::clone(event)).await;
        let posted = cluster.store.post(&session, &message, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        verdicts.push(cluster.store.answer(&session, posted).await.unwrap() == Some(Verdict::Accepted));
    }
    assert_eq!(verdicts, [true, false, true]);
}

#[tokio::test]
async fn a_message_to_an_agent_ends_no_wait() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: wait, type: control.wait, input: { until: 'session:message' } }
  - { id: one, type: echo.agent, input: { prompt: hello, options: { multiTurn: true, idleTimeoutMs: 3000 } } }
";
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", flow).await;
    let people = async {
        let until = async |usages: usize| {
            while !has(&cluster.events(&session).await, "agent:usage", usages) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        until(1).await;
        let (node, mode) = (NodeId::new("one").unwrap(), MessageMode::default());
        let to_one = Command::SendTo { node, content: "alone".to_owned(), mode };
        cluster.store.post(&session, &to_one, Timestamp::default()).await.unwrap();
        until(2).await;
        let to_all = Command::Send { content: "together".to_owned() };
        cluster.store.post(&session, &to_all, Timestamp::default()).await.unwrap();
    };
    tokio::join!(cluster.run(&session, &[], |_| false), people);
    let events = cluster.events(&session).await;
    let ended_by = events.iter().find_map(|event| match &event.event {
        Event::TaskComplete { task_id, result, .. } if task_id.as_str() == "wait" => {
            Some(result["event"]["content"].clone())
        }
        _ => None,
    });
    assert_eq!(ended_by, Some("together".into()));
    assert_eq!((said(&events, "alone"), said(&events, "together")), (1, 1));
}

#[tokio::test]
async fn a_wait_for_events_of_the_session_takes_a_message_as_on_one_machine() {
    let rows = [
        ("session:message", true),
        ("session:*", true),
        ("session:message, session:abort", true),
        ("session:abort", false),
        // It only watches.
        ("session:message, agent:*", false),
    ];
    for (until, takes) in rows {
        let flow = format!(
            "flow: {{ name: wait }}\nnodes:\n  - {{ id: wait, type: control.wait, input: {{ until: '{until}' }} }}\n"
        );
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", &flow).await;
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let message = Command::Send { content: "hear".to_owned() };
        let number = cluster.store.post(&session, &message, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let accepted = cluster.store.answer(&session, number).await.unwrap() == Some(Verdict::Accepted);
        let ended = has(&cluster.events(&session).await, "task:complete", 1);
        assert_eq!((accepted, ended), (takes, takes), "{until}");
    }
}
