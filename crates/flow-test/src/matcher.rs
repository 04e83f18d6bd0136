//! What one value must be: equal, containing, fitting a schema or a regular expression, or absent; and how two texts
//! differ, for people.

use std::{borrow::Cow, time::Duration};

use inspan_flow::is_equal;
use inspan_protocol::BoundedValidator;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use similar::TextDiff;

use crate::answer::with_suggestion;

/// How long comparing two texts may take.
const DIFFERENCE_TIME: Duration = Duration::from_millis(200);
/// How much of a difference is shown, in bytes.
const DIFFERENCE_BYTES: usize = 4_000;

/// What a value must be. Each key that is given must hold; a value that is not a mapping means `value`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Matcher {
    value: Option<Value>,
    contains: Vec<Value>,
    excludes: Vec<Value>,
    matches: Option<String>,
    schema: Option<Value>,
    is_absent: Option<bool>,
}

/// The keys of a [`Matcher`].
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Matcher")]
struct MatcherFields {
    /// It equals this.
    #[serde(default, deserialize_with = "given")]
    value: Option<Value>,
    /// A text has this in it; a list has this item; a mapping has at least these keys. A list names several.
    #[serde(default, deserialize_with = "given")]
    contains: Option<Value>,
    /// A text does not have this in it, a list not this item, a mapping not all of these keys. A list names several.
    #[serde(default, deserialize_with = "given")]
    excludes: Option<Value>,
    /// A text fits this regular expression.
    #[serde(default)]
    matches: Option<String>,
    /// It fits this JSON Schema.
    #[serde(default)]
    schema: Option<Value>,
    /// There is no such value.
    #[serde(default)]
    absent: Option<bool>,
}

/// A value that is there, also if it is null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Matcher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if !value.is_object() {
            return Ok(Self { value: Some(value), ..Self::default() });
        }
        let fields: MatcherFields = serde_json::from_value(value).map_err(|error| {
            let why = with_suggestion(&error.to_string());
            de::Error::custom(format_args!("{why}; to compare with a mapping, write `value: {{ … }}`"))
        })?;
        let list = |value: Option<Value>| match value {
            Some(Value::Array(items)) => items,
            Some(value) => vec![value],
            None => Vec::new(),
        };
        let matcher = Self {
            value: fields.value,
            contains: list(fields.contains),
            excludes: list(fields.excludes),
            matches: fields.matches,
            schema: fields.schema,
            is_absent: fields.absent,
        };
        if matcher == Self::default() {
            return Err(de::Error::custom(
                "nothing is expected: use `value`, `contains`, `excludes`, `matches`, `schema` or `absent`",
            ));
        }
        Ok(matcher)
    }
}

impl JsonSchema for Matcher {
    fn schema_name() -> Cow<'static, str> {
        "Expected".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let fields = generator.subschema_for::<MatcherFields>();
        json_schema!({ "anyOf": [fields, { "type": ["string", "number", "boolean", "null", "array"] }] })
    }
}

impl Matcher {
    /// Whether it expects that there is no value.
    pub(crate) fn wants_none(&self) -> bool {
        self.is_absent == Some(true)
    }

    /// The schema and the regular expression, ready.
    pub(crate) fn validators(&self) -> Result<Vec<(&'static str, BoundedValidator)>, String> {
        let mut all = Vec::new();
        if let Some(schema) = &self.schema {
            let schema =
                BoundedValidator::new(schema).map_err(|error| format!("the schema is not valid: {error}"))?;
            all.push(("schema", schema));
        }
        if let Some(pattern) = &self.matches {
            let schema = json!({ "type": "string", "pattern": pattern });
            let schema = BoundedValidator::new(&schema)
                .map_err(|_| format!("`{pattern}` is not a regular expression"))?;
            all.push(("matches", schema));
        }
        Ok(all)
    }

    /// What the value contains although it must not.
    pub(crate) fn finds_excluded(&self, value: &Value) -> Option<String> {
        if let Some(part) = self.excludes.iter().find(|part| value.is_object() && !part.is_object()) {
            return Some(format!("a mapping never contains {}: name the value in it", short(part)));
        }
        let part = self.excludes.iter().find(|part| contains(value, part))?;
        Some(format!("{} is in {}", short(part), short(value)))
    }

