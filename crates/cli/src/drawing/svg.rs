//! A flow as an SVG picture: layers from top to bottom, few crossings, loops on the right. What is drawn is
//! decided by `drawing`.

use std::fmt::Write as _;

use super::{Arrow, Drawing, Shape};

const HEIGHT: f64 = 44.0;
const GAP_X: f64 = 28.0;
const GAP_Y: f64 = 46.0;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 28.0;
/// Columns between loops beside the picture.
const LANE: f64 = 34.0;
/// Columns that one letter takes; boxes are made wide enough for any usual font.
const LETTER: f64 = 7.6;
/// Columns that a bend keeps free around it.
const BEND: f64 = 12.0;
/// How often the order within layers is bettered.
const SWEEPS: usize = 8;

/// A box's place, or that of a bend, which is a box without room.
#[derive(Clone, Copy, Default)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
}

impl Place {
    fn middle(self) -> f64 {
        self.x + self.width / 2.0
    }
}

/// The boxes, and after them the bends of edges that pass over layers, so that they pass between boxes.
struct Layout {
    layers: Vec<Vec<usize>>,
    /// Each edge that closes no cycle, as the boxes and bends it passes.
    ways: Vec<Vec<usize>>,
    vertices: usize,
}

/// The picture.
pub(crate) fn svg(drawing: &Drawing) -> String {
    let layout = ordered(layout(drawing));
    let (places, width) = places(drawing, &layout);
    let loops = drawing.edges.iter().filter(|edge| edge.max_iterations.is_some()).count();
    let whole = width + 2.0 * MARGIN + LANE * loops as f64 + if loops > 0 { 40.0 } else { 0.0 };
    let height = TITLE + 2.0 * MARGIN + layout.layers.len() as f64 * (HEIGHT + GAP_Y) - GAP_Y;
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
    let mut lane = 0.0;
    let mut ways = layout.ways.iter();
    for edge in &drawing.edges {
        if edge.max_iterations.is_some() {
            lane += 1.0;
            back(&mut out, edge, &places, MARGIN + width + LANE * lane, lane);
        } else if let Some(way) = ways.next() {
            forth(&mut out, edge, way, &places);
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

/// Each box one layer below the lowest that leads to it; loops do not count.
fn layout(drawing: &Drawing) -> Layout {
    let mut depth = vec![0_usize; drawing.nodes.len()];
    let mut missing = vec![0_usize; drawing.nodes.len()];
    let mut outgoing = vec![Vec::new(); drawing.nodes.len()];
    let forward = || drawing.edges.iter().filter(|edge| edge.max_iterations.is_none());
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
    let mut vertices = drawing.nodes.len();
    let mut ways = Vec::new();
    for edge in forward() {
        let mut way = vec![edge.from];
        for layer in &mut layers[depth[edge.from] + 1..depth[edge.to].max(depth[edge.from] + 1)] {
            layer.push(vertices);
            way.push(vertices);
            vertices += 1;
        }
        way.push(edge.to);
        ways.push(way);
    }
    Layout { layers, ways, vertices }
}

/// Each layer in the order of the middle of what leads to it, then of what it leads to, in turns.
fn ordered(mut layout: Layout) -> Layout {
    let mut place = vec![0.0; layout.vertices];
    let note = |place: &mut Vec<f64>, layer: &[usize]| {
        for (at, vertex) in layer.iter().enumerate() {
            place[*vertex] = at as f64 - layer.len() as f64 / 2.0;
        }
    };
    let mut above = vec![Vec::new(); layout.vertices];
    let mut below = vec![Vec::new(); layout.vertices];
    for step in layout.ways.iter().flat_map(|way| way.windows(2)) {
        above[step[1]].push(step[0]);
        below[step[0]].push(step[1]);
    }
    for layer in &layout.layers {
        note(&mut place, layer);
    }
    for sweep in 0..SWEEPS {
        let downwards = sweep % 2 == 0;
        let neighbours = if downwards { &above } else { &below };
        let count = layout.layers.len();
        for step in 0..count {
            let layer = &mut layout.layers[if downwards { step } else { count - 1 - step }];
            let key = |vertex: usize| match neighbours[vertex].as_slice() {
                [] => place[vertex],
                near => near.iter().map(|other| place[*other]).sum::<f64>() / near.len() as f64,
            };
            let mut keyed: Vec<(f64, usize)> = layer.iter().map(|vertex| (key(*vertex), *vertex)).collect();
            keyed.sort_by(|one, two| one.0.total_cmp(&two.0));
            *layer = keyed.into_iter().map(|(_, vertex)| vertex).collect();
            note(&mut place, layer);
        }
    }
    layout
}

/// Where each box stands, and how wide the widest layer is.
fn places(drawing: &Drawing, layout: &Layout) -> (Vec<Place>, f64) {
    let width = |at: &usize| {
        let Some(node) = drawing.nodes.get(*at) else { return BEND };
        let letters = node.id.chars().count().max(node.node_type.chars().count());
        (letters as f64 * LETTER + 28.0).max(84.0)
    };
    let span = |layer: &Vec<usize>| {
        layer.iter().map(width).sum::<f64>() + GAP_X * layer.len().saturating_sub(1) as f64
    };
    let widest = layout.layers.iter().map(span).fold(0.0, f64::max);
    let mut places = vec![Place::default(); layout.vertices];
    for (depth, layer) in layout.layers.iter().enumerate() {
        let mut x = MARGIN + (widest - span(layer)) / 2.0;
        for at in layer {
            let y = TITLE + MARGIN + depth as f64 * (HEIGHT + GAP_Y);
            places[*at] = Place { x, y, width: width(at) };
            x += width(at) + GAP_X;
        }
    }
    (places, widest)
}

/// An arrow from a box's lower side to another's upper one, straight down past the layers between.
fn forth(out: &mut String, edge: &Arrow, way: &[usize], places: &[Place]) {
    let mut path = String::new();
    let mut label = (0.0, 0.0);
    for step in way.windows(2) {
        let (from, to) = (places[step[0]], places[step[1]]);
        let (x1, y1, x2, y2) = (from.middle(), from.y + HEIGHT, to.middle(), to.y);
        let bend = (y2 - y1) / 2.0;
        if path.is_empty() {
            let _ = write!(path, "M{x1:.1} {y1:.1}");
            label = ((x1 + x2) / 2.0 + 6.0, (y1 + y2) / 2.0);
        } else {
            let _ = write!(path, "L{x1:.1} {y1:.1}");
        }
        let _ = write!(path, "C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}", y1 + bend, y2 - bend);
    }
    line(out, &path, "", edge, label.0, label.1);
}

/// A dashed arrow from below a box, along a lane of its own beside the picture, to above another.
fn back(out: &mut String, edge: &Arrow, places: &[Place], lane: f64, number: f64) {
    let (from, to) = (places[edge.from], places[edge.to]);
    // Several loops of one box stand beside each other.
    let beside = 10.0 + 8.0 * (number % 3.0);
    let (x1, y1) = (from.middle() + beside, from.y + HEIGHT);
    let (x2, y2) = (to.middle() + beside, to.y);
    let (under, over) = (y1 + 8.0 + 3.0 * (number % 3.0), y2 - 8.0 - 3.0 * (number % 3.0) - 6.0);
    let path = format!(
        "M{x1:.1} {y1:.1}V{under:.1}H{:.1}Q{lane:.1} {under:.1} {lane:.1} {:.1}V{:.1}Q{lane:.1} {over:.1} {:.1} {over:.1}H{x2:.1}V{y2:.1}",
        lane - 8.0,
        under - 8.0,
        over + 8.0,
        lane - 8.0,
    );
    line(out, &path, " stroke-dasharray=\"5 4\"", edge, lane + 5.0, (y1 + y2) / 2.0);
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
