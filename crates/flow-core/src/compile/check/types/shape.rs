//! What is known of a value before anything runs: its kinds, its fields, its items, and which values it can have. Where
//! a JSON Schema leaves something open, so does the shape, and nothing is reported.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{catalog::NEEDS, expr::is_equal, spec::either};

/// How deep a schema or a value is read; what is below may be anything.
const DEPTH: usize = 12;
/// The most values that are stored; of more, only the kinds are.
const MAX_VALUES: usize = 64;
/// The most parts that a shape made of others keeps. They may share parts, each of which counts again.
const MAX_PARTS: usize = 2_000;
/// The most items of a literal list that are read.
const MAX_ITEMS: usize = 64;
/// Words of JSON Schema that restrict a value in ways that are not followed.
const OPEN: [&str; 7] =
    ["$ref", "allOf", "if", "not", "dependentSchemas", "$dynamicRef", "unevaluatedProperties"];

/// A set of the kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const NONE: Self = Self(0);
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOL: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const NUMBER: Self = Self(4 | 8);
    pub(super) const STRING: Self = Self(16);
    pub(super) const LIST: Self = Self(32);
    pub(super) const MAPPING: Self = Self(64);
    pub(super) const ANY: Self = Self(127);

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every kind of this set is in the other.
    pub(super) const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOL,
            // 2.0 is an integer in JSON Schema.
            Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
                Self::INTEGER
            }
            Value::Number(_) => Self(8),
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::LIST,
            Value::Object(_) => Self::MAPPING,
        }
    }

    fn named(word: &str) -> Self {
        match word {
            "null" => Self::NULL,
            "boolean" => Self::BOOL,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::LIST,
            "object" => Self::MAPPING,
            _ => Self::ANY,
        }
    }

    /// As "a string or a list".
    pub(super) fn words(self) -> String {
        let number = if self.within(Self(!8)) { "an integer" } else { "a number" };
        let words = [
            (Self::STRING, "a string"),
            (Self::NUMBER, number),
            (Self::BOOL, "true or false"),
            (Self::LIST, "a list"),
            (Self::MAPPING, "a mapping"),
            (Self::NULL, "null"),
        ];
        let words = words.iter().filter(|(kind, _)| self.meets(*kind)).map(|(_, word)| (*word).to_owned());
        either(&words.collect::<Vec<_>>())
    }
}

/// What is known of a value.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::compile) struct Shape {
    pub(super) kinds: Kinds,
    /// The only values that it can have.
    pub(super) values: Option<Arc<[Value]>>,
    /// Its fields where it is a mapping.
    pub(super) fields: Option<Arc<Fields>>,
    /// Its items where it is a list.
    pub(super) items: Option<Arc<Shape>>,
}

/// The fields of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fields {
    pub(super) known: BTreeMap<String, Field>,
    pub(super) rest: Rest,
}

/// One field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    pub(super) shape: Shape,
    pub(super) presence: Presence,
}

/// Whether a field is always there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    /// The schema does not require it.
    Optional,
    /// It is there only if the node, or the item, did not fail: then it has not this field, or it is false.
    UnlessFailed(&'static str),
    /// It is there only where something is set, in words.
    Needs(Arc<str>),
}

/// What a name that is not among the known fields means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// There is no other field.
    Closed,
    /// The author's schema declares no other.
    Undeclared,
    /// The schema of the node type declares no other.
    Untypical,
    /// The fields are those of a default: others are suspicious only if they are similar.
    Default,
    /// There may be others.
    Open,
}

