//! The `data` pack: texts become values, and values are checked against a schema. Both nodes compute at once, and both
//! are bounded.

mod csv;
mod parse;

use inspan_protocol::{AgentError, BoundedValidator, ErrorCode, InputProblem, is_too_deep};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{self, pure_node};
use crate::catalog::NodeCatalog;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parse {
    /// The text, 8 MiB at most.
    text: String,
    /// Its format.
    #[serde(rename = "as")]
    format: Format,
    /// For `csv`: whether the first row names the columns. Then each further row becomes a mapping, else a list.
    #[serde(default)]
    header: Option<bool>,
    /// For `csv`: the character between two fields; a comma if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 1))]
    separator: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Jsonl,
    Yaml,
    Toml,
    Csv,
}

#[derive(Serialize, JsonSchema)]
struct Parsed {
    /// What the text says: for `jsonl` and `csv` a list with an item for each line or row.
    value: Value,
}

impl Parse {
    /// What of it fits no text.
    fn problem(&self) -> Option<InputProblem> {
        let key = if self.header.is_some() { "/header" } else { "/separator" };
        let is_given = self.header.is_some() || self.separator.is_some();
        if is_given && self.format != Format::Csv {
            return Some(InputProblem::new(key, "`header` and `separator` are for `as: csv` only"));
        }
        let is_taken = self.separator.as_deref().is_some_and(|text| text.starts_with(['"', '\r', '\n']));
        is_taken.then(|| InputProblem::new("/separator", "a quote or a line end cannot be the separator"))
    }
}

