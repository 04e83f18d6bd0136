//! What a provider returned in one turn, and the rules that hold for every turn.

use std::time::Duration;

use inspan_protocol::{AgentError, OutputFacts, ProviderSessionId, StreamEvent};
use serde_json::Value;

use crate::finding::{CheckResult, Deviation, Difference, holds, same};
use crate::worker::no_key_in;

/// One turn from its first event to its end.
#[derive(Debug)]
pub(crate) struct TurnLog {
    pub(crate) events: Vec<StreamEvent>,
    pub(crate) end: Result<OutputFacts, AgentError>,
    /// The output as it came; null if there is none.
    pub(crate) output: Value,
    pub(crate) took: Duration,
}

/// One use of a tool.
#[derive(Debug)]
pub(crate) struct ToolUse {
    pub(crate) name: String,
    pub(crate) input: Value,
    pub(crate) failed: bool,
}

impl TurnLog {
    /// The facts of the output.
    pub(crate) fn facts(&self) -> CheckResult<&OutputFacts> {
        self.end.as_ref().map_err(|error| {
            Difference::from(format!("it fails with {}", error.code))
                .deviation(Deviation::Fails(error.code))
                .with(error.message.clone())
        })
    }

    /// The error.
    pub(crate) fn error(&self) -> CheckResult<&AgentError> {
        match &self.end {
            Err(error) => Ok(error),
            Ok(facts) => {
                Err(Difference::from(format!("it does not fail and ends with {:?}", facts.stop_reason))
                    .deviation(Deviation::Ends(facts.stop_reason)))
            }
        }
    }

    /// The text after all retractions.
    pub(crate) fn text(&self) -> String {
        let (mut text, mut firm) = (String::new(), 0);
        for event in &self.events {
            match event {
                StreamEvent::Text { content, .. } => text.push_str(content),
                StreamEvent::ToolStart { .. } | StreamEvent::ToolComplete { .. } => firm = text.len(),
                StreamEvent::Retract => text.truncate(firm),
                _ => {}
            }
        }
        text
    }

    /// The thinking, joined.
    pub(crate) fn thinking(&self) -> String {
        let pieces = self.events.iter().filter_map(|event| match event {
            StreamEvent::Thinking { content, .. } => Some(content.as_str()),
            _ => None,
        });
        pieces.collect()
    }

    /// The conversation.
    pub(crate) fn session(&self) -> CheckResult<ProviderSessionId> {
        let named = self.events.iter().find_map(|event| match event {
            StreamEvent::Session { session_id } => Some(session_id.clone()),
            _ => None,
        });
        named.ok_or_else(|| Difference::from("it never names its conversation"))
    }

    /// Each use of a tool, begun and ended once.
    pub(crate) fn used(&self) -> CheckResult<Vec<ToolUse>> {
        let mut used = Vec::new();
        for event in &self.events {
            let StreamEvent::ToolStart { tool_name, tool_use_id, input } = event else { continue };
            let ends: Vec<bool> = self.ends(tool_use_id).collect();
            holds(ends.len() == 1, || {
                format!("a call of `{tool_name}` begins once and ends {} times", ends.len())
            })?;
            used.push(ToolUse { name: tool_name.clone(), input: input.clone(), failed: ends[0] });
        }
        Ok(used)
    }

    fn ends<'a>(&'a self, id: &'a str) -> impl Iterator<Item = bool> + 'a {
        self.events.iter().filter_map(move |event| match event {
            StreamEvent::ToolComplete { tool_use_id, is_error, .. } if tool_use_id == id => Some(*is_error),
            _ => None,
        })
    }

