//! What decoders share: the text of a turn, its open tools, and warnings that are given once.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use inspan_protocol::{Chunk, StreamEvent};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;

/// Reads what is only shown or counted. What a vendor or a gateway writes in a form that cannot be read counts as absent: an
/// answer that was paid is not lost for that. A number that has to be whole is rounded.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: DeserializeOwned + Default,
    D: Deserializer<'de>,
{
    let value = Value::deserialize(deserializer)?;
    let rounded = || serde_json::from_str(&format!("{:.0}", value.as_f64()?)).ok();
    Ok(T::deserialize(&value).ok().or_else(rounded).unwrap_or_default())
}

/// What is said of the sub-agents and commands that are stopped when the turn ends.
pub(crate) fn background_ended(sub_agents: usize, commands: usize) -> Option<String> {
    let counted = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    let parts = [counted(sub_agents, "sub-agent"), counted(commands, "command")];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>();
    (!parts.is_empty())
        .then(|| format!("stopped in the background at the end of the turn: {}", parts.join(" and ")))
}

/// The ids of calls. Some models count their calls from the beginning in each answer, and what a person allows must be the
/// call that is shown: the second call of an id gets another one.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    used: HashSet<String>,
}

impl CallIds {
    /// The id of a new call, to which the model gave this one.
    pub(crate) fn fresh(&mut self, call: &str) -> String {
        let (mut id, mut number) = (call.to_owned(), 1_u32);
        while !self.used.insert(id.clone()) {
            number += 1;
            id = format!("{call}#{number}");
        }
        id
    }
}

/// All text of a turn.
#[derive(Debug, Default)]
pub(crate) struct TurnText {
    text: String,
    /// Where the last boundary is: what a reader of the events voids on a retraction begins here.
    boundary: usize,
    /// Where the text begins that nothing a person sees has followed.
    unbroken: usize,
    /// Where the message in progress began.
    message: usize,
    join: TextJoin,
}

/// How the next text is put to the text before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum TextJoin {
    /// It continues.
    #[default]
    Continues,
    /// It is another block, and a blank line comes between.
    NewBlock,
}

impl TurnText {
    /// Appends a text. Gives the event for it, unless it is empty: the first piece of a message right behind another one
    /// brings the blank line between them, so that pieces put together read as the whole does.
    pub(crate) fn push(&mut self, mut content: String, chunk: Chunk) -> Option<StreamEvent> {
        if content.is_empty() {
            return None;
        }
        let is_apart = self.join == TextJoin::NewBlock && !self.text.is_empty();
        let follows_text = self.text.len() > self.unbroken;
        if is_apart {
            self.text.push_str("\n\n");
        }
        self.text.push_str(&content);
        if is_apart && follows_text && chunk == Chunk::Delta {
            content.insert_str(0, "\n\n");
        }
        self.join = TextJoin::Continues;
        if chunk == Chunk::Whole {
            self.boundary();
        }
        Some(StreamEvent::Text { content, chunk })
    }

    /// A new message begins. One that continues an answer cut at the token limit begins where that stopped.
    pub(crate) fn begin_message(&mut self, after_stop: Option<&str>) {
        self.message = self.text.len();
        let takes_up = matches!(after_stop, Some("max_tokens" | "model_context_window_exceeded"));
        self.join = if takes_up { TextJoin::Continues } else { TextJoin::NewBlock };
    }

    /// A tool event or a whole text: the text until here is not voided any more.
    pub(crate) fn boundary(&mut self) {
        self.unseen_boundary();
        self.unbroken = self.text.len();
    }

    /// A boundary that nobody sees, such as a tool that ends well: the next text is shown right behind the text before it.
    pub(crate) fn unseen_boundary(&mut self) {
        self.boundary = self.text.len();
        self.join = TextJoin::NewBlock;
    }

    /// Voids the message in progress. Gives the events for it: what of the voided stretch belongs to earlier messages is
    /// sent again.
    pub(crate) fn retract(&mut self) -> impl Iterator<Item = StreamEvent> + use<> {
        self.text.truncate(self.message.max(self.boundary));
        let content = self.text[self.boundary..].trim_start().to_owned();
        if content.is_empty() {
            // The text before the boundary is still shown, and the next text comes right behind it.
            self.unseen_boundary();
        } else {
            self.boundary();
        }
        let again = (!content.is_empty()).then_some(StreamEvent::Text { content, chunk: Chunk::Whole });
        std::iter::once(StreamEvent::Retract).chain(again)
    }

