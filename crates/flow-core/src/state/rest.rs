//! Facts of an idle session and of people: questions and answers, pauses, and how a session goes on.

use std::collections::BTreeMap;

use inspan_protocol::{NodePath, NodeStatus, Prompt, PromptKind, Reply, Timestamp};

use super::{Facts, node::More};
use crate::graph::{Effects, Graph, NodeIx, Occupies};

/// The answers to the question whether an attempt that was cut short has taken effect.
pub(crate) const RUN_AGAIN: &str = "run it again";
pub(crate) const IT_IS_DONE: &str = "it is done";
pub(crate) const LET_IT_FAIL: &str = "let it fail";

/// What an agent is told that goes on, if nobody says anything else.
pub const CONTINUE: &str = "continue";

impl Facts {
    pub(super) fn ask(&mut self, graph: &Graph, prompt: Prompt) {
        if prompt.kind == PromptKind::Input
            && let Some(ix) = self.find(graph, prompt.task.as_ref())
        {
            let node = &mut self.nodes[ix];
            let asks = node.status == NodeStatus::Running;
            let more = node.more();
            more.asks = asks;
            more.asked = Some(prompt);
            more.reply = None;
            self.touched.push(ix);
        }
    }

    pub(super) fn reply(
        &mut self,
        graph: &Graph,
        answered: Option<&Prompt>,
        content: &str,
        choice: Option<&str>,
    ) {
        let Some(prompt) = answered else { return };
        if prompt.kind == PromptKind::Input
            && let Some(ix) = self.find(graph, prompt.task.as_ref())
        {
            let node = &mut self.nodes[ix];
            let reply = Reply { content: content.to_owned(), choice: choice.map(str::to_owned) };
            if node.needs_confirmation && choice == Some(RUN_AGAIN) {
                node.needs_confirmation = false;
                node.deaths = 0;
                let more = node.more();
                (more.asked, more.reply) = (None, None);
            } else {
                node.more().reply = Some(reply);
            }
            self.touched.push(ix);
        }
    }

    pub(super) fn forget_prompts(&mut self, ix: NodeIx) {
        if let Some(more) = &mut self.nodes[ix].more {
            (more.asked, more.reply) = (None, None);
        }
    }

    pub(super) fn pause(&mut self, graph: &Graph, paths: &[NodePath]) {
        self.pausing = None;
        for path in paths {
            if let Some(ix) = self.locate(graph, Some(path), &[NodeStatus::Cancelled]) {
                self.nodes[ix].status = NodeStatus::Paused;
            }
        }
    }

    /// What was in flight when the session came to rest, however it did, is pending again.
    pub(super) fn resume(
        &mut self,
        graph: &Graph,
        continued: &[NodePath],
        message: &str,
        messages: &BTreeMap<NodePath, String>,
        at: Timestamp,
    ) {
        match self.started_at() {
            Some(_) => self.rested += at.since(self.last_at),
            // The log begins elsewhere; the time counts from here.
            None => self.continued_at = Some(at),
        }
        self.pausing = None;
        self.budget_told = false;
        self.unpriced_before = self.session.unpriced;
        for ix in self.nodes.places() {
            if let Some(more) = &mut self.nodes[ix].more {
                more.unpriced_before = more.unpriced;
                more.budget_told = false;
            }
            let path = self.path(graph, ix);
            let told = continued.contains(&path).then(|| messages.get(&path).map_or(message, |own| own));
            if self.is_cut(ix) {
                self.interrupt(graph, ix, told);
            } else if let (Some(told), Some(more)) = (told, &mut self.nodes[ix].more) {
                more.tell(told);
            }
        }
    }

    /// The process of one attempt is gone; its agent continues its own conversation, if it has named one.
    pub(super) fn lose(&mut self, graph: &Graph, ix: NodeIx) {
        let node = &self.nodes[ix];
        let is_named = node.conversation.is_some() && node.more.as_ref().is_some_and(|more| more.named);
        self.interrupt(graph, ix, is_named.then_some(CONTINUE));
    }

    fn interrupt(&mut self, graph: &Graph, ix: NodeIx, told: Option<&str>) {
        let ends = self.ending.is_some();
        let progress = self.progress;
        let node = &mut self.nodes[ix];
        if node.status == NodeStatus::Running {
            // A process may leave a question that waits, and then it has not died.
            if !node.more.as_ref().is_some_and(|more| more.asks) {
                node.note_death(progress);
            }
            self.running -= 1;
            self.slots -= u32::from(graph.flow().node(ix).occupies == Occupies::Slot);
        }
        self.touched.push(ix);
        node.deadline = None;
        if let Some(more) = &mut node.more {
            more.run = None;
            more.reserved = 0.0;
        }
        if ends {
            node.status = NodeStatus::Cancelled;
            return;
        }
        node.status = NodeStatus::Pending;
        node.interrupted = true;
        node.needs_confirmation = graph.flow().node(ix).effects == Effects::External;
        if let Some(told) = told {
            node.more().tell(told);
        }
    }

    /// Whether an attempt was in flight when the session came to rest or its process died.
    fn is_cut(&self, ix: NodeIx) -> bool {
        match self.nodes[ix].status {
            NodeStatus::Running | NodeStatus::Paused => true,
            NodeStatus::Cancelled => self.ending.is_none(),
            _ => false,
        }
    }

    /// The agents that go on in their own conversations when the session is resumed.
    pub(crate) fn to_continue(&self, graph: &Graph) -> Vec<NodePath> {
        let goes_on = |ix: &NodeIx| {
            let node = &self.nodes[*ix];
            let more = node.more.as_ref();
            let own = node.conversation.is_some() && more.is_some_and(|more| more.named);
            // It waits for a limit, or the process died before it was started.
            let told = node.interrupted && more.is_some_and(|more| more.resume.is_some());
            told || (own && self.is_cut(*ix))
        };
        self.nodes.places().filter(goes_on).map(|ix| self.path(graph, ix)).collect()
    }
}

impl More {
    /// What the agent is told when it goes on; what it should have been told before is not lost.
    fn tell(&mut self, told: &str) {
        match &mut self.resume {
            Some(before) if before != CONTINUE => {
                if told != CONTINUE {
                    *before = format!("{before}\n\n{told}");
                }
            }
            resume => *resume = Some(told.to_owned()),
        }
    }

    /// The messages that were taken and that no finished turn has answered.
    pub(crate) fn undelivered(&self) -> impl Iterator<Item = &str> {
        self.taken.iter().chain(&self.waiting).map(String::as_str)
    }
}
