//! One delivery: some notices of a session, or a digest, in the form that all channels send.

use std::fmt::Write as _;

use inspan_protocol::{Redactor, SessionId, Timestamp};
use inspan_view::{
    format::cut,
    safe::{clean, spelled_out},
};
use serde::{Deserialize, Serialize};

use crate::{
    notice::{Notice, NoticeKind, delivery_id},
    send::SendError,
};

/// The version of the JSON form.
const VERSION: u16 = 1;
/// How many notices one message shows.
pub(crate) const SHOWN: usize = 5;

/// One delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The version of this form.
    pub v: u16,
    /// The same whenever this delivery is sent.
    pub id: String,
    /// The channel.
    pub channel: String,
    /// The session, unless it is about many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Its flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// One line about all of it.
    pub title: String,
    /// What happened, the most pressing first.
    pub notices: Vec<Notice>,
    /// How many more there are that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
    /// The session's page, if a server is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Message {
    /// The notices of a session. What is most pressing comes first; of many, some are only counted. `is_more` says whether
    /// a failure of the session is told of already.
    pub(crate) fn of_session(
        id: String,
        channel: &str,
        session: &SessionId,
        flow: &str,
        mut notices: Vec<Notice>,
        is_more: bool,
        url: Option<String>,
    ) -> Self {
        notices.sort_by_key(|notice| (notice.kind, notice.seq));
        let failures = failures(&notices, is_more);
        let more = notices.len().saturating_sub(SHOWN);
        notices.truncate(SHOWN);
        let title = match (failures, notices.as_slice()) {
            (Some(failures), _) => format!("{flow}: {failures}"),
            (None, [only]) if more == 0 => format!("{flow}: {}", only.title),
            (None, shown) => format!(
                "{flow}: {} and {} more",
                shown.first().map_or("", |first| &first.title),
                shown.len() - 1 + more
            ),
        };
        Self {
            v: VERSION,
            id,
            channel: channel.to_owned(),
            session: Some(session.clone()),
            flow: Some(flow.to_owned()),
            title,
            notices,
            more,
            url,
        }
    }

    /// A message that tests a channel.
    pub fn test(channel: &str, at: Timestamp) -> Self {
        let title = format!("Inspan: the channel `{channel}` works");
        let notice = Notice::new(NoticeKind::Test, at, title, "This is a test.".to_owned());
        Self::about(delivery_id(&["test", channel, &at.to_string()]), channel, notice)
    }

    /// A message about no single session.
    pub(crate) fn about(id: String, channel: &str, notice: Notice) -> Self {
        Self {
            v: VERSION,
            id,
            channel: channel.to_owned(),
            session: None,
            flow: None,
            title: notice.title.clone(),
            notices: vec![notice],
            more: 0,
            url: None,
        }
    }

    /// The same without secrets.
    pub(crate) fn redacted(&self, redactor: &Redactor) -> Result<Self, SendError> {
        let value = serde_json::to_value(self).map_err(|error| SendError::new(error.to_string()))?;
        serde_json::from_value(redactor.value(value)).map_err(|error| {
            SendError::new(format!("the message cannot be sent without its secrets: {error}"))
        })
    }

    /// Everything but the title, as plain text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (at, notice) in self.notices.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            // A single notice is the title of the message.
            if self.notices.len() > 1 {
                put(&mut text, &notice.title);
            }
            put(&mut text, &notice.text);
            for command in &notice.commands {
                put(&mut text, &format!("    {command}"));
            }
        }
        if self.more > 0 {
            put(&mut text, &format!("\nand {} more", self.more));
        }
        if let Some(session) = &self.session {
            put(&mut text, &format!("\nsession {session}"));
        }
        if let Some(url) = &self.url {
            put(&mut text, url);
        }
        text.trim().to_owned()
    }

    /// The same in at most so many bytes. What a notice says is cut first: its commands say what to do about it.
    pub(crate) fn text_within(&self, most: usize) -> String {
        let mut short = self.clone();
        for shown in [2_000, 1_000, 500, 250, 125] {
            let text = short.text();
            if text.len() <= most {
                return text;
            }
            for notice in &mut short.notices {
                notice.text = cut(&notice.text, shown);
            }
        }
        let text = short.text();
        if text.len() <= most {
            return text;
        }
        let end = text.floor_char_boundary(most.saturating_sub('…'.len_utf8()));
        format!("{}…", &text[..end])
    }
}

/// Several failures within one node and nothing else, in words.
fn failures(notices: &[Notice], is_more: bool) -> Option<String> {
    let node_of = |notice: &Notice| {
        let part = notice.node.as_ref().filter(|_| notice.kind == NoticeKind::Failure)?.parts().next()?;
        part.index.map(|_| part.node.to_owned())
    };
    let node = node_of(notices.first()?)?;
    let is_one = notices.len() > 1 && notices.iter().all(|notice| node_of(notice).as_ref() == Some(&node));
    let more = if is_more { " more" } else { "" };
    is_one.then(|| format!("{}{more} failures in `{node}`", notices.len()))
}

fn put(text: &mut String, line: &str) {
    if !line.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
}

/// One line of at most so many characters.
pub(crate) fn line(text: &str, most: usize) -> String {
    cut(&clean(text), most)
}

/// At most so many characters of a text, over several lines; a longer one ends with `…`.
pub(crate) fn lines(text: &str, most: usize) -> String {
    cut(&spelled_out(text), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_and_hides_nothing() {
        assert_eq!(lines("a\u{202e}b\n", 20), "a\\u{202e}b\n");
        assert_eq!([line(" a\n b  c ", 10), line("abcdef", 4)], ["a b c", "abc…"]);
    }
}
