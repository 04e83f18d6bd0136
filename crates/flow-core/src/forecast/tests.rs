//! Forecasts, from logs that are written by hand.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    Envelope, Event, EventContext, MultiTurn, NodeId, NodePath, Outcome, RunId, SessionId, Timestamp,
    TurnSpending, Usage,
};
use serde_json::{Map, json};

use super::*;
use crate::testing::{compiled, graph, loaded};

/// A log as it is written by hand: at which second what happened where.
#[derive(Default)]
struct PastLog(Vec<Arc<Envelope>>);

impl PastLog {
    fn at(mut self, second: u64, path: &str, event: Event) -> Self {
        let task = (!path.is_empty()).then(|| NodePath::new(path));
        let seq = self.0.len() as u64 + 1;
        let context = EventContext { task, ..EventContext::session(SessionId::from("s")) };
        let time = Timestamp::default() + Duration::from_secs(second);
        self.0.push(Arc::new(Envelope::new(context, seq, time, event)));
        self
    }

    /// A node begins, at a price if it is an agent, and completes.
    fn ran(self, path: &str, node_type: &str, seconds: (u64, u64), usd: Option<f64>) -> Self {
        let started = self.at(seconds.0, path, start(path, node_type));
        let spent = match usd {
            None => started,
            Some(usd) => {
                let (run_id, provider) = (RunId::from("r"), node_type.trim_end_matches(".agent").to_owned());
                let agent_name = "a".to_owned();
                let multi_turn = MultiTurn::default();
                let begun = Event::AgentStart {
                    agent_name,
                    run_id: run_id.clone(),
                    provider,
                    model: None,
                    turn: 1,
                    multi_turn,
                    listens: false,
                };
                // Half of it is said while the turn goes on.
                let half = TurnSpending { usage: Usage::default(), cost_usd: Some(usd / 2.0) };
                let spent =
                    Event::AgentSpent { usage: half.usage, cost_usd: half.cost_usd, run_id: run_id.clone() };
                let usage = Event::AgentUsage {
                    usage: Usage::default(),
                    cost_usd: Some(usd),
                    context: None,
                    turn_id: None,
                    reported: Some(half),
                    uncounted: false,
                    run_id,
                };
                started.at(seconds.0, path, begun).at(seconds.0, path, spent).at(seconds.1, path, usage)
            }
        };
        spent.at(seconds.1, path, completed(path))
    }

    fn end(self, second: u64) -> Vec<Arc<Envelope>> {
        let end = Event::HarnessComplete {
            success: true,
            outcome: Outcome::Success,
            outputs: None,
            duration_ms: 0,
        };
        self.at(second, "", end).0
    }
}

fn id(path: &str) -> NodeId {
    NodeId::new(NodePath::new(path).node()).unwrap()
}

fn start(path: &str, node_type: &str) -> Event {
    Event::TaskStart {
        task_id: id(path),
        node_type: node_type.into(),
        attempt: 1,
        path: NodePath::new(path),
        cleans_up: false,
        since: None,
        session_id: None,
        messages: Vec::new(),
    }
}

fn completed(path: &str) -> Event {
    Event::TaskComplete { task_id: id(path), result: Arc::default(), duration_ms: 0 }
}

fn frame(path: &str, index: u32) -> [Event; 2] {
    [
        Event::FrameStart { task_id: id(path), index, input: None, carried: None },
        Event::FrameComplete {
            task_id: id(path),
            index,
            outputs: Arc::default(),
            duration_ms: 0,
            ends_loop: false,
        },
    ]
}

fn of(text: &str, input: serde_json::Value, logs: &[Vec<Arc<Envelope>>]) -> Forecast {
    let mut history = History::default();
    let is_read = |event: &&Arc<Envelope>| History::EVENTS.contains(&event.event.name());
    for log in logs {
        history.add(&log.iter().filter(is_read).cloned().collect::<Vec<_>>(), &[]);
    }
    let input: Map<_, _> = input.as_object().cloned().unwrap_or_default();
    forecast(&graph(text), &input, &history, &NotRun::default())
}

fn estimate(low: f64, expected: impl Into<Option<f64>>, high: impl Into<Option<f64>>) -> Estimate {
    Estimate { low, expected: expected.into(), high: high.into() }
}

fn times(forecast: &Forecast) -> Vec<(&str, Estimate)> {
    forecast.nodes.iter().map(|node| (&*node.path, node.times)).collect()
}

