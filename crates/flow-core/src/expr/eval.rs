//! Evaluates expressions. A part of an undefined value is undefined too, and using it is an error.

mod statement;

use std::collections::BTreeMap;

use minijinja::{
    State, Value,
    machinery::ast::{BinOpKind, CompareOpKind},
    value::{Kwargs, Serde, ValueKind},
};
use serde_json::Value as Json;

use super::{
    Scope, filters,
    limits::{ITEM, Limits},
    names::{Locals, Namespace},
    order::{order, wanted},
    path::Path,
    program::{Strictness, spell, to_json},
    tree::{Args, Expr, For, Function},
};

/// How often a recursive loop may call itself.
const MAX_RECURSION: usize = 20;
/// The most numbers that `range` gives.
const MAX_RANGE: i64 = 100_000;
/// How many steps an operation of minijinja counts as.
pub(super) const OPERATION: u64 = 5;

pub(super) type EvalResult = Result<Value, String>;

/// Named arguments.
type Named = Vec<(String, Value)>;

/// An expression of a statement that could not be evaluated, and why.
pub(super) struct StatementError<'t> {
    pub(super) source: &'t str,
    pub(super) reason: String,
}

/// One evaluation.
pub(super) struct Evaluator<'t, 's> {
    scope: &'s Scope<'s>,
    pub(super) limits: &'s Limits,
    strictness: Strictness,
    pub(super) state: State<'static, 'static>,
    locals: Locals,
    /// The open recursive loops.
    loops: Vec<&'t For>,
    depth: usize,
    /// Why the last undefined value is undefined.
    missing: Option<String>,
}

impl<'t, 's> Evaluator<'t, 's> {
    pub(super) fn new(scope: &'s Scope<'s>, limits: &'s Limits, strictness: Strictness) -> Self {
        Self {
            scope,
            limits,
            strictness,
            state: filters::state(),
            locals: Locals::default(),
            loops: Vec::new(),
            depth: 0,
            missing: None,
        }
    }

    /// The value of an expression; an undefined one is an error.
    pub(super) fn value(&mut self, expr: &'t Expr) -> EvalResult {
        let value = self.eval(expr)?;
        if value.is_undefined() {
            return Err(self.missing.take().unwrap_or_else(|| "it is undefined".to_owned()));
        }
        Ok(value)
    }

    /// Whether an expression is true.
    pub(super) fn truth(&mut self, expr: &'t Expr) -> Result<bool, String> {
        match self.strictness {
            Strictness::Template => Ok(self.eval(expr)?.is_true()),
            Strictness::Condition => Ok(self.value(expr)?.is_true()),
        }
    }

    fn undefined(&mut self, reason: String) -> Value {
        self.missing = Some(reason);
        Value::UNDEFINED
    }

    fn eval(&mut self, expr: &'t Expr) -> EvalResult {
        self.limits.step(1)?;
        // One function for each kind, so that nesting needs little stack.
        match expr {
            Expr::Const(value) => Ok(value.clone()),
            Expr::Path(path) => self.path(path),
            Expr::Name(name, path, _) => self.name(name, path.as_ref()),
            Expr::Attr(base, key, _) => self.attr(base, key),
            Expr::Item(both) => self.item(&both.0, &both.1),
            Expr::Slice(slice) => self.slice(&slice.0, &slice.1),
            Expr::Not(inner) => self.truth(inner).map(|holds| Value::from(!holds)),
            Expr::Neg(inner) => self.negative(inner),
            Expr::And(both) => self.either(&both.0, &both.1, false),
            Expr::Or(both) => self.either(&both.0, &both.1, true),
            Expr::Binary(op, both) => self.binary(*op, &both.0, &both.1),
            Expr::Compare(first, rest) => self.compare(first, rest),
            Expr::If(choice) => self.choice(&choice.0, &choice.1, choice.2.as_ref()),
            Expr::Default(parts) => self.default(&parts.0, parts.1.as_ref(), parts.2.as_ref()),
            Expr::Filter(name, input, args) => self.filter(name, input.as_deref(), args),
            Expr::Test(name, subject, args) => self.test(name, subject, args),
            Expr::Call(function, args) => self.call(function, args),
            Expr::List(items) => self.list(items),
            Expr::Map(pairs) => self.map(pairs),
        }
    }

