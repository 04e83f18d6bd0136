//! Where boxes and arrows go: rows from top to bottom, few crossings, no label on another or on a box. Every arrow
//! leads from a row to a lower one; the row between holds its label, and rows that it passes keep a place free for it.
//! Box sizes are given, so a box may itself be a drawing.

/// Room around boxes and labels.
const GAP_X: f64 = 26.0;
const GAP_Y: f64 = 16.0;
/// Room for an arrow that passes between boxes.
const BEND: f64 = 10.0;
/// The height of a row without labels between two rows of boxes.
const BETWEEN: f64 = 10.0;
/// Boxes side by side; of more, the others go into the next row.
const BESIDE: usize = 10;
/// Places of arrows in rows of a drawing that may be placed with care; in larger ones, long arrows go straight.
const PLACES: usize = 20_000;
/// The rows that an arrow of such a drawing may pass.
const LONG: usize = 5;
/// How often the order within rows, and then the place of each box, is improved.
const SWEEPS: usize = 12;

/// A size or a place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Xy {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// An arrow to be placed: the boxes it connects, and the size of its label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrow {
    pub(super) ends: (usize, usize),
    /// Whether it leads back to a higher row.
    pub(super) is_back: bool,
    pub(super) label: Option<Xy>,
}

/// Where everything is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layout {
    pub(super) size: Xy,
    /// The upper left corner of each box.
    pub(super) boxes: Vec<Xy>,
    pub(super) arrows: Vec<Placed>,
}

/// An arrow: the points that it passes from its source to its target, two for each row, and the left end of its label.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placed {
    pub(super) points: Vec<Xy>,
    pub(super) label: Option<Xy>,
}

/// A box, or the place of an arrow in a row.
#[derive(Clone, Copy, Default)]
struct Vertex {
    size: Xy,
    centre: f64,
    is_box: bool,
    is_back: bool,
}

impl Vertex {
    /// How far from its middle its arrow passes: a label is to the right of its arrow.
    fn shift(self) -> f64 {
        if self.is_box { 0.0 } else { (BEND - self.size.x) / 2.0 }
    }

    fn line(self) -> f64 {
        self.centre + self.shift()
    }
}

/// Rows of vertices, each arrow as the vertices that it passes downwards.
struct Rows {
    vertices: Vec<Vertex>,
    rows: Vec<Vec<usize>>,
    chains: Vec<Vec<usize>>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
}

/// Places boxes of these sizes.
pub(super) fn layout(sizes: &[Xy], arrows: &[Arrow]) -> Layout {
    let mut rows = Rows::new(sizes, arrows);
    rows.order();
    rows.place();
    rows.finish(sizes, arrows)
}

/// Each box in the row below all that lead to it; arrows back do not count.
fn ranks(count: usize, arrows: &[Arrow]) -> Vec<usize> {
    let (mut rank, mut missing) = (vec![0; count], vec![0; count]);
    let mut outgoing = vec![Vec::new(); count];
    for arrow in arrows.iter().filter(|arrow| !arrow.is_back) {
        missing[arrow.ends.1] += 1;
        outgoing[arrow.ends.0].push(arrow.ends.1);
    }
    let mut order: Vec<usize> = (0..count).filter(|at| missing[*at] == 0).collect();
    let (mut next, mut width) = (0, Vec::new());
    while let Some(&at) = order.get(next) {
        next += 1;
        while width.get(rank[at]).is_some_and(|width| *width >= BESIDE) {
            rank[at] += 1;
        }
        width.resize(width.len().max(rank[at] + 1), 0);
        width[rank[at]] += 1;
        for &to in &outgoing[at] {
            rank[to] = rank[to].max(rank[at] + 1);
            missing[to] -= 1;
            if missing[to] == 0 {
                order.push(to);
            }
        }
    }
    // A box that nothing leads to is right above the box that it leads to.
    let mut is_first = vec![true; count];
    arrows.iter().filter(|arrow| !arrow.is_back).for_each(|arrow| is_first[arrow.ends.1] = false);
    for at in (0..count).filter(|at| is_first[*at]) {
        if let Some(nearest) = outgoing[at].iter().map(|to| rank[*to]).min() {
            rank[at] = rank[at].max(nearest - 1);
        }
    }
    rank
}

