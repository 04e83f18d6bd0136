//! Events as lines that are only ever added: for logs, pipes and terminals that cannot redraw. What a line
//! refers to comes from the folded state.

use std::collections::HashMap;

use inspan_protocol::{
    Envelope, Event, LogLevel, NodePath, PromptId, PromptKind, RunId, SteerStrength, WaitingOn,
};

use super::{
    agent::call,
    format,
    line::{Line, Tone, clean, harmless},
    look,
    state::{ConsoleState, Question, label},
};

/// The longest line of an agent's text that is held back for its line break, in bytes.
const LONGEST: usize = 4096;

/// What the lines have to remember between events: text that has not been ended by a line break.
#[derive(Debug, Default)]
pub(crate) struct PlainLog {
    texts: HashMap<RunId, String>,
    /// Which node asked, since an answer comes from outside of it.
    asked: HashMap<PromptId, NodePath>,
}

/// Which events become lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// All that a reader of a log wants to know.
    Everything,
    /// Only what the picture does not show: warnings, refusals, the flow's own log.
    Notes,
    /// Only what agents say.
    Text,
}

impl PlainLog {
    /// The lines of one event; `state` has already folded it.
    pub(crate) fn lines(&mut self, envelope: &Envelope, state: &ConsoleState, detail: Detail) -> Vec<Line> {
        let mut lines = Vec::new();
        if detail == Detail::Text {
            self.text_lines(envelope, state, &mut lines);
            return lines;
        }
        if detail == Detail::Everything {
            self.text_lines(envelope, state, &mut lines);
            if let Event::SessionReply { prompt_id, content, choice } = &envelope.event {
                let asker = self.asked.remove(prompt_id);
                let mut line = head_of(asker.as_ref(), envelope, state, Tone::Accent, "↩");
                line.push(Tone::Plain, &clean(choice.as_deref().unwrap_or(content)));
                lines.push(line);
            }
            if let (Event::SessionPrompt { prompt_id, .. }, Some(task)) =
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
        lines
    }

    /// Text of agents, as soon as a line of it is whole.
    fn text_lines(&mut self, envelope: &Envelope, state: &ConsoleState, lines: &mut Vec<Line>) {
        let mut show = |text: &str| {
            if !text.trim().is_empty() {
                let mut line = head(envelope, state, Tone::Faint, "│");
                line.push(Tone::Faint, harmless(text).trim_end());
                lines.push(line);
            }
        };
        match &envelope.event {
            Event::AgentText { content, delta, run_id } => {
                let held = self.texts.entry(run_id.clone()).or_default();
                if !delta {
                    show(&std::mem::take(held));
                }
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
                text.lines().for_each(&mut show);
                if *truncated {
                    show("(the rest of the output is not shown)");
                }
            }
            Event::AgentToolStart { run_id, .. }
            | Event::AgentUsage { run_id, .. }
            | Event::AgentComplete { run_id, .. } => {
                if let Some(held) = self.texts.remove(run_id) {
                    show(&held);
                }
            }
            _ => {}
        }
    }
}

fn progress(envelope: &Envelope, state: &ConsoleState) -> Option<Line> {
    let new = |tone, sign| head(envelope, state, tone, sign);
    let row = envelope.context.task.as_ref().and_then(|task| state.row(task));
    let line = match &envelope.event {
        Event::HarnessStart { name } => {
            let mut line = new(Tone::Accent, "▸");
            line.push(Tone::Strong, &clean(name)).push(Tone::Plain, " started");
            line.push(Tone::Faint, &format!(" (session {})", envelope.context.session_id));
            line
        }
        Event::PhaseStart { name, phase_number: Some(number) } if name != "Run Flow" => {
            let mut line = new(Tone::Accent, "▸");
            line.push(Tone::Plain, &format!("phase {number}: {}", clean(name)));
            line
        }
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
        Event::TaskComplete { duration_ms, .. } => {
            let mut line = new(Tone::Good, "✔");
            line.push(Tone::Plain, &format!("done in {}", format::millis(*duration_ms)));
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
                line.push(Tone::Plain, ", trying again");
            }
            line
        }
        Event::TaskSkipped { reason, .. } => {
            let mut line = new(Tone::Faint, "↷");
            line.push(Tone::Faint, &format!("skipped: {}", look::skipped(*reason)));
            line
        }
        Event::TaskReused { from, .. } => {
            let mut line = new(Tone::Good, "≡");
            line.push(Tone::Plain, &format!("reused from {}", clean(from)));
            line
        }
        Event::TaskCancelled { .. } => {
            let mut line = new(Tone::Warning, "■");
            line.push(Tone::Plain, "cancelled");
            line
        }
        Event::LoopIterate { from, to, iteration } => {
            let mut line = new(Tone::Accent, "↻");
            let of = state.loop_between(from.as_str(), to.as_str());
            let of = of.map(|edge| format!(" of {}", edge.max_iterations)).unwrap_or_default();
            line.push(Tone::Plain, &format!("{from} sends it back to {to} ({iteration}{of})"));
            line
        }
        Event::AgentToolStart { tool_name, input, .. } => {
            let mut line = new(Tone::Accent, "⚙");
            line.push(Tone::Plain, &call(tool_name, input));
            line.clip(160)
        }
        Event::AgentToolComplete { tool_name, is_error: true, .. } => {
            let mut line = new(Tone::Warning, "⚙");
            line.push(Tone::Plain, &format!("{} failed", clean(tool_name)));
            line
        }
        Event::SessionPrompt { prompt_id, .. } => {
            let question = state.question(prompt_id)?;
            asked(new(Tone::Warning, "?"), question)
        }
        Event::SessionMessage { content, .. } => {
            let mut line = new(Tone::Accent, "✉");
            line.push(Tone::Plain, &clean(content));
            line
        }
        Event::SessionAbort { reason } => {
            let mut line = new(Tone::Warning, "■");
            line.push(Tone::Plain, "stopping");
            if let Some(reason) = reason {
                line.push(Tone::Plain, &format!(": {}", clean(reason)));
            }
            line
        }
        // A question that is waited for stands in the log already.
        Event::FlowWaiting { on: WaitingOn::Limit, until } => {
            let mut line = new(Tone::Warning, "…");
            line.push(Tone::Plain, "waiting for a usage limit");
            if let Some(until) = until {
                line.push(Tone::Plain, &format!(" until {} UTC", format::clock(*until)));
            }
            line
        }
        _ => return None,
    };
    Some(line)
}