    fn path(&mut self, path: &'t Path) -> EvalResult {
        match path.get(self.scope) {
            Ok(value) => self.lift(value),
            Err(reason) => Ok(self.undefined(reason)),
        }
    }

    fn name(&mut self, name: &str, path: Option<&'t Path>) -> EvalResult {
        if let Some(value) = self.locals.get(name).cloned() {
            if value.is_undefined() {
                self.missing = Some(format!("`{name}` has no value"));
            }
            return Ok(value);
        }
        match path {
            Some(path) => self.path(path),
            None => Ok(self.undefined(format!("`{name}` is not set here"))),
        }
    }

    fn negative(&mut self, inner: &'t Expr) -> EvalResult {
        let value = self.value(inner)?;
        self.limits.step(OPERATION)?;
        filters::negative(value)
    }

    /// `and` or `or`: the right side is evaluated only if the left one does not decide.
    fn either(&mut self, left: &'t Expr, right: &'t Expr, settles: bool) -> EvalResult {
        let left = self.side(left)?;
        if left.is_true() == settles { Ok(left) } else { self.side(right) }
    }

    fn choice(&mut self, test: &'t Expr, yes: &'t Expr, no: Option<&'t Expr>) -> EvalResult {
        match (self.eval(test)?.is_true(), no) {
            (true, _) => self.eval(yes),
            (false, Some(no)) => self.eval(no),
            (false, None) => Ok(Value::from("")),
        }
    }

    fn default(
        &mut self,
        input: &'t Expr,
        instead: Option<&'t Expr>,
        is_lax: Option<&'t Expr>,
    ) -> EvalResult {
        let value = self.eval(input)?;
        let is_lax = match is_lax {
            Some(is_lax) => self.value(is_lax)?.is_true(),
            None => false,
        };
        if !(value.is_undefined() || is_lax && !value.is_true()) {
            return Ok(value);
        }
        instead.map_or_else(|| Ok(Value::from("")), |instead| self.eval(instead))
    }

    fn filter(&mut self, name: &'t str, input: Option<&'t Expr>, args: &'t Args) -> EvalResult {
        let input = input.map_or(Ok(Value::from("")), |input| self.value(input))?;
        self.apply(name, input, args)
    }

    fn test(&mut self, name: &'t str, subject: &'t Expr, args: &'t Args) -> EvalResult {
        let subject = if wanted(name).is_some() { self.value(subject)? } else { self.eval(subject)? };
        let (mut values, _) = self.args(args)?;
        values.insert(0, subject);
        filters::test(self, name, &values).map(Value::from)
    }

    fn list(&mut self, items: &'t [Expr]) -> EvalResult {
        self.limits.make(items.len() as u64 * ITEM)?;
        let items = items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>()?;
        self.whole(Value::from(items))
    }

    fn map(&mut self, pairs: &'t [(Expr, Expr)]) -> EvalResult {
        self.limits.make(pairs.len() as u64 * ITEM)?;
        let pairs = pairs.iter().map(|(key, value)| Ok((self.value(key)?, self.value(value)?)));
        let map = pairs.collect::<Result<BTreeMap<_, _>, String>>()?;
        self.whole(Value::from_object(map))
    }

    /// One side of `and` or `or`.
    fn side(&mut self, expr: &'t Expr) -> EvalResult {
        match self.strictness {
            Strictness::Template => self.eval(expr),
            Strictness::Condition => self.value(expr),
        }
    }

    /// A value of the scope.
    fn lift(&self, value: &Json) -> EvalResult {
        self.limits.copy(value)?;
        Ok(lifted(value))
    }

    /// A new list or mapping, if it is neither too deep nor too large.
    fn whole(&self, value: Value) -> EvalResult {
        self.limits.look(&value)?;
        Ok(value)
    }

    fn attr(&mut self, base: &'t Expr, key: &str) -> EvalResult {
        let value = self.eval(base)?;
        if value.is_undefined() {
            return Ok(value);
        }
        match value.get_attr(key) {
            Ok(found) if !found.is_undefined() => Ok(found),
            _ => {
                let reason = format!("{} has no `{key}`", named(base));
                Ok(self.undefined(reason))
            }
        }
    }

