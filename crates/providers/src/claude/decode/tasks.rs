//! What the program runs beside the conversation: sub-agents, and commands in the background. When one of them ends, the
//! program tells the model, in a turn that it begins by itself if none is in progress.

use std::collections::BTreeMap;

use super::super::wire;
use crate::decode::background_ended;

/// How many tasks that run at once are remembered.
const MOST_TASKS: usize = 1_024;

/// The tasks of which the model was not told that they have ended, by the program's ids.
#[derive(Debug, Default)]
pub(super) struct BackgroundTasks(BTreeMap<String, TaskKind>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskKind {
    SubAgent,
    Command,
}

impl BackgroundTasks {
    /// `task_started`.
    pub(super) fn begin(&mut self, line: &wire::SystemLine<'_>) {
        let Some(id) = line.task_id.as_deref().filter(|_| self.0.len() < MOST_TASKS) else { return };
        let is_agent = line.task_type.as_deref() == Some("local_agent");
        let kind = if is_agent { TaskKind::SubAgent } else { TaskKind::Command };
        self.0.insert(id.to_owned(), kind);
    }

    /// `task_notification`. Returns whether a sub-agent was stopped before its end.
    pub(super) fn end(&mut self, line: &wire::SystemLine<'_>) -> bool {
        let kind = self.0.remove(line.task_id.as_deref().unwrap_or_default());
        kind == Some(TaskKind::SubAgent) && line.status.as_deref() != Some("completed")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has_sub_agent(&self) -> bool {
        self.0.values().any(|kind| *kind == TaskKind::SubAgent)
    }

    /// The ids of the commands.
    pub(super) fn commands(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, kind)| **kind == TaskKind::Command).map(|(id, _)| id.as_str())
    }

    /// What is said of them when the turn ends.
    pub(super) fn farewell(&self) -> Option<String> {
        let commands = self.commands().count();
        background_ended(self.0.len() - commands, commands)
    }
}
