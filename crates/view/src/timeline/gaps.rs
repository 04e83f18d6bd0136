//! The times when everything waited: nothing worked, and the newest reason says what for.

use std::time::Duration;

use inspan_protocol::Timestamp;

use super::{Gap, TimelineFold, Wait, WaitKind};

/// A shorter time is no gap.
const LEAST: Duration = Duration::from_secs(1);

/// A time from a moment to another.
type Between = (Timestamp, Timestamp);

/// The gaps of a timeline, in their order.
pub(super) fn gaps(timeline: &TimelineFold) -> Vec<Gap> {
    let (Some(from), Some(to)) = (timeline.from, timeline.to) else { return Vec::new() };
    let mut work = worked(timeline, to);
    work.sort_unstable();
    let mut gaps = Vec::new();
    let mut idle_since = from;
    for (begin, end) in work.into_iter().chain([(to, to)]) {
        if begin.since(idle_since) >= LEAST {
            gaps.extend(parts(timeline, (idle_since, begin)));
        }
        idle_since = idle_since.max(end);
    }
    gaps
}

/// The times in which some attempt worked: its node does not only run others, and it did not wait for
/// a person.
fn worked(timeline: &TimelineFold, now: Timestamp) -> Vec<Between> {
    let mut work = Vec::new();
    for row in timeline.rows.iter().filter(|row| !timeline.chain.runs_frames(&row.path)) {
        for bar in &row.bars {
            let mut since = bar.from;
            let end = bar.to.unwrap_or(now);
            for wait in row.waits.iter().filter(|wait| wait.kind == WaitKind::Person) {
                let until = wait.to.unwrap_or(now).min(end);
                if wait.from <= end && until > since {
                    work.push((since, wait.from));
                    since = until;
                }
            }
            work.push((since, end));
        }
    }
    work.retain(|(from, to)| to > from);
    work
}

/// A time in which nothing worked, cut where the session was paused or without a process.
fn parts(timeline: &TimelineFold, (from, to): Between) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut since = from;
    for rest in &timeline.idle {
        let (begin, end) = (rest.from.max(since), rest.to.unwrap_or(to).min(to));
        if end <= begin {
            continue;
        }
        gaps.push(Gap { from: since, to: begin, kind: kind(timeline, (since, begin)) });
        gaps.push(Gap { from: begin, to: end, kind: rest.kind });
        since = end;
    }
    gaps.push(Gap { from: since, to, kind: kind(timeline, (since, to)) });
    gaps.retain(|gap| gap.to.since(gap.from) >= LEAST);
    gaps
}

/// What the nodes waited for in a time; a person before anything else.
fn kind(timeline: &TimelineFold, (from, to): Between) -> WaitKind {
    let covers = |wait: &&Wait| wait.from < to && wait.to.is_none_or(|end| end > from);
    let waits = timeline.rows.iter().flat_map(|row| &row.waits).filter(covers);
    waits.map(|wait| wait.kind).min().unwrap_or(WaitKind::Idle)
}
