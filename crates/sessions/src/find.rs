//! Finding sessions: by an id, the beginning of one, a name as `@last`, or by their flow.

use std::{ffi::OsStr, path::Path};

use inspan_flow::{FlowSource, Graph, History, RunStore, Select, SessionEntry, SessionRecord, StoreError};
use inspan_protocol::{Outcome, SessionId};
use inspan_view::DisplayStatus;

use crate::{SessionError, SessionErrorCode};

/// How many sessions an error names that an id may have meant.
const CANDIDATES: usize = 8;
/// How many of the newest sessions of a flow a forecast is based on.
const SESSIONS: usize = 20;

/// The session with this id, or the only one whose id has this prefix. `@last`, `@last-failed` and `@only` mean
/// sessions that were started in the folder `cwd`.
pub async fn find(
    store: &dyn RunStore,
    prefix: &str,
    cwd: Option<&Path>,
) -> Result<SessionEntry, SessionError> {
    let unknown = |message: String| {
        SessionError::new(SessionErrorCode::UnknownSession, message)
            .with_hint("`inspan ps --all` lists the sessions")
    };
    if let Some(name) = prefix.strip_prefix('@') {
        return by_name(store, name, cwd).await;
    }
    if prefix.is_empty() {
        return Err(unknown("a session ID has at least one character".to_owned()));
    }
    let mut found = store.entries(prefix, CANDIDATES + 1).await?;
    if let Some(at) = found.iter().position(|entry| entry.session == *prefix) {
        return readable(store, found.swap_remove(at)).await;
    }
    match found.len() {
        0 => Err(unknown(format!("no session ID starts with `{prefix}`"))),
        1 => readable(store, found.swap_remove(0)).await,
        _ => {
            // The one with exactly this id may not be among the newest.
            if let Ok(entry) = store.entry(&SessionId::from(prefix)).await {
                return Ok(entry);
            }
            let message = format!("several session IDs start with `{prefix}`: {}", candidates(&found));
            Err(SessionError::new(SessionErrorCode::AmbiguousSession, message)
                .with_hint("use a longer prefix"))
        }
    }
}

/// The first of these sessions, as an error names them.
fn candidates(found: &[SessionEntry]) -> String {
    let names = found.iter().take(CANDIDATES).map(|entry| format!("`{}`", entry.session));
    let more = (found.len() > CANDIDATES).then(|| "…".to_owned());
    names.chain(more).collect::<Vec<_>>().join(", ")
}

/// How many sessions are searched for those of a folder.
const NEWEST: usize = 1000;

/// The session that `@last`, `@last-failed` or, where none is given, `@only` means: of those that were started in the
/// working folder.
async fn by_name(store: &dyn RunStore, name: &str, cwd: Option<&Path>) -> Result<SessionEntry, SessionError> {
    let unknown = |message: String| SessionError::new(SessionErrorCode::UnknownSession, message);
    let wanted: fn(DisplayStatus) -> bool = match name {
        "last" => |_| true,
        "last-failed" => |status| match status {
            DisplayStatus::Ended(outcome) => outcome != Outcome::Success,
            DisplayStatus::Interrupted => true,
            _ => false,
        },
        "only" => |status| !status.has_ended(),
        other => {
            return Err(unknown(format!("`@{other}` is not a session"))
                .with_hint("use a session ID, `@last` or `@last-failed`"));
        }
    };
    let mut found: Vec<SessionEntry> = Vec::new();
    for entry in store.entries("", NEWEST).await? {
        if !wanted(DisplayStatus::of(&entry)) {
            continue;
        }
        // One that cannot be read is skipped.
        let Ok(record) = store.record(&entry.session).await else { continue };
        let started = record.settings.get("cwd").and_then(|started| started.as_str());
        if started.map(Path::new) != cwd {
            continue;
        }
        if name != "only" {
            return readable(store, entry).await;
        }
        found.push(entry);
    }
    match found.len() {
        0 => {
            let what = match name {
                "last" => "no session",
                "last-failed" => "no failed session",
                _ => "no open session",
            };
            Err(unknown(format!("{what} was started in this folder"))
                .with_hint("name one by its ID; `inspan ps --all` lists the sessions of all folders"))
        }
        1 => readable(store, found.swap_remove(0)).await,
        many => {
            let message = format!("{many} open sessions of this folder: {}", candidates(&found));
            Err(SessionError::new(SessionErrorCode::AmbiguousSession, message)
                .with_hint("name one by its ID, or the newest by `@last`"))
        }
    }
}

/// Which sessions of a flow count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All.
    All,
    /// Those that did the work: a replay only answers from a recording.
    Real,
}

