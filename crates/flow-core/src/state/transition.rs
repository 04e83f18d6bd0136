//! What becomes of nodes and edges when an attempt begins or ends, an edge is resolved, a loop goes round.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, EdgeStatus, ErrorCode, LONGEST_WAIT, NodeId, NodeStatus, Outcome, Timestamp,
};
use serde_json::json;

use super::{Ending, Facts, NodeState, rest::CONTINUE};
use crate::graph::{EdgeIx, FailFast, Graph, Join, NodeIx, Occupies, OnFailure, Retry};

impl Facts {
    pub(super) fn start(&mut self, graph: &Graph, ix: NodeIx, attempt: u32, at: Timestamp) {
        let reserved = self.estimate(graph, ix);
        let node = &mut self.nodes[ix];
        node.status = NodeStatus::Running;
        node.attempt = attempt;
        node.attempts += 1;
        node.started_at = Some(at);
        node.retry_at = None;
        node.error = None;
        node.deadline = graph.flow().node(ix).policy.timeout.map(|timeout| at + timeout);
        node.needs_confirmation = false;
        let goes_on = std::mem::take(&mut node.interrupted);
        if !goes_on {
            node.since = Some(at);
        }
        if reserved > 0.0 {
            node.more().reserved = reserved;
        }
        if let Some(more) = &mut node.more {
            more.named &= goes_on;
            more.taken.append(&mut more.waiting);
            match more.resume.take() {
                // What it is told counts as undelivered until a turn has answered it.
                Some(told) if told != CONTINUE => more.taken.insert(0, told),
                Some(_) => {}
                // It begins anew, and what was said to it follows its first turn.
                None => std::mem::swap(&mut more.waiting, &mut more.taken),
            }
            more.cost_before = more.cost_usd;
            more.asks = false;
        }
        self.touched.push(ix);
        self.running += 1;
        if graph.flow().node(ix).occupies == Occupies::Slot {
            self.slots += 1;
        }
    }

    pub(super) fn end(&mut self, graph: &Graph, ix: NodeIx, status: NodeStatus, duration_ms: Option<u64>) {
        let node = &mut self.nodes[ix];
        node.status = status;
        node.duration_ms = duration_ms;
        node.deadline = None;
        node.settles = self.session.last_seq;
        self.touched.push(ix);
        if let Some(more) = &mut node.more {
            more.reserved = 0.0;
            if status == NodeStatus::Complete {
                more.taken.clear();
                more.waiting.clear();
            }
        }
        self.running -= 1;
        if graph.flow().node(ix).occupies == Occupies::Slot {
            self.slots -= 1;
        }
        // Who was cancelled may go on, and then its question is still open.
        if status != NodeStatus::Cancelled {
            self.progress += 1;
            self.forget_prompts(ix);
        }
    }

    pub(super) fn fail(
        &mut self,
        graph: &Graph,
        ix: NodeIx,
        error: &AgentError,
        will_retry: bool,
        at: Timestamp,
    ) {
        let duration = self.nodes[ix].started_at.map(|started| at.since(started).as_millis() as u64);
        let status = if will_retry { NodeStatus::Pending } else { NodeStatus::Failed };
        self.end(graph, ix, status, duration);
        let policy = &graph.flow().node(ix).policy;
        let node = &mut self.nodes[ix];
        node.failures += 1;
        node.failed_seq = self.session.last_seq;
        node.error = Some(Box::new(error.clone()));
        if will_retry {
            node.retry_at = Some(at + wait_before_retry(&policy.retry, node.failures, error));
        } else if policy.on_failure == OnFailure::Continue {
            self.outputs[ix] = Some(Arc::new(json!({ "failed": true, "error": error })));
        } else {
            node.tainted = true;
            self.outputs[ix] = None;
            self.failure.get_or_insert_with(|| error.clone());
            if error.code == ErrorCode::BudgetExceeded {
                self.end_early(Ending { outcome: Outcome::BudgetExceeded, error: Some(error.clone()) });
            } else if graph.flow().policy.fail_fast == FailFast::On {
                self.end_early(Ending { outcome: Outcome::Failed, error: Some(error.clone()) });
            }
        }
    }

