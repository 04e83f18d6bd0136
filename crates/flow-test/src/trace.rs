//! The result of a session, read from its events: which nodes ran in which order, what they gave, cost and took. It
//! needs the log alone, so that sessions of any store, and sessions of different flows, can be compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::successors,
    sync::Arc,
    time::Duration,
};

use inspan_flow::{EdgeOn, FramesKind, Graph, OnFailure};
use inspan_protocol::{
    AgentError, Envelope, Event, NodePath, NodeStatus, Outcome, Prompt, PromptId, PromptKind, Reply, RunId,
    Timestamp, UnpricedTurns,
};
use serde_json::{Value, json};

use crate::{
    cases::each_body,
    pattern::{Pattern, place_in_file, without_pass, without_passes},
};

/// A session's log, folded.
#[derive(Clone, Debug)]
pub struct Trace {
    /// How the session ended, or why it does not go on.
    pub outcome: Outcome,
    /// What ended it, if something failed.
    pub error: Option<AgentError>,
    /// What the flow gives, once it has ended.
    pub flow_outputs: Option<Arc<Value>>,
    /// Each place of the run at which something happened; every pass of a loop is one.
    pub nodes: BTreeMap<NodePath, NodeTrace>,
    order: Vec<NodePath>,
    /// How many frames the node of each place has opened, or has items for.
    frames: BTreeMap<NodePath, u32>,
    /// The places in those frames, each in its first pass; none before the flow is read.
    in_frames: Vec<NodePath>,
    /// The frames that failed, by the node that opened them.
    failed_frames: BTreeSet<(NodePath, u32)>,
    asked: Vec<AskedQuestion>,
    /// The edges that fired, by the places of their nodes in the file.
    pub fired: BTreeSet<(String, String)>,
    runs: BTreeMap<RunId, NodePath>,
    unpriced_turns: UnpricedTurns,
    /// The messages that each run was sent.
    messages: Vec<(NodePath, String)>,
    began: Option<Timestamp>,
    newest: Option<Timestamp>,
    /// What the session says of its length, once it has ended.
    took: Option<Duration>,
    /// The places at which an attempt is in progress.
    running: BTreeSet<NodePath>,
    ran_at_once: bool,
}

/// A question to a person, and its answer.
#[derive(Clone, Debug)]
struct AskedQuestion {
    path: NodePath,
    prompt: Prompt,
    reply: Option<Reply>,
}

/// The result of a node in one pass.
#[derive(Clone, Debug, Default)]
pub struct NodeTrace {
    /// Its status.
    pub status: NodeStatus,
    /// Its type.
    pub node_type: Arc<str>,
    /// How often it was tried.
    pub attempts: u32,
    /// What went wrong, and whether another attempt followed.
    pub failures: Vec<(AgentError, bool)>,
    /// The usage limits that it waited for, by the times at which they were lifted.
    pub limits: Vec<Timestamp>,
    /// Its output.
    pub output: Option<Arc<Value>>,
    /// What its agents cost in US dollars, as far as known.
    pub cost_usd: f64,
    /// Whether the price of some turn is unknown.
    pub unpriced: bool,
    /// Tokens of its agents.
    pub tokens: u64,
    /// How long its attempts took.
    pub duration: Duration,
    /// When the attempt in progress began.
    began: Option<Timestamp>,
    /// When its newest attempt ended.
    pub(crate) ended: Option<Timestamp>,
    /// The text of each turn of its newest agent run.
    pub turns: Vec<String>,
    /// The agents that took over from those before them.
    pub took_over: Vec<String>,
    /// How its attempts ended, in their order.
    pub(crate) ends: Vec<AttemptEnd>,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(crate) enum AttemptEnd {
    /// With an output, after these turns of its agent.
    Output(Arc<Value>, Vec<String>),
    /// With a failure.
    Failure(AgentError),
    /// At a usage limit that is lifted at this time.
    Limit(Timestamp),
    /// By something else that ended it.
    Cancelled,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            outcome: Outcome::Failed,
            error: None,
            flow_outputs: None,
            nodes: BTreeMap::new(),
            order: Vec::new(),
            frames: BTreeMap::new(),
            in_frames: Vec::new(),
            failed_frames: BTreeSet::new(),
            asked: Vec::new(),
            fired: BTreeSet::new(),
            runs: BTreeMap::new(),
            unpriced_turns: UnpricedTurns::default(),
            messages: Vec::new(),
            began: None,
            newest: None,
            took: None,
            running: BTreeSet::new(),
            ran_at_once: false,
        }
    }
}

