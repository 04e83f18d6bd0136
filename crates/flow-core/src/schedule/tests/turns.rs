//! What the agents of a chain of sessions are sent, of which each reuses the work of the one before: the same as in a session
//! that reuses nothing.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::{AgentError, ErrorCode, NodePath, RunSnapshot, SessionId};
use serde_json::json;

use super::reuse::reusable;
use super::sim::{AttemptStep, Sim, story};
use crate::{
    Graph,
    schedule::{AttemptEnd, Reusable, Run, StartNode},
    testing::{graph, graph_with_subflow},
};

/// What is said in each conversation, by its name.
type Conversations = BTreeMap<String, Vec<String>>;

/// A vendor that keeps what is said in its conversations. The place of a turn has another name in each of them.
#[derive(Default)]
struct Vendor {
    conversations: Conversations,
    /// The same after each event at which a turn began.
    since: Vec<(u64, Conversations)>,
    named: usize,
    /// What each turn was sent, the turns before it included.
    sent: Vec<Vec<String>>,
    /// The node that fails, and whether it does so in the midst of its turn.
    fails: Option<(&'static str, bool)>,
}

impl Vendor {
    fn answer(&mut self, start: &StartNode, run: &Run) -> Vec<AttemptStep> {
        let prompt = start.input.as_ref().unwrap()["prompt"].as_str().unwrap().to_owned();
        let failure = self.fails.filter(|(node, _)| *node == start.path.node());
        if failure.is_some_and(|(_, works)| !works) {
            let error = AgentError::new(ErrorCode::NodeFailed, "it fails");
            return vec![AttemptStep::End(AttemptEnd::Error(error))];
        }
        self.named += 1;
        let named = format!("c{}", self.named);
        let (name, mut said) = match (&start.conversation, &start.branches) {
            (Some(known), _) => {
                let name = known.session_id.to_string();
                (name.clone(), self.conversations[&name].clone())
            }
            (None, Some(known)) => {
                let end = known.turn_id.as_ref().expect("the place of the branch");
                let (name, turns) = end.as_str().split_once('.').unwrap();
                assert_eq!(name, known.session_id.as_str(), "{} branches it at {end}", start.path);
                (named, self.conversations[name][..turns.parse().unwrap()].to_vec())
            }
            (None, None) => (named, Vec::new()),
        };
        // One that goes on has its prompt already, and so has one whose process died when it had just begun.
        if start.interrupted.as_ref().is_none_or(|cut| cut.message.is_none()) {
            if said.last() != Some(&prompt) {
                said.push(prompt.clone());
            }
            self.sent.push(said.clone());
        }
        let end = format!("{name}.{}", said.len());
        self.conversations.insert(name.clone(), said);
        self.since.push((run.state().session.last_seq, self.conversations.clone()));
        let ends = match failure {
            Some(_) => {
                let error = AgentError::new(ErrorCode::Auth, "log in");
                [
                    AttemptStep::Spent(Some(0.1), 1),
                    AttemptStep::Complete,
                    AttemptStep::End(AttemptEnd::Error(error)),
                ]
            }
            None => {
                let output = AttemptEnd::Output(json!({ "text": prompt }));
                [AttemptStep::TurnEnd(end), AttemptStep::Complete, AttemptStep::End(output)]
            }
        };
        [AttemptStep::Begin, AttemptStep::Name(name)].into_iter().chain(ends).collect()
    }

