//! The events of a session: a stream that ends with the session, or a page of what is there.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use futures::{Stream, StreamExt, future, stream};
use inspan_engine::Filter;
use inspan_protocol::{Envelope, NodePath, SessionId};
use inspan_sessions::{Followed, Follower, SessionError, SessionErrorCode};
use inspan_view::DisplayStatus;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    App,
    api::{
        ExistingSession,
        state::{unknown_node, watched},
    },
    metrics::Counted,
    problem::Problem,
    route::{Query, Route},
};

const SSE: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
/// How often a stream that has nothing to send shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/api/v1/sessions/{id}/events",
            "events",
            "The events of a session, as server-sent events or JSON lines: what is there, then what comes, until the \
             session ends.",
            events,
        )
        .query::<EventsQuery>()
        .media(200, &[SSE, LINES]),
    ]
}

/// Which events are sent.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct EventsQuery {
    /// The first event. The header `Last-Event-ID` counts before it.
    from: Option<u64>,
    /// Only events of these names, separated by commas; `agent:*` means all that begin so.
    types: Option<String>,
    /// Only events of this node and of what is within it.
    node: Option<String>,
    /// At most so many events.
    limit: Option<usize>,
    /// `0` sends what is there and ends.
    follow: Option<u8>,
}

/// What events must fulfil.
struct Selection {
    filter: Filter,
    node: Option<NodePath>,
    left: usize,
}

impl Selection {
    fn of(wanted: &EventsQuery) -> Result<Self, Problem> {
        let names = wanted.types.as_deref().unwrap_or("*");
        let filter = inspan_sessions::event_filter(names)?;
        let node = wanted.node.as_deref().map(NodePath::new);
        Ok(Self { filter, node, left: wanted.limit.unwrap_or(usize::MAX) })
    }

    /// Those of a page that are wanted.
    fn take(&mut self, events: Vec<Arc<Envelope>>) -> Vec<Arc<Envelope>> {
        let mut taken: Vec<_> = events.into_iter().filter(|envelope| self.takes(envelope)).collect();
        taken.truncate(self.left);
        self.left -= taken.len();
        taken
    }

    fn takes(&self, envelope: &Envelope) -> bool {
        let of_node = |node: &NodePath| {
            envelope.context.task.as_ref().is_some_and(|task| is_within(task.as_str(), node.as_str()))
        };
        self.filter.matches(envelope) && self.node.as_ref().is_none_or(of_node)
    }
}

/// Whether a path is another one, one of its passes, or within it.
fn is_within(path: &str, node: &str) -> bool {
    path.strip_prefix(node).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '[', '#']))
}

