//! One session: its state at any event, what differs between two, the frames of a node, its graph, its timeline, the
//! stream of a node, its cost, its report.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{HeaderMap, header, request::Parts},
    response::{IntoResponse, Response},
};
use inspan_protocol::{NodePath, NodeStatus, SessionId};
use inspan_view::{
    Cost, Drawing, FramePage, FrameSelect, PagePatch, PageState, Results, StreamPage, StreamSelect, Timeline,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    App,
    api::ExistingSession,
    problem::Problem,
    route::{Query, Route},
    watch::Watch,
};

/// Frames and items of one answer unless more are asked for.
const LIMIT: usize = 100;
/// The most of one answer.
const MOST: usize = 1_000;
/// Rows of a timeline unless more are asked for.
const ROWS: usize = 2_000;
/// The most rows of a timeline.
const MOST_ROWS: usize = 20_000;
/// Frames that may be open in one answer.
const OPEN: usize = 100;

const HTML: &str = "text/html";
const MARKDOWN: &str = "text/markdown";
/// A report has its own style, and nothing else.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/api/v1/sessions/{id}",
            "session",
            "The state of the session, now or at an event.",
            state,
        )
        .query::<Moment>()
        .answers::<PageState>(200),
        Route::get(
            "/api/v1/sessions/{id}/patch",
            "patch",
            "What differs between the states at two events, forwards or backwards.",
            patch,
        )
        .query::<Two>()
        .answers::<PagePatch>(200),
        Route::get("/api/v1/sessions/{id}/frames", "frames", "The frames of a node, page by page.", frames)
            .query::<FrameQuery>()
            .answers::<FramePage>(200),
        Route::get(
            "/api/v1/sessions/{id}/graph",
            "graph",
            "The nodes and edges with what the session made of them, and the place of each in the drawing.",
            graph,
        )
        .query::<GraphQuery>()
        .answers::<Drawing>(200),
        Route::get(
            "/api/v1/sessions/{id}/sums",
            "sums",
            "What the nodes within frames did, each over all of its frames, by their paths in the drawing.",
            sums,
        )
        .query::<At>()
        .answers::<BTreeMap<String, Results>>(200),
        Route::get(
            "/api/v1/sessions/{id}/timeline",
            "timeline",
            "When each node worked and waited.",
            timeline,
        )
        .query::<TimelineQuery>()
        .answers::<Timeline>(200),
        Route::get(
            "/api/v1/sessions/{id}/stream",
            "stream",
            "What happened in a node, item by item.",
            stream,
        )
        .query::<StreamQuery>()
        .answers::<StreamPage>(200),
        Route::get(
            "/api/v1/sessions/{id}/cost",
            "cost",
            "What the session has spent, by node and by model.",
            cost,
        )
        .query::<At>()
        .answers::<Cost>(200),
        Route::get(
            "/api/v1/sessions/{id}/report",
            "report",
            "A report of the session for people, as an HTML page or as Markdown.",
            report,
        )
        .media(200, &[HTML, MARKDOWN]),
    ]
}

/// The session of a path, with its fold.
struct Watched(Arc<Watch>);

impl FromRequestParts<App> for Watched {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let ExistingSession(id) = ExistingSession::from_request_parts(parts, app).await?;
        Ok(Self(watched(app, &id).await?))
    }
}

pub(super) async fn watched(app: &App, id: &SessionId) -> Result<Arc<Watch>, Problem> {
    Ok(app.watches.get(&app.sessions, id).await?)
}

/// The frames that a text names, separated by commas.
pub(crate) fn open_frames(text: Option<&str>) -> BTreeSet<String> {
    let names = text.into_iter().flat_map(|text| text.split(','));
    names.map(str::trim).filter(|name| !name.is_empty()).take(OPEN).map(str::to_owned).collect()
}

/// A moment of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct At {
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
}

/// A moment of a session, and the frames that are open.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Moment {
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
    /// The frames whose nodes are in the state too, separated by commas: `each[3],each[4]`.
    #[serde(default)]
    open: Option<String>,
}

async fn state(Watched(watch): Watched, Query(moment): Query<Moment>) -> Result<Json<PageState>, Problem> {
    Ok(Json(watch.state(moment.at, &open_frames(moment.open.as_deref())).await?))
}

/// Two moments of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Two {
    /// The event of the state that the caller has.
    from: u64,
    /// The event of the state that it leads to; the newest if absent.
    #[serde(default)]
    at: Option<u64>,
    /// The frames whose nodes are in both states, separated by commas.
    #[serde(default)]
    open: Option<String>,
}

async fn patch(Watched(watch): Watched, Query(two): Query<Two>) -> Result<Json<PagePatch>, Problem> {
    let open = open_frames(two.open.as_deref());
    Ok(Json(watch.patch(two.from, two.at, &open).await?))
}

