//! The `agents` pack: one generic agent node. `NAME.agent` is that node with the provider `NAME`, and
//! `agent.run` names its provider in its input; the schemas are the provider's own, so that no vendor is
//! known here.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{AgentRun, ProviderRegistry};
use inspan_protocol::{
    AgentError, DynProvider, ErrorCode, ErrorKind, InputProblem, ProviderCapabilities, StopReason,
};
use serde_json::{Value, json};

use crate::{
    graph::Occupies,
    node::{NodeKind, NodeType, NodeTypeInfo},
    registry::NodeRegistry,
    runtime::NodeContext,
    state::CONTINUE,
};

/// One type per provider, and `agent.run` for all.
pub(super) fn register(registry: &mut NodeRegistry, providers: &ProviderRegistry) {
    for (_, provider) in providers.iter() {
        registry.register(ProviderAgent(provider.clone()));
    }
    registry.register(AnyAgent(providers.clone()));
}

/// `NAME.agent`.
struct ProviderAgent(Arc<dyn DynProvider>);

impl NodeType for ProviderAgent {
    fn describe(&self) -> NodeTypeInfo {
        let descriptor = self.0.descriptor();
        NodeTypeInfo {
            name: self.name(),
            pack: "agents",
            help: format!("Runs {} {} agent.", article(&descriptor.display_name), descriptor.display_name),
            input: self.0.input_schema(),
            output: self.0.output_schema(),
            kind: NodeKind::Agent,
            occupies: Occupies::Slot,
        }
    }

    fn name(&self) -> Arc<str> {
        format!("{}.agent", self.0.descriptor().provider_type).into()
    }

    fn capabilities_for(&self, _: &Value) -> Option<ProviderCapabilities> {
        Some(self.0.descriptor().capabilities)
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.0.check_input(input)
    }

    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        run(self.0.clone(), context, input).boxed()
    }
}

/// `agent.run`.
struct AnyAgent(ProviderRegistry);

impl AnyAgent {
    fn provider(&self, input: &Value) -> Option<&Arc<dyn DynProvider>> {
        self.0.get(input.get("provider")?.as_str()?)
    }
}

impl NodeType for AnyAgent {
    fn describe(&self) -> NodeTypeInfo {
        let names: Vec<_> = self.0.names().collect();
        NodeTypeInfo {
            name: "agent.run".into(),
            pack: "agents",
            help: "Runs an agent of the provider that its input names.".to_owned(),
            input: json!({
                "type": "object",
                "required": ["provider"],
                "properties": {
                    "provider": { "description": "The provider's type.", "enum": names },
                },
            }),
            output: json!({ "type": "object" }),
            kind: NodeKind::Agent,
            occupies: Occupies::Slot,
        }
    }

    fn input_schema_for(&self, input: &Value) -> Option<Value> {
        let mut schema = self.provider(input)?.input_schema();
        let properties = schema.get_mut("properties")?.as_object_mut()?;
        properties.insert(
            "provider".to_owned(),
            json!({ "type": "string", "description": "The provider's type." }),
        );
        Some(schema)
    }

    fn providers(&self) -> Option<Vec<String>> {
        Some(self.0.names().map(str::to_owned).collect())
    }

    fn capabilities_for(&self, input: &Value) -> Option<ProviderCapabilities> {
        Some(self.provider(input)?.descriptor().capabilities)
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.provider(input).map_or_else(Vec::new, |provider| provider.check_input(input))
    }

    fn run(&self, context: NodeContext, mut input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        let provider = self.provider(&input).cloned();
        async move {
            let asked = input.as_object_mut().and_then(|input| input.remove("provider"));
            let provider = provider.ok_or_else(|| {
                let asked = asked.unwrap_or_default();
                AgentError::new(ErrorCode::ConfigInvalid, format!("there is no provider {asked}"))
            })?;
            run(provider, context, input).await
        }
        .boxed()
    }
}

async fn run(
    provider: Arc<dyn DynProvider>,
    context: NodeContext,
    input: Value,
) -> Result<Value, AgentError> {
    let unheard = unheard(&context).map(|mail| (input.clone(), mail));
    let turns = context.conversation.as_ref().map_or(0, |known| known.turns);
    let input = go_on(&*provider, &context, input)?;
    let end =
        agent(&provider, &context, input).first_turn(turns + 1).mail(context.mail.clone()).execute().await;
    let end = match (end, unheard) {
        (Err(error), Some((input, mail))) if error.is(ErrorKind::SessionNotFound) => {
            agent(&provider, &context, input).mail(mail).execute().await?
        }
        (end, _) => end?,
    };
    if end.facts.stop_reason == StopReason::Aborted {
        return Err(context.aborted());
    }
    Ok(end.output)
}

fn agent(provider: &Arc<dyn DynProvider>, context: &NodeContext, input: Value) -> AgentRun {
    // The provider itself applies the option `cwd`.
    AgentRun::new(context.hub.clone(), context.node.to_string(), provider.clone(), input)
        .cwd(context.cwd.clone())
        .env(context.env.clone())
        .permissions(context.permissions)
        .tools(context.tools.clone())
        .supervisor(context.supervisor.clone())
        .cancel(context.cancel.clone())
}

/// Whether the conversation that is gone on with may never have heard its prompt: it was named, and then everything
/// died before it said anything. Gives the messages that wait for it.
fn unheard(context: &NodeContext) -> Option<Vec<String>> {
    let message = context.interrupted.as_ref().and_then(|cut| cut.message.as_ref())?;
    let is_new = context.conversation.as_ref().is_some_and(|known| known.turns == 0);
    is_new.then(|| if message == CONTINUE { Vec::new() } else { vec![message.clone()] })
}

/// The input as the next turn of the conversation that the node goes on with, if there is one yet.
fn go_on(provider: &dyn DynProvider, context: &NodeContext, input: Value) -> Result<Value, AgentError> {
    let Some(known) = &context.conversation else { return Ok(input) };
    if let Some(message) = context.interrupted.as_ref().and_then(|cut| cut.message.as_deref()) {
        // It was cut short: the vendor knows what was said, and is told to go on.
        return provider.resume(input, &known.session_id, message);
    }
    let Some(prompt) = input.get("prompt").and_then(Value::as_str).map(str::to_owned) else {
        let message = "a node that goes on in a conversation needs a `prompt`; it has `messages`";
        return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
    };
    provider.resume(input, &known.session_id, &prompt)
}
/// The article before a name, as it is spoken.
fn article(name: &str) -> &'static str {
    if name.starts_with(['A', 'E', 'I', 'O', 'a', 'e', 'i', 'o']) { "an" } else { "a" }
}
