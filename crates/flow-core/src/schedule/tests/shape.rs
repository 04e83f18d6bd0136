//! Random flows: their shapes, and the text of each.

use proptest::prelude::*;

use crate::testing::has_unreachable;

#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) kinds: Vec<u8>,
    pub(super) edges: Vec<(usize, usize, u8)>,
    pub(super) back: Option<(usize, usize, u32, bool)>,
    pub(super) limit: u32,
    pub(super) fail_fast: bool,
}

/// Flows whose end does not depend on what is done first.
pub(super) fn shape() -> impl Strategy<Value = Shape> {
    shape_of(20)
}

/// Flows in which nodes race, too.
pub(super) fn race() -> impl Strategy<Value = Shape> {
    shape_of(22)
}

fn shape_of(kinds: u8) -> impl Strategy<Value = Shape> {
    (2..8_usize)
        .prop_flat_map(move |n| {
            let kinds = prop::collection::vec(0..kinds, n);
            let edges = prop::collection::btree_map((0..n, 0..n), 0..6_u8, 0..14);
            let back = prop::option::of((0..n, 0..n, 1..4_u32, any::<bool>()));
            (kinds, edges, back, 1..4_u32, any::<bool>()).prop_map(
                |(kinds, edges, back, limit, fail_fast)| {
                    let mut edges: Vec<_> = edges
                        .into_iter()
                        .filter(|((a, b), _)| a != b)
                        .map(|((a, b), when)| (a.min(b), a.max(b), when))
                        .collect();
                    edges.sort_unstable();
                    edges.dedup_by_key(|edge| (edge.0, edge.1));
                    let back = back.map(|(a, b, max, continues)| (a.max(b), a.min(b), max, continues));
                    // A loop edge must close a cycle: there is at least the direct way.
                    if let Some((from, to, ..)) = back
                        && from != to
                        && !edges.iter().any(|edge| (edge.0, edge.1) == (to, from))
                    {
                        edges.push((to, from, 0));
                    }
                    Shape { kinds, edges, back, limit, fail_fast }
                },
            )
        })
        .prop_filter("the compiler sees that a node never runs", |shape| !has_unreachable(&text(shape)))
}

/// The first agent fails, the second is unsure of what it gives, the third hits a limit once, the fourth is sure.
const AGENTS: &str = "first: { type: talk.agent, prompt: go, policy: { retry: { maxAttempts: 2, on: any, backoff: 3s } } }, \
    second: { type: chat.agent, prompt: go }, third: { type: talk.agent, prompt: go, policy: { onLimit: fallback } }, \
    fourth: { type: chat.agent, prompt: go }";

