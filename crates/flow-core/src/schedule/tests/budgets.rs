//! Budgets in money and tokens, of flows and of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inspan_protocol::{
    AgentError, BudgetLimits, BudgetRaise, ErrorCode, Event, LogLevel, NodeId, NodePath, NodeStatus, Outcome,
    PauseCause, RunSnapshot, Spending, Timestamp,
};
use serde_json::json;

use super::{
    reuse::reusable,
    sim::{AttemptStep, Sim, story},
};
use crate::{
    schedule::{AttemptEnd, Reusable, ReuseDecision, ReuseReason, Run, StartNode},
    testing::graph,
};

fn flow(policy: &str, nodes: &[(&str, &str)]) -> String {
    let mut text = format!("flow: {{ name: f, policy: {{ {policy} }} }}\nnodes:\n");
    for (id, rest) in nodes {
        text += &format!("  - {{ id: {id}, type: talk.agent, input: {{ prompt: go }}{rest} }}\n");
    }
    text
}

/// Agents of so many turns, each of which costs so much and takes 10 tokens.
pub(super) fn turns(count: usize, cost: Option<f64>) -> impl Fn(&StartNode, &Run) -> Vec<AttemptStep> + Copy {
    move |_, _| {
        let mut steps = vec![AttemptStep::Begin, AttemptStep::Name("c".to_owned())];
        for turn in 1..=count {
            steps.push(AttemptStep::Usage(cost, 10));
            steps.push(if turn < count { AttemptStep::Turn } else { AttemptStep::Complete });
        }
        steps.push(AttemptStep::End(AttemptEnd::Output(json!({}))));
        steps
    }
}

pub(super) fn names(sim: &Sim, name: &str) -> usize {
    sim.log.iter().filter(|envelope| envelope.event.name() == name).count()
}

/// How the run ended or paused.
pub(super) fn outcome(sim: &Sim) -> Outcome {
    let state = sim.run.state();
    match (state.outcome(), state.paused_by()) {
        (Some(outcome), _) => outcome,
        (None, Some(PauseCause::Budget)) => Outcome::Paused,
        (None, cause) => panic!("{cause:?}\n{}", story(&sim.log)),
    }
}

/// The same, how many turns ended, and how often a budget was reported as used up.
fn end(sim: &Sim) -> (Outcome, usize, usize) {
    sim.check();
    (outcome(sim), names(sim, "agent:usage"), names(sim, "budget:exceeded"))
}

#[test]
fn ten_tenths_of_a_dollar_are_a_dollar() {
    let nodes: Vec<String> = (0..12).map(|node| format!("n{node}")).collect();
    let after = |at: usize| nodes.get(at.wrapping_sub(1)).map(|node| format!(", dependsOn: [{node}]"));
    let after: Vec<String> = (0..12).map(|at| after(at).unwrap_or_default()).collect();
    let chain: Vec<_> =
        nodes.iter().zip(&after).map(|(node, after)| (node.as_str(), after.as_str())).collect();
    let sim = Sim::new(&graph(&flow("budget: { usd: 1 }", &chain)), &[]).driven(turns(1, Some(0.1)));
    assert_eq!(end(&sim), (Outcome::Paused, 10, 1));
}

fn usd(usd: f64) -> BudgetLimits {
    BudgetLimits { usd: Some(usd), tokens: None }
}

/// The log continues a budget of the flow that was raised, or as it was.
fn resumed(
    sim: &Sim,
    raised: Option<BudgetLimits>,
    world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>,
) -> Sim {
    let mut resumed = Sim::new(sim.run.graph(), &sim.log);
    resumed.budget.flow = raised;
    resumed.resume(None, &BTreeMap::new());
    resumed.drive(world);
    resumed
}

pub(super) fn drive(text: &str, world: impl Fn(&StartNode, &Run) -> Vec<AttemptStep>) -> Sim {
    Sim::new(&graph(text), &[]).driven(world)
}

#[test]
fn a_flow_pauses_or_ends_in_the_turn_after_its_budget_is_used_up() {
    let ab = [("a", ""), ("b", ", dependsOn: [a]")];
    let rows = [
        ("budget: { usd: 1 }", 4, (Outcome::Paused, 2, 1)),
        ("budget: { tokens: 15 }", 4, (Outcome::Paused, 2, 1)),
        // The last turn of a finished agent counts; the next agent does not run.
        ("budget: { usd: 1 }", 2, (Outcome::Paused, 2, 1)),
        ("budget: { usd: 1, onExceeded: fail }", 4, (Outcome::BudgetExceeded, 2, 1)),
        ("budget: { tokens: 15, onExceeded: fail }", 4, (Outcome::BudgetExceeded, 2, 1)),
        ("budget: { usd: 1, onExceeded: fail }", 2, (Outcome::BudgetExceeded, 2, 1)),
        // All work is done, though the last turn crossed the limit; the log says so.
        ("budget: { usd: 1.9 }", 2, (Outcome::Success, 4, 1)),
        ("budget: { usd: 1.9, onExceeded: fail }", 2, (Outcome::Success, 4, 1)),
        ("budget: { usd: 9 }", 4, (Outcome::Success, 8, 0)),
    ];
    for (policy, count, expected) in rows {
        let sim = drive(&flow(policy, &ab), turns(count, Some(0.5)));
        assert_eq!(end(&sim), expected, "{policy} {count}\n{}", story(&sim.log));
    }
}

