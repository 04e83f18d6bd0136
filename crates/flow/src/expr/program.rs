//! Expressions and templates that are more than plain paths, run by minijinja with strict undefined values,
//! bounded fuel and only the values that they name.

use std::{collections::BTreeSet, sync::LazyLock};

use minijinja::{
    Environment, Error, ErrorKind, Expression, Output, State, UndefinedBehavior,
    syntax::SyntaxConfig,
    value::{Serde, ValueKind},
};
use serde_json::Value;
use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::expr::{
    Scope, SyntaxFault,
    path::{Path, Root, plain_path},
    vocabulary,
};

/// Instructions that one evaluation may take.
const FUEL: u64 = 1_000_000;

/// Functions of the language.
pub(crate) const BUILTINS: &[&str] = &["range", "dict", "namespace"];

static TEMPLATES: LazyLock<Environment<'static>> =
    LazyLock::new(|| environment(UndefinedBehavior::SemiStrict));
static CONDITIONS: LazyLock<Environment<'static>> = LazyLock::new(|| environment(UndefinedBehavior::Strict));

fn environment(undefined: UndefinedBehavior) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(undefined);
    environment.set_fuel(Some(FUEL));
    // A look at the whole scope has no place in a prompt.
    environment.remove_global("debug");
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(write_value);
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment
}

fn write_value(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &minijinja::Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Undefined => return Ok(()),
        ValueKind::String => value.to_string(),
        _ => spell(&to_json(value).map_err(|reason| Error::new(ErrorKind::BadSerialization, reason))?),
    };
    out.write_str(&text).map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// How a value stands in a text: a string as it is, anything else as JSON.
fn spell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn to_json(value: &minijinja::Value) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| format!("the result is no JSON: {error}"))
}

/// A name or dotted path that a text makes use of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// As `flow.input.topic`.
    pub(crate) path: SmolStr,
    /// Where in the text, in bytes.
    pub(crate) offset: usize,
    /// Whether it fails for certain if it is undefined.
    pub(crate) bare: bool,
}

/// The names that a text uses: most use one.
pub(crate) type Uses = SmallVec<[Use; 1]>;

impl Use {
    pub(crate) fn root(&self) -> &str {
        self.path.split('.').next().unwrap_or(&self.path)
    }
}

/// Finds what a name stands for.
pub(crate) trait Resolver {
    /// The root of this name, if there is one.
    fn root(&self, name: &str) -> Option<Root>;
}

/// What a program sees of the scope.
#[derive(Debug)]
struct Names {
    roots: Vec<(String, Root)>,
    paths: Vec<Path>,
}

impl Names {
    fn new(uses: &[Use], resolver: &dyn Resolver) -> Self {
        let names: BTreeSet<&str> = uses.iter().map(Use::root).collect();
        let roots = names
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), resolver.root(name)?)))
            .collect::<Vec<_>>();
        let paths = uses
            .iter()
            .filter_map(|used| {
                let (name, steps) = plain_path(&used.path)?;
                Some(Path::new(resolver.root(name)?, steps, &used.path))
            })
            .collect();
        Self { roots, paths }
    }

    fn context(&self, scope: &Scope<'_>) -> minijinja::Value {
        let values = self.roots.iter().filter_map(|(name, root)| {
            Some((name.as_str(), minijinja::Value::from(Serde(root.value(scope)?))))
        });
        minijinja::Value::from_pairs(values)
    }

    fn explain(&self, error: &Error, scope: &Scope<'_>) -> String {
        match error.kind() {
            ErrorKind::UndefinedError => self.undefined(scope),
            ErrorKind::OutOfFuel => format!("takes more than {FUEL} steps"),
            kind => error.detail().map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}")),
        }
    }

    fn undefined(&self, scope: &Scope<'_>) -> String {
        let missing = self.paths.iter().find_map(|path| path.get(scope).err());
        missing.unwrap_or_else(|| "it is undefined".to_owned())
    }
}

/// An expression that gives a value.
#[derive(Debug)]
pub(crate) struct Program {
    expression: Expression<'static, 'static>,
    names: Names,
}

/// How an expression treats what is undefined.
#[derive(Clone, Copy, Debug)]
pub(super) enum Strictness {
    /// May be tested for truth.
    Template,
    /// Only `is defined` may see it.
    Condition,
}

