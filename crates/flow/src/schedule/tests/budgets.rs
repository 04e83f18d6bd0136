//! Budgets in money and tokens, of flows and of nodes.

use inspan_protocol::{Event, LogLevel, Outcome, RunSnapshot};
use serde_json::json;

use super::sim::{Sim, Step, story};
use crate::{
    schedule::{AttemptEnd, Run, StartNode},
    testing::silent_graph as graph,
};

fn flow(policy: &str, nodes: &[(&str, &str)]) -> String {
    let mut text = format!("flow: {{ name: f, policy: {{ {policy} }} }}\nnodes:\n");
    for (id, rest) in nodes {
        text += &format!("  - {{ id: {id}, type: talk.agent, input: {{ prompt: go }}{rest} }}\n");
    }
    text
}

/// Agents of so many turns, each of which costs so much and takes 10 tokens.
fn turns(count: usize, cost: Option<f64>) -> impl Fn(&StartNode, &Run) -> Vec<Step> + Copy {
    move |_, _| {
        let mut steps = vec![Step::Begin, Step::Name("c".to_owned())];
        for turn in 1..=count {
            steps.push(Step::Usage(cost, 10));
            steps.push(if turn < count { Step::Turn } else { Step::Complete });
        }
        steps.push(Step::End(AttemptEnd::Output(json!({}))));
        steps
    }
}

fn names(sim: &Sim, name: &str) -> usize {
    sim.log.iter().filter(|envelope| envelope.event.name() == name).count()
}

/// The outcome, and how many turns ended.
fn end(sim: &Sim) -> (Outcome, usize, usize) {
    sim.check();
    (sim.run.state().outcome.unwrap(), names(sim, "agent:usage"), names(sim, "budget:exceeded"))
}

fn drive(text: &str, world: impl Fn(&StartNode, &Run) -> Vec<Step>) -> Sim {
    let mut sim = Sim::new(&graph(text), &[]);
    sim.drive(world);
    sim
}

#[test]
fn a_flow_ends_in_the_turn_after_its_budget_is_used_up() {
    let ab = [("a", ""), ("b", ", dependsOn: [a]")];
    let rows = [
        ("budget: { usd: 1 }", 4, (Outcome::BudgetExceeded, 2, 1)),
        ("budget: { tokens: 15 }", 4, (Outcome::BudgetExceeded, 2, 1)),
        // The last turn of a finished agent is paid for; the next agent is not.
        ("budget: { usd: 1 }", 2, (Outcome::BudgetExceeded, 2, 1)),
        // All work is done, though the last turn crossed the limit.
        ("budget: { usd: 1.9 }", 2, (Outcome::Success, 4, 0)),
        ("budget: { usd: 9 }", 4, (Outcome::Success, 8, 0)),
    ];
    for (policy, count, expected) in rows {
        let sim = drive(&flow(policy, &ab), turns(count, Some(0.5)));
        assert_eq!(end(&sim), expected, "{policy} {count}\n{}", story(&sim.log));
    }
}

#[test]
fn a_nodes_budget_spans_its_attempts_and_passes() {
    let alone = flow("failFast: true", &[("a", ", policy: { budget: { usd: 1 } }")]);
    assert_eq!(end(&drive(&alone, turns(4, Some(0.5)))), (Outcome::BudgetExceeded, 2, 0));
    assert_eq!(end(&drive(&alone, turns(2, Some(0.5)))), (Outcome::Success, 2, 0));
    let tokens = alone.replace("usd: 1", "tokens: 10");
    assert_eq!(end(&drive(&tokens, turns(3, None))), (Outcome::BudgetExceeded, 1, 0));
    let handled = flow("failFast: true", &[("a", ", policy: { budget: { usd: 1 }, continueOnError: true }")]);
    assert_eq!(end(&drive(&handled, turns(4, Some(0.5)))).0, Outcome::Success);
    let looped = format!(
        "{alone}edges:\n  - {{ from: a, to: a, maxIterations: 5, when: \"1 == 1\", onExhausted: continue }}\n"
    );
    assert_eq!(end(&drive(&looped, turns(1, Some(0.5)))), (Outcome::BudgetExceeded, 2, 0));
    let retried = alone.replace("policy: { budget", "policy: { retry: { maxAttempts: 9, on: any }, budget");
    let fails = |_: &StartNode, _: &Run| {
        let error = inspan_protocol::AgentError::new(inspan_protocol::ErrorCode::Network, "gone");
        vec![Step::Begin, Step::Usage(Some(0.5), 1), Step::Complete, Step::End(AttemptEnd::Error(error))]
    };
    assert_eq!(end(&drive(&retried, fails)), (Outcome::BudgetExceeded, 2, 0));
}

