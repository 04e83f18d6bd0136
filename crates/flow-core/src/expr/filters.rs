//! Filters, tests and arithmetic of minijinja. The cost of each is counted before it runs. Filters that call others for
//! every item (`map`, `select`, …) are implemented here, so that each call is counted.

use std::{collections::BTreeMap, sync::LazyLock};

use minijinja::{
    Environment, Error, ErrorKind, Expression, State, UndefinedBehavior, Value, machinery::ast::BinOpKind,
    value::ValueKind,
};

use super::{
    eval::{EvalResult, Evaluator, OPERATION, is_list, named_args},
    limits::{ITEM, Size},
    order,
};

static LANGUAGE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // That of the crate panics if the divisor is zero.
    environment.add_test("divisibleby", |value: Value, divisor: Value| -> Result<bool, Error> {
        if value.is_number() && divisor.is_number() {
            Ok(binary(BinOpKind::Rem, value, divisor).map_err(invalid)? == Value::from(0))
        } else {
            Ok(false)
        }
    });
    environment
});

/// The operators that minijinja evaluates, by their source.
static OPERATORS: LazyLock<BTreeMap<&str, Expression<'static, 'static>>> = LazyLock::new(|| {
    let sources = ["a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a ** b", "-a"];
    sources
        .into_iter()
        .filter_map(|source| Some((source, LANGUAGE.compile_expression(source).ok()?)))
        .collect()
});

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// What filters and tests are called with.
pub(super) fn state() -> State<'static, 'static> {
    LANGUAGE.empty_state()
}

/// The error of minijinja, in words.
pub(super) fn reason(error: Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    }
}

pub(super) fn binary(op: BinOpKind, left: Value, right: Value) -> EvalResult {
    let source = match op {
        BinOpKind::Add => "a + b",
        BinOpKind::Sub => "a - b",
        BinOpKind::Mul => "a * b",
        BinOpKind::Div => "a / b",
        BinOpKind::FloorDiv => "a // b",
        BinOpKind::Rem => "a % b",
        BinOpKind::Pow => "a ** b",
        _ => return Err("this operator is not supported".to_owned()),
    };
    operate(source, [("a", left), ("b", right)])
}

pub(super) fn negative(value: Value) -> EvalResult {
    operate("-a", [("a", value)])
}

