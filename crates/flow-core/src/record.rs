//! What is stored of a session when it is made: all that is needed to continue it without the author's files.

use std::sync::Arc;

use inspan_protocol::{BudgetRaise, Envelope, NodePath, RunSnapshot, SessionId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    graph::Graph,
    schedule::{Reusable, Run},
    source::FlowSource,
};

/// A session as it was made; it never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// The session.
    pub session: SessionId,
    /// What the author wrote.
    pub flow: FlowSource,
    /// What the flow was given.
    pub input: Map<String, Value>,
    /// When it was made.
    pub created_at: Timestamp,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The state that its log begins with, if it began elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Box<RunSnapshot>>,
    /// Data of the host; the store and the runtime do not read it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
}

impl SessionRecord {
    /// A session that follows no other and begins with nothing done.
    pub fn new(
        session: SessionId,
        flow: FlowSource,
        input: Map<String, Value>,
        created_at: Timestamp,
    ) -> Self {
        Self { session, flow, input, created_at, parent: None, base: None, settings: Map::new() }
    }

    /// The `seq` of the first event in the store.
    pub fn first_seq(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.last_seq).saturating_add(1)
    }

    /// Whether its agents are recordings, which cost nothing.
    pub fn is_replay(&self) -> bool {
        self.settings.contains_key("replay")
    }

    /// The session that this one replaces; `None` if it is the first, or a fork.
    pub fn continues(&self) -> Option<&SessionId> {
        let parent = self.parent.as_ref().filter(|parent| parent.kind == ParentKind::Resume)?;
        Some(&parent.session)
    }

    /// The run as it was before the first event in the store; `graph` is what the flow compiles to.
    pub fn run(&self, graph: &Arc<Graph>) -> Run {
        let mut run = Run::new(graph.clone(), &self.session, self.input.clone(), None);
        if let Some(base) = &self.base {
            run.restore(base);
        }
        run
    }
}

/// Where a session comes from that reuses the work of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    /// The session.
    pub session: SessionId,
    /// The last of its events that counts.
    pub seq: u64,
    /// Whether this session replaces that one, or branches off from it.
    #[serde(default)]
    pub kind: ParentKind,
    /// The node that runs again in this session, with all that depends on it, and from which pass on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<NodePath>,
    /// More nodes that run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_again: Vec<NodePath>,
    /// Whether all is tried again that failed there and after which it went on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tries_failures_again: bool,
    /// The budgets that were set or raised for this session when it was made; its flow does not say so.
    #[serde(default, skip_serializing_if = "BudgetRaise::is_empty")]
    pub budget: BudgetRaise,
}

impl Parent {
    /// A session from which all is taken over that fits.
    pub fn new(session: SessionId, seq: u64, kind: ParentKind) -> Self {
        let budget = BudgetRaise::default();
        Self { session, seq, kind, again: None, also_again: Vec::new(), tries_failures_again: false, budget }
    }

    /// What may be reused of that session, by its record, its compiled flow, its facts, and what it could reuse itself;
    /// `now` is the flow of this session.
    pub fn reusable(
        &self,
        record: &SessionRecord,
        graph: &Arc<Graph>,
        log: &[Arc<Envelope>],
        older: Option<Arc<Reusable>>,
        now: &Graph,
    ) -> Reusable {
        let mut reusable = Reusable::of(record.run(graph).reusing(older), log, self.seq);
        reusable.forget_raises(graph, now);
        reusable.raise(&self.budget);
        match self.kind {
            ParentKind::Fork => reusable.branch_off(),
            // That session may have been resumed at the moment when this one was made.
            ParentKind::Resume => reusable.forget_continued(),
        }
        if self.tries_failures_again {
            reusable.try_failures_again(graph);
        }
        // What this session was asked for runs, unless the other was asked for the same: then it goes on with that.
        let asked = if now.only == graph.only { &[][..] } else { &now.only };
        let again = self.again.iter().chain(&self.also_again).chain(asked);
        again.for_each(|place| reusable.run_again(place.clone()));
        reusable
    }
}

/// How a session follows another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ParentKind {
    /// It branches off; the other may still be resumed.
    #[default]
    Fork,
    /// It replaces the other, which has ended or whose flow was edited.
    Resume,
}
