//! When each node worked and when it waited: a bar for each attempt, with its turns and tool calls, and the chain of
//! nodes that decided how long the session took. It is a fold of the events and has no clock.

mod chain;
mod gaps;

use std::collections::HashMap;

use inspan_protocol::{
    Envelope, Event, NodePath, NodeStatus, Prompt, PromptId, PromptKind, RunId, Timestamp,
};
use schemars::JsonSchema;
use serde::Serialize;

use self::chain::Chain;
use crate::{DisplayStatus, asks_itself, idle_status, label};

/// When everything happened.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// When the session began.
    pub from: Option<Timestamp>,
    /// The newest event, or the end of the session.
    pub to: Option<Timestamp>,
    /// How long the session took, once it has ended: the same number that a list and `show` give.
    pub duration_ms: Option<u64>,
    /// The nodes: first those of the flow, then those in frames, each by the time it began.
    pub rows: Vec<TimelineRow>,
    /// Rows that a limit left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: usize,
    /// The times when everything waited, in their order.
    pub gaps: Vec<Gap>,
    /// The paths of the nodes that decided how long it took, in the order in which they ran.
    pub critical_path: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRow {
    /// Its path without the pass at the end.
    pub path: String,
    /// Its attempts over all passes.
    pub bars: Vec<Bar>,
    /// When it waited.
    pub waits: Vec<Wait>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bar {
    /// Which attempt, counting from 1; 0 for a node that was skipped or reused.
    pub attempt: u32,
    /// Which pass of its loop, counting from 1.
    pub pass: u32,
    /// When it began.
    pub from: Timestamp,
    /// When it ended; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// Its state, or how it ended.
    pub status: BarStatus,
    /// The turns of its agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Span>,
    /// The tool calls of its agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpan>,
}

/// The state of an attempt, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BarStatus {
    /// It runs.
    Running,
    /// It gave an output.
    Complete,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its process was lost, or a pause interrupted it.
    Interrupted,
    /// A usage limit ended it.
    Limited,
    /// Another agent took over.
    PassedOn,
    /// The node did not run.
    Skipped,
    /// The output was taken from earlier work.
    Reused,
}

/// A time from a moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Span {
    /// When it began.
    pub from: Timestamp,
    /// When it ended; absent if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// A tool call.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ToolSpan {
    /// The tool.
    pub name: String,
    /// When it was called.
    pub from: Timestamp,
    /// When it answered; absent if it has not.
    pub to: Option<Timestamp>,
    /// Whether it succeeded, once that is known.
    pub ok: Option<bool>,
}

/// A time in which a node waited.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Wait {
    /// What for.
    pub kind: WaitKind,
    /// Since when.
    pub from: Timestamp,
    /// Until when; absent while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// The question, the error or the limit, in one line.
    pub text: String,
}

/// What a node or the session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    /// A person.
    Person,
    /// A usage limit of a vendor.
    Limit,
    /// The next attempt after a failure.
    Retry,
    /// The session is paused.
    Paused,
    /// No process ran the session.
    Stopped,
    /// Nothing ran, and no event says why: a timer, or the time between two nodes.
    Idle,
}

/// A time in which everything waited.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Gap {
    /// Since when.
    pub from: Timestamp,
    /// Until when.
    pub to: Timestamp,
    /// What for.
    pub kind: WaitKind,
}

/// The timeline as events come in.
#[derive(Clone, Debug, Default)]
pub struct TimelineFold {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    duration_ms: Option<u64>,
    rows: Vec<TimelineRow>,
    by_path: HashMap<String, usize>,
    /// The row of each agent run that has not ended.
    runs: HashMap<RunId, usize>,
    /// Open tool calls: run, the vendor's id, and the place of the call in its bar.
    calls: Vec<(RunId, String, usize)>,
    /// Open questions: the row, if a node asks, and the place of the wait in it.
    questions: HashMap<PromptId, (usize, usize)>,
    /// Times in which no process ran the session, or it was paused.
    idle: Vec<Wait>,
    chain: Chain,
}

