//! How an agent's node is run, whatever its provider.

use std::sync::Arc;

use inspan_engine::AgentRun;
use inspan_flow_core::{AnyAgent, CONTINUE, Conversation, ProviderAgent};
use inspan_protocol::{AgentError, DynProvider, ErrorCode, ErrorKind, MultiTurn, StopReason};
use serde_json::{Value, json};

use crate::node::{NodeContext, NodeType};

impl NodeType for ProviderAgent {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        run(self.0.clone(), context, input).await
    }
}

impl NodeType for AnyAgent {
    async fn run(&self, context: NodeContext, mut input: Value) -> Result<Value, AgentError> {
        let provider = self.provider(&input).cloned();
        let asked = input.as_object_mut().and_then(|input| input.remove("provider"));
        let provider = provider.ok_or_else(|| {
            let asked = asked.as_ref().and_then(Value::as_str).unwrap_or_default();
            AgentError::new(ErrorCode::ConfigInvalid, format!("unknown provider `{asked}`"))
        })?;
        run(provider, context, input).await
    }
}

async fn run(
    provider: Arc<dyn DynProvider>,
    context: NodeContext,
    input: Value,
) -> Result<Value, AgentError> {
    let turns = context.conversation.as_ref().or(context.branches.as_ref()).map_or(0, |known| known.turns);
    let (input, mail) = told(&context, input);
    let answered = answered(&*provider, &context, &input).await;
    let undelivered_prompt = match answered {
        Some(_) => None,
        None => undelivered_prompt(&*provider, &context).await.map(|mail| (input.clone(), mail)),
    };
    let run = match (answered, &context.conversation, &context.branches) {
        (Some(output), Some(known), _) => agent(&provider, &context, input)
            .answered(output, known.session_id.clone())
            .first_turn(turns.max(1)),
        (_, None, Some(known)) => {
            agent(&provider, &context, branch(&*provider, input, known)?).first_turn(turns + 1)
        }
        _ => {
            let (input, goes_on) = go_on(&*provider, &context, input).await?;
            let run = agent(&provider, &context, input).first_turn(turns + 1);
            let counted = context.conversation.as_ref().and_then(|known| known.turn_id.clone());
            if goes_on { run.going_on(counted) } else { run }
        }
    };
    let end = run.mail(mail).execute().await;
    let end = match (end, undelivered_prompt) {
        (Err(error), Some((input, mail)))
            if error.is(ErrorKind::SessionNotFound) || error.is(ErrorKind::NotOffered) =>
        {
            let input = match &context.branches {
                Some(known) => branch(&*provider, input, known)?,
                None => input,
            };
            agent(&provider, &context, input).mail(mail).execute().await?
        }
        (end, _) => end?,
    };
    if end.facts.stop_reason == StopReason::Aborted {
        return Err(context.aborted().with_denials(&end.denials));
    }
    Ok(end.output)
}

fn agent(provider: &Arc<dyn DynProvider>, context: &NodeContext, input: Value) -> AgentRun {
    // The run itself takes the secrets of its host out of what it emits, and the provider applies the option `cwd`.
    AgentRun::new(context.hub.as_redacted(), context.node.to_string(), provider.clone(), input)
        .host(context.traced_host())
        .cancel(context.cancel.clone())
}

/// The input of an agent that starts over, with the message that the session was resumed with, and the messages that follow its
/// first turn.
fn told(context: &NodeContext, mut input: Value) -> (Value, Vec<String>) {
    let mut mail = context.mail.clone();
    let message = context.interrupted.as_ref().and_then(|cut| cut.message.as_deref());
    if let Some(message) = message.filter(|message| *message != CONTINUE && context.conversation.is_none()) {
        match input.get_mut("prompt") {
            Some(Value::String(prompt)) => *prompt = after_prompt(prompt, message),
            _ => mail.push(message.to_owned()),
        }
    }
    (input, mail)
}