/// An agent of one turn that calls tools, and takes 10 tokens for each.
fn long_turn(tools: usize, cost: Option<f64>) -> impl Fn(&StartNode, &Run) -> Vec<AttemptStep> + Copy {
    move |_, _| {
        let mut steps = vec![AttemptStep::Begin, AttemptStep::Name("c".to_owned())];
        for _ in 0..tools {
            steps.extend([AttemptStep::Tool, AttemptStep::Spent(cost, 10), AttemptStep::ToolDone]);
        }
        steps.extend([AttemptStep::Usage(Some(0.25), 10), AttemptStep::Complete]);
        steps.push(AttemptStep::End(AttemptEnd::Output(json!({}))));
        steps
    }
}

#[test]
fn an_agent_is_cancelled_within_a_turn_that_uses_a_budget_up() {
    let rows = [
        ("budget: { tokens: 25 }", "", None, (Outcome::Paused, 3, 1)),
        ("budget: { tokens: 25, onExceeded: fail }", "", None, (Outcome::BudgetExceeded, 3, 1)),
        ("failFast: true", ", policy: { budget: { tokens: 15 } }", None, (Outcome::Paused, 2, 1)),
        ("budget: { usd: 1 }", "", Some(0.5), (Outcome::Paused, 2, 1)),
        // A vendor that names the price at the end of the turn only.
        ("budget: { usd: 1, onUnknown: stop }", "", None, (Outcome::Success, 4, 0)),
        // Only the last request crosses the limit.
        ("budget: { tokens: 50 }", "", None, (Outcome::Success, 4, 1)),
    ];
    for (policy, own, cost, (expected, parts, reported)) in rows {
        let sim = drive(&flow(policy, &[("a", own)]), long_turn(4, cost));
        sim.check();
        let seen = (outcome(&sim), names(&sim, "agent:spent"), names(&sim, "budget:exceeded"));
        assert_eq!(seen, (expected, parts, reported), "{policy}\n{}", story(&sim.log));
    }
}

#[test]
fn what_a_lost_turn_had_spent_stays_spent() {
    let text = flow("budget: { usd: 9, tokens: 45 }", &[("a", "")]);
    for (cost, known) in [(Some(0.5), 1.0), (None, 0.0)] {
        let all = drive(&text, long_turn(4, cost));
        let place = |nth| {
            let spent = all.log.iter().enumerate().filter(|(_, at)| at.event.name() == "agent:spent");
            spent.map(|(at, _)| at).nth(nth).expect("the turn went on so far")
        };
        let mut again = Sim::new(&graph(&text), &all.log[..=place(1)]);
        again.resume(None, &BTreeMap::new());
        let spent = again.run.state().spent();
        // The request that was lost has no price.
        assert_eq!(
            (spent.tokens, spent.cost_usd, spent.unpriced),
            (20, known, true),
            "{}",
            story(&again.log)
        );
        assert!(again.run.state().session.unpriced);
        again.drive(long_turn(4, cost));
        again.check();
        // 25 of the 45 tokens were left.
        assert_eq!(outcome(&again), Outcome::Paused, "{}", story(&again.log));
        assert_eq!(again.run.state().spent().tokens, 50);
        // The same for a session that continues it with an edited flow.
        let log: Vec<_> = all.log[..=place(1)].iter().cloned().map(Arc::new).collect();
        let before = Run::new(graph(&text), &"s".into(), serde_json::Map::new(), None);
        let stop = graph(&flow("budget: { usd: 9, onUnknown: stop }", &[("a", "")]));
        let edited = Sim::reusing(&stop, Reusable::of(before, &log, u64::MAX)).driven(long_turn(4, cost));
        edited.check();
        let carried = edited.run.state().carried.unwrap_or_default();
        assert_eq!((carried.tokens, carried.cost_usd, carried.unpriced), (20, known, true));
        assert_eq!((outcome(&edited), names(&edited, "agent:start")), (Outcome::Paused, 0));
    }
}

