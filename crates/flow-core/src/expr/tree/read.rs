//! Builds trees from the syntax trees of minijinja, and collects the names that they use.

use minijinja::{
    Value,
    machinery::{
        Span,
        ast::{self, BinOpKind, CallArg, CompareOpKind, UnaryOpKind},
    },
};

use super::{
    Args, AssignTarget, Expr, For, Function, Stmt,
    own::{Own, OwnNames},
};
use crate::{
    diagnostic::did_you_mean,
    expr::{
        SyntaxFault,
        path::{Path, PathRoot, PathStep, is_word},
        program::{NameUse, Resolver, Strictness},
        vocabulary,
    },
};

/// The available functions.
const FUNCTIONS: &[&str] = &["range", "dict", "namespace"];

/// The tests for the kind of a value.
const KINDS: &[&str] = &[
    "boolean",
    "defined",
    "escaped",
    "false",
    "float",
    "int",
    "integer",
    "iterable",
    "mapping",
    "none",
    "number",
    "safe",
    "sequence",
    "string",
    "true",
    "undefined",
];

/// Whether a test asks for the kind of a value, which may be undefined.
pub(crate) fn asks_for_kind(test: &str) -> bool {
    KINDS.contains(&test)
}

/// Builds trees, and collects the names that they use.
pub(in crate::expr) struct TreeBuilder<'r> {
    source: &'r str,
    resolver: &'r dyn Resolver,
    strictness: Strictness,
    own: OwnNames,
    /// Whether the current part is certain to be evaluated.
    certain: bool,
    /// The number of open loops.
    loops: usize,
    pub(in crate::expr) uses: Vec<NameUse>,
}

type Read<T> = Result<T, SyntaxFault>;

/// Whether an expression may be undefined where it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undefined {
    Allowed,
    Refused,
}
use Undefined::{Allowed, Refused};

impl<'r> TreeBuilder<'r> {
    pub(in crate::expr) fn new(source: &'r str, strictness: Strictness, resolver: &'r dyn Resolver) -> Self {
        Self {
            source,
            resolver,
            strictness,
            own: OwnNames::default(),
            certain: true,
            loops: 0,
            uses: Vec::new(),
        }
    }

    pub(in crate::expr) fn expression(&mut self, expression: &ast::Expr<'_>) -> Read<Expr> {
        self.expr(expression, Refused)
    }

    pub(in crate::expr) fn template(&mut self, template: &ast::Stmt<'_>) -> Read<Vec<Stmt>> {
        let ast::Stmt::Template(template) = template else { return Ok(Vec::new()) };
        self.own = OwnNames::of(&template.children);
        self.body(&template.children)
    }

