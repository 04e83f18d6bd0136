//! The result of each node and edge of a session's flow. Frames are folded: a node that ran in ten of them has the sum.

use std::collections::BTreeMap;

use inspan_flow_core::{EdgeIx, FramesProgress};
use inspan_protocol::NodeStatus;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Drawing, DrawnFrames, DrawnNode, Group};
use crate::{format, look, row::NodeRow, spent::SpendingTotal, state::SessionView};

/// The session as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DrawnSession")]
pub struct SessionResults {
    /// The session.
    pub session_id: String,
    /// The word for its status.
    pub status: String,
    /// How long it took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What was spent in all.
    #[serde(flatten)]
    pub spent: Spending,
}

/// What was spent: no cost if any price is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DrawnSpending")]
pub struct Spending {
    /// Tokens of all kinds.
    pub tokens: u64,
    /// In US dollars; absent if any price is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(skip)]
    spent: SpendingTotal,
}

/// One node over all frames that ran it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DrawnResults")]
pub struct Results {
    /// Of several frames the one to be seen first.
    pub status: NodeStatus,
    /// How much it is to be seen.
    #[serde(skip)]
    weight: u8,
    /// How often it has each status: more than one if it is in a frame.
    pub runs: BTreeMap<&'static str, u32>,
    /// Over all frames and passes.
    pub attempts: u32,
    /// Passes of the loops that lead back to it.
    pub passes: u32,
    /// The sum over its frames, in milliseconds.
    pub duration_ms: Option<u64>,
    /// What was spent on it.
    #[serde(flatten)]
    pub spent: Spending,
    /// How far it is with its frames.
    #[serde(rename = "progress")]
    pub progress: Option<FramesProgress>,
    /// The agent that worked on it last, where there are several.
    pub by: Option<String>,
    /// The first error.
    pub error: Option<String>,
}

impl Spending {
    /// The same, as it is written.
    pub fn of(spent: SpendingTotal) -> Self {
        Self { tokens: spent.tokens, cost_usd: spent.known_usd(), spent }
    }
}

impl SessionResults {
    /// `s-1 · success · 2m 05s · 1.2k tokens · $0.42`.
    pub fn text(&self) -> String {
        let mut parts = vec![self.session_id.clone(), self.status.clone()];
        parts.extend(self.duration_ms.map(format::millis));
        parts.extend(self.spent.spent.text());
        parts.join(" · ")
    }
}

impl Drawing {
    /// Adds what the session made of the flow; `shown` says where a node is as people see it.
    pub fn add_session(
        &mut self,
        session: SessionResults,
        view: &SessionView,
        shown: &dyn Fn(&NodeRow) -> NodeStatus,
    ) {
        self.session = Some(session);
        self.body.add(&view.rows, FrameEnd::Open, shown);
        self.body.add_edges(view);
    }

    /// What a session made of the nodes that run in frames, by their paths in the drawing.
    pub fn in_frames(&self) -> BTreeMap<String, Results> {
        let mut found = BTreeMap::new();
        self.body.bodies().for_each(|body| body.add_results_to(&mut found));
        found
    }
}

/// Whether the frame in which a node is has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameEnd {
    Open,
    Ended,
}

impl Group {
    fn add(&mut self, rows: &[NodeRow], around: FrameEnd, shown: &dyn Fn(&NodeRow) -> NodeStatus) {
        for (node, row) in self.nodes.iter_mut().zip(rows) {
            node.results.get_or_insert_default().add(row, shown(row), around);
            let body = node.frames.as_mut().and_then(|frames| frames.body.as_mut());
            if let Some(body) = body {
                for frame in row.frames.values() {
                    let end = if frame.open.is_some() { FrameEnd::Open } else { FrameEnd::Ended };
                    body.add(&frame.rows, end, shown);
                }
            }
        }
    }

