//! Files that a flow draws in: what they hold takes the place of the key that names them.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    diagnostic::{Code, Problem, Sink, Span},
    source::{Drawn, Loaded},
    spec::{Data, Header, NodeSpec, Text, Yaml},
};

/// The text of a file, or a problem at the place that names it.
pub(super) fn text<'l>(
    (path, span): Text<'_>,
    loaded: &'l Loaded,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> Option<&'l str> {
    let (code, message) = match loaded.files.get(path) {
        Some(Drawn::Text(text)) => return Some(text),
        Some(Drawn::Outside) => {
            (Code::FileOutsideFolder, format!("`{path}` is outside the folder of the flow file"))
        }
        Some(Drawn::TooLarge) => (
            Code::TooLarge,
            format!(
                "`{path}` is larger than 8 MiB, or the files of the flow are larger than 64 MiB together"
            ),
        ),
        Some(Drawn::Unusable(reason)) => (Code::FileMissing, format!("cannot read `{path}`: {reason}")),
        Some(Drawn::Missing) | None => (Code::FileMissing, format!("file `{path}` not found")),
    };
    let help = matches!(code, Code::FileMissing).then(|| match path.contains("{{") || path.contains("{%") {
        true => "a file name cannot be a template: files are read before the flow runs".to_owned(),
        false => "paths are relative to the folder of the flow file".to_owned(),
    });
    sink.push(finish(Problem::error(code, span, message).help(help)));
    None
}

/// The JSON Schema in a file.
pub(super) fn schema(
    file: Text<'_>,
    loaded: &Loaded,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> Option<Value> {
    let text = text(file, loaded, &finish, sink)?;
    let source = sink.source(file.0);
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let place = |number: usize| u32::try_from(number.max(1)).unwrap_or(u32::MAX);
            let span = Span::at(source, place(error.line()), place(error.column()));
            let words = error.to_string();
            let reason = words.split(" at line ").next().unwrap_or(&words);
            let message = format!("invalid JSON: {reason}");
            sink.push(finish(Problem::error(Code::InvalidSchema, span, message)));
            return None;
        }
    };
    check_schema(&value, Span::at(source, 1, 1), finish, sink).then_some(value)
}

/// The keys that a node's structured output has by its declared schema, if it names them all.
pub(super) fn structured_keys(node: &NodeSpec<'_>, loaded: &Loaded) -> Option<Arc<[String]>> {
    let options = node.input?.get("options")?;
    let schema = match options.get("outputSchema") {
        Some(schema) => schema.json(),
        None => match loaded.files.get(options.get("outputSchemaFile")?.text()?)? {
            Drawn::Text(text) => serde_json::from_str(text).ok()?,
            _ => return None,
        },
    };
    let schema = schema.as_object()?;
    let opens = ["$ref", "anyOf", "oneOf", "allOf", "patternProperties", "if"];
    let is_open = opens.iter().any(|word| schema.contains_key(*word))
        || schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    let properties = schema.get("properties")?.as_object().filter(|_| !is_open)?;
    Some(properties.keys().cloned().collect())
}

/// Whether a value is a JSON Schema.
pub(super) fn check_schema(
    value: &Value,
    span: Span,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> bool {
    let reason = match jsonschema::validator_for(value) {
        Ok(_) => return true,
        Err(error) => match error.instance_path().as_str() {
            "" => error.to_string(),
            path => format!("at `{path}`: {error}"),
        },
    };
    sink.push(finish(Problem::error(Code::InvalidSchema, span, format!("invalid JSON Schema: {reason}"))));
    false
}

/// The schema of the flow's input, from either place.
pub(super) fn input_schema(header: &Header<'_>, loaded: &Loaded, sink: &mut Sink) -> Option<Value> {
    let inline = header.input_schema.map(|schema: &Yaml| (schema, schema.json()));
    if let (Some((_, span)), Some(_)) = (header.input_schema_file, &inline) {
        let message = "`inputSchema` and `inputSchemaFile` are both set; keep one";
        sink.push(Problem::error(Code::FileConflict, span, message).key("inputSchemaFile"));
    }
    if let Some((yaml, json)) = inline {
        let finish = |problem: Problem| problem.key("inputSchema");
        if !matches!(yaml.data, Data::Map(_) | Data::Bool(_)) {
            let message = format!("`inputSchema` must be a JSON Schema, found {}", yaml.kind());
            sink.push(finish(Problem::error(Code::WrongType, yaml.span, message)));
            return None;
        }
        return check_schema(&json, yaml.span, finish, sink).then_some(json);
    }
    schema(header.input_schema_file?, loaded, |problem| problem.key("inputSchemaFile"), sink)
}
