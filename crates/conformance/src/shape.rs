//! One flow of three nodes that every provider can run, and the shape of the log that it leaves: what happened to which
//! node in which order, without texts, ids and times.

use inspan_model_server::{Matcher, Scenario, Turn};
use inspan_protocol::{Envelope, Event};
use serde_json::{Map, Value, json};

/// The shape of the log of [`three_nodes`], the same for every provider.
pub const THREE_NODES: &[&str] = &[
    "harness:start",
    "phase:start",
    "task:start plan",
    "agent:start plan",
    "agent:session plan",
    "agent:says plan",
    "agent:usage plan",
    "agent:complete plan",
    "task:complete plan",
    "edge:fired plan",
    "task:start build",
    "agent:start build",
    "agent:session build",
    "agent:says build",
    "agent:usage build",
    "agent:complete build",
    "task:complete build",
    "edge:fired build",
    "task:start review",
    "agent:start review",
    "agent:session review",
    "agent:says review",
    "agent:usage review",
    "agent:complete review",
    "task:complete review",
    "phase:complete",
    "harness:complete",
];

/// The flow as JSON, which is YAML too, and the answers of the model. A plan is made by a schema, built without
/// one, and the result is judged by a schema.
pub fn three_nodes(provider: &str, options: &Map<String, Value>) -> (Value, Scenario) {
    let agent = |id: &str, prompt: &str, schema: Option<Value>| {
        let mut options = options.clone();
        options.extend(schema.map(|schema| ("outputSchema".to_owned(), schema)));
        json!({
            "id": id,
            "type": "agent.run",
            "input": { "provider": provider, "prompt": prompt, "options": options },
        })
    };
    let object = |field: &str, kind: Value| {
        json!({
            "type": "object",
            "properties": { field: kind },
            "required": [field],
            "additionalProperties": false,
        })
    };
    let steps = json!({ "type": "array", "items": { "type": "string" } });
    let mut build = agent("build", "role=builder: {{ plan.structuredOutput.steps | join(', ') }}", None);
    build["dependsOn"] = json!(["plan"]);
    let score = object("score", json!({ "type": "integer" }));
    let mut review = agent("review", "role=reviewer: {{ build.text }}", Some(score));
    review["dependsOn"] = json!(["build"]);
    let plan = agent("plan", "role=planner: oxen", Some(object("steps", steps)));
    let flow = json!({ "flow": { "name": "three" }, "nodes": [plan, build, review] });
    let scenario = Scenario::of([
        Turn::structured(json!({ "steps": ["yoke", "plough"] })).when(Matcher::last("role=planner: oxen")),
        Turn::text("A field is ploughed.").when(Matcher::last("role=builder: yoke, plough")),
        Turn::structured(json!({ "score": 7 })).when(Matcher::last("role=reviewer: A field is ploughed.")),
    ]);
    (flow, scenario)
}

/// What happened to which node, in its order. All output of an agent in a run counts as one, since some vendors give a
/// structured answer as text and others by a tool; all usage events of a run count as one too. Thinking and
/// warnings, which only some vendors have, and the interfaces of the session do not count.
pub fn shape(log: &[Envelope]) -> Vec<String> {
    let mut shape: Vec<String> = Vec::new();
    for envelope in log {
        let task = envelope.context.task.as_ref().map(ToString::to_string);
        let line =
            |name: &str| task.as_ref().map_or_else(|| name.to_owned(), |task| format!("{name} {task}"));
        let once = match &envelope.event {
            Event::AgentThinking { .. } | Event::AgentWarning { .. } => continue,
            event if event.name().starts_with("channel:") => continue,
            Event::AgentText { .. } | Event::AgentToolStart { .. } | Event::AgentToolComplete { .. } => {
                line("agent:says")
            }
            // How often a turn is counted is the vendor's affair.
            Event::AgentSpent { .. } => continue,
            event @ Event::AgentUsage { .. } => line(event.name()),
            event => {
                shape.push(line(event.name()));
                continue;
            }
        };
        let begun = shape.iter().rposition(|earlier| earlier.starts_with("agent:start")).unwrap_or(0);
        if !shape[begun..].contains(&once) {
            shape.push(once);
        }
    }
    shape
}
