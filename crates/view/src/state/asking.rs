//! Which nodes ask a person. A session may have thousands of open questions, and what is shown of a node depends on
//! whether it asks: so that is known without a look at all questions.

use std::collections::{HashMap, HashSet};

use inspan_flow_core::Run;
use inspan_protocol::{Event, NodePath, NodeStatus, Prompt, PromptKind};

/// The nodes that ask a person.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asking {
    nodes: HashMap<NodePath, PromptKind>,
    /// Those of them that were cancelled: nobody here waits for their answers.
    cancelled: HashSet<NodePath>,
    /// How many questions are open.
    open: usize,
}

impl Asking {
    pub(super) fn of(run: &Run) -> Self {
        let mut asking = Self::default();
        asking.count(run.state().prompts());
        asking
    }

    fn count(&mut self, open: &[Prompt]) {
        self.open = open.len();
        self.nodes.clear();
        open.iter().for_each(|prompt| self.add(prompt));
        self.cancelled.retain(|path| self.nodes.contains_key(path));
    }

    fn add(&mut self, prompt: &Prompt) {
        let Some(task) = &prompt.task else { return };
        let kind = self.nodes.entry(task.clone()).or_insert(prompt.kind);
        if prompt.kind == PromptKind::Input {
            *kind = PromptKind::Input;
        }
    }

    /// What a node asks for: a question of the flow if there is one among its questions, which outlives the process.
    pub(crate) fn kind(&self, node: impl FnOnce() -> NodePath) -> Option<PromptKind> {
        if self.nodes.is_empty() { None } else { self.nodes.get(&node()).copied() }
    }

    /// Whether the answer to a question is waited for here.
    pub(super) fn is_shown(&self, prompt: &Prompt) -> bool {
        self.cancelled.is_empty() || prompt.task.as_ref().is_none_or(|task| !self.cancelled.contains(task))
    }

    /// Takes what an event of this node, or of the session as a whole, has changed. Whether other questions are shown now, or
    /// one is asked again.
    pub(super) fn update(&mut self, run: &Run, event: &Event, task: Option<&NodePath>) -> bool {
        let open = run.state().prompts();
        let mut changes = true;
        match (event, open.last()) {
            (Event::SessionPrompt(_), Some(asked)) if open.len() == self.open + 1 => {
                self.open += 1;
                self.add(asked);
            }
            // A session that continues asks again what was open before.
            (Event::SessionPrompt(_), _) => self.count(open),
            _ if open.len() != self.open => self.count(open),
            _ => changes = false,
        }
        let was_cancelled = self.cancelled.len();
        let is_cancelled = |path: &NodePath| {
            let task = run.state().find(run.graph(), Some(path));
            task.is_some_and(|task| run.state().node(task).status == NodeStatus::Cancelled)
        };
        match task {
            Some(task) if self.nodes.contains_key(task) && is_cancelled(task) => {
                self.cancelled.insert(task.clone());
            }
            Some(task) => drop(self.cancelled.remove(task)),
            None => self.cancelled = self.nodes.keys().filter(|path| is_cancelled(path)).cloned().collect(),
        }
        changes || self.cancelled.len() != was_cancelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeRow, SessionView, testing::Recorded};

    /// The paths of the open nodes that wait for a person, by their rows.
    fn waiting(rows: &[NodeRow], prefix: &str, found: &mut Vec<String>) {
        for row in rows {
            let path = format!("{prefix}{}", row.label);
            let frames = row.frames.iter().filter(|(_, frame)| frame.open.is_some());
            frames.for_each(|(key, frame)| {
                waiting(&frame.rows, &crate::inside(&path, *key, frame), found);
            });
            if row.status == NodeStatus::Waiting && row.retry.is_none() {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_nodes_that_ask_are_those_of_the_open_questions_after_each_event() {
        let mut asked = 0;
        for recorded in Recorded::all() {
            let run = recorded.session.record.run(&recorded.graph);
            let mut view = SessionView::of(run).with_all_frames();
            for envelope in &recorded.log {
                view.apply(envelope);
                let (graph, state) = (view.run().graph(), view.run().state());
                let node = |prompt: &Prompt| state.find(graph, prompt.task.as_ref());
                let is_open = |prompt: &&Prompt| {
                    !node(prompt).is_some_and(|task| state.node(task).status == NodeStatus::Cancelled)
                };
                let open: Vec<_> = state.prompts().iter().filter(is_open).collect();
                let place = format!("{} {}", recorded.name, envelope.seq);
                assert_eq!(view.questions().collect::<Vec<_>>(), open, "{place}");
                let mut rows = Vec::new();
                waiting(&view.rows, "", &mut rows);
                let mut nodes: Vec<_> = state
                    .tasks()
                    .filter(|(task, _)| state.asked_by(graph, *task).is_some())
                    .filter(|(_, node)| matches!(node.status, NodeStatus::Running | NodeStatus::Pending))
                    .map(|(task, _)| crate::label(&state.path(graph, task)).to_owned())
                    .collect();
                rows.sort();
                nodes.sort();
                assert_eq!(rows, nodes, "{place}");
                asked += nodes.len();
            }
        }
        assert!(asked > 10, "{asked}");
    }
}