/// The message to an agent that may not know its prompt.
fn after_prompt(prompt: &str, message: &str) -> String {
    if message == CONTINUE { prompt.to_owned() } else { format!("{prompt}\n\n{message}") }
}

/// What an agent had answered that waited for messages when it was interrupted, unless it is resumed with a message: it waits
/// again, without a turn that nobody asked for.
async fn answered(provider: &dyn DynProvider, context: &NodeContext, input: &Value) -> Option<Value> {
    let message = context.interrupted.as_ref()?.message.as_ref()?;
    let waits = || provider.input_facts(input).is_ok_and(|facts| facts.multi_turn == MultiTurn::On);
    if message != CONTINUE || context.conversation.is_none() || !waits() {
        return None;
    }
    context.answered().await.filter(|output| provider.output_facts(output).is_ok())
}

/// Whether the conversation that is resumed may never have got its prompt, or cannot be resumed: it was named, and then everything
/// died before its agent said or did anything, or the agent forgets a turn that is cut. Gives the messages that wait for it.
async fn undelivered_prompt(provider: &dyn DynProvider, context: &NodeContext) -> Option<Vec<String>> {
    let message = context.interrupted.as_ref().and_then(|cut| cut.message.as_ref())?;
    let is_new = context.conversation.as_ref().is_some_and(|known| known.turns == 0);
    let forgets = provider.descriptor().capabilities.forgets_cut_turns;
    if !is_new || (!forgets && context.is_known_to_have_answered().await) {
        return None;
    }
    Some(if message == CONTINUE { Vec::new() } else { vec![message.clone()] })
}

/// The input as the next turn of the conversation that the node continues, if there is one yet; and whether it says nothing but
/// that the agent is to go on.
async fn go_on(
    provider: &dyn DynProvider,
    context: &NodeContext,
    input: Value,
) -> Result<(Value, bool), AgentError> {
    let Some(known) = &context.conversation else { return Ok((input, false)) };
    let Some(message) = context.interrupted.as_ref().and_then(|cut| cut.message.as_deref()) else {
        return Ok((next_turn(provider, input, known)?, false));
    };
    let prompt = input.get("prompt").and_then(Value::as_str);
    let (message, goes_on) = match prompt {
        // It was cut short before its vendor said anything, and maybe before the vendor had the prompt, or the vendor has
        // forgotten it.
        Some(prompt) if !knows_prompt(provider, context).await => (after_prompt(prompt, message), false),
        _ => (message.to_owned(), message == CONTINUE),
    };
    Ok((provider.resume(input, &known.session_id, &message)?, goes_on))
}

/// Whether the vendor knows what an agent was asked that is resumed.
async fn knows_prompt(provider: &dyn DynProvider, context: &NodeContext) -> bool {
    match provider.descriptor().capabilities.forgets_cut_turns {
        true => context.has_ended_turn().await,
        false => context.has_answered().await,
    }
}

/// The input as the first turn of a branch of a conversation.
fn branch(provider: &dyn DynProvider, input: Value, known: &Conversation) -> Result<Value, AgentError> {
    let mut input = next_turn(provider, input, known)?;
    let options = input.as_object_mut().map(|input| input.entry("options").or_insert(Value::Null));
    if let Some(options) = options {
        if options.is_null() {
            *options = json!({});
        }
        options["fork"] = json!(true);
        if let Some(turn_id) = &known.turn_id {
            options["forkAt"] = json!(turn_id);
        }
    }
    Ok(input)
}

fn next_turn(provider: &dyn DynProvider, input: Value, known: &Conversation) -> Result<Value, AgentError> {
    let Some(prompt) = input.get("prompt").and_then(Value::as_str).map(str::to_owned) else {
        let message = "a node that continues a conversation needs a `prompt`; it has `messages`";
        return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
    };
    provider.resume(input, &known.session_id, &prompt)
}