impl TimelineFold {
    /// Takes the next event of the log.
    pub fn apply(&mut self, envelope: &Envelope) {
        let at = envelope.timestamp;
        self.end_idle_gap(envelope);
        self.from.get_or_insert(at);
        // What comes after the end is not of the session's time.
        if self.duration_ms.is_none() {
            self.to = Some(at);
        }
        self.chain.apply(envelope);
        match (&envelope.event, &envelope.context.task) {
            (Event::HarnessStart { .. }, _) => self.from = Some(at),
            (Event::HarnessComplete { duration_ms, .. }, _) => {
                self.duration_ms = Some(*duration_ms);
                let waits = self.rows.iter_mut().flat_map(|row| &mut row.waits);
                for wait in waits.filter(|wait| wait.to.is_none()) {
                    wait.to = Some(at);
                }
            }
            (Event::FlowPaused { reason, .. }, _) => {
                let text = reason.clone().unwrap_or_default();
                self.idle.push(Wait { kind: WaitKind::Paused, from: at, to: None, text });
            }
            (Event::FlowResumed { .. }, _) => self.close_all(at),
            (Event::SessionReply { prompt_id, .. }, _) => self.end_question(prompt_id, at),
            (event, Some(path)) => self.apply_to_node(event, path, at),
            (_, None) => {}
        }
    }

    /// A session that no process ran begins again with `flow:resumed`: the time since the event before is a rest.
    fn end_idle_gap(&mut self, envelope: &Envelope) {
        let at = envelope.timestamp;
        let Event::FlowResumed { idle_since, .. } = envelope.event else { return };
        match self.idle.last_mut().filter(|rest| rest.to.is_none()) {
            Some(rest) => rest.to = Some(at),
            None => {
                let from = idle_since.or(self.to).unwrap_or(at);
                let text = "no process ran the session".to_owned();
                self.idle.push(Wait { kind: WaitKind::Stopped, from, to: Some(at), text });
            }
        }
    }

    fn apply_to_node(&mut self, event: &Event, path: &NodePath, at: Timestamp) {
        match event {
            Event::TaskStart { attempt, .. } => {
                let row = self.row(path);
                self.end_waits(row, &[WaitKind::Retry, WaitKind::Limit], at);
                self.rows[row].bars.push(Bar::new(*attempt, path.pass(), at, BarStatus::Running));
            }
            Event::TaskComplete { .. } => self.end_bar(path, BarStatus::Complete, at),
            Event::TaskCancelled { .. } => self.end_bar(path, BarStatus::Cancelled, at),
            Event::TaskInterrupted { .. } => self.end_bar(path, BarStatus::Interrupted, at),
            Event::TaskFailed { error, will_retry, .. } => {
                self.end_bar(path, BarStatus::Failed, at);
                if *will_retry {
                    self.wait(path, WaitKind::Retry, first_line(&error.message), at);
                }
            }
            Event::TaskAgent { agent, after, .. } => {
                if after.is_some() {
                    self.end_bar(path, BarStatus::PassedOn, at);
                    self.wait(path, WaitKind::Retry, format!("the agent {agent} takes over"), at);
                }
            }
            Event::LimitWait { provider, until, .. } => {
                self.end_bar(path, BarStatus::Limited, at);
                self.wait(path, WaitKind::Limit, format!("a usage limit of {provider}, until {until}"), at);
            }
            Event::TaskSkipped { .. } => self.mark(path, BarStatus::Skipped, at),
            Event::TaskReused { .. } => self.mark(path, BarStatus::Reused, at),
            Event::SessionPrompt(prompt) => {
                let text = match prompt.kind {
                    PromptKind::Permission => format!("permission: {}", first_line(&prompt.prompt)),
                    _ => first_line(&prompt.prompt),
                };
                let (row, wait) = self.wait(path, WaitKind::Person, text, at);
                self.questions.insert(prompt.prompt_id.clone(), (row, wait));
            }
            event => self.apply_agent(event, path, at),
        }
    }

    fn apply_agent(&mut self, event: &Event, path: &NodePath, at: Timestamp) {
        match event {
            Event::AgentStart { run_id, listens, .. } => {
                let row = self.row(path);
                self.runs.insert(run_id.clone(), row);
                let turn = (!listens).then_some(Span { from: at, to: None });
                self.with_bar(row, |bar| bar.turns.extend(turn));
            }
            Event::AgentTurn { run_id, .. } => self.of_run(run_id, |bar| {
                end_last(&mut bar.turns, at);
                bar.turns.push(Span { from: at, to: None });
            }),
            Event::AgentUsage { run_id, .. } => self.of_run(run_id, |bar| end_last(&mut bar.turns, at)),
            Event::AgentToolStart { run_id, tool_name, tool_use_id, .. } => {
                let call = ToolSpan { name: tool_name.clone(), from: at, to: None, ok: None };
                let Some(bar) = self.bar_of_run(run_id) else { return };
                bar.tools.push(call);
                let place = bar.tools.len() - 1;
                self.calls.push((run_id.clone(), tool_use_id.clone(), place));
            }
            Event::AgentToolComplete { run_id, tool_use_id, is_error, .. } => {
                let open = self.calls.iter().position(|(run, id, _)| run == run_id && id == tool_use_id);
                let Some(open) = open else { return };
                let (_, _, place) = self.calls.swap_remove(open);
                self.of_run(run_id, |bar| {
                    if let Some(call) = bar.tools.get_mut(place) {
                        (call.to, call.ok) = (Some(at), Some(!is_error));
                    }
                });
            }
            Event::AgentComplete { run_id, .. } => {
                self.of_run(run_id, |bar| end_last(&mut bar.turns, at));
                self.calls.retain(|(run, _, _)| run != run_id);
                self.runs.remove(run_id);
            }
            _ => {}
        }
    }

