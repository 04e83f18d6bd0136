//! One flow with every kind of frame and edge in every format, sessions of several outcomes, and labels that mean
//! something to the formats.

use std::sync::Arc;

use inspan_flow_core::{Loaded, builtin_catalog, compile};

use super::*;
use crate::{PageFold, testing::Recorded};
use crate::{line::Colour, state::SessionView};

/// Every kind of frame and of edge.
const ALL: &str = r#"
flow: { name: 'a <b> & "c"', policy: { failFast: false }, agents: { writer: { type: claude.agent }, backup: { type: codex.agent } } }
nodes:
  - { id: plan, agent: writer, fallback: [{ agent: backup, when: "plan.text == ''" }], input: { prompt: x } }
  - id: each
    type: control.foreach
    dependsOn: [plan]
    input: { items: [a, b, c], as: file, maxConcurrency: 2, onItemError: continue }
    body:
      nodes:
        - { id: fix, type: exec, input: { argv: ["true"] } }
        - { id: undo, type: exec, dependsOn: [{ node: fix, on: failure }], input: { argv: ["true"] } }
        - id: inner
          type: control.loop
          dependsOn: [fix]
          input: { until: "frame.index > 0", maxIterations: 3 }
          body:
            nodes:
              - { id: again, type: echo, input: { text: x } }
  - id: code
    type: agent.run
    dependsOn: [each]
    input: { provider: claude, prompt: x }
  - { id: review, type: claude.agent, input: { prompt: x } }
  - { id: ok, type: human.input, when: "review.text != '<&\"end#;`%' and review.text != 'a text that is much too long for a picture'", input: { prompt: x } }
  - { id: end, type: control.merge, input: { mode: any } }
edges:
  - { from: code, to: review }
  - { from: review, to: code, when: "review.text == 'no'", maxIterations: 3 }
  - { from: review, to: ok, when: "review.text == 'yes' and review.text != 'a text that is much too long for a picture'" }
  - { from: review, to: end, on: any }
  - { from: ok, to: end, on: skipped }
"#;

fn graph(text: &str) -> Arc<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, Default::default());
    let catalog = builtin_catalog(inspan_providers::builtin());
    Arc::new(compile(&loaded, &catalog).unwrap_or_else(|problems| panic!("{problems}")).graph)
}

fn all() -> Drawing {
    Drawing::from(&*graph(ALL))
}

/// The tags of a picture are opened and closed in pairs, and nothing in a text or an attribute opens another.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("`{tag}` is not closed"));
        let entities = text.split('&').skip(1).chain(tag.split('&').skip(1));
        for entity in entities {
            assert!(
                ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                "&{entity}"
            );
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(closed), _) => assert_eq!(open.pop(), Some(closed), "{tag}"),
            (None, true) => {}
            (None, false) => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

fn lines(drawing: &Drawing) -> String {
    text(drawing).iter().map(|line| line.render(Colour::Off) + "\n").collect()
}

#[test]
fn a_flow_in_every_format() {
    let drawing = all();
    insta::assert_snapshot!("flow-text", lines(&drawing));
    insta::assert_snapshot!("flow-mermaid", mermaid(&drawing));
    insta::assert_snapshot!("flow-dot", dot(&drawing));
    insta::assert_snapshot!("flow-svg", svg(&drawing));
    insta::assert_snapshot!("flow-json", serde_json::to_string_pretty(&drawing).unwrap());
    assert_well_formed(&svg(&drawing));
}

