//! The input of a run: defaults, overrides and the schema that both must match.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use inspan_protocol::{BoundedValidator, DEEPEST, is_too_deep};
use serde_json::{Map, Value};

use crate::{
    diagnostic::{did_you_mean, quoted},
    graph::{Graph, Subflow},
};

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
/// a flow with defaults takes no other keys, and no values of other kinds.
pub fn check_input(graph: &Graph, given: Map<String, Value>) -> Result<Map<String, Value>, InputError> {
    let declared = Declared::of(graph);
    let mut problems = Vec::new();
    for key in given.keys() {
        if let Some(help) = declared.unknown(key) {
            problems.push(format!("unknown input `{key}`: {help}"));
        }
    }
    for (key, user) in declared.missing(&given) {
        problems.push(format!("missing input `{key}`, which {user} uses"));
    }
    for (key, _) in given.iter().filter(|(_, value)| is_too_deep(value)) {
        problems.push(format!("`{key}` is nested more than {DEEPEST} levels deep"));
    }
    problems.extend(declared.other_kinds(&given));
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

/// Whether an input is a text unless the flow is given something else: its default is one, and no schema says what else
/// may be there.
pub fn is_text_by_default(graph: &Graph, key: &str) -> bool {
    graph.input.get(key).is_some_and(Value::is_string) && !Declared::of(graph).says_kinds(key)
}

/// Whether a flow takes an input of this name.
pub fn takes_input(graph: &Graph, key: &str) -> bool {
    Declared::of(graph).unknown(key).is_none()
}

/// The input that a node gives to the flow that it runs, with the defaults of that flow; or what is wrong, in words.
pub(crate) fn subflow_input(subflow: &Subflow, given: Map<String, Value>) -> Result<Value, String> {
    let (input, schema, needs) = (&subflow.input, subflow.input_schema.as_ref(), &BTreeMap::new());
    let problems = Declared { input, schema, needs }.other_kinds(&given);
    let mut whole = input.clone();
    whole.extend(given);
    if problems.is_empty() { Ok(Value::Object(whole)) } else { Err(problems.join("; ")) }
}

/// The input that a flow declares or uses.
pub(super) struct Declared<'d> {
    /// Its defaults.
    pub(super) input: &'d Map<String, Value>,
    pub(super) schema: Option<&'d Value>,
    /// The keys that are used for certain, each with what uses it.
    pub(super) needs: &'d BTreeMap<String, String>,
}

impl<'d> Declared<'d> {
    fn of(graph: &'d Graph) -> Self {
        Self { input: &graph.input, schema: graph.input_schema.as_ref(), needs: &graph.needs }
    }
}

impl Declared<'_> {
    fn keys(&self) -> impl Iterator<Item = &str> + Clone {
        let properties = self.schema.and_then(|schema| schema.get("properties")?.as_object());
        let properties = properties.into_iter().flat_map(|map| map.keys().map(String::as_str));
        self.input.keys().map(String::as_str).chain(properties)
    }

    /// What to write instead of this key, if the flow declares its input and does not declare this key.
    pub(super) fn unknown(&self, key: &str) -> Option<String> {
        let has_own_rules = self.schema.is_some_and(has_own_rules);
        let is_known = self.keys().any(|known| known == key) || self.needs.contains_key(key);
        if has_own_rules || self.keys().next().is_none() || is_known {
            return None;
        }
        let known: BTreeSet<&str> = self.keys().chain(self.needs.keys().map(String::as_str)).collect();
        did_you_mean(key, known.iter().copied()).or_else(|| Some(format!("it has {}", quoted(known))))
    }

    /// Why the values of an input cannot be meant, in words.
    fn other_kinds(&self, given: &Map<String, Value>) -> Vec<String> {
        let found = given.iter().filter_map(|(key, value)| self.other_kind(key, value));
        found.map(|(problem, help)| format!("{problem}: {help}")).collect()
    }

    /// Why a value cannot be meant, and what to write: its default is true or false, a number, a list or a mapping, it is of another
    /// kind, and no schema says what else may be there. In a condition the text `no` would be true. Null says that there is no value.
    pub(super) fn other_kind(&self, key: &str, value: &Value) -> Option<(String, String)> {
        let default = self.input.get(key).filter(|_| !value.is_null() && !self.says_kinds(key))?;
        let (takes, help) = match default {
            Value::Bool(_) => ("true or false", "write `true` or `false`".to_owned()),
            Value::Number(number) => ("a number", format!("write one without quotes, such as `{number}`")),
            Value::Array(_) => ("a list", r#"write one, such as `["a", "b"]`"#.to_owned()),
            Value::Object(_) => ("a mapping", r#"write one, such as `{"key": "value"}`"#.to_owned()),
            Value::String(_) | Value::Null => return None,
        };
        let is_other = mem::discriminant(default) != mem::discriminant(value);
        is_other.then(|| (format!("`{key}` must be {takes}, as its default is"), help))
    }

    /// Whether the schema says which kinds of values an input may have.
    fn says_kinds(&self, key: &str) -> bool {
        let Some(schema) = self.schema else { return false };
        match schema.get("properties").and_then(|properties| properties.get(key)) {
            Some(schema) => ["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"]
                .iter()
                .any(|word| schema.get(word).is_some()),
            None => has_own_rules(schema),
        }
    }

    /// The keys that are used for certain and not given, each with what uses it.
    pub(super) fn missing(&self, given: &Map<String, Value>) -> impl Iterator<Item = (&str, &str)> {
        let required = self.schema.and_then(|schema| schema.get("required")?.as_array());
        let has_own_rules =
            move |key: &str| required.is_some_and(|keys| keys.iter().any(|known| known == key));
        self.needs
            .iter()
            .map(|(key, user)| (key.as_str(), user.as_str()))
            .filter(move |(key, _)| !given.contains_key(*key) && !has_own_rules(key))
    }
}

/// Whether a schema says itself which keys are allowed beside its `properties`.
pub(super) fn has_own_rules(schema: &Value) -> bool {
    ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|word| schema.get(word).is_some())
}

fn violations(schema: &Value, input: &Value) -> Vec<String> {
    // The compiler has refused an invalid schema.
    let Ok(validator) = BoundedValidator::new(schema) else { return Vec::new() };
    validator
        .errors(input)
        .iter()
        .map(|error| {
            let path = error.instance_path().as_str().trim_start_matches('/').replace('/', ".");
            // The value is not printed: it may be a secret.
            let reason = error.masked_with("the value");
            if path.is_empty() { reason.to_string() } else { format!("`{path}`: {reason}") }
        })
        .collect()
}