impl Trace {
    /// The fold of a log.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Arc<Envelope>>) -> Self {
        let mut trace = Self::default();
        events.into_iter().for_each(|envelope| trace.apply(envelope));
        trace
    }

    fn apply(&mut self, envelope: &Envelope) {
        let now = envelope.timestamp;
        self.began.get_or_insert(now);
        self.newest = Some(now);
        match &envelope.event {
            Event::HarnessStart { .. } => self.began = Some(now),
            Event::HarnessComplete { outcome, outputs, duration_ms, .. } => {
                self.outcome = *outcome;
                self.flow_outputs = outputs.clone();
                self.took = Some(Duration::from_millis(*duration_ms));
                // What was interrupted, or waited for its next attempt, and did not begin again.
                for node in self.nodes.values_mut().filter(|node| node.is_under_way()) {
                    node.status = NodeStatus::Cancelled;
                    node.ends.extend(node.began.map(|_| AttemptEnd::Cancelled));
                    node.end(now);
                }
            }
            Event::PhaseFailed { error, .. } => self.error = Some(error.clone()),
            Event::FlowPaused { cause, .. } => {
                let is_budget = cause == &Some(inspan_protocol::PauseCause::Budget);
                self.outcome = if is_budget { Outcome::BudgetExceeded } else { Outcome::Paused };
            }
            Event::FlowWaiting { .. } => self.outcome = Outcome::Waiting,
            Event::FlowResumed { .. } => self.outcome = Outcome::Failed,
            Event::EdgeFired { from, to } | Event::LoopIterate { from, to, .. } => {
                // The event is of the source, which is beside the target.
                let task = envelope.context.task.as_ref().map(|task| place_in_file(task.as_str()));
                let frame = task.as_deref().and_then(|task| task.rsplit_once('/')).map(|(frame, _)| frame);
                let place = |node: &str| match frame {
                    Some(frame) => format!("{frame}/{node}"),
                    None => node.to_owned(),
                };
                self.fired.insert((place(from.as_str()), place(to.as_str())));
            }
            Event::SessionReply { prompt_id, content, choice, .. } => {
                let reply = Reply { content: content.clone(), choice: choice.clone() };
                if let Some(asked) = self.find_asked(prompt_id) {
                    asked.reply = Some(reply);
                }
            }
            Event::SessionMessage { content, run_id: Some(run), .. } => {
                if let Some(path) = self.runs.get(run) {
                    self.messages.push((path.clone(), content.clone()));
                }
            }
            event => {
                if let Some(path) = &envelope.context.task {
                    self.apply_to_node(path, event, now);
                }
            }
        }
    }

    fn has_frames(&mut self, path: &NodePath, count: u32) {
        let known = self.frames.entry(path.clone()).or_default();
        *known = count.max(*known);
    }

    fn find_asked(&mut self, id: &PromptId) -> Option<&mut AskedQuestion> {
        self.asked.iter_mut().find(|asked| asked.prompt.prompt_id == *id)
    }

    fn apply_to_node(&mut self, path: &NodePath, event: &Event, now: Timestamp) {
        match event {
            Event::SessionPrompt(prompt) => {
                // One that is asked again after a pause has the same id.
                if self.find_asked(&prompt.prompt_id).is_none() {
                    self.asked.push(AskedQuestion {
                        path: path.clone(),
                        prompt: prompt.clone(),
                        reply: None,
                    });
                }
                return;
            }
            Event::TaskStart { .. } if !self.order.contains(path) => self.order.push(path.clone()),
            Event::FrameStart { index, .. } => {
                self.has_frames(path, index.saturating_add(1));
                self.failed_frames.remove(&(path.clone(), *index));
            }
            Event::FrameFailed { index, .. } => drop(self.failed_frames.insert((path.clone(), *index))),
            Event::FrameItems { items, .. } => {
                let count = items.as_array().map_or(0, Vec::len);
                self.has_frames(path, count.try_into().unwrap_or(u32::MAX));
            }
            Event::AgentStart { run_id, .. } => drop(self.runs.insert(run_id.clone(), path.clone())),
            _ => {}
        }
        match event {
            Event::TaskStart { .. } => {
                let runs_it = |around: &NodePath| {
                    let rest = path.as_str().strip_prefix(around.as_str());
                    rest.is_some_and(|rest| rest.starts_with(['[', '/']))
                };
                self.ran_at_once |= self.running.iter().any(|other| other != path && !runs_it(other));
                self.running.insert(path.clone());
            }
            Event::TaskComplete { .. }
            | Event::TaskFailed { .. }
            | Event::TaskCancelled { .. }
            | Event::TaskInterrupted { .. }
            | Event::LimitWait { .. } => drop(self.running.remove(path)),
            _ => {}
        }
        let node = self.nodes.entry(path.clone()).or_default();
        if let Some((_, spent)) = self.unpriced_turns.take(event) {
            node.tokens += spent.tokens;
            node.cost_usd += spent.cost_usd;
            node.unpriced |= spent.unpriced;
        }
        match event {
            Event::TaskStart { node_type, .. } => {
                node.status = NodeStatus::Running;
                // A pause cancelled it, and this attempt does its work.
                node.ends.pop_if(|end| matches!(end, AttemptEnd::Cancelled));
                node.node_type = node_type.clone();
                node.attempts += 1;
                node.began = Some(now);
            }
            Event::TaskComplete { result, .. } => {
                node.status = NodeStatus::Complete;
                node.output = Some(result.clone());
                node.ends.push(AttemptEnd::Output(result.clone(), node.turns.clone()));
                node.end(now);
            }
            Event::TaskReused { error: Some(error), .. } => {
                node.status = NodeStatus::Failed;
                node.failures.push((error.clone(), false));
            }
            Event::TaskReused { result, .. } => {
                node.status = NodeStatus::Reused;
                node.output = Some(result.clone());
            }
            Event::TaskFailed { error, will_retry, .. } => {
                node.status = if *will_retry { NodeStatus::Pending } else { NodeStatus::Failed };
                node.failures.push((error.clone(), *will_retry));
                // What was cancelled may fail without another attempt.
                node.ends.extend(node.began.map(|_| AttemptEnd::Failure(error.clone())));
                node.end(now);
            }
            Event::TaskAgent { agent, after, result, error, .. } => {
                node.status = NodeStatus::Pending;
                if after.is_some() {
                    node.took_over.push(agent.clone());
                    let turns = node.turns.clone();
                    node.ends.extend(result.clone().map(|result| AttemptEnd::Output(result, turns)));
                    node.ends.extend(error.clone().map(AttemptEnd::Failure));
                    node.end(now);
                }
            }
            Event::LimitWait { until, .. } => {
                node.status = NodeStatus::Waiting;
                node.limits.push(*until);
                node.ends.push(AttemptEnd::Limit(*until));
                node.end(now);
            }
            Event::TaskSkipped { .. } => node.status = NodeStatus::Skipped,
            Event::TaskCancelled { .. } => {
                node.status = NodeStatus::Cancelled;
                // What waits for another attempt has none that could be cancelled.
                node.ends.extend(node.began.map(|_| AttemptEnd::Cancelled));
                node.end(now);
            }
            Event::TaskInterrupted { .. } => {
                node.status = NodeStatus::Pending;
                node.end(now);
            }
            // One that listens again goes on in its turns.
            Event::AgentStart { listens: false, .. } => node.turns = vec![String::new()],
            Event::AgentTurn { .. } => node.turns.push(String::new()),
            Event::AgentText { content, .. } => {
                if let Some(turn) = node.turns.last_mut() {
                    turn.push_str(content);
                }
            }
            _ => {}
        }
    }

    /// The process that ran the session is gone: what runs by the log was cut short, unless it waits for a person, and what
    /// the turns took that were under way is unknown.
    pub fn lose_process(&mut self) {
        let waits = self.open_questions().filter(|(_, prompt)| prompt.kind == PromptKind::Input);
        let waits: BTreeSet<NodePath> = waits.map(|(path, _)| path.clone()).collect();
        let cut = self.nodes.iter_mut().filter(|(_, node)| node.status == NodeStatus::Running);
        for (_, node) in cut.filter(|(path, _)| !waits.contains(*path)) {
            node.status = NodeStatus::Interrupted;
        }
        let open = self.unpriced_turns.runs().filter_map(|run| self.runs.get(run));
        for path in open {
            self.nodes.entry(path.clone()).or_default().unpriced = true;
        }
    }

    /// Adds what the flow says and its log does not: the nodes of frames in which nothing happened at them, and the output
    /// that it sees of failed nodes whose failure it handles.
    pub(crate) fn read_flow(&mut self, graph: &Graph) {
        let frames = self.frames.iter();
        self.in_frames = frames.flat_map(|(owner, count)| places_in_frames(graph, owner, *count)).collect();
        let mut handled = BTreeSet::new();
        each_body(graph, &mut |prefix, body| {
            let survives = body.nodes.iter().filter(|node| node.policy.on_failure == OnFailure::Continue);
            let on_failure =
                body.edges.iter().filter(|edge| matches!(edge.on, EdgeOn::Failure | EdgeOn::Any));
            let sources = on_failure.map(|edge| body.node(edge.from));
            handled.extend(survives.chain(sources).map(|node| format!("{prefix}{}", node.id)));
        });
        for (path, node) in &mut self.nodes {
            if let (NodeStatus::Failed, None, Some((error, _))) =
                (node.status, &node.output, node.failures.last())
                && handled.contains(&place_in_file(path.as_str()))
            {
                node.output = Some(Arc::new(json!({ "failed": true, "error": error })));
            }
        }
    }

    /// The places in the order in which they first started.
    pub fn started(&self) -> impl Iterator<Item = &NodePath> {
        self.order.iter()
    }

    /// Whether two nodes ran at the same time, of which none runs the other in its frames.
    pub fn ran_at_once(&self) -> bool {
        self.ran_at_once
    }

    /// How long the session took, pauses included.
    pub fn duration(&self) -> Duration {
        let so_far = || self.newest.zip(self.began).map(|(newest, began)| newest.since(began));
        self.took.or_else(so_far).unwrap_or_default()
    }

    /// Whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.took.is_some()
    }

    /// Whether the flow, or a frame around this place, fails, and a node in it fails at this moment.
    pub(crate) fn fails_around(&self, path: &NodePath, moment: Timestamp) -> bool {
        let is_in = |path: &NodePath, (owner, index): &(NodePath, u32)| {
            let rest = path.as_str().strip_prefix(owner.as_str());
            rest.is_some_and(|rest| rest.starts_with('/') || rest.starts_with(&format!("[{index}]/")))
        };
        let around: Vec<_> = self.failed_frames.iter().filter(|frame| is_in(path, frame)).collect();
        let fails = |node: &NodeTrace| node.status == NodeStatus::Failed && node.ended == Some(moment);
        let mut failed = self.nodes.iter().filter(|(_, node)| fails(node)).map(|(path, _)| path);
        failed.any(|other| self.outcome == Outcome::Failed || around.iter().any(|frame| is_in(other, frame)))
    }

    /// How long the attempts of a node took, up to the newest event if one has not ended.
    pub(crate) fn worked(&self, node: &NodeTrace) -> Duration {
        let so_far = self.newest.zip(node.began).map(|(newest, began)| newest.since(began));
        node.duration + so_far.unwrap_or_default()
    }

    /// What all agents cost in US dollars; none if a price is unknown.
    pub fn cost_usd(&self) -> Option<f64> {
        let all = self.nodes.values();
        all.clone().all(|node| !node.unpriced).then(|| all.map(|node| node.cost_usd).sum())
    }

    /// The tokens of all agents.
    pub fn tokens(&self) -> u64 {
        self.nodes.values().map(|node| node.tokens).sum()
    }

    /// The questions to people, with the places that asked.
    pub fn questions(&self) -> impl Iterator<Item = (&NodePath, &Prompt)> {
        self.asked.iter().map(|asked| (&asked.path, &asked.prompt))
    }

    /// The replies of people, in the order of the questions.
    pub fn replies(&self) -> impl Iterator<Item = (&NodePath, &Prompt, &Reply)> {
        self.asked.iter().filter_map(|asked| Some((&asked.path, &asked.prompt, asked.reply.as_ref()?)))
    }

    /// The messages to agents, with the places of their nodes.
    pub fn messages(&self) -> impl Iterator<Item = (&NodePath, &str)> {
        self.messages.iter().map(|(path, content)| (path, content.as_str()))
    }

    /// The questions that nobody answered.
    pub(crate) fn open_questions(&self) -> impl Iterator<Item = (&NodePath, &Prompt)> {
        let ended = |path: &NodePath| {
            self.nodes.get(path).is_some_and(|node| !matches!(node.status, NodeStatus::Running))
        };
        let open = self.asked.iter().filter(move |asked| asked.reply.is_none() && !ended(&asked.path));
        open.map(|asked| (&asked.path, &asked.prompt))
    }

    /// Whether each node around this place whose pass the pattern leaves open has no frames in a later pass.
    pub(crate) fn is_in_newest_frames(&self, path: &NodePath, pattern: &Pattern) -> bool {
        let around = successors(path.owner(), NodePath::owner).zip(pattern.passes_around());
        around.filter(|(_, pass)| pass.is_none()).all(|(owner, _)| {
            let is_later =
                |other: &NodePath| other.pass() > owner.pass() && other.with_pass(owner.pass()) == owner;
            !self.frames.keys().any(is_later)
        })
    }

    fn matching(&self, pattern: &Pattern) -> impl Iterator<Item = (&NodePath, &NodeTrace)> {
        self.nodes.iter().filter(|(path, _)| pattern.matches(path))
    }

    /// The pass of each place in the newest frames that a pattern means which weighs most.
    fn best_pass<W: PartialOrd>(
        &self,
        pattern: &Pattern,
        weight: impl Fn(&NodePath, &NodeTrace) -> W,
    ) -> Vec<(&NodePath, &NodeTrace)> {
        let mut best: BTreeMap<&str, (&NodePath, &NodeTrace)> = BTreeMap::new();
        let newest = self.matching(pattern).filter(|(path, _)| self.is_in_newest_frames(path, pattern));
        for (path, node) in newest {
            let known = best.entry(without_pass(path)).or_insert((path, node));
            if weight(path, node) >= weight(known.0, known.1) {
                *known = (path, node);
            }
        }
        best.into_values().collect()
    }

    /// The places in frames that a pattern means, whether something happened there or not.
    fn inside(&self, pattern: &Pattern) -> impl Iterator<Item = NodePath> {
        let places = self.in_frames.iter().map(|path| path.with_pass(pattern.pass().unwrap_or(1)));
        places.filter(|path| pattern.matches(path))
    }

    /// The places that a pattern means in the newest frames, in which nothing happened at its node.
    pub(crate) fn never_began(&self, pattern: &Pattern) -> Vec<NodePath> {
        let place = |path: &NodePath| path.with_pass(pattern.pass().unwrap_or(1));
        let began: BTreeSet<NodePath> = self.matching(pattern).map(|(path, _)| place(path)).collect();
        let newest = self.inside(pattern).filter(|path| self.is_in_newest_frames(path, pattern));
        newest.filter(|path| !began.contains(path)).collect()
    }

    /// The statuses of the nodes that a pattern means.
    pub(crate) fn statuses(&self, pattern: &Pattern) -> Vec<(NodePath, NodeStatus)> {
        let mut found: Vec<_> = self
            .best_pass(pattern, |path, _| path.pass())
            .into_iter()
            .map(|(path, node)| (path.clone(), self.status(path, node)))
            .collect();
        found.extend(self.never_began(pattern).into_iter().map(|path| (path, NodeStatus::Pending)));
        if !found.is_empty() {
            return found;
        }
        // Nothing has happened there.
        serde_json::from_value(Value::from(pattern.as_str()))
            .map(|path| vec![(path, NodeStatus::Pending)])
            .unwrap_or_default()
    }

    /// The status of a node, as people see it.
    pub fn status(&self, path: &NodePath, node: &NodeTrace) -> NodeStatus {
        match node.status {
            NodeStatus::Running if self.open_questions().any(|(asks, _)| asks == path) => NodeStatus::Waiting,
            NodeStatus::Pending if node.failures.last().is_some_and(|(_, again)| *again) => {
                NodeStatus::Waiting
            }
            status => status,
        }
    }

    /// The newest pass with an output of each place that a pattern means; the newest of all if none has one.
    pub(crate) fn outputs(&self, pattern: &Pattern) -> Vec<(&NodePath, &NodeTrace)> {
        self.best_pass(pattern, |path, node| (node.output.is_some(), path.pass()))
    }

    /// How often the nodes were tried that a pattern means, all passes of a place together unless it names one.
    pub(crate) fn attempts(&self, pattern: &Pattern) -> Vec<(NodePath, u32)> {
        let mut all: BTreeMap<String, u32> = BTreeMap::new();
        let tried = self.matching(pattern).map(|(path, node)| (path.clone(), node.attempts));
        for (path, attempts) in tried.chain(self.inside(pattern).map(|path| (path, 0))) {
            *all.entry(without_passes(&path)).or_default() += attempts;
        }
        match all.is_empty() {
            true => self.statuses(pattern).into_iter().map(|(path, _)| (path, 0)).collect(),
            false => all.into_iter().map(|(place, attempts)| (NodePath::new(&place), attempts)).collect(),
        }
    }
}

