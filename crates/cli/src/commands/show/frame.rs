//! `inspan show ID each[3]`: one frame: its item, its nodes, and how it ended.

use std::sync::Arc;

use inspan_protocol::{Envelope, Event, NodePath};
use serde_json::{Map, Value, json};

use super::View;
use crate::{
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    store,
};
use inspan_view::{
    DisplayStatus, FrameRow, Line, Tone, entry::without_nulls, format, look, safe, shown_frame,
};

/// What the log has of a frame beside its nodes.
#[derive(Default)]
struct Values {
    item: Option<Value>,
    outputs: Option<Value>,
}

pub(super) fn run(session: &str, name: &str, invocation: &Invocation) -> Result<Exit, Failure> {
    let (view, log) = View::read(session, invocation)?;
    let asked = inspan_sessions::node_path(view.graph(), name)?;
    let Some((frame, path)) = view.console.frame(&asked) else {
        let session = &view.entry.session;
        let (owner, index) = owner(&asked);
        let items = log.iter().rev().find_map(|envelope| match &envelope.event {
            Event::FrameItems { items, .. } if envelope.context.task == owner => {
                items.as_array().map(Vec::len)
            }
            _ => None,
        });
        let message = match items.filter(|items| index as usize >= *items) {
            Some(items) => {
                format!("there is no frame `{asked}` in session `{session}`: it has {items} items, from 0 on")
            }
            None => match reused_from(&log, owner.as_ref()) {
                Some(from) => {
                    let ran =
                        store::read(invocation, async |store| Ok(store::ran_in(store.as_ref(), from).await))?;
                    let parent = from.split('/').next().unwrap_or_default();
                    let message = format!(
                        "session `{session}` has no frame `{asked}`: the output of its node was reused from `{parent}`"
                    );
                    let hint = match ran {
                        Some((ran, path)) => {
                            let command = view.commands.command("show", &ran, &format!("'{path}[{index}]'"));
                            format!("`{command}` shows the frame there")
                        }
                        None => "the session in which it ran is not in the store".to_owned(),
                    };
                    return Err(Failure::usage(message).with_hint(hint));
                }
                None => format!("the frame `{asked}` of session `{session}` has not started"),
            },
        };
        return Err(Failure::usage(message));
    };
    let values = values(&path, &log);
    if invocation.form == OutputForm::Json {
        invocation.json(&json(&view, &path, frame, values));
        return Ok(Exit::Success);
    }
    let mut lines = head(&view, &path, frame, values);
    lines.push(Line::new());
    lines.extend(view.tree(&frame.rows, &format!("{path}/")));
    invocation.print(lines);
    Ok(Exit::Success)
}

/// The session and the node there whose output a node has, if it was reused.
fn reused_from<'l>(log: &'l [Arc<Envelope>], node: Option<&NodePath>) -> Option<&'l str> {
    log.iter().rev().find_map(|envelope| match &envelope.event {
        Event::TaskReused { from, .. } if envelope.context.task.as_ref() == node => Some(from.as_str()),
        _ => None,
    })
}

/// The node whose frame it is, and which one.
fn owner(path: &NodePath) -> (Option<NodePath>, u32) {
    let owner = path.as_str().rsplit_once('[').map(|(owner, _)| NodePath::new(owner));
    (owner, path.parts().last().and_then(|part| part.index).unwrap_or_default())
}

fn values(path: &NodePath, log: &[Arc<Envelope>]) -> Values {
    let mut values = Values::default();
    let (owner, index) = owner(path);
    for envelope in log.iter().filter(|envelope| envelope.context.task == owner) {
        match &envelope.event {
            Event::FrameItems { items, .. } => values.item = items.get(index as usize).cloned(),
            Event::FrameComplete { index: of, outputs, .. } if *of == index => {
                values.outputs = Some(Value::clone(outputs));
            }
            _ => {}
        }
    }
    values
}

fn json(view: &View, path: &NodePath, frame: &FrameRow, values: Values) -> Value {
    let mut nodes = Map::new();
    view.add_nodes(&frame.rows, &format!("{path}/"), &mut nodes);
    let mut value = without_nulls(json!({
        "sessionId": view.entry.session,
        "frame": path,
        "status": shown_frame(frame, DisplayStatus::of(&view.entry)),
        "nodes": nodes,
        "durationMs": frame.duration_ms,
        "error": frame.error,
    }));
    // An item may be null.
    for (key, known) in [("item", values.item), ("outputs", values.outputs)] {
        if let Some(known) = known {
            value[key] = known;
        }
    }
    value
}

fn head(view: &View, path: &NodePath, frame: &FrameRow, values: Values) -> Vec<Line> {
    let mut head = Line::new();
    let status = shown_frame(frame, DisplayStatus::of(&view.entry));
    let (tone, _) = look::sign(status);
    head.push(Tone::Strong, path.as_str()).push(Tone::Plain, "  ").push(tone, look::word(status));
    let mut parts = Vec::new();
    parts.extend(frame.duration_ms.map(format::millis));
    parts.extend(frame.spent().text());
    head.push(Tone::Faint, &format!("  {}", parts.join(" · ")));
    let mut lines = vec![head];
    if let Some(error) = &frame.error {
        let mut line = Line::new();
        line.push(Tone::Faint, "  error").pad_to(12);
        look::error(&mut line, error);
        lines.push(line);
    }
    for (name, value) in [("item", values.item), ("outputs", values.outputs)] {
        let Some(value) = value else { continue };
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        for (at, text) in safe::text(&text).lines().enumerate() {
            let mut line = Line::new();
            line.push(Tone::Faint, if at == 0 { "  " } else { "" });
            line.push(Tone::Faint, if at == 0 { name } else { "" }).pad_to(12).push(Tone::Plain, text);
            lines.push(line);
        }
    }
    lines
}
