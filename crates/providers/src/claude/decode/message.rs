//! The model's messages: how they stream, how their finished blocks and the answers of tools come, and when a broken
//! stream is retracted.

use super::super::wire;
use super::{
    ClaudeDecoded, ClaudeDecoder,
    end::{least, most},
};
use inspan_protocol::{Chunk, StreamEvent, TurnId, Usage};

/// The model that the program names for its own messages.
const SYNTHETIC: &str = "<synthetic>";

/// The message that streams, or streamed last.
#[derive(Debug)]
pub(super) struct Streamed {
    id: String,
    /// Whether any text or thinking of it was sent.
    spoke: bool,
    /// Whether some of the block in progress was sent.
    block: BlockProgress,
    counted: bool,
    pub(super) stopped: bool,
}

/// How many characters are taken for a token. There are few texts of which a token has more.
const CHARACTERS_IN_TOKEN: u64 = 4;

/// A message of a sub-agent.
#[derive(Debug, Default)]
pub(super) struct SubMessage {
    /// What it counts.
    usage: Usage,
    /// Whether that is what it took at its end.
    is_final: bool,
    /// Whether a result of the turn came after it, and may count more of it.
    is_in_result: bool,
    characters: u64,
}

/// How much of the block in progress is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockProgress {
    /// Nothing was sent.
    Silent,
    /// Pieces were, and it is not finished.
    Streaming,
    /// It was streamed, and it is finished.
    Finished,
}

impl ClaudeDecoder {
    pub(super) fn stream_event(&mut self, line: wire::StreamLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        if line.parent_tool_use_id.is_some() {
            return;
        }
        self.turn.begun = true;
        let event = line.event;
        match &*event.kind {
            "content_block_delta" => {
                let Some(delta) = event.delta else { return };
                if let Some(text) = delta.text {
                    self.streams();
                    let event = self.turn.text.push(text.into_string(), Chunk::Delta);
                    out.extend(event.map(ClaudeDecoded::Event));
                } else if let Some(thinking) = delta.thinking {
                    self.streams();
                    self.thinks(thinking.into_string(), Chunk::Delta, out);
                }
            }
            "content_block_start" => {
                if let Some(streamed) = &mut self.turn.streamed {
                    streamed.block = BlockProgress::Silent;
                }
            }
            "message_start" => {
                let Some(message) = &event.message else { return };
                self.retract_if_broken(&message.id, out);
                self.begin_request();
                self.begin_message(&message.id, message.model.as_deref());
                self.turn.message_usage = message.usage.map(Usage::from).unwrap_or_default();
                self.turn.streamed = Some(Streamed {
                    id: message.id.to_string(),
                    spoke: false,
                    block: BlockProgress::Silent,
                    counted: false,
                    stopped: false,
                });
            }
            "message_delta" => {
                if let Some(reason) = event.delta.and_then(|delta| delta.stop_reason) {
                    self.turn.stop_reason = Some(reason.into_string());
                }
                self.count_streamed();
                self.message_usage(event.usage, out);
            }
            "message_stop" => {
                if let Some(streamed) = &mut self.turn.streamed {
                    streamed.stopped = true;
                }
            }
            "content_block_stop" | "ping" => {}
            other => {
                self.warn_once("unknownMessage", other, "ignored a stream event of the unknown type", out)
            }
        }
    }

    pub(super) fn assistant(&mut self, line: wire::AssistantLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        let message = line.message;
        if line.parent_tool_use_id.is_some() {
            self.sub_agent_message(&message, out);
            return self.blocks(message.content.0, BlockOrigin::SubAgent, out);
        }
        self.turn.begun = true;
        self.said(line.uuid);
        if let Some(error) = line.error {
            // The words of a failed request are no answer. They come again with the end of the turn.
            self.turn.error = Some(error.into_string());
            return self.retract_if_cut(out);
        }
        let streamed = self.turn.streamed.as_ref().is_some_and(|streamed| *streamed.id == *message.id);
        if streamed {
            self.count_streamed();
        } else if self.turn.last_message.as_deref() != Some(&*message.id) {
            self.retract_if_broken(&message.id, out);
            if message.model.as_deref() == Some(SYNTHETIC) {
                self.turn.text.begin_message(None);
            } else {
                self.begin_message(&message.id, message.model.as_deref());
                self.turn.messages += 1;
            }
            if let Some(reason) = message.stop_reason {
                self.turn.stop_reason = Some(reason.into_string());
            }
        }
        let origin = if streamed { BlockOrigin::Streamed } else { BlockOrigin::Whole };
        self.blocks(message.content.0, origin, out);
    }

