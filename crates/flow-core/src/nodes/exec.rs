//! `exec`: runs a program from an argument list.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::typed;
use crate::node::{DescribeNode, NodeTypeInfo};

/// The input of `exec`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecInput {
    /// The program and its arguments.
    #[schemars(length(min = 1))]
    pub argv: Vec<String>,
    /// What it reads: a text as it is, anything else as JSON.
    #[serde(default)]
    pub stdin: Option<Value>,
    /// Where it runs, relative to the session's working folder.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables added to its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What `value` is made of: the whole output as text or JSON, or its lines.
    #[serde(default)]
    pub parse: Option<ExecParse>,
    /// Exit codes besides 0 that are not a failure.
    #[serde(default)]
    pub allow_exit: Vec<i32>,
}

/// What `value` of the output of `exec` is made of.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the comments would change the form of the generated schema")]
pub enum ExecParse {
    Text,
    Json,
    Lines,
}

/// The output of `exec`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecOutput {
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
    /// Its exit code.
    pub exit_code: i32,
    /// The output as `parse` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// `exec`.
pub struct Exec;

impl DescribeNode for Exec {
    fn describe(&self) -> NodeTypeInfo {
        typed::describe::<ExecInput, ExecOutput>(
            "exec",
            "io",
            "Runs a program from an argument list, never through a shell.",
        )
    }

    fn output_schema_for(&self, input: &Value) -> Option<Value> {
        let (value, required) = match input.get("parse") {
            None | Some(Value::Null) => {
                (json!({ "x-needs": "`parse` in `input`, such as `parse: json`" }), false)
            }
            Some(Value::String(parse)) if parse == "text" => (json!({ "type": "string" }), true),
            Some(Value::String(parse)) if parse == "lines" => {
                (json!({ "type": "array", "items": { "type": "string" } }), true)
            }
            Some(_) => (json!({}), true),
        };
        let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer" }));
        let mut names = vec!["stdout", "stderr", "exitCode"];
        names.extend(required.then_some("value"));
        let fields = json!({ "stdout": &text, "stderr": text, "exitCode": number, "value": value });
        Some(json!({ "type": "object", "required": names, "properties": fields }))
    }
}
