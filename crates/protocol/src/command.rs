//! The commands that a live session takes, and the typed refusal of one. The hub executes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MessageMode, NodeId, PromptId, RunId};

/// What may be asked of a live session.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "command", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Command {
    /// A message to everything in the session that listens for one: multi-turn runs, nodes that wait for
    /// `session:message`, subscribers of it.
    Send {
        /// The message.
        content: String,
    },
    /// A message to the newest active run of a node.
    SendTo {
        /// The node.
        node: NodeId,
        /// The message.
        content: String,
        /// When it is delivered.
        #[serde(default)]
        mode: MessageMode,
    },
    /// A message to one run.
    SendToRun {
        /// The run.
        run: RunId,
        /// The message.
        content: String,
        /// When it is delivered.
        #[serde(default)]
        mode: MessageMode,
    },
    /// The answer to a question.
    Reply {
        /// The question.
        prompt: PromptId,
        /// The answer.
        content: String,
        /// Which of the choices it is.
        choice: Option<String>,
    },
    /// The default of a question is its answer: nobody can be asked.
    TakeDefault {
        /// The question.
        prompt: PromptId,
    },
    /// No more messages for a run.
    Close {
        /// The run.
        run: RunId,
    },
    /// Pause the session: it can be resumed later, by any process. Pausing twice is one pause.
    Pause {
        /// Why.
        reason: Option<String>,
    },
    /// Stop the session for good.
    Abort {
        /// Why.
        reason: Option<String>,
    },
}

/// A command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CommandKind {
    /// [`Command::Send`].
    Send,
    /// [`Command::SendTo`].
    SendTo,
    /// [`Command::SendToRun`].
    SendToRun,
    /// [`Command::Reply`].
    Reply,
    /// [`Command::TakeDefault`].
    TakeDefault,
    /// [`Command::Close`].
    Close,
    /// [`Command::Pause`].
    Pause,
    /// [`Command::Abort`].
    Abort,
}

impl Command {
    /// The command's name.
    pub fn kind(&self) -> CommandKind {
        match self {
            Self::Send { .. } => CommandKind::Send,
            Self::SendTo { .. } => CommandKind::SendTo,
            Self::SendToRun { .. } => CommandKind::SendToRun,
            Self::Reply { .. } => CommandKind::Reply,
            Self::TakeDefault { .. } => CommandKind::TakeDefault,
            Self::Close { .. } => CommandKind::Close,
            Self::Pause { .. } => CommandKind::Pause,
            Self::Abort { .. } => CommandKind::Abort,
        }
    }

    /// Fails if it is a message without a text, which no agent can be asked.
    pub fn check_text(&self) -> Result<(), Rejection> {
        match self {
            Self::Send { content } | Self::SendTo { content, .. } | Self::SendToRun { content, .. }
                if content.trim().is_empty() =>
            {
                Err(Rejection::EmptyMessage)
            }
            _ => Ok(()),
        }
    }

    /// The command without what a person wrote in it, which the event that it became has without secrets.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        match &mut self {
            Self::Send { content } | Self::SendTo { content, .. } | Self::SendToRun { content, .. } => {
                content.clear();
            }
            Self::Reply { content, choice, .. } => {
                content.clear();
                *choice = None;
            }
            Self::Pause { reason } | Self::Abort { reason } => *reason = None,
            Self::TakeDefault { .. } | Self::Close { .. } => {}
        }
        self
    }
}

fn not_a_choice(prompt: &PromptId, choice: &str, choices: &str) -> String {
    match choices {
        "" => format!("question `{prompt}` has no choices: it takes text"),
        _ => format!("`{choice}` is not among the choices of question `{prompt}`: {choices}"),
    }
}

/// Why a command was refused. The same words are in the `session:rejected` event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The session has not started or has ended.
    #[error("the session is not active")]
    NotActive,
    /// The message has no text.
    #[error("the message is empty")]
    EmptyMessage,
    /// Nothing in the session listens for a message now.
    #[error("nothing in the session listens for messages now")]
    NoListener,
    /// No run has this id.
    #[error("there is no run `{0}`")]
    UnknownRun(RunId),
    /// The run has ended.
    #[error("run `{0}` has ended")]
    RunEnded(RunId),
    /// The run has too many undelivered messages.
    #[error("run `{0}` has too many undelivered messages")]
    MailboxFull(RunId),
    /// The node has no active run.
    #[error("node `{0}` has no active run")]
    NoRunOfNode(NodeId),
    /// No question has this id.
    #[error("there is no question `{0}`")]
    UnknownPrompt(PromptId),
    /// The question has been answered.
    #[error("question `{0}` is already answered")]
    AlreadyAnswered(PromptId),
    /// The question's time is up.
    #[error("question `{0}` has expired")]
    TimeIsUp(PromptId),
    /// The answer is not among the choices.
    #[error("{}", not_a_choice(.prompt, .choice, .choices))]
    NotAChoice {
        /// The question.
        prompt: PromptId,
        /// What was chosen.
        choice: String,
        /// What may be chosen, separated by commas; nothing of a question that takes a text only.
        choices: String,
    },
    /// The answer does not fit the form of the question.
    #[error("the answer to question `{prompt}` does not fit: {why}")]
    Misfit {
        /// The question.
        prompt: PromptId,
        /// What does not fit.
        why: String,
    },
    /// The question has no default.
    #[error("question `{0}` has no default")]
    NoDefault(PromptId),
    /// The question takes a choice, not a text.
    #[error("question `{prompt}` takes no text, only one of its choices: {choices}")]
    TextNotAllowed {
        /// The question.
        prompt: PromptId,
        /// What may be chosen, separated by commas.
        choices: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_where_there_is_none_is_refused_in_its_own_words() {
        let refused = |choices: &str| {
            let choices = choices.to_owned();
            Rejection::NotAChoice { prompt: "q".into(), choice: "up".to_owned(), choices }.to_string()
        };
        assert_eq!(refused(""), "question `q` has no choices: it takes text");
        assert_eq!(refused("left, right"), "`up` is not among the choices of question `q`: left, right");
    }
}
