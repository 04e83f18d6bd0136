//! A node's input: files drawn in, strings parsed, conditions and times recognised. `validate` holds it against the
//! type's schema.

use std::sync::Arc;

use serde_json::Value;

use super::{World, condition, files, names, names::User};
use crate::{
    diagnostic::{Code, Problem, Sink, Span},
    expr::{Draft, parse_template},
    spec::{Data, Entry, Key, Layout, NodeSpec, Text, Yaml, parse_time, schema_key},
};

/// The word in a node type's schema that makes a value a condition: it resolves to true or false.
const CONDITION: &str = "x-when";
/// The word in a node type's schema that keeps a value as it is: what looks like a template stays a text.
const RAW: &str = "x-raw";
/// The word in a node type's schema that makes a text a time such as `30s`.
const TIME: &str = "x-time";

/// The input with the files that it names put in place; none if it is not a mapping.
pub(super) fn effective(node: &NodeSpec<'_>, world: &World<'_>, sink: &mut Sink) -> Option<Yaml> {
    let mut input = match node.input {
        None => Yaml::empty(Span { end: node.span.start, ..node.span }),
        Some(input) if matches!(input.data, Data::Map(_)) => input.clone(),
        Some(input) => {
            let message = format!("`input` must be a mapping, found {}", input.kind());
            let problem = Problem::error(Code::WrongType, input.span, message);
            sink.push(problem.node(node.id.as_ref()).key(format!("nodes[{}].input", node.at)));
            return None;
        }
    };
    let mut draw = Draw { node, world, sink };
    draw.schemas(&mut input, "input");
    if input.get("options").is_some_and(has_schema_files)
        && let Some(options) = input.get_mut("options")
    {
        draw.schemas(options, "input.options");
    }
    if let Some(file) = node.prompt_file() {
        draw.prompt(&mut input, file);
    }
    Some(input)
}

fn has_schema_files(map: &Yaml) -> bool {
    map.entries().iter().any(|entry| schema_key(&entry.key).is_some())
}

struct Draw<'d, 'a, 'w> {
    node: &'d NodeSpec<'a>,
    world: &'d World<'w>,
    sink: &'d mut Sink,
}

