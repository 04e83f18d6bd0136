//! Conditions: a structure of `equals`, `not`, `and` and `or`, or an expression that is true or false.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::{Value, json};

use crate::{
    expr::{
        BindingError, Passes, Scope, SyntaxFault,
        limits::Limits,
        path::{FRAME, Path, PathRoot, PathStep, plain_path},
        program::{CompiledExpr, NameUse, Resolver, Strictness, lone_path},
        segment::{Segment, segments},
    },
    ids::NodeIx,
};

/// A parsed condition.
#[derive(Debug)]
pub struct Condition {
    place: Arc<str>,
    /// Boxed, since a flow has many nodes and edges and few conditions.
    pub(crate) test: Box<Predicate>,
}

#[derive(Debug)]
pub(crate) enum Predicate {
    /// `{equals: {var, value}}`; an undefined variable is null.
    Equals(Path, Value),
    /// `{not: …}`.
    Not(Box<Predicate>),
    /// `{and: […]}`.
    All(Vec<Predicate>),
    /// `{or: […]}`.
    Any(Vec<Predicate>),
    /// A path whose value is true or false.
    Path(Path),
    /// Any other expression.
    CompiledExpr(String, Box<CompiledExpr>),
    /// `true` or `false`, written in the file.
    Constant(bool),
}

impl Condition {
    pub(crate) fn new(place: Arc<str>, test: Predicate) -> Self {
        Self { place, test: Box::new(test) }
    }

    /// Whether the condition is true. An expression that uses an undefined value is an error, never false.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, BindingError> {
        self.holds_within(scope, &Limits::default())
    }

    pub(super) fn holds_within(&self, scope: &Scope<'_>, limits: &Limits) -> Result<bool, BindingError> {
        self.test.holds(scope, limits).map_err(|(expression, reason)| BindingError {
            place: self.place.clone(),
            expression: expression.to_owned(),
            reason,
        })
    }
}

impl Predicate {
    fn holds(&self, scope: &Scope<'_>, limits: &Limits) -> Result<bool, (&str, String)> {
        match self {
            Self::Equals(path, value) => Ok(is_equal(path.get(scope).unwrap_or(&Value::Null), value)),
            Self::Not(inner) => inner.holds(scope, limits).map(|held| !held),
            Self::All(parts) => {
                for part in parts {
                    if !part.holds(scope, limits)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(parts) => {
                for part in parts {
                    if part.holds(scope, limits)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Path(path) => path.get(scope).map(is_true).map_err(|reason| (path.source.as_str(), reason)),
            Self::CompiledExpr(source, program) => {
                program.truth(scope, limits).map_err(|reason| (source.as_str(), reason))
            }
            Self::Constant(held) => Ok(*held),
        }
    }
}

/// The condition in one line, close to how it is written.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display(&self.test))
    }
}

impl Condition {
    /// The paths that it reads.
    pub(super) fn paths(&self) -> Vec<&Path> {
        let mut paths = Vec::new();
        collect_paths(&self.test, &mut paths);
        paths
    }

    /// Whether it certainly holds before the first pass of a loop: it does with what is known then, and reads nothing else.
    pub(crate) fn holds_at_first(&self) -> bool {
        let is_known = |path: &Path| match (&path.root, path.steps.as_slice()) {
            (PathRoot::Local(name), [PathStep::Key(key)]) if name == FRAME => {
                matches!(key.as_str(), "first" | "index")
            }
            (PathRoot::Local(name), _) => matches!(name.as_str(), "previous" | "passes"),
            _ => false,
        };
        let (none, locals) = (Value::Null, json!({ FRAME: { "first": true, "index": 0 } }));
        let make = || json!([]);
        let passes = Passes::new(&make);
        let scope = Scope { passes: Some(&passes), ..Scope::new(&[], &none, &none, &locals) };
        self.paths().into_iter().all(is_known) && self.holds(&scope) == Ok(true)
    }

    /// The nodes whose outputs it reads, each with how many bodies further out it is.
    pub(crate) fn nodes(&self) -> Vec<(u32, NodeIx)> {
        self.paths().into_iter().filter_map(|path| path.root.node()).collect()
    }

    /// The values that it reads, by their paths; null where there is none.
    pub(crate) fn values(&self, scope: &Scope<'_>) -> BTreeMap<String, Value> {
        let value = |path: &Path| path.get(scope).cloned().unwrap_or_default();
        self.paths().into_iter().map(|path| (path.source.to_string(), value(path))).collect()
    }
}

fn display(test: &Predicate) -> String {
    let joined = |parts: &[Predicate], word: &str| parts.iter().map(nested).collect::<Vec<_>>().join(word);
    match test {
        Predicate::Equals(path, value) => format!("{} equals {value}", path.source),
        Predicate::Not(inner) => format!("not {}", nested(inner)),
        Predicate::All(parts) => joined(parts, " and "),
        Predicate::Any(parts) => joined(parts, " or "),
        Predicate::Path(path) => path.source.to_string(),
        Predicate::CompiledExpr(source, _) => source.clone(),
        Predicate::Constant(held) => held.to_string(),
    }
}

fn nested(test: &Predicate) -> String {
    match test {
        Predicate::Path(_) | Predicate::Constant(_) => display(test),
        _ => format!("({})", display(test)),
    }
}

fn collect_paths<'a>(test: &'a Predicate, paths: &mut Vec<&'a Path>) {
    match test {
        Predicate::Equals(path, _) | Predicate::Path(path) => paths.push(path),
        Predicate::Not(inner) => collect_paths(inner, paths),
        Predicate::All(parts) | Predicate::Any(parts) => {
            parts.iter().for_each(|part| collect_paths(part, paths))
        }
        Predicate::CompiledExpr(_, program) => paths.extend(program.paths()),
        Predicate::Constant(_) => {}
    }
}

/// Whether two values are equal as JSON, with numbers by their values: 1 is 1.0, and no integer is another one, however
/// large.
pub fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i128(), b.as_i128()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_equal(a, b)))
        }
        _ => left == right,
    }
}

