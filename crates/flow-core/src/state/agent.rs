//! Facts of agent runs: their conversations, messages, tokens and cost.

use inspan_protocol::{
    Event, MultiTurn, NodePath, ProviderSessionId, RunId, Spending, SteerStrength, TurnId,
};

use super::{
    Facts,
    node::{Conversation, NodeState, OpenRun},
};
use crate::{
    graph::{Graph, NodeSession, SessionMode, TaskRef, can_continue},
    node::NodeKind,
};

/// Whether it says that the model answered a request: from the start the agent would do, and pay for, that a second time.
pub(crate) fn is_work(event: &Event) -> bool {
    matches!(event, Event::AgentSpent { .. } | Event::AgentTurn { .. })
}

impl Facts {
    /// Takes what an agent's run does, and what was spent by that.
    pub(super) fn take_agent_fact(
        &mut self,
        graph: &Graph,
        task: Option<&NodePath>,
        event: &Event,
        spent: Option<Spending>,
    ) {
        match event {
            Event::AgentStart { run_id, agent_name, multi_turn, listens, .. } => {
                let (run_id, agent_name) = (run_id.clone(), agent_name.clone());
                let (between_turns, multi_turn) = (*listens, *multi_turn);
                let Some(node) = self.of_run(graph, task) else { return };
                node.more().run = Some(OpenRun { run_id, agent_name, between_turns, multi_turn });
            }
            Event::AgentTurn { messages, .. } => self.begin_turn(graph, task, *messages),
            Event::AgentSteer { content, strength, .. } => self.steer(graph, task, content, *strength),
            Event::AgentSession { session_id, .. } => self.name_conversation(graph, task, session_id),
            Event::AgentUsage { turn_id, .. } => self.end_turn(graph, task, turn_id.as_ref()),
            Event::AgentComplete { run_id, .. } => self.end_run(graph, task, run_id),
            _ => {}
        }
        if is_work(event)
            && let Some(node) = self.of_run(graph, task)
        {
            node.more().worked = true;
            // An agent that counts nothing until its turn ends says so too when its vendor has refused the first request.
            if spent.is_none_or(|spent| spent.tokens > 0 || spent.cost_usd > 0.0) {
                node.failures_in_a_row = 0;
            }
        }
        if let Some(spent) = spent {
            self.charge(graph, task, spent);
        }
    }

    /// The node of an agent's run. A run that ends after its node has begun the next pass still belongs to the node.
    fn of_run(&mut self, graph: &Graph, task: Option<&NodePath>) -> Option<&mut NodeState> {
        let task = self.find_any_pass(graph, task?)?;
        Some(self.node_mut(task))
    }

    fn begin_turn(&mut self, graph: &Graph, task: Option<&NodePath>, messages: Option<u32>) {
        let Some(node) = self.of_run(graph, task) else { return };
        let more = node.more();
        let all = more.waiting.len();
        let taken = messages.map_or(all, |messages| all.min(messages as usize));
        more.taken.extend(more.waiting.drain(..taken));
        if let Some(run) = &mut more.run {
            run.between_turns = false;
        }
    }

    /// A message that reached the turn it was sent to; one that interrupts is in the turn that follows.
    fn steer(&mut self, graph: &Graph, task: Option<&NodePath>, content: &str, strength: SteerStrength) {
        let Some(node) = self.of_run(graph, task).filter(|_| strength == SteerStrength::Native) else {
            return;
        };
        let more = node.more();
        if let Some(place) = more.waiting.iter().position(|waiting| waiting == content) {
            more.taken.extend(more.waiting.drain(place..=place));
        }
    }

    fn name_conversation(&mut self, graph: &Graph, task: Option<&NodePath>, session_id: &ProviderSessionId) {
        let Some(at) = task.and_then(|path| self.find_any_pass(graph, path)) else { return };
        if let Some(before) = self.continued(graph, at).cloned() {
            self.rename_conversation(&before, session_id);
        }
        let continued = self.named_conversation(graph, at).map(|(_, known)| known.clone());
        let node = self.node_mut(at);
        let speaker = node.choice.as_ref().map_or(0, |choice| choice.agent);
        node.more().speaker = speaker;
        node.more().named = true;
        Conversation::name(&mut node.conversation, session_id, continued);
    }

    /// The conversation that an agent names, with what it does with it. One of another provider does not count: the agent
    /// starts a new one.
    pub(crate) fn named_conversation(
        &self,
        graph: &Graph,
        task: TaskRef,
    ) -> Option<(NodeSession, &Conversation)> {
        let node = self.spec(graph, task);
        let session = node.session?;
        let source = self.source(task, session)?;
        let known = self.node(source).conversation.as_ref()?;
        let is_known = can_continue(self.conversation_agent(graph, source).provider(), node.provider());
        is_known.then_some((session, known))
    }

