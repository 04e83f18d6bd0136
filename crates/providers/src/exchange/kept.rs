//! What is known here of a conversation between turns: all of it, or nothing if the vendor keeps it.
//! What is said in it is left to the ledgers of the adapters.

use std::sync::Arc;

use inspan_protocol::{AgentError, ExecutionContext, ProviderSessionId};
use serde_json::Value;

use crate::conversation::{Conversation, ConversationStore, Held};

/// A conversation that a turn has.
pub(super) struct Kept {
    /// None if the vendor keeps it.
    held: Option<Held>,
    pub(super) conversation: Conversation,
}

impl Kept {
    /// Takes a conversation for one turn; a new one unless it is gone on with.
    pub(super) async fn take(
        provider: &str,
        session: &ProviderSessionId,
        resume: Option<&ProviderSessionId>,
        store: Arc<dyn ConversationStore>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut held = Held::claim(store, session.clone(), context.env.clone()).await?;
        let conversation = match resume {
            Some(_) => held.read().await?,
            None => Conversation::new(provider),
        };
        Ok(Self { held: Some(held), conversation })
    }

    /// One that the vendor keeps.
    pub(super) fn by_vendor(provider: &str) -> Self {
        Self { held: None, conversation: Conversation::new(provider) }
    }

    /// Writes it with what was said.
    pub(super) async fn write(&mut self, messages: &[Value]) -> Result<(), AgentError> {
        let Some(held) = &mut self.held else { return Ok(()) };
        messages.clone_into(&mut self.conversation.messages);
        held.write(&self.conversation).await
    }
}
