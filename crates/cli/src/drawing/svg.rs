//! A flow as an SVG picture: layers from top to bottom, few crossings, loops on the right. What is drawn is
//! decided by `drawing`.

use std::fmt::Write as _;

use super::{Arrow, Drawing, Shape};

const HEIGHT: f64 = 44.0;
const GAP_X: f64 = 28.0;
const GAP_Y: f64 = 46.0;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 28.0;
/// Columns that one letter takes; boxes are made wide enough for any usual font.
const LETTER: f64 = 7.6;
/// How often the order within layers is bettered.
const SWEEPS: usize = 8;

/// A box's place.
#[derive(Clone, Copy, Default)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
}

/// The picture.
pub(crate) fn svg(drawing: &Drawing) -> String {
    let layers = ordered(drawing, layers(drawing));
    let (places, width) = places(drawing, &layers);
    let loops = drawing.edges.iter().filter(|edge| edge.max_iterations.is_some()).count();
    let whole = width + 2.0 * MARGIN + 34.0 * loops as f64 + if loops > 0 { 30.0 } else { 0.0 };
    let height = TITLE + 2.0 * MARGIN + layers.len() as f64 * (HEIGHT + GAP_Y) - GAP_Y;
    let mut out = String::new();
    let title = escaped(&drawing.flow);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        concat!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" ",
            "viewBox=\"0 0 {w:.0} {h:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n",
            "<title>{title}</title>\n",
            "<defs><marker id=\"tip\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" ",
            "markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"#667\"/>",
            "</marker></defs>\n",
            "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            "<text x=\"{m}\" y=\"{m}\" font-weight=\"600\" fill=\"#223\">{title}</text>\n"
        ),
        w = whole.max(LETTER * drawing.flow.chars().count() as f64 + 2.0 * MARGIN),
        h = height.max(TITLE + 2.0 * MARGIN),
        m = MARGIN,
        title = title,
    );
    let mut lane = 0;
    for edge in &drawing.edges {
        if edge.max_iterations.is_some() {
            lane += 1;
            back(&mut out, edge, &places, MARGIN + width + 34.0 * f64::from(lane));
        } else {
            forth(&mut out, edge, &places);
        }
    }
    for (node, place) in drawing.nodes.iter().zip(&places) {
        let (fill, stroke, round) = match node.shape {
            Shape::Agent => ("#eef4ff", "#4a74c9", 14),
            Shape::Control => ("#f4f1fb", "#8a6fc0", 2),
            Shape::Person => ("#fff6e5", "#c98a1b", 6),
            Shape::Work => ("#eef8f0", "#4d9a63", 6),
        };
        let (x, y, w, middle) = (place.x, place.y, place.width, place.x + place.width / 2.0);
        let _ = write!(
            out,
            concat!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h}\" rx=\"{round}\" fill=\"{fill}\" ",
                "stroke=\"{stroke}\"/>\n",
                "<text x=\"{middle:.1}\" y=\"{first:.1}\" text-anchor=\"middle\" font-weight=\"600\" ",
                "fill=\"#223\">{id}</text>\n",
                "<text x=\"{middle:.1}\" y=\"{second:.1}\" text-anchor=\"middle\" font-size=\"11\" ",
                "fill=\"#667\">{kind}</text>\n"
            ),
            x = x,
            y = y,
            w = w,
            h = HEIGHT,
            round = round,
            fill = fill,
            stroke = stroke,
            middle = middle,
            first = y + 19.0,
            second = y + 35.0,
            id = escaped(&node.id),
            kind = escaped(&node.node_type),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The layer of each node: one below the lowest that leads to it. Loops do not count.
fn layers(drawing: &Drawing) -> Vec<Vec<usize>> {
    let mut depth = vec![0_usize; drawing.nodes.len()];
    let mut missing = vec![0_usize; drawing.nodes.len()];
    let forward = || drawing.edges.iter().filter(|edge| edge.max_iterations.is_none());
    let mut outgoing = vec![Vec::new(); drawing.nodes.len()];
    for edge in forward() {
        missing[edge.to] += 1;
        outgoing[edge.from].push(edge.to);
    }
    let mut ready: Vec<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
    while let Some(at) = ready.pop() {
        for &to in &outgoing[at] {
            depth[to] = depth[to].max(depth[at] + 1);
            missing[to] -= 1;
            if missing[to] == 0 {
                ready.push(to);
            }
        }
    }
    let mut layers = vec![Vec::new(); depth.iter().max().map_or(0, |deepest| deepest + 1)];
    for (at, depth) in depth.iter().enumerate() {
        layers[*depth].push(at);
    }
    layers
}