/// The newest sessions of a flow: of its name, and started from its file.
pub async fn of_flow(
    store: &dyn RunStore,
    graph: &Graph,
    counted: Counted,
    most: usize,
) -> Result<Vec<(SessionEntry, SessionRecord)>, SessionError> {
    let name = |source: &FlowSource| Path::new(&source.file).file_name().map(OsStr::to_owned);
    let mut newest = NEWEST;
    loop {
        let entries = store.entries("", newest).await?;
        let is_all = entries.len() < newest;
        let mut found = Vec::new();
        for entry in entries {
            let counts = counted == Counted::All || !entry.is_replay;
            if entry.flow != graph.name || entry.damage.is_some() || !counts {
                continue;
            }
            // It may have been deleted meanwhile.
            let Ok(record) = store.record(&entry.session).await else { continue };
            let flow = &record.flow;
            if flow.folder == graph.source.folder && name(flow) == name(&graph.source) {
                found.push((entry, record));
            }
            if found.len() == most {
                break;
            }
        }
        if is_all || found.len() == most {
            return Ok(found);
        }
        // Those of a flow that seldom runs may be older than many others.
        newest = newest.saturating_mul(10);
    }
}

/// What the newest sessions of a flow took, but for one of them. What a recording was made of is counted by the session
/// that made it, and a damaged session is skipped.
pub async fn history(
    store: &dyn RunStore,
    graph: &Graph,
    except: Option<&SessionId>,
) -> Result<History, SessionError> {
    let mut history = History::default();
    for (entry, record) in of_flow(store, graph, Counted::Real, SESSIONS).await? {
        if except == Some(&entry.session) {
            continue;
        }
        match store.read(&entry.session, record.first_seq(), Select::Names(History::EVENTS)).await {
            Ok(log) => history.add(&log, &record.flow.only()),
            Err(
                StoreError::Damaged { .. }
                | StoreError::DamagedObject { .. }
                | StoreError::OtherKey { .. }
                // It was deleted meanwhile.
                | StoreError::UnknownSession(_),
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(history)
}

/// For a session that cannot be read, the store's own error says why.
async fn readable(store: &dyn RunStore, entry: SessionEntry) -> Result<SessionEntry, SessionError> {
    match entry.damage {
        None => Ok(entry),
        Some(_) => Ok(store.entry(&entry.session).await?),
    }
}

#[cfg(test)]
mod tests {
    use inspan_flow::{MemoryStore, Owner};
    use inspan_protocol::Timestamp;
    use serde_json::Map;

    use super::*;

    /// A store with sessions of these ids, each a moment newer than the one before.
    async fn store(ids: &[String]) -> MemoryStore {
        let store = MemoryStore::new();
        for (at, id) in (0..).zip(ids) {
            let at = Timestamp::from_millis(at);
            let id = SessionId::from(id.as_str());
            let record = SessionRecord::new(id, FlowSource::default(), Map::new(), at);
            store.create(&record, &Owner::of_process(), at).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn a_flow_that_seldom_runs_is_found_below_many_sessions_of_others() {
        let store = store(&(0..NEWEST + 5).map(|at| at.to_string()).collect::<Vec<_>>()).await;
        let source =
            FlowSource { name: "seldom".to_owned(), file: "seldom.yaml".to_owned(), ..FlowSource::default() };
        let mut graph = Graph::default();
        (graph.name, graph.source) = (source.name.clone(), source.clone().into());
        let (id, at) = (SessionId::from("its-own"), Timestamp::from_millis(3));
        store
            .create(&SessionRecord::new(id.clone(), source, Map::new(), at), &Owner::of_process(), at)
            .await
            .unwrap();
        let found = of_flow(&store, &graph, Counted::Real, 20).await.unwrap();
        assert_eq!(found.iter().map(|(entry, _)| &entry.session).collect::<Vec<_>>(), [&id]);
    }

    #[tokio::test]
    async fn a_beginning_finds_one_session_and_a_whole_id_its_own() {
        let mut ids: Vec<String> = ["a", "flow-1", "flow-2"].map(str::to_owned).to_vec();
        ids.extend((0..20).map(|at| format!("a{at:02}")));
        let store = store(&ids).await;
        let mut found = Vec::new();
        for prefix in ["flow-1", "a07", "a", "flow", "b", "a1", ""] {
            found.push(match find(&store, prefix, None).await {
                Ok(entry) => entry.session.to_string(),
                Err(failure) => failure.message,
            });
        }
        let several = "several session IDs start with";
        assert_eq!(
            found,
            [
                "flow-1".to_owned(),
                "a07".to_owned(),
                "a".to_owned(),
                format!("{several} `flow`: `flow-2`, `flow-1`"),
                "no session ID starts with `b`".to_owned(),
                format!("{several} `a1`: `a19`, `a18`, `a17`, `a16`, `a15`, `a14`, `a13`, `a12`, …"),
                "a session ID has at least one character".to_owned(),
            ]
        );
    }
}
