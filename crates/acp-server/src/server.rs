//! The agent as editors see it: which methods there are, and what each does.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inspan_protocol::{Event, SessionId};
use inspan_sessions::{SessionError, SessionErrorCode, Sessions};
use inspan_view::DisplayStatus;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::chat::{ActiveTurn, Chat, CurrentSession, conversation_of};
use crate::input::commands;
use crate::rpc::{
    Client, INTERNAL_ERROR, INVALID_REQUEST, Incoming, METHOD_NOT_FOUND, Messages, NOT_FOUND, RpcError,
    write_lines,
};
use crate::turn::watch;
use crate::updates::InputEcho;
use crate::wire::{self, params, says};

mod prompt;

/// Opens the sessions of the store together with the flows of a folder.
pub type OpenSessions = Arc<dyn Fn(&Path) -> Result<Sessions, SessionError> + Send + Sync>;

/// Gives an id that no session has.
pub type FreshId = Arc<dyn Fn() -> SessionId + Send + Sync>;

/// Conversations that are open at once.
const MOST_CHATS: usize = 200;
/// Requests that are worked on at once.
const MOST_REQUESTS: usize = 100;
/// Conversations that are listed at once.
const PAGE: usize = 50;
/// How many sessions are searched for a list.
const LOOKED_AT: usize = 2000;
/// Events that are read at once.
const EVENTS: usize = 500;

/// Serves one editor until it is gone. Sessions that it started continue.
pub async fn serve(
    open: OpenSessions,
    fresh_id: FreshId,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) {
    let (client, lines) = Client::new();
    let mut writer = tokio::spawn(write_lines(lines, output));
    let mut messages = Messages::new(input, client.clone());
    let server = Arc::new(Server {
        client,
        open,
        fresh_id,
        chats: Mutex::default(),
        is_greeted: AtomicBool::new(false),
        shows_forms: AtomicBool::new(false),
    });
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            message = messages.next() => match message {
                None => break,
                Some(Incoming::Request { id, method, params }) => {
                    server.request(&mut work, id, &method, params).await;
                }
                Some(Incoming::Notification { method, params }) => server.notification(&method, params),
            },
            // The editor reads no more.
            _ = &mut writer => return,
            Some(_) = work.join_next(), if !work.is_empty() => {}
        }
    }
    // What was answered until now still goes out; what waits for a session does not wait any more.
    server.chats.lock().values().for_each(|chat| chat.close());
    drop((work, messages, server));
    let _ = writer.await;
}

struct Server {
    client: Client,
    open: OpenSessions,
    fresh_id: FreshId,
    chats: Mutex<HashMap<String, Arc<Chat>>>,
    is_greeted: AtomicBool,
    shows_forms: AtomicBool,
}

impl Server {
    /// Answers a request. What takes long is done beside the next message.
    async fn request(self: &Arc<Self>, work: &mut JoinSet<()>, id: Value, method: &str, params: Value) {
        if method != "initialize" && !self.is_greeted.load(Ordering::Relaxed) {
            let early = RpcError::new(INVALID_REQUEST, "the first request must be `initialize`");
            return self.client.answer(&id, Err(early)).await;
        }
        if work.len() >= MOST_REQUESTS {
            let many = RpcError::new(INTERNAL_ERROR, "too many requests are worked on");
            return self.client.answer(&id, Err(many)).await;
        }
        let result = match method {
            "initialize" => self.initialize(params),
            "session/new" => return self.new_session(&id, params).await,
            "session/load" | "session/resume" => {
                let (server, replays) = (Arc::clone(self), method == "session/load");
                work.spawn(async move {
                    let result = server.old_session(params, replays).await;
                    match result {
                        Ok(chat) => {
                            server.client.answer(&id, Ok(json!({}))).await;
                            server.offer_commands(&chat).await;
                            server.watch(&chat);
                        }
                        Err(error) => server.client.answer(&id, Err(error)).await,
                    }
                });
                return;
            }
            "session/list" => self.list(params).await,
            "session/close" => self.close(params),
            "session/prompt" => return self.prompt(work, id, params).await,
            "authenticate" => Err(RpcError::params("no login is needed")),
            _ => Err(RpcError::new(METHOD_NOT_FOUND, format!("there is no method `{method}`"))),
        };
        self.client.answer(&id, result).await;
    }

    /// Notifications that are not known are ignored, as the protocol wants it.
    fn notification(&self, method: &str, given: Value) {
        match method {
            "session/cancel" => {
                if let Ok(wire::OfSession { session_id }) = params(given) {
                    self.cancel(|chat, _| chat.id == session_id);
                }
            }
            "$/cancel_request" => {
                if let Ok(wire::CancelRequest { request_id }) = params(given) {
                    self.cancel(|_, turn| turn.request == request_id);
                }
            }
            _ => {}
        }
    }

