//! A run as data, exactly as it is, also while attempts run.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Agenda, CancelCause, Reusable, Run};
use crate::{
    graph::{EdgeIx, FrameIx, Graph, TaskRef},
    state::{Facts, SnapshotError},
};

/// The facts of a run, and the decisions that are on their way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CarriedRun {
    session: SessionId,
    flow_hash: String,
    input: Map<String, Value>,
    max_concurrency: u32,
    facts: Facts,
    cancelled: Vec<(TaskRef, u32, CancelCause)>,
    asked: Vec<(TaskRef, u32)>,
    going_back: Vec<(FrameIx, EdgeIx)>,
    warned: Vec<Option<TaskRef>>,
    #[serde(default)]
    warned_of_tokens: Vec<Option<TaskRef>>,
    reusable: Option<Arc<Reusable>>,
}

impl CarriedRun {
    pub(crate) fn session(&self) -> &SessionId {
        &self.session
    }
}

impl Run {
    pub(crate) fn carry(&self) -> CarriedRun {
        let input = self.flow.get("input").and_then(Value::as_object);
        CarriedRun {
            session: self.session.clone(),
            flow_hash: self.graph.hash.clone(),
            input: input.cloned().unwrap_or_default(),
            max_concurrency: self.max_concurrency,
            facts: self.facts.clone(),
            cancelled: self.cancelled.clone(),
            asked: self.asked.iter().map(|(task, attempts)| (*task, *attempts)).collect(),
            going_back: self.going_back.clone(),
            warned: self.warned.clone(),
            warned_of_tokens: self.warned_of_tokens.clone(),
            reusable: self.reusable.clone(),
        }
    }

    pub(crate) fn take_up(graph: Arc<Graph>, carried: CarriedRun) -> Result<Self, SnapshotError> {
        let CarriedRun { session, flow_hash, input, max_concurrency, facts, .. } = carried;
        if flow_hash != graph.hash {
            return Err(SnapshotError::Flow { session, flow: graph.name.clone() });
        }
        let mut run = Self::new(graph, &session, input, Some(max_concurrency));
        run.agenda = Agenda::rebuild(&run.graph, &facts);
        run.facts = facts;
        run.cancelled = carried.cancelled;
        run.asked = carried.asked.into_iter().collect::<BTreeMap<_, _>>();
        run.going_back = carried.going_back;
        run.warned = carried.warned;
        run.warned_of_tokens = carried.warned_of_tokens;
        Ok(run.reusing(carried.reusable))
    }
}