const FAN: &str = "
flow: { name: f }
nodes:
  - { id: plan, type: talk.agent, input: { prompt: x } }
  - id: each
    type: control.foreach
    dependsOn: [plan]
    input: { items: ITEMS, maxConcurrency: 2 }
    body:
      nodes:
        - { id: work, type: talk.agent, input: { prompt: '{{ item }}' } }
        - { id: check, type: exec, dependsOn: [work], input: { argv: [make] } }
";

#[test]
fn fan_outs_are_multiplied_out_as_far_as_the_flow_and_its_input_tell() {
    let rows = [
        ("[a, b, c]", estimate(3.0, 3.0, 3.0), CountSource::Flow),
        ("'{{ flow.input.all }}'", estimate(2.0, 2.0, 2.0), CountSource::Flow),
        // What a node gives is not known before it has run, whatever the default is.
        ("'{{ plan.all | default([]) }}'", Estimate::UNKNOWN, CountSource::Unknown),
    ];
    for (items, count, from) in rows {
        let found = of(&FAN.replace("ITEMS", items), json!({ "all": [1, 2] }), &[]);
        let each = &found.nodes[1];
        assert_eq!(each.frames, Some(FrameCount { of: FrameWord::Item, from, count }), "{items}");
        assert_eq!(found.nodes[2].times, count, "{items}");
        assert_eq!(
            found.unknown.contains(&"how many items `each` has".to_owned()),
            from == CountSource::Unknown
        );
        assert_eq!((found.cost_usd.expected, found.duration_ms.expected), (None, None));
    }
    let matrix = FAN.replace("items: ITEMS", "matrix: { os: [l, m], v: [1, 2] }, exclude: [{ os: m, v: 1 }]");
    assert_eq!(of(&matrix, json!({}), &[]).nodes[3].times, estimate(3.0, 3.0, 3.0));
}

#[test]
fn cost_and_time_come_from_earlier_runs_of_the_node() {
    let log = |plan: (u64, f64), items: u32| {
        let mut log = PastLog::default().ran("plan", "talk.agent", (0, plan.0), Some(plan.1)).at(
            10,
            "each",
            start("each", "control.foreach"),
        );
        for index in 0..items {
            let [begin, end] = frame("each", index);
            let (work, check) = (format!("each[{index}]/work"), format!("each[{index}]/check"));
            log = log.at(10, "each", begin).ran(&work, "talk.agent", (10, 14), Some(0.5));
            log = log.ran(&check, "exec", (14, 15), None).at(15, "each", end);
        }
        log.at(20, "each", completed("each")).end(20)
    };
    let logs = [log((2, 1.0), 2), log((4, 2.0), 4)];
    let found = of(&FAN.replace("ITEMS", "'{{ plan.all }}'"), json!({}), &logs);
    let each = estimate(2.0, 3.0, 4.0);
    assert_eq!(
        times(&found),
        [("plan", Estimate::ONE), ("each", Estimate::ONE), ("each/work", each), ("each/check", each)]
    );
    assert_eq!(
        found.nodes[1].frames,
        Some(FrameCount { of: FrameWord::Item, from: CountSource::History, count: each })
    );
    let costs: Vec<_> = found.nodes.iter().map(|node| (node.runs, node.cost_usd)).collect();
    let work = estimate(1.0, 1.5, 2.0);
    assert_eq!(costs, [(2, estimate(1.0, 1.5, 2.0)), (2, work), (6, work), (6, Estimate::ZERO)]);
    assert_eq!(found.cost_usd, estimate(2.0, 3.0, 4.0));
    // Two items at once take as long as the longer half of them: one, two and two rounds of five seconds.
    assert_eq!(found.duration_ms, estimate(7_000.0, 13_000.0, 14_000.0));
    assert_eq!((found.sessions, found.unknown), (2, Vec::<String>::new()));
}

#[test]
fn a_node_without_runs_is_guessed_from_nodes_like_it_and_never_from_another_model() {
    let text = "
flow: { name: f }
nodes:
  - { id: a, type: talk.agent, input: { prompt: x } }
  - { id: b, type: talk.agent, input: { prompt: x } }
  - { id: c, type: talk.agent, input: { prompt: x, options: { model: large } } }
";
    let log = PastLog::default().ran("a", "talk.agent", (0, 1), Some(0.25)).end(1);
    let found = of(text, json!({}), &[log]);
    let seen: Vec<_> = found.nodes.iter().map(|node| (node.based_on, node.cost_usd.expected)).collect();
    assert_eq!(seen, [(Basis::Node, Some(0.25)), (Basis::Flow, Some(0.25)), (Basis::Unknown, None)]);
    let unknown =
        ["what `c` costs: no completed run is known", "how long `c` takes: no completed run is known"];
    assert_eq!(found.unknown, unknown);
    assert_eq!(found.cost_usd, estimate(0.5, None, None));
}