    /// The rules of every turn: one conversation, no tool that ends without having begun or begins twice, errors
    /// that name their provider, and no secret.
    pub(crate) fn check(&self, provider: &str) -> CheckResult {
        let mut sessions = self.events.iter().filter_map(|event| match event {
            StreamEvent::Session { session_id } => Some(session_id),
            _ => None,
        });
        if let (Some(first), Ok(facts)) = (sessions.next(), &self.end) {
            let one = sessions.all(|other| other == first) && facts.session.as_ref() == Some(first);
            holds(one, || "it names more than one conversation in one turn".to_owned())?;
        }
        let mut begun: Vec<&str> = Vec::new();
        for event in &self.events {
            match event {
                StreamEvent::ToolStart { tool_name, tool_use_id, .. } => {
                    holds(!begun.contains(&tool_use_id.as_str()), || {
                        format!("a call of `{tool_name}` begins twice")
                    })?;
                    begun.push(tool_use_id);
                }
                StreamEvent::ToolComplete { tool_use_id, .. } => {
                    let known = begun.contains(&tool_use_id.as_str());
                    holds(known, || "a tool ends that has not begun".to_owned())?;
                }
                _ => {}
            }
        }
        if let Err(error) = &self.end {
            same("the provider that the error names", &error.provider.as_deref(), &Some(provider))?;
            no_key_in("the error", &format!("{error} {error:?} {}", json(error)))?;
        }
        no_key_in("the output", &format!("{:?} {}", self.output, self.output))?;
        no_key_in("the events", &format!("{:?} {}", self.events, json(&self.events)))
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{Chunk, StopReason, Usage};

    use super::*;
    use crate::worker::PLANTED;

    fn turn(events: Vec<StreamEvent>) -> TurnLog {
        let facts = OutputFacts {
            text: String::new(),
            structured_output: None,
            session: Some("s".into()),
            turn_id: None,
            stop_reason: StopReason::Complete,
            usage: Usage::default(),
            cost_usd: None,
            num_turns: 1,
        };
        TurnLog { events, end: Ok(facts), output: Value::Null, took: Duration::ZERO }
    }

    fn text(content: &str) -> StreamEvent {
        StreamEvent::Text { content: content.to_owned(), chunk: Chunk::Delta }
    }

    fn session(id: &str) -> StreamEvent {
        StreamEvent::Session { session_id: id.into() }
    }

    fn start(id: &str) -> StreamEvent {
        StreamEvent::ToolStart { tool_name: "t".to_owned(), tool_use_id: id.to_owned(), input: Value::Null }
    }

    fn complete(id: &str) -> StreamEvent {
        StreamEvent::ToolComplete { tool_use_id: id.to_owned(), result: Value::Null, is_error: false }
    }

    #[test]
    fn what_breaks_a_law_is_named() {
        let rows = [
            (vec![session("s"), start("1"), complete("1"), text("a")], None),
            (vec![session("s"), session("other")], Some("it names more than one conversation in one turn")),
            (vec![session("other")], Some("it names more than one conversation in one turn")),
            (vec![start("1"), start("1")], Some("a call of `t` begins twice")),
            (vec![complete("1")], Some("a tool ends that has not begun")),
            (vec![text(PLANTED)], Some("the planted key shows in the events")),
        ];
        for (events, expected) in rows {
            let found = turn(events.clone()).check("p").err().map(|finding| finding.text);
            assert_eq!(found.as_deref(), expected, "{events:?}");
        }
        let error = AgentError::new(inspan_protocol::ErrorCode::Auth, format!("no {PLANTED}"));
        let failed = TurnLog { end: Err(error.from_provider("p")), ..turn(Vec::new()) };
        assert_eq!(failed.check("p").unwrap_err().text, "the planted key shows in the error");
        assert_eq!(
            failed.check("q").unwrap_err().text,
            "the provider that the error names: Some(\"p\"), not Some(\"q\")"
        );
    }

    #[test]
    fn a_tool_that_does_not_end_is_named_and_retracted_text_is_gone() {
        let found = turn(vec![start("1")]).used().unwrap_err().text;
        assert_eq!(found, "a call of `t` begins once and ends 0 times");
        let events = vec![text("a"), start("1"), complete("1"), text("b"), StreamEvent::Retract, text("c")];
        assert_eq!(turn(events).text(), "ac");
    }
}
