//! What raced in an earlier session does not race again: `control.end` ends its frame again, and a merge comes after the
//! node that it came after.

use inspan_protocol::{AgentError, Envelope, ErrorCode, Event, NodePath, Timestamp};

use super::{
    reuse::{planned, reusable, talk},
    sim::{AttemptStep, Sim, story},
};
use crate::{
    schedule::{AttemptEnd, Run, StartNode},
    testing::graph,
};

fn failure() -> AgentError {
    AgentError::new(ErrorCode::NodeFailed, "no")
}

/// As `talk`: but `slow` takes a second and `last` nine, `fails` fails after five and `broken` at once, and `end` gives its
/// input.
fn world(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let mut steps = talk(start, run);
    match start.path.node() {
        "slow" => steps.insert(2, AttemptStep::Until(Timestamp::from_millis(1000))),
        "last" => steps.insert(2, AttemptStep::Until(Timestamp::from_millis(9000))),
        "fails" => {
            let after = AttemptStep::Until(Timestamp::from_millis(5000));
            return vec![after, AttemptStep::End(AttemptEnd::Error(failure()))];
        }
        "broken" => return vec![AttemptStep::End(AttemptEnd::Error(failure()))],
        "end" => return vec![AttemptStep::End(AttemptEnd::Output(start.input.clone().unwrap()))],
        _ => {}
    }
    steps
}

/// What a session started and reused, in order, and how its frames and it ended.
fn done(sim: &Sim) -> Vec<String> {
    let line = |event: &Event, path: Option<&NodePath>| match event {
        Event::TaskStart { .. } => Some(format!("{} starts", path?)),
        Event::TaskReused { .. } => Some(format!("{} reused", path?)),
        Event::FrameComplete { index, outputs, .. } => Some(format!("{}[{index}] {outputs}", path?)),
        Event::HarnessComplete { outcome, outputs, .. } => {
            let outputs = outputs.as_ref().map(|outputs| format!(" {outputs}"));
            Some(format!("{outcome:?}{}", outputs.unwrap_or_default()))
        }
        _ => None,
    };
    sim.log.iter().filter_map(|at| line(&at.event, at.context.task.as_ref())).collect()
}

/// Runs a flow, then the edited flow with what the first has left and this place run again, and compares what is done.
fn continues(flow: &str, edits: &[(&str, &str)], again: Option<&str>, expected: &[&str]) {
    let first = Sim::new(&graph(flow), &[]).driven(world);
    first.check();
    let mut left = reusable(&first, usize::MAX);
    if let Some(again) = again {
        left.run_again(NodePath::new(again));
    }
    let edited = edits.iter().fold(flow.to_owned(), |flow, (from, to)| {
        assert!(flow.contains(from), "no {from}");
        flow.replace(from, to)
    });
    let edited = graph(&edited);
    planned(&edited, &left);
    let second = Sim::reusing(&edited, left).driven(world);
    second.check();
    assert_eq!(done(&second), expected, "{}\n{}", story(&first.log), story(&second.log));
    let is_cut = |at: &Envelope| matches!(at.event, Event::TaskCancelled { .. });
    assert!(again.is_none() || !second.log.iter().any(is_cut), "{}", story(&second.log));
}

/// Of each item the fast agent wins, and the slow one is cancelled; then a node fails.
const RACE: &str = "
flow: { name: race }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2], maxConcurrency: 1 }
    body:
      outputs: { by: body }
      nodes:
        - { id: slow, type: talk.agent, input: { prompt: s } }
        - { id: fast, type: talk.agent, input: { prompt: f } }
        - { id: beside, type: talk.agent, input: { prompt: b } }
        - { id: m, type: control.merge, dependsOn: [slow, fast], input: { mode: any } }
        - { id: end, type: control.end, dependsOn: [m], input: { outputs: { by: end } } }
  - { id: fails, type: talk.agent, dependsOn: [each], input: { prompt: x } }
";

