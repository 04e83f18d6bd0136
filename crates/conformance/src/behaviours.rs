//! The list: every behaviour that providers show alike, one row each.

use futures::FutureExt;

use crate::behaviour::{
    Behaviour,
    Need::{Cost, NoCost, Permissions, Server, Shell, Streaming, StructuredOutput, Thinking, Tool},
    Prove::{self, By},
};

mod answers;
mod cancels;
pub(crate) mod errors;
mod faults;
mod messages;
mod people;
mod prompts;
mod sessions;
mod structured;
mod tools;
mod usage;

/// A row whose proof is a function of its scene.
macro_rules! scene {
    ($turns:expr, $prove:path) => {
        By($turns, |scene| $prove(scene).boxed())
    };
}

/// Every behaviour.
pub const BEHAVIOURS: &[Behaviour] = &[
    Behaviour {
        name: "text",
        sentence: "streams its text and ends with exactly one output that holds it",
        needs: &[],
        prove: scene!(answers::words, answers::text),
    },
    Behaviour {
        name: "text_in_pieces",
        sentence: "hands on each piece of the text while the model still speaks",
        needs: &[Server, Streaming],
        prove: scene!(answers::begun, answers::in_pieces),
    },
    Behaviour {
        name: "thinking",
        sentence: "streams what the model thinks, apart from what it says",
        needs: &[Thinking, Streaming],
        prove: scene!(answers::thought, answers::thinking),
    },
    Behaviour {
        name: "max_tokens",
        sentence: "ends with `maxTokens` and what was said, where the answer hit the limit",
        needs: &[Server],
        prove: scene!(answers::cut, answers::max_tokens),
    },
    Behaviour {
        name: "refusal",
        sentence: "fails with REFUSED where the model refuses",
        needs: &[Server],
        prove: scene!(answers::refused, answers::refusal),
    },
    Behaviour {
        name: "prompt_as_written",
        sentence: "hands the prompt to the model as it is written, also with `/` and `@`",
        needs: &[Server],
        prove: scene!(answers::words, prompts::as_written),
    },
    Behaviour {
        name: "empty_prompt",
        sentence: "refuses an empty prompt with CONFIG_INVALID and asks nobody",
        needs: &[],
        prove: scene!(answers::words, prompts::empty),
    },
    Behaviour {
        name: "unknown_option",
        sentence: "refuses an option that it does not know, by its name",
        needs: &[],
        prove: scene!(answers::words, prompts::unknown_option),
    },
    Behaviour {
        name: "session_first",
        sentence: "names its conversation before any text, and before the model hears the prompt",
        needs: &[Server],
        prove: scene!(answers::words, sessions::first),
    },
    Behaviour {
        name: "resume",
        sentence: "goes on in a conversation: the model is sent what was said",
        needs: &[Server],
        prove: scene!(sessions::two, sessions::resume),
    },
    Behaviour {
        name: "resume_in_a_new_process",
        sentence: "goes on in a conversation of a process that is gone",
        needs: &[Server],
        prove: scene!(sessions::two, sessions::resume_in_a_new_process),
    },
    Behaviour {
        name: "unknown_session",
        sentence: "refuses a conversation that nobody knows with INVALID_REQUEST, kind sessionNotFound",
        needs: &[],
        prove: scene!(answers::words, sessions::unknown),
    },
    Behaviour {
        name: "cancel_before_start",
        sentence: "ends with `aborted` and asks nobody, where it is cancelled before it starts",
        needs: &[],
        prove: scene!(answers::words, cancels::before_start),
    },
    Behaviour {
        name: "cancel_before_text",
        sentence: "ends with `aborted` within the grace, where the model has not said anything yet",
        needs: &[Server],
        prove: scene!(cancels::silent, cancels::before_text),
    },
    Behaviour {
        name: "cancel_mid_text",
        sentence: "ends with `aborted` within the grace, keeps the text so far, and can be gone on with",
        needs: &[Server, Streaming],
        prove: scene!(cancels::stalled, cancels::mid_text),
    },
    Behaviour {
        name: "cancel_mid_tool",
        sentence: "ends with `aborted` within the grace, and the tool's process is gone",
        needs: &[Server, Shell],
        prove: scene!(cancels::in_tool, cancels::mid_tool),
    },
    Behaviour {
        name: "cancel_mid_question",
        sentence: "ends with `aborted` within the grace, where a person is asked and does not answer",
        needs: &[Server, Tool, Permissions],
        prove: scene!(tools::one, cancels::mid_question),
    },
    Behaviour {
        name: "deadline",
        sentence: "fails with TIMEOUT, kind deadline, once the time of the call is over",
        needs: &[Server],
        prove: scene!(cancels::silent, cancels::deadline),
    },
    Behaviour {
        name: "usage",
        sentence: "tells the tokens that the server counted, those from its cache apart",
        needs: &[Server],
        prove: scene!(usage::counted, usage::counts),
    },
    Behaviour {
        name: "usage_per_turn",
        sentence: "tells the tokens of each turn, and not of all until then",
        needs: &[Server],
        prove: scene!(usage::two, usage::per_turn),
    },
    Behaviour {
        name: "cost_per_turn",
        sentence: "tells what each turn cost, and not all until then",
        needs: &[Server, Cost],
        prove: scene!(usage::alike, usage::cost),
    },
    Behaviour {
        name: "cost_unknown",
        sentence: "tells no cost where the vendor tells none",
        needs: &[NoCost],
        prove: scene!(answers::words, usage::no_cost),
    },
    Behaviour {
        name: "structured",
        sentence: "gives the structured output that the model gave",
        needs: &[Server, StructuredOutput],
        prove: scene!(structured::good, structured::valid),
    },
    Behaviour {
        name: "structured_repaired",
        sentence: "gets it mended in a second request, where it does not fit its schema",
        needs: &[Server, StructuredOutput],
        prove: scene!(structured::bad_then_good, structured::repaired),
    },
    Behaviour {
        name: "structured_never",
        sentence: "fails with OUTPUT_INVALID, where the model never gives one",
        needs: &[Server, StructuredOutput],
        prove: scene!(structured::never_given, structured::never),
    },
    Behaviour {
        name: "tool",
        sentence: "tells a tool's start with its arguments and its end once, and goes on",
        needs: &[Server, Tool],
        prove: scene!(tools::one, tools::used),
    },
    Behaviour {
        name: "permission_allowed",
        sentence: "asks once before it uses the tool, and uses it when allowed",
        needs: &[Server, Tool, Permissions],
        prove: scene!(tools::one, people::allowed),
    },
    Behaviour {
        name: "permission_denied",
        sentence: "does not use the tool when denied, tells the model, and goes on",
        needs: &[Server, Tool, Permissions],
        prove: scene!(tools::one, people::denied),
    },
    Behaviour {
        name: "permission_nobody",
        sentence: "does not use the tool when nobody can be asked",
        needs: &[Server, Tool, Permissions],
        prove: scene!(tools::one, people::nobody),
    },
    Behaviour {
        name: "message_follows",
        sentence: "takes a message during a turn as the next turn of the conversation",
        needs: &[Server],
        prove: scene!(sessions::two, messages::follows),
    },
    Behaviour {
        name: "message_steers",
        sentence: "takes a message that steers into the turn, or is interrupted by it, and tells which",
        needs: &[Server, Streaming],
        prove: scene!(messages::slow, messages::steers),
    },
    Behaviour {
        name: "key_nowhere",
        sentence: "shows the key in no event, output, error, log or recording, also where the vendor repeats it",
        needs: &[Server],
        prove: scene!(errors::repeats_the_key, errors::key_nowhere),
    },
    Behaviour {
        name: "error_400",
        sentence: "fails with INVALID_REQUEST on status 400",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_400),
    },
    Behaviour {
        name: "error_401",
        sentence: "fails with AUTH on status 401",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_401),
    },
    Behaviour {
        name: "error_403",
        sentence: "fails with AUTH on status 403",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_403),
    },
    Behaviour {
        name: "error_404",
        sentence: "fails with MODEL_NOT_FOUND on status 404",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_404),
    },
    Behaviour {
        name: "error_413",
        sentence: "fails with CONTEXT_LENGTH on status 413",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_413),
    },
    Behaviour {
        name: "error_429",
        sentence: "fails with RATE_LIMITED on status 429, and asks once",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_429),
    },
    Behaviour {
        name: "error_429_retry_after",
        sentence: "fails with RATE_LIMITED on status 429, and tells how long to wait",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_429_RETRY_AFTER),
    },
    Behaviour {
        name: "error_500",
        sentence: "fails with OVERLOADED on status 500, and asks once",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_500),
    },
    Behaviour {
        name: "error_529",
        sentence: "fails with OVERLOADED on status 529, and asks once",
        needs: &[Server],
        prove: Prove::Fault(errors::STATUS_529),
    },
    Behaviour {
        name: "error_in_stream",
        sentence: "fails with OVERLOADED on an error within the stream, and asks once",
        needs: &[Server],
        prove: scene!(faults::error_in_stream, faults::overloaded),
    },
    Behaviour {
        name: "truncated",
        sentence: "fails with NETWORK, where the stream ends before the answer does, and asks once",
        needs: &[Server],
        prove: scene!(faults::truncated, faults::network),
    },
    Behaviour {
        name: "garbage",
        sentence: "fails with PROTOCOL on an event that is none, and asks once",
        needs: &[Server],
        prove: scene!(faults::garbage, faults::protocol),
    },
    Behaviour {
        name: "stall",
        sentence: "fails with TIMEOUT, kind stall, where the stream falls silent for longer than it may",
        needs: &[Server],
        prove: scene!(cancels::stalled, faults::stall),
    },
    Behaviour {
        name: "connection_refused",
        sentence: "fails with NETWORK, where nobody listens at the address",
        needs: &[Server],
        prove: scene!(answers::words, faults::refused),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::BEHAVIOURS;

    #[test]
    fn names_are_unique_and_sentences_are_whole() {
        let names: BTreeSet<_> = BEHAVIOURS.iter().map(|behaviour| behaviour.name).collect();
        assert_eq!(names.len(), BEHAVIOURS.len());
        let odd: Vec<_> = BEHAVIOURS
            .iter()
            .filter(|behaviour| {
                let sentence = behaviour.sentence;
                sentence.ends_with('.') || !sentence.starts_with(char::is_lowercase)
            })
            .map(|behaviour| behaviour.name)
            .collect();
        assert_eq!(odd, [""; 0]);
    }
}
