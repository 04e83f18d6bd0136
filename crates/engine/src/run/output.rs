//! The output of a run: the last turn's answer, the sums over all turns, and the check of a structured output.

use inspan_protocol::{
    AgentError, BoundedValidator, ErrorCode, OutputFacts, ProviderSessionId, StopReason, Usage, denials,
    set_denials,
};
use serde_json::Value;

/// The output of the newest turn and the sums over all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) calls: u32,
    pub(crate) model_turns: u32,
    /// Whether the newest turn was cut short.
    pub(crate) was_cut: bool,
    /// The tool calls that were denied in any turn.
    pub(crate) denials: Vec<Value>,
    cost: RunCost,
    /// What the run took that this one replaces.
    before: Option<Usage>,
    last: Option<(Value, OutputFacts)>,
}

/// Unknown as soon as one turn's cost is unknown: a sum that leaves a turn out would be a guess.
#[derive(Clone, Copy, Debug, Default)]
enum RunCost {
    #[default]
    Nothing,
    Known(f64),
    Unknown,
}

impl Totals {
    /// Those of a run that has answered this, for the one that replaces it.
    pub(crate) fn answered(output: Value, facts: OutputFacts) -> Self {
        let denials = denials(&output).to_vec();
        let mut totals = Self { before: Some(facts.usage), denials, ..Self::default() };
        totals.add(output, facts);
        Self { calls: 0, ..totals }
    }

    pub(crate) fn add(&mut self, output: Value, facts: OutputFacts) {
        self.calls += 1;
        self.was_cut = facts.stop_reason == StopReason::Aborted;
        // A turn counts at least once, also where the vendor does not count.
        self.model_turns = self.model_turns.saturating_add(facts.num_turns.max(1));
        self.cost = match (self.cost, facts.cost_usd) {
            (RunCost::Nothing, Some(cost)) => RunCost::Known(cost),
            (RunCost::Known(sum), Some(cost)) => RunCost::Known(sum + cost),
            (RunCost::Unknown, _) | (_, None) => RunCost::Unknown,
        };
        self.last = Some((output, facts));
    }

    /// A call that ended without an output because it was cancelled.
    pub(crate) fn add_interrupted(&mut self) {
        self.calls += 1;
        self.was_cut = true;
        self.model_turns = self.model_turns.saturating_add(1);
        self.cost = RunCost::Unknown;
    }

    pub(crate) fn last_facts(&self) -> Option<&OutputFacts> {
        self.last.as_ref().map(|(_, facts)| facts)
    }

    /// The run's output and facts. Without any output, which only a cancelled run can lack, the output is
    /// null and the text empty.
    pub(crate) fn finish(
        self,
        stop_reason: StopReason,
        mut usage: Usage,
        session: Option<ProviderSessionId>,
    ) -> (Value, OutputFacts) {
        usage += self.before.unwrap_or_default();
        let (mut output, facts) = match self.last {
            Some((output, facts)) => (output, Some(facts)),
            None => (Value::Null, None),
        };
        let cost_usd = if let RunCost::Known(cost) = self.cost { Some(cost) } else { None };
        if (self.calls > 1 || self.before.is_some())
            && let Value::Object(output) = &mut output
        {
            if let Some(field) = output.get_mut("usage") {
                *field = serde_json::to_value(usage).unwrap_or_default();
            }
            if let Some(field) = output.get_mut("numTurns") {
                *field = Value::from(self.model_turns);
            }
            match (output.get_mut("costUsd"), cost_usd) {
                (Some(field), Some(cost)) => *field = Value::from(cost),
                (Some(_), None) => drop(output.remove("costUsd")),
                (None, _) => {}
            }
        }
        set_denials(&mut output, self.denials);
        let num_turns = self.model_turns;
        let facts = facts.unwrap_or_else(|| OutputFacts::text(""));
        (output, OutputFacts { session, stop_reason, usage, cost_usd, num_turns, ..facts })
    }
}

/// How many violations are named to the agent and in the error.
const NAMED_VIOLATIONS: usize = 10;

pub(crate) struct OutputCheck(BoundedValidator);

impl OutputCheck {
    pub(crate) fn new(schema: &Value) -> Result<Self, AgentError> {
        BoundedValidator::new(schema).map(Self).map_err(|error| {
            AgentError::new(
                ErrorCode::ConfigInvalid,
                format!("the output schema is not a JSON Schema: {error}"),
            )
        })
    }

    /// What is wrong with the output, one fragment each; empty if it fits.
    pub(crate) fn violations(&self, output: Option<&Value>) -> Vec<String> {
        let Some(output) = output else {
            return vec!["there is no structured output".to_owned()];
        };
        let mut violations: Vec<_> = self
            .0
            .errors(output)
            .iter()
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

/// The message of the repair turn.
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