    /// A vendor's limit ended the attempt; it goes on, in its own conversation if there is one, once it is lifted.
    pub(super) fn wait_for_limit(&mut self, graph: &Graph, ix: NodeIx, until: Timestamp, at: Timestamp) {
        // Logs of earlier versions hold waits that no vendor can mean; these are over at once.
        let until = if until > at + LONGEST_WAIT { at } else { until };
        self.end(graph, ix, NodeStatus::Waiting, None);
        let node = &mut self.nodes[ix];
        node.interrupted = true;
        node.retry_at = Some(until);
        if node.conversation.is_some() && node.more().named {
            node.more().resume = Some(CONTINUE.to_owned());
        }
    }

    pub(super) fn resolve(&mut self, graph: &Graph, from: &str, to: &str, status: EdgeStatus) {
        let Some((edge, to)) = find_edge(graph, from, to) else { return };
        if !self.is_open(graph, edge) {
            return;
        }
        let from = graph.flow().edge(edge).from;
        let source = &self.nodes[from];
        let (tainted, pass) = (source.tainted, source.pass);
        // What this loop held back comes after what is due already.
        let cycle = graph.flow().edge(edge).cycle.as_ref();
        let held = cycle.into_iter().flat_map(|cycle| &cycle.releases).copied();
        let held: Vec<NodeIx> = held.filter(|ix| *ix != from && !self.settles(graph, *ix)).collect();
        let state = &mut self.edges[edge];
        let before = std::mem::replace(&mut state.status, status);
        state.pass = pass;
        self.touched.extend([from, to]);
        if cycle.is_some() {
            held.iter().for_each(|ix| self.nodes[*ix].settles = self.session.last_seq);
            self.touched.extend(held);
            return;
        }
        if before != EdgeStatus::Pending {
            return self.reopen(graph, to, status);
        }
        let node = &mut self.nodes[to];
        node.unresolved = node.unresolved.saturating_sub(1);
        node.fired += u32::from(status == EdgeStatus::Fired);
        node.tainted |= tainted && status == EdgeStatus::Skipped;
        let first = graph.flow().node(to).join == Join::Any && status == EdgeStatus::Fired && node.fired == 1;
        let begins = node.unresolved == 0 || first;
        if begins && node.status == NodeStatus::Pending && node.attempt == 0 {
            self.clear(&graph.flow().node(to).loop_nodes);
        }
    }

    /// Whether a node has ended and some edge of it can be resolved now.
    pub(crate) fn settles(&self, graph: &Graph, ix: NodeIx) -> bool {
        let node = graph.flow().node(ix);
        if !self.nodes[ix].has_ended() {
            return false;
        }
        let is_pending = |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Pending;
        let left = |edge: &EdgeIx| self.edges[*edge].status == EdgeStatus::Skipped;
        node.loops.iter().any(is_pending)
            || node
                .outgoing
                .iter()
                .any(|edge| self.is_open(graph, *edge) && graph.flow().edge(*edge).leaves.iter().all(left))
    }

    /// Whether an edge is to be resolved: not yet, or only in an earlier pass of its source. The latter is so in
    /// logs of older versions alone, which resolved the edges out of a loop in its first pass.
    pub(crate) fn is_open(&self, graph: &Graph, edge: EdgeIx) -> bool {
        let state = self.edges[edge];
        state.status == EdgeStatus::Pending || state.pass < self.nodes[graph.flow().edge(edge).from].pass
    }

    /// An older version skipped this node in the first pass of a loop that it follows.
    fn reopen(&mut self, graph: &Graph, ix: NodeIx, status: EdgeStatus) {
        let node = &self.nodes[ix];
        match node.status {
            NodeStatus::Skipped if status == EdgeStatus::Fired => self.begin_pass(graph, ix, false),
            NodeStatus::Pending if node.attempt == 0 => self.count_edges(graph, ix),
            _ => {}
        }
    }

    /// A loop that is entered anew sees nothing of what it did when it was entered before.
    fn clear(&mut self, body: &[NodeIx]) {
        for ix in body {
            let node = &self.nodes[*ix];
            if node.status == NodeStatus::Pending && node.attempt == 0 {
                self.outputs[*ix] = None;
            }
        }
    }

