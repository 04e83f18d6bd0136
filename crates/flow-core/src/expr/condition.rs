//! Conditions: the structure of `equals`, `not`, `and` and `or`, and expressions that are true or false.
//! Reading the structure out of the file is left to the compiler.

use std::sync::Arc;

use serde_json::Value;

use crate::expr::{
    BindingError, Scope, SyntaxFault,
    bounds::Bounds,
    path::{Path, plain_path},
    program::{Program, Resolver, Strictness, Use},
};

/// A condition, parsed.
#[derive(Debug)]
pub struct Condition {
    place: Arc<str>,
    /// Boxed, since a flow has many nodes and edges and few conditions.
    pub(super) test: Box<Test>,
}

#[derive(Debug)]
pub(crate) enum Test {
    /// `{equals: {var, value}}`; an undefined variable is null.
    Equals(Path, Value),
    /// `{not: …}`.
    Not(Box<Test>),
    /// `{and: […]}`.
    All(Vec<Test>),
    /// `{or: […]}`.
    Any(Vec<Test>),
    /// A path whose value is true or false.
    Path(Path),
    /// Any other expression.
    Program(String, Box<Program>),
    /// `true` or `false`, written in the file.
    Constant(bool),
}

impl Condition {
    pub(crate) fn new(place: Arc<str>, test: Test) -> Self {
        Self { place, test: Box::new(test) }
    }

    /// Whether it holds. An expression that needs what is not there is an error, never false.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, BindingError> {
        self.holds_within(scope, &Bounds::default())
    }

    pub(super) fn holds_within(&self, scope: &Scope<'_>, bounds: &Bounds) -> Result<bool, BindingError> {
        self.test.holds(scope, bounds).map_err(|(expression, reason)| BindingError {
            place: self.place.clone(),
            expression: expression.to_owned(),
            reason,
        })
    }
}

impl Test {
    fn holds(&self, scope: &Scope<'_>, bounds: &Bounds) -> Result<bool, (&str, String)> {
        match self {
            Self::Equals(path, value) => Ok(same(path.get(scope).unwrap_or(&Value::Null), value)),
            Self::Not(inner) => inner.holds(scope, bounds).map(|held| !held),
            Self::All(parts) => {
                for part in parts {
                    if !part.holds(scope, bounds)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(parts) => {
                for part in parts {
                    if part.holds(scope, bounds)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Path(path) => path.get(scope).map(is_true).map_err(|reason| (path.source.as_str(), reason)),
            Self::Program(source, program) => {
                program.truth(scope, bounds).map_err(|reason| (source.as_str(), reason))
            }
            Self::Constant(held) => Ok(*held),
        }
    }
}

/// Equality of JSON, but 1 is 1.0.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => left == right,
    }
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(held) => *held,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

/// Reads a condition that is written as an expression; braces around the whole are allowed.
pub(crate) fn parse_condition(text: &str, resolver: &dyn Resolver) -> Result<(Test, Vec<Use>), SyntaxFault> {
    let (source, shift) = strip_braces(text);
    let (source, negated) = match source.trim_start().strip_prefix("not ") {
        Some(rest) if plain_path(rest).is_some() => (rest, true),
        _ => (source, false),
    };
    if let Some((name, steps)) = plain_path(source) {
        let offset = text.find(source.trim()).unwrap_or(0);
        let used = Use { path: dotted(source), offset, bare: true };
        let root = resolver.root(name);
        let test = match root {
            Some(root) => Test::Path(Path::new(root, steps, source.trim())),
            // The compiler refuses the unknown name.
            None => Test::Constant(false),
        };
        let test = if negated { Test::Not(Box::new(test)) } else { test };
        return Ok((test, vec![used]));
    }
    let (program, mut uses) = Program::parse(source.trim(), Strictness::Condition, resolver)?;
    let shift = shift + (source.len() - source.trim_start().len());
    for used in &mut uses {
        used.offset += shift;
    }
    Ok((Test::Program(source.trim().to_owned(), Box::new(program)), uses))
}

/// Reads the `var` of an `equals`.
pub(crate) fn parse_variable(
    text: &str,
    value: Value,
    resolver: &dyn Resolver,
) -> Result<(Test, Vec<Use>), SyntaxFault> {
    let reason = "`var` must be a path such as `review.structuredOutput.passed`, without braces";
    let (name, steps) =
        plain_path(text).ok_or_else(|| SyntaxFault { reason: reason.to_owned(), offset: 0, help: None })?;
    let used = Use { path: dotted(text), offset: 0, bare: false };
    let test = match resolver.root(name) {
        Some(root) => Test::Equals(Path::new(root, steps, text.trim()), value),
        None => Test::Constant(false),
    };
    Ok((test, vec![used]))
}

/// The part of a path before any brackets.
pub(super) fn dotted(path: &str) -> String {
    path.trim().split('[').next().unwrap_or_default().into()
}

fn strip_braces(text: &str) -> (&str, usize) {
    let trimmed = text.trim();
    let inner = trimmed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
    match inner {
        Some(inner) if !inner.contains("{{") => (inner, text.find("{{").map_or(0, |at| at + 2)),
        _ => (text, 0),
    }
}
