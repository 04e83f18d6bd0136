//! The tools: one for each flow, and five for the sessions that they start. No more, since clients cap their number.

use std::sync::Arc;

use inspan_sessions::{RegisteredFlow, SessionError, Sessions};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::names::tool_names;
use crate::result::ENDS_WITH_CALLER;
use crate::server::SessionLife;

/// The tools for sessions.
pub(crate) const SESSIONS: &str = "sessions";
pub(crate) const STATUS: &str = "session_status";
pub(crate) const WAIT: &str = "session_wait";
pub(crate) const REPLY: &str = "session_reply";
pub(crate) const STOP: &str = "session_stop";
const OWN: [&str; 5] = [SESSIONS, STATUS, WAIT, REPLY, STOP];

/// The most flows that are offered.
const MOST_FLOWS: usize = 60;
/// The longest description of a flow that a client is given, in characters.
const DESCRIPTION: usize = 1000;

/// A flow and the name of its tool.
pub(crate) struct FlowTool {
    pub(crate) name: String,
    pub(crate) flow: RegisteredFlow,
}

/// The flows that can run, and what the user should know about the others.
pub(crate) async fn flow_tools(sessions: &Sessions) -> Result<(Vec<FlowTool>, Vec<String>), SessionError> {
    let mut flows = sessions.launcher().flows().await?;
    flows.sort_by(|a, b| a.id.cmp(&b.id));
    let (mut runnable, broken): (Vec<_>, Vec<_>) = flows.into_iter().partition(|flow| flow.graph.is_some());
    let mut warnings: Vec<String> = broken.iter().map(problem).collect();
    let is_shared =
        |flow: &RegisteredFlow| runnable.iter().filter(|other| other.name == flow.name).count() > 1;
    warnings.extend(runnable.iter().filter(|flow| is_shared(flow)).map(|flow| {
        let (id, name) = (&flow.id, &flow.name);
        format!("another flow is called `{name}` too: the tool of {} has the id `{id}`", flow.file.display())
    }));
    if runnable.len() > MOST_FLOWS {
        let left: Vec<_> = runnable.drain(MOST_FLOWS..).map(|flow| flow.id).collect();
        warnings.push(format!("at most {MOST_FLOWS} flows are tools; left out: {}", left.join(", ")));
    }
    let ids: Vec<String> = runnable.iter().map(|flow| flow.id.clone()).collect();
    let (names, renamed) = tool_names(&ids, &OWN);
    warnings.extend(renamed);
    let tools = names.into_iter().zip(runnable).map(|(name, flow)| FlowTool { name, flow }).collect();
    Ok((tools, warnings))
}

fn problem(flow: &RegisteredFlow) -> String {
    let why = flow.diagnostics.iter().find_map(|problem| problem["message"].as_str());
    let file = flow.file.display();
    match why {
        Some(why) => {
            format!(
                "flow `{}` is not offered as a tool: {why}; `inspan check {file}` shows all its problems",
                flow.id
            )
        }
        None => {
            format!("flow `{}` is not offered as a tool; `inspan check {file}` shows its problems", flow.id)
        }
    }
}

/// All tools as a client sees them.
pub(crate) fn listed(flows: &[FlowTool], life: SessionLife) -> Vec<Tool> {
    flows.iter().map(|flow| flow_tool(flow, life)).chain(own_tools()).collect()
}

fn flow_tool(tool: &FlowTool, life: SessionLife) -> Tool {
    let flow = &tool.flow;
    let about = flow.description.as_deref().unwrap_or("").trim();
    let about: String = about.chars().take(DESCRIPTION).collect();
    let stop = if about.is_empty() || about.ends_with(['.', '!', '?']) { "" } else { "." };
    let (or_client, note) = match life {
        SessionLife::OutlivesServer => (" or the client ends", ""),
        SessionLife::EndsWithCaller => ("", ENDS_WITH_CALLER),
    };
    let description = format!(
        "{about}{stop}{}Starts the flow `{}` as a session that continues by itself, even if this call is \
         cancelled{or_client}. The result has the outputs, or if the session takes longer its id: then call \
         `{WAIT}`.{note}",
        if about.is_empty() { "" } else { " " },
        flow.name
    );
    let annotations = ToolAnnotations::with_title(flow.name.clone()).read_only(false);
    Tool::new(tool.name.clone(), description, object(&flow.input)).annotate(annotations)
}

/// The schema of an input, which clients take only if it is that of an object.
fn object(schema: &Value) -> Arc<JsonObject> {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    if schema.get("type") != Some(&json!("object")) {
        schema.insert("type".to_owned(), json!("object"));
    }
    Arc::new(schema)
}

fn own_tools() -> Vec<Tool> {
    let session = json!({ "type": "string", "description": "The session's id, or the beginning of it." });
    let tool = |name: &'static str, about: &'static str, properties: Value, required: &[&str]| {
        let schema = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        Tool::new(name, about, object(&schema))
    };
    let reads = || ToolAnnotations::new().read_only(true).open_world(false);
    let changes = |destroys| ToolAnnotations::new().read_only(false).destructive(destroys).open_world(false);
    vec![
        tool(
            SESSIONS,
            "Lists sessions of flows, newest first, with their status and open questions.",
            json!({
                "open": { "type": "boolean", "description": "Only those that have not ended. Default: false." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 50, "description": "At most so many. Default: 10." },
            }),
            &[],
        )
        .annotate(reads()),
        tool(
            STATUS,
            "Shows one session: its status, its nodes, its open questions and its cost.",
            json!({ "session": session }),
            &["session"],
        )
        .annotate(reads()),
        tool(
            WAIT,
            "Waits until a session ends or asks a question, and gives its outputs or its question.",
            json!({
                "session": session,
                "seconds": { "type": "number", "minimum": 0, "maximum": 3600, "description": "How long to wait at most." },
            }),
            &["session"],
        )
        .annotate(reads()),
        tool(
            REPLY,
            "Answers an open question of a session with what the user said. Ask the user first: the question is for a \
             person. A permission that an agent asks for can be denied here, and allowed only by a person.",
            json!({
                "session": session,
                "question": { "type": "string", "description": "The question's id; needed only if several are open." },
                "choice": { "type": "string", "description": "The answer, if it is one of the question's choices." },
                "answer": { "type": "string", "description": "The answer as text." },
                "fields": { "type": "object", "description": "The answer to a form: a value for each field." },
            }),
            &["session"],
        )
        .annotate(changes(false)),
        tool(
            STOP,
            "Stops a session for good. To pause it instead, use `inspan pause` in a shell.",
            json!({ "session": session, "reason": { "type": "string", "description": "Why, for the log." } }),
            &["session"],
        )
        .annotate(changes(true)),
    ]
}
