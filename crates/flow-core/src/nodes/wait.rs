//! `control.wait`: what it waits for, read in one place by the compiler and by everything that runs it.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{AgentError, ErrorCode, Event, InputProblem, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed;
use crate::{
    diagnostic::did_you_mean,
    node::{DescribeNode, NodeTypeInfo, Occupies},
    spec::parse_time,
};

/// The input of `control.wait`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitInput {
    /// How long to wait, in milliseconds; ten years at most.
    #[serde(default)]
    #[schemars(range(max = 315_360_000_000_u64))]
    pub ms: Option<u64>,
    /// What to wait for: a moment with its zone such as `2026-01-07T10:00:00Z`, or the name of an event such as
    /// `session:message`.
    #[serde(default)]
    pub until: Option<String>,
    /// How long to wait for an event before the node fails, as `30s`, `5m`, `2h`.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    pub timeout: Option<String>,
}

/// The output of `control.wait`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitOutput {
    /// How long it waited, in milliseconds.
    pub waited_ms: u64,
    /// The event that ended the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// What a `control.wait` waits for.
#[derive(Debug, PartialEq)]
pub enum WaitFor {
    /// A time, from its first start.
    Time(Duration),
    /// A moment.
    Moment(Timestamp),
    /// An event.
    Event {
        /// The names of which one must come, as a filter reads them.
        names: String,
        /// How long after the first start the node fails.
        limit: Option<Duration>,
    },
}

impl WaitInput {
    /// What to wait for: something that can come.
    pub fn waits_for(&self) -> Result<WaitFor, AgentError> {
        self.read().map_err(|problem| AgentError::new(ErrorCode::ConfigInvalid, problem.message))
    }

    fn read(&self) -> Result<WaitFor, InputProblem> {
        // A wait for anything else ends by itself.
        let without_limit = |wait: WaitFor| match self.timeout {
            Some(_) => Err(InputProblem::new("/timeout", "`timeout` limits a wait for an event only")),
            None => Ok(wait),
        };
        let until = match (self.ms, &self.until) {
            (Some(ms), None) => return without_limit(WaitFor::Time(Duration::from_millis(ms))),
            (None, Some(until)) => until.trim(),
            _ => return Err(InputProblem::new("", "a wait needs exactly one of `ms` and `until`")),
        };
        if let Ok(moment) = until.parse() {
            return without_limit(WaitFor::Moment(moment));
        }
        if let Some(wrong) = until.split(',').map(str::trim).find(|name| !Event::can_match(name)) {
            let help = match parse_time(until) {
                Ok(time) => format!("a length of time is written `ms: {}`", time.as_millis()),
                Err(_) if wrong.starts_with(|first: char| first.is_ascii_digit()) => {
                    "a moment has a date, a time and a zone, as in `2026-01-07T10:00:00Z`".to_owned()
                }
                Err(_) => did_you_mean(wrong, Event::NAMES.iter().copied())
                    .unwrap_or_else(|| format!("no event is called `{wrong}`")),
            };
            let message = format!("`until: {until}` is neither a moment nor the name of an event: {help}");
            return Err(InputProblem::new("/until", message));
        }
        let limit = self.timeout.as_deref().map(|text| {
            parse_time(text).map_err(|why| InputProblem::new("/timeout", format!("`timeout: {text}`: {why}")))
        });
        Ok(WaitFor::Event { names: until.to_owned(), limit: limit.transpose()? })
    }
}

/// `control.wait`: for a time, a moment or an event.
pub struct ControlWait;

impl ControlWait {
    /// The name of its type.
    pub const NAME: &str = "control.wait";

    /// Whether an event that a wait names ends it. A message for an agent does not.
    pub fn ends_by(event: &Event) -> bool {
        match event {
            Event::SessionMessage { run_id, agent_name, .. } => {
                run_id.is_none() && agent_name.as_ref().is_none_or(|name| name == Self::NAME)
            }
            _ => true,
        }
    }
}

impl DescribeNode for ControlWait {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Waits for a time (`ms`), a moment or an event (`until`).";
        NodeTypeInfo {
            occupies: Occupies::Nothing,
            ..typed::describe::<WaitInput, WaitOutput>(Self::NAME, "control", help)
        }
    }

    fn name(&self) -> Arc<str> {
        Self::NAME.into()
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        let is_open = |key: &str| {
            input
                .get(key)
                .and_then(Value::as_str)
                .is_some_and(|text| text.contains("{{") || text.contains("{%"))
        };
        if is_open("ms") || is_open("until") {
            return Vec::new();
        }
        let Ok(wait) = typed::read_input::<WaitInput>(input.clone()) else { return Vec::new() };
        // The schema says what a duration must be.
        let is_duration = wait.timeout.as_deref().is_none_or(|text| parse_time(text).is_ok());
        let problem = wait.read().err().filter(|problem| is_duration || problem.pointer != "/timeout");
        problem.into_iter().collect()
    }
}
