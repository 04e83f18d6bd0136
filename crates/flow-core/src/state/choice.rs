//! Facts of which agent works on a node that several may work on.

use inspan_protocol::{AgentError, NodeStatus, Timestamp};
use serde_json::Value;

use super::{Facts, node::AgentChoice};
use crate::graph::{Agents, Graph, Node, TaskRef};

impl Facts {
    /// An agent was chosen; the attempt of the one before has ended.
    pub(super) fn take_agent(
        &mut self,
        graph: &Graph,
        task: TaskRef,
        agent: &str,
        after: Option<&str>,
        error: Option<&AgentError>,
        at: Timestamp,
    ) {
        let spec = self.body(graph, task.frame).node(task.node);
        let Some(agents) = &spec.agents else { return };
        let Some(agent) = agents.find(agent) else { return };
        if self.node(task).status == NodeStatus::Running {
            let duration = self.node(task).started_at.map(|started| at.since(started).as_millis() as u64);
            self.end(graph, task, NodeStatus::Pending, duration);
            let seq = self.session.last_seq;
            let node = self.node_mut(task);
            // The policy starts again for each agent, and each begins its own conversation.
            (node.failures, node.failures_in_a_row, node.deaths, node.interrupted) = (0, 0, 0, false);
            node.conversation = None;
            if let Some(error) = error {
                node.error = Some(Box::new(error.clone()));
                node.failed_seq = seq;
            }
            if let Some(more) = &mut node.more {
                more.resume = None;
            }
        }
        self.node_mut(task).choice.get_or_insert_default().take(agents, agent, after);
        self.touched.push(task);
    }

    /// The agents that have worked on a node, in their order; the last is at work, or has ended it.
    pub fn agents_of(&self, graph: &Graph, task: TaskRef) -> Vec<String> {
        self.names_of_agents(graph, task).into_iter().map(str::to_owned).collect()
    }

    fn names_of_agents<'g>(&self, graph: &'g Graph, task: TaskRef) -> Vec<&'g str> {
        let Some(agents) = &self.body(graph, task.frame).node(task.node).agents else { return Vec::new() };
        let Some(choice) = &self.node(task).choice else {
            return if agents.choice.is_some() { Vec::new() } else { vec![agents.name(0)] };
        };
        choice.tried.iter().chain([&choice.agent]).map(|agent| agents.name(*agent)).collect()
    }

    /// The name of the agent that works on a node, if several may.
    pub fn agent_of<'g>(&self, graph: &'g Graph, task: TaskRef) -> Option<&'g str> {
        self.names_of_agents(graph, task).last().copied()
    }

    /// What a node gives, with the names of its agents.
    pub(crate) fn with_agents(&self, graph: &Graph, task: TaskRef, mut output: Value) -> Value {
        let tried = self.names_of_agents(graph, task);
        if let (Some(by), Some(fields)) = (tried.last(), output.as_object_mut()) {
            fields.insert("by".to_owned(), (*by).into());
            fields.insert("tried".to_owned(), tried.into());
        }
        output
    }

    /// The node with the agent whose conversation its conversation is.
    pub(crate) fn conversation_agent<'g>(&self, graph: &'g Graph, task: TaskRef) -> &'g Node {
        let speaker = self.node(task).more.as_ref().map_or(0, |more| more.speaker);
        self.body(graph, task.frame).node(task.node).with_agent(speaker)
    }
}

impl AgentChoice {
    /// Takes the next agent.
    fn take(&mut self, agents: &Agents, agent: u32, after: Option<&str>) {
        if let Some(after) = after.and_then(|name| agents.find(name)) {
            self.tried.push(after);
            let left = agents.fallback.iter().zip(0_u32..).skip(self.next as usize);
            let entry = left.into_iter().find(|(entry, _)| entry.agent == agent);
            self.next = entry.map_or(u32::MAX, |(_, at)| at + 1);
        }
        self.agent = agent;
    }

    /// The choice that a snapshot names.
    pub(super) fn load(agents: &Agents, names: &[String]) -> Option<Self> {
        let (first, rest) = names.split_first()?;
        let mut choice = Self { agent: agents.find(first)?, ..Self::default() };
        let mut before = first;
        for name in rest {
            choice.take(agents, agents.find(name)?, Some(before));
            before = name;
        }
        Some(choice)
    }
}
