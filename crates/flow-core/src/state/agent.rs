//! Facts of agent runs: their conversations, messages, tokens and cost.

use inspan_protocol::{MultiTurn, NodePath, ProviderSessionId, RunId, SteerStrength, Usage};

use super::{
    Facts,
    node::{Conversation, NodeState, OpenRun},
};
use crate::graph::Graph;

impl Facts {
    /// The node of an agent's run. A run that ends after its node has begun the next pass is the node's all the same.
    fn of_run(&mut self, graph: &Graph, task: Option<&NodePath>) -> Option<&mut NodeState> {
        let ix = graph.flow().find(task?.node())?;
        Some(&mut self.nodes[ix])
    }

    pub(super) fn begin_run(
        &mut self,
        graph: &Graph,
        task: Option<&NodePath>,
        run_id: &RunId,
        agent_name: &str,
        multi_turn: MultiTurn,
    ) {
        let Some(node) = self.of_run(graph, task) else { return };
        let (run_id, agent_name) = (run_id.clone(), agent_name.to_owned());
        node.more().run = Some(OpenRun { run_id, agent_name, between_turns: false, multi_turn });
    }

    pub(super) fn begin_turn(&mut self, graph: &Graph, task: Option<&NodePath>) {
        let Some(node) = self.of_run(graph, task) else { return };
        let more = node.more();
        more.taken.append(&mut more.waiting);
        if let Some(run) = &mut more.run {
            run.between_turns = false;
        }
    }

    /// A message that reached the turn it was sent to; one that interrupts is in the turn that follows.
    pub(super) fn steer(
        &mut self,
        graph: &Graph,
        task: Option<&NodePath>,
        content: &str,
        strength: SteerStrength,
    ) {
        let Some(node) = self.of_run(graph, task).filter(|_| strength == SteerStrength::Native) else {
            return;
        };
        let more = node.more();
        if let Some(place) = more.waiting.iter().position(|waiting| waiting == content) {
            more.taken.extend(more.waiting.drain(place..=place));
        }
    }

    pub(super) fn name_conversation(
        &mut self,
        graph: &Graph,
        task: Option<&NodePath>,
        session_id: &ProviderSessionId,
    ) {
        let Some(node) = self.of_run(graph, task) else { return };
        node.more().named = true;
        if node.conversation.as_ref().is_none_or(|known| known.session_id != *session_id) {
            node.conversation = Some(Conversation { session_id: session_id.clone(), turns: 0 });
        }
    }

    pub(super) fn end_turn(
        &mut self,
        graph: &Graph,
        task: Option<&NodePath>,
        usage: Usage,
        cost_usd: Option<f64>,
    ) {
        self.progress += 1;
        let Some(node) = self.of_run(graph, task) else { return };
        if let Some(known) = &mut node.conversation {
            known.turns += 1;
        }
        let more = node.more();
        more.taken.clear();
        more.cost_usd += cost_usd.unwrap_or_default();
        more.tokens = more.tokens.saturating_add(usage.total());
        more.unpriced |= cost_usd.is_none();
        let attempt = more.cost_usd - more.cost_before;
        if let Some(run) = &mut more.run {
            run.between_turns = true;
        }
        self.dearest = self.dearest.max(attempt);
    }

    pub(super) fn end_run(&mut self, graph: &Graph, task: Option<&NodePath>, run_id: &RunId) {
        let Some(node) = self.of_run(graph, task) else { return };
        let more = node.more();
        if more.run.as_ref().is_some_and(|run| run.run_id == *run_id) {
            more.run = None;
        }
    }

    /// A message to one run, or to all.
    pub(super) fn message(&mut self, run: Option<&RunId>, content: &str) {
        for node in self.nodes.iter_mut() {
            let Some(more) = &mut node.more else { continue };
            let listens = |open: &OpenRun| match run {
                Some(run) => open.run_id == *run,
                None => open.multi_turn == MultiTurn::On,
            };
            if more.run.as_ref().is_some_and(listens) {
                more.waiting.push(content.to_owned());
            }
        }
    }
}
