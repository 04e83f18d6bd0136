//! Checks of values against JSON Schemas, with bounded work. What a schema that refers to itself takes can double with each
//! level of a value, and a check runs where no timeout could end it.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use jsonschema::{
    JsonType, ValidationError, Validator,
    json::{Array, Json, Node, NodeIdentity, Object, SerdeJson},
};
use serde_json::{Map, Number, Value};

/// How many steps a check may take, and how many more for each part of the value. A step looks at a part once.
const STEPS: u64 = 1_000_000;
const STEPS_OF_PART: u64 = 1_000;
/// How many more there are for each part of the value and each of the schema: it is looked at for each branch or value that
/// the schema lists.
const LOOKS: u64 = 2;
/// An error takes memory, so it counts for more.
const STEPS_OF_ERROR: u64 = 20;

const MOST_ERRORS: usize = 1_000;

const UNKNOWN: &str = "it takes too many steps to tell whether it fits the schema";
const MISFIT: &str = "it does not fit the schema, and it takes too many steps to tell where";

/// A JSON Schema that values are checked against.
pub struct BoundedValidator {
    validator: Validator<Metered>,
    steps_of_part: u64,
}

impl BoundedValidator {
    /// The check of this schema, if it is a JSON Schema.
    pub fn new(schema: &Value) -> Result<Self, ValidationError<'static>> {
        let validator = jsonschema::options_for::<Metered>().build(schema)?;
        Ok(Self { validator, steps_of_part: STEPS_OF_PART + LOOKS * parts(schema) })
    }

    /// Whether a value fits; none if that takes too many steps to tell.
    pub fn is_valid(&self, value: &Value) -> Option<bool> {
        metered(value, self.steps_of_part, || self.validator.is_valid(value))
    }

    /// The first thousand things of a value that do not fit, each once; nothing if it fits. If all of it takes too many steps, it is the
    /// first thing, or only that something does not.
    pub fn errors<'v>(&'v self, value: &'v Value) -> Vec<ValidationError<'v>> {
        match self.is_valid(value) {
            Some(true) => return Vec::new(),
            Some(false) => {}
            None => return vec![ValidationError::custom(UNKNOWN)],
        }
        let all = || {
            let mut seen = HashSet::new();
            let is_new = |error: &ValidationError<'_>| {
                seen.insert((error.instance_path().to_string(), error.masked().to_string()))
            };
            self.validator.iter_errors(value).filter(is_new).take(MOST_ERRORS).collect()
        };
        let first = || self.validator.validate(value).err().into_iter().collect();
        // Each error may have one for each branch: they are not for a large schema to fill the memory with.
        metered(value, STEPS_OF_PART, all)
            .or_else(|| metered(value, self.steps_of_part, first))
            .unwrap_or_else(|| vec![ValidationError::custom(MISFIT)])
    }
}

thread_local! {
    /// The steps that the check of this thread has left: a value has no room for them.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Ends a check, by a panic that is not reported: the validator has no other way out.
struct OutOfSteps;

fn step(steps: u64) {
    match LEFT.get().checked_sub(steps) {
        Some(left) => LEFT.set(left),
        None => resume_unwind(Box::new(OutOfSteps)),
    }
}

/// Does the work, unless it takes too many steps for the value.
fn metered<T>(value: &Value, steps_of_part: u64, work: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(STEPS + steps_of_part * parts(value));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<OutOfSteps>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

fn parts(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(parts).sum::<u64>(),
        Value::Object(fields) => fields.values().map(parts).sum(),
        _ => 0,
    }
}

/// JSON values as they are, but each look at one is a step.
struct Metered;

type Fields<'a> = &'a Map<String, Value>;

impl Json for Metered {
    type Node<'a> = &'a Value;
    type PreparedKey = String;
    type StringBuffer = Value;

    const KEYS_PER_LOOKUP: usize = SerdeJson::KEYS_PER_LOOKUP;

    fn prepare_key(key: &str) -> String {
        SerdeJson::prepare_key(key)
    }

    fn with_string_node<T>(buffer: &mut Value, string: &str, f: impl FnOnce(&Value) -> T) -> T {
        SerdeJson::with_string_node(buffer, string, f)
    }
}

/// Implements the looks at a value.
macro_rules! looks {
    ($($name:ident($($given:ident: $type:ty)?) -> $result:ty;)*) => {
        $(fn $name(&self $(, $given: $type)?) -> $result {
            step(1);
            Node::<SerdeJson>::$name(self $(, $given)?)
        })*
    };
}

impl<'a> Node<'a, Metered> for &'a Value {
    type Object = Fields<'a>;
    type Array = &'a [Value];
    type Number = &'a Number;

    looks! {
        as_object() -> Option<Fields<'a>>;
        as_array() -> Option<&'a [Value]>;
        as_string() -> Option<Cow<'a, str>>;
        as_number() -> Option<&'a Number>;
        as_boolean() -> Option<bool>;
        is_null() -> bool;
        json_type() -> JsonType;
        string_length() -> Option<u64>;
        equals_value(expected: &Value) -> bool;
        identity() -> Option<NodeIdentity>;
    }

    /// Each error has the value it is about.
    fn to_value(&self) -> Cow<'a, Value> {
        step(STEPS_OF_ERROR);
        Cow::Borrowed(self)
    }
}

