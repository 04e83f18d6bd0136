//! Expressions and templates that are more than plain paths: parsed by minijinja into trees, and evaluated within
//! limits with only the values that they name.

use std::sync::LazyLock;

use minijinja::{
    Error,
    machinery::{parse, parse_expr},
    syntax::SyntaxConfig,
};
use serde_json::Value;

use crate::expr::{
    Scope, SyntaxFault,
    eval::{Evaluator, StatementError},
    limits::Limits,
    path::{Path, PathRoot, plain_path},
    tree::{Expr, Stmt, TreeBuilder},
    vocabulary,
};

/// A value as text: a string as it is, anything else as JSON.
pub(super) fn spell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) fn to_json(value: &minijinja::Value) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| format!("the result is not JSON: {error}"))
}

/// A name or dotted path that a text uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameUse {
    /// As `flow.input.topic`.
    pub(crate) path: String,
    /// Where in the text, in bytes.
    pub(crate) offset: usize,
    /// Whether an undefined value is certain to fail.
    pub(crate) bare: bool,
}

impl NameUse {
    pub(crate) fn root(&self) -> &str {
        self.path.split('.').next().unwrap_or(&self.path)
    }
}

/// Finds what a name refers to.
pub(crate) trait Resolver {
    /// The root of this name, if there is one.
    fn root(&self, name: &str) -> Option<PathRoot>;
}

/// What an undefined value means where a truth value is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// It is false.
    Template,
    /// It is an error: the path of the flow depends on it.
    Condition,
}

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct CompiledExpr {
    pub(crate) expression: Expr,
    pub(crate) strictness: Strictness,
    paths: Box<[Path]>,
    /// It uses no name, and its value is always the same.
    is_constant: bool,
    /// Where it starts in the text of the author, in bytes.
    pub(crate) offset: usize,
}

impl CompiledExpr {
    /// Parses an expression that starts at this offset of a text.
    pub(super) fn parse(
        source: &str,
        offset: usize,
        strictness: Strictness,
        resolver: &dyn Resolver,
    ) -> Result<(Self, Vec<NameUse>), SyntaxFault> {
        let mut reader = TreeBuilder::new(source, strictness, resolver);
        let read = vocabulary::check(source)
            .and_then(|()| parse_expr(source).map_err(|error| fault(&error, source)))
            .and_then(|read| reader.expression(&read));
        let expression = read.map_err(|fault| fault.after(offset))?;
        let mut uses = sorted(reader.uses);
        let (paths, is_constant) = (paths(&uses, resolver), uses.is_empty());
        uses.iter_mut().for_each(|used| used.offset += offset);
        Ok((Self { expression, strictness, paths, is_constant, offset }, uses))
    }

    pub(super) fn value(&self, scope: &Scope<'_>, limits: &Limits) -> Result<Value, String> {
        let mut evaluator = Evaluator::new(scope, limits, self.strictness);
        let value = evaluator.value(&self.expression)?;
        let size = limits.look(&value)?;
        limits.make(size.bytes)?;
        to_json(&value)
    }

    pub(super) fn truth(&self, scope: &Scope<'_>, limits: &Limits) -> Result<bool, String> {
        Ok(Evaluator::new(scope, limits, self.strictness).value(&self.expression)?.is_true())
    }

    /// The paths that it reads.
    pub(super) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Why it fails in each run, as a constant may.
    pub(crate) fn always_fails(&self) -> Option<String> {
        constant_error(self.is_constant, |scope, limits| self.value(scope, limits).err())
    }
}

/// A template that produces text.
#[derive(Debug)]
pub(crate) struct CompiledTemplate {
    pub(crate) body: Box<[Stmt]>,
    paths: Box<[Path]>,
    /// It uses no name but its own, and its text is always the same.
    is_constant: bool,
}

static SYNTAX: LazyLock<SyntaxConfig> =
    LazyLock::new(|| SyntaxConfig::builder().keep_trailing_newline(true).build().unwrap_or_default());

impl CompiledTemplate {
    /// Parses a template.
    pub(super) fn parse(source: &str, resolver: &dyn Resolver) -> Result<(Self, Vec<NameUse>), SyntaxFault> {
        let read = parse(source, "template", SYNTAX.clone()).map_err(|error| {
            let line = error.line().unwrap_or(1).saturating_sub(1);
            let offset = source.split_inclusive('\n').take(line).map(str::len).sum();
            SyntaxFault { offset, help: None, ..fault(&error, "") }
        })?;
        let mut reader = TreeBuilder::new(source, Strictness::Template, resolver);
        let body = reader.template(&read)?.into();
        let uses = sorted(reader.uses);
        let (paths, is_constant) = (paths(&uses, resolver), uses.is_empty());
        Ok((Self { body, paths, is_constant }, uses))
    }

    /// The paths that it reads.
    pub(super) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The expression in it that fails in each run, and why, as a constant may.
    pub(crate) fn always_fails(&self) -> Option<(&str, String)> {
        let failed = constant_error(self.is_constant, |scope, limits| self.text(scope, limits).err());
        failed.map(|error| (error.source, error.reason))
    }

    pub(super) fn text(&self, scope: &Scope<'_>, limits: &Limits) -> Result<String, StatementError<'_>> {
        let mut text = String::new();
        let mut evaluator = Evaluator::new(scope, limits, Strictness::Template);
        evaluator.run(&self.body, &mut text).map(|()| text)
    }
}

/// The error of a constant; none if it takes long to evaluate, since a check must be fast.
fn constant_error<T>(
    is_constant: bool,
    evaluate: impl FnOnce(&Scope<'_>, &Limits) -> Option<T>,
) -> Option<T> {
    let limits = Limits::small();
    let scope = Scope::new(&[], &Value::Null, &Value::Null, &Value::Null);
    let error = if is_constant { evaluate(&scope, &limits) } else { None };
    error.filter(|_| !limits.were_exceeded())
}

/// A plain path at an offset of a text, and what it uses. There is no path to an unknown name, which the compiler refuses.
pub(super) fn lone_path(
    source: &str,
    offset: usize,
    resolver: &dyn Resolver,
) -> Option<(Option<Path>, NameUse)> {
    let (name, steps) = plain_path(source)?;
    let source = source.trim();
    let before_brackets = source.split('[').next().unwrap_or_default();
    let path = resolver.root(name).map(|root| Path::new(root, steps, source, offset));
    Some((path, NameUse { path: before_brackets.to_owned(), offset, bare: true }))
}

/// The paths among the names that a text uses.
fn paths(uses: &[NameUse], resolver: &dyn Resolver) -> Box<[Path]> {
    let paths = uses.iter().filter_map(|used| {
        let (name, steps) = plain_path(&used.path)?;
        Some(Path::new(resolver.root(name)?, steps, &used.path, used.offset))
    });
    paths.collect()
}

fn sorted(mut uses: Vec<NameUse>) -> Vec<NameUse> {
    uses.sort_by(|a, b| a.offset.cmp(&b.offset).then_with(|| a.path.cmp(&b.path)));
    uses
}

fn fault(error: &Error, source: &str) -> SyntaxFault {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match vocabulary::foreign(source) {
        Some((offset, help)) => SyntaxFault { reason, offset, help: Some(help) },
        None => SyntaxFault { reason, offset: 0, help: None },
    }
}
