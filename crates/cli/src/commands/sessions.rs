//! What the commands for sessions share: finding one by a prefix of its id, its status, its flow
//! compiled again, and the commands that continue it.

use std::{ffi::OsStr, future::Future, path::Path, sync::Arc};

use inspan_flow::{Compiled, FlowSource, Graph, Loaded, RunStore, SessionEntry, SessionRecord, compile};
use inspan_protocol::{Outcome, SessionId};

use super::{registries, session::SessionSettings};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::working_folder;
use inspan_view::DisplayStatus;

/// How many sessions are named that an id may have meant.
const CANDIDATES: usize = 8;

/// Runs a look at the store to its end.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    runtime.block_on(work)
}

/// The session whose id this is, or the only one whose id begins so.
pub(crate) async fn find(store: &dyn RunStore, prefix: &str) -> Result<SessionEntry, Failure> {
    let unknown = |message: String| Failure::usage(message).with_hint("`inspan ps --all` lists the sessions");
    if let Some(name) = prefix.strip_prefix('@') {
        return by_name(store, name).await;
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
        many => {
            // One that is called exactly so may not be among the newest.
            if let Ok(entry) = store.entry(&SessionId::from(prefix)).await {
                return Ok(entry);
            }
            let mut names: Vec<String> =
                found.iter().take(CANDIDATES).map(|entry| format!("`{}`", entry.session)).collect();
            if many > CANDIDATES {
                names.push("…".to_owned());
            }
            let message = format!("several session IDs start with `{prefix}`: {}", names.join(", "));
            Err(Failure::usage(message).with_hint("use a longer prefix"))
        }
    }
}

/// Sessions that are looked at for those of a folder.
const NEWEST: usize = 1000;

/// The session that `@last`, `@last-failed` or, where none is given, `@only` means: of those that were started in the
/// working folder.
async fn by_name(store: &dyn RunStore, name: &str) -> Result<SessionEntry, Failure> {
    let wanted: fn(DisplayStatus) -> bool = match name {
        "last" => |_| true,
        "last-failed" => |standing| match standing {
            DisplayStatus::Ended(outcome) => outcome != Outcome::Success,
            DisplayStatus::Interrupted => true,
            _ => false,
        },
        "only" => |standing| !standing.has_ended(),
        other => {
            return Err(Failure::usage(format!("`@{other}` is not a session"))
                .with_hint("use a session ID, `@last` or `@last-failed`"));
        }
    };
    let cwd = working_folder();
    let mut found: Vec<SessionEntry> = Vec::new();
    for entry in store.entries("", NEWEST).await? {
        if !wanted(DisplayStatus::of(&entry)) {
            continue;
        }
        // One that cannot be read is no reason not to find another.
        let Ok(record) = store.record(&entry.session).await else { continue };
        let started = SessionSettings::of_map(&record.settings).ok().and_then(|settings| settings.cwd);
        if started != cwd {
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
            Err(Failure::usage(format!("{what} was started in this folder"))
                .with_hint("name one by its ID; `inspan ps --all` lists the sessions of all folders"))
        }
        1 => readable(store, found.swap_remove(0)).await,
        many => {
            let names: Vec<String> =
                found.iter().take(CANDIDATES).map(|entry| format!("`{}`", entry.session)).collect();
            let more = if many > CANDIDATES { ", …" } else { "" };
            Err(Failure::usage(format!("{many} open sessions of this folder: {}{more}", names.join(", ")))
                .with_hint("name one by its ID, or the newest by `@last`"))
        }
    }
}

/// The newest sessions of a flow: of its name, and started from its file.
pub(super) async fn of_flow(
    store: &dyn RunStore,
    graph: &Graph,
    most: usize,
) -> Result<Vec<(SessionEntry, SessionRecord)>, Failure> {
    let name = |source: &FlowSource| Path::new(&source.file).file_name().map(OsStr::to_owned);
    let mut found = Vec::new();
    for entry in store.entries("", NEWEST).await? {
        if entry.flow != graph.name || entry.damage.is_some() {
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
    Ok(found)
}

/// Of a session that cannot be read the store's own error says why.
async fn readable(store: &dyn RunStore, entry: SessionEntry) -> Result<SessionEntry, Failure> {
    match entry.damage {
        None => Ok(entry),
        Some(_) => Ok(store.entry(&entry.session).await?),
    }
}

/// The flow that a session runs, as it was when the session began.
pub(super) fn graph(record: &SessionRecord) -> Result<Arc<Graph>, Failure> {
    let broken = |why: String| {
        let message = format!("the flow of session `{}` cannot be compiled any more: {why}", record.session);
        Failure::new(Exit::Failed, message)
            .with_hint("the session was started by another version of inspan; use that version")
    };
    let loaded = Loaded::from_source(&record.flow).map_err(|error| broken(error.to_string()))?;
    let nodes = registries::nodes(&registries::providers());
    match compile(&loaded, &nodes) {
        Ok(Compiled { graph, .. }) => Ok(Arc::new(graph)),
        Err(problems) => Err(broken(problems.to_string())),
    }
}

#[cfg(test)]
mod tests;
