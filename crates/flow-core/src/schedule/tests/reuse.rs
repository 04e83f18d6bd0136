//! Work of an earlier session: what is reused, what runs again, and that the plan says what then happens.

use std::{collections::BTreeMap, iter, sync::Arc};

use inspan_protocol::{
    AgentError, BudgetLimits, BudgetRaise, Envelope, ErrorCode, Event, NodePath, SessionId, Timestamp,
};
use serde_json::json;

use super::sim::{AttemptStep, Sim, story};
use crate::{
    Graph, Parent, ParentKind, SessionRecord,
    schedule::{AttemptEnd, Reusable, ReuseDecision, ReuseReason, Run, StartNode},
    testing::graph,
};

pub(super) const CHAIN: &str = r#"
name: chain
nodes:
  - { id: a, type: talk.agent, input: { prompt: one } }
  - { id: b, type: talk.agent, input: { prompt: "two" }, dependsOn: [a] }
  - { id: c, type: talk.agent, input: { prompt: "three" }, dependsOn: [b] }
  - { id: side, type: talk.agent, input: { prompt: side } }
"#;

pub(super) const LOOP: &str = r#"
name: loop
nodes:
  - { id: code, type: talk.agent, input: { prompt: "{% if review %}mend{% else %}write{% endif %}" } }
  - { id: review, type: talk.agent, input: { prompt: "judge {{ code.text }}" } }
  - { id: ship, type: control.noop }
edges:
  - { from: code, to: review }
  - { from: review, to: code, when: "review.pass == 1", maxIterations: 3 }
  - { from: review, to: ship }
"#;

pub(super) fn talk(start: &StartNode, _: &Run) -> Vec<AttemptStep> {
    let output = json!({ "text": start.path, "pass": start.path.pass() });
    let named = AttemptStep::Name(format!("c-{}", start.path));
    vec![
        AttemptStep::Begin,
        named,
        AttemptStep::Usage(Some(0.5), 10),
        AttemptStep::Complete,
        AttemptStep::End(AttemptEnd::Output(output)),
    ]
}

pub(super) fn reusable(sim: &Sim, until: usize) -> Reusable {
    let log: Vec<_> = sim.log.iter().cloned().map(Arc::new).collect::<Vec<Arc<Envelope>>>();
    let graph = sim.run.graph();
    let run = Run::new(graph.clone(), &SessionId::from("s"), graph.input.clone(), None);
    Reusable::of(run.reusing(sim.run.reusable.clone()), &log, until as u64)
}

/// What the plan says, after it was compared with what then happens.
pub(super) fn planned(graph: &Arc<Graph>, reusable: &Reusable) -> Vec<String> {
    let run = Sim::reusing(graph, reusable.clone()).run;
    let plan = run.plan(Timestamp::default());
    let sim = Sim::reusing(graph, reusable.clone()).driven(talk);
    sim.check();
    let seen = |path: &NodePath, reused: bool| {
        sim.log.iter().any(|envelope| {
            let right = match envelope.event {
                Event::TaskReused { .. } => reused,
                Event::TaskStart { .. } => !reused,
                _ => false,
            };
            right && envelope.context.task.as_ref() == Some(path)
        })
    };
    for node in &plan.nodes {
        let happened = match node.decision {
            ReuseDecision::Reused => seen(&node.path, true),
            ReuseDecision::Runs(_) => seen(&node.path, false),
            ReuseDecision::Resumes => {
                sim.starts(node.path.node()).iter().any(|start| start.contains(": continue"))
            }
            ReuseDecision::Finished | ReuseDecision::Asks => {
                panic!("a new session has finished nothing and doubts nothing")
            }
            ReuseDecision::Fails => failed(&sim, &node.path) == node.error,
            ReuseDecision::Omitted(_) => panic!("all nodes are to run"),
            ReuseDecision::Answered => panic!("no answer is stored"),
            ReuseDecision::Dropped => panic!("only a plan for an edited flow has what is dropped"),
            ReuseDecision::Skipped | ReuseDecision::Cancelled => {
                !seen(&node.path, true) && !seen(&node.path, false)
            }
            // In a loop the pass may not come.
            ReuseDecision::Undecided => true,
        };
        assert!(happened, "{} is said to be {:?}", node.path, node.decision);
    }
    let is_planned = |path: &NodePath| plan.nodes.iter().any(|node| node.path == *path);
    // What runs in the frames of a node that is not decided is not decided either.
    let is_known =
        |path: &NodePath| iter::successors(Some(path.clone()), NodePath::owner).any(|path| is_planned(&path));
    for start in &sim.started {
        // A pass that there was not before may come.
        let is_new = !reusable.has(&start.path) && start.path.parts().any(|part| part.pass > 1);
        assert!(is_known(&start.path) || is_new, "{} ran and is not in the plan", start.path);
    }
    plan.nodes.iter().map(|node| format!("{} {:?}", node.path, node.decision)).collect()
}

