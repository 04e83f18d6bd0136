//! JSON in the room that it needs. `serde_json` gives every object room for eleven keys, 632 bytes; a run holds an
//! output of each node, and most have few keys. What the values mean is left to who holds them.

use std::{fmt, ops};

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Number, Value};
use smol_str::SmolStr;

/// A JSON value that is only read.
#[derive(Clone, Debug, PartialEq)]
pub enum Compact {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(SmolStr),
    /// An array.
    List(Box<[Compact]>),
    /// An object, its keys in order.
    Object(Box<[(SmolStr, Compact)]>),
}

const _: () = assert!(size_of::<Compact>() <= 24, "a value of an output has grown");

impl Compact {
    /// An object without keys.
    pub fn empty() -> Self {
        Self::Object(Box::default())
    }

    /// The value under a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(entries) = self else { return None };
        let at = entries.binary_search_by(|(name, _)| name.as_str().cmp(key)).ok()?;
        Some(&entries[at].1)
    }

    /// The string, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The same as `serde_json` has it.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(held) => Value::Bool(*held),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.to_string()),
            Self::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Self::Object(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key.to_string(), value.to_value());
                }
                Value::Object(map)
            }
        }
    }
}

/// The value under a key, and null where there is none.
impl ops::Index<&str> for Compact {
    type Output = Self;

    fn index(&self, key: &str) -> &Self {
        self.get(key).unwrap_or(&Self::Null)
    }
}

impl From<&Value> for Compact {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(held) => Self::Bool(*held),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(text.into()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(map) => map.into(),
        }
    }
}

impl From<&Map<String, Value>> for Compact {
    fn from(map: &Map<String, Value>) -> Self {
        let mut entries = Vec::with_capacity(map.len());
        entries.extend(map.iter().map(|(key, value)| (SmolStr::from(key), Self::from(value))));
        // `serde_json` keeps them in order, unless some other crate of the program asks it not to.
        if !entries.is_sorted_by(|(a, _), (b, _)| a < b) {
            entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
        Self::Object(entries.into())
    }
}

impl Serialize for Compact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(held) => serializer.serialize_bool(*held),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key.as_str(), value)?;
                }
                map.end()
            }
        }
    }
}

/// As JSON.
impl fmt::Display for Compact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_all_is_found(value in values()) {
            let compact = Compact::from(&value);
            prop_assert_eq!(compact.to_value(), value.clone());
            prop_assert_eq!(compact.to_string(), value.to_string());
            for (key, inner) in value.as_object().into_iter().flatten() {
                prop_assert_eq!(compact.get(key).map(Compact::to_value), Some(inner.clone()));
            }
            prop_assert_eq!(compact.get("no such key"), None);
        }
    }

    #[test]
    fn only_what_it_is_is_given() {
        let compact = Compact::from(&json!({ "text": "oxen", "list": [1] }));
        assert_eq!(compact.get("text").and_then(Compact::as_str), Some("oxen"));
        assert_eq!((compact.as_str(), compact.get("list").and_then(|list| list.get("0"))), (None, None));
        assert_eq!((&compact["text"], &compact["none"]), (&Compact::Text("oxen".into()), &Compact::Null));
        assert_eq!(Compact::empty().to_value(), json!({}));
    }
}