impl Rows {
    fn new(sizes: &[Xy], arrows: &[Arrow]) -> Self {
        let rank = ranks(sizes.len(), arrows);
        let count = rank.iter().max().map_or(0, |last| 2 * last + 1);
        let vertex = |size: &Xy| Vertex { size: *size, is_box: true, ..Vertex::default() };
        let mut rows = Self {
            vertices: sizes.iter().map(vertex).collect(),
            rows: vec![Vec::new(); count],
            chains: Vec::new(),
            above: Vec::new(),
            below: Vec::new(),
        };
        for (at, rank) in rank.iter().enumerate() {
            rows.rows[2 * rank].push(at);
        }
        let passes = |(from, to): (usize, usize)| (2 * rank[from]).abs_diff(2 * rank[to]).saturating_sub(1);
        let is_large = arrows.iter().map(|arrow| passes(arrow.ends)).sum::<usize>() > PLACES;
        for arrow in arrows {
            let (from, to) = if arrow.is_back { (arrow.ends.1, arrow.ends.0) } else { arrow.ends };
            let mut chain = vec![from];
            let is_straight = is_large && passes(arrow.ends) > LONG;
            for row in (2 * rank[from] + 1..2 * rank[to]).filter(|_| !is_straight) {
                let label = arrow.label.filter(|_| row == 2 * rank[from] + 1);
                let size = label.map_or(Xy { x: BEND, y: 0.0 }, |label| Xy { x: label.x + BEND, y: label.y });
                rows.rows[row].push(rows.vertices.len());
                chain.push(rows.vertices.len());
                rows.vertices.push(Vertex { size, is_back: arrow.is_back, ..Vertex::default() });
            }
            chain.push(to);
            rows.chains.push(chain);
        }
        rows.above = vec![Vec::new(); rows.vertices.len()];
        rows.below = vec![Vec::new(); rows.vertices.len()];
        for step in rows.chains.iter().filter(|chain| chain[0] != chain[1]).flat_map(|chain| chain.windows(2))
        {
            rows.above[step[1]].push(step[0]);
            rows.below[step[0]].push(step[1]);
        }
        rows
    }

    /// Each row in the order of the middle of what leads to it, then of what it leads to, in turns.
    fn order(&mut self) {
        let mut place = vec![0.0; self.vertices.len()];
        let note = |place: &mut Vec<f64>, row: &[usize]| {
            for (at, vertex) in row.iter().enumerate() {
                place[*vertex] = at as f64 - row.len() as f64 / 2.0;
            }
        };
        self.rows.iter().for_each(|row| note(&mut place, row));
        let count = self.rows.len();
        for sweep in 0..SWEEPS {
            let downwards = sweep % 2 == 0;
            let neighbours = if downwards { &self.above } else { &self.below };
            for step in 0..count {
                let row = &mut self.rows[if downwards { step } else { count - 1 - step }];
                let key = |vertex: usize| match neighbours[vertex].as_slice() {
                    [] => place[vertex],
                    near => near.iter().map(|other| place[*other]).sum::<f64>() / near.len() as f64,
                };
                let mut keyed: Vec<(f64, usize)> = row.iter().map(|vertex| (key(*vertex), *vertex)).collect();
                keyed.sort_by(|one, two| one.0.total_cmp(&two.0));
                *row = keyed.into_iter().map(|(_, vertex)| vertex).collect();
                note(&mut place, row);
            }
        }
    }

    /// Moves each vertex towards the middle of its neighbours, as far as the others of its row leave room.
    fn place(&mut self) {
        for row in &self.rows {
            let mut x = 0.0;
            for &at in row {
                x += self.vertices[at].size.x / 2.0;
                self.vertices[at].centre = x;
                x += self.vertices[at].size.x / 2.0 + GAP_X;
            }
        }
        for sweep in 0..2 * SWEEPS {
            let count = self.rows.len();
            for step in 0..count {
                let row = if sweep % 2 == 0 { step } else { count - 1 - step };
                let near = if sweep % 2 == 0 { &self.above } else { &self.below };
                let wish = |at: usize| match near[at].as_slice() {
                    [] => (self.vertices[at].centre, 0.1),
                    near => {
                        // A box is in the middle of its successors, and arrows back go around.
                        let is_box = self.vertices[at].is_box;
                        let leads_on = |other: &&usize| !self.vertices[**other].is_back;
                        let has_on = is_box && near.iter().any(|other| leads_on(&other));
                        let near: Vec<&usize> =
                            near.iter().filter(|other| !has_on || leads_on(other)).collect();
                        let sum: f64 = near.iter().map(|other| self.vertices[**other].line()).sum();
                        // A long arrow is straight before a box is in the middle.
                        let is_straight = !is_box && !self.vertices[*near[0]].is_box;
                        let wish = sum / near.len() as f64 - self.vertices[at].shift();
                        (wish, if is_straight { 8.0 } else { 1.0 })
                    }
                };
                let wishes: Vec<(f64, f64)> = self.rows[row].iter().map(|at| wish(*at)).collect();
                let widths: Vec<f64> = self.rows[row].iter().map(|at| self.vertices[*at].size.x).collect();
                for (at, centre) in self.rows[row].iter().zip(apart(&wishes, &widths)) {
                    self.vertices[*at].centre = centre;
                }
            }
        }
    }

