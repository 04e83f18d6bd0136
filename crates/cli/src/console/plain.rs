//! Events as lines that are only ever added: for logs, pipes and terminals that cannot redraw. What a line
//! refers to comes from the folded state.

use std::collections::HashMap;

use inspan_protocol::{
    CommandKind, Envelope, Event, LogLevel, NodePath, Prompt, PromptId, RunId, SteerStrength, WaitingOn,
};
use serde_json::Value;

use super::question::{indented, permission, title};
use inspan_view::{Line, SessionView, Tone, call, format, label, look, safe::clean, safe::harmless};

/// The longest line of an agent's text that is held back for its line break, in bytes.
const LONGEST: usize = 4096;

/// What the lines have to remember between events: text that has not been ended by a line break.
#[derive(Debug, Default)]
pub(crate) struct PlainLog {
    /// How much is shown of a tool's arguments.
    arguments: ArgumentsDisplay,
    texts: HashMap<RunId, HeldText>,
    /// The event of the first of the newest lines, if that is text of an earlier event.
    earlier: Option<u64>,
    /// Which node asked, since an answer comes from outside of it.
    asked: HashMap<PromptId, NodePath>,
}

/// Text that no line break has ended.
#[derive(Debug, Default)]
struct HeldText {
    text: String,
    /// The event of its newest piece.
    seq: u64,
}

/// How much is shown of the arguments of a tool that needs permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ArgumentsDisplay {
    /// Some lines, and a count of the others.
    #[default]
    Cut,
    Whole,
}

/// Lines of arguments that are shown where they are cut.
const ARGUMENTS: usize = 20;

/// Which events become lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Everything that a reader of a log needs.
    Everything,
    /// Only what the picture does not show: warnings, refusals, the flow's own log.
    Notes,
    /// Only what agents say.
    Text,
}

impl PlainLog {
    pub(crate) fn new(arguments: ArgumentsDisplay) -> Self {
        Self { arguments, ..Self::default() }
    }

    /// Of a session that continues, whose questions may be answered without being asked again.
    pub(crate) fn after(state: &SessionView) -> Self {
        let asked = |open: &Prompt| Some((open.prompt_id.clone(), open.task.clone()?));
        Self { asked: state.questions().filter_map(asked).collect(), ..Self::default() }
    }

    /// The event that the first of the newest lines is of, if that is an earlier one: its text had no end yet.
    pub(crate) fn earlier(&self) -> Option<u64> {
        self.earlier
    }

    /// The lines of one event; `state` has already folded it.
    pub(crate) fn lines(&mut self, envelope: &Envelope, state: &SessionView, detail: Detail) -> Vec<Line> {
        let mut lines = Vec::new();
        self.earlier = None;
        if detail == Detail::Text {
            self.text_lines(envelope, state, &mut lines);
            return lines;
        }
        if detail == Detail::Everything {
            self.text_lines(envelope, state, &mut lines);
            if let Event::SessionReply { prompt_id, content, choice, is_default } = &envelope.event {
                let asker = self.asked.remove(prompt_id);
                lines.push(
                    head_of(asker.as_ref(), envelope, state, Tone::Accent, "↩")
                        .with(Tone::Plain, &clean(&look::answer(content, choice.as_deref(), *is_default))),
                );
            }
            if let (Event::SessionPrompt(Prompt { prompt_id, .. }), Some(task)) =
                (&envelope.event, &envelope.context.task)
            {
                self.asked.insert(prompt_id.clone(), task.clone());
            }
        }
        let line = note(envelope, state).or_else(|| match detail {
            Detail::Everything => progress(envelope, state),
            Detail::Notes | Detail::Text => None,
        });
        lines.extend(line);
        if detail == Detail::Everything
            && let Event::SessionPrompt(Prompt { prompt_id, .. }) = &envelope.event
            && let Some(question) = state.question(prompt_id)
        {
            self.asked_lines(envelope, state, question, &mut lines);
        }
        // What an agent was not allowed to do is shown, whatever its node's result is.
        for call in &state.newly_denied {
            lines.push(
                head(envelope, state, Tone::Warning, "⚠")
                    .with(Tone::Warning, "denied: ")
                    .with(Tone::Plain, call),
            );
        }
        lines
    }