/// What is known of a part of a value.
pub(super) enum PartShape<'s> {
    Known(&'s Field),
    /// It may be anything.
    Unknown,
    /// There is no such field.
    Absent(&'s Fields),
    /// The value is no mapping, or no list.
    WrongKind,
}

impl Shape {
    /// A value of which nothing is known.
    pub(in crate::compile) fn any() -> Self {
        Self::of(Kinds::ANY)
    }

    pub(super) fn of(kinds: Kinds) -> Self {
        Self { kinds, values: None, fields: None, items: None }
    }

    pub(super) fn list(items: Shape) -> Self {
        Self { items: Some(Arc::new(items)), ..Self::of(Kinds::LIST) }
    }

    /// A list of these items.
    pub(super) fn list_of(items: impl Iterator<Item = Self>) -> Self {
        items.reduce(|a, b| a.union(&b)).map_or_else(|| Self::of(Kinds::LIST), Self::list)
    }

    pub(super) fn mapping(known: BTreeMap<String, Field>, rest: Rest) -> Self {
        Self { fields: Some(Arc::new(Fields { known, rest })), ..Self::of(Kinds::MAPPING) }
    }

    /// The shape of the values that match a schema. `rest` is what undeclared fields mean.
    pub(super) fn of_schema(schema: &Value, rest: Rest) -> Self {
        Self::read(schema, rest, DEPTH)
    }

    fn read(schema: &Value, rest: Rest, depth: usize) -> Self {
        let Some(map) = schema.as_object().filter(|_| depth > 0) else { return Self::any() };
        if OPEN.iter().any(|word| map.contains_key(*word)) {
            return Self::any();
        }
        if let Some(branches) = map.get("anyOf").or_else(|| map.get("oneOf")).and_then(Value::as_array) {
            if map.contains_key("properties") || map.contains_key("items") {
                return Self::any();
            }
            let shapes = branches.iter().map(|branch| Self::read(branch, rest, depth - 1));
            return shapes.reduce(|a, b| a.union(&b)).unwrap_or_else(Self::any);
        }
        let values: Option<&[Value]> = match (map.get("const"), map.get("enum")) {
            (Some(value), _) => Some(std::slice::from_ref(value)),
            (None, Some(values)) => values.as_array().map(Vec::as_slice),
            (None, None) => None,
        };
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            let shapes = values.iter().map(|value| Self::literal(value, depth - 1));
            return shapes.reduce(|a, b| a.union(&b)).unwrap_or_else(Self::any);
        }
        let kinds = match map.get("type") {
            Some(Value::String(word)) => Kinds::named(word),
            Some(Value::Array(words)) => {
                let words = words.iter().filter_map(Value::as_str);
                words.fold(Kinds::NONE, |kinds, word| kinds.or(Kinds::named(word)))
            }
            _ => Kinds::ANY,
        };
        let fields = if kinds.meets(Kinds::MAPPING) { Self::properties(map, rest, depth) } else { None };
        // Behind `prefixItems`, `items` are only those that follow.
        let alike = kinds.meets(Kinds::LIST) && !map.contains_key("prefixItems");
        let items = map.get("items").filter(|items| items.is_object() && alike);
        let items = items.map(|items| Arc::new(Self::read(items, rest, depth - 1)));
        Self { kinds, values: None, fields, items }
    }

    fn properties(map: &serde_json::Map<String, Value>, rest: Rest, depth: usize) -> Option<Arc<Fields>> {
        let properties = map.get("properties")?.as_object()?;
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Value::as_str).collect();
        let declared = properties.iter().map(|(key, schema)| {
            let needs = schema.get(NEEDS).and_then(Value::as_str);
            let presence = match needs {
                Some(needs) => Presence::Needs(needs.into()),
                None if required.contains(&key.as_str()) => Presence::Always,
                None => Presence::Optional,
            };
            (key.clone(), Field { shape: Self::read(schema, rest, depth - 1), presence })
        });
        let rest = match map.get("additionalProperties") {
            _ if map.contains_key("patternProperties") || properties.is_empty() => Rest::Open,
            None => rest,
            Some(Value::Bool(false)) => Rest::Closed,
            Some(_) => Rest::Open,
        };
        // What is required is there, also if nothing says what it is.
        let mut known: BTreeMap<String, Field> = required
            .iter()
            .map(|key| ((*key).to_owned(), Field { shape: Self::any(), presence: Presence::Always }))
            .collect();
        known.extend(declared);
        Some(Arc::new(Fields { known, rest }))
    }

    /// The shape of a value that is known.
    pub(super) fn of_value(value: &Value) -> Self {
        Self::literal(value, DEPTH)
    }

    fn literal(value: &Value, depth: usize) -> Self {
        let shape = Self::of(Kinds::of(value));
        match value {
            _ if depth == 0 => shape,
            Value::Object(map) => {
                let known = map.iter().map(|(key, value)| {
                    let presence = Presence::Always;
                    (key.clone(), Field { shape: Self::literal(value, depth - 1), presence })
                });
                Self::mapping(known.collect(), Rest::Closed)
            }
            Value::Array(items) if items.len() <= MAX_ITEMS => {
                let shapes = items.iter().map(|item| Self::literal(item, depth - 1));
                let items = shapes.reduce(|a, b| a.union(&b)).map(Arc::new);
                Self { items, ..shape }
            }
            Value::Array(_) => shape,
            scalar => Self { values: Some(Arc::from([scalar.clone()])), ..shape },
        }
    }

    /// The shape of a default, which a run may replace by something else.
    pub(super) fn of_default(value: &Value) -> Self {
        fn fields(shape: &Shape) -> Shape {
            let known = shape.fields.iter().flat_map(|fields| &fields.known).map(|(key, field)| {
                (key.clone(), Field { shape: fields(&field.shape), presence: Presence::Always })
            });
            let fields = Fields { known: known.collect(), rest: Rest::Default };
            Shape { fields: shape.fields.is_some().then(|| Arc::new(fields)), ..Shape::any() }
        }
        fields(&Self::of_value(value))
    }

    /// The same where the presence of each field is another one.
    fn with_presence(self, of: impl Fn(&Presence) -> Presence) -> Self {
        let fields = self.fields.map(|fields| {
            let known = fields
                .known
                .iter()
                .map(|(key, field)| (key.clone(), Field { presence: of(&field.presence), ..field.clone() }));
            Arc::new(Fields { known: known.collect(), rest: fields.rest })
        });
        Self { fields, ..self }
    }

    /// The same of what did not fail.
    pub(super) fn where_not_failed(self) -> Self {
        self.with_presence(|presence| match presence {
            Presence::UnlessFailed(_) => Presence::Always,
            other => other.clone(),
        })
    }

    /// The same of a loop that may end before its first pass.
    pub(in crate::compile) fn of_pass_if_any(self) -> Self {
        let needs = Presence::Needs("a pass, and `while` may not hold before the first".into());
        self.with_presence(|_| needs.clone())
    }

    /// The same without the values of scalars.
    pub(super) fn without_values(self) -> Self {
        let fields = self.fields.map(|fields| {
            let known = fields.known.iter().map(|(key, field)| {
                (key.clone(), Field { shape: field.shape.clone().without_values(), ..field.clone() })
            });
            Arc::new(Fields { known: known.collect(), rest: fields.rest })
        });
        let items = self.items.map(|items| Arc::new(items.as_ref().clone().without_values()));
        Self { kinds: self.kinds, values: None, fields, items }
    }

    /// The same, or its beginning if it has very many parts: a value that holds another one twice, which holds a third
    /// one twice, would take time without end.
    pub(super) fn bounded(self) -> Self {
        let mut left = MAX_PARTS;
        if self.fits(&mut left) {
            return self;
        }
        let fields = self.fields.as_ref().filter(|fields| fields.known.len() <= MAX_PARTS).map(|fields| {
            let known = fields.known.iter().map(|(key, field)| {
                (key.clone(), Field { shape: Self::of(field.shape.kinds), ..field.clone() })
            });
            Arc::new(Fields { known: known.collect(), rest: fields.rest })
        });
        let items = self.items.as_ref().map(|items| Arc::new(Self::of(items.kinds)));
        Self { kinds: self.kinds, values: None, fields, items }
    }

    /// Whether it has at most so many parts; what is left of them.
    fn fits(&self, left: &mut usize) -> bool {
        let Some(rest) = left.checked_sub(1) else { return false };
        *left = rest;
        self.items.iter().all(|items| items.fits(left))
            && self.fields.iter().flat_map(|fields| fields.known.values()).all(|field| field.shape.fits(left))
    }

    /// What a value may be that has either shape.
    pub(super) fn union(&self, other: &Self) -> Self {
        let values = match (&self.values, &other.values) {
            (Some(a), Some(b)) if a.len() + b.len() <= MAX_VALUES => {
                let new = b.iter().filter(|value| !a.iter().any(|known| is_equal(known, value)));
                Some(a.iter().chain(new).cloned().collect())
            }
            _ => None,
        };
        let maps = |shape: &Self| shape.kinds.meets(Kinds::MAPPING);
        let lists = |shape: &Self| shape.kinds.meets(Kinds::LIST);
        let fields = match (maps(self), maps(other)) {
            (true, false) => self.fields.clone(),
            (false, true) => other.fields.clone(),
            _ => match (&self.fields, &other.fields) {
                (Some(a), Some(b)) => Some(Arc::new(a.union(b))),
                _ => None,
            },
        };
        let items = match (lists(self), lists(other)) {
            (true, false) => self.items.clone(),
            (false, true) => other.items.clone(),
            _ => match (&self.items, &other.items) {
                (Some(a), Some(b)) => Some(Arc::new(a.union(b))),
                _ => None,
            },
        };
        Self { kinds: self.kinds.or(other.kinds), values, fields, items }
    }

    /// What is known of a field.
    pub(super) fn field(&self, key: &str) -> PartShape<'_> {
        if !self.kinds.meets(Kinds::MAPPING) {
            return PartShape::WrongKind;
        }
        let Some(fields) = &self.fields else { return PartShape::Unknown };
        match (fields.known.get(key), fields.rest) {
            (Some(field), _) => PartShape::Known(field),
            (None, Rest::Open) => PartShape::Unknown,
            (None, _) => PartShape::Absent(fields),
        }
    }

    /// What an item is; none if the value is not a list.
    pub(super) fn item(&self) -> Option<Self> {
        self.kinds.meets(Kinds::LIST).then(|| self.items.as_deref().cloned().unwrap_or_else(Self::any))
    }

    /// Whether the value can equal this one. None of a schema's own restrictions but kinds and values are followed.
    pub(super) fn admits(&self, value: &Value) -> bool {
        Kinds::of(value).meets(self.kinds)
            && self.values.as_ref().is_none_or(|values| values.iter().any(|known| is_equal(known, value)))
    }

    /// Why no value of this shape is valid where the other is expected.
    pub(super) fn conflict(&self, expected: &Self) -> Option<Conflict> {
        let conflict = |takes: String, gives: String| Some(Conflict { path: String::new(), takes, gives });
        if !self.kinds.meets(expected.kinds) {
            // `null` is not a useful suggestion.
            let takes = Kinds(expected.kinds.0 & !Kinds::NULL.0);
            let takes = if takes == Kinds::NONE { Kinds::NULL } else { takes };
            return conflict(takes.words(), self.kinds.words());
        }
        if let (Some(values), Some(given)) = (&expected.values, &self.values)
            && !given.iter().any(|value| expected.admits(value))
        {
            return conflict(spell(values), spell(given));
        }
        // A part decides only where the kind of the whole is certain.
        if self.kinds == Kinds::LIST
            && let (Some(given), Some(taken)) = (&self.items, &expected.items)
            && let Some(conflict) = given.conflict(taken)
        {
            return Some(conflict.within("[…]"));
        }
        let (Some(given), Some(taken)) = (&self.fields, &expected.fields) else { return None };
        if self.kinds != Kinds::MAPPING {
            return None;
        }
        for (key, field) in &taken.known {
            match given.known.get(key) {
                Some(found) if found.presence == Presence::Always => {
                    if let Some(conflict) = found.shape.conflict(&field.shape) {
                        return Some(conflict.within(&format!(".{key}")));
                    }
                }
                None if given.rest == Rest::Closed && field.presence == Presence::Always => {
                    return conflict(format!("a mapping with `{key}`"), "one without it".to_owned());
                }
                _ => {}
            }
        }
        let extra = given.known.iter().find(|(key, field)| {
            taken.rest == Rest::Closed
                && field.presence == Presence::Always
                && !taken.known.contains_key(*key)
        });
        let (key, _) = extra?;
        conflict(format!("a mapping without `{key}`"), "one that has it".to_owned())
    }
}