    fn cancel(&self, is_meant: impl Fn(&Chat, &ActiveTurn) -> bool) {
        for chat in self.chats.lock().values() {
            if let Some(turn) = chat.turn.lock().as_ref().filter(|turn| is_meant(chat, turn)) {
                turn.cancelled.cancel();
            }
        }
    }

    fn initialize(&self, given: Value) -> Result<Value, RpcError> {
        let asked: wire::Initialize = params(given)?;
        self.shows_forms.store(asked.client_capabilities.shows_forms(), Ordering::Relaxed);
        self.is_greeted.store(true, Ordering::Relaxed);
        Ok(wire::initialized())
    }

    async fn new_session(&self, id: &Value, given: Value) {
        let opened = params(given).and_then(|wire::NewSession { cwd }| {
            let chat = self.new_chat(Chat::id_of(&(self.fresh_id)()), cwd)?;
            self.put_chat(&chat)?;
            Ok(chat)
        });
        match opened {
            Ok(chat) => {
                self.client.answer(id, Ok(json!({ "sessionId": chat.id }))).await;
                self.offer_commands(&chat).await;
            }
            Err(error) => self.client.answer(id, Err(error)).await,
        }
    }

    fn new_chat(&self, id: String, cwd: PathBuf) -> Result<Arc<Chat>, RpcError> {
        if !cwd.is_absolute() {
            return Err(RpcError::params(format!("`cwd` must be an absolute path, not `{}`", cwd.display())));
        }
        if !cwd.is_dir() {
            let message = format!("`cwd` must be a folder that exists, not `{}`", cwd.display());
            return Err(RpcError::params(message));
        }
        let sessions = (self.open)(&cwd).map_err(|error| refused(&error))?;
        Ok(Chat::new(id, cwd, sessions))
    }

    /// Opens a conversation, in the place of the one that is open under its id.
    fn put_chat(&self, chat: &Arc<Chat>) -> Result<(), RpcError> {
        let mut chats = self.chats.lock();
        match chats.get(&chat.id) {
            Some(old) => {
                without_turn(old)?;
                old.close();
            }
            None if chats.len() >= MOST_CHATS => {
                let message = format!("at most {MOST_CHATS} conversations can be open");
                return Err(RpcError::new(INTERNAL_ERROR, message));
            }
            None => {}
        }
        chats.insert(chat.id.clone(), Arc::clone(chat));
        Ok(())
    }

    /// Shows what happens in a conversation beside turns.
    fn watch(&self, chat: &Arc<Chat>) {
        if let Some(end) = chat.begin_watch() {
            let shows_forms = self.shows_forms.load(Ordering::Relaxed);
            tokio::spawn(watch(self.client.clone(), Arc::clone(chat), shows_forms, end));
        }
    }

    fn chat(&self, id: &str) -> Result<Arc<Chat>, RpcError> {
        let known = self.chats.lock().get(id).cloned();
        known.ok_or_else(|| RpcError::new(NOT_FOUND, format!("there is no open session `{id}`")))
    }

    /// Opens a conversation again. Its session is not resumed: that is what the next prompt does.
    async fn old_session(&self, given: Value, replays: bool) -> Result<Arc<Chat>, RpcError> {
        let wire::OldSession { session_id, cwd } = params(given)?;
        let unknown = |why: String| RpcError::new(NOT_FOUND, why);
        SessionId::checked(&session_id).map_err(|error| unknown(error.to_string()))?;
        let chat = self.new_chat(session_id, cwd)?;
        let old = self.chats.lock().get(&chat.id).cloned();
        if let Some(old) = &old {
            without_turn(old)?;
            // It shows nothing while the same is shown again.
            old.end_watch();
        }
        let loaded = match self.replay(&chat, replays).await {
            // One that is open need not have started anything yet.
            Ok(has_any) if has_any || old.is_some() => self.put_chat(&chat),
            Ok(_) => Err(unknown(format!("there is no session `{}`", chat.id))),
            Err(error) => Err(refused(&error)),
        };
        if let (Err(_), Some(old)) = (&loaded, &old) {
            self.watch(old);
        }
        loaded.map(|()| chat)
    }

