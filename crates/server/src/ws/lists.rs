//! The list of the newest sessions and the inbox, sent when they change.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use axum::extract::ws::Utf8Bytes;
use futures::StreamExt;
use inspan_sessions::{SessionError, questions};
use inspan_view::{DisplayStatus, entry};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::tab::Out;
use crate::{App, problem::Problem};

/// The newest sessions that are sent, beside all that have not ended.
const NEWEST: usize = 100;
/// At most one list is sent in this time.
const PACE: Duration = Duration::from_millis(300);
/// After how long without a change the store is read anyway: a process that is gone changes no store.
const PATIENCE: Duration = Duration::from_secs(3);

/// What reads the lists for all tabs, while one of them shows them.
#[derive(Debug, Default)]
pub(crate) struct ListReader(Mutex<Weak<watch::Sender<Utf8Bytes>>>);

impl ListReader {
    fn lock(&self) -> MutexGuard<'_, Weak<watch::Sender<Utf8Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the lists until the tab leaves.
pub(super) async fn run(app: &App, out: &Out) {
    let mut lists = subscribed(app);
    loop {
        let message = lists.borrow_and_update().clone();
        // It is empty until the lists are read.
        if !message.as_str().is_empty() && out.send_text(message).await.is_err() {
            return;
        }
        if lists.changed().await.is_err() {
            return;
        }
    }
}

fn subscribed(app: &App) -> watch::Receiver<Utf8Bytes> {
    let mut reader = app.lists.lock();
    if let Some(sender) = reader.upgrade() {
        return sender.subscribe();
    }
    let (sender, receiver) = watch::channel(Utf8Bytes::default());
    let sender = Arc::new(sender);
    *reader = Arc::downgrade(&sender);
    tokio::spawn(read(app.clone(), sender));
    receiver
}

/// Reads the lists until no tab shows them.
async fn read(app: App, sender: Arc<watch::Sender<Utf8Bytes>>) {
    let mut changes = app.sessions.store().changes();
    loop {
        let message = lists(&app).await.unwrap_or_else(|error| json!({ "problem": Problem::from(error) }));
        let message = Utf8Bytes::from(message.to_string());
        sender.send_if_modified(|sent| {
            let is_new = *sent != message;
            *sent = message;
            is_new
        });
        tokio::time::sleep(PACE).await;
        if let Ok(None) = tokio::time::timeout(PATIENCE, changes.next()).await {
            tokio::time::sleep(PATIENCE).await;
        }
        // A subscriber holds the lock, so it finds either this reader or no reader.
        let _locked = app.lists.lock();
        if sender.is_closed() {
            drop(sender);
            return;
        }
    }
}

async fn lists(app: &App) -> Result<Value, SessionError> {
    let mut entries = app.sessions.list(usize::MAX).await?;
    let inbox = questions(&entries, app.sessions.clock().now());
    let inbox: Vec<Value> = inbox.iter().map(|question| question.json(app.sessions.commands())).collect();
    let mut place = 0;
    entries.retain(|entry| {
        place += 1;
        place <= NEWEST || !DisplayStatus::of(entry).has_ended()
    });
    let sessions: Vec<Value> = entries.iter().map(entry::json).collect();
    Ok(json!({ "sessions": sessions, "inbox": inbox }))
}
