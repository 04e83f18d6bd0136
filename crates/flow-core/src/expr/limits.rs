//! The limits of one evaluation: steps, and bytes written or read. Every operation is counted before it runs, so that
//! no template takes long or needs much memory.

use std::{cell::Cell, collections::BTreeMap};

use minijinja::{
    Value,
    value::{ObjectRepr, ValueKind},
};

use serde_json::Value as Json;

use super::names::Namespace;

/// The most steps for the templates of one input.
pub(super) const STEPS: u64 = 1_000_000;
/// The most bytes that they may write.
const ROOM: u64 = 64 * 1024 * 1024;
/// Reading so many bytes counts as writing one.
const READ: u64 = 4;
/// The size of a value without its text.
pub(super) const ITEM: u64 = 32;
/// The longest number as text.
const LONG_NUMBER: u64 = 320;
/// How deep values may be nested.
const DEPTH: usize = 100;

/// What is left for the templates of one input.
#[derive(Debug)]
pub(crate) struct Limits {
    steps: Cell<u64>,
    room: Cell<u64>,
}

/// The size of a value; a part that occurs twice counts twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: u64,
    pub(super) depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: Cell::new(STEPS), room: Cell::new(ROOM) }
    }
}

impl Limits {
    /// For evaluating something while a flow is checked, which must stay fast.
    pub(crate) fn small() -> Self {
        Self { steps: Cell::new(STEPS / 100), room: Cell::new(ROOM / 64) }
    }

    /// Whether a limit was exceeded.
    pub(super) fn were_exceeded(&self) -> bool {
        self.steps.get() == 0 || self.room.get() == 0
    }

    /// Counts steps.
    pub(super) fn step(&self, count: u64) -> Result<(), String> {
        let left = self.steps.get().checked_sub(count);
        self.steps.set(left.unwrap_or_default());
        left.map(drop).ok_or_else(|| format!("takes more than {STEPS} steps"))
    }

    /// Counts bytes that will be written.
    pub(super) fn make(&self, bytes: u64) -> Result<(), String> {
        let left = self.room.get().checked_sub(bytes);
        self.room.set(left.unwrap_or_default());
        left.map(drop).ok_or_else(too_much)
    }

    /// Counts bytes that will be read.
    pub(super) fn read(&self, bytes: u64) -> Result<(), String> {
        self.make(bytes / READ)
    }

    /// Counts reading all of a value, and returns its size.
    pub(super) fn look(&self, value: &Value) -> Result<Size, String> {
        let all = self.room.get().saturating_mul(READ);
        let mut left = all;
        let depth = measure(value, &mut left, 0)?;
        let bytes = all - left;
        self.read(bytes)?;
        Ok(Size { bytes, depth })
    }

    /// Counts copying a value of the scope.
    pub(super) fn copy(&self, value: &Json) -> Result<(), String> {
        self.read(weight(value))
    }
}

fn too_much() -> String {
    format!("needs more memory than a template may use: {} MiB", ROOM / (1024 * 1024))
}

fn weight(value: &Json) -> u64 {
    ITEM + match value {
        Json::String(text) => text.len() as u64,
        Json::Array(items) => items.iter().map(weight).sum(),
        Json::Object(entries) => entries.iter().map(|(key, value)| key.len() as u64 + weight(value)).sum(),
        _ => 0,
    }
}

/// Subtracts the size of a value from what is left, and returns its depth.
fn measure(value: &Value, left: &mut u64, depth: usize) -> Result<usize, String> {
    if depth > DEPTH {
        return Err(format!("values are nested deeper than {DEPTH} levels"));
    }
    let text = match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len) as u64,
        ValueKind::Number if !value.is_integer() => {
            // JSON has no infinity, and a `null` in its place would be a wrong value.
            if f64::try_from(value.clone()).is_ok_and(|number| !number.is_finite()) {
                return Err(format!("`{value}` is not a number in JSON: the calculation is out of range"));
            }
            LONG_NUMBER
        }
        _ => 0,
    };
    *left = left.checked_sub(ITEM + text).ok_or_else(too_much)?;
    let Some(object) = value.as_object() else { return Ok(depth) };
    let mut deepest = depth;
    if let Some(items) = value.downcast_object_ref::<Vec<Value>>() {
        for item in items {
            deepest = deepest.max(measure(item, left, depth + 1)?);
        }
    } else if let Some(entries) = value.downcast_object_ref::<BTreeMap<Value, Value>>() {
        for (key, item) in entries {
            deepest = deepest.max(measure(key, left, depth + 1)?).max(measure(item, left, depth + 1)?);
        }
    } else if value.downcast_object_ref::<Namespace>().is_some() {
        return Err("a namespace cannot be a part of another value".to_owned());
    } else if object.repr() != ObjectRepr::Plain {
        let pairs = object.repr() == ObjectRepr::Map;
        for item in value.try_iter().map_err(|error| error.to_string())?.checked() {
            let item = item.map_err(|error| error.to_string())?;
            deepest = deepest.max(measure(&item, left, depth + 1)?);
            if pairs && let Ok(inner) = value.get_item(&item) {
                deepest = deepest.max(measure(&inner, left, depth + 1)?);
            }
        }
    }
    Ok(deepest)
}
