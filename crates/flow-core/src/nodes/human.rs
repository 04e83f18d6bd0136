//! The `human` pack: a question to a person.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
}
