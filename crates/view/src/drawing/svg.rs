//! A drawing as an SVG picture, for light and dark pages. Text is measured roughly, with room for any usual font.

use std::fmt::Write as _;

use super::{
    Drawing, DrawnNode, Edge, Group, NodeShape,
    layout::{Arrow, Layout, Placed, Xy, layout},
};
use crate::{format::cut, look, safe::markup};

/// Room around the whole picture, and within boxes.
const MARGIN: f64 = 24.0;
const PADDING: f64 = 14.0;
/// The size of the letters of ids, and of everything else.
const LARGE: f64 = 14.0;
const SMALL: f64 = 12.0;
/// Lines of text, one to the next.
const LINE: f64 = 17.0;
/// The longest text in a box and beside an arrow, in characters.
const LABEL: usize = 52;
/// Room to the right of a box that leads to itself.
const SELF: f64 = 26.0;

/// The colours of boxes: fill and border on a light page, then on a dark one.
const COLOURS: &[(&str, [&str; 4])] = &[
    ("agent", ["#eef4ff", "#4a74c9", "#121d2f", "#5b8def"]),
    ("control", ["#f5f1fd", "#8a6fc0", "#1d1630", "#a78bda"]),
    ("person", ["#fff6e5", "#b9770e", "#2b2111", "#d9a441"]),
    ("work", ["#eef8f0", "#4d9a63", "#12261a", "#57ab6f"]),
    ("complete", ["#e9f7ec", "#2f9149", "#12261a", "#3fb950"]),
    ("reused", ["#e6f6f6", "#2b8a8a", "#0f2626", "#39b5b5"]),
    ("failed", ["#ffebe9", "#cf222e", "#2d1416", "#f85149"]),
    ("cancelled", ["#fdf3e0", "#9a6700", "#272115", "#bb8009"]),
    ("running", ["#e3f0ff", "#0969da", "#0d2038", "#4493f8"]),
    ("waiting", ["#fff8c5", "#9a6700", "#2e2a10", "#d29922"]),
    ("paused", ["#fff8e0", "#9a6700", "#2a2614", "#bb8009"]),
    ("interrupted", ["#fff8e0", "#9a6700", "#2a2614", "#bb8009"]),
    ("skipped", ["#f6f8fa", "#afb8c1", "#161b22", "#484f58"]),
    ("pending", ["#ffffff", "#afb8c1", "#0d1117", "#484f58"]),
];

/// A group with the size of everything in it.
pub(super) struct Measured<'a> {
    group: &'a Group,
    pub(super) nodes: Vec<MeasuredNode<'a>>,
    pub(super) labels: Vec<Option<String>>,
    pub(super) layout: Layout,
}

pub(super) struct MeasuredNode<'a> {
    node: &'a DrawnNode,
    lines: Vec<String>,
    pub(super) size: Xy,
    pub(super) body: Option<Measured<'a>>,
}

impl MeasuredNode<'_> {
    /// Where its body begins, if its own box begins at `corner`.
    pub(super) fn inner(&self, body: &Measured<'_>, corner: Xy) -> Xy {
        let text = LINE * self.lines.len() as f64 + 2.0 * PADDING;
        let left = (self.size.x - body.layout.size.x) / 2.0;
        Xy { x: corner.x + left, y: corner.y + text }
    }
}

impl Measured<'_> {
    /// The points and the label of an edge.
    pub(super) fn placed(&self, at: usize) -> Placed {
        let (from, to) = self.group.edges[at].ends;
        match from == to {
            true => to_itself(self.nodes[from].size, self.layout.boxes[from]),
            false => self.layout.arrows[at].clone(),
        }
    }
}

