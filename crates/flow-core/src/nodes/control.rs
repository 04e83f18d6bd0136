//! The `control` pack: branches, joins, frames and failures; `wait.rs` has its waits.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{AgentError, ErrorCode, InputProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::typed::{self, pure_node, same_node};
use crate::{
    catalog::NodeCatalog,
    graph::{OnExhausted, OnItemError},
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
    cases: Vec<SwitchCase>,
    /// The route if none holds; without one the node fails.
    #[serde(default)]
    default: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SwitchCase {
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
    #[schemars(extend("x-same" = "/value"))]
    value: Value,
}

/// `control.switch`.
struct ControlSwitch;

impl DescribeNode for ControlSwitch {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Gives the route of the first case that holds; put `when` on the edges to follow it.";
        typed::describe::<Switch, Route>("control.switch", "control", help)
    }

    fn name(&self) -> Arc<str> {
        "control.switch".into()
    }

    fn output_schema_for(&self, input: &Value) -> Option<Value> {
        let cases = input.get("cases")?.as_array()?.iter().map(|case| case.get("route"));
        let routes: Vec<&Value> = cases.chain(input.get("default").map(Some)).collect::<Option<_>>()?;
        let known = |route: &&Value| route.as_str().is_some_and(|route| !route.contains('{'));
        routes.iter().all(known).then(|| {
            json!({
                "type": "object",
                "required": ["route"],
                "properties": { "route": { "enum": routes }, "value": { "x-same": "/value" } },
            })
        })
    }

    fn compute(&self, input: Value) -> Computed {
        Computed::Done(typed::compute(input, route))
    }
}

