//! The list of sessions and the inbox.

use axum::{Json, extract::State};
use inspan_flow::SessionEntry;
use inspan_protocol::Timestamp;
use inspan_view::{DisplayStatus, entry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    App,
    api::session,
    problem::Problem,
    route::{Query, Route},
};

/// The sessions of one answer unless more are asked for.
const LIMIT: usize = 100;
/// The most sessions of one answer.
const MOST: usize = 1_000;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/sessions", "sessions", "The sessions, newest first.", sessions)
            .query::<SessionFilter>()
            .answers::<SessionPage>(200),
        Route::get(
            "/api/v1/inbox",
            "inbox",
            "The questions that wait for a person, the most urgent first.",
            inbox,
        )
        .query::<InboxFilter>()
        .answers::<Vec<Value>>(200),
    ]
}

/// Which sessions are listed.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct SessionFilter {
    /// Only those in one of these states, separated by commas: `running,waiting`. `open` means all that have not ended.
    state: Option<String>,
    /// Only those of the flow of this name.
    flow: Option<String>,
    /// Only those whose id or flow has this in it.
    q: Option<String>,
    /// The sessions of the answer, at most 1000; 100 if absent.
    limit: Option<usize>,
    /// The `next` of the answer before.
    cursor: Option<String>,
}

/// A page of sessions.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SessionPage {
    /// The sessions, each as `inspan ps --json` lists it.
    sessions: Vec<Value>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Where a page of the list begins: after the session that was made then and has this id. Sessions that are made
/// meanwhile do not shift the pages.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ListCursor {
    created_at: Timestamp,
    id: String,
}

impl ListCursor {
    fn of(entry: &SessionEntry) -> Self {
        Self { created_at: entry.created_at, id: entry.session.to_string() }
    }

    fn text(&self) -> String {
        format!("{}-{}", self.created_at.as_millis(), self.id)
    }

    fn read(text: &str) -> Option<Self> {
        let (at, id) = text.split_once('-')?;
        Some(Self { created_at: Timestamp::from_millis(at.parse().ok()?), id: id.to_owned() })
    }
}

impl SessionFilter {
    /// A word of `state` that no session can have would list nothing, and look as if there were none.
    fn check(&self) -> Result<(), Problem> {
        let known =
            |word: &str| word == "open" || DisplayStatus::ALL.iter().any(|state| state.word() == word);
        let mut words = self.state.iter().flat_map(|states| states.split(',')).map(str::trim);
        let Some(unknown) = words.find(|word| !known(word)) else { return Ok(()) };
        let states: Vec<_> = DisplayStatus::ALL.iter().map(|state| state.word()).collect();
        let detail = format!("`state` has no value `{unknown}`: use open, {}", states.join(", "));
        Err(Problem::invalid(detail))
    }

    fn takes(&self, entry: &SessionEntry) -> bool {
        let status = DisplayStatus::of(entry);
        let in_state = |states: &String| {
            states.split(',').map(str::trim).any(|state| match state {
                "open" => !status.has_ended(),
                state => state == status.word(),
            })
        };
        let has = |q: &String| entry.session.as_str().contains(q.as_str()) || entry.flow.contains(q.as_str());
        self.state.as_ref().is_none_or(in_state)
            && self.flow.as_ref().is_none_or(|flow| *flow == entry.flow)
            && self.q.as_ref().is_none_or(has)
    }
}

async fn sessions(
    State(app): State<App>,
    Query(filter): Query<SessionFilter>,
) -> Result<Json<SessionPage>, Problem> {
    filter.check()?;
    let after = match &filter.cursor {
        None => None,
        Some(text) => Some(
            ListCursor::read(text).ok_or_else(|| Problem::invalid("`cursor` is not the `next` of a page"))?,
        ),
    };
    let limit = filter.limit.unwrap_or(LIMIT).clamp(1, MOST);
    let mut entries = app.sessions.list(usize::MAX).await?;
    entries.retain(|entry| filter.takes(entry));
    entries.sort_by_cached_key(|entry| std::cmp::Reverse(ListCursor::of(entry)));
    if let Some(after) = after {
        entries.retain(|entry| ListCursor::of(entry) < after);
    }
    let next = (entries.len() > limit).then(|| ListCursor::of(&entries[limit - 1]).text());
    entries.truncate(limit);
    Ok(Json(SessionPage { sessions: entries.iter().map(entry::json).collect(), next }))
}

/// Whose questions are listed.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct InboxFilter {
    /// Only those of this session.
    #[serde(default)]
    session: Option<String>,
}

async fn inbox(
    State(app): State<App>,
    Query(filter): Query<InboxFilter>,
) -> Result<Json<Vec<Value>>, Problem> {
    let session = match &filter.session {
        None => None,
        Some(named) => Some(session(&app, named).await?),
    };
    let open = app.sessions.inbox(session.as_ref()).await?;
    Ok(Json(open.iter().map(|question| question.json(app.sessions.commands())).collect()))
}