/// Why a node has failed for good.
fn failed(sim: &Sim, path: &NodePath) -> Option<String> {
    sim.log.iter().find_map(|envelope| match &envelope.event {
        Event::TaskFailed { will_retry: false, error, .. }
            if envelope.context.task.as_ref() == Some(path) =>
        {
            Some(error.message.clone())
        }
        _ => None,
    })
}

pub(super) fn ran(text: &str) -> Sim {
    Sim::new(&graph(text), &[]).driven(talk)
}

/// What a session has left that reuses the work of another one itself.
pub(super) fn reusable_after(sim: &Sim, before: &Reusable) -> Reusable {
    let log: Vec<_> = sim.log.iter().cloned().map(Arc::new).collect();
    let graph = sim.run.graph();
    let run = Run::new(graph.clone(), &SessionId::from("t"), graph.input.clone(), None);
    Reusable::of(run.reusing(Arc::new(before.clone())), &log, u64::MAX)
}

#[test]
fn what_a_session_has_not_taken_over_is_left_to_the_next() {
    let flow = |items: &str, first: &str| {
        graph(&format!(
            "
flow: {{ name: f, policy: {{ maxConcurrency: 1 }} }}
nodes:
  - {{ id: first, type: talk.agent, input: {{ prompt: {first} }} }}
  - id: each
    type: control.foreach
    input: {{ items: {items}, maxConcurrency: 1 }}
    body:
      nodes:
        - {{ id: check, type: talk.agent, input: {{ prompt: '{{{{ item }}}}' }} }}
        - {{ id: work, type: talk.agent, dependsOn: [check], input: {{ prompt: '{{{{ item }}}}' }} }}
        - {{ id: beside, type: talk.agent, input: {{ prompt: beside }} }}
  - {{ id: after, type: talk.agent, dependsOn: [first], input: {{ prompt: after }} }}
  - {{ id: last, type: talk.agent, input: {{ prompt: last }} }}
"
        ))
    };
    let first = Sim::new(&flow("[a, b]", "go"), &[]).driven(talk);
    let left = reusable(&first, usize::MAX);
    // Its first item fails at once, so it reaches nothing else.
    let second = Sim::reusing(&flow("[x, a, b]", "went"), left.clone()).driven(|start, run| {
        match start.path.as_str() {
            "each[0]/check" | "first" => {
                let error = AgentError::new(ErrorCode::NodeFailed, "no");
                vec![AttemptStep::End(AttemptEnd::Error(error))]
            }
            _ => talk(start, run),
        }
    });
    let left = reusable_after(&second, &left);
    let plan = planned(&flow("[y, a, b]", "gone"), &left);
    let reused: Vec<_> = plan.iter().filter(|line| line.ends_with(" Reused")).map(String::as_str).collect();
    let expected = [
        "each[1]/check",
        "each[1]/work",
        "each[1]/beside",
        "each[2]/check",
        "each[2]/work",
        "each[2]/beside",
        "last",
    ];
    assert_eq!(reused, expected.map(|path| format!("{path} Reused")), "{}\n{plan:#?}", story(&second.log));
    // What follows work that really ran is not left to anybody.
    let third =
        Sim::reusing(&flow("[a, b]", "went"), reusable(&first, usize::MAX)).driven(|start, run| match start
            .path
            .as_str()
        {
            "after" => {
                vec![AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, "no")))]
            }
            _ => talk(start, run),
        });
    let cut = third
        .log
        .iter()
        .position(|at| matches!(&at.event, Event::TaskStart { task_id, .. } if task_id.as_str() == "after"));
    let cut = Sim::reusing_log(third.run.graph(), reusable(&first, usize::MAX), &third.log[..cut.unwrap()]);
    let plan = planned(&flow("[a, b]", "went"), &reusable_after(&cut, &reusable(&first, usize::MAX)));
    assert!(plan.contains(&"after Runs(New)".to_owned()), "{plan:#?}");
}