/// The places in so many frames of a node.
fn places_in_frames(graph: &Graph, owner: &NodePath, count: u32) -> Vec<NodePath> {
    let frames = graph.find_place(&owner.place()).ok().and_then(|node| node.frames.as_deref());
    let Some(frames) = frames else { return Vec::new() };
    let nodes = &graph.body(frames.body).nodes;
    match frames.kind {
        FramesKind::Foreach { .. } | FramesKind::Loop { .. } => {
            let in_frame = |index| nodes.iter().map(move |node| owner.within(index, &node.id));
            (0..count).flat_map(in_frame).collect()
        }
        // These have one frame, which paths do not count.
        FramesKind::Subflow { .. } | FramesKind::Pack => {
            nodes.iter().map(|node| NodePath::in_frame(&format!("{owner}/"), &node.id, 1)).collect()
        }
    }
}

impl NodeTrace {
    /// Whether an attempt of it has begun and it has not ended.
    fn is_under_way(&self) -> bool {
        let is_open = matches!(self.status, NodeStatus::Running | NodeStatus::Waiting | NodeStatus::Pending);
        is_open && self.attempts > 0
    }

    fn end(&mut self, now: Timestamp) {
        self.ended = Some(now);
        if let Some(began) = self.began.take() {
            self.duration += now.since(began);
        }
    }
}