/// A flow with a loop of edges, and one more node.
fn reviewed(refine: &str) -> String {
    format!(
        "
flow: {{ name: f }}
nodes:
  - {{ id: code, type: echo, input: {{ text: x }} }}
  - {{ id: review, type: echo, dependsOn: [code], input: {{ text: x }} }}
  - {{ id: fix, type: echo, when: flow.input.fix, dependsOn: [review], input: {{ text: x }} }}{refine}
edges: [{{ from: review, to: code, when: 'review.text == \"y\"', maxIterations: 3 }}]
"
    )
}

#[test]
fn loops_run_at_most_as_often_as_they_may_and_usually_as_they_did() {
    let text = &reviewed(
        "
  - id: refine
    type: control.loop
    input: { until: 'last.text == \"x\"', maxIterations: 5 }
    body: { nodes: [{ id: last, type: echo, input: { text: x } }] }
",
    );
    let fresh = of(text, json!({}), &[]);
    let passes = |expected: Option<f64>| estimate(1.0, expected, 4.0);
    assert_eq!(
        times(&fresh),
        [
            ("code", passes(None)),
            ("review", passes(None)),
            ("fix", estimate(0.0, 1.0, 1.0)),
            ("refine", Estimate::ONE),
            ("refine/last", estimate(1.0, None, 5.0)),
        ]
    );
    let log = |refined: u32| {
        let mut log = PastLog::default().at(0, "refine", start("refine", "control.loop"));
        for path in ["code", "review", "code#2", "review#2"] {
            log = log.ran(path, "echo", (0, 0), None);
        }
        for index in 0..refined {
            let [begin, end] = frame("refine", index);
            log = log
                .at(0, "refine", begin)
                .ran(&format!("refine[{index}]/last"), "echo", (0, 0), None)
                .at(0, "refine", end);
        }
        log.at(0, "refine", completed("refine")).end(0)
    };
    let found = of(text, json!({}), &[log(2), log(3)]);
    assert_eq!(
        times(&found),
        [
            ("code", passes(Some(2.0))),
            ("review", passes(Some(2.0))),
            ("fix", estimate(0.0, 0.0, 1.0)),
            ("refine", Estimate::ONE),
            ("refine/last", estimate(1.0, 2.5, 5.0)),
        ]
    );
}

#[test]
fn a_session_in_which_only_some_nodes_were_to_run_does_not_say_how_often_nodes_run() {
    let text = &reviewed(
        "
  - id: refine
    type: control.loop
    input: { maxIterations: 5, onExhausted: continue }
    body:
      nodes:
        - id: inner
          type: control.loop
          input: { maxIterations: 3, onExhausted: continue }
          body: { nodes: [{ id: last, type: echo, when: flow.input.fix, input: { text: x } }] }
",
    );
    let refine = |mut log: PastLog, refined: u32| {
        log = log.at(0, "refine", start("refine", "control.loop"));
        for index in 0..refined {
            let ([begin, end], inner) = (frame("refine", index), format!("refine[{index}]/inner"));
            log = log.at(0, "refine", begin).at(0, &inner, start(&inner, "control.loop"));
            for pass in 0..2 {
                let [begin, end] = frame(&inner, pass);
                let last = format!("{inner}[{pass}]/last");
                log = log.at(0, &inner, begin).ran(&last, "echo", (0, 0), None).at(0, &inner, end);
            }
            log = log.at(0, &inner, completed(&inner)).at(0, "refine", end);
        }
        log.at(0, "refine", completed("refine"))
    };
    let mut whole = PastLog::default();
    for path in ["code", "review", "code#2", "review#2", "fix"] {
        whole = whole.ran(path, "echo", (0, 0), None);
    }
    let mut history = History::default();
    history.add(&refine(whole, 3).end(0), &[]);
    let graph = graph(text);
    let expected = |history: &History| -> Vec<_> {
        let found = forecast(&graph, &Map::new(), history, &NotRun::default());
        found.nodes.iter().map(|node| node.times.expected).collect()
    };
    let usual = [2.0, 2.0, 1.0, 1.0, 3.0, 6.0].map(Some);
    assert_eq!(expected(&history), usual);
    for only in ["code", "refine/inner"] {
        let log = match only {
            "code" => PastLog::default().ran("code", "echo", (0, 0), None),
            _ => refine(PastLog::default(), 1),
        };
        history.add(&log.end(0), &[NodePath::new(only)]);
        assert_eq!(expected(&history), usual, "{only}");
    }
    // What ran in it is a run like any other.
    assert_eq!(history.nodes["code"].all.len(), 3);
    // The frames of a node that was asked for are whole ones.
    let [begin, end] = frame("refine[0]/inner", 0);
    let inner = PastLog::default().at(0, "refine[0]/inner", begin).at(0, "refine[0]/inner", end);
    history.add(&inner.end(0), &[NodePath::new("refine/inner")]);
    assert_eq!(history.within("refine/inner/last"), Some((0, 8.0 / 9.0, 1)));
}

