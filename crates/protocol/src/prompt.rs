//! A question to a person and its answer: one type from the asking node to the event, the snapshot and the console.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Form, NodePath, PromptId, PromptKind, Rejection, Timestamp};

/// A question to a person.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prompt {
    /// The question's id, which the reply repeats.
    pub prompt_id: PromptId,
    /// The question.
    pub prompt: String,
    /// The answers to choose from.
    pub choices: Option<Vec<String>>,
    /// Whether a free text is an answer; if absent, exactly when there are no choices.
    pub allow_text: Option<bool>,
    /// The form that the answer fills in, as a JSON Schema; the answer is then a JSON mapping.
    pub schema: Option<Value>,
    /// Whether a flow asks for input, an agent for permission, or an agent for an answer.
    pub kind: PromptKind,
    /// More about it; for a permission `toolName`, its arguments as `input`, and what the agent says about it as
    /// `description`.
    pub detail: Option<Value>,
    /// The node that waits for the answer. Absent in the event, whose context names it.
    pub task: Option<NodePath>,
    /// When the default is taken, or the node fails without one.
    pub deadline: Option<Timestamp>,
    /// The answer taken at the deadline.
    pub default: Option<String>,
}

/// The answer to a [`Prompt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// The answer.
    pub content: String,
    /// Which of the choices it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
}

impl Prompt {
    /// A question that takes a free text and has no deadline.
    pub fn new(prompt_id: impl Into<PromptId>, kind: PromptKind, prompt: impl Into<String>) -> Self {
        Self {
            prompt_id: prompt_id.into(),
            prompt: prompt.into(),
            choices: None,
            allow_text: None,
            schema: None,
            kind,
            detail: None,
            task: None,
            deadline: None,
            default: None,
        }
    }

    /// Whether a free text is an answer.
    pub fn allows_text(&self) -> bool {
        self.allow_text.unwrap_or(self.choices.as_ref().is_none_or(Vec::is_empty))
    }

    /// The form that the answer fills in, if there is one.
    pub fn form(&self) -> Option<Form> {
        self.schema.as_ref().and_then(|schema| Form::of(schema).ok())
    }

    /// The answer to a form with its defaults, as JSON.
    fn fill(&self, content: &str, choice: Option<&str>) -> Result<String, String> {
        let form = self.form().ok_or("its form is damaged")?;
        let fields: Vec<_> = form.fields().iter().map(|field| field.name.as_str()).collect();
        let takes = format!("its form takes a JSON object with `{}`", fields.join("`, `"));
        if choice.is_some() {
            return Err(format!("{takes}, not a choice"));
        }
        let answer = serde_json::from_str(content).map_err(|error| format!("{takes}: {error}"))?;
        form.check(&answer).map(|filled| Value::Object(filled).to_string())
    }

    /// Whether its time is up, so that no answer counts that is given at this time.
    pub fn is_over(&self, at: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= at)
    }

    /// The answer that is taken where nobody gives one.
    pub fn default_reply(&self) -> Option<Reply> {
        let content = self.default.clone()?;
        let is_choice = self.choices.iter().flatten().any(|choice| *choice == content);
        Some(Reply { choice: is_choice.then(|| content.clone()), content })
    }

    /// The reply, if it answers the question. A text that equals one of the choices is that choice. Where a free text is
    /// an answer, one can be given with a choice, and a reason with what is decided about a permission.
    pub fn check(&self, content: String, choice: Option<String>) -> Result<Reply, Rejection> {
        let id = || self.prompt_id.clone();
        if self.schema.is_some() {
            let filled = self.fill(&content, choice.as_deref());
            return filled
                .map(|content| Reply { content, choice: None })
                .map_err(|why| Rejection::Misfit { prompt: id(), why });
        }
        let choices = self.choices.as_deref().unwrap_or_default();
        let listed = || choices.join(", ");
        match choice {
            Some(choice) if choices.contains(&choice) => {
                let is_other = !content.is_empty() && content != choice;
                let is_permission = self.kind == PromptKind::Permission;
                let may_comment = self.allows_text() || is_permission;
                // What an agent is told with a denial may be any words.
                let is_contrary = choices.contains(&content) && !(is_permission && choice == "deny");
                if is_other && (!may_comment || is_contrary) {
                    let why = format!("it is the choice `{choice}` and another text");
                    return Err(Rejection::Misfit { prompt: id(), why });
                }
                let content = if content.is_empty() { choice.clone() } else { content };
                Ok(Reply { content, choice: Some(choice) })
            }
            Some(choice) => Err(Rejection::NotAChoice { prompt: id(), choice, choices: listed() }),
            None if choices.contains(&content) => Ok(Reply { choice: Some(content.clone()), content }),
            None if self.allows_text() => Ok(Reply { content, choice: None }),
            None => Err(Rejection::TextNotAllowed { prompt: id(), choices: listed() }),
        }
    }
}

/// Whether a character could steer a terminal, or hide a text from its reader.
pub fn is_unsafe(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        ' '..='~' => false,
        // C0, DEL and C1.
        c if c.is_control() => true,
        // Zero width, direction marks, direction overrides and isolates, the byte order mark.
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => true,
        // Tags, which are invisible letters.
        '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// Letters that look like nothing, or like a space. Elsewhere they are part of pictures and of words.
fn is_blank(c: char) -> bool {
    matches!(
        c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
    ) || matches!(c, '\u{3164}' | '\u{ffa0}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

/// The whole text, with every unsafe or blank character written out as `\u{1b}`: for what a person has to consent to, where
/// nothing may be left out. Line breaks stay, a tab is four spaces.
pub fn spelled_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push_str("    "),
            c if is_unsafe(c) || is_blank(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_steers_is_spelled_out_and_the_rest_stays() {
        let rows = [
            ("rm\u{200b} -rf\n\t\u{1b}[2K", "rm\\u{200b} -rf\n    \\u{1b}[2K"),
            ("ls \u{202e}\u{3164}x", "ls \\u{202e}\\u{3164}x"),
            ("\u{e0041}é日", "\\u{e0041}é日"),
        ];
        assert_eq!(rows.map(|(text, _)| spelled_out(text)), rows.map(|(_, spelled)| spelled.to_owned()));
    }
}