#[test]
fn an_unknown_price_is_said_once_or_stops() {
    let warnings = |sim: &Sim| {
        let said = sim.log.iter().filter_map(|envelope| match &envelope.event {
            Event::Log { level: LogLevel::Warn, message, .. } => Some(message.clone()),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    let flow_budget = flow("budget: { usd: 1 }", &[("a", "")]);
    let of_flow = drive(&flow_budget, turns(3, None));
    let node_budget = flow("failFast: true", &[("a", ", policy: { budget: { usd: 1 } }")]);
    let of_node = drive(&node_budget, turns(3, None));
    assert_eq!(
        [(end(&of_flow), warnings(&of_flow)), (end(&of_node), warnings(&of_node))],
        [
            (
                (Outcome::Success, 3, 0),
                vec![
                    "the price of a turn is unknown and counts as nothing in the budget of flow `f`: 1 USD"
                        .to_owned()
                ]
            ),
            (
                (Outcome::Success, 3, 0),
                vec![
                    "the price of a turn is unknown and counts as nothing in the budget of node `a`: 1 USD"
                        .to_owned()
                ]
            ),
        ]
    );
    // After a crash it is not said again.
    let cut = of_flow.log.iter().position(|envelope| envelope.event.name() == "agent:turn").unwrap();
    let mut resumed = Sim::resumed(of_flow.run.graph(), &of_flow.log[..cut], None);
    resumed.drive(turns(3, None));
    assert_eq!(warnings(&resumed).len(), 1, "{}", story(&resumed.log));
    let stops = [flow_budget, node_budget].map(|text| {
        let sim = drive(&text.replace("usd: 1", "usd: 1, onUnknown: stop"), turns(3, None));
        (end(&sim).0, end(&sim).1, warnings(&sim).len())
    });
    assert_eq!(stops, [(Outcome::BudgetExceeded, 1, 0); 2]);
    // Tokens are always known.
    let tokens = drive(&flow("budget: { tokens: 99 }", &[("a", "")]), turns(3, None));
    assert_eq!((end(&tokens), warnings(&tokens)), ((Outcome::Success, 3, 0), vec![]));
}

#[test]
fn two_agents_that_cannot_both_be_afforded_do_not_run_at_once() {
    let own = ", policy: { budget: { usd: 2 } }";
    let both = flow("budget: { usd: 3 }", &[("a", own), ("b", own)]);
    let sim = drive(&both, turns(2, Some(0.5)));
    assert_eq!((end(&sim), sim.most), ((Outcome::Success, 4, 0), 1));
    // What an agent of this session has cost says what the next may.
    let after = ", dependsOn: [a]";
    let learnt = flow("budget: { usd: 2.5 }", &[("a", ""), ("b", after), ("c", after)]);
    let sim = drive(&learnt, turns(2, Some(0.5)));
    assert_eq!((end(&sim).0, sim.most), (Outcome::BudgetExceeded, 1));
    let enough = drive(&learnt.replace("2.5", "3"), turns(2, Some(0.5)));
    assert_eq!((end(&enough).0, enough.most), (Outcome::Success, 2));
}

#[test]
fn what_was_spent_survives_crashes_and_snapshots() {
    let own = ", policy: { budget: { usd: 2 } }";
    let rows = [
        flow("budget: { usd: 1.4 }", &[("a", ""), ("b", ", dependsOn: [a]")]),
        flow("failFast: true", &[("a", ", policy: { budget: { usd: 1.4 } }")]),
        flow("budget: { usd: 3 }", &[("a", own), ("b", own)]),
    ];
    for text in rows {
        let graph = graph(&text);
        let mut whole = Sim::new(&graph, &[]);
        whole.drive(turns(4, Some(0.4)));
        whole.check();
        for cut in 1..whole.log.len() {
            let half = Sim::new(&graph, &whole.log[..cut]);
            let spent = names(&half, "agent:usage");
            let most = names(&whole, "agent:usage");
            let check = |mut sim: Sim, before: usize| {
                sim.drive(turns(4, Some(0.4)));
                // Turns of an attempt that was cut short are paid for again, and count.
                let turns = before + names(&sim, "agent:usage");
                let cost = sim.run.state().cost_usd;
                assert!((cost - 0.4 * turns as f64).abs() < 1e-9, "{cost} for {turns} turns");
                let outcome = sim.run.state().outcome.unwrap();
                let same = outcome == whole.run.state().outcome.unwrap();
                assert!(
                    same || outcome == Outcome::BudgetExceeded,
                    "{outcome:?} after {cut}\n{}",
                    story(&sim.log)
                );
                let outputs = sim.run.state().outputs.iter().flatten().count();
                assert!(
                    outcome != Outcome::Success || outputs == sim.run.graph().nodes.len(),
                    "{}",
                    story(&sim.log)
                );
                assert!(turns <= most + 4, "{turns} turns after {cut}\n{}", story(&sim.log));
            };
            check(Sim::resumed(&graph, &whole.log[..cut], None), 0);
            let saved = serde_json::to_string(&half.run.snapshot(&graph.input)).unwrap();
            let saved: RunSnapshot = serde_json::from_str(&saved).unwrap();
            check(Sim::restored(&graph, &saved, half.now), spent);
        }
    }
}
