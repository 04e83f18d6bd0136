//! The JSON Schema of the flow file, for editors: every key, and for each node `type` the input that it takes. The
//! compiler does not use it.

mod input;

use serde_json::{Map, Value, json};

use crate::{
    catalog::NodeCatalog,
    node::{NodeKind, NodeTypeInfo},
};

/// The JSON Schema of a flow file whose nodes are of the registered types.
pub fn flow_schema(registry: &NodeCatalog) -> Value {
    let types = registry.describe();
    let mut definitions = Map::new();
    let mut cases = Vec::new();
    for info in &types {
        let name = format!("input.{}", info.name);
        cases.push(json!({
            "if": { "properties": { "type": { "const": info.name } }, "required": ["type"] },
            "then": { "properties": { "input": { "$ref": format!("#/$defs/{name}") } } },
        }));
        definitions.insert(name.clone(), input::as_written(&info.input, &name));
    }
    definitions.insert("duration".to_owned(), duration());
    definitions.insert("condition".to_owned(), condition());
    let mut choices: Vec<Value> =
        types.iter().map(|info| json!({ "const": info.name, "description": info.help })).collect();
    choices.push(type_of_pack(&types));
    definitions.insert("node".to_owned(), node(&choices, &cases));
    definitions.insert("edge".to_owned(), edge());
    let mut packs: Vec<&str> = types.iter().map(|info| &*info.pack).collect();
    packs.sort_unstable();
    packs.dedup();
    definitions.insert("body".to_owned(), body());
    let agents: Vec<&str> =
        types.iter().filter(|info| info.kind == NodeKind::Agent).map(|info| &*info.name).collect();
    let header = header(Some(&agents));
    let mut properties = header.clone();
    let mut nested = closed("The flow as a whole.", header, &["name"]);
    // Which other packs there are is known to the flow alone.
    let known = json!({
        "if": { "required": ["packs"] },
        "else": { "properties": { "nodePacks": { "items": { "enum": packs } } } },
    });
    nested["allOf"] = json!([known]);
    let names: Vec<&str> = types.iter().map(|info| &*info.name).collect();
    let has_packs = json!({ "required": ["packs"] });
    let only_registered = json!({
        "if": { "anyOf": [has_packs, { "required": ["flow"], "properties": { "flow": has_packs } }] },
        "else": { "properties": { "nodes": { "items": { "properties": { "type": { "enum": names } } } } } },
    });
    properties.insert("flow".to_owned(), nested);
    properties.append(&mut lists());
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Inspan flow",
        "type": "object",
        "properties": properties,
        "required": ["nodes"],
        "oneOf": [{ "required": ["flow"] }, { "required": ["name"] }],
        "allOf": [known, only_registered],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

/// The name of a type of a pack that the flow names: one whose first part is that of no registered type.
fn type_of_pack(types: &[NodeTypeInfo]) -> Value {
    let mut known: Vec<&str> =
        types.iter().filter_map(|info| info.name.split_once('.')).map(|(of, _)| of).collect();
    known.dedup();
    json!({
        "type": "string",
        "pattern": format!("^(?!({})\\.)[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+$", known.join("|")),
        "description": "A type of a pack that the flow names.",
    })
}

fn closed(description: &str, properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn keys<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn time(description: &str) -> Value {
    json!({ "$ref": "#/$defs/duration", "description": description })
}

fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 1, "description": description })
}

fn when(description: &str) -> Value {
    json!({ "$ref": "#/$defs/condition", "description": description })
}

fn duration() -> Value {
    json!({
        "type": "string",
        "pattern": "^\\s*([0-9]+\\s*[A-Za-z]+\\s*)+$",
        "examples": ["500ms", "30s", "5m", "1h30m"],
    })
}

fn condition() -> Value {
    let itself = json!({ "$ref": "#/$defs/condition" });
    let list = json!({ "type": "array", "items": itself });
    let equals = closed(
        "Whether a value is this one.",
        keys([("var", text("The path of the value.")), ("value", json!({}))]),
        &["var", "value"],
    );
    let one = |word: &str, schema: Value| json!({ "type": "object", "properties": { word: schema }, "required": [word], "additionalProperties": false });
    json!({
        "anyOf": [
            { "type": "string", "description": "An expression such as `not review.structuredOutput.passed`." },
            { "type": "boolean" },
            one("equals", equals),
            one("not", itself.clone()),
            one("and", list.clone()),
            one("or", list),
        ],
    })
}

fn budget(what: &str) -> Value {
    let properties = keys([
        ("usd", json!({ "type": "number", "exclusiveMinimum": 0, "description": "In US dollars." })),
        ("tokens", count("Tokens of all kinds.")),
        (
            "onUnknown",
            json!({
                "enum": ["warn", "stop"], "default": "warn",
                "description": "What is done about a turn whose price is unknown.",
            }),
        ),
        (
            "onExceeded",
            json!({
                "enum": ["pause", "fail"],
                "description": "What is done when it is used up and an agent would spend more: the session pauses \
                                until the budget is raised, or the flow or the node fails.",
            }),
        ),
    ]);
    let mut budget = closed(what, properties, &[]);
    budget["minProperties"] = json!(1);
    budget
}