    fn item(&mut self, base: &'t Expr, key: &'t Expr) -> EvalResult {
        let value = self.eval(base)?;
        if value.is_undefined() {
            return Ok(value);
        }
        let key = self.value(key)?;
        if let Some(text) = value.as_str() {
            self.limits.read(text.len() as u64)?;
        }
        self.limits.look(&key)?;
        match value.get_item(&key) {
            Ok(found) if !found.is_undefined() => Ok(found),
            _ => {
                let reason = match key.as_str() {
                    Some(key) => format!("{} has no `{key}`", named(base)),
                    None => format!("{} has no item {key}", named(base)),
                };
                Ok(self.undefined(reason))
            }
        }
    }

    fn slice(&mut self, base: &'t Expr, bounds: &'t [Option<Expr>; 3]) -> EvalResult {
        let value = self.value(base)?;
        let mut ends = [None; 3];
        for (end, bound) in ends.iter_mut().zip(bounds) {
            let Some(bound) = bound else { continue };
            let given = self.value(bound)?;
            if !given.is_none() {
                *end = Some(given.as_i64().ok_or("a slice takes whole numbers")?);
            }
        }
        self.limits.look(&value)?;
        match value.as_str() {
            Some(text) => {
                let letters: Vec<char> = text.chars().collect();
                let part: String = places(letters.len(), ends)?.map(|at| letters[at]).collect();
                self.text_made(Value::from(part))
            }
            None => {
                let items = self.items(&value)?;
                let part: Vec<Value> = places(items.len(), ends)?.map(|at| items[at].clone()).collect();
                self.whole(Value::from(part))
            }
        }
    }

    fn text_made(&self, value: Value) -> EvalResult {
        self.limits.make(ITEM + value.as_str().map_or(0, str::len) as u64)?;
        Ok(value)
    }

