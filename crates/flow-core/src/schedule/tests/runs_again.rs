//! What an earlier session left unfinished, failed or lost: what is done again, why, and with which consent.

use std::time::Duration;

use inspan_protocol::{AgentError, BudgetRaise, ErrorCode, Event, NodePath, NodeStatus, Outcome, Timestamp};

use super::{
    explained,
    reuse::{CHAIN, planned, ran, reusable, reusable_after, talk},
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    About, AttemptLoss, StatementKind,
    schedule::{AttemptEnd, Planned, Reusable, ReuseDecision, ReuseReason, Run, StartNode},
    testing::graph,
};

/// `bad` fails, and so does the second item of a foreach at it.
fn bad_fails(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    match start.path.as_str() {
        "bad" | "each[1]/bad" | "last" => {
            let error = AgentError::new(ErrorCode::NodeFailed, format!("{} is bad", start.path));
            vec![AttemptStep::End(AttemptEnd::Error(error))]
        }
        _ => talk(start, run),
    }
}

#[test]
fn an_agent_that_was_to_be_tried_again_goes_on_in_the_next_session() {
    let node = |id: &str, more: &str| {
        format!("  - {{ id: {id}, type: talk.agent, input: {{ prompt: go }}{more} }}\n")
    };
    let retry = ", policy: { retry: { maxAttempts: 3, backoff: 60s, on: any } }";
    let graph = graph(&format!("flow: {{ name: f }}\nnodes:\n{}{}", node("a", retry), node("b", "")));
    for (code, expected) in [(ErrorCode::Network, "a Resumes"), (ErrorCode::ConfigInvalid, "a Runs(Failed)")]
    {
        let fails = |code| AttemptStep::End(AttemptEnd::Error(AgentError::new(code, "it fails")));
        let late = Timestamp::default() + Duration::from_secs(9);
        let acts = |start: &StartNode, run: &Run| match start.path.as_str() {
            "a" => {
                let works = talk(start, run).into_iter().take(3);
                works.chain([AttemptStep::Turn, AttemptStep::Complete, fails(code)]).collect()
            }
            _ => vec![AttemptStep::Until(late), fails(ErrorCode::NodeFailed)],
        };
        let sim = Sim::new(&graph, &[]).driven(acts);
        sim.check();
        assert_eq!(sim.starts("a").len(), 1, "{}", story(&sim.log));
        let plan = planned(&graph, &reusable(&sim, usize::MAX));
        assert!(plan.contains(&expected.to_owned()), "{code:?}: {plan:?}");
    }
}

/// Who resumes too early in an outage loses nothing of what the agent has done.
#[test]
fn an_agent_goes_on_in_its_conversation_over_two_sessions() {
    let graph = graph(
        "flow: { name: f }\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go }, policy: { retry: { maxAttempts: 1 } } }\n",
    );
    let gone = || AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::Network, "gone")));
    let works = |start: &StartNode, run: &Run| {
        let steps = talk(start, run).into_iter().take(3);
        steps.chain([AttemptStep::Turn, AttemptStep::Complete, gone()]).collect()
    };
    let first = Sim::new(&graph, &[]).driven(works);
    let left = reusable(&first, usize::MAX);
    // It fails before it has said anything.
    let second = Sim::reusing(&graph, left.clone()).driven(|_: &StartNode, _: &Run| vec![gone()]);
    let goes_on = second.starts("a");
    assert!(goes_on[0].ends_with(": continue"), "{goes_on:?}");
    let left = reusable_after(&second, &left);
    assert_eq!(planned(&graph, &left), ["a Resumes"]);
    let third = Sim::reusing(&graph, left).driven(talk);
    assert_eq!(third.starts("a"), goes_on);
    let cut = third.started[0].interrupted.as_ref().unwrap();
    assert_eq!((cut.before.is_some(), cut.older.len()), (true, 1));
    // Where that conversation is not found, it begins anew in another one, in which nothing is done yet.
    let left = reusable(&first, usize::MAX);
    let anew = |_: &StartNode, _: &Run| {
        let named = AttemptStep::Name("c-b".to_owned());
        vec![
            AttemptStep::Begin,
            AttemptStep::Complete,
            AttemptStep::Begin,
            named,
            AttemptStep::Complete,
            gone(),
        ]
    };
    let second = Sim::reusing(&graph, left.clone()).driven(anew);
    assert_eq!(planned(&graph, &reusable_after(&second, &left)), ["a Runs(Failed)"]);
    // Its own retries go on there too.
    let retries = ", policy: { retry: { maxAttempts: 2, on: any } }";
    let node = format!("  - {{ id: a, type: talk.agent, input: {{ prompt: go }}{retries} }}\n");
    let graph = crate::testing::graph(&format!("flow: {{ name: f }}\nnodes:\n{node}"));
    let left = reusable(&Sim::new(&graph, &[]).driven(works), usize::MAX);
    let named_and_gone = |start: &StartNode, run: &Run| {
        talk(start, run).into_iter().take(2).chain([AttemptStep::Complete, gone()]).collect()
    };
    let second = Sim::reusing(&graph, left).driven(named_and_gone);
    let starts = second.starts("a");
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts.iter().all(|start| start.ends_with("c-a: continue")), "{starts:?}");
}

