//! The `human` pack: a question to a person.

use std::sync::Arc;

use inspan_protocol::{
    AgentError, ErrorCode, Form, InputProblem, Prompt, PromptId, PromptKind, Redactor, Reply, Timestamp,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::typed::{self, write_output};
use crate::{
    expr::has_segments,
    node::{DescribeNode, NodeTypeInfo, Occupies},
    spec::parse_time,
};

/// The input of `human.input`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HumanQuestion {
    /// The question.
    pub prompt: String,
    /// The answers to choose from.
    #[serde(default)]
    pub choices: Option<Vec<String>>,
    /// Whether a free text is an answer; by default only if there are no choices.
    #[serde(default)]
    pub allow_text: Option<bool>,
    /// A form to fill in instead: a JSON Schema of a mapping whose values are texts, numbers, true or false, or one of an
    /// `enum`. The fields that `required` lists are asked first, in its order.
    #[serde(default)]
    #[schemars(extend("type" = ["object", "null"]))]
    pub schema: Option<Value>,
    /// How long to wait, as `30s`, `5m`, `8h`; then the default is taken, or the node fails.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    pub timeout: Option<String>,
    /// The answer that is taken when the time is up: a text or a choice, or a mapping for a form.
    #[serde(default)]
    #[schemars(extend("type" = ["string", "object", "null"]))]
    pub default: Option<Value>,
}

/// The output of `human.input`.
#[derive(Serialize, JsonSchema)]
pub struct HumanAnswer {
    /// The answer.
    pub content: String,
    /// Which of the choices it is; null for a free text.
    pub choice: Option<String>,
    /// The form as it was filled in, with its defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

impl HumanQuestion {
    /// Why a node failed whose time was up.
    pub const UNANSWERED: &str = "nobody answered in time and the question has no default";

    /// The question as it is asked, under this id; `since` is when it was asked first.
    pub fn prompt(self, id: PromptId, since: Timestamp, redactor: &Redactor) -> Result<Prompt, AgentError> {
        let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
        let default = self.default_answer().map_err(&wrong)?;
        if let (Some(default), Some(choices), None | Some(false)) = (&default, &self.choices, self.allow_text)
            && !choices.contains(default)
        {
            return Err(wrong(format!(
                "the default `{default}` is not among the choices: {}",
                choices.join(", ")
            )));
        }
        let deadline = match &self.timeout {
            Some(text) => {
                let limit = parse_time(text).map_err(|why| wrong(format!("`timeout: {text}`: {why}")))?;
                Some(since + limit)
            }
            None => None,
        };
        Ok(Prompt {
            choices: self.choices.map(|choices| choices.iter().map(|choice| redactor.text(choice)).collect()),
            allow_text: self.allow_text,
            deadline,
            default: default.map(|default| redactor.text(&default)),
            schema: self.schema.map(|schema| redactor.value(schema)),
            ..Prompt::new(id, PromptKind::Input, redactor.text(&self.prompt))
        })
    }

    /// The default as the text of an answer; that of a form with the defaults of its fields.
    fn default_answer(&self) -> Result<Option<String>, String> {
        let form = self.schema.as_ref().map(|schema| {
            let form = Form::of(schema);
            form.map_err(|problem| format!("`schema{}` is not a form: {}", problem.pointer, problem.message))
        });
        match (form.transpose()?, &self.default) {
            (_, None | Some(Value::Null)) => Ok(None),
            (Some(form), Some(default)) => {
                let filled = form.check(default).map_err(|why| format!("the default does not fit: {why}"))?;
                Ok(Some(Value::Object(filled).to_string()))
            }
            (None, Some(Value::Object(_))) => {
                Err("a mapping as `default` is for a form: add `schema`".to_owned())
            }
            (None, Some(Value::String(text))) => Ok(Some(text.clone())),
            (None, Some(other)) => Ok(Some(other.to_string())),
        }
    }
}

impl HumanAnswer {
    /// The output of a node whose question was answered so.
    pub fn of(is_form: bool, Reply { content, choice }: Reply) -> Result<Value, AgentError> {
        let value = is_form.then(|| serde_json::from_str(&content)).transpose().map_err(|error| {
            AgentError::new(ErrorCode::OutputInvalid, format!("the answer to the form is not JSON: {error}"))
        })?;
        write_output(&Self { content, choice, value })
    }
}

/// `human.input`.
pub struct HumanInput;

impl HumanInput {
    /// The name of the node type.
    pub const NAME: &str = "human.input";

