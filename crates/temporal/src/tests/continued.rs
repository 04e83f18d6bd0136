//! Sessions that take over from another one.

use std::{sync::Arc, time::Duration};

use inspan_flow::RunStore;
use inspan_flow_core::ParentKind;
use inspan_protocol::{BudgetLimits, BudgetRaise, Command, Envelope, Event, SessionId, Timestamp};

use super::cluster::TestCluster;

/// Whether at least so many events have this name.
fn has(events: &[Arc<Envelope>], name: &str, count: usize) -> bool {
    events.iter().filter(|event| event.event.name() == name).count() >= count
}

/// What agents have said in each turn.
fn said(events: &[Arc<Envelope>]) -> Vec<String> {
    let mut turns = vec![String::new()];
    for event in events {
        match &event.event {
            Event::AgentText { content, .. } => *turns.last_mut().unwrap() += content,
            Event::AgentUsage { .. } => turns.push(String::new()),
            _ => {}
        }
    }
    turns.retain(|turn| !turn.is_empty());
    turns
}

async fn post(cluster: &TestCluster, session: &SessionId, command: Command) {
    cluster.store.post(session, &command, Timestamp::default()).await.unwrap();
}

/// Runs a session until it has so many events of this name, and is then paused.
async fn paused_after(cluster: &TestCluster, session: &SessionId, name: &str, count: usize) {
    let pause = async {
        while !has(&cluster.events(session).await, name, count) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        post(cluster, session, Command::Pause { reason: None }).await;
    };
    tokio::join!(cluster.run(session, &[], |events| has(events, "flow:paused", 1)), pause);
}

const TALK: &str = "
flow: { name: talk }
nodes:
  - { id: one, type: echo.agent, input: { prompt: hello, options: { multiTurn: true } } }
  - { id: other, type: exec, input: { argv: [sleep, '30'] } }
";

#[tokio::test]
async fn an_interrupted_agent_goes_on_in_its_conversation_on_the_machine_that_has_it() {
    for (kind, machine, says) in
        [(ParentKind::Resume, Some("a".to_owned()), "continue"), (ParentKind::Fork, None, "hello")]
    {
        let cluster = TestCluster::new();
        let old = cluster.add("flow-1", TALK).await;
        paused_after(&cluster, &old, "agent:usage", 1).await;
        let new = cluster.follow(&old, kind, &TALK.replace("'30'", "'31'")).await;
        let begun = cluster.decider().decide(&new, &[], None).await.unwrap().running;
        let one = begun.iter().find(|attempt| attempt.name() == "one.1").unwrap();
        assert_eq!(one.machine, machine, "{kind:?}");
        cluster.run(&new, &[], |events| has(events, "agent:usage", 1)).await;
        assert_eq!(said(&cluster.events(&new).await), [says], "{kind:?}");
    }
}

