//! Files that a flow includes: the content of each replaces the key that names it.

use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean, quoted},
    source::{Loaded, NAMED_FLOWS, folder_of, joined},
    spec::{Data, Entry, FlowName, Layout, NodeSpec, Text, Yaml, schema_key},
};

/// The files that a flow includes, by their paths from the folder of its own file.
pub(in crate::compile) struct Files<'a> {
    loaded: &'a Loaded,
    /// The path of its file.
    flow: String,
    /// The folder of its file, from the folder of the flow that was loaded; empty if it is the same.
    folder: String,
}

impl<'a> Files<'a> {
    /// The files of the flow at a path; an empty path is that of the flow that was loaded.
    pub(super) fn new(loaded: &'a Loaded, path: &str) -> Self {
        Self { loaded, flow: path.to_owned(), folder: folder_of(path).to_owned() }
    }

    fn path(&self, file: &str) -> String {
        joined(&self.folder, file)
    }

    /// The path of a flow that this one names, from the folder of the flow that was loaded.
    pub(in crate::compile) fn flow_path(&self, flow: FlowName<'_>) -> String {
        flow.path(&self.folder)
    }

    /// Why a flow that this one names cannot be run, if that is so.
    pub(in crate::compile) fn refused_flow(&self, flow: FlowName<'_>, span: SourceSpan) -> Option<Problem> {
        let path = self.flow_path(flow);
        let problem = self.loaded.refusal(&self.flow, &path, (&path, span))?;
        Some(match flow {
            _ if self.loaded.is_of_pack(&self.flow) => problem,
            FlowName::File(_) if problem.code == Code::FileOutsideFolder => problem.help(format!(
                "put it into `{NAMED_FLOWS}` of the project, and name it by `flow` instead of `file`"
            )),
            FlowName::Named(_) if problem.code != Code::FileOutsideFolder => problem
                .help(format!("`flow` names a file in `{NAMED_FLOWS}` of the project; `file` takes a path")),
            _ => problem,
        })
    }

    /// The input of a node with the files that it names put in place; none if it is not a mapping. `schema` is that of
    /// the input of its type.
    pub(super) fn input(&self, node: &NodeSpec<'_>, schema: &Value, sink: &mut Sink) -> Option<Yaml> {
        let mut input = match node.input {
            None => Yaml::empty(SourceSpan { end: node.span.start, ..node.span }),
            Some(input) if matches!(input.data, Data::Map(_)) => input.clone(),
            Some(input) => {
                let message = format!("`input` must be a mapping, found {}", input.kind());
                let problem = Problem::error(Code::WrongType, input.span, message);
                sink.push(problem.node(node.id.as_ref()).key(node.key("input")));
                return None;
            }
        };
        let mut includes = Includes { node, schema, files: self, sink };
        includes.schemas(&mut input, "input");
        if input.get("options").is_some_and(has_schema_files)
            && let Some(options) = input.get_mut("options")
        {
            includes.schemas(options, "input.options");
        }
        if let Some(file) = node.prompt_file() {
            includes.prompt(&mut input, file);
        }
        Some(input)
    }

