//! Follows shapes through expressions and templates, and reports what cannot be right: fields that do not exist, values
//! that may be missing, comparisons that are decided before anything runs.

mod operators;
mod statements;
mod truth;

use std::mem;

use serde_json::Value;

use operators::Same;
use truth::{boolean, single, truth};

use super::{
    PREVIOUS,
    facts::{Facts, canonical, missing_where_false},
    order::KnownOutput,
    shape::{Fields, Kinds, PartShape, Presence, Rest, Shape},
};
use crate::{
    diagnostic::{Code, Problem, Severity, SourceSpan, did_you_mean, quoted},
    expr::{
        Args, Binding, CompiledExpr, Expr, Function, Path, PathRoot, PathStep, Piece, Predicate, Strictness,
        asks_for_kind, spell_path,
    },
};

/// What an expression can read.
pub(super) trait Roots {
    /// What is known of the value at the start of a path.
    fn shape(&self, root: &PathRoot) -> Shape;

    /// Whether it is there.
    fn output(&self, root: &PathRoot) -> KnownOutput;

    /// Why it may not be there, as part of a sentence.
    fn why_skipped(&self, root: &PathRoot) -> String;

    /// Whether a node in the body of the one at the start of a path has this name, which was reported elsewhere.
    fn is_inside(&self, root: &PathRoot, name: &str) -> bool;
}

/// Whether an expression must have a value where it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Value,
    Nothing,
}

/// One text, or one condition, being followed.
pub(super) struct Inference<'r> {
    roots: &'r dyn Roots,
    strictness: Strictness,
    /// What is known to have a value here.
    facts: Facts,
    /// The first fact that the text itself proves.
    first_fact: usize,
    /// Whether the next expression is only asked for its truth, in a condition.
    is_asked: bool,
    locals: Vec<(String, Shape)>,
    /// Where the expression starts in the text of the author.
    base: usize,
    /// In a part that is evaluated only where one of these names has no value, it is not asked whether another has one.
    instead: Vec<String>,
    /// Parts that may not be evaluated, or several times.
    blocks: usize,
    reported: Vec<String>,
    /// The keys of the flow's input that are read for certain and that nothing proves to be there, each with its place.
    pub(super) inputs: Vec<(String, (usize, usize))>,
    /// What is wrong, each with its place in the text, in bytes.
    pub(super) findings: Vec<(usize, usize, Problem)>,
}

