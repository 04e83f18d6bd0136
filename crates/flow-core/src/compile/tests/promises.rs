//! What the compiler says about a path into a structured output is true for every value that its schema
//! allows.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{compiled, registry};
use crate::{Code, Scope, Severity, compile, testing::loaded};

/// A schema, and a value that matches it.
fn typed() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        Just((json!({ "type": "string" }), json!("text"))),
        Just((json!({ "type": "integer" }), json!(3))),
        Just((json!({ "enum": ["red", "blue"] }), json!("blue"))),
        Just((json!({ "type": "boolean" }), json!(true))),
        Just((json!({}), json!({ "a": { "b": 1 } }))),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let field = (inner.clone(), any::<bool>(), any::<bool>());
        let object = prop::collection::btree_map("[abc]", field, 1..4).prop_map(|fields| {
            let required: Vec<_> =
                fields.iter().filter(|(_, (_, is_required, _))| *is_required).map(|(key, _)| key).collect();
            let properties: Map<_, _> =
                fields.iter().map(|(key, ((schema, _), ..))| (key.clone(), schema.clone())).collect();
            let present = fields.iter().filter(|(_, (_, is_required, is_there))| *is_required || *is_there);
            let value: Map<_, _> = present.map(|(key, ((_, value), ..))| (key.clone(), value.clone())).collect();
            let schema = json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            });
            (schema, Value::Object(value))
        });
        let list = inner.prop_map(|(schema, value)| (json!({ "type": "array", "items": schema }), json!([value])));
        prop_oneof![object, list]
    })
}

fn steps() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof![Just(".a"), Just(".b"), Just(".c"), Just("[0]")], 1..4)
        .prop_map(|steps| steps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hold_for_every_value((schema, value) in typed(), steps in steps(), word in "red|blue|text|3") {
        let path = format!("first.structuredOutput{steps}");
        let flow = json!({
            "name": "f",
            "nodes": [
                { "id": "first", "type": "claude.agent", "input": { "prompt": "x", "options": { "outputSchema": schema } } },
                { "id": "use", "type": "constant", "dependsOn": "first", "input": { "value": format!("{{{{ {path} }}}}") } },
                { "id": "same", "type": "constant", "dependsOn": "first", "input": { "value": format!("{{{{ {path} == '{word}' }}}}") } },
            ],
        });
        let loaded = loaded(&flow.to_string());
        let found = match compile(&loaded, &registry()) {
            Ok(compiled) => compiled.warnings,
            Err(found) => found,
        };
        let of = |node: &str| found.iter().find(|problem| problem.node.as_ref().is_some_and(|id| id.as_str() == node));
        let resolved = |text: String| {
            let schemaless = json!({ "name": "f", "nodes": [
                { "id": "first", "type": "constant", "input": { "value": "{{ state.x }}" } },
                { "id": "use", "type": "constant", "dependsOn": "first", "input": { "value": text } },
            ] });
            let graph = compiled(&schemaless.to_string()).unwrap();
            let outputs = [Some(Arc::new(json!({ "value": value }))), None];
            let none = json!({});
            let scope = Scope::new(&outputs, &none, &none, &none);
            graph.flow().nodes[1].input.resolve(&scope).ok().and_then(|input| input.get("value").cloned())
        };
        let path = format!("first.value{steps}");
        let used = resolved(format!("{{{{ {path} }}}}"));
        match of("use") {
            None => prop_assert!(used.is_some() || schema.to_string().contains("{}"), "{found}"),
            Some(problem) if problem.severity == Severity::Error => prop_assert_eq!(used, None, "{}", found),
            Some(_) => {}
        }
        if of("same").is_some_and(|problem| problem.code == Code::ConstantCondition) {
            prop_assert_ne!(resolved(format!("{{{{ {path} == '{word}' }}}}")), Some(json!(true)), "{}", found);
        }
    }
}