/// What the session in between has done itself is reused as in an unchanged flow.
#[test]
fn an_edit_that_the_session_in_between_did_not_reach_counts_in_the_next() {
    let flow = |gate: &str, ask: &str| {
        graph(&format!(
            "
flow: {{ name: f, policy: {{ maxConcurrency: 1 }}, input: {{ topic: t }} }}
nodes:
  - {{ id: bad, type: talk.agent, input: {{ prompt: {gate} }} }}
  - {{ id: help, type: talk.agent, input: {{ prompt: help }} }}
  - {{ id: gate, type: talk.agent, dependsOn: [help], input: {{ prompt: {gate} }} }}
  - {{ id: a, type: talk.agent, input: {{ prompt: '{ask} {{{{ flow.input.topic }}}}' }} }}
  - {{ id: z, type: talk.agent, dependsOn: [a], input: {{ prompt: z }} }}
  - {{ id: same, type: talk.agent, input: {{ prompt: same }} }}
edges: [{{ from: bad, to: help, on: failure, when: 'flow.name == \"f\"' }}]
"
        ))
    };
    let fails = |names: &'static [&str]| {
        move |start: &StartNode, run: &Run| match names.contains(&start.path.as_str()) {
            true => {
                let error = AgentError::new(ErrorCode::NodeFailed, "no");
                vec![AttemptStep::End(AttemptEnd::Error(error))]
            }
            false => talk(start, run),
        }
    };
    let first = Sim::new(&flow("go", "old"), &[]).driven(fails(&["bad"]));
    let left = reusable(&first, usize::MAX);
    let edited = flow("went", "new");
    let second = Sim::reusing(&edited, left.clone()).driven(fails(&["bad", "gate"]));
    let left = reusable_after(&second, &left);
    let expected =
        ["bad Reused", "help Reused", "gate Runs(Failed)", "a Runs(Input)", "z Undecided", "same Reused"];
    assert_eq!(planned(&edited, &left), expected, "{}", story(&second.log));
    // Nor does another session in between that reaches neither.
    let third = Sim::reusing(&edited, left.clone()).driven(fails(&["bad", "gate"]));
    assert_eq!(planned(&edited, &reusable_after(&third, &left)), expected, "{}", story(&third.log));
    // Another input is an edit too.
    let with_input = |left: &Reusable| {
        let input = json!({ "topic": "u" });
        let run = Run::new(edited.clone(), &SessionId::from("t"), input.as_object().unwrap().clone(), None);
        run.reusing(Arc::new(left.clone()))
    };
    let done = Sim::new(&edited, &[]).driven(fails(&["bad", "last"]));
    let left = reusable(&done, usize::MAX);
    let mut again = left.clone();
    again.run_again(NodePath::new("gate"));
    let other = Sim::of(with_input(&again), &[]).driven(fails(&["bad", "gate"]));
    let log: Vec<_> = other.log.iter().cloned().map(Arc::new).collect();
    let left = Reusable::of(with_input(&again), &log, u64::MAX);
    let plan = with_input(&left).plan(Timestamp::default());
    let of_a = plan.nodes.iter().find(|node| node.path.as_str() == "a").map(|node| node.decision);
    assert_eq!(of_a, Some(ReuseDecision::Runs(ReuseReason::Input)), "{}", story(&other.log));
}

#[test]
fn a_plan_has_the_items_that_wait_for_others() {
    let flow = |prompt: &str| {
        format!(
            "
flow: {{ name: f }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [1, 2, 3], maxConcurrency: 1 }}
    body:
      nodes:
        - {{ id: a, type: talk.agent, input: {{ prompt: '{prompt} {{{{ item }}}}' }} }}
"
        )
    };
    let before = reusable(&ran(&flow("go")), usize::MAX);
    assert_eq!(
        planned(&graph(&(flow("go") + "# edited\n")), &before),
        ["each[0]/a Reused", "each[1]/a Reused", "each[2]/a Reused"]
    );
    let runs = ["each[0]/a Runs(Input)", "each[1]/a Runs(Input)", "each[2]/a Runs(Input)"];
    assert_eq!(planned(&graph(&flow("stop")), &before), runs);
}

