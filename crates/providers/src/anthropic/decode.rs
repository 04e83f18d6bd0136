//! The decoder of one streamed response: bytes in, events out.
//!
//! | state | event | becomes |
//! |---|---|---|
//! | before | `message_start` | the answer begins; its tokens so far |
//! | within | `content_block_start`, `_delta`, `_stop` | text and thinking as they come; the block is stored for the
//! next request; a call of a tool is complete at the end |
//! | within | `message_delta` | the stop reason, the tokens |
//! | within | `message_stop` | the end |
//! | before, within | `error` | the vendor's error |
//! | any | `ping`, what is not known | nothing; what is not known is warned of |
//! | any | anything else | a fault: nothing after it can be relied on |

use inspan_protocol::{AgentError, Chunk, StreamEvent, Usage};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::error;
use super::wire;
use crate::api::stream::{self, DecoderState, ResponseDecoder, ResponseProgress};
use crate::api::stream::{protocol, read};
use crate::decode::Warned;
use crate::tools::ToolCall;

/// What the stream says.
pub(super) type AnthropicDecoded = stream::Decoded<PartialResponse>;

/// The response, or the part of it that has arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PartialResponse {
    /// The text of all blocks.
    pub(super) text: String,
    /// The blocks as the next request has to hold them.
    pub(super) content: Vec<Value>,
    /// The calls among them, which the next request has to answer.
    pub(super) calls: Vec<ToolCall>,
    pub(super) model: Option<String>,
    pub(super) usage: Usage,
    /// The vendor's reason for its end.
    pub(super) stop_reason: Option<String>,
    pub(super) stop_details: Option<wire::StopDetails>,
}

/// The decoder of one response.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    state: DecoderState,
    response: PartialResponse,
    blocks: Vec<AnthropicBlock>,
    warned: Warned,
}

#[derive(Debug)]
struct AnthropicBlock {
    index: u64,
    kind: BlockKind,
    open: OpenBlock,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OpenBlock {
    Yes,
    No,
}

#[derive(Debug)]
enum BlockKind {
    Text(String),
    Thinking {
        thinking: String,
        signature: String,
    },
    /// A call of one of our tools, and its arguments as they came.
    ToolUse {
        id: String,
        name: String,
        arguments: String,
    },
    /// Anything else, as it began, and the arguments if it is a call of the vendor's own tools.
    Kept {
        block: Value,
        arguments: String,
    },
}

type Done = Result<(), AgentError>;

impl ResponseDecoder for Decoder {
    const SIGNS_OF_LIFE: &'static [&'static str] = &["ping"];

    type Response = PartialResponse;

    fn state(&mut self) -> &mut DecoderState {
        &mut self.state
    }

    fn decode(&mut self, kind: &str, data: &str, out: &mut Vec<AnthropicDecoded>) -> Done {
        let in_order = match kind {
            "message_start" => self.state.progress == ResponseProgress::NotBegun,
            "content_block_start"
            | "content_block_delta"
            | "content_block_stop"
            | "message_delta"
            | "message_stop" => self.state.progress == ResponseProgress::Begun,
            _ => true,
        };
        if !in_order {
            return Err(protocol(format!("the event `{kind}` came out of order")));
        }
        match kind {
            "ping" => Ok(()),
            "error" => Err(error::within(read(data, kind)?)),
            "message_start" => {
                let start: wire::MessageStart<'_> = read(data, kind)?;
                self.state.progress = ResponseProgress::Begun;
                self.response.model = start.message.model.map(std::borrow::Cow::into_owned);
                self.tokens(start.message.usage.unwrap_or_default(), out);
                Ok(())
            }
            "content_block_start" => self.block_start(read(data, kind)?, out),
            "content_block_delta" => self.block_delta(&read(data, kind)?, out),
            "content_block_stop" => {
                let stop: wire::BlockStop = read(data, kind)?;
                self.open_block(stop.index)?.open = OpenBlock::No;
                Ok(())
            }
            "message_delta" => {
                let end: wire::MessageDelta = read(data, kind)?;
                let response = &mut self.response;
                response.stop_reason = end.delta.stop_reason.or(response.stop_reason.take());
                response.stop_details = end.delta.stop_details.or(response.stop_details.take());
                self.state.counted |= end.usage.is_some();
                self.tokens(end.usage.unwrap_or_default(), out);
                Ok(())
            }
            "message_stop" => self.message_stop(out),
            _ => {
                self.warn_once("unknownEvent", kind, "ignored an event of the unknown type", out);
                // Broken JSON is an error even where nothing of it is used.
                read::<serde::de::IgnoredAny>(data, kind).map(drop)
            }
        }
    }