#[test]
fn a_failure_that_was_handled_is_finished_work() {
    let agent = |id: &str, more: &str| {
        format!("  - {{ id: {id}, type: talk.agent, input: {{ prompt: go }}{more} }}\n")
    };
    let ends = agent("then", ", dependsOn: [{NODE}]") + &agent("last", ", dependsOn: [then]");
    let each = |node: &str, more: &str| {
        format!(
            "  - {{ id: each, type: control.foreach, {node} input: {{ items: [1, 2, 3]{more} }}, body: {{ nodes: [\n  \
             {} ] }} }}\n",
            agent("bad", "").replacen("  - ", "", 1).trim_end()
        )
    };
    let goes_on = ", onItemError: continue";
    // What the flow begins with, the node that `then` depends on, and what is reused when only `last` has failed.
    let rows = [
        (agent("bad", ", policy: { continueOnError: true }"), "bad", "bad then"),
        (
            agent("bad", "") + &agent("fix", ", dependsOn: [{ node: bad, on: failure }]"),
            "fix",
            "bad fix then",
        ),
        (each("", goes_on), "each", "each[0]/bad each[1]/bad each[2]/bad then"),
        (each("policy: { continueOnError: true },", ""), "each", "each[0]/bad each[1]/bad then"),
    ];
    for (begin, node, in_frames) in rows {
        let kept = if node == "each" { "each then" } else { in_frames };
        let text = format!(
            "flow: {{ name: f, policy: {{ maxConcurrency: 1 }} }}\nnodes:\n{begin}{}",
            ends.replace("{NODE}", node)
        );
        let graph = graph(&text);
        let sim = Sim::new(&graph, &[]).driven(bad_fails);
        sim.check();
        let left = reusable(&sim, usize::MAX);
        let reused = |plan: &[String]| {
            let reused = plan.iter().filter_map(|line| line.strip_suffix(" Reused"));
            reused.collect::<Vec<_>>().join(" ")
        };
        let plan = planned(&graph, &left);
        assert_eq!(reused(&plan), kept, "{text}\n{plan:?}");
        // Of an edited flow the frames are looked at one by one.
        let edited = crate::testing::graph(&format!("{text}# edited\n"));
        assert_eq!(reused(&planned(&edited, &left)), in_frames, "{text}");
        assert!(plan.contains(&"last Runs(Failed)".to_owned()), "{plan:?}");
        // The next session sees the same, and so does the one after it.
        let second = Sim::reusing(&graph, left.clone()).driven(bad_fails);
        second.check();
        assert_eq!(second.started.iter().map(|start| start.path.as_str()).collect::<Vec<_>>(), ["last"]);
        let failed = |sim: &Sim| sim.run.state().nodes()[0].status == NodeStatus::Failed;
        assert_eq!(failed(&second), failed(&sim), "{}", story(&second.log));
        let plan = planned(&graph, &reusable_after(&second, &left));
        assert_eq!(reused(&plan), kept, "{text}\n{plan:?}");
        // A failure runs again where it is asked for.
        let mut again = left.clone();
        again.run_again(NodePath::new(kept.split(' ').next().unwrap()));
        assert!(!reused(&planned(&graph, &again)).contains("then"));
    }
    // An edge with a condition may not fire, and a foreach that stops at a failure would stop earlier.
    let edges = "edges:\n  - { from: bad, to: fix, on: failure, when: 'flow.name == \"f\"' }\n";
    let when = (agent("bad", "") + &agent("fix", ""), "fix", edges);
    for (begin, node, edges) in [when, (each("", ", onItemError: stop"), "each", "")] {
        let ends = ends.replace("{NODE}", node);
        let text = format!("flow: {{ name: f }}\nnodes:\n{begin}{ends}{edges}");
        let sim = Sim::new(&graph(&text), &[]).driven(bad_fails);
        let plan = planned(&graph(&(text + "# edited\n")), &reusable(&sim, usize::MAX));
        assert!(plan.iter().any(|line| line.ends_with("bad Runs(Failed)")), "{plan:?}");
    }
    // A failure that would end this flow runs again.
    let handled = |more: &str| {
        format!("name: f\nnodes:\n{}{}", agent("bad", more), agent("last", ", dependsOn: [bad]"))
    };
    let sim = Sim::new(&graph(&handled(", policy: { continueOnError: true }")), &[]).driven(bad_fails);
    let plan = planned(&graph(&handled("")), &reusable(&sim, usize::MAX));
    assert_eq!(plan, ["bad Runs(Failed)", "last Undecided"]);
}

