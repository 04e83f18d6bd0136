//! The tool calls that an agent was denied: with what the end of its attempt says of them, and how each is told once.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{AgentError, Envelope, Event, NodePath};

/// The field of an output, and of the detail of a failure, with the calls that were denied before it.
const DENIALS: &str = "permissionDenials";
/// The field of such a call with its arguments.
const INPUT: &str = "toolInput";
/// The most that a failure holds of the arguments of a call, in bytes of JSON; the events of the call have all of them.
const LONGEST_INPUT: usize = 1024;

/// The tool calls that were denied before this output, or this detail of a failure.
pub fn denials(end: &Value) -> &[Value] {
    end.get(DENIALS).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Says in an output that these tool calls were denied before it, if there are any.
pub fn set_denials(output: &mut Value, denials: Vec<Value>) {
    if let Some(fields) = output.as_object_mut().filter(|_| !denials.is_empty()) {
        fields.insert(DENIALS.to_owned(), denials.into());
    }
}

impl AgentError {
    /// The tool calls that were denied before it.
    pub fn denials(&self) -> &[Value] {
        self.detail.as_deref().map_or(&[], denials)
    }

    /// The same error with these as the tool calls that were denied before it.
    #[must_use]
    pub fn with_denials(mut self, denials: &[Value]) -> Self {
        if denials.is_empty() {
            if let Some(Value::Object(fields)) = self.detail.as_deref_mut() {
                fields.remove(DENIALS);
            }
            return self;
        }
        let short = denials.iter().map(|denial| {
            let mut denial = denial.clone();
            if let Value::Object(fields) = &mut denial {
                fields.retain(|key, value| key != INPUT || value.to_string().len() <= LONGEST_INPUT);
            }
            denial
        });
        self.with(DENIALS, short.collect::<Vec<_>>())
    }
}

impl Event {
    /// The tool calls that were denied to the agent whose attempt this event ends or interrupts. The end of an attempt
    /// begins with those of the interrupted attempts that it continues; [`DeniedCalls`] tells each once.
    pub fn denials(&self) -> &[Value] {
        match self {
            Self::TaskComplete { result, .. } => denials(result),
            Self::TaskFailed { error, .. } => error.denials(),
            Self::TaskAgent { result, error, .. } => match (result, error) {
                (Some(result), _) => denials(result),
                (None, Some(error)) => error.denials(),
                (None, None) => &[],
            },
            Self::TaskCancelled { permission_denials, .. } | Self::LimitWait { permission_denials, .. } => {
                permission_denials
            }
            _ => &[],
        }
    }
}

/// Tells each denied call of a log once.
#[derive(Clone, Debug, Default)]
pub struct DeniedCalls {
    /// How many were told of the interrupted attempts of a node, whose end names them again.
    told: BTreeMap<NodePath, usize>,
}

impl DeniedCalls {
    /// Those that the next event of the log tells first.
    pub fn take<'e>(&mut self, envelope: &'e Envelope) -> &'e [Value] {
        let denials = envelope.event.denials();
        let Some(task) = &envelope.context.task else { return denials };
        match &envelope.event {
            Event::TaskCancelled { .. } | Event::LimitWait { .. } if !denials.is_empty() => {
                *self.told.entry(task.clone()).or_default() += denials.len();
                denials
            }
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskAgent { .. } => {
                let told = self.told.remove(task).unwrap_or_default();
                denials.get(told..).unwrap_or_default()
            }
            _ => denials,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ErrorCode;

    #[test]
    fn a_failure_has_the_calls_before_it_without_long_arguments() {
        let denied = |input: Value| json!({ "toolName": "Write", "toolUseId": "t", "toolInput": input });
        let error = AgentError::new(ErrorCode::Process, "lost").with("exitCode", 3);
        let long = denied(json!("x".repeat(LONGEST_INPUT)));
        let with = error.clone().with_denials(&[denied(json!("x")), long]);
        let short = json!({ "toolName": "Write", "toolUseId": "t" });
        assert_eq!(with.denials(), [denied(json!("x")), short]);
        assert_eq!(with.with_denials(&[]), error);
    }
}