pub(super) fn text(shape: &Shape) -> String {
    use std::fmt::Write;
    let name = |ix: usize| {
        let kind = match shape.kinds[ix] {
            0 => "bad",
            1 => "twice",
            2 => "handled",
            3 => "any",
            4 => "all",
            6 => "talk",
            7 => "limited",
            8 => "human",
            9 => "wait",
            10 => "risky",
            11..=13 | 20 => "frames",
            21 => "end",
            16 | 17 => "relay",
            18 => "pick",
            _ => "ok",
        };
        format!("{kind}{ix}")
    };
    let mut text = format!(
        "flow: {{ name: random, policy: {{ failFast: {}, maxConcurrency: {} }}, agents: {{ {} }} }}\nnodes:\n",
        shape.fail_fast, shape.limit, AGENTS
    );
    for ix in 0..shape.kinds.len() {
        let unsure = format!("{}.value is defined", name(ix));
        let relay = format!(
            "fallback: [{{ agent: second }}, {{ agent: third, when: '{unsure}' }}, {{ agent: fourth, when: 'not {}.failed' }}]",
            name(ix)
        );
        let relay = [
            format!("agent: first, {relay}, session: {}", name(ix)),
            format!("type: talk.agent, input: {{ prompt: go }}, {relay}"),
        ];
        let rest = match shape.kinds[ix] {
            16 => &relay[0],
            17 => &relay[1],
            18 => "agent: \"{{ 'fourth' if frame.pass > 1 else 'third' }}\", fallback: [{ agent: second }]",
            19 => {
                "type: control.foreach, input: { items: [first, third], as: who, onItemError: continue }, body: { nodes: \
                 [{ id: pick, agent: '{{ who }}', fallback: [{ agent: fourth }] }] }"
            }
            1 => "type: control.noop, policy: { retry: { maxAttempts: 2, backoff: 3s } }",
            2 => "type: control.noop, policy: { continueOnError: true }",
            3 => "type: control.merge, input: { mode: any }",
            4 => "type: control.merge, input: { mode: all }",
            6 | 7 => "type: talk.agent, input: { prompt: go }",
            8 => "type: human.input, input: { prompt: go }",
            9 => "type: control.wait, input: { ms: 5000 }",
            10 => "type: control.noop, effects: external",
            5 => "type: control.noop, when: \"1 == 2\"",
            11 => {
                "type: control.foreach, input: { items: [1, 2, 3], maxConcurrency: 2, onItemError: continue }, body: { nodes: \
                 [{ id: ok, type: control.noop }, { id: bad, type: control.noop, when: 'item == 2', dependsOn: [ok] }, \
                 { id: talk, type: talk.agent, input: { prompt: go }, dependsOn: [ok] }] }"
            }
            12 => {
                "type: control.loop, input: { until: 'frame.index >= 1', maxIterations: 3 }, body: { nodes: \
                 [{ id: human, type: human.input, input: { prompt: go } }, { id: twice, type: control.noop, \
                 dependsOn: [human], policy: { retry: { maxAttempts: 2, backoff: 3s } } }] }"
            }
            13 => {
                "type: control.foreach, policy: { retry: { maxAttempts: 2 } }, input: { items: [1, 2] }, body: { nodes: \
                 [{ id: inner, type: control.foreach, input: { items: [1, 2], as: n }, body: { nodes: \
                 [{ id: limited, type: talk.agent, input: { prompt: go } }, \
                 { id: bad, type: control.noop, when: 'item == 2 and n == 1', dependsOn: [limited] }, \
                 { id: wait, type: control.wait, input: { ms: 5000 } }] } }] }"
            }
            20 => {
                "type: control.foreach, input: { items: [1, 2] }, body: { outputs: { by: body }, nodes: [{ id: ok, type: control.noop }, \
                 { id: talk, type: talk.agent, input: { prompt: go }, when: 'item == 1' }, { id: slow, type: control.wait, \
                 input: { ms: 5000 }, dependsOn: [talk] }, { id: merge, type: control.merge, input: { mode: any }, \
                 dependsOn: [slow, talk] }, { id: end, type: control.end, dependsOn: [merge], when: 'item == 1' }, \
                 { id: last, type: control.noop, dependsOn: [{ node: slow, on: any }] }] }"
            }
            21 => "type: control.end",
            _ => "type: control.noop",
        };
        writeln!(text, "  - {{ id: {}, {rest} }}", name(ix)).unwrap();
    }
    writeln!(text, "edges:").unwrap();
    for &(from, to, when) in &shape.edges {
        let rest = match when {
            0 => ", when: \"1 == 2\"",
            1 => ", on: any",
            _ => "",
        };
        writeln!(text, "  - {{ from: {}, to: {}{rest} }}", name(from), name(to)).unwrap();
    }
    if let Some((from, to, max, continues)) = shape.back {
        let when = if continues { "1 == 1" } else { "1 == 2" };
        let rest = format!("maxIterations: {max}, when: \"{when}\", onExhausted: continue");
        writeln!(text, "  - {{ from: {}, to: {}, {rest} }}", name(from), name(to)).unwrap();
    }
    if shape.edges.is_empty() && shape.back.is_none() {
        text = text.replace("edges:\n", "");
    }
    text
}

impl Shape {
    /// How many nodes take no place for work.
    pub(super) fn waiters(&self) -> u32 {
        let waits = |kind: &u8| match kind {
            3 | 4 | 8 | 9 | 12 => 1,
            13 => 4,
            _ => 0,
        };
        self.kinds.iter().map(waits).sum()
    }
}
