//! Events as lines for people: those of the console where it has one, else the name and the fields of the event.

use inspan_engine::Filter;
use inspan_protocol::{ContextUse, Envelope, Event};
use serde_json::Value;

use super::EventOutput;
use crate::{
    console::{ArgumentsDisplay, Detail, PlainLog, head},
    terminal::{self, TerminalReader},
};
use inspan_view::{Colour, Line, SessionView, Tone, format, look, safe::clean};

/// The longest line of an event that is shown as it is, in columns.
const WIDEST: usize = 160;

/// A log as lines.
pub(super) struct Lines {
    state: SessionView,
    plain: PlainLog,
    filter: Filter,
    /// Whether all is wanted, or only some.
    is_chosen: bool,
    from: u64,
    colour: Colour,
}

impl Lines {
    pub(super) fn new(state: SessionView, filter: Filter, from: u64, colour: Colour) -> Self {
        let is_chosen = filter != Filter::all();
        let plain = PlainLog::new(ArgumentsDisplay::Whole);
        Self { state, plain, filter, is_chosen, from, colour }
    }

    fn lines(&mut self, envelope: &Envelope) -> Vec<Line> {
        let wanted = self.filter.matches(envelope);
        let detail = if wanted || matches!(envelope.event, Event::SessionPrompt { .. }) {
            Detail::Everything
        } else {
            // What an agent said comes out at the latest with the event that ends it.
            Detail::Text
        };
        let is_text = matches!(envelope.event, Event::AgentText { .. });
        // A line that is not taken here is not printed later.
        let is_left_out = !wanted && (is_text || matches!(envelope.event, Event::ExecOutput { .. }));
        let mut lines =
            if is_left_out { Vec::new() } else { self.plain.lines(envelope, &self.state, detail) };
        if !wanted && detail == Detail::Everything {
            return Vec::new();
        }
        // The console prints the last line of a text with these, and nothing of them.
        let ends_text = matches!(envelope.event, Event::AgentUsage { .. } | Event::AgentComplete { .. });
        if wanted && !is_text && (ends_text || lines.is_empty()) {
            lines.extend(self.other(envelope));
        }
        lines
    }

    /// An event for which the console has no line.
    fn other(&self, envelope: &Envelope) -> Option<Line> {
        let new = |tone, sign| head(envelope, &self.state, tone, sign);
        let because = |reason: &Option<String>| {
            reason.as_ref().map(|why| format!(": {}", clean(why))).unwrap_or_default()
        };
        let line = match &envelope.event {
            Event::HarnessComplete { duration_ms, .. } => {
                let ended = self.state.ended.as_ref()?;
                let (tone, sign, word) = look::outcome(ended);
                new(tone, sign)
                    .with(Tone::Strong, &clean(&self.state.flow))
                    .with(Tone::Plain, &format!(" {word} after {}", format::millis(*duration_ms)))
            }
            Event::SessionPause { reason, .. } => {
                new(Tone::Warning, "‖").with(Tone::Plain, &format!("pausing{}", because(reason)))
            }
            Event::FlowPaused { reason, .. } => {
                new(Tone::Warning, "‖").with(Tone::Plain, &format!("paused{}", because(reason)))
            }
            Event::FlowResumed { message, node_ids, .. } => {
                let mut line = new(Tone::Accent, "▸");
                line.push(Tone::Plain, "resumed");
                if !node_ids.is_empty() {
                    let nodes = node_ids.iter().map(|path| path.as_str()).collect::<Vec<_>>().join(", ");
                    line.push(Tone::Faint, &format!(", message to {nodes}: {}", clean(message)));
                }
                line
            }
            Event::PhaseFailed { error, .. } => {
                let mut line = new(Tone::Bad, "✘");
                look::error(&mut line, error);
                line
            }
            Event::EdgeFired { to, .. } => self.faint(envelope, "→", &format!("edge to {to} fired")),
            Event::EdgeSkipped { to, .. } => self.faint(envelope, "⇢", &format!("edge to {to} did not fire")),
            Event::AgentStart { provider, model, turn, .. } => {
                let model = model.as_ref().map(|model| format!(" {}", clean(model))).unwrap_or_default();
                let turn = if *turn > 1 { format!(", turn {turn}") } else { String::new() };
                self.faint(envelope, "·", &format!("agent started ({}{model}{turn})", clean(provider)))
            }
            Event::AgentUsage { usage, cost_usd, context, .. } => {
                let cost = cost_usd.map_or_else(|| "cost unknown".to_owned(), format::dollars);
                let context =
                    context.as_ref().map(|context| format!(" · {}", filled(context))).unwrap_or_default();
                self.faint(
                    envelope,
                    "·",
                    &format!("{} tokens · {cost}{context}", format::count(usage.total())),
                )
            }
            Event::AgentToolComplete { tool_name, .. } => {
                self.faint(envelope, "·", &format!("{} completed", clean(tool_name)))
            }
            Event::AgentComplete { duration_ms, .. } => {
                self.faint(envelope, "·", &format!("agent ended after {}", format::millis(*duration_ms)))
            }
            // Thinking comes in scraps; who wants it asks for it.
            Event::AgentThinking { .. } if !self.is_chosen => return None,
            event => {
                let mut line = new(Tone::Faint, "·");
                line.push(Tone::Faint, event.name()).push(Tone::Faint, &carried(event));
                line.clip(WIDEST)
            }
        };
        Some(line)
    }
}

impl Lines {
    /// A line of lesser weight.
    fn faint(&self, envelope: &Envelope, sign: &str, text: &str) -> Line {
        head(envelope, &self.state, Tone::Faint, sign).with(Tone::Faint, text)
    }
}

impl EventOutput for Lines {
    fn print(&mut self, envelope: &Envelope) -> TerminalReader {
        self.state.apply(envelope);
        let lines = self.lines(envelope);
        let mut earlier = self.plain.earlier();
        let mut text = String::new();
        for line in lines {
            let seq = earlier.take().unwrap_or(envelope.seq);
            if seq < self.from {
                continue;
            }
            let mut numbered = Line::new();
            numbered.push(Tone::Faint, &format!("{seq:>5} "));
            text.push_str(&numbered.render(self.colour));
            if self.colour == Colour::Off {
                text.push(' ');
            }
            text.push_str(&line.render(self.colour));
            text.push('\n');
        }
        if text.is_empty() {
            return TerminalReader::There;
        }
        terminal::painted(&text)
    }
}

/// What an event carries, in short.
fn carried(event: &Event) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(event) else { return String::new() };
    fields.remove("type");
    fields
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!(" {key}={}", clean(text)),
            other => format!(" {key}={other}"),
        })
        .collect()
}

/// How much of its context a conversation fills.
fn filled(context: &ContextUse) -> String {
    let used = format::count(context.used_tokens);
    let Some(window) = context.window_tokens else { return format!("context {used}") };
    let share = context.used_tokens as f64 * 100.0 / window as f64;
    format!("context {used} of {} ({share:.0}%)", format::count(window))
}