impl<'r> Inference<'r> {
    pub(super) fn new(roots: &'r dyn Roots, facts: Facts) -> Self {
        Self {
            roots,
            strictness: Strictness::Template,
            first_fact: facts.len(),
            facts,
            is_asked: false,
            locals: Vec::new(),
            base: 0,
            instead: Vec::new(),
            blocks: 0,
            reported: Vec::new(),
            inputs: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// The shape of what a string with bindings resolves to.
    pub(super) fn binding(&mut self, binding: &Binding) -> Shape {
        self.strictness = Strictness::Template;
        match binding {
            Binding::Path(path) => self.path(path, Need::Value),
            Binding::CompiledExpr(source, program) => self.program(source, program),
            Binding::Text(pieces) => {
                for piece in pieces {
                    if let Piece::Path(path) = piece {
                        self.path(path, Need::Value);
                        self.whole_output(path);
                    }
                }
                Shape::of(Kinds::STRING)
            }
            Binding::CompiledTemplate(template) => {
                let reported = self.findings.len();
                self.body(&template.body);
                if self.findings.len() == reported
                    && let Some((source, reason)) = template.always_fails()
                {
                    self.always_fails(source, &reason, (0, 0));
                }
                Shape::of(Kinds::STRING)
            }
        }
    }

    /// Follows a condition.
    pub(super) fn condition(&mut self, test: &Predicate) {
        self.strictness = Strictness::Condition;
        match test {
            Predicate::Path(path) => {
                let shape = self.path(path, Need::Value);
                self.decided_path(path, &shape);
            }
            Predicate::CompiledExpr(source, program) => {
                self.is_asked = true;
                self.program(source, program);
            }
            Predicate::Equals(path, value) => {
                let shape = self.path(path, Need::Nothing);
                // A path without a value equals null.
                if !(value.is_null() || shape.admits(value)) {
                    let name = format!("`{}`", path.source);
                    let (message, help) = operators::never_equal(&name, &shape, value, Same::Equal);
                    self.report(Code::ConstantCondition, Severity::Warning, path.range(), message, help);
                }
            }
            // Their parts have separate texts, and are followed one by one.
            Predicate::Constant(_) | Predicate::Not(_) | Predicate::All(_) | Predicate::Any(_) => {}
        }
    }

    fn program(&mut self, source: &str, program: &CompiledExpr) -> Shape {
        self.base = program.offset;
        let reported = self.findings.len();
        let mut shape = self.expr(&program.expression, Need::Value);
        if self.findings.len() == reported
            && let Some(reason) = program.always_fails()
        {
            self.always_fails(source, &reason, (0, source.len()));
            shape = Shape::any();
        }
        self.base = 0;
        shape
    }

    fn always_fails(&mut self, source: &str, reason: &str, range: (usize, usize)) {
        let message = format!("`{source}` cannot be evaluated: {reason}");
        self.report(Code::WrongType, Severity::Error, range, message, None);
    }

    /// Reports a node's whole output as text where one of its fields is meant.
    pub(super) fn whole_output(&mut self, path: &Path) {
        if !is_node(&path.root) || !path.steps.is_empty() {
            return;
        }
        let shape = self.roots.shape(&path.root);
        if self.roots.output(&path.root) == KnownOutput::Never {
            return;
        }
        let Some(fields) = shape.fields.as_deref() else { return };
        let field = ["text", "stdout", "content", "route", "value"]
            .into_iter()
            .find(|key| fields.known.get(*key).is_some_and(|field| field.presence != Presence::Optional));
        let Some(field) = field else { return };
        let name = path.name();
        let message = format!("`{name}` is the whole output of the node; as text it becomes JSON");
        let help = format!("use `{name}.{field}`, or `{name} | tojson` if JSON is meant");
        self.report(Code::WrongType, Severity::Warning, path.range(), message, Some(help));
    }

    fn report(
        &mut self,
        code: Code,
        severity: Severity,
        (offset, len): (usize, usize),
        message: String,
        help: Option<String>,
    ) {
        let problem = Problem::new(severity, code, SourceSpan::NOWHERE, message).help(help);
        self.findings.push((self.base + offset, len, problem));
    }

    fn path(&mut self, path: &Path, need: Need) -> Shape {
        let first = path.steps.first();
        let of_failure = matches!(first, Some(PathStep::Key(key)) if key == "failed" || key == "error");
        let is_marker = is_node(&path.root) && of_failure;
        if need == Need::Value && !is_marker {
            self.present(path);
            self.given(path);
        }
        let mut shape = self.roots.shape(&path.root);
        // The names of `flow` were checked before.
        let known = if path.root == PathRoot::Flow { 2 } else { 0 };
        for (at, step) in path.steps.iter().enumerate() {
            let base = || spell_path(path.name(), &path.steps[..at]);
            let range = || path.step_range(at);
            let inside = |key: &str| at == 0 && self.roots.is_inside(&path.root, key);
            let quiet = at < known || matches!(step, PathStep::Key(key) if inside(key));
            shape = match step {
                PathStep::Key(key) => self.field(&shape, key, &base, need, range, quiet),
                PathStep::Index(index) => match shape.item() {
                    Some(item) => item,
                    None => {
                        if !quiet {
                            self.wrong_kind(&shape, &format!("item {index}"), &base(), need, range());
                        }
                        Shape::any()
                    }
                },
            };
        }
        shape
    }

    /// Notes a key of the flow's input without which the text cannot be evaluated.
    fn given(&mut self, path: &Path) {
        let [PathStep::Key(input), PathStep::Key(key), ..] = path.steps.as_slice() else { return };
        let is_input = path.root == PathRoot::Flow && input == "input";
        if is_input && self.blocks == 0 && !self.facts.prove(&spell_path(path.name(), &path.steps[..2])) {
            let (offset, len) = path.range();
            self.inputs.push((key.clone(), (self.base + offset, len)));
        }
    }

    fn is_instead_of_another(&self, name: &str) -> bool {
        !self.instead.is_empty() && !self.instead.iter().any(|missing| missing == name)
    }

    /// Reports a node that may have no output where its output is needed.
    fn present(&mut self, path: &Path) {
        let name = path.name();
        let is_previous = matches!(&path.root, PathRoot::Local(name) if name == PREVIOUS);
        if !(is_node(&path.root) || is_previous)
            || self.is_instead_of_another(name)
            || self.facts.prove(name)
            || self.reported.iter().any(|known| known == name)
        {
            return;
        }
        let message = match self.roots.output(&path.root) {
            KnownOutput::Certain | KnownOutput::Never => return,
            KnownOutput::NotOnFirstPass if self.facts.is_later_pass() => return,
            KnownOutput::NotOnFirstPass if is_previous => {
                "on the first pass of the loop `previous` is undefined".to_owned()
            }
            KnownOutput::NotOnFirstPass => format!("on the first pass of the loop `{name}` has no output"),
            KnownOutput::MaybeSkipped => {
                format!("`{name}` may have no output: {}", self.roots.why_skipped(&path.root))
            }
        };
        let source = &path.source;
        let help = match self.strictness {
            Strictness::Template => {
                format!(
                    "test it first: `{{% if {name} %}}…{{% endif %}}`; or give a default: `{{{{ {source} | default(…) }}}}`"
                )
            }
            Strictness::Condition => {
                format!(
                    "test it first: `{name} is defined and …`; or give a default: `{source} | default(…)`"
                )
            }
        };
        self.reported.push(name.to_owned());
        self.report(Code::MaybeSkipped, Severity::Warning, path.range(), message, Some(help));
    }

    /// What is known of a field, which is reported if it cannot be there.
    fn field(
        &mut self,
        shape: &Shape,
        key: &str,
        base: &dyn Fn() -> String,
        need: Need,
        range: impl Fn() -> (usize, usize),
        quiet: bool,
    ) -> Shape {
        match shape.field(key) {
            PartShape::Unknown => Shape::any(),
            PartShape::Known(field) => {
                if need == Need::Value && field.presence != Presence::Always && !quiet {
                    self.optional(&field.presence, key, &base(), range());
                }
                field.shape.clone()
            }
            PartShape::WrongKind => {
                if !quiet {
                    self.wrong_kind(shape, &format!("`{key}`"), &base(), need, range());
                }
                Shape::any()
            }
            PartShape::Absent(fields) => {
                if !quiet {
                    self.absent(fields, key, &base(), need, range());
                }
                Shape::any()
            }
        }
    }

    fn wrong_kind(&mut self, shape: &Shape, part: &str, base: &str, need: Need, range: (usize, usize)) {
        let severity = match need {
            Need::Value => Severity::Error,
            // A test or a default makes do without it, as it must for null.
            Need::Nothing if shape.kinds == Kinds::NULL => return,
            Need::Nothing => Severity::Warning,
        };
        let message = format!("`{base}` is {}, and has no {part}", shape.kinds.words());
        self.report(Code::UnknownBinding, severity, range, message, None);
    }

    fn absent(&mut self, fields: &Fields, key: &str, base: &str, need: Need, range: (usize, usize)) {
        let similar = did_you_mean(key, fields.names());
        let severity = match fields.rest {
            // A test or a default makes do without it.
            Rest::Closed | Rest::Undeclared if need == Need::Value => Severity::Error,
            Rest::Closed | Rest::Undeclared | Rest::Untypical => Severity::Warning,
            // Who runs the flow may give other fields.
            Rest::Default if similar.is_some() => Severity::Warning,
            Rest::Default | Rest::Open => return,
        };
        let names = || format!("it has {}", quoted(fields.names()));
        let help = similar.or_else(|| (!fields.known.is_empty()).then(names));
        let message = format!("`{base}` has no `{key}`");
        self.report(Code::UnknownBinding, severity, range, message, help);
    }

    fn optional(&mut self, presence: &Presence, key: &str, base: &str, range: (usize, usize)) {
        let path = format!("{base}.{key}");
        let node = base.split(['.', '[']).next().unwrap_or(base);
        let failure_is_known = matches!(presence, Presence::UnlessFailed(_))
            && (self.facts.did_not_fail(base) || self.facts.did_not_fail(node));
        if failure_is_known
            || self.facts.prove(&path)
            || self.is_instead_of_another(node)
            || self.reported.iter().any(|known| *known == path || known == node)
        {
            return;
        }
        let (message, more) = match presence {
            Presence::UnlessFailed(asked) => {
                let test = match *asked {
                    "failed" => format!("not {base}.failed"),
                    asked => format!("{base}.{asked} is undefined"),
                };
                (
                    format!("`{base}` may fail, and then it has no `{key}`"),
                    match self.strictness {
                        Strictness::Template => format!("; or test `{{% if {test} %}}`"),
                        Strictness::Condition => format!("; or test `{test} and …`"),
                    },
                )
            }
            Presence::Needs(needs) => (format!("`{base}` has `{key}` only with {needs}"), String::new()),
            _ => (format!("`{path}` may be missing: its schema does not require it"), String::new()),
        };
        let help = match self.strictness {
            _ if base.ends_with("[…]") => format!("give a default: `map(attribute=\"{key}\", default=…)`"),
            Strictness::Template => format!("give a default: `{{{{ {path} | default(…) }}}}`{more}"),
            Strictness::Condition => format!("give a default: `{path} | default(…)`{more}"),
        };
        self.reported.push(path);
        self.report(Code::OptionalValue, Severity::Warning, range, message, Some(help));
    }

    /// The shape of an expression.
    pub(super) fn expr(&mut self, expr: &Expr, need: Need) -> Shape {
        let is_asked = mem::take(&mut self.is_asked);
        let reported = self.findings.len();
        let shape = self.follow(expr, need, is_asked);
        if is_asked && self.findings.len() == reported {
            self.decided(expr, &shape);
        }
        shape
    }

    fn follow(&mut self, expr: &Expr, need: Need, is_asked: bool) -> Shape {
        match expr {
            Expr::Const(value) => constant(value).map_or_else(Shape::any, |value| Shape::of_value(&value)),
            Expr::Path(path) => self.path(path, need),
            Expr::Name(name, path, at) => self.name(name, path.as_ref(), *at, need),
            Expr::Attr(base, key, at) => self.attr(base, key, *at as usize, need),
            Expr::Item(both) => self.item(both, need),
            Expr::Slice(parts) => {
                let shape = self.expr(&parts.0, Need::Value);
                parts.1.iter().flatten().for_each(|bound| drop(self.expr(bound, Need::Value)));
                Shape { values: None, ..shape }
            }
            Expr::Not(inner) => {
                self.is_asked = is_asked;
                let shape = self.expr(inner, self.truth_need());
                boolean(truth(&shape).map(|holds| !holds))
            }
            Expr::Neg(inner) => {
                let shape = self.expr(inner, Need::Value);
                self.negative(inner, &shape);
                Shape::of(Kinds::NUMBER)
            }
            Expr::And(both) => self.either(both, false, is_asked),
            Expr::Or(both) => self.either(both, true, is_asked),
            Expr::Binary(op, both) => self.binary(*op, both),
            Expr::Compare(first, rest) => self.comparison(first, rest),
            Expr::If(parts) => self.choice(parts, need),
            Expr::Default(parts) => self.default(parts),
            Expr::Filter(name, input, args) => {
                let shape = match input {
                    Some(input) => self.expr(input, Need::Value),
                    None => Shape::of(Kinds::STRING),
                };
                self.args(args);
                self.filter(name, input.as_deref(), &shape, args)
            }
            Expr::Test(name, subject, args) => {
                let need = if asks_for_kind(name) { Need::Nothing } else { Need::Value };
                self.expr(subject, need);
                self.args(args);
                Shape::of(Kinds::BOOL)
            }
            Expr::Call(function, args) => {
                self.args(args);
                match function {
                    Function::Range => Shape::list(Shape::of(Kinds::INTEGER)),
                    Function::Dict => Shape::of(Kinds::MAPPING),
                    _ => Shape::any(),
                }
            }
            Expr::List(items) => Shape::list_of(items.iter().map(|item| self.expr(item, Need::Value))),
            Expr::Map(pairs) => {
                for (key, value) in pairs {
                    self.expr(key, Need::Value);
                    self.expr(value, Need::Value);
                }
                Shape::of(Kinds::MAPPING)
            }
        }
    }

    fn truth_need(&self) -> Need {
        match self.strictness {
            Strictness::Template => Need::Nothing,
            Strictness::Condition => Need::Value,
        }
    }

    fn args(&mut self, args: &Args) {
        for arg in args.places.iter().chain(args.names.iter().map(|(_, arg)| arg)) {
            self.expr(arg, Need::Value);
        }
    }

    fn name(&mut self, name: &str, path: Option<&Path>, at: u32, need: Need) -> Shape {
        match (self.locals.iter().rev().find(|(known, _)| known == name), path) {
            (Some((_, shape)), _) => shape.clone(),
            (None, Some(path)) => self.path(path, need),
            (None, None) => {
                if need == Need::Value {
                    let message = format!("`{name}` has no value here: the template sets it elsewhere");
                    let help = "what is set in a `{% for %}` ends with it; `namespace()` keeps a value";
                    let range = (at as usize, name.len());
                    self.report(Code::UnknownBinding, Severity::Error, range, message, Some(help.to_owned()));
                }
                Shape::any()
            }
        }
    }

    fn attr(&mut self, base: &Expr, key: &str, at: usize, need: Need) -> Shape {
        let shape = self.expr(base, need);
        let name = || canonical(base).unwrap_or_else(|| "the value".to_owned());
        self.field(&shape, key, &name, need, || (at, key.len()), false)
    }

    fn item(&mut self, both: &(Expr, Expr), need: Need) -> Shape {
        let shape = self.expr(&both.0, need);
        self.expr(&both.1, Need::Value);
        let key = match &both.1 {
            Expr::Const(key) => key.as_str(),
            _ => None,
        };
        match key {
            Some(key) => {
                let name = || canonical(&both.0).unwrap_or_else(|| "the value".to_owned());
                let range = both.0.range().unwrap_or((0, 0));
                self.field(&shape, key, &name, need, || range, false)
            }
            None if shape.kinds.meets(Kinds::MAPPING) => Shape::any(),
            None => shape.item().unwrap_or_else(Shape::any),
        }
    }

    /// `and` or `or`: the right side is evaluated only if the left one does not decide.
    fn either(&mut self, both: &(Expr, Expr), settles: bool, is_asked: bool) -> Shape {
        let need = self.truth_need();
        self.is_asked = is_asked;
        let left = self.expr(&both.0, need);
        let instead = match settles {
            true => missing_where_false(&both.0, self.strictness == Strictness::Template),
            false => Vec::new(),
        };
        let is_value = is_asked && settles && self.or_value(&both.0, &both.1);
        let right = self.under(Facts::of(&both.0, !settles), instead, |inner| {
            inner.is_asked = is_asked && !is_value;
            inner.expr(&both.1, need)
        });
        match (truth(&left), truth(&right)) {
            (Some(held), _) if held == settles => left,
            (Some(_), _) => right,
            (None, Some(held)) if held == settles && left.kinds.or(right.kinds) == Kinds::BOOL => {
                boolean(Some(settles))
            }
            _ => Shape { values: None, ..left.union(&right) },
        }
    }

    /// Follows a part that is evaluated only where a test decided so, maybe since one of these names has no value.
    fn under<T>(&mut self, facts: Facts, missing: Vec<String>, read: impl FnOnce(&mut Self) -> T) -> T {
        let (known, instead) = (self.facts.len(), self.instead.len());
        self.facts.extend(facts);
        self.instead.extend(missing);
        self.blocks += 1;
        let found = read(self);
        self.blocks -= 1;
        self.instead.truncate(instead);
        self.facts.truncate(known);
        found
    }

    fn choice(&mut self, parts: &(Expr, Expr, Option<Expr>), need: Need) -> Shape {
        let (test, yes, no) = parts;
        self.expr(test, Need::Nothing);
        let missing = missing_where_false(test, true);
        let yes = self.under(Facts::of(test, true), Vec::new(), |inner| inner.expr(yes, need));
        let no =
            no.as_ref().map(|no| self.under(Facts::of(test, false), missing, |inner| inner.expr(no, need)));
        yes.union(&no.unwrap_or_else(|| Shape::of(Kinds::STRING)))
    }

    fn default(&mut self, parts: &(Expr, Option<Expr>, Option<Expr>)) -> Shape {
        let (input, instead, is_lax) = parts;
        let shape = self.expr(input, Need::Nothing);
        if let Some(is_lax) = is_lax {
            self.expr(is_lax, Need::Value);
        }
        let missing = missing_where_false(input, true);
        let instead = match instead {
            Some(instead) => {
                self.under(Facts::default(), missing, |inner| inner.expr(instead, Need::Nothing))
            }
            None => Shape::of(Kinds::STRING),
        };
        shape.union(&instead)
    }
}

fn constant(value: &minijinja::Value) -> Option<Value> {
    serde_json::to_value(value).ok()
}

/// An expression, for a message.
fn named(expr: &Expr) -> String {
    match expr {
        Expr::Const(value) => match constant(value) {
            Some(value) => format!("`{value}`"),
            None => "the value".to_owned(),
        },
        Expr::Path(path) => format!("`{}`", path.source),
        _ => canonical(expr).map_or_else(|| "the value".to_owned(), |path| format!("`{path}`")),
    }
}

fn is_node(root: &PathRoot) -> bool {
    matches!(root, PathRoot::Node(_) | PathRoot::MayFail(_) | PathRoot::Outer { .. })
}