#[test]
fn resuming_gives_no_fresh_budget_and_a_raise_counts_from_what_was_spent() {
    let ab = [("a", ""), ("b", ", dependsOn: [a]")];
    let paused = drive(&flow("budget: { usd: 1 }", &ab), turns(2, Some(0.5)));
    assert_eq!(end(&paused), (Outcome::Paused, 2, 1));
    let again = resumed(&paused, None, turns(2, Some(0.5)));
    assert_eq!(end(&again), (Outcome::Paused, 2, 2), "{}", story(&again.log));
    // One more turn is affordable, and not two.
    let more = resumed(&again, Some(usd(1.5)), turns(2, Some(0.5)));
    assert_eq!(end(&more), (Outcome::Paused, 3, 3), "{}", story(&more.log));
    let raised = resumed(&more, Some(usd(9.0)), turns(1, Some(0.5)));
    assert_eq!(end(&raised), (Outcome::Success, 4, 3), "{}", story(&raised.log));
    let starts = |id: &str| {
        raised
            .log
            .iter()
            .filter(|at| matches!(&at.event, Event::TaskStart { task_id, .. } if task_id.as_str() == id))
            .count()
    };
    assert_eq!((starts("a"), starts("b")), (1, 2), "what is finished does not run again");
}

#[test]
fn budgets_that_are_used_up_are_named() {
    let own = ", policy: { budget: { usd: 0.5 } }";
    let sim =
        drive(&flow("budget: { usd: 1.9 }", &[("a", own), ("b", ", dependsOn: [a]")]), turns(1, Some(1.0)));
    let used_up = sim.run.state().used_up_budgets(sim.run.graph());
    let expected = [
        ("flow `f`".to_owned(), "1.9 USD (2.0000 spent)".to_owned()),
        ("node `a`".to_owned(), "0.5 USD (1.0000 spent)".to_owned()),
    ];
    assert_eq!(used_up, expected);
}

#[test]
fn what_does_not_spend_runs_to_its_end_before_the_pause() {
    let text = "
flow: { name: f, policy: { budget: { usd: 1 } } }
nodes:
  - { id: a, type: talk.agent, input: { prompt: go } }
  - { id: note, type: control.noop, dependsOn: [a] }
  - { id: after, type: control.noop, dependsOn: [note] }
  - { id: b, type: talk.agent, dependsOn: [a], input: { prompt: go } }
";
    let world = |start: &StartNode, run: &Run| match run.state().spec(run.graph(), start.node).id.as_str() {
        "a" | "b" => turns(2, Some(0.5))(start, run),
        _ => vec![AttemptStep::End(AttemptEnd::Output(json!({})))],
    };
    let sim = drive(text, world);
    assert_eq!(end(&sim), (Outcome::Paused, 2, 1));
    let statuses: Vec<_> = sim.run.state().nodes().iter().map(|node| node.status).collect();
    use NodeStatus::{Complete, Pending};
    assert_eq!(statuses, [Complete, Complete, Complete, Pending], "{}", story(&sim.log));
}

#[test]
fn a_nodes_budget_spans_its_attempts_and_passes() {
    let alone = flow("failFast: true", &[("a", ", policy: { budget: { usd: 1 } }")]);
    assert_eq!(end(&drive(&alone, turns(4, Some(0.5)))), (Outcome::Paused, 2, 1));
    assert_eq!(end(&drive(&alone, turns(2, Some(0.5)))), (Outcome::Success, 2, 1));
    let tokens = alone.replace("usd: 1", "tokens: 10");
    assert_eq!(end(&drive(&tokens, turns(3, None))), (Outcome::Paused, 1, 1));
    let fails = alone.replace("usd: 1", "usd: 1, onExceeded: fail");
    assert_eq!(end(&drive(&fails, turns(4, Some(0.5)))), (Outcome::BudgetExceeded, 2, 1));
    // A node whose failure is handled fails, unless its budget says otherwise.
    let handled = flow("failFast: true", &[("a", ", policy: { budget: { usd: 1 }, continueOnError: true }")]);
    assert_eq!(end(&drive(&handled, turns(4, Some(0.5)))).0, Outcome::Success);
    let pauses = handled.replace("usd: 1", "usd: 1, onExceeded: pause");
    assert_eq!(end(&drive(&pauses, turns(4, Some(0.5)))).0, Outcome::Paused);
    let looped = format!(
        "{alone}edges:\n  - {{ from: a, to: a, maxIterations: 5, when: \"1 == 1\", onExhausted: continue }}\n"
    );
    assert_eq!(end(&drive(&looped, turns(1, Some(0.5)))), (Outcome::Paused, 2, 1));
    let retried = fails.replace("policy: { budget", "policy: { retry: { maxAttempts: 9, on: any }, budget");
    let gone = |_: &StartNode, _: &Run| {
        let error = inspan_protocol::AgentError::new(inspan_protocol::ErrorCode::Network, "gone");
        vec![
            AttemptStep::Begin,
            AttemptStep::Usage(Some(0.5), 1),
            AttemptStep::Complete,
            AttemptStep::End(AttemptEnd::Error(error)),
        ]
    };
    assert_eq!(end(&drive(&retried, gone)), (Outcome::BudgetExceeded, 2, 1));
    let mut raised = drive(&alone, turns(4, Some(0.5)));
    raised.budget.nodes.insert(NodePath::new("a"), usd(9.0));
    raised.resume(None, &BTreeMap::new());
    raised.drive(turns(1, Some(0.5)));
    assert_eq!(end(&raised), (Outcome::Success, 3, 1), "{}", story(&raised.log));
}