#[test]
fn a_node_whose_input_cannot_be_evaluated_failed_before_too() {
    let text = "
flow: { name: f }
nodes:
  - { id: a, type: talk.agent, input: { prompt: '{{ flow.input.missing }}' } }
";
    let sim = ran(text);
    let plan = Sim::reusing(sim.run.graph(), reusable(&sim, usize::MAX)).run.plan(Timestamp::default());
    let decisions: Vec<_> = plan.nodes.iter().map(|node| node.decision).collect();
    assert_eq!(decisions, [ReuseDecision::Runs(ReuseReason::Failed)]);
}

#[test]
fn a_node_whose_input_cannot_be_evaluated_any_more_runs_again() {
    let flow = |key: &str| {
        let nodes = "nodes: [{ id: a, type: talk.agent, input: { prompt: '{{ flow.input.KEY }}' } }]";
        graph(&format!("flow: {{ name: f, input: {{ title: old }} }}\n{nodes}\n").replace("KEY", key))
    };
    let sim = Sim::new(&flow("title"), &[]).driven(talk);
    let run = Sim::reusing(&flow("titel"), reusable(&sim, usize::MAX)).run;
    assert_eq!(run.plan(Timestamp::default()).nodes[0].decision, ReuseDecision::Runs(ReuseReason::Input));
}

#[test]
fn an_agent_that_no_other_may_follow_any_more_runs_again_if_its_input_has_changed() {
    let flow = |rest: &str| {
        graph(&format!(
            "
name: f
agents: {{ one: {{ type: talk.agent }}, two: {{ type: talk.agent }} }}
nodes: [{{ id: a, agent: one, {rest} }}]
"
        ))
    };
    let sim = Sim::new(&flow("input: { prompt: old }, fallback: [{ agent: two }]"), &[]).driven(talk);
    let before = reusable(&sim, usize::MAX);
    assert_eq!(planned(&flow("input: { prompt: new }"), &before), ["a Runs(Input)"]);
    assert_eq!(planned(&flow("input: { prompt: old }"), &before), ["a Reused"]);
}

const DEPLOY: &str = "
flow: { name: f }
nodes:
  - { id: deploy, type: talk.agent, effects: external, input: { prompt: deploy } }
  - { id: after, type: talk.agent, input: { prompt: after }, dependsOn: [deploy] }
";

