//! Nodes that several agents may work on: which one works, what the next sees, and what is reused of them.

use inspan_protocol::{AgentError, Envelope, ErrorCode, Event, Outcome};
use serde_json::json;

use super::sim::{AttemptStep, Sim};
use crate::{
    Graph,
    schedule::{AttemptEnd, Reusable, Run, StartNode},
    testing::graph,
};

const FLOW: &str = r#"
name: relay
agents:
  cheap: { type: talk.agent, prompt: go, policy: { retry: { maxAttempts: 2, on: any } } }
  strong: { type: chat.agent, prompt: go, policy: { onLimit: fallback } }
  other: { type: chat.agent, prompt: go }
nodes:
  - { id: who, type: constant, input: { value: WHO } }
  - id: solve
    agent: "{{ who.value }}"
    dependsOn: [who]
    fallback: [{ agent: strong, when: "solve.sure < 0.7 and not solve.failed" }, { agent: other }]
"#;

fn flow(who: &str) -> std::sync::Arc<Graph> {
    graph(&FLOW.replace("WHO", who))
}

fn error(code: ErrorCode) -> AttemptStep {
    AttemptStep::End(AttemptEnd::Error(AgentError::new(code, "no")))
}

/// The first agent is unsure, the second reaches a limit, the third is sure.
fn unsure(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let output = |value| AttemptStep::End(AttemptEnd::Output(value));
    let name = |agent: &str| AttemptStep::Name(format!("c-{agent}"));
    let limit = || {
        let mut error = AgentError::new(ErrorCode::RateLimited, "come back later");
        error.resets_at = Some(run.state().last_at() + std::time::Duration::from_secs(900));
        AttemptStep::End(AttemptEnd::Error(error))
    };
    let usage = AttemptStep::Usage(Some(1.0), 1);
    match run.state().agent_of(run.graph(), start.node) {
        Some("cheap") => {
            vec![
                AttemptStep::Begin,
                name("cheap"),
                usage,
                AttemptStep::Complete,
                output(json!({ "sure": 0.2 })),
            ]
        }
        Some("strong") => vec![AttemptStep::Begin, name("strong"), usage, AttemptStep::Complete, limit()],
        Some(_) => vec![
            AttemptStep::Begin,
            name("other"),
            usage,
            AttemptStep::Complete,
            output(json!({ "sure": 0.9 })),
        ],
        None => vec![output(json!({ "value": start.input.as_ref().unwrap()["value"] }))],
    }
}

/// Each agent that was chosen with the reason, and each start with its attempt.
fn relay(log: &[Envelope]) -> Vec<String> {
    let line = |envelope: &Envelope| match &envelope.event {
        Event::TaskAgent { agent, reason, after, .. } => Some(format!("{agent} {reason:?} {after:?}")),
        Event::TaskStart { task_id, attempt, .. } if task_id.as_str() == "solve" => {
            Some(format!("start {attempt}"))
        }
        _ => None,
    };
    log.iter().filter_map(line).collect()
}

fn output(sim: &Sim) -> serde_json::Value {
    let solve = sim.run.graph().flow().find("solve").unwrap();
    sim.run.state().output(crate::TaskRef::of_flow(solve)).cloned().unwrap_or_default()
}

#[test]
fn agents_take_over_after_a_condition_a_failure_and_a_limit() {
    let sim = Sim::new(&flow("cheap"), &[]).driven(unsure);
    sim.check();
    let whole = [
        "cheap Named None",
        "start 1",
        "strong Condition Some(\"cheap\")",
        "start 2",
        "other Limit Some(\"strong\")",
        "start 3",
    ];
    assert_eq!(relay(&sim.log), whole);
    assert_eq!(output(&sim), json!({ "sure": 0.9, "by": "other", "tried": ["cheap", "strong", "other"] }));
    // Each begins its own conversation.
    assert_eq!(sim.starts("solve"), ["1 -: -", "2 -: -", "3 -: -"]);

    let sim = Sim::new(&flow("cheap"), &[]).driven(|start, run| match start.attempt {
        1 | 2 if start.path.node() == "solve" => vec![error(ErrorCode::NodeFailed)],
        _ => unsure(start, run),
    });
    let expected = ["cheap Named None", "start 1", "start 2", "strong Failed Some(\"cheap\")", "start 3"];
    assert_eq!(relay(&sim.log)[..5], expected);
}