#[test]
fn a_plan_says_what_a_used_up_budget_stops() {
    let why = |owner: &str| format!("the budget of {owner} is used up: 1 USD (1.5000 spent)");
    for (on, ended) in [("fail", Outcome::BudgetExceeded), ("pause", Outcome::Paused)] {
        let budget = format!("budget: {{ usd: 1, onExceeded: {on} }}");
        let own = format!(", policy: {{ {budget} }}");
        let rows = [("maxConcurrency: 1", own.as_str(), "node `a`"), (budget.as_str(), "", "flow `f`")];
        for (policy, own, owner) in rows {
            let graph = graph(&flow(policy, &[("a", own), ("b", ", dependsOn: [a]")]));
            let sim = Sim::new(&graph, &[]).driven(turns(4, Some(0.75)));
            assert_eq!(end(&sim), (ended, 2, 1), "{owner}");
            let log: Vec<_> = sim.log.iter().cloned().map(Arc::new).collect();
            let first = |raise: BudgetRaise| {
                let run = Run::new(graph.clone(), &"s".into(), graph.input.clone(), None);
                let mut left = Reusable::of(run, &log, u64::MAX);
                left.raise(&raise);
                let mut plan = match ended {
                    Outcome::Paused => {
                        Sim::new(&graph, &sim.log).run.plan_to_resume(&raise, Timestamp::default())
                    }
                    _ => Sim::reusing(&graph, left).run.plan(Timestamp::default()),
                };
                let first = plan.nodes.remove(0);
                (first.decision, first.error, first.waits_for_budget)
            };
            let used_up = first(BudgetRaise::default());
            let expected = (ReuseDecision::Resumes, Some(why(owner)), on == "pause");
            assert_eq!(used_up, expected, "{on} {owner}");
            let nodes = [(NodePath::new("a"), usd(9.0))].into();
            let raised = match own {
                "" => BudgetRaise { flow: Some(usd(9.0)), ..BudgetRaise::default() },
                _ => BudgetRaise { nodes, ..BudgetRaise::default() },
            };
            assert_eq!(first(raised), (ReuseDecision::Resumes, None, false), "{on} {owner}");
        }
    }
}

#[test]
fn a_used_up_budget_hides_no_work_that_is_done_again() {
    for on in ["fail", "pause"] {
        let budget = format!("budget: {{ usd: 1, onExceeded: {on} }}");
        let text = flow(&budget, &[("a", ""), ("b", ", dependsOn: [a]")]);
        let in_frames = format!(
            "name: f\nnodes:\n  - id: each\n    type: control.foreach\n    policy: {{ {budget} }}\n    input: {{ items: [1, \
             2], maxConcurrency: 1, onItemError: continue }}\n    body: {{ nodes: [{{ id: a, type: talk.agent, input: {{ \
             prompt: go }} }}] }}\n"
        );
        for (text, again) in [(&text, "a"), (&in_frames, "each[0]/a")] {
            let left = reusable(&Sim::new(&graph(text), &[]).driven(turns(1, Some(1.5))), usize::MAX);
            let edited = graph(&text.replacen("prompt: go", "prompt: come", 1));
            let plan = Sim::reusing(&edited, left.clone()).run.plan(Timestamp::default());
            let found = plan.nodes.iter().filter(|node| node.is_done_again());
            assert_eq!(found.map(|node| node.path.as_str()).collect::<Vec<_>>(), [again], "{on} {plan:#?}");
            if again == "a" {
                let missing = plan.missing_for_from(&edited, &NodePath::new("b"));
                let cause = missing.and_then(|missing| missing.cause);
                assert_eq!(cause, Some((NodePath::new("a"), ReuseReason::Input)), "{on}");
                let mut only = Arc::into_inner(graph(text)).unwrap();
                only.only = vec![NodePath::new("b")];
                let (only, mut left) = (Arc::new(only), left);
                left.run_again(NodePath::new("b"));
                let plan = Sim::reusing(&only, left).run.plan(Timestamp::default());
                assert_eq!(plan.missing_for_only(&only), None, "{on} {plan:#?}");
            }
        }
    }
}