#[test]
fn no_text_leaves_its_label() {
    let hostile = [
        "</title><script>alert(1)</script>",
        "a\"];x[\"b",
        "%%{init: {}}%%",
        "\\N\\\"",
        "]]>&amp;\u{1}\u{fffe}",
        "-- x\nend\nsubgraph y",
    ];
    for text in hostile {
        let mut drawing = all();
        drawing.flow = clean(text);
        drawing.body.nodes[0].when = Some(clean(text));
        drawing.body.nodes[0].node_type = clean(text);
        drawing.body.edges[0].when = Some(clean(text));
        let plain = all();
        assert_well_formed(&svg(&drawing));
        // No line more than for texts without special characters, except those of the texts themselves.
        let count = |text: &str| text.lines().count();
        assert_eq!(count(&mermaid(&drawing)), count(&mermaid(&plain)), "{text}");
        assert_eq!(count(&dot(&drawing)), count(&dot(&plain)), "{text}");
        for line in dot(&drawing).lines() {
            let bare = line.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(bare.matches('"').count() % 2, 0, "{line}");
        }
        assert!(!mermaid(&drawing).contains("%%"), "{text}");
        for line in mermaid(&drawing).lines().skip(3) {
            assert_eq!(line.matches('"').count() % 2, 0, "{line}");
            assert!(!line.contains("<script"), "{line}");
        }
    }
}

#[test]
fn no_box_or_label_is_drawn_on_another() {
    // The rectangles of boxes that hold no others, and of labels, for a graph of a hundred nodes.
    let node = |at: usize| format!("  - {{ id: node_{at}, type: echo, input: {{ text: x }} }}\n");
    let edge = |at: usize| {
        let from = at * 7 / 9;
        format!("  - {{ from: node_{from}, to: node_{at}, when: \"node_{from}.text != 'number {at}'\" }}\n")
    };
    let nodes: String = (0..100).map(node).collect();
    let edges: String = (1..100).map(edge).collect();
    let drawing =
        Drawing::from(&*graph(&format!("flow: {{ name: hundred }}\nnodes:\n{nodes}edges:\n{edges}")));
    let picture = svg(&drawing);
    assert_well_formed(&picture);
    let number = |tag: &str, name: &str| -> Option<f64> {
        let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let boxes = picture.split("<rect ").skip(2).map(|tag| {
        let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| number(tag, name).unwrap());
        (x, y, x + w, y + h)
    });
    let labels = picture.split("<text class=\"label").skip(1).map(|tag| {
        let (x, y) = (number(tag, "x").unwrap(), number(tag, "y").unwrap());
        let text = tag.split_once('>').unwrap().1.split_once('<').unwrap().0;
        // Letters of 12 pixels are about 6.5 wide.
        (x, y - 10.0, x + 6.5 * text.chars().count() as f64, y + 3.0)
    });
    let all: Vec<(f64, f64, f64, f64)> = boxes.chain(labels).collect();
    assert_eq!(all.len(), 100 + 99);
    for (at, one) in all.iter().enumerate() {
        for two in &all[at + 1..] {
            let apart = one.2 <= two.0 || two.2 <= one.0 || one.3 <= two.1 || two.3 <= one.1;
            assert!(apart, "{one:?} and {two:?}");
        }
    }
}

#[test]
fn a_flow_that_calls_itself_is_drawn_once() {
    let mut drawing = all();
    // What a recursive subflow has: frames without a body.
    drawing.body.nodes[1].frames.as_mut().unwrap().body = None;
    assert_well_formed(&svg(&drawing));
    assert!(!mermaid(&drawing).contains("subgraph") && !dot(&drawing).contains("subgraph"));
}

#[test]
fn the_frames_of_a_session_are_folded() {
    let mut drawing = all();
    let state = SessionView::new(&graph(ALL)).with_all_frames();
    let session =
        SessionResults { session_id: "s".to_owned(), status: "running".to_owned(), ..Default::default() };
    drawing.add_session(session, &state, &|row| row.status);
    // Nothing has run: no node of a body has a result.
    assert_eq!(
        drawing.body.nodes[0].results.as_ref().map(|results| results.text(None)),
        Some("pending".to_owned())
    );
    let inner = drawing.body.nodes[1].body().unwrap();
    assert!(inner.nodes.iter().all(|node| node.results.is_none()));
}