#[test]
fn a_name_that_no_agent_has_fails_the_node_with_those_that_there_are() {
    let sim = Sim::new(&flow("nobody"), &[]).driven(unsure);
    let failure = sim.run.state().failure().map(ToString::to_string);
    assert_eq!(relay(&sim.log), ["start 1"]);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
    assert!(
        failure.as_deref().is_some_and(|why| why.contains(
            "the `agent` of node `solve` is \"nobody\", and must be one of `cheap`, `other`, `strong`"
        )),
        "{failure:?}"
    );
}

#[test]
fn a_stop_a_used_up_budget_and_the_last_agent_end_the_node() {
    let sim = Sim::new(&flow("cheap"), &[]).driven(|start, run| match start.path.node() {
        "solve" => vec![error(ErrorCode::BudgetExceeded)],
        _ => unsure(start, run),
    });
    assert_eq!(relay(&sim.log), ["cheap Named None", "start 1"]);
    let sim = Sim::new(&flow("other"), &[]).driven(|start, run| match start.path.node() {
        "solve" => vec![error(ErrorCode::NodeFailed)],
        _ => unsure(start, run),
    });
    let expected = [
        "other Named None",
        "start 1",
        "strong Failed Some(\"other\")",
        "start 2",
        "other Failed Some(\"strong\")",
        "start 3",
    ];
    assert_eq!(relay(&sim.log), expected);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
}

#[test]
fn a_fork_continues_with_the_agent_that_was_at_work_and_pays_for_none_before_it() {
    let graph = flow("cheap");
    let whole = Sim::new(&graph, &[]).driven(unsure);
    let reusable = |graph: &std::sync::Arc<Graph>, until: usize| {
        let run = Sim::new(graph, &[]).run;
        let log: Vec<_> = whole.log[..until].iter().cloned().map(std::sync::Arc::new).collect();
        Reusable::of(run, &log, u64::MAX)
    };
    // Its second agent had named its conversation when the process died.
    let named = whole.log.iter().position(
        |envelope| matches!(&envelope.event, Event::AgentSession { session_id, .. } if session_id.as_str() == "c-strong"),
    );
    let cut = named.unwrap() + 1;
    let fork = Sim::reusing(&graph, reusable(&graph, cut)).driven(unsure);
    fork.check();
    let expected = [
        "cheap Named None",
        "strong Condition Some(\"cheap\")",
        "start 1",
        "other Limit Some(\"strong\")",
        "start 2",
    ];
    assert_eq!(relay(&fork.log), expected);
    assert_eq!(fork.starts("solve"), ["1 c-strong: continue", "2 -: -"]);
    assert_eq!(output(&fork), output(&whole));
    // A fork starts its agent again, and not those before it.
    let mut other = reusable(&graph, cut);
    other.forget_unfinished();
    let fork = Sim::reusing(&graph, other).driven(unsure);
    assert_eq!(fork.starts("solve"), ["1 -: -", "2 -: -"]);
    assert_eq!(relay(&fork.log), expected);

    // What is whole is reused, unless an alternative has changed.
    let fork = Sim::reusing(&graph, reusable(&graph, whole.log.len())).driven(unsure);
    assert_eq!((relay(&fork.log), output(&fork)), (vec!["cheap Named None".to_owned()], output(&whole)));
    for (from, to) in [
        ("{ agent: other }]", "{ agent: cheap }]"),
        ("other: { type: chat.agent, prompt: go }", "other: { type: chat.agent, prompt: run }"),
        ("solve.sure < 0.7", "solve.sure < 0.8"),
    ] {
        let edited = crate::testing::graph(&FLOW.replace("WHO", "cheap").replace(from, to));
        let fork = Sim::reusing(&edited, reusable(&graph, whole.log.len())).driven(unsure);
        assert!(relay(&fork.log).contains(&"start 1".to_owned()), "{to}: {:?}", relay(&fork.log));
    }
}