    /// How a value differs from what is expected.
    pub(crate) fn differs(&self, value: Option<&Value>) -> Option<String> {
        let Some(value) = value else {
            return (self.is_absent != Some(true)).then(|| "there is no such value".to_owned());
        };
        if self.is_absent == Some(true) {
            return Some(format!("there is a value: {}", short(value)));
        }
        if let Some(wanted) = self.value.as_ref().filter(|wanted| !is_equal(wanted, value)) {
            let diff = difference("expected", &lines(wanted), "actual", &lines(value));
            return Some(format!("another value:\n{diff}"));
        }
        if let Some(part) = self.contains.iter().find(|part| !contains(value, part)) {
            return Some(format!("{} is not in {}", short(part), short(value)));
        }
        if let Some(why) = self.finds_excluded(value) {
            return Some(why);
        }
        for (what, schema) in self.validators().unwrap_or_default() {
            let errors = schema.errors(value);
            if errors.is_empty() {
                continue;
            }
            if what == "matches" {
                let pattern = self.matches.as_deref().unwrap_or_default();
                return Some(format!("{} does not fit /{pattern}/", short(value)));
            }
            let errors: Vec<String> = errors
                .iter()
                .map(|error| {
                    format!("{}: {error}", error.instance_path()).trim_start_matches(": ").to_owned()
                })
                .collect();
            return Some(format!("it does not fit the schema: {}", errors.join("; ")));
        }
        None
    }
}

fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(items), part) => items.iter().any(|item| contains_all(item, part)),
        (Value::Object(_), Value::Object(_)) => contains_all(value, part),
        _ => is_equal(value, part),
    }
}

/// Whether the value is this, or a mapping with at least these keys.
fn contains_all(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::Object(fields), Value::Object(part)) => {
            part.iter().all(|(key, part)| fields.get(key).is_some_and(|value| contains_all(value, part)))
        }
        _ => is_equal(value, part),
    }
}

/// A value for people: a text as it is, line by line; anything else as JSON.
pub(crate) fn lines(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone() + "\n",
        other => {
            serde_json::to_string_pretty(&sorted(other)).unwrap_or_default().replace("\\n", "\\n\n    ")
                + "\n"
        }
    }
}

/// The same value with its fields in the order of the alphabet.
fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

/// The longest value in a sentence, in bytes.
const SHORT: usize = 400;

/// A value within a sentence.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.len() > SHORT {
        true => format!("{}…", &text[..text.floor_char_boundary(SHORT)]),
        false => text,
    }
}

/// The lines in which two texts differ, with two lines around each.
pub fn difference(name: &str, text: &str, other_name: &str, other: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFFERENCE_TIME).diff_lines(text, other);
    let mut shown = diff.unified_diff().context_radius(2).header(name, other_name).to_string();
    if shown.len() > DIFFERENCE_BYTES {
        shown.truncate(shown.floor_char_boundary(DIFFERENCE_BYTES));
        shown.push_str("\n…\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(value: Value) -> Matcher {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_matcher_holds_or_says_why_not() {
        let rows = [
            (json!("a"), json!("a"), None),
            (json!({ "value": { "n": 1 } }), json!({ "n": 1.0 }), None),
            (
                json!(9_007_199_254_740_993_u64),
                json!(9_007_199_254_740_992_u64),
                Some(
                    "another value:\n--- expected\n+++ actual\n@@ -1 +1 @@\n-9007199254740993\n+9007199254740992\n",
                ),
            ),
            (json!({ "contains": "LGTM" }), json!("well, LGTM"), None),
            (json!({ "contains": ["a", "b"] }), json!("a"), Some("\"b\" is not in \"a\"")),
            (json!({ "contains": { "id": 2 } }), json!([{ "id": 1 }, { "id": 2, "x": 0 }]), None),
            (json!({ "contains": { "a": 1 } }), json!({ "a": 1, "b": 2 }), None),
            (json!({ "excludes": "TODO" }), json!("a TODO"), Some("\"TODO\" is in \"a TODO\"")),
            (
                json!({ "excludes": "TODO" }),
                json!({ "text": "done" }),
                Some("a mapping never contains \"TODO\": name the value in it"),
            ),
            (json!({ "excludes": { "a": 1 } }), json!({ "a": 2 }), None),
            (json!({ "matches": "^v[0-9]+$" }), json!("v12"), None),
            (json!({ "matches": "^v[0-9]+$" }), json!("12"), Some("\"12\" does not fit /^v[0-9]+$/")),
            (
                json!({ "schema": { "type": "array" } }),
                json!(1),
                Some("it does not fit the schema: 1 is not of type \"array\""),
            ),
            (json!({ "absent": true }), json!(1), Some("there is a value: 1")),
            (
                json!("a\nb"),
                json!("a\nc"),
                Some("another value:\n--- expected\n+++ actual\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
            ),
        ];
        for (expected, value, why) in rows {
            assert_eq!(matcher(expected.clone()).differs(Some(&value)).as_deref(), why, "{expected} {value}");
        }
        assert_eq!(matcher(json!({ "absent": true })).differs(None), None);
        assert_eq!(matcher(json!("a")).differs(None).as_deref(), Some("there is no such value"));
    }

    #[test]
    fn a_matcher_without_a_known_key_is_refused() {
        let error = |value| serde_json::from_value::<Matcher>(value).unwrap_err().to_string();
        assert_eq!(
            error(json!({ "contain": "a" })),
            "unknown key `contain`: did you mean `contains`?; to compare with a mapping, write `value: { … }`"
        );
        assert!(error(json!({})).starts_with("nothing is expected"));
    }
}