#[test]
fn a_node_that_several_agents_may_work_on_costs_up_to_what_the_most_expensive_costs() {
    let text = "
flow:
  name: f
  input: { who: cheap }
  agents:
    cheap: { type: talk.agent, model: small }
    dear: { type: talk.agent, model: large }
nodes:
  - { id: pick, type: constant, input: { value: '{{ flow.input.who }}' } }
  - { id: named, agent: '{{ flow.input.who }}', input: { prompt: x } }
  - { id: chosen, agent: '{{ pick.value }}', dependsOn: [pick], input: { prompt: x } }
  - { id: helped, agent: cheap, input: { prompt: x }, fallback: [{ agent: dear }] }
";
    let log = |runs: &[(&str, &str, f64)]| {
        let mut log = PastLog::default();
        for (path, model, usd) in runs {
            let mut events = PastLog::default().ran(path, "talk.agent", (0, 1), Some(*usd)).0;
            for event in &mut events {
                let mut event = event.event.clone();
                if let Event::AgentStart { model: named, .. } = &mut event {
                    *named = Some((*model).to_owned());
                }
                log = log.at(0, path, event);
            }
        }
        log.end(1)
    };
    let forecast = |who: &str, logs: &[Vec<Arc<Envelope>>]| {
        let found = of(text, json!({ "who": who }), logs);
        let costs: Vec<_> = found.nodes[1..].iter().map(|node| node.cost_usd).collect();
        (
            costs,
            found
                .unknown
                .iter()
                .any(|unknown| unknown == "what `chosen` costs: not all of its agents have worked on it yet"),
        )
    };
    let cheap = log(&[("named", "small", 1.0), ("chosen", "small", 1.0), ("helped", "small", 1.0)]);
    let (one, fifty) = (estimate(1.0, 1.0, 1.0), estimate(50.0, 50.0, 50.0));
    // No run of the dear one is known.
    let costs = vec![one, Estimate::UNKNOWN, estimate(1.0, 1.0, None)];
    assert_eq!(forecast("cheap", std::slice::from_ref(&cheap)), (costs, true));
    // It is known from another node.
    let dear = log(&[("named", "large", 50.0)]);
    let rest = [estimate(1.0, None, 50.0), estimate(1.0, 1.0, 51.0)];
    assert_eq!(forecast("cheap", &[cheap.clone(), dear.clone()]), ([&[one], &rest[..]].concat(), true));
    assert_eq!(forecast("dear", &[cheap.clone(), dear]), ([&[fifty], &rest[..]].concat(), true));
    // Both have worked on it.
    let both = log(&[("chosen", "large", 50.0), ("helped", "large", 51.0)]);
    let costs = forecast("cheap", &[cheap, both]).0;
    assert_eq!(costs[1..], [estimate(1.0, 25.5, 50.0), estimate(1.0, 26.0, 51.0)]);
}

#[test]
fn a_node_does_not_run_for_certain_if_the_failure_before_it_is_handled() {
    let text = "
flow: { name: f }
nodes:
  - { id: try, type: exec, input: { argv: [make] } }
  - { id: good, type: echo, input: { text: x } }
  - { id: bad, type: echo, input: { text: x } }
  - { id: lenient, type: exec, policy: { continueOnError: true }, input: { argv: [make] } }
  - { id: after, type: echo, dependsOn: [lenient], input: { text: x } }
edges: [{ from: try, to: good }, { from: try, to: bad, on: failure }]
";
    let actions: Vec<_> = of(text, json!({}), &[]).nodes.iter().map(|node| node.action).collect();
    use Expected::{MayRun, Runs};
    assert_eq!(actions, [Runs, MayRun, MayRun, Runs, Runs]);
}