    /// The row of a node; a new one if it has none.
    fn row(&mut self, path: &NodePath) -> usize {
        let label = label(path);
        if let Some(row) = self.by_path.get(label) {
            return *row;
        }
        self.rows.push(TimelineRow { path: label.to_owned(), ..TimelineRow::default() });
        self.by_path.insert(label.to_owned(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    fn with_bar(&mut self, row: usize, change: impl FnOnce(&mut Bar)) {
        if let Some(bar) = self.rows[row].bars.last_mut() {
            change(bar);
        }
    }

    fn bar_of_run(&mut self, run: &RunId) -> Option<&mut Bar> {
        let row = *self.runs.get(run)?;
        self.rows[row].bars.last_mut()
    }

    fn of_run(&mut self, run: &RunId, change: impl FnOnce(&mut Bar)) {
        if let Some(bar) = self.bar_of_run(run) {
            change(bar);
        }
    }

    fn end_bar(&mut self, path: &NodePath, status: BarStatus, at: Timestamp) {
        let row = self.row(path);
        self.end_waits(row, &[WaitKind::Person], at);
        self.with_bar(row, |bar| bar.end(status, at));
    }

    fn mark(&mut self, path: &NodePath, status: BarStatus, at: Timestamp) {
        let row = self.row(path);
        let bar = Bar { to: Some(at), ..Bar::new(0, path.pass(), at, status) };
        self.rows[row].bars.push(bar);
    }

    fn wait(&mut self, path: &NodePath, kind: WaitKind, text: String, at: Timestamp) -> (usize, usize) {
        let row = self.row(path);
        let waits = &mut self.rows[row].waits;
        waits.push(Wait { kind, from: at, to: None, text });
        (row, waits.len() - 1)
    }

    fn end_waits(&mut self, row: usize, kinds: &[WaitKind], at: Timestamp) {
        for wait in self.rows[row].waits.iter_mut().filter(|wait| wait.to.is_none()) {
            if kinds.contains(&wait.kind) {
                wait.to = Some(at);
            }
        }
    }

    fn end_question(&mut self, prompt: &PromptId, at: Timestamp) {
        if let Some((row, wait)) = self.questions.remove(prompt) {
            self.rows[row].waits[wait].to.get_or_insert(at);
        }
    }

    /// A new process closes what the one before left open: that ended when the log did.
    fn close_all(&mut self, at: Timestamp) {
        let ended = self.idle.last().map_or(at, |rest| rest.from);
        for row in &mut self.rows {
            for bar in row.bars.iter_mut().filter(|bar| bar.to.is_none()) {
                bar.end(BarStatus::Interrupted, ended);
            }
        }
        self.runs.clear();
        self.calls.clear();
    }

    /// The timeline so far, with at most `most` rows. Only nodes of the frame whose paths begin with `within` have
    /// rows, those of the whole session if it is empty.
    pub fn timeline(&self, within: &str, most: usize) -> Timeline {
        let mut rows: Vec<&TimelineRow> =
            self.rows.iter().filter(|row| row.path.starts_with(within)).collect();
        // The order of the rows is that of their first events, and the sort is stable.
        rows.sort_by_key(|row| row.path.contains('/'));
        let omitted = rows.len().saturating_sub(most);
        rows.truncate(most);
        Timeline {
            from: self.from,
            to: self.to,
            duration_ms: self.duration_ms,
            rows: rows.into_iter().cloned().collect(),
            omitted,
            gaps: gaps::gaps(self),
            critical_path: self.chain.path(),
        }
    }
}

impl Timeline {
    /// What runs by the events does not in a session with this status, unless it waits for one of the open questions: it
    /// ended with the newest one.
    #[must_use]
    pub fn when_idle(mut self, session: DisplayStatus, open: &[Prompt]) -> Self {
        if let Some(ended) =
            self.to.filter(|_| idle_status(NodeStatus::Running, session) != NodeStatus::Running)
        {
            let rows = self.rows.iter_mut().filter(|row| !asks_itself(open, &row.path));
            let bars = rows.flat_map(|row| &mut row.bars);
            bars.filter(|bar| bar.to.is_none()).for_each(|bar| bar.end(BarStatus::Interrupted, ended));
        }
        self
    }
}

impl Bar {
    fn new(attempt: u32, pass: u32, from: Timestamp, status: BarStatus) -> Self {
        Self { attempt, pass, from, to: None, status, turns: Vec::new(), tools: Vec::new() }
    }

    fn end(&mut self, status: BarStatus, at: Timestamp) {
        (self.status, self.to) = (status, Some(at));
        // The end of a run whose process was gone is stored by the next process, when it begins.
        let ends = self
            .turns
            .iter_mut()
            .map(|turn| &mut turn.to)
            .chain(self.tools.iter_mut().map(|call| &mut call.to));
        for end in ends {
            *end = Some(end.map_or(at, |end| end.min(at)));
        }
    }
}

fn end_last(spans: &mut [Span], at: Timestamp) {
    if let Some(last) = spans.last_mut() {
        last.to.get_or_insert(at);
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{envelope, flow_log, lines, stored_log};

    fn fold(log: &[Envelope]) -> TimelineFold {
        let mut fold = TimelineFold::default();
        log.iter().for_each(|envelope| fold.apply(envelope));
        fold
    }

    /// The moment of a second after noon.
    fn at(second: u64) -> Timestamp {
        Timestamp::from_millis(1_767_787_200_000) + Duration::from_secs(second)
    }

    /// A log of events at seconds after noon.
    fn log(events: &[(u64, &str, Value)]) -> Vec<Envelope> {
        let numbered = (1..).zip(events);
        numbered.map(|(seq, (second, task, event))| envelope(seq, at(*second), task, event)).collect()
    }

    fn start(id: &str, path: &str) -> Value {
        json!({ "type": "task:start", "taskId": id, "nodeType": "exec", "attempt": 1, "path": path })
    }

    fn complete(id: &str) -> Value {
        json!({ "type": "task:complete", "taskId": id, "result": {}, "durationMs": 0 })
    }

    fn fired(from: &str, to: &str) -> Value {
        json!({ "type": "edge:fired", "from": from, "to": to })
    }

    #[test]
    fn recorded_sessions_have_bars_waits_gaps_and_a_critical_path() {
        let flows =
            ["retry", "foreach_limits", "human_input", "review_loop", "agents_fallback", "frame_timeout"];
        let flows = flows.map(|name| (name, flow_log(name)));
        let stored = ["crashed", "failed", "finished", "waiting"].map(|name| (name, stored_log(name)));
        for (name, log) in flows.into_iter().chain(stored) {
            insta::assert_snapshot!(name, lines(&fold(&log).timeline("", 100)));
        }
    }

    #[test]
    fn what_a_crash_cut_short_ends_with_the_last_event_before_it() {
        let run = json!("a.1");
        let usage = inspan_protocol::Usage::default();
        let log = log(&[
            (0, "", json!({ "type": "harness:start", "name": "f" })),
            (0, "a", start("a", "a")),
            (
                0,
                "a",
                json!({ "type": "agent:start", "agentName": "a", "runId": run, "provider": "x", "turn": 1 }),
            ),
            (1, "a", json!({ "type": "agent:turn", "runId": run, "turn": 1 })),
            (4, "a", json!({ "type": "agent:text", "runId": run, "content": "so far", "delta": false })),
            (60, "", json!({ "type": "channel:registered", "name": "console" })),
            (
                60,
                "a",
                json!({ "type": "agent:complete", "agentName": "a", "success": false, "runId": run,
                "stopReason": "aborted", "usage": usage, "durationMs": 0 }),
            ),
            (
                60,
                "",
                json!({ "type": "flow:resumed", "nodeIds": ["a"], "message": "continue",
                "idleSince": "2026-01-07T12:00:04.000Z" }),
            ),
            (60, "a", start("a", "a")),
            (62, "a", complete("a")),
        ]);
        let timeline = fold(&log).timeline("", 100);
        let bar = &timeline.rows[0].bars[0];
        assert_eq!((bar.to, bar.turns.last().unwrap().to), (Some(at(4)), Some(at(4))));
        assert_eq!(timeline.gaps, [Gap { from: at(4), to: at(60), kind: WaitKind::Stopped }]);
    }

    #[test]
    fn nothing_runs_in_a_session_whose_process_is_gone() {
        let log = log(&[
            (0, "", json!({ "type": "harness:start", "name": "f" })),
            (0, "a", start("a", "a")),
            (3, "b", start("b", "b")),
        ]);
        let bar = |session| {
            let bar = &fold(&log).timeline("", 100).when_idle(session, &[]).rows[0].bars[0];
            (bar.status, bar.to)
        };
        assert_eq!(bar(DisplayStatus::Running), (BarStatus::Running, None));
        let cut = (BarStatus::Interrupted, Some(log[2].timestamp));
        let statuses = [DisplayStatus::Interrupted, DisplayStatus::Continued, DisplayStatus::Paused];
        assert_eq!(statuses.map(bar), [cut; 3]);
        let asked =
            Prompt { task: Some(NodePath::new("a")), ..Prompt::new("a.1", PromptKind::Input, "Go on?") };
        let timeline = fold(&log).timeline("", 100).when_idle(DisplayStatus::Interrupted, &[asked]);
        let bars = timeline.rows.iter().map(|row| row.bars[0].status);
        assert_eq!(bars.collect::<Vec<_>>(), [BarStatus::Running, BarStatus::Interrupted]);
    }

    #[test]
    fn nothing_waits_in_a_session_that_has_ended() {
        let error = json!({ "_tag": "RequestError", "code": "PROCESS", "message": "no", "retryable": true });
        let end =
            json!({ "type": "harness:complete", "success": false, "outcome": "failed", "durationMs": 3000 });
        let log = log(&[
            (0, "", json!({ "type": "harness:start", "name": "f" })),
            (0, "a", start("a", "a")),
            (1, "a", json!({ "type": "task:failed", "taskId": "a", "error": error, "willRetry": true })),
            (3, "", end),
        ]);
        let wait = &fold(&log).timeline("", 100).rows[0].waits[0];
        assert_eq!((wait.kind, wait.to), (WaitKind::Retry, Some(log[3].timestamp)));
    }

    #[test]
    fn the_critical_path_follows_what_each_node_began_after() {
        let failed = json!({ "type": "task:failed", "taskId": "b",
            "error": { "_tag": "RequestError", "code": "PROCESS", "message": "exit 1\nmore", "retryable": true }, "willRetry": true });
        let log = log(&[
            (0, "", json!({ "type": "harness:start", "name": "f" })),
            (0, "a", start("a", "a")),
            (0, "b", start("b", "b")),
            (2, "a", complete("a")),
            (2, "a", fired("a", "each")),
            (3, "b", failed),
            (60, "b", start("b", "b")),
            (62, "b", complete("b")),
            (62, "b", fired("b", "each")),
            (62, "each", start("each", "each")),
            (62, "each", json!({ "type": "frame:start", "taskId": "each", "index": 0 })),
            (62, "each[0]/fix", start("fix", "each[0]/fix")),
            (70, "each[0]/fix", complete("fix")),
            (70, "each[0]/fix", fired("fix", "test")),
            (70, "each[0]/test", start("test", "each[0]/test")),
            (71, "each[0]/test", complete("test")),
            (
                71,
                "each",
                json!({ "type": "frame:complete", "taskId": "each", "index": 0, "outputs": {}, "durationMs": 9 }),
            ),
            (71, "each", json!({ "type": "frame:start", "taskId": "each", "index": 1 })),
            (71, "each[1]/fix", start("fix", "each[1]/fix")),
            (75, "each[1]/fix", complete("fix")),
            (75, "each", complete("each")),
            (75, "each", fired("each", "ask")),
            (75, "ask", start("ask", "ask")),
            (
                75,
                "ask",
                json!({ "type": "session:prompt", "promptId": "p", "prompt": "Ship?", "kind": "input" }),
            ),
            (76, "", json!({ "type": "flow:paused", "nodeIds": ["ask"], "reason": "night" })),
            (100, "", json!({ "type": "flow:resumed", "nodeIds": ["ask"], "message": "go" })),
            (100, "ask", start("ask", "ask")),
            (130, "", json!({ "type": "session:reply", "promptId": "p", "content": "yes" })),
            (131, "ask", complete("ask")),
        ]);
        insta::assert_snapshot!("critical_path", lines(&fold(&log).timeline("", 100)));
        let inner = fold(&log).timeline("each[0]/", 1);
        let paths: Vec<&str> = inner.rows.iter().map(|row| row.path.as_str()).collect();
        assert_eq!((paths, inner.omitted), (vec!["each[0]/fix"], 1));
    }
}