/// The boxes of a group and of all that are in it, each with the box around it.
fn boxes(group: &Group, around: Rect, found: &mut Vec<(String, Rect, Rect)>) {
    for node in &group.nodes {
        let place = node.place.unwrap();
        found.push((node.path.clone(), place, around));
        node.body().into_iter().for_each(|body| boxes(body, place, found));
    }
}

#[test]
fn what_never_began_in_a_frame_that_ended_hides_nothing_of_the_others() {
    let mut found = Vec::new();
    for recorded in Recorded::all() {
        let mut fold = PageFold::new(&recorded.session.record, &recorded.graph);
        recorded.log.iter().for_each(|envelope| fold.apply(envelope));
        let mut drawing = Drawing::from(&*recorded.graph);
        drawing.add_session(SessionResults::default(), fold.view(), &|row| row.idle_status);
        let bodies = drawing.body.nodes.iter().filter_map(|node| node.frames.as_ref()?.body.as_ref());
        for node in bodies.flat_map(|body| &body.nodes) {
            let Some(results) = &node.results else { continue };
            if results.runs.contains_key("pending") && results.runs.len() > 1 {
                found.push(format!("{} {} {:?} {:?}", recorded.name, node.id, results.status, results.runs));
            }
        }
    }
    let expected = [
        r#"ends_and_edges late Complete {"complete": 1, "pending": 1}"#,
        r#"foreach shout Complete {"complete": 2, "pending": 1}"#,
        r#"foreach_fails done Complete {"complete": 1, "pending": 1}"#,
        r#"foreach_siblings broken Failed {"failed": 1, "pending": 1, "skipped": 1}"#,
        r#"foreach_stop good Complete {"complete": 1, "pending": 1}"#,
        r#"frame_cleanup slow Cancelled {"cancelled": 1, "pending": 1}"#,
        r#"frame_edge_loops done Complete {"complete": 2, "pending": 1}"#,
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_placed_drawing_has_every_box_in_the_box_around_it_and_every_edge_between_its_boxes() {
    let mut drawing = all();
    drawing.place();
    let Size { w, h } = drawing.size.unwrap();
    let mut found = Vec::new();
    boxes(&drawing.body, Rect { x: 0.0, y: 0.0, w, h }, &mut found);
    assert_eq!(found.len(), 10);
    let is_inside = |inner: &Rect, outer: &Rect| {
        inner.x >= outer.x
            && inner.y >= outer.y
            && inner.x + inner.w <= outer.x + outer.w + 0.1
            && inner.y + inner.h <= outer.y + outer.h + 0.1
    };
    for (path, place, around) in &found {
        assert!(is_inside(place, around), "{path}: {place:?} in {around:?}");
    }
    for edge in &drawing.body.edges {
        let [from, to] = [edge.ends.0, edge.ends.1].map(|at| drawing.body.nodes[at].place.unwrap());
        let touches = |point: [f64; 2], of: Rect| {
            is_inside(&Rect { x: point[0], y: point[1], w: 0.0, h: 0.0 }, &Rect { w: of.w + 0.1, ..of })
        };
        let (first, last) = (edge.points[0], edge.points[edge.points.len() - 1]);
        assert!(touches(first, from) && touches(last, to), "{} -> {}: {:?}", edge.from, edge.to, edge.points);
        assert_eq!(edge.label_text.is_some(), edge.label_at.is_some(), "{} -> {}", edge.from, edge.to);
    }
}

#[test]
fn nothing_of_a_placed_drawing_moves_because_of_what_a_session_made_of_it() {
    let (mut before, mut after) = (all(), all());
    before.place();
    after.add_session(SessionResults::default(), &SessionView::new(&graph(ALL)), &|row| row.status);
    after.place();
    let places = |drawing: &Drawing| {
        let mut found = Vec::new();
        boxes(&drawing.body, Rect::default(), &mut found);
        found
    };
    assert_eq!(places(&before), places(&after));
    let points =
        |drawing: &Drawing| drawing.body.edges.iter().map(|edge| edge.points.clone()).collect::<Vec<_>>();
    assert_eq!(points(&before), points(&after));
}