    fn finish(self, sizes: &[Xy], arrows: &[Arrow]) -> Layout {
        let left = |vertex: &Vertex| vertex.centre - vertex.size.x / 2.0;
        let least = self.vertices.iter().map(left).fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 0.0 };
        let right = |vertex: &Vertex| vertex.centre + vertex.size.x / 2.0 - least;
        let width = self.vertices.iter().map(right).fold(0.0, f64::max);
        // The upper and the lower end of each row.
        let mut spans = Vec::with_capacity(self.rows.len());
        let mut row_of = vec![0; self.vertices.len()];
        let mut y = 0.0;
        for (at, row) in self.rows.iter().enumerate() {
            row.iter().for_each(|vertex| row_of[*vertex] = at);
            let highest = row.iter().map(|at| self.vertices[*at].size.y).fold(0.0, f64::max);
            let height = if highest == 0.0 { BETWEEN } else { highest };
            spans.push((y, y + height));
            y += height + GAP_Y;
        }
        let corner = |at: usize| {
            let (top, bottom) = spans[row_of[at]];
            let size = self.vertices[at].size;
            Xy { x: self.vertices[at].centre - least - size.x / 2.0, y: (top + bottom - size.y) / 2.0 }
        };
        let boxes: Vec<Xy> = (0..sizes.len()).map(corner).collect();
        let (ports_below, ports_above) = (
            self.ports(|chain| (chain[0], chain[1])),
            self.ports(|chain| (chain[chain.len() - 1], chain[chain.len() - 2])),
        );
        let mut placed = Vec::with_capacity(arrows.len());
        for (at, (chain, arrow)) in self.chains.iter().zip(arrows).enumerate() {
            if chain[0] == chain[1] {
                placed.push(Placed::default());
                continue;
            }
            let (first, last) = (chain[0], chain[chain.len() - 1]);
            let start = self.vertices[first].centre - least + ports_below[at];
            let mut points = vec![
                Xy { x: start, y: boxes[first].y + sizes[first].y },
                Xy { x: start, y: spans[row_of[first]].1 },
            ];
            for &vertex in &chain[1..chain.len() - 1] {
                let x = self.vertices[vertex].line() - least;
                let (top, bottom) = spans[row_of[vertex]];
                points.extend([Xy { x, y: top }, Xy { x, y: bottom }]);
            }
            let end = self.vertices[last].centre - least + ports_above[at];
            points.extend([Xy { x: end, y: spans[row_of[last]].0 }, Xy { x: end, y: boxes[last].y }]);
            let label = arrow.label.map(|_| {
                let (top, bottom) = spans[row_of[chain[1]]];
                Xy { x: self.vertices[chain[1]].line() - least + BEND / 2.0, y: (top + bottom) / 2.0 }
            });
            // A step of no length has no direction, and the head of the arrow would have none.
            points.dedup_by(|one, two| (one.x - two.x).abs() + (one.y - two.y).abs() < 0.1);
            if arrow.is_back {
                points.reverse();
            }
            placed.push(Placed { points, label });
        }
        Layout { size: Xy { x: width, y: (y - GAP_Y).max(0.0) }, boxes, arrows: placed }
    }

    /// How far from the middle of its box each arrow leaves or enters it; `ends` gives the box and the next vertex.
    fn ports(&self, ends: impl Fn(&[usize]) -> (usize, usize)) -> Vec<f64> {
        let mut at_box: Vec<Vec<(f64, usize)>> = vec![Vec::new(); self.vertices.len()];
        for (at, chain) in self.chains.iter().enumerate() {
            let (of, next) = ends(chain);
            at_box[of].push((self.vertices[next].line(), at));
        }
        let mut ports = vec![0.0; self.chains.len()];
        for (of, mut arrows) in at_box.into_iter().enumerate() {
            arrows.sort_by(|one, two| one.0.total_cmp(&two.0));
            let count = arrows.len() as f64;
            let step = ((self.vertices[of].size.x - 24.0) / count).clamp(2.0, 18.0);
            for (place, (_, at)) in arrows.into_iter().enumerate() {
                ports[at] = (place as f64 - (count - 1.0) / 2.0) * step;
            }
        }
        ports
    }
}

/// The centres nearest to what each of a row wishes, with its weight, so that none overlap: neighbours that wish for
/// the same place form a block, which is in the middle of their wishes.
fn apart(wishes: &[(f64, f64)], widths: &[f64]) -> Vec<f64> {
    // How far each is to the right of the first, if all touch.
    let mut offset = 0.0;
    let mut offsets = Vec::with_capacity(widths.len());
    for (at, width) in widths.iter().enumerate() {
        if at > 0 {
            offset += (widths[at - 1] + width) / 2.0 + GAP_X;
        }
        offsets.push(offset);
    }
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    for ((wish, weight), offset) in wishes.iter().zip(&offsets) {
        let mut block = ((wish - offset) * weight, *weight, 1);
        while let Some(last) = blocks.pop_if(|last| last.0 / last.1 > block.0 / block.1) {
            block = (block.0 + last.0, block.1 + last.1, block.2 + last.2);
        }
        blocks.push(block);
    }
    let places = blocks.iter().flat_map(|(sum, weight, count)| std::iter::repeat_n(sum / weight, *count));
    places.zip(&offsets).map(|(place, offset)| place + offset).collect()
}