    fn body(&mut self, body: &[ast::Stmt<'_>]) -> Read<Vec<Stmt>> {
        let mut read = Vec::with_capacity(body.len());
        for statement in body {
            self.statement(statement, &mut read)?;
        }
        Ok(read)
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>, read: &mut Vec<Stmt>) -> Read<()> {
        read.push(match statement {
            ast::Stmt::EmitRaw(raw) => Stmt::Text(raw.raw.to_owned()),
            ast::Stmt::EmitExpr(emit) => Stmt::Emit(self.expr(&emit.expr, Refused)?, self.source(&emit.expr)),
            ast::Stmt::ForLoop(each) => self.each(each)?,
            ast::Stmt::IfCond(cond) => self.condition(cond)?,
            ast::Stmt::WithBlock(with) => self.with(with)?,
            ast::Stmt::Set(set) => {
                let value = self.expr(&set.expr, Refused)?;
                self.own.set(&set.target);
                Stmt::Set(self.target(&set.target)?, value, self.source(&set.expr))
            }
            ast::Stmt::SetBlock(set) => self.set_block(set)?,
            ast::Stmt::FilterBlock(block) => {
                Stmt::Filter(self.expr(&block.filter, Refused)?, self.body(&block.body)?)
            }
            // Nothing is escaped in a prompt.
            ast::Stmt::AutoEscape(block) => {
                read.extend(self.body(&block.body)?);
                return Ok(());
            }
            ast::Stmt::Template(template) => {
                read.extend(self.body(&template.children)?);
                return Ok(());
            }
            ast::Stmt::Do(call) => {
                let source = self.slice(call.call.span());
                Stmt::Do(self.call(&call.call)?, source)
            }
            #[expect(
                unreachable_patterns,
                reason = "other crates of a program may switch on more of minijinja"
            )]
            _ => return Err(fault(0, "this statement is not supported", None)),
        });
        Ok(())
    }

    fn condition(&mut self, cond: &ast::IfCond<'_>) -> Read<Stmt> {
        let test = self.expr(&cond.expr, Allowed)?;
        let source = self.source(&cond.expr);
        let before = self.own.now();
        let yes = self.perhaps(|reader| reader.body(&cond.true_body))?;
        let after = self.own.instead(before);
        let no = self.perhaps(|reader| reader.body(&cond.false_body))?;
        self.own.merge(after);
        Ok(Stmt::If(Box::new((test, source, yes, no))))
    }

    fn with(&mut self, with: &ast::WithBlock<'_>) -> Read<Stmt> {
        let mut set = Vec::with_capacity(with.assignments.len());
        self.own.open(None);
        for (target, value) in &with.assignments {
            set.push((self.target(target)?, self.expr(value, Refused)?, self.source(value)));
            self.own.set(target);
        }
        let body = self.body(&with.body)?;
        self.own.close();
        Ok(Stmt::With(set, body))
    }

    fn set_block(&mut self, set: &ast::SetBlock<'_>) -> Read<Stmt> {
        let filter = set.filter.as_ref().map(|filter| self.expr(filter, Refused)).transpose()?;
        let body = self.body(&set.body)?;
        self.own.set(&set.target);
        Ok(Stmt::SetBlock(self.target(&set.target)?, filter, body))
    }

    fn each(&mut self, each: &ast::ForLoop<'_>) -> Read<Stmt> {
        let items = match &each.iter {
            // What is undefined in a list stays so, and the condition of the loop may leave it out.
            ast::Expr::List(list) if each.filter_expr.is_some() => {
                Expr::List(list.items.iter().map(|item| self.expr(item, Allowed)).collect::<Read<_>>()?)
            }
            items => self.expr(items, Refused)?,
        };
        let source = self.source(&each.iter);
        let target = self.target(&each.target)?;
        self.own.open(each.recursive.then_some(&*each.body));
        self.own.set(&each.target);
        let (filter, body) = self.perhaps(|reader| {
            let filter = each.filter_expr.as_ref().map(|filter| reader.expr(filter, Allowed)).transpose()?;
            reader.loops += 1;
            let body = reader.body(&each.body);
            reader.loops -= 1;
            Ok((filter, body?))
        })?;
        self.own.close();
        let before = self.own.now();
        let otherwise = self.perhaps(|reader| reader.body(&each.else_body))?;
        self.own.merge(before);
        let is_recursive = each.recursive;
        Ok(Stmt::For(Box::new(For { target, items, source, filter, is_recursive, body, otherwise })))
    }

    /// Reads what may never be evaluated.
    fn perhaps<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        let certain = std::mem::replace(&mut self.certain, false);
        let found = read(self);
        self.certain = certain;
        found
    }

    fn target(&self, target: &ast::Expr<'_>) -> Read<AssignTarget> {
        Ok(match target {
            ast::Expr::Var(var) => AssignTarget::Name(var.id.into()),
            ast::Expr::List(list) => {
                AssignTarget::Many(list.items.iter().map(|item| self.target(item)).collect::<Read<_>>()?)
            }
            ast::Expr::Tuple(list) => {
                AssignTarget::Many(list.items.iter().map(|item| self.target(item)).collect::<Read<_>>()?)
            }
            ast::Expr::GetAttr(attr) if matches!(attr.expr, ast::Expr::Var(_)) => {
                AssignTarget::Member(self.slice(attr.expr.span()), attr.name.into())
            }
            other => {
                let reason = "only a name, or a member of a `namespace()`, can be set";
                return Err(fault(other.span().start_offset, reason, None));
            }
        })
    }

    /// The truth of an expression may hang on what is undefined, but not in a condition.
    fn truth(&self) -> Undefined {
        match self.strictness {
            Strictness::Template => Allowed,
            Strictness::Condition => Refused,
        }
    }

    fn expr(&mut self, expr: &ast::Expr<'_>, undefined: Undefined) -> Read<Expr> {
        if let Some(path) = self.path(expr, undefined)? {
            return Ok(path);
        }
        // Each kind has its own function, so that nesting takes little stack.
        match expr {
            // A lone name is a path.
            ast::Expr::Var(_) => Ok(Expr::Const(Value::UNDEFINED)),
            ast::Expr::Const(value) => Ok(Expr::Const(value.value.clone())),
            ast::Expr::GetAttr(attr) => self.attr(attr, undefined),
            ast::Expr::GetItem(item) => self.item(item, undefined),
            ast::Expr::Slice(slice) => self.part(slice),
            ast::Expr::UnaryOp(unary) => self.unary(unary),
            ast::Expr::BinOp(binary) => self.binary(binary),
            ast::Expr::Compare(compare) => self.compare(compare),
            ast::Expr::IfExpr(choice) => self.choice(choice, undefined),
            ast::Expr::Filter(filter) => self.filter(filter),
            ast::Expr::Test(test) => self.test(test),
            ast::Expr::Call(call) => self.call(call),
            ast::Expr::List(list) => self.list(&list.items),
            ast::Expr::Tuple(list) => self.list(&list.items),
            ast::Expr::Map(map) => self.map(map),
        }
    }

    fn attr(&mut self, attr: &ast::GetAttr<'_>, undefined: Undefined) -> Read<Expr> {
        let at = place(self.source, attr.expr.span().end_offset, attr.name);
        Ok(Expr::Attr(Box::new(self.expr(&attr.expr, undefined)?), attr.name.into(), at))
    }

    fn item(&mut self, item: &ast::GetItem<'_>, undefined: Undefined) -> Read<Expr> {
        let base = self.expr(&item.expr, undefined)?;
        Ok(Expr::Item(Box::new((base, self.expr(&item.subscript_expr, Refused)?))))
    }

    fn part(&mut self, slice: &ast::Slice<'_>) -> Read<Expr> {
        let base = self.expr(&slice.expr, Refused)?;
        let mut bound =
            |bound: &Option<ast::Expr<'_>>| bound.as_ref().map(|bound| self.expr(bound, Refused)).transpose();
        Ok(Expr::Slice(Box::new((base, [bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?]))))
    }

    fn unary(&mut self, unary: &ast::UnaryOp<'_>) -> Read<Expr> {
        match unary.op {
            UnaryOpKind::Not => Ok(Expr::Not(Box::new(self.expr(&unary.expr, self.truth())?))),
            UnaryOpKind::Neg => Ok(Expr::Neg(Box::new(self.expr(&unary.expr, Refused)?))),
        }
    }

    fn compare(&mut self, compare: &ast::Compare<'_>) -> Read<Expr> {
        let first = self.expr(&compare.expr, Refused)?;
        let rest = compare.ops.iter().map(|op| Ok((op.op, self.expr(&op.expr, Refused)?)));
        Ok(Expr::Compare(Box::new(first), rest.collect::<Read<_>>()?))
    }

    fn choice(&mut self, choice: &ast::IfExpr<'_>, undefined: Undefined) -> Read<Expr> {
        let test = self.expr(&choice.test_expr, Allowed)?;
        let (yes, no) = self.perhaps(|reader| {
            let yes = reader.expr(&choice.true_expr, undefined)?;
            Ok((yes, choice.false_expr.as_ref().map(|no| reader.expr(no, undefined)).transpose()?))
        })?;
        Ok(Expr::If(Box::new((test, yes, no))))
    }

    fn test(&mut self, test: &ast::Test<'_>) -> Read<Expr> {
        known("test", test.name, vocabulary::TESTS, test_place(self.source, test))?;
        let undefined = if asks_for_kind(test.name) { Allowed } else { Refused };
        let subject = self.expr(&test.expr, undefined)?;
        Ok(Expr::Test(test.name.into(), Box::new(subject), self.args(&test.args)?))
    }

    fn map(&mut self, map: &ast::Map<'_>) -> Read<Expr> {
        let pairs = map.keys.iter().zip(&map.values);
        let pairs = pairs.map(|(key, value)| Ok((self.expr(key, Refused)?, self.expr(value, Refused)?)));
        Ok(Expr::Map(pairs.collect::<Read<_>>()?))
    }

    fn list(&mut self, items: &[ast::Expr<'_>]) -> Read<Expr> {
        Ok(Expr::List(items.iter().map(|item| self.expr(item, Refused)).collect::<Read<_>>()?))
    }

    /// A name, or a plain path that begins with one that the template does not set itself.
    fn path(&mut self, expr: &ast::Expr<'_>, undefined: Undefined) -> Read<Option<Expr>> {
        let mut steps = Vec::new();
        let mut at = expr;
        let var = loop {
            match at {
                ast::Expr::Var(var) => break var,
                ast::Expr::GetAttr(attr) => {
                    steps.push(PathStep::Key(attr.name.into()));
                    at = &attr.expr;
                }
                ast::Expr::GetItem(item) => {
                    let Some(step) = constant(&item.subscript_expr).and_then(|value| step(&value)) else {
                        return Ok(None);
                    };
                    steps.push(step);
                    at = &item.expr;
                }
                _ => return Ok(None),
            }
        };
        let in_loop = var.id == "loop" && self.loops > 0;
        let root = self.resolver.root(var.id);
        let is_own = match self.own.find(var.id) {
            Own::Set | Own::Perhaps => true,
            Own::Elsewhere => root.is_none(),
            Own::Never => false,
        };
        if (is_own || in_loop) && !steps.is_empty() {
            return Ok(None);
        }
        if in_loop {
            return Ok(Some(Expr::Name("loop".into(), None, var.span().start_offset)));
        }
        steps.reverse();
        if is_own {
            if root.is_some() && self.own.find(var.id) == Own::Perhaps {
                self.uses.push(NameUse { path: var.id.into(), offset: offset(var.span()), bare: false });
            }
            let path = root.map(|root| Path::new(root, Vec::new(), var.id, offset(var.span())));
            return Ok(Some(Expr::Name(var.id.into(), path, var.span().start_offset)));
        }
        let keys = steps.iter().map_while(|step| match step {
            PathStep::Key(key) if !key.is_empty() && key.bytes().all(is_word) => Some(key.as_str()),
            _ => None,
        });
        let dotted = std::iter::once(var.id).chain(keys).collect::<Vec<_>>().join(".");
        let bare = self.certain && undefined == Refused;
        self.uses.push(NameUse { path: dotted, offset: offset(var.span()), bare });
        let source = self.source(expr);
        // The compiler refuses the unknown name.
        let root = root.unwrap_or_else(|| PathRoot::Local(var.id.into()));
        Ok(Some(Expr::Path(Path::new(root, steps, &source, offset(var.span())))))
    }

    fn binary(&mut self, binary: &ast::BinOp<'_>) -> Read<Expr> {
        let truth = self.truth();
        if matches!(binary.op, BinOpKind::ScAnd | BinOpKind::ScOr) {
            let left = self.expr(&binary.left, truth)?;
            let right = self.perhaps(|reader| reader.expr(&binary.right, truth))?;
            let both = Box::new((left, right));
            return Ok(if matches!(binary.op, BinOpKind::ScAnd) { Expr::And(both) } else { Expr::Or(both) });
        }
        let (left, right) = (self.expr(&binary.left, Refused)?, self.expr(&binary.right, Refused)?);
        Ok(operation(binary.op, left, right))
    }

    fn filter(&mut self, filter: &ast::Filter<'_>) -> Read<Expr> {
        known("filter", filter.name, vocabulary::FILTERS, filter_place(self.source, filter))?;
        if matches!(filter.name, "default" | "d")
            && let Some(input) = &filter.expr
        {
            let input = self.expr(input, Allowed)?;
            let mut args = self.perhaps(|reader| reader.args(&filter.args))?;
            if args.places.len() > 2 || !args.names.is_empty() {
                let reason = "`default` takes the value to use, and `true` if it replaces what is empty too";
                return Err(fault(
                    filter.expr.as_ref().map_or(0, |expr| expr.span().start_offset),
                    reason,
                    None,
                ));
            }
            let is_lax = (args.places.len() == 2).then(|| args.places.pop()).flatten();
            return Ok(Expr::Default(Box::new((input, args.places.pop(), is_lax))));
        }
        let input = filter.expr.as_ref().map(|input| self.expr(input, Refused)).transpose()?;
        let args = self.args(&filter.args)?;
        let named = |at: usize| match args.places.get(at) {
            Some(Expr::Const(name)) => name.as_str(),
            _ => None,
        };
        let place = filter.args.first().map_or(0, |arg| match arg {
            CallArg::Pos(arg)
            | CallArg::Kwarg(_, arg)
            | CallArg::PosSplat(arg)
            | CallArg::KwargSplat(arg) => arg.span().start_offset,
        });
        match filter.name {
            "map" => named(0).map(|name| known("filter", name, vocabulary::FILTERS, place)).transpose()?,
            "select" | "reject" => {
                named(0).map(|name| known("test", name, vocabulary::TESTS, place)).transpose()?
            }
            "selectattr" | "rejectattr" => {
                named(1).map(|name| known("test", name, vocabulary::TESTS, place)).transpose()?
            }
            _ => None,
        };
        Ok(Expr::Filter(filter.name.into(), input.map(Box::new), args))
    }

    fn call(&mut self, call: &ast::Call<'_>) -> Read<Expr> {
        let function = match &call.expr {
            ast::Expr::Var(var) => match var.id {
                "range" => Function::Range,
                "dict" => Function::Dict,
                "namespace" => Function::Namespace,
                "loop" if self.loops > 0 => Function::Loop,
                name => {
                    let help = did_you_mean(name, FUNCTIONS.iter().copied()).or_else(|| {
                        let filter = vocabulary::FILTERS.contains(&name);
                        filter.then(|| format!("`{name}` is a filter: `value | {name}`"))
                    });
                    let help = help
                        .unwrap_or_else(|| "the functions are `range`, `dict` and `namespace`".to_owned());
                    let reason = format!("unknown function `{name}`");
                    return Err(fault(var.span().start_offset, &reason, Some(help)));
                }
            },
            ast::Expr::GetAttr(attr) if matches!(attr.name, "cycle" | "changed") => {
                Function::Method(Box::new(self.expr(&attr.expr, Refused)?), attr.name.into())
            }
            ast::Expr::GetAttr(attr) => {
                let filter = vocabulary::FILTERS.contains(&attr.name);
                let help = filter.then(|| format!("`{0}` is a filter: `value | {0}`", attr.name));
                let reason = format!("values have no methods such as `{}()`", attr.name);
                return Err(fault(start(&attr.expr), &reason, help));
            }
            other => return Err(fault(start(other), "this cannot be called", None)),
        };
        Ok(Expr::Call(function, self.args(&call.args)?))
    }

    fn args(&mut self, args: &[CallArg<'_>]) -> Read<Args> {
        let mut read = Args::default();
        for arg in args {
            match arg {
                CallArg::Pos(value) => read.places.push(self.expr(value, Refused)?),
                CallArg::Kwarg(name, value) => read.names.push(((*name).into(), self.expr(value, Refused)?)),
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    return Err(fault(
                        value.span().start_offset,
                        "`*` and `**` before an argument are not supported",
                        None,
                    ));
                }
            }
        }
        Ok(read)
    }

    /// An expression as it was written.
    fn source(&self, expr: &ast::Expr<'_>) -> String {
        self.slice(Span { start_offset: start(expr), ..expr.span() })
    }

    fn slice(&self, span: Span) -> String {
        self.source.get(offset(span)..span.end_offset as usize).unwrap_or_default().trim().into()
    }
}

