//! The result of a session: its status and its outputs, from its events.

use inspan_flow::{Select, SessionEntry};
use inspan_protocol::{AgentError, Event, Outcome, PauseCause, Prompt, SessionId};
use inspan_view::{Commands, DisplayStatus, ExceededBudget, entry::usage_limit};
use serde_json::{Map, Value};

use crate::{SessionError, Sessions, is_driven};

/// The events that have the result of a session.
const TELLING: &[&str] = &[
    "task:complete",
    "task:reused",
    "phase:failed",
    "flow:ending",
    "flow:resumed",
    "budget:exceeded",
    "harness:complete",
];

/// A session and what it gave so far.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionOutput {
    /// The session.
    pub session: SessionId,
    /// The commands that people are offered.
    pub commands: Commands,
    /// The flow.
    pub flow: String,
    /// Its status.
    pub status: DisplayStatus,
    /// What the flow gives if it declares outputs, else the output of each node by its id.
    pub outputs: Value,
    /// Why it failed.
    pub error: Option<AgentError>,
    /// The questions that an answer can still reach.
    pub questions: Vec<Prompt>,
    /// What holds it up, unless it is a person or a program, and what continues it: words that follow `the session `.
    pub holdup: Option<String>,
    /// Whether a process runs it.
    pub is_driven: bool,
    /// Whether it waits for a process that applies a stored answer or stop.
    pub is_about_to_continue: bool,
    /// The session that continues it.
    pub continued_by: Option<SessionId>,
    /// What it cost in US dollars, if that is known.
    pub cost_usd: Option<f64>,
}

impl SessionOutput {
    /// Whether it ended as it should.
    pub fn is_success(&self) -> bool {
        self.status == DisplayStatus::Ended(Outcome::Success)
    }

    /// Whether it has not ended, and goes on only if somebody resumes it: no process runs it, and no answer is waited for.
    pub fn is_idle(&self) -> bool {
        !self.status.has_ended() && !self.is_driven && self.questions.is_empty()
    }
}

impl Sessions {
    /// The result of a session so far.
    pub async fn output(&self, session: &SessionId) -> Result<SessionOutput, SessionError> {
        let log = self.store().read(session, 1, Select::Names(TELLING)).await?;
        // Read after the log, so that a status that says `ended` never comes without the end's outputs.
        let entry = self.entry(session).await?;
        let log = match entry.digest.outcome {
            Some(_) => self.store().read(session, 1, Select::Names(TELLING)).await?,
            None => log,
        };
        let (mut nodes, mut declared, mut error, mut budgets) = (Map::new(), None, None, Vec::new());
        for envelope in &log {
            match &envelope.event {
                Event::TaskComplete { task_id, result, .. }
                | Event::TaskReused { task_id, result, error: None, .. } => {
                    let inner = envelope.context.task.as_ref().is_some_and(|task| task.parts().count() > 1);
                    if !inner {
                        nodes.insert(task_id.to_string(), (**result).clone());
                    }
                }
                Event::PhaseFailed { error: why, .. } | Event::FlowEnding { error: Some(why), .. } => {
                    error = Some(why.clone());
                }
                Event::FlowResumed { .. } => {
                    error = None;
                    budgets.clear();
                }
                Event::BudgetExceeded { .. } => {
                    if let Some(budget) = ExceededBudget::of(envelope) {
                        budget.report_in(&mut budgets);
                    }
                }
                Event::HarnessComplete { outputs, .. } => declared.clone_from(outputs),
                _ => {}
            }
        }
        let open = self.questions(std::slice::from_ref(&entry)).into_iter();
        Ok(SessionOutput {
            session: session.clone(),
            commands: self.commands.clone(),
            flow: entry.flow.clone(),
            status: DisplayStatus::of(&entry),
            outputs: declared.map_or(Value::Object(nodes), |outputs| (*outputs).clone()),
            error,
            questions: open.filter(|open| !open.is_late).map(|open| open.prompt).collect(),
            holdup: holdup(&entry, &budgets, &self.commands),
            is_driven: is_driven(&entry),
            is_about_to_continue: self.is_about_to_continue(&entry).await?,
            continued_by: entry.continued_by.clone(),
            cost_usd: entry.known_cost(),
        })
    }
}

/// What holds a session up, unless it is a person or a program: a budget that is used up, or a vendor's usage limit.
fn holdup(entry: &SessionEntry, budgets: &[ExceededBudget], commands: &Commands) -> Option<String> {
    let digest = &entry.digest;
    match DisplayStatus::of(entry) {
        DisplayStatus::Paused if digest.paused_by == Some(PauseCause::Budget) => {
            let exceeded: Vec<String> = budgets.iter().map(ExceededBudget::text).collect();
            let exceeded = match exceeded.as_slice() {
                [] => "a budget is used up".to_owned(),
                exceeded => exceeded.join("; "),
            };
            let (command, what) = commands.raise_budget(&entry.session, digest.limit_to_raise.as_deref());
            Some(format!("is paused: {exceeded}. To {what}: `{command}`"))
        }
        DisplayStatus::Waiting => {
            let limit = usage_limit(entry)?;
            if is_driven(entry) {
                return Some(format!("waits for {limit}, and continues by itself"));
            }
            let resume = commands.command("resume", &entry.session, "");
            Some(format!("waits for {limit}, and no process runs it: `{resume}` continues it"))
        }
        _ => None,
    }
}