#[test]
fn what_was_cut_short_and_may_have_taken_effect_is_asked_about_in_the_next_session_too() {
    let sim = Sim::new(&graph(DEPLOY), &[]).driven_to("agent:start", talk);
    let mut left = reusable(&sim, usize::MAX);
    left.forget_unfinished();
    let edited = graph(&DEPLOY.replace("prompt: after", "prompt: edited"));
    let plan = Sim::reusing(&edited, left.clone()).run.plan(Timestamp::default());
    let decisions: Vec<_> = plan.nodes.iter().map(|node| node.decision).collect();
    assert_eq!(decisions, [ReuseDecision::Asks, ReuseDecision::Undecided]);
    let next = Sim::reusing(&edited, left.clone()).driven(talk);
    next.check();
    let first = |name: &str| next.log.iter().position(|envelope| envelope.event.name() == name);
    assert!(first("session:prompt").is_some(), "{}", story(&next.log));
    assert!(first("session:prompt") < first("task:start"), "{}", story(&next.log));
    // What is to run again because somebody said so is not asked about.
    left.run_again(NodePath::new("deploy"));
    assert_eq!(planned(&edited, &left), ["deploy Runs(Asked)", "after Undecided"]);
}

#[test]
fn what_ran_out_of_time_or_money_and_may_have_taken_effect_is_asked_about_in_the_next_session() {
    let planned = |text: &str, edited: &str, code: ErrorCode, message: &'static str| {
        let fails = move |start: &StartNode, run: &Run| {
            let mut steps = talk(start, run);
            *steps.last_mut().unwrap() = AttemptStep::End(AttemptEnd::Error(AgentError::new(code, message)));
            steps
        };
        let failed = Sim::new(&graph(text), &[]).driven(fails);
        let plan = Sim::reusing(&graph(edited), reusable(&failed, usize::MAX)).run.plan(Timestamp::default());
        let [dropped, ..] = lost(&failed, &text.replace("deploy", "publish"));
        (plan.nodes.iter().map(|node| node.decision).collect::<Vec<_>>(), dropped.len())
    };
    let (decisions, dropped) = planned(DEPLOY, DEPLOY, ErrorCode::Timeout, "too late");
    assert_eq!((decisions[0], dropped), (ReuseDecision::Asks, 1));
    let (decisions, dropped) = planned(DEPLOY, DEPLOY, ErrorCode::BudgetExceeded, "too dear");
    assert_eq!((decisions[0], dropped), (ReuseDecision::Asks, 1));
    let (decisions, dropped) = planned(DEPLOY, DEPLOY, ErrorCode::Process, "refused");
    assert_eq!((decisions[0], dropped), (ReuseDecision::Runs(ReuseReason::Failed), 0));
    // A failure that was handled is taken over, whatever it was, unless the node was edited.
    let handled = format!(
        "{DEPLOY}  - {{ id: refund, type: talk.agent, input: {{ prompt: r }}, dependsOn: [{{ node: deploy, on: failure }}] }}\n"
    );
    let edited = handled.replace("prompt: deploy", "prompt: again");
    let (decisions, _) = planned(&handled, &edited, ErrorCode::Timeout, "too late");
    assert_eq!(decisions[0], ReuseDecision::Asks);
    let other = handled.replacen("talk.agent", "chat.agent", 1);
    let (decisions, _) = planned(&handled, &other, ErrorCode::Timeout, "too late");
    assert_eq!(decisions[0], ReuseDecision::Asks);
    let (decisions, _) = planned(&handled, &handled, ErrorCode::Timeout, "too late");
    assert_eq!(
        decisions,
        [ReuseDecision::Reused, ReuseDecision::Skipped, ReuseDecision::Runs(ReuseReason::Failed)]
    );
}