#[test]
fn nothing_runs_again_that_did_not_change() {
    let sim = ran(CHAIN);
    let all = reusable(&sim, usize::MAX);
    assert_eq!(planned(sim.run.graph(), &all), ["a Reused", "b Reused", "c Reused", "side Reused"]);
    let looped = ran(LOOP);
    assert_eq!(
        planned(looped.run.graph(), &reusable(&looped, usize::MAX)),
        ["code Reused", "code#2 Reused", "review Reused", "review#2 Reused", "ship Reused"]
    );
}

#[test]
fn what_changed_runs_again_and_what_follows_it() {
    let sim = ran(CHAIN);
    let all = reusable(&sim, usize::MAX);
    let edited = graph(&CHAIN.replace("\"two\"", "\"2\""));
    assert_eq!(planned(&edited, &all), ["a Reused", "b Runs(Input)", "c Undecided", "side Reused"]);
    // One place for work, taken by what runs, does not prevent reuse.
    let narrow = graph(
        &CHAIN.replace("name: chain", "name: chain\npolicy: { maxConcurrency: 1 }").replace("one", "uno"),
    );
    assert_eq!(planned(&narrow, &all), ["a Runs(Input)", "b Undecided", "c Undecided", "side Reused"]);
    let retyped =
        graph(&CHAIN.replace("b, type: talk.agent, input: { prompt: \"two\" }", "b, type: control.noop"));
    assert_eq!(planned(&retyped, &all), ["a Reused", "b Runs(Type)", "c Undecided", "side Reused"]);
    let longer = graph(&format!(
        "{CHAIN}  - {{ id: d, type: talk.agent, input: {{ prompt: new }}, dependsOn: [c] }}\n"
    ));
    assert_eq!(planned(&longer, &all), ["a Reused", "b Reused", "c Reused", "side Reused", "d Runs(New)"]);
    let mut asked = all;
    asked.run_again(NodePath::root(&sim.run.graph().flow().nodes[1].id));
    assert_eq!(planned(sim.run.graph(), &asked), ["a Reused", "b Runs(Asked)", "c Undecided", "side Reused"]);
}

#[test]
fn an_edited_node_of_a_loop_runs_again_and_so_does_the_pass_after() {
    let looped = ran(LOOP);
    let all = reusable(&looped, usize::MAX);
    let edited = graph(&LOOP.replace("judge", "look at"));
    assert_eq!(
        planned(&edited, &all),
        ["code Reused", "code#2 Undecided", "review Runs(Input)", "review#2 Undecided", "ship Undecided"]
    );
    let sim = Sim::reusing(&edited, all).driven(talk);
    let started: Vec<_> = sim.started.iter().map(|start| start.path.as_str()).collect();
    assert_eq!(started, ["review", "code#2", "review#2", "ship"]);
    // The conversation of a reused agent is known.
    assert_eq!(sim.run.state().nodes()[0].conversation.as_ref().unwrap().session_id.as_str(), "c-code#2");
}

#[test]
fn what_failed_runs_again_and_what_was_cut_short_continues() {
    let graph = graph(CHAIN);
    let sim = Sim::new(&graph, &[]).driven(|start, run| match start.path.node() {
        "b" => vec![
            AttemptStep::Until(Timestamp::from_millis(50)),
            AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, "no"))),
        ],
        "side" => vec![
            AttemptStep::Begin,
            AttemptStep::Name("c-side".to_owned()),
            AttemptStep::Until(Timestamp::from_millis(99)),
        ],
        _ => talk(start, run),
    });
    let left = reusable(&sim, usize::MAX);
    assert_eq!(planned(&graph, &left), ["a Reused", "b Runs(Failed)", "c Undecided", "side Resumes"]);
    let resumed = Sim::reusing(&graph, left.clone()).driven_to("agent:start", talk);
    let starts = |sim: &Sim| sim.starts("side").join(", ");
    assert_eq!(starts(&resumed), "1 c-side: continue");
    let mut anew = left;
    anew.forget_unfinished();
    assert_eq!(
        planned(&graph, &anew),
        ["a Reused", "b Runs(Failed)", "c Undecided", "side Runs(Unfinished)"]
    );
}

