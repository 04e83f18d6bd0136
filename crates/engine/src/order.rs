//! Whether a session's log follows the rules of order and pairing. For tests and replays of whole logs.
//!
//! - `seq` is dense, and all events are of one session.
//! - `harness:start` comes before all and nothing follows `harness:complete`, save what needs no live session:
//!   `channel:*`, `session:rejected` and extensions. Each phase begins and ends once within, never inside
//!   another.
//! - A task begins and ends within a phase (if there is a harness at all), each attempt once and one at a
//!   time; its attempts count up from one, after a failure that says so, a limit that was waited out, or an
//!   interruption; a path ends at most once. What was cancelled may fail for good without another attempt.
//! - A frame opens and closes within the attempt of the task that runs it, one at a time for each index; the tasks in it
//!   begin and end while it is open, and count their attempts on if it is opened again.
//! - An agent run begins and ends once, within its task if it has one; its events and tools are in between,
//!   and each tool that starts completes once, by its `toolUseId`.
//! - A reply follows its prompt, once.
//! - After `flow:paused` comes only `flow:resumed`. After a crash it comes without a pause, and right before it
//!   the ends of the agent runs that were lost, whatever tools they had open. What was open then is closed.
//! - A log may end after `flow:paused`, or after `flow:waiting` with tasks open that wait.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{Envelope, Event, NodeId, NodePath, PromptId, RunId, SessionId, StopReason};

/// A log that breaks a rule of order or pairing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {rule}")]
pub struct OrderError {
    /// The event, by its `seq` and name, or the end of the log.
    pub place: String,
    /// The rule that it breaks.
    pub rule: String,
}

/// Checks a whole log: of a session that ended or paused, or of agent runs without a flow.
pub fn check_order(log: &[Envelope]) -> Result<(), OrderError> {
    let mut check = OrderCheck::default();
    for envelope in log {
        check.push(envelope)?;
    }
    check.finish()
}