/// What the plan for an edited flow says of the work that is lost or done again: the nodes that are dropped, those that
/// replace them, and those that are done again, each with its cost.
fn lost(sim: &Sim, edited: &str) -> [Vec<String>; 3] {
    let (before, now) = (sim.run.graph(), &graph(edited));
    let left = reusable(sim, usize::MAX);
    let plan = Sim::reusing(now, left.clone()).run.plan(Timestamp::default());
    let plan = plan.with_dropped(&left, before, now);
    let words = |node: &Planned| format!("{} {}", node.path, node.cost_usd.unwrap_or_default());
    let dropped = plan.nodes.iter().filter(|node| node.decision == ReuseDecision::Dropped);
    let again = plan.nodes.iter().filter(|node| node.is_done_again());
    [
        dropped.map(words).collect(),
        plan.replaced(before).into_iter().map(words).collect(),
        again.map(words).collect(),
    ]
}

#[test]
fn the_work_of_a_node_that_an_edit_renames_is_dropped_and_may_be_done_again() {
    let none: Vec<String> = Vec::new();
    let flow =
        CHAIN.to_owned() + "  - { id: end, type: talk.agent, input: { prompt: end }, dependsOn: [side] }\n";
    let sim = Sim::new(&graph(&flow), &[]).driven_to("task:complete", talk);
    assert_eq!(sim.log.last().unwrap().context.task, Some(NodePath::new("a")), "{}", story(&sim.log));
    let a = vec!["a 0.5".to_owned()];
    let renamed = flow.replace("id: a,", "id: z,").replace("[a]", "[z]");
    let [dropped, replaced, _] = lost(&sim, &renamed);
    assert_eq!((dropped, replaced), (a.clone(), a.clone()));
    // What follows depends on no new node: nothing can do the work of `a` again.
    let removed = "name: chain\nnodes:\n  - { id: side, type: talk.agent, input: { prompt: side } }\n";
    let whole = ran(CHAIN);
    let [dropped, replaced, again] = lost(&whole, removed);
    assert_eq!((dropped.len(), replaced, again), (3, none.clone(), none.clone()));
    // A node of a body is dropped once, with what it cost in all frames.
    let each = |inner: &str, more: &str| {
        format!(
            "
flow: {{ name: f }}
nodes:
{more}  - id: each
    type: control.foreach
    input: {{ items: [1, 2] }}
    body:
      nodes:
        - {{ id: {inner}, type: talk.agent, input: {{ prompt: '{{{{ item }}}}' }} }}
"
        )
    };
    let sim = ran(&each("review", ""));
    let review = vec!["each/review 1".to_owned()];
    let [dropped, replaced, _] = lost(&sim, &each("judge", ""));
    assert_eq!((dropped, replaced), (review.clone(), review));
    let [dropped, replaced, _] = lost(&sim, &each("review", "").replace("id: each", "id: all"));
    assert_eq!((dropped, replaced), (vec!["each 1".to_owned()], vec!["each 1".to_owned()]));
    // Frames of a node that waits for a new one.
    let sim = Sim::new(&graph(&each("review", "")), &[]).driven_to("task:complete", talk);
    let new = each("review", "  - { id: new, type: talk.agent, input: { prompt: new } }\n");
    let new = new.replace("type: control.foreach", "type: control.foreach\n    dependsOn: [new]");
    let [dropped, _, again] = lost(&sim, &new);
    assert_eq!(dropped, none);
    assert!(again[0].starts_with("each "), "{again:?}");
}

#[test]
fn an_agent_that_was_interrupted_and_begins_anew_does_work_again() {
    let flow = "flow: { name: f }\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n";
    let sim = Sim::new(&graph(flow), &[]).driven_to("agent:usage", talk);
    let none: Vec<String> = Vec::new();
    let [dropped, _, again] = lost(&sim, &flow.replace("one", "two"));
    assert_eq!((dropped, again), (none.clone(), vec!["a 0.5".to_owned()]));
    // It goes on in its conversation.
    let [_, _, again] = lost(&sim, &(flow.to_owned() + "# edited\n"));
    assert_eq!(again, none);
    let [dropped, replaced, _] = lost(&sim, &flow.replace("id: a", "id: z"));
    assert_eq!((dropped, replaced), (vec!["a 0.5".to_owned()], vec!["a 0.5".to_owned()]));
    // What has spent nothing is begun again in any case, unless it may have taken effect.
    for (effects, expected) in [("", none.clone()), ("effects: external, ", vec!["a 0".to_owned()])] {
        let flow = flow.replace("input:", &format!("{effects}input:"));
        let sim = Sim::new(&graph(&flow), &[]).driven_to("agent:start", talk);
        let [dropped, replaced, _] = lost(&sim, &flow.replace("id: a", "id: z"));
        assert_eq!((dropped, replaced), (vec!["a 0".to_owned()], expected));
    }
}