/// The picture.
pub fn svg(drawing: &Drawing) -> String {
    let body = measure(&drawing.body, Room::AsNeeded);
    let mut titles = vec![cut(&drawing.flow, 2 * LABEL)];
    titles.extend(drawing.session.as_ref().map(|session| cut(&session.text(), 2 * LABEL)));
    let title_width = titles.iter().map(|title| width(title, LARGE, true)).fold(0.0, f64::max);
    let head = MARGIN + LINE * titles.len() as f64 + PADDING;
    let whole =
        Xy { x: body.layout.size.x.max(title_width) + 2.0 * MARGIN, y: head + body.layout.size.y + MARGIN };
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        concat!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" ",
            "viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\" ",
            "font-family=\"system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif\" font-size=\"{s}\">\n",
            "<title>{title}</title>\n<style>\n{style}</style>\n",
            "<defs>{tips}</defs>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
        ),
        w = whole.x,
        h = whole.y,
        s = SMALL,
        title = markup(&titles.join(", ")),
        style = style(),
        tips = ["tip", "tip-off"].map(tip).concat(),
    );
    for (at, title) in titles.iter().enumerate() {
        let class = if at == 0 { "id" } else { "note" };
        let y = MARGIN + LINE * at as f64 + SMALL;
        let _ = writeln!(out, "<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>", markup(title));
    }
    let left = MARGIN.max((whole.x - body.layout.size.x) / 2.0);
    paint(&mut out, &body, Xy { x: left, y: head });
    out.push_str("</svg>\n");
    out
}

fn style() -> String {
    let mut light = String::from(
        ".page{fill:#ffffff}.id{fill:#1f2328;font-size:14px;font-weight:600}.note{fill:#57606a}\n\
         .label{fill:#57606a;stroke:#ffffff;stroke-width:4px;paint-order:stroke;stroke-linejoin:round}\n\
         .arrow{fill:none;stroke:#6e7781;stroke-width:1.3px}.fired{stroke:#1f2328;stroke-width:1.6px}\n\
         .off{stroke:#afb8c1;stroke-dasharray:2 4}.back{stroke-dasharray:6 4}\n\
         .tip{fill:#57606a}.tip-off{fill:#afb8c1}.off-label{fill:#8c959f}\n\
         .box{stroke-width:1.4px}.frames{fill-opacity:0.35}.skipped,.pending{stroke-dasharray:4 3}\n",
    );
    let mut dark = String::from(
        ".page{fill:#0d1117}.id{fill:#e6edf3}.note{fill:#9198a1}.label{fill:#9198a1;stroke:#0d1117}\n\
         .arrow{stroke:#7d8590}.fired{stroke:#e6edf3}.off{stroke:#484f58}.tip{fill:#b1bac4}.tip-off{fill:#484f58}\n\
         .off-label{fill:#6e7681}\n",
    );
    for (class, [fill, border, dark_fill, dark_border]) in COLOURS {
        let _ = writeln!(light, ".{class}{{fill:{fill};stroke:{border}}}");
        let _ = writeln!(dark, ".{class}{{fill:{dark_fill};stroke:{dark_border}}}");
    }
    format!("{light}@media (prefers-color-scheme: dark){{\n{dark}}}\n")
}

/// The head of an arrow.
fn tip(id: &str) -> String {
    format!(
        "<marker id=\"{id}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"{id}\" d=\"M0 0L10 5L0 10z\"/></marker>"
    )
}

/// What boxes and labels have room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// What is in them.
    AsNeeded,
    /// What any session may make of them, so that nothing moves while one runs.
    ForResults,
}

/// As much as a session usually says about a node.
const USUAL_RESULT: &str = "✔ complete · 59m 59s · $0.00";

