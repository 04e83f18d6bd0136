//! Evaluates statements: output, assignments and loops.

use minijinja::Value;
use serde_json::Value as Json;

use super::{EvalResult, Evaluator, StatementError};
use crate::expr::{
    limits::ITEM,
    names::{Changed, Loop, Namespace},
    program::{spell, to_json},
    tree::{AssignTarget, Expr, For, Stmt},
};

impl<'t> Evaluator<'t, '_> {
    /// Evaluates statements and writes their output.
    pub(in crate::expr) fn run(
        &mut self,
        body: &'t [Stmt],
        out: &mut String,
    ) -> Result<(), StatementError<'t>> {
        body.iter().try_for_each(|statement| self.statement(statement, out))
    }

    fn statement(&mut self, statement: &'t Stmt, out: &mut String) -> Result<(), StatementError<'t>> {
        match statement {
            Stmt::Text(text) => {
                let paid = self.limits.step(1).and_then(|()| self.limits.make(text.len() as u64));
                paid.map_err(|reason| StatementError { source: shown(text), reason })?;
                out.push_str(text);
                Ok(())
            }
            Stmt::Emit(expr, source) => {
                self.emit(expr, out).map_err(|reason| StatementError { source, reason })
            }
            Stmt::For(each) => {
                let items = match &each.items {
                    Expr::List(items) if each.filter.is_some() => self.perhaps_undefined(items),
                    items => self.value(items),
                };
                let items = items.map_err(|reason| StatementError { source: &each.source, reason })?;
                self.each(each, &items, out)
            }
            Stmt::If(parts) => {
                let holds = self
                    .eval(&parts.0)
                    .map_err(|reason| StatementError { source: &parts.1, reason })?
                    .is_true();
                self.run(if holds { &parts.2 } else { &parts.3 }, out)
            }
            Stmt::With(set, body) => {
                self.locals.open();
                let done = set.iter().try_for_each(|(target, expr, source)| {
                    let value = self.value(expr);
                    value
                        .and_then(|value| self.assign(target, value))
                        .map_err(|reason| StatementError { source, reason })
                });
                let done = done.and_then(|()| self.run(body, out));
                self.locals.close();
                done
            }
            Stmt::Set(target, expr, source) => {
                let value = self.value(expr);
                value
                    .and_then(|value| self.assign(target, value))
                    .map_err(|reason| StatementError { source, reason })
            }
            Stmt::SetBlock(target, filter, body) => {
                let text = self.captured(body, filter.as_ref())?;
                self.assign(target, text).map_err(|reason| StatementError { source: "set", reason })
            }
            Stmt::Filter(filter, body) => {
                let value = self.captured(body, Some(filter))?;
                self.write(&value, out).map_err(|reason| StatementError { source: "filter", reason })
            }
            Stmt::Do(expr, source) => {
                self.eval(expr).map(drop).map_err(|reason| StatementError { source, reason })
            }
        }
    }

    /// A list whose items may be undefined.
    fn perhaps_undefined(&mut self, items: &'t [Expr]) -> EvalResult {
        self.limits.make(items.len() as u64 * ITEM)?;
        let items = items.iter().map(|item| self.eval(item)).collect::<Result<Vec<_>, _>>()?;
        Ok(Value::from(items))
    }

    /// The output of statements, after a filter.
    fn captured(&mut self, body: &'t [Stmt], filter: Option<&'t Expr>) -> Result<Value, StatementError<'t>> {
        let mut text = String::new();
        self.run(body, &mut text)?;
        let value = Value::from(text);
        match filter {
            Some(filter) => {
                self.pipe(filter, value).map_err(|reason| StatementError { source: "filter", reason })
            }
            None => Ok(value),
        }
    }

    /// A chain of filters, the first without an input.
    fn pipe(&mut self, filter: &'t Expr, input: Value) -> EvalResult {
        let Expr::Filter(name, before, args) = filter else { return self.value(filter) };
        let input = match before {
            Some(before) => self.pipe(before, input)?,
            None => input,
        };
        self.apply(name, input, args)
    }

    fn emit(&mut self, expr: &'t Expr, out: &mut String) -> Result<(), String> {
        // A string of the scope is written without a copy.
        if let Expr::Path(path) = expr
            && let Ok(Json::String(text)) = path.get(self.scope)
        {
            self.limits.step(1)?;
            self.limits.make(text.len() as u64)?;
            out.push_str(text);
            return Ok(());
        }
        let value = self.value(expr)?;
        self.write(&value, out)
    }

    fn write(&self, value: &Value, out: &mut String) -> Result<(), String> {
        if let Some(text) = value.as_str() {
            self.limits.make(text.len() as u64)?;
            out.push_str(text);
            return Ok(());
        }
        let size = self.limits.look(value)?;
        self.limits.make(size.bytes)?;
        out.push_str(&spell(&to_json(value)?));
        Ok(())
    }

    fn assign(&mut self, target: &AssignTarget, value: Value) -> Result<(), String> {
        match target {
            AssignTarget::Name(name) => {
                self.locals.set(name, value);
                Ok(())
            }
            AssignTarget::Member(name, key) => {
                self.limits.look(&value)?;
                match self.locals.get(name).and_then(Value::downcast_object_ref::<Namespace>) {
                    Some(namespace) => {
                        namespace.set(key, value);
                        Ok(())
                    }
                    None => Err(format!(
                        "`{name}` is not a namespace, and only members of a `namespace()` can be set"
                    )),
                }
            }
            AssignTarget::Many(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.len() {
                    return Err(format!(
                        "{} names are set, and there are {} values",
                        targets.len(),
                        values.len()
                    ));
                }
                targets.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value))
            }
        }
    }

    pub(super) fn each(
        &mut self,
        each: &'t For,
        over: &Value,
        out: &mut String,
    ) -> Result<(), StatementError<'t>> {
        let broken = |reason| StatementError { source: each.source.as_str(), reason };
        let mut items = self.items(over).map_err(broken)?;
        if let Some(filter) = &each.filter {
            let mut taken = Vec::with_capacity(items.len());
            for item in items {
                self.locals.open();
                let holds = self.assign(&each.target, item.clone()).and_then(|()| self.eval(filter));
                self.locals.close();
                if holds.map_err(broken)?.is_true() {
                    taken.push(item);
                }
            }
            items = taken;
        }
        if items.is_empty() {
            return self.run(&each.otherwise, out);
        }
        if each.is_recursive {
            self.loops.push(each);
        }
        self.depth += 1;
        let done = self.passes(each, &items, out);
        self.depth -= 1;
        if each.is_recursive {
            self.loops.pop();
        }
        done
    }

    fn passes(&mut self, each: &'t For, items: &[Value], out: &mut String) -> Result<(), StatementError<'t>> {
        let changed = Changed::default();
        let length = items.len();
        for (index, item) in items.iter().enumerate() {
            let near = |at: Option<usize>| at.and_then(|at| items.get(at)).cloned().unwrap_or_default();
            let (before, after) = (near(index.checked_sub(1)), near(index.checked_add(1)));
            let about = Loop { index, length, depth: self.depth, before, after, changed: changed.clone() };
            self.locals.open();
            self.locals.set("loop", Value::from_object(about));
            let paid = self.limits.step(1).and_then(|()| self.assign(&each.target, item.clone()));
            let done = paid
                .map_err(|reason| StatementError { source: &each.source, reason })
                .and_then(|()| self.run(&each.body, out));
            self.locals.close();
            done?;
        }
        Ok(())
    }
}

/// The start of a text.
fn shown(text: &str) -> &str {
    text.char_indices().nth(40).map_or(text, |(end, _)| &text[..end])
}
