//! The input of a node: strings are parsed as templates; conditions and durations are recognised by the marks of the
//! schema.

use serde_json::Value;

use super::{Checker, names::Site};
use crate::{
    catalog::{CONDITION, CompiledSchema, DURATION, RAW},
    diagnostic::{Code, Problem},
    expr::{TemplateValue, as_shell_length, dollar, parse_template, shell_length, without_dollar},
    nodes::pointer_part,
    spec::{Data, Key, Yaml, parse_time},
};

/// A parsed input.
pub(super) struct ParsedInput {
    pub(super) draft: TemplateValue,
    /// The JSON pointers of the values that are known only when the node runs.
    pub(super) bound: Vec<String>,
}

impl Checker<'_> {
    /// Parses the strings of a value that has no schema.
    pub(super) fn template(&mut self, value: &Yaml, site: &Site<'_>, key: &Key<'_>) -> TemplateValue {
        let mut parser = InputParser { site, checker: self, whole: None, bound: Vec::new() };
        parser.draft(value, key, None)
    }

    /// Parses the strings of an input.
    pub(super) fn input(
        &mut self,
        input: &Yaml,
        schema: Option<&CompiledSchema>,
        site: &Site<'_>,
    ) -> ParsedInput {
        let whole = schema.map(|schema| &schema.json);
        let mut parser = InputParser { site, checker: self, whole, bound: Vec::new() };
        let draft = parser.draft(input, &Key::Field(&Key::Root, "input"), whole);
        let bound = parser.bound;
        let draft = match self.secrets_in(input, schema, site) {
            Some(secrets) => draft.with_literal(secrets),
            None => draft,
        };
        ParsedInput { draft, bound }
    }
}

struct InputParser<'p, 'c> {
    site: &'p Site<'p>,
    checker: &'p mut Checker<'c>,
    /// The schema of the input.
    whole: Option<&'p Value>,
    bound: Vec<String>,
}

impl<'p> InputParser<'p, '_> {
    fn draft(&mut self, value: &Yaml, key: &Key<'_>, schema: Option<&'p Value>) -> TemplateValue {
        if marked(schema, CONDITION) {
            self.bound.push(pointer(key));
            let found = self.checker.condition(value, self.site, key);
            return found.map_or(TemplateValue::Literal(Value::Null), TemplateValue::Condition);
        }
        if marked(schema, RAW) {
            return TemplateValue::Literal(value.json());
        }
        match &value.data {
            Data::Text(text) => {
                if marked(schema, DURATION) && !text.contains('{') {
                    self.duration(text, value, key);
                }
                self.text(text, value, key)
            }
            Data::List(items) => TemplateValue::list(
                items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| {
                        let schema = self.part(schema, "items", None);
                        self.draft(item, &Key::Index(key, at), schema)
                    })
                    .collect(),
            ),
            Data::Map(entries) => TemplateValue::object(
                entries
                    .iter()
                    .map(|entry| {
                        let schema = self.part(schema, "properties", Some(&entry.key));
                        let value = self.draft(&entry.value, &Key::Field(key, &entry.key), schema);
                        (entry.key.clone(), value)
                    })
                    .collect(),
            ),
            _ => TemplateValue::Literal(value.json()),
        }
    }

    fn duration(&mut self, text: &str, value: &Yaml, key: &Key<'_>) {
        if let Err(help) = parse_time(text) {
            let message = format!("`{}` must be a duration", key.last());
            let problem = Problem::error(Code::InvalidValue, value.span, message).help(help.to_owned());
            self.checker.sink.push_of_input(self.site.locate(problem, key));
        }
    }

    fn part(&self, schema: Option<&'p Value>, word: &str, name: Option<&str>) -> Option<&'p Value> {
        part(self.whole?, schema?, word, name)
    }

    /// Whether the value under a key can only be a string.
    fn takes_only_text(&self, key: &Key<'_>) -> bool {
        let Some(root) = self.whole else { return false };
        at(root, key).and_then(|schema| schema.get("type")).is_some_and(|kind| match kind {
            Value::String(kind) => kind == "string",
            Value::Array(kinds) => kinds.iter().all(|kind| kind == "string" || kind == "null"),
            _ => false,
        })
    }

    fn text(&mut self, text: &str, value: &Yaml, key: &Key<'_>) -> TemplateValue {
        match parse_template(text, self.checker.body) {
            Ok(None) => TemplateValue::Literal(Value::String(text.to_owned())),
            Ok(Some((binding, uses))) => {
                self.bound.push(pointer(key));
                self.checker.names(&uses, value, self.site, key);
                if let Some(offset) = shell_length(text) {
                    let message = "the text from `{#` to `#}` is removed as a comment".to_owned();
                    let problem = Problem::warning(Code::TemplateComment, value.place(offset), message);
                    let problem = problem.help(as_shell_length(&text[offset + 1..]));
                    self.checker.sink.push(self.site.locate(problem, key));
                }
                if let Some((offset, expression)) = dollar(text) {
                    let message = "the `$` before `{{` stays in the text".to_owned();
                    let problem = Problem::warning(Code::TemplateDollar, value.place(offset), message);
                    let problem = problem.help(without_dollar(expression));
                    self.checker.sink.push(self.site.locate(problem, key));
                }
                if binding.is_whole() && self.takes_only_text(key) {
                    TemplateValue::Text(binding)
                } else {
                    TemplateValue::Bound(binding)
                }
            }
            Err(fault) => {
                self.bound.push(pointer(key));
                self.checker.syntax_error(fault, Code::TemplateSyntax, value, self.site, key);
                TemplateValue::Literal(Value::Null)
            }
        }
    }
}

