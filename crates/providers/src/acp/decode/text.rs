//! The text of a turn: all of it, its last message, and the part that a retraction voids.

/// The text of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnText {
    text: String,
    /// Where the last message began.
    message: usize,
    message_id: Option<String>,
    /// Where the last tool event was: what a reader of the events voids on a retraction begins here.
    stop: usize,
    /// Thinking since then.
    thought: String,
    messages: u32,
    next: NextText,
}

/// What the next text is to the text before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum NextText {
    /// Another message.
    #[default]
    Begins,
    Continues,
}

impl TurnText {
    /// Appends a text. Another id of a message begins another message. Gives the piece for readers of the events: right
    /// behind another message it begins with the blank line between them.
    pub(super) fn push(&mut self, text: &str, id: Option<&str>) -> String {
        let mut piece = text.to_owned();
        if self.next == NextText::Begins || id.is_some() && id != self.message_id.as_deref() {
            if self.text.len() > self.stop {
                piece.insert_str(0, "\n\n");
            }
            if !self.text.is_empty() {
                self.text.push_str("\n\n");
            }
            self.message = self.text.len();
            self.messages += 1;
            self.message_id = id.map(str::to_owned);
            self.next = NextText::Continues;
        }
        self.text.push_str(text);
        piece
    }

    /// Appends thinking.
    pub(super) fn add_thought(&mut self, text: &str) {
        self.thought.push_str(text);
    }

    /// A tool is called: what comes after it is another message.
    pub(super) fn boundary(&mut self) {
        self.next = NextText::Begins;
    }

    /// An event of a tool: the text until here is not voided any more.
    pub(super) fn stop(&mut self) {
        self.stop = self.text.len();
        self.thought.clear();
    }

    /// Voids the last message. What of the voided stretch is not of that message is returned, to be sent again:
    /// thinking, then text.
    pub(super) fn retract(&mut self) -> (String, String) {
        let at = self.message.max(self.stop);
        self.text.truncate(at);
        let stored = self.text[self.stop..].trim().to_owned();
        self.text.truncate(self.text.trim_end().len());
        (self.message, self.stop) = (self.text.len(), self.text.len());
        self.messages = self.messages.saturating_sub(1);
        self.next = NextText::Begins;
        (std::mem::take(&mut self.thought), stored)
    }

    /// The last message.
    pub(super) fn answer(&self) -> &str {
        &self.text[self.message..]
    }

    /// How many messages there were.
    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    /// All of it, the messages separated by blank lines.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_distinguished_by_their_ids_and_by_tools() {
        let mut text = TurnText::default();
        let mut live = text.push("one", Some("m1"));
        live += &text.push(" two", Some("m1"));
        live += &text.push("three", Some("m2"));
        assert_eq!(live, "one two\n\nthree");
        text.boundary();
        text.stop();
        assert_eq!(text.push("four", None), "four", "the tool is between");
        text.push(" five", None);
        assert_eq!((text.answer(), text.messages()), ("four five", 3));
        assert_eq!(text.into_text(), "one two\n\nthree\n\nfour five");
    }

    #[test]
    fn a_retraction_voids_the_last_message_and_gives_back_the_rest() {
        let mut text = TurnText::default();
        text.push("before the tool", Some("m1"));
        text.boundary();
        text.stop();
        text.add_thought("hmm");
        text.push("kept", Some("m2"));
        text.push("an error", Some("m3"));
        assert_eq!(text.retract(), ("hmm".to_owned(), "kept".to_owned()));
        assert_eq!(text.push("anew", Some("m4")), "anew", "what is sent again is whole");
        assert_eq!(text.into_text(), "before the tool\n\nkept\n\nanew");
    }

    #[test]
    fn a_message_that_a_tool_event_cut_is_voided_as_far_as_readers_void_it() {
        let mut text = TurnText::default();
        text.push("half ", Some("m1"));
        text.stop();
        text.push("an error", Some("m1"));
        assert_eq!(text.retract(), (String::new(), String::new()));
        assert_eq!(text.into_text(), "half");
    }
}
