//! The list of the newest sessions and the inbox, sent when they change.

use std::time::Duration;

use futures::StreamExt;
use inspan_sessions::{SessionError, questions};
use inspan_view::{DisplayStatus, entry};
use serde_json::{Value, json};

use super::tab::Out;
use crate::{App, problem::Problem};

/// The newest sessions that are sent, beside all that have not ended.
const NEWEST: usize = 100;
/// At most one list is sent in this time.
const PACE: Duration = Duration::from_millis(300);
/// How long no change may be noticed until it is looked all the same: a process that is gone changes no store.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends the lists until the tab leaves.
pub(super) async fn run(app: &App, out: &Out) {
    let mut changes = app.sessions.store().changes();
    let mut sent = Value::Null;
    loop {
        let message = lists(app).await.unwrap_or_else(|error| json!({ "problem": Problem::from(error) }));
        if message != sent {
            if out.send(message.clone()).await.is_err() {
                return;
            }
            sent = message;
        }
        tokio::time::sleep(PACE).await;
        if let Ok(None) = tokio::time::timeout(PATIENCE, changes.next()).await {
            tokio::time::sleep(PATIENCE).await;
        }
    }
}

async fn lists(app: &App) -> Result<Value, SessionError> {
    let mut entries = app.sessions.list(usize::MAX).await?;
    let inbox: Vec<Value> = questions(&entries).iter().map(|question| question.json(&app.commands)).collect();
    let mut place = 0;
    entries.retain(|entry| {
        place += 1;
        place <= NEWEST || !DisplayStatus::of(entry).has_ended()
    });
    let sessions: Vec<Value> = entries.iter().map(entry::json).collect();
    Ok(json!({ "sessions": sessions, "inbox": inbox }))
}