#[test]
fn a_node_that_is_done_again_says_why() {
    let mut sim = Sim::new(&graph(CHAIN), &[]).driven_to("task:complete", talk);
    while sim.log.last().is_none_or(|last| {
        last.context.task != Some(NodePath::new("b")) || last.event.name() != "agent:usage"
    }) {
        sim.step(&talk);
    }
    let left = reusable(&sim, usize::MAX);
    let started = |edited: &str, left: &Reusable, node: &str| {
        let next = Sim::reusing(&graph(edited), left.clone()).driven(talk);
        let said = explained(&next, Some(left.clone()), About::Node(NodePath::new(node)));
        let started = said.because.into_iter().find(|said| said.kind == StatementKind::Started);
        started.map(|said| said.text).unwrap_or_default()
    };
    let because = |why: &str| format!("attempt 1 started: the edge into it fired{why}");
    let edited = CHAIN.replace("two", "2");
    assert_eq!(started(&edited, &left, "b"), because("; s/b is not reused: its input has changed"));
    assert_eq!(started(&edited, &left, "c"), because(""), "it had not begun");
    let same = CHAIN.to_owned() + "# edited\n";
    assert_eq!(started(&same, &left, "b"), because("; it continues the conversation of s/b"));
    let after = "; s/b is not reused: it depends on a node that runs again";
    assert_eq!(started(&CHAIN.replace("one", "1"), &left, "b"), because(after));
    let mut fork = reusable(&ran(CHAIN), usize::MAX);
    fork.branch_off();
    fork.run_again(NodePath::new("b"));
    assert_eq!(started(CHAIN, &fork, "b"), because("; s/b is not reused: it was to run again"));
}

/// What the plan to resume says once this event has happened, and the process died.
fn plan_after(event: &str, nodes: &str) -> Vec<String> {
    let graph = graph(&format!("flow: {{ name: f }}\nnodes:\n{nodes}"));
    let sim = Sim::new(&graph, &[]).driven_to(event, world);
    plan_to_resume(&sim)
}

fn plan_to_resume(sim: &Sim) -> Vec<String> {
    let plan =
        Sim::new(sim.run.graph(), &sim.log).run.plan_to_resume(&BudgetRaise::default(), Timestamp::default());
    plan.nodes.iter().map(|node| format!("{} {:?}", node.path, node.decision)).collect()
}

#[test]
fn what_may_have_taken_effect_is_asked_about_also_after_a_node_that_runs_again() {
    let text = "
name: pays
nodes:
  - { id: first, type: talk.agent, input: { prompt: go } }
  - { id: pay, type: control.noop, effects: external, dependsOn: [first] }
";
    let mut cut = Sim::new(&graph(text), &[]);
    while cut.started.len() < 2 {
        cut.step(&talk);
    }
    let edited = graph(&text.replace("prompt: go", "prompt: come"));
    let plan = Sim::reusing(&edited, reusable(&cut, usize::MAX)).run.plan(Timestamp::default());
    let plan: Vec<_> = plan.nodes.iter().map(|node| format!("{} {:?}", node.path, node.decision)).collect();
    assert_eq!(plan, ["first Runs(Input)", "pay Asks"]);
}

#[test]
fn what_was_stopped_before_its_process_died_only_ends() {
    let mut sim = Sim::new(&graph(DEPLOY), &[]).driven_to("agent:start", talk);
    sim.emit(None, Event::SessionPause { reason: None, cause: None });
    sim.emit(None, Event::SessionAbort { reason: None });
    assert_eq!(plan_to_resume(&sim), ["deploy Cancelled", "after Cancelled"]);
}