impl Program {
    pub(super) fn parse(
        source: &str,
        strictness: Strictness,
        resolver: &dyn Resolver,
    ) -> Result<(Self, Uses), SyntaxFault> {
        let environment = match strictness {
            Strictness::Template => &*TEMPLATES,
            Strictness::Condition => &*CONDITIONS,
        };
        vocabulary::check(source)?;
        let expression = environment.compile_expression_owned(source.to_owned()).map_err(|e| fault(&e))?;
        let bare = !is_guarded(source);
        let uses = place(expression.undeclared_variables(true), source, |_| bare);
        let names = Names::new(&uses, resolver);
        Ok((Self { expression, names }, uses))
    }

    fn run(&self, scope: &Scope<'_>) -> Result<minijinja::Value, String> {
        let value = self.expression.eval(self.names.context(scope));
        let value = value.map_err(|error| self.names.explain(&error, scope))?;
        if value.is_undefined() { Err(self.names.undefined(scope)) } else { Ok(value) }
    }

    pub(super) fn value(&self, scope: &Scope<'_>) -> Result<Value, String> {
        to_json(&self.run(scope)?)
    }

    pub(super) fn truth(&self, scope: &Scope<'_>) -> Result<bool, String> {
        Ok(self.run(scope)?.is_true())
    }

    /// The paths that it looks at.
    pub(super) fn paths(&self) -> &[Path] {
        &self.names.paths
    }
}

/// A template that gives a text.
#[derive(Debug)]
pub(crate) struct Script {
    environment: Environment<'static>,
    names: Names,
}

const SCRIPT: &str = "template";

impl Script {
    /// Reads a template; `bare` says of a name whether the text uses it outside of any test.
    pub(super) fn parse(
        source: &str,
        bare: impl Fn(&str) -> bool,
        resolver: &dyn Resolver,
    ) -> Result<(Self, Uses), SyntaxFault> {
        // Filters and functions are shared between the copies, so that a copy costs little.
        let mut environment = TEMPLATES.clone();
        environment.add_template_owned(SCRIPT.to_owned(), source.to_owned()).map_err(|error| {
            let line = error.line().unwrap_or(1).saturating_sub(1);
            let offset = source.split_inclusive('\n').take(line).map(str::len).sum();
            SyntaxFault { offset, ..fault(&error) }
        })?;
        let found = environment.get_template(SCRIPT).map_err(|error| fault(&error))?;
        let uses = place(found.undeclared_variables(true), source, bare);
        let names = Names::new(&uses, resolver);
        Ok((Self { environment, names }, uses))
    }

    pub(super) fn text(&self, scope: &Scope<'_>) -> Result<String, String> {
        self.environment
            .get_template(SCRIPT)
            .and_then(|template| template.render(self.names.context(scope)))
            .map_err(|error| self.names.explain(&error, scope))
    }
}

fn fault(error: &Error) -> SyntaxFault {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    SyntaxFault { reason, offset: 0, help: None }
}

/// Whether an expression looks at a name before it uses it, as far as its words tell.
pub(super) fn is_guarded(source: &str) -> bool {
    let mut words = source.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.any(|word| matches!(word, "is" | "if" | "default" | "d" | "and" | "or" | "not"))
}

fn place(names: impl IntoIterator<Item = String>, source: &str, bare: impl Fn(&str) -> bool) -> Uses {
    let mut uses: Uses = names
        .into_iter()
        .map(|path| {
            let root = path.split('.').next().unwrap_or(&path);
            let offset = word(source, &path).or_else(|| word(source, root)).unwrap_or(0);
            let bare = bare(root);
            Use { offset, bare, path: path.into() }
        })
        .collect();
    uses.sort_by(|a, b| a.offset.cmp(&b.offset).then_with(|| a.path.cmp(&b.path)));
    uses
}

/// Where a word stands in a text, not as a part of a longer one.
fn word(text: &str, word: &str) -> Option<usize> {
    let part = |b: u8| b == b'_' || b.is_ascii_alphanumeric();
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = text[..at].bytes().next_back();
        let after = text[at + word.len()..].bytes().next();
        !before.is_some_and(|b| part(b) || b == b'.') && !after.is_some_and(part)
    })
}
