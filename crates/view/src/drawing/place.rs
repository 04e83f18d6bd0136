//! Where everything of a drawing is, as numbers: the same places that the SVG picture has. Boxes have room for the
//! results that a session may show in them, so nothing moves while one runs.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Drawing, Group,
    layout::Xy,
    svg::{Measured, Room, measure},
};

/// A box: its upper left corner and its size, in pixels of the whole drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Rect {
    /// The left end.
    pub x: f64,
    /// The upper end.
    pub y: f64,
    /// The width.
    pub w: f64,
    /// The height.
    pub h: f64,
}

/// The size of a drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Size {
    /// The width.
    pub w: f64,
    /// The height.
    pub h: f64,
}

/// A point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Point {
    /// From the left.
    pub x: f64,
    /// From above.
    pub y: f64,
}

/// Room around the whole.
const MARGIN: f64 = 24.0;

impl Drawing {
    /// Computes where everything is.
    pub fn place(&mut self) {
        let body = self.body.clone();
        let measured = measure(&body, Room::ForResults);
        let Xy { x, y } = measured.layout.size;
        self.size = Some(Size { w: round(x + 2.0 * MARGIN), h: round(y + 2.0 * MARGIN) });
        place(&mut self.body, &measured, Xy { x: MARGIN, y: MARGIN });
    }
}

fn place(group: &mut Group, measured: &Measured<'_>, origin: Xy) {
    let corners =
        measured.layout.boxes.iter().map(|corner| Xy { x: origin.x + corner.x, y: origin.y + corner.y });
    for ((node, known), corner) in group.nodes.iter_mut().zip(&measured.nodes).zip(corners) {
        let Xy { x: w, y: h } = known.size;
        node.place = Some(Rect { x: round(corner.x), y: round(corner.y), w: round(w), h: round(h) });
        let body = node.frames.as_mut().and_then(|frames| frames.body.as_mut());
        if let (Some(body), Some(inner)) = (body, &known.body) {
            place(body, inner, known.inner(inner, corner));
        }
    }
    for (at, (edge, label)) in group.edges.iter_mut().zip(&measured.labels).enumerate() {
        let placed = measured.placed(at);
        let point = |point: &Xy| [round(origin.x + point.x), round(origin.y + point.y)];
        edge.points = placed.points.iter().map(point).collect();
        edge.label_text.clone_from(label);
        edge.label_at = placed.label.map(|at| Point { x: round(origin.x + at.x), y: round(origin.y + at.y) });
    }
}

/// To a tenth of a pixel.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
