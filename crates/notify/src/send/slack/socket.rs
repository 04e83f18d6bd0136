//! Socket Mode: a WebSocket that this side opens, through which Slack sends what people do. Every envelope is
//! acknowledged once its answer is stored; Slack sends it again if the connection breaks before that.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{FutureExt, SinkExt, StreamExt, future::BoxFuture};
use inspan_protocol::Redactor;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{Message as Frame, protocol::WebSocketConfig},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    FaultReport, Listener, SendError,
    blocks::{self, AnswerTarget},
    escaped,
    interaction::{Act, Interaction, SlackMessage},
};
use crate::{
    answers::{AnswerError, Answers, StoredAnswer},
    message::{line, lines},
    settings::is_loopback,
};

/// The largest envelope, in bytes.
const LARGEST: usize = 1024 * 1024;
/// How long a connection may take to open, and how long nothing may come: Slack sends a ping every few seconds.
const OPEN: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(120);
/// The waits between attempts to connect.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// After how many failures in a row people are told.
const TELLING: u32 = 3;
/// How many answers may be worked on at once, and how long one may take.
const WORKING: usize = 16;
const WORK: Duration = Duration::from_secs(60);
/// How many envelopes are remembered, to know one that comes again.
const REMEMBERED: usize = 1_000;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// Receives answers until it is cancelled. A connection that breaks is opened again.
pub(super) async fn listen(
    listener: Listener,
    answers: Arc<Answers>,
    report: FaultReport,
    cancel: CancellationToken,
) {
    // It fails only if the program has chosen one already, which is then the one to use.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tracker = TaskTracker::new();
    let handler = Arc::new(InteractionHandler { listener, answers, redactor: Redactor::default() });
    let (mut wait, mut seen, mut failures) = (FIRST_WAIT, VecDeque::new(), 0);
    while !cancel.is_cancelled() {
        let connected = tokio::select! {
            () = cancel.cancelled() => break,
            connected = connect(&handler.listener) => connected,
        };
        match connected {
            Ok(socket) => {
                failures = 0;
                handler.listener.set_fault(None, &report).await;
                let was_useful = serve(socket, &handler, &mut seen, &tracker, &cancel).await;
                wait = if was_useful { FIRST_WAIT } else { wait_after(wait, None) };
            }
            Err(error) => {
                tracing::warn!(error = error.message, "no connection to Slack");
                failures += 1;
                // A network that is gone for a moment is nothing to tell.
                if error.is_refusal || failures >= TELLING {
                    let why = format!("it takes no answers: {}", error.message);
                    handler.listener.set_fault(Some(why), &report).await;
                }
                wait = wait_after(wait, error.retry_after);
            }
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            () = sleep(wait) => {}
        }
    }
    tracker.close();
    // What was acknowledged is stored; the rest is only what the message in Slack shows.
    drop(timeout(Duration::from_secs(2), tracker.wait()).await);
}

/// How long to wait after a connection that was none, or of no use: longer each time, and not shorter than Slack asks for.
fn wait_after(wait: Duration, asked: Option<Duration>) -> Duration {
    asked.unwrap_or_default().max((wait * 2).min(LONGEST_WAIT))
}

async fn connect(listener: &Listener) -> Result<Socket, SendError> {
    let api = &listener.api;
    let opened = api.call_as("apps.connections.open", &listener.app_headers, &json!({})).await?;
    let url = opened["url"].as_str().and_then(|url| url.parse::<Url>().ok());
    let url = url.filter(|url| is_trusted(&api.base, url));
    let url = url.ok_or_else(|| SendError::new("Slack named an address that is not its own"))?;
    let limits = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
    let opened = timeout(OPEN, connect_async_with_config(url.as_str(), Some(limits), true)).await;
    match opened {
        Ok(Ok((socket, _))) => Ok(socket),
        // The address has a ticket in it, so it is not repeated.
        Ok(Err(_)) => Err(SendError::new("the WebSocket to Slack could not be opened")),
        Err(_) => Err(SendError::new("the WebSocket to Slack did not open in time")),
    }
}

/// Whether the address of a WebSocket belongs to the API: the same host or one below its domain, encrypted unless it is
/// this machine.
fn is_trusted(api: &Url, socket: &Url) -> bool {
    let (Some(api), Some(host)) = (api.host_str(), socket.host_str()) else { return false };
    if is_loopback(api) {
        return is_loopback(host);
    }
    socket.scheme() == "wss" && (host == api || host.ends_with(&format!(".{api}")))
}