/// Each layer in the order of the middle of what leads to it, then of what it leads to, in turns.
fn ordered(drawing: &Drawing, mut layers: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    let mut place = vec![0.0; drawing.nodes.len()];
    let note = |place: &mut Vec<f64>, layer: &[usize]| {
        for (at, node) in layer.iter().enumerate() {
            place[*node] = at as f64 - layer.len() as f64 / 2.0;
        }
    };
    let mut above = vec![Vec::new(); drawing.nodes.len()];
    let mut below = vec![Vec::new(); drawing.nodes.len()];
    for edge in drawing.edges.iter().filter(|edge| edge.max_iterations.is_none()) {
        above[edge.to].push(edge.from);
        below[edge.from].push(edge.to);
    }
    for layer in &layers {
        note(&mut place, layer);
    }
    for sweep in 0..SWEEPS {
        let neighbours = if sweep % 2 == 0 { &above } else { &below };
        let count = layers.len();
        for step in 0..count {
            let layer = &mut layers[if sweep % 2 == 0 { step } else { count - 1 - step }];
            let key = |node: usize| match neighbours[node].as_slice() {
                [] => place[node],
                near => near.iter().map(|other| place[*other]).sum::<f64>() / near.len() as f64,
            };
            let mut keyed: Vec<(f64, usize)> = layer.iter().map(|node| (key(*node), *node)).collect();
            keyed.sort_by(|one, two| one.0.total_cmp(&two.0));
            *layer = keyed.into_iter().map(|(_, node)| node).collect();
            note(&mut place, layer);
        }
    }
    layers
}

/// Where each box stands, and how wide the widest layer is.
fn places(drawing: &Drawing, layers: &[Vec<usize>]) -> (Vec<Place>, f64) {
    let width = |at: &usize| {
        let node = &drawing.nodes[*at];
        let letters = node.id.chars().count().max(node.node_type.chars().count());
        (letters as f64 * LETTER + 28.0).max(84.0)
    };
    let span = |layer: &Vec<usize>| {
        layer.iter().map(width).sum::<f64>() + GAP_X * layer.len().saturating_sub(1) as f64
    };
    let widest = layers.iter().map(span).fold(0.0, f64::max);
    let mut places = vec![Place::default(); drawing.nodes.len()];
    for (depth, layer) in layers.iter().enumerate() {
        let mut x = MARGIN + (widest - span(layer)) / 2.0;
        for at in layer {
            let y = TITLE + MARGIN + depth as f64 * (HEIGHT + GAP_Y);
            places[*at] = Place { x, y, width: width(at) };
            x += width(at) + GAP_X;
        }
    }
    (places, widest)
}

/// An arrow from a box's lower side to another's upper one.
fn forth(out: &mut String, edge: &Arrow, places: &[Place]) {
    let (from, to) = (places[edge.from], places[edge.to]);
    let (x1, y1) = (from.x + from.width / 2.0, from.y + HEIGHT);
    let (x2, y2) = (to.x + to.width / 2.0, to.y);
    let bend = (y2 - y1) / 2.0;
    let path = format!("M{x1:.1} {y1:.1}C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}", y1 + bend, y2 - bend);
    line(out, &path, "", edge, (x1 + x2) / 2.0 + 6.0, (y1 + y2) / 2.0);
}

/// A dashed arrow from a box's right side to another's, along a lane of its own.
fn back(out: &mut String, edge: &Arrow, places: &[Place], lane: f64) {
    let (from, to) = (places[edge.from], places[edge.to]);
    let (x1, y1) = (from.x + from.width, from.y + HEIGHT / 2.0);
    let (x2, y2) = (to.x + to.width, to.y + HEIGHT / 2.0 + if edge.from == edge.to { -12.0 } else { 0.0 });
    let path = format!("M{x1:.1} {y1:.1}C{lane:.1} {y1:.1} {lane:.1} {y2:.1} {x2:.1} {y2:.1}");
    // The curve comes three quarters of the way to its lane.
    let x = (x1 + x2) / 8.0 + lane * 0.75 + 4.0;
    line(out, &path, " stroke-dasharray=\"5 4\"", edge, x, (y1 + y2) / 2.0);
}

fn line(out: &mut String, path: &str, dashes: &str, edge: &Arrow, x: f64, y: f64) {
    let _ =
        writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"#667\"{dashes} marker-end=\"url(#tip)\"/>");
    if let Some(label) = edge.label() {
        let _ =
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"11\" fill=\"#667\">{label}</text>");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