    /// Sends the updates of all sessions of a conversation, and is then at the end of the newest.
    /// False if there are none.
    async fn replay(&self, chat: &Chat, replays: bool) -> Result<bool, SessionError> {
        let mut newest = None;
        let flows = chat.sessions.launcher().flows().await?;
        for session in chat.started().await? {
            let mut run = CurrentSession::open(&chat.sessions, session, &flows).await?;
            loop {
                let events = chat.sessions.events(&run.session, run.next, EVENTS).await?;
                let Some(last) = events.last() else { break };
                run.next = last.seq + 1;
                for envelope in &events {
                    let closed = run.open.apply(envelope);
                    if let (true, Event::SessionPrompt(prompt)) = (replays, &envelope.event) {
                        chat.note_shown(&prompt.prompt_id);
                    }
                    let mut updates = run.updates.of(envelope, InputEcho::Replayed);
                    updates.extend(run.updates.closed(&closed));
                    if replays {
                        for update in updates {
                            chat.update(&self.client, update).await;
                        }
                    }
                }
            }
            newest = Some(run);
        }
        let has_any = newest.is_some();
        *chat.run.lock().await = newest;
        Ok(has_any)
    }

    async fn list(&self, given: Value) -> Result<Value, RpcError> {
        let given = if given.is_null() { json!({}) } else { given };
        let wire::ListSessions { cwd, cursor } = params(given)?;
        let from = match &cursor {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| RpcError::params("the `cursor` is none of ours"))?,
        };
        let until = PAGE.saturating_add(from);
        let folder = cwd.clone().unwrap_or_else(|| PathBuf::from("/"));
        // A session knows its folder without links.
        let cwd = cwd.map(|cwd| cwd.canonicalize().unwrap_or(cwd));
        let sessions = (self.open)(&folder).map_err(|error| refused(&error))?;
        let mut listed: Vec<Value> = Vec::new();
        let mut seen = HashSet::new();
        let entries = sessions.list(LOOKED_AT).await.map_err(|error| refused(&error))?;
        let continued =
            entries.iter().filter_map(|entry| Some((entry.continued_by.as_ref()?, &entry.session)));
        let continued: HashMap<&SessionId, &SessionId> = continued.collect();
        for entry in &entries {
            let mut first = &entry.session;
            while let Some(before) = continued.get(first) {
                first = before;
            }
            let conversation = conversation_of(first);
            if entry.damage.is_some() || !seen.insert(conversation) {
                continue;
            }
            let Ok(record) = sessions.record(&entry.session).await else { continue };
            let worked_in = record.settings.get("cwd").and_then(Value::as_str).unwrap_or("/");
            if cwd.as_ref().is_some_and(|cwd| cwd != Path::new(worked_in)) {
                continue;
            }
            listed.push(json!({
                "sessionId": conversation,
                "cwd": worked_in,
                "title": format!("{} ({})", entry.flow, DisplayStatus::of(entry).word()),
                "updatedAt": entry.digest.updated_at.unwrap_or(entry.created_at),
            }));
            if listed.len() > until {
                break;
            }
        }
        let page: Vec<&Value> = listed.iter().skip(from).take(PAGE).collect();
        let mut answer = json!({ "sessions": page });
        if listed.len() > until {
            answer["nextCursor"] = json!(until.to_string());
        }
        Ok(answer)
    }

    /// Forgets a conversation; a turn in progress is cancelled as by `session/cancel`.
    fn close(&self, given: Value) -> Result<Value, RpcError> {
        let wire::OfSession { session_id } = params(given)?;
        self.chat(&session_id)?.close();
        self.chats.lock().remove(&session_id);
        Ok(json!({}))
    }

    /// Says which commands there are.
    async fn offer_commands(&self, chat: &Chat) {
        match chat.sessions.launcher().flows().await {
            Ok(flows) => {
                chat.update(&self.client, commands(&flows)).await;
                for flow in flows.iter().filter(|flow| flow.graph.is_none()) {
                    let file = flow.file.display();
                    let text = format!(
                        "Flow `{}` has problems and is not offered: `inspan check {file}` shows them.\n",
                        flow.id
                    );
                    chat.update(&self.client, says(&text)).await;
                }
            }
            Err(error) => {
                chat.update(&self.client, says(&format!("The flows cannot be read: {}\n", error.message)))
                    .await
            }
        }
    }
}

/// Refuses what cannot be done to a conversation while a turn is in progress.
fn without_turn(chat: &Chat) -> Result<(), RpcError> {
    if chat.turn.lock().is_some() {
        let message = format!("a turn of session `{}` is in progress", chat.id);
        return Err(RpcError::new(INVALID_REQUEST, message));
    }
    Ok(())
}

fn refused(error: &SessionError) -> RpcError {
    let code = if error.code == SessionErrorCode::UnknownSession { NOT_FOUND } else { INTERNAL_ERROR };
    let hint = error.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    RpcError::new(code, format!("{}{hint}", error.message))
}