    /// Thinking that is not complete is left out: the vendor takes it back only with the signature at its end.
    fn partial(self) -> PartialResponse {
        let mut response = self.response;
        response.calls = self.blocks.iter().filter_map(AnthropicBlock::call).collect();
        response.content = self.blocks.into_iter().filter_map(AnthropicBlock::stored).collect();
        response
    }

    fn response_error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AgentError {
        error::response_error(status, headers, body)
    }

    fn body_error(body: &[u8]) -> Option<AgentError> {
        serde_json::from_slice(body).ok().map(error::within)
    }
}

impl Decoder {
    fn message_stop(&mut self, out: &mut Vec<AnthropicDecoded>) -> Done {
        if self.blocks.iter().any(|block| block.open == OpenBlock::Yes) {
            return Err(protocol("the answer ended within a block".to_owned()));
        }
        self.state.progress = ResponseProgress::Ended;
        let complete = Self {
            response: std::mem::take(&mut self.response),
            blocks: std::mem::take(&mut self.blocks),
            ..Self::default()
        };
        out.push(AnthropicDecoded::End(Box::new(complete.partial())));
        Ok(())
    }

    fn block_start(&mut self, start: wire::BlockStart, out: &mut Vec<AnthropicDecoded>) -> Done {
        let text = |key: &str| start.content_block[key].as_str().unwrap_or_default().to_owned();
        let (index, kind) = (start.index, text("type"));
        if self.blocks.iter().any(|block| block.index == index) {
            return Err(protocol(format!("the block {index} began twice")));
        }
        let block = match kind.as_str() {
            "" => return Err(protocol(format!("the block {index} has no type"))),
            "text" => BlockKind::Text(String::new()),
            "thinking" => BlockKind::Thinking { thinking: String::new(), signature: text("signature") },
            "tool_use" => {
                let (id, name) = (text("id"), text("name"));
                let known = |block: &AnthropicBlock| matches!(&block.kind, BlockKind::ToolUse { id: other, .. } if *other == id);
                if id.is_empty() || name.is_empty() {
                    return Err(protocol(format!("the block {index} calls a tool without a name or an id")));
                }
                if self.blocks.iter().any(known) {
                    return Err(protocol(format!(
                        "the block {index} calls a tool with the id of another call"
                    )));
                }
                // Most begin with none, and the arguments follow piece by piece.
                let input = &start.content_block["input"];
                let begun = input.as_object().is_some_and(|input| !input.is_empty());
                BlockKind::ToolUse {
                    id,
                    name,
                    arguments: if begun { input.to_string() } else { String::new() },
                }
            }
            other => {
                if other != "redacted_thinking" {
                    self.warn_once("unknownBlock", other, "stored a block of the unknown type", out);
                }
                BlockKind::Kept { block: start.content_block.clone(), arguments: String::new() }
            }
        };
        self.blocks.push(AnthropicBlock { index, kind: block, open: OpenBlock::Yes });
        // A block may begin with words already.
        match kind.as_str() {
            "text" => self.text(index, &text("text"), out),
            "thinking" => self.thinking(index, &text("thinking"), out),
            _ => Ok(()),
        }
    }