#[test]
fn a_session_that_replaces_another_goes_on_in_its_conversations_but_for_those_used_since() {
    let graph = graph("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n");
    let sim = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    let (session, seq) = (SessionId::from("s"), sim.log.len() as u64);
    // It was resumed after the last event that counts.
    let resumed = Sim::resumed(&graph, &sim.log, None).driven_to("agent:session", talk);
    let record = SessionRecord::new(
        session.clone(),
        (*graph.source).clone(),
        graph.input.clone(),
        Timestamp::default(),
    );
    let plan = |kind, log: &[Envelope]| {
        let log: Vec<_> = log.iter().cloned().map(Arc::new).collect();
        let parent = Parent::new(session.clone(), seq, kind);
        planned(&graph, &parent.reusable(&record, &graph, &log, None, &graph))
    };
    assert_eq!(plan(ParentKind::Resume, &sim.log), ["a Resumes"]);
    assert_eq!(plan(ParentKind::Resume, &resumed.log), ["a Runs(Unfinished)"]);
    assert_eq!(plan(ParentKind::Fork, &sim.log), ["a Runs(Unfinished)"]);
}

#[test]
fn what_was_raised_of_a_limit_counts_until_the_author_changes_that_limit() {
    let flow = |budget: &str| {
        let node = "{ id: a, type: talk.agent, input: { prompt: go }, policy: { BUDGET } }";
        graph(
            &format!("flow: {{ name: f, policy: {{ BUDGET }} }}\nnodes:\n  - {node}\n")
                .replace("BUDGET", budget),
        )
    };
    let before = flow("budget: { tokens: 1000, usd: 2, onUnknown: stop }");
    let (usd, tokens) = (Some(9.0), Some(2_500));
    let rows = [
        ("budget: { tokens: 1000, usd: 2 }", Some(BudgetLimits { usd, tokens })),
        ("budget: { tokens: 1000, usd: 3, onUnknown: stop }", Some(BudgetLimits { usd: None, tokens })),
        ("budget: { tokens: 1000 }", Some(BudgetLimits { usd: None, tokens })),
        ("budget: { tokens: 1, usd: 3 }", None),
        ("timeout: 3h", None),
    ];
    for (now, left) in rows {
        let mut reusable = reusable(&Sim::new(&before, &[]).driven(talk), usize::MAX);
        let limits = BudgetLimits { usd, tokens };
        let nodes = BTreeMap::from([(NodePath::new("a"), limits)]);
        reusable.raise(&BudgetRaise { flow: Some(limits), nodes: nodes.clone(), bodies: BTreeMap::new() });
        reusable.forget_raises(&before, &flow(now));
        let raised = reusable.raised();
        assert_eq!((raised.flow, raised.nodes.values().next().copied()), (left, left), "{now}");
    }
}

#[test]
fn a_record_of_an_older_version_raises_no_budget() {
    let old = serde_json::json!({ "session": "s", "seq": 3, "kind": "resume" });
    let parent = Parent::new("s".into(), 3, ParentKind::Resume);
    assert_eq!(serde_json::to_value(&parent).unwrap(), old);
    assert_eq!(serde_json::from_value::<Parent>(old).unwrap(), parent);
}

#[test]
fn an_agent_that_its_vendor_failed_goes_on_in_the_next_session() {
    let graph = graph("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n");
    let rows = [
        (ErrorCode::Overloaded, Some(10), "a Resumes", "1 c-a: continue"),
        // An agent of the ACP does not tell what it has spent.
        (ErrorCode::Process, Some(0), "a Resumes", "1 c-a: continue"),
        (ErrorCode::Auth, Some(10), "a Resumes", "1 c-a: continue"),
        (ErrorCode::Billing, None, "a Runs(Failed)", "1 -: -"),
        (ErrorCode::Overloaded, None, "a Runs(Failed)", "1 -: -"),
        (ErrorCode::Protocol, Some(10), "a Resumes", "1 c-a: continue"),
        // A retry would start over.
        (ErrorCode::Timeout, Some(10), "a Resumes", "1 c-a: continue"),
        (ErrorCode::Timeout, None, "a Runs(Failed)", "1 -: -"),
        (ErrorCode::BudgetExceeded, Some(10), "a Resumes", "1 c-a: continue"),
        (ErrorCode::BudgetExceeded, None, "a Runs(Failed)", "1 -: -"),
        (ErrorCode::OutputInvalid, Some(10), "a Runs(Failed)", "1 -: -"),
    ];
    for (code, spent, plan, start) in rows {
        let sim = Sim::new(&graph, &[]).driven(move |_, _| {
            let begins = [AttemptStep::Begin, AttemptStep::Name("c-a".to_owned())];
            let spent = spent.map(|tokens| AttemptStep::Spent(None, tokens));
            let fails = AttemptStep::End(AttemptEnd::Error(AgentError::new(code, "no")));
            begins.into_iter().chain(spent).chain([AttemptStep::Complete, fails]).collect()
        });
        let left = reusable(&sim, usize::MAX);
        assert_eq!(planned(&graph, &left), [plan]);
        let resumed = Sim::reusing(&graph, left.clone()).driven_to("agent:start", talk);
        assert_eq!(resumed.starts("a"), [start]);
        let mut anew = left;
        anew.forget_unfinished();
        assert_ne!(planned(&graph, &anew), ["a Resumes"]);
    }
}

