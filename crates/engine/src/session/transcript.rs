//! What was said in an agent session, as messages, and what a chat has done so far: a pure fold over the run's events
//! and the prompts that reached the provider.

use inspan_protocol::{Content, ContentBlock, Event, Message, ProviderSessionId, Role, Usage};
use serde_json::Value;

use super::result::ToolCall;

/// The cost of one chat: unknown as soon as one turn's is, since a sum that leaves a turn out would be a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum ChatCost {
    #[default]
    Nothing,
    Known(f64),
    Unknown,
}

/// The messages of a session, and the newest chat.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// Messages of the chats that have ended.
    done: Vec<Message>,
    /// Messages of the newest chat.
    tail: Vec<Message>,
    /// Where in `tail` the newest turn's answer begins.
    turn: usize,
    /// Whether the last block is a text that deltas continue.
    is_open: bool,
    calls: Vec<ToolCall>,
    usage: Usage,
    cost: ChatCost,
    turns: u32,
    session: Option<ProviderSessionId>,
}

impl Transcript {
    /// What was said before, and the vendor's conversation if it can be resumed.
    pub(crate) fn of(done: Vec<Message>, session: Option<ProviderSessionId>) -> Self {
        let prompts = done.iter().filter(|message| message.role == Role::User && says(message)).count();
        let turns = if session.is_some() { u32::try_from(prompts).unwrap_or(u32::MAX) } else { 0 };
        Self { done, session, turns, ..Self::default() }
    }

    /// All messages, oldest first.
    pub(crate) fn messages(&self) -> Vec<Message> {
        self.done.iter().chain(&self.tail).cloned().collect()
    }

    /// The messages of the newest chat.
    pub(crate) fn newest(&self) -> &[Message] {
        &self.tail
    }

    pub(crate) fn calls(&self) -> &[ToolCall] {
        &self.calls
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn cost_usd(&self) -> Option<f64> {
        if let ChatCost::Known(cost) = self.cost { Some(cost) } else { None }
    }

    /// How many turns the conversation has had.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    /// The vendor's conversation.
    pub(crate) fn session(&self) -> Option<&ProviderSessionId> {
        self.session.as_ref()
    }

    /// The messages before the newest chat.
    pub(crate) fn before(&self) -> &[Message] {
        &self.done
    }

    /// The vendor does not know its conversation: the newest turn is the first of another one.
    pub(crate) fn forget_session(&mut self) {
        (self.session, self.turns) = (None, 1);
    }

    /// A new chat begins.
    pub(crate) fn begin(&mut self) {
        self.done.append(&mut self.tail);
        self.calls.clear();
        (self.turn, self.is_open, self.usage, self.cost) = (0, false, Usage::default(), ChatCost::Nothing);
    }

    /// A prompt reaches the provider: a turn begins.
    pub(crate) fn prompt(&mut self, message: Message) {
        self.tail.push(message);
        self.turn = self.tail.len();
        self.is_open = false;
        self.turns += 1;
    }

    /// The newest turn is tried again: what was said in it is void, what its tools did is not.
    pub(crate) fn again(&mut self) {
        self.tail.truncate(self.turn);
        self.is_open = false;
    }

    /// The turn's output. A provider that does not stream says its text only here.
    pub(crate) fn output(&mut self, text: &str) {
        if self.turn_text().is_empty() && !text.is_empty() {
            self.push(Role::Assistant, ContentBlock::Text { text: text.to_owned() });
        }
        self.is_open = false;
    }

    /// What the agent has said in the newest turn.
    pub(crate) fn turn_text(&self) -> String {
        let answers = self.tail[self.turn..].iter().filter(|message| message.role == Role::Assistant);
        let texts: Vec<String> = answers.map(|message| message.content.text()).collect();
        texts.iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n\n")
    }

    /// One event of the chat's run.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::AgentSession { session_id, .. } => self.session = Some(session_id.clone()),
            Event::AgentText { content, delta: true, .. } => self.delta(content),
            Event::AgentText { content, .. } => {
                self.push(Role::Assistant, ContentBlock::Text { text: content.clone() });
                self.is_open = false;
            }
            Event::AgentRetract { .. } => self.retract(),
            Event::AgentToolStart { tool_name, tool_use_id, input, .. } => {
                let (id, name, input) = (tool_use_id.clone(), tool_name.clone(), input.clone());
                self.calls.push(ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    input: input.clone(),
                    result: None,
                    is_error: false,
                });
                self.push(Role::Assistant, ContentBlock::ToolUse { id, name, input });
                self.is_open = false;
            }
            Event::AgentToolComplete { tool_use_id, result, is_error, .. } => {
                self.answered(tool_use_id, result, *is_error);
            }
            Event::AgentUsage { usage, cost_usd, .. } => {
                self.usage += *usage;
                self.cost = match (self.cost, cost_usd) {
                    (ChatCost::Nothing, Some(cost)) => ChatCost::Known(*cost),
                    (ChatCost::Known(sum), Some(cost)) => ChatCost::Known(sum + cost),
                    (ChatCost::Unknown, _) | (_, None) => ChatCost::Unknown,
                };
            }
            _ => {}
        }
    }

    fn delta(&mut self, content: &str) {
        if self.is_open
            && let Some(Message { content: Content::Blocks(blocks), .. }) = self.tail.last_mut()
            && let Some(ContentBlock::Text { text }) = blocks.last_mut()
        {
            text.push_str(content);
            return;
        }
        self.push(Role::Assistant, ContentBlock::Text { text: content.to_owned() });
        self.is_open = true;
    }

    fn retract(&mut self) {
        if std::mem::take(&mut self.is_open)
            && let Some(Message { content: Content::Blocks(blocks), .. }) = self.tail.last_mut()
        {
            blocks.pop();
            if blocks.is_empty() {
                self.tail.pop();
            }
        }
    }

    fn answered(&mut self, id: &str, result: &Value, is_error: bool) {
        // An id may come again in a later turn; the newest call without an answer is meant.
        if let Some(call) = self.calls.iter_mut().rev().find(|call| call.id == id && call.result.is_none()) {
            (call.result, call.is_error) = (Some(result.clone()), is_error);
        }
        let (tool_use_id, content) = (id.to_owned(), result.clone());
        self.push(Role::User, ContentBlock::ToolResult { tool_use_id, content, is_error });
        self.is_open = false;
    }

    /// To the message of this role that the turn ends with, or to a new one.
    fn push(&mut self, role: Role, block: ContentBlock) {
        if self.tail.len() > self.turn
            && let Some(Message { role: last, content: Content::Blocks(blocks) }) = self.tail.last_mut()
            && *last == role
        {
            blocks.push(block);
            return;
        }
        self.tail.push(Message { role, content: Content::Blocks(vec![block]) });
    }
}