/// Where an expression begins: the parser's own word for it is the sign that joins its parts.
fn start(mut expr: &ast::Expr<'_>) -> u32 {
    loop {
        expr = match expr {
            ast::Expr::GetAttr(attr) => &attr.expr,
            ast::Expr::GetItem(item) => &item.expr,
            ast::Expr::Slice(slice) => &slice.expr,
            ast::Expr::BinOp(binary) => &binary.left,
            ast::Expr::Compare(compare) => &compare.expr,
            ast::Expr::IfExpr(choice) => &choice.true_expr,
            ast::Expr::Test(test) => &test.expr,
            ast::Expr::Call(call) => &call.expr,
            ast::Expr::Filter(filter) => match &filter.expr {
                Some(input) => input,
                None => return filter.span().start_offset,
            },
            other => return other.span().start_offset,
        };
    }
}

fn offset(span: Span) -> usize {
    span.start_offset as usize
}

fn fault(offset: u32, reason: &str, help: Option<String>) -> SyntaxFault {
    SyntaxFault { reason: reason.to_owned(), offset: offset as usize, help }
}

/// Refuses the name of a filter or test that does not exist. Those after `|` or `is` are found before; this finds
/// those in quotes.
fn known(kind: &str, name: &str, all: &[&str], offset: u32) -> Read<()> {
    if all.contains(&name) {
        return Ok(());
    }
    let help = did_you_mean(name, all.iter().copied());
    Err(fault(offset, &format!("unknown {kind} `{name}`"), help))
}

