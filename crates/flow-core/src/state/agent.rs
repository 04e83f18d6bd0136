//! Facts of agent runs: their conversations, messages, tokens and cost.

use inspan_protocol::{Event, MultiTurn, NodePath, RunId, SteerStrength};

use super::{
    RunState,
    node::{Conversation, OpenRun},
};
use crate::graph::Graph;

impl RunState {
    pub(super) fn agent(&mut self, graph: &Graph, task: Option<&NodePath>, event: &Event) {
        if let Event::AgentUsage { usage, cost_usd, .. } = event {
            self.usage += *usage;
            match cost_usd {
                Some(cost) => self.cost_usd += cost,
                None => self.unpriced = true,
            }
            self.progress += 1;
        }
        // A run that ends after its node has gone on to the next pass is the node's all the same.
        let Some(ix) = task.and_then(|path| graph.find(path.node())) else { return };
        let node = &mut self.nodes[ix.0 as usize];
        match event {
            Event::AgentStart { run_id, agent_name, multi_turn, .. } => {
                node.more().run = Some(OpenRun {
                    run_id: run_id.clone(),
                    agent_name: agent_name.clone(),
                    between_turns: false,
                    multi_turn: *multi_turn,
                });
            }
            Event::AgentTurn { .. } => {
                let more = node.more();
                more.taken.append(&mut more.waiting);
                if let Some(run) = &mut more.run {
                    run.between_turns = false;
                }
            }
            // One that interrupts is in the turn that follows.
            Event::AgentSteer { content, strength: SteerStrength::Native, .. } => {
                let more = node.more();
                if let Some(place) = more.waiting.iter().position(|waiting| waiting == content) {
                    more.taken.extend(more.waiting.drain(place..=place));
                }
            }
            Event::AgentSession { session_id, .. } => {
                node.more().named = true;
                if node.conversation.as_ref().is_none_or(|known| known.session_id != *session_id) {
                    node.conversation = Some(Conversation { session_id: session_id.clone(), turns: 0 });
                }
            }
            Event::AgentUsage { usage, cost_usd, .. } => {
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
            Event::AgentComplete { run_id, .. } => {
                let more = node.more();
                if more.run.as_ref().is_some_and(|run| run.run_id == *run_id) {
                    more.run = None;
                }
            }
            _ => {}
        }
    }

    /// A message to one run, or to all.
    pub(super) fn message(&mut self, run: Option<&RunId>, content: &str) {
        for node in &mut self.nodes {
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
