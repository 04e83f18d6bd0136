//! From a text to a value, whatever its format; a text that does not fit is an error with its line and column.

use std::ops::Range;

use inspan_protocol::{AgentError, DEEPEST, ErrorCode, is_too_deep, oversized_number};
use serde::Deserialize;
use serde_json::{Value, json};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Format, Parse, csv};
use crate::{
    diagnostic::{Code, Problem},
    spec::parse as parse_yaml,
};

/// The longest text, in bytes. A value takes many times the memory of its text.
const MAX_TEXT: usize = 8 << 20;

/// What is wrong with a text, and where if that is known.
pub(super) struct ParseFault {
    pub(super) place: Option<(usize, usize)>,
    pub(super) reason: String,
}

impl ParseFault {
    /// A fault at a line and column, which count from 1.
    pub(super) fn at(line: usize, column: usize, reason: impl Into<String>) -> Self {
        Self { place: Some((line.max(1), column.max(1))), reason: reason.into() }
    }

    /// A fault of the whole.
    pub(super) fn whole(reason: impl Into<String>) -> Self {
        Self { place: None, reason: reason.into() }
    }
}

/// The value of a text.
pub(super) fn parse(input: &Parse) -> Result<Value, AgentError> {
    if let Some(problem) = input.problem() {
        return Err(AgentError::new(ErrorCode::ConfigInvalid, problem.message));
    }
    let Parse { text, format, header, separator } = input;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = if text.len() > MAX_TEXT {
        Err(ParseFault::whole(format!("it is larger than {} MiB", MAX_TEXT >> 20)))
    } else {
        match format {
            Format::Json => json(text, 0),
            Format::Jsonl => json_lines(text),
            Format::Yaml => yaml(text),
            Format::Toml => toml(text),
            Format::Csv => {
                let separator = separator.as_ref().and_then(|text| text.chars().next()).unwrap_or(',');
                csv::parse(text, separator, header.unwrap_or(true))
            }
        }
    };
    let checked = parsed.and_then(|value| match is_too_deep(&value) {
        true => Err(ParseFault::whole(format!("it is nested deeper than {DEEPEST} levels"))),
        false => Ok(value),
    });
    checked.map_err(|ParseFault { place, reason }| {
        let name = match format {
            Format::Json => "JSON",
            Format::Jsonl => "JSON lines",
            Format::Yaml => "YAML",
            Format::Toml => "TOML",
            Format::Csv => "CSV",
        };
        let at = place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
        let message = format!("the text cannot be parsed as {name}: {at}{reason}");
        let error = AgentError::new(ErrorCode::NodeFailed, message);
        match place {
            Some((line, column)) => error.with_detail(json!({ "line": line, "column": column })),
            None => error,
        }
    })
}

/// The value of a JSON text, with so many lines before it.
fn json(text: &str, before: usize) -> Result<Value, ParseFault> {
    let value = serde_json::from_str(text).map_err(|error| {
        let words = error.to_string();
        let reason = words.split(" at line ").next().unwrap_or(&words);
        match reason {
            "recursion limit exceeded" => {
                ParseFault::whole(format!("it is nested deeper than {DEEPEST} levels"))
            }
            reason => ParseFault::at(before + error.line(), error.column(), reason),
        }
    })?;
    match oversized_number(text) {
        Some((offset, number)) => {
            let (line, column) = position(&text[..offset]);
            let reason = format!(
                "the number `{number}` does not fit into 64 bits, and would lose digits: make it a string"
            );
            Err(ParseFault::at(before + line, column, reason))
        }
        None => Ok(value),
    }
}

/// The line and the column after a text.
fn position(before: &str) -> (usize, usize) {
    let line = before.matches('\n').count() + 1;
    (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
}

fn json_lines(text: &str) -> Result<Value, ParseFault> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(before, line)| json(line, before)).collect()
}

fn yaml(text: &str) -> Result<Value, ParseFault> {
    let document = parse_yaml(text, 0);
    match document.problems.into_iter().next() {
        // A text without a value is `null`, as in YAML.
        Some(Problem { code: Code::EmptyFile, .. }) => Ok(Value::Null),
        Some(problem) => {
            let (line, column) = (problem.span.start.line as usize, problem.span.start.column as usize);
            let reason = match problem.code {
                Code::SeveralDocuments => "a second document starts here, and one is expected".to_owned(),
                _ => problem.message,
            };
            Err(ParseFault::at(line, column, reason))
        }
        None => Ok(document.root.map_or(Value::Null, |root| root.json())),
    }
}

fn toml(text: &str) -> Result<Value, ParseFault> {
    let fault = |start: Option<usize>, reason: &str| match start.and_then(|start| text.get(..start)) {
        Some(before) => {
            let (line, column) = position(before);
            ParseFault::at(line, column, reason)
        }
        None => ParseFault::whole(reason),
    };
    let wrong = |error: toml::de::Error| fault(error.span().map(|span| span.start), error.message());
    let document = DeTable::parse(text).map_err(wrong)?;
    if let Some(number) = document.get_ref().values().find_map(not_finite) {
        let reason = format!("`{}` is not a JSON value", &text[number.clone()]);
        return Err(fault(Some(number.start), &reason));
    }
    let table = toml::Table::deserialize(toml::Deserializer::from(document)).map_err(wrong)?;
    Ok(of_toml(toml::Value::Table(table)))
}

/// Where the first `nan` or `inf` stands.
fn not_finite(value: &Spanned<DeValue<'_>>) -> Option<Range<usize>> {
    match value.get_ref() {
        DeValue::Float(number) => number.as_str().contains('n').then(|| value.span()),
        DeValue::Array(items) => items.iter().find_map(not_finite),
        DeValue::Table(table) => table.values().find_map(not_finite),
        _ => None,
    }
}

/// The value as JSON; a date or time becomes its text.
fn of_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(of_toml).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, of_toml(value))).collect(),
    }
}
