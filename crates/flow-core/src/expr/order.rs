//! Which of two values comes first. Values of different kinds have no order, as in Jinja, so that a text never decides
//! where a number is meant.

use std::cmp::Ordering;

use minijinja::{Value, value::ValueKind};

use super::eval::is_list;

/// Compares two numbers, two texts or two lists; true counts as 1.
pub(super) fn order(left: &Value, right: &Value) -> Result<Ordering, String> {
    use ValueKind::{Bool, Iterable, Number, Seq, String};
    match (left.kind(), right.kind()) {
        (Bool | Number, Bool | Number) => Ok(number(left).cmp(&number(right))),
        (String, String) => Ok(left.cmp(right)),
        (Seq | Iterable, Seq | Iterable) => {
            let items = |list: &Value| list.try_iter().map_err(|error| error.to_string());
            let (mut left, mut right) = (items(left)?, items(right)?);
            loop {
                let (a, b) = match (left.next(), right.next()) {
                    (Some(a), Some(b)) => (a, b),
                    (a, b) => return Ok(a.is_some().cmp(&b.is_some())),
                };
                // What has no order may still be the same on both sides, such as null.
                if is_list(&a) || a != b {
                    match order(&a, &b)? {
                        Ordering::Equal => {}
                        decided => return Ok(decided),
                    }
                }
            }
        }
        (a, b) => {
            let help = match (a, b) {
                (String, Number) | (Number, String) => ": `| float` makes a number of a text",
                _ => "",
            };
            Err(format!("{} and {} have no order{help}", words(left), words(right)))
        }
    }
}

/// What a test such as `lt` wants, if this is one that compares.
pub(super) fn wanted(test: &str) -> Option<fn(Ordering) -> bool> {
    match test {
        "lt" | "lessthan" | "<" => Some(Ordering::is_lt),
        "le" | "<=" => Some(Ordering::is_le),
        "gt" | "greaterthan" | ">" => Some(Ordering::is_gt),
        "ge" | ">=" => Some(Ordering::is_ge),
        _ => None,
    }
}

fn number(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(u8::from(value.is_true())),
        _ => value.clone(),
    }
}

fn words(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "what is undefined",
        ValueKind::None => "null",
        ValueKind::Bool => "true or false",
        ValueKind::Number => "a number",
        ValueKind::String => "a text",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        _ => "a mapping",
    }
}
