//! Writes an agent's events for its user: text to stdout, actions to stderr.

use inspan_engine::AgentResult;
use inspan_protocol::{Event, SteerStrength, StopReason};

use crate::invocation::Invocation;
use crate::invocation::OutputForm;
use crate::terminal;
use inspan_view::{Colour, Line, Tone, call, format, safe::clean};

/// What one answer looks like so far.
pub(super) struct AgentWriter {
    form: OutputForm,
    stderr: Colour,
    says: Says,
    /// Whether something was said in this answer.
    spoke: bool,
    /// Whether stdout is at the beginning of a line.
    fresh: bool,
    /// Whether the next text has nothing to do with the last.
    breaks: bool,
}

/// What is written to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Text,
    /// The structured output alone.
    Structured,
}

impl AgentWriter {
    pub(super) fn new(invocation: &Invocation) -> Self {
        Self {
            form: invocation.form,
            says: Says::Text,
            stderr: invocation.terminal.stderr,
            spoke: false,
            fresh: true,
            breaks: false,
        }
    }

    /// From now on the structured output is what is said.
    pub(super) fn say_structured(&mut self) {
        self.says = Says::Structured;
    }

    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::AgentText { content, delta, .. } => {
                self.breaks |= !delta;
                self.say(content);
                self.breaks |= !delta;
            }
            Event::AgentTurn { .. } => self.breaks = true,
            Event::AgentSteer { strength, .. } => {
                let what = match strength {
                    SteerStrength::Native => "added to the current turn",
                    _ => "interrupting the current turn",
                };
                self.note(Tone::Accent, "»", what);
            }
            Event::AgentRetract { .. } => {
                self.breaks = true;
                self.note(Tone::Warning, "!", "the stream broke; the answer starts over");
            }
            Event::AgentToolStart { tool_name, input, .. } => {
                self.breaks = true;
                self.note(Tone::Accent, "▸", &call(tool_name, input));
            }
            Event::AgentToolComplete { tool_name, is_error: true, result, .. } => {
                let why = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
                self.note(Tone::Warning, "✘", &format!("{tool_name}: {why}"));
            }
            Event::AgentWarning { message, .. } => self.note(Tone::Warning, "!", message),
            _ => {}
        }
    }

    /// The answer is over.
    pub(super) fn end(&mut self, result: Option<&AgentResult>) {
        if let Some(output) = result.and_then(|result| result.structured_output.as_ref())
            && self.says == Says::Structured
            && self.form == OutputForm::Text
        {
            terminal::json_line(&format!("{output:#}"));
        }
        if let Some(result) = result.filter(|_| !self.spoke) {
            self.say(&result.text);
        }
        self.line_break();
        if let Some(result) = result {
            if result.stop_reason == StopReason::Refusal {
                self.note(Tone::Warning, "!", "the model refused to answer");
            }
            self.note(Tone::Faint, "·", &spent(result));
        }
        (self.spoke, self.breaks) = (false, false);
    }

    /// A line about the answer.
    pub(super) fn note(&mut self, tone: Tone, sign: &str, text: &str) {
        self.line_break();
        let mut line = Line::new();
        line.push(tone, sign)
            .push(Tone::Plain, " ")
            .push(Tone::Faint, &format::cut_after(&clean(text), LONGEST));
        terminal::progress(&(line.render(self.stderr) + "\n"));
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() || self.form == OutputForm::Json || self.says == Says::Structured {
            return;
        }
        if std::mem::take(&mut self.breaks) && self.spoke {
            self.line_break();
        }
        self.fresh = text.ends_with('\n');
        self.spoke = true;
        terminal::data(text);
    }

    fn line_break(&mut self) {
        if !std::mem::replace(&mut self.fresh, true) {
            terminal::data("\n");
        }
    }
}

/// The longest note, in characters.
const LONGEST: usize = 200;

fn spent(result: &AgentResult) -> String {
    let mut parts = vec![result.provider.clone()];
    parts.extend(result.model.clone());
    parts.push(format!("{} tokens", result.usage.total()));
    parts.extend(result.cost_usd.map(format::dollars));
    parts.join(" · ")
}
