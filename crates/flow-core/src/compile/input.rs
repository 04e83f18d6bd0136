//! The input of a run: defaults, overrides and the schema that both must match.

use inspan_protocol::{DEEPEST, is_too_deep};
use serde_json::{Map, Value};

use crate::{diagnostic::did_you_mean, graph::Graph};

/// The input does not match the flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid input for flow `{flow}`: {}", problems.join("; "))]
pub struct InputError {
    /// The flow's name.
    pub flow: String,
    /// Each problem, in words.
    pub problems: Vec<String>,
}

/// Merges the input of a run with the defaults of the flow and checks it against the `inputSchema`. Without a schema,
/// a flow with defaults takes no other keys.
pub fn check_input(graph: &Graph, given: Map<String, Value>) -> Result<Map<String, Value>, InputError> {
    let mut problems = Vec::new();
    for key in given.keys().filter(|key| is_unknown(key, graph)) {
        let known = declared(graph).chain(graph.needs.keys().map(|key| key.as_str()));
        let help = did_you_mean(key, known.clone()).unwrap_or_else(|| {
            format!("it has {}", known.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
        });
        problems.push(format!("unknown input `{key}`: {help}"));
    }
    let required = graph.input_schema.as_ref().and_then(|schema| schema.get("required")?.as_array());
    let has_own_rules = |key: &str| required.is_some_and(|keys| keys.iter().any(|known| known == key));
    let missing = |key: &str| !given.contains_key(key) && !has_own_rules(key);
    for (key, node) in graph.needs.iter().filter(|(key, _)| missing(key.as_str())) {
        problems.push(format!("missing input `{key}`, which node `{node}` uses"));
    }
    for (key, _) in given.iter().filter(|(_, value)| is_too_deep(value)) {
        problems.push(format!("`{key}` is nested more than {DEEPEST} levels deep"));
    }
    let mut input = graph.input.clone();
    input.extend(given);
    let input = match &graph.input_schema {
        Some(schema) => {
            let whole = Value::Object(input);
            problems.extend(violations(schema, &whole));
            match whole {
                Value::Object(input) => input,
                _ => Map::new(),
            }
        }
        None => input,
    };
    if problems.is_empty() { Ok(input) } else { Err(InputError { flow: graph.name.clone(), problems }) }
}

/// The keys that the flow declares.
fn declared(graph: &Graph) -> impl Iterator<Item = &str> + Clone {
    let properties = graph.input_schema.as_ref().and_then(|schema| schema.get("properties")?.as_object());
    let properties = properties.into_iter().flat_map(|map| map.keys().map(String::as_str));
    graph.input.keys().map(String::as_str).chain(properties)
}

/// Whether a flow that declares its input does not declare this key.
fn is_unknown(key: &str, graph: &Graph) -> bool {
    // Such a schema says itself which other keys are allowed.
    let has_own_rules = graph.input_schema.as_ref().is_some_and(|schema| {
        ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"]
            .iter()
            .any(|word| schema.get(word).is_some())
    });
    let is_known = declared(graph).any(|known| known == key) || graph.needs.contains_key(key);
    !has_own_rules && declared(graph).next().is_some() && !is_known
}

fn violations(schema: &Value, input: &Value) -> Vec<String> {
    // The compiler has refused an invalid schema.
    let Ok(validator) = jsonschema::validator_for(schema) else { return Vec::new() };
    validator
        .iter_errors(input)
        .map(|error| {
            let path = error.instance_path().as_str().trim_start_matches('/').replace('/', ".");
            // The value is not printed: it may be a secret.
            let reason = error.masked_with("the value");
            if path.is_empty() { reason.to_string() } else { format!("`{path}`: {reason}") }
        })
        .collect()
}