pub(super) fn measure(group: &Group, room: Room) -> Measured<'_> {
    let nodes: Vec<MeasuredNode<'_>> = group.nodes.iter().map(|node| measure_node(node, room)).collect();
    let label = |edge: &Edge| match room {
        Room::AsNeeded => edge.label(),
        Room::ForResults => Edge { counts: None, ..edge.clone() }.label(),
    };
    let labels: Vec<Option<String>> =
        group.edges.iter().map(|edge| label(edge).map(|label| cut(&label, LABEL))).collect();
    let mut sizes: Vec<Xy> = nodes.iter().map(|node| node.size).collect();
    let arrow = |(edge, label): (&Edge, &Option<String>)| Arrow {
        ends: edge.ends,
        is_back: edge.max_iterations.is_some(),
        label: label.as_ref().map(|label| Xy { x: width(label, SMALL, false), y: LINE }),
    };
    let arrows: Vec<Arrow> = group.edges.iter().zip(&labels).map(arrow).collect();
    for arrow in arrows.iter().filter(|arrow| arrow.ends.0 == arrow.ends.1) {
        sizes[arrow.ends.0].x += 2.0 * (SELF + arrow.label.map_or(0.0, |label| label.x));
    }
    let mut layout = layout(&sizes, &arrows);
    for (corner, (size, node)) in layout.boxes.iter_mut().zip(sizes.iter().zip(&nodes)) {
        corner.x += (size.x - node.size.x) / 2.0;
    }
    Measured { group, nodes, labels, layout }
}

fn measure_node(node: &DrawnNode, room: Room) -> MeasuredNode<'_> {
    let mut lines = vec![cut(&node.id, LABEL)];
    match room {
        Room::AsNeeded => {
            lines.extend(node.details().iter().map(|line| cut(line, LABEL)));
            if let (Some(results), Some(last)) = (&node.results, lines.last_mut()) {
                *last = format!("{} {last}", look::sign(results.status).1);
            }
        }
        Room::ForResults => {
            lines.extend(node.about().iter().map(|line| cut(line, LABEL)));
            lines.push(USUAL_RESULT.to_owned());
        }
    }
    let text = lines.iter().enumerate().map(|(at, line)| match at {
        0 => width(line, LARGE, true),
        _ => width(line, SMALL, false),
    });
    let text = Xy { x: text.fold(56.0, f64::max), y: LINE * lines.len() as f64 };
    let body = node.body().map(|body| measure(body, room));
    let inner = body.as_ref().map_or(Xy::default(), |body| body.layout.size);
    let size = match &body {
        Some(_) => Xy { x: text.x.max(inner.x) + 2.0 * PADDING, y: text.y + inner.y + 3.0 * PADDING },
        None => Xy { x: text.x + 2.0 * PADDING, y: text.y + PADDING },
    };
    MeasuredNode { node, lines, size, body }
}

fn paint(out: &mut String, measured: &Measured<'_>, origin: Xy) {
    for (node, corner) in measured.nodes.iter().zip(&measured.layout.boxes) {
        paint_node(out, node, Xy { x: origin.x + corner.x, y: origin.y + corner.y });
    }
    for (at, (edge, label)) in measured.group.edges.iter().zip(&measured.labels).enumerate() {
        paint_arrow(out, edge, label.as_deref(), &measured.placed(at), origin);
    }
}

/// An arrow from the right side of a box back to it.
fn to_itself(size: Xy, corner: Xy) -> Placed {
    let right = corner.x + size.x;
    let (top, bottom) = (corner.y + size.y * 0.25, corner.y + size.y * 0.75);
    let at = |x: f64, y: f64| Xy { x, y };
    let out = right + SELF - 8.0;
    Placed {
        points: vec![at(right, bottom), at(out, bottom), at(out, top), at(right, top)],
        label: Some(at(out + 4.0, (top + bottom) / 2.0)),
    }
}