    fn add_edges(&mut self, view: &SessionView) {
        for (at, edge) in (0..).zip(&mut self.edges) {
            edge.counts = Some(view.edge_counts(self.body, EdgeIx(at)));
        }
        let bodies = self.nodes.iter_mut().filter_map(|node| node.frames.as_mut()?.body.as_mut());
        bodies.for_each(|body| body.add_edges(view));
    }

    /// What its nodes run.
    fn bodies(&self) -> impl Iterator<Item = &Self> {
        self.nodes.iter().filter_map(DrawnNode::body)
    }

    fn add_results_to(&self, found: &mut BTreeMap<String, Results>) {
        let named =
            self.nodes.iter().map(|node| (node.path.clone(), node.results.clone().unwrap_or_default()));
        found.extend(named);
        self.bodies().for_each(|body| body.add_results_to(found));
    }
}

impl Results {
    fn add(&mut self, row: &NodeRow, status: NodeStatus, around: FrameEnd) {
        // What has not begun when its frame ends never will: it hides nothing that has.
        let is_late = around == FrameEnd::Ended && status == NodeStatus::Pending;
        let weight = if is_late { 0 } else { weight(status) };
        if self.runs.is_empty() || weight > self.weight {
            (self.status, self.weight) = (status, weight);
        }
        *self.runs.entry(look::word(status)).or_default() += 1;
        self.attempts += row.attempts;
        self.passes += row.pass.max(1);
        if let Some(ms) = row.worked_ms().filter(|_| status != NodeStatus::Skipped) {
            *self.duration_ms.get_or_insert_default() += ms;
        }
        self.spent = Spending::of(self.spent.spent.plus(&row.spent));
        self.progress = match (self.progress, row.progress) {
            (Some(one), Some(two)) => Some(FramesProgress {
                total: one.total.zip(two.total).map(|(one, two)| one + two),
                open: one.open + two.open,
                succeeded: one.succeeded + two.succeeded,
                failed: one.failed + two.failed,
            }),
            (one, two) => one.or(two),
        };
        if row.by.is_some() {
            self.by.clone_from(&row.by);
        }
        if self.error.is_none() {
            self.error =
                row.error.as_ref().filter(|_| status == NodeStatus::Failed).map(|error| error.to_string());
        }
    }

    /// `complete · 3.1s · 2 attempts · $0.42`; of frames `8 of 10 items, 1 failed · 3.1s · $0.42`.
    pub fn text(&self, frames: Option<&DrawnFrames>) -> String {
        let count: u32 = self.runs.values().sum();
        let mut parts = Vec::new();
        match (frames, self.progress) {
            (Some(frames), Some(progress)) if frames.words.0 != "run" => {
                let (one, several) = frames.words;
                parts.push(format::frames_as(progress, |count| if count == 1 { one } else { several }));
            }
            _ if count > 1 => {
                let runs = self.runs.iter().map(|(word, count)| format!("{count} {word}"));
                parts.push(runs.collect::<Vec<_>>().join(", "));
            }
            _ => parts.push(look::word(self.status).to_owned()),
        }
        parts.extend(self.by.as_ref().map(|agent| format!("by {agent}")));
        parts.extend(self.duration_ms.map(format::millis));
        if self.passes > count {
            parts.push(format!("{} passes", self.passes));
        }
        if self.attempts > self.passes {
            parts.push(format!("{} attempts", self.attempts));
        }
        if self.spent.tokens > 0 || self.spent.cost_usd.is_some_and(|usd| usd > 0.0) {
            parts.push(self.spent.spent.cost().unwrap_or_else(|| "cost unknown".to_owned()));
        }
        parts.join(" · ")
    }
}

/// Of the statuses of a node in several frames, the one that is seen.
fn weight(status: NodeStatus) -> u8 {
    match status {
        NodeStatus::Skipped => 1,
        NodeStatus::Reused => 2,
        NodeStatus::Complete => 3,
        NodeStatus::Pending => 4,
        NodeStatus::Cancelled => 5,
        NodeStatus::Paused | NodeStatus::Interrupted => 6,
        NodeStatus::Failed => 7,
        NodeStatus::Waiting => 8,
        _ => 9,
    }
}
