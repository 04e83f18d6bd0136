//! How filters change the shape of their input.

use super::shape::{Kinds, Shape};
use crate::expr::{Args, Expr};

/// The attribute that a filter reads of each item.
pub(super) fn attribute<'a>(name: &str, args: &'a Args) -> Option<&'a str> {
    let named = || args.names.iter().find(|(key, _)| key == "attribute").map(|(_, value)| value);
    let expr = match name {
        "map" | "sum" | "sort" | "unique" | "min" | "max" | "join" => named(),
        "selectattr" | "rejectattr" => args.places.first(),
        "groupby" => args.places.first().or_else(named),
        _ => None,
    }?;
    match expr {
        Expr::Const(value) => value.as_str(),
        _ => None,
    }
}

/// Whether a filter goes through the items of its input, so that numbers and booleans fail.
pub(super) fn takes_items(name: &str) -> bool {
    matches!(
        name,
        "batch"
            | "count"
            | "first"
            | "groupby"
            | "join"
            | "last"
            | "length"
            | "list"
            | "map"
            | "max"
            | "min"
            | "reject"
            | "rejectattr"
            | "select"
            | "selectattr"
            | "slice"
            | "sort"
            | "sum"
            | "unique"
    )
}

/// The result of a filter that reads an attribute of each item.
pub(super) fn of_attribute(name: &str, input: &Shape, attribute: Shape, args: &Args) -> Shape {
    match name {
        "map" if args.names.iter().any(|(key, _)| key == "default") => Shape::of(Kinds::LIST),
        "map" => Shape::list(attribute),
        "groupby" => Shape::of(Kinds::LIST),
        // The items are chosen by what they have.
        "selectattr" | "rejectattr" if input.kinds == Kinds::LIST => {
            Shape::list(input.item().unwrap_or_else(Shape::any).where_not_failed())
        }
        name => result(name, input),
    }
}

/// The result of any other filter.
pub(super) fn result(name: &str, input: &Shape) -> Shape {
    match name {
        "length" | "count" | "int" => Shape::of(Kinds::INTEGER),
        "abs" | "float" | "round" | "sum" => Shape::of(Kinds::NUMBER),
        "bool" => Shape::of(Kinds::BOOL),
        "capitalize" | "e" | "escape" | "format" | "indent" | "join" | "lower" | "pprint" | "replace"
        | "safe" | "string" | "title" | "tojson" | "trim" | "upper" => Shape::of(Kinds::STRING),
        "lines" | "split" => Shape::list(Shape::of(Kinds::STRING)),
        "sort" | "unique" | "reject" | "select" | "list" if input.kinds == Kinds::LIST => {
            Shape { values: None, ..input.clone() }
        }
        "sort" | "unique" | "reject" | "rejectattr" | "select" | "selectattr" | "list" | "batch"
        | "slice" | "chain" | "dictsort" | "items" | "zip" | "map" => Shape::of(Kinds::LIST),
        "first" | "last" | "min" | "max" if input.kinds == Kinds::LIST => {
            input.item().unwrap_or_else(Shape::any)
        }
        _ => Shape::any(),
    }
}