    /// A question with its further lines, and one for permission with the tool's arguments.
    fn asked_lines(
        &self,
        envelope: &Envelope,
        state: &SessionView,
        question: &Prompt,
        lines: &mut Vec<Line>,
    ) {
        let mut line = head(envelope, state, Tone::Warning, "?");
        line.push(Tone::Strong, &title(question));
        if let Some(answers) = look::answers(question, envelope.timestamp) {
            line.push(Tone::Faint, &format!(" ({answers})"));
        }
        lines.push(line);
        let all = match permission(question) {
            Some(permission) => permission.lines(),
            // Who answers must have seen all that is asked.
            None => question.prompt.lines().skip(1).map(|text| indented(text, Tone::Plain)).collect(),
        };
        let shown = match self.arguments {
            ArgumentsDisplay::Whole => all.len(),
            ArgumentsDisplay::Cut => all.len().min(ARGUMENTS),
        };
        let line = |text: &Line| text.indented(12 + state.path_width);
        lines.extend(all[..shown].iter().map(line));
        if shown < all.len() {
            let mut more = Line::new();
            let id = &envelope.context.session_id;
            more.push(
                Tone::Warning,
                &format!("… {} more lines; `inspan show {id}` has all of it", all.len() - shown),
            );
            lines.push(line(&more));
        }
    }

    /// Text of agents, as soon as a line of it is whole.
    fn text_lines(&mut self, envelope: &Envelope, state: &SessionView, lines: &mut Vec<Line>) {
        let mut show = |text: &str| {
            let is_text = !text.trim().is_empty();
            if is_text {
                lines.push(
                    head(envelope, state, Tone::Faint, "│").with(Tone::Faint, harmless(text).trim_end()),
                );
            }
            is_text
        };
        match &envelope.event {
            Event::AgentText { content, delta, run_id } => {
                let HeldText { text: held, seq } = self.texts.entry(run_id.clone()).or_default();
                if !delta && show(&std::mem::take(held)) {
                    self.earlier = Some(*seq);
                }
                *seq = envelope.seq;
                held.push_str(content);
                if !delta {
                    held.push('\n');
                }
                while let Some(end) = held.find('\n') {
                    show(&held[..end]);
                    held.drain(..=end);
                }
                if held.len() > LONGEST {
                    show(&std::mem::take(held));
                }
            }
            Event::AgentRetract { run_id } => {
                self.texts.remove(run_id);
            }
            Event::ExecOutput { text, truncated, .. } => {
                for line in text.lines() {
                    show(line);
                }
                if *truncated {
                    show("(the rest of the output is not shown)");
                }
            }
            Event::AgentToolStart { run_id, .. }
            | Event::AgentUsage { run_id, .. }
            | Event::AgentComplete { run_id, .. } => {
                if let Some(held) = self.texts.remove(run_id)
                    && show(&held.text)
                {
                    self.earlier = Some(held.seq);
                }
            }
            _ => {}
        }
    }
}

fn progress(envelope: &Envelope, state: &SessionView) -> Option<Line> {
    let new = |tone, sign| head(envelope, state, tone, sign);
    let line = match &envelope.event {
        Event::HarnessStart { name } => new(Tone::Accent, "▸")
            .with(Tone::Strong, &clean(name))
            .with(Tone::Plain, " started")
            .with(Tone::Faint, &format!(" (session {})", envelope.context.session_id)),
        Event::PhaseStart { name, phase_number: Some(number) } if name != "Run Flow" => {
            new(Tone::Accent, "▸").with(Tone::Plain, &format!("phase {number}: {}", clean(name)))
        }
        Event::LoopIterate { from, to, iteration, .. } => {
            let mut line = new(Tone::Accent, "↻");
            let of = state.loop_between(envelope, from.as_str(), to.as_str());
            let most = of.and_then(|edge| edge.cycle.as_ref()).map(|cycle| cycle.max_iterations);
            let of = most.map(|most| format!(" of {most}")).unwrap_or_default();
            line.push(Tone::Plain, &format!("{from} loops back to {to} ({iteration}{of})"));
            if let Some(reason) = state.reason(envelope, from.as_str(), to.as_str()) {
                line.push(Tone::Faint, &format!(": {reason}"));
            }
            line
        }
        Event::AgentToolStart { tool_name, input, .. } => {
            let mut line = new(Tone::Accent, "⚙");
            line.push(Tone::Plain, &call(tool_name, input));
            line.clip(160)
        }
        Event::AgentToolComplete { tool_name, is_error: true, .. } => {
            new(Tone::Warning, "⚙").with(Tone::Plain, &format!("{} failed", clean(tool_name)))
        }
        Event::SessionMessage { content, .. } => new(Tone::Accent, "✉").with(Tone::Plain, &clean(content)),
        Event::SessionAbort { reason } => {
            let mut line = new(Tone::Warning, "■");
            line.push(Tone::Plain, "stopping");
            if let Some(reason) = reason {
                line.push(Tone::Plain, &format!(": {}", clean(reason)));
            }
            line
        }
        Event::FlowEnding { outcome, error } => {
            let mut line = new(Tone::Warning, "■");
            line.push(Tone::Plain, "ending: ");
            look::ending(&mut line, *outcome, error.as_ref());
            line
        }
        // A question that is waited for is in the log already.
        Event::FlowWaiting { on: WaitingOn::Limit, until } => {
            let mut line = new(Tone::Warning, "…");
            line.push(Tone::Plain, "waiting for a usage limit");
            if let Some(until) = until {
                line.push(Tone::Plain, &format!(" until {}", format::until(*until, envelope.timestamp)));
            }
            line
        }
        Event::AgentUsage { .. } => {
            let row = envelope.context.task.as_ref().and_then(|task| state.row(task))?;
            let until = format::clock(row.listens_until()?);
            let mut line = new(Tone::Accent, "…");
            let id = &envelope.context.session_id;
            line.push(Tone::Plain, &format!("listening until {until}; `inspan send {id} TEXT`"));
            line
        }
        _ => return attempt(envelope, state),
    };
    Some(line)
}

