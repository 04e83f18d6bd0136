//! The items of a turn: messages and thoughts as they stream, and everything that is done as a tool.

use std::borrow::Cow;

use inspan_protocol::{Chunk, StreamEvent};
use serde_json::{Map, Value, json};

use super::super::wire;
use super::{CodexDecoded, CodexDecoder, Streamed};

impl CodexDecoder {
    pub(super) fn message_delta(&mut self, line: &wire::CodexDelta<'_>, out: &mut Vec<CodexDecoded>) {
        if line.delta.is_empty() {
            return;
        }
        self.open_message(&line.item_id, out);
        self.turn.open_message = Some((line.item_id.to_string(), Streamed::Some));
        self.turn.streamed.insert(line.item_id.to_string());
        out.extend(self.turn.text.push(line.delta.to_string(), Chunk::Delta).map(CodexDecoded::Event));
    }

    /// A message begins. One that was in progress until now was cut off.
    fn open_message(&mut self, id: &str, out: &mut Vec<CodexDecoded>) {
        if self.turn.open_message.as_ref().is_some_and(|(open, _)| open == id) {
            return;
        }
        self.retract(out);
        self.turn.text.begin_message(None);
        self.turn.open_message = Some((id.to_owned(), Streamed::Nothing));
    }

    pub(super) fn thought_delta(&mut self, line: &wire::CodexDelta<'_>, out: &mut Vec<CodexDecoded>) {
        if line.delta.is_empty() {
            return;
        }
        self.turn.streamed.insert(line.item_id.to_string());
        let place = (line.item_id.to_string(), line.summary_index);
        // Each part of a thought is a paragraph.
        let apart = self.turn.last_streamed.as_ref().is_some_and(|last| *last != place);
        self.turn.last_streamed = Some(place);
        let content = if apart { format!("\n\n{}", line.delta) } else { line.delta.to_string() };
        out.push(CodexDecoded::Event(StreamEvent::Thinking { content, chunk: Chunk::Delta }));
    }

    pub(super) fn started(&mut self, item: wire::Item<'_>, out: &mut Vec<CodexDecoded>) {
        match &*item.kind {
            "agentMessage" | "plan" => self.open_message(&item.id, out),
            "userMessage" if self.turn.open_message.is_some() => self.retract(out),
            kind if is_silent(kind) => {}
            _ => match tool(&item) {
                // The same call again is nothing new.
                Some(call)
                    if self.is_known(&item.id, &call)
                        && self.turn.open_tools.is_open(self.call_of(&item.id)) => {}
                Some((name, input)) => self.call(&item, name, input, out),
                None => self.unknown(&item, out),
            },
        }
    }

    /// A sub-agent may ask about this.
    pub(super) fn started_elsewhere(&mut self, place: &wire::NotificationPlace<'_>, item: &wire::Item<'_>) {
        if let (Some(thread), Some((_, input))) = (&place.thread_id, tool(item)) {
            self.turn.others.insert((thread.to_string(), item.id.to_string()), input);
        }
    }

    pub(super) fn completed(&mut self, item: wire::Item<'_>, out: &mut Vec<CodexDecoded>) {
        if item.tool.as_deref() == Some("spawnAgent") {
            // Its turn has not begun, but will.
            let states = item.agents_states.iter().filter_map(Value::as_object).flatten();
            let spawned = states.filter(|(_, state)| state["status"] == "pendingInit");
            for (thread, _) in spawned {
                self.at_work.entry(thread.clone()).or_default();
            }
        }
        match &*item.kind {
            "agentMessage" | "plan" => self.message(item, out),
            "reasoning" => self.thought(&item, out),
            "contextCompaction" => self.warn_once("compacted", "context", "summed up the older", out),
            kind if is_silent(kind) => {}
            _ => {
                let Some((name, input)) = tool(&item) else { return self.unknown(&item, out) };
                let call = (name, input);
                let is_open = self.turn.open_tools.is_open(self.call_of(&item.id));
                if !is_open && !self.is_known(&item.id, &call) {
                    self.call(&item, call.0, call.1, out);
                }
                let tool_use_id = self.call_of(&item.id).to_owned();
                if !self.turn.open_tools.answer(&tool_use_id) {
                    return;
                }
                self.turn.text.boundary();
                let (result, is_error) = answer(item);
                out.push(CodexDecoded::Event(StreamEvent::ToolComplete { tool_use_id, result, is_error }));
            }
        }
    }

    fn message(&mut self, item: wire::Item<'_>, out: &mut Vec<CodexDecoded>) {
        let text = item.text.unwrap_or_default().into_owned();
        let streamed = self.turn.streamed.remove(&*item.id);
        if !streamed {
            self.open_message(&item.id, out);
            out.extend(self.turn.text.push(text.clone(), Chunk::Whole).map(CodexDecoded::Event));
        }
        self.turn.open_message = None;
        self.turn.answer = text;
    }

    fn thought(&mut self, item: &wire::Item<'_>, out: &mut Vec<CodexDecoded>) {
        if self.turn.streamed.remove(&*item.id) {
            return;
        }
        let summary = item.summary.as_deref().unwrap_or_default();
        let content = match (summary.is_empty(), &item.content) {
            (true, Some(Value::Array(parts))) => {
                parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n\n")
            }
            _ => summary.join("\n\n"),
        };
        if !content.is_empty() {
            out.push(CodexDecoded::Event(StreamEvent::Thinking { content, chunk: Chunk::Whole }));
        }
    }