#[test]
fn a_session_that_continues_another_counts_what_that_one_spent() {
    let own = ", policy: { budget: { usd: 3 } }";
    let text = flow("budget: { usd: 1, onExceeded: fail }", &[("a", own), ("b", ", dependsOn: [a]")]);
    let graph = graph(&text);
    let first = Sim::new(&graph, &[]).driven(turns(2, Some(0.5)));
    assert_eq!(end(&first), (Outcome::BudgetExceeded, 2, 1));
    let log: Vec<_> = first.log.iter().cloned().map(Arc::new).collect();
    let run = || Run::new(graph.clone(), &"s".into(), graph.input.clone(), None);
    let reusable = Reusable::of(run(), &log, u64::MAX);
    let flow = |limits| BudgetRaise { flow: Some(limits), ..BudgetRaise::default() };
    let refused = |raise: &BudgetRaise| reusable.check_raise(&graph, raise).map_err(|why| why.to_string());
    let why = "`usd` cannot be raised to 1: the limit is 1, and 1 are spent";
    assert_eq!((refused(&flow(usd(1.0))), refused(&flow(usd(1.5)))), (Err(why.to_owned()), Ok(())));
    let node = BudgetRaise { nodes: [(NodePath::new("a"), usd(0.5))].into(), ..BudgetRaise::default() };
    assert_eq!(
        refused(&node),
        Err("`a.usd` cannot be raised to 0.5: the limit is 3, and 1 are spent".to_owned())
    );
    // A limit that there was not may be any.
    assert_eq!(refused(&flow(BudgetLimits { usd: None, tokens: Some(3) })), Ok(()));
    let second = Sim::reusing(&graph, reusable.clone()).driven(turns(2, Some(0.5)));
    // It takes over what `a` did, and has nothing left for `b`.
    assert_eq!(end(&second), (Outcome::BudgetExceeded, 0, 1), "{}", story(&second.log));
    let carried: Vec<_> = second.log.iter().filter(|at| at.event.name() == "budget:carried").collect();
    let spent = Spending { cost_usd: 1.0, tokens: 20, ..Spending::default() };
    let nodes = [(NodeId::new("a").unwrap(), spent)].into();
    let expected = Event::BudgetCarried { from: "s".into(), spent, nodes, raised: BudgetRaise::default() };
    assert_eq!(carried.iter().map(|at| &at.event).collect::<Vec<_>>(), [&expected]);
    // What a third session continues is all that both have spent, also after a crash of the second.
    for cut in 1..second.log.len() {
        let log: Vec<_> = second.log[..cut].iter().cloned().map(Arc::new).collect();
        let resumed = Sim::reusing_log(&graph, reusable.clone(), &second.log[..cut]);
        let third =
            Reusable::of(Run::new(graph.clone(), &"t".into(), graph.input.clone(), None), &log, u64::MAX);
        let known = cut >= carried[0].seq as usize;
        assert_eq!(third.spending().1, if known { spent } else { Spending::default() });
        let mut resumed = resumed;
        resumed.resume(None, &BTreeMap::new());
        resumed.drive(turns(2, Some(0.5)));
        assert_eq!(resumed.run.state().carried, Some(spent), "after {cut}\n{}", story(&resumed.log));
    }
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
    let resumed = Sim::resumed(of_flow.run.graph(), &of_flow.log[..cut], None).driven(turns(3, None));
    assert_eq!(warnings(&resumed).len(), 1, "{}", story(&resumed.log));
    let stops = [flow_budget, node_budget].map(|text| {
        let sim = drive(&text.replace("usd: 1", "usd: 1, onUnknown: stop"), turns(3, None));
        (end(&sim).0, end(&sim).1, warnings(&sim).len())
    });
    assert_eq!(stops, [(Outcome::Paused, 1, 0); 2]);
    // Tokens are known, unless the agent counts none.
    let flow_budget = flow("budget: { tokens: 99 }", &[("a", "")]);
    let node_budget = flow("failFast: true", &[("a", ", policy: { budget: { tokens: 99 } }")]);
    let uncounted = |start: &StartNode, run: &Run| {
        let steps = turns(3, None)(start, run).into_iter();
        let without = |step| match step {
            AttemptStep::Usage(cost, _) => AttemptStep::Usage(cost, 0),
            step => step,
        };
        steps.map(without).collect::<Vec<_>>()
    };
    let tokens = drive(&flow_budget, turns(3, None));
    assert_eq!((end(&tokens), warnings(&tokens)), ((Outcome::Success, 3, 0), vec![]));
    for (text, whose) in [(flow_budget, "flow `f`"), (node_budget, "node `a`")] {
        let sim = drive(&text, uncounted);
        let message = "the tokens of a turn are unknown and count as nothing in the budget of";
        assert_eq!(
            (end(&sim), warnings(&sim)),
            ((Outcome::Success, 3, 0), vec![format!("{message} {whose}: 99 tokens")])
        );
        let stops = drive(&text.replace("tokens: 99", "tokens: 99, onUnknown: stop"), uncounted);
        assert_eq!((end(&stops), warnings(&stops).len()), ((Outcome::Paused, 1, 1), 0));
        let exceeded = stops.log.iter().find_map(|envelope| match &envelope.event {
            Event::BudgetExceeded { limit, budget, .. } => Some((limit.as_str(), budget.clone())),
            _ => None,
        });
        // A higher limit would not help.
        let limit = "99 tokens (those of a turn are unknown, and `onUnknown` is `stop`)";
        assert_eq!(exceeded, Some((limit, None)));
    }
}

