//! What the logs of earlier sessions of a flow say about its nodes: how often each ran, what it cost, how long it took.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inspan_protocol::{Envelope, Event, NodePath, Outcome, Timestamp, UnpricedTurns};

use crate::schedule::Selected;

/// What earlier sessions of a flow have done, by the places of its nodes in the file: `scan/review`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// How many sessions it is made of.
    pub sessions: u32,
    pub(super) nodes: BTreeMap<String, Runs>,
    /// How many frames of each node ended well; of the flow itself under an empty name.
    ended: BTreeMap<String, u32>,
}

/// The runs of one node over all sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Runs {
    pub(super) all: Vec<NodeRun>,
    /// How often it ran within each frame that ended well; a frame in which it did not run is not in the list.
    within: Vec<u32>,
    /// How many frames it ran itself, each time.
    pub(super) frames: Vec<u32>,
}

/// One completed run of a node, all of its attempts together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeRun {
    pub(super) node_type: Arc<str>,
    /// The provider of its agent, and the model that was asked for.
    pub(super) agent: Option<(String, Option<String>)>,
    pub(super) cost_usd: f64,
    pub(super) unpriced: bool,
    pub(super) time: Duration,
}

impl History {
    /// The events that [`History::add`] reads.
    pub const EVENTS: &'static [&'static str] = &[
        "harness:complete",
        "task:start",
        "task:complete",
        "task:failed",
        "task:cancelled",
        "task:interrupted",
        "task:reused",
        "limit:wait",
        "agent:start",
        "agent:turn",
        "agent:spent",
        "agent:usage",
        "agent:complete",
        "frame:items",
        "frame:start",
        "frame:complete",
    ];

    /// Adds a session by its log; `only` are the only nodes that were to run in it, none if all were. How often a node runs shows
    /// only where all could.
    pub fn add(&mut self, log: &[Arc<Envelope>], only: &[NodePath]) {
        self.sessions += 1;
        let mut session = PastSession {
            history: self,
            only,
            open: BTreeMap::new(),
            frames: BTreeMap::new(),
            done: BTreeMap::new(),
            unpriced: UnpricedTurns::default(),
        };
        log.iter().for_each(|envelope| session.apply(envelope));
    }

    /// How often a node runs within one frame: the least, the mean and the most; nothing if no frame is known.
    pub(super) fn within(&self, place: &str) -> Option<(u64, f64, u64)> {
        let frame = place.rsplit_once('/').map_or("", |(frame, _)| frame);
        let frames = *self.ended.get(frame)?;
        let counts = self.nodes.get(place).map_or(&[][..], |runs| &runs.within);
        let sum: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let is_complete = counts.len() >= frames as usize;
        let least = counts.iter().min().filter(|_| is_complete).copied().unwrap_or_default();
        let most = counts.iter().max().copied().unwrap_or_default();
        (frames > 0).then(|| (least.into(), sum as f64 / f64::from(frames), most.into()))
    }
}

/// The log of one session as it is read.
struct PastSession<'h> {
    history: &'h mut History,
    /// The only nodes that were to run; none if all were.
    only: &'h [NodePath],
    /// The runs that have not ended, with the time at which the attempt in progress began.
    open: BTreeMap<NodePath, (NodeRun, Option<Timestamp>)>,
    /// How many frames each node has begun.
    frames: BTreeMap<NodePath, u32>,
    /// The places that ran or were reused in each frame that is open, by what its paths begin with.
    done: BTreeMap<String, BTreeSet<NodePath>>,
    unpriced: UnpricedTurns,
}

impl PastSession<'_> {
    fn apply(&mut self, envelope: &Envelope) {
        let Some(path) = &envelope.context.task else {
            if let Event::HarnessComplete { outcome: Outcome::Success | Outcome::Partial, .. } =
                envelope.event
            {
                self.close("", &NodePath::new(""));
            }
            return;
        };
        let now = envelope.timestamp;
        if let (Some((_, spent)), Some((run, _))) =
            (self.unpriced.take(&envelope.event), self.open.get_mut(path))
        {
            run.cost_usd += spent.cost_usd;
            run.unpriced |= spent.unpriced;
        }
        match &envelope.event {
            Event::TaskStart { node_type, .. } => {
                let (run, began) = self.open.entry(path.clone()).or_default();
                run.node_type = node_type.clone();
                *began = Some(now);
                self.note(path);
            }
            Event::TaskReused { .. } => self.note(path),
            Event::AgentStart { provider, model, .. } => {
                if let Some((run, _)) = self.open.get_mut(path) {
                    run.agent = Some((provider.clone(), model.clone()));
                }
            }
            Event::TaskComplete { .. } => {
                self.pause(path, now);
                let frames = self.frames.remove(path).filter(|_| !self.is_partial(&path.place()));
                let runs = self.history.nodes.entry(path.place().to_string()).or_default();
                runs.all.extend(self.open.remove(path).map(|(run, _)| run));
                runs.frames.extend(frames);
            }
            Event::TaskFailed { will_retry: false, .. } => {
                self.open.remove(path);
                self.frames.remove(path);
            }
            Event::TaskFailed { .. }
            | Event::TaskCancelled { .. }
            | Event::TaskInterrupted { .. }
            | Event::LimitWait { .. } => self.pause(path, now),
            Event::FrameItems { items, .. } => {
                let count = items.as_array().map_or(0, Vec::len);
                self.frames.insert(path.clone(), u32::try_from(count).unwrap_or(u32::MAX));
            }
            Event::FrameStart { index, .. } => {
                let frames = self.frames.entry(path.clone()).or_default();
                *frames = (*frames).max(index.saturating_add(1));
            }
            Event::FrameComplete { index, .. } => {
                let of_subflow = format!("{path}/");
                let is_subflow = self.done.contains_key(&of_subflow);
                let prefix = if is_subflow { of_subflow } else { format!("{path}[{index}]/") };
                self.close(&prefix, &path.place());
            }
            _ => {}
        }
    }

    /// Adds the time of the attempt that has ended.
    fn pause(&mut self, path: &NodePath, now: Timestamp) {
        if let Some((run, began)) = self.open.get_mut(path) {
            run.time += began.take().map(|began| now.since(began)).unwrap_or_default();
        }
    }

    fn note(&mut self, path: &NodePath) {
        let prefix = path.as_str().rfind('/').map_or("", |slash| &path.as_str()[..=slash]);
        self.done.entry(prefix.to_owned()).or_default().insert(path.clone());
    }

    /// Whether only some of the nodes were to run in the frames of a node.
    fn is_partial(&self, owner: &NodePath) -> bool {
        Selected::of(self.only, owner).is_partial()
    }

    /// A frame has ended well: how often its nodes ran in it is known, unless only some of them were to run.
    fn close(&mut self, prefix: &str, owner: &NodePath) {
        let done = self.done.remove(prefix).unwrap_or_default();
        if self.is_partial(owner) {
            return;
        }
        *self.history.ended.entry(owner.to_string()).or_default() += 1;
        let mut counts = BTreeMap::<String, u32>::new();
        for path in done {
            *counts.entry(path.place().to_string()).or_default() += 1;
        }
        for (place, count) in counts {
            self.history.nodes.entry(place).or_default().within.push(count);
        }
    }
}