    fn call(&mut self, item: &wire::Item<'_>, tool_name: String, input: Value, out: &mut Vec<CodexDecoded>) {
        let mut tool_use_id = item.id.to_string();
        if self.turn.newest.contains_key(&*item.id) {
            self.turn.made_up += 1;
            tool_use_id = format!("{}#{}", item.id, self.turn.made_up);
        }
        self.turn.newest.insert(item.id.to_string(), tool_use_id.clone());
        self.turn.called.now += 1;
        self.turn.text.boundary();
        self.turn.open_tools.open(&tool_use_id);
        self.turn.inputs.insert(tool_use_id.clone(), (tool_name.clone(), input.clone()));
        out.push(CodexDecoded::Event(StreamEvent::ToolStart { tool_name, tool_use_id, input }));
    }

    /// The id of the newest call of an item's id.
    pub(super) fn call_of<'a>(&'a self, item: &'a str) -> &'a str {
        self.turn.newest.get(item).map_or(item, String::as_str)
    }

    /// Whether the newest call of an item's id is this one.
    fn is_known(&self, item: &str, call: &(String, Value)) -> bool {
        self.turn.inputs.get(self.call_of(item)) == Some(call)
    }

    /// The model typed into a command that runs, which the program does not ask about: a tool that is done at once.
    pub(super) fn terminal_input(&mut self, line: wire::TerminalLine<'_>, out: &mut Vec<CodexDecoded>) {
        // Without input it only waits for more output.
        if line.stdin.is_empty() {
            return;
        }
        self.turn.text.boundary();
        self.turn.made_up += 1;
        let tool_use_id = format!("{}#{}", line.item_id, self.turn.made_up);
        let command = self.turn.inputs.get(self.call_of(&line.item_id)).map(|(_, input)| &input["command"]);
        out.push(CodexDecoded::Event(StreamEvent::ToolStart {
            tool_name: "terminalInteraction".to_owned(),
            tool_use_id: tool_use_id.clone(),
            input: json!({ "stdin": line.stdin, "command": command }),
        }));
        out.push(CodexDecoded::Event(StreamEvent::ToolComplete {
            tool_use_id,
            result: Value::Null,
            is_error: false,
        }));
    }

    fn unknown(&mut self, item: &wire::Item<'_>, out: &mut Vec<CodexDecoded>) {
        let kind = item.kind.to_string();
        self.warn_once("unknownItem", &kind, "ignored an item of the unknown type", out);
    }
}

/// Items that only repeat what is reported elsewhere.
fn is_silent(kind: &str) -> bool {
    matches!(
        kind,
        "userMessage"
            | "hookPrompt"
            | "reasoning"
            | "functionCallOutput"
            | "subAgentActivity"
            | "enteredReviewMode"
            | "exitedReviewMode"
            | "contextCompaction"
    )
}

/// The name and the input of a tool; `None` for what is not a tool that is known. The names are the program's own, but
/// those of MCP tools, which Claude Code names so too.
fn tool(item: &wire::Item<'_>) -> Option<(String, Value)> {
    let name = |word: &Option<Cow<'_, str>>| word.as_deref().unwrap_or("unknown").to_owned();
    let (tool_name, input) = match &*item.kind {
        "commandExecution" => {
            ("commandExecution".to_owned(), fields([("command", &item.command), ("cwd", &item.cwd)]))
        }
        "fileChange" => ("fileChange".to_owned(), fields([("changes", &item.changes)])),
        "mcpToolCall" => {
            let tool_name = mcp_name(&name(&item.server), &name(&item.tool));
            (tool_name, item.arguments.clone().unwrap_or_else(|| json!({})))
        }
        "dynamicToolCall" => (name(&item.tool), item.arguments.clone().unwrap_or_else(|| json!({}))),
        "collabAgentToolCall" => {
            let input = fields([("prompt", &item.prompt), ("receiverThreadIds", &item.receiver_thread_ids)]);
            (name(&item.tool), input)
        }
        "webSearch" => ("webSearch".to_owned(), fields([("query", &item.query), ("action", &item.action)])),
        "imageView" => ("imageView".to_owned(), fields([("path", &item.path)])),
        "imageGeneration" => ("imageGeneration".to_owned(), json!({})),
        "sleep" => ("sleep".to_owned(), fields([("durationMs", &item.duration_ms)])),
        _ => return None,
    };
    Some((tool_name, input))
}

/// The name of a tool of an MCP server.
pub(super) fn mcp_name(server: &str, tool: &str) -> String {
    format!("mcp__{server}__{tool}")
}

/// What a tool answered, and whether it failed.
fn answer(item: wire::Item<'_>) -> (Value, bool) {
    let status = item.status.as_deref();
    let failed = matches!(status, Some("failed" | "declined" | "interrupted")) || item.success == Some(false);
    let result = match &*item.kind {
        "mcpToolCall" | "dynamicToolCall" => {
            let message = item.error.map(|mut error| error["message"].take());
            let content = item.result.map(|mut result| result["content"].take());
            message.or(content).or(item.content_items).unwrap_or(Value::Null)
        }
        _ => fields([
            ("status", &status.map(Value::from)),
            ("output", &item.aggregated_output),
            ("exitCode", &item.exit_code.map(Value::from)),
            ("results", &item.results),
            ("path", &item.saved_path),
        ]),
    };
    (result, failed)
}

/// An object of the fields that are there.
pub(super) fn fields<const N: usize>(fields: [(&str, &Option<Value>); N]) -> Value {
    let there = fields.into_iter().filter_map(|(name, value)| match value {
        None | Some(Value::Null) => None,
        Some(value) => Some((name.to_owned(), value.clone())),
    });
    Value::Object(there.collect::<Map<_, _>>())
}