#[test]
fn what_waits_for_its_time_depends_on_no_other_node() {
    let retried = "
  - { id: twice, type: control.noop, policy: { retry: { maxAttempts: 3, backoff: 1h } } }
  - { id: after, type: control.noop, dependsOn: [twice] }
";
    assert_eq!(plan_after("task:failed", retried), ["twice Runs(Retried)", "after Undecided"]);
    let limited = "
  - { id: limited, type: talk.agent, input: { prompt: x } }
  - { id: after, type: control.noop, dependsOn: [limited] }
";
    assert_eq!(plan_after("limit:wait", limited), ["limited Resumes", "after Undecided"]);
}

#[test]
fn a_process_that_is_stopped_on_purpose_counts_against_nothing_that_it_ran() {
    use AttemptLoss::{Died, Stopped};
    let graph = graph("flow: { name: f }\nnodes:\n  - { id: long, type: control.noop }\n");
    let rows = [
        (vec![Stopped; 50], Outcome::Success),
        ([vec![Died; 9], vec![Stopped; 50]].concat(), Outcome::Success),
        // Whether machines are stopped in between changes nothing of those that it may have brought down.
        ([vec![Died; 9], vec![Stopped; 50], vec![Died]].concat(), Outcome::Failed),
    ];
    for (losses, outcome) in rows {
        let mut sim = Sim::new(&graph, &[]);
        for how in losses {
            sim.until_event("task:start", world);
            sim.lose(how);
        }
        // Another process goes on.
        for mut sim in [Sim::new(&graph, &sim.log), sim] {
            sim.drive(world);
            sim.check();
            assert_eq!(sim.run.state().session.outcome, Some(outcome));
        }
    }
}

#[test]
fn a_node_that_ran_out_of_its_own_time_does_not_run_its_frames_again_for_an_edit_elsewhere() {
    let flow = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    policy: { timeout: 1s, continueOnError: true }
    input: { items: [700, 1400, 2100], maxConcurrency: 1, onItemError: continue }
    body: { nodes: [{ id: m, type: talk.agent, input: { prompt: '{{ item }}' } }] }
  - { id: z, type: talk.agent, dependsOn: [each], input: { prompt: z } }
";
    let loops =
        "control.loop\n    policy: { timeout: 1s, continueOnError: true }\n    input: { maxIterations: 3 }";
    let begins = flow.find("control.foreach").unwrap();
    let looped = [&flow[..begins], loops, &flow[flow.find("\n    body").unwrap()..]]
        .concat()
        .replace("item }}", "frame.index }}");
    let slow = |start: &StartNode, run: &Run| {
        let until = match start.path.node() {
            "m" => run.state().last_at() + Duration::from_millis(700),
            _ => Timestamp::default(),
        };
        let mut steps = talk(start, run);
        steps.insert(2, AttemptStep::Until(until));
        steps
    };
    for flow in [flow, &looped] {
        let first = Sim::new(&graph(flow), &[]).driven(slow);
        first.check();
        let left = reusable(&first, usize::MAX);
        let plan = |from: &str, to: &str| planned(&graph(&flow.replacen(from, to, 1)), &left);
        for (from, to) in [
            ("", "# comment\n"),
            ("prompt: z", "prompt: y"),
            ("nodes:", "nodes:\n  - { id: b, type: control.noop }"),
        ] {
            let plan = plan(from, to);
            assert!(plan.contains(&"each Reused".to_owned()), "{to}: {plan:?}\n{}", story(&first.log));
        }
        // Whether a loop begins another pass is not known before.
        let changes = [("timeout: 1s", "timeout: 2s"), ("'{{", "'go {{")];
        for (from, to) in changes.into_iter().filter(|_| flow.contains("items")) {
            assert!(plan(from, to).iter().any(|line| line.starts_with("each[0]/m")), "{to}");
        }
    }
}

