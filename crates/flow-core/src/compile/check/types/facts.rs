//! What a condition proves where it holds, or where it does not: which paths then have a value.

use crate::expr::{Expr, FRAME, Path, PathStep, Predicate, spell_path};

/// Paths that have a value, in one form; `!name` says that a node did not fail.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts(Vec<String>);

impl Facts {
    /// Whether a path or a part of it has a value, and so the path has one too.
    pub(super) fn prove(&self, path: &str) -> bool {
        self.0.iter().any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    pub(super) fn did_not_fail(&self, name: &str) -> bool {
        self.0.iter().any(|known| known.strip_prefix('!') == Some(name))
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
            Predicate::Equals(path, value) if holds && !value.is_null() => self.path(path),
            Predicate::Equals(path, value) if !holds && *value == true => self.failed(path),
            Predicate::Equals(path, value) if holds && *value == false => self.failed(path),
            // The path of a condition must have a value, whatever it is.
            Predicate::Path(path) => {
                self.path(path);
                if !holds {
                    self.failed(path);
                }
            }
            Predicate::Not(inner) => self.condition(inner, !holds),
            Predicate::All(parts) if holds => parts.iter().for_each(|part| self.condition(part, true)),
            Predicate::Any(parts) if !holds => parts.iter().for_each(|part| self.condition(part, false)),
            Predicate::CompiledExpr(_, program) => self.collect(&program.expression, holds),
            _ => {}
        }
    }

    fn path(&mut self, path: &Path) {
        self.0.push(spell_path(path.name(), &path.steps));
    }

    fn failed(&mut self, path: &Path) {
        if let [PathStep::Key(key)] = path.steps.as_slice()
            && key == "failed"
        {
            self.0.push(format!("!{}", path.name()));
        }
    }

    fn collect(&mut self, expr: &Expr, holds: bool) {
        match expr {
            Expr::Path(path) if !holds => {
                self.failed(path);
                // What follows knows which pass this is.
                if path.name() == FRAME {
                    self.path(path);
                }
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
                "defined" | "undefined" | "none" | "safe" | "escaped" => {}
                _ if holds => self.defined(subject),
                _ => {}
            },
            _ => {}
        }
    }

    fn defined(&mut self, expr: &Expr) {
        match expr {
            Expr::Filter(_, Some(input), _) => self.defined(input),
            _ => self.0.extend(canonical(expr)),
        }
    }
}

/// The path that an expression is, in one form; none if it is no path.
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