pure_node!(
    /// `data.parse`.
    DataParse: "data.parse" in "data", "Parses a text: JSON, JSON lines, YAML, TOML or CSV.", Parse => Parsed,
    |input| parse::parse(&input).map(|value| Parsed { value }),
    check: |input| typed::read_input::<Parse>(input.clone()).ok()?.problem()
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Validate {
    /// The value.
    value: Value,
    /// The JSON Schema that it must match.
    schema: Schema,
}

/// A JSON Schema is a mapping, or true or false.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("type" = ["object", "boolean"]))]
struct Schema(Value);

#[derive(Serialize, JsonSchema)]
struct Validated {
    /// Whether the value matches.
    valid: bool,
    /// What does not match, 100 problems at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<Misfit>>,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Misfit {
    /// The JSON pointer of the part that does not match; empty for the whole value.
    path: String,
    /// What is wrong with it.
    message: String,
}

/// The most problems that are reported.
const MAX_ERRORS: usize = 100;
/// The most bytes of one message.
const MAX_MESSAGE: usize = 500;

pure_node!(
    /// `data.validate`.
    DataValidate: "data.validate" in "data", "Tells whether a value matches a JSON Schema, and what does not.",
    Validate => Validated, validate, check: check_schema
);

/// The problem of an input's `schema` that is written in the flow and is not a JSON Schema.
pub(super) fn check_schema(input: &Value) -> Option<InputProblem> {
    let schema = input.get("schema").filter(|schema| schema.is_object())?;
    let error = jsonschema::validator_for(schema).err()?;
    let inside = error.instance_path();
    Some(InputProblem::new(format!("/schema{inside}"), format!("invalid JSON Schema: {error}")))
}

fn validate(Validate { value, schema: Schema(schema) }: Validate) -> Result<Validated, AgentError> {
    let wrong = |why: String| {
        AgentError::new(ErrorCode::ConfigInvalid, format!("`schema` is not a JSON Schema: {why}"))
    };
    if is_too_deep(&schema) {
        return Err(wrong("it is nested too deep".to_owned()));
    }
    let validator = BoundedValidator::new(&schema).map_err(|error| {
        wrong(format!("at `{}`: {}", error.instance_path(), error.masked_with("the value")))
    })?;
    let errors = match validator.is_valid(&value) {
        Some(true) => Vec::new(),
        Some(false) => misfits(&validator, &value),
        None => {
            let message = "it takes too many steps to tell whether the value fits the schema";
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        }
    };
    Ok(Validated { valid: errors.is_empty(), errors: (!errors.is_empty()).then_some(errors) })
}

/// What of a value does not match. The messages do not repeat the value, which may be long.
fn misfits(validator: &BoundedValidator, value: &Value) -> Vec<Misfit> {
    let errors = validator.errors(value).into_iter().take(MAX_ERRORS).map(|error| {
        let mut message = error.masked_with("the value").to_string();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Misfit { path: error.instance_path().to_string(), message }
    });
    errors.collect()
}

pub(super) fn register(catalog: &mut NodeCatalog) {
    catalog.register(DataParse).register(DataValidate);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node::{Computed, DescribeNode};

    fn computed(node: &dyn DescribeNode, input: Value) -> Result<Value, String> {
        match node.compute(input) {
            Computed::Done(end) => end.map_err(|error| format!("{}: {}", error.code, error.message)),
            Computed::Runs(_) => panic!("it waits"),
        }
    }

    #[test]
    fn texts_of_each_format_become_values() {
        let table = json!([{ "a": "1", "b": "x, \"y\"\nz" }, { "a": "", "b": "ü" }]);
        let cases = [
            ("json", " {\"a\": [1, null]} ", json!({ "a": [1, null] })),
            ("jsonl", "{\"a\":1}\r\n\n[2]\n", json!([{ "a": 1 }, [2]])),
            ("jsonl", "", json!([])),
            ("yaml", "a: &x [1, yes]\nb: *x\n1: 0x10", json!({ "a": [1, "yes"], "b": [1, "yes"], "1": 16 })),
            ("yaml", "# nothing\n", json!(null)),
            (
                "toml",
                "a = 1\nd = 2026-01-02T03:04:05Z\n[t]\nx = [1.5, true]",
                json!({ "a": 1, "d": "2026-01-02T03:04:05Z", "t": { "x": [1.5, true] } }),
            ),
            ("csv", "\u{feff}a,b\r\n1,\"x, \"\"y\"\"\nz\"\n\n,ü", table),
            ("csv", "a,b\r1,\"2\r3\"\r", json!([{ "a": "1", "b": "2\r3" }])),
            ("csv", "", json!([])),
        ];
        for (format, text, value) in cases {
            let parsed = computed(&DataParse, json!({ "text": text, "as": format }));
            assert_eq!(parsed, Ok(json!({ "value": value })), "{format}: {text}");
        }
        let rows = json!({ "text": "a;b\n1;2,3", "as": "csv", "header": false, "separator": ";" });
        assert_eq!(computed(&DataParse, rows), Ok(json!({ "value": [["a", "b"], ["1", "2,3"]] })));
    }

    #[test]
    fn a_text_that_does_not_fit_is_an_error_with_its_place() {
        let deep = format!("{}1{}", "[".repeat(101), "]".repeat(101));
        let long_rows = format!("{}\n{}", "x".repeat(1 << 20), "1\n".repeat(40));
        let too_long = "1".repeat((8 << 20) + 1);
        let cases = [
            ("json", "{\"a\":\n 1,}", "line 2, column 4: trailing comma"),
            ("json", "", "line 1, column 1: EOF while parsing a value"),
            ("json", &deep, "it is nested deeper than 100 levels"),
            (
                "json",
                "{\"12345678901234567890123\": [18446744073709551615, -1e40,\n -9223372036854775809]}",
                "line 2, column 2: the number `-9223372036854775809` does not fit into 64 bits, and would lose digits: make it a string",
            ),
            (
                "jsonl",
                "\"\\\"\"\n12345678901234567890123",
                "line 2, column 1: the number `12345678901234567890123` does not fit into 64 bits, and would lose digits: make it a string",
            ),
            ("jsonl", "1\n\n{\"a\"}", "line 3, column 5: expected `:`"),
            (
                "yaml",
                "a: 1\na: 2",
                "line 2, column 1: duplicate key `a`; it is first set at line 1, column 1",
            ),
            ("yaml", "a: [1", "line 1, column 4: unclosed bracket '['"),
            ("yaml", "--- 1\n--- 2", "line 2, column 1: a second document starts here, and one is expected"),
            (
                "toml",
                "a = 1\nb = ",
                "line 2, column 5: string values must be quoted, expected literal string",
            ),
            ("toml", "a = 1\n[t]\nb = [1.5, -inf]", "line 3, column 11: `-inf` is not a JSON value"),
            ("toml", "a = 9223372036854775808", "line 1, column 5: u64 value was too large"),
            ("toml", "a = 1e400", "line 1, column 5: floating-point number overflowed"),
            ("csv", "a,b\r1,2\r3", "line 3, column 1: this row has 1 field, and the header has 2"),
            ("csv", "a,b\n1", "line 2, column 1: this row has 1 field, and the header has 2"),
            ("csv", "a,a\n1,2", "line 1, column 3: two columns are named `a`"),
            ("csv", "a\n\"x", "line 2, column 1: this quote is not closed"),
            ("csv", "a\n\"x\"y", "line 2, column 4: text after a closing quote"),
            ("csv", &long_rows, "the rows repeat the names of the columns too often"),
            ("json", &too_long, "it is larger than 8 MiB"),
        ];
        let failed = cases.map(|(format, text, why)| {
            let failed = computed(&DataParse, json!({ "text": text, "as": format })).unwrap_err();
            let (lead, reason) = failed.split_at(failed.find(": ").map_or(0, |at| at + 2));
            assert_eq!(lead, "NODE_FAILED: ", "{why}");
            reason.split_once(": ").map(|(_, reason)| reason.to_owned()).unwrap_or_default()
        });
        assert_eq!(failed, cases.map(|(_, _, why)| why));
    }

    #[test]
    fn what_fits_no_text_is_found_before_one_is_parsed() {
        let quote = "a quote or a line end cannot be the separator";
        let misplaced = "`header` and `separator` are for `as: csv` only";
        let cases = [
            (json!({ "text": "1", "as": "json", "header": true }), Some(("/header", misplaced))),
            (json!({ "text": "1", "as": "toml", "separator": ";" }), Some(("/separator", misplaced))),
            (json!({ "text": "1", "as": "csv", "separator": "\"" }), Some(("/separator", quote))),
            (json!({ "text": "1", "as": "csv", "separator": ";", "header": false }), None),
        ];
        for (input, expected) in cases {
            let found = DataParse.check_input(&input);
            let found = found.first().map(|problem| (problem.pointer.as_str(), problem.message.as_str()));
            assert_eq!(found, expected, "{input}");
            let failed = computed(&DataParse, input).err();
            assert_eq!(failed, expected.map(|(_, message)| format!("CONFIG_INVALID: {message}")));
        }
    }

    #[test]
    fn a_value_is_checked_against_a_schema() {
        let schema = json!({
            "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" }, "t": { "enum": ["a"] } },
        });
        let checked = |value: Value| computed(&DataValidate, json!({ "value": value, "schema": schema }));
        assert_eq!(checked(json!({ "n": 1 })), Ok(json!({ "valid": true })));
        let errors = json!([
            { "path": "/n", "message": "the value is not of type \"integer\"" },
            { "path": "/t", "message": "the value is not one of \"a\"" },
        ]);
        assert_eq!(checked(json!({ "n": "x", "t": 1 })), Ok(json!({ "valid": false, "errors": errors })));
        let many = computed(
            &DataValidate,
            json!({ "value": vec![1; 300], "schema": { "items": { "type": "string" } } }),
        );
        assert_eq!(many.unwrap()["errors"].as_array().map(Vec::len), Some(MAX_ERRORS));
        let child = json!({ "properties": { "c": { "$ref": "#" }, "n": { "type": "integer" } } });
        let doubled = json!({ "allOf": [child.clone(), child] });
        let deep = (0..40).fold(json!({ "n": "x" }), |inner, _| json!({ "c": inner }));
        let errors =
            json!([{ "path": "/c".repeat(40) + "/n", "message": "the value is not of type \"integer\"" }]);
        let found = computed(&DataValidate, json!({ "value": deep, "schema": doubled }));
        assert_eq!(found, Ok(json!({ "valid": false, "errors": errors })));
        let mut branches = json!({ "$ref": "#/$defs/0", "$defs": { "20": { "type": "integer" } } });
        for level in 0..20 {
            let next = json!({ "$ref": format!("#/$defs/{}", level + 1) });
            branches["$defs"][level.to_string()] = json!({ "anyOf": [next, next, next, next] });
        }
        let found = computed(&DataValidate, json!({ "value": "x", "schema": branches }));
        let message = "CONFIG_INVALID: it takes too many steps to tell whether the value fits the schema";
        assert_eq!(found, Err(message.to_owned()));
        let broken =
            computed(&DataValidate, json!({ "value": 1, "schema": { "type": "intger" } })).unwrap_err();
        assert!(
            broken.starts_with("CONFIG_INVALID: `schema` is not a JSON Schema: at `/type`: "),
            "{broken}"
        );
        let remote = json!({ "value": 1, "schema": { "$ref": "https://example.com/schema.json" } });
        assert!(computed(&DataValidate, remote).is_err());
        let found = DataValidate.check_input(&json!({ "value": 1, "schema": { "minimum": "1" } }));
        assert_eq!(
            found.iter().map(|problem| problem.pointer.as_str()).collect::<Vec<_>>(),
            ["/schema/minimum"]
        );
    }
}