/// What runs no work in its frames leaves what follows it as it was, and not what follows a change.
#[test]
fn what_follows_frames_without_work_runs_again_as_what_is_before_them_does() {
    let talks =
        |id: &str, more: &str| format!("{{ id: {id}, type: talk.agent, input: {{ prompt: go }}{more} }}");
    let body = |nodes: &str| format!("body: {{ nodes: [{nodes}] }}");
    let skipped = talks("w", ", when: 'flow.name == \"other\"'");
    let each = |items: &str, nodes: &str| {
        format!("type: control.foreach, input: {{ items: {items} }}, {}", body(nodes))
    };
    let looped = |more: &str, nodes: &str| {
        format!(
            "type: control.loop, input: {{ maxIterations: 1, onExhausted: continue{more} }}, {}",
            body(nodes)
        )
    };
    let no_items = format!("{{ id: q, {} }}", each("[], as: z", &talks("w", "")));
    for middle in [
        each("[]", &talks("w", "")),
        each("[1]", &skipped),
        each("[1]", &no_items),
        looped(", while: 'flow.name == \"other\"'", &talks("w", "")),
        looped("", &skipped),
    ] {
        let nodes = [
            talks("build", ""),
            format!("{{ id: checks, {middle}, dependsOn: [build] }}"),
            talks("unless", ", when: 'flow.name == \"other\"', dependsOn: [checks]"),
            talks("publish", ", dependsOn: [checks]"),
            talks("last", ", dependsOn: [{ node: unless, on: any }]"),
        ];
        let text = format!("flow: {{ name: f }}\nnodes:\n  - {}\n", nodes.join("\n  - "));
        let sim = ran(&text);
        let left = reusable(&sim, usize::MAX);
        let runs = |text: &str, left: &Reusable| {
            planned(&graph(text), left);
            let next = Sim::reusing(&graph(text), left.clone()).driven(talk);
            next.started.iter().map(|start| start.path.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(runs(&text, &left), "", "{text}");
        assert_eq!(runs(&format!("{text}# edited\n"), &left), "", "{text}");
        assert_eq!(runs(&text.replacen("go", "went", 1), &left), "build publish last", "{text}");
        let asked = |node: &str| {
            let mut left = left.clone();
            left.run_again(NodePath::new(node));
            left
        };
        assert_eq!(runs(&text, &asked("build")), "build publish last", "{text}");
        assert_eq!(runs(&text, &asked("checks")), "publish last", "{text}");
        // A node that is skipped is asked for as well.
        assert_eq!(runs(&text, &asked("unless")), "last", "{text}");
        // That is why it runs, whatever was edited too.
        let retyped = text.replace(
            "id: publish, type: talk.agent, input: { prompt: go }",
            "id: publish, type: control.noop",
        );
        let plan = planned(&graph(&retyped), &asked("checks"));
        assert!(plan.contains(&"publish Runs(Follows)".to_owned()), "{plan:?}");
    }
    // What is asked for in a frame counts for the node around it.
    let text = format!(
        "flow: {{ name: f }}\nnodes: [{{ id: checks, {} }}, {}]\n",
        each("[1]", &no_items),
        talks("publish", ", dependsOn: [checks]")
    );
    let mut left = reusable(&ran(&text), usize::MAX);
    left.run_again(NodePath::new("checks[0]/q"));
    assert_eq!(planned(&graph(&text), &left), ["publish Runs(Follows)"]);
    // And not for the other frames of that node.
    let inner = format!("{{ id: q, {} }}", each("[1], as: z", &talks("w", "")));
    let text = format!(
        "flow: {{ name: f }}\nnodes: [{{ id: checks, {} }}]\n",
        each("[1, 2]", &format!("{inner}, {}", talks("b", ", dependsOn: [q]")))
    );
    let mut left = reusable(&ran(&text), usize::MAX);
    left.run_again(NodePath::new("checks[1]/q[0]/w"));
    let again = ["checks[1]/q[0]/w Runs(Asked)", "checks[1]/b Undecided"];
    let plan = planned(&graph(&text), &left);
    let plan: Vec<_> = plan.iter().filter(|line| !line.ends_with("Reused")).collect();
    assert_eq!(plan, again);
}