#[test]
fn a_session_that_takes_work_over_survives_a_crash() {
    let sim = ran(CHAIN);
    let all = reusable(&sim, usize::MAX);
    let edited = graph(&CHAIN.replace("\"two\"", "\"2\""));
    let whole = Sim::reusing(&edited, all.clone()).driven(talk);
    for cut in 1..whole.log.len() {
        let mut crashed = Sim::reusing_log(&edited, all.clone(), &whole.log[..cut]);
        crashed.resume(None, &Default::default());
        crashed.drive(talk);
        crashed.check();
        assert_eq!(crashed.end(), whole.end());
        let ran = crashed.started.iter().map(|start| start.path.as_str());
        assert!(ran.clone().all(|path| path == "b" || path == "c"), "{:?}", ran.collect::<Vec<_>>());
    }
}

#[test]
fn a_fork_takes_over_what_was_done_by_then() {
    let sim = ran(CHAIN);
    let done = |node: &str| {
        let ends = |envelope: &Envelope| {
            matches!(envelope.event, Event::TaskComplete { .. })
                && envelope.context.task.as_ref().is_some_and(|path| path.node() == node)
        };
        sim.log.iter().position(ends).unwrap() + 1
    };
    let mut left = reusable(&sim, done("a"));
    left.forget_unfinished();
    let side = if done("side") < done("a") { "side Reused" } else { "side Runs(Unfinished)" };
    assert_eq!(planned(sim.run.graph(), &left), ["a Reused", "b Runs(New)", "c Undecided", side]);
    assert_eq!(
        planned(sim.run.graph(), &reusable(&sim, 0)),
        ["a Runs(New)", "b Undecided", "c Undecided", "side Runs(New)"]
    );
}

#[test]
fn a_fork_at_a_node_keeps_what_does_not_depend_on_it() {
    let looped = ran(LOOP);
    let mut again = reusable(&looped, usize::MAX);
    let second = NodePath::root(&looped.run.graph().flow().nodes[1].id).with_pass(2);
    again.run_again(second);
    assert_eq!(
        planned(looped.run.graph(), &again),
        ["code Reused", "code#2 Reused", "review Reused", "review#2 Runs(Asked)", "ship Undecided"]
    );
}

const ITEMS: &str = "
flow: { name: items, policy: { maxConcurrency: 1 } }
nodes:
  - id: each
    type: control.foreach
    input: { items: [a, b, c, b] }
    body:
      nodes:
        - { id: work, type: talk.agent, input: { prompt: '{{ item }}' } }
";

#[test]
fn an_item_is_found_by_itself_wherever_it_is_in_the_list() {
    let sim = ran(ITEMS);
    let all = reusable(&sim, usize::MAX);
    let work = |items: &str| {
        let edited = graph(&(ITEMS.replace("[a, b, c, b]", items) + "# edited\n"));
        let plan = planned(&edited, &all);
        plan.into_iter().filter(|line| line.contains("work")).collect::<Vec<_>>()
    };
    let reused = |index: usize| format!("each[{index}]/work Reused");
    assert_eq!(work("[a, b, c, b]"), [0, 1, 2, 3].map(reused));
    assert_eq!(work("[c, b, b, a]"), [0, 1, 2, 3].map(reused));
    // There are two of `b` before, and a third one is new.
    assert_eq!(work("[b, b, b, c]"), [reused(0), reused(1), "each[2]/work Runs(New)".to_owned(), reused(3)]);
    // An item in the place of one that is gone replaces it.
    assert_eq!(
        work("[x, b, c, b]"),
        ["each[0]/work Runs(Input)".to_owned(), reused(1), reused(2), reused(3)]
    );
}

