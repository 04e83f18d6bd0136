//! The conversations that agents continue and branch, in a session that reuses the work of another one.

use inspan_protocol::{Event, NodePath, ProviderSessionId};

use super::reuse::{planned, reusable, talk};
use super::sim::{AttemptStep, Sim, story};
use crate::{
    schedule::{Reusable, Run, StartNode},
    state::Conversation,
    testing::graph,
};

const CONVERSATION: &str = "
flow: { name: talk }
nodes:
  - { id: first, type: talk.agent, input: { prompt: one } }
  - { id: second, type: talk.agent, session: first, input: { prompt: two }, dependsOn: [first] }
  - { id: third, type: talk.agent, session: first, input: { prompt: three }, dependsOn: [second] }
";

/// Agents as vendors have them: a conversation that is continued keeps its name, and a branch gets a new one.
fn vendor(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let known = start.conversation.as_ref().map(|known| known.session_id.to_string());
    let mut steps = talk(start, run);
    steps[1] = AttemptStep::Name(known.unwrap_or_else(|| format!("c-{}", start.path)));
    steps
}

/// As [`vendor`], where the vendor also names the place at which a turn ends.
fn vendor_with_places(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let mut steps = vendor(start, run);
    steps[2] = AttemptStep::TurnEnd(format!("end-{}", start.path));
    steps
}

/// What each attempt continued, and what it branched where.
fn seen(sim: &Sim) -> Vec<String> {
    let id = |known: &Option<Conversation>| match known {
        Some(Conversation { session_id, turn_id: Some(end), .. }) => format!("{session_id}@{end}"),
        Some(known) => known.session_id.to_string(),
        None => "-".to_owned(),
    };
    let started = sim.started.iter();
    started
        .map(|start| format!("{} {} {}", start.path, id(&start.conversation), id(&start.branches)))
        .collect()
}

/// What is seen after a crash at each place of the log of a session that reuses this work.
fn seen_after_crashes(
    left: &Reusable,
    sim: &Sim,
    world: fn(&StartNode, &Run) -> Vec<AttemptStep>,
) -> Vec<Vec<String>> {
    let after = |cut: usize| {
        let mut crashed = Sim::reusing_log(sim.run.graph(), left.clone(), &sim.log[..cut]);
        crashed.resume(None, &Default::default());
        crashed.drive(world);
        crashed.check();
        seen(&crashed)
    };
    (1..sim.log.len()).map(after).collect()
}

/// What a session has left that is to run this node again: for one that only replaces it, and goes on where that was, since its
/// agent has not said what the other's had; and for one that branches off.
fn left_by(sim: &Sim, again: &str) -> [Reusable; 2] {
    let mut left = reusable(sim, usize::MAX);
    left.run_again(NodePath::new(again));
    let mut shared = left.clone();
    shared.branch_off();
    [left, shared]
}

/// The first message in the log.
fn warned(sim: &Sim) -> String {
    let said = sim.log.iter().find_map(|envelope| match &envelope.event {
        Event::Log { message, .. } => Some(message.clone()),
        _ => None,
    });
    said.unwrap_or_default()
}

#[test]
fn a_conversation_of_another_session_is_branched_and_stays_as_it_is() {
    let graph = graph(CONVERSATION);
    let sim = Sim::new(&graph, &[]).driven(vendor);
    let mut left = reusable(&sim, usize::MAX);
    left.run_again(NodePath::new("second"));
    left.branch_off();
    assert_eq!(seen(&sim), ["first - -", "second c-first -", "third c-first -"]);
    let fork = Sim::reusing(&graph, left.clone()).driven(vendor);
    fork.check();
    assert_eq!(seen(&fork), ["second - c-first", "third c-second -"], "{}", story(&fork.log));
    let later = "`second` continues a conversation that has later turns, of `second` in session `s`";
    assert_eq!(warned(&fork), later);
    // A crash changes none of it.
    for continued in seen_after_crashes(&left, &fork, vendor) {
        let wrong =
            continued.iter().filter(|start| start.contains("c-first") && !start.ends_with("- c-first"));
        assert_eq!(wrong.count(), 0, "{continued:?}");
        assert!(continued.iter().all(|start| !start.starts_with("third - ")), "{continued:?}");
    }
    // Where the other session had got no further, nothing is said.
    let first_end = sim.log.iter().position(|envelope| envelope.event.name() == "task:complete").unwrap();
    let mut before = Sim::new(&graph, &[]);
    before.log = sim.log[..=first_end].to_vec();
    let early = Sim::reusing(&graph, reusable(&before, usize::MAX)).driven(vendor);
    assert_eq!((seen(&early).len(), warned(&early)), (2, String::new()));
    // A session that replaces the other one continues its conversation.
    assert_eq!(seen(&early), ["second c-first -", "third c-first -"]);
    // What came after the point of the fork counts.
    let fork = Sim::reusing(&graph, reusable(&sim, first_end + 1)).driven(vendor);
    assert_eq!(warned(&fork), later.replace("turns, of `second`", "turns, of `third`"));
    // An agent that cannot branch continues what no other session can, and else says what to do.
    let text = CONVERSATION.replace("talk.agent", "chat.agent");
    let graph = crate::testing::graph(&text);
    let sim = Sim::new(&graph, &[]).driven(vendor);
    let mut left = reusable(&sim, usize::MAX);
    left.run_again(NodePath::new("second"));
    let resumed = Sim::reusing(&graph, left.clone()).driven(vendor);
    assert_eq!(seen(&resumed), ["second c-first -", "third c-first -"]);
    left.branch_off();
    let fork = Sim::reusing(&graph, left).driven(vendor);
    let error = fork.run.state().failure().unwrap().message.clone();
    let expected = "`second` cannot continue the conversation of `first`: session `s` may continue it too, and `chat.agent` \
                    cannot branch it; fork at `first` or at a node before it";
    assert_eq!(error, expected);
}