    /// A schema of the header, which is there or in a file.
    pub(super) fn header_schema(
        &self,
        (inline, file): (Option<&Yaml>, Option<Text<'_>>),
        [key, file_key]: [&'static str; 2],
        sink: &mut Sink,
    ) -> Option<Value> {
        if let (Some((_, span)), Some(_)) = (file, inline) {
            let message = format!("`{key}` and `{file_key}` are both set; keep one");
            sink.push(Problem::error(Code::FileConflict, span, message).key(file_key));
        }
        let Some(yaml) = inline else {
            return schema(file?, self, |problem| problem.key(file_key), sink);
        };
        let finish = |problem: Problem| problem.key(key);
        if !matches!(yaml.data, Data::Map(_) | Data::Bool(_)) {
            let message = format!("`{key}` must be a JSON Schema, found {}", yaml.kind());
            sink.push(finish(Problem::error(Code::WrongType, yaml.span, message)));
            return None;
        }
        let json = yaml.json();
        check_schema(&json, |inside| yaml.span_at(inside), finish, sink).then_some(json)
    }
}

fn has_schema_files(map: &Yaml) -> bool {
    map.entries().iter().any(|entry| schema_key(&entry.key).is_some())
}

/// Replaces the keys that name files by their content.
struct Includes<'i, 'a> {
    node: &'i NodeSpec<'a>,
    schema: &'i Value,
    files: &'i Files<'i>,
    sink: &'i mut Sink,
}

impl Includes<'_, '_> {
    fn prompt(&mut self, input: &mut Yaml, file: Text<'_>) {
        let node = self.node;
        let finish = |problem: Problem| problem.node(node.id.as_ref()).key(node.key("promptFile"));
        if input.get("prompt").is_some() {
            let message = "`input.prompt` and `promptFile` are both set; keep one";
            self.sink.push(finish(Problem::error(Code::FileConflict, file.1, message)));
            return;
        }
        if self.schema["additionalProperties"] == false && self.schema["properties"].get("prompt").is_none() {
            let name = node.node_type().map_or("the node", |(name, _)| name);
            let message = format!("`promptFile` gives a prompt, and `{name}` takes none");
            self.sink.push(finish(Problem::error(Code::UnknownKey, file.1, message)));
            return;
        }
        let value = match text(file, self.files, finish, self.sink) {
            Some(text) => {
                // As in a block of YAML, so that the prompt is the same in a checkout with other line ends.
                let text = text.replace("\r\n", "\n");
                // Editors end a file with a line end that is not part of the prompt.
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let span = SourceSpan::at(self.sink.source(&self.files.path(file.0)), 1, 1);
                Yaml { span, layout: Layout::Block(1, 0), data: Data::Text(text.to_owned()) }
            }
            None => Yaml::new(file.1, Data::Text(String::new())),
        };
        input.set("prompt", file.1, value);
    }

    /// Replaces the keys that name schema files by the schemas.
    fn schemas(&mut self, map: &mut Yaml, owner: &str) {
        // A type of a pack may have an input of such a name.
        let declared = &self.schema["properties"];
        let is_file = |entry: &&Entry| schema_key(&entry.key).is_some() && declared.get(&entry.key).is_none();
        let files: Vec<Entry> = map.entries().iter().filter(is_file).cloned().collect();
        for Entry { key: written, key_span, value } in files {
            let Some(key) = schema_key(&written) else { continue };
            let place = self.node.key(format_args!("{owner}.{written}"));
            let id = self.node.id.as_ref();
            let finish = |problem: Problem| problem.node(id).key(&place);
            if map.get(key).is_some() {
                let message = format!("`{key}` and `{written}` are both set; keep one");
                self.sink.push(finish(Problem::error(Code::FileConflict, key_span, message)));
            }
            let found = match value.text() {
                Some(path) => schema((path, value.span), self.files, finish, self.sink),
                None => {
                    let message = format!("`{written}` must be a path, found {}", value.kind());
                    self.sink.push(finish(Problem::error(Code::WrongType, value.span, message)));
                    None
                }
            };
            let found = found.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
            map.remove(&written);
            map.set(key, key_span, Yaml::new(value.span, Data::Json(Arc::new(found))));
        }
    }
}

/// The text of a file without a byte order mark, or a problem at the place that names it.
fn text<'l>(
    (path, span): Text<'_>,
    files: &'l Files<'_>,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> Option<&'l str> {
    let full = files.path(path);
    if let Some(problem) = files.loaded.refusal(&files.flow, &full, (path, span)) {
        sink.push(finish(problem));
        return None;
    }
    files.loaded.file(&full).map(|text| text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// The JSON Schema in a file.
fn schema(
    file: Text<'_>,
    files: &Files<'_>,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> Option<Value> {
    let text = text(file, files, &finish, sink)?;
    let source = sink.source(&files.path(file.0));
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let place = |number: usize| u32::try_from(number.max(1)).unwrap_or(u32::MAX);
            let span = SourceSpan::at(source, place(error.line()), place(error.column()));
            let words = error.to_string();
            let reason = words.split(" at line ").next().unwrap_or(&words);
            let message = format!("invalid JSON: {reason}");
            sink.push(finish(Problem::error(Code::InvalidSchema, span, message)));
            return None;
        }
    };
    check_schema(&value, |_| SourceSpan::at(source, 1, 1), finish, sink).then_some(value)
}

/// The types that a JSON Schema names.
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];

/// Whether a value is a JSON Schema. `place` gives the place of what is at a JSON pointer in it.
pub(in crate::compile) fn check_schema(
    value: &Value,
    place: impl Fn(&str) -> SourceSpan,
    finish: impl Fn(Problem) -> Problem,
    sink: &mut Sink,
) -> bool {
    let Err(error) = jsonschema::validator_for(value) else { return true };
    let path = error.instance_path().as_str();
    let is_type = path.ends_with("/type") && matches!(error.kind(), ValidationErrorKind::AnyOf { .. });
    let (reason, help) = match is_type {
        true => {
            let written = error.instance().as_str().unwrap_or_default();
            let help =
                did_you_mean(written, TYPES).unwrap_or_else(|| format!("the types are {}", quoted(TYPES)));
            (format!("{} is not a type", error.instance()), Some(help))
        }
        false => (error.to_string(), None),
    };
    let at = if path.is_empty() { String::new() } else { format!("at `{path}`: ") };
    let problem =
        Problem::error(Code::InvalidSchema, place(path), format!("invalid JSON Schema: {at}{reason}"));
    sink.push(finish(problem.help(help)));
    false
}