fn operate(source: &str, operands: impl IntoIterator<Item = (&'static str, Value)>) -> EvalResult {
    let operator = OPERATORS.get(source).ok_or("this operator is not supported")?;
    operator.eval(Value::from_pairs(operands)).map_err(reason)
}

/// Whether a test is true.
pub(super) fn test(evaluator: &mut Evaluator<'_, '_>, name: &str, values: &[Value]) -> Result<bool, String> {
    evaluator.limits.step(OPERATION)?;
    for value in values {
        evaluator.limits.look(value)?;
    }
    if let (Some(wanted), [left, right]) = (order::wanted(name), values) {
        return order::order(left, right).map(wanted);
    }
    evaluator.state.perform_test(name, values).map_err(reason)
}

/// Applies a filter.
pub(super) fn filter(
    evaluator: &mut Evaluator<'_, '_>,
    name: &str,
    input: Value,
    places: Vec<Value>,
    names: &[(String, Value)],
) -> EvalResult {
    evaluator.limits.step(OPERATION)?;
    match name {
        "map" => return map(evaluator, &input, places, names),
        "select" => return select(evaluator, input, ItemTest::Whole, true, places),
        "reject" => return select(evaluator, input, ItemTest::Whole, false, places),
        "selectattr" => return select(evaluator, input, ItemTest::Attribute, true, places),
        "rejectattr" => return select(evaluator, input, ItemTest::Attribute, false, places),
        // These read no items, so a long list costs nothing.
        "length" | "count" if input.as_str().is_none() => {}
        "first" | "attr" | "default" | "d" => {}
        _ => pay(evaluator, name, &input, &places, names)?,
    }
    if matches!(name, "sort" | "min" | "max" | "dictsort") {
        check_order(evaluator, name, &input, names)?;
    }
    // What a program prints ends with a newline.
    let input = match (name, input.as_str()) {
        ("int" | "float", Some(text)) => Value::from(text.trim()),
        _ => input,
    };
    let mut values = Vec::with_capacity(places.len() + 2);
    values.push(input);
    values.extend(places);
    values.extend(named_args(names));
    let found = evaluator.state.apply_filter(name, &values).map_err(reason)?;
    evaluator.settled(found)
}

/// Counts the cost of a filter before it runs.
fn pay(
    evaluator: &Evaluator<'_, '_>,
    name: &str,
    input: &Value,
    places: &[Value],
    names: &[(String, Value)],
) -> Result<(), String> {
    let limits = evaluator.limits;
    let size = limits.look(input)?;
    let mut given = 0_u64;
    for value in places.iter().chain(names.iter().map(|(_, value)| value)) {
        given = given.saturating_add(limits.look(value)?.bytes);
    }
    let text = input.as_str().unwrap_or_default();
    let letters = text.len() as u64;
    let items = input.len().unwrap_or_default() as u64;
    let arg = |at: usize, key: &str| {
        let named = names.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        places.get(at).or(named)
    };
    let number = |at, key, otherwise| arg(at, key).map_or(Some(otherwise), as_count).unwrap_or(u64::MAX);
    let word = |at, key| arg(at, key).and_then(Value::as_str).unwrap_or_default();
    // An attribute is looked up for every item.
    limits.read(items.saturating_mul(word(usize::MAX, "attribute").len() as u64))?;
    match name {
        "indent" => {
            let lines = count(text, "\n").saturating_add(1);
            limits.make(lines.saturating_mul(number(0, "width", 4)))
        }
        "replace" => {
            let (from, to) = (word(0, ""), word(1, ""));
            limits.make(count(text, from).saturating_mul(to.len() as u64))
        }
        "format" => limits.make(formatted(text, places, given)),
        "join" => limits.make(items.saturating_mul(ITEM + word(0, "d").len() as u64)),
        "slice" | "batch" => {
            let groups = number(0, "", 0);
            limits.make(groups.saturating_mul(ITEM).saturating_add(letters.saturating_mul(ITEM)))
        }
        "tojson" => limits.make(indented(size, number(0, "indent", 0).min(u64::from(u32::MAX)))),
        "pprint" => limits.make(indented(size, 4)),
        "split" => {
            let parts = match places.first().and_then(Value::as_str) {
                Some(by) => count(text, by),
                None => letters,
            };
            limits.make(parts.saturating_add(1).saturating_mul(ITEM))
        }
        "lines" => limits.make(count(text, "\n").saturating_add(1).saturating_mul(ITEM)),
        "trim" => limits.read(letters.saturating_mul(given)),
        "sum" if arg(1, "start").is_some_and(|start| !start.is_number()) => {
            Err("`sum` adds numbers; texts are put together by `join`, lists by `+`".to_owned())
        }
        "list" | "sort" | "unique" | "min" | "max" | "zip" | "chain" | "groupby" | "reverse" => {
            limits.make(letters.saturating_mul(ITEM))
        }
        _ => Ok(()),
    }
}

/// Refuses to put values in an order that have none; those that are undefined or null come first.
fn check_order(
    evaluator: &Evaluator<'_, '_>,
    name: &str,
    input: &Value,
    names: &[(String, Value)],
) -> Result<(), String> {
    let word = |key: &str| names.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.as_str());
    let items = evaluator.items(input)?;
    let attributes: Vec<Option<Value>> = match word("attribute") {
        Some(all) if name == "sort" => all.split(',').map(|one| Some(Value::from(one.trim()))).collect(),
        one => vec![one.map(Value::from)],
    };
    for attribute in attributes {
        let mut first: Option<Value> = None;
        for item in &items {
            evaluator.limits.step(1)?;
            let key = match &attribute {
                Some(attribute) => part(evaluator, item, attribute)?,
                None if word("by") == Some("value") => input.get_item(item).unwrap_or_default(),
                None => item.clone(),
            };
            match &first {
                _ if key.is_undefined() || key.is_none() => {}
                None => first = Some(key),
                Some(first) => {
                    order::order(first, &key)?;
                    // minijinja puts true and false before all numbers.
                    if first.kind() != key.kind() && !is_list(&key) {
                        return Err(format!("`{name}` has no order for true or false among numbers"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A count; true and false are not counts.
fn as_count(value: &Value) -> Option<u64> {
    match value.kind() {
        ValueKind::Bool => Some(2),
        _ => value.as_usize().map(|count| count as u64),
    }
}

fn count(text: &str, part: &str) -> u64 {
    text.matches(part).count() as u64
}

/// How many spaces an indented value has.
fn indented(size: Size, width: u64) -> u64 {
    (size.bytes / ITEM + 1).saturating_mul(size.depth as u64 + 1).saturating_mul(width)
}

/// The longest result of a format: every number in it may be a width, and a name may repeat its argument.
fn formatted(format: &str, args: &[Value], given: u64) -> u64 {
    let widths = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let mut total = widths.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    if format.contains('*') {
        let stars = args.iter().filter_map(Value::as_i64).map(i64::unsigned_abs);
        total = stars.fold(total, u64::saturating_add);
    }
    let times = if format.contains("%(") { count(format, "%") } else { 1 };
    total.saturating_add(given.saturating_mul(times))
}

fn map(
    evaluator: &mut Evaluator<'_, '_>,
    input: &Value,
    mut places: Vec<Value>,
    names: &[(String, Value)],
) -> EvalResult {
    let items = evaluator.items(input)?;
    let named = |key: &str| names.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    if let Some(attribute) = named("attribute") {
        let default = named("default");
        let mut found = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            evaluator.limits.step(1)?;
            let value = part(evaluator, item, attribute)?;
            found.push(match (value.is_undefined(), default) {
                (false, _) => value,
                (true, Some(default)) => default.clone(),
                (true, None) => {
                    return Err(format!(
                        "item {at} has no `{attribute}`; say `default=…` where it may be missing"
                    ));
                }
            });
        }
        return evaluator.settled(Value::from(found));
    }
    if places.is_empty() {
        return Err("`map` takes the name of a filter, or `attribute='…'`".to_owned());
    }
    let name = places.remove(0);
    let name = name.as_str().ok_or("`map` takes the name of a filter")?;
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        found.push(filter(evaluator, name, item, places.clone(), names)?);
    }
    evaluator.settled(Value::from(found))
}

/// What `select`, `reject` and their variants test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemTest {
    Whole,
    Attribute,
}

fn select(
    evaluator: &mut Evaluator<'_, '_>,
    input: Value,
    what: ItemTest,
    wanted: bool,
    mut places: Vec<Value>,
) -> EvalResult {
    let attribute = match what {
        ItemTest::Attribute if places.is_empty() => {
            return Err("the name of an attribute is missing".to_owned());
        }
        ItemTest::Attribute => Some(places.remove(0)),
        ItemTest::Whole => None,
    };
    let name = if places.is_empty() { None } else { Some(places.remove(0)) };
    let name = name.as_ref().map(|name| name.as_str().ok_or("a test is named by a text")).transpose()?;
    let mut found = Vec::new();
    for item in evaluator.items(&input)? {
        evaluator.limits.step(1)?;
        let subject = match &attribute {
            Some(attribute) => part(evaluator, &item, attribute)?,
            None => item.clone(),
        };
        let holds = match name {
            Some(name) => {
                let values: Vec<_> = std::iter::once(subject).chain(places.iter().cloned()).collect();
                test(evaluator, name, &values)?
            }
            None => subject.is_true(),
        };
        if holds == wanted {
            found.push(item);
        }
    }
    evaluator.settled(Value::from(found))
}

/// An attribute, or the value under a dotted path; undefined if there is none.
fn part(evaluator: &Evaluator<'_, '_>, item: &Value, attribute: &Value) -> EvalResult {
    let Some(path) = attribute.as_str() else {
        return Ok(item.get_item(attribute).unwrap_or_default());
    };
    evaluator.limits.read(path.len() as u64)?;
    let mut value = item.clone();
    for key in path.split('.') {
        let found = match key.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index)),
            Err(_) => value.get_attr(key),
        };
        value = found.unwrap_or_default();
    }
    Ok(value)
}