/// The JSON pointer of a key, relative to the input.
fn pointer(key: &Key<'_>) -> String {
    match key {
        Key::Root | Key::Field(Key::Root, _) => String::new(),
        Key::Field(parent, name) => {
            format!("{}/{}", pointer(parent), pointer_part(name))
        }
        Key::Index(parent, at) => format!("{}/{at}", pointer(parent)),
    }
}

/// The schema of the value under a key of an input.
pub(super) fn at<'s>(root: &'s Value, key: &Key<'_>) -> Option<&'s Value> {
    match key {
        Key::Root | Key::Field(Key::Root, _) => Some(root),
        Key::Field(parent, name) => {
            let above = at(root, parent)?;
            part(root, above, "properties", Some(name))
                .or_else(|| above.get("additionalProperties").filter(|schema| schema.is_object()))
        }
        Key::Index(parent, _) => part(root, at(root, parent)?, "items", None),
    }
}

/// The schema of a part of a value, as far as it can be known without the value.
fn part<'s>(root: &'s Value, schema: &'s Value, word: &str, name: Option<&str>) -> Option<&'s Value> {
    if let Some(path) = schema.get("$ref").and_then(Value::as_str) {
        let target = root.pointer(path.strip_prefix('#')?)?;
        // A reference to a reference is not followed, so that a cycle ends.
        return if target.get("$ref").is_some() { None } else { part(root, target, word, name) };
    }
    let direct = schema.get(word).and_then(|part| match name {
        Some(name) => part.get(name),
        // Behind `prefixItems`, `items` are only those that follow.
        None => Some(part).filter(|_| schema.get("prefixItems").is_none()),
    });
    direct.or_else(|| {
        let branches =
            ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema.get(word)?.as_array());
        let plain = branches.flatten().filter(|branch| branch.get("$ref").is_none());
        plain.into_iter().find_map(|branch| part(root, branch, word, name))
    })
}

fn marked(schema: Option<&Value>, word: &str) -> bool {
    schema.and_then(|schema| schema.get(word)) == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_items_are_those_of_prefix_items() {
        let root = Key::Field(&Key::Root, "input");
        let list = Key::Field(&root, "list");
        let of = |list_schema: Value| {
            let schema = json!({ "properties": { "list": list_schema } });
            at(&schema, &Key::Index(&list, 0)).cloned()
        };
        let items = json!({ "type": "string" });
        assert_eq!(of(json!({ "items": items })), Some(items.clone()));
        assert_eq!(of(json!({ "items": items, "prefixItems": [{ "type": "object" }] })), None);
    }
}
