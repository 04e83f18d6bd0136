//! Facts of a session at rest and of people: questions and answers, pauses, and how a session goes on.

use std::collections::BTreeMap;

use inspan_protocol::{NodePath, NodeStatus, PendingPrompt, PromptId, PromptKind, SessionStatus, Timestamp};

use super::{
    RunState,
    node::{More, Reply},
};
use crate::graph::{Effects, Graph, NodeIx, Occupies};

/// The answers to the question whether an attempt that was cut short has taken effect.
pub(crate) const RUN_AGAIN: &str = "run it again";
pub(crate) const IT_IS_DONE: &str = "it is done";
pub(crate) const LET_IT_FAIL: &str = "let it fail";

impl RunState {
    pub(super) fn ask(&mut self, graph: &Graph, prompt: PendingPrompt) {
        self.prompts.retain(|open| open.prompt_id != prompt.prompt_id);
        if prompt.kind == PromptKind::Input
            && let Some(ix) = self.find(graph, prompt.task.as_ref())
        {
            let more = self.nodes[ix.0 as usize].more();
            more.asked = Some(prompt.clone());
            more.reply = None;
        }
        self.prompts.push(prompt);
    }

    pub(super) fn reply(&mut self, graph: &Graph, id: &PromptId, content: &str, choice: Option<&str>) {
        let Some(place) = self.prompts.iter().position(|prompt| prompt.prompt_id == *id) else { return };
        let prompt = self.prompts.remove(place);
        if prompt.kind == PromptKind::Input
            && let Some(ix) = self.find(graph, prompt.task.as_ref())
        {
            let node = &mut self.nodes[ix.0 as usize];
            let reply = Reply { content: content.to_owned(), choice: choice.map(str::to_owned) };
            if node.doubt && choice == Some(RUN_AGAIN) {
                node.doubt = false;
                let more = node.more();
                (more.asked, more.reply) = (None, None);
            } else {
                node.more().reply = Some(reply);
            }
            if node.status == NodeStatus::Pending {
                self.propose(graph, ix);
            }
        }
        self.wake();
    }

    pub(super) fn forget_prompts(&mut self, graph: &Graph, ix: NodeIx) {
        if !self.prompts.is_empty() {
            let id = graph.node(ix).id.as_str();
            self.prompts.retain(|prompt| prompt.task.as_ref().is_none_or(|task| task.node() != id));
        }
        if let Some(more) = &mut self.nodes[ix.0 as usize].more {
            (more.asked, more.reply) = (None, None);
        }
    }

    pub(super) fn pause(&mut self, graph: &Graph, paths: &[NodePath]) {
        self.status = SessionStatus::Paused;
        self.pausing = None;
        for path in paths {
            if let Some(ix) = self.locate(graph, Some(path), &[NodeStatus::Cancelled]) {
                self.nodes[ix.0 as usize].status = NodeStatus::Paused;
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
        match self.started_at {
            Some(_) => self.rested += at.since(self.last_at),
            // The log begins elsewhere; the time counts from here.
            None => self.started_at = Some(at),
        }
        self.pausing = None;
        self.status = SessionStatus::Running;
        for at in 0..self.nodes.len() {
            let ix = NodeIx(at as u32);
            let status = self.nodes[at].status;
            let cut = match status {
                NodeStatus::Running | NodeStatus::Paused => true,
                NodeStatus::Cancelled => self.ending.is_none(),
                _ => false,
            };
            if !cut {
                continue;
            }
            if status == NodeStatus::Running {
                self.running -= 1;
                self.slots -= u32::from(graph.node(ix).occupies == Occupies::Slot);
            }
            let path = self.path(graph, ix);
            let told = continued.contains(&path).then(|| messages.get(&path).map_or(message, |own| own));
            self.interrupt(graph, ix, told);
        }
        // Permissions were asked for by programs that are gone; questions of the flow are asked again.
        self.prompts.retain(|prompt| prompt.kind == PromptKind::Input);
    }

    fn interrupt(&mut self, graph: &Graph, ix: NodeIx, told: Option<&str>) {
        let ends = self.ending.is_some();
        let node = &mut self.nodes[ix.0 as usize];
        node.deadline = None;
        if let Some(more) = &mut node.more {
            more.run = None;
        }
        if ends {
            node.status = NodeStatus::Cancelled;
            return;
        }
        node.status = NodeStatus::Pending;
        node.interrupted = true;
        node.doubt = graph.node(ix).effects == Effects::External;
        if let Some(told) = told {
            node.more().resume = Some(told.to_owned());
        }
        self.propose(graph, ix);
    }

    /// The agents that go on in their own conversations when the session is resumed.
    pub(crate) fn to_continue(&self, graph: &Graph) -> Vec<NodePath> {
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| {
            let cut = match node.status {
                NodeStatus::Running | NodeStatus::Paused => true,
                NodeStatus::Cancelled => self.ending.is_none(),
                _ => false,
            };
            let own = node.conversation.is_some() && node.more.as_ref().is_some_and(|more| more.named);
            cut && own
        });
        nodes.map(|(ix, _)| self.path(graph, NodeIx(ix as u32))).collect()
    }
}

impl More {
    /// The messages that were taken and that no finished turn has answered.
    pub(crate) fn undelivered(&self) -> impl Iterator<Item = &str> {
        self.taken.iter().chain(&self.waiting).map(String::as_str)
    }
}