#[test]
fn what_was_asked_for_runs_once_whatever_earlier_sessions_did() {
    let text = "
flow: { name: f }
nodes:
  - { id: code, type: talk.agent, input: { prompt: x } }
  - { id: ship, type: talk.agent, when: flow.input.ship, dependsOn: [code], input: { prompt: x } }
  - id: each
    type: control.foreach
    when: flow.input.ship
    input: { items: [1, 2] }
    body: { nodes: [{ id: tell, type: talk.agent, when: item == 3, input: { prompt: x } }] }
  - id: passes
    type: control.loop
    input: { maxIterations: 5 }
    body: { nodes: [{ id: fix, type: talk.agent, input: { prompt: x } }] }
edges: [{ from: ship, to: code, when: 'ship.text == \"y\"', maxIterations: 3 }]
";
    // One of five sessions ran what is behind a condition.
    let mut history = History::default();
    let ran = |path| PastLog::default().ran(path, "talk.agent", (0, 1), Some(5.0));
    let [begin, end] = frame("each", 0);
    let first = ran("code").ran("ship", "talk.agent", (0, 1), Some(5.0));
    let first = first.at(0, "each", start("each", "control.foreach")).at(0, "each", begin);
    let first = first.ran("each[0]/tell", "talk.agent", (0, 1), Some(5.0)).at(1, "each", end);
    history.add(&first.at(1, "each", completed("each")).end(1), &[]);
    (0..4).for_each(|_| history.add(&ran("code").end(1), &[]));
    let all = ["code", "ship", "each", "each/tell", "passes", "passes/fix"];
    for (only, times, usd) in [
        ("code", estimate(1.0, 1.0, 1.0), 5.0),
        ("ship", estimate(1.0, 1.0, 1.0), 5.0),
        ("each", estimate(1.0, 1.0, 1.0), 10.0),
        ("each/tell", estimate(0.0, 2.0, 2.0), 10.0),
        ("passes/fix", estimate(1.0, 1.0, 1.0), 5.0),
    ] {
        let mut flow = loaded(text);
        flow.set_only(&[NodePath::new(only)]);
        let graph = compiled(&flow).unwrap().graph;
        let related = |place: &&str| place.starts_with(only) || only.starts_with(*place);
        let omitted = all.iter().filter(|place| !related(place)).map(|place| (*place).to_owned()).collect();
        let not_run = NotRun { omitted, ..NotRun::default() };
        let found = forecast(&graph, &Map::new(), &history, &not_run);
        let node = found.nodes.iter().find(|node| node.path == only).unwrap();
        assert_eq!((node.times, found.cost_usd.expected), (times, Some(usd)), "{only}");
    }
}

#[test]
fn what_is_reused_or_left_out_costs_nothing() {
    let not_run = NotRun { reused: ["plan".to_owned()].into(), omitted: ["each".to_owned()].into() };
    let found = forecast(&graph(&FAN.replace("ITEMS", "[1]")), &Map::new(), &History::default(), &not_run);
    let seen: Vec<_> = found.nodes.iter().map(|node| (node.action, node.cost_usd)).collect();
    let (reused, left_out) = ((Expected::Reused, Estimate::ZERO), (Expected::NotRun, Estimate::ZERO));
    assert_eq!(seen, [reused, left_out, left_out, left_out]);
    assert_eq!(
        (found.cost_usd, found.duration_ms, found.unknown),
        (Estimate::ZERO, Estimate::ZERO, Vec::new())
    );
}

#[test]
fn a_run_that_another_of_its_agents_ended_is_one_of_the_node() {
    let text = "
flow:
  name: f
  agents:
    cheap: { type: talk.agent, model: small }
    strong: { type: talk.agent, model: large }
nodes:
  - { id: solve, agent: cheap, input: { prompt: x }, fallback: [{ agent: strong }] }
";
    let run_id = RunId::from("r");
    let begun = Event::AgentStart {
        agent_name: "a".to_owned(),
        run_id: run_id.clone(),
        provider: "talk".to_owned(),
        model: Some("large".to_owned()),
        turn: 1,
        multi_turn: MultiTurn::default(),
        listens: false,
    };
    let usage = Event::AgentUsage {
        usage: Usage::default(),
        cost_usd: Some(0.3),
        context: None,
        turn_id: None,
        reported: None,
        uncounted: false,
        run_id,
    };
    let log = PastLog::default()
        .at(0, "solve", start("solve", "talk.agent"))
        .at(1, "solve", begun)
        .at(2, "solve", usage)
        .at(2, "solve", completed("solve"));
    let found = of(text, json!({}), &[log.end(2)]);
    assert_eq!((found.nodes[0].runs, found.unknown), (1, Vec::<String>::new()));
}