/// The policy of a flow, or of the frames of a body.
fn flow_policy() -> Map<String, Value> {
    keys([
        (
            "failFast",
            json!({ "type": "boolean", "default": true, "description": "Whether the first failure ends the rest." }),
        ),
        ("maxConcurrency", count("How many nodes may run at once.")),
        ("timeout", time("How long the whole may take.")),
        ("budget", budget("What the whole may cost.")),
    ])
}

/// The policy of a flow has one key more than that of a body.
fn with_confirm_above(mut policy: Map<String, Value>) -> Map<String, Value> {
    let usd = json!({ "type": "number", "exclusiveMinimum": 0, "description": "In US dollars." });
    let help = "`inspan run` asks first if the forecast is above this, or unknown.";
    policy.insert("confirmAbove".to_owned(), closed(help, keys([("usd", usd)]), &["usd"]));
    policy
}

fn mcp_servers() -> Value {
    let texts = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let server = json!({
        "type": "object",
        "properties": {
            "type": { "type": "string", "description": "`stdio` for a program, `http` for an address." },
            "command": { "type": "string", "description": "The program." },
            "args": { "type": "array", "items": { "type": "string" } },
            "env": texts,
            "url": { "type": "string" },
            "headers": texts,
            "timeout": { "type": "integer", "description": "How long one call may take, in milliseconds." },
        },
    });
    json!({
        "type": "object",
        "additionalProperties": server,
        "description": "MCP servers by name, for `mcp.call` and for the option `mcpServers: [name]` of agents. `${NAME}` is a variable of the environment.",
    })
}

/// Settings of agents by name; those with a type are agents.
fn settings(types: Option<&[&str]>, description: &str) -> Value {
    let mut properties = keys([
        ("model", text("The model.")),
        ("options", json!({ "type": "object", "description": "Options of the provider." })),
        ("policy", closed("What is done about time and failure.", node_policy(), &[])),
    ]);
    let mut required: &[&str] = &[];
    if let Some(types) = types {
        properties.append(&mut keys([
            ("type", json!({ "enum": types, "description": "The type of the nodes that take it." })),
            ("description", text("What the agent is for.")),
            ("prompt", text("The prompt of nodes that have none.")),
            ("promptFile", text("A file with that prompt.")),
        ]));
        required = &["type"];
    }
    let one = closed("Settings of an agent.", properties, required);
    json!({ "type": "object", "description": description, "additionalProperties": one })
}

