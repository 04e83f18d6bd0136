//! A form as it is asked at the terminal: field by field, each answered by a line.

use inspan_protocol::{FieldKind, Form, FormField, Prompt, Reply, Timestamp};
use serde_json::{Map, Value};

use super::question::{QuestionBlock, expiry, indented, titled};
use inspan_view::{Line, Tone, safe::clean};

/// A form that is being filled in.
#[derive(Clone, Debug)]
pub(crate) struct FormInput {
    form: Form,
    /// The fields that have been answered are those before this one.
    at: usize,
    values: Map<String, Value>,
}

impl FormInput {
    /// The form of a question, if it has one.
    pub(crate) fn of(question: &Prompt) -> Option<Self> {
        question.form().map(|form| Self { form, at: 0, values: Map::new() })
    }

    /// Takes a line as the answer to the open field; the whole answer once the last field has one.
    pub(crate) fn take(&mut self, typed: &str) -> Result<Option<Reply>, String> {
        if let Some(field) = self.form.fields().get(self.at) {
            let value = match field.read(typed) {
                // Only here, where the values are shown with numbers, a number may mean a position.
                Err(why) => Some(numbered(field, typed).ok_or_else(|| format!("{} {why}", name(field)))?),
                Ok(value) => value,
            };
            self.values.extend(value.map(|value| (field.name.clone(), value)));
            self.at += 1;
        }
        if self.at < self.form.fields().len() {
            return Ok(None);
        }
        let values = Value::Object(std::mem::take(&mut self.values));
        self.at = 0;
        Ok(Some(Reply { content: values.to_string(), choice: None }))
    }

    /// The question with the answers so far and the open field.
    pub(crate) fn block(&self, question: &Prompt, now: Timestamp) -> QuestionBlock {
        let mut head = vec![titled(question, Tone::Warning)];
        head.extend(question.prompt.lines().skip(1).map(|text| indented(text, Tone::Plain)));
        let mut detail = Vec::new();
        for field in &self.form.fields()[..self.at] {
            let value = self.values.get(&field.name).map_or_else(|| "(none)".to_owned(), spelled);
            detail.push(indented(&format!("{}: {value}", name(field)), Tone::Faint));
        }
        let mut how = Vec::new();
        if let Some(field) = self.form.fields().get(self.at) {
            let count = format!(" ({} of {})", self.at + 1, self.form.fields().len());
            how.push(
                Line::new()
                    .with(Tone::Plain, "  ")
                    .with(Tone::Strong, &clean(&name(field)))
                    .with(Tone::Faint, &count),
            );
            how.extend(
                field
                    .description
                    .iter()
                    .flat_map(|text| text.lines())
                    .map(|text| indented(text, Tone::Plain)),
            );
            if let FieldKind::OneOf(values) = &field.kind {
                for (at, value) in values.iter().enumerate() {
                    how.push(
                        Line::new()
                            .with(Tone::Accent, &format!("  {}", at + 1))
                            .with(Tone::Plain, &format!("  {}", clean(&spelled(value)))),
                    );
                }
            }
            let mut text = format!("type {}", kind(field));
            match &field.default {
                Some(default) => text.push_str(&format!("; Enter answers `{}`", spelled(default))),
                None if field.is_required => {}
                None => text.push_str("; Enter leaves it out"),
            }
            text.push_str(&expiry(question, now));
            how.push(indented(&text, Tone::Faint));
        }
        QuestionBlock { head, detail, how }
    }
}

