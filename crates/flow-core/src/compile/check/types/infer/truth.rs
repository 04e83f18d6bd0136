//! Conditions that hold always, or never: a choice that is never empty, the whole output of a node, a text beside `or`.

use minijinja::machinery::ast::CompareOpKind;
use serde_json::Value;

use super::{
    super::{
        facts::canonical,
        shape::{Field, Fields, Kinds, Presence, Shape, spell},
    },
    Inference, constant, named,
};
use crate::{
    diagnostic::{Code, Severity},
    expr::{Expr, Path, has_segments, is_true},
};

impl Inference<'_> {
    /// Reports what is asked and always counts as true, or always as false.
    pub(super) fn decided(&mut self, expr: &Expr, shape: &Shape) {
        let (name, range) = match expr {
            // True, false and numbers are written to switch something on or off.
            Expr::Const(value) => match constant(value) {
                Some(Value::String(text)) if !text.is_empty() => (named(expr), (0, 0)),
                _ => return,
            },
            Expr::And(_) | Expr::Or(_) | Expr::Not(_) => return,
            _ => match (canonical(expr), expr.range()) {
                // What was asked first whether it is defined is a habit.
                (Some(path), _) if self.facts.prove_since(self.first_fact, &path) => return,
                (_, range) => (named(expr), range.unwrap_or((0, 0))),
            },
        };
        self.report_decided(&name, shape, range);
    }

    /// The same for a path alone.
    pub(super) fn decided_path(&mut self, path: &Path, shape: &Shape) {
        self.report_decided(&format!("`{}`", path.source), shape, path.range());
    }

    fn report_decided(&mut self, name: &str, shape: &Shape, range: (usize, usize)) {
        let Some(held) = always(shape) else { return };
        let verb = if held { "always counts as true" } else { "never counts as true" };
        let path = name.trim_matches('`');
        let (why, help) = match shape.values.as_deref() {
            Some([Value::String(text)]) if has_segments(text) => {
                (format!("it {STAYS_TEXT}"), without_template(text))
            }
            Some([Value::String(_)]) if !name.starts_with('`') || path.starts_with('"') => {
                ("it is a text".to_owned(), Some("compare it: `… == …`".to_owned()))
            }
            Some(values) => {
                let help = values
                    .first()
                    .and_then(Value::as_str)
                    .map(|text| format!("compare it: `{path} == '{text}'`"));
                (format!("it is {}", spell(values)), help)
            }
            None if held => {
                let why = "it is a mapping that is never empty".to_owned();
                (
                    why,
                    shape
                        .fields
                        .as_deref()
                        .and_then(field_to_ask)
                        .map(|key| format!("ask for `{path}.{key}`")),
                )
            }
            None => (format!("it is {}", shape.kinds.words()), None),
        };
        self.report(Code::ConstantCondition, Severity::Warning, range, format!("{name} {verb}: {why}"), help);
    }

    /// Reports `a == 'x' or 'y'`, which is always true; whether it is so.
    pub(super) fn or_value(&mut self, left: &Expr, right: &Expr) -> bool {
        let Expr::Const(value) = right else { return false };
        let Some(value) = constant(value).filter(|value| !value.is_boolean() && is_true(value)) else {
            return false;
        };
        let spell = |value: &Value| value.to_string().replace('"', "'");
        let value = spell(&value);
        let compared = match left {
            Expr::Compare(first, rest) => match (canonical(first), rest.as_slice()) {
                (Some(path), [(CompareOpKind::Eq, Expr::Const(known))]) => Some((path, constant(known))),
                _ => None,
            },
            _ => None,
        };
        let help = match compared {
            Some((path, Some(known))) => {
                format!("compare both: `{path} in [{}, {value}]`", spell(&known))
            }
            _ => "compare it too: `… == …`".to_owned(),
        };
        let message = format!("this always holds: `{value}` beside `or` counts as true");
        let range = left.range().unwrap_or((0, 0));
        self.report(Code::ConstantCondition, Severity::Warning, range, message, Some(help));
        true
    }

    /// Reports a text with a template that is compared: it is none. `in` may look for the text itself, such as a
    /// placeholder that was left.
    pub(super) fn stays_text(&mut self, side: &Expr, other: &Expr) -> bool {
        let Expr::Const(value) = side else { return false };
        let Some(Value::String(text)) =
            constant(value).filter(|value| value.as_str().is_some_and(has_segments))
        else {
            return false;
        };
        let range = other.range().unwrap_or((0, 0));
        let message = format!("{} {STAYS_TEXT}", named(side));
        self.report(Code::ConstantCondition, Severity::Warning, range, message, without_template(&text));
        true
    }
}

const STAYS_TEXT: &str = "stays text: an expression has no templates in it";

/// How to write the name in a text that is one template.
fn without_template(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix("{{")?.strip_suffix("}}")?.trim();
    Some(format!("write the name alone: `{inner}`"))
}

/// Whether a value is true, if its shape decides that.
pub(super) fn truth(shape: &Shape) -> Option<bool> {
    match single(shape)? {
        Value::Bool(held) => Some(*held),
        _ => None,
    }
}

pub(super) fn boolean(held: Option<bool>) -> Shape {
    held.map_or_else(|| Shape::of(Kinds::BOOL), |held| Shape::of_value(&Value::Bool(held)))
}

/// The one value that a shape allows.
pub(super) fn single(shape: &Shape) -> Option<&Value> {
    match shape.values.as_deref() {
        Some([value]) => Some(value),
        _ => None,
    }
}

/// Whether a value counts as true, if its shape decides that.
fn always(shape: &Shape) -> Option<bool> {
    if let Some(values) = shape.values.as_deref() {
        let first = is_true(values.first()?);
        return values.iter().all(|value| is_true(value) == first).then_some(first);
    }
    let is_there = |(name, field): (&String, &Field)| {
        let of_failure = matches!(name.as_str(), "failed" | "error") && field.shape.kinds == Kinds::ANY;
        !of_failure && matches!(field.presence, Presence::Always | Presence::UnlessFailed(_))
    };
    match shape.kinds {
        Kinds::NULL => Some(false),
        Kinds::MAPPING => shape.fields.as_deref()?.known.iter().any(is_there).then_some(true),
        _ => None,
    }
}

/// The field of a node's output that a condition most likely means.
fn field_to_ask(fields: &Fields) -> Option<&str> {
    let is_bool = |key: &&str| *key != "failed" && fields.known[*key].shape.kinds == Kinds::BOOL;
    let names = || fields.names();
    names()
        .find(is_bool)
        .or_else(|| names().find(|key| ["text", "stdout", "choice", "content"].contains(key)))
}
