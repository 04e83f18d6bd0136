//! What a flow gives, as far as it is written, against its `outputSchema`. What never matches fails the session at its end,
//! when all is paid; it is a warning, so that the sessions of such a flow stay readable.

use inspan_protocol::BoundedValidator;
use jsonschema::{ValidationError, error::ValidationErrorKind as Kind};
use serde_json::Value;

use super::{
    names::Site,
    schema::{types, within},
};
use crate::{
    diagnostic::{Code, Problem, Sink, quoted},
    expr::TemplateValue,
    nodes::pointer_part,
    spec::{Key, Yaml, pointer_parts},
};

/// Outputs, and where they are written.
pub(super) struct Promised<'p> {
    pub(super) given: &'p TemplateValue,
    pub(super) yaml: &'p Yaml,
    pub(super) site: &'p Site<'p>,
    pub(super) key: &'p Key<'p>,
}

impl Promised<'_> {
    /// Warns of what cannot match the schema, whatever the templates give.
    pub(super) fn check(&self, schema: &Value, sink: &mut Sink) {
        // The compiler has refused an invalid schema.
        let Ok(validator) = BoundedValidator::new(schema) else { return };
        let json = self.yaml.json();
        let mut bound = Vec::new();
        note_bound(self.given, String::new(), &mut bound);
        for error in validator.errors(&json) {
            let path = error.instance_path().as_str();
            let is_forbidden = matches!(error.kind(), Kind::FalseSchema);
            if is_forbidden || !bound.iter().any(|bound| within(path, bound)) {
                let holds_bound = bound.iter().any(|bound| within(bound, path));
                self.report(&error, holds_bound, sink);
            }
        }
    }

    fn report(&self, error: &ValidationError<'_>, holds_bound: bool, sink: &mut Sink) {
        let path = error.instance_path().as_str();
        // A template may decide whether this part of the schema holds.
        let depends = |word: &str| ["then", "else", "dependentSchemas"].contains(&word);
        if holds_bound && error.schema_path().as_str().split('/').any(depends) {
            return;
        }
        let parts: Vec<_> = pointer_parts(path).collect();
        let name = parts.last().map_or_else(|| self.key.last().to_owned(), |last| last.to_string());
        let at = self.yaml.at(path);
        let (code, message) = match error.kind() {
            Kind::Required { property } => {
                let missing = property.as_str().unwrap_or_default();
                (Code::MissingKey, format!("`{name}` has no `{missing}`, which `outputSchema` requires"))
            }
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                (Code::UnknownKey, format!("`outputSchema` does not allow {}", quoted(unexpected)))
            }
            Kind::FalseSchema => (Code::UnknownKey, format!("`outputSchema` does not allow `{name}`")),
            Kind::Type { kind } => {
                let found = at.map_or("null", Yaml::kind);
                (Code::WrongType, format!("`outputSchema` wants {} as `{name}`, found {found}", types(kind)))
            }
            _ if holds_bound => return,
            _ => {
                let why = error.masked_with("the value");
                (Code::InvalidValue, format!("`{name}` does not match `outputSchema`: {why}"))
            }
        };
        let problem = Problem::warning(code, self.yaml.span_at(path), message);
        let key = parts.first().map(|first| Key::Field(self.key, first));
        sink.push(self.site.locate(problem, key.as_ref().unwrap_or(self.key)));
    }
}

/// Collects the JSON pointers of the values that are known only when they are given.
fn note_bound(value: &TemplateValue, at: String, bound: &mut Vec<String>) {
    match value {
        TemplateValue::Literal(_) => {}
        TemplateValue::List(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| note_bound(item, format!("{at}/{index}"), bound));
        }
        TemplateValue::Object(entries) => {
            for (name, value) in entries {
                note_bound(value, format!("{at}/{}", pointer_part(name)), bound);
            }
        }
        _ => bound.push(at),
    }
}