#[test]
fn the_loser_of_a_race_is_not_paid_again() {
    let expected = [
        "each starts",
        "each[0]/fast reused",
        "each[0]/beside reused",
        "each[0]/m reused",
        "each[0]/end reused",
        "each[0] {\"by\":\"end\"}",
        "each[1]/fast reused",
        "each[1]/beside reused",
        "each[1]/m reused",
        "each[1]/end reused",
        "each[1] {\"by\":\"end\"}",
        "last starts",
        "Success",
    ];
    continues(RACE, &[("id: fails", "id: last")], None, &expected);
}

#[test]
fn what_had_ended_before_the_frame_did_runs_before_it_ends_again() {
    let expected = [
        "each starts",
        "each[0]/fast reused",
        "each[0]/beside starts",
        "each[0]/m reused",
        "each[0]/end reused",
        "each[0] {\"by\":\"end\"}",
        "each[1]/fast reused",
        "each[1]/beside reused",
        "each[1]/m reused",
        "each[1]/end reused",
        "each[1] {\"by\":\"end\"}",
        "fails starts",
        "Failed",
    ];
    continues(RACE, &[], Some("each[0]/beside"), &expected);
}

#[test]
fn a_race_whose_winner_changed_is_run_again() {
    let one = RACE.replace("[1, 2]", "[1]");
    let edits = [("prompt: f }", "prompt: f2 }"), ("id: fails", "id: last")];
    let expected = [
        "each starts",
        "each[0]/fast starts",
        "each[0]/beside reused",
        "each[0]/slow starts",
        "each[0]/m starts",
        "each[0]/end starts",
        "each[0] {\"by\":\"end\"}",
        "last starts",
        "Success",
    ];
    continues(&one, &edits, None, &expected);
}

#[test]
fn a_loser_that_is_asked_for_runs_to_its_end() {
    let one = RACE.replace("[1, 2]", "[1]");
    let expected = [
        "each starts",
        "each[0]/slow starts",
        "each[0]/fast reused",
        "each[0]/beside reused",
        "each[0]/m reused",
        "each[0]/end reused",
        "each[0] {\"by\":\"end\"}",
        "fails starts",
        "Failed",
    ];
    continues(&one, &[], Some("each[0]/slow"), &expected);
}

#[test]
fn a_pass_that_ended_early_does_so_again() {
    let flow = "
flow: { name: early }
nodes:
  - id: l
    type: control.loop
    input: { maxIterations: 3, until: 'frame.index == 1' }
    body:
      outputs: { how: normal }
      nodes:
        - { id: a, type: talk.agent, input: { prompt: 'a {{ frame.index }}' } }
        - { id: end, type: control.end, dependsOn: [a], when: 'frame.index == 0', input: { outputs: { how: early } } }
        - { id: b, type: talk.agent, dependsOn: [a], input: { prompt: 'b {{ frame.index }}' } }
  - { id: fails, type: talk.agent, dependsOn: [l], input: { prompt: x } }
";
    let expected = [
        "l starts",
        "l[0]/a reused",
        "l[0]/end reused",
        "l[0] {\"how\":\"early\"}",
        "l[1]/a reused",
        "l[1]/b reused",
        "l[1] {\"how\":\"normal\"}",
        "last starts",
        "Success",
    ];
    continues(flow, &[("id: fails", "id: last")], None, &expected);
}