    /// All of it.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// The tools of a turn that have not answered, in the order of their calls.
#[derive(Debug, Default)]
pub(crate) struct OpenTools {
    order: BTreeMap<String, u64>,
    calls: u64,
}

impl OpenTools {
    /// A tool was called. Returns whether it is not open yet.
    pub(crate) fn open(&mut self, tool_use_id: &str) -> bool {
        self.calls += 1;
        self.order.insert(tool_use_id.to_owned(), self.calls).is_none()
    }

    /// A tool answered. Returns whether it was open.
    pub(crate) fn answer(&mut self, tool_use_id: &str) -> bool {
        self.order.remove(tool_use_id).is_some()
    }

    /// Whether the tool has not answered.
    pub(crate) fn is_open(&self, tool_use_id: &str) -> bool {
        self.order.contains_key(tool_use_id)
    }

    /// Whether every tool has answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The ids, with their places in the order of the calls.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, u64)> {
        self.order.iter().map(|(id, place)| (id, *place))
    }

    /// The turn is over: the events that close what is open.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = StreamEvent> + use<> {
        let mut open: Vec<_> = std::mem::take(&mut self.order).into_iter().collect();
        open.sort_by_key(|(_, place)| *place);
        open.into_iter().map(|(id, _)| unanswered(id))
    }
}

/// The event that closes a tool whose turn ended before it answered.
pub(crate) fn unanswered(tool_use_id: String) -> StreamEvent {
    let result = Value::String("the turn ended before the tool answered".to_owned());
    StreamEvent::ToolComplete { tool_use_id, result, is_error: true }
}

/// Kinds that are warned of at most; beyond that the vendor's output is nonsense.
pub(crate) const LIMIT: usize = 32;

/// What was warned of in one turn.
#[derive(Debug, Default)]
pub(crate) struct Warned(BTreeSet<String>);

impl Warned {
    /// The warning that something of a kind was met, unless it was given before.
    pub(crate) fn once(&mut self, code: &str, kind: &str, what: &str) -> Option<StreamEvent> {
        let kind = head(kind);
        let message = if kind.is_empty() { what.to_owned() } else { format!("{what} `{kind}`") };
        self.message_once(code, &kind, message)
    }

    /// This warning, unless one was given with this code for this kind.
    pub(crate) fn message_once(&mut self, code: &str, kind: &str, message: String) -> Option<StreamEvent> {
        let is_new = self.0.len() < LIMIT && self.0.insert(format!("{code} {kind}"));
        is_new.then(|| StreamEvent::warning(code, message))
    }
}

/// The part of a vendor's word that may be in a message.
pub(crate) fn head(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric() || "_-./".contains(*c)).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends a piece, and gives what its event says.
    fn piece(text: &mut TurnText, piece: &str) -> String {
        match text.push(piece.to_owned(), Chunk::Delta) {
            Some(StreamEvent::Text { content, .. }) => content,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_stand_apart_unless_one_takes_up_the_other() {
        let mut text = TurnText::default();
        text.begin_message(None);
        let mut live = piece(&mut text, "one ");
        live += &piece(&mut text, "two");
        text.begin_message(Some("tool_use"));
        live += &piece(&mut text, "three");
        text.begin_message(Some("max_tokens"));
        live += &piece(&mut text, " four");
        assert_eq!(live, "one two\n\nthree four");
        assert_eq!(text.into_text(), live);
    }

    #[test]
    fn messages_stand_apart_unless_something_that_is_seen_is_between() {
        let mut text = TurnText::default();
        let mut live = piece(&mut text, "started");
        text.unseen_boundary();
        text.begin_message(None);
        live += &piece(&mut text, "all done");
        assert_eq!(live, "started\n\nall done");
        assert_eq!(
            text.retract().collect::<Vec<_>>(),
            [StreamEvent::Retract],
            "what came before the boundary stays"
        );
        assert_eq!(piece(&mut text, "anew"), "\n\nanew", "it is shown right behind what stays");
        text.boundary();
        assert_eq!(piece(&mut text, "next"), "next");
        assert_eq!(text.into_text(), "started\n\nanew\n\nnext");
    }

    #[test]
    fn a_retraction_voids_the_message_and_gives_back_the_rest() {
        let mut text = TurnText::default();
        text.begin_message(None);
        piece(&mut text, "before the tool");
        text.boundary();
        text.begin_message(Some("tool_use"));
        assert_eq!(piece(&mut text, "kept"), "kept", "the tool is between");
        text.begin_message(Some("max_tokens"));
        piece(&mut text, " broken");
        let again = StreamEvent::Text { content: "kept".to_owned(), chunk: Chunk::Whole };
        assert!(text.retract().eq([StreamEvent::Retract, again]));
        assert_eq!(piece(&mut text, "anew"), "anew", "what is sent again is whole");
        assert_eq!(text.into_text(), "before the tool\n\nkept\n\nanew");
    }
}
