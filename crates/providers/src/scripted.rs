//! The provider `scripted`: plays what its input says, turn by turn. Flows are tested with it. It
//! ignores the prompt; a conversation is identified by the number of its last turn.

use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Chunk, ContextUse, ErrorCode, ExecutionContext, InputFacts, InputProblem, Message, MultiTurn,
    PermissionDecision, PermissionRequest, Provider, ProviderCapabilities, ProviderDescriptor, ProviderInput,
    ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent, Timestamp, Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::input::{self, Assistant};
use crate::output::{PermissionDenial, TurnOutput, with_denials};
use crate::scripted_turn::{ScriptedTurn, WaitEnd, turn_after, words};

/// The provider's type.
const TYPE: &str = "scripted";

/// The input of one turn: exactly one of `prompt` and `messages`, and the script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptedInput {
    /// The prompt. It is required, as for any agent, and is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The same in several messages of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Message>>,
    /// The script.
    pub options: ScriptedOptions,
}

/// The script of a conversation.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptedOptions {
    /// The turns of the conversation, each a list of steps. A turn beyond the last one is `CONFIG_INVALID`.
    pub turns: Vec<Vec<Step>>,
    /// The conversation to continue: the `sessionId` of an earlier output.
    #[serde(default)]
    pub resume: Option<ProviderSessionId>,
    /// Whether that conversation is branched. A conversation is no more than the number of its turns, so nothing else changes.
    #[serde(default)]
    pub fork: Option<bool>,
    /// The model that the output names.
    #[serde(default)]
    pub model: Option<String>,
    /// The JSON Schema that the structured output should fit; whether it does is not checked here.
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// Whether the run waits for messages between turns.
    #[serde(default)]
    pub multi_turn: Option<bool>,
    /// How long it waits for one, in milliseconds.
    #[serde(default)]
    pub idle_timeout_ms: Option<u64>,
    /// Turns that a run may have in all.
    #[serde(default)]
    pub max_turns: Option<u32>,
}

/// One step of a turn.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Step {
    /// Says a text, word by word.
    Text(String),
    /// Thinks a text, word by word.
    Thinking(String),
    /// Uses a tool.
    Tool {
        /// The tool.
        name: String,
        /// Its arguments.
        #[serde(default)]
        input: Value,
        /// Its answer.
        #[serde(default)]
        result: Value,
        /// Whether it fails.
        #[serde(default)]
        is_error: bool,
        /// Whether permission is asked first; if it is denied, the answer says why.
        #[serde(default)]
        ask: bool,
    },
    /// Retracts the text since the last tool.
    Retract,
    /// Warns.
    Warning {
        /// A short fixed word.
        code: String,
        /// What happened.
        message: String,
    },
    /// Says what the turn used until now.
    Usage {
        /// Tokens.
        #[serde(default)]
        tokens: Usage,
        /// Cost in US dollars; absent means unknown.
        cost_usd: Option<f64>,
    },
    /// Says how much of its context the conversation fills.
    Context(ContextUse),
    /// Waits, in milliseconds.
    DelayMs(u64),
    /// Gives the structured output.
    Structured(Value),
    /// Ends the turn with another stop reason than `complete`.
    Stop(StopReason),
    /// Fails.
    Error {
        /// The kind of fault.
        code: ErrorCode,
        /// What happened.
        #[serde(default)]
        message: String,
        /// How long to wait before trying again, in milliseconds.
        retry_after_ms: Option<u64>,
        /// When a usage limit is lifted.
        resets_at: Option<Timestamp>,
    },
    /// Does nothing until the turn is cancelled or its time is over.
    Hang,
}

impl ProviderInput for ScriptedInput {
    fn resume(&mut self, session: &ProviderSessionId, message: &str) {
        self.messages = None;
        self.prompt = Some(message.to_owned());
        self.options.resume = Some(session.clone());
        self.options.fork = None;
    }

    fn facts(&self) -> InputFacts {
        InputFacts {
            model: self.options.model.clone(),
            session: self.options.resume.clone(),
            multi_turn: if self.options.multi_turn == Some(true) { MultiTurn::On } else { MultiTurn::Off },
            idle_timeout: self.options.idle_timeout_ms.map(Duration::from_millis),
            max_turns: self.options.max_turns,
            output_schema: self.options.output_schema.clone(),
        }
    }
}

/// Plays the script in its input. The conversation is `scripted-N` from the beginning of its N-th turn on, so a turn
/// that was cancelled is not played again.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedProvider;

impl Provider for ScriptedProvider {
    type Input = ScriptedInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "Scripted".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: true,
                thinking: true,
                cost: true,
                fork: true,
                ..ProviderCapabilities::default()
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        input::check(input, Assistant::Refused)
    }

    fn execute(&self, input: ScriptedInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let stream = async_stream::try_stream! {
            let options = input.options;
            input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
            let turn = turn_after(TYPE, options.resume.as_ref())?;
            let steps = usize::try_from(turn - 1).ok().and_then(|index| options.turns.get(index)).ok_or_else(|| {
                let message = format!("the script has {} turns, and this is turn {turn}", options.turns.len());
                AgentError::new(ErrorCode::ConfigInvalid, message)
            })?;
            let session_id = ProviderSessionId::from(format!("{TYPE}-{turn}"));
            let output = TurnOutput {
                session_id: Some(session_id.clone()),
                model: options.model,
                num_turns: 1,
                ..TurnOutput::new(StopReason::Complete)
            };
            let mut play = Play { playback: ScriptedTurn::new(context), output, kept_text: 0 };
            yield ProviderItem::Event(StreamEvent::Session { session_id });
            for (index, step) in steps.iter().enumerate() {
                if play.playback.wait(None).await? == WaitEnd::Cancelled {
                    play.output.stop_reason = StopReason::Aborted;
                    break;
                }
                let tool_use_id = format!("tool-{turn}-{}", index + 1);
                for event in play.begin(step, &tool_use_id) {
                    yield ProviderItem::Event(event);
                }
                let next = play.finish(step, &tool_use_id).await;
                match next.map_err(|error| with_denials(error, &play.output.permission_denials))? {
                    Next::Step(event) => {
                        if let Some(event) = event {
                            yield ProviderItem::Event(event);
                        }
                    }
                    Next::End => break,
                }
            }
            // The last step may have been a wait that was cancelled.
            if play.output.stop_reason == StopReason::Complete && play.playback.context().cancel.is_cancelled() {
                play.output.stop_reason = StopReason::Aborted;
            }
            play.output.duration_ms = play.playback.waited_ms();
            yield ProviderItem::Output(play.output);
        };
        stream.map(|item: Result<_, AgentError>| item.map_err(|error| error.from_provider(TYPE))).boxed()
    }
}