#[test]
fn two_agents_that_cannot_both_be_afforded_do_not_run_at_once() {
    let after = ", dependsOn: [a]";
    let learnt = [("a", ""), ("b", after), ("c", after)];
    for (own, both, few, enough) in
        [("usd: 2", "usd: 3", "usd: 2.5", "usd: 3"), ("tokens: 40", "tokens: 60", "tokens: 50", "tokens: 60")]
    {
        let node = format!(", policy: {{ budget: {{ {own} }} }}");
        let side_by_side = flow(&format!("budget: {{ {both} }}"), &[("a", &node), ("b", &node)]);
        let sim = drive(&side_by_side, turns(2, Some(0.5)));
        assert_eq!((end(&sim), sim.most), ((Outcome::Success, 4, 0), 1), "{own}");
        // What an agent of this session has cost says what the next may.
        let sim = drive(&flow(&format!("budget: {{ {few} }}"), &learnt), turns(2, Some(0.5)));
        assert_eq!((end(&sim).0, sim.most), (Outcome::Paused, 1), "{few}");
        let sim = drive(&flow(&format!("budget: {{ {enough} }}"), &learnt), turns(2, Some(0.5)));
        assert_eq!((end(&sim).0, sim.most), (Outcome::Success, 2), "{enough}");
        // The budget of a node counts for all that it runs.
        let each = foreach(&format!("budget: {{ {both} }}"), "", &format!("budget: {{ {own} }}"));
        let each = each.replace("maxConcurrency: 1", "maxConcurrency: 2");
        let sim = drive(&each, turns(2, Some(0.5)));
        assert_eq!((end(&sim), sim.most), ((Outcome::Success, 6, 0), 1), "{own}");
        let sim = drive(&each.replace(both, "usd: 99"), turns(2, Some(0.5)));
        assert_eq!((end(&sim), sim.most), ((Outcome::Success, 6, 0), 2), "{own}");
    }
}

#[test]
fn few_agents_run_at_once_under_a_budget_before_one_has_said_what_it_takes() {
    let items: Vec<String> = (0..30).map(|item| item.to_string()).collect();
    let items = format!("[{}]", items.join(", "));
    let text =
        foreach("", "", "").replace("[a, b]", &items).replace("maxConcurrency: 1", "maxConcurrency: 30");
    let rows = [
        // Four begin; once one has said that it took 10 tokens, there is enough for two more.
        ("budget: { tokens: 60 }", 1, Some(0.5), (Outcome::Paused, 6, 6)),
        ("budget: { usd: 3 }", 1, Some(0.5), (Outcome::Paused, 6, 6)),
        ("budget: { tokens: 30 }", 1, Some(0.5), (Outcome::Paused, 3, 4)),
        // As soon as it is known, all run for which there is enough.
        ("budget: { tokens: 9000 }", 2, Some(0.5), (Outcome::Success, 31, 30)),
        ("budget: { usd: 900 }", 2, Some(0.5), (Outcome::Success, 31, 30)),
        ("budget: { usd: 900 }", 2, Some(0.0), (Outcome::Success, 31, 30)),
        ("budget: { usd: 900 }", 2, None, (Outcome::Success, 31, 30)),
        ("failFast: true", 2, Some(0.5), (Outcome::Success, 31, 30)),
    ];
    for (policy, count, cost, expected) in rows {
        let text = text.replace("name: f", &format!("name: f, policy: {{ {policy} }}"));
        let sim = drive(&text, turns(count, cost));
        sim.check();
        let complete = |at: &&inspan_protocol::Envelope| {
            let is_agent = at.context.task.as_ref().is_some_and(|task| task.as_str() != "each");
            is_agent && at.event.name() == "task:complete"
        };
        let seen = (outcome(&sim), sim.log.iter().filter(complete).count(), sim.most);
        assert_eq!(seen, expected, "{policy} {cost:?}\n{}", story(&sim.log));
    }
    // Nothing is learnt from agents that fail before they have said anything, and the next ones run.
    let text = text.replace("name: f", "name: f, policy: { budget: { tokens: 120 } }");
    let sim = drive(&text, |start, run| match start.path.as_str() {
        "last" => turns(1, None)(start, run),
        _ => vec![AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, "no")))],
    });
    assert_eq!((outcome(&sim), sim.most, names(&sim, "task:failed")), (Outcome::Success, 4, 30));
    let sim = Sim::new(&graph(&text), &[]).driven_to("agent:start", turns(2, None));
    let run = &sim.run;
    let waits = run.state().tasks().filter_map(|(task, _)| run.state().waits_for_budget(run.graph(), task));
    let waits: BTreeSet<String> = waits.collect();
    let reason = "what an agent takes of the budget of flow `f` is unknown until one of the 4 running agents reports it";
    assert_eq!(waits, BTreeSet::from([reason.to_owned()]));
}