#[tokio::test]
async fn a_message_that_no_turn_has_answered_goes_to_the_agent_in_a_new_session() {
    let flow = TALK.replace("multiTurn: true", "multiTurn: true, delayMs: 200");
    let cluster = TestCluster::new();
    let old = cluster.add("flow-1", &flow).await;
    let send = async {
        for (number, text) in [(1, "one two three four five six seven eight"), (2, "nine")] {
            while !has(&cluster.events(&old).await, "agent:usage", 1) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            post(&cluster, &old, Command::Send { content: text.to_owned() }).await;
            while !has(&cluster.events(&old).await, "session:message", number) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    tokio::join!(paused_after(&cluster, &old, "session:message", 2), send);
    let new = cluster.follow(&old, ParentKind::Resume, &flow.replace("'30'", "'31'")).await;
    cluster.run(&new, &[], |events| has(events, "agent:usage", 1)).await;
    // The echo has reported the turn that was cut, and so has answered what was in it.
    assert_eq!(said(&cluster.events(&new).await), ["nine"]);
}

#[tokio::test]
async fn an_answer_that_nobody_has_taken_counts_in_a_new_session() {
    let flow = "
flow: { name: asks }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Go on?', choices: ['yes', 'no'] } }
  - { id: other, type: exec, input: { argv: [sleep, '30'] } }
";
    for (kind, edit) in [
        (ParentKind::Resume, ("'30'", "'0'")),
        (ParentKind::Fork, ("'30'", "'0'")),
        (ParentKind::Resume, ("'no'] }", "'no'], timeout: 1s, default: 'no' }")),
        (ParentKind::Resume, ("Go on?", "Go back?")),
    ] {
        let cluster = TestCluster::new();
        let old = cluster.add("flow-1", flow).await;
        paused_after(&cluster, &old, "session:prompt", 1).await;
        let prompt = cluster.store.entry(&old).await.unwrap().digest.prompts[0].prompt_id.clone();
        let choice = Some("yes".to_owned());
        post(&cluster, &old, Command::Reply { prompt, content: String::new(), choice }).await;
        cluster.decider().decide(&old, &[], None).await.unwrap();
        let edited = flow.replace(edit.0, edit.1).replace("'30'", "'0'");
        let new = cluster.follow(&old, kind, &edited).await;
        let asks_again = edit.0 == "Go on?";
        cluster.run(&new, &[], |events| asks_again && has(events, "session:prompt", 1)).await;
        let events = cluster.events(&new).await;
        assert_eq!(has(&events, "session:prompt", 1), asks_again, "{kind:?}");
        let result = events.iter().find_map(|event| match &event.event {
            Event::TaskReused { task_id, result, .. } if task_id.as_str() == "ask" => Some(result.clone()),
            _ => None,
        });
        let choice = result.map(|result| result["choice"].clone());
        assert_eq!(choice, (!asks_again).then(|| "yes".into()), "{kind:?}");
    }
}

#[tokio::test]
async fn what_goes_on_from_a_conversation_runs_on_the_machine_that_has_it() {
    let branch = "type: scripted.agent, session: { from: one, fork: true }, input: { prompt: again, options: { turns: [[text: yes]] } }";
    let by_name = "type: echo.agent, input: { prompt: again, options: { resume: '{{ one.sessionId }}' } }";
    let new = "type: echo.agent, input: { prompt: again }";
    for (two, machine) in [(branch, Some("a")), (by_name, Some("a")), (new, None)] {
        let flow = format!(
            "
flow: {{ name: branch }}
nodes:
  - {{ id: one, type: scripted.agent, input: {{ prompt: go, options: {{ turns: [[text: yes]] }} }} }}
  - {{ id: two, dependsOn: [one], {two} }}
"
        );
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", &flow).await;
        cluster.run(&session, &[], |events| has(events, "task:complete", 1)).await;
        let begun = cluster.decider().decide(&session, &[], None).await.unwrap().running;
        assert_eq!(begun[0].machine.as_deref(), machine, "{two}");
    }
}

/// Three agents one after the other, each of which takes 7 tokens, with a budget of so many that ends the flow.
fn spends(limit: u64) -> String {
    let node = |id: &str, more: &str| {
        let turn = "{ text: x }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }";
        format!(
            "  - {{ id: {id}, type: scripted.agent{more}, input: {{ prompt: x, options: {{ turns: [[{turn}]] }} }} }}\n"
        )
    };
    let nodes = [node("a", ""), node("b", ", dependsOn: [a]"), node("c", ", dependsOn: [b]")];
    let policy = format!("policy: {{ budget: {{ tokens: {limit}, onExceeded: fail }} }}");
    format!("flow: {{ name: f, {policy} }}\nnodes:\n{}", nodes.concat())
}

fn tokens(limit: u64) -> BudgetRaise {
    let flow = Some(BudgetLimits { usd: None, tokens: Some(limit) });
    BudgetRaise { flow, ..BudgetRaise::default() }
}

/// The agents of a session that ran, and what it counts of those before it: the tokens, and what was raised.
async fn spent(cluster: &TestCluster, session: &SessionId) -> (usize, Option<(u64, BudgetRaise)>) {
    let events = cluster.events(session).await;
    let carried = events.iter().find_map(|event| match &event.event {
        Event::BudgetCarried { spent, raised, .. } => Some((spent.tokens, raised.clone())),
        _ => None,
    });
    (events.iter().filter(|event| event.event.name() == "agent:usage").count(), carried)
}

#[tokio::test]
async fn a_budget_that_a_new_session_raises_counts_until_its_author_sets_another() {
    // The limit in the edited flow, how many agents run with it, and what is still raised.
    let rows = [(5, 0, tokens(10)), (12, 0, BudgetRaise::default()), (100, 1, BudgetRaise::default())];
    for (limit, runs, raised) in rows {
        let cluster = TestCluster::new();
        let first = cluster.add("s", &spends(5)).await;
        cluster.run(&first, &[], |_| false).await;
        assert_eq!(spent(&cluster, &first).await, (1, None));
        let second = cluster.follow_with(&first, ParentKind::Resume, &spends(5), tokens(10)).await;
        cluster.run(&second, &[], |_| false).await;
        assert_eq!(spent(&cluster, &second).await, (1, Some((7, tokens(10)))), "{limit}");
        let third = cluster.follow(&second, ParentKind::Resume, &spends(limit)).await;
        cluster.run(&third, &[], |_| false).await;
        assert_eq!(spent(&cluster, &third).await, (runs, Some((14, raised))), "{limit}");
    }
}

#[tokio::test]
async fn what_was_spent_and_raised_passes_through_a_session_that_has_not_begun() {
    let cluster = TestCluster::new();
    let first = cluster.add("s", &spends(5)).await;
    cluster.run(&first, &[], |_| false).await;
    let second = cluster.follow_with(&first, ParentKind::Resume, &spends(5), tokens(100)).await;
    let third = cluster.follow(&second, ParentKind::Fork, &spends(5)).await;
    cluster.run(&third, &[], |_| false).await;
    assert_eq!(spent(&cluster, &third).await, (2, Some((7, tokens(100)))));
}