    /// Blocks of text are the program's own words to the model. Only the answers of tools concern the run.
    pub(super) fn user(&mut self, line: wire::UserLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        if let Some(id) = line.resumed_agent() {
            self.tasks.resume(id);
        }
        if line.parent_tool_use_id.is_none() {
            if line.is_replay {
                self.repeated(&line.message.content.0);
            }
            self.said(line.uuid);
        }
        for block in line.message.content.0.into_iter().filter(|block| &*block.kind == "tool_result") {
            let id = block.tool_use_id.as_deref().unwrap_or_default();
            if !self.turn.open_tools.answer(id) {
                let what = "ignored the answer of a tool that was never called:";
                self.warn_once("unknownTool", id, what, out);
                continue;
            }
            let tool_use_id = id.to_owned();
            let (result, is_error) = (block.content.unwrap_or_default(), block.is_error.unwrap_or(false));
            // A sub-agent's tool can end between two texts. The end of one that ends well is not shown.
            if is_error {
                self.turn.text.boundary()
            } else {
                self.turn.text.unseen_boundary()
            }
            out.push(ClaudeDecoded::Event(StreamEvent::ToolComplete { tool_use_id, result, is_error }));
        }
    }

    /// A message that went to the model: a prompt, or what the program tells it about a task.
    fn repeated(&mut self, blocks: &[wire::Block<'_>]) {
        let mut texts = blocks.iter().filter_map(|block| block.text.as_deref());
        match texts.find(|text| text.starts_with("<task-notification>")) {
            Some(text) => self.turn.is_cut |= self.tasks.tell(text),
            None => self.turn.has_prompt = true,
        }
    }

    /// A message of the main thread.
    fn said(&mut self, uuid: Option<wire::Str<'_>>) {
        if let Some(uuid) = uuid {
            self.turn.uuid = Some(TurnId::from(&*uuid));
        }
    }

    fn blocks(&mut self, blocks: Vec<wire::Block<'_>>, origin: BlockOrigin, out: &mut Vec<ClaudeDecoded>) {
        let owned = |text: Option<wire::Str<'_>>| text.map(wire::Str::into_string).unwrap_or_default();
        for block in blocks {
            match &*block.kind {
                "tool_use" => self.tool_start(block, out),
                _ if origin == BlockOrigin::SubAgent => {}
                "text" | "thinking" if origin == BlockOrigin::Streamed && self.finish_block() => {}
                "text" => {
                    let event = self.turn.text.push(owned(block.text), Chunk::Whole);
                    out.extend(event.map(ClaudeDecoded::Event));
                }
                "thinking" => self.thinks(owned(block.thinking), Chunk::Whole, out),
                "redacted_thinking" => {}
                // Tools that run on the vendor's side come and go within the message.
                kind if kind == "server_tool_use" || kind.ends_with("_tool_result") => {}
                other => self.warn_once("unknownMessage", other, "ignored a block of the unknown type", out),
            }
        }
    }

    fn tool_start(&mut self, block: wire::Block<'_>, out: &mut Vec<ClaudeDecoded>) {
        let tool_use_id = block.id.map(wire::Str::into_string).unwrap_or_default();
        if !self.turn.open_tools.open(&tool_use_id) {
            return;
        }
        self.turn.text.boundary();
        out.push(ClaudeDecoded::Event(StreamEvent::ToolStart {
            tool_name: block.name.map(wire::Str::into_string).unwrap_or_default(),
            tool_use_id,
            input: block.input.unwrap_or_default(),
        }));
    }

    fn thinks(&mut self, content: String, chunk: Chunk, out: &mut Vec<ClaudeDecoded>) {
        if content.is_empty() {
            return;
        }
        if self.forbids_thinking {
            let what = "the program lets this model think although `thinking` is `off`";
            self.warn_once("thinkingNotOff", "", what, out);
        }
        out.push(ClaudeDecoded::Event(StreamEvent::Thinking { content, chunk }));
    }

    /// Some of the block in progress is sent.
    fn streams(&mut self) {
        if let Some(streamed) = &mut self.turn.streamed {
            streamed.spoke = true;
            streamed.block = BlockProgress::Streaming;
        }
    }

    /// The block in progress is finished. Says whether it was streamed.
    fn finish_block(&mut self) -> bool {
        let Some(streamed) = &mut self.turn.streamed else { return false };
        if streamed.block == BlockProgress::Streaming {
            streamed.block = BlockProgress::Finished;
        }
        streamed.block == BlockProgress::Finished
    }

    /// The message that streams is one that the model wrote: some of it, or its end, is there. A stream that breaks
    /// before that is not.
    pub(super) fn count_streamed(&mut self) {
        if let Some(streamed) = self.turn.streamed.as_mut().filter(|streamed| !streamed.counted) {
            streamed.counted = true;
            self.turn.messages += 1;
        }
    }

    fn begin_message(&mut self, id: &str, model: Option<&str>) {
        self.turn.text.begin_message(self.turn.stop_reason.take().as_deref());
        keep(&mut self.turn.last_message, id);
        if let Some(model) = model {
            keep(&mut self.turn.model, model);
        }
    }

    /// Another message begins while one streams: that one broke, and the model was asked again.
    fn retract_if_broken(&mut self, next: &str, out: &mut Vec<ClaudeDecoded>) {
        let Some(streamed) = self.turn.streamed.take() else { return };
        if streamed.stopped || streamed.id == next {
            return;
        }
        // The broken one is not a message that the model wrote, but it is paid for, and the program counts nothing of it.
        self.turn.messages -= u32::from(streamed.counted);
        let message = std::mem::take(&mut self.turn.message_usage);
        self.turn.usage += message;
        self.turn.broken += message;
        if streamed.spoke {
            self.retract(out);
        }
    }

    /// The turn fails within a block: nothing will finish that block.
    fn retract_if_cut(&mut self, out: &mut Vec<ClaudeDecoded>) {
        let cut =
            self.turn.streamed.as_ref().is_some_and(|s| !s.stopped && s.block == BlockProgress::Streaming);
        if cut {
            self.turn.streamed = None;
            self.retract(out);
        }
    }

    fn retract(&mut self, out: &mut Vec<ClaudeDecoded>) {
        out.extend(self.turn.text.retract().map(ClaudeDecoded::Event));
    }

    /// The counts of a sub-agent's message come with each of its blocks, and are those at its start. Until its transcript tells
    /// those at its end, it counts at least what its characters take.
    fn sub_agent_message(&mut self, message: &wire::AssistantMessage<'_>, out: &mut Vec<ClaudeDecoded>) {
        let Some(usage) = message.usage.map(Usage::from) else { return };
        let known = self.turn.sub_messages.entry(message.id.to_string()).or_default();
        known.characters += message.content.0.iter().map(wire::Block::characters).sum::<u64>();
        if !known.is_final {
            let mut usage = most(known.usage, usage);
            usage.output_tokens = usage.output_tokens.max(known.characters / CHARACTERS_IN_TOKEN);
            self.count_sub_message(&message.id, usage, out);
        }
    }

    /// What messages of sub-agents took, by their transcripts.
    pub(in crate::claude) fn count_sub_messages(
        &mut self,
        counts: Vec<(String, Usage)>,
    ) -> Vec<ClaudeDecoded> {
        let mut out = Vec::new();
        for (id, usage) in counts {
            self.turn.sub_messages.entry(id.clone()).or_default().is_final = true;
            self.count_sub_message(&id, usage, &mut out);
        }
        out
    }

    fn count_sub_message(&mut self, id: &str, usage: Usage, out: &mut Vec<ClaudeDecoded>) {
        let Some(message) = self.turn.sub_messages.get_mut(id) else { return };
        let before = std::mem::replace(&mut message.usage, usage);
        if before == usage {
            return;
        }
        let mut more = usage - before;
        if message.is_in_result {
            let known = least(more, self.turn.unseen);
            self.turn.unseen = self.turn.unseen - known;
            more = more - known;
        }
        self.turn.usage += more;
        self.turn.usage = self.turn.usage - (before - usage);
        self.spent_so_far(out);
    }

    /// The turn goes on after a result. It counts also messages of sub-agents whose end is not read yet.
    pub(super) fn count_result(&mut self, usage: Usage) {
        self.turn.unseen = usage - self.turn.usage;
        self.turn.usage = most(self.turn.usage, usage);
        for message in self.turn.sub_messages.values_mut() {
            message.is_in_result = true;
        }
    }

    fn message_usage(&mut self, usage: Option<wire::ClaudeUsage>, out: &mut Vec<ClaudeDecoded>) {
        // The counts of a message grow while it streams; those at its end replace those at its start.
        let start = std::mem::take(&mut self.turn.message_usage);
        let end = usage.map(Usage::from).unwrap_or_default();
        let message = Usage { output_tokens: end.output_tokens, ..most(start, end) };
        self.turn.usage += message;
        self.turn.context_tokens = message.total();
        self.spent_so_far(out);
    }

    /// What the turn has taken so far, with the part of its cost that is known.
    pub(super) fn spent_so_far(&self, out: &mut Vec<ClaudeDecoded>) {
        let (usage, cost_usd) = (self.turn.usage, self.turn.cost_usd);
        out.push(ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd }));
    }
}

/// Where finished blocks come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockOrigin {
    /// The message that streams.
    Streamed,
    /// A message that did not stream.
    Whole,
    /// A sub-agent.
    SubAgent,
}

/// Replaces a word by another one, without a new allocation.
fn keep(place: &mut Option<String>, word: &str) {
    let stored = place.get_or_insert_default();
    stored.clear();
    stored.push_str(word);
}