    /// A result of minijinja with its lazy lists and mappings evaluated.
    pub(super) fn settled(&self, value: Value) -> EvalResult {
        if value.as_str().is_some() {
            return self.text_made(value);
        }
        let value = match value.kind() {
            ValueKind::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter().map_err(filters::reason)?.checked() {
                    self.limits.make(ITEM)?;
                    items.push(item.map_err(filters::reason)?);
                }
                Value::from(items)
            }
            ValueKind::Map if value.downcast_object_ref::<BTreeMap<Value, Value>>().is_none() => {
                let mut map = BTreeMap::new();
                for key in value.try_iter().map_err(filters::reason)?.checked() {
                    self.limits.make(ITEM)?;
                    let key = key.map_err(filters::reason)?;
                    let inner = value.get_item(&key).map_err(filters::reason)?;
                    map.insert(key, inner);
                }
                Value::from_object(map)
            }
            _ => value,
        };
        if value.as_object().is_some() { self.whole(value) } else { Ok(value) }
    }

    fn binary(&mut self, op: BinOpKind, left: &'t Expr, right: &'t Expr) -> EvalResult {
        let (left, right) = (self.value(left)?, self.value(right)?);
        let made = match op {
            BinOpKind::Concat => Some(self.concat(&left, &right)?),
            BinOpKind::Add => self.join(&left, &right)?,
            BinOpKind::Mul => self.repeat(&left, &right)?,
            _ => None,
        };
        if let Some(made) = made {
            return Ok(made);
        }
        self.limits.step(OPERATION)?;
        // An error message contains both sides.
        self.limits.look(&left)?;
        self.limits.look(&right)?;
        filters::binary(op, left, right)
    }

    fn concat(&mut self, left: &Value, right: &Value) -> EvalResult {
        let mut text = String::new();
        for value in [left, right] {
            let size = self.limits.look(value)?;
            self.limits.make(size.bytes)?;
            match value.as_str() {
                Some(part) => text.push_str(part),
                None => text.push_str(&spell(&to_json(value)?)),
            }
        }
        Ok(Value::from(text))
    }

    /// The sum of two texts or of two lists.
    fn join(&mut self, left: &Value, right: &Value) -> Result<Option<Value>, String> {
        if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
            self.limits.make(ITEM + a.len() as u64 + b.len() as u64)?;
            return Ok(Some(Value::from([a, b].concat())));
        }
        if is_list(left) && is_list(right) {
            let mut items = self.items(left)?;
            items.extend(self.items(right)?);
            return self.whole(Value::from(items)).map(Some);
        }
        Ok(None)
    }

    /// A text or a list, several times; the number is on either side.
    fn repeat(&mut self, left: &Value, right: &Value) -> Result<Option<Value>, String> {
        let (many, times) = if right.is_number() { (left, right) } else { (right, left) };
        let Some(times) = times.as_usize().filter(|_| many.as_str().is_some() || is_list(many)) else {
            return Ok(None);
        };
        let size = self.limits.look(many)?;
        self.limits.make(size.bytes.saturating_mul(times as u64))?;
        if let Some(text) = many.as_str() {
            return Ok(Some(Value::from(text.repeat(times))));
        }
        let items = self.items(many)?;
        Ok(Some(std::iter::repeat_n(items, times).flatten().collect()))
    }

    fn compare(&mut self, first: &'t Expr, rest: &'t [(CompareOpKind, Expr)]) -> EvalResult {
        let mut left = self.value(first)?;
        for (how, right) in rest {
            let right = self.value(right)?;
            self.limits.look(&left)?;
            self.limits.look(&right)?;
            let holds = match how {
                CompareOpKind::Eq => left == right,
                CompareOpKind::Ne => left != right,
                CompareOpKind::Lt => order(&left, &right)?.is_lt(),
                CompareOpKind::Lte => order(&left, &right)?.is_le(),
                CompareOpKind::Gt => order(&left, &right)?.is_gt(),
                CompareOpKind::Gte => order(&left, &right)?.is_ge(),
                CompareOpKind::In => contains(&right, &left)?,
                CompareOpKind::NotIn => !contains(&right, &left)?,
            };
            if !holds {
                return Ok(Value::from(false));
            }
            left = right;
        }
        Ok(Value::from(true))
    }

    fn apply(&mut self, name: &str, input: Value, args: &'t Args) -> EvalResult {
        let (places, names) = self.args(args)?;
        filters::filter(self, name, input, places, &names)
    }

    fn args(&mut self, args: &'t Args) -> Result<(Vec<Value>, Named), String> {
        let places = args.places.iter().map(|arg| self.value(arg)).collect::<Result<_, _>>()?;
        let names = args.names.iter().map(|(name, arg)| Ok((name.clone(), self.value(arg)?)));
        Ok((places, names.collect::<Result<_, String>>()?))
    }

    fn call(&mut self, function: &'t Function, args: &'t Args) -> EvalResult {
        let (places, names) = self.args(args)?;
        match function {
            Function::Range => self.range(&places),
            Function::Dict => {
                let mut map = match places.first() {
                    Some(value) => pairs(value)?,
                    None => BTreeMap::new(),
                };
                map.extend(names.into_iter().map(|(name, value)| (Value::from(name.as_str()), value)));
                self.limits.make(map.len() as u64 * ITEM)?;
                self.whole(Value::from_object(map))
            }
            Function::Namespace => {
                let namespace = Namespace::default();
                for (name, value) in names {
                    self.limits.look(&value)?;
                    namespace.set(&name, value);
                }
                Ok(Value::from_object(namespace))
            }
            Function::Method(base, name) => {
                let base = self.value(base)?;
                for value in &places {
                    self.limits.look(value)?;
                }
                base.call_method(&mut self.state, name, &places).map_err(filters::reason)
            }
            Function::Loop => {
                let [items] = places.as_slice() else { return Err("`loop(…)` takes one list".to_owned()) };
                let each = *self.loops.last().ok_or("only a `recursive` loop can call itself")?;
                if self.loops.len() > MAX_RECURSION {
                    return Err(format!("a loop calls itself more than {MAX_RECURSION} times"));
                }
                let mut text = String::new();
                self.each(each, items, &mut text).map_err(|broken| broken.reason)?;
                Ok(Value::from(text))
            }
        }
    }

    fn range(&mut self, places: &[Value]) -> EvalResult {
        let number =
            |at: usize| places.get(at).map(|value| value.as_i64().ok_or("`range` takes whole numbers"));
        let (first, second, step) = (number(0).transpose()?, number(1).transpose()?, number(2).transpose()?);
        let (from, to) = match (first, second) {
            (Some(from), Some(to)) => (from, to),
            (Some(to), None) => (0, to),
            _ => return Err("`range` takes where to stop".to_owned()),
        };
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err("`range` cannot take steps of 0".to_owned());
        }
        let (mut at, mut found) = (from, Vec::new());
        while (step > 0 && at < to) || (step < 0 && at > to) {
            if found.len() as i64 >= MAX_RANGE {
                return Err(format!("`range` gives at most {MAX_RANGE} numbers"));
            }
            self.limits.make(ITEM)?;
            found.push(Value::from(at));
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
        Ok(Value::from(found))
    }

    /// The items of a value.
    pub(super) fn items(&self, value: &Value) -> Result<Vec<Value>, String> {
        let mut items = Vec::new();
        for item in value.try_iter().map_err(filters::reason)?.checked() {
            self.limits.make(ITEM / 4)?;
            items.push(item.map_err(filters::reason)?);
        }
        Ok(items)
    }
}

