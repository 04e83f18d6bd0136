use std::{collections::BTreeMap, fs, path::Path};

use futures::future::BoxFuture;
use inspan_protocol::{AgentError, ProviderCapabilities};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    Condition, FlowError, NodeContext, NodeKind, NodeType, NodeTypeInfo, Occupies,
    graph::{EdgeIx, Join, OnExhausted, Retry, RetryOn},
    load,
};

/// A node type that is only described.
struct Described {
    name: &'static str,
    pack: &'static str,
    kind: NodeKind,
    input: Value,
    providers: &'static [&'static str],
    can: Option<ProviderCapabilities>,
}

impl NodeType for Described {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo {
            name: self.name.into(),
            pack: self.pack,
            help: format!("The type {}.", self.name),
            input: self.input.clone(),
            output: json!({}),
            kind: self.kind,
            occupies: Occupies::Slot,
        }
    }

    fn providers(&self) -> Option<Vec<String>> {
        (!self.providers.is_empty()).then(|| self.providers.iter().map(|name| (*name).to_owned()).collect())
    }

    fn input_schema_for(&self, input: &Value) -> Option<Value> {
        let provider = input.get("provider")?.as_str()?;
        (provider == "claude").then(|| agent_schema(&json!({ "provider": { "type": "string" } })))
    }

    fn capabilities_for(&self, _: &Value) -> Option<ProviderCapabilities> {
        self.can
    }

    fn run(&self, _: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        Box::pin(std::future::ready(Ok(input)))
    }
}

fn agent_schema(more: &Value) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": {
            "prompt": { "type": "string" },
            "messages": { "type": "array" },
            "options": {
                "type": "object",
                "properties": {
                    "model": { "type": ["string", "null"] },
                    "maxTurns": { "type": "integer", "minimum": 1 },
                    "outputSchema": { "type": "object" },
                    "tools": { "type": "array", "items": { "type": "string" } },
                    "permissionMode": { "enum": ["ask", "allow", "deny"] },
                    "thinking": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                },
                "additionalProperties": false,
            },
        },
        "anyOf": [{ "required": ["prompt"] }, { "required": ["messages"] }],
        "additionalProperties": false,
    });
    if let (Some(properties), Some(more)) = (schema["properties"].as_object_mut(), more.as_object()) {
        properties.extend(more.clone());
    }
    schema
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

pub(crate) fn registry() -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    let mut add = |name, pack, kind, input| {
        registry.register(Described { name, pack, kind, input, providers: &[], can: None });
    };
    add("echo", "core", NodeKind::Plain, object(json!({ "text": { "type": "string" } }), &["text"]));
    add("constant", "core", NodeKind::Plain, object(json!({ "value": {} }), &["value"]));
    let when = json!({ "condition": { "type": "boolean", "x-when": true } });
    add("control.if", "control", NodeKind::Plain, object(when, &["condition"]));
    let mode = json!({ "mode": { "enum": ["all", "any"] } });
    add("control.merge", "control", NodeKind::Merge, object(mode, &[]));
    let prompt = json!({
        "prompt": { "type": "string" },
        "choices": { "type": "array", "items": { "type": "string" } },
        "timeout": { "type": "string" },
        "default": { "type": "string" },
    });
    add("human.input", "human", NodeKind::Plain, object(prompt, &["prompt"]));
    let exec = json!({
        "argv": { "type": "array", "items": { "type": "string" }, "minItems": 1 },
        "env": { "type": "object", "additionalProperties": { "type": "string" } },
        "parse": { "enum": ["text", "json", "lines"] },
    });
    add("exec", "io", NodeKind::Plain, object(exec, &["argv"]));
    let map = json!({ "list": { "type": "array" }, "template": { "x-raw": true } });
    add("data.map", "data", NodeKind::Plain, object(map, &["list", "template"]));
    let all = ProviderCapabilities {
        structured_output: true,
        permissions: true,
        tools: true,
        thinking: true,
        ..ProviderCapabilities::default()
    };
    let agent = |name, providers, can, more| Described {
        name,
        pack: "agents",
        kind: NodeKind::Agent,
        input: agent_schema(&more),
        providers,
        can: Some(can),
    };
    registry.register(agent("claude.agent", &[], all, json!({})));
    registry.register(agent("codex.agent", &[], all, json!({})));
    registry.register(agent("echo.agent", &[], ProviderCapabilities::default(), json!({})));
    let open = json!({ "provider": { "type": "string" } });
    registry.register(agent("agent.run", &["claude", "codex"], all, open));
    registry
}

/// Compiles a text without files; the problems as printed.
pub(crate) fn compiled(text: &str) -> Result<Graph, String> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    compile(&loaded, &registry()).map(|compiled| compiled.graph).map_err(|problems| problems.to_string())
}

pub(crate) const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/compile");

/// Each folder of `fixtures/compile` holds a flow and what the compiler says of it.
#[test]
fn fixtures_give_their_diagnostics() {
    let registry = registry();
    let mut wrong = Vec::new();
    let mut cases: Vec<_> = fs::read_dir(FIXTURES).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    for case in cases.iter().filter(|case| case.is_dir()) {
        let mut loaded = load(&case.join("flow.yaml")).unwrap();
        loaded.name = "flow.yaml".into();
        let said = match compile(&loaded, &registry) {
            Ok(compiled) => format!("{}\nthe flow can run\n", compiled.warnings).trim_start().to_owned(),
            Err(problems) => format!("{problems}\n"),
        };
        let golden = case.join("diagnostics.txt");
        if std::env::var_os("INSPAN_BLESS").is_some() {
            fs::write(&golden, &said).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if said != expected {
            wrong.push(format!("{}:\nexpected:\n{expected}\nsaid:\n{said}", case.display()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "INSPAN_BLESS=1 accepts what was said");
}