    /// As it was when the log of the session had this many events.
    fn at(&self, events: usize, before: &Conversations) -> Self {
        let known = self.since.iter().rfind(|(seq, _)| *seq <= events as u64);
        let conversations = known.map_or(before, |(_, known)| known).clone();
        Self { conversations, named: self.named, fails: self.fails, ..Self::default() }
    }
}

/// Sessions of which each reuses the work of the one before.
#[derive(Default)]
struct Chain {
    vendor: Vendor,
    left: Option<Reusable>,
}

impl Chain {
    /// The next session, which replaces the one before. Gives what its agents are sent; each of that is what an agent of a new
    /// session is sent too, also if the process dies at any place of the log.
    fn resume(&mut self, graph: &Arc<Graph>) -> Vec<String> {
        let fresh = RefCell::new(Vendor::default());
        Sim::new(graph, &[]).driven(|start, run| fresh.borrow_mut().answer(start, run));
        let fresh: BTreeSet<_> = fresh.into_inner().sent.into_iter().collect();
        let expect = |sent: &[Vec<String>], log: &str| {
            let wrong: Vec<_> = sent.iter().filter(|sent| !fresh.contains(*sent)).collect();
            assert!(wrong.is_empty(), "{wrong:#?}\nof {fresh:#?}\n{log}");
        };
        let left = self.left.take();
        let before = self.vendor.conversations.clone();
        let vendor = RefCell::new(std::mem::take(&mut self.vendor));
        let begun =
            left.as_ref().map_or_else(|| Sim::new(graph, &[]), |left| Sim::reusing(graph, left.clone()));
        let sim = begun.driven(|start, run| vendor.borrow_mut().answer(start, run));
        sim.check();
        let mut vendor = vendor.into_inner();
        expect(&vendor.sent, &story(&sim.log));
        for cut in 1..sim.log.len() {
            let Some(left) = &left else { break };
            let vendor = RefCell::new(vendor.at(cut, &before));
            let mut crashed = Sim::reusing_log(graph, left.clone(), &sim.log[..cut]);
            crashed.resume(None, &BTreeMap::new());
            let crashed = crashed.driven(|start, run| vendor.borrow_mut().answer(start, run));
            expect(&vendor.borrow().sent, &story(&crashed.log));
        }
        self.left = Some(reusable(&sim, usize::MAX));
        vendor.since.clear();
        let sent = std::mem::take(&mut vendor.sent);
        self.vendor = vendor;
        sent.iter().map(|sent| sent.join(", ")).collect()
    }

    /// The same of a session that branches off and runs these nodes again.
    fn fork(&mut self, graph: &Arc<Graph>, again: &[&str]) -> Vec<String> {
        let left = self.left.as_mut().expect("an earlier session");
        left.branch_off();
        again.iter().for_each(|place| left.run_again(NodePath::new(place)));
        self.resume(graph)
    }

    fn failing(&mut self, node: &'static str, works: bool, graph: &Arc<Graph>) -> Vec<String> {
        self.vendor.fails = Some((node, works));
        let sent = self.resume(graph);
        self.vendor.fails = None;
        sent
    }
}

const WRITE: &str = "
        - { id: write, type: talk.agent, input: { prompt: 'write' } }
        - { id: review, type: talk.agent, session: write, input: { prompt: review }, dependsOn: [write] }
        - { id: gate, type: talk.agent, input: { prompt: gate }, dependsOn: [review] }
        - { id: fix, type: talk.agent, session: write, input: { prompt: fix }, dependsOn: [gate] }
";

/// The agents of [`WRITE`] for each item.
fn each(items: &str, fix: &str) -> Arc<Graph> {
    let body =
        WRITE.replace("'write'", "'write {{ item }}'").replace("prompt: fix", &format!("prompt: {fix}"));
    graph(&format!(
        "
flow: {{ name: each }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: {items}, maxConcurrency: 1 }}
    body:
      nodes:{body}"
    ))
}

#[test]
fn a_session_that_fails_twice_keeps_the_turns_of_its_agents() {
    let flow = each("[a]", "fix");
    let mut chain = Chain::default();
    assert_eq!(chain.failing("gate", false, &flow), ["write a", "write a, review"]);
    assert!(chain.failing("gate", false, &flow).is_empty());
    assert!(chain.failing("gate", false, &flow).is_empty());
    assert_eq!(chain.resume(&flow), ["gate", "write a, review, fix"]);
}