fn header(types: Option<&[&str]>) -> Map<String, Value> {
    keys([
        ("name", text("The flow's name.")),
        ("version", json!({ "type": ["string", "number"], "description": "The author's version." })),
        ("description", text("What the flow is for.")),
        ("phase", text("The name of the phase that the console shows.")),
        ("input", json!({ "type": "object", "description": "Defaults of the flow's input." })),
        (
            "inputSchema",
            json!({ "type": ["object", "boolean"], "description": "The JSON Schema of the flow's input." }),
        ),
        ("inputSchemaFile", text("A file with the JSON Schema of the flow's input.")),
        ("outputs", outputs("What the flow gives; all outputs by node id if absent.")),
        (
            "outputSchema",
            json!({ "type": ["object", "boolean"], "description": "The JSON Schema of the flow's outputs." }),
        ),
        ("outputSchemaFile", text("A file with the JSON Schema of the flow's outputs.")),
        ("agents", settings(types, "Named settings of agents, which nodes take by `agent`.")),
        ("defaults", settings(None, "Settings of all nodes of a provider or a type, by its name.")),
        (
            "include",
            json!({
                "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
                "description": "Files with more `agents`, `defaults` and `mcpServers`.",
            }),
        ),
        (
            "nodePacks",
            json!({
                "type": "array",
                "items": { "type": "string" },
                "description": "The only packs that nodes may come from.",
            }),
        ),
        (
            "packs",
            json!({
                "anyOf": [
                    { "type": "array", "items": { "type": "string" } },
                    { "type": "object", "additionalProperties": { "type": "string" } },
                ],
                "description": "Folders that declare more node types, each with a `pack.yaml`; as a mapping, under other names.",
            }),
        ),
        ("policy", closed("What holds for the whole flow.", with_confirm_above(flow_policy()), &[])),
        (
            "secrets",
            json!({
                "type": "array",
                "items": { "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
                "description": "Environment variables with secrets that the flow's programs may see.",
            }),
        ),
        ("mcpServers", mcp_servers()),
        ("state", json!({ "type": "object", "description": "The flow's state at the start." })),
    ])
}

fn node_policy() -> Map<String, Value> {
    let retry = keys([
        ("maxAttempts", count("Attempts in all, the first included.")),
        ("backoff", time("The wait before the second attempt.")),
        ("factor", json!({ "type": "number", "minimum": 1, "description": "Factor of each further wait." })),
        ("maxBackoff", time("The longest wait.")),
        ("on", json!({ "enum": ["retryable", "any"], "description": "Which failures are tried again." })),
    ]);
    keys([
        ("timeout", time("How long one attempt may take.")),
        ("retry", closed("How often the node is tried.", retry, &[])),
        (
            "continueOnError",
            json!({ "type": "boolean", "description": "Whether the flow continues with an error marker." }),
        ),
        ("budget", budget("What all attempts of the node may cost together.")),
        (
            "onLimit",
            json!({
                "enum": ["wait", "fail", "fallback"], "default": "wait",
                "description": "At a vendor's usage limit: wait for its reset, fail the node, or let the next agent take over.",
            }),
        ),
    ])
}

fn node(types: &[Value], cases: &[Value]) -> Value {
    let properties = keys([
        (
            "id",
            json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "description": "The node's name." }),
        ),
        ("type", json!({ "oneOf": types, "description": "What the node does." })),
        ("name", text("A name for people.")),
        ("description", text("What the node is for.")),
        ("input", json!({ "type": "object", "description": "What the node works on." })),
        ("promptFile", text("A file whose text is the prompt.")),
        (
            "dependsOn",
            json!({
                "anyOf": [dependency(), { "type": "array", "items": dependency() }],
                "description": "Nodes that come first.",
            }),
        ),
        ("when", when("Whether the node runs at all.")),
        ("policy", closed("What is done about time and failure.", node_policy(), &[])),
        (
            "agent",
            text(
                "The agent under `agents` that does the work; it says the type. Or one whole `{{ expression }}` that names it.",
            ),
        ),
        ("fallback", fallback()),
        ("body", json!({ "$ref": "#/$defs/body" })),
        ("session", session()),
        (
            "effects",
            json!({ "enum": ["none", "workspace", "external"], "description": "What the node changes in the world." }),
        ),
        (
            "pool",
            json!({
                "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$",
                "description": "The pool of machines that it runs on, where sessions run on several.",
            }),
        ),
    ]);
    let mut node = closed("One step of the flow.", properties, &["id"]);
    node["oneOf"] = json!([{ "required": ["type"] }, { "required": ["agent"] }]);
    node["allOf"] = json!(cases);
    node
}

fn fallback() -> Value {
    let entry = keys([
        ("agent", text("The agent under `agents` that takes over.")),
        (
            "when",
            when("Whether it takes over although the one before succeeded; after a failure it always does."),
        ),
    ]);
    json!({
        "type": "array",
        "items": closed("An agent that takes over from the one before.", entry, &["agent"]),
        "description": "The agents that take over, one after the other, with the same input.",
    })
}

fn session() -> Value {
    let fork = json!({
        "type": "boolean", "default": false,
        "description": "Whether the conversation is branched: it stays as it is.",
    });
    let parts = keys([("from", text("The agent node whose conversation it is.")), ("fork", fork)]);
    json!({
        "anyOf": [{ "type": "string" }, closed("A conversation, and what is done with it.", parts, &["from"])],
        "description": "The agent node whose conversation this one continues, or branches.",
    })
}

fn ends() -> Value {
    json!({
        "enum": ["success", "failure", "skipped", "any"], "default": "success",
        "description": "After which ends of its source it may fire.",
    })
}

/// An entry of `dependsOn`.
fn dependency() -> Value {
    let properties = keys([("node", text("The node that comes first.")), ("on", ends())]);
    json!({ "anyOf": [{ "type": "string" }, closed("A node, and how it ends.", properties, &["node"])] })
}

/// The lists of a flow and of a body.
fn lists() -> Map<String, Value> {
    keys([
        (
            "nodes",
            json!({
                "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/node" },
                "description": "The work to be done.",
            }),
        ),
        (
            "edges",
            json!({ "type": "array", "items": { "$ref": "#/$defs/edge" }, "description": "Order of the nodes." }),
        ),
    ])
}

fn body() -> Value {
    let mut properties = lists();
    properties
        .insert("outputs".to_owned(), outputs("What each frame gives; all outputs by node id if absent."));
    properties.insert("policy".to_owned(), closed("What holds for each frame.", flow_policy(), &[]));
    closed("What the node runs in frames.", properties, &["nodes"])
}

fn outputs(description: &str) -> Value {
    json!({ "type": "object", "description": description })
}

fn edge() -> Value {
    let properties = keys([
        ("from", text("The node it leaves.")),
        ("to", text("The node it enters.")),
        ("on", ends()),
        ("when", when("Whether it fires once its source has ended.")),
        ("maxIterations", count("How often this loop edge may fire.")),
        ("onExhausted", json!({ "enum": ["fail", "continue"], "description": "What to do at the limit." })),
    ]);
    closed("What leads to what.", properties, &["from", "to"])
}

#[cfg(test)]
mod tests;
