//! Names that a template defines itself: its variables, `namespace()`, and the `loop` of a `{% for %}`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Object, ObjectRepr},
};

/// Variables of the open blocks, the innermost last.
#[derive(Debug)]
pub(super) struct Locals(Vec<Vec<(String, Value)>>);

impl Default for Locals {
    fn default() -> Self {
        Self(vec![Vec::new()])
    }
}

impl Locals {
    pub(super) fn open(&mut self) {
        self.0.push(Vec::new());
    }

    pub(super) fn close(&mut self) {
        self.0.pop();
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().rev().flatten().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(super) fn set(&mut self, name: &str, value: Value) {
        let Some(block) = self.0.last_mut() else { return };
        match block.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => block.push((name.to_owned(), value)),
        }
    }
}

/// `namespace()`: values that an inner block can change.
#[derive(Debug, Default)]
pub(super) struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    pub(super) fn set(&self, name: &str, value: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value);
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key.as_str()?).cloned()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("namespace")
    }
}

/// The arguments of the last `loop.changed(…)`.
pub(super) type Changed = Arc<Mutex<Option<Vec<Value>>>>;

/// `loop`.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) index: usize,
    pub(super) length: usize,
    pub(super) depth: usize,
    pub(super) before: Value,
    pub(super) after: Value,
    pub(super) changed: Changed,
}

impl Object for Loop {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        Some(match key.as_str()? {
            "index" => Value::from(self.index + 1),
            "index0" => Value::from(self.index),
            "revindex" => Value::from(self.length - self.index),
            "revindex0" => Value::from(self.length - self.index - 1),
            "length" => Value::from(self.length),
            "first" => Value::from(self.index == 0),
            "last" => Value::from(self.index + 1 == self.length),
            "depth" => Value::from(self.depth),
            "depth0" => Value::from(self.depth - 1),
            "previtem" => self.before.clone(),
            "nextitem" => self.after.clone(),
            _ => return None,
        })
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match name {
            "cycle" if args.is_empty() => Ok(Value::UNDEFINED),
            "cycle" => Ok(args[self.index % args.len()].clone()),
            "changed" => {
                let mut last = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
                let changed = last.as_deref() != Some(args);
                *last = Some(args.to_vec());
                Ok(Value::from(changed))
            }
            _ => Err(Error::new(ErrorKind::UnknownMethod, format!("`loop` has no method `{name}`"))),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loop {} of {}", self.index + 1, self.length)
    }
}