#[test]
fn a_node_that_runs_again_and_again_is_sent_the_turns_before_it() {
    let looped = format!(
        "
flow: {{ name: looped }}
nodes:
  - id: each
    type: control.loop
    input: {{ maxIterations: 2, onExhausted: continue }}
    body:
      nodes:{}",
        WRITE.replace("'write'", "'write {{ frame.index }}'")
    );
    let subflow = "
flow: { name: outer }
nodes: [{ id: each, type: control.subflow, input: { file: sub.yaml } }]
";
    let sub = format!("flow: {{ name: sub }}\nnodes:{}", WRITE.replace("        - ", "  - "));
    let nested = each("[a, b]", "fix");
    for flow in [nested, graph(&looped), graph_with_subflow(subflow, &sub)] {
        let mut chain = Chain::default();
        let first = chain.resume(&flow);
        let fixes = |sent: &[String]| sent.iter().filter(|sent| sent.ends_with("review, fix")).count();
        for place in ["each/fix", "each/gate", "each/fix", "each/fix"] {
            let sent = chain.fork(&flow, &[place]);
            assert_eq!(fixes(&sent), fixes(&first), "{sent:#?}");
        }
    }
    // Also where its author has changed it each time.
    let mut chain = Chain::default();
    for fix in ["fix", "mend", "repair", "repair again", "fix"] {
        let sent = chain.resume(&each("[a, b]", fix));
        assert!(sent.ends_with(&[format!("write b, review, {fix}")]), "{sent:#?}");
    }
}

#[test]
fn an_item_that_has_moved_takes_the_turns_of_its_agents_along() {
    let mut chain = Chain::default();
    chain.resume(&each("[a, b, c]", "fix"));
    for (items, fix) in [
        ("[new, a, b, c]", "mend"),
        ("[c, a, b]", "mend again"),
        ("[b]", "repair"),
        ("[a, b]", "fix"),
        ("[b, a]", "mend"),
    ] {
        let flow = each(items, fix);
        let sent = chain.resume(&flow);
        let fixes = sent.iter().filter(|sent| sent.ends_with(&format!("review, {fix}"))).count();
        assert_eq!(fixes, items.split(',').count(), "{sent:#?}");
        assert_eq!(chain.fork(&flow, &["each/fix"]).len(), fixes);
    }
}

#[test]
fn turns_that_a_session_has_not_reached_are_left_to_the_next() {
    let flow = |items: &str, fix: &str| {
        let begins = "        - { id: write, type: talk.agent,";
        let check = "        - { id: check, type: talk.agent, input: { prompt: 'check {{ item }}' } }";
        let text = each(items, fix).source.text.clone();
        graph(&text.replace(begins, &format!("{check}\n{begins} dependsOn: [check],")))
    };
    let mut chain = Chain::default();
    chain.resume(&flow("[a, b]", "fix"));
    assert!(chain.failing("check", false, &flow("[x, a, b]", "fix")).is_empty());
    let sent = chain.resume(&flow("[y, b, a]", "mend"));
    let mended = sent.iter().filter(|sent| sent.ends_with("mend")).map(String::as_str);
    let expected = ["write y, review, mend", "write b, review, mend", "write a, review, mend"];
    assert_eq!(mended.collect::<BTreeSet<_>>(), BTreeSet::from(expected), "{sent:#?}");
}

const TALK: &str = "
flow: { name: talk }
nodes:
  - { id: plan, type: talk.agent, input: { prompt: plan } }
  - { id: code, type: talk.agent, session: plan, input: { prompt: code }, dependsOn: [plan] }
  - { id: fix, type: talk.agent, session: plan, input: { prompt: fix }, dependsOn: [code] }
  - { id: doc, type: talk.agent, session: plan, input: { prompt: doc }, dependsOn: [fix] }
  - { id: ask, type: talk.agent, session: { from: code, fork: true }, input: { prompt: ask }, dependsOn: [doc] }
  - { id: end, type: talk.agent, session: fix, input: { prompt: end }, dependsOn: [ask] }
";

#[test]
fn a_conversation_that_went_on_in_a_branch_is_one_conversation() {
    let flow = graph(TALK);
    let mut chain = Chain::default();
    assert_eq!(chain.resume(&flow).len(), 6);
    assert_eq!(chain.fork(&flow, &["fix"])[..2], ["plan, code, fix", "plan, code, fix, doc"]);
    for (place, most) in [("doc", 3), ("end", 1), ("code", 5), ("end", 1), ("ask", 2), ("fix", 4), ("doc", 3)]
    {
        assert_eq!(chain.fork(&flow, &[place]).len(), most, "{place}");
    }
    // What replaces the other session and has nothing that it has not goes on in the branch itself.
    chain.failing("doc", false, &graph(&TALK.replace("prompt: fix", "prompt: mend")));
    let sent = chain.resume(&graph(&TALK.replace("prompt: fix", "prompt: mend")));
    assert_eq!(sent[0], "plan, code, mend, doc");
    // Each node in turn, from the last to the first, and back.
    for place in ["end", "doc", "fix", "code", "plan", "code", "fix", "doc", "end"] {
        let text = TALK.replace(&format!("prompt: {place}"), &format!("prompt: {place} more"));
        chain.resume(&graph(&text));
        chain.resume(&graph(TALK));
    }
}

