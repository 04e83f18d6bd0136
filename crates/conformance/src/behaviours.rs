//! The list: every behaviour that all providers have in common, one row each.

use futures::FutureExt;

use crate::behaviour::{
    Behaviour,
    Check::{Case, Status},
    Need::{Cost, NoCost, Permissions, Server, Shell, Streaming, StructuredOutput, Thinking, Tool},
};

mod answers;
mod cancels;
pub(crate) mod errors;
mod faults;
mod messages;
mod sessions;
mod structured;
mod tools;
mod usage;

/// The list: for each behaviour its name, what it needs, how it is checked, and its sentence.
macro_rules! behaviours {
    (@ $turns:path => $check:path) => { Case($turns, |case| $check(case).boxed()) };
    (@ $status:path) => { Status($status) };
    ($($name:ident [$($need:ident)*] ($($check:tt)*) $sentence:literal;)*) => {
        /// Every behaviour.
        pub const BEHAVIOURS: &[Behaviour] = &[
            $(Behaviour {
                name: stringify!($name),
                sentence: $sentence,
                needs: &[$($need),*],
                check: behaviours!(@ $($check)*),
            },)*
        ];
    };
}

behaviours! {
    text [] (answers::words => answers::text)
        "streams its text and ends with exactly one output that holds it";
    text_in_pieces [Server Streaming] (answers::begun => answers::in_pieces)
        "streams each piece of the text while the model still writes";
    thinking [Thinking Streaming] (answers::thought => answers::thinking)
        "streams the thinking of the model, apart from its text";
    max_tokens [Server] (answers::cut => answers::max_tokens)
        "ends with `maxTokens` and the text so far, where the answer hit the limit";
    refusal [Server] (answers::refused => answers::refusal)
        "fails with REFUSED where the model refuses";
    prompt_as_written [Server] (answers::words => answers::as_written)
        "sends the prompt to the model as it is written, even with `/` and `@`";
    empty_prompt [] (answers::words => answers::empty)
        "refuses an empty prompt with CONFIG_INVALID and sends no request";
    unknown_option [] (answers::words => answers::unknown_option)
        "refuses an unknown option by its name";
    session_first [Server] (answers::words => sessions::first)
        "names its conversation before any text, and before the model receives the prompt";
    resume [Server] (sessions::two => sessions::resume)
        "resumes a conversation: the model receives the earlier messages";
    resume_in_a_new_process [Server] (sessions::two => sessions::resume_in_a_new_process)
        "resumes a conversation of a process that is gone";
    unknown_session [] (answers::words => sessions::unknown)
        "refuses an unknown conversation with INVALID_REQUEST, kind sessionNotFound";
    cancel_before_start [] (answers::words => cancels::before_start)
        "ends with `aborted` and sends no request, where it is cancelled before it starts";
    cancel_before_text [Server] (cancels::silent => cancels::before_text)
        "ends with `aborted` within the grace, where the model has not written anything yet";
    cancel_mid_text [Server Streaming] (cancels::stalled => cancels::mid_text)
        "ends with `aborted` within the grace, returns the text so far, and can be resumed";
    cancel_mid_tool [Server Shell] (cancels::in_tool => cancels::mid_tool)
        "ends with `aborted` within the grace, and the tool's process is gone";
    cancel_mid_question [Server Tool Permissions] (tools::one => cancels::mid_question)
        "ends with `aborted` within the grace, where a permission request has no answer";
    deadline [Server] (cancels::silent => cancels::deadline)
        "fails with TIMEOUT, kind deadline, once the time of the call is over";
    usage [Server] (usage::counted => usage::counts)
        "reports the tokens that the server counted, those from its cache apart";
    usage_per_turn [Server] (usage::two => usage::per_turn)
        "reports the tokens of each turn alone";
    cost_per_turn [Server Cost] (usage::alike => usage::cost)
        "reports the cost of each turn alone";
    cost_unknown [NoCost] (answers::words => usage::no_cost)
        "reports no cost where the vendor reports none";
    structured [Server StructuredOutput] (structured::good => structured::valid)
        "returns the structured output of the model";
    structured_repaired [Server StructuredOutput] (structured::bad_then_good => structured::repaired)
        "gets the structured output fixed by a second request, where it does not fit its schema";
    structured_never [Server StructuredOutput] (structured::never_given => structured::never)
        "fails with OUTPUT_INVALID, where the model never returns one";
    tool [Server Tool] (tools::one => tools::used)
        "reports a tool's start with its arguments and its end once, and continues";
    permission_allowed [Server Tool Permissions] (tools::one => tools::allowed)
        "asks once before it uses the tool, and uses it when allowed";
    permission_denied [Server Tool Permissions] (tools::one => tools::denied)
        "does not use the tool when denied, reports that to the model, and continues";
    permission_nobody [Server Tool Permissions] (tools::one => tools::nobody)
        "does not use the tool when there is nobody to ask";
    message_follows [Server] (sessions::two => messages::follows)
        "takes a message during a turn as the next turn of the conversation";
    message_steers [Server Streaming] (messages::slow => messages::steers)
        "adds a steering message to the turn, or is interrupted by it, and reports which";
    key_nowhere [Server] (errors::repeats_the_key => errors::key_nowhere)
        "shows the key in no event, output, error, log or recording, even where the vendor repeats it";
    error_400 [Server] (errors::STATUS_400)
        "fails with INVALID_REQUEST on status 400";
    error_401 [Server] (errors::STATUS_401)
        "fails with AUTH on status 401";
    error_403 [Server] (errors::STATUS_403)
        "fails with AUTH on status 403";
    error_404 [Server] (errors::STATUS_404)
        "fails with MODEL_NOT_FOUND on status 404";
    error_413 [Server] (errors::STATUS_413)
        "fails with CONTEXT_LENGTH on status 413";
    error_429 [Server] (errors::STATUS_429)
        "fails with RATE_LIMITED on status 429, and asks once";
    error_429_retry_after [Server] (errors::STATUS_429_RETRY_AFTER)
        "fails with RATE_LIMITED on status 429, and reports how long to wait";
    error_500 [Server] (errors::STATUS_500)
        "fails with OVERLOADED on status 500, and asks once";
    error_529 [Server] (errors::STATUS_529)
        "fails with OVERLOADED on status 529, and asks once";
    error_in_stream [Server] (faults::error_in_stream => faults::overloaded)
        "fails with OVERLOADED on an error within the stream, and asks once";
    truncated [Server] (faults::truncated => faults::network)
        "fails with NETWORK, where the stream ends before the answer does, and asks once";
    garbage [Server] (faults::garbage => faults::protocol)
        "fails with PROTOCOL on an event that is not valid, and asks once";
    stall [Server] (cancels::stalled => faults::stall)
        "fails with TIMEOUT, kind stall, where the stream is silent for too long";
    connection_refused [Server] (answers::words => faults::refused)
        "fails with NETWORK, where nothing listens at the address";
}

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