/// How an attempt of a node began or ended.
fn attempt(envelope: &Envelope, state: &SessionView) -> Option<Line> {
    let new = |tone, sign| head(envelope, state, tone, sign);
    let row = envelope.context.task.as_ref().and_then(|task| state.row(task));
    let line = match &envelope.event {
        Event::TaskStart { node_type, attempt, path, .. } => {
            let mut line = new(Tone::Accent, "▸");
            line.push(Tone::Plain, "started").push(Tone::Faint, &format!(" ({})", clean(node_type)));
            if path.pass() > 1 {
                line.push(Tone::Plain, &format!(", pass {}", path.pass()));
            }
            if *attempt > 1 {
                line.push(Tone::Plain, &format!(", attempt {attempt}"));
            }
            line
        }
        Event::TaskComplete { duration_ms, result, .. } => {
            let mut line = new(Tone::Good, "✔");
            line.push(Tone::Plain, &format!("done in {}", format::millis(*duration_ms)));
            let failed = result.get("failed").and_then(Value::as_u64);
            if let (Some(failed @ 1..), Some(Value::Array(items))) = (failed, result.get("results")) {
                line.push(Tone::Warning, &format!(" · {failed} of {} items failed", items.len()));
            }
            if let Some(spent) = row.and_then(|row| row.agent.as_ref()).and_then(|agent| agent.spent.text()) {
                line.push(Tone::Faint, &format!(" · {spent}"));
            }
            line
        }
        Event::TaskFailed { error, will_retry, .. } => {
            let mut line = if *will_retry { new(Tone::Warning, "✘") } else { new(Tone::Bad, "✘") };
            line.push(Tone::Plain, "failed: ");
            look::error(&mut line, error);
            if *will_retry {
                let due = row.and_then(|row| row.retry.map(|(due, of)| (due, row.failures + 1, of)));
                line.push(
                    Tone::Plain,
                    &match due {
                        Some((due, next, of)) => {
                            let wait = format::duration(due.since(envelope.timestamp));
                            format!("; attempt {next}/{of} in {wait}")
                        }
                        None => "; trying again".to_owned(),
                    },
                );
            }
            line
        }
        Event::TaskSkipped { reason, .. } => {
            new(Tone::Faint, "↷").with(Tone::Faint, &format!("skipped: {}", look::skipped(*reason)))
        }
        Event::TaskReused { from, error, .. } => {
            let own = from.strip_prefix(envelope.context.session_id.as_str());
            let text = match own.is_some_and(|rest| rest.starts_with('/')) {
                true => "marked as done by a person".to_owned(),
                false => format!("reused from {}", clean(from)),
            };
            let mut line = new(Tone::Good, "≡").with(Tone::Plain, &text);
            if let Some(error) = error {
                line.push(Tone::Plain, ", where it failed: ");
                look::error(&mut line, error);
            }
            line
        }
        Event::TaskAgent { agent, reason, error, .. } => {
            let mut line = new(Tone::Warning, "⇄");
            line.push(Tone::Plain, &look::agent_chosen(agent, *reason));
            if let Some(error) = error {
                line.push(Tone::Plain, ": ");
                look::error(&mut line, error);
            }
            line
        }
        Event::TaskInterrupted { attempt, never_began, stopped, .. } => {
            let why = match (never_began, stopped) {
                (true, _) => "did not begin: the machine could not run it",
                (false, true) => "was interrupted: its process was stopped",
                (false, false) => "was interrupted: its process is gone",
            };
            new(Tone::Warning, "■").with(Tone::Plain, &format!("attempt {attempt} {why}"))
        }
        Event::TaskCancelled { reason, .. } => {
            let mut line = new(Tone::Warning, "■");
            line.push(Tone::Plain, "cancelled");
            if let Some(reason) = reason {
                line.push(Tone::Plain, &format!(": {}", look::cancelled(*reason)));
            }
            line
        }
        // `progress`, `note` and `text_lines` show some of these. A new event has to be decided on here.
        Event::HarnessStart { .. }
        | Event::HarnessComplete { .. }
        | Event::PhaseStart { .. }
        | Event::PhaseComplete { .. }
        | Event::PhaseFailed { .. }
        | Event::EdgeFired { .. }
        | Event::EdgeSkipped { .. }
        | Event::LoopIterate { .. }
        | Event::AgentStart { .. }
        | Event::AgentListen { .. }
        | Event::AgentTurn { .. }
        | Event::AgentSteer { .. }
        | Event::AgentSession { .. }
        | Event::AgentText { .. }
        | Event::AgentThinking { .. }
        | Event::AgentRetract { .. }
        | Event::AgentToolStart { .. }
        | Event::AgentToolComplete { .. }
        | Event::AgentSpent { .. }
        | Event::AgentUsage { .. }
        | Event::AgentWarning { .. }
        | Event::AgentComplete { .. }
        | Event::ExecOutput { .. }
        | Event::SessionMessage { .. }
        | Event::SessionPrompt(_)
        | Event::SessionReply { .. }
        | Event::SessionClose { .. }
        | Event::SessionAbort { .. }
        | Event::SessionPause { .. }
        | Event::SessionRejected { .. }
        | Event::FlowPaused { .. }
        | Event::FlowResumed { .. }
        | Event::FlowWaiting { .. }
        | Event::FlowEnding { .. }
        | Event::BudgetSpent { .. }
        | Event::BudgetExceeded { .. }
        | Event::BudgetCarried { .. }
        | Event::LimitWait { .. }
        | Event::ChannelRegistered { .. }
        | Event::ChannelStarted { .. }
        | Event::ChannelStopped { .. }
        | Event::ChannelUnregistered { .. }
        | Event::ChannelFailed { .. }
        | Event::Log { .. }
        | Event::FrameItems { .. }
        | Event::FrameStart { .. }
        | Event::FrameEnding { .. }
        | Event::FrameComplete { .. }
        | Event::FrameFailed { .. }
        | Event::FrameCancelled { .. }
        | Event::Unknown(_) => return None,
    };
    Some(line)
}