#[test]
fn what_follows_a_skipped_node_follows_what_that_one_follows() {
    let flow = "
flow: { name: skipped }
nodes:
  - { id: setup, type: talk.agent, input: { prompt: s } }
  - { id: write, type: talk.agent, input: { prompt: good } }
  - { id: fix, type: talk.agent, dependsOn: [write], when: \"write.pass == 9\", input: { prompt: f } }
  - { id: more, type: talk.agent, dependsOn: [fix], input: { prompt: m } }
  - { id: test, type: talk.agent, dependsOn: [setup, { node: more, on: any }], input: { prompt: t } }
  - { id: other, type: talk.agent, dependsOn: [setup], when: \"setup.pass == 9\", input: { prompt: o } }
  - { id: last, type: talk.agent, dependsOn: [{ node: other, on: skipped }], input: { prompt: l } }
";
    let expected = ["setup reused", "write starts", "last reused", "test starts", "Success"];
    continues(flow, &[("prompt: good", "prompt: bad")], None, &expected);
}

#[test]
fn a_merge_comes_after_the_node_that_it_came_after() {
    let flow = "
flow: { name: merge }
nodes:
  - { id: slow, type: talk.agent, input: { prompt: s } }
  - { id: m, type: control.merge, dependsOn: [slow, begin], input: { mode: any } }
  - { id: r, type: talk.agent, dependsOn: [m], input: { prompt: r } }
  - { id: begin, type: talk.agent, input: { prompt: b } }
  - { id: fast, type: talk.agent, dependsOn: [begin], input: { prompt: f } }
  - { id: m2, type: control.merge, dependsOn: [slow, fast], input: { mode: any } }
  - { id: r2, type: talk.agent, dependsOn: [m2], input: { prompt: r2 } }
";
    let rows = [
        (Some("fast"), ["slow reused", "fast starts", "m2 starts", "r2 starts"]),
        // The merge had not waited for it.
        (Some("slow"), ["slow starts", "fast reused", "m2 reused", "r2 reused"]),
        (None, ["slow reused", "fast reused", "m2 reused", "r2 reused"]),
    ];
    for (again, [slow, fast, m2, r2]) in rows {
        let expected = [slow, "begin reused", "m reused", "r reused", fast, m2, r2, "Success"];
        continues(flow, &[], again, &expected);
    }
}

#[test]
fn a_merge_does_not_come_after_a_branch_that_failed() {
    let flow = "
flow: { name: merge, policy: { failFast: false } }
nodes:
  - { id: fails, type: talk.agent, input: { prompt: f } }
  - { id: last, type: talk.agent, input: { prompt: l } }
  - { id: m, type: control.merge, dependsOn: [fails, last], input: { mode: any } }
  - { id: r, type: talk.agent, dependsOn: [m], input: { prompt: r } }
";
    for failing in ["fails", "broken", "other"] {
        let flow = flow.replace("fails", failing);
        let tried = if failing == "other" { "other reused" } else { &format!("{failing} starts") };
        let outcome = if failing == "other" { "Success" } else { "Partial" };
        continues(&flow, &[], None, &[tried, "last reused", "m reused", "r reused", outcome]);
    }
}

#[test]
fn a_failure_that_ends_its_frame_waits_for_what_had_ended_before_it() {
    let agent = |id: &str| format!("{{ id: {id}, type: talk.agent, input: {{ prompt: go }} }}");
    let flow = |policy: &str, input: &str, nodes: &[&str]| {
        format!(
            "flow: {{ name: beside }}\nnodes:\n  - {{ id: each, type: control.foreach, {policy} input: {{ {input} }}, \
             body: {{ nodes: [{}] }} }}\n  - {{ id: z, type: talk.agent, dependsOn: [each], input: {{ prompt: z }} }}\n",
            nodes.join(", ")
        )
    };
    let continues_on = "items: [1], onItemError: continue";
    let [slow, fails, last] = ["slow", "fails", "last"].map(agent);
    let after = agent("after").replace(", input", ", dependsOn: [{ node: fails, on: any }], input");
    let inner = format!(
        "{{ id: l, type: control.loop, input: {{ maxIterations: 1 }}, body: {{ nodes: [{fails}] }} }}"
    );
    let of_two = fails.replace(", input", ", when: \"item == 2\", input");
    let rows = [
        (
            flow("", continues_on, &[&slow, &fails, &last, &after]),
            &[
                "each starts",
                "each[0]/slow starts",
                "each[0]/fails reused",
                "each[0]/after reused",
                "z starts",
                "Success",
            ][..],
        ),
        // Who handles the failure may be further out.
        (
            flow("", continues_on, &[&slow, &inner, &last]),
            &[
                "each starts",
                "each[0]/slow starts",
                "each[0]/l starts",
                "each[0]/l[0]/fails reused",
                "z starts",
                "Success",
            ],
        ),
        // And the frame of another item may end with it.
        (
            flow("policy: { continueOnError: true },", "items: [1, 2]", &[&slow, &of_two]),
            &[
                "each starts",
                "each[0]/slow starts",
                "each[1]/slow reused",
                "each[0] {\"slow\":{\"pass\":1,\"text\":\"each[0]/slow\"}}",
                "each[1]/fails reused",
                "z starts",
                "Success",
            ],
        ),
    ];
    for (flow, expected) in rows {
        continues(&flow, &[("name: beside", "name: edited")], Some("each[0]/slow"), expected);
    }
}

#[test]
fn what_came_after_a_handler_that_was_cut_is_reused() {
    let flow = |slow: &str, around: &str| {
        let nodes = format!(
            "
      - {{ id: broken, type: talk.agent, input: {{ prompt: b }} }}
      - {{ id: ok, type: talk.agent, input: {{ prompt: o }} }}
      - {{ id: last, type: talk.agent, dependsOn: [{{ node: broken, on: failure }}], input: {{ prompt: l }} }}
      - {{ id: x, type: talk.agent, dependsOn: [broken, ok], input: {{ prompt: x }} }}
      - {{ id: slow, type: talk.agent, {slow}input: {{ prompt: s }} }}
      - {{ id: end, type: control.end, dependsOn: [slow] }}
"
        );
        format!("flow: {{ name: cut }}\nnodes:\n{around}{nodes}")
    };
    let each = "
  - id: each
    type: control.foreach
    input: { items: [1] }
    body:
      nodes:";
    for (slow, around) in [("", ""), ("dependsOn: [x], ", ""), ("", each), ("dependsOn: [x], ", each)] {
        let flow = graph(&flow(slow, around));
        let mut sim = Sim::new(&flow, &[]).driven(world);
        let prefix = if around.is_empty() { "" } else { "each[0]/" };
        let lasts = |sim: &Sim| {
            sim.log.iter().any(|at| at.context.task == Some(NodePath::new(&format!("{prefix}last"))))
        };
        assert!(lasts(&sim), "{}", story(&sim.log));
        // What takes the work over leaves all of it to the next.
        for _ in 0..2 {
            let left = reusable(&sim, usize::MAX);
            planned(&flow, &left);
            sim = Sim::reusing(&flow, left).driven(world);
            sim.check();
            let found = done(&sim);
            let is_reused = |id: &str| found.contains(&format!("{prefix}{id} reused"));
            let is_whole = found.contains(&"each reused".to_owned());
            assert!(
                is_whole || ["broken", "ok", "x", "slow", "end"].iter().all(|id| is_reused(id)),
                "{}",
                story(&sim.log)
            );
            assert!(
                !found.iter().any(|line| line.ends_with("starts") && line != "each starts"),
                "{}",
                story(&sim.log)
            );
        }
    }
}

/// A frame that ends again without a node asks nobody about it.
#[test]
fn a_loser_that_may_have_taken_effect_is_not_asked_about() {
    let flow = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1], onItemError: continue }
    body:
      nodes:
        - { id: slow, type: talk.agent, effects: external, input: { prompt: pay } }
        - { id: broken, type: talk.agent, input: { prompt: x } }
";
    let left = reusable(&Sim::new(&graph(flow), &[]).driven(world), usize::MAX);
    let edited = graph(&flow.replace("pay", "pays"));
    assert_eq!(planned(&edited, &left), ["each[0]/broken Reused"]);
    let next = Sim::reusing(&edited, left).driven(world);
    next.check();
    let asks = next.log.iter().any(|at| matches!(at.event, Event::SessionPrompt(_)));
    assert!(!asks, "{}", story(&next.log));
}
