//! `exec`: runs a program from an argument list.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::InputProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::typed::{self, Allowed};
use crate::node::{DescribeNode, NodeTypeInfo};

/// The input of `exec`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecInput {
    /// The program and its arguments, such as `[cargo, test]`; for a command of the shell `[sh, -c, COMMAND]`.
    #[schemars(length(min = 1))]
    pub argv: Vec<String>,
    /// What it reads: a text as it is, anything else as JSON.
    #[serde(default)]
    pub stdin: Option<Value>,
    /// Where it runs, relative to the session's working folder.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub cwd: Option<String>,
    /// Variables added to its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What `value` is made of: the whole output as text or JSON, or its lines.
    #[serde(default)]
    pub parse: Option<ExecParse>,
    /// Exit codes besides 0 that are not a failure, or `any`.
    #[serde(default)]
    pub allow_exit: Allowed<i32>,
    /// A file for its output, relative to the folder in which it runs; `stdout` then has the last 8 KiB only.
    #[serde(default)]
    pub stdout_file: Option<String>,
    /// A file for what it prints as errors; `stderr` then has the last 8 KiB only.
    #[serde(default)]
    pub stderr_file: Option<String>,
}

/// What `value` of the output of `exec` is made of.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the comments would change the form of the generated schema")]
pub enum ExecParse {
    Text,
    Json,
    Lines,
}

/// The output of `exec`.
#[serde_with::skip_serializing_none]
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecOutput {
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
    /// Its exit code.
    pub exit_code: i32,
    /// The file with all of its output, if `stdoutFile` names one.
    pub stdout_file: Option<String>,
    /// The file with all that it printed as errors, if `stderrFile` names one.
    pub stderr_file: Option<String>,
    /// The output as `parse` says.
    pub value: Option<Value>,
}

/// `exec`.
pub struct Exec;

impl ExecInput {
    /// What of it no program can be given.
    pub fn problem(&self) -> Option<InputProblem> {
        if self.argv.first().is_some_and(String::is_empty) {
            return Some(InputProblem::new("/argv/0", "the name of the program is empty"));
        }
        if let Some(at) = self.argv.iter().position(|arg| arg.contains('\0')) {
            return Some(InputProblem::new(format!("/argv/{at}"), "an argument has a NUL"));
        }
        self.env.iter().find_map(|(name, value)| {
            let why = if name.is_empty() || name.contains(['=', '\0']) {
                format!("`{}` cannot be the name of a variable", name.escape_default())
            } else if value.contains('\0') {
                format!("the variable `{name}` has a NUL in its value")
            } else {
                return None;
            };
            Some(InputProblem::new(format!("/env/{}", typed::pointer_part(name)), why))
        })
    }
}

impl DescribeNode for Exec {
    fn describe(&self) -> NodeTypeInfo {
        typed::describe::<ExecInput, ExecOutput>(
            "exec",
            "io",
            "Runs a program from an argument list, never through a shell.",
        )
    }

    fn name(&self) -> Arc<str> {
        "exec".into()
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
        let given = |key: &str| input.get(key).is_some_and(|file| !file.is_null());
        let file = |key: &str| match given(key) {
            true => text.clone(),
            false => json!({ "x-needs": format!("`{key}` in `input`") }),
        };
        names.extend(["stdoutFile", "stderrFile"].into_iter().filter(|key| given(key)));
        let fields = json!({
            "stdout": &text, "stderr": &text, "exitCode": number, "value": value,
            "stdoutFile": file("stdoutFile"), "stderrFile": file("stderrFile"),
        });
        Some(json!({ "type": "object", "required": names, "properties": fields }))
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        let given = |key: &str| input.get(key).filter(|value| !value.is_null());
        let mut problems = Vec::new();
        if given("parse").is_some() && given("stdoutFile").is_some() {
            let message = "`parse` needs the whole output in memory; with `stdoutFile` it is in the file";
            problems.push(InputProblem::new("/parse", message));
        }
        if given("stdoutFile").is_some() && given("stdoutFile") == given("stderrFile") {
            let message = "`stdoutFile` and `stderrFile` must be two files";
            problems.push(InputProblem::new("/stderrFile", message));
        }
        problems.extend(typed::read_input::<ExecInput>(input.clone()).ok().and_then(|input| input.problem()));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_program_can_be_given_is_found_before_it_runs() {
        let rows = [
            (json!(["env"]), json!({ "A": "b", "MORE": "{{ flow.input.more }}" }), None),
            (json!(["env"]), json!({ "A=B": "c" }), Some("/env/A=B")),
            (json!(["env"]), json!({ "": "c" }), Some("/env/")),
            (json!(["env"]), json!({ "a/b": "c\u{0}" }), Some("/env/a~1b")),
            (json!(["env", ""]), json!({}), None),
            (json!(["", "x"]), json!({}), Some("/argv/0")),
            (json!(["printf", "a\u{0}b"]), json!({}), Some("/argv/1")),
        ];
        for (argv, env, pointer) in rows {
            let found = Exec.check_input(&json!({ "argv": argv, "env": env }));
            let found: Vec<_> = found.iter().map(|problem| problem.pointer.as_str()).collect();
            assert_eq!(found, Vec::from_iter(pointer), "{argv} {env}");
        }
    }
}
