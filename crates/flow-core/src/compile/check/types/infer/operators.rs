//! Operators and filters: comparisons whose result is known before anything runs, sums that always fail, and what a
//! filter takes and gives.

use minijinja::machinery::ast::{BinOpKind, CompareOpKind};
use serde_json::Value;

use super::{
    super::{
        facts::canonical,
        filters,
        shape::{Kinds, Rest, Shape, spell},
    },
    Inference, Need, boolean, named, single,
};
use crate::{
    diagnostic::{Code, Severity, did_you_mean},
    expr::{Args, Expr},
};

const TO_NUMBER: &str = "`| int` or `| float` makes a number of a text";
/// True counts as 1.
const COUNTS: Kinds = Kinds::NUMBER.or(Kinds::BOOL);

/// Whether a comparison asks for what is the same, or for what is not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Same {
    /// `==` and `in`.
    Equal,
    /// `!=` and `not in`.
    Different,
}

impl Same {
    fn of(op: CompareOpKind) -> Self {
        match op {
            CompareOpKind::Ne | CompareOpKind::NotIn => Self::Different,
            _ => Self::Equal,
        }
    }
}

impl Inference<'_> {
    /// Refuses `-` before what is not a number.
    pub(super) fn negative(&mut self, inner: &Expr, shape: &Shape) {
        if !shape.kinds.meets(Kinds::NUMBER) {
            let range = inner.range().unwrap_or((0, 0));
            let message = format!("{} has no negative: {}", named(inner), shape.kinds.words());
            self.report(Code::WrongType, Severity::Error, range, message, Some(TO_NUMBER.to_owned()));
        }
    }

    pub(super) fn binary(&mut self, op: BinOpKind, both: &(Expr, Expr)) -> Shape {
        let (left, right) = (self.expr(&both.0, Need::Value), self.expr(&both.1, Need::Value));
        if matches!(op, BinOpKind::Concat) {
            return Shape::of(Kinds::STRING);
        }
        let only = |kinds: Kinds| left.kinds.within(kinds) && right.kinds.within(kinds);
        match op {
            BinOpKind::Add if only(Kinds::STRING) => return Shape::of(Kinds::STRING),
            BinOpKind::Add if only(Kinds::LIST) => {
                return Shape { values: None, ..left.union(&right) };
            }
            _ if only(COUNTS) => return Shape::of(Kinds::NUMBER),
            _ => {}
        }
        let both_meet = |kinds: Kinds| left.kinds.meets(kinds) && right.kinds.meets(kinds);
        let fails = match op {
            BinOpKind::Add => ![COUNTS, Kinds::STRING, Kinds::LIST].into_iter().any(both_meet),
            BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem | BinOpKind::Pow => {
                !both_meet(COUNTS)
            }
            _ => false,
        };
        if fails {
            let range = both.0.range().or_else(|| both.1.range()).unwrap_or((0, 0));
            let message = format!(
                "{} and {} cannot be combined by `{}`: {} and {}",
                named(&both.0),
                named(&both.1),
                sign(op),
                left.kinds.words(),
                right.kinds.words()
            );
            let texts = matches!(op, BinOpKind::Add) && left.kinds.or(right.kinds).meets(Kinds::STRING);
            let help = match texts {
                true => Some("`~` joins texts: `a ~ b`; `| int` makes a number of a text".to_owned()),
                false => Some(TO_NUMBER.to_owned()),
            };
            self.report(Code::WrongType, Severity::Error, range, message, help);
        }
        Shape::any()
    }

    pub(super) fn comparison(&mut self, first: &Expr, rest: &[(CompareOpKind, Expr)]) -> Shape {
        let mut left = (first, self.expr(first, Need::Value));
        let mut decided = None;
        for (op, side) in rest {
            let right = (side, self.expr(side, Need::Value));
            decided = self.compare(*op, &left, &right);
            left = right;
        }
        boolean(decided.filter(|_| rest.len() == 1))
    }

    /// Whether a comparison holds, if that is known; and then it is reported.
    fn compare(&mut self, op: CompareOpKind, left: &(&Expr, Shape), right: &(&Expr, Shape)) -> Option<bool> {
        let (a, b) = (&left.1, &right.1);
        let are_constants = matches!((left.0, right.0), (Expr::Const(_), Expr::Const(_)));
        let is_search = matches!(op, CompareOpKind::In | CompareOpKind::NotIn) && !are_constants;
        if !is_search && self.stays_text(left.0, right.0) || self.stays_text(right.0, left.0) {
            return None;
        }
        // What the author wrote as constants on both sides is meant.
        if are_constants {
            return None;
        }
        let (message, help) = match op {
            CompareOpKind::In | CompareOpKind::NotIn => never_in(left, right, Same::of(op))?,
            CompareOpKind::Eq | CompareOpKind::Ne => match (single(a), single(b)) {
                _ if meet(a, b) => return None,
                (_, Some(value)) => never_equal(&named(left.0), a, value, Same::of(op)),
                (Some(value), None) => never_equal(&named(right.0), b, value, Same::of(op)),
                (None, None) => {
                    let verb = if Same::of(op) == Same::Equal { "are never equal" } else { "always differ" };
                    let sides = format!("{} and {}", named(left.0), named(right.0));
                    let kinds = format!("{} and {}", a.kinds.words(), b.kinds.words());
                    (format!("{sides} {verb}: {kinds}"), None)
                }
            },
            _ => {
                self.order(left, right);
                return None;
            }
        };
        let range = left.0.range().or_else(|| right.0.range()).unwrap_or((0, 0));
        self.report(Code::ConstantCondition, Severity::Warning, range, message, help);
        Some(matches!(op, CompareOpKind::Ne | CompareOpKind::NotIn))
    }

    /// Warns of `<`, `<=`, `>` and `>=` between kinds that have no order: they fail when they are evaluated. Stored sessions of
    /// flows with one stay readable.
    fn order(&mut self, left: &(&Expr, Shape), right: &(&Expr, Shape)) {
        let (a, b) = (left.1.kinds, right.1.kinds);
        let both_meet = |kinds: Kinds| a.meets(kinds) && b.meets(kinds);
        let is_unknown = a == Kinds::NONE || b == Kinds::NONE;
        if is_unknown || [COUNTS, Kinds::STRING, Kinds::LIST].into_iter().any(both_meet) {
            return;
        }
        let range = left.0.range().or_else(|| right.0.range()).unwrap_or((0, 0));
        let (left, right) = (named(left.0), named(right.0));
        let message = format!("{left} and {right} have no order: {} and {}", a.words(), b.words());
        let help = (a == Kinds::STRING || b == Kinds::STRING).then(|| TO_NUMBER.to_owned());
        self.report(Code::WrongType, Severity::Warning, range, message, help);
    }
}