impl Fields {
    fn union(&self, other: &Self) -> Self {
        let mut known = BTreeMap::new();
        for (key, field) in self.known.iter().chain(&other.known) {
            if known.contains_key(key) {
                continue;
            }
            let field = match (self.known.get(key), other.known.get(key)) {
                (Some(a), Some(b)) => {
                    let presence =
                        if a.presence == b.presence { a.presence.clone() } else { Presence::Optional };
                    Field { shape: a.shape.union(&b.shape), presence }
                }
                _ => Field { presence: Presence::Optional, ..field.clone() },
            };
            known.insert(key.clone(), field);
        }
        let alike = self.rest == other.rest && self.known.keys().eq(other.known.keys());
        let rest = if alike { self.rest } else { Rest::Open };
        Self { known, rest }
    }

    /// The fields of a value that is no error marker.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        // Only a node whose failure is handled says for certain whether it failed.
        let marker = self.known.get("failed").is_some_and(|failed| failed.shape.kinds != Kinds::BOOL);
        let names = self.known.keys().map(String::as_str);
        names.filter(move |name| !(marker && matches!(*name, "failed" | "error")))
    }
}

/// Why a value does not fit.
#[derive(Debug, PartialEq)]
pub(super) struct Conflict {
    /// Below the value: `.items[…]`.
    pub(super) path: String,
    /// What is expected there.
    pub(super) takes: String,
    /// What is given.
    pub(super) gives: String,
}

