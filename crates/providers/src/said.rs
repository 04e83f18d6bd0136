//! All that was said in a turn, and which part of it a retraction voids.
//! Deciding that something is void is left to the decoders.

/// The text of a turn.
#[derive(Debug, Default)]
pub(crate) struct Said {
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
    /// It goes on.
    #[default]
    GoesOn,
    /// It is another block, and a blank line comes between.
    Apart,
}

impl Said {
    /// Appends a text.
    pub(crate) fn push(&mut self, text: &str) {
        if self.join == Join::Apart && !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.join = Join::GoesOn;
        self.text.push_str(text);
    }

    /// A new message begins. One that takes up an answer cut at the token limit goes on where that stopped.
    pub(crate) fn begin_message(&mut self, after_stop: Option<&str>) {
        self.message = self.text.len();
        let takes_up = matches!(after_stop, Some("max_tokens" | "model_context_window_exceeded"));
        self.join = if takes_up { Join::GoesOn } else { Join::Apart };
    }

    /// A tool event or a whole text: what stands until here is not voided any more.
    pub(crate) fn boundary(&mut self) {
        self.boundary = self.text.len();
        self.join = Join::Apart;
    }

    /// Voids the message in progress. What of the voided stretch belongs to earlier messages is returned, to be
    /// said again.
    pub(crate) fn retract(&mut self) -> Option<String> {
        self.text.truncate(self.message.max(self.boundary));
        let kept = self.text[self.boundary..].trim_start().to_owned();
        self.boundary = self.text.len();
        self.join = Join::Apart;
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
        let mut said = Said::default();
        said.begin_message(None);
        said.push("one ");
        said.push("two");
        said.begin_message(Some("tool_use"));
        said.push("three");
        said.begin_message(Some("max_tokens"));
        said.push(" four");
        assert_eq!(said.into_text(), "one two\n\nthree four");
    }

    #[test]
    fn a_retraction_voids_the_message_and_gives_back_the_rest() {
        let mut said = Said::default();
        said.begin_message(None);
        said.push("before the tool");
        said.boundary();
        said.begin_message(Some("tool_use"));
        said.push("kept");
        said.begin_message(Some("max_tokens"));
        said.push(" broken");
        assert_eq!(said.retract().as_deref(), Some("kept"));
        said.push("anew");
        assert_eq!(said.into_text(), "before the tool\n\nkept\n\nanew");
    }
}
