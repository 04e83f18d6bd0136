//! The items of a foreach: which there are, and what comes of them.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use inspan_protocol::{AgentError, ErrorCode, Event};
use serde_json::{Map, Value, json};

use super::{Action, Run, frames::AfterFrames};
use crate::{
    expr::is_equal,
    graph::{Frames, FramesKind, OnExceeded, OnItemError, TaskRef},
    nodes::read_input,
    state::{FrameEnd, FrameSet},
};

/// How many items a foreach may have.
pub(crate) const MOST_ITEMS: usize = 100_000;

impl Run {
    /// The items of a foreach.
    pub(super) fn plan_items(&self, task: TaskRef, frames: &Frames) -> Result<Event, AgentError> {
        let mut input = self.frames_input(task)?;
        let path = self.facts.path(&self.graph, task);
        let refuse =
            |message: String| AgentError::new(ErrorCode::ConfigInvalid, format!("`{path}`: {message}"));
        let max_concurrency = match input.get("maxConcurrency") {
            None | Some(Value::Null) => None,
            Some(most) => {
                Some(read_input::<NonZeroU32>(most.clone()).map(NonZeroU32::get).map_err(|_| {
                    refuse(format!("`maxConcurrency` must be a whole number of at least 1, found {most}"))
                })?)
            }
        };
        let items = match (input.get_mut("items").map(Value::take), input.get("matrix")) {
            (Some(Value::Array(items)), None) => items,
            (Some(Value::Object(entries)), None) => {
                entries.into_iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
            }
            (None, Some(matrix)) => product(matrix, input.get("exclude")).map_err(refuse)?,
            (Some(other), _) => {
                return Err(refuse(format!(
                    "`items` must be a list or an object, found {}",
                    kind_of(&other)
                )));
            }
            (None, None) => return Err(refuse("`items` is missing".to_owned())),
        };
        if items.len() > MOST_ITEMS {
            return Err(refuse(format!("there are {} items, more than {MOST_ITEMS}", items.len())));
        }
        let set = FrameSet { items: Some(Arc::new(items.into())), ..FrameSet::default() };
        let keys = self.item_keys(task, frames, &set)?;
        let task_id = self.facts.spec(&self.graph, task).id.clone();
        Ok(Event::FrameItems { task_id, items: set.items.unwrap_or_default(), keys, max_concurrency })
    }

    /// What identifies each item; two items with one key are an error.
    fn item_keys(&self, task: TaskRef, frames: &Frames, set: &FrameSet) -> Result<Vec<String>, AgentError> {
        let FramesKind::Foreach { key: Some(key), .. } = &frames.kind else { return Ok(Vec::new()) };
        let mut seen = BTreeMap::new();
        let mut keys = Vec::new();
        for at in 0..set.total().unwrap_or_default() {
            let key = self.scoped_within(task, frames, set, at, |scope| key.resolve(scope))?;
            let key = match key {
                Value::String(text) => text,
                other => other.to_string(),
            };
            if let Some(first) = seen.insert(key.clone(), at) {
                let path = self.facts.path(&self.graph, task);
                let message = format!("`{path}`: items {first} and {at} have the same key `{key}`");
                return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// What comes after the items that have ended.
    pub(super) fn after_items(
        &self,
        task: TaskRef,
        set: &FrameSet,
        on_item_error: OnItemError,
        actions: &mut Vec<Action>,
    ) -> AfterFrames {
        let fails = set.first_failure().filter(|_| on_item_error == OnItemError::Fail);
        let Some((index, failure)) = fails else {
            // Items that its own budget did not let run are no failures of theirs.
            let used_up = self
                .facts
                .node_used_up(&self.graph, task)
                .filter(|used_up| used_up.budget.on_exceeded == OnExceeded::Fail && set.ran_out_of_budget());
            return AfterFrames::End(match used_up {
                Some(used_up) => Err(self.over_budget(Some(&used_up))),
                None => Ok(results(set)),
            });
        };
        if !set.open.is_empty() {
            let path = self.facts.path(&self.graph, task);
            let message = format!("another item of `{path}` failed: {}", failure.message);
            let error = AgentError::new(ErrorCode::Aborted, message);
            actions.extend(set.open.values().filter_map(|frame| self.end_frame(*frame, error.clone())));
            return AfterFrames::Wait;
        }
        AfterFrames::End(Err(self.of_frame(task, index, failure)))
    }
}

/// The output of a foreach whose frames have all ended that were to begin.
fn results(set: &FrameSet) -> Value {
    let mut results = Vec::with_capacity(set.ended.len());
    for (index, end) in set.ended.iter().enumerate() {
        let item = set.item(index as u32).cloned().unwrap_or_default();
        let (key, given) = match end {
            Some(FrameEnd::Complete(outputs)) => ("outputs", Value::clone(outputs)),
            Some(FrameEnd::Failed(error, _)) => ("error", json!(error)),
            _ => continue,
        };
        results.push(object([("index", index.into()), ("item", item), (key, given)]));
    }
    object([
        ("results", results.into()),
        ("values", set.values().cloned().collect()),
        ("succeeded", set.succeeded.into()),
        ("failed", set.failed.into()),
    ])
}

/// Of values that are moved; `json!` serialises a copy of each.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// All combinations of a matrix, the last key fastest, without those that match an entry of `exclude`.
pub(crate) fn product(matrix: &Value, exclude: Option<&Value>) -> Result<Vec<Value>, String> {
    let Some(axes) = matrix.as_object() else {
        return Err(format!("`matrix` must be an object of lists, found {}", kind_of(matrix)));
    };
    let mut rows = vec![Map::new()];
    for (name, values) in axes {
        let Some(values) = values.as_array() else {
            return Err(format!("`matrix.{name}` must be a list, found {}", kind_of(values)));
        };
        if rows.len().saturating_mul(values.len()) > MOST_ITEMS {
            return Err(format!("the matrix has more than {MOST_ITEMS} combinations"));
        }
        let with = |row: &Map<String, Value>, value: &Value| {
            let mut row = row.clone();
            row.insert(name.clone(), value.clone());
            row
        };
        rows = rows
            .iter()
            .flat_map(|row| values.iter().map(|value| with(row, value)).collect::<Vec<_>>())
            .collect();
    }
    let excluded = exclude.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let matches = |row: &Map<String, Value>, rule: &Value| {
        rule.as_object().is_some_and(|rule| {
            rule.iter().all(|(key, value)| row.get(key).is_some_and(|own| is_equal(own, value)))
        })
    };
    rows.retain(|row| !excluded.iter().any(|rule| matches(row, rule)));
    Ok(rows.into_iter().map(Value::Object).collect())
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
