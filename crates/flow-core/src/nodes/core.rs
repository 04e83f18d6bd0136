//! The `core` pack: values in, values out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{pure_node, same_node};
use crate::{catalog::NodeCatalog, expr::is_equal};

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
    Sides => Truth, |sides| Ok(Truth { value: is_equal(&sides.left, &sides.right) })
);

pub(super) fn register(catalog: &mut NodeCatalog) {
    catalog.register(Echo).register(Constant).register(ConditionEquals);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node::{Computed, DescribeNode};

    #[test]
    fn values_are_equal_as_conditions_have_it() {
        let rows = [
            (json!(13), json!(13.0), true),
            (json!({ "n": [1] }), json!({ "n": [1.0] }), true),
            (json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64), false),
            (json!(1), json!("1"), false),
        ];
        for (left, right, value) in rows {
            let Computed::Done(end) = ConditionEquals.compute(json!({ "left": left, "right": right })) else {
                panic!("it waits");
            };
            assert_eq!(end, Ok(json!({ "value": value })), "{left} and {right}");
        }
    }
}
