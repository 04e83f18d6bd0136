//! How a question to a person is asked: the channels show it and bring the answer.

use inspan_flow_core::{HumanAnswer, HumanInput, HumanQuestion, parse_time, read_input, write_output};
use inspan_protocol::{AgentError, ErrorCode, Prompt, PromptKind, Reply};
use serde_json::Value;

use crate::node::{NodeContext, NodeType};

impl NodeType for HumanInput {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let question: HumanQuestion = read_input(input)?;
        if let Some(Reply { content, choice }) =
            context.interrupted.as_ref().and_then(|cut| cut.reply.clone())
        {
            // It was answered, and the process died before the answer was used.
            return write_output(&HumanAnswer { content, choice });
        }
        let prompt = prompt(question, &context)?;
        let reply = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(context.aborted()),
            reply = context.hub.ask(prompt) => reply,
        };
        let reply = reply.map_err(|_| {
            AgentError::new(ErrorCode::Timeout, "nobody answered in time and the question has no default")
        })?;
        write_output(&HumanAnswer { content: reply.content, choice: reply.choice })
    }
}

fn prompt(question: HumanQuestion, context: &NodeContext) -> Result<Prompt, AgentError> {
    let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
    if let (Some(default), Some(choices), None | Some(false)) =
        (&question.default, &question.choices, question.allow_text)
        && !choices.contains(default)
    {
        return Err(wrong(format!(
            "the default `{default}` is not among the choices: {}",
            choices.join(", ")
        )));
    }
    let deadline = match &question.timeout {
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
        choices: question.choices,
        allow_text: question.allow_text,
        deadline,
        default: question.default,
        ..Prompt::new(id, PromptKind::Input, context.redactor.text(&question.prompt))
    })
}
