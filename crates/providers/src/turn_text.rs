//! The text of a turn, and which part of it a retraction voids.

/// All text of a turn.
#[derive(Debug, Default)]
pub(crate) struct TurnText {
    text: String,
    /// Where the last boundary stands: what a reader of the events voids on a retraction begins here.
    boundary: usize,
    /// Where the message in progress began.
    message: usize,
    join: Join,
}

/// How the next text is put to the text before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Join {
    /// It continues.
    #[default]
    Continues,
    /// It is another block, and a blank line comes between.
    NewBlock,
}

impl TurnText {
    /// Appends a text.
    pub(crate) fn push(&mut self, text: &str) {
        if self.join == Join::NewBlock && !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.join = Join::Continues;
        self.text.push_str(text);
    }

    /// A new message begins. One that takes up an answer cut at the token limit continues where that stopped.
    pub(crate) fn begin_message(&mut self, after_stop: Option<&str>) {
        self.message = self.text.len();
        let takes_up = matches!(after_stop, Some("max_tokens" | "model_context_window_exceeded"));
        self.join = if takes_up { Join::Continues } else { Join::NewBlock };
    }

    /// A tool event or a whole text: what stands until here is not voided any more.
    pub(crate) fn boundary(&mut self) {
        self.boundary = self.text.len();
        self.join = Join::NewBlock;
    }

    /// Voids the message in progress. What of the voided stretch belongs to earlier messages is returned, to be
    /// sent again.
    pub(crate) fn retract(&mut self) -> Option<String> {
        self.text.truncate(self.message.max(self.boundary));
        let kept = self.text[self.boundary..].trim_start().to_owned();
        self.boundary = self.text.len();
        self.join = Join::NewBlock;
        (!kept.is_empty()).then_some(kept)
    }

    /// All of it.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stand_apart_unless_one_takes_up_the_other() {
        let mut text = TurnText::default();
        text.begin_message(None);
        text.push("one ");
        text.push("two");
        text.begin_message(Some("tool_use"));
        text.push("three");
        text.begin_message(Some("max_tokens"));
        text.push(" four");
        assert_eq!(text.into_text(), "one two\n\nthree four");
    }

    #[test]
    fn a_retraction_voids_the_message_and_gives_back_the_rest() {
        let mut text = TurnText::default();
        text.begin_message(None);
        text.push("before the tool");
        text.boundary();
        text.begin_message(Some("tool_use"));
        text.push("kept");
        text.begin_message(Some("max_tokens"));
        text.push(" broken");
        assert_eq!(text.retract().as_deref(), Some("kept"));
        text.push("anew");
        assert_eq!(text.into_text(), "before the tool\n\nkept\n\nanew");
    }
}