/// What stands in the log whatever else is shown.
fn note(envelope: &Envelope, state: &ConsoleState) -> Option<Line> {
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
            (Tone::Warning, "!", format!("{command:?} refused: {}", clean(reason)).to_lowercase())
        }
        Event::ChannelFailed { name, error } => {
            (Tone::Warning, "!", format!("channel {}: {}", clean(name), clean(error)))
        }
        Event::LimitWait { provider, until } => {
            let text = format!(
                "{}'s usage limit is waited out until {} UTC",
                clean(provider),
                format::clock(*until)
            );
            (Tone::Warning, "…", text)
        }
        Event::BudgetExceeded { limit } => (Tone::Bad, "!", format!("budget exceeded: {}", clean(limit))),
        Event::Log { level, message, .. } => match level {
            LogLevel::Debug => return None,
            LogLevel::Info => (Tone::Accent, "i", clean(message)),
            LogLevel::Warn => (Tone::Warning, "!", clean(message)),
            LogLevel::Error => (Tone::Bad, "!", clean(message)),
        },
        _ => return None,
    };
    let mut line = head(envelope, state, tone, sign);
    line.push(Tone::Plain, &text);
    Some(line)
}

fn asked(mut line: Line, question: &Question) -> Line {
    if question.kind == PromptKind::Permission {
        line.push(Tone::Plain, "may it? ");
    }
    line.push(Tone::Strong, &clean(&question.text));
    if let Some(answers) = look::answers(question) {
        line.push(Tone::Faint, &format!(" ({answers})"));
    }
    line
}

/// The time, the node and the sign.
pub(crate) fn head(envelope: &Envelope, state: &ConsoleState, tone: Tone, sign: &str) -> Line {
    head_of(envelope.context.task.as_ref(), envelope, state, tone, sign)
}

fn head_of(
    place: Option<&NodePath>,
    envelope: &Envelope,
    state: &ConsoleState,
    tone: Tone,
    sign: &str,
) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, &format::clock(envelope.timestamp)).push(Tone::Plain, " ");
    line.push(Tone::Strong, place.map_or("", label)).pad_to(9 + state.label_width);
    line.push(Tone::Plain, " ").push(tone, sign).push(Tone::Plain, " ");
    line
}
