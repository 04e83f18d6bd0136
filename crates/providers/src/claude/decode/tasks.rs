//! What the program runs beside the conversation: sub-agents, and commands in the background. When one of them ends, the
//! program tells the model, in a turn that it begins by itself if none is in progress.

use std::collections::BTreeMap;

use super::super::wire;
use crate::decode::background_ended;

/// How many tasks that run at once are remembered.
const MOST_TASKS: usize = 1_024;

/// The tasks of which the model was not told that they have ended, by the program's ids.
#[derive(Debug, Default)]
pub(super) struct BackgroundTasks(BTreeMap<String, Task>);

#[derive(Clone, Copy, Debug)]
struct Task {
    kind: TaskKind,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskKind {
    SubAgent,
    Command,
}

impl BackgroundTasks {
    /// `task_started`.
    pub(super) fn begin(&mut self, line: &wire::SystemLine<'_>) {
        let Some(id) = line.task_id.as_deref() else { return };
        // A workflow is one of agents.
        let is_agent = matches!(line.task_type.as_deref(), Some("local_agent" | "local_workflow"));
        self.add(id.to_owned(), if is_agent { TaskKind::SubAgent } else { TaskKind::Command });
    }

    /// A sub-agent that has ended works again.
    pub(super) fn resume(&mut self, id: String) {
        self.add(id, TaskKind::SubAgent);
    }

    fn add(&mut self, id: String, kind: TaskKind) {
        if self.0.len() < MOST_TASKS {
            self.0.insert(id, Task { kind, has_ended: false });
        }
    }

    /// `task_updated`: if the task has ended, the program tells the model next, unless it was killed. Returns whether that was
    /// a sub-agent.
    pub(super) fn update(&mut self, line: &wire::SystemLine<'_>) -> bool {
        let status = line.patch.as_ref().and_then(|patch| patch.status.as_deref());
        let has_ended = matches!(status, Some("completed" | "failed" | "killed"));
        let Some(task) = line.task_id.as_deref().and_then(|id| self.0.get_mut(id)) else { return false };
        task.has_ended |= has_ended;
        task.kind == TaskKind::SubAgent && status == Some("killed")
    }

    /// `task_notification`: the task has ended, and a turn that tells the model begins. Returns whether a sub-agent was
    /// stopped before its end.
    pub(super) fn end(&mut self, line: &wire::SystemLine<'_>) -> bool {
        self.remove(line.task_id.as_deref(), line.status.as_deref())
    }

    /// The program's own message to the model that a task has ended, within a turn. Returns whether a sub-agent was stopped
    /// before its end.
    pub(super) fn tell(&mut self, notification: &str) -> bool {
        let value = |name: &str| {
            let (_, rest) = notification.split_once(&format!("<{name}>"))?;
            Some(rest.split_once('<')?.0)
        };
        self.remove(value("task-id"), value("status"))
    }

    fn remove(&mut self, id: Option<&str>, status: Option<&str>) -> bool {
        let task = self.0.remove(id.unwrap_or_default());
        task.is_some_and(|task| task.kind == TaskKind::SubAgent) && status != Some("completed")
    }

    /// The program is idle, so that it tells the model of nothing more.
    pub(super) fn settle(&mut self) {
        self.0.retain(|_, task| !task.has_ended);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has_sub_agent(&self) -> bool {
        self.0.values().any(|task| task.kind == TaskKind::SubAgent)
    }

    /// The ids of the commands that run.
    pub(super) fn commands(&self) -> impl Iterator<Item = &str> {
        self.running(TaskKind::Command)
    }

    /// The ids of the sub-agents that work.
    pub(super) fn sub_agents(&self) -> impl Iterator<Item = &str> {
        self.running(TaskKind::SubAgent)
    }

    fn running(&self, kind: TaskKind) -> impl Iterator<Item = &str> {
        let tasks = self.0.iter().filter(move |(_, task)| task.kind == kind && !task.has_ended);
        tasks.map(|(id, _)| id.as_str())
    }

    /// What is said of them when the turn ends.
    pub(super) fn farewell(&self) -> Option<String> {
        background_ended(self.running(TaskKind::SubAgent).count(), self.running(TaskKind::Command).count())
    }
}
