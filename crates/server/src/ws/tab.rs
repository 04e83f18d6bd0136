//! One tab: what it asks for, and the tasks that send it what it asked for.

use std::{collections::HashMap, time::Duration};

use axum::extract::ws::{Message as Frame, Utf8Bytes, WebSocket};
use futures::{Sink, SinkExt, StreamExt};
use inspan_sessions::SessionCommand;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{AbortHandle, JoinSet},
    time::{Instant, interval_at},
};

use super::{TabMessage, feed, lists};
use crate::{App, api::session, problem::Problem};

/// Messages that wait for the socket. The rest waits in the store.
const QUEUE: usize = 8;
/// Sessions that one tab may follow.
const SUBSCRIPTIONS: usize = 16;
/// Commands of one tab that may be under way.
const COMMANDS: usize = 8;
/// How often a tab is sent something: it takes a longer silence for a lost connection.
const BEAT: Duration = Duration::from_secs(20);

/// Where the tasks of a tab put what is sent.
#[derive(Clone)]
pub(super) struct Out(mpsc::Sender<Utf8Bytes>);

/// The tab has left.
#[derive(Debug)]
pub(super) struct TabClosed;

impl Out {
    /// Waits until there is room for a message.
    pub(super) async fn send(&self, message: Value) -> Result<(), TabClosed> {
        self.send_text(message.to_string().into()).await
    }

    /// As [`Out::send`], for one that is text already and perhaps shared with others.
    pub(super) async fn send_text(&self, message: Utf8Bytes) -> Result<(), TabClosed> {
        self.0.send(message).await.map_err(|_| TabClosed)
    }
}

/// Serves a tab until it leaves or the server ends.
pub(super) async fn run(app: App, socket: WebSocket, _permit: OwnedSemaphorePermit) {
    let _counted = app.metrics.streaming();
    let (sink, mut frames) = socket.split();
    let (out, queue) = mpsc::channel(QUEUE);
    let out = Out(out);
    let end = app.end.clone();
    let mut tab = Tab { app, out, tasks: JoinSet::new(), followed: HashMap::new(), lists: None, commands: 0 };
    let writing = write(sink, queue);
    let reading = async {
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(Ok(Frame::Text(text))) => tab.take(text.as_str()).await,
                    Some(Ok(Frame::Binary(_))) => tab.refuse(&Problem::invalid("messages are JSON text"), None).await,
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                    Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
                },
                Some(done) = tab.tasks.join_next() => tab.commands -= usize::from(matches!(done, Ok(TabTask::Command))),
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
        () = end.cancelled() => {}
    }
}

/// Writes what is queued. It ends when the viewer is gone, which includes that it has not read for too long.
async fn write(mut sink: impl Sink<Frame> + Unpin, mut queue: mpsc::Receiver<Utf8Bytes>) {
    let mut beat = interval_at(Instant::now() + BEAT, BEAT);
    loop {
        let frame = tokio::select! {
            message = queue.recv() => match message {
                Some(message) => Frame::Text(message),
                None => return,
            },
            // Scripts of a browser do not see pings.
            _ = beat.tick() => Frame::Text("{}".into()),
        };
        if sink.send(frame).await.is_err() {
            return;
        }
    }
}

/// What a task of a tab did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TabTask {
    Feed,
    Command,
}

/// What a tab asked for. Its tasks end with it.
struct Tab {
    app: App,
    out: Out,
    tasks: JoinSet<TabTask>,
    /// The sessions that it follows, as it names them.
    followed: HashMap<String, AbortHandle>,
    lists: Option<AbortHandle>,
    /// Commands under way.
    commands: usize,
}

impl Tab {
    async fn take(&mut self, text: &str) {
        let message: TabMessage = match serde_json::from_str(text) {
            Ok(message) => message,
            Err(error) => return self.refuse(&Problem::invalid(format!("the message: {error}")), None).await,
        };
        match message {
            TabMessage { subscribe: Some(named), wish, .. } => {
                self.forget(&named);
                // A session that has ended is followed no more.
                self.followed.retain(|_, task| !task.is_finished());
                if self.followed.len() >= SUBSCRIPTIONS {
                    let detail = format!("a tab follows at most {SUBSCRIPTIONS} sessions");
                    return self.refuse(&Problem::invalid(detail), Some(("session", named))).await;
                }
                let (app, out, id) = (self.app.clone(), self.out.clone(), named.clone());
                let task = self.tasks.spawn(async move {
                    feed::run(&app, &id, wish, &out).await;
                    TabTask::Feed
                });
                self.followed.insert(named, task);
            }
            TabMessage { unsubscribe: Some(named), .. } => self.forget(&named),
            TabMessage { sessions: Some(wanted), .. } => {
                self.lists.take().iter().for_each(AbortHandle::abort);
                if wanted {
                    let (app, out) = (self.app.clone(), self.out.clone());
                    self.lists = Some(self.tasks.spawn(async move {
                        lists::run(&app, &out).await;
                        TabTask::Feed
                    }));
                }
            }
            TabMessage { command: Some(command), session: Some(named), key, .. } => {
                self.command(command, named, key).await;
            }
            _ => {
                let what = "a message has `subscribe`, `unsubscribe`, `sessions`, or `command` and `session`";
                self.refuse(&Problem::invalid(what), None).await;
            }
        }
    }

    async fn command(&mut self, command: SessionCommand, named: String, key: Option<String>) {
        if self.commands >= COMMANDS {
            let problem = Problem::invalid(format!("at most {COMMANDS} commands may be under way"));
            return self.refuse(&problem, key.map(|key| ("key", key))).await;
        }
        self.commands += 1;
        let (app, out) = (self.app.clone(), self.out.clone());
        self.tasks.spawn(async move {
            let applied = async {
                let id = session(&app, &named).await?;
                app.sessions.apply(&id, &command, key.as_deref()).await
            };
            let mut message = match applied.await {
                Ok(receipt) => json!(receipt),
                Err(error) => json!({ "problem": Problem::from(error) }),
            };
            message["session"] = json!(named);
            if let Some(key) = key {
                message["key"] = json!(key);
            }
            // A tab that has left does not get it.
            let _ = out.send(message).await;
            TabTask::Command
        });
    }

    fn forget(&mut self, named: &str) {
        if let Some(task) = self.followed.remove(named) {
            task.abort();
        }
    }

    async fn refuse(&self, problem: &Problem, about: Option<(&str, String)>) {
        let mut message = json!({ "problem": problem });
        if let Some((key, value)) = about {
            message[key] = json!(value);
        }
        let _ = self.out.send(message).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tab_that_nothing_happens_for_is_sent_an_empty_message_every_20_seconds() {
        let (out, queue) = mpsc::channel(QUEUE);
        let (sink, sent) = futures::channel::mpsc::unbounded();
        let began = Instant::now();
        let beats = sent.take(2).map(|frame| (frame, began.elapsed().as_secs())).collect::<Vec<_>>();
        let beats = tokio::select! {
            () = write(sink, queue) => Vec::new(),
            beats = beats => beats,
        };
        assert_eq!(beats, [(Frame::Text("{}".into()), 20), (Frame::Text("{}".into()), 40)]);
        drop(out);
    }
}
