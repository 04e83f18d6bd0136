//! How a question to a person is asked: the channels show it and bring the answer.

use inspan_flow_core::{HumanAnswer, HumanInput, HumanQuestion, parse_time, read_input, write_output};
use inspan_protocol::{AgentError, ErrorCode, Form, Prompt, PromptKind, Reply};
use serde_json::Value;

use crate::node::{NodeContext, NodeType};

impl NodeType for HumanInput {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let question: HumanQuestion = read_input(input)?;
        let is_form = question.schema.is_some();
        if let Some(reply) = context.interrupted.as_ref().and_then(|cut| cut.reply.clone()) {
            // It was answered, and the process died before the answer was used.
            return answer(is_form, reply);
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
        answer(is_form, reply)
    }
}

fn answer(is_form: bool, Reply { content, choice }: Reply) -> Result<Value, AgentError> {
    let value = is_form.then(|| serde_json::from_str(&content)).transpose().map_err(|error| {
        AgentError::new(ErrorCode::OutputInvalid, format!("the answer to the form is no JSON: {error}"))
    })?;
    write_output(&HumanAnswer { content, choice, value })
}

fn prompt(question: HumanQuestion, context: &NodeContext) -> Result<Prompt, AgentError> {
    let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
    let default = default(&question).map_err(&wrong)?;
    if let (Some(default), Some(choices), None | Some(false)) =
        (&default, &question.choices, question.allow_text)
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
    // A question that is asked again after a pause has the same id.
    let id = asked.map_or_else(|| context.hub.ids().prompt_id(), |asked| asked.prompt_id.clone());
    Ok(Prompt {
        choices: question.choices,
        allow_text: question.allow_text,
        deadline,
        default,
        schema: question.schema.map(|schema| context.redactor.value(schema)),
        ..Prompt::new(id, PromptKind::Input, context.redactor.text(&question.prompt))
    })
}

/// The default as the text of an answer; that of a form with the defaults of its fields.
fn default(question: &HumanQuestion) -> Result<Option<String>, String> {
    let form = question.schema.as_ref().map(|schema| {
        let form = Form::of(schema);
        form.map_err(|problem| format!("`schema{}` is no form: {}", problem.pointer, problem.message))
    });
    match (form.transpose()?, &question.default) {
        (_, None | Some(Value::Null)) => Ok(None),
        (Some(form), Some(default)) => {
            let filled = form.check(default).map_err(|why| format!("the default does not fit: {why}"))?;
            Ok(Some(Value::Object(filled).to_string()))
        }
        (None, Some(Value::Object(_))) => {
            Err("a mapping as `default` is for a form: add `schema`".to_owned())
        }
        (None, Some(Value::String(text))) => Ok(Some(text.clone())),
        (None, Some(other)) => Ok(Some(other.to_string())),
    }
}