#[test]
fn a_branch_begins_in_the_conversation_that_it_branches_and_then_has_its_own() {
    let graph = graph(
        r#"
name: branches
nodes:
  - { id: talk, type: talk.agent, input: { prompt: go } }
  - { id: left, type: talk.agent, session: { from: talk, fork: true }, dependsOn: [talk], input: { prompt: go } }
  - id: each
    type: control.foreach
    dependsOn: [talk]
    input: { items: [1, 2] }
    body: { nodes: [{ id: inner, type: talk.agent, session: { from: talk, fork: true }, input: { prompt: go } }] }
"#,
    );
    let world = |start: &StartNode, _: &Run| {
        let own = format!("c-{}", start.path);
        vec![
            AttemptStep::Begin,
            AttemptStep::Name(own),
            AttemptStep::Text,
            AttemptStep::Usage(Some(0.5), 10),
            AttemptStep::Complete,
            AttemptStep::End(AttemptEnd::Output(json!({}))),
        ]
    };
    let starts = |sim: &Sim| -> Vec<String> {
        let id =
            |known: &Option<crate::Conversation>| known.as_ref().map(|known| known.session_id.to_string());
        let mut all: Vec<_> = sim
            .started
            .iter()
            .map(|start| format!("{} {:?} {:?}", start.path, id(&start.conversation), id(&start.branches)))
            .collect();
        all.sort();
        all
    };
    let whole = Sim::new(&graph, &[]).driven(world);
    let branch = "None Some(\"c-talk\")";
    let expected = [
        format!("each[0]/inner {branch}"),
        format!("each[1]/inner {branch}"),
        format!("left {branch}"),
        "talk None None".to_owned(),
    ];
    assert_eq!(starts(&whole), expected);
    // A branch that has named its conversation continues that one.
    let named = whole.log.iter().position(
        |envelope| matches!(&envelope.event, Event::AgentSession { session_id, .. } if session_id.as_str() == "c-left"),
    );
    let resumed = Sim::resumed(&graph, &whole.log[..=named.unwrap()], None).driven(world);
    assert!(
        starts(&resumed).contains(&"left Some(\"c-left\") Some(\"c-talk\")".to_owned()),
        "{:?}",
        starts(&resumed)
    );
}

#[test]
fn a_failed_session_resumes_with_the_agent_that_failed_last() {
    for (code, start) in
        [(ErrorCode::Overloaded, "1 c-other: continue"), (ErrorCode::InvalidRequest, "1 -: -")]
    {
        let sim = Sim::new(&flow("cheap"), &[]).driven(move |start, run| {
            match run.state().agent_of(run.graph(), start.node) {
                Some("other") => vec![
                    AttemptStep::Begin,
                    AttemptStep::Name("c-other".to_owned()),
                    AttemptStep::Spent(Some(1.0), 1),
                    AttemptStep::Complete,
                    error(code),
                ],
                _ => unsure(start, run),
            }
        });
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
        let graph = flow("cheap");
        let resumed = Sim::reusing(&graph, super::reuse::reusable(&sim, usize::MAX)).driven(unsure);
        resumed.check();
        assert_eq!(resumed.starts("solve"), [start], "{:?}", relay(&resumed.log));
        assert_eq!(output(&resumed)["by"], "other");
    }
}

const PROGRAMS: &str = r#"
name: programs
agents:
  a: { type: talk.agent, prompt: go, options: { command: one } }
  b: { type: talk.agent, prompt: go, options: { command: SECOND } }
nodes:
  - { id: plan, agent: a }
  - { id: next, agent: a, fallback: [{ agent: b }], session: plan, dependsOn: [plan] }
  - { id: last, agent: a, session: next, dependsOn: [next] }
"#;

#[test]
fn another_program_has_other_conversations() {
    let world = |start: &StartNode, run: &Run| {
        let name = AttemptStep::Name(format!("c-{}", start.path));
        let fails = start.path.node() == "next" && run.state().agent_of(run.graph(), start.node) == Some("a");
        let output = AttemptStep::End(AttemptEnd::Output(json!({})));
        let end = if fails { error(ErrorCode::NodeFailed) } else { output };
        vec![AttemptStep::Begin, name, AttemptStep::Complete, end]
    };
    for (second, takes_over, last) in [("two", "2 -: -", "1 -: -"), ("one", "2 c-plan: -", "1 c-next: -")] {
        let sim = Sim::new(&graph(&PROGRAMS.replace("SECOND", second)), &[]).driven(world);
        assert_eq!(sim.starts("next"), ["1 c-plan: -", takes_over], "{second}");
        assert_eq!(sim.starts("last"), [last], "{second}");
        let warned = sim.log.iter().filter(|envelope| matches!(envelope.event, Event::Log { .. })).count();
        assert_eq!(warned, if second == "two" { 2 } else { 0 }, "{second}");
    }
    let direct = |second: &str| {
        let text = PROGRAMS.replace("next, agent: a, fallback: [{ agent: b }]", "next, agent: b");
        crate::testing::problems(&text.replace("SECOND", second))
    };
    let refused = "`session` names `plan`, whose agent is the program `one`: the program `two` cannot continue its conversation";
    assert!(direct("two").contains(refused), "{}", direct("two"));
    assert!(!direct("one").contains("cannot continue"), "{}", direct("one"));
}