/// The fields of a form, each in a line, for a person who answers elsewhere.
pub(crate) fn fields(form: &Form) -> Vec<Line> {
    let line = |field: &FormField| {
        let mut line = Line::new();
        line.push(Tone::Plain, "    ").push(Tone::Accent, &clean(&field.name));
        let mut about = kind(field);
        if let FieldKind::OneOf(values) = &field.kind {
            about = values.iter().map(spelled).collect::<Vec<_>>().join(" | ");
        }
        match &field.default {
            Some(default) => about.push_str(&format!(", default `{}`", spelled(default))),
            None if field.is_required => about.push_str(", required"),
            None => {}
        }
        line.push(Tone::Plain, "  ").push(Tone::Faint, &clean(&about));
        let said =
            field.title.iter().chain(&field.description).map(String::as_str).collect::<Vec<_>>().join(": ");
        if !said.is_empty() {
            line.push(Tone::Plain, &format!("  {}", clean(&said)));
        }
        line
    };
    form.fields().iter().map(line).collect()
}

/// The value that is shown with this number.
fn numbered(field: &FormField, typed: &str) -> Option<Value> {
    let FieldKind::OneOf(values) = &field.kind else { return None };
    values.get(typed.trim().parse::<usize>().ok()?.checked_sub(1)?).cloned()
}

fn name(field: &FormField) -> String {
    field.title.clone().unwrap_or_else(|| field.name.clone())
}

fn kind(field: &FormField) -> String {
    match &field.kind {
        FieldKind::Text { .. } => "a text".to_owned(),
        FieldKind::Number { min, max, is_integer } => {
            let what = if *is_integer { "an integer" } else { "a number" };
            match (min, max) {
                (Some(min), Some(max)) => format!("{what} from {min} to {max}"),
                (Some(min), None) => format!("{what} of at least {min}"),
                (None, Some(max)) => format!("{what} of at most {max}"),
                (None, None) => what.to_owned(),
            }
        }
        FieldKind::Boolean => "yes or no".to_owned(),
        _ => "a number or a word".to_owned(),
    }
}

fn spelled(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use inspan_protocol::PromptKind;
    use serde_json::json;

    use super::*;

    fn question() -> Prompt {
        Prompt {
            schema: Some(json!({
                "required": ["name", "count"],
                "properties": {
                    "color": { "enum": ["red", "brown"], "default": "red" },
                    "count": { "type": "integer", "minimum": 1, "title": "How many", "description": "Oxen." },
                    "name": { "type": "string" },
                    "note": { "type": "string" },
                },
            })),
            deadline: Some(Timestamp::from_millis(90_000)),
            ..Prompt::new("p", PromptKind::Input, "Order?\nIt takes a day.")
        }
    }

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_form_is_asked_field_by_field() {
        let question = question();
        let mut input = FormInput::of(&question).unwrap();
        let shown = |input: &FormInput| texts(&input.block(&question, Timestamp::from_millis(0)).whole());
        let limit = "; expires at 00:01:30 (in 1m 30s)";
        assert_eq!(
            shown(&input),
            ["? Order?", "  It takes a day.", "  name (1 of 4)", &format!("  type a text{limit}")]
        );
        assert_eq!(input.take(""), Err("name needs an answer".to_owned()));
        assert_eq!(input.take("ox"), Ok(None));
        let how = format!("  type an integer of at least 1{limit}");
        let expected =
            ["? Order?", "  It takes a day.", "  name: ox", "  How many (2 of 4)", "  Oxen.", &how];
        assert_eq!(shown(&input), expected);
        assert_eq!(input.take("none"), Err("How many must be an integer".to_owned()));
        assert_eq!(input.take("2"), Ok(None));
        let how = format!("  type a number or a word; Enter answers `red`{limit}");
        assert_eq!(shown(&input)[4..], ["  color (3 of 4)", "  1  red", "  2  brown", &how]);
        assert_eq!(input.take("2"), Ok(None));
        let content = json!({ "name": "ox", "count": 2, "color": "brown" }).to_string();
        assert_eq!(input.take(""), Ok(Some(Reply { content, choice: None })));
        let fields = texts(&fields(&question.form().unwrap()));
        let expected = [
            "    name  a text, required",
            "    count  an integer of at least 1, required  How many: Oxen.",
            "    color  red | brown, default `red`",
            "    note  a text",
        ];
        assert_eq!(fields, expected);
    }
}