/// A turn as it is played.
struct Play {
    playback: ScriptedTurn,
    output: TurnOutput,
    /// How much of the text a retraction does not void.
    kept_text: usize,
}

/// What follows a step.
enum Next {
    /// The next one, after this event.
    Step(Option<StreamEvent>),
    /// The end of the turn.
    End,
}

impl Play {
    /// The events with which a step begins.
    fn begin(&mut self, step: &Step, tool_use_id: &str) -> Vec<StreamEvent> {
        let pieces = |text: &str, event: fn(String) -> StreamEvent| -> Vec<StreamEvent> {
            words(text).map(|word| event(word.to_owned())).collect()
        };
        match step {
            Step::Text(text) => {
                self.output.text.push_str(text);
                pieces(text, |content| StreamEvent::Text { content, chunk: Chunk::Delta })
            }
            Step::Thinking(text) => {
                pieces(text, |content| StreamEvent::Thinking { content, chunk: Chunk::Delta })
            }
            Step::Retract => {
                self.output.text.truncate(self.kept_text);
                vec![StreamEvent::Retract]
            }
            Step::Tool { name, input, .. } => vec![StreamEvent::ToolStart {
                tool_name: name.clone(),
                tool_use_id: tool_use_id.to_owned(),
                input: input.clone(),
            }],
            Step::Warning { code, message } => {
                vec![StreamEvent::Warning { code: code.clone(), message: message.clone() }]
            }
            Step::Usage { tokens, cost_usd } => {
                (self.output.usage, self.output.cost_usd) = (*tokens, *cost_usd);
                vec![StreamEvent::Usage { usage: *tokens, cost_usd: *cost_usd }]
            }
            Step::Context(context) => vec![StreamEvent::Context { context: *context }],
            _ => Vec::new(),
        }
    }

    /// What a step does after its first events.
    async fn finish(&mut self, step: &Step, tool_use_id: &str) -> Result<Next, AgentError> {
        match step {
            Step::Tool { name, input, result, is_error, ask } => {
                let event = self.tool(tool_use_id, name, input, (result, *is_error), *ask).await;
                return Ok(Next::Step(Some(event)));
            }
            Step::DelayMs(wait) => {
                self.playback.wait(Some(Duration::from_millis(*wait))).await?;
            }
            Step::Structured(value) => self.output.structured_output = Some(value.clone()),
            Step::Stop(reason) => {
                self.output.stop_reason = *reason;
                return Ok(Next::End);
            }
            Step::Error { code, message, retry_after_ms, resets_at } => {
                let message = if message.is_empty() { "the script says so" } else { message };
                let wait = retry_after_ms.map(Duration::from_millis);
                let error = AgentError::new(*code, message).with_retry_after(wait);
                let error = AgentError { resets_at: *resets_at, ..error };
                return Err(error);
            }
            Step::Hang => {
                self.playback.hang().await?;
            }
            _ => {}
        }
        Ok(Next::Step(None))
    }

    /// The result of a tool, after the permission for it if the script requests one.
    async fn tool(
        &mut self,
        tool_use_id: &str,
        name: &str,
        input: &Value,
        (result, is_error): (&Value, bool),
        ask: bool,
    ) -> StreamEvent {
        let request = PermissionRequest {
            tool_use_id: Some(tool_use_id.to_owned()),
            ..PermissionRequest::new(name, input.clone())
        };
        let decision = if ask { permission(&self.playback, request).await } else { Ok(()) };
        self.kept_text = self.output.text.len();
        let tool_use_id = tool_use_id.to_owned();
        match decision {
            Ok(()) => StreamEvent::ToolComplete { tool_use_id, result: result.clone(), is_error },
            Err(message) => {
                self.output.permission_denials.push(PermissionDenial {
                    tool_name: name.to_owned(),
                    tool_use_id: tool_use_id.clone(),
                    tool_input: input.clone(),
                });
                StreamEvent::ToolComplete { tool_use_id, result: Value::from(message), is_error: true }
            }
        }
    }
}

/// Asks whether a tool may be used. A turn that is cancelled meanwhile is denied.
async fn permission(playback: &ScriptedTurn, request: PermissionRequest) -> Result<(), String> {
    let context = playback.context();
    let Some(broker) = &context.permissions else {
        return Err(format!("permission to use `{}` was denied: there is nobody to ask", request.tool_name));
    };
    match context.cancel.run_until_cancelled(broker.request(request)).await {
        Some(PermissionDecision::Allow { .. }) => Ok(()),
        Some(PermissionDecision::Deny { message }) => Err(message),
        None => Err("the turn was cancelled".to_owned()),
    }
}

#[cfg(test)]
mod tests;
