//! The `human` pack: a question to a person. The channels ask it on a screen and bring the answer.

use futures::{FutureExt, future::BoxFuture};

use inspan_protocol::{AgentError, ErrorCode, Prompt, PromptKind, Reply};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed;
use crate::{
    graph::Occupies,
    node::{NodeType, NodeTypeInfo},
    runtime::NodeContext,
    spec::parse_time,
};

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Question {
    /// The question.
    prompt: String,
    /// The answers to choose from.
    #[serde(default)]
    choices: Option<Vec<String>>,
    /// Whether a free text is an answer; by default only if there are no choices.
    #[serde(default)]
    allow_text: Option<bool>,
    /// How long to wait, as `30s`, `5m`, `8h`; then the default is taken, or the node fails.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    timeout: Option<String>,
    /// The answer that is taken when the time is up.
    #[serde(default)]
    default: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Answer {
    /// The answer.
    content: String,
    /// Which of the choices it is; null for a free text.
    choice: Option<String>,
}

/// `human.input`.
pub(super) struct HumanInput;

impl NodeType for HumanInput {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Asks a person: a text, one of the choices, or both.";
        let info = typed::describe::<Question, Answer>("human.input", "human", help);
        NodeTypeInfo { occupies: Occupies::Nothing, ..info }
    }

    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        async move {
            let question: Question = typed::read(input)?;
            if let Some(Reply { content, choice }) =
                context.interrupted.as_ref().and_then(|cut| cut.reply.clone())
            {
                // It was answered, and the process died before the answer was used.
                return typed::write(&Answer { content, choice });
            }
            let prompt = question.prompt(&context)?;
            let reply = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(context.aborted()),
                reply = context.hub.ask(prompt) => reply,
            };
            let reply = reply.map_err(|_| {
                AgentError::new(ErrorCode::Timeout, "nobody answered in time and the question has no default")
            })?;
            typed::write(&Answer { content: reply.content, choice: reply.choice })
        }
        .boxed()
    }
}

impl Question {
    fn prompt(self, context: &NodeContext) -> Result<Prompt, AgentError> {
        let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
        if let (Some(default), Some(choices), None | Some(false)) =
            (&self.default, &self.choices, self.allow_text)
            && !choices.contains(default)
        {
            return Err(wrong(format!(
                "the default `{default}` is not among the choices: {}",
                choices.join(", ")
            )));
        }
        let deadline = match &self.timeout {
            Some(text) => {
                let limit = parse_time(text).map_err(|why| wrong(format!("`timeout: {text}`: {why}")))?;
                Some(context.since() + limit)
            }
            None => None,
        };
        let asked = context.interrupted.as_ref().and_then(|cut| cut.asked.as_ref());
        // A question that is asked again after a pause keeps its id.
        let id = asked.map_or_else(|| context.hub.ids().prompt_id(), |asked| asked.prompt_id.clone());
        Ok(Prompt {
            choices: self.choices,
            allow_text: self.allow_text,
            deadline,
            default: self.default,
            ..Prompt::new(id, PromptKind::Input, context.redactor.text(&self.prompt))
        })
    }
}
