//! Whether a structured output fits its schema, and the words that ask the agent to mend it.
//! When to ask, and what follows if it does not help, is left to `driver`.

use inspan_protocol::{AgentError, ErrorCode};
use jsonschema::Validator;
use serde_json::Value;

/// How many violations are named to the agent and in the error.
const NAMED_VIOLATIONS: usize = 10;

pub(crate) struct OutputCheck(Validator);

impl OutputCheck {
    pub(crate) fn new(schema: &Value) -> Result<Self, AgentError> {
        jsonschema::validator_for(schema).map(Self).map_err(|error| {
            AgentError::new(ErrorCode::ConfigInvalid, format!("the output schema is no JSON Schema: {error}"))
        })
    }

    /// What is wrong with the output, one fragment each; nothing if it fits.
    pub(crate) fn violations(&self, output: Option<&Value>) -> Vec<String> {
        let Some(output) = output else {
            return vec!["there is no structured output".to_owned()];
        };
        let mut violations: Vec<_> = self
            .0
            .iter_errors(output)
            .map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { "/" } else { &place };
                format!("{place}: {error}")
            })
            .collect();
        if violations.len() > NAMED_VIOLATIONS {
            let more = violations.len() - NAMED_VIOLATIONS;
            violations.truncate(NAMED_VIOLATIONS);
            violations.push(format!("and {more} more"));
        }
        violations
    }
}

/// What the agent is told in the repair turn.
pub(crate) fn repair_message(violations: &[String]) -> String {
    format!(
        "Your structured output does not fit the JSON Schema it must fit:\n- {}\n\
         Give the whole structured output again so that it fits.",
        violations.join("\n- ")
    )
}

pub(crate) fn invalid(violations: &[String]) -> AgentError {
    let message = format!("the structured output does not fit its schema: {}", violations.join("; "));
    AgentError::new(ErrorCode::OutputInvalid, message)
}