    fn block_delta(&mut self, event: &wire::BlockDelta<'_>, out: &mut Vec<AnthropicDecoded>) -> Done {
        let (index, delta) = (event.index, &event.delta);
        match &*delta.kind {
            "text_delta" => self.text(index, delta.text.as_deref().unwrap_or_default(), out),
            "thinking_delta" => self.thinking(index, delta.thinking.as_deref().unwrap_or_default(), out),
            "signature_delta" => match &mut self.open_block(index)?.kind {
                BlockKind::Thinking { signature, .. } => {
                    signature.push_str(delta.signature.as_deref().unwrap_or_default());
                    Ok(())
                }
                _ => Err(misfit(index)),
            },
            "input_json_delta" => match &mut self.open_block(index)?.kind {
                BlockKind::ToolUse { arguments, .. } | BlockKind::Kept { arguments, .. } => {
                    arguments.push_str(delta.partial_json.as_deref().unwrap_or_default());
                    Ok(())
                }
                _ => Err(misfit(index)),
            },
            other => {
                self.open_block(index)?;
                self.warn_once("unknownDelta", other, "ignored a piece of the unknown type", out);
                Ok(())
            }
        }
    }

    fn text(&mut self, index: u64, piece: &str, out: &mut Vec<AnthropicDecoded>) -> Done {
        let BlockKind::Text(text) = &mut self.open_block(index)?.kind else { return Err(misfit(index)) };
        text.push_str(piece);
        self.response.text.push_str(piece);
        if !piece.is_empty() {
            let event = StreamEvent::Text { content: piece.to_owned(), chunk: Chunk::Delta };
            out.push(AnthropicDecoded::Event(event));
        }
        Ok(())
    }

    fn thinking(&mut self, index: u64, piece: &str, out: &mut Vec<AnthropicDecoded>) -> Done {
        let BlockKind::Thinking { thinking, .. } = &mut self.open_block(index)?.kind else {
            return Err(misfit(index));
        };
        thinking.push_str(piece);
        if !piece.is_empty() {
            let event = StreamEvent::Thinking { content: piece.to_owned(), chunk: Chunk::Delta };
            out.push(AnthropicDecoded::Event(event));
        }
        Ok(())
    }

    fn open_block(&mut self, index: u64) -> Result<&mut AnthropicBlock, AgentError> {
        let open = |block: &&mut AnthropicBlock| block.index == index && block.open == OpenBlock::Yes;
        self.blocks.iter_mut().find(open).ok_or_else(|| protocol(format!("the block {index} is not open")))
    }

    fn tokens(&mut self, usage: wire::ApiUsage, out: &mut Vec<AnthropicDecoded>) {
        let before = self.response.usage;
        usage.over(&mut self.response.usage);
        if self.response.usage != before {
            out.push(AnthropicDecoded::Event(StreamEvent::Usage {
                usage: self.response.usage,
                cost_usd: None,
            }));
        }
    }

    fn warn_once(&mut self, code: &str, kind: &str, what: &str, out: &mut Vec<AnthropicDecoded>) {
        out.extend(self.warned.once(code, kind, what).map(AnthropicDecoded::Event));
    }
}

impl AnthropicBlock {
    /// The call that it is.
    fn call(&self) -> Option<ToolCall> {
        match &self.kind {
            BlockKind::ToolUse { id, name, arguments } if self.open == OpenBlock::No => {
                Some(ToolCall::new(id, name, arguments))
            }
            _ => None,
        }
    }

    /// The block as the next request has to hold it, if it may.
    fn stored(self) -> Option<Value> {
        match self.kind {
            BlockKind::Text(text) => super::request::text_block(&text),
            BlockKind::Thinking { thinking, signature } => (!signature.is_empty()
                && self.open == OpenBlock::No)
                .then(|| json!({ "type": "thinking", "thinking": thinking, "signature": signature })),
            // The vendor accepts only an object here; the result of the call says what came instead.
            BlockKind::ToolUse { ref id, ref name, .. } => self.call().map(|call| {
                let input = call.input.unwrap_or_else(|_| json!({}));
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }),
            BlockKind::Kept { mut block, arguments } => (self.open == OpenBlock::No).then(|| {
                if let Ok(input) = serde_json::from_str::<Value>(&arguments) {
                    block["input"] = input;
                }
                block
            }),
        }
    }
}

fn misfit(index: u64) -> AgentError {
    protocol(format!("a piece of the block {index} is of another kind than the block"))
}

#[cfg(test)]
mod tests;