impl Conflict {
    fn within(mut self, step: &str) -> Self {
        self.path.insert_str(0, step);
        self
    }
}

/// Values as a list of words: `"a", "b" or "c"`.
pub(super) fn spell(values: &[Value]) -> String {
    either(&values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(schema: Value) -> Shape {
        Shape::of_schema(&schema, Rest::Undeclared)
    }

    #[test]
    fn a_schema_that_is_open_promises_nothing() {
        let open = [
            json!(true),
            json!({}),
            json!({ "$ref": "#/definitions/x" }),
            json!({ "allOf": [{ "type": "string" }] }),
            json!({ "type": "object", "if": {}, "properties": { "a": {} } }),
            json!({ "type": "object", "not": {} }),
        ];
        assert_eq!(open.map(read).iter().filter(|shape| **shape != Shape::any()).count(), 0);
        let absent = |schema, key| matches!(read(schema).field(key), PartShape::Absent(_));
        assert_eq!(
            [
                absent(json!({ "type": "object", "properties": { "a": {} } }), "b"),
                absent(
                    json!({ "type": "object", "properties": { "a": {} }, "additionalProperties": {} }),
                    "b"
                ),
                absent(json!({ "type": "object", "properties": { "a": {} }, "patternProperties": {} }), "b"),
                absent(json!({ "type": "object", "properties": {} }), "b"),
                absent(json!({ "type": "object", "properties": { "a": {} }, "required": ["b"] }), "b"),
                absent(
                    json!({ "anyOf": [{ "properties": { "a": {} } }, { "properties": { "c": {} } }] }),
                    "b"
                ),
                absent(json!({ "anyOf": [{ "properties": { "a": {} } }, { "type": "null" }] }), "b"),
            ],
            [true, false, false, false, false, false, true]
        );
        let prefix = json!({ "prefixItems": [{ "type": "object" }], "items": { "type": "string" } });
        assert_eq!(read(prefix).item(), Some(Shape::any()));
    }

    #[test]
    fn a_conflict_names_the_part_and_both_sides() {
        let conflict = |given, taken| {
            read(given).conflict(&read(taken)).map(|found| [found.path, found.takes, found.gives].join("|"))
        };
        let rows = [
            (json!({ "type": "string" }), json!({ "type": "integer" }), Some("|an integer|a string")),
            (json!({ "type": "number" }), json!({ "type": "integer" }), None),
            (json!({ "type": ["string", "null"] }), json!({ "type": "string" }), None),
            (json!({ "enum": ["a"] }), json!({ "enum": ["b", "c"] }), Some("|`\"b\"` or `\"c\"`|`\"a\"`")),
            (json!({ "enum": [1, 2] }), json!({ "enum": [2.0] }), None),
            (
                json!({ "type": "array", "items": { "type": "object" } }),
                json!({ "type": "array", "items": { "type": "string" } }),
                Some("[…]|a string|a mapping"),
            ),
            (
                json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "string" } } }),
                json!({ "type": "object", "properties": { "n": { "type": "number" } } }),
                Some(".n|a number|a string"),
            ),
            (
                json!({ "const": { "a": 1 } }),
                json!({ "type": "object", "required": ["b"], "properties": { "b": {} } }),
                Some("|a mapping with `b`|one without it"),
            ),
            (
                json!({ "const": { "a": 1 } }),
                json!({ "type": "object", "properties": { "b": {} }, "additionalProperties": false }),
                Some("|a mapping without `a`|one that has it"),
            ),
        ];
        for (given, taken, expected) in rows {
            let shown = format!("{given} for {taken}");
            assert_eq!(conflict(given, taken).as_deref(), expected, "{shown}");
        }
    }
}