#[test]
fn an_agent_that_waits_for_a_budget_says_for_which() {
    let node = |limit: &str| format!(", policy: {{ budget: {{ {limit} }} }}");
    let rows = [
        (
            ("usd: 3", "usd: 2"),
            "of 3 USD, 0.5000 are spent and 1.5000 reserved for 1 agent that runs, and it may take 2.0000",
        ),
        (
            ("tokens: 60", "tokens: 40"),
            "of 60 tokens, 10 are spent and 30 reserved for 1 agent that runs, and it may take 40",
        ),
    ];
    for ((both, own), amounts) in rows {
        let text = flow(&format!("budget: {{ {both} }}"), &[("a", &node(own)), ("b", &node(own))]);
        let mut sim = Sim::new(&graph(&text), &[]).driven_to("agent:usage", turns(2, Some(0.5)));
        let graph = sim.run.graph().clone();
        let waits = sim.run.state().tasks().map(|(task, _)| sim.run.state().waits_for_budget(&graph, task));
        let reason = format!("too little of the budget of flow `f` is free: {amounts}");
        assert_eq!(waits.last().unwrap(), Some(reason));
        sim.drive(turns(2, Some(0.5)));
        let waits = sim.run.state().tasks().map(|(task, _)| sim.run.state().waits_for_budget(&graph, task));
        assert_eq!(waits.flatten().count(), 0);
    }
}

/// The agent `a` meets a usage limit for an hour at its first attempt.
fn limited_first(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    if start.path.as_str() != "a" || start.attempt > 1 {
        return turns(2, Some(0.5))(start, run);
    }
    let mut error = AgentError::new(ErrorCode::RateLimited, "come back later").from_provider("talk");
    error.resets_at = Some(run.state().last_at() + Duration::from_secs(3_600));
    vec![AttemptStep::Begin, AttemptStep::Complete, AttemptStep::End(AttemptEnd::Error(error))]
}

#[test]
fn a_used_up_budget_pauses_and_waits_for_no_usage_limit() {
    // With another agent that is ready, and with none but the limited one.
    for nodes in [&[("a", ""), ("b", ""), ("c", ", dependsOn: [b]")][..], &[("a", ""), ("b", "")]] {
        let sim = drive(&flow("budget: { usd: 1 }", nodes), limited_first);
        assert_eq!((end(&sim), sim.now.as_millis()), ((Outcome::Paused, 2, 1), 0), "{}", story(&sim.log));
        let raised = resumed(&sim, Some(usd(9.0)), limited_first);
        assert_eq!((end(&raised).0, raised.now.as_millis()), (Outcome::Success, 3_600_000));
    }
    // What costs nothing is tried again first.
    let retried = "  - { id: t, type: control.wait, input: { ms: 1 }, policy: { retry: { maxAttempts: 2, backoff: 10s } } }\n";
    let text = flow("budget: { usd: 1 }", &[("a", ""), ("b", "")]) + retried;
    let sim = drive(&text, |start, run| match (start.path.as_str(), start.attempt) {
        ("t", 1) => {
            let error = AgentError::new(ErrorCode::Network, "not yet");
            vec![AttemptStep::End(AttemptEnd::Error(error))]
        }
        ("t", _) => vec![AttemptStep::End(AttemptEnd::Output(json!({})))],
        _ => limited_first(start, run),
    });
    assert_eq!(end(&sim).0, Outcome::Paused);
    assert!((10_000..3_600_000).contains(&sim.now.as_millis()), "{}", story(&sim.log));
}

#[test]
fn every_budget_that_is_used_up_is_named_and_can_be_raised() {
    let small = "budget: { tokens: 15 }";
    let of_item = format!("policy: {{ {small} }}");
    let price = "budget: { usd: 1, onUnknown: stop }";
    let of_flow = foreach("", "", "").replace("name: f", &format!("name: f, policy: {{ {small} }}"));
    // The flow, the limit, and the number of the frame whose budget it is.
    let rows = [
        (of_flow, Some("tokens"), None),
        (foreach(small, "", ""), Some("each.tokens"), None),
        (foreach("", &of_item, ""), Some("each/.tokens"), Some(0)),
        (foreach("", "", small), Some("each/ask.tokens"), None),
        (foreach("", &of_item, "").replace(small, price), None, Some(0)),
    ];
    for (text, limit, in_frame) in rows {
        let mut sim = drive(&text, turns(4, None));
        assert_eq!(
            end(&sim),
            (Outcome::Paused, if limit.is_some() { 2 } else { 1 }, 1),
            "{}",
            story(&sim.log)
        );
        let limit = limit.map(str::to_owned);
        let exceeded = sim.log.iter().find_map(|envelope| match &envelope.event {
            Event::BudgetExceeded { budget, frame, .. } => Some((budget.clone(), *frame)),
            _ => None,
        });
        assert_eq!(exceeded, Some((limit.clone(), in_frame)), "{text}");
        assert_eq!(sim.run.state().limit_to_raise(), limit.as_deref(), "{text}");
        let Some(limit) = limit else { continue };
        let raise = |tokens| {
            let (more, mut raise) =
                (BudgetLimits { usd: None, tokens: Some(tokens) }, BudgetRaise::default());
            let node = limit.strip_suffix("tokens").unwrap().trim_end_matches('.');
            match node.strip_suffix('/') {
                Some(body) => drop(raise.bodies.insert(NodePath::new(body), more)),
                None if node.is_empty() => raise.flow = Some(more),
                None => drop(raise.nodes.insert(NodePath::new(node), more)),
            }
            raise
        };
        for tokens in [10, 15, 20] {
            let refused = sim.run.check_raise(&raise(tokens)).unwrap_err().to_string();
            let why = format!("`{limit}` cannot be raised to {tokens}: the limit is 15, and 20 are spent");
            assert_eq!(refused, why);
        }
        assert_eq!(sim.run.check_raise(&raise(21)), Ok(()), "{limit}");
        sim.budget = raise(1_000);
        sim.resume(None, &BTreeMap::new());
        sim.drive(turns(4, None));
        assert_eq!((outcome(&sim), sim.run.state().limit_to_raise()), (Outcome::Success, None), "{limit}");
        assert_eq!(names(&sim, "budget:exceeded"), 1, "{limit}\n{}", story(&sim.log));
    }
}