impl<'a> Object<'a, Metered> for Fields<'a> {
    type Node = &'a Value;
    type MemberName = &'a str;
    type MembersIter = <Fields<'a> as Object<'a, SerdeJson>>::MembersIter;

    fn len(&self) -> usize {
        Map::len(self)
    }

    fn get(&self, key: &String) -> Option<&'a Value> {
        (*self).get(key.as_str())
    }

    fn members(&self) -> Self::MembersIter {
        Object::<SerdeJson>::members(self)
    }
}

impl<'a> Array<'a, Metered> for &'a [Value] {
    type Node = &'a Value;
    type ElementsIter = std::slice::Iter<'a, Value>;

    fn len(&self) -> usize {
        <[Value]>::len(self)
    }

    fn elements(&self) -> Self::ElementsIter {
        self.iter()
    }

    fn is_unique(&self) -> bool {
        Array::<SerdeJson>::is_unique(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(schema: &Value, value: &Value) -> Vec<String> {
        let validator = BoundedValidator::new(schema).unwrap();
        let errors = validator.errors(value);
        errors.iter().map(|error| format!("{}: {}", error.instance_path(), error.masked())).collect()
    }

    fn nested(depth: usize, key: &str, leaf: Value) -> Value {
        (0..depth).fold(leaf, |inner, _| json!({ key: inner }))
    }

    #[test]
    fn what_does_not_fit_is_named_once() {
        let schema = json!({
            "properties": { "a": { "type": "integer" }, "b": { "anyOf": [{ "type": "null" }, { "const": 1 }] } },
            "allOf": [{ "properties": { "a": { "type": "integer" } } }],
            "propertyNames": { "maxLength": 1 },
            "items": { "type": "string" },
            "uniqueItems": true,
        });
        assert_eq!(errors(&schema, &json!({ "a": 1, "b": null })), <Vec<String>>::new());
        let misfits = errors(&schema, &json!({ "a": "x", "b": 2, "cc": 0 }));
        let any = "value is not valid under any of the schemas listed in the 'anyOf' keyword";
        for misfit in ["/a: value is not of type \"integer\"", &format!("/b: {any}")] {
            assert_eq!(misfits.iter().filter(|error| *error == misfit).count(), 1, "{misfits:?}");
        }
        assert_eq!(misfits.len(), 3, "{misfits:?}");
        assert_eq!(errors(&schema, &json!(["a", 1, "a"])).len(), 2);
    }

    /// Each level is checked twice.
    #[test]
    fn a_check_that_would_double_with_each_level_ends() {
        let child = json!({ "properties": { "child": { "$ref": "#" }, "size": { "type": "integer" } } });
        let all = json!({ "allOf": [child.clone(), child] });
        assert!(errors(&all, &nested(60, "child", json!({ "size": 1 }))).is_empty());
        let place = "/child".repeat(60) + "/size";
        let misfits = errors(&all, &nested(60, "child", json!({ "size": "big" })));
        assert_eq!(misfits, [format!("{place}: value is not of type \"integer\"")]);

        let any = json!({ "anyOf": all["allOf"] });
        let misfits = errors(&any, &nested(60, "child", json!({ "size": "big" })));
        assert_eq!(misfits, [format!(": {MISFIT}")]);
    }

    #[test]
    fn each_part_of_a_value_has_steps_for_each_part_of_the_schema() {
        let texts: Vec<_> = (0..3_000).map(|number| json!(format!("text {number}"))).collect();
        let (mut values, mixed) =
            (vec![texts[2_999].clone(); 600], [texts, vec![json!(1), json!({})]].concat());
        let schema = json!({ "items": { "enum": mixed } });
        assert!(errors(&schema, &json!(values)).is_empty());
        values.push(json!("x"));
        let misfit = "/600: value is not one of \"text 0\", \"text 1\" or 3000 other candidates";
        assert_eq!(errors(&schema, &json!(values)), [misfit]);
    }

    #[test]
    fn a_schema_of_too_many_branches_is_not_decided() {
        let mut definitions = json!({ "n20": { "type": "integer" } });
        for level in 0..20 {
            let next = json!({ "$ref": format!("#/$defs/n{}", level + 1) });
            definitions[format!("n{level}")] = json!({ "allOf": [next, next, next, next] });
        }
        let schema = json!({ "$ref": "#/$defs/n0", "$defs": definitions });
        assert_eq!(errors(&schema, &json!(1)), [format!(": {UNKNOWN}")]);
        assert_eq!(errors(&schema, &json!("x")), ["/: value is not of type \"integer\"".replace('/', "")]);
    }
}