/// One reader of a stream.
struct EventStreamReader {
    follower: Follower,
    selection: Selection,
    /// Whether it waits for what comes.
    follows: bool,
    is_over: bool,
    _counted: Counted,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

/// What a reader is sent.
enum StreamChunk {
    Events(Vec<Arc<Envelope>>),
    /// The status, and the number of the last event.
    Ended(&'static str, u64),
    Failed(SessionError),
}

impl EventStreamReader {
    async fn next(&mut self) -> Option<StreamChunk> {
        while !self.is_over && self.selection.left > 0 {
            let page = match self.follows {
                true => match self.follower.next().await {
                    Ok(Followed::Events(page)) => Ok(Some(page)),
                    Ok(Followed::Idle(_)) => continue,
                    Ok(Followed::Ended(entry)) => {
                        self.is_over = true;
                        let state = DisplayStatus::of(&entry).word();
                        return Some(StreamChunk::Ended(state, entry.digest.last_seq));
                    }
                    Err(error) => Err(error),
                },
                false => self.follower.ready().await,
            };
            match page {
                Ok(Some(page)) => {
                    let events = self.selection.take(page);
                    if !events.is_empty() {
                        return Some(StreamChunk::Events(events));
                    }
                }
                Ok(None) => self.is_over = true,
                Err(error) => {
                    self.is_over = true;
                    return Some(StreamChunk::Failed(error));
                }
            }
        }
        None
    }
}

async fn events(
    State(app): State<App>,
    ExistingSession(session): ExistingSession,
    Query(wanted): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let last = last.map(str::parse::<u64>).transpose();
    let last = last.map_err(|_| Problem::invalid("`Last-Event-ID` is not the number of an event"))?;
    let from = last.map_or(wanted.from.unwrap_or(1), |last| last.saturating_add(1));
    if let Some(node) = &wanted.node
        && !watched(&app, &session).await?.has_node(&NodePath::new(node))
    {
        return Err(unknown_node(node));
    }
    let as_lines = accepts_lines(&headers);
    if last.is_some() && !as_lines && is_over(&app, &session, from).await? {
        // A browser connects again and again unless the answer says that there is nothing more.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reader = EventStreamReader {
        follower: app.sessions.follow(&session, from),
        selection: Selection::of(&wanted)?,
        follows: wanted.follow != Some(0),
        is_over: false,
        _counted: app.metrics.streaming(),
        _permit: app.stream_permit()?,
    };
    let sent = stream::unfold(reader, |mut reader| async move {
        let sent = reader.next().await?;
        Some((sent, reader))
    });
    let end = app.end.clone();
    let sent = sent.take_until(end.clone().cancelled_owned());
    let mut answer = if as_lines { lines(sent, end) } else { sse(sent) };
    // A proxy that collects answers would hold each event back.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(answer)
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.any(|kind| kind == LINES)
}

/// Whether a session has ended and has no event from a number on.
async fn is_over(app: &App, session: &SessionId, from: u64) -> Result<bool, SessionError> {
    let entry = app.sessions.entry(session).await?;
    Ok(DisplayStatus::of(&entry).has_ended()
        && !inspan_sessions::is_driven(&entry)
        && app.sessions.events(session, from, 1).await?.is_empty())
}

fn sse(sent: impl Stream<Item = StreamChunk> + Send + 'static) -> Response {
    let events = sent.flat_map(|sent| {
        let events: Vec<sse::Event> = match sent {
            StreamChunk::Events(events) => events.iter().map(|envelope| event(envelope)).collect(),
            StreamChunk::Ended(state, last) => {
                // With the id a browser that connects again asks for nothing, also if the last event was filtered out.
                let end = sse::Event::default().id(last.to_string()).event("end");
                vec![end.data(json!({ "state": state }).to_string())]
            }
            StreamChunk::Failed(error) => {
                let problem = json!(Problem::from(error));
                vec![sse::Event::default().event("problem").data(problem.to_string())]
            }
        };
        stream::iter(events.into_iter().map(Ok::<_, Infallible>))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

fn event(envelope: &Envelope) -> sse::Event {
    sse::Event::default()
        .id(envelope.seq.to_string())
        .event(envelope.event.name())
        .data(json!(envelope).to_string())
}

/// As JSON lines: envelopes only, as `inspan logs --json` prints them. A failure, and the end of the server, cut the stream, so
/// that a reader does not take a part for the whole.
fn lines(sent: impl Stream<Item = StreamChunk> + Send + 'static, end: CancellationToken) -> Response {
    let chunks = sent.filter_map(|sent| async move {
        match sent {
            StreamChunk::Events(events) => {
                let lines: Vec<String> =
                    events.iter().map(|envelope| format!("{}\n", json!(envelope))).collect();
                Some(Ok(lines.concat()))
            }
            StreamChunk::Ended(..) => None,
            StreamChunk::Failed(error) => Some(Err(error)),
        }
    });
    let cut = stream::once(async move {
        let stops = || SessionError::new(SessionErrorCode::Failed, "the server stops");
        end.is_cancelled().then(|| Err(stops()))
    });
    let chunks = chunks.chain(cut.filter_map(future::ready));
    ([(header::CONTENT_TYPE, LINES)], Body::from_stream(chunks)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_that_the_end_of_the_server_cuts_do_not_end_as_if_they_were_whole() {
        let (running, stopped) = (CancellationToken::new(), CancellationToken::new());
        stopped.cancel();
        for (end, is_whole) in [(running, true), (stopped, false)] {
            let answer = lines(stream::iter([StreamChunk::Events(Vec::new())]), end);
            assert_eq!(axum::body::to_bytes(answer.into_body(), 1_000).await.is_ok(), is_whole);
        }
    }

    #[test]
    fn a_node_has_its_passes_and_what_is_within_it() {
        let within =
            ["fix", "fix#2", "fix[3]/a", "fix/a", "fixture", "a/fix", ""].map(|path| is_within(path, "fix"));
        assert_eq!(within, [true, true, true, true, false, false, false]);
    }
}