#[test]
fn a_fork_at_a_pass_of_a_node_reuses_the_frames_of_the_passes_before() {
    let text = "
flow: { name: passes }
nodes:
  - id: each
    type: control.foreach
    input: { items: [a, b] }
    body:
      nodes:
        - { id: work, type: talk.agent, input: { prompt: '{{ item }} {{ frame.parent.pass }}' } }
  - { id: judge, type: talk.agent, input: { prompt: judge } }
edges:
  - { from: each, to: judge }
  - { from: judge, to: each, when: 'judge.pass < 2', maxIterations: 3 }
";
    let sim = ran(text);
    let graph = sim.run.graph();
    let from = |place: &str| {
        let mut again = reusable(&sim, usize::MAX);
        again.run_again(NodePath::new(place));
        let plan = planned(graph, &again);
        plan.into_iter().filter(|line| line.contains("work")).collect::<Vec<_>>()
    };
    assert_eq!(
        from("each#2"),
        [
            "each[0]/work Reused",
            "each[1]/work Reused",
            "each#2[0]/work Runs(Asked)",
            "each#2[1]/work Runs(Asked)"
        ]
    );
    // One item alone, of the first pass.
    let one = from("each[1]/work");
    assert_eq!(one[..2], ["each[0]/work Reused", "each[1]/work Runs(Asked)"]);
}

/// A loop with two passes, whose body has this node and what is added.
const PASSES: &str = "
flow: { name: passes }
nodes:
  - id: improve
    type: control.loop
    input: { maxIterations: 2, onExhausted: continue }
    body:
      nodes:
        - { id: code, type: talk.agent, input: { prompt: code } }
";

#[test]
fn a_pass_of_a_loop_follows_the_work_of_the_passes_before() {
    let test = "        - { id: test, type: talk.agent, input: { prompt: test }, dependsOn: [code] }";
    let text = &format!("{PASSES}{test}\n");
    let sim = ran(text);
    let all = reusable(&sim, usize::MAX);
    let edited = graph(&text.replace("prompt: test", "prompt: edited"));
    let plan = [
        "improve[0]/code Reused",
        "improve[0]/test Runs(Input)",
        "improve[1]/code Undecided",
        "improve[1]/test Undecided",
    ];
    assert_eq!(planned(&edited, &all), plan);
    let second = Sim::reusing(&edited, all).driven(talk);
    second.check();
    let started: Vec<_> = second.started.iter().map(|start| start.path.to_string()).collect();
    assert_eq!(started, ["improve[0]/test", "improve[1]/code", "improve[1]/test"]);
}

#[test]
fn a_plan_has_the_frames_of_later_passes() {
    let each = "        - id: each
          type: control.foreach
          dependsOn: [code]
          input: { items: '{{ range(frame.index + 1) | list }}' }
          body: { nodes: [{ id: test, type: talk.agent, input: { prompt: test } }] }
";
    let text = &format!("{PASSES}{each}");
    let sim = ran(text);
    let all = reusable(&sim, usize::MAX);
    let edited = graph(&text.replace("prompt: code", "prompt: edited"));
    let plan = planned(&edited, &all);
    assert_eq!(plan.first().map(String::as_str), Some("improve[0]/code Runs(Input)"), "{plan:?}");
    let later = ["improve[1]/code", "improve[1]/each[0]/test", "improve[1]/each[1]/test"];
    let undecided: Vec<_> = later.map(|path| format!("{path} Undecided")).to_vec();
    let shown: Vec<_> = plan.iter().filter(|line| line.starts_with("improve[1]/")).cloned().collect();
    assert_eq!(shown, undecided, "{plan:?}");
}

#[test]
fn a_plan_says_what_fails_at_once() {
    let text = "
flow: { name: keys }
nodes:
  - { id: keys, type: talk.agent, input: { prompt: go } }
  - id: each
    type: control.foreach
    dependsOn: [keys]
    input: { items: '{{ [1, 1] if keys.text else [] }}', key: '{{ item }}' }
    body: { nodes: [{ id: test, type: talk.agent, input: { prompt: test } }] }
";
    let sim = ran(text);
    let plan = planned(sim.run.graph(), &reusable(&sim, usize::MAX));
    assert!(plan.contains(&"each Fails".to_owned()), "{plan:?}");
}
