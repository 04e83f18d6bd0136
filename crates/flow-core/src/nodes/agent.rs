//! The `agents` pack: one generic agent node. `NAME.agent` is that node with the provider `NAME`, and
//! `agent.run` names its provider in its input; the schemas are the provider's own, so that no vendor is
//! known here.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{DynProvider, InputProblem, ProviderCapabilities, Setup};
use serde_json::{Value, json};

use crate::{
    expr::has_segments,
    node::{DescribeNode, NodeKind, NodeTypeInfo, Occupies},
};

/// `NAME.agent`.
pub struct ProviderAgent(pub Arc<dyn DynProvider>);

impl DescribeNode for ProviderAgent {
    fn describe(&self) -> NodeTypeInfo {
        let descriptor = self.0.descriptor();
        NodeTypeInfo {
            name: self.name(),
            pack: "agents".into(),
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

    fn program_for(&self, input: &Value) -> Option<String> {
        let Setup::AnyProgram { option } = self.0.setup() else { return None };
        let program = input.pointer(&format!("/options/{option}"))?.as_str()?;
        (!has_segments(program)).then(|| program.to_owned())
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.0.check_input(input)
    }
}

/// `agent.run`.
pub struct AnyAgent(BTreeMap<String, Arc<dyn DynProvider>>);

impl AnyAgent {
    /// `agent.run` over these providers.
    pub fn new(providers: impl IntoIterator<Item = Arc<dyn DynProvider>>) -> Self {
        let named = |provider: Arc<dyn DynProvider>| (provider.descriptor().provider_type, provider);
        Self(providers.into_iter().map(named).collect())
    }

    /// The provider that the input names.
    pub fn provider(&self, input: &Value) -> Option<&Arc<dyn DynProvider>> {
        self.0.get(input.get("provider")?.as_str()?)
    }
}

impl DescribeNode for AnyAgent {
    fn describe(&self) -> NodeTypeInfo {
        let names: Vec<_> = self.0.keys().collect();
        NodeTypeInfo {
            name: "agent.run".into(),
            pack: "agents".into(),
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

    fn name(&self) -> Arc<str> {
        "agent.run".into()
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

    fn output_schema_for(&self, input: &Value) -> Option<Value> {
        Some(self.provider(input)?.output_schema())
    }

    fn providers(&self) -> Option<Vec<String>> {
        Some(self.0.keys().cloned().collect())
    }

    fn capabilities_for(&self, input: &Value) -> Option<ProviderCapabilities> {
        Some(self.provider(input)?.descriptor().capabilities)
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.provider(input).map_or_else(Vec::new, |provider| provider.check_input(input))
    }
}

/// The article before a name, by its pronunciation.
fn article(name: &str) -> &'static str {
    if name.starts_with(['A', 'E', 'I', 'O', 'a', 'e', 'i', 'o']) { "an" } else { "a" }
}
