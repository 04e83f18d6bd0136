//! The result of one call as a model may read it: in kinds that models accept, and in a size that leaves room for the
//! conversation.

use inspan_protocol::{ContentBlock, Redactor, ToolOutput};
use serde_json::{Value, json};

/// Bytes of text that one answer may have.
const TEXT_LIMIT: usize = 200 * 1024;
/// Bytes of base64 that one picture or document may have; the vendors take no larger pictures.
const DATA_LIMIT: usize = 5 * 1024 * 1024;
/// Bytes of base64 that one event may have.
const SHOWN_LIMIT: usize = 16 * 1024;
/// Pictures and documents that one answer may have.
const DATA_COUNT: usize = 8;
/// The pictures that models read.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The result of one call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolResult {
    /// The vendor's id of the call.
    pub(crate) id: String,
    /// Texts, pictures and documents.
    pub(crate) content: Vec<ContentBlock>,
    /// Whether the call failed, was denied or was stopped.
    pub(crate) is_error: bool,
}

impl ToolResult {
    /// The result of a call that failed, and why.
    pub(crate) fn error(id: impl Into<String>, why: impl Into<String>) -> Self {
        Self { id: id.into(), content: vec![ContentBlock::Text { text: why.into() }], is_error: true }
    }

    /// The result of a call whose process is gone.
    pub(crate) fn interrupted(id: impl Into<String>) -> Self {
        let why = "the call was interrupted; whether it was carried out, in whole or in part, is not known. Look \
                   before you do it again";
        Self::error(id, why)
    }

    /// The result of a call that never began, because the limit of model turns was reached.
    pub(crate) fn not_begun(id: impl Into<String>) -> Self {
        Self::error(id, "the call was not carried out: the limit of model turns was reached")
    }

    /// The result as events show it: one text, or a list of blocks. Of a large picture or document only the size is
    /// shown, because events are stored and base64 is not readable.
    pub(crate) fn shown(&self) -> Value {
        let shown = |block: &ContentBlock| match block {
            ContentBlock::Image { media_type, data } | ContentBlock::Document { media_type, data, .. }
                if data.len() > SHOWN_LIMIT =>
            {
                json!({ "type": "text", "text": format!("[{} of {} bytes]", word(media_type), data.len()) })
            }
            block => json!(block),
        };
        match self.content.as_slice() {
            [] => Value::from(""),
            [ContentBlock::Text { text }] => Value::from(text.as_str()),
            blocks => blocks.iter().map(shown).collect(),
        }
    }
}

/// The output of a tool, cut to what a model may read, and what was cut.
pub(super) fn fit(output: ToolOutput, redactor: &Redactor) -> (Vec<ContentBlock>, Vec<String>) {
    let mut fitting = Fitting::default();
    let says_it = |value: &Value, block: &ContentBlock| match block {
        ContentBlock::Text { text } => {
            serde_json::from_str::<Value>(text).is_ok_and(|returned| returned == *value)
        }
        _ => false,
    };
    // Most servers repeat structured content as a text.
    let structured =
        output.structured.filter(|value| !output.content.iter().any(|block| says_it(value, block)));
    for block in output.content {
        fitting.take(block, redactor);
    }
    if let Some(value) = structured {
        fitting.text(&redactor.known(&value.to_string()));
    }
    fitting.end()
}

#[derive(Default)]
struct Fitting {
    content: Vec<ContentBlock>,
    text: usize,
    all_text: usize,
    data: usize,
    cut: Vec<String>,
}

impl Fitting {
    fn take(&mut self, block: ContentBlock, redactor: &Redactor) {
        match block {
            ContentBlock::Text { text } => self.text(&redactor.known(&text)),
            ContentBlock::Image { media_type, data } if PICTURES.contains(&media_type.as_str()) => {
                if self.has_room("picture", data.len()) {
                    self.content.push(ContentBlock::Image { media_type, data });
                }
            }
            ContentBlock::Document { media_type, data, title } if media_type == "application/pdf" => {
                if self.has_room("document", data.len()) {
                    self.content.push(ContentBlock::Document { media_type, data, title });
                }
            }
            ContentBlock::Document { media_type, data, .. } if media_type == "text/plain" => {
                self.text(&redactor.known(&data));
            }
            ContentBlock::Image { media_type, data } | ContentBlock::Document { media_type, data, .. } => {
                self.leave_out(&format!(
                    "{} bytes of {}, which models do not read",
                    data.len(),
                    word(&media_type)
                ));
            }
            _ => self.leave_out("a block that is neither text nor picture nor document"),
        }
    }