#[test]
fn a_conversation_that_is_continued_in_frames_and_loops_has_their_turns() {
    let text = "
flow: { name: outer }
nodes:
  - { id: plan, type: talk.agent, input: { prompt: plan } }
  - id: each
    type: control.foreach
    dependsOn: [plan]
    input: { items: [a, b], maxConcurrency: 1 }
    body: { nodes: [{ id: code, type: talk.agent, session: plan, input: { prompt: 'code {{ item }}' } }] }
  - { id: fin, type: talk.agent, session: plan, input: { prompt: fin }, dependsOn: [each] }
  - { id: last, type: talk.agent, session: plan, input: { prompt: last }, dependsOn: [fin] }
";
    let flow = graph(text);
    let mut chain = Chain::default();
    chain.resume(&flow);
    for (place, most) in [("fin", 2), ("last", 1), ("fin", 2), ("each[1]", 3), ("last", 1), ("fin", 2)] {
        let sent = chain.fork(&flow, &[place]);
        assert_eq!(sent.len(), most, "{place}");
        assert!(sent.ends_with(&["plan, code a, code b, fin, last".to_owned()]), "{sent:#?}");
    }
    chain.failing("fin", false, &graph(&text.replace("{{ item }}", "{{ item }}!")));
    assert_eq!(chain.resume(&graph(&text.replace("{{ item }}", "{{ item }}!"))).len(), 2);
    let edges = "
flow: { name: passes }
nodes:
  - { id: plan, type: talk.agent, input: { prompt: 'plan' } }
  - { id: code, type: talk.agent, session: code, input: { prompt: 'code {{ frame.pass }}' }, dependsOn: [plan] }
  - { id: rev, type: talk.agent, session: plan, input: { prompt: 'rev {{ frame.pass }}' } }
  - { id: out, type: talk.agent, session: code, input: { prompt: out } }
  - { id: end, type: talk.agent, session: plan, input: { prompt: end }, dependsOn: [out] }
edges:
  - { from: code, to: rev }
  - { from: rev, to: code, when: 'frame.pass < 3', maxIterations: 4 }
  - { from: rev, to: out }
";
    let flow = graph(edges);
    let mut chain = Chain::default();
    chain.resume(&flow);
    for (place, most) in
        [("rev#2", 5), ("end", 1), ("out", 2), ("code#3", 4), ("out", 2), ("rev", 7), ("end", 1)]
    {
        assert_eq!(chain.fork(&flow, &[place]).len(), most, "{place}");
    }
}

#[test]
fn an_agent_that_goes_on_after_a_failure_says_its_turn_to_those_after_it() {
    let flow = graph(TALK);
    let mut chain = Chain::default();
    assert_eq!(chain.failing("code", true, &flow), ["plan", "plan, code"]);
    let sent = chain.resume(&flow);
    assert_eq!(sent[..2], ["plan, code, fix", "plan, code, fix, doc"]);
    assert_eq!(chain.fork(&flow, &["doc"]).len(), 3);
}

#[test]
fn a_snapshot_has_what_was_taken_over() {
    let flow = each("[a, b]", "fix");
    let mut chain = Chain::default();
    chain.resume(&flow);
    let mut left = chain.left.unwrap();
    left.run_again(NodePath::new("each/fix"));
    let vendor = RefCell::new(chain.vendor);
    let sim = Sim::reusing(&flow, left).driven(|start, run| vendor.borrow_mut().answer(start, run));
    let taken_over = &sim.run.facts.taken_over;
    assert_eq!(taken_over.len(), 6, "{taken_over:?}");
    let saved = serde_json::to_string(&sim.run.snapshot(&flow.input)).unwrap();
    let snapshot: RunSnapshot = serde_json::from_str(&saved).unwrap();
    let mut restored = Run::new(flow.clone(), &SessionId::from("t"), flow.input.clone(), None);
    restored.restore(&snapshot);
    assert_eq!(restored.facts.taken_over, *taken_over);
}