    pub(super) fn iterate(&mut self, graph: &Graph, from: &str, to: &str, iteration: u32, nodes: &[NodeId]) {
        let Some((edge, to)) = find_edge(graph, from, to) else { return };
        let Some(cycle) = &graph.flow().edge(edge).cycle else { return };
        if iteration <= self.edges[edge].iterations {
            return;
        }
        let source = &self.nodes[graph.flow().edge(edge).from];
        let follows_work = source.follows_work || source.status != NodeStatus::Reused;
        let named: Vec<NodeIx> = nodes.iter().filter_map(|id| graph.flow().find(id.as_str())).collect();
        let body = if named.is_empty() { &cycle.direct } else { &named };
        let mut inside = vec![false; graph.flow().nodes.len()];
        body.iter().for_each(|ix| inside[ix.0 as usize] = true);
        for &ix in body {
            for &incoming in &graph.flow().node(ix).incoming {
                if inside[graph.flow().edge(incoming).from.0 as usize] {
                    self.edges[incoming].status = EdgeStatus::Pending;
                }
            }
            for &inner in &graph.flow().node(ix).loops {
                self.edges[inner].status = EdgeStatus::Pending;
            }
        }
        for inner in &cycle.inner {
            self.edges[*inner].iterations = 0;
        }
        self.edges[edge].iterations = iteration;
        for &ix in body {
            let node = &mut self.nodes[ix];
            if !named.is_empty() && node.status == NodeStatus::Pending && node.attempt == 0 {
                // It has this pass before it still.
                node.follows_work |= follows_work;
                node.sent_back = false;
                self.count_edges(graph, ix);
            } else {
                self.begin_pass(graph, ix, follows_work);
            }
        }
        self.nodes[to].sent_back = true;
        self.touched.extend(body.iter().copied().chain([graph.flow().edge(edge).from, to]));
    }

    /// Puts a node back to where it was before it ran, with the next pass; its edges stand as they do.
    fn begin_pass(&mut self, graph: &Graph, ix: NodeIx, follows_work: bool) {
        let state = &mut self.nodes[ix];
        let mut more = state.more.take();
        if let Some(more) = &mut more {
            (more.asked, more.reply, more.resume, more.named) = (None, None, None, false);
            more.waiting.clear();
            more.taken.clear();
        }
        *state = NodeState {
            pass: state.pass + 1,
            attempts: state.attempts,
            conversation: state.conversation.take(),
            failed_passes: state.failed_passes + u32::from(state.status == NodeStatus::Failed),
            follows_work,
            more,
            ..NodeState::default()
        };
        self.count_edges(graph, ix);
    }

    fn count_edges(&mut self, graph: &Graph, ix: NodeIx) {
        let (mut unresolved, mut fired, mut tainted) = (0, 0, false);
        for &incoming in &graph.flow().node(ix).incoming {
            let source = &self.nodes[graph.flow().edge(incoming).from];
            match self.edges[incoming].status {
                EdgeStatus::Fired => fired += 1,
                EdgeStatus::Skipped => tainted |= source.tainted,
                _ => unresolved += 1,
            }
        }
        let node = &mut self.nodes[ix];
        (node.unresolved, node.fired, node.tainted) = (unresolved, fired, tainted);
    }
}

/// How long a node waits before it is tried again. The vendor's wish wins over the author's backoff, up to a length.
pub fn wait_before_retry(retry: &Retry, failures: u32, error: &AgentError) -> Duration {
    if let Some(wait) = error.retry_after.filter(|wait| *wait <= retry.longest_wish()) {
        return wait;
    }
    let grown = retry.backoff.as_secs_f64() * retry.factor.powi(failures.saturating_sub(1).min(1_000) as i32);
    let limit = retry.max_backoff.unwrap_or(Duration::from_secs(24 * 3_600));
    Duration::try_from_secs_f64(grown).map_or(limit, |wait| wait.min(limit))
}

fn find_edge(graph: &Graph, from: &str, to: &str) -> Option<(EdgeIx, NodeIx)> {
    let (from, to) = (graph.flow().find(from)?, graph.flow().find(to)?);
    let node = graph.flow().node(from);
    // A fan-out can have thousands of edges, its targets few: look from the side that has fewer.
    let target = graph.flow().node(to);
    let candidates =
        if target.incoming.len() < node.outgoing.len() { &target.incoming } else { &node.outgoing };
    let found = candidates.iter().chain(&node.loops).copied().find(|&edge| {
        let edge = graph.flow().edge(edge);
        edge.from == from && edge.to == to
    })?;
    Some((found, to))
}
