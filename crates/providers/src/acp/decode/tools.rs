//! The tools of a turn: announced, then in pieces, then whole; and what is asked about them.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{PermissionRequest, StreamEvent};
use serde_json::{Map, Value, json};

use super::super::wire::{AcpToolCall, Location};
use super::{AcpQuestion, text_of};
use crate::decode::unanswered;

/// Ends that are remembered, so that an agent that reports one twice ends no tool twice.
const ENDED_LIMIT: usize = 4096;
/// The kind that says nothing.
const OTHER: &str = "other";

/// All tools of a turn.
#[derive(Debug, Default)]
pub(super) struct Tools {
    open: BTreeMap<String, OpenTool>,
    ended: BTreeSet<String>,
    count: u64,
}

/// A tool that has not ended.
#[derive(Debug, Default)]
struct OpenTool {
    /// Its place among the tools of the turn.
    order: u64,
    name: Option<String>,
    first_title: Option<String>,
    title: Option<String>,
    kind: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    content: Option<Value>,
    locations: Vec<Location>,
    state: ToolState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ToolState {
    /// Its arguments may still change.
    #[default]
    Announced,
    /// Its start was reported.
    Started,
}

impl Tools {
    /// Whether a tool has not ended.
    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes the update of a tool, and returns the events that follow from it.
    pub(super) fn update(&mut self, call: AcpToolCall) -> Vec<StreamEvent> {
        let Some(id) = call.tool_call_id.clone() else { return Vec::new() };
        if self.ended.contains(&id) {
            return Vec::new();
        }
        let status = call.status.clone();
        let known = self.open.contains_key(&id);
        let brings_input = call.raw_input.as_ref().is_some_and(is_something);
        let tool = self.merge(&id, call);
        let mut events = Vec::new();
        let ended = matches!(status.as_deref(), Some("completed" | "failed"));
        let runs = ended || status.as_deref() == Some("in_progress") || known && brings_input;
        if runs {
            events.extend(tool.start(&id));
        }
        if ended {
            events.push(StreamEvent::ToolComplete {
                tool_use_id: id.clone(),
                result: tool.result(),
                is_error: status.as_deref() == Some("failed"),
            });
            self.open.remove(&id);
            if self.ended.len() >= ENDED_LIMIT {
                self.ended.clear();
            }
            self.ended.insert(id);
        }
        events
    }

    /// Takes a question about a tool, whose arguments are whole by then.
    pub(super) fn ask(&mut self, call: AcpToolCall) -> (AcpQuestion, Vec<StreamEvent>) {
        let id = call.tool_call_id.clone().unwrap_or_default();
        let mut spare;
        let (tool, events) = if id.is_empty() || self.ended.contains(&id) {
            spare = OpenTool::default();
            spare.take(call);
            (&mut spare, Vec::new())
        } else {
            let tool = self.merge(&id, call);
            let events = tool.start(&id).into_iter().collect();
            (tool, events)
        };
        (tool.question(id), events)
    }

    /// The turn is over: ends what has not ended.
    pub(super) fn close(&mut self) -> Vec<StreamEvent> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        open.sort_by_key(|(_, tool)| tool.order);
        let mut events = Vec::new();
        for (id, mut tool) in open {
            events.extend(tool.start(&id));
            events.push(unanswered(id));
        }
        events
    }

    fn merge(&mut self, id: &str, call: AcpToolCall) -> &mut OpenTool {
        self.count += 1;
        let order = self.count;
        let tool =
            self.open.entry(id.to_owned()).or_insert_with(|| OpenTool { order, ..OpenTool::default() });
        tool.take(call);
        tool
    }
}

impl OpenTool {
    fn take(&mut self, call: AcpToolCall) {
        self.name = named(call.meta.as_ref()).or(self.name.take());
        self.first_title = self.first_title.take().or_else(|| call.title.clone());
        self.title = call.title.or(self.title.take());
        self.kind = call.kind.or(self.kind.take());
        self.input = call.raw_input.or(self.input.take());
        self.output = call.raw_output.or(self.output.take());
        self.content = call.content.or(self.content.take());
        if let Some(locations) = call.locations {
            self.locations = locations;
        }
    }

    fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or(OTHER)
    }

    /// What a permission is asked and given for: the agent's own name, else the kind. The model may have written the title.
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.kind())
    }

    /// The name in events. Where the kind says nothing, it is the title that the tool was announced by if that is a word.
    fn display_name(&self) -> &str {
        let is_word = |title: &&str| {
            title.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) && !title.is_empty()
        };
        let title = self.first_title.as_deref().filter(is_word);
        title.filter(|_| self.name() == OTHER).unwrap_or(self.name())
    }

    /// The arguments, or what else is known of what it will do.
    fn arguments(&self) -> Value {
        if let Some(input) = &self.input
            && is_something(input)
        {
            return input.clone();
        }
        let mut known = Map::new();
        if let Some(title) = &self.title {
            known.insert("title".to_owned(), json!(title));
        }
        if !self.locations.is_empty() {
            known.insert("locations".to_owned(), json!(self.locations));
        }
        Value::Object(known)
    }

    fn start(&mut self, id: &str) -> Option<StreamEvent> {
        if self.state == ToolState::Started {
            return None;
        }
        self.state = ToolState::Started;
        Some(StreamEvent::ToolStart {
            tool_name: self.display_name().to_owned(),
            tool_use_id: id.to_owned(),
            input: self.arguments(),
        })
    }

    /// The answer: a text if it is nothing more, else its parts with the places that they are about.
    fn result(&mut self) -> Value {
        let content = self.content.take();
        let blocks = content.as_ref().and_then(Value::as_array).filter(|blocks| !blocks.is_empty());
        let Some(blocks) = blocks else {
            return self.output.take().unwrap_or(Value::String(String::new()));
        };
        let texts: Option<Vec<&str>> = blocks
            .iter()
            .map(|block| (block["type"] == "content").then(|| block["content"]["text"].as_str()).flatten())
            .collect();
        match texts {
            Some(texts) => Value::String(texts.join("\n")),
            None => json!({ "content": blocks, "locations": self.locations }),
        }
    }

    fn question(&self, id: String) -> AcpQuestion {
        let mut names = vec![self.kind().to_owned()];
        names.extend(self.name.clone());
        let titles = self.first_title.iter().chain(&self.title).cloned().collect();
        let mut paths: Vec<String> = self.locations.iter().map(|location| location.path.clone()).collect();
        let blocks = self.content.iter().filter_map(Value::as_array).flatten();
        paths.extend(blocks.filter_map(|block| {
            (block["type"] == "diff").then(|| block["path"].as_str().map(str::to_owned)).flatten()
        }));
        let command = self.input.as_ref().and_then(|input| input["command"].as_str());
        AcpQuestion {
            request: PermissionRequest {
                tool_use_id: (!id.is_empty()).then_some(id),
                description: self.title.clone(),
                ..PermissionRequest::new(self.name(), self.arguments())
            },
            names,
            titles,
            paths,
            command: command.map(str::to_owned),
            options: Vec::new(),
        }
    }
}

/// The name that an agent gives a tool in its own extension, such as `_meta.claudeCode.toolName`.
fn named(meta: Option<&Value>) -> Option<String> {
    let vendors = meta?.as_object()?;
    let name = vendors.values().find_map(|vendor| vendor.get("toolName"))?;
    Some(text_of(name.clone())).filter(|name| !name.is_empty())
}

fn is_something(input: &Value) -> bool {
    match input {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}
