//! A conversation with a running agent: one prompt and its answer at a time.
//! Keeping sessions between turns and sharing them out is left to the pool.

use futures::Stream;
use inspan_protocol::{
    AgentError, ContentBlock, ErrorCode, ExecutionContext, ProviderItem, ProviderSessionId, StreamEvent,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::launch::{Launch, invalid};
use super::link::{Link, State};
use super::turn::{Manner, Turn};
use super::wire::PromptCapabilities;
use crate::conversation::busy;
use crate::output::TurnOutput;
use crate::pool::{Reuse, Session};

/// Stands before a prompt that an agent would take for one of its commands.
const LEAD: &str = "The message follows; it is no command.\n\n";

/// One conversation and the process that holds it. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub(super) struct AcpSession {
    id: ProviderSessionId,
    link: Mutex<Link>,
}

/// The media type of a document whose text stands in the block as it is.
const PLAIN: &str = "text/plain";

/// How a prompt is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commands {
    /// The model reads it.
    No,
    /// The agent may take `/word` for a command.
    Wanted,
}

impl AcpSession {
    /// Starts an agent and opens a new conversation, or goes on with an earlier one.
    pub(super) async fn open(
        launch: &Launch,
        resume: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let link = Link::open(launch, resume, context).await?;
        Ok(Self { id: link.session.clone(), link: Mutex::new(link) })
    }

    /// The conversation.
    pub(super) fn id(&self) -> &ProviderSessionId {
        &self.id
    }

    /// Hands the user's next message over, with words of ours after it. Its answer comes by [`Self::receive`].
    pub(super) async fn send(
        &self,
        message: &[ContentBlock],
        commands: Commands,
        instruction: Option<String>,
    ) -> Result<(), AgentError> {
        let mut link = self.link.try_lock().map_err(|_| busy(&self.id))?;
        if link.state != State::Idle {
            return Err(busy(&self.id));
        }
        let mut prompt = prompt(message, commands, link.takes())?;
        link.warnings.extend(message.iter().find_map(unread));
        prompt.extend(instruction.map(|text| json!({ "type": "text", "text": text })));
        link.catch_up()?;
        let params = json!({ "sessionId": self.id, "prompt": prompt });
        let asked = link.peer.request("session/prompt", params)?;
        link.decoder.begin(asked);
        link.state = State::InTurn;
        Ok(())
    }

    /// The events of the turn and its end: one output or one error. The context's token cancels the turn, its
    /// deadline counts from here. If the stream is dropped before its end, the session can only be closed.
    pub(super) fn receive(
        &self,
        context: ExecutionContext,
        manner: Manner,
    ) -> impl Stream<Item = Result<ProviderItem<TurnOutput>, AgentError>> + Send + '_ {
        async_stream::stream! {
            let mut link = self.link.lock().await;
            if link.state != State::InTurn {
                let message = "no message was sent whose answer could be received";
                yield Err(AgentError::new(ErrorCode::InvalidRequest, message));
                return;
            }
            // Only the end of the turn makes the session usable again.
            link.state = State::Gone;
            let mut turn = Turn::new(context, manner, &mut link);
            loop {
                let item = turn.next(&mut link).await;
                let last = !matches!(item, Ok(ProviderItem::Event(_)));
                yield item;
                if last {
                    return;
                }
            }
        }
    }
}

impl Session for AcpSession {
    type Launch = Launch;

    fn reuse(_: &Launch) -> Reuse {
        Reuse::Warm
    }

    fn is_ready(&self) -> bool {
        self.link.try_lock().is_ok_and(|mut link| link.is_ready())
    }

    async fn end(&self) {
        let mut link = self.link.lock().await;
        match link.state {
            State::Idle => {
                link.break_off().await;
            }
            // Nobody wants the rest of its turn, and it would go on with it until it is made to stop.
            State::InTurn | State::Gone => link.kill().await,
        }
    }
}

/// The blocks of a prompt in the protocol's form.
fn prompt(
    message: &[ContentBlock],
    commands: Commands,
    takes: PromptCapabilities,
) -> Result<Vec<Value>, AgentError> {
    let mut prompt = Vec::new();
    for block in message {
        prompt.push(match block {
            ContentBlock::Text { text } => {
                let lead = commands == Commands::No && text.trim_start().starts_with(['/', '$']);
                let text = if lead { format!("{LEAD}{text}") } else { text.clone() };
                json!({ "type": "text", "text": text })
            }
            ContentBlock::Image { media_type, data } if takes.image => {
                json!({ "type": "image", "mimeType": media_type, "data": data })
            }
            ContentBlock::Image { .. } => return Err(invalid("this agent takes no pictures".to_owned())),
            ContentBlock::Document { media_type, data, title } if takes.embedded_context => {
                let content = if media_type == PLAIN { "text" } else { "blob" };
                let uri = uri(title.as_deref().unwrap_or("document"));
                json!({ "type": "resource", "resource": { "uri": uri, "mimeType": media_type, content: data } })
            }
            ContentBlock::Document { .. } => return Err(invalid("this agent takes no documents".to_owned())),
            _ => {
                let message = "a message to this provider may hold texts, pictures and documents only";
                return Err(invalid(message.to_owned()));
            }
        });
    }
    Ok(prompt)
}

/// The protocol has a place for such a document, and no way for an agent to say that it cannot read it.
fn unread(block: &ContentBlock) -> Option<StreamEvent> {
    let ContentBlock::Document { media_type, .. } = block else { return None };
    let message = format!("agents that cannot read `{media_type}` pass over it without a word");
    (media_type != PLAIN).then(|| StreamEvent::Warning { code: "documentMayBeUnread".to_owned(), message })
}

/// A name for a document that lies nowhere.
fn uri(title: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let part = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    format!("document:///{}", title.bytes().map(part).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_resources_where_they_are_taken() {
        let document = |media_type: &str, data: &str, title: Option<&str>| ContentBlock::Document {
            media_type: media_type.to_owned(),
            data: data.to_owned(),
            title: title.map(str::to_owned),
        };
        let message = [
            document("text/plain", "oxen", Some("The \u{e4} list.txt")),
            document("application/pdf", "AA==", None),
        ];
        let takes = PromptCapabilities { embedded_context: true, ..PromptCapabilities::default() };
        assert_eq!(
            prompt(&message, Commands::No, takes).unwrap(),
            [
                json!({ "type": "resource", "resource": {
                    "uri": "document:///The%20%C3%A4%20list.txt", "mimeType": "text/plain", "text": "oxen",
                } }),
                json!({ "type": "resource", "resource": {
                    "uri": "document:///document", "mimeType": "application/pdf", "blob": "AA==",
                } }),
            ]
        );
        assert_eq!(message.iter().map(|block| unread(block).is_some()).collect::<Vec<_>>(), [false, true]);
        let refused = prompt(&message, Commands::No, PromptCapabilities::default()).unwrap_err();
        assert_eq!(refused.message, "this agent takes no documents");
    }
}