    /// The conversation of another session that an agent continues, and not branches.
    pub(crate) fn continued(&self, graph: &Graph, task: TaskRef) -> Option<&ProviderSessionId> {
        let (session, known) = self.named_conversation(graph, task)?;
        (session.mode == SessionMode::Continue && known.taken_over).then_some(&known.session_id)
    }

    /// A conversation of another session is continued in this one, by itself or on a branch: all that name it continue that.
    fn rename_conversation(&mut self, before: &ProviderSessionId, now: &ProviderSessionId) {
        let nodes = self.frames.iter_mut().flat_map(|frame| frame.nodes.iter_mut());
        let known = nodes.flat_map(|node| {
            let of_passes = node.frames.iter_mut().flat_map(|set| &mut set.conversations).flatten();
            node.conversation.iter_mut().chain(of_passes)
        });
        for known in known.filter(|known| known.session_id == *before) {
            known.session_id = now.clone();
            known.taken_over = false;
        }
    }

    /// Notes where an agent was in the session whose work it was taken over from, or a node with all its frames; `from` names
    /// both.
    pub(super) fn note_taken_over(&mut self, graph: &Graph, task: TaskRef, from: &str) {
        let has_turns = matches!(self.spec(graph, task).kind, NodeKind::Agent | NodeKind::Frames);
        if let Some((_, before)) = from.split_once('/').filter(|_| has_turns) {
            self.taken_over.insert(NodePath::new(before), self.path(graph, task));
        }
    }

    /// The place that a task of the other session has in this one, if it was taken over: by itself, or with a node around it.
    pub(crate) fn place_taken_over(&self, before: &NodePath) -> Option<NodePath> {
        std::iter::successors(Some(before.clone()), NodePath::owner).find_map(|around| {
            let now = self.taken_over.get(&around)?;
            let within = before.as_str().strip_prefix(around.as_str())?;
            Some(if within.is_empty() { now.clone() } else { NodePath::new(&format!("{now}{within}")) })
        })
    }

    /// The task whose conversation another names.
    pub(crate) fn source(&self, task: TaskRef, session: NodeSession) -> Option<TaskRef> {
        let mut frame = task.frame;
        for _ in 0..session.depth {
            frame = self.frames[frame].owner?.frame;
        }
        Some(TaskRef { frame, node: session.node })
    }

    fn end_turn(&mut self, graph: &Graph, task: Option<&NodePath>, turn_id: Option<&TurnId>) {
        self.progress += 1;
        self.releases += u64::from(!std::mem::replace(&mut self.turn_reported, true));
        let Some(node) = self.of_run(graph, task) else { return };
        if let Some(known) = &mut node.conversation {
            known.end_turn(turn_id);
        }
        let more = node.more();
        more.taken.clear();
        if let Some(run) = &mut more.run {
            run.between_turns = true;
        }
    }

    /// Counts what a turn, or a part of one, took.
    fn charge(&mut self, graph: &Graph, task: Option<&NodePath>, spent: Spending) {
        let Some(node) = self.of_run(graph, task) else { return };
        let more = node.more();
        more.spent += spent;
        let attempt = (more.spent.cost_usd - more.cost_before, more.spent.tokens - more.tokens_before);
        let was_known = (self.dearest > 0.0, self.most_tokens > 0);
        self.dearest = self.dearest.max(attempt.0);
        self.most_tokens = self.most_tokens.max(attempt.1);
        self.releases += u64::from(was_known != (self.dearest > 0.0, self.most_tokens > 0));
        self.charge_frames(graph, task, spent);
    }

    /// Adds what a turn cost to the frames around its node, and to the nodes that run these.
    fn charge_frames(&mut self, graph: &Graph, task: Option<&NodePath>, spent: Spending) {
        let task = task.filter(|path| path.is_in_frame()).and_then(|path| self.find_any_pass(graph, path));
        let mut next = task.map(|task| task.frame);
        while let Some(frame) = next {
            self.frames[frame].spent += spent;
            let owner = self.frames[frame].owner;
            if let Some(owner) = owner {
                self.node_mut(owner).more().spent += spent;
            }
            next = owner.map(|owner| owner.frame);
        }
    }

    fn end_run(&mut self, graph: &Graph, task: Option<&NodePath>, run_id: &RunId) {
        let Some(node) = self.of_run(graph, task) else { return };
        node.more().run.take_if(|run| run.run_id == *run_id);
    }

    /// A message to all that one node has got; the others say so themselves. Nodes that wait for one keep none.
    pub(super) fn message_at(&mut self, graph: &Graph, task: Option<&NodePath>, content: &str) {
        let Some(task) = task.and_then(|path| self.find_any_pass(graph, path)) else { return };
        if self.spec(graph, task).kind == NodeKind::Agent {
            self.node_mut(task).more().waiting.push(content.to_owned());
        }
    }

    /// A message to one run, or to all.
    pub(super) fn message(&mut self, run: Option<&RunId>, content: &str) {
        for node in self.frames.iter_mut().flat_map(|frame| frame.nodes.iter_mut()) {
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