/// Serves one connection until it ends. Returns whether it was of use: something came, or it lasted.
async fn serve(
    mut socket: Socket,
    handler: &Arc<InteractionHandler>,
    seen: &mut VecDeque<String>,
    tracker: &TaskTracker,
    cancel: &CancellationToken,
) -> bool {
    let (began, mut has_come) = (Instant::now(), false);
    loop {
        let frame = tokio::select! {
            () = cancel.cancelled() => break,
            frame = timeout(SILENCE, socket.next()) => frame,
        };
        let text = match frame {
            Ok(Some(Ok(Frame::Text(text)))) => text,
            Ok(Some(Ok(Frame::Close(_)))) | Ok(Some(Err(_)) | None) | Err(_) => break,
            // Pings are answered by the library.
            Ok(Some(Ok(_))) => continue,
        };
        let Ok(envelope) = serde_json::from_str::<Value>(&text) else { continue };
        if envelope["type"] == json!("disconnect") {
            break;
        }
        let Some(id) = envelope["envelope_id"].as_str().filter(|id| id.len() <= 128) else { continue };
        has_come = true;
        if !seen.iter().any(|known| known == id) {
            match handler.take(&envelope).await {
                Taken::Failed => continue,
                Taken::Done => {}
                // So many at once are no people: each waits for the one before it.
                Taken::Work(work) if tracker.len() >= WORKING => work.await,
                Taken::Work(work) => drop(tracker.spawn(work)),
            }
            seen.push_back(id.to_owned());
            if seen.len() > REMEMBERED {
                seen.pop_front();
            }
        }
        let ack = json!({ "envelope_id": id }).to_string();
        if socket.send(Frame::text(ack)).await.is_err() {
            break;
        }
    }
    drop(timeout(Duration::from_secs(1), socket.close(None)).await);
    has_come || began.elapsed() >= LONGEST_WAIT
}

/// What works on interactions: for a connection, and then for the channel that asked.
struct InteractionHandler {
    listener: Listener,
    answers: Arc<Answers>,
    /// What is said in the channel has none of its secrets in it.
    redactor: Redactor,
}

/// The result of an envelope.
enum Taken {
    /// Nothing more is to be done.
    Done,
    /// The answer is stored already; this only informs people.
    Work(BoxFuture<'static, ()>),
    /// The store failed: the envelope is not acknowledged, and Slack sends it again.
    Failed,
}

impl InteractionHandler {
    async fn take(self: &Arc<Self>, envelope: &Value) -> Taken {
        let payload = &envelope["payload"];
        let ours = envelope["type"] == json!("interactive");
        let Some(Interaction { user, place, act }) = Interaction::of(payload).filter(|_| ours) else {
            return Taken::Done;
        };
        let handler = match self.for_asker(act.target()).await {
            Ok(handler) => Arc::new(handler),
            Err(error) => return self.not_answered(error, place, user),
        };
        if !handler.listener.allow.contains(&user) {
            tracing::warn!(user, "a Slack user who is not on the list wanted to answer");
            let why = "You are not among those who may answer: `allow` of this channel does not name you.";
            return Taken::Work(async move { handler.whisper(&place, &user, why).await }.boxed());
        }
        let (target, content, blocks) = match act {
            Act::Write { target, trigger } => {
                let work = async move { handler.ask(&place, &user, &target, &trigger).await };
                return Taken::Work(work.boxed());
            }
            Act::Wrote { target, text } => (target, text, None),
            Act::Choose(target) => (target, String::new(), payload["message"]["blocks"].as_array().cloned()),
        };
        let key = format!("slack-{}", envelope["envelope_id"].as_str().unwrap_or_default());
        match handler.answers.post(&target.s, &target.p, content, target.c.clone(), &key).await {
            Ok(posted) => {
                let work = async move { handler.settle(posted, &place, &user, &target, blocks).await };
                Taken::Work(work.boxed())
            }
            Err(error) => handler.not_answered(error, place, user),
        }
    }

    /// The same for the channel that asked. Slack hands an answer to any connection of the app.
    async fn for_asker(&self, target: &AnswerTarget) -> Result<Self, AnswerError> {
        let asker = self.answers.asker(&target.s, &target.n).await?;
        match asker.listener().filter(|listener| listener.app == self.listener.app) {
            Some(listener) => Ok(Self {
                listener: listener.clone(),
                answers: Arc::clone(&self.answers),
                redactor: asker.redactor.clone(),
            }),
            None => Err(AnswerError::Refused(format!(
                "the channel `{}` takes no answers through this Slack app",
                target.n
            ))),
        }
    }