    /// The fields of its input that count only until a person answers: they are no part of what is asked.
    pub const UNTIL_ANSWERED: [&str; 2] = ["timeout", "default"];
}

impl DescribeNode for HumanInput {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Asks a person: a text, one of the choices, or a form.";
        let info = typed::describe::<HumanQuestion, HumanAnswer>(Self::NAME, "human", help);
        NodeTypeInfo { occupies: Occupies::Nothing, ..info }
    }

    fn name(&self) -> Arc<str> {
        Self::NAME.into()
    }

    fn output_schema_for(&self, input: &Value) -> Option<Value> {
        if let Some(schema) = input.get("schema").filter(|schema| !schema.is_null()) {
            return Some(form_output(schema));
        }
        let is_literal = |choice: &Value| choice.as_str().is_some_and(|choice| !choice.contains('{'));
        let allows_text = match input.get("allowText") {
            None | Some(Value::Null) => false,
            Some(allows) => allows.as_bool()?,
        };
        let (content, choice) = match input.get("choices") {
            None | Some(Value::Null) => (json!({ "type": "string" }), json!({ "type": "null" })),
            Some(Value::Array(choices)) if choices.iter().all(is_literal) && allows_text => {
                let or_null: Vec<&Value> = choices.iter().chain([&Value::Null]).collect();
                (json!({ "type": "string" }), json!({ "enum": or_null }))
            }
            Some(Value::Array(choices)) if choices.iter().all(is_literal) => {
                (json!({ "enum": choices }), json!({ "enum": choices }))
            }
            Some(_) => return None,
        };
        let fields =
            json!({ "content": content, "choice": choice, "value": { "x-needs": "`schema` in `input`" } });
        Some(json!({ "type": "object", "required": ["content", "choice"], "properties": fields }))
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        let given = |key: &str| input.get(key).filter(|value| !value.is_null());
        let Some(schema) = given("schema").filter(|schema| schema.is_object()) else {
            let is_form = given("schema").is_some();
            let misplaced = given("default").filter(|default| default.is_object() && !is_form);
            let problem =
                |_| InputProblem::new("/default", "a mapping as `default` is for a form: add `schema`");
            let has_no_answer = given("choices").and_then(Value::as_array).is_some_and(Vec::is_empty)
                && given("allowText") != Some(&Value::Bool(true));
            let none = has_no_answer.then(|| {
                InputProblem::new("/choices", "`choices` is empty: list some, or leave it out for free text")
            });
            return misplaced.map(problem).into_iter().chain(none).collect();
        };
        if let Some(key) = ["choices", "allowText"].into_iter().find(|key| given(key).is_some()) {
            return vec![InputProblem::new(
                format!("/{key}"),
                format!("`{key}` and `schema` are both set; keep one"),
            )];
        }
        match Form::of(schema) {
            Err(problem) => vec![InputProblem { pointer: format!("/schema{}", problem.pointer), ..problem }],
            Ok(form) => {
                // The value of a template is checked when the question is asked.
                let is_template = |value: &Value| value.as_str().is_some_and(has_segments);
                let misfit =
                    given("default").and_then(|default| form.check_except(default, is_template).err());
                misfit
                    .map(|why| InputProblem::new("/default", format!("the default does not fit: {why}")))
                    .into_iter()
                    .collect()
            }
        }
    }
}

/// The schema of the output of a form: of its values those are always there that are required or have a default.
fn form_output(schema: &Value) -> Value {
    let value = Form::of(schema).map_or_else(
        |_| json!({}),
        |form| {
            let fields = form.fields().iter();
            let there = fields.filter(|field| field.is_required || field.default.is_some());
            let required: Vec<&str> = there.map(|field| field.name.as_str()).collect();
            json!({
                "type": "object", "properties": schema["properties"], "required": required, "additionalProperties": false,
            })
        },
    );
    let fields = json!({ "content": { "type": "string" }, "choice": { "type": "null" }, "value": value });
    json!({ "type": "object", "required": ["content", "choice", "value"], "properties": fields })
}