fn filter_place(source: &str, filter: &ast::Filter<'_>) -> u32 {
    let from = filter.expr.as_ref().map_or(0, |expr| expr.span().end_offset);
    place(source, from, filter.name)
}

fn test_place(source: &str, test: &ast::Test<'_>) -> u32 {
    place(source, test.expr.span().end_offset, test.name)
}

fn place(source: &str, from: u32, word: &str) -> u32 {
    let rest = source.get(from as usize..).unwrap_or_default();
    from + rest.find(word).and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
}

fn constant(expr: &ast::Expr<'_>) -> Option<Value> {
    match expr {
        ast::Expr::Const(value) => Some(value.value.clone()),
        ast::Expr::UnaryOp(unary) if matches!(unary.op, UnaryOpKind::Neg) => match &unary.expr {
            ast::Expr::Const(value) => value.value.as_i64()?.checked_neg().map(Value::from),
            _ => None,
        },
        _ => None,
    }
}

fn step(value: &Value) -> Option<PathStep> {
    match value.as_str() {
        Some(key) => Some(PathStep::Key(key.into())),
        None if value.is_integer() => value.as_i64().map(PathStep::Index),
        None => None,
    }
}

/// An operator with both its sides. `and` and `or` are read elsewhere.
fn operation(op: BinOpKind, left: Expr, right: Expr) -> Expr {
    let comparison = match op {
        BinOpKind::Eq => CompareOpKind::Eq,
        BinOpKind::Ne => CompareOpKind::Ne,
        BinOpKind::Lt => CompareOpKind::Lt,
        BinOpKind::Lte => CompareOpKind::Lte,
        BinOpKind::Gt => CompareOpKind::Gt,
        BinOpKind::Gte => CompareOpKind::Gte,
        BinOpKind::In => CompareOpKind::In,
        op => return Expr::Binary(op, Box::new((left, right))),
    };
    Expr::Compare(Box::new(left), vec![(comparison, right)])
}