fn route(switch: Switch) -> Result<Route, AgentError> {
    let first = switch.cases.into_iter().find(|case| case.when).map(|case| case.route).or(switch.default);
    let route = first.ok_or_else(|| {
        AgentError::new(ErrorCode::NodeFailed, "no case of the switch holds and it has no default")
    })?;
    Ok(Route { route, value: switch.value })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Merge {
    /// `all` waits for every edge to fire, `any` starts on the first.
    #[serde(default)]
    #[expect(dead_code, reason = "the compiler reads it; here it is only in the schema")]
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

    fn name(&self) -> Arc<str> {
        "control.merge".into()
    }

    fn compute(&self, input: Value) -> Computed {
        Computed::Done(typed::compute(input, |_: Merge| Ok(Merged { merged: true })))
    }
}

#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is a schema: what fits it is passed on as it is")]
struct Noop {
    /// Given back as it is.
    #[serde(default)]
    value: Option<Value>,
}

same_node!(
    ControlNoop: "control.noop" in "control", "Does nothing; a place to join edges or to hand a value on.", Noop
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

/// The input of `control.foreach`; its frames are made by the compiler and the scheduler.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Foreach {
    /// The items: a list, or a mapping, whose items are `{key, value}`.
    items: Option<ForeachItems>,
    /// Lists of values by name: the items are their product.
    matrix: Option<BTreeMap<String, Vec<Value>>>,
    /// Combinations of the matrix that are left out.
    exclude: Option<Vec<Map<String, Value>>>,
    /// The name of the item in the body; `item` if absent.
    r#as: Option<String>,
    /// How many frames may run at once.
    #[schemars(range(min = 1))]
    max_concurrency: Option<u32>,
    /// What a failed frame does to the others: `fail` cancels them and fails the node, `stop` begins no more and
    /// succeeds,
    /// `continue` runs all and succeeds.
    on_item_error: Option<OnItemError>,
    /// What identifies an item when a session is resumed with another list.
    key: Option<Value>,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum ForeachItems {
    List(Vec<Value>),
    Mapping(Map<String, Value>),
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct ForeachOutput {
    /// One entry for each item, in the order of the items.
    results: Vec<ItemResult>,
    /// The outputs of the frames that succeeded.
    values: Vec<Value>,
    /// How many frames succeeded.
    succeeded: u64,
    /// How many frames failed.
    failed: u64,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct ItemResult {
    /// The position of the item, from 0.
    index: u64,
    /// The item.
    item: Value,
    /// What its frame gave.
    outputs: Value,
    /// Why its frame failed.
    error: Option<Value>,
}

/// The input of `control.loop`.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Loop {
    /// Asked before each pass, with `previous` and `passes`; a condition.
    #[schemars(extend("x-when" = true))]
    r#while: Option<bool>,
    /// Asked after each pass, with the outputs of its nodes; a condition.
    #[schemars(extend("x-when" = true))]
    until: Option<bool>,
    /// How many passes there may be.
    #[schemars(range(min = 1))]
    max_iterations: u32,
    /// What happens when one more pass would begin: the node fails, or it ends with the last pass.
    on_exhausted: Option<OnExhausted>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct LoopOutput {
    /// How many passes there were.
    passes: u64,
    /// What the last pass gave.
    outputs: Value,
}

/// The input of `control.subflow`.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct SubflowInput {
    /// The file of the other flow, from the folder of this one.
    file: Option<String>,
    /// The name of a flow in `.inspan/flows` of the project.
    flow: Option<String>,
    /// The input of the other flow.
    input: Option<Map<String, Value>>,
    /// How deep the flow may run itself.
    #[schemars(range(min = 1))]
    max_depth: Option<u32>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct SubflowOutput {
    /// What the other flow gave.
    outputs: Value,
}

/// A node that runs a body in frames. The scheduler runs it.
struct Frames {
    name: &'static str,
    describe: fn(&'static str) -> NodeTypeInfo,
    /// The keys of which exactly one is set.
    one_of: Option<[&'static str; 2]>,
}

impl DescribeNode for Frames {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo { kind: NodeKind::Frames, occupies: Occupies::Nothing, ..(self.describe)(self.name) }
    }

    fn name(&self) -> Arc<str> {
        self.name.into()
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        let Some([first, second]) = self.one_of else { return Vec::new() };
        match (input.get(first), input.get(second)) {
            (Some(_), Some(_)) => {
                let message = format!("`{first}` and `{second}` are both set; keep one");
                vec![InputProblem { pointer: format!("/{second}"), message }]
            }
            (None, None) => {
                let message = format!("set `{first}` or `{second}` in `input`");
                vec![InputProblem { pointer: String::new(), message }]
            }
            _ => Vec::new(),
        }
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct End {
    /// What the frame, or the flow, gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outputs: Option<Map<String, Value>>,
    /// Why it ends here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// `control.end`: ends the innermost frame, or the flow. The scheduler does so with the input as the node's output.
struct ControlEnd;

impl DescribeNode for ControlEnd {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Ends the innermost frame, or the flow, with success and cancels what runs in it.";
        NodeTypeInfo {
            kind: NodeKind::End,
            occupies: Occupies::Nothing,
            ..typed::describe::<End, End>("control.end", "control", help)
        }
    }

    fn name(&self) -> Arc<str> {
        "control.end".into()
    }

    fn compute(&self, input: Value) -> Computed {
        Computed::Done(typed::compute::<End, _>(input, Ok))
    }
}

fn foreach(name: &'static str) -> NodeTypeInfo {
    let help = "Runs its `body` once for each item, several at once.";
    typed::describe::<Foreach, ForeachOutput>(name, "control", help)
}

fn repeat(name: &'static str) -> NodeTypeInfo {
    let help = "Repeats its `body` while or until a condition holds.";
    typed::describe::<Loop, LoopOutput>(name, "control", help)
}

fn subflow(name: &'static str) -> NodeTypeInfo {
    let help = "Runs another flow: its nodes see its input, and nothing of this flow.";
    typed::describe::<SubflowInput, SubflowOutput>(name, "control", help)
}

pub(super) fn register(catalog: &mut NodeCatalog) {
    catalog.register(Frames {
        name: "control.foreach",
        describe: foreach,
        one_of: Some(["items", "matrix"]),
    });
    catalog.register(Frames { name: "control.loop", describe: repeat, one_of: None });
    catalog.register(Frames { name: "control.subflow", describe: subflow, one_of: Some(["file", "flow"]) });
    catalog.register(ControlEnd);
    catalog.register(ControlIf).register(ControlSwitch).register(ControlMerge).register(ControlNoop);
    catalog.register(ControlFail);
}
