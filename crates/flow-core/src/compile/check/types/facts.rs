//! What a condition proves where it holds, or where it does not: which paths then have a value.

use minijinja::machinery::ast::CompareOpKind;
use serde_json::Value;

use crate::expr::{Expr, FRAME, Path, PathStep, Predicate, is_equal, is_true, spell_path};

/// Paths that have a value, in one form; `!name` says that a node did not fail, and `!frame` that this is not the first
/// pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts(Vec<String>);

impl Facts {
    /// Whether a path or a part of it has a value, and so the path has one too.
    pub(super) fn prove(&self, path: &str) -> bool {
        self.prove_since(0, path)
    }

    /// The same by those from a place on.
    pub(super) fn prove_since(&self, from: usize, path: &str) -> bool {
        self.0.iter().skip(from).any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    pub(super) fn did_not_fail(&self, name: &str) -> bool {
        self.0.iter().any(|known| known.strip_prefix('!') == Some(name))
    }

    /// Whether this is not the first pass of a loop.
    pub(super) fn is_later_pass(&self) -> bool {
        self.did_not_fail(FRAME)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The paths without what is known of failures.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|path| !path.starts_with('!'))
    }

    /// Only what both prove.
    pub(super) fn common(mut self, other: &Self) -> Self {
        self.0.retain(|known| match known.strip_prefix('!') {
            Some(name) => other.did_not_fail(name),
            None => other.prove(known),
        });
        self
    }

    /// What an expression proves if it is true or, with `holds` false, if it is not.
    pub(super) fn of(expr: &Expr, holds: bool) -> Self {
        let mut facts = Self::default();
        facts.collect(expr, holds);
        facts
    }

    /// The same for a condition as it is written in the file.
    pub(super) fn of_condition(test: &Predicate, holds: bool) -> Self {
        let mut facts = Self::default();
        facts.condition(test, holds);
        facts
    }

    fn condition(&mut self, test: &Predicate, holds: bool) {
        match test {
            Predicate::Equals(path, value) => {
                let at_first = first_pass(path).map(|first| is_equal(&first, value));
                self.later_pass(at_first, holds);
                if holds && !value.is_null() {
                    self.path(path);
                }
                if *value == !holds && is_failed(path) {
                    self.did_not_fail_by(Some(spell_path(path.name(), &path.steps)));
                }
            }
            // The path of a condition must have a value, whatever it is.
            Predicate::Path(path) => {
                self.later_pass(first_pass(path).map(|first| is_true(&first)), holds);
                self.path(path);
                if !holds {
                    self.did_not_fail_by(Some(spell_path(path.name(), &path.steps)));
                }
            }
            Predicate::Not(inner) => self.condition(inner, !holds),
            Predicate::All(parts) if holds => parts.iter().for_each(|part| self.condition(part, true)),
            Predicate::Any(parts) if !holds => parts.iter().for_each(|part| self.condition(part, false)),
            Predicate::CompiledExpr(_, program) => self.collect(&program.expression, holds),
            _ => {}
        }
    }

    /// A test whose result in the first pass is another one proves that this is a later pass.
    fn later_pass(&mut self, at_first: Option<bool>, holds: bool) {
        if at_first.is_some_and(|at_first| at_first != holds) {
            self.0.push(format!("!{FRAME}"));
        }
    }

    /// The path has a value. A node whose failure is handled has a `failed` also where it was skipped.
    fn path(&mut self, path: &Path) {
        if !(is_failed(path) && path.root.may_fail()) {
            self.0.push(spell_path(path.name(), &path.steps));
        }
    }

    /// The path is false, or not there. If it would tell of a failure, there was none.
    fn did_not_fail_by(&mut self, path: Option<String>) {
        if let Some((of, "failed" | "error")) = path.as_deref().and_then(|path| path.rsplit_once('.')) {
            self.0.push(format!("!{of}"));
        }
    }

    fn collect(&mut self, expr: &Expr, holds: bool) {
        self.later_pass(in_first_pass(expr), holds);
        match expr {
            Expr::Path(_) | Expr::Attr(..) | Expr::Item(_) if !holds => {
                self.did_not_fail_by(canonical(expr));
            }
            Expr::Path(_) | Expr::Name(..) | Expr::Attr(..) | Expr::Item(_) if holds => self.defined(expr),
            Expr::Not(inner) => self.collect(inner, !holds),
            Expr::And(both) if holds => {
                self.collect(&both.0, true);
                self.collect(&both.1, true);
            }
            Expr::Or(both) if !holds => {
                self.collect(&both.0, false);
                self.collect(&both.1, false);
            }
            // Both sides must have a value, or there is no result.
            Expr::Compare(first, rest) => {
                self.defined(first);
                rest.iter().for_each(|(_, side)| self.defined(side));
            }
            Expr::Filter(_, Some(input), _) => self.defined(input),
            Expr::Test(name, subject, _) => match name.as_str() {
                "defined" if holds => self.defined(subject),
                "undefined" if !holds => self.defined(subject),
                "defined" | "undefined" => self.did_not_fail_by(canonical(subject)),
                "none" | "safe" | "escaped" | "iterable" => {}
                _ if holds => self.defined(subject),
                _ => {}
            },
            _ => {}
        }
    }

