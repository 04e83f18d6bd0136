//! The tools of a turn: announced, then in pieces, then whole; and what is asked about them.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{PermissionRequest, StreamEvent};
use serde_json::{Map, Value, json};

use super::super::permission::AskedFor;
use super::super::wire::{AcpToolCall, Location};
use super::asked::{shown, texts_of};
use super::{AcpQuestion, text_of};
use crate::decode::{CallIds, unanswered};

/// Calls that are remembered, so that an agent that reports an end twice ends no tool twice.
const CALLS_LIMIT: usize = 4096;
/// Open calls of one id whose arguments are kept beside the newest.
const OTHERS_LIMIT: usize = 16;
/// The name of what reads a file for the agent.
const READ: &str = "fs/read_text_file";
/// The kind that says nothing.
pub(super) const OTHER: &str = "other";

/// All tools of a turn.
#[derive(Debug, Default)]
pub(super) struct Tools {
    open: BTreeMap<String, OpenTool>,
    /// The newest call of each of the agent's ids.
    newest: BTreeMap<String, String>,
    ids: CallIds,
    /// What is done for the agent and has not ended.
    own: Vec<String>,
    count: u64,
}

/// What is said of a tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// It was called, or is asked about.
    Called,
    /// Something of it has changed.
    Continued,
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
    /// The arguments of other open calls to which the agent gave the same id.
    others: Vec<Value>,
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
    pub(super) fn update(&mut self, call: AcpToolCall, step: Step) -> Vec<StreamEvent> {
        let id = call.tool_call_id.as_deref().and_then(|id| self.call_of(id, step));
        let Some(id) = id else { return Vec::new() };
        let status = call.status.clone();
        let known = self.open.contains_key(&id);
        if let (Step::Called, Some(open)) = (step, self.open.get_mut(&id)) {
            open.keep_other(&call);
        }
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
        }
        events
    }

    /// Our id of the call that is meant; nothing if it has ended.
    fn call_of(&mut self, id: &str, step: Step) -> Option<String> {
        if let Some(newest) = self.newest.get(id) {
            if self.open.contains_key(newest) {
                return Some(newest.clone());
            }
            if step == Step::Continued {
                return None;
            }
        }
        if self.newest.len() >= CALLS_LIMIT {
            self.newest.retain(|_, call| self.open.contains_key(call));
        }
        let call = self.ids.fresh(id);
        self.newest.insert(id.to_owned(), call.clone());
        Some(call)
    }

    /// Takes a question about a tool, whose arguments are whole by then.
    pub(super) fn ask(&mut self, call: AcpToolCall) -> (AcpQuestion, Vec<StreamEvent>) {
        let named = call.tool_call_id.as_deref().filter(|id| !id.is_empty());
        let Some(id) = named.and_then(|id| self.call_of(id, Step::Called)) else {
            let mut nameless = OpenTool::default();
            nameless.take(call);
            return (nameless.question(None, &[]), Vec::new());
        };
        let names_its_own = call.raw_input.as_ref().is_some_and(is_something);
        if let Some(open) = self.open.get_mut(&id) {
            open.keep_other(&call);
        }
        let tool = self.merge(&id, call);
        let events = tool.start(&id).into_iter().collect();
        let others = if names_its_own { &[] } else { &tool.others[..] };
        (tool.question(Some(id), others), events)
    }

    /// An id for what is done for the agent; nothing if an open tool of its own says one of these texts.
    pub(super) fn begin_own(&mut self, name: &str, texts: &[&str]) -> Option<String> {
        // A tool that only reads stands for no change.
        let may_stand =
            |tool: &OpenTool| name == READ || !matches!(tool.kind(), "read" | "search" | "fetch" | "think");
        if self.open.values().any(|tool| may_stand(tool) && tool.says(texts)) {
            return None;
        }
        let id = self.ids.fresh(name);
        self.own.push(id.clone());
        Some(id)
    }

    /// It has ended.
    pub(super) fn end_own(&mut self, id: &str) {
        self.own.retain(|open| open != id);
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
        events.extend(self.own.drain(..).map(unanswered));
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
    /// Another call gets this id, unless the arguments are the same or have grown.
    fn keep_other(&mut self, call: &AcpToolCall) {
        let (Some(old), Some(new)) = (&self.input, &call.raw_input) else { return };
        if is_something(old)
            && is_something(new)
            && !grew(old, new)
            && self.others.len() < OTHERS_LIMIT
            && !self.others.contains(old)
        {
            self.others.push(old.clone());
        }
    }

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

    /// Whether one of these texts is in what is known of it.
    fn says(&self, texts: &[&str]) -> bool {
        let mut said: BTreeSet<&str> = self.locations.iter().map(|place| place.path.as_str()).collect();
        for value in self.input.iter().chain(&self.content) {
            texts_of(value, &mut said);
        }
        texts.iter().any(|text| said.contains(text))
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

    /// The question about it, or about it and others of the same id: nobody knows of which it speaks.
    fn question(&self, id: Option<String>, others: &[Value]) -> AcpQuestion {
        let mut names = vec![self.kind().to_owned()];
        names.extend(self.name.clone());
        let titles = self.first_title.iter().chain(&self.title).cloned().collect();
        let blocks = self.content.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut arguments = self.arguments();
        let others: Vec<_> = others.iter().filter(|other| **other != arguments).collect();
        if !others.is_empty() {
            let all: Vec<_> = others.into_iter().chain([&arguments]).collect();
            arguments = json!({ "oneOf": all });
        }
        let (input, paths) = shown(arguments, self.title.as_deref(), &self.locations, blocks);
        let command = self.input.as_ref().and_then(|input| input["command"].as_str());
        AcpQuestion {
            request: PermissionRequest {
                tool_use_id: id,
                description: self.title.clone(),
                ..PermissionRequest::new(self.name(), input)
            },
            names,
            titles,
            paths,
            command: command.map(str::to_owned),
            options: Vec::new(),
            asked_for: AskedFor::default(),
        }
    }
}

/// The name that an agent gives a tool in its own extension, such as `_meta.claudeCode.toolName`.
fn named(meta: Option<&Value>) -> Option<String> {
    let vendors = meta?.as_object()?;
    let name = vendors.values().find_map(|vendor| vendor.get("toolName"))?;
    Some(text_of(name.clone())).filter(|name| !name.is_empty())
}

/// Whether arguments are the same, or the beginning of others, as they stream.
fn grew(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::String(old), Value::String(new)) => new.starts_with(old),
        (Value::Object(old), Value::Object(new)) => {
            old.iter().all(|(key, old)| new.get(key).is_some_and(|new| grew(old, new)))
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() <= new.len() && old.iter().zip(new).all(|(old, new)| grew(old, new))
        }
        _ => old == new,
    }
}

fn is_something(input: &Value) -> bool {
    match input {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}