    fn not_answered(self: &Arc<Self>, error: AnswerError, place: SlackMessage, user: String) -> Taken {
        match error {
            AnswerError::Refused(why) => {
                let (handler, why) = (Arc::clone(self), format!("Not answered: {}.", line(&why, 300)));
                Taken::Work(async move { handler.whisper(&place, &user, &why).await }.boxed())
            }
            AnswerError::Failed(why) => {
                tracing::warn!(why, "an answer from Slack could not be stored");
                Taken::Failed
            }
        }
    }

    /// Opens the dialog that asks for a text.
    async fn ask(&self, place: &SlackMessage, user: &str, target: &AnswerTarget, trigger: &str) {
        match self.answers.question(&target.s, &target.p).await {
            Ok(question) => {
                let view = blocks::dialog(target, &place.json(), &lines(&question.prompt, 2_000));
                self.tell("views.open", json!({ "trigger_id": trigger, "view": view })).await;
            }
            Err(why) => self.whisper(place, user, &format!("Not answered: {why}.")).await,
        }
    }

    /// Waits until the session has taken the answer, and shows it below the question.
    async fn settle(
        &self,
        posted: StoredAnswer,
        place: &SlackMessage,
        user: &str,
        target: &AnswerTarget,
        blocks: Option<Vec<Value>>,
    ) {
        let settled = timeout(WORK, self.answers.settle(posted)).await;
        let note = match settled {
            Ok(Ok(())) => String::new(),
            Ok(Err(AnswerError::Refused(why))) => {
                return self.whisper(place, user, &format!("Not answered: {why}.")).await;
            }
            Ok(Err(AnswerError::Failed(why))) => format!(" ({})", line(&why, 200)),
            Err(_) => " (the session has not taken it yet)".to_owned(),
        };
        // What was typed may have a secret of the session in it: only what the session has taken is without.
        let taken = self.answers.taken(&target.s, &target.p).await.or_else(|| target.c.clone());
        let answer = self.redactor.text(taken.as_deref().unwrap_or("answered"));
        let text = format!("<@{user}>: {}", escaped(&format!("{}{note}", line(&answer, 300))));
        let reply = json!({ "channel": place.channel, "thread_ts": place.message, "text": text });
        self.tell("chat.postMessage", reply).await;
        let Some(mut blocks) = blocks else { return };
        let answers = |element: &Value| {
            let value =
                element["value"].as_str().and_then(|value| serde_json::from_str::<AnswerTarget>(value).ok());
            value.is_some_and(|other| other.p == target.p && other.s == target.s)
        };
        blocks.retain(|block| !block["elements"].as_array().is_some_and(|row| row.iter().any(answers)));
        let update =
            json!({ "channel": place.channel, "ts": place.message, "blocks": blocks, "text": "answered" });
        self.tell("chat.update", update).await;
    }

    /// Sends one user a message that only they see.
    async fn whisper(&self, place: &SlackMessage, user: &str, text: &str) {
        let body = json!({ "channel": place.channel, "user": user, "text": escaped(text) });
        self.tell("chat.postEphemeral", body).await;
    }

    /// Calls a method whose failure changes nothing that counts.
    async fn tell(&self, method: &str, body: Value) {
        if let Err(error) = self.listener.api.call(method, &body).await {
            tracing::warn!(error = error.message, "Slack was not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slacks_own_addresses_are_connected_to() {
        let trusted = |api: &str, socket: &str| is_trusted(&api.parse().unwrap(), &socket.parse().unwrap());
        let slack = "https://slack.com/api";
        assert_eq!(
            [
                trusted(slack, "wss://wss-primary.slack.com/link"),
                trusted(slack, "ws://wss-primary.slack.com/link"),
                trusted(slack, "wss://notslack.com/link"),
                trusted(slack, "wss://127.0.0.1/link"),
                trusted("http://127.0.0.1:1/api", "ws://127.0.0.1:2/link"),
            ],
            [true, false, false, false, true]
        );
    }

    #[test]
    fn a_connection_that_is_of_no_use_is_tried_again_later_each_time() {
        let mut wait = FIRST_WAIT;
        let waits: Vec<u64> = std::iter::repeat_with(|| {
            wait = wait_after(wait, Some(Duration::ZERO));
            wait.as_secs()
        })
        .take(8)
        .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        let asked = |seconds| wait_after(FIRST_WAIT, Some(Duration::from_secs(seconds))).as_secs();
        assert_eq!([asked(0), asked(90)], [1, 90]);
    }
}