impl Draw<'_, '_, '_> {
    fn prompt(&mut self, input: &mut Yaml, file: Text<'_>) {
        let (at, id) = (self.node.at, self.node.id.as_ref());
        let finish = |problem: Problem| problem.node(id).key(format!("nodes[{at}].promptFile"));
        if input.get("prompt").is_some() {
            let message = "`input.prompt` and `promptFile` are both set; keep one";
            self.sink.push(finish(Problem::error(Code::FileConflict, file.1, message)));
            return;
        }
        let value = match files::text(file, self.world.loaded, finish, self.sink) {
            Some(text) => {
                // Editors end a file with a line end that is no part of the prompt.
                let text =
                    text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
                let span = Span::at(self.sink.source(file.0), 1, 1);
                Yaml { span, layout: Layout::Block(1, 0), data: Data::Text(text.to_owned()) }
            }
            None => Yaml::new(file.1, Data::Text(String::new())),
        };
        input.set("prompt", file.1, value);
    }

    /// Puts the schemas of files where their keys stand.
    fn schemas(&mut self, map: &mut Yaml, whose: &str) {
        let is_file = |entry: &&Entry| schema_key(&entry.key).is_some();
        let files: Vec<Entry> = map.entries().iter().filter(is_file).cloned().collect();
        for Entry { key: written, key_span, value } in files {
            let Some(key) = schema_key(&written) else { continue };
            let place = format!("nodes[{}].{whose}.{written}", self.node.at);
            let id = self.node.id.as_ref();
            let finish = |problem: Problem| problem.node(id).key(&place);
            if map.get(key).is_some() {
                let message = format!("`{key}` and `{written}` are both set; keep one");
                self.sink.push(finish(Problem::error(Code::FileConflict, key_span, message)));
            }
            let found = match value.text() {
                Some(path) => files::schema((path, value.span), self.world.loaded, finish, self.sink),
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

/// What became of an input.
pub(super) struct Parsed {
    pub(super) draft: Draft,
    /// The places whose values are known only when the node runs.
    pub(super) bound: Vec<String>,
}

/// Parses the strings of an input. The schema is needed only if it is marked; `whole` is the schema in any case.
pub(super) fn parse(
    input: &Yaml,
    schema: Option<&Value>,
    whole: Option<&Value>,
    user: &User<'_>,
    world: &World<'_>,
    sink: &mut Sink,
) -> Parsed {
    let root = schema.unwrap_or(&Value::Null);
    let mut parser = Parser { user, world, sink, root, whole, bound: Vec::new() };
    let draft = parser.draft(input, &Key::Field(&Key::Root, "input"), schema);
    Parsed { draft, bound: parser.bound }
}

struct Parser<'p, 'w> {
    user: &'p User<'p>,
    world: &'p World<'w>,
    sink: &'p mut Sink,
    root: &'p Value,
    whole: Option<&'p Value>,
    bound: Vec<String>,
}

impl Parser<'_, '_> {
    fn draft(&mut self, value: &Yaml, key: &Key<'_>, schema: Option<&Value>) -> Draft {
        if marked(schema, CONDITION) {
            self.bound.push(pointer(key));
            let found = condition::compile_at(value, self.user, key, self.world, self.sink);
            return found.map_or(Draft::Literal(Value::Null), Draft::Condition);
        }
        if marked(schema, RAW) {
            return Draft::Literal(value.json());
        }
        match &value.data {
            Data::Text(text) => {
                if marked(schema, TIME) && !text.contains('{') {
                    self.time(text, value, key);
                }
                self.text(text, value, key)
            }
            Data::List(items) => Draft::list(
                items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| {
                        let schema = part(self.root, schema, "items", None);
                        self.draft(item, &Key::Index(key, at), schema)
                    })
                    .collect(),
            ),
            Data::Map(entries) => Draft::object(
                entries
                    .iter()
                    .map(|entry| {
                        let schema = part(self.root, schema, "properties", Some(&entry.key));
                        let value = self.draft(&entry.value, &Key::Field(key, &entry.key), schema);
                        (entry.key.clone(), value)
                    })
                    .collect(),
            ),
            _ => Draft::Literal(value.json()),
        }
    }

    fn time(&mut self, text: &str, value: &Yaml, key: &Key<'_>) {
        if let Err(help) = parse_time(text) {
            let message = format!("`{}` must be a duration", key.last());
            let problem = Problem::error(Code::InvalidValue, value.span, message).help(help.to_owned());
            self.sink.push(self.user.told(problem, key));
        }
    }

    /// Whether what lies under a key can be nothing but a text.
    fn takes_only_text(&self, key: &Key<'_>) -> bool {
        let Some(root) = self.whole else { return false };
        at(root, key).and_then(|schema| schema.get("type")).is_some_and(|kind| match kind {
            Value::String(kind) => kind == "string",
            Value::Array(kinds) => kinds.iter().all(|kind| kind == "string" || kind == "null"),
            _ => false,
        })
    }

    fn text(&mut self, text: &str, value: &Yaml, key: &Key<'_>) -> Draft {
        match parse_template(text, self.world) {
            Ok(None) => Draft::Literal(Value::String(text.to_owned())),
            Ok(Some((binding, uses))) => {
                self.bound.push(pointer(key));
                names::check(&uses, value, self.user, key, self.world, self.sink);
                if binding.is_whole() && self.takes_only_text(key) {
                    Draft::Text(binding)
                } else {
                    Draft::Bound(binding)
                }
            }
            Err(fault) => {
                self.bound.push(pointer(key));
                names::refuse(fault, Code::TemplateSyntax, value, self.user, key, self.sink);
                Draft::Literal(Value::Null)
            }
        }
    }
}

/// The JSON pointer of a key, relative to the input.
fn pointer(key: &Key<'_>) -> String {
    match key {
        Key::Root | Key::Field(Key::Root, _) => String::new(),
        Key::Field(parent, name) => {
            format!("{}/{}", pointer(parent), name.replace('~', "~0").replace('/', "~1"))
        }
        Key::Index(parent, at) => format!("{}/{at}", pointer(parent)),
    }
}

/// The schema of what lies under a key of an input.
fn at<'s>(root: &'s Value, key: &Key<'_>) -> Option<&'s Value> {
    match key {
        Key::Root | Key::Field(Key::Root, _) => Some(root),
        Key::Field(parent, name) => {
            let above = at(root, parent)?;
            part(root, Some(above), "properties", Some(name))
                .or_else(|| above.get("additionalProperties").filter(|schema| schema.is_object()))
        }
        Key::Index(parent, _) => part(root, at(root, parent), "items", None),
    }
}

/// The schema of a part of a value, as far as it can be told without the value.
fn part<'s>(root: &'s Value, schema: Option<&'s Value>, word: &str, name: Option<&str>) -> Option<&'s Value> {
    let schema = schema?;
    if let Some(path) = schema.get("$ref").and_then(Value::as_str) {
        let target = root.pointer(path.strip_prefix('#')?)?;
        // A reference to a reference is not followed, so that none runs in a circle.
        return if target.get("$ref").is_some() { None } else { part(root, Some(target), word, name) };
    }
    let direct = schema.get(word).and_then(|part| match name {
        Some(name) => part.get(name),
        None => Some(part),
    });
    direct.or_else(|| {
        let branches =
            ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema.get(word)?.as_array());
        let plain = branches.flatten().filter(|branch| branch.get("$ref").is_none());
        plain.into_iter().find_map(|branch| part(root, Some(branch), word, name))
    })
}

/// Whether one of our words stands anywhere in a schema.
pub(super) fn is_marked(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            [CONDITION, RAW, TIME].iter().any(|word| marked(Some(schema), word))
                || map.values().any(is_marked)
        }
        Value::Array(items) => items.iter().any(is_marked),
        _ => false,
    }
}

fn marked(schema: Option<&Value>, word: &str) -> bool {
    schema.and_then(|schema| schema.get(word)) == Some(&Value::Bool(true))
}