/// Which frames of a node are wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FrameQuery {
    /// The path of the node. With a pass, `each#2`, the frames of that pass.
    node: String,
    /// Leaves out so many.
    #[serde(default)]
    from: usize,
    /// At most so many, 100 if absent.
    #[serde(default)]
    limit: Option<usize>,
    /// Only those with this status: `running`, `waiting`, `complete`, `failed` or `cancelled`.
    #[serde(default)]
    status: Option<NodeStatus>,
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
}

async fn frames(
    Watched(watch): Watched,
    Query(query): Query<FrameQuery>,
) -> Result<Json<FramePage>, Problem> {
    let node = NodePath::new(&query.node);
    let limit = query.limit.unwrap_or(LIMIT).clamp(1, MOST);
    let select = FrameSelect { status: query.status, from: query.from, limit };
    let page = watch.read(query.at, |fold, session| fold.frames(session, &node, select)).await?;
    page.map(Json).ok_or_else(|| unknown_node(&query.node))
}

pub(super) fn unknown_node(node: &str) -> Problem {
    Problem::new("unknownNode", format!("the session has no node `{node}`, or it has not started"))
}

/// What is wanted of a graph.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GraphQuery {
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
    /// Whether the answer has the results of the session, as it does if this is absent. Without them it does not wait for
    /// the log.
    #[serde(default)]
    results: Option<bool>,
}

async fn graph(
    State(app): State<App>,
    ExistingSession(id): ExistingSession,
    Query(GraphQuery { at, results }): Query<GraphQuery>,
) -> Result<Json<Drawing>, Problem> {
    if results == Some(false) {
        // A client that asks for the graph alone asks for the state next: so the log is read while
        // the flow is compiled.
        let (reader, session) = (app.clone(), id.clone());
        tokio::spawn(async move { watched(&reader, &session).await });
        let flow = app.watches.flow(&app.sessions, &id).await?;
        return Ok(Json(Drawing::clone(&*flow.drawing().await)));
    }
    Ok(Json(watched(&app, &id).await?.drawing(at).await?))
}

async fn sums(
    Watched(watch): Watched,
    Query(At { at }): Query<At>,
) -> Result<Json<BTreeMap<String, Results>>, Problem> {
    Ok(Json(watch.drawing(at).await?.in_frames()))
}

/// Which rows of a timeline are wanted.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct TimelineQuery {
    /// Only nodes whose paths begin with this: `each[3]/` for those of one frame.
    within: String,
    /// At most so many rows, 2000 if absent.
    limit: Option<usize>,
    /// The newest event that counts; all that there are if absent.
    at: Option<u64>,
}

async fn timeline(
    Watched(watch): Watched,
    Query(query): Query<TimelineQuery>,
) -> Result<Json<Timeline>, Problem> {
    let limit = query.limit.unwrap_or(ROWS).clamp(1, MOST_ROWS);
    Ok(Json(watch.timeline(query.at, &query.within, limit).await?))
}

/// Which items of a node's stream are wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StreamQuery {
    /// The path of the node: `each[3]/fix`, or `fix#2` for one pass.
    node: String,
    /// Only items of this attempt.
    #[serde(default)]
    attempt: Option<u32>,
    /// Only items of this pass of its loop.
    #[serde(default)]
    pass: Option<u32>,
    /// Only items that changed after this event.
    #[serde(default)]
    since: Option<u64>,
    /// The index of the first item; without it and `since`, the last items are sent.
    #[serde(default)]
    from: Option<usize>,
    /// At most so many, 100 if absent.
    #[serde(default)]
    limit: Option<usize>,
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
}

async fn stream(
    Watched(watch): Watched,
    Query(query): Query<StreamQuery>,
) -> Result<Json<StreamPage>, Problem> {
    let node = NodePath::new(&query.node);
    if !watch.has_node(&node) {
        return Err(unknown_node(&query.node));
    }
    let limit = query.limit.unwrap_or(LIMIT).clamp(1, MOST);
    let select = StreamSelect {
        attempt: query.attempt,
        pass: query.pass,
        since: query.since,
        from: query.from,
        limit,
    };
    Ok(Json(watch.stream(query.at, &node, select).await?))
}

async fn cost(Watched(watch): Watched, Query(At { at }): Query<At>) -> Result<Json<Cost>, Problem> {
    Ok(Json(watch.cost(at).await?))
}

async fn report(
    State(app): State<App>,
    Watched(watch): Watched,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let report = watch.report(&watch.flow.redactor(&app.environment)).await?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.contains(MARKDOWN) && !accept.contains(HTML) {
        return Ok(
            ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], report.markdown()).into_response()
        );
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, REPORT_POLICY),
    ];
    Ok((headers, report.html()).into_response())
}