#[test]
fn an_agent_in_the_conversation_of_another_is_not_in_a_new_one() {
    let graph = graph(CONVERSATION);
    let turns = |mut sim: Sim| {
        sim.until_event("agent:session", vendor);
        let mut crashed = Sim::new(&graph, &sim.log);
        crashed.resume(None, &Default::default());
        crashed.drive(vendor);
        let known = crashed.started.iter().find(|start| start.path.as_str() == "second");
        known.and_then(|start| Some(start.conversation.as_ref()?.turns))
    };
    let sim = Sim::new(&graph, &[]).driven_to("agent:session", vendor);
    assert_eq!(turns(Sim::new(&graph, &sim.log)), Some(1), "another agent had a turn in it");
    let whole = Sim::new(&graph, &[]).driven(vendor);
    let mut left = reusable(&whole, usize::MAX);
    left.run_again(NodePath::new("second"));
    left.branch_off();
    assert_eq!(turns(Sim::reusing(&graph, left)), Some(1), "it is a branch");
    // Its own conversation of an earlier pass is another one.
    let id = |name: &str| ProviderSessionId::from(name);
    let mut own = Some(Conversation::new(id("earlier")));
    Conversation::name(&mut own, &id("now"), Some(Conversation { turns: 2, ..Conversation::new(id("now")) }));
    assert_eq!(own.map(|own| (own.session_id, own.turns)), Some((id("now"), 2)));
}

#[test]
fn another_conversation_is_a_reason_to_run_again() {
    let sim = super::reuse::ran(CONVERSATION);
    let edited =
        graph(&CONVERSATION.replace("session: first, input: { prompt: two }", "input: { prompt: two }"));
    let plan = planned(&edited, &reusable(&sim, usize::MAX));
    assert_eq!(plan, ["first Reused", "second Runs(Session)", "third Undecided"]);
}

#[test]
fn a_branch_begins_after_the_turn_of_the_node_whose_conversation_it_is() {
    let graph = graph(CONVERSATION);
    let sim = Sim::new(&graph, &[]).driven(vendor_with_places);
    for left in left_by(&sim, "second") {
        let next = Sim::reusing(&graph, left.clone()).driven(vendor_with_places);
        next.check();
        let branched = ["second - c-first@end-first", "third c-second@end-first -"];
        assert_eq!((seen(&next), warned(&next)), (branched.map(str::to_owned).to_vec(), String::new()));
        for starts in seen_after_crashes(&left, &next, vendor_with_places) {
            assert!(starts.iter().all(|start| !start.contains("second c-first")), "{starts:?}");
        }
    }
    // Also a branch within one session, whatever the conversation came to since.
    let text = CONVERSATION.replace(
        "id: third, type: talk.agent, session: first",
        "id: third, type: talk.agent, session: { from: first, fork: true }",
    );
    let sim = Sim::new(&crate::testing::graph(&text), &[]).driven(vendor_with_places);
    assert_eq!(seen(&sim)[1..], ["second c-first@end-first -", "third - c-first@end-first"]);
    // Where nothing was said later, the conversation itself goes on.
    let first_end = sim.log.iter().position(|envelope| envelope.event.name() == "task:complete").unwrap();
    let mut before = Sim::new(&graph, &[]);
    before.log = sim.log[..=first_end].to_vec();
    let early = Sim::reusing(&graph, reusable(&before, usize::MAX)).driven(vendor_with_places);
    assert_eq!(seen(&early)[0], "second c-first@end-first -");
}

#[test]
fn a_node_goes_on_after_all_turns_that_are_reused_whichever_nodes_they_are() {
    let in_a_body = "
flow: { name: talk }
nodes:
  - { id: first, type: talk.agent, input: { prompt: one } }
  - id: second
    type: control.foreach
    dependsOn: [first]
    input: { items: [a, b], maxConcurrency: 1.0 }
    body: { nodes: [{ id: ask, type: talk.agent, session: first, input: { prompt: '{{ item }}' } }] }
  - { id: third, type: talk.agent, session: first, input: { prompt: three }, dependsOn: [second] }
";
    for (text, branched) in
        [(CONVERSATION, "third - c-first@end-second"), (in_a_body, "third - c-first@end-second[1]/ask")]
    {
        let graph = graph(text);
        let sim = Sim::new(&graph, &[]).driven(vendor_with_places);
        for left in left_by(&sim, "third") {
            let next = Sim::reusing(&graph, left).driven(vendor_with_places);
            next.check();
            assert_eq!((seen(&next), warned(&next)), (vec![branched.to_owned()], String::new()));
            // The session that reuses this one's work knows the turns by what this one reused.
            let mut again = reusable(&next, usize::MAX);
            again.run_again(NodePath::new("third"));
            let last = Sim::reusing(&graph, again).driven(vendor_with_places);
            assert_eq!(seen(&last), [branched]);
        }
    }
}