#[test]
fn budgets_that_are_used_up_together_are_named_together() {
    let small = "budget: { tokens: 15 }";
    let of_item = format!("policy: {{ {small} }}");
    let in_flow = |text: String| text.replace("name: f", &format!("name: f, {of_item}"));
    let item = "the budget of item 0 of `each` is used up: 15 tokens (20 spent)";
    let node = "the budget of node `each` is used up: 15 tokens (20 spent)";
    let flow = "the budget of flow `f` is used up: 15 tokens (20 spent)";
    let rows = [
        (foreach(small, &of_item, ""), "each/.tokens,each.tokens", vec![item, node]),
        (in_flow(foreach("", &of_item, "")), "each/.tokens,tokens", vec![item, flow]),
        (in_flow(foreach(small, "", "")), "each.tokens,tokens", vec![node, flow]),
    ];
    for (text, limits, whys) in rows {
        let mut sim = drive(&text, turns(4, None));
        assert_eq!((outcome(&sim), sim.run.state().limit_to_raise()), (Outcome::Paused, Some(limits)));
        let reason = sim.log.iter().find_map(|envelope| match &envelope.event {
            Event::FlowPaused { reason, .. } => reason.clone(),
            _ => None,
        });
        assert_eq!(reason, Some(whys.join(", and ")), "{}", story(&sim.log));
        let more = BudgetLimits { usd: None, tokens: Some(1_000) };
        for limit in limits.split(',') {
            match limit {
                "tokens" => sim.budget.flow = Some(more),
                "each.tokens" => drop(sim.budget.nodes.insert(NodePath::new("each"), more)),
                _ => drop(sim.budget.bodies.insert(NodePath::new("each"), more)),
            }
        }
        sim.resume(None, &BTreeMap::new());
        sim.drive(turns(4, None));
        assert_eq!(outcome(&sim), Outcome::Success, "{}", story(&sim.log));
    }
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
        let whole = Sim::new(&graph, &[]).driven(turns(4, Some(0.4)));
        whole.check();
        for cut in 1..whole.log.len() {
            let half = Sim::new(&graph, &whole.log[..cut]);
            let spent = names(&half, "agent:usage");
            let most = names(&whole, "agent:usage");
            let check = |mut sim: Sim, before: usize| {
                sim.drive(turns(4, Some(0.4)));
                // Turns of an interrupted attempt cost money again, and count.
                let turns = before + names(&sim, "agent:usage");
                let cost = sim.run.state().session.cost_usd;
                assert!((cost - 0.4 * turns as f64).abs() < 1e-9, "{cost} for {turns} turns");
                let outcome = outcome(&sim);
                let same = outcome == super::budgets::outcome(&whole);
                assert!(same || outcome == Outcome::Paused, "{outcome:?} after {cut}\n{}", story(&sim.log));
                let outputs = sim.run.state().frames[crate::FrameIx::FLOW].outputs.iter().flatten().count();
                assert!(
                    outcome != Outcome::Success || outputs == sim.run.graph().flow().nodes.len(),
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

pub(super) fn foreach(policy: &str, body: &str, node: &str) -> String {
    format!(
        "
flow: {{ name: f }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [a, b], onItemError: continue, maxConcurrency: 1 }}
    policy: {{ {policy} }}
    body:
      {body}
      nodes:
        - {{ id: ask, type: talk.agent, input: {{ prompt: '{{{{ item }}}}' }}, policy: {{ {node} }} }}
  - {{ id: last, type: talk.agent, input: {{ prompt: last }}, dependsOn: [each] }}
"
    )
}
