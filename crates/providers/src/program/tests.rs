//! What the tests of all agent CLIs share: programs that misbehave, and what surrounded a recorded process.

use std::collections::VecDeque;

use inspan_protocol::{AgentError, ProviderSessionId, Redactor, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::output::TurnOutput;
use crate::program::exit::{Exit, exited};
use crate::program::{Cancelled, TurnDecoder, TurnEnd, conclude};

#[cfg(target_os = "linux")]
pub(crate) mod fake;
#[cfg(target_os = "linux")]
pub(crate) mod faults;

/// What surrounded a recorded process; a vendor reads what it needs.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ProcessCase {
    exit: RecordedExit,
    stderr: String,
    /// The conversation.
    pub(crate) session: Option<ProviderSessionId>,
    /// Whether the turn requested JSON of a schema.
    pub(crate) structured: bool,
    /// Whether the session was an earlier one.
    pub(crate) resumed: bool,
    /// The request that opened the session.
    pub(crate) opened: Option<u64>,
    /// The prompts, each sent when the request before it was answered.
    pub(crate) prompts: VecDeque<u64>,
    /// The last message of the user that an earlier turn had.
    pub(crate) before: Option<String>,
    /// The time, in milliseconds since 1970.
    pub(crate) now: Option<i64>,
    /// Whether the turn was cancelled.
    cancelled: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RecordedExit {
    code: Option<i32>,
    signal: Option<i32>,
}

impl ProcessCase {
    /// The output or the error of a turn that the program ended.
    pub(crate) fn end(&self, end: impl TurnEnd) -> Value {
        self.output(end, |output| json!(output))
    }

    /// As [`Self::end`], with an output of the vendor's own form.
    pub(crate) fn output(&self, end: impl TurnEnd, own: impl FnOnce(TurnOutput) -> Value) -> Value {
        let cancelled = if self.cancelled { Cancelled::Yes } else { Cancelled::No };
        match conclude(end, cancelled, &Redactor::default()) {
            Ok(output) => json!({ "output": own(output) }),
            Err(error) => json!({ "error": error }),
        }
    }

    /// The error of a program that ended without ending its turn.
    pub(crate) fn exited(&self, explain: impl FnOnce(Exit, &str) -> Option<AgentError>) -> Value {
        let exit = Exit { code: self.exit.code, signal: self.exit.signal };
        json!({ "error": exited(exit, &self.stderr, explain) })
    }
}

/// The events of a turn that its process left open.
pub(crate) fn abandoned<D: TurnDecoder, L: IntoIterator<Item = Value>>(
    decoder: &mut D,
    line: impl FnMut(D::Decoded) -> L,
) -> Vec<Value> {
    let (closing, end) = decoder.abandon();
    let output = end.output(StopReason::Aborted);
    let end = json!({ "abandoned": { "said": output.text, "usage": output.usage } });
    closing.into_iter().flat_map(line).chain([end]).collect()
}