/// Whether a value counts as true in a condition.
pub(crate) fn is_true(value: &Value) -> bool {
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
pub(crate) fn parse_condition(
    text: &str,
    resolver: &dyn Resolver,
) -> Result<(Predicate, Vec<NameUse>), SyntaxFault> {
    let (inner, shift) = strip_braces(text);
    let (source, negated) = match inner.trim_start().strip_prefix("not ") {
        Some(rest) if plain_path(rest).is_some() => (rest, true),
        _ => (inner, false),
    };
    let offset = shift + inner.len() - source.trim_start().len();
    let source = source.trim();
    if let Some((path, used)) = lone_path(source, offset, resolver) {
        let test = path.map_or(Predicate::Constant(false), Predicate::Path);
        let test = if negated { Predicate::Not(Box::new(test)) } else { test };
        return Ok((test, vec![used]));
    }
    let (program, uses) = CompiledExpr::parse(source, offset, Strictness::Condition, resolver)?;
    Ok((Predicate::CompiledExpr(source.to_owned(), Box::new(program)), uses))
}

/// Reads the `var` of an `equals`.
pub(crate) fn parse_variable(
    text: &str,
    value: Value,
    resolver: &dyn Resolver,
) -> Result<(Predicate, Vec<NameUse>), SyntaxFault> {
    let reason = "`var` must be a path such as `review.structuredOutput.passed`, without braces";
    let (path, used) = lone_path(text, 0, resolver).ok_or_else(|| SyntaxFault {
        reason: reason.to_owned(),
        offset: 0,
        help: None,
    })?;
    let test = path.map_or(Predicate::Constant(false), |path| Predicate::Equals(path, value));
    Ok((test, vec![NameUse { bare: false, ..used }]))
}

/// A condition without the braces around it, and where it begins.
fn strip_braces(text: &str) -> (&str, usize) {
    let parts = segments(text).unwrap_or_default();
    let mut solid =
        parts.iter().filter(|part| !matches!(part, Segment::Text(text) if text.trim().is_empty()));
    match (solid.next(), solid.next()) {
        (Some(Segment::Expression { source, offset, .. }), None) => (source, *offset),
        _ => (text, 0),
    }
}
