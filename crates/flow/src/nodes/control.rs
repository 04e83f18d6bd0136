//! The `control` pack: branches, joins, waits and failures.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{Filter, sleep_until};
use inspan_protocol::{AgentError, ErrorCode, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::typed::{self, pure_node};
use crate::{
    graph::Occupies,
    node::{NodeKind, NodeType, NodeTypeInfo},
    registry::NodeRegistry,
    runtime::NodeContext,
    spec::parse_time,
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

impl NodeType for ControlMerge {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Joins branches: `all` wants every incoming edge fired, `any` starts on the first.";
        NodeTypeInfo {
            kind: NodeKind::Merge,
            ..typed::describe::<Merge, Merged>("control.merge", "control", help)
        }
    }

    fn compute(&self, input: Value) -> crate::node::Computed {
        crate::node::Computed::Done(merged(input))
    }

    fn run(&self, _: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        std::future::ready(merged(input)).boxed()
    }
}

fn merged(input: Value) -> Result<Value, AgentError> {
    typed::read::<Merge>(input).and_then(|_| typed::write(&Merged { merged: true }))
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wait {
    /// How long to wait, in milliseconds; ten years at most.
    #[serde(default)]
    #[schemars(range(max = 315_360_000_000_u64))]
    ms: Option<u64>,
    /// What to wait for: a moment such as `2026-01-07T10:00:00Z`, or the name of an event such as
    /// `session:message`.
    #[serde(default)]
    until: Option<String>,
    /// How long to wait for an event before the node fails, as `30s`, `5m`, `2h`.
    #[serde(default)]
    #[schemars(extend("x-time" = true))]
    timeout: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Waited {
    /// How long it waited, in milliseconds.
    waited_ms: u64,
    /// The event that ended the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Value>,
}

/// `control.wait`: for a time, a moment or an event.
struct ControlWait;

impl NodeType for ControlWait {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Waits for a time (`ms`), a moment or an event (`until`).";
        NodeTypeInfo {
            occupies: Occupies::Nothing,
            ..typed::describe::<Wait, Waited>("control.wait", "control", help)
        }
    }

    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        async move {
            let wait: Wait = typed::read(input)?;
            // A wait that was cut short began when it first began.
            let began = context.since();
            let event = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(context.aborted()),
                event = wait.end(&context, began) => event?,
            };
            let waited_ms = context.hub.clock().now().since(began).as_millis() as u64;
            typed::write(&Waited { waited_ms, event })
        }
        .boxed()
    }
}

impl Wait {
    async fn end(&self, context: &NodeContext, began: Timestamp) -> Result<Option<Value>, AgentError> {
        let wrong = |message: String| AgentError::new(ErrorCode::ConfigInvalid, message);
        let until = match (self.ms, &self.until) {
            (Some(ms), None) => {
                sleep_until(&**context.hub.clock(), began + Duration::from_millis(ms)).await;
                return Ok(None);
            }
            (None, Some(until)) => until,
            _ => return Err(wrong("a wait needs exactly one of `ms` and `until`".to_owned())),
        };
        if let Ok(moment) = until.parse::<Timestamp>() {
            sleep_until(&**context.hub.clock(), moment).await;
            return Ok(None);
        }
        let filter = Filter::parse(until).map_err(|error| {
            wrong(format!("`until: {until}` is neither a moment nor an event's name: {error}"))
        })?;
        let limit = match &self.timeout {
            Some(text) => parse_time(text).map_err(|why| wrong(format!("`timeout: {text}`: {why}")))?,
            None => Duration::MAX,
        };
        let mut events = context.hub.subscribe(filter);
        match tokio::time::timeout(limit, events.next()).await {
            Ok(Some(envelope)) => Ok(Some(typed::write(&envelope.event)?)),
            Ok(None) => Err(AgentError::new(ErrorCode::Aborted, "the session ended")),
            Err(_) => Err(AgentError::new(ErrorCode::Timeout, format!("no `{until}` came within {limit:?}"))),
        }
    }
}

pub(super) fn register(registry: &mut NodeRegistry) {
    registry.register(ControlIf).register(ControlSwitch).register(ControlMerge).register(ControlNoop);
    registry.register(ControlFail).register(ControlWait);
}