    fn text(&mut self, text: &str) {
        self.all_text += text.len();
        let end = text.floor_char_boundary(TEXT_LIMIT - self.text);
        if end > 0 {
            self.text += end;
            self.content.push(ContentBlock::Text { text: text[..end].to_owned() });
        }
    }

    fn has_room(&mut self, what: &str, bytes: usize) -> bool {
        let fits = bytes <= DATA_LIMIT && self.data < DATA_COUNT;
        if fits {
            self.data += 1;
        } else {
            self.leave_out(&format!("a {what} of {bytes} bytes, beyond {DATA_COUNT} of {DATA_LIMIT} bytes"));
        }
        fits
    }

    fn leave_out(&mut self, what: &str) {
        // A tool may give any number of them, and each says as much as the first few.
        if self.cut.len() < DATA_COUNT {
            self.content.push(ContentBlock::Text { text: format!("[left out: {what}]") });
            self.cut.push(format!("left out {what}"));
        }
    }

    fn end(mut self) -> (Vec<ContentBlock>, Vec<String>) {
        if self.text < self.all_text {
            let missing = format!("{} of {} bytes of text", self.all_text - self.text, self.all_text);
            self.content.push(ContentBlock::Text { text: format!("[cut off: {missing}]") });
            self.cut.push(format!("cut off {missing}"));
        }
        (self.content, self.cut)
    }
}

/// The part of a server's word that may be in a message.
fn word(word: &str) -> String {
    word.chars().filter(|c| c.is_ascii_alphanumeric() || "/-+.".contains(*c)).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: impl Into<String>) -> ContentBlock {
        ContentBlock::Text { text: text.into() }
    }

    fn image(media_type: &str, bytes: usize) -> ContentBlock {
        ContentBlock::Image { media_type: media_type.to_owned(), data: "a".repeat(bytes) }
    }

    fn fitted(content: Vec<ContentBlock>, structured: Option<Value>) -> (Vec<ContentBlock>, Vec<String>) {
        let redactor = Redactor::default().with_values(["planted-secret".to_owned()]);
        fit(ToolOutput { content, structured }, &redactor)
    }

    #[test]
    fn what_models_read_is_passed_on_without_secrets() {
        let pdf = ContentBlock::Document {
            media_type: "application/pdf".to_owned(),
            data: "JVBE".to_owned(),
            title: None,
        };
        let plain = ContentBlock::Document {
            media_type: "text/plain".to_owned(),
            data: "words".to_owned(),
            title: None,
        };
        let (content, cut) =
            fitted(vec![text("it is planted-secret"), image("image/png", 4), pdf.clone(), plain], None);
        assert_eq!(content, [text("it is [redacted]"), image("image/png", 4), pdf, text("words")]);
        assert!(cut.is_empty());
        // A structured result is sent once.
        let value = json!({ "n": 1 });
        assert_eq!(fitted(vec![text("{\"n\": 1}")], Some(value.clone())).0, [text("{\"n\": 1}")]);
        assert_eq!(fitted(vec![text("one")], Some(value)).0, [text("one"), text("{\"n\":1}")]);
        assert_eq!(fitted(vec![], None).0, []);
    }

    #[test]
    fn events_hold_no_large_pictures() {
        let reported =
            |content: Vec<ContentBlock>| ToolResult { id: "1".to_owned(), content, is_error: false }.shown();
        assert_eq!([reported(vec![]), reported(vec![text("a")])], [json!(""), json!("a")]);
        let (small, large) = (image("image/png", 3), image("image/png", SHOWN_LIMIT + 1));
        let expected = json!([
            { "type": "image", "media_type": "image/png", "data": "aaa" },
            { "type": "text", "text": "[image/png of 16385 bytes]" },
        ]);
        assert_eq!(reported(vec![small, large]), expected);
    }

    #[test]
    fn what_is_too_much_is_cut_and_said() {
        let (content, cut) =
            fitted(vec![text("ä".repeat(TEXT_LIMIT / 2 - 1)), text("äöü"), text("more")], None);
        assert_eq!(content[1..], [text("ä"), text("[cut off: 8 of 204808 bytes of text]")]);
        assert_eq!(cut, ["cut off 8 of 204808 bytes of text"]);
        let (content, cut) = fitted(vec![image("image/png", DATA_LIMIT + 1), image("image/x-odd", 3)], None);
        assert_eq!((content.len(), cut.len()), (2, 2));
        assert_eq!(cut[1], "left out 3 bytes of image/x-odd, which models do not read");
        let (content, cut) = fitted(vec![image("image/gif", 1); 100], None);
        assert_eq!((content.len(), cut.len()), (2 * DATA_COUNT, DATA_COUNT));
    }
}