/// Whether both can be the same value. In an expression true is 1, and false is 0.
fn meet(a: &Shape, b: &Shape) -> bool {
    let both_count = a.kinds.meets(COUNTS) && b.kinds.meets(COUNTS);
    if !(a.kinds.meets(b.kinds) || both_count) {
        return false;
    }
    let admits = |shape: &Shape, value: &Value| {
        shape.admits(value) || counterpart(value).is_some_and(|value| shape.admits(&value))
    };
    match (&a.values, &b.values) {
        (Some(values), _) => values.iter().any(|value| admits(b, value)),
        (None, Some(values)) => values.iter().any(|value| admits(a, value)),
        (None, None) => true,
    }
}

/// The number that true or false counts as, and the other way round.
fn counterpart(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(held) => Some(u8::from(*held).into()),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => Some(false.into()),
            Some(1.0) => Some(true.into()),
            _ => None,
        },
        _ => None,
    }
}

/// Why a value of a shape never equals this one, and what to do.
pub(super) fn never_equal(name: &str, shape: &Shape, value: &Value, same: Same) -> (String, Option<String>) {
    let verb = if same == Same::Equal { "never equals" } else { "always differs from" };
    if let Some(values) = shape.values.as_deref() {
        let message = format!("{name} {verb} `{value}`: it is {}", spell(values));
        let words = values.iter().filter_map(Value::as_str);
        return (message, value.as_str().and_then(|text| did_you_mean(text, words)));
    }
    let message = format!("{name} {verb} `{value}`: it is {}", shape.kinds.words());
    let help = match value {
        Value::String(text) if shape.kinds.meets(Kinds::NUMBER) && text.parse::<f64>().is_ok() => {
            Some(format!("remove the quotes: `{text}`"))
        }
        Value::String(text) if shape.kinds == Kinds::BOOL => match text.to_lowercase().as_str() {
            "true" | "yes" => Some(format!("test {name} itself")),
            "false" | "no" => Some(format!("test {name} itself, with `not`")),
            _ => None,
        },
        Value::Number(_) if shape.kinds == Kinds::STRING => {
            Some(format!("quote the number: `'{value}'`; or convert the text by `| int`"))
        }
        Value::String(_) if shape.kinds == Kinds::LIST => Some(format!("test for an item: `{value} in …`")),
        Value::String(_) if shape.kinds == Kinds::MAPPING => {
            let fields = shape.fields.iter().flat_map(|fields| &fields.known);
            let mut texts = fields.filter(|(_, field)| field.shape.kinds == Kinds::STRING);
            texts.next().map(|(key, _)| format!("compare one of its fields, such as `{key}`"))
        }
        _ => None,
    };
    (message, help)
}

