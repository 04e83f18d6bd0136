//! The frames of one node: its items, the frames that are open, and how the others ended.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{AgentError, ErrorCode, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    graph::{FrameIx, Frames, FramesKind},
    state::Conversation,
};

/// The frames of one pass of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameSet {
    /// The items of a foreach, once they are known, and what identifies them.
    pub(crate) items: Option<Arc<Value>>,
    pub(crate) keys: Vec<String>,
    /// How many frames may work at once.
    pub(crate) max_concurrency: Option<u32>,
    /// How many do.
    #[serde(default)]
    pub(crate) working: u32,
    /// The frames that are open, by their index.
    pub(crate) open: BTreeMap<u32, FrameIx>,
    /// Since when these wait for nothing but usage limits.
    pub(crate) limited_since: Option<Timestamp>,
    /// How each frame ended that has ended, by its index.
    pub(crate) ended: Vec<Option<FrameEnd>>,
    /// No frame below this one is still to begin.
    pub(crate) next: u32,
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    /// Whether the condition holds that ends a loop.
    pub(crate) done: bool,
    /// The conversations of the agents of the last pass of a loop.
    pub(crate) conversations: Vec<Option<Conversation>>,
}

/// What is to be decided about the frames of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FramesStep {
    /// How many there are, whether another begins, or how the node ends.
    Decide,
    /// Another frame may begin, if there is a place for its work.
    Open,
}

/// How a frame ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FrameEnd {
    /// Well, with these outputs.
    Complete(Arc<Value>),
    /// With this failure, after so many attempts of a node of it.
    Failed(Box<AgentError>, u32),
    /// Before its time, after so many attempts of a node of it.
    Cancelled(u32),
    /// It may begin again, after so many attempts of a node of it.
    Again(u32),
}

impl FrameSet {
    /// How many frames there are, if that is known beforehand.
    pub(crate) fn total(&self) -> Option<u32> {
        self.items.as_ref().and_then(|items| items.as_array()).map(|items| items.len() as u32)
    }

    /// Whether a frame failed because a budget was used up.
    pub(crate) fn ran_out_of_budget(&self) -> bool {
        let lacked = |end: &FrameEnd| matches!(end, FrameEnd::Failed(error, _) if error.code == ErrorCode::BudgetExceeded);
        self.ended.iter().flatten().any(lacked)
    }

    pub(crate) fn item(&self, index: u32) -> Option<&Value> {
        self.items.as_ref()?.get(index as usize)
    }

    /// The outputs of the frames that ended well, in the order of their indices.
    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.ended.iter().filter_map(|end| match end {
            Some(FrameEnd::Complete(outputs)) => Some(&**outputs),
            _ => None,
        })
    }

    /// `passes`, as the templates of this frame of a loop see it.
    pub(crate) fn passes_before(&self, index: u32) -> Value {
        let before = self.ended.iter().take(index as usize);
        let outputs = before.filter_map(|end| match end {
            Some(FrameEnd::Complete(outputs)) => Some((**outputs).clone()),
            _ => None,
        });
        outputs.collect()
    }

    /// The failed frame with the least index.
    pub(crate) fn first_failure(&self) -> Option<(u32, &AgentError)> {
        (0..).zip(&self.ended).find_map(|(index, end)| match end {
            Some(FrameEnd::Failed(error, _)) => Some((index, &**error)),
            _ => None,
        })
    }

    /// The names that templates of a frame see beside the nodes; `parent` are those around it.
    pub(crate) fn locals(&self, frames: &Frames, index: u32, parent: &Value) -> Value {
        let mut frame = Map::from_iter([
            ("pass".to_owned(), 1.into()),
            ("index".to_owned(), index.into()),
            ("first".to_owned(), (index == 0).into()),
        ]);
        if let Some(total) = self.total() {
            frame.insert("total".to_owned(), total.into());
            frame.insert("last".to_owned(), (index + 1 == total).into());
        }
        if let Some(parent) = parent.get("frame") {
            frame.insert("parent".to_owned(), parent.clone());
        }
        let mut locals = Map::from_iter([("frame".to_owned(), frame.into())]);
        match &frames.kind {
            FramesKind::Foreach { item, .. } => {
                locals.insert(item.clone(), self.item(index).cloned().unwrap_or_default());
            }
            FramesKind::Loop { .. } => {
                if let Some(previous) = self.values().next_back() {
                    locals.insert("previous".to_owned(), previous.clone());
                }
            }
            FramesKind::Subflow { .. } | FramesKind::Pack => {}
        }
        locals.into()
    }

    pub(crate) fn end(&self, index: u32) -> Option<&FrameEnd> {
        self.ended.get(index as usize)?.as_ref()
    }

    /// Whether this frame is to begin: it has not, or another attempt of its node runs it again.
    pub(crate) fn is_left(&self, index: u32) -> bool {
        !self.open.contains_key(&index) && matches!(self.end(index), None | Some(FrameEnd::Again(_)))
    }

    /// Whether there can be a frame with this index: there is such an item, or as many frames have begun before it.
    pub(crate) fn may_have(&self, index: u32) -> bool {
        index < self.total().unwrap_or((self.ended.len() + self.open.len()) as u32 + 1)
    }

    /// Finds the next frame that is still to begin.
    pub(in crate::state) fn skip_begun(&mut self) {
        while !self.is_left(self.next) {
            self.next += 1;
        }
    }

    pub(in crate::state) fn close(&mut self, index: u32, end: FrameEnd) {
        self.open.remove(&index);
        let place = index as usize;
        if self.ended.len() <= place {
            self.ended.resize(place + 1, None);
        }
        match &end {
            FrameEnd::Complete(_) => self.succeeded += 1,
            FrameEnd::Failed(..) => self.failed += 1,
            _ => {}
        }
        self.ended[place] = Some(end);
    }

    /// Another attempt of the node runs the frames again that did not end well.
    pub(in crate::state) fn begin_again(&mut self) {
        for end in self.ended.iter_mut().flatten() {
            if let FrameEnd::Failed(_, attempts) | FrameEnd::Cancelled(attempts) = end {
                *end = FrameEnd::Again(*attempts);
            }
        }
        (self.next, self.failed) = (0, 0);
        self.skip_begun();
    }
}
