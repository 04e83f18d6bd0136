//! What became of one frame of a node, such as `each[3]`.

use std::sync::Arc;

use inspan_protocol::{Envelope, Event, NodePath};

use super::{Statement, StatementKind, reason::in_short};

/// Whether it is open or how it ended, and its events before that; nothing if the path does not name a frame.
pub(super) fn explain(log: &[Arc<Envelope>], path: &NodePath) -> Option<(Statement, Vec<Statement>)> {
    let (owner, _) = path.as_str().strip_suffix(']')?.rsplit_once('[')?;
    let index = path.parts().last()?.index?;
    let owner = NodePath::new(owner);
    let say = |seq, at, kind, what: &str| Statement {
        seq,
        at,
        task: Some(path.clone()),
        kind,
        text: format!("`{path}` {what}"),
        values: Default::default(),
    };
    let (mut said, mut total) = (Vec::new(), None);
    for envelope in log.iter().filter(|envelope| envelope.context.task.as_ref() == Some(&owner)) {
        let (kind, what) = match &envelope.event {
            Event::FrameItems { items, .. } => {
                total = items.as_array().map(Vec::len);
                continue;
            }
            Event::FrameStart { index: of, .. } if *of == index => {
                (StatementKind::Started, "began".to_owned())
            }
            Event::FrameEnding { index: of, error, .. } if *of == index => {
                (StatementKind::Cancelled, format!("is to end: {}", in_short(error)))
            }
            Event::FrameComplete { index: of, .. } if *of == index => {
                (StatementKind::Completed, "completed".to_owned())
            }
            Event::FrameFailed { index: of, error, .. } if *of == index => {
                (StatementKind::Failed, format!("failed: {}", in_short(error)))
            }
            Event::FrameCancelled { index: of, .. } if *of == index => {
                (StatementKind::Cancelled, "was cancelled".to_owned())
            }
            _ => continue,
        };
        said.push(say(envelope.seq, Some(envelope.timestamp), kind, &what));
    }
    let standing = match (said.last().cloned(), total) {
        (Some(last), _) => Statement { kind: StatementKind::Standing, ..last },
        (None, total) => {
            let what = match total.filter(|total| index as usize >= *total) {
                Some(total) => format!("does not exist: `{owner}` has {total} items, from 0 on"),
                None => "never began".to_owned(),
            };
            let now = log.last().map_or(0, |last| last.seq);
            say(now, None, StatementKind::Standing, &what)
        }
    };
    Some((standing, said))
}