/// Why something is never in something else.
fn never_in(left: &(&Expr, Shape), right: &(&Expr, Shape), same: Same) -> Option<(String, Option<String>)> {
    let (a, b) = (&left.1, &right.1);
    let verb = if same == Same::Equal { "is never in" } else { "is always not in" };
    let message = |why: String| format!("{} {verb} {}: {why}", named(left.0), named(right.0));
    if b.kinds == Kinds::LIST {
        let items = b.items.as_deref()?;
        return match meet(a, items) {
            true => None,
            false => Some((
                message(match &items.values {
                    Some(values) => format!("its items are {}", spell(values)),
                    None => format!("its items are {}, not {}", items.kinds.words(), a.kinds.words()),
                }),
                match (single(a).and_then(Value::as_str), &items.values) {
                    (Some(text), Some(values)) => did_you_mean(text, values.iter().filter_map(Value::as_str)),
                    _ => None,
                },
            )),
        };
    }
    if b.kinds == Kinds::MAPPING
        && let Some(fields) = b.fields.as_deref()
        && !matches!(fields.rest, Rest::Open | Rest::Default)
        && let Some(key) = single(a).and_then(Value::as_str)
        && !fields.known.contains_key(key)
    {
        let text = ["text", "stdout", "content"].into_iter().find(|key| fields.known.contains_key(*key));
        let help =
            text.map(|text| format!("look in its text: `{}.{text}`", named(right.0).trim_matches('`')));
        return Some((message("it is a mapping without this key".to_owned()), help));
    }
    None
}

fn sign(op: BinOpKind) -> &'static str {
    match op {
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        _ => "*",
    }
}

impl Inference<'_> {
    pub(super) fn filter(&mut self, name: &str, input: Option<&Expr>, shape: &Shape, args: &Args) -> Shape {
        let scalar = shape.kinds != Kinds::NONE && shape.kinds.within(Kinds::NUMBER.or(Kinds::BOOL));
        if scalar && filters::takes_items(name) {
            let (what, range) =
                (input.map_or_else(|| "its input".to_owned(), named), input.and_then(Expr::range));
            let message =
                format!("`{name}` takes a text, a list or a mapping, and {what} is {}", shape.kinds.words());
            self.report(Code::WrongType, Severity::Error, range.unwrap_or((0, 0)), message, None);
            return Shape::any();
        }
        if let Some(attribute) = filters::attribute(name, args) {
            let base = input.and_then(canonical).unwrap_or_else(|| "the list".to_owned());
            let range = input.and_then(Expr::range).unwrap_or((0, 0));
            let item = shape.item().unwrap_or_else(Shape::any);
            // Only `map` fails where an item has no such attribute.
            let fails = name == "map" && args.names.iter().all(|(name, _)| name != "default");
            let need = if fails { Need::Value } else { Need::Nothing };
            let found = self.attribute(&item, attribute, &format!("{base}[…]"), need, range);
            return filters::of_attribute(name, shape, found, args);
        }
        filters::result(name, shape)
    }

    /// The value under a dotted path of an item.
    fn attribute(
        &mut self,
        item: &Shape,
        path: &str,
        base: &str,
        need: Need,
        range: (usize, usize),
    ) -> Shape {
        let (mut shape, mut base) = (item.clone(), base.to_owned());
        for key in path.split('.') {
            if key.bytes().all(|b| b.is_ascii_digit()) {
                return Shape::any();
            }
            shape = self.field(&shape, key, &|| base.clone(), need, || range, false);
            base = format!("{base}.{key}");
        }
        shape
    }
}