fn paint_node(out: &mut String, measured: &MeasuredNode<'_>, corner: Xy) {
    let MeasuredNode { node, lines, size, body } = measured;
    let round = match node.shape {
        NodeShape::Agent => 14.0,
        NodeShape::Control => 3.0,
        NodeShape::Person | NodeShape::Work => 7.0,
    };
    let class = match (&node.results, node.shape) {
        (Some(results), _) => look::word(results.status),
        (None, NodeShape::Agent) => "agent",
        (None, NodeShape::Control) => "control",
        (None, NodeShape::Person) => "person",
        (None, NodeShape::Work) => "work",
    };
    let mut whole = vec![node.path.clone()];
    whole.extend(node.details());
    whole.extend(node.results.as_ref().and_then(|results| results.error.clone()));
    let frames = if body.is_some() { " frames" } else { "" };
    let _ = write!(
        out,
        concat!(
            "<g><title>{title}</title><rect class=\"box {class}{frames}\" x=\"{x:.1}\" y=\"{y:.1}\" ",
            "width=\"{w:.1}\" height=\"{h:.1}\" rx=\"{round}\"/>"
        ),
        title = markup(&whole.join("\n")),
        class = class,
        frames = frames,
        x = corner.x,
        y = corner.y,
        w = size.x,
        h = size.y,
        round = round,
    );
    let (x, anchor) = match body {
        Some(_) => (corner.x + PADDING, "start"),
        None => (corner.x + size.x / 2.0, "middle"),
    };
    for (at, line) in lines.iter().enumerate() {
        let class = if at == 0 { "id" } else { "note" };
        let y = corner.y + PADDING / 2.0 + LINE * at as f64 + SMALL + if body.is_some() { 3.0 } else { 0.0 };
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            markup(line)
        );
    }
    out.push_str("</g>\n");
    if let Some(body) = body {
        paint(out, body, measured.inner(body, corner));
    }
}

fn paint_arrow(out: &mut String, edge: &Edge, label: Option<&str>, placed: &Placed, origin: Xy) {
    let mut path = String::new();
    let point = |at: usize| (origin.x + placed.points[at].x, origin.y + placed.points[at].y);
    for at in 0..placed.points.len() {
        let (x, y) = point(at);
        if at == 0 {
            let _ = write!(path, "M{x:.1} {y:.1}");
            continue;
        }
        let (before_x, before_y) = point(at - 1);
        if (x - before_x).abs() < 0.05 || (y - before_y).abs() < 0.05 {
            let _ = write!(path, "L{x:.1} {y:.1}");
        } else {
            let middle = (before_y + y) / 2.0;
            let _ = write!(path, "C{before_x:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}");
        }
    }
    let mut class = String::from("arrow");
    let has_fired = edge.counts.is_some_and(|counts| counts.fired > 0);
    for (is_so, word) in
        [(has_fired, " fired"), (edge.max_iterations.is_some(), " back"), (edge.is_unused(), " off")]
    {
        class.push_str(if is_so { word } else { "" });
    }
    let tip = if edge.is_unused() { "tip-off" } else { "tip" };
    let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}\" marker-end=\"url(#{tip})\"/>");
    if let (Some(label), Some(at), Some(whole)) = (label, placed.label, edge.label()) {
        let off = if edge.is_unused() { " off-label" } else { "" };
        let (x, y) = (origin.x + at.x, origin.y + at.y + SMALL / 3.0);
        let title = if whole == label { String::new() } else { format!("<title>{}</title>", markup(&whole)) };
        let _ = writeln!(
            out,
            "<text class=\"label{off}\" x=\"{x:.1}\" y=\"{y:.1}\">{}{title}</text>",
            markup(label)
        );
    }
}

/// The width of a text, at most.
fn width(text: &str, size: f64, is_bold: bool) -> f64 {
    let letter = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '(' | ')' | '[' | ']' => {
            0.39
        }
        'f' | 't' | 'r' | '-' | '/' => 0.44,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '≤' | '×' | '…' | '✔' | '✘' => 0.95,
        'A'..='Z' => 0.72,
        c if c.is_ascii() => 0.61,
        c => 0.61 * console::measure_text_width(c.encode_utf8(&mut [0; 4])).max(1) as f64,
    };
    text.chars().map(letter).sum::<f64>() * size * if is_bold { 1.07 } else { 1.0 }
}