/// The name of an expression in an error.
fn named(expr: &Expr) -> String {
    match expr {
        Expr::Path(path) => format!("`{}`", path.source),
        Expr::Name(name, ..) => format!("`{name}`"),
        Expr::Attr(base, key, _) => match named(base).strip_suffix('`') {
            Some(base) => format!("{base}.{key}`"),
            None => "the value".to_owned(),
        },
        _ => "the value".to_owned(),
    }
}

/// The indices that a slice selects, as in Python.
fn places(
    length: usize,
    [start, stop, step]: [Option<i64>; 3],
) -> Result<impl Iterator<Item = usize>, String> {
    let step = i128::from(step.unwrap_or(1));
    if step == 0 {
        return Err("a slice cannot take steps of 0".to_owned());
    }
    let length = length as i128;
    // A negative step begins at the last item and ends before the first.
    let (first, last) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let end = |given: Option<i64>, otherwise: i128| match given.map(i128::from) {
        Some(at) if at < 0 => (at + length).max(first.min(last)),
        Some(at) => at.min(first.max(last)),
        None => otherwise,
    };
    let (start, stop) = (end(start, first), end(stop, last));
    let along = move |at: &i128| Some(at + step);
    let is_inside = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    Ok(std::iter::successors(Some(start), along)
        .take_while(is_inside)
        .filter_map(|at| usize::try_from(at).ok()))
}

fn lifted(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(held) => Value::from(*held),
        Json::Number(number) => Value::from(Serde(number)),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(lifted).collect::<Vec<_>>()),
        Json::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| (Value::from(key.as_str()), lifted(value)));
            Value::from_object(entries.collect::<BTreeMap<_, _>>())
        }
    }
}

pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn contains(container: &Value, value: &Value) -> Result<bool, String> {
    if let Some(text) = container.as_str() {
        return Ok(match value.as_str() {
            Some(part) => text.contains(part),
            None => text.contains(&value.to_string()),
        });
    }
    match container.kind() {
        ValueKind::Map => Ok(container.get_item(value).is_ok_and(|found| !found.is_undefined())),
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(container.try_iter().map_err(filters::reason)?.any(|item| item == *value))
        }
        kind => Err(format!("nothing can be looked for in a value of type {kind}")),
    }
}

fn pairs(value: &Value) -> Result<BTreeMap<Value, Value>, String> {
    if value.kind() != ValueKind::Map {
        return Err(format!("`dict` takes a mapping, and this is of type {}", value.kind()));
    }
    let keys = value.try_iter().map_err(filters::reason)?;
    keys.map(|key| Ok((key.clone(), value.get_item(&key).map_err(filters::reason)?))).collect()
}

/// Named arguments, as minijinja takes them.
pub(super) fn named_args(names: &[(String, Value)]) -> Option<Value> {
    let pairs = names.iter().map(|(name, value)| (name.as_str(), value.clone()));
    (!names.is_empty()).then(|| Value::from(pairs.collect::<Kwargs>()))
}
