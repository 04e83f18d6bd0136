//! The `control` pack: branches, joins, waits and failures.

use inspan_protocol::{AgentError, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{self, pure_node};
use crate::{
    catalog::NodeCatalog,
    node::{Computed, DescribeNode, NodeKind, NodeTypeInfo, Occupies},
};

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct If {
    /// What is asked; a condition.
    #[schemars(extend("x-when" = true))]
    condition: bool,
}

pure_node!(
    /// `control.if`.
    ControlIf: "control.if" in "control",
    "Tells whether a condition holds; put `when` on the edges to follow it.", If => If, Ok
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Switch {
    /// The value that is looked at.
    value: Value,
    /// The cases in order; the first that holds gives the route.
    cases: Vec<Case>,
    /// The route if none holds; without one the node fails.
    #[serde(default)]
    default: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Whether the case holds; a condition.
    #[schemars(extend("x-when" = true))]
    when: bool,
    /// The route.
    route: String,
}

#[derive(Serialize, JsonSchema)]
struct Route {
    /// The route of the first case that holds.
    route: String,
    /// The value that was looked at.
    value: Value,
}

pure_node!(
    /// `control.switch`.
    ControlSwitch: "control.switch" in "control",
    "Gives the route of the first case that holds; put `when` on the edges to follow it.", Switch => Route,
    |switch| {
        let first = switch.cases.into_iter().find(|case| case.when).map(|case| case.route).or(switch.default);
        let route = first.ok_or_else(|| {
            AgentError::new(ErrorCode::NodeFailed, "no case of the switch holds and it has no default")
        })?;
        Ok(Route { route, value: switch.value })
    }
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Merge {
    /// `all` waits for every edge to fire, `any` starts on the first.
    #[serde(default)]
    #[expect(dead_code, reason = "the compiler reads it; here it only stands in the schema")]
    mode: MergeMode,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MergeMode {
    #[default]
    All,
    Any,
}

#[derive(Serialize, JsonSchema)]
struct Merged {
    /// Always true.
    merged: bool,
}

/// `control.merge`: joins branches. When it is ready is decided by the scheduler.
struct ControlMerge;

impl DescribeNode for ControlMerge {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Joins branches: `all` wants every incoming edge fired, `any` starts on the first.";
        NodeTypeInfo {
            kind: NodeKind::Merge,
            ..typed::describe::<Merge, Merged>("control.merge", "control", help)
        }
    }

    fn compute(&self, input: Value) -> Computed {
        let end =
            typed::read_input::<Merge>(input).and_then(|_| typed::write_output(&Merged { merged: true }));
        Computed::Done(end)
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Noop {
    /// Given back as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

pure_node!(
    /// `control.noop`.
    ControlNoop: "control.noop" in "control", "Does nothing; a place to join edges or to hand a value on.",
    Noop => Noop, Ok
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    /// Why.
    message: String,
}

#[derive(Serialize, JsonSchema)]
struct Never {}

pure_node!(
    /// `control.fail`.
    ControlFail: "control.fail" in "control", "Fails with a message.", Fail => Never,
    |fail| Err(AgentError::new(ErrorCode::NodeFailed, fail.message))
);

/// The input of `control.wait`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitInput {
    /// How long to wait, in milliseconds; ten years at most.
    #[serde(default)]
    #[schemars(range(max = 315_360_000_000_u64))]
    pub ms: Option<u64>,
    /// What to wait for: a moment such as `2026-01-07T10:00:00Z`, or the name of an event such as
    /// `session:message`.
    #[serde(default)]
    pub until: Option<String>,
    /// How long to wait for an event before the node fails, as `30s`, `5m`, `2h`.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    pub timeout: Option<String>,
}

/// The output of `control.wait`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitOutput {
    /// How long it waited, in milliseconds.
    pub waited_ms: u64,
    /// The event that ended the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// `control.wait`: for a time, a moment or an event.
pub struct ControlWait;

impl DescribeNode for ControlWait {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Waits for a time (`ms`), a moment or an event (`until`).";
        NodeTypeInfo {
            occupies: Occupies::Nothing,
            ..typed::describe::<WaitInput, WaitOutput>("control.wait", "control", help)
        }
    }
}

pub(super) fn register(catalog: &mut NodeCatalog) {
    catalog.register(ControlIf).register(ControlSwitch).register(ControlMerge).register(ControlNoop);
    catalog.register(ControlFail).register(ControlWait);
}