/// Whether a message says anything but what tools answered.
fn says(message: &Message) -> bool {
    match &message.content {
        Content::Text(_) => true,
        Content::Blocks(blocks) => {
            blocks.iter().any(|block| !matches!(block, ContentBlock::ToolResult { .. }))
        }
    }
}

/// What was said, as one text for an agent that was not there.
pub(crate) fn retell(messages: &[Message]) -> String {
    let mut text = String::from("This conversation began elsewhere. What was said so far:\n");
    for message in messages.iter().filter(|message| !message.content.text().is_empty()) {
        let who = if message.role == Role::Assistant { "You" } else { "The user" };
        text.push_str(&format!("\n{who}:\n{}\n", message.content.text()));
    }
    text.push_str("\nIt goes on here.");
    text
}

#[cfg(test)]
mod tests {
    use inspan_protocol::RunId;
    use serde_json::json;

    use super::*;

    fn run() -> RunId {
        RunId::from("run-1")
    }

    fn text(content: &str, delta: bool) -> Event {
        Event::AgentText { content: content.to_owned(), delta, run_id: run() }
    }

    fn start(id: &str) -> Event {
        let (tool_name, tool_use_id) = ("Bash".to_owned(), id.to_owned());
        Event::AgentToolStart { tool_name, tool_use_id, input: json!({}), run_id: run() }
    }

    fn complete(id: &str) -> Event {
        let (tool_name, tool_use_id) = ("Bash".to_owned(), id.to_owned());
        Event::AgentToolComplete {
            tool_name,
            tool_use_id,
            result: json!("ok"),
            is_error: false,
            run_id: run(),
        }
    }

    fn assistant(blocks: serde_json::Value) -> serde_json::Value {
        json!({ "role": "assistant", "content": blocks })
    }

    fn block(text: &str) -> serde_json::Value {
        json!({ "type": "text", "text": text })
    }

    #[test]
    fn events_become_messages() {
        let use_tool = json!({ "type": "tool_use", "id": "t", "name": "Bash", "input": {} });
        let answer = json!({ "type": "tool_result", "tool_use_id": "t", "content": "ok", "is_error": false });
        let rows = [
            (vec![text("a", true), text("b", true)], vec![assistant(json!([block("ab")]))]),
            (vec![text("a", false), text("b", true)], vec![assistant(json!([block("a"), block("b")]))]),
            (
                vec![
                    text("a", true),
                    Event::AgentRetract { run_id: run() },
                    Event::AgentRetract { run_id: run() },
                ],
                vec![],
            ),
            (
                vec![
                    text("a", true),
                    start("t"),
                    complete("t"),
                    text("b", true),
                    Event::AgentRetract { run_id: run() },
                    text("c", true),
                ],
                vec![
                    assistant(json!([block("a"), use_tool])),
                    json!({ "role": "user", "content": [answer] }),
                    assistant(json!([block("c")])),
                ],
            ),
        ];
        for (events, expected) in rows {
            let mut transcript = Transcript::default();
            transcript.begin();
            transcript.prompt(Message::user("go"));
            events.iter().for_each(|event| transcript.event(event));
            let mut whole = vec![json!({ "role": "user", "content": "go" })];
            whole.extend(expected);
            assert_eq!(json!(transcript.messages()), json!(whole));
        }
    }

    #[test]
    fn a_turn_that_is_tried_again_leaves_only_what_its_tools_did() {
        let mut transcript = Transcript::default();
        transcript.begin();
        transcript.prompt(Message::user("go"));
        [text("half", true), start("t"), complete("t")].iter().for_each(|event| transcript.event(event));
        transcript.again();
        transcript.output("whole");
        assert_eq!(transcript.turn_text(), "whole");
        assert_eq!((transcript.newest().len(), transcript.calls().len(), transcript.turns()), (2, 1, 1));
    }

    #[test]
    fn a_cost_with_an_unknown_part_is_unknown() {
        let cost = |costs: &[Option<f64>]| {
            let mut transcript = Transcript::default();
            for cost_usd in costs {
                let usage = Usage { input_tokens: 1, ..Usage::default() };
                transcript.event(&Event::AgentUsage {
                    usage,
                    cost_usd: *cost_usd,
                    context: None,
                    turn_id: None,
                    reported: None,
                    uncounted: false,
                    run_id: run(),
                });
            }
            (transcript.cost_usd(), transcript.usage().input_tokens)
        };
        assert_eq!(cost(&[]), (None, 0));
        assert_eq!(cost(&[Some(0.5), Some(0.25)]), (Some(0.75), 2));
        assert_eq!(cost(&[Some(0.5), None, Some(1.0)]), (None, 3));
    }
}