/// Checks a log event by event, so that the beginning of one can be checked too.
#[derive(Debug, Default)]
pub struct OrderCheck {
    last: Option<(u64, SessionId)>,
    began: bool,
    harness: HarnessOrder,
    phase: Option<String>,
    phases_done: BTreeSet<String>,
    tasks: BTreeMap<NodePath, TaskPhase>,
    /// The frames that are open, by what the paths of their tasks begin with.
    frames: BTreeSet<String>,
    /// The newest attempt of each task of a frame that has closed.
    attempts_before: BTreeMap<NodePath, u32>,
    /// Tasks that run frames: they stay open while the session is paused.
    owners: BTreeSet<NodePath>,
    /// Tasks of types that are not built in: those of packs run frames, others do not.
    may_own: BTreeSet<NodePath>,
    runs: BTreeMap<RunId, RunPhase>,
    prompts: BTreeMap<PromptId, Question>,
    /// Whether `flow:waiting` was the newest event.
    waits: bool,
    /// A broken rule that is only allowed after a crash, so `flow:resumed` must follow.
    excused_by_crash: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HarnessOrder {
    #[default]
    Absent,
    Running,
    Paused,
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskPhase {
    Open {
        attempt: u32,
    },
    /// It failed and is tried again, or a limit is waited out, or it was interrupted by a pause, a stop or a crash.
    Again {
        attempt: u32,
    },
    /// The same, and it may also fail without another attempt.
    Cancelled {
        attempt: u32,
    },
    Ended {
        attempt: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RunPhase {
    Open { task: Option<NodePath>, tools: BTreeSet<String> },
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Open,
    Answered,
}

impl OrderCheck {
    /// Checks the next event.
    pub fn push(&mut self, envelope: &Envelope) -> Result<(), OrderError> {
        self.check(envelope).map_err(|rule| {
            let place = format!("event {} `{}`", envelope.seq, envelope.event.name());
            OrderError { place, rule }
        })
    }

    fn check(&mut self, envelope: &Envelope) -> Result<(), String> {
        let session = &envelope.context.session_id;
        if let Some((seq, first)) = &self.last {
            ensure(envelope.seq == seq + 1, || format!("its seq follows {seq}"))?;
            ensure(session == first, || format!("it is of session `{session}`, not `{first}`"))?;
        }
        self.last = Some((envelope.seq, session.clone()));
        let name = envelope.event.name();
        if name.starts_with("channel:") || name.starts_with('_') || name == "session:rejected" {
            return Ok(());
        }
        let first = !std::mem::replace(&mut self.began, true);
        match self.harness {
            HarnessOrder::Complete => return Err("it follows `harness:complete`".to_owned()),
            HarnessOrder::Paused if !matches!(envelope.event, Event::FlowResumed { .. }) => {
                return Err("it follows `flow:paused`".to_owned());
            }
            _ => {}
        }
        let excused = matches!(envelope.event, Event::AgentComplete { .. } | Event::FlowResumed { .. });
        if let Some(owed) = self.excused_by_crash.take_if(|_| !excused) {
            return Err(format!("only `flow:resumed` may follow, since {owed}"));
        }
        self.waits = matches!(envelope.event, Event::FlowWaiting { .. });
        match envelope.event {
            Event::HarnessStart { .. } => ensure(first, || "it is not the first".to_owned())?,
            // A stop or a pause may be requested before the session has begun.
            Event::SessionPause { .. } | Event::SessionAbort { .. } if first => self.began = false,
            _ => {}
        }
        self.session(&envelope.event)?;
        self.task(envelope)?;
        self.agent(envelope)
    }

    fn session(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::HarnessStart { .. } => self.harness = HarnessOrder::Running,
            Event::HarnessComplete { .. } => {
                self.running_without_phase()?;
                ensure(!self.phases_done.is_empty(), || "there was no phase".to_owned())?;
                self.all_closed()?;
                self.harness = HarnessOrder::Complete;
            }
            Event::PhaseStart { name, .. } => {
                self.running_without_phase()?;
                ensure(!self.phases_done.contains(name), || format!("phase `{name}` began before"))?;
                self.phase = Some(name.clone());
            }
            Event::PhaseComplete { name } | Event::PhaseFailed { name, .. } => {
                ensure(self.phase.as_ref() == Some(name), || format!("phase `{name}` is not open"))?;
                self.all_closed()?;
                self.phase = None;
                self.phases_done.insert(name.clone());
            }
            Event::FlowPaused { .. } => {
                self.no_attempt_is_open()?;
                self.harness = HarnessOrder::Paused;
            }
            Event::FlowResumed { .. } => self.close_all(),
            Event::SessionPrompt(prompt) => {
                self.prompts.insert(prompt.prompt_id.clone(), Question::Open);
            }
            Event::SessionReply { prompt_id, .. } => {
                let question = self.prompts.insert(prompt_id.clone(), Question::Answered);
                ensure(question == Some(Question::Open), || format!("prompt `{prompt_id}` is not open"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn running_without_phase(&self) -> Result<(), String> {
        ensure(self.harness == HarnessOrder::Running, || "the harness has not started".to_owned())?;
        ensure(self.phase.is_none(), || format!("phase {:?} is open", self.phase))
    }

    /// What was open when the process ended is closed.
    fn close_all(&mut self) {
        self.harness = HarnessOrder::Running;
        self.excused_by_crash = None;
        for (path, task) in &mut self.tasks {
            if let TaskPhase::Open { attempt } = *task
                && !self.owners.contains(path)
            {
                *task = TaskPhase::Again { attempt };
            }
        }
        for run in self.runs.values_mut() {
            *run = RunPhase::Ended;
        }
    }

    fn task(&mut self, envelope: &Envelope) -> Result<(), String> {
        match &envelope.event {
            Event::TaskStart { attempt, path, node_type, .. } => {
                if self.harness != HarnessOrder::Absent {
                    ensure(self.phase.is_some(), || "no phase is open".to_owned())?;
                }
                let place = envelope.context.task.as_ref();
                ensure(place == Some(path), || format!("its context says {place:?} and not `{path}`"))?;
                let prefix = frame_of(path);
                ensure(prefix.is_none_or(|prefix| self.frames.contains(prefix)), || {
                    format!("the frame of `{path}` is not open")
                })?;
                let before = self.attempts_before.get(path).copied().unwrap_or_default();
                let fits = match self.tasks.get(path) {
                    // A frame that is opened again counts on from the most attempts of any of its tasks.
                    None if prefix.is_some() => *attempt > before,
                    None => *attempt == 1,
                    Some(TaskPhase::Again { attempt: before } | TaskPhase::Cancelled { attempt: before }) => {
                        *attempt == before + 1
                    }
                    Some(TaskPhase::Open { .. } | TaskPhase::Ended { .. }) => false,
                };
                let task = self.tasks.get(path);
                ensure(fits, || format!("attempt {attempt} of `{path}` cannot begin: {task:?}"))?;
                self.tasks.insert(path.clone(), TaskPhase::Open { attempt: *attempt });
                if matches!(&**node_type, "control.foreach" | "control.loop" | "control.subflow") {
                    self.owners.insert(path.clone());
                } else if may_run_frames(node_type) {
                    self.may_own.insert(path.clone());
                }
                Ok(())
            }
            Event::FrameItems { .. } => self.open_owner(envelope).map(drop),
            Event::FrameStart { index, input, .. } => {
                let owner = self.open_owner(envelope)?;
                let is_subflow = input.is_some();
                let prefix = if is_subflow { format!("{owner}/") } else { format!("{owner}[{index}]/") };
                let opens = self.frames.insert(prefix);
                ensure(opens, || format!("frame {index} of `{owner}` is open"))
            }
            Event::FrameEnding { .. } => self.open_owner(envelope).map(drop),
            Event::FrameComplete { index, .. }
            | Event::FrameFailed { index, .. }
            | Event::FrameCancelled { index, .. } => self.close_frame(envelope, *index),
            Event::TaskComplete { task_id, .. } => {
                self.end_task(envelope, task_id, |attempt| TaskPhase::Ended { attempt })
            }
            Event::TaskFailed { task_id, will_retry, .. } => {
                self.end_task(envelope, task_id, |attempt| match will_retry {
                    true => TaskPhase::Again { attempt },
                    false => TaskPhase::Ended { attempt },
                })
            }
            Event::TaskAgent { task_id, .. } => {
                let path = envelope.context.task.as_ref().ok_or("its context names no task")?;
                match self.tasks.get(path) {
                    Some(TaskPhase::Open { .. }) => {
                        self.end_task(envelope, task_id, |attempt| TaskPhase::Again { attempt })
                    }
                    before => ensure(!matches!(before, Some(TaskPhase::Ended { .. })), || {
                        format!("`{path}` has ended")
                    }),
                }
            }
            Event::TaskCancelled { task_id, .. } => {
                self.end_task(envelope, task_id, |attempt| TaskPhase::Cancelled { attempt })
            }
            Event::TaskInterrupted { task_id, .. } => {
                self.end_task(envelope, task_id, |attempt| TaskPhase::Again { attempt })
            }
            Event::LimitWait { .. } => {
                let path = envelope.context.task.as_ref().ok_or("its context names no task")?;
                let id = NodeId::new(path.node()).map_err(|error| error.to_string())?;
                self.end_task(envelope, &id, |attempt| TaskPhase::Again { attempt })
            }
            Event::ExecOutput { .. } => {
                let path = envelope.context.task.as_ref().ok_or("its context names no task")?;
                let is_open = matches!(self.tasks.get(path), Some(TaskPhase::Open { .. }));
                ensure(is_open, || format!("task `{path}` is not open"))
            }
            Event::TaskSkipped { .. } | Event::TaskReused { .. } => {
                let path = envelope.context.task.clone().ok_or("its context names no task")?;
                let fits = matches!(
                    self.tasks.get(&path),
                    None | Some(TaskPhase::Again { .. } | TaskPhase::Cancelled { .. })
                );
                ensure(fits, || format!("`{path}` has ended or is open"))?;
                self.tasks.insert(path, TaskPhase::Ended { attempt: 0 });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The task that runs a frame, which is open.
    fn open_owner(&mut self, envelope: &Envelope) -> Result<NodePath, String> {
        let path = envelope.context.task.as_ref().ok_or("its context names no task")?;
        let task = self.tasks.get_mut(path).ok_or_else(|| format!("task `{path}` has not started"))?;
        match *task {
            // Its process died before it had a frame.
            TaskPhase::Again { attempt } => *task = TaskPhase::Open { attempt },
            TaskPhase::Open { .. } => {}
            TaskPhase::Cancelled { .. } | TaskPhase::Ended { .. } => {
                return Err(format!("task `{path}` is not open"));
            }
        }
        self.owners.insert(path.clone());
        Ok(path.clone())
    }

    fn close_frame(&mut self, envelope: &Envelope, index: u32) -> Result<(), String> {
        let owner = self.open_owner(envelope)?;
        let prefixes = [format!("{owner}[{index}]/"), format!("{owner}/")];
        let prefix = prefixes.into_iter().find(|prefix| self.frames.remove(prefix));
        let prefix = prefix.ok_or_else(|| format!("frame {index} of `{owner}` is not open"))?;
        let from = NodePath::new(&prefix);
        let within = self.tasks.range(from..).map(|(path, _)| path);
        let within: Vec<NodePath> =
            within.take_while(|path| path.as_str().starts_with(&prefix)).cloned().collect();
        for path in within {
            match self.tasks.remove(&path) {
                Some(TaskPhase::Open { .. }) => return Err(format!("task `{path}` is open")),
                Some(
                    TaskPhase::Again { attempt }
                    | TaskPhase::Cancelled { attempt }
                    | TaskPhase::Ended { attempt },
                ) => {
                    self.attempts_before.insert(path, attempt);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn end_task(
        &mut self,
        envelope: &Envelope,
        task_id: &NodeId,
        end: impl FnOnce(u32) -> TaskPhase,
    ) -> Result<(), String> {
        let path = envelope.context.task.as_ref().ok_or("its context names no task")?;
        ensure(path.node() == task_id.as_str(), || format!("its context says `{path}`, not `{task_id}`"))?;
        let is_final = matches!(envelope.event, Event::TaskFailed { will_retry: false, .. });
        let attempt = match self.tasks.get(path) {
            Some(TaskPhase::Open { attempt }) => *attempt,
            Some(TaskPhase::Cancelled { attempt }) if is_final => *attempt,
            // Its process died before it had a frame, and it needs none to fail.
            Some(TaskPhase::Again { attempt }) if self.may_own.contains(path) => *attempt,
            _ => return Err(format!("task `{path}` is not open")),
        };
        if self.owners.contains(path) {
            let is_of = |prefix: &&String| frame_owner(prefix) == path.as_str();
            let frame = self.frames.iter().find(is_of);
            ensure(frame.is_none(), || format!("frame {frame:?} of `{path}` is open"))?;
        }
        let inside = self.runs.iter().find_map(|(id, run)| match run {
            RunPhase::Open { task: Some(task), .. } if task == path => Some(id),
            _ => None,
        });
        ensure(inside.is_none(), || format!("run {inside:?} of `{path}` is open"))?;
        self.tasks.insert(path.clone(), end(attempt));
        Ok(())
    }

    fn agent(&mut self, envelope: &Envelope) -> Result<(), String> {
        let event = &envelope.event;
        if !event.name().starts_with("agent:") {
            return Ok(());
        }
        let Some(id) = event.run_id() else { return Ok(()) };
        let task = envelope.context.task.clone();
        let agent = envelope.context.agent.as_ref();
        ensure(agent == Some(id), || format!("its context says {agent:?} and not `{id}`"))?;
        if let Event::AgentStart { .. } = event {
            ensure(!self.runs.contains_key(id), || format!("run `{id}` began before"))?;
            if let Some(path) = &task {
                let open = matches!(self.tasks.get(path), Some(TaskPhase::Open { .. }));
                ensure(open || self.harness == HarnessOrder::Absent, || {
                    format!("task `{path}` is not open")
                })?;
            }
            self.runs.insert(id.clone(), RunPhase::Open { task, tools: BTreeSet::new() });
            return Ok(());
        }
        let Some(RunPhase::Open { tools, .. }) = self.runs.get_mut(id) else {
            return Err(format!("run `{id}` is not open"));
        };
        match event {
            Event::AgentToolStart { tool_use_id, .. } => {
                ensure(tools.insert(tool_use_id.clone()), || format!("tool `{tool_use_id}` is open"))
            }
            Event::AgentToolComplete { tool_use_id, .. } => {
                ensure(tools.remove(tool_use_id), || format!("tool `{tool_use_id}` is not open"))
            }
            Event::AgentComplete { stop_reason, .. } => {
                let open = (!tools.is_empty()).then(|| format!("tools {tools:?} are open"));
                if *stop_reason == StopReason::Aborted {
                    self.excused_by_crash = self.excused_by_crash.take().or(open);
                } else if let Some(open) = open {
                    return Err(open);
                }
                self.runs.insert(id.clone(), RunPhase::Ended);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn all_closed(&self) -> Result<(), String> {
        let task = self.tasks.iter().find(|(_, task)| matches!(task, TaskPhase::Open { .. }));
        ensure(task.is_none(), || format!("task {task:?} is open"))?;
        self.runs_closed()
    }

    /// Checks that no attempt is at work; tasks that run frames may be open.
    fn no_attempt_is_open(&self) -> Result<(), String> {
        let works = |(path, task): &(&NodePath, &TaskPhase)| {
            matches!(task, TaskPhase::Open { .. })
                && !self.owners.contains(*path)
                && !self.may_own.contains(*path)
        };
        let task = self.tasks.iter().find(works);
        ensure(task.is_none(), || format!("task {task:?} is open"))?;
        self.runs_closed()
    }

    fn runs_closed(&self) -> Result<(), String> {
        let run = self.runs.iter().find(|(_, run)| matches!(run, RunPhase::Open { .. }));
        ensure(run.is_none(), || format!("run {run:?} is open"))
    }

    /// Checks that nothing is left open. A log that has a harness must end complete, paused or waiting.
    pub fn finish(&self) -> Result<(), OrderError> {
        let check = || {
            if self.waits {
                self.runs_closed()?;
            } else {
                let ended = self.harness != HarnessOrder::Running;
                let message = "it comes without `harness:complete`, `flow:paused` or `flow:waiting`";
                ensure(ended, || message.to_owned())?;
                match self.harness {
                    HarnessOrder::Paused => self.no_attempt_is_open()?,
                    _ => self.all_closed()?,
                }
            }
            self.excused_by_crash.clone().map_or(Ok(()), Err)
        };
        check().map_err(|rule| OrderError { place: "the end of the log".to_owned(), rule })
    }
}

/// What the paths of a task's frame begin with; none for a task of the flow itself.
fn frame_of(path: &NodePath) -> Option<&str> {
    path.as_str().rfind('/').map(|at| &path.as_str()[..=at])
}

/// The path of the task that runs a frame, of what the paths of the frame begin with.
fn frame_owner(prefix: &str) -> &str {
    let owner = prefix.trim_end_matches('/');
    owner.strip_suffix(']').and_then(|owner| owner.rsplit_once('[')).map_or(owner, |(owner, _)| owner)
}

fn ensure(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(fault()) }
}

/// Whether a node type may be one of a pack, whose nodes run frames.
fn may_run_frames(node_type: &str) -> bool {
    let built_in = ["control", "condition", "human", "data", "http", "mcp"];
    let parts = node_type.split_once('.').filter(|_| node_type != "agent.run");
    parts.is_some_and(|(pack, name)| name != "agent" && !built_in.contains(&pack))
}

#[cfg(test)]
mod tests;
