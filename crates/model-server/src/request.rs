//! A model request in no vendor's terms: what the script may look at when it chooses a turn.

use crate::scenario::Matcher;

/// Whether the client wants events as they come or one whole body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Delivery {
    Stream,
    #[default]
    Whole,
}

/// What every wire format can say about a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RequestView {
    pub(crate) model: String,
    pub(crate) delivery: Delivery,
    /// Names of the tools offered.
    pub(crate) tools: Vec<String>,
    /// Those of them that take a text instead of a JSON object.
    pub(crate) freeform_tools: Vec<String>,
    /// The groups of tools; a tool in one is called `GROUP__TOOL` in a scenario.
    pub(crate) tool_groups: Vec<String>,
    pub(crate) system: String,
    /// Whether a stream shall end with the token counts, in formats that leave the choice.
    pub(crate) counts_tokens: bool,
    /// The text of each user message, tool results included, oldest first. Where a format has tool results
    /// apart from messages, adjacent results are one message.
    pub(crate) user_messages: Vec<String>,
}

impl RequestView {
    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|name| name == tool)
    }
}

impl Matcher {
    /// Whether every key given fits the request.
    pub(crate) fn fits(&self, request: &RequestView) -> bool {
        let within = |part: &Option<String>, text: Option<&str>| {
            part.as_ref().is_none_or(|part| text.is_some_and(|text| text.contains(part.as_str())))
        };
        within(&self.last_message_contains, request.user_messages.last().map(String::as_str))
            && within(&self.system_contains, Some(&request.system))
            && self.model.as_ref().is_none_or(|model| *model == request.model)
            && self
                .any_message_contains
                .as_ref()
                .is_none_or(|part| request.user_messages.iter().any(|text| text.contains(part.as_str())))
    }
}