/// What is in the log whatever else is shown.
fn note(envelope: &Envelope, state: &SessionView) -> Option<Line> {
    let (tone, sign, text) = match &envelope.event {
        Event::AgentWarning { code, message, .. } => {
            (Tone::Warning, "!", format!("{} [{}]", clean(message), clean(code)))
        }
        Event::AgentSteer { content, strength, .. } => {
            let what = match strength {
                SteerStrength::Native => "joins the turn",
                _ => "interrupts the turn",
            };
            (Tone::Accent, "»", format!("a message {what}: {}", clean(content)))
        }
        Event::SessionRejected { command, reason } => {
            (Tone::Warning, "!", format!("{} refused: {}", word(*command), clean(reason)))
        }
        Event::ChannelFailed { name, error } => {
            (Tone::Warning, "!", format!("channel {}: {}", clean(name), clean(error)))
        }
        Event::LimitWait { provider, until, .. } => {
            let until = format::until(*until, envelope.timestamp);
            (Tone::Warning, "…", format!("usage limit of {}; waiting until {until}", clean(provider)))
        }
        Event::BudgetExceeded { limit, frame, .. } => {
            let of = frame.map(|index| format!("[{index}]: ")).unwrap_or_default();
            (Tone::Bad, "!", format!("{of}budget exceeded: {}", clean(limit)))
        }
        Event::Log { level, message, .. } => match level {
            LogLevel::Debug => return None,
            LogLevel::Info => (Tone::Accent, "i", clean(message)),
            LogLevel::Warn => (Tone::Warning, "!", clean(message)),
            LogLevel::Error => (Tone::Bad, "!", clean(message)),
        },
        _ => return None,
    };
    Some(head(envelope, state, tone, sign).with(Tone::Plain, &text))
}

/// The command as people write it.
fn word(command: CommandKind) -> &'static str {
    match command {
        CommandKind::Send | CommandKind::SendTo | CommandKind::SendToRun => "message",
        CommandKind::Reply | CommandKind::TakeDefault => "answer",
        CommandKind::Close => "close",
        CommandKind::Pause => "pause",
        CommandKind::Abort => "stop",
    }
}

/// The time, the node and the sign.
pub(crate) fn head(envelope: &Envelope, state: &SessionView, tone: Tone, sign: &str) -> Line {
    head_of(envelope.context.task.as_ref(), envelope, state, tone, sign)
}

fn head_of(
    place: Option<&NodePath>,
    envelope: &Envelope,
    state: &SessionView,
    tone: Tone,
    sign: &str,
) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, &format::clock(envelope.timestamp)).push(Tone::Plain, " ");
    line.push(Tone::Strong, place.map_or("", label)).pad_to(9 + state.path_width);
    line.push(Tone::Plain, " ").push(tone, sign).push(Tone::Plain, " ");
    line
}
