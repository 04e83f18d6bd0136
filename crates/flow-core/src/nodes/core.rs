//! The `core` pack: values in, values out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{pure_node, same_node};
use crate::catalog::NodeCatalog;

#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is a schema: what fits it is passed on as it is")]
struct Text {
    /// The text.
    text: String,
}

#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is a schema: what fits it is passed on as it is")]
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

same_node!(Echo: "echo" in "core", "Gives its text back.", Text);
same_node!(Constant: "constant" in "core", "Gives a value.", AnyValue);
pure_node!(
    ConditionEquals: "condition.equals" in "core", "Tells whether two values are equal.",
    Sides => Truth, |sides| Ok(Truth { value: sides.left == sides.right })
);

pub(super) fn register(catalog: &mut NodeCatalog) {
    catalog.register(Echo).register(Constant).register(ConditionEquals);
}
