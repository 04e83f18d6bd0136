//! Budgets of bodies, and of nodes within them: over the items of a list, attempts and sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::{AgentError, BudgetLimits, BudgetRaise, Envelope, ErrorCode, Event, NodePath, Outcome};

use super::{
    budgets::{drive, foreach, names, outcome, turns},
    explained,
    reuse::{planned, ran, reusable},
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    About,
    schedule::{AttemptEnd, Reusable, Run, StartNode},
    testing::graph,
};

/// Agents that fail, after a turn of 10 tokens.
fn fails(_: &StartNode, _: &Run) -> Vec<AttemptStep> {
    let error = AgentError::new(ErrorCode::NodeFailed, "no");
    vec![
        AttemptStep::Begin,
        AttemptStep::Usage(Some(0.5), 10),
        AttemptStep::Complete,
        AttemptStep::End(AttemptEnd::Error(error)),
    ]
}

#[test]
fn a_budget_within_a_body_counts_what_sessions_before_have_spent_on_its_item() {
    let own = "budget: { tokens: 25, onExceeded: fail }";
    for text in [foreach("", "", own), foreach("", &format!("policy: {{ {own} }}"), "")] {
        let graph = graph(&text);
        let mut sim = Sim::new(&graph, &[]).driven(fails);
        let mut turns = vec![names(&sim, "agent:usage")];
        for _ in 0..3 {
            let log: Vec<_> = sim.log.iter().cloned().map(Arc::new).collect();
            let before = match turns.len() {
                1 => Run::new(graph.clone(), &"s".into(), graph.input.clone(), None),
                _ => Run::new(graph.clone(), &"t".into(), graph.input.clone(), None),
            };
            let mut left = Reusable::of(before, &log, u64::MAX);
            left.run_again(NodePath::new("each"));
            sim = Sim::reusing(&graph, left);
            sim.drive(fails);
            sim.check();
            turns.push(names(&sim, "agent:usage"));
        }
        // Three turns for each of two items, and one of `last` each time.
        assert_eq!(turns, [3, 3, 3, 1], "{text}\n{}", story(&sim.log));
    }
    // An item that replaces another has a budget for itself.
    let graph_of = |items: &str| graph(&foreach("", "", own).replace("[a, b]", items));
    let first = { Sim::new(&graph_of("[a, b]"), &[]).driven(turns(3, Some(0.5))) };
    let log: Vec<_> = first.log.iter().cloned().map(Arc::new).collect();
    let before = Run::new(first.run.graph().clone(), &"s".into(), serde_json::Map::new(), None);
    let second =
        Sim::reusing(&graph_of("[b, c]"), Reusable::of(before, &log, u64::MAX)).driven(turns(1, Some(0.5)));
    let carried: Vec<_> = second
        .log
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::FrameStart { index, carried, .. } => {
                Some((*index, carried.as_ref().map(|sum| sum.spent.tokens)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(carried, [(0, Some(30)), (1, None)], "{}", story(&second.log));
}

#[test]
fn another_attempt_of_a_foreach_counts_what_its_items_have_spent() {
    let retry = "retry: { maxAttempts: 5, on: any }";
    let own = "budget: { tokens: 25, onExceeded: fail }";
    let text = foreach(retry, "", own).replace("continue", "fail");
    let sim = drive(&text, fails);
    sim.check();
    assert_eq!(names(&sim, "agent:usage"), 3, "{}", story(&sim.log));
    let mut again = Sim::new(sim.run.graph(), &sim.log[..sim.log.len() / 2]);
    again.resume(None, &BTreeMap::new());
    again.drive(fails);
    again.check();
}

#[test]
fn another_attempt_counts_what_was_spent_in_frames_within_its_frames() {
    let small = "policy: { budget: { tokens: 25, onExceeded: fail } }";
    let loops = "type: control.loop, input: { maxIterations: 1, onExhausted: continue }";
    let each = "type: control.foreach, input: { items: [x], onItemError: fail }";
    let ask = "id: ask, type: talk.agent, input: { prompt: go }";
    // A budget of the inner frame, and one of a node in it; a step after the inner frame, which was complete, fails.
    let mut rows = Vec::new();
    for inner in [loops, each] {
        rows.push((format!("{inner}, body: {{ {small}, nodes: [{{ {ask} }}] }}"), false));
        rows.push((format!("{inner}, body: {{ nodes: [{{ {ask}, {small} }}] }}"), false));
        rows.push((format!("{inner}, body: {{ {small}, nodes: [{{ {ask} }}] }}"), true));
    }
    for (inner, is_complete) in rows {
        for outer in [loops, each] {
            let retry = "policy: { retry: { maxAttempts: 9, on: any } }";
            let text = format!(
                "flow: {{ name: f }}\nnodes:\n  - id: outer\n    {}\n    {retry}\n    body:\n      nodes:\n        - {{ id: inner, {inner} }}\n        - {{ id: after, type: talk.agent, input: {{ prompt: go }}, dependsOn: [inner] }}\n",
                outer.replace(", input", "\n    input").replace("[x]", "[x], as: part"),
            );
            let world = |start: &StartNode, run: &Run| {
                let is_ask = run.facts.path(&run.graph, start.node).as_str().ends_with("ask");
                if is_complete && is_ask { turns(1, None)(start, run) } else { fails(start, run) }
            };
            let asked = |sim: &Sim| {
                let of_ask = |at: &&Envelope| {
                    at.context.task.as_ref().is_some_and(|path| path.as_str().ends_with("ask"))
                };
                sim.log.iter().filter(of_ask).filter(|at| at.event.name() == "agent:usage").count()
            };
            let sim = drive(&text, world);
            sim.check();
            assert_eq!(asked(&sim), 3, "{text}\n{}", story(&sim.log));
            // Also where the session goes on in another process, or from a snapshot, before the second attempt.
            let graph = sim.run.graph();
            let first = sim.log.iter().position(|at| at.event.name() == "frame:failed").unwrap() + 1;
            let half = Sim::new(graph, &sim.log[..first]);
            let mut resumed = Sim::resumed(graph, &sim.log[..first], None);
            let mut restored = Sim::restored(graph, &half.run.snapshot(&graph.input), half.now);
            for (sim, before) in [(&mut resumed, 0), (&mut restored, 1)] {
                sim.drive(world);
                assert_eq!(before + asked(sim), 3, "{text}\n{}", story(&sim.log));
            }
        }
    }
}

#[test]
fn a_session_that_a_budget_ended_names_the_limit_to_raise() {
    let fails = "budget: { tokens: 15, onExceeded: fail }";
    let rows = [
        (foreach("", "", "").replace("name: f", &format!("name: f, policy: {{ {fails} }}")), "tokens"),
        (foreach("", "", fails), "each/ask.tokens"),
        (foreach("", "", &fails.replace("tokens", "usd: 0.5, tokens")), "each/ask.usd,each/ask.tokens"),
        (foreach("", &format!("policy: {{ {fails} }}"), ""), "each/.tokens"),
        // Of several budgets that are used up together all have to be raised.
        (foreach(fails, &format!("policy: {{ {fails} }}"), ""), "each/.tokens,each.tokens"),
        (foreach("", &format!("policy: {{ {fails} }}"), fails), "each/ask.tokens,each/.tokens"),
    ];
    for (text, limit) in rows {
        let sim = drive(&text.replace("onItemError: continue, ", ""), turns(4, Some(0.25)));
        let ended = (outcome(&sim), sim.run.state().limit_to_raise());
        assert_eq!(ended, (Outcome::BudgetExceeded, Some(limit)), "{}", story(&sim.log));
    }
    // Also where the items that it let run no more are failures that the foreach goes on after.
    for goes_on in ["continue", "stop"] {
        let text = foreach("budget: { tokens: 5, onExceeded: fail }", "", "").replace("continue", goes_on);
        let sim = drive(&text, turns(1, None));
        let ended = (outcome(&sim), sim.run.state().limit_to_raise());
        assert_eq!(ended, (Outcome::BudgetExceeded, Some("each.tokens")), "{}", story(&sim.log));
    }
}

#[test]
fn a_frame_fails_whose_budget_is_used_up_though_what_it_runs_goes_on() {
    let small = "policy: { budget: { tokens: 15, onExceeded: fail } }";
    // The node that runs frames, and what comes of it.
    let each =
        "type: control.foreach, input: { items: [1, 2], as: part, maxConcurrency: 1, onItemError: continue }";
    let looped = "type: control.loop, input: { maxIterations: 2 }";
    let rows = [
        (each, "", small, vec!["item 0 of `outer`", "item 1 of `outer`"]),
        (looped, "", small, vec!["pass 1 of `outer`"]),
        (each, small, "", vec!["node `outer`"]),
        (looped, small, "", vec!["node `outer`"]),
    ];
    let handled = ", policy: { continueOnError: true }";
    let inner_each = "type: control.foreach, input: { items: [a, b, c], maxConcurrency: 1, onItemError: continue }, body: { nodes: [{ id: ask, type: talk.agent, input: { prompt: go } }] }";
    let inner = [
        inner_each.to_owned(),
        inner_each.replace("maxConcurrency: 1, ", ""),
        inner_each.replace("onItemError: continue", "onItemError: stop"),
        format!(
            "type: control.loop, input: {{ maxIterations: 3 }}, body: {{ nodes: [{{ id: ask, type: talk.agent, input: {{ prompt: go }} }}] }}{handled}"
        ),
    ];
    for (kind, own, of_body, owners) in rows {
        for inner in &inner {
            let text = format!(
                "flow: {{ name: f, policy: {{ failFast: false }} }}\nnodes:\n  - id: outer\n    {}\n{}    body:\n{}      nodes: [{{ id: inner, {inner} }}]\n",
                kind.replace(", input", "\n    input"),
                if own.is_empty() { String::new() } else { format!("    {own}\n") },
                if of_body.is_empty() { String::new() } else { format!("      {of_body}\n") },
            );
            for count in [1, 3] {
                let sim = drive(&text, turns(count, None));
                sim.check();
                let failed = sim.log.iter().filter_map(|at| match &at.event {
                    Event::FrameFailed { error, .. } if at.context.task.as_ref()?.as_str() == "outer" => {
                        Some(error.message.clone())
                    }
                    _ => None,
                });
                let used_up =
                    |owner: &&str| format!("the budget of {owner} is used up: 15 tokens (20 spent)");
                let failed: Vec<String> = failed.collect();
                assert_eq!(names(&sim, "frame:ending"), failed.len(), "{}", story(&sim.log));
                let failed: BTreeSet<String> = failed.into_iter().collect();
                let expected: BTreeSet<String> = owners.iter().map(used_up).collect();
                assert_eq!(failed, expected, "{text}\n{}", story(&sim.log));
                let reported = if own.is_empty() { owners.len() } else { 1 };
                assert_eq!(names(&sim, "budget:exceeded"), reported, "{}", story(&sim.log));
            }
        }
    }
}

#[test]
fn why_names_the_budget_that_has_cut_an_agent() {
    let rest = "
  - id: other
    type: control.foreach
    input: { items: [a] }
    policy: { budget: { tokens: 15 } }
    body: { nodes: [{ id: ask, type: talk.agent, input: { prompt: x } }] }
  - { id: wait_slow, type: control.noop }
  - { id: bad_end, type: control.noop, dependsOn: [wait_slow] }
";
    let small = "budget: { tokens: 15 }";
    for (text, owner) in [
        (foreach(small, "", ""), "`each`"),
        (foreach("", &format!("policy: {{ {small} }}"), ""), "item 0 of `each`"),
        (foreach("", "", small), "`each[0]/ask`"),
    ] {
        let graph = graph(&format!("{text}{rest}"));
        for seed in 0..10 {
            let sim = Sim::new(&graph, &[]).shuffled(seed).driven(|start, run| match start.path.node() {
                "ask" => turns(4, None)(start, run),
                _ => world(start, run),
            });
            for (agent, owner) in [("each[0]/ask", owner), ("other[0]/ask", "`other`")] {
                let cut = sim.log.iter().find(|at| {
                    at.event.name() == "task:cancelled" && at.context.task.as_ref().unwrap().as_str() == agent
                });
                let why = format!("was cancelled: the budget of {owner} is used up: 15 tokens (20 spent)");
                for about in [About::Node(NodePath::new(agent)), About::Session] {
                    let said = explained(&sim, None, about).because;
                    let said = said.iter().find(|one| one.seq == cut.unwrap().seq).unwrap();
                    assert!(said.text.contains(&why), "{}\n{}", said.text, story(&sim.log));
                }
            }
        }
    }
}

/// What is tried again, with this limit of the budget of each item: what the plan says of all.
fn tried_again(before: &str, now: &str, place: &str, tokens: u64) -> Vec<String> {
    let first = ran(before);
    let mut left = reusable(&first, usize::MAX);
    left.try_failures_again(first.run.graph());
    assert!(left.has_anything_again(), "{}", story(&first.log));
    let limits = BudgetLimits { tokens: Some(tokens), ..BudgetLimits::default() };
    let bodies = [(NodePath::new(place), limits)].into_iter().collect();
    left.raise(&BudgetRaise { bodies, ..BudgetRaise::default() });
    planned(&graph(now), &left)
}

#[test]
fn an_item_that_failed_itself_is_entered_again_for_what_did_not_run_in_it() {
    let flow = |budget: u64, outputs: &str, around: &str| {
        let ask = |id: &str, after: &str| {
            format!("{{ id: {id}, type: talk.agent, dependsOn: [{after}], input: {{ prompt: x }} }}")
        };
        let each = format!(
            "id: each, type: control.foreach, input: {{ items: [x], onItemError: continue }}, body: {{ policy: {{ budget: {{ tokens: {budget}, onExceeded: fail }} }}, outputs: {{ y: '{outputs}' }}, nodes: [{}, {}, {}] }}",
            ask("a", ""),
            ask("b", "a"),
            ask("c", "b")
        );
        let last =
            "{ id: last, type: talk.agent, dependsOn: [FIRST], input: { prompt: '{{ FIRST.failed }}' } }";
        match around {
            "" => format!("flow: {{ name: f }}\nnodes: [{{ {each} }}, {}]", last.replace("FIRST", "each")),
            id => format!(
                "flow: {{ name: f }}\nnodes: [{{ id: {id}, type: control.foreach, input: {{ items: [z], as: z }}, body: {{ nodes: [{{ {each} }}] }} }}, {}]",
                last.replace("FIRST", id)
            ),
        }
    };
    let reused = |node: &str| format!("{node} Reused");
    // The budget ended before `c` had begun.
    let short = flow(15, "{{ item }}", "");
    let expected = vec![
        reused("each[0]/a"),
        reused("each[0]/b"),
        "each[0]/c Runs(New)".to_owned(),
        "last Undecided".to_owned(),
    ];
    assert_eq!(tried_again(&short, &short, "each", 500), expected);
    let within = flow(15, "{{ item }}", "outer");
    let plan = tried_again(&within, &within, "outer/each", 500);
    assert!(plan.contains(&reused("outer[0]/each[0]/b")), "{plan:?}");
    assert!(plan.contains(&"outer[0]/each[0]/c Runs(New)".to_owned()), "{plan:?}");
    // All was done, and what comes after the items sees that none has failed now.
    let all = ["each[0]/a", "each[0]/b", "each[0]/c"].map(reused);
    let wrong = flow(500, "{{ a.nothing.more }}", "");
    let plan = tried_again(&wrong, &flow(500, "{{ item }}", ""), "each", 501);
    assert_eq!((&plan[..3], &plan[3..]), (&all[..], &["last Runs(Input)".to_owned()][..]), "{plan:?}");
}
