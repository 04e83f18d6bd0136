//! The `human` pack: a question to a person.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::typed;
use crate::node::{DescribeNode, NodeTypeInfo, Occupies};

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
    /// How long to wait, as `30s`, `5m`, `8h`; then the default is taken, or the node fails.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    pub timeout: Option<String>,
    /// The answer that is taken when the time is up.
    #[serde(default)]
    pub default: Option<String>,
}

/// The output of `human.input`.
#[derive(Serialize, JsonSchema)]
pub struct HumanAnswer {
    /// The answer.
    pub content: String,
    /// Which of the choices it is; null for a free text.
    pub choice: Option<String>,
}

/// `human.input`.
pub struct HumanInput;

impl DescribeNode for HumanInput {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Asks a person: a text, one of the choices, or both.";
        let info = typed::describe::<HumanQuestion, HumanAnswer>("human.input", "human", help);
        NodeTypeInfo { occupies: Occupies::Nothing, ..info }
    }

    fn output_schema_for(&self, input: &Value) -> Option<Value> {
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
        let fields = json!({ "content": content, "choice": choice });
        Some(json!({ "type": "object", "required": ["content", "choice"], "properties": fields }))
    }
}
