//! How the node types that come with Inspan are run, where that takes more than a computation.

mod agent;
mod exec;
mod http;
mod mcp;

use std::time::Duration;

use inspan_engine::{Filter, ProviderRegistry, sleep_until};
use inspan_flow_core::{
    AnyAgent, ControlWait, DescribeNode, Exec, HttpRequest, HumanAnswer, HumanInput, HumanQuestion, McpCall,
    ProviderAgent, WaitFor, WaitInput, WaitOutput, builtin_catalog, read_input, write_output,
};
use inspan_protocol::{AgentError, ErrorCode, Timestamp};
use serde_json::Value;

use crate::node::{NodeContext, NodeRegistry, NodeType};
use http::HttpNode;
use mcp::McpNode;

/// All node types that come with Inspan, with one agent type per registered provider.
pub fn builtin_nodes(providers: &ProviderRegistry) -> NodeRegistry {
    let providers: Vec<_> = providers.iter().map(|(_, provider)| provider.clone()).collect();
    let mut registry = NodeRegistry::from(builtin_catalog(providers.clone()));
    registry.register(ControlWait).register(HumanInput).register(Exec);
    registry.run_by(HttpRequest.name(), HttpNode::default()).run_by(McpCall.name(), McpNode::default());
    for provider in &providers {
        registry.register(ProviderAgent(provider.clone()));
    }
    registry.register(AnyAgent::new(providers));
    registry
}

/// The channels show a question to a person, and bring the answer.
impl NodeType for HumanInput {
    async fn run(&self, mut context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let question: HumanQuestion = read_input(input)?;
        let is_form = question.schema.is_some();
        if let Some(reply) = context.interrupted.as_ref().and_then(|cut| cut.reply.clone()) {
            // It was answered, and the process died before the answer was used.
            return HumanAnswer::of(is_form, reply);
        }
        let asked = context.interrupted.as_ref().and_then(|cut| cut.asked.as_ref());
        // A question that is asked again after a pause has the same id.
        let id = asked.map_or_else(|| context.hub.ids().prompt_id(), |asked| asked.prompt_id.clone());
        let prompt = question.prompt(id, context.since(), &context.redactor)?;
        let reply = context.ask(prompt).await?;
        HumanAnswer::of(is_form, reply)
    }
}

impl NodeType for ControlWait {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let wait: WaitInput = read_input(input)?;
        // The time of an interrupted wait counts from its first start.
        let began = context.since();
        let event = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(context.aborted()),
            event = wait_end(&wait, &context, began) => event?,
        };
        let waited_ms = context.hub.clock().now().since(began).as_millis() as u64;
        write_output(&WaitOutput { waited_ms, event })
    }
}

/// Waits; gives the event that ended the wait, if one did.
async fn wait_end(
    wait: &WaitInput,
    context: &NodeContext,
    began: Timestamp,
) -> Result<Option<Value>, AgentError> {
    let (names, limit) = match wait.waits_for()? {
        WaitFor::Time(time) => {
            sleep_until(&**context.hub.clock(), began + time).await;
            return Ok(None);
        }
        WaitFor::Moment(moment) => {
            sleep_until(&**context.hub.clock(), moment).await;
            return Ok(None);
        }
        WaitFor::Event { names, limit } => (names, limit.unwrap_or(Duration::MAX)),
    };
    let filter = Filter::parse(&names)
        .map_err(|error| AgentError::new(ErrorCode::ConfigInvalid, error.to_string()))?;
    let mut events = context.hub.subscribe(filter.clone());
    // Subscribed first: what comes while the log is read is in the subscription.
    if let Some(envelope) = context.earlier(filter).await? {
        return Ok(Some(write_output(&envelope.event)?));
    }
    let waited = context.hub.clock().now().since(began);
    let end = async {
        loop {
            match events.next().await {
                Some(envelope) if !ControlWait::ends_by(&envelope.event) => {}
                end => break end,
            }
        }
    };
    match tokio::time::timeout(limit.saturating_sub(waited), end).await {
        Ok(Some(envelope)) => Ok(Some(write_output(&envelope.event)?)),
        Ok(None) => Err(AgentError::new(ErrorCode::Aborted, "the session ended")),
        Err(_) => Err(AgentError::new(ErrorCode::Timeout, format!("no `{names}` came within {limit:?}"))),
    }
}