#[test]
fn what_several_agents_may_work_on_is_reused_though_it_names_the_session() {
    let edited = |last: &str| {
        let text = FLOW.replace("WHO", "cheap").replace("prompt: go", "prompt: \"go {{ flow.sessionId }}\"");
        graph(&format!(
            "{text}  - {{ id: last, type: constant, dependsOn: [solve], input: {{ value: {last} }} }}\n"
        ))
    };
    let sim = Sim::new(&edited("1"), &[]).driven(unsure);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success));
    let reusable = super::reuse::reusable(&sim, usize::MAX);
    let continued = Sim::reusing(&edited("2"), reusable).driven(unsure);
    continued.check();
    assert_eq!((continued.starts("solve").len(), continued.starts("last").len()), (0, 1));
    assert_eq!(output(&continued)["by"], "other");
}

#[test]
fn an_output_that_a_condition_could_not_judge_is_judged_again_and_not_paid_again() {
    let flow = |when: &str, last: u32| {
        let text = FLOW.replace("WHO", "cheap").replace("solve.sure < 0.7 and not solve.failed", when);
        graph(&format!(
            "{text}  - {{ id: last, type: constant, dependsOn: [solve], input: {{ value: {last} }} }}\n"
        ))
    };
    const WRONG: &str = "solve.nothing.sure < 0.7";
    let sim = Sim::new(&flow(WRONG, 1), &[]).driven(unsure);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
    let failed = ["cheap Named None", "start 1"];
    let passed_on = [
        "cheap Named None",
        "strong Condition Some(\"cheap\")",
        "start 1",
        "other Limit Some(\"strong\")",
        "start 2",
    ];
    let rows: [(&str, u32, &[&str], &str); 4] = [
        // As it was, and after an edit elsewhere: it fails again, and no agent works.
        (WRONG, 1, &failed, ""),
        (WRONG, 2, &failed, ""),
        ("solve.sure < 0.1", 1, &failed[..1], "cheap"),
        ("solve.sure < 0.7", 1, &passed_on, "other"),
    ];
    for (when, last, expected, by) in rows {
        let mut left = super::reuse::reusable(&sim, usize::MAX);
        // A session that failed again leaves the same.
        for _ in 0..2 {
            let next = Sim::reusing(&flow(when, last), left).driven(|start, run| {
                match run.state().agent_of(run.graph(), start.node) {
                    Some("cheap") => panic!("it is paid again"),
                    _ => unsure(start, run),
                }
            });
            next.check();
            assert_eq!(relay(&next.log), expected, "{when}");
            assert_eq!(output(&next)["by"].as_str().unwrap_or_default(), by, "{when}");
            if !by.is_empty() {
                break;
            }
            // The conversation is left too.
            let mut judged =
                Sim::reusing(&flow("solve.sure < 0.1", 1), super::reuse::reusable(&next, usize::MAX));
            judged.drive(unsure);
            let in_conversation = |envelope: &Envelope| matches!(&envelope.event, Event::TaskReused { session_id: Some(id), .. } if id.as_str() == "c-cheap");
            assert!(judged.log.iter().any(in_conversation), "{}", super::story(&judged.log));
            left = super::reuse::reusable(&next, usize::MAX);
        }
    }
    // Where anything else has changed, the agent works again.
    let edited = flow("solve.sure < 0.1", 1);
    let prompt = FLOW.replace("WHO", "cheap").replace("talk.agent, prompt: go", "talk.agent, prompt: run");
    let again = Sim::reusing(&graph(&prompt), super::reuse::reusable(&sim, usize::MAX)).driven(unsure);
    assert_eq!(relay(&again.log)[..2], failed);
    let mut forked = super::reuse::reusable(&sim, usize::MAX);
    forked.run_again(inspan_protocol::NodePath::new("solve"));
    let again = Sim::reusing(&edited, forked).driven(unsure);
    assert_eq!(relay(&again.log), failed);
}

/// The next agent takes over at once; the last one is tried again.
#[test]
fn what_passes_is_waited_for_where_no_other_agent_takes_over() {
    let text = FLOW.replace(", policy: { retry: { maxAttempts: 2, on: any } }", "");
    let graph = graph(&text.replace("{{ who.value }}", "cheap"));
    let sim = Sim::new(&graph, &[]).driven(|start: &StartNode, _: &Run| match start.path.node() {
        "solve" => vec![error(ErrorCode::Overloaded)],
        _ => vec![AttemptStep::End(AttemptEnd::Output(json!({ "value": 1 })))],
    });
    sim.check();
    assert_eq!(sim.starts("solve").len(), 1 + 1 + 6);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
}
