//! The `core` pack: values in, values out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::pure_node;
use crate::registry::NodeRegistry;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Text {
    /// The text.
    text: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AnyValue {
    /// The value.
    value: Value,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sides {
    /// The one value.
    left: Value,
    /// The other value.
    right: Value,
}

#[derive(Serialize, JsonSchema)]
struct Truth {
    /// Whether the two are equal.
    value: bool,
}

pure_node!(Echo: "echo" in "core", "Gives its text back.", Text => Text, Ok);
pure_node!(Constant: "constant" in "core", "Gives a value.", AnyValue => AnyValue, Ok);
pure_node!(
    ConditionEquals: "condition.equals" in "core", "Tells whether two values are equal.",
    Sides => Truth, |sides| Ok(Truth { value: sides.left == sides.right })
);

pub(super) fn register(registry: &mut NodeRegistry) {
    registry.register(Echo).register(Constant).register(ConditionEquals);
}