    fn defined(&mut self, expr: &Expr) {
        match expr {
            Expr::Path(path) => self.path(path),
            Expr::Filter(_, Some(input), _) => self.defined(input),
            _ => self.0.extend(canonical(expr)),
        }
    }
}

fn is_failed(path: &Path) -> bool {
    matches!(path.steps.as_slice(), [PathStep::Key(key)] if key == "failed")
}

/// The value of a name of the frame in the first pass of a loop.
fn first_pass(path: &Path) -> Option<Value> {
    let [PathStep::Key(key)] = path.steps.as_slice() else { return None };
    match key.as_str() {
        "first" => Some(true.into()),
        "index" => Some(0.into()),
        "pass" => Some(1.into()),
        _ => None,
    }
    .filter(|_| path.name() == FRAME)
}

/// Whether a test holds in the first pass, if it asks for the pass.
fn in_first_pass(test: &Expr) -> Option<bool> {
    let number = |side: &Expr| match side {
        Expr::Const(value) => value.as_i64(),
        Expr::Path(path) => first_pass(path)?.as_i64(),
        _ => None,
    };
    match test {
        Expr::Path(path) => first_pass(path).map(|first| is_true(&first)),
        Expr::Compare(left, rest) => {
            let [(op, right)] = rest.as_slice() else { return None };
            // Constants alone ask for nothing.
            if let (Expr::Const(_), Expr::Const(_)) = (&**left, right) {
                return None;
            }
            let (left, right) = (number(left)?, number(right)?);
            match op {
                CompareOpKind::Eq => Some(left == right),
                CompareOpKind::Ne => Some(left != right),
                CompareOpKind::Lt => Some(left < right),
                CompareOpKind::Lte => Some(left <= right),
                CompareOpKind::Gt => Some(left > right),
                CompareOpKind::Gte => Some(left >= right),
                CompareOpKind::In | CompareOpKind::NotIn => None,
            }
        }
        _ => None,
    }
}

/// The names of what may have no output, so that an expression is false or has no value. A path alone may where it need
/// not have a value.
pub(super) fn missing_where_false(expr: &Expr, is_lenient: bool) -> Vec<String> {
    let root = |path: &Expr| {
        let path = canonical(path).unwrap_or_default();
        let name = path.split(['.', '[']).next().unwrap_or_default();
        if matches!(name, "flow" | "state" | FRAME) { Vec::new() } else { vec![name.to_owned()] }
    };
    match expr {
        Expr::Path(_) | Expr::Name(..) | Expr::Attr(..) | Expr::Item(_) if is_lenient => root(expr),
        Expr::Test(_, subject, _) => root(subject),
        Expr::Default(parts) => root(&parts.0),
        Expr::Not(inner) => missing_where_false(inner, is_lenient),
        Expr::And(sides) | Expr::Or(sides) => {
            [&sides.0, &sides.1].iter().flat_map(|side| missing_where_false(side, is_lenient)).collect()
        }
        Expr::Compare(first, rest) => {
            let sides = std::iter::once(&**first).chain(rest.iter().map(|(_, side)| side));
            sides.flat_map(|side| missing_where_false(side, false)).collect()
        }
        Expr::Filter(_, Some(input), _) => missing_where_false(input, false),
        _ => Vec::new(),
    }
}

/// The path that an expression is, in one form; none if it is not a path.
pub(super) fn canonical(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => Some(spell_path(path.name(), &path.steps)),
        Expr::Name(name, ..) => Some(name.clone()),
        Expr::Attr(base, key, _) => Some(format!("{}.{key}", canonical(base)?)),
        Expr::Item(both) => {
            let (base, Expr::Const(key)) = (canonical(&both.0)?, &both.1) else { return None };
            match (key.as_str(), key.as_i64()) {
                (Some(key), _) => Some(format!("{base}.{key}")),
                (None, Some(index)) => Some(format!("{base}[{index}]")),
                (None, None) => None,
            }
        }
        _ => None,
    }
}
