//! What an agent run is doing right now: its last line of text, its thinking, its tools. `state` folds
//! everything else about it.

use std::time::Duration;

use inspan_protocol::{Event, MultiTurn, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::safe::clean;
use crate::spent::SpendingTotal;

/// The longest text that is kept of an agent's line, in bytes; more than a terminal is wide.
const TAIL: usize = 1024;

/// An agent run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentView {
    /// The provider's name.
    pub provider: String,
    /// The model, once it is known.
    pub model: Option<String>,
    /// What it does right now.
    pub doing: AgentActivity,
    /// Tools that were called in all.
    pub tool_calls: u32,
    /// What its turns have cost.
    pub spent: SpendingTotal,
    /// The line of text in progress.
    text: String,
    /// How long it waits for messages after a turn, if it does.
    idle: Option<Duration>,
    /// Calls that have not been answered: id and what is shown.
    open: Vec<(String, String)>,
}

/// What an agent run does right now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum AgentActivity {
    /// The model has not answered yet.
    #[default]
    Asking,
    /// The model thinks, or reads the result of a tool.
    Thinking,
    /// It writes.
    Writing {
        /// The last line with letters in it.
        text: String,
    },
    /// A tool works.
    Using {
        /// Its name and its most important argument.
        text: String,
    },
    /// Its turn is over, and it waits for a message.
    Listening {
        /// Until when.
        until: Timestamp,
    },
    /// The run is over.
    Ended,
}

impl AgentView {
    /// `idle` is how long it waits for messages, if it has several turns.
    pub fn new(provider: &str, model: Option<&str>, multi_turn: MultiTurn, idle: Duration) -> Self {
        let idle = Some(idle).filter(|_| multi_turn == MultiTurn::On);
        Self { provider: provider.to_owned(), model: model.map(str::to_owned), idle, ..Self::default() }
    }

    /// Its turn is over, or it begins without one.
    fn listen(&mut self, at: Timestamp) {
        if let Some(idle) = self.idle {
            self.doing = AgentActivity::Listening { until: at + idle };
        }
    }

    /// Applies the next event of the run.
    pub fn apply(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::AgentText { content, delta, .. } => {
                if !delta {
                    self.text.clear();
                }
                self.write(content);
            }
            Event::AgentThinking { .. } => self.doing = AgentActivity::Thinking,
            Event::AgentRetract { .. } => {
                self.text.clear();
                self.doing = AgentActivity::Asking;
            }
            Event::AgentToolStart { tool_name, tool_use_id, input, .. } => {
                self.tool_calls += 1;
                self.text.clear();
                self.open.push((tool_use_id.clone(), call(tool_name, input)));
                self.doing = self.tool().unwrap_or_default();
            }
            Event::AgentToolComplete { tool_use_id, .. } => {
                self.open.retain(|(id, _)| id != tool_use_id);
                self.doing = self.tool().unwrap_or(AgentActivity::Thinking);
            }
            Event::AgentTurn { .. } => {
                self.text.clear();
                self.doing = AgentActivity::Asking;
            }
            Event::AgentSpent { .. } => self.spent.add(event),
            Event::AgentUsage { .. } => {
                self.spent.add(event);
                self.listen(at);
            }
            Event::AgentStart { listens: true, .. } => self.listen(at),
            Event::AgentComplete { .. } => self.doing = AgentActivity::Ended,
            _ => {}
        }
    }

    fn tool(&self) -> Option<AgentActivity> {
        self.open.last().map(|(_, call)| AgentActivity::Using { text: call.clone() })
    }

    /// Appends to the line in progress, of which only the last one with letters in it is kept.
    fn write(&mut self, content: &str) {
        self.text.push_str(content);
        let body = self.text.trim_end();
        let tail = body.ceil_char_boundary(body.len().saturating_sub(TAIL));
        let start = body.rfind('\n').map_or(0, |end| end + 1).max(tail);
        let line = clean(&body[start..]);
        self.text.drain(..start);
        if !line.is_empty() {
            self.doing = AgentActivity::Writing { text: line };
        }
    }
}

/// A tool call in one line: its name, and its most informative argument.
pub fn call(tool: &str, input: &Value) -> String {
    const TELLING: [&str; 10] =
        ["command", "file_path", "path", "pattern", "url", "query", "cmd", "description", "prompt", "title"];
    let telling = TELLING.iter().find_map(|key| input.get(key)).and_then(Value::as_str);
    let argument = match (telling, input) {
        (Some(text), _) => clean(text),
        (None, Value::Object(map)) if map.is_empty() => String::new(),
        (None, Value::Null) => String::new(),
        (None, other) => clean(&other.to_string()),
    };
    let mut line = clean(tool);
    if !argument.is_empty() {
        line.push(' ');
        line.push_str(&argument);
    }
    line
}

#[cfg(test)]
mod tests {
    use inspan_protocol::RunId;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_line_with_letters_is_shown() {
        let mut agent = AgentView::new("claude", None, MultiTurn::Off, Duration::ZERO);
        let pieces = ["Hel", "lo\n", "\n", "wor", "ld", "\n\n", "日本"];
        let seen = pieces.map(|content| {
            let run_id = RunId::from("r");
            agent.apply(
                &Event::AgentText { content: content.to_owned(), delta: true, run_id },
                Timestamp::from_millis(0),
            );
            agent.doing.clone()
        });
        let expected = ["Hel", "Hello", "Hello", "wor", "world", "world", "日本"];
        assert_eq!(seen, expected.map(|line| AgentActivity::Writing { text: line.to_owned() }));
    }

    #[test]
    fn a_call_shows_what_tells_most() {
        let rows = [
            call("Bash", &json!({ "timeout": 5, "command": "cargo test\n --all" })),
            call("Read", &json!({ "file_path": "src/lib.rs" })),
            call("Todo", &json!({ "n": 1 })),
            call("Ping", &json!({})),
        ];
        assert_eq!(rows, ["Bash cargo test --all", "Read src/lib.rs", "Todo {\"n\":1}", "Ping"]);
    }
}
